"""Settings of the state baseline."""

from __future__ import annotations

from dataclasses import dataclass

from sb_grpo.ranges import check_fields


@dataclass(frozen=True)
class StateSettings:
    """Settings of a :class:`~sb_grpo.baselines.state.StateBaseline`.

    :param n_features: number of random Fourier features; by default 32 per input, between 128 and 512
    :param scale: length scale of the kernel, in standard deviations per input
    :param horizons: fit on the predictions of :class:`~sb_grpo.baselines.horizons.Horizons` instead of the policy's features:
        a second layer
    :param memory: weight of earlier rollouts relative to the newest, per rollout of age; in [0, 1)
    :param follow_level: shift the targets of earlier rollouts by the mean difference between the newest targets and the
        predictions of the previous weights. If rewards do not end and ``gamma`` is near 1, values rise for a long time, and
        old targets would bend the fit between old and new states
    :param anchor: share of the previous weights that the ridge pulls towards; in [0, 1]
    :param sweeps: fits per rollout; from the second on, lambda-returns bootstrap from the newest fit (fitted value iteration).
        Rollouts of more than ``fit_rows`` steps are fitted once
    :param seed: of the random projection; the same in every run, so there is nothing to save
    :param fit_rows: longer rollouts are fitted on this number of steps, evenly spaced over the episodes
    :param least_rows: shorter rollouts are collected until they have this number of steps together, then fitted as one. Until
        then they use the previous fit, at first 0. A fit to a few steps that bootstrap from each other diverges. With n tasks
        the number is divided by n
    :param folds: parts of a rollout's episodes; the values of one part come from a fit to the others and the past
        (cross-fitting: Chernozhukov et al., 2018, section 3). 1: from the past alone. Rollouts of more than ``fit_rows`` steps
        also use the past alone
    :param paired: subtract from each residual the noise shared with the other members of its same-seed group at the same step
        (:class:`~sb_grpo.baselines.paired.Pairing`): True with a fitted coefficient, or a fixed coefficient in [0, 1]. None:
        True if groups have two members or more that share their noise
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
