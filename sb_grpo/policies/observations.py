"""What kind of observations a policy sees: flat ones that are features as they are, codes that count from another number."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

from sb_grpo.policies.predicting import PredictingPolicy


def reads_flat(policy: PredictingPolicy) -> bool:
    """Whether the numbers of an observation are read as they are: no code, no image, and nobody's own way to read them."""
    space = policy.observation_space
    if not isinstance(space, spaces.Box) or (policy.normalize_images and is_image_space(space)):
        return False
    return type(policy).extract_features is PredictingPolicy.extract_features


def starts_of(space: spaces.Space) -> Any:
    """First numbers of a discrete space, by key in a Dict; None where all count from 0, or do not count."""
    if isinstance(space, spaces.Dict):
        starts = {key: start for key, part in space.items() if (start := starts_of(part)) is not None}
        return starts or None
    start = getattr(space, "start", None)  # of Discrete and MultiDiscrete
    return None if start is None or not np.any(start) else th.as_tensor(np.asarray(start))


def from_zero(obs: Any, starts: Any) -> Any:
    """Observations that count from 0.

    :param obs: ``[batch, ...]`` or a dict of such
    :param starts: of :func:`starts_of`
    """
    if starts is None:
        return obs
    if isinstance(starts, dict):
        return {key: from_zero(part, starts.get(key)) for key, part in obs.items()}
    return (obs - starts.to(obs.device)).clamp(min=0)  # what follows a terminated episode, which nobody asks for, is 0
