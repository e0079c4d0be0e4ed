"""Random play of one env with valid actions, as ``action_space.sample()`` ignores action masks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from sb_grpo.policies.extra_inputs import MASK
from sb_grpo.policies.masks import METHOD, allows, checked, choices_of, drawn
from sb_grpo.types import Action, Info, Obs, Settings


class ValidActions(gym.Wrapper):
    """Wrapper whose ``action_space.sample()`` draws valid actions; all are valid if the env has no masks.

    Masks come from a method, an info or an observation, as in training (docs/masks.md).
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._obs: Obs = None
        self._info: Settings = {}
        space = copy.copy(env.action_space)
        self._draws_from = env.action_space
        self.action_space = space
        if choices_of(space):
            space.sample = self._draw  # type: ignore[method-assign]
            space.seed = env.action_space.seed  # type: ignore[method-assign]

    def reset(self, **kwargs: Any) -> tuple[Obs, Info]:
        """Reset the env, and keep observation and info for the masks."""
        self._obs, self._info = found = self.env.reset(**kwargs)
        return found

    def step(self, action: Action) -> tuple[Obs, SupportsFloat, bool, bool, Info]:
        """Step the env, and keep observation and info for the masks."""
        found = self.env.step(action)
        self._obs = found[0]
        self._info = found[4]
        return found

    def allows(self, action: Action) -> bool:
        """Whether an action is currently valid."""
        return allows(self._draws_from, self._mask(), action)

    @property
    def is_masked(self) -> bool:
        """Whether the env reports masks; known after its first reset."""
        return self._mask() is not None

    def _draw(self, *_: object, **__: object) -> Any:
        return drawn(self._draws_from, self._mask())

    def _mask(self) -> np.ndarray | None:
        if not choices_of(self.action_space):
            return None
        method = self.env.get_wrapper_attr(METHOD) if self.env.has_wrapper_attr(METHOD) else None
        found = method() if callable(method) else (self._info or {}).get(MASK)
        if found is None and isinstance(self._obs, Mapping):
            found = self._obs.get(MASK)
        return None if found is None else checked(found, self._draws_from, 1, "of the env")[0]
