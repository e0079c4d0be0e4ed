"""Rules between a policy's memory or routing and the other arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any


def check_memory(
    policy_class: Any,
    policy_kwargs: Mapping[str, Any],
    sequence_length: Any,
    steps_per_env: int | None,
    time_limit: int | None,
) -> None:
    """Check what belongs to a policy that remembers.

    :param sequence_length: of ``update_kwargs``
    :param steps_per_env: of a rollout; None: rollouts hold whole episodes
    :param time_limit: steps of the longest episode; None: unknown
    :raises ValueError: for a policy class without a memory, and for lengths that no rollout has
    """
    has_memory = policy_kwargs.get("memory") is not None
    if has_memory:
        parameters = inspect.signature(policy_class.__init__).parameters.values()
        if not any(p.name == "memory" or p.kind is p.VAR_KEYWORD for p in parameters):
            raise ValueError(
                f"policy_kwargs: memory={policy_kwargs['memory']!r}, but {policy_class.__name__}.__init__ takes no memory: "
                "hand **kwargs on to sb_grpo.policies.ActorPolicy, or use 'MlpPolicy', 'CnnPolicy' or 'MultiInputPolicy'."
            )
    if sequence_length is None:
        return
    if not has_memory:
        raise ValueError(
            f"update_kwargs: sequence_length={sequence_length!r} has no effect without a memory: pass "
            "policy_kwargs=dict(memory='gru'), or leave it out."
        )
    longest = min((steps for steps in (steps_per_env, time_limit) if steps is not None), default=None)
    if longest is not None and sequence_length > longest:
        raise ValueError(
            f"update_kwargs: sequence_length={sequence_length} is longer than any stretch of a rollout, which has at most "
            f"{longest} steps of an episode. Lower it, or leave it out."
        )


def check_routing(policy_kwargs: Mapping[str, Any], tasks: Sequence[str]) -> None:
    """Check what belongs to a policy that routes by tasks.

    :param tasks: names of the declared ones
    :raises ValueError: where it routes by another number of them
    """
    n_tasks = policy_kwargs.get("n_tasks")
    if n_tasks is not None and tasks and n_tasks != len(tasks):
        raise ValueError(
            f"policy_kwargs: n_tasks={n_tasks}, but multitask: tasks declares {len(tasks)}: pass n_tasks={len(tasks)}."
        )
