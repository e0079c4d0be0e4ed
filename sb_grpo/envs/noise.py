"""Counter-based noise: the random numbers of a step are a pure function of (reset seed, step number).

Episodes with one seed then meet the same arrivals, demands or prices at the same step, whatever the actions; groups with a
shared seed need this. :func:`step_noise` is for tensor envs, :class:`EpisodeNoise` for a ``gymnasium.Env``; for one seed their
numbers are bitwise equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import gymnasium as gym
import numpy as np
import torch as th

from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.random import mix_tensor, signed, uniform

Numbers = TypeVar("Numbers", th.Tensor, np.ndarray)
P = ParamSpec("P")

#: Function from uniform numbers ``[n, k]`` and step numbers ``[n]`` (of the same dtype) to noise ``[n, m]``.
Transform = Callable[[th.Tensor, th.Tensor], th.Tensor]


def step_noise(seeds: th.Tensor, t: th.Tensor | int, k: int, dtype: th.dtype = th.float32) -> th.Tensor:
    """Uniform numbers of a step; only tensor arithmetic, so that it can be compiled.

    :param seeds: ``[n]`` int64 reset seeds
    :param t: ``[n]`` int64 or one number, the step, from 0
    :param k: numbers per step
    :return: ``[n, k]`` in [0, 1), multiples of 2^-24, so exact in float32 and the same on every device
    """
    return uniform(mix_tensor(seeds, t), k, dtype)


# ------------------------------------------------------------ inverse distribution functions, for tensors and arrays alike


def _of_arrays_too(transform: Callable[Concatenate[th.Tensor, P], th.Tensor]) -> Callable[Concatenate[Numbers, P], Numbers]:
    """Let a function of tensors also map NumPy arrays; torch does both, so that host and device agree."""

    @wraps(transform)
    def either(u: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        if isinstance(u, th.Tensor):
            return transform(u, *args, **kwargs)
        return transform(th.as_tensor(np.asarray(u)), *args, **kwargs).numpy()

    typed: Any = either
    return typed  # type: ignore[no-any-return]


@_of_arrays_too
def exponential(u: th.Tensor, mean: float = 1.0) -> th.Tensor:
    """Exponential numbers from uniform ones in [0, 1)."""
    return -mean * th.log1p(-u)


@_of_arrays_too
def pareto(u: th.Tensor, shape: float, smallest: float = 1.0) -> th.Tensor:
    """Pareto numbers from uniform ones in [0, 1): P(X > x) = (smallest / x)^shape; mean smallest * shape / (shape - 1)."""
    return smallest * th.exp(-th.log1p(-u) / shape)


@_of_arrays_too
def normal(u: th.Tensor, deviation: float = 1.0) -> th.Tensor:
    """Normal numbers of mean 0 from uniform ones in [0, 1). 0 counts as 2^-25, half of the smallest step of
    :func:`step_noise`.
    """
    standard: th.Tensor = th.special.ndtri(u.clamp(min=2.0**-25))
    return deviation * standard


@_of_arrays_too
def geometric(u: th.Tensor, mean: float | th.Tensor) -> th.Tensor:
    """Geometric numbers 0, 1, 2, ... from uniform ones in [0, 1); r of them sum to a negative binomial number."""
    again = mean / (1.0 + mean)  # probability of one more
    return th.floor(th.log1p(-u) / (again.log() if isinstance(again, th.Tensor) else math.log(again)))


# ------------------------------------------------------------ a gymnasium.Env


class EpisodeNoise:
    """Noise of a ``gymnasium.Env``, step by step.

    Call :meth:`begin` in ``reset`` after ``super().reset(seed=seed)``, and :meth:`at` in ``step``. The reset seed determines
    the noise. If the env gets another generator between ``reset`` and the first step, as by GRPO with ``shared_noise=False``,
    its first number is the seed of the noise, and the initial state stays.

    :param env: the env, whose ``np_random`` chooses the seed of unseeded resets
    :param k: uniform numbers per step
    :param transform: maps blocks of them to noise; None: uniform numbers
    :param block: steps drawn at once, about the length of an episode
    :raises ValueError: for no numbers or no steps
    """

    def __init__(self, env: gym.Env, k: int, transform: Transform | None = None, block: int = 200) -> None:
        if k < 1 or block < 1:
            raise ValueError(f"k={k} and block={block} must be at least 1: numbers per step, and steps drawn at once.")
        self.env = env
        self.k = k
        self.transform = transform
        self.block = block
        self._seed: int | None = None
        self._generator: np.random.Generator | None = None
        self._first = 0
        self._rows: list[list[float]] = []

    def begin(self, seed: int | None, n: int) -> np.ndarray:
        """Start an episode.

        :param seed: as given to ``reset``; None: drawn from ``np_random``
        :param n: numbers for the initial state
        :return: ``[n]`` float64, uniform in [0, 1): those of ``sb_grpo.envs.random.uniform``
        """
        self._generator = self.env.np_random
        self._rows = []
        self._seed = int(self._generator.integers(2**31)) if seed is None else seed
        return uniform(_as_tensor(self._seed), n, th.float64)[0].numpy()

    def at(self, t: int) -> list[float]:
        """Noise of a step.

        :param t: number of the step in its episode, from 0
        :return: the transformed numbers of this step
        """
        row = t - self._first
        if not 0 <= row < len(self._rows):
            self._draw(t)
            row = 0
        return self._rows[row]

    def _draw(self, first: int) -> None:
        if self._seed is None:
            raise ValueError("The noise of a step was asked for before the first episode: call begin in reset.")
        if self.env.np_random is not self._generator:
            self._generator = self.env.np_random
            self._seed = int(self._generator.integers(2**31))
        t = th.arange(first, first + self.block)
        u = step_noise(_as_tensor(self._seed), t, self.k, th.float64)
        self._first = first
        self._rows = (u if self.transform is None else self.transform(u, t.double())).tolist()


def _as_tensor(seed: int) -> th.Tensor:
    return th.tensor([signed(seed % (1 << 64))])


# ------------------------------------------------------------ tensors


def clock(seeds: th.Tensor, dtype: th.dtype) -> th.Tensor:
    """Seed and step number as columns of a state, exact in float32: two halves of 16 bits, and t = 0.

    :param seeds: ``[n]`` int64 in [0, 2^32)
    :return: ``[n, 3]``
    """
    return th.stack([seeds >> 16, seeds & 0xFFFF, th.zeros_like(seeds)], 1).to(dtype)


def read_clock(columns: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """Seeds ``[n]`` and step numbers ``[n]`` from the columns of :func:`clock`, both int64."""
    high, low, t = columns.long().unbind(1)
    return (high << 16) | low, t


class NoisyTensorEnv(FunctionalTensorEnv):
    """FunctionalTensorEnv with noise in its steps; the state is a body and the clock for the noise.

    Subclasses define ``body_start``, ``noise``, ``advance`` and ``look`` instead of the three functions. Only the time limit
    ends an episode.
    """

    n_start: int  #: uniform numbers of the start state
    k: int  #: uniform numbers of a step

    def body_start(self, u: th.Tensor) -> th.Tensor:
        """Start of the body ``[n, body]`` from uniform numbers ``[n, n_start]``."""
        raise NotImplementedError

    @staticmethod
    def noise(u: th.Tensor, t: th.Tensor) -> th.Tensor:
        """Noise of a step; a :data:`Transform`."""
        raise NotImplementedError

    def advance(self, body: th.Tensor, actions: th.Tensor, noise: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Advance body ``[n, body]`` by actions and noise ``[n, m]``; return the next body and the reward ``[n]``."""
        raise NotImplementedError

    def look(self, body: th.Tensor, t: th.Tensor) -> th.Tensor:
        """Observation of the body at step t ``[n]``."""
        raise NotImplementedError

    def initial_state(self, seeds: th.Tensor) -> th.Tensor:
        return th.cat([self.body_start(uniform(seeds, self.n_start, self.dtype)), clock(seeds, self.dtype)], 1)

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        seeds, t = read_clock(state[:, -3:])
        noise = self.noise(step_noise(seeds, t, self.k, self.dtype), t.to(self.dtype))
        body, reward = self.advance(state[:, :-3], actions, noise)
        after = th.cat([body, state[:, -3:-1], state[:, -1:] + 1], 1)
        return after, reward, th.zeros_like(reward, dtype=th.bool)

    def observe(self, state: th.Tensor) -> th.Tensor:
        return self.look(state[:, :-3], state[:, -1]).float()
