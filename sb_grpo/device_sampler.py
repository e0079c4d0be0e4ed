"""Collection from tensor envs: jobs, resets, sampling and storage on one device; the step loop never waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback

from sb_grpo.buffers import Rollout, TensorRolloutBuffer
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.groups import TensorSlots

if TYPE_CHECKING:
    from sb_grpo.grpo import GRPO


def env_actions(model: GRPO) -> Callable[[th.Tensor], th.Tensor]:
    """The map from sampled actions to the env's own bounds: unsquashed or clipped where the space is a Box."""
    space = model.action_space
    if not isinstance(space, spaces.Box):
        return lambda actions: actions
    low, high = (th.as_tensor(bound, device=model.device) for bound in (space.low, space.high))
    if model.policy.squash_output:
        return lambda actions: low + 0.5 * (actions + 1.0) * (high - low)
    return lambda actions: actions.clamp(low, high)


def collect_tensors(model: GRPO, env: TensorVecEnv, callback: BaseCallback, buffer: TensorRolloutBuffer) -> bool:
    """Fill the buffer with ``n_steps`` steps per env; whole-episode estimators go on until enough groups are complete.

    Callbacks are called after every vector step as on the host path; ``rewards`` and ``dones`` in their locals are tensors,
    and ``infos`` are empty.

    :return: False when a callback asked to stop
    """
    slots = model.slots
    assert isinstance(slots, TensorSlots)
    to_env = env_actions(model)
    callback.on_rollout_start()
    infos: list[dict[str, Any]] = [{} for _ in range(env.num_envs)]
    while True:
        for n_steps in range(model.steps_per_env):
            if model.use_sde and model.sde_sample_freq > 0 and n_steps % model.sde_sample_freq == 0:
                model.policy.reset_noise(env.num_envs)
            with th.no_grad():
                obs = env.observations
                actions = model.policy.act(obs)
                step = env.step_tensor(to_env(actions))
            rewards, dones = step.rewards, step.terminated | step.truncated
            slots.episode_return = slots.episode_return + rewards
            buffer.add_step(
                observations=obs,
                actions=actions,
                rewards=rewards,
                jobs=slots.job,
                t=slots.t,
                ends=step.terminated + 2 * step.truncated,
                next_observations=step.observations,
                finished_return=slots.episode_return,
            )
            slots.step(env, dones)
            if model.use_sde:
                model.policy.renew_noise(dones)
            model.num_timesteps += env.num_envs
            callback.update_locals({**locals(), "self": model})
            if not callback.on_step():
                return False
        if not model.whole_episodes or buffer.complete_groups(model.group_size) >= (model.n_groups or 1):
            break
    check_finite(buffer)
    record_episodes(model.ep_info_buffer, buffer)
    callback.on_rollout_end()
    return True


def check_finite(buffer: TensorRolloutBuffer) -> None:
    """Look for NaN and inf in what the simulator returned, once per rollout.

    :raises ValueError: naming slot, step and tensor
    """
    columns = {"observation": buffer.next_observations, "reward": buffer.rewards.unsqueeze(2)}
    for what, values in columns.items():
        bad = ~th.isfinite(values[: buffer.pos].flatten(2)).all(dim=2)
        if bool(bad.any()):
            step, slot = bad.nonzero()[0].tolist()
            raise ValueError(
                f"{what} of slot {slot} is not finite at step {step} of this rollout: {values[step, slot].tolist()}. The "
                "policy has not been updated with it; the simulator has diverged: check its time step and its actions' bounds."
            )


def record_episodes(ep_info_buffer: deque[dict[str, Any]] | None, buffer: TensorRolloutBuffer) -> None:
    """Hand returns and lengths of the episodes that ended to SB3's statistics, in one transfer."""
    assert ep_info_buffer is not None and ep_info_buffer.maxlen is not None
    ended = (buffer.ends[: buffer.pos] > 0).nonzero()[-ep_info_buffer.maxlen :].unbind(1)
    returns, lengths = buffer.finished_return[ended].tolist(), (buffer.t[ended] + 1).tolist()
    ep_info_buffer.extend({"r": r, "l": length} for r, length in zip(returns, lengths, strict=True))


def start_mismatches(rollout: Rollout) -> int:
    """Episodes whose first observation differs from that of the first episode of their group in this rollout."""
    assert isinstance(rollout.observations, th.Tensor)
    rows = (rollout.t == 0).nonzero().squeeze(1)
    group = rollout.group[rollout.episode[rows]]
    first = th.full((rollout.n_groups,), len(rollout.t), device=rows.device).scatter_reduce(0, group, rows, "amin")
    differs = rollout.observations[rows] != rollout.observations[first[group]]
    return int(differs.flatten(1).any(dim=1).sum())
