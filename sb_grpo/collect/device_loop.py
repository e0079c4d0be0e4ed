"""Collection from tensor envs: jobs, resets, sampling and storage on one device; the step loop never waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback

from sb_grpo.collect.columns import task_names
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.collect.host_loop import check_endless
from sb_grpo.collect.interruption import check_hopeless
from sb_grpo.collect.slots import TensorSlots
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.policies import ActorPolicy
from sb_grpo.types import Rollout

if TYPE_CHECKING:
    from sb_grpo.grpo import GRPO


def env_actions(model: GRPO) -> Callable[[th.Tensor], th.Tensor]:
    """The map from sampled actions to the env's own bounds: unsquashed or clipped where the space is a Box."""
    space = model.action_space
    if not isinstance(space, spaces.Box):
        return lambda actions: actions
    low, high = (th.as_tensor(bound, device=model.device).flatten() for bound in (space.low, space.high))
    if model.policy.squash_output:
        return lambda actions: low + 0.5 * (actions + 1.0) * (high - low)
    return lambda actions: actions.clamp(low, high)


def env_step(
    policy: ActorPolicy, env: TensorVecEnv, slots: TensorSlots, to_env: Callable[[th.Tensor], th.Tensor], noise: th.Tensor
) -> dict[str, th.Tensor]:
    """Act, step every slot, and start the next jobs where episodes ended: tensor arithmetic without a look at any value.

    :param noise: ``[n_envs, n]`` of :meth:`ActorPolicy.noise`
    :return: what the buffer stores of the step, ``[n_envs, ...]`` each
    """
    obs = env.observations
    actions, log_probs = policy.sample(obs, noise)
    step = env.step_tensor(to_env(actions))
    slots.episode_return = slots.episode_return + step.rewards
    columns = {
        "observations": obs,
        "actions": actions,
        "log_probs": log_probs,
        "rewards": step.rewards,
        "jobs": slots.job,
        "t": slots.t,
        "ends": (step.terminated + 2 * step.truncated).to(th.int8),
        "next_observations": step.observations,
        "finished_return": slots.episode_return,
    }
    for name, values in (("task", env.tasks), ("objectives", env.objectives)):
        if values is not None:
            columns[name] = values
    slots.step(env, step.terminated | step.truncated)
    return columns


def env_steps(
    policy: ActorPolicy, env: TensorVecEnv, slots: TensorSlots, to_env: Callable[[th.Tensor], th.Tensor], noise: th.Tensor
) -> dict[str, th.Tensor]:
    """As many env steps as there is noise for.

    :param noise: ``[k, n_envs, n]``
    :return: columns of :func:`env_step`, ``[k, n_envs, ...]``
    """
    steps = [env_step(policy, env, slots, to_env, step_noise) for step_noise in noise.unbind(0)]
    return {name: th.stack([columns[name] for columns in steps]) for name in steps[0]}


def collect_tensors(model: GRPO, env: TensorVecEnv, callback: BaseCallback, buffer: TensorRolloutBuffer) -> bool:
    """Fill the buffer with ``n_steps`` steps per env; whole-episode estimators go on until enough groups are complete.

    Callbacks are called after every vector step as on the host path (after a captured run of steps, once for each of them);
    ``rewards`` and ``dones`` in their locals are tensors, and ``infos`` are empty.

    :return: False when a callback asked to stop
    """
    slots, policy, interruptions_before = model.slots, model.policy, model.interruptions
    assert isinstance(slots, TensorSlots)
    take_steps, run = model.captured.env_steps(model)
    to_env = env_actions(model)
    callback.on_rollout_start()
    infos: list[dict[str, Any]] = [{} for _ in range(env.num_envs)]
    while True:
        noise = policy.noise(model.steps_per_env, env.num_envs)
        for n_steps in range(0, model.steps_per_env, run):
            if not slots.in_step_with(env):
                slots = model.start_over()
                assert isinstance(slots, TensorSlots)
            if model.use_sde and model.sde_sample_freq > 0 and n_steps % model.sde_sample_freq == 0:
                policy.reset_noise(env.num_envs)
            with th.no_grad(), model.autocasting():
                columns = take_steps(policy, env, slots, to_env, noise[n_steps : n_steps + run])
            buffer.add_steps(run, columns)
            run_dones = columns["ends"] > 0
            if model.use_sde:
                policy.renew_noise(run_dones[0])
            for i in range(run):
                model.num_timesteps += env.num_envs
                rewards, dones = columns["rewards"][i], run_dones[i]
                callback.update_locals({**locals(), "self": model})
                if not callback.on_step():
                    model.num_timesteps += (run - 1 - i) * env.num_envs  # they have been taken
                    return False
        complete = buffer.complete_groups(model.group_size) if model.whole_episodes else 0
        if not model.whole_episodes or complete >= (model.n_groups or 1):
            break
        check_hopeless(model.interruptions - interruptions_before, buffer.pos, complete)
        check_endless(model)
    check_finite(buffer)
    check_tasks(buffer, task_names(model.tasks))
    record_episodes(model.ep_info_buffer, buffer)
    callback.on_rollout_end()
    return True


def check_finite(buffer: TensorRolloutBuffer) -> None:
    """Look for NaN and inf in what the simulator returned, once per rollout.

    :raises ValueError: naming slot, step and tensor
    """
    columns = {"observation": buffer.next_observations, "reward": buffer.rewards.unsqueeze(2)}
    if "objectives" in buffer.extra:
        columns["reward by objective"] = buffer.extra["objectives"]
    for what, values in columns.items():
        if not values.is_floating_point():
            continue
        bad = ~th.isfinite(values[: buffer.pos].flatten(2)).all(dim=2)
        if bool(bad.any()):
            step, slot = bad.nonzero()[0].tolist()
            raise ValueError(
                f"{what} of slot {slot} is not finite at step {step} of this rollout: {values[step, slot].tolist()}. The "
                "policy has not been updated with it; the simulator has diverged: check its time step and its actions' bounds."
            )


def check_tasks(buffer: TensorRolloutBuffer, names: tuple[str, ...]) -> None:
    """Look for tasks that nobody declared, once per rollout.

    :param names: of the declared ones
    :raises ValueError: naming slot, step and task
    """
    if "task" not in buffer.extra:
        return
    tasks = buffer.extra["task"][: buffer.pos]
    bad = (tasks < 0) | (tasks >= len(names))
    if bool(bad.any()):
        step, slot = bad.nonzero()[0].tolist()
        raise ValueError(
            f"Task {int(tasks[step, slot])} of slot {slot} at step {step} of this rollout is not declared: there are "
            f"{len(names)}, {list(names)} (ids 0 to {len(names) - 1}). Declare all of them with tasks=, as a number or a list "
            "of names."
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
