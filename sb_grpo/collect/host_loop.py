"""Collection from SB3's vectorized envs: step the slots, feed them jobs, fill the buffer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb_grpo.collect.beside import Beside
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.columns import Column, HostStep, read_host
from sb_grpo.collect.interruption import check_hopeless
from sb_grpo.collect.plan import Plan, Taken, check_endless, is_complete, too_large
from sb_grpo.collect.slots import GroupSlots
from sb_grpo.envs.env_batch import EPISODE_LOST
from sb_grpo.envs.installing import wrappers_of
from sb_grpo.normalization import put_running_state, running_state
from sb_grpo.policies import ActorPolicy
from sb_grpo.policies.numbers import check_outputs
from sb_grpo.types import NOTHING, Breakdown, map_obs


def check_finite(env: VecEnv, what: str, value: Any, step: int, largest: float = math.inf) -> None:
    """Stop at the first NaN, inf or number beyond all measure that an env produces.

    :param what: name of the tensor, for the message
    :param value: ``[n_envs, ...]`` array or dict of arrays
    :param step: number of the vector step
    :param largest: size beyond which squares are no numbers any more
    :raises Breakdown: naming env, step and tensor
    """
    if isinstance(value, dict):
        for key, part in value.items():
            check_finite(env, f"{what}[{key!r}]", part, step, largest)
        return
    if value.dtype.kind != "f" or value.size == 0:
        return
    squares = float(np.vdot(value, value))  # quicker than the largest size, and no smaller
    if squares <= largest * largest and squares < math.inf:
        return
    sizes = np.abs(value.reshape(len(value), -1)).max(axis=1)
    wrong_slots = np.flatnonzero(~(np.isfinite(sizes) & (sizes <= largest)))
    if len(wrong_slots) == 0:
        return
    slot = int(wrong_slots[0])
    wrong = f"{too_large(largest)}," if np.isfinite(value[slot]).all() else "is not finite"
    raise Breakdown(
        f"{what} of env {slot} (of {env.num_envs}) {wrong} at vector step {step} since the start of learn(): "
        f"{value[slot]}. The policy has not been updated with it; fix the env, or bound its {what} with a wrapper."
    )


def scaling_rewards(env: VecEnv) -> list[VecNormalize]:
    """Those of an env's wrappers that divide rewards by their moving scale, from the inside out."""
    return [wrapper for wrapper in reversed(wrappers_of(env)) if isinstance(wrapper, VecNormalize) and wrapper.norm_reward]


def check_callback_rewards(said: np.ndarray | None, rewards: np.ndarray) -> None:
    """As :func:`check_reward_wrappers`, of callbacks, which have rewards in their locals.

    :param said: ``[n_envs]`` what the step returned; None: these are learnt from
    :param rewards: ``[n_envs]`` what they are after the callbacks
    :raises ValueError: if they differ
    """
    if said is not None and not np.array_equal(said, rewards):
        raise ValueError(
            f"A callback has changed rewards: {rewards.tolist()} in place of {said.tolist()}. GRPO learns from the rewards "
            "below VecNormalize, so this would be lost: change them in a wrapper of the env, or pass "
            "VecNormalize(..., norm_reward=False)."
        )


def check_reward_wrappers(env: VecEnv, scaling: Sequence[VecNormalize], rewards: np.ndarray) -> None:
    """Rewards are taken from below VecNormalize, whose moving scale advantages do not need: nothing may change them above it.

    :param scaling: of :func:`scaling_rewards`
    :param rewards: ``[n_envs]`` what the step returned
    :raises ValueError: if they are not VecNormalize's
    """
    if not scaling or (env is scaling[0] and type(env) is VecNormalize):
        return
    expected = scaling[0].old_reward
    for vec_normalize in scaling:
        expected = vec_normalize.normalize_reward(expected)
    if not np.allclose(rewards, expected):
        raise ValueError(
            f"A wrapper between VecNormalize and the model changes rewards: {rewards.tolist()} in place of VecNormalize's. "
            "GRPO learns from the rewards below VecNormalize, so this would be lost: put VecNormalize around that wrapper. If "
            "it is a subclass of VecNormalize, let a VecEnvWrapper inside of it change them."
        )


def note_ends(
    buffer: GroupRolloutBuffer, jobs: np.ndarray, ended: list[int], infos: list[dict[str, Any]], carried: Beside
) -> np.ndarray:
    """How each slot's episode fared in this step; keeps the last observation of those that a time limit ended.

    :param ended: slots whose episode has ended
    :return: ``[n_envs]`` int8: 0 goes on, 1 terminated, 2 truncated
    """
    ends = np.zeros(len(jobs), dtype=np.int8)
    for slot in ended:
        last = carried.last(slot, infos[slot])
        ends[slot] = 1 if last is None else 2
        if last is not None:
            buffer.add_final_observation(int(jobs[slot]), in_shape(buffer.observation_space, last, slot))
    return ends


