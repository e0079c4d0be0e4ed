"""Advantage estimators that ``advantage=`` names.

An estimator has ``uses_values`` (it needs the policy's features, and bootstraps after the rollout's end), ``whole_episodes``
(it needs groups whose members have all ended) and ``estimate``. An estimator that learns is an ``nn.Module``, which is moved
to the model's device and saved with the model. If its size depends on the policy or on the tasks, ``build`` makes it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch as th

from sb_grpo import distributed
from sb_grpo.baselines.estimation import Baselines
from sb_grpo.baselines.state import StateBaseline
from sb_grpo.config import StateSettings, check_fields, check_keys, is_function, read_settings, shown
from sb_grpo.maths.estimators import anchor, outcome, process, step
from sb_grpo.maths.per_step import numbers_of
from sb_grpo.policies.extra_inputs import env_part
from sb_grpo.types import NOTHING, AdvantageOptions, Estimate, Features, Rollout, Settings, TensorOrDict

#: Share of recurring states below which ``"anchor"`` warns that it is little more than ``"outcome"``.
FEW_RECUR = 0.1


@dataclass(frozen=True)
class OfReturns:
    """Base of the estimators that compare the members' returns. They need whole episodes and learn nothing."""

    #: Baseline: ``"mean"``, ``"leave_one_out"`` or ``"median"`` of the group, or ``"global"``: the mean of all.
    baseline: str = "mean"

    uses_values: ClassVar[bool] = False
    whole_episodes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields("advantage_kwargs", self)

    @property
    def needs_other_members(self) -> bool:
        """A group of one has no advantages."""
        return self.baseline != "global"


class Outcome(OfReturns):
    """Outcome supervision (DeepSeekMath, arXiv 2402.03300, eq. 3): :func:`~sb_grpo.maths.estimators.outcome`."""

    def estimate(
        self, rollout: Rollout, options: AdvantageOptions, features: Features | None = None, objective: int = 0
    ) -> Estimate:
        return Estimate(outcome(rollout, options, self.baseline))


class Process(OfReturns):
    """Process supervision (DeepSeekMath, section 4.1.3): :func:`~sb_grpo.maths.estimators.process`."""

    def estimate(
        self, rollout: Rollout, options: AdvantageOptions, features: Features | None = None, objective: int = 0
    ) -> Estimate:
        return Estimate(process(rollout, options, self.baseline))


@dataclass(frozen=True)
class Step(OfReturns):
    """Time-aligned group baseline (GPG with f = t, arXiv 2510.03679): :func:`~sb_grpo.maths.estimators.step`."""

    #: Members that have ended count as return 0 (``"zero"``) or not at all (``"drop"``).
    ended_members: str = "zero"

    def estimate(
        self, rollout: Rollout, options: AdvantageOptions, features: Features | None = None, objective: int = 0
    ) -> Estimate:
        return Estimate(step(rollout, options, self.baseline, self.ended_members))


@dataclass(frozen=True)
class Anchor(OfReturns):
    """Groups of recurring states (GiGPO, arXiv 2505.10978): :func:`~sb_grpo.maths.estimators.anchor`."""

    #: Weight of the part by states; the episode's part has 1.
    anchor_weight: float = 1.0
    #: Function of a :class:`Rollout` that returns ``[M]`` or ``[M, n]`` numbers; steps with equal ones are in one state. None:
    #: the whole observation.
    anchor_key: Callable[[Rollout], th.Tensor] | None = None

    warned: ClassVar[bool] = False

    def estimate(
        self, rollout: Rollout, options: AdvantageOptions, features: Features | None = None, objective: int = 0
    ) -> Estimate:
        advantages, recurs = anchor(rollout, options, self.states(rollout), self.baseline, self.anchor_weight)
        after_the_start = (rollout.t > 0).to(advantages.dtype)  # members share their start anyway
        recurring, steps = distributed.totals((recurs * after_the_start).sum(), after_the_start.sum())
        share = float(recurring / steps.clamp(min=1.0))
        if share < FEW_RECUR and not self.warned:
            vars(self)["warned"] = True
            warnings.warn(
                f"advantage='anchor': {share:.1%} of the steps after an episode's start are in a state that occurs at another "
                "step of their group, so there is little to compare. Pass advantage_kwargs=dict(anchor_key=...), a function "
                "of the rollout that rounds or selects what makes a state, or use advantage='step' or 'state'. VecNormalize "
                "gives one state another value at every step: use policy_kwargs=dict(normalize_obs=True) in its place.",
                UserWarning,
                stacklevel=2,
            )
        return Estimate(advantages, metrics={"group/anchor_fraction": share})

    def states(self, rollout: Rollout) -> th.Tensor:
        """Number the states of the steps: ``[M]`` int64.

        :raises ValueError: if ``anchor_key`` returns something else than one row of numbers per step
        """
        if self.anchor_key is None:
            observations = env_part(rollout.observations)
        else:
            observations = numbers_of(self.anchor_key(rollout), rollout.rewards.device)
            if observations is None or observations.shape[:1] != rollout.rewards.shape:
                got = "no tensor of numbers" if observations is None else f"shape {tuple(observations.shape)}"
                raise ValueError(
                    f"advantage_kwargs: anchor_key returned {got}; it must return one row of numbers per step, a tensor whose "
                    f"first dimension is {len(rollout.rewards)}."
                )
        return _numbered(observations)


