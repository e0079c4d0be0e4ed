"""Paired groups: a control variate from the other members of a same-seed group at the same step.

``reset(seed)`` fixes the env's future noise, so the members of a group meet the same arrivals, prices or gusts. No function of
the state knows this noise; the other members' residuals show it. Subtracting ``c`` times their mean does not change the
expected policy gradient, since a member's actions do not affect the others' residuals, and removes the shared noise from its
variance (Mao et al., "Variance Reduction for Reinforcement Learning in Input-Driven Environments", ICLR 2019,
https://arxiv.org/abs/1807.02264; in simulation: common random numbers).
"""

from __future__ import annotations

from typing import NamedTuple

import torch as th
from torch import nn

from sb_grpo import distributed
from sb_grpo.maths.returns import Residuals
from sb_grpo.maths.segments import segment_sum
from sb_grpo.types import Rollout

#: Weight of earlier rollouts in the correlation, per rollout of age. The env's noise does not change with training.
MEMORY = 0.9
#: Parts of an episode with a coefficient each: 8 steps, 16, 32, ..., and the rest.
PERIODS = 8
FIRST_PERIOD = 8
#: Lower bits of a key: the step's index in its episode. Upper bits: the index of its group.
STEP_BITS = 32


class Met(NamedTuple):
    """Steps that another member may still reach: sums over the members that have been there."""

    key: th.Tensor  #: [K] int64, sorted: group number and step
    total: th.Tensor  #: [K] sum of the residuals
    members: th.Tensor  #: [K] number of members


class Moments(NamedTuple):
    """Sums over the rows that have other members at the same step, by part of the episode."""

    rows: th.Tensor
    own: th.Tensor  #: of x, a row's residual
    others: th.Tensor  #: of m, the mean of the other members'
    product: th.Tensor  #: of x * m
    square: th.Tensor  #: of x squared


