"""When somebody else resets or steps the training env in mid-rollout: nothing spliced is trained on, and training goes on."""

from __future__ import annotations

import warnings
from typing import Any

import torch as th

from sb_grpo.collect.beside import Beside
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.slots import GroupSlots, Slots, TensorSlots
from sb_grpo.types import map_obs

#: Steps per env in which no group becomes complete, because somebody else keeps taking the envs.
HOPELESS = 10_000


def give_up(
    slots: Slots, buffer: GroupRolloutBuffer, carried: Beside, last_obs: Any, whole_episodes: bool
) -> tuple[int, bool]:
    """End the running episodes, whose envs are no longer where the slots left them.

    Estimators that use parts of episodes keep what the slots had done: the episodes end here, and the next jobs begin.
    Whole-episode estimators lose the running episodes; they run once more.

    :param carried: masks and memory of host slots
    :param last_obs: ``[n_envs, ...]`` array or dict of arrays, after the slots' last steps of host envs
    :return: how many steps are dropped; whether these slots can go on (those of tensor envs cannot run a job again)
    """
    if isinstance(slots, TensorSlots):
        return (buffer.drop_jobs(buffer.unfinished_jobs(slots.group_size)) if whole_episodes else 0), False
    assert isinstance(slots, GroupSlots)
    dropped = 0
    if whole_episodes:
        dropped = buffer.drop_jobs(th.as_tensor(slots.job))
    else:
        for slot, job in enumerate(slots.job.tolist()):
            buffer.add_final_observation(job, carried.after(slot, map_obs(lambda o: o[slot], last_obs)))  # noqa: B023
    slots.give_up(again=whole_episodes)
    return dropped, True


def warn_of_interruption(whole_episodes: bool, num_timesteps: int) -> None:
    """Say what has happened, to be called the first time.

    :param whole_episodes: the estimator needs them
    :param num_timesteps: env steps so far
    """
    fate = "their steps are dropped and counted in rollout/useful_fraction" if whole_episodes else "their steps are used"
    warnings.warn(
        "Something other than this model's training has reset or stepped the training env, or replaced it, after step "
        f"{num_timesteps}: a callback that evaluates or records on it, another model that trains on it, or a call of your "
        f"own. The episodes that were running end there ({fate}), and new ones begin. Use an env of its own for that, as in "
        "EvalCallback(make_vec_env(...)). Counted as rollout/interruptions.",
        UserWarning,
        stacklevel=2,
    )


def check_hopeless(times: int, n_steps: int, completed: int) -> None:
    """Whole-episode estimators would wait for ever if no group ever became complete.

    :param times: interruptions in this rollout
    :param n_steps: steps per env so far in it
    :param completed: groups completed in it
    :raises ValueError: if none has for ``HOPELESS`` steps
    """
    if completed == 0 and times > 0 and n_steps >= HOPELESS:
        raise ValueError(
            f"No group has become complete in {n_steps} steps per env, because something other than this model's training has "
            f"reset or stepped the training env {times} times meanwhile, always before the episodes ended. Give it an env of "
            "its own, as in EvalCallback(make_vec_env(...)), let it come less often, or use advantage='state' with n_steps, "
            "which needs no whole episodes."
        )
