"""Steps of host envs: extra inputs of the policy, checks, ends of episodes, interruptions, log-probabilities."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.collect.groups import Groups, HostGroups, TensorGroups
from sb_grpo.collect.masks import APART, check_unmasked, masks_of
from sb_grpo.collect.plan import too_large
from sb_grpo.envs.installing import wrappers_of
from sb_grpo.maths.chunks import in_chunks
from sb_grpo.policies import ActorPolicy, EncodingPolicy
from sb_grpo.policies.extra_inputs import MASK, MEMORY, extra_input, with_extra_inputs
from sb_grpo.policies.masks import checked, choices_of
from sb_grpo.policies.numbers import trouble_with
from sb_grpo.types import Breakdown, Info, Obs, map_obs

#: Largest difference between two ways of computing log-probabilities, absolute and relative.
ROUNDING = 1e-4
ROUNDING_BFLOAT16 = 0.1


def extra_input_spaces(policy: ActorPolicy, mask_source: str | None) -> Mapping[str, spaces.Space]:
    """Spaces of the extra inputs that the buffer stores beside the observations."""
    parts: dict[str, spaces.Space] = {}
    if mask_source in APART:
        parts[MASK] = spaces.MultiBinary(sum(choices_of(policy.action_space)))
    if policy.memory is not None:
        parts[MEMORY] = spaces.Box(-np.inf, np.inf, (policy.memory.n_state,), np.float32)
    return parts


class ExtraInputs:
    """Masks and memory of host envs, noted as the steps go by.

    :param mask_source: of :func:`~sb_grpo.collect.masks.source_of`
    """

    def __init__(self, mask_source: str | None) -> None:
        self.mask_source = mask_source
        self._masks: np.ndarray | None = None
        self._memory: th.Tensor | None = None  # after the last step
        self._just_reset = True
        self._missed_one = False  # the observation after the last step of a cut episode

    def see(
        self, env: VecEnv, infos: Sequence[Info] | None = None, dones: np.ndarray | None = None, step: int = 0
    ) -> None:
        """A step has been taken, and nobody has touched the envs since.

        :param infos: of the step; None: every env has just been reset
        :raises ValueError: for masks that are missing, of another form, or without a valid action; after a reset also for
            masks that come with the first step alone
        """
        if self.mask_source is None:
            if infos is not None and self._just_reset:
                check_unmasked(env, infos, step)
            self._just_reset = infos is None
            self._masks = None
            return
        self._just_reset = infos is None
        if self.mask_source != "tensor":  # the device loop looks at its env itself
            self._masks = masks_of(env, self.mask_source, infos, dones, step)

    def observe(self, obs: Obs, policy: ActorPolicy, t: np.ndarray, step: int) -> Obs:
        """Observations as the policy sees them.

        :param obs: ``[n_envs, ...]`` of the env
        :param t: ``[n_envs]`` steps of the running episodes so far: where it is 0 nothing is remembered
        """
        if self.mask_source is None and policy.memory is None:
            return obs
        parts: dict[str, th.Tensor] = {}
        if self.mask_source == "observation":
            masks = extra_input(obs, MASK).cpu().numpy()
            checked(masks, policy.action_space, len(t), f"of env {{index}} at vector step {step}")
        elif self._masks is not None:
            parts[MASK] = th.as_tensor(self._masks, device=policy.device)
        if policy.memory is not None:
            parts[MEMORY] = policy.memory.before(self._memory, th.as_tensor(t == 0, device=policy.device))
        return with_extra_inputs(obs, parts)

    def remember(self, memory: th.Tensor | None) -> None:
        """``[n_envs, n]`` of the policy after it has acted. A copy: tensors of inference mode take part in no gradient."""
        self._memory = None if memory is None else memory.clone()

    def last(self, env_index: int, info: Info) -> Obs:
        """The observation after the last step of an episode that a time limit has cut, with the policy's memory there.

        :param info: of that step
        :return: None: the episode terminated, or nobody knows the observation, and it counts as terminated, as for SB3's PPO
        """
        if not info.get("TimeLimit.truncated", False):
            return None
        obs = info.get("terminal_observation")
        if obs is not None:
            return self.after(env_index, obs)
        if not self._missed_one:
            self._missed_one = True
            warnings.warn(
                f"A time limit has cut an episode of env {env_index}, and its info has no 'terminal_observation', so nobody "
                "knows the value of what would have come next: such episodes count as terminated, as for PPO. Let step_wait() "
                "put the observation before the reset into info['terminal_observation'].",
                UserWarning,
                stacklevel=2,
            )
        return None

    def after(self, env_index: int, obs: Obs) -> Obs:
        """An env's observation after the last step, with the policy's memory there; for the value of a cut episode.

        A mask that the observation itself holds stays in it: the buffer has a place for it.
        """
        parts = {} if self._memory is None else {MEMORY: self._memory[env_index].cpu().numpy()}
        if self._masks is not None:  # that of a step which nobody takes
            parts[MASK] = np.zeros_like(self._masks[env_index])
        return with_extra_inputs(obs, parts)


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


def check_finite(env: VecEnv, what: str, value: Obs, step: int, largest: float = math.inf) -> None:
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
    wrong_envs = np.flatnonzero(~(np.isfinite(sizes) & (sizes <= largest)))
    if len(wrong_envs) == 0:
        return
    env_index = int(wrong_envs[0])
    wrong = f"{too_large(largest)}," if np.isfinite(value[env_index]).all() else "is not finite"
    raise Breakdown(
        f"{what} of env {env_index} (of {env.num_envs}) {wrong} at vector step {step} since the start of learn(): "
        f"{value[env_index]}. The policy has not been updated with it; fix the env, or bound its {what} with a wrapper."
    )


def scaling_rewards(env: VecEnv) -> list[VecNormalize]:
    """Return the wrappers of an env that divide rewards by their moving scale, from the inside out."""
    return [wrapper for wrapper in reversed(wrappers_of(env)) if isinstance(wrapper, VecNormalize) and wrapper.norm_reward]


def check_callback_rewards(returned: np.ndarray, rewards: np.ndarray) -> None:
    """Check that no callback has changed the rewards in its locals.

    :param returned: ``[n_envs]`` as the step returned them
    :param rewards: ``[n_envs]`` after the callbacks
    :raises ValueError: if they differ
    """
    if not np.array_equal(returned, rewards):
        raise ValueError(
            f"A callback has changed rewards: {rewards.tolist()} in place of {returned.tolist()}. GRPO learns from the "
            "rewards below VecNormalize, so this would be lost: change them in a wrapper of the env, or pass "
            "VecNormalize(..., norm_reward=False)."
        )


def check_reward_wrappers(env: VecEnv, scaling: Sequence[VecNormalize], rewards: np.ndarray) -> None:
    """Check that nothing changes rewards above VecNormalize: they are taken from below it, without its moving scale.

    :param scaling: of :func:`scaling_rewards`
    :param rewards: ``[n_envs]`` as the step returned them
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
    buffer: GroupRolloutBuffer, episode_ids: np.ndarray, ended: list[int], infos: list[Info], carried: ExtraInputs
) -> np.ndarray:
    """Note how each env's episode fared in this step; keep the last observation of those that a time limit ended.

    :param ended: envs whose episode has ended
    :return: ``[n_envs]`` int8: 0 goes on, 1 terminated, 2 truncated
    """
    ends = np.zeros(len(episode_ids), dtype=np.int8)
    for env_index in ended:
        last = carried.last(env_index, infos[env_index])
        ends[env_index] = 1 if last is None else 2
        if last is not None:
            buffer.add_final_observation(int(episode_ids[env_index]), in_shape(buffer.observation_space, last, env_index))
    return ends


