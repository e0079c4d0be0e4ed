"""Kinds of observations: flat ones that are features already, and discrete ones that do not start at 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

from sb_grpo.policies.predicting import PredictingPolicy
from sb_grpo.types import Obs


def reads_flat(policy: PredictingPolicy) -> bool:
    """Whether the networks read observations unchanged: no one-hot code, no image, no custom features extractor."""
    space = policy.observation_space
    if not isinstance(space, spaces.Box) or (policy.normalize_images and is_image_space(space)):
        return False
    return type(policy).extract_features is PredictingPolicy.extract_features


def starts_of(space: spaces.Space) -> Any:
    """``start`` of a discrete space, by key in a Dict; None if all start at 0 or none is discrete."""
    if isinstance(space, spaces.Dict):
        starts = {key: start for key, part in space.items() if (start := starts_of(part)) is not None}
        return starts or None
    start = getattr(space, "start", None)  # of Discrete and MultiDiscrete
    return None if start is None or not np.any(start) else th.as_tensor(np.asarray(start))


def from_zero(obs: Obs, starts: Any) -> Any:
    """Shift discrete observations to start at 0.

    :param obs: ``[batch, ...]`` or a dict of such
    :param starts: of :func:`starts_of`
    """
    if starts is None:
        return obs
    if isinstance(starts, dict):
        return {key: from_zero(part, starts.get(key)) for key, part in obs.items()}
    return (obs - starts.to(obs.device)).clamp(min=0)  # the unused observation after a terminated episode is 0
