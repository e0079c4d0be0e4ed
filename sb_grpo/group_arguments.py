"""What the arguments about tasks, groups and objectives must satisfy, alone and together."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.extras.group_weights import GroupWeights
from sb_grpo.extras.grouping import ByQuantile, Clusters
from sb_grpo.given import Arguments
from sb_grpo.options import Multitask
from sb_grpo.ranges import GROUP_WEIGHTS
from sb_grpo.rules import check_keys

#: Groupings whose size is an argument, and the arguments of the other ones.
_GROUPING_KWARGS: dict[str, tuple[str, ...]] = {
    **{name: tuple(inspect.signature(ByQuantile).parameters)[1:] for name in ("difficulty", "length")},
    "auto": tuple(inspect.signature(Clusters).parameters)[2:],
}


def check_groups(given: Arguments) -> None:
    """Check tasks, grouping, weights, surgery and objectives of a model.

    :raises ValueError: for the first rule that is broken
    """
    multitask, env = given.multitask, given.env
    _check_tasks(multitask, env)
    _check_grouping(given)
    _check_weights(multitask)
    if multitask.surgery and len(multitask.names) < 2:
        raise ValueError(
            f"multitask: surgery=True settles conflicts between tasks, but tasks={multitask.tasks!r}. Declare at least 2 with "
            "tasks=, as a number or a list of names."
        )
    _check_objectives(given)
    if isinstance(env, TensorVecEnv) and not given.groups.shared_noise:
        raise ValueError(
            "group_kwargs: shared_noise=False lets the members of a group draw noise of their own in step(), which a "
            f"{type(env).__name__} cannot do: its luck follows from the reset seed alone. Use host envs (make_vec_env), "
            "or leave it out."
        )
    if asks_for_pairs(given.estimator) and not given.groups.shared_noise:
        warnings.warn(
            f"advantage_kwargs: paired={given.estimator.paired!r} with shared_noise=False: members draw noise of their own in "
            "step(), so nothing is left to pair but the start. Use shared_noise=True where pairing is to help.",
            UserWarning,
            stacklevel=4,
        )


def check_comparable(given: Arguments) -> None:
    """Check that groups of so many members can be paired and clustered as they are to be.

    :raises ValueError: if they cannot
    """
    multitask = given.multitask
    obstacle = obstacle_to_pairs(given.group_size, multitask.grouping, given.env)
    if asks_for_pairs(given.estimator) and obstacle is not None:
        raise ValueError(
            f"advantage_kwargs: paired={given.estimator.paired!r} subtracts the luck that members of a same-seed group share, "
            f"but {obstacle}, or paired=False."
        )
    if multitask.grouping == "auto" and given.n_groups is not None:
        n_clusters = (multitask.grouping_kwargs or {}).get("n_clusters", 4)
        episodes = given.n_groups * given.group_size
        if n_clusters > episodes:
            raise ValueError(
                f"grouping_kwargs: n_clusters={n_clusters} is more than the {episodes} episodes of a rollout (n_groups="
                f"{given.n_groups} x group_size={given.group_size}). Lower n_clusters or raise n_groups."
            )


def asks_for_pairs(estimator: Any) -> bool:
    """``paired`` was given, and is not False. A coefficient of 0 asks for pairs too."""
    paired = getattr(estimator, "paired", None)
    return paired is not None and paired is not False


def obstacle_to_pairs(group_size: int, grouping: Any, env: Any) -> str | None:
    """Why members of a group have no peers that share their luck, and what to do; None where they have."""
    if group_size == 1:
        return "group_size=1 gives a member no peers. Use group_size >= 2"
    if grouping not in ("seed", "hierarchical"):
        return f"grouping={grouping!r} compares episodes of different seeds. Use grouping='seed' (or 'hierarchical')"
    if isinstance(env, TensorVecEnv) and env.grouping == "state":
        return (
            f"{type(env).__name__} cannot seed its resets (grouping='state'), so that members share a start and nothing more. "
            "Use an env whose reset seeds decide its randomness"
        )
    return None


def _check_tasks(multitask: Multitask, env: Any) -> None:
    tasks: Any = multitask.tasks
    if tasks is None:
        if multitask.task_key != "task":
            raise ValueError(f"task_key={multitask.task_key!r} has no effect without tasks: declare them with tasks=.")
        return
    if isinstance(env, TensorVecEnv):
        if env.tasks is None:
            raise ValueError(
                f"tasks={tasks!r}, but {type(env).__name__} has one task only: its property tasks is None. Give it one "
                "that returns the task of every slot, int64."
            )
        if multitask.task_key != "task":
            raise ValueError(
                f"task_key={multitask.task_key!r} has no effect with a tensor env, whose property tasks is asked."
            )


def _check_grouping(given: Arguments) -> None:
    multitask = given.multitask
    grouping: Any = multitask.grouping
    if grouping in ("task", "hierarchical") and multitask.tasks is None:
        raise ValueError(
            f"grouping={grouping!r} needs to know the tasks: declare them with tasks=, as a number or a list of names."
        )
    known = () if callable(grouping) else _GROUPING_KWARGS.get(grouping, ())
    check_keys("multitask: grouping_kwargs", multitask.grouping_kwargs or {}, known, f"grouping={grouping!r}")
    without_effect = (
        (callable(grouping) or grouping in ("difficulty", "length", "auto"))
        and given.estimator.uses_values
        and given.normalize_advantage != "group"
        and multitask.weights is None
    )
    if without_effect:
        raise ValueError(
            f"grouping={grouping!r} has no effect with advantage={given.advantage!r} and "
            f"normalize_advantage={given.normalize_advantage!r}: use normalize_advantage='group', or weights=."
        )


def _check_weights(multitask: Multitask) -> None:
    kind: Any = multitask.weights
    if kind is None:
        if multitask.weights_kwargs:
            raise ValueError(
                f"multitask: weights_kwargs={multitask.weights_kwargs} has no effect without weights: choose one of "
                f"{list(GROUP_WEIGHTS)}."
            )
        return
    known = list(inspect.signature(GroupWeights).parameters)[2:]
    check_keys("multitask: weights_kwargs", multitask.weights_kwargs or {}, known, f"weights={kind!r}")
    lasting = hasattr(multitask.grouping, "n_labels") if callable(multitask.grouping) else multitask.grouping != "seed"
    if kind in ("performance", "adaptive") and not lasting:
        what = "same-seed groups never come back" if multitask.grouping == "seed" else "labels have no lasting meaning"
        raise ValueError(
            f"weights={kind!r} follows groups over time, but with grouping={multitask.grouping!r} {what}. Use "
            "weights='balanced', grouping='task', or a function with an attribute n_labels."
        )


def _check_objectives(given: Arguments) -> None:
    rewards = given.rewards
    objectives: Any = rewards.objectives
    if objectives is None:
        if rewards.normalization != "sum":
            raise ValueError("rewards: normalization='each' has no effect without objectives: give their weights by name.")
        return
    if not any(objectives.values()):
        raise ValueError(f"objectives={objectives} are all 0: there would be nothing to learn from.")
    if rewards.normalization == "each" and given.normalize_advantage == "none":
        raise ValueError(
            "rewards: normalization='each' has no effect with normalize_advantage='none'. Use 'group' or 'batch', or "
            "normalization='sum'."
        )
    if rewards.normalization == "each" and rewards.bonus is not None:
        raise ValueError(
            "rewards: bonus= is added to the one reward of a step, but normalization='each' keeps the objectives "
            "apart. Use normalization='sum'."
        )
    if isinstance(given.env, TensorVecEnv):
        _check_tensor_objectives(list(objectives), given.env)


def _check_tensor_objectives(names: list[str], env: TensorVecEnv) -> None:
    if tuple(names) != tuple(env.objective_names):
        raise ValueError(
            f"objectives has weights for {names}, but {type(env).__name__}.objective_names is {list(env.objective_names)}: "
            "give a weight for each of them, in this order (0 to ignore one)."
        )