class Pairing(nn.Module):
    """Removes from residuals the noise shared with the other members at the same step.

    Let a residual be x = shared noise + own part, with independent own parts. The best multiple of the mean over n other
    members to subtract is

        c(n) = r / (r + (1 - r) / n),

    where r is the correlation of two members: a control variate's coefficient Cov / Var. r is the mean over the last rollouts
    of the correlation within each: while the baseline lags, all residuals of a rollout share a bias, which is not noise. A
    row's own group is left out, so no reward affects its own coefficient. Each part of the episode has its r, because members
    start in the same state and drift apart. If members are uncorrelated, c is 0.

    Members that passed a step in an earlier rollout count with their residual then, minus that rollout's level plus today's.
    The level is the mean of the other groups, so a group has a small share in its own c.

    :param coefficient: fixed c in [0, 1]; None: fitted
    """

    memory: th.Tensor

    def __init__(self, coefficient: float | None = None) -> None:
        super().__init__()
        self.coefficient = coefficient
        #: Sums over earlier rollouts, by part: rows with other members, and rows times correlation.
        self.register_buffer("memory", th.zeros(PERIODS, 2))
        self._met: tuple[th.Tensor, ...] | None = None  # a :class:`Met`
        #: Metrics of the last rollout.
        self.metrics: dict[str, float] = {}

    @th.no_grad()
    def forward(self, residuals: Residuals, rollout: Rollout) -> th.Tensor:
        """Subtract the shared noise from residuals.

        A row is compared with the other members under values fitted without its own episode. Otherwise its own rewards would
        return through the others' mean.

        :param residuals: of M steps
        :param rollout: with ``seed_group``
        :return: ``[M]``; rows without other members are unchanged
        """
        assert rollout.seed_group is not None
        own = residuals.own
        group = rollout.seed_group[rollout.episode]
        level = level_of_others(own, group)
        levelled = Residuals(residuals.by_fold - level.unsqueeze(1), residuals.fold, own - level)
        others, n = self._mean_of_others(levelled, (group << STEP_BITS) + rollout.t)
        self._forget(rollout.seed_group)
        paired = n > 0
        c = self._coefficients(own, others + level, paired.to(own.dtype), group, rollout.t, n)
        after = th.where(paired, own - c * others, own)
        self._note(own, after, paired, c)
        return after

    def _mean_of_others(self, residuals: Residuals, key: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Leave-one-out means over the members at the same step of the same group, and their number.

        :param key: ``[M]`` group and step of each row
        :return: ``[M]`` means, 0 without other members; ``[M]`` numbers of other members
        """
        by_fold, fold, own = residuals
        before = Met(*(self._met or (key[:0], own[:0], own[:0])))
        present, place = th.unique(th.cat([key, before.key]), return_inverse=True)
        here = place[: len(key)]
        there = place[len(key) :]
        n_keys = len(present)
        count = segment_sum(th.ones_like(own), here, n_keys).index_add_(0, there, before.members)
        earlier = segment_sum(before.total, there, n_keys)
        total = by_fold.new_zeros(n_keys, by_fold.shape[1]).index_add_(0, here, by_fold) + earlier.unsqueeze(1)
        n = count[here] - 1.0
        mean = (total[here, fold] - own) / n.clamp(min=1.0)
        self._met = Met(present, segment_sum(own, here, n_keys) + earlier, count)
        return th.where(n > 0, mean, th.zeros_like(mean)), n

    def _forget(self, groups: th.Tensor) -> None:
        """Drop the steps of groups that were not in the last rollout; nearly all of these are complete.

        A member that waits for an env during a whole rollout is paired with fewer members, but correctly.
        """
        assert self._met is not None
        met = Met(*self._met)
        keep = th.isin(met.key >> STEP_BITS, groups)
        self._met = Met(*(column[keep] for column in met))

    def _coefficients(
        self, own: th.Tensor, others: th.Tensor, paired: th.Tensor, group: th.Tensor, t: th.Tensor, n: th.Tensor
    ) -> th.Tensor:
        """``[M]`` c of each row, from all groups but its own and from earlier rollouts.

        :param paired: ``[M]`` 1 if the row has other members, else 0
        """
        groups, place = th.unique(group, return_inverse=True)
        part = place * PERIODS + period(t)
        shift = distributed.mean(own)  # affects only the rounding
        own = own - shift
        others = (others - shift) * paired
        columns = th.stack([paired, own * paired, others, own * others, own.square() * paired], dim=1)
        of_part = own.new_zeros(len(groups) * PERIODS, columns.shape[1]).index_add_(0, part, columns)
        of_group = of_part.view(len(groups), PERIODS, -1)
        whole = distributed.total(of_group.sum(0))
        before = MEMORY * self.memory
        self.memory.copy_(before + correlated(Moments(*whole.unbind(-1))))
        if self.coefficient is not None:
            return th.full_like(own, self.coefficient)
        rows, common = (before + correlated(Moments(*(whole - of_group).unbind(-1)))).flatten(0, 1).unbind(-1)
        return fitted_coefficient(common / rows.clamp(min=1.0), part, n)

    def _note(self, own: th.Tensor, after: th.Tensor, paired: th.Tensor, c: th.Tensor) -> None:
        share = distributed.mean(paired.to(own.dtype)).item()
        self.metrics = {"group/paired_fraction": share}
        if distributed.count(int(paired.sum())) > 1:
            before = distributed.moments(own[paired])[2]
            left = distributed.moments(after[paired])[2]
            self.metrics["group/paired_coef"] = distributed.mean(c[paired]).item()
            if before > 0:
                self.metrics["group/paired_variance"] = (left / before).item()


def period(t: th.Tensor) -> th.Tensor:
    """Part of its episode that a step is in: 0 for t < 8, 1 for t < 24, 2 for t < 56, ...

    :param t: ``[M]`` int64
    :return: ``[M]`` int64 in [0, ``PERIODS``)
    """
    return (t / FIRST_PERIOD + 1.0).log2().long().clamp(max=PERIODS - 1)


def level_of_others(own: th.Tensor, group: th.Tensor) -> th.Tensor:
    """Mean residual of the other groups, shrunk by its sampling error.

    While the baseline lags, all residuals of a rollout are too high or too low. Normalisation removes a level shared by every
    row, but multiplied with a c that varies by row the level would become noise. Few groups also share a level by chance: the
    mean over K groups is shrunk by the share of its square that its squared error explains (James and Stein 1961, positive
    part).

    :param own: ``[M]``
    :param group: ``[M]``
    :return: ``[M]``; 0 with less than two other groups over all ranks
    """
    groups, place = th.unique(group, return_inverse=True)
    others = distributed.count(len(groups)) - 1
    if others < 2:
        return th.zeros_like(own)
    mean = segment_sum(own, place, len(groups)) / segment_sum(th.ones_like(own), place, len(groups))
    level = (distributed.total(mean.sum()) - mean) / others
    error = ((distributed.total(mean.square().sum()) - mean.square()) / others - level.square()).clamp(min=0.0) / (others - 1)
    return (level * (1.0 - error / level.square()).clamp(min=0.0).nan_to_num(0.0))[place]


def correlated(moments: Moments) -> th.Tensor:
    """Numbers of rows, and rows times the correlation of two members, from sums over the rows of one rollout.

    :param moments: ``[...]`` each
    :return: ``[..., 2]``; 0 rows if the residuals do not vary
    """
    rows = moments.rows.clamp(min=1.0)
    mean = moments.own / rows
    variance = moments.square / rows - mean.square()
    covariance = moments.product / rows - mean * moments.others / rows
    known = variance > th.finfo(mean.dtype).eps * mean.square()
    common = th.where(known, covariance / variance, th.zeros_like(mean)).clamp(-1.0, 1.0)
    return th.stack([moments.rows * known, moments.rows * common], dim=-1)


def fitted_coefficient(correlation: th.Tensor, part: th.Tensor, n: th.Tensor) -> th.Tensor:
    """c(n) of :class:`Pairing`.

    :param correlation: ``[P]`` of two members, at most 1
    :param part: ``[M]`` int64, index of the correlation for each row
    :param n: ``[M]`` number of other members
    :return: ``[M]`` in [0, 1]; 0 if the members are uncorrelated
    """
    noise = correlation.clamp(min=0.0)[part]
    return th.where(noise > 0, noise / (noise + (1.0 - noise) / n.clamp(min=1.0)), th.zeros_like(noise))
