"""Advantage estimators: pure functions from a rollout to one number per step. No environment, no policy, no state.

Notation: r_{i,t} is the reward of member i at step t, G_{i,t} = sum_k gamma^k r_{i,t+k} its discounted reward-to-go.
Every estimator subtracts a baseline of the group's returns, then divides by the spread. Steps of groups without spread get
exactly 0: they carry no signal and the update skips them.

Standard deviations are population ones (DeepSeekMath's std over the G outputs). A spread below ``SPREAD_TOLERANCE`` of the
returns' size counts as zero. A group of one has no spread and no other members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch as th

from sb_grpo import distributed
from sb_grpo.maths.returns import episode_returns, rewards_to_go
from sb_grpo.maths.segments import Total, own, segment_mean, segment_means, segment_median, segment_std, segment_sum
from sb_grpo.types import AdvantageOptions, Rollout

SPREAD_TOLERANCE = 1e-5
#: The tolerance for residuals of a fit, which are never exactly 0: a constant reward leaves 1e-4, solved CartPole 7e-3.
RESIDUAL_TOLERANCE = 1e-3
#: Longest horizon, in steps, of the return's size that residuals are compared with. Beyond it the return is mostly a level
#: shared by all states: at gamma 0.9999 a good baseline leaves less than a thousandth of it.
LONGEST_HORIZON = 100.0

AdvantageEstimator = Callable[..., th.Tensor]


def peer_baseline(values: th.Tensor, key: th.Tensor, n: int, kind: str) -> th.Tensor:
    """Baseline of each value from the values with the same key.

    :param values: ``[K]`` one value per member
    :param key: ``[K]`` int64 in [0, n); equal keys are compared with each other
    :param n: number of keys
    :param kind: ``"mean"`` (itself included), ``"leave_one_out"`` (RLOO, arXiv 2402.14740) or ``"median"``
    :return: ``[K]``; a value with a unique key is its own baseline
    """
    if kind == "median":
        return segment_median(values, key, n)[key]
    if kind == "mean":
        return segment_mean(values, key, n)[key]
    total = segment_sum(values, key, n)[key]
    count = segment_sum(th.ones_like(values), key, n)[key]
    return th.where(count > 1, (total - values) / (count - 1).clamp(min=1.0), values)


def spread_and_signal(
    spread_of: th.Tensor,
    size_of: th.Tensor,
    group: th.Tensor,
    n_groups: int,
    tolerance: float = SPREAD_TOLERANCE,
    total: Total = own,
    known: Sequence[th.Tensor] | None = None,
) -> tuple[th.Tensor, th.Tensor]:
    """Standard deviation of each group, and whether it is large enough to carry a signal; arguments as in :func:`scale`.

    :return: ``[n_groups]``, and ``[n_groups]`` bool
    """
    mean, mean_square = known or segment_means((spread_of, size_of.square()), group, n_groups, total)
    spread = segment_std(spread_of, group, n_groups, total, mean)
    return spread, spread > tolerance * mean_square.sqrt()


def scale(
    centred: th.Tensor,
    spread_of: th.Tensor,
    size_of: th.Tensor,
    group: th.Tensor,
    n_groups: int,
    normalize: str,
    tolerance: float = SPREAD_TOLERANCE,
    total: Total = own,
    known: Sequence[th.Tensor] | None = None,
) -> th.Tensor:
    """Divide by the spread; values of groups without spread become 0.

    :param centred: ``[K]`` values minus baseline
    :param spread_of: ``[K]`` values for the standard deviation
    :param size_of: ``[K]`` values for the size that the spread is compared with
    :param group: ``[K]`` group of each value
    :param n_groups: number of groups
    :param normalize: ``"group"``, ``"batch"`` or ``"none"``
    :param tolerance: a spread below this share of the root mean square of ``size_of`` counts as zero
    :param total: sum over the ranks, if groups span several
    :param known: ``[n_groups]`` means of ``spread_of`` and of the squares of ``size_of``, if already computed
    :return: ``[K]``
    """
    spread, has_signal = spread_and_signal(spread_of, size_of, group, n_groups, tolerance, total, known)
    alive = has_signal[group]
    tiny = th.finfo(spread.dtype).tiny
    if normalize == "group":
        centred = centred / spread[group].clamp(min=tiny)
    elif normalize == "batch" and distributed.some(bool(alive.any())):
        centred = centred / distributed.spread(spread_of[alive]).clamp(min=tiny)
    return th.where(alive, centred, th.zeros_like(centred))


def outcome(rollout: Rollout, options: AdvantageOptions, baseline: str = "mean") -> th.Tensor:
    """Outcome supervision (DeepSeekMath, arXiv 2402.03300, eq. 3): A_{i,t} = (R_i - mean R) / std R for every step.

    R_i is the discounted return of the whole episode; ``gamma=1`` gives the paper's plain sum.

    :param baseline: of the group: ``"mean"``, ``"leave_one_out"``, ``"median"``; or ``"global"``, the mean of all groups. With
        ``"global"``, groups of one use the spread over all groups
    :return: ``[M]``
    """
    returns = episode_returns(rollout, options.gamma)
    group = rollout.group
    n_groups = rollout.n_groups
    centred = returns - _baseline(returns, group, n_groups, baseline)
    if baseline == "global" and n_groups == len(group):
        group = th.zeros_like(group)
        n_groups = 1
    return scale(centred, returns, returns, group, n_groups, options.normalize)[rollout.episode]


def process(rollout: Rollout, options: AdvantageOptions, baseline: str = "mean") -> th.Tensor:
    """Process supervision (DeepSeekMath, section 4.1.3): step rewards normalised over the group, then summed to go.

    The sum is discounted by gamma; ``gamma=1`` gives the paper's. If every step pays the same (CartPole), no group has a
    spread.

    :param baseline: as of :func:`outcome`
    :return: ``[M]``
    """
    row_group = rollout.group[rollout.episode]
    if baseline == "leave_one_out":
        n_episodes = len(rollout.group)
        ones = th.ones_like(rollout.rewards)
        total, count = (segment_sum(x, row_group, rollout.n_groups)[row_group] for x in (rollout.rewards, ones))
        own, own_count = (segment_sum(x, rollout.episode, n_episodes)[rollout.episode] for x in (rollout.rewards, ones))
        expected = th.where(count > own_count, (total - own) / (count - own_count).clamp(min=1.0), own / own_count)
    else:
        expected = _baseline(rollout.rewards, row_group, rollout.n_groups, baseline)
    rewards = rollout.rewards
    normalised = scale(rewards - expected, rewards, rewards, row_group, rollout.n_groups, options.normalize)
    return rewards_to_go(rollout._replace(rewards=normalised), options.gamma)


def step(rollout: Rollout, options: AdvantageOptions, baseline: str = "mean", ended_members: str = "zero") -> th.Tensor:
    """Time-aligned group baseline (GPG with f = t, arXiv 2510.03679): A_{i,t} = (G_{i,t} - b_t) / std.

    b_t is taken over the members at the same step t. A member that has ended counts as return 0, its true value, or is
    dropped; then the last survivor gets 0.

    :param baseline: as of :func:`outcome`, over the members at the same step
    :param ended_members: ``"zero"`` or ``"drop"``
    :return: ``[M]``
    """
    to_go = rewards_to_go(rollout, options.gamma)
    row_group = rollout.group[rollout.episode]
    horizon = rollout.max_length
    key = row_group * horizon + rollout.t
    n_keys = rollout.n_groups * horizon
    if baseline == "global":
        key = rollout.t
        n_keys = horizon
        members = th.full((n_keys,), len(rollout.group), device=key.device)
    else:
        per_group = segment_sum(th.ones_like(rollout.group), rollout.group, rollout.n_groups)
        members = per_group.repeat_interleave(horizon)
    values = to_go
    keys = key
    if ended_members == "zero":
        ended = members - segment_sum(th.ones_like(key), key, n_keys)
        keys = th.cat([key, th.arange(n_keys, device=key.device).repeat_interleave(ended)])
        values = th.cat([to_go, to_go.new_zeros(len(keys) - len(key))])
    kind = "mean" if baseline == "global" else baseline
    advantages = to_go - peer_baseline(values, keys, n_keys, kind)[: len(to_go)]
    return scale(advantages, advantages, to_go, row_group, rollout.n_groups, options.normalize)


def anchor(
    rollout: Rollout, options: AdvantageOptions, state: th.Tensor, baseline: str = "mean", weight: float = 1.0
) -> tuple[th.Tensor, th.Tensor]:
    """Groups of recurring states (GiGPO, arXiv 2505.10978, eq. 8): A_{i,t} = outcome + weight (G_{i,t} - b(s)) / std G(s).

    b(s) and std G(s) are taken over all steps of the group in the state s of the step, those of the same episode included.
    A step whose state occurs once in its group has the outcome's advantage alone.

    :param state: ``[M]`` int64 number of each step's state, from 0 on
    :param baseline: as of :func:`outcome`, for both parts; with ``"global"`` equal states of all groups are compared
    :param weight: of the part by states; 0: outcome supervision
    :return: ``[M]`` advantages, and ``[M]`` bool: the state occurs at another step too
    """
    to_go = rewards_to_go(rollout, options.gamma)
    row_group = rollout.group[rollout.episode]
    label = state if baseline == "global" else row_group * (int(state.max()) + 1) + state
    _, key, count = th.unique(label, return_inverse=True, return_counts=True)
    kind = "mean" if baseline == "global" else baseline
    centred = to_go - peer_baseline(to_go, key, len(count), kind)
    of_states = scale(centred, to_go, to_go, key, len(count), options.normalize)
    return outcome(rollout, options, baseline) + weight * of_states, count[key] > 1


def centre_and_scale(advantages: th.Tensor, targets: th.Tensor, rollout: Rollout, options: AdvantageOptions) -> th.Tensor:
    """Centre and scale ``"state"`` advantages within the group or the batch, which makes them group-relative.

    :param advantages: ``[M]`` targets minus baseline
    :param targets: ``[M]`` lambda-returns; a spread of advantages below ``RESIDUAL_TOLERANCE`` of their size over at most
        ``LONGEST_HORIZON`` steps counts as zero
    :param options: with ``normalize="none"`` the advantages are returned unchanged
    :return: ``[M]``
    """
    if options.normalize == "none":
        return advantages
    row_group = rollout.group[rollout.episode]
    n = rollout.n_groups
    total = own
    if options.normalize == "batch":
        row_group = th.zeros_like(row_group)
        n = 1
        total = distributed.total
    means = segment_means((advantages, targets.square()), row_group, n, total)
    centred = advantages - means[0][row_group]
    one_over_horizon = max(1.0 - options.gamma, 1.0 / rollout.max_length)
    tolerance = RESIDUAL_TOLERANCE * min(1.0, LONGEST_HORIZON * one_over_horizon)
    return scale(centred, advantages, targets, row_group, n, "group", tolerance, total, means)


def to_one_scale(advantages: th.Tensor, label: th.Tensor, n: int) -> th.Tensor:
    """Divide by the root mean square of the label's advantages; rows without signal (exactly 0) do not count.

    :param advantages: ``[M]``, centred already
    :param label: ``[M]`` int64 in [0, n)
    :param n: number of labels
    :return: ``[M]``
    """
    rows = distributed.total(segment_sum((advantages != 0).to(advantages.dtype), label, n)).clamp_(min=1.0)
    size = (distributed.total(segment_sum(advantages.square(), label, n)) / rows).sqrt()
    return advantages / size.clamp(min=th.finfo(size.dtype).tiny)[label]


def _baseline(values: th.Tensor, group: th.Tensor, n_groups: int, kind: str) -> th.Tensor:
    if kind == "global":
        return distributed.mean(values).expand_as(values)
    return peer_baseline(values, group, n_groups, kind)


def shape_rewards(rewards: th.Tensor, scaling: str, limit: float) -> th.Tensor:
    """Bound the step rewards.

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
