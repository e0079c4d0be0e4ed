"""Collection from SB3's vectorized envs: step the slots, feed them jobs, fill the buffer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.interruption import check_hopeless
from sb_grpo.collect.slots import GroupSlots
from sb_grpo.types import map_obs

if TYPE_CHECKING:
    from sb_grpo.grpo import GRPO

#: With whole-episode estimators and no known time limit, an episode may run this long before we call it endless.
ENDLESS = 10_000


def to_env_actions(model: GRPO, actions: np.ndarray) -> np.ndarray:
    """Actions in the env's own bounds: unsquashed or clipped where the space is a Box.

    :param actions: ``[n_envs]`` or ``[n_envs, n]`` as sampled
    :return: ``[n_envs, *action_space.shape]``
    """
    space = model.action_space
    if not isinstance(space, spaces.Box):
        return actions
    actions = actions.reshape((-1, *space.shape))
    return model.policy.unscale_action(actions) if model.policy.squash_output else np.clip(actions, space.low, space.high)


def check_finite(env: VecEnv, what: str, value: Any, step: int) -> None:
    """Stop at the first NaN or inf that an env produces.

    :param what: name of the tensor, for the message
    :param value: ``[n_envs, ...]`` array or dict of arrays
    :param step: number of the vector step
    :raises ValueError: naming env, step and tensor
    """
    if isinstance(value, dict):
        for key, part in value.items():
            check_finite(env, f"{what}[{key!r}]", part, step)
        return
    # A finite sum proves that all is well.
    if value.dtype.kind != "f" or np.isfinite(value.sum(dtype=np.float64)):
        return
    bad = ~np.isfinite(value.reshape(len(value), -1)).all(axis=1)
    if bad.any():
        slot = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"{what} of env {slot} (of {env.num_envs}) is not finite at vector step {step} since the start of learn(): "
            f"{value[slot]}. The policy has not been updated with it; fix the env, or bound its {what} with a wrapper."
        )


def check_reward_wrappers(env: VecEnv, vec_normalize: VecNormalize | None, rewards: np.ndarray) -> None:
    """Rewards are taken from below VecNormalize, whose moving scale advantages do not need: nothing may change them above it.

    :param rewards: ``[n_envs]`` what the step returned
    :raises ValueError: if they are not VecNormalize's
    """
    if vec_normalize is None or env is vec_normalize:
        return
    if not np.allclose(rewards, vec_normalize.normalize_reward(vec_normalize.old_reward)):
        raise ValueError(
            f"A wrapper between VecNormalize and the model changes rewards: {rewards.tolist()} in place of VecNormalize's. "
            "GRPO learns from the rewards below VecNormalize, so this would be lost: put VecNormalize around that wrapper."
        )


def note_ends(buffer: GroupRolloutBuffer, jobs: np.ndarray, dones: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
    """How each slot's episode fared in this step; keeps the last observation of those that a time limit ended.

    :return: ``[n_envs]`` int8: 0 goes on, 1 terminated, 2 truncated
    """
    ends = np.zeros(len(dones), dtype=np.int8)
    for slot in np.flatnonzero(dones).tolist():
        truncated = infos[slot].get("TimeLimit.truncated", False)
        ends[slot] = 2 if truncated else 1
        if truncated:
            buffer.add_final_observation(int(jobs[slot]), infos[slot]["terminal_observation"])
    return ends


def check_endless(model: GRPO) -> None:
    """Whole-episode estimators would wait for ever for an episode that does not end.

    :raises ValueError: if one has gone on for ``ENDLESS`` steps and no time limit is known
    """
    assert model.slots is not None
    longest = int(model.slots.t.max())
    if longest >= ENDLESS and longest > (model._time_limit or 0):  # a limit that a registration promises may not be kept
        reason, way_out = (
            (f"n_groups={model.n_groups}", "set n_steps instead of n_groups")
            if model.advantage == "state"
            else (f"advantage={model.advantage!r}", "use advantage='state'")
        )
        raise ValueError(
            f"No end after {ENDLESS} steps of an episode, and the env has no time limit, but {reason} needs whole episodes. "
            f"Set a limit with gymnasium.make(..., max_episode_steps=1000) or gymnasium.wrappers.TimeLimit, or {way_out}."
        )


def rollout_is_complete(model: GRPO, n_steps: int, completed: int) -> bool:
    """After ``n_steps`` steps per env; whole-episode estimators also want complete groups.

    :param n_steps: steps per env so far
    :param completed: groups completed so far
    """
    if not model.whole_episodes:
        return n_steps >= model.steps_per_env
    assert model.slots is not None
    check_endless(model)
    return completed >= model.n_groups if model.n_groups else n_steps >= model.steps_per_env and completed > 0


@contextmanager
def unspoilt(vec_normalize: VecNormalize | None) -> Iterator[None]:
    """Put VecNormalize's running statistics back when an env fails: once they have seen a NaN they never recover."""
    names = ("obs_rms", "ret_rms", "returns")
    before = {name: copy.deepcopy(getattr(vec_normalize, name)) for name in names if hasattr(vec_normalize, name)}
    try:
        yield
    except ValueError:
        for name, value in before.items():
            setattr(vec_normalize, name, value)
        raise


