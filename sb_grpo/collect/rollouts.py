"""One rollout, whatever the env: which buffer gathers it, and which loop fills that."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb_grpo.collect.beside import Beside
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.columns import Column
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.collect.device_loop import Stepper, check_tasks, collect_tensors, record_episodes
from sb_grpo.collect.host_loop import collect, unspoilt
from sb_grpo.collect.plan import Plan, Taken
from sb_grpo.collect.slots import GroupSlots, Slots, TensorSlots
from sb_grpo.envs.process_vec_env import naming_the_dead
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.policies import ActorPolicy


def buffer_class(env: Any) -> type[GroupRolloutBuffer]:
    """What gathers the rollouts of an env."""
    return TensorRolloutBuffer if isinstance(env, TensorVecEnv) else GroupRolloutBuffer


class Source(NamedTuple):
    """Where the steps come from, and where they go."""

    env: VecEnv
    actor: Callable[[], ActorPolicy]  #: the policy as it is now
    buffer: GroupRolloutBuffer
    columns: Sequence[Column]
    slots: Slots
    carried: Beside  #: masks and memory of host slots
    obs: Any  #: last observations of host envs
    vec_normalize: VecNormalize | None
    stepper: Stepper  #: of tensor envs
    autocast: bool
    task_names: Sequence[str]


def collecting(
    source: Source, plan: Plan, start_over: Callable[[], tuple[Slots, Any]], episodes: deque[dict[str, Any]] | None
) -> Iterator[Taken]:
    """Fill the buffer with one rollout, step by step.

    :param start_over: begins every slot's episode again, as somebody else has taken the envs: slots and observations after it
    :param episodes: SB3's statistics, which tensor envs have no infos for
    :raises ValueError: for NaN or inf from the env
    """
    env, actor, buffer, columns, slots = source[:5]
    if isinstance(env, TensorVecEnv):
        assert isinstance(buffer, TensorRolloutBuffer) and isinstance(slots, TensorSlots)
        yield from collect_tensors(
            env, actor, buffer, columns, plan, slots, source.stepper, source.autocast, lambda: start_over()[0]
        )
        check_tasks(buffer, tuple(source.task_names))
        record_episodes(episodes, buffer, plan.group_size)
        return
    assert isinstance(slots, GroupSlots)
    with unspoilt(source.vec_normalize), naming_the_dead(env):
        yield from collect(
            env,
            actor,
            buffer,
            columns,
            plan,
            slots,
            source.carried,
            source.obs,
            source.vec_normalize,
            lambda: start_over()[1],
        )
