"""What the dicts among GRPO's arguments hold: tasks and groups of episodes, rewards, starts of groups, the update's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from sb_grpo.rules import check_keys, plain, shown

T = TypeVar("T")


@dataclass(frozen=True)
class GroupOptions:
    """How the members of a group are started (``group_kwargs=``)."""

    #: False: members share the start state but not the noise that ``step`` draws.
    shared_noise: bool = True


@dataclass(frozen=True)
class UpdateOptions:
    """What an update costs (``update_kwargs=``)."""

    #: Rows in memory at once; gradients accumulate to ``batch_size``. None: the whole minibatch. Of a policy with a memory a
    #: part is cut between two stretches of ``sequence_length`` steps, never within one.
    micro_batch_size: int | None = None
    #: Run the networks in bfloat16.
    autocast: bool = False
    #: Of a policy with a memory: steps through which gradients go back. None: ``micro_batch_size`` where that is set, else
    #: ``batch_size``.
    sequence_length: int | None = None


@dataclass(frozen=True)
class Multitask:
    """Which tasks there are, who is compared with whom, and how much each group weighs (``multitask=``)."""

    #: Number or names of the tasks that the env reports, as an id or name in ``info["task"]``; needed to group by task, and
    #: enough to log returns per task.
    tasks: int | Sequence[str] | None = None
    #: Key of the task in the infos, or in a Dict observation (an integer or one-hot).
    task_key: str = "task"
    #: Who is compared with whom: ``"seed"``, ``"task"``, ``"hierarchical"`` (same seed, then tasks on one scale),
    #: ``"difficulty"`` (quantiles of the return), ``"length"``, ``"auto"`` (k-means), or a function from a rollout to one
    #: label per episode.
    grouping: Any = "seed"
    #: Of :class:`~sb_grpo.extras.grouping.ByQuantile` (``n_quantiles``) or :class:`~sb_grpo.extras.grouping.Clusters`
    #: (``n_clusters``, ``window``).
    grouping_kwargs: Mapping[str, Any] | None = None
    #: Share of each group in the loss: None (as many rows as it has), ``"balanced"``, ``"performance"``, ``"adaptive"``, or
    #: a function of (:class:`Rollout`, labels) that returns one share per group.
    weights: Any = None
    #: Of :class:`~sb_grpo.extras.group_weights.GroupWeights`.
    weights_kwargs: Mapping[str, Any] | None = None
    #: One gradient per task, conflicts between them projected away (PCGrad).
    surgery: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the declared tasks; their places are the task ids."""
        return task_names(self.tasks)


@dataclass(frozen=True)
class Rewards:
    """What a step's reward is (``rewards=``)."""

    #: Weights by name of the rewards in ``info["rewards"]``, whose sum takes the place of the env's reward.
    objectives: Mapping[str, float] | None = None
    #: ``"sum"``: add the objectives up, then estimate; ``"each"``: estimate and normalise every objective by itself, then add
    #: up (GDPO).
    normalization: str = "sum"
    #: ``"none"``, ``"clip"`` or ``"tanh"``: bound step rewards by ``clip``.
    scaling: str = "none"
    #: The bound.
    clip: float = 10.0
    #: :class:`CountBonus`, :class:`RNDBonus` or a function of a :class:`Rollout` that returns one number per step: added to
    #: the (scaled) rewards before advantages are computed; returns are logged without it.
    bonus: Any = None


def task_names(tasks: int | Sequence[str] | None) -> tuple[str, ...]:
    """Names of tasks.

    :param tasks: how many, or their names; None: no tasks
    """
    if tasks is None:
        return ()
    return tuple(tasks) if isinstance(tasks, Sequence) else tuple(f"task_{i}" for i in range(tasks))


def read_options(kind: type[T], argument: str, given: Any) -> T:
    """Options from what an argument was given: an object of their class, a dict of its fields, or None.

    :raises ValueError: for anything else, and for unknown keys
    """
    if isinstance(given, kind):
        return given
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"{argument}={shown(given)} must be a dict with keys among {names}, a {kind.__name__}, or None.")
    check_keys(argument, given or {}, names, f"{argument}=")
    return kind(**{name: plain(value) for name, value in (given or {}).items()})