def collect(model: GRPO, env: VecEnv, callback: BaseCallback, buffer: GroupRolloutBuffer) -> bool:
    """Fill the buffer with one rollout. Mirrors ``OnPolicyAlgorithm.collect_rollouts`` of SB3 2.9 without its critic.

    Stops after ``n_steps`` steps per env, or, for whole-episode estimators, when enough groups are complete.

    :return: False when a callback asked to stop
    """
    assert model._last_obs is not None, "No previous observation was provided"
    slots, device, vec_normalize = model.slots, model.device, model._vec_normalize_env
    assert isinstance(slots, GroupSlots)
    n_steps, completed, interruptions_before = 0, 0, model.interruptions
    rollout_buffer, n_rollout_steps = buffer, model.steps_per_env  # names that callbacks know from SB3
    raw_obs = model.raw_last_obs
    callback.on_rollout_start()
    while True:
        if not slots.in_step_with(env):
            model.start_over()
            raw_obs = model.raw_last_obs
        if model.use_sde and model.sde_sample_freq > 0 and n_steps % model.sde_sample_freq == 0:
            model.policy.reset_noise(env.num_envs)
        with th.inference_mode():
            obs_tensor = obs_as_tensor(model._last_obs, device)  # type: ignore[arg-type]
            action_tensor = model.policy.act(obs_tensor)
        actions = action_tensor.cpu().numpy()
        clipped_actions = to_env_actions(model, actions)

        raw_obs_before = raw_obs
        new_obs, rewards, dones, infos = slots.step_envs(env, clipped_actions)
        n_steps += 1
        model.num_timesteps += env.num_envs
        raw_obs, raw_rewards = (
            (new_obs, rewards) if vec_normalize is None else (vec_normalize.old_obs, vec_normalize.old_reward)
        )
        step = model.num_timesteps // env.num_envs
        check_reward_wrappers(env, vec_normalize, rewards)
        check_finite(env, "reward", raw_rewards, step)
        check_finite(env, "observation", raw_obs, step)
        starts = slots.starts(env, dones, raw_obs)  # before the callback, which may reset the envs

        callback.update_locals({**locals(), "self": model})
        if not callback.on_step():
            return False
        model._update_info_buffer(infos, dones)

        ends = note_ends(buffer, slots.job, dones, infos)
        extra = model.columns.read(raw_obs_before, infos, raw_rewards, slots.t)
        buffer.add(obs_tensor, action_tensor, raw_rewards, slots.job, slots.t, ends, extra)
        completed += slots.step(env, dones, starts)
        if model.use_sde and dones.any():
            model.policy.renew_noise(th.as_tensor(dones, device=device))
        model._last_obs, model._last_episode_starts = new_obs, dones  # type: ignore[assignment]
        if rollout_is_complete(model, n_steps, completed):
            break
        check_hopeless(model.interruptions - interruptions_before, n_steps, completed)
    if not model.whole_episodes:  # episodes are cut here: what comes next is needed to judge their last steps
        for slot, job in enumerate(slots.job.tolist()):
            buffer.add_final_observation(job, map_obs(lambda o: o[slot], new_obs))  # noqa: B023
    callback.update_locals({**locals(), "self": model})
    callback.on_rollout_end()
    return True