def in_shape(space: spaces.Space, last: Any, slot: int) -> Any:
    """What an info calls the last observation of an episode, in the space's shape; NumPy would stretch it where it can.

    :raises ValueError: for another size than the others have
    """
    if isinstance(space, spaces.Dict):
        return {key: in_shape(part, last.get(key), slot) for key, part in space.items()}
    found, shape = np.asarray(last), space.shape or ()
    if found.size == math.prod(shape):
        return found.reshape(shape)
    raise ValueError(
        f"info['terminal_observation'] of env {slot} has shape {found.shape}, but observations have {space.shape}. If a "
        "wrapper around the VecEnv changes observations, let its step_wait() change this one too, as VecFrameStack does, or "
        "put a gymnasium.ObservationWrapper around each env."
    )


@contextmanager
def unspoilt(vec_normalize: VecNormalize | None) -> Iterator[None]:
    """Put VecNormalize's running statistics back when an env fails: once they have seen a NaN they never recover."""
    before = None if vec_normalize is None else running_state(vec_normalize)
    try:
        yield
    except ValueError:
        if vec_normalize is not None and before is not None:
            put_running_state(vec_normalize, before)
        raise


def collect(
    env: VecEnv,
    actor: Callable[[], ActorPolicy],
    buffer: GroupRolloutBuffer,
    columns: Sequence[Column],
    plan: Plan,
    slots: GroupSlots,
    carried: Beside,
    obs: Any,
    vec_normalize: VecNormalize | None,
    start_over: Callable[[], Any],
) -> Iterator[Taken]:
    """Fill the buffer with one rollout. Mirrors ``OnPolicyAlgorithm.collect_rollouts`` of SB3 2.9 without its critic.

    Stops after ``steps_per_env`` steps per env, or, for whole-episode estimators, when enough groups are complete. A step is
    handed out when the env has taken it, and stored when the next one is asked for.

    :param env: training env, outermost
    :param actor: the policy as it is now: callbacks may put another into its place
    :param carried: masks and memory of the slots
    :param obs: its last observations
    :param vec_normalize: among its wrappers, whose running scale rewards do not need
    :param start_over: begins every slot's episode again, as somebody else has taken the envs; the observations after it
    """
    n_steps, completed, interruptions = 0, 0, 0
    raw_obs = obs if vec_normalize is None else vec_normalize.old_obs
    scaling = scaling_rewards(env)
    while True:
        policy, step = actor(), plan.steps_before + n_steps + 1
        if not slots.in_step_with(env):
            obs = start_over()
            interruptions += 1
            raw_obs = obs if vec_normalize is None else vec_normalize.old_obs
        if plan.draws_noise(n_steps):
            policy.reset_noise(env.num_envs)
        obs_tensor = carried.observe(obs_as_tensor(obs, policy.device), policy, slots.t, step - 1)
        with th.no_grad():
            action_tensor, log_probs, memory = policy.sample(obs_tensor, policy.noise(env.num_envs))
        check_outputs(policy, log_probs, f"At vector step {step} since the start of learn()")
        carried.remember(memory)
        actions = action_tensor.cpu().numpy()
        clipped_actions = policy.in_bounds(actions)

        raw_obs_before = raw_obs
        new_obs, rewards, dones, infos = slots.step_envs(env, clipped_actions)
        raw_obs = new_obs if vec_normalize is None else vec_normalize.old_obs
        raw_rewards, said = (scaling[0].old_reward, rewards.copy()) if scaling else (rewards, None)
        check_finite(env, "reward", raw_rewards, step, plan.limits.reward)
        check_finite(env, "observation", raw_obs, step, plan.limits.observation)
        check_reward_wrappers(env, scaling, rewards)
        ended = dones.nonzero()[0].tolist()
        starts = slots.starts(env, ended, raw_obs)  # before any callback, which may reset the envs
        carried.see(env, infos, dones, step)
        yield Taken(n_steps, obs_tensor, actions, clipped_actions, new_obs, rewards, dones, infos)

        n_steps += 1
        check_callback_rewards(said, rewards)
        ends = note_ends(buffer, slots.job, ended, infos, carried)
        extra = read_host(columns, HostStep(raw_obs_before, infos, raw_rewards, slots.t)) if columns else NOTHING
        buffer.add(obs_tensor, action_tensor, log_probs, raw_rewards, slots.job, slots.t, ends, extra)
        lost = [slot for slot in ended if EPISODE_LOST in infos[slot]]
        if lost:
            buffer.n_lost += buffer.drop_jobs(th.as_tensor(slots.job[lost]))
        completed += slots.step(env, starts, lost)
        if plan.use_sde and ended:
            policy.renew_noise(th.as_tensor(dones, device=policy.device).bool())
        obs = new_obs
        if plan.whole_episodes:
            check_endless(slots.t, plan)
        if is_complete(plan, n_steps, completed):
            break
        check_hopeless(interruptions, n_steps, completed)
    if not plan.whole_episodes:  # episodes are cut here: what comes next is needed to judge their last steps
        for slot, job in enumerate(slots.job.tolist()):
            buffer.add_final_observation(job, carried.after(slot, map_obs(lambda o: o[slot], obs)))  # noqa: B023
