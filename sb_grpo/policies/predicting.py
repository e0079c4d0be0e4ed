"""SB3's policy interface: ``predict``, ``forward``, ``evaluate_actions``, with masks and recurrent states."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import PyTorchObs

from sb_grpo.policies.extra_inputs import MASK, MEMORY, extra_input, with_extra_inputs
from sb_grpo.policies.heads import ActionHead
from sb_grpo.policies.masks import GivenMasks, checked, choices_of
from sb_grpo.policies.memory import Memory
from sb_grpo.types import Obs


class PredictingPolicy(BasePolicy):
    """Base policy with the names, arguments and results of SB3's policies."""

    memory: Memory | None
    head: ActionHead
    #: Whether the policy network also sees the features if there are recurrent layers.
    features_beside_memory = False

    def extract_features(self, obs: PyTorchObs, features_extractor: BaseFeaturesExtractor | None = None) -> th.Tensor:
        """Features of preprocessed observations, ``[batch, features_dim]``.

        :param obs: ``[batch, ...]`` or a dict of such
        :param features_extractor: None: the policy's own
        """
        own: BaseFeaturesExtractor = self.features_extractor if features_extractor is None else features_extractor
        return super().extract_features(obs, own)

    @abstractmethod
    def act_and_remember(self, obs: Obs, deterministic: bool = False) -> tuple[th.Tensor, th.Tensor | None]:
        """Choose actions of a batch; return them and the recurrent state after them."""

    @abstractmethod
    def _choose(self, obs: Obs, deterministic: bool) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Choose actions of a batch; return them, the parameters of their distribution, and the recurrent state after them."""

    @abstractmethod
    def log_prob_and_entropy(self, obs: Obs, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Log-probabilities of a batch of actions, and the entropies of their distributions."""

    def forward(
        self, obs: Obs, deterministic: bool = False, action_masks: GivenMasks = None
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Return actions, values and log-probabilities as in SB3. Without a critic the values are NaN: tracing needs tensors.

        :param obs: ``[batch, ...]`` or a dict of such
        :param action_masks: as for :meth:`with_masks`
        :return: actions in the shape of the action space, NaN ``[batch, 1]``, log-probabilities ``[batch]``
        """
        actions, out, _ = self._choose(self.with_masks(obs, action_masks), deterministic)
        log_prob = self.head.log_prob(out.float(), actions)
        return actions.reshape((-1, *(self.action_space.shape or ()))), th.full_like(log_prob, th.nan)[:, None], log_prob

    def evaluate_actions(
        self, obs: Obs, actions: th.Tensor, action_masks: GivenMasks = None
    ) -> tuple[None, th.Tensor, th.Tensor]:
        """Return values (None), log-probabilities and entropies ``[batch]`` of given actions, as in SB3.

        :param obs: ``[batch, ...]`` or a dict of such
        :param action_masks: as for :meth:`with_masks`
        """
        return None, *self.log_prob_and_entropy(self.with_masks(obs, action_masks), actions)

    def predict(  # type: ignore[override]
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Choose actions for observations.

        :param observation: of one env, or of several
        :param state: returned by the last call; None at the beginning
        :param episode_start: ``[n_envs]`` bool, True if an episode begins: its state is reset
        :param deterministic: the most likely action instead of a sample
        :param action_masks: ``[n_envs, m]`` valid actions, unless the observation holds them
        :return: actions, and the state for the next call; None without a memory
        :raises ValueError: for observations, states or masks of another form, and for a whole result of ``reset`` or ``step``
        """
        self.set_training_mode(False)
        _check_is_observation(observation)
        _check_numbers("observation", observation)
        obs, vectorized = self.obs_to_tensor(observation)
        with th.no_grad():
            actions, after = self.act_and_remember(
                self._with_extra_inputs(obs, state, episode_start, action_masks), deterministic
            )
        found = self.in_bounds(actions.cpu().numpy()).reshape((-1, *(self.action_space.shape or ())))
        _check_numbers("action", found)
        remembered = state if self.memory is None or after is None else self.memory.to_parts(after)
        return found if vectorized else found.squeeze(axis=0), remembered  # type: ignore[return-value]

    def with_masks(self, obs: Obs, action_masks: GivenMasks) -> Obs:
        """Add masks to observations, in place of any that they hold; unchanged if None.

        :param obs: ``[batch, ...]`` or a dict of such
        :param action_masks: ``[batch, m]`` valid actions
        :raises ValueError: for masks of another form, and for Box actions
        """
        if action_masks is None:
            return obs
        if not choices_of(self.action_space):
            raise ValueError(f"action_masks are for discrete actions, not for {self.action_space}: leave them out.")
        given = action_masks.cpu().numpy() if isinstance(action_masks, th.Tensor) else action_masks
        masks = checked(given, self.action_space, _n_rows(obs), "of row {index}")
        return with_extra_inputs(obs, {MASK: th.as_tensor(masks, device=self.device)})

    def _with_extra_inputs(
        self,
        obs: Obs,
        state: tuple[np.ndarray, ...] | None,
        episode_start: np.ndarray | None,
        action_masks: np.ndarray | None,
    ) -> Obs:
        obs = self.with_masks(obs, extra_input(obs, MASK) if action_masks is None else action_masks)
        parts: dict[str, th.Tensor] = {}
        if self.memory is not None:
            n = _n_rows(obs)
            begins = np.zeros(n, dtype=bool) if episode_start is None else np.asarray(episode_start, dtype=bool).reshape(-1)
            if len(begins) != n:
                raise ValueError(
                    f"episode_start={episode_start!r} must say of each of the {n} observations whether an episode begins "
                    f"there: pass {n} flags, as dones of the step before."
                )
            before = self.memory.from_parts(state, n, self.device)
            parts[MEMORY] = self.memory.before(before, th.as_tensor(begins, device=self.device))
        return with_extra_inputs(obs, parts)

    def in_bounds(self, actions: np.ndarray) -> np.ndarray:
        """Map actions to the env's bounds: unsquashed or clipped if the space is a Box.

        :param actions: ``[n_envs]`` or ``[n_envs, n]`` as sampled
        :return: ``[n_envs, *action_space.shape]``
        """
        space = self.action_space
        if not isinstance(space, spaces.Box):
            return actions
        actions = actions.reshape((-1, *space.shape))
        return self.unscale_action(actions) if self.squash_output else np.clip(actions, space.low, space.high)

    def _predict(self, observation: Obs, deterministic: bool = False, action_masks: GivenMasks = None) -> th.Tensor:
        return self.act_and_remember(self.with_masks(observation, action_masks), deterministic)[0]


def _n_rows(obs: Obs) -> int:
    return len(next(iter(obs.values())) if isinstance(obs, dict) else obs)


def _check_numbers(what: str, given: object) -> None:
    """Reject NaN and inf in observations or outputs; the network would turn them into some action."""
    for part in given.values() if isinstance(given, dict) else [given]:
        if isinstance(part, np.ndarray) and part.dtype.kind == "f" and np.isnan(part).any():
            cause = "the env or a wrapper" if what == "observation" else "the policy's weights"
            raise ValueError(f"predict(): the {what} holds NaN: {part.tolist()}. It must be numbers: look at {cause}.")


def _check_is_observation(given: Any) -> None:
    """Reject results of Gym's ``reset`` and of ``step``, which are tuples that end with infos."""
    last = given[-1] if isinstance(given, tuple) and len(given) > 1 else None
    if isinstance(last, list | tuple) and last:
        last = last[0]
    if isinstance(last, dict):
        raise ValueError(
            f"predict() was given a tuple of {len(given)} that ends with infos, as reset() and step() return it. Pass "
            "the observation alone: a Gym env is unpacked as `obs, info = env.reset()`, a VecEnv of SB3 says "
            "`obs = venv.reset()`."
        )