def in_shape(space: spaces.Space, last: Obs, env_index: int) -> Obs:
    """Return the last observation of an episode in the space's shape; NumPy would stretch it where it can.

    :raises ValueError: for another size than the others have
    """
    if isinstance(space, spaces.Dict):
        return {key: in_shape(part, last.get(key), env_index) for key, part in space.items()}
    found = np.asarray(last)
    shape = space.shape or ()
    if found.size == math.prod(shape):
        return found.reshape(shape)
    raise ValueError(
        f"info['terminal_observation'] of env {env_index} has shape {found.shape}, but observations have {space.shape}. If a "
        "wrapper around the VecEnv changes observations, let its step_wait() change this one too, as VecFrameStack does, or "
        "put a gymnasium.ObservationWrapper around each env."
    )


def give_up(
    groups: Groups, buffer: GroupRolloutBuffer, carried: ExtraInputs, last_obs: Obs, whole_episodes: bool
) -> tuple[int, bool]:
    """End the running episodes, whose envs are no longer where the groups left them.

    Estimators that use parts of episodes keep the steps so far: the episodes end here, and the next episodes begin.
    Whole-episode estimators lose the running episodes; they run once more.

    :param carried: masks and memory of host envs
    :param last_obs: ``[n_envs, ...]`` array or dict of arrays, after the last steps of host envs
    :return: how many steps are dropped; whether these groups can go on (those of tensor envs cannot run an episode again)
    """
    if isinstance(groups, TensorGroups):
        return (buffer.drop_episodes(buffer.unfinished_episodes(groups.group_size)) if whole_episodes else 0), False
    assert isinstance(groups, HostGroups)
    dropped = 0
    if whole_episodes:
        dropped = buffer.drop_episodes(th.as_tensor(groups.episode_id))
    else:
        for env_index, episode_id in enumerate(groups.episode_id.tolist()):
            buffer.add_final_observation(episode_id, carried.after(env_index, map_obs(lambda o: o[env_index], last_obs)))  # noqa: B023
    groups.give_up(again=whole_episodes)
    return dropped, True


