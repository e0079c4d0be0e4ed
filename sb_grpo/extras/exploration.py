"""Exploration bonuses: rewards for new states, added to the env's before advantages are computed.

``rewards=dict(bonus=...)`` holds settings; :meth:`build` makes the module that counts or learns. It belongs to one model, is
on its device and is saved with it. A whole rollout gets its bonuses at once, so the members of a group are compared under the
same bonus.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, preprocess_obs
from stable_baselines3.common.torch_layers import create_mlp
from torch import nn

from sb_grpo.config import check_fields
from sb_grpo.envs.random import mix_tensor
from sb_grpo.maths.chunks import in_chunks
from sb_grpo.maths.normalizer import RunningNormalizer
from sb_grpo.maths.per_step import per_step
from sb_grpo.maths.returns import rewards_to_go
from sb_grpo.policies.extra_inputs import env_part
from sb_grpo.policies.observations import from_zero, starts_of
from sb_grpo.types import Rollout, State, TensorOrDict, map_obs

#: Function from a rollout of M steps to ``[M]`` bonuses.
Bonus = Callable[[Rollout], th.Tensor]

#: Size of the table of counts.
CELLS = 1 << 16
#: Larger bounds of a Box do not tell the scale of observations.
LARGEST_BOUND = 1e4


@dataclass(frozen=True)
class CountBonus:
    """Counts of hashed observations (Tang et al., 2017, https://arxiv.org/abs/1611.04717, section 2): scale / sqrt(n(phi(s))).

    phi is SimHash: the signs of ``bits`` random projections of the observation. The observation is scaled to [-1, 1] by the
    bounds of its space if all are within +-1e4, else standardised by the first rollout, permanently, because the hash of a
    state must not change. A 1 is appended, so that not all planes go through the centre.

    :param scale: bonus of the first visit to a cell, in units of reward
    :param bits: number of planes that divide the observations into cells, 1 to 62 (packed into one integer); more planes,
        smaller cells
    :param seed: of the planes; the same in every run, so only counts are saved
    :raises ValueError: for values out of range
    """

    scale: float = 1.0
    bits: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields("CountBonus", self)

    def build(self, place: Place) -> StateCounts:
        space = place.observation_space
        box = isinstance(space, spaces.Box) and is_scale(space) and not place.vec_normalized
        return StateCounts(space, self, bounded=box or not isinstance(space, spaces.Box | spaces.Dict))


def is_scale(space: spaces.Box) -> bool:
    """Whether the bounds tell the scale of observations; bounds such as float32's largest number do not."""
    return bool((np.abs(space.low) <= LARGEST_BOUND).all() and (np.abs(space.high) <= LARGEST_BOUND).all())


@dataclass(frozen=True)
class RNDBonus:
    """Random network distillation (Burda et al., 2018, https://arxiv.org/abs/1810.12894, sections 2.2 and 2.4).

    The bonus is the squared error of a network that learns to predict the output of a fixed random one, so familiar states pay
    little. Observations are standardised by running statistics and clipped at 5; the error is divided by the running standard
    deviation of its discounted sum, as in the paper.

    :param scale: of the bonus, in units of reward; 1: an episode's discounted bonuses have a standard deviation near 1
    :param hidden: units in each of the two hidden layers of both networks
    :param outputs: numbers to predict
    :param learning_rate: of the predictor
    :param n_epochs: passes over each rollout
    :param batch_size: steps per minibatch
    :raises ValueError: for values out of range
    """

    scale: float = 1.0
    hidden: int = 64
    outputs: int = 32
    learning_rate: float = 1e-4
    n_epochs: int = 1
    batch_size: int = 64

    def __post_init__(self) -> None:
        check_fields("RNDBonus", self)

    def build(self, place: Place) -> RandomDistillation:
        return RandomDistillation(place.observation_space, self, place.gamma)


class StateCounts(nn.Module):
    """Module of :class:`CountBonus`: the table of counts.

    :param space: of observations; Dict included
    :param settings: scale, bits and seed
    :param bounded: scale by the bounds of the space; False: by the first rollout
    """

    planes: th.Tensor
    centre: th.Tensor
    width: th.Tensor
    counts: th.Tensor

    def __init__(self, space: spaces.Space, settings: CountBonus, bounded: bool) -> None:
        super().__init__()
        self.space = space
        self.scale = settings.scale
        self._settled = bounded
        size = get_flattened_obs_dim(space)
        generator = th.Generator().manual_seed(settings.seed)
        self.register_buffer("planes", th.randn(size + 1, settings.bits, generator=generator), persistent=False)
        self.register_buffer("centre", th.zeros(size))
        self.register_buffer("width", th.zeros(size))  # 0: not known yet
        self.register_buffer("counts", th.zeros(CELLS, dtype=th.int64))
        if bounded:
            low = th.zeros(size)  # one-hot
            high = th.ones(size)
            if isinstance(space, spaces.Box):
                low, high = (flat(th.as_tensor(bound).unsqueeze(0), space)[0] for bound in (space.low, space.high))
            self.centre.copy_((low + high) / 2)
            self.width.copy_(no_zeros((high - low) / 2))

    @th.no_grad()
    def forward(self, rollout: Rollout) -> th.Tensor:
        """Count a rollout, then return its bonuses; every step in a cell gets the same.

        :return: ``[M]``
        """
        if not self._settled:
            self._settle(rollout.observations)
        cell = in_chunks(self.cells, rollout.observations)
        self.counts.index_add_(0, cell, th.ones_like(cell))
        return self.scale * self.counts[cell].float().rsqrt()

    def cells(self, obs: TensorOrDict) -> th.Tensor:
        """``[M]`` index of each observation in the table."""
        z = (flat(obs, self.space) - self.centre) / self.width
        signs = th.addmm(self.planes[-1], z, self.planes[:-1]) > 0
        code = (signs.long() << th.arange(signs.shape[1], device=signs.device)).sum(1)
        return mix_tensor(code).remainder(CELLS)

    def _settle(self, obs: TensorOrDict) -> None:
        """Set centre and width from the first rollout, unless a saved model has them."""
        self._settled = True
        unknown = self.width == 0
        rows = flat(obs, self.space)
        self.centre.copy_(th.where(unknown, rows.mean(0), self.centre))
        self.width.copy_(th.where(unknown, no_zeros(rows.std(0, unbiased=False)), self.width))


class RandomDistillation(nn.Module):
    """Module of :class:`RNDBonus`: the networks with their optimiser and statistics.

    :param space: of observations; Dict included
    :param settings: see :class:`RNDBonus`
    :param gamma: discount of the sums whose standard deviation is the unit
    """

    def __init__(self, space: spaces.Space, settings: RNDBonus, gamma: float) -> None:
        super().__init__()
        self.space = space
        self.settings = settings
        self.gamma = gamma
        size = get_flattened_obs_dim(space)
        layers = [settings.hidden] * 2
        self.target = nn.Sequential(*create_mlp(size, settings.outputs, layers)).requires_grad_(False)
        self.predictor = nn.Sequential(*create_mlp(size, settings.outputs, layers))
        self.obs_normalizer = RunningNormalizer(size, clip=5.0)
        self.return_normalizer = RunningNormalizer(1, clip=math.inf)
        self.optimizer = th.optim.Adam(self.predictor.parameters(), lr=settings.learning_rate)

    def forward(self, rollout: Rollout) -> th.Tensor:
        """Compute the bonuses of a rollout, then learn from it.

        :return: ``[M]``
        """
        obs = rollout.observations
        with th.no_grad():
            self.obs_normalizer.update(flat(obs, self.space))
            error = in_chunks(self.error, obs)
            sums = rewards_to_go(rollout._replace(rewards=error), self.gamma)
            self.return_normalizer.update(sums.unsqueeze(1))
            bonus = self.settings.scale * error / (self.return_normalizer.var + 1e-8).sqrt()
        for _ in range(self.settings.n_epochs):
            for rows in th.randperm(len(error), device=error.device).split(self.settings.batch_size):  # type: ignore[no-untyped-call]
                self.optimizer.zero_grad()
                self.error(map_obs(lambda x: x[rows], obs)).mean().backward()  # type: ignore[no-untyped-call]  # noqa: B023
                self.optimizer.step()
        return bonus

    def error(self, obs: TensorOrDict) -> th.Tensor:
        """``[M]`` mean squared error of the prediction."""
        z = self.obs_normalizer(flat(obs, self.space))
        difference: th.Tensor = self.predictor(z) - self.target(z)
        return difference.square().mean(1)

    # The optimiser is part of the module's state_dict, so that a loaded model continues exactly.
    def get_extra_state(self) -> State:
        return self.optimizer.state_dict()

    def set_extra_state(self, state: State) -> None:
        self.optimizer.load_state_dict(state)


def flat(obs: TensorOrDict, space: spaces.Space) -> th.Tensor:
    """``[M, size]`` observations as vectors: one-hot where discrete, images in [0, 1], the parts of a Dict side by side."""
    ready = preprocess_obs(from_zero(env_part(obs), starts_of(space)), space)
    parts = ready.values() if isinstance(ready, dict) else [ready]
    return th.cat([part.float().flatten(1) for part in parts], dim=1)


def no_zeros(width: th.Tensor) -> th.Tensor:
    """Replace widths near 0 by 1, so that a constant component is not blown up when it changes."""
    return th.where(width > 1e-6, width, 1.0)


class Place(NamedTuple):
    """Facts about the model that a bonus is built for."""

    observation_space: spaces.Space
    vec_normalized: bool  #: a VecNormalize is between env and model
    gamma: float
    device: th.device


def make_bonus(given: object, place: Place) -> Bonus | None:
    """Make the bonus of a model; None without one.

    :param given: settings, or a function
    """
    bonus: Any = given.build(place) if hasattr(given, "build") else given
    return bonus.to(place.device) if isinstance(bonus, nn.Module) else bonus


def bonus_of(bonus: Bonus, rollout: Rollout, given: object) -> th.Tensor:
    """Compute and check the bonuses of a rollout.

    :param given: the user's argument, for the message
    :return: ``[M]``
    :raises ValueError: if the bonus is no tensor of the right shape, or not finite
    """
    values = bonus(rollout)
    remedy = "Check the function, and lower its scale or learning_rate if it has one."
    return per_step(f"rewards: bonus={given!r}", f"exploration bonus ({given!r})", remedy, values, rollout)
