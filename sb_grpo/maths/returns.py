"""Returns of steps and episodes, and lambda-returns under given values: pure functions without a loop over steps.

Notation: r_{i,t} is the reward of member i at step t, G_{i,t} = sum_k gamma^k r_{i,t+k} its discounted reward-to-go.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch as th

from sb_grpo import distributed
from sb_grpo.types import Rollout


class LinearRecurrence:
    """Solves y_t = x_t + decay_t * y_{t+1} backwards in time, by doubling: log2(max_length) passes, no loop over steps.

    :param decay: ``[M]``, 0 where the next row belongs to another episode
    :param max_length: no run of non-zero decays is longer
    """

    def __init__(self, decay: th.Tensor, max_length: int) -> None:
        self.decays = []  # over 1, 2, 4, ... steps
        shift = 1
        while shift < max_length and shift < len(decay):
            self.decays.append((shift, decay[:-shift]))
            decay = th.cat([decay[:-shift] * decay[shift:], decay.new_zeros(shift)])
            shift *= 2

    def __call__(self, x: th.Tensor) -> th.Tensor:
        """Solve for ``[M]`` y, given ``[M]`` x."""
        y = x.clone()
        for shift, decay in self.decays:
            y[:-shift] += decay * y[shift:]
        return y


def is_last(rollout: Rollout) -> th.Tensor:
    """``[M]`` bool: True at the last row of each episode in the rollout."""
    return th.cat([rollout.episode[1:] != rollout.episode[:-1], rollout.episode.new_ones(1, dtype=th.bool)])


def rewards_to_go(rollout: Rollout, gamma: float) -> th.Tensor:
    """G_{i,t}, ``[M]``: discounted sum of the rewards of the episode from each step to its end."""
    decay = gamma * (~is_last(rollout)).to(rollout.rewards.dtype)
    return LinearRecurrence(decay, rollout.max_length)(rollout.rewards)


def episode_returns(rollout: Rollout, gamma: float) -> th.Tensor:
    """G_{i,0}, ``[E]``: discounted return of each episode from the first of its steps in the rollout."""
    is_first = th.cat([rollout.episode.new_ones(1, dtype=th.bool), rollout.episode[1:] != rollout.episode[:-1]])
    return rewards_to_go(rollout, gamma)[is_first]


class Gae:
    """Generalised advantage estimation (arXiv 1506.02438, eq. 16) of a rollout, under any number of baselines.

    :param gamma: discount
    :param gae_lambda: 1 makes the baseline a pure control variate, 0 trusts it fully
    """

    def __init__(self, rollout: Rollout, gamma: float, gae_lambda: float) -> None:
        self.rollout = rollout
        self.gamma = gamma
        self.last = is_last(rollout)
        decay = gamma * gae_lambda * (~self.last).to(rollout.rewards.dtype)
        self.sum = LinearRecurrence(decay, rollout.max_length)

    def __call__(self, values: th.Tensor, final_values: th.Tensor) -> th.Tensor:
        """Compute advantages.

        :param values: ``[M]`` baseline at each step's observation
        :param final_values: ``[E]`` baseline after the last step; terminated episodes ignore it
        :return: ``[M]``
        """
        next_values = th.cat([values[1:], values.new_zeros(1)])
        next_values[self.last] = final_values.masked_fill(self.rollout.terminated, 0.0)
        return self.sum(self.rollout.rewards + self.gamma * next_values - values)


def gae(rollout: Rollout, values: th.Tensor, final_values: th.Tensor, gamma: float, gae_lambda: float) -> th.Tensor:
    """:class:`Gae` under one baseline."""
    return Gae(rollout, gamma, gae_lambda)(values, final_values)


class Residuals(NamedTuple):
    """Lambda-advantages of M steps under the values of each fold."""

    by_fold: th.Tensor  #: [M, folds]
    fold: th.Tensor  #: [M] int64, the fold whose values were fitted without the step's own episode
    own: th.Tensor  #: [M] advantages under the values of ``fold``


def residuals_of(advantages: Gae, values: th.Tensor, final_values: th.Tensor, fold: th.Tensor) -> Residuals:
    """Compute lambda-advantages under several baselines.

    :param advantages: of the rollout
    :param values: ``[M, folds]``
    :param final_values: ``[E, folds]`` after each episode's last step
    :param fold: ``[E]`` int64, the baseline for each episode
    """
    of_row = fold[advantages.rollout.episode]
    by_fold = th.stack([advantages(*both) for both in zip(values.unbind(1), final_values.unbind(1), strict=True)], dim=1)
    return Residuals(by_fold, of_row, by_fold.gather(1, of_row.unsqueeze(1)).squeeze(1))


def explained_variance(predicted: th.Tensor, actual: th.Tensor) -> float:
    """1 - Var[actual - predicted] / Var[actual]: 1 is perfect, 0 equals a constant; nan without variance."""
    whole, left = distributed.variances(actual, actual - predicted)
    return math.nan if whole == 0 else 1.0 - left / whole
