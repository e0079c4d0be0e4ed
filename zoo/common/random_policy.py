"""Random policy, the reference for models."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import Space

from sb_grpo.collect.masks import masks_of_the_evaluated
from sb_grpo.policies.beside import MASK, beside
from sb_grpo.policies.masks import checked, choices_of, drawn

Observation = np.ndarray | Mapping[str, np.ndarray]


class RandomPolicy:
    """Policy of uniform valid actions for ``evaluate_policy``."""

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        space.seed(seed)

    def predict(
        self, observation: Observation, *_: object, action_masks: np.ndarray | None = None, **__: object
    ) -> tuple[np.ndarray, None]:
        """Draw one action per env.

        :param action_masks: ``[n_envs, m]``; None: found as by GRPO's ``predict``
        """
        n = len(next(iter(observation.values())) if isinstance(observation, Mapping) else observation)
        masks = action_masks if action_masks is not None else masks_of_the_evaluated()
        if masks is None and choices_of(self.space):
            masks = beside(observation, MASK)
        rows = [None] * n if masks is None else checked(masks, self.space, n, "of env {slot}")
        return np.array([drawn(self.space, row) for row in rows]), None
