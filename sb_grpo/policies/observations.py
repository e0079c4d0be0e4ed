"""Kinds of observations: flat ones that are features already, discrete ones that do not start at 0, problem instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

from sb_grpo.plain import FORMS, Form
from sb_grpo.policies.predicting import PredictingPolicy
from sb_grpo.types import Obs, TensorOrDict


def reads_flat(policy: PredictingPolicy) -> bool:
    """Whether the networks read observations unchanged: no one-hot code, no image, no custom features extractor."""
    space = policy.observation_space
    if not isinstance(space, spaces.Box) or (policy.normalize_images and is_image_space(space)):
        return False
    return type(policy).extract_features is PredictingPolicy.extract_features


#: First values of discrete spaces, by key in a Dict; None: all start at 0.
Starts: TypeAlias = "th.Tensor | dict[str, Starts] | None"


def starts_of(space: spaces.Space) -> Starts:
    """``start`` of a discrete space, by key in a Dict; None if all start at 0 or none is discrete."""
    if isinstance(space, spaces.Dict):
        starts: dict[str, Starts] = {key: start for key, part in space.items() if (start := starts_of(part)) is not None}
        return starts or None
    start = getattr(space, "start", None)  # of Discrete and MultiDiscrete
    return None if start is None or not np.any(start) else th.as_tensor(np.asarray(start))


def from_zero(obs: Obs, starts: Starts) -> Obs:
    """Shift discrete observations to start at 0.

    :param obs: ``[batch, ...]`` or a dict of such
    :param starts: of :func:`starts_of`
    """
    if starts is None:
        return obs
    if isinstance(starts, dict):
        return {key: from_zero(part, starts.get(key)) for key, part in obs.items()}
    return (obs - starts.to(obs.device)).clamp(min=0)  # the unused observation after a terminated episode is 0


#: Name of the instance in an :class:`InstanceSpace` where it is one tensor.
ONE = ""


class InstanceSpace(spaces.Box):
    """Box of rows that hold an instance and a state: the parts of the instance in turn, each flattened, then the state.

    :param parts: shape of each part of the instance by name; a single tensor has the name ``""``
    :param state_dim: numbers of the state
    :param state_dtype: of states in a rollout; in the rows they are float32
    :param pointers: number of entries at the beginning of the state that are numbers of items
    :param per_item: number of blocks at the end of the state that have one entry for each item
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[int, ...]],
        state_dim: int,
        state_dtype: npt.DTypeLike = np.float32,
        pointers: int = 0,
        per_item: int = 0,
    ) -> None:
        self.parts = {name: tuple(shape) for name, shape in parts.items()}
        self.state_dim = state_dim
        self.pointers = pointers
        self.per_item = per_item
        self.state_dtype = np.dtype(state_dtype)
        super().__init__(-np.inf, np.inf, (sum(int(np.prod(shape)) for shape in self.parts.values()) + state_dim,), np.float32)

    def join(self, instance: TensorOrDict, state: th.Tensor) -> th.Tensor:
        """Rows of instances and states.

        :param instance: ``[n, ...]``, or a dict of such
        :param state: ``[n, state_dim]``
        :return: ``[n, d]`` float32
        """
        parts = instance if isinstance(instance, dict) else {ONE: instance}
        return th.cat([*(parts[name].flatten(1).float() for name in self.parts), state.float()], dim=1)

    def split(self, rows: th.Tensor) -> tuple[TensorOrDict, th.Tensor]:
        """Instances and states of rows.

        :param rows: ``[n, d]``
        :return: ``[n, ...]``, or a dict of such, and ``[n, state_dim]``
        """
        sizes = [*(int(np.prod(shape)) for shape in self.parts.values()), self.state_dim]
        *columns, state = th.split(rows, sizes, dim=1)
        parts = {name: x.view(-1, *shape) for (name, shape), x in zip(self.parts.items(), columns, strict=True)}
        return parts[ONE] if ONE in parts else parts, state


FORMS["InstanceSpace"] = Form(
    lambda v: type(v) is InstanceSpace,
    lambda v: {"parts": v.parts, "state_dim": v.state_dim, "state_dtype": str(v.state_dtype), "pointers": v.pointers,
               "per_item": v.per_item},
    lambda **kwargs: InstanceSpace(**kwargs),
)  # fmt: skip
