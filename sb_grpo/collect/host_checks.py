"""Checks of a step of host envs: finite numbers, rewards that nobody changes above VecNormalize, ends of episodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

from sb_grpo.collect.beside import Beside
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.plan import too_large
from sb_grpo.envs.installing import wrappers_of
from sb_grpo.policies.numbers import trouble_with
from sb_grpo.types import Breakdown


def check_outputs(policy: nn.Module, log_probs: th.Tensor, step: int) -> None:
    """Stop a training whose policy puts out NaN or inf, before anybody acts on it.

    :param log_probs: ``[n_envs]`` of the actions
    :param step: number of the vector step
    :raises Breakdown: naming the part of the policy that makes them
    """
    if math.isfinite(log_probs.sum().item()):
        return
    trouble = trouble_with(policy, log_probs)
    if trouble is not None:
        raise Breakdown(f"At vector step {step} since the start of learn() {trouble}")


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
    """Return the wrappers of an env that divide rewards by their moving scale, from the inside out."""
    return [wrapper for wrapper in reversed(wrappers_of(env)) if isinstance(wrapper, VecNormalize) and wrapper.norm_reward]


def check_callback_rewards(said: np.ndarray, rewards: np.ndarray) -> None:
    """Check that no callback has changed the rewards in its locals.

    :param said: ``[n_envs]`` as the step returned them
    :param rewards: ``[n_envs]`` after the callbacks
    :raises ValueError: if they differ
    """
    if not np.array_equal(said, rewards):
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
    """Note how each slot's episode fared in this step; keep the last observation of those that a time limit ended.

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
    """Return the last observation of an episode in the space's shape; NumPy would stretch it where it can.

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
