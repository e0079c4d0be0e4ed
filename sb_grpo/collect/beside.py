"""What slots of host envs carry from step to step beside their observations: valid actions, and what the policy remembers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.collect.masks import APART, check_unmasked, masks_of
from sb_grpo.policies import ActorPolicy
from sb_grpo.policies.beside import MASK, MEMORY, beside, with_beside
from sb_grpo.policies.masks import checked, choices_of


def spaces_beside(policy: ActorPolicy, mask_source: str | None) -> Mapping[str, spaces.Space]:
    """What has a place in the buffer beside the observations."""
    parts: dict[str, spaces.Space] = {}
    if mask_source in APART:
        parts[MASK] = spaces.MultiBinary(sum(choices_of(policy.action_space)))
    if policy.memory is not None:
        parts[MEMORY] = spaces.Box(-np.inf, np.inf, (policy.memory.n_state,), np.float32)
    return parts


class Beside:
    """Masks and memory of the slots of host envs, noted as the steps go by.

    :param mask_source: of :func:`~sb_grpo.collect.masks.source_of`
    """

    def __init__(self, mask_source: str | None) -> None:
        self.mask_source = mask_source
        self._masks: np.ndarray | None = None
        self._memory: th.Tensor | None = None  # after the last step
        self._just_reset = True
        self._missed_one = False  # the observation after the last step of a cut episode

    def see(
        self, env: VecEnv, infos: Sequence[dict[str, Any]] | None = None, dones: np.ndarray | None = None, step: int = 0
    ) -> None:
        """A step has been taken, and nobody has touched the envs since.

        :param infos: of the step; None: every slot has just been reset
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

    def observe(self, obs: Any, policy: ActorPolicy, t: np.ndarray, step: int) -> Any:
        """Observations as the policy sees them.

        :param obs: ``[n_envs, ...]`` of the env
        :param t: ``[n_envs]`` steps of the running episodes so far: where it is 0 nothing is remembered
        """
        if self.mask_source is None and policy.memory is None:
            return obs
        parts: dict[str, th.Tensor] = {}
        if self.mask_source == "observation":
            checked(beside(obs, MASK).cpu().numpy(), policy.action_space, len(t), f"of env {{slot}} at vector step {step}")
        elif self._masks is not None:
            parts[MASK] = th.as_tensor(self._masks, device=policy.device)
        if policy.memory is not None:
            parts[MEMORY] = policy.memory.before(self._memory, th.as_tensor(t == 0, device=policy.device))
        return with_beside(obs, parts)

    def remember(self, memory: th.Tensor | None) -> None:
        """``[n_envs, n]`` of the policy after it has acted. A copy: what inference mode has made takes part in no gradient."""
        self._memory = None if memory is None else memory.clone()

    def last(self, slot: int, info: dict[str, Any]) -> Any:
        """The observation after the last step of an episode that a time limit has cut, with what the policy remembers there.

        :param info: of that step
        :return: None: the episode terminated, or nobody knows the observation, and it counts as terminated, as for SB3's PPO
        """
        if not info.get("TimeLimit.truncated", False):
            return None
        obs = info.get("terminal_observation")
        if obs is not None:
            return self.after(slot, obs)
        if not self._missed_one:
            self._missed_one = True
            warnings.warn(
                f"A time limit has cut an episode of env {slot}, and its info has no 'terminal_observation', so nobody knows "
                "the value of what would have come next: such episodes count as terminated, as for PPO. Let step_wait() put "
                "the observation before the reset into info['terminal_observation'].",
                UserWarning,
                stacklevel=2,
            )
        return None

    def after(self, slot: int, obs: Any) -> Any:
        """A slot's observation after the last step, with what the policy remembers there; for the value of a cut episode.

        A mask that the observation itself holds stays in it: the buffer has a place for it.
        """
        parts = {} if self._memory is None else {MEMORY: self._memory[slot].cpu().numpy()}
        if self._masks is not None:  # that of a step which nobody takes
            parts[MASK] = np.zeros_like(self._masks[slot])
        return with_beside(obs, parts)
