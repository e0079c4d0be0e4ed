"""When somebody else resets or steps the training env in mid-rollout: nothing spliced is trained on, and training goes on."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch as th

from sb_grpo.buffers import map_obs
from sb_grpo.groups import GroupSlots

if TYPE_CHECKING:
    from sb_grpo.grpo import GRPO

#: Steps per env in which no group becomes complete, because somebody else keeps taking the envs.
HOPELESS = 10_000


def start_over(model: GRPO) -> None:
    """Begin every slot's episode again, as its env is no longer where the slot left it.

    Estimators that use parts of episodes keep what the slots had done: the episodes end here, and the next jobs begin.
    Whole-episode estimators lose the running episodes, whose steps are dropped; they run once more (tensor envs: their whole
    groups, which are lost too).
    """
    slots, buffer = model.slots, model.rollout_buffer
    _warn_once(model)
    if not isinstance(slots, GroupSlots):
        if model.whole_episodes:
            model._steps_dropped += buffer.drop_jobs(buffer.unfinished_jobs(model.group_size))
        model.start_new_groups()
        return
    if model.whole_episodes:
        model._steps_dropped += buffer.drop_jobs(th.as_tensor(slots.job))
    else:
        for slot, job in enumerate(slots.job.tolist()):
            buffer.add_final_observation(job, map_obs(lambda o: o[slot], model._last_obs))  # noqa: B023
    slots.give_up(again=model.whole_episodes)
    model.start_slots()


def _warn_once(model: GRPO) -> None:
    model.interruptions += 1
    if model.interruptions > 1:
        return
    fate = "their steps are dropped and counted in rollout/useful_fraction" if model.whole_episodes else "their steps are used"
    warnings.warn(
        f"Something other than this model's training has reset or stepped the training env, after step {model.num_timesteps}: "
        "a callback that evaluates or records on it, another model that trains on it, or a call of your own. The episodes "
        f"that were running end there ({fate}), and new ones begin. Use an env of its own for that, as in "
        "EvalCallback(make_vec_env(...)). Counted as rollout/interruptions.",
        UserWarning,
        stacklevel=2,
    )


def check_hopeless(model: GRPO, n_steps: int, completed: int, before: int) -> None:
    """Whole-episode estimators would wait for ever if no group ever became complete.

    :param n_steps: steps per env so far in this rollout
    :param completed: groups completed in it
    :param before: ``model.interruptions`` when it began
    :raises ValueError: if none has for ``HOPELESS`` steps
    """
    times = model.interruptions - before
    if completed == 0 and times > 0 and n_steps >= HOPELESS:
        raise ValueError(
            f"No group has become complete in {n_steps} steps per env, because something other than this model's training has "
            f"reset or stepped the training env {times} times meanwhile, always before the episodes ended. Give it an env of "
            "its own, as in EvalCallback(make_vec_env(...)), let it come less often, or use advantage='state' with n_steps, "
            "which needs no whole episodes."
        )