def _numbered(observations: TensorOrDict) -> th.Tensor:
    """``[M]`` int64 number of each row; equal rows have equal numbers."""
    if isinstance(observations, Mapping):
        parts = th.stack([_numbered(part) for part in observations.values()], dim=1)
        return _numbered(parts)
    rows = observations.flatten(1) if observations.ndim > 1 else observations.unsqueeze(1)
    number: th.Tensor = th.unique(rows, dim=0, return_inverse=True)[1]
    return number


@dataclass(frozen=True)
class State(StateSettings):
    """State-conditioned group baseline, fitted in closed form: :class:`~sb_grpo.baselines.state.StateBaseline`."""

    uses_values: ClassVar[bool] = True
    whole_episodes: ClassVar[bool] = False
    needs_other_members: ClassVar[bool] = False

    def build(self, features_dim: int, n_tasks: int, n_objectives: int) -> StateBaseline | Baselines:
        """Build the baseline of a model, or one for each task and objective."""
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        settings["least_rows"] = max(self.least_rows // n_tasks, 1)  # a rollout's steps are divided among the tasks

        def make() -> StateBaseline:
            return StateBaseline(features_dim, **settings)

        return make() if n_tasks * n_objectives == 1 else Baselines(make, n_tasks, n_objectives)


@dataclass(frozen=True)
class OfFunction:
    """User function of (:class:`Rollout`, :class:`AdvantageOptions`) and keyword arguments."""

    function: Callable[..., th.Tensor]
    kwargs: Settings = field(default_factory=lambda: NOTHING)

    uses_values: ClassVar[bool] = False
    whole_episodes: ClassVar[bool] = True
    needs_other_members: ClassVar[bool | None] = None  # unknown for a function

    def estimate(
        self, rollout: Rollout, options: AdvantageOptions, features: Features | None = None, objective: int = 0
    ) -> Estimate:
        return Estimate(self.function(rollout, options, **self.kwargs))


NAMES: dict[str, type] = {"outcome": Outcome, "process": Process, "step": Step, "anchor": Anchor, "state": State}


def make_estimator(advantage: Any, kwargs: Mapping[str, object] | None) -> Any:
    """Make the estimator that ``advantage`` and ``advantage_kwargs`` describe; not built yet.

    :raises ValueError: for an unknown estimator, and for unknown keyword arguments
    """
    if isinstance(advantage, str) and advantage in NAMES:
        return read_settings("advantage_kwargs", NAMES[advantage], kwargs, f"advantage={advantage!r}")
    if hasattr(advantage, "estimate") or hasattr(advantage, "build"):
        if isinstance(advantage, type):
            raise ValueError(f"advantage={advantage!r} is a class: pass an object, {advantage.__name__}(...).")
        check_keys("advantage_kwargs", kwargs or {}, (), f"advantage={advantage!r}, which has its own settings,")
        for name in ("uses_values", "whole_episodes"):
            if not hasattr(advantage, name):
                raise ValueError(f"advantage={advantage!r} must say what it needs: it has no attribute {name} (a bool).")
        return advantage
    if is_function(advantage, 2, kwargs):
        return OfFunction(advantage, dict(kwargs or {}))
    raise ValueError(
        f"advantage={shown(advantage)} is unknown; use one of {list(NAMES)}, an object with a method estimate, or a function "
        "of (Rollout, AdvantageOptions) and advantage_kwargs."
    )