def warn_of_interruption(whole_episodes: bool, num_timesteps: int) -> None:
    """Warn of an interruption, the first time.

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


def log_probs_of_actor(policy: ActorPolicy, buffer: GroupRolloutBuffer, bfloat16: bool) -> th.Tensor:
    """Log-probabilities of a rollout's actions under the policy that acted.

    A callback may change its weights at any step, or put another policy in its place, and a network may keep statistics or
    draw noise as it acts: so each step's are stored as it is taken. As long as nothing has changed since, they are computed
    anew for all steps at once, as an update computes them: its first ratios are then 1 to the last digit.

    :param policy: as it is at the end of the rollout
    :param bfloat16: an update computes in it, while envs were acted on in float32
    :return: ``[time * envs]``
    """
    acted: th.Tensor = buffer.flat("log_probs")
    if isinstance(policy, EncodingPolicy):  # one row at a time would encode an instance at every step
        return acted
    if isinstance(buffer, TensorRolloutBuffer):  # has acted as updates compute, and asks no value of the device
        return acted
    with unseen(policy):
        anew = in_chunks(policy.log_prob, *buffer.new_rows())
    rounding = ROUNDING_BFLOAT16 if bfloat16 else ROUNDING
    return anew if th.allclose(anew, acted, rounding, rounding) else acted


@contextmanager
def unseen(policy: nn.Module) -> Iterator[None]:
    """Restore the buffers of a network afterwards: scoring actions must not change its running statistics."""
    before = [(name, buffer, buffer.clone()) for name, buffer in policy.named_buffers()]
    try:
        yield
    finally:
        for name, buffer, values in before:
            place, _, attribute = name.rpartition(".")
            setattr(policy.get_submodule(place), attribute, buffer)
            buffer.copy_(values)
