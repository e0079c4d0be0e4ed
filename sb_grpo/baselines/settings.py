"""What there is to choose of the state baseline: names, defaults and what they mean."""

from __future__ import annotations

from dataclasses import dataclass

from sb_grpo.ranges import check_fields


@dataclass(frozen=True)
class StateSettings:
    """What there is to choose of a :class:`~sb_grpo.baselines.state.StateBaseline`.

    :param n_features: number of random Fourier features; by default 32 per input, between 128 and 512
    :param scale: length scale of the kernel, in standard deviations per input
    :param horizons: fit the predictions of :class:`~sb_grpo.baselines.horizons.Horizons` in place of the features themselves:
        a second layer, whose inputs the values have shaped
    :param memory: weight of the rollouts before relative to the newest one, per rollout of age; in [0, 1)
    :param follow_level: let the targets of the rollouts before move with the level: by as much as the newest ones lie above
        what the weights before predict, on average. Where rewards go on and ``gamma`` is near 1, values grow by bootstrapping
        for a long time, and older targets that stay behind bend the fit between old and new states
    :param anchor: share of the weights before that the ridge pulls towards; in [0, 1]
    :param sweeps: times that a rollout is fitted; from the second on, its lambda-returns bootstrap from the fit just
        made (fitted value iteration). Rollouts of more than ``fit_rows`` steps are fitted once
    :param seed: of the random projection; the same in every run, so there is nothing to save
    :param fit_rows: a rollout of more steps is fitted on that many of them, evenly spaced over its episodes
    :param least_rows: rollouts of fewer steps wait until they are that many together, and are then fitted as one; until then
        the fit before judges them, at first 0. A fit to a handful of steps that bootstrap from each other diverges. Of n tasks
        each waits for its n-th part of that number
    :param folds: parts that the episodes of a rollout are dealt into; the values of one part come from a fit to the others
        and the past (cross-fitting: Chernozhukov et al., 2018, section 3). 1: to the past alone, as in rollouts of more than
        ``fit_rows`` steps, where it is a smaller share that the newest one adds
    :param paired: take out of each residual the luck that the other members of its same-seed group had at the same step
        (:class:`~sb_grpo.baselines.paired.Pairing`): True with a fitted coefficient, or that coefficient, in [0, 1].
        None: True where groups have two members or more that share their luck
    """

    n_features: int | None = None
    scale: float = 1.0
    horizons: bool = False
    memory: float = 0.25
    follow_level: bool = False
    anchor: float = 0.9
    sweeps: int = 4
    seed: int = 0
    fit_rows: int = 4096
    least_rows: int = 256
    folds: int = 4
    paired: bool | float | None = None

    def __post_init__(self) -> None:
        check_fields("advantage_kwargs", self)
