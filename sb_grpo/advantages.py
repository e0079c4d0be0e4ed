"""Advantage estimators: pure functions from a rollout to one number per step. No environment, no policy, no state.

Notation: r_{i,t} is the reward of member i at step t, G_{i,t} = sum_k gamma^k r_{i,t+k} its discounted reward-to-go.
Every estimator subtracts what the other members of the group would lead one to expect, then divides by the spread.
Steps of groups without spread get exactly 0: they carry no signal and the update leaves them out.

Decided here once: standard deviations are population ones (DeepSeekMath's std over the G outputs); a spread below
``SPREAD_TOLERANCE`` of the returns' size counts as none; a group of one has no spread and no peers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch as th

from sb_grpo.types import Rollout

SPREAD_TOLERANCE = 1e-5
#: The same for residuals of a fit, which are never exactly 0: a constant reward leaves 1e-4, CartPole when solved 7e-3.
RESIDUAL_TOLERANCE = 1e-3
#: Steps that a return's size is made of, at most, where residuals are compared with it. Under a longer horizon it is mostly a
#: level which all states share: at gamma 0.9999 a good baseline leaves less than a thousandth of it.
LONGEST_HORIZON = 100.0


class AdvantageOptions(NamedTuple):
    """What the constructor of GRPO says about advantages."""

    gamma: float = 0.995  #: discount, in [0, 1]
    gae_lambda: float = 0.95  #: lambda of the lambda-return, in [0, 1]; used by ``"state"``
    #: ``"mean"``, ``"leave_one_out"``, ``"median"`` (of the group) or ``"global"`` (mean of all groups)
    baseline: str = "mean"
    normalize: str = "group"  #: divide by the spread of the ``"group"``, of the ``"batch"``, or not at all: ``"none"``
    ended_members: str = "zero"  #: ``"step"``: a member that has ended counts as return 0 (``"zero"``) or not (``"drop"``)


AdvantageEstimator = Callable[[Rollout, AdvantageOptions], th.Tensor]


def segment_sum(values: th.Tensor, segment: th.Tensor, n: int) -> th.Tensor:
    """Sum per segment.

    :param values: ``[M]``
    :param segment: ``[M]`` int64 in [0, n)
    :param n: number of segments
    :return: ``[n]``
    """
    return values.new_zeros(n).index_add_(0, segment, values)


def segment_mean(values: th.Tensor, segment: th.Tensor, n: int) -> th.Tensor:
    """Mean per segment, 0 for an empty one; arguments as in :func:`segment_sum`."""
    return segment_sum(values, segment, n) / segment_sum(th.ones_like(values), segment, n).clamp_(min=1.0)


def segment_std(values: th.Tensor, segment: th.Tensor, n: int) -> th.Tensor:
    """Population standard deviation per segment; arguments as in :func:`segment_sum`."""
    centred = values - segment_mean(values, segment, n)[segment]
    return segment_mean(centred.square(), segment, n).sqrt()


def segment_median(values: th.Tensor, segment: th.Tensor, n: int) -> th.Tensor:
    """Median per segment (mean of the two middle values of an even count); arguments as in :func:`segment_sum`."""
    by_value = values.argsort(stable=True)
    ordered = values[by_value[segment[by_value].argsort(stable=True)]]
    count = segment_sum(th.ones_like(segment), segment, n)
    start = count.cumsum(0) - count
    low = (start + (count - 1).clamp(min=0) // 2).clamp(max=len(values) - 1)
    high = (start + count // 2).clamp(max=len(values) - 1)
    return 0.5 * (ordered[low] + ordered[high])


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


def peer_baseline(values: th.Tensor, key: th.Tensor, n: int, kind: str) -> th.Tensor:
    """What the peers lead one to expect of each value.

    :param values: ``[K]`` one value per member
    :param key: ``[K]`` which values are peers
    :param n: number of keys
    :param kind: ``"mean"`` (itself included), ``"leave_one_out"`` (RLOO, arXiv 2402.14740) or ``"median"``
    :return: ``[K]``; a value without peers is its own baseline
    """
    if kind == "median":
        return segment_median(values, key, n)[key]
    if kind == "mean":
        return segment_mean(values, key, n)[key]
    total, count = segment_sum(values, key, n)[key], segment_sum(th.ones_like(values), key, n)[key]
    return th.where(count > 1, (total - values) / (count - 1).clamp(min=1.0), values)


def scale(
    centred: th.Tensor,
    spread_of: th.Tensor,
    size_of: th.Tensor,
    group: th.Tensor,
    n_groups: int,
    normalize: str,
    tolerance: float = SPREAD_TOLERANCE,
) -> th.Tensor:
    """Divide by the spread, and set to 0 what belongs to a group without spread.

    :param centred: ``[K]`` values minus baseline
    :param spread_of: ``[K]`` whose standard deviation counts
    :param size_of: ``[K]`` whose size says which spread is too small to be one
    :param group: ``[K]`` group of each value
    :param n_groups: number of groups
    :param normalize: ``"group"``, ``"batch"`` or ``"none"``
    :param tolerance: a spread below this share of the root mean square of ``size_of`` is none
    :return: ``[K]``
    """
    spread = segment_std(spread_of, group, n_groups)
    alive = (spread > tolerance * segment_mean(size_of.square(), group, n_groups).sqrt())[group]
    tiny = th.finfo(spread.dtype).tiny
    if normalize == "group":
        centred = centred / spread[group].clamp(min=tiny)
    elif normalize == "batch" and alive.any():
        centred = centred / spread_of[alive].std(unbiased=False).clamp(min=tiny)
    return th.where(alive, centred, th.zeros_like(centred))


def outcome(rollout: Rollout, options: AdvantageOptions) -> th.Tensor:
    """Outcome supervision (DeepSeekMath, arXiv 2402.03300, eq. 3): A_{i,t} = (R_i - mean R) / std R for every step.

    R_i is the discounted return of the whole episode; ``gamma=1`` gives the paper's plain sum.

    :return: ``[M]``
    """
    returns = episode_returns(rollout, options.gamma)
    centred = returns - _baseline(returns, rollout.group, rollout.n_groups, options)
    return scale(centred, returns, returns, rollout.group, rollout.n_groups, options.normalize)[rollout.episode]


def process(rollout: Rollout, options: AdvantageOptions) -> th.Tensor:
    """Process supervision (DeepSeekMath, section 4.1.3): step rewards normalised over the group, then summed to go.

    The sum is discounted by gamma; ``gamma=1`` gives the paper's. Where every step pays the same (CartPole) it has
    nothing to compare and every group counts as one without spread.

    :return: ``[M]``
    """
    row_group = rollout.group[rollout.episode]
    if options.baseline == "leave_one_out":
        n_episodes = len(rollout.group)
        ones = th.ones_like(rollout.rewards)
        total, count = (segment_sum(x, row_group, rollout.n_groups)[row_group] for x in (rollout.rewards, ones))
        own, own_count = (segment_sum(x, rollout.episode, n_episodes)[rollout.episode] for x in (rollout.rewards, ones))
        baseline = th.where(count > own_count, (total - own) / (count - own_count).clamp(min=1.0), own / own_count)
    else:
        baseline = _baseline(rollout.rewards, row_group, rollout.n_groups, options)
    rewards = rollout.rewards
    normalised = scale(rewards - baseline, rewards, rewards, row_group, rollout.n_groups, options.normalize)
    return rewards_to_go(rollout._replace(rewards=normalised), options.gamma)


def step(rollout: Rollout, options: AdvantageOptions) -> th.Tensor:
    """Time-aligned group baseline (GPG with f = t, arXiv 2510.03679): A_{i,t} = (G_{i,t} - b_t) / std.

    b_t is taken over the members at the same step t. A member that has ended counts as return 0, its true value, or is
    left out (``ended_members``); then the last survivor has no peers and gets 0.

    :return: ``[M]``
    """
    to_go, row_group = rewards_to_go(rollout, options.gamma), rollout.group[rollout.episode]
    horizon = rollout.max_length
    key, n_keys = row_group * horizon + rollout.t, rollout.n_groups * horizon
    if options.baseline == "global":
        key, n_keys = rollout.t, horizon
        members = th.full((n_keys,), len(rollout.group), device=key.device)
    else:
        per_group = segment_sum(th.ones_like(rollout.group), rollout.group, rollout.n_groups)
        members = per_group.repeat_interleave(horizon)
    values, keys = to_go, key
    if options.ended_members == "zero":
        ended = members - segment_sum(th.ones_like(key), key, n_keys)
        keys = th.cat([key, th.arange(n_keys, device=key.device).repeat_interleave(ended)])
        values = th.cat([to_go, to_go.new_zeros(len(keys) - len(key))])
    kind = "mean" if options.baseline == "global" else options.baseline
    advantages = to_go - peer_baseline(values, keys, n_keys, kind)[: len(to_go)]
    return scale(advantages, advantages, to_go, row_group, rollout.n_groups, options.normalize)


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


def centre_and_scale(advantages: th.Tensor, targets: th.Tensor, rollout: Rollout, options: AdvantageOptions) -> th.Tensor:
    """z-scores of steps within the group or the batch: what makes ``"state"`` advantages group-relative.

    :param advantages: ``[M]`` targets minus baseline
    :param targets: ``[M]`` lambda-returns; advantages below ``RESIDUAL_TOLERANCE`` of their size over at most
        ``LONGEST_HORIZON`` steps count as none
    :param options: with ``normalize="none"`` they are returned as they are
    :return: ``[M]``
    """
    if options.normalize == "none":
        return advantages
    row_group, n = rollout.group[rollout.episode], rollout.n_groups
    if options.normalize == "batch":
        row_group, n = th.zeros_like(row_group), 1
    centred = advantages - segment_mean(advantages, row_group, n)[row_group]
    one_over_horizon = max(1.0 - options.gamma, 1.0 / rollout.max_length)
    tolerance = RESIDUAL_TOLERANCE * min(1.0, LONGEST_HORIZON * one_over_horizon)
    return scale(centred, advantages, targets, row_group, n, "group", tolerance)


def _baseline(values: th.Tensor, group: th.Tensor, n_groups: int, options: AdvantageOptions) -> th.Tensor:
    if options.baseline == "global":
        return values.mean().expand_as(values)
    return peer_baseline(values, group, n_groups, options.baseline)


def shape_rewards(rewards: th.Tensor, scaling: str, limit: float) -> th.Tensor:
    """Bound the step rewards before anything else sees them.

    :param rewards: ``[M]``
    :param scaling: ``"none"``, ``"clip"`` to [-limit, limit], or ``"tanh"``: limit * tanh(r / limit)
    :param limit: positive bound
    :return: ``[M]``
    """
    if scaling == "clip":
        return rewards.clamp(-limit, limit)
    if scaling == "tanh":
        return limit * th.tanh(rewards / limit)
    return rewards


ESTIMATORS: dict[str, AdvantageEstimator] = {"outcome": outcome, "process": process, "step": step}


def explained_variance(predicted: th.Tensor, actual: th.Tensor) -> float:
    """1 - Var[actual - predicted] / Var[actual]: 1 is perfect, 0 no better than a constant; nan without variance."""
    variance = actual.var(unbiased=False)
    return math.nan if variance == 0 else float(1.0 - (actual - predicted).var(unbiased=False) / variance)
