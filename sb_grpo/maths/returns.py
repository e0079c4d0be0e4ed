"""Returns of a rollout's steps and episodes, and lambda-returns under given values: pure functions, no loop over steps.

Notation: r_{i,t} is the reward of member i at step t, G_{i,t} = sum_k gamma^k r_{i,t+k} its discounted reward-to-go.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch as th

from sb_grpo import ranks
from sb_grpo.types import AdvantageOptions, Rollout


def linear_recurrence(x: th.Tensor, decay: th.Tensor, max_length: int) -> th.Tensor:
    """Solve y_t = x_t + decay_t * y_{t+1} backwards in time, by doubling: log2(max_length) passes, no loop over steps.

    :param x: ``[M]``
    :param decay: ``[M]``, 0 where the next row belongs to another episode
    :param max_length: no run of non-zero decays is longer
    :return: ``[M]`` y
    """
    y, decay = x.clone(), decay.clone()
    shift = 1
    while shift < max_length:
        y[:-shift] += decay[:-shift] * y[shift:]
        decay = th.cat([decay[:-shift] * decay[shift:], decay.new_zeros(shift)])
        shift *= 2
    return y


def is_last(rollout: Rollout) -> th.Tensor:
    """``[M]`` bool: this row is the last of its episode in the rollout."""
    return th.cat([rollout.episode[1:] != rollout.episode[:-1], rollout.episode.new_ones(1, dtype=th.bool)])


def rewards_to_go(rollout: Rollout, gamma: float) -> th.Tensor:
    """G_{i,t}, ``[M]``: discounted sum of the rewards of the episode from each step to its end."""
    decay = gamma * (~is_last(rollout)).to(rollout.rewards.dtype)
    return linear_recurrence(rollout.rewards, decay, rollout.max_length)


def episode_returns(rollout: Rollout, gamma: float) -> th.Tensor:
    """G_{i,0}, ``[E]``: discounted return of each episode from the first of its steps in the rollout."""
    is_first = th.cat([rollout.episode.new_ones(1, dtype=th.bool), rollout.episode[1:] != rollout.episode[:-1]])
    return rewards_to_go(rollout, gamma)[is_first]


def gae(rollout: Rollout, values: th.Tensor, final_values: th.Tensor, gamma: float, gae_lambda: float) -> th.Tensor:
    """Generalised advantage estimation (arXiv 1506.02438, eq. 16) under a given baseline.

    :param values: ``[M]`` baseline at each step's observation
    :param final_values: ``[E]`` baseline after the last step; terminated episodes ignore it
    :param gamma: discount
    :param gae_lambda: 1 makes the baseline a pure control variate, 0 trusts it fully
    :return: ``[M]``
    """
    last = is_last(rollout)
    next_values = th.cat([values[1:], values.new_zeros(1)])
    next_values[last] = th.where(rollout.terminated, th.zeros_like(final_values), final_values)
    delta = rollout.rewards + gamma * next_values - values
    return linear_recurrence(delta, gamma * gae_lambda * (~last).to(delta.dtype), rollout.max_length)


class Residuals(NamedTuple):
    """Lambda-advantages of M steps under the values of each fold."""

    by_fold: th.Tensor  #: [M, folds]
    fold: th.Tensor  #: [M] int64, whose values the step's own episode had no part in
    own: th.Tensor  #: [M] those under the values of ``fold``


def residuals_of(
    rollout: Rollout, options: AdvantageOptions, values: th.Tensor, final_values: th.Tensor, fold: th.Tensor
) -> Residuals:
    """Lambda-advantages under several baselines.

    :param values: ``[M, folds]``
    :param final_values: ``[E, folds]`` after each episode's last step
    :param fold: ``[E]`` int64, which of them an episode is judged by
    """
    of_row = fold[rollout.episode]
    both = zip(values.unbind(1), final_values.unbind(1), strict=True)
    by_fold = th.stack([gae(rollout, v, final, options.gamma, options.gae_lambda) for v, final in both], dim=1)
    return Residuals(by_fold, of_row, by_fold.gather(1, of_row.unsqueeze(1)).squeeze(1))


def explained_variance(predicted: th.Tensor, actual: th.Tensor) -> float:
    """1 - Var[actual - predicted] / Var[actual]: 1 is perfect, 0 no better than a constant; nan without variance."""
    whole, left = ranks.variances(actual, actual - predicted)
    return math.nan if whole == 0 else 1.0 - left / whole
