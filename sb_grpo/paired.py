"""Paired groups: what the other members of a same-seed group got at the same step tells how much of a residual was luck.

``reset(seed)`` fixes the env's own randomness to come, so the members of a group live through the same arrivals, prices or
gusts. No function of the state can know that luck; the other members' residuals show it. Subtracting ``c`` times their mean
leaves the expected policy gradient as it is, since what a member's own actions decide has no part in what the others got, and
takes the common luck out of its variance (Mao et al., "Variance Reduction for Reinforcement Learning in Input-Driven
Environments", ICLR 2019, https://arxiv.org/abs/1807.02264; simulation calls it common random numbers).
"""

from __future__ import annotations

from numbers import Real
from typing import NamedTuple

import torch as th
from torch import nn

from sb_grpo.advantages import Residuals, segment_sum
from sb_grpo.types import Rollout

#: Weight of the rollouts before in the moments, per rollout of age: luck is as large tomorrow as it is today.
MEMORY = 0.9
#: Stretches of an episode that have a coefficient each: of 8 steps, of 16, of 32, ..., and what comes after.
STRETCHES, FIRST_STRETCH = 8, 8
#: A step's number in its episode takes the lower bits of its key, the number of its group the upper ones.
STEP_BITS = 32


class Met(NamedTuple):
    """Steps of groups that may still meet a peer: sums over the members that have been there."""

    key: th.Tensor  #: [K] int64, sorted: group number and step
    total: th.Tensor  #: [K] sum of the residuals
    members: th.Tensor  #: [K] how many they are


class Moments(NamedTuple):
    """Sums over rows that have peers, of one group and stretch."""

    rows: th.Tensor
    own: th.Tensor  #: of x, a row's residual
    peers: th.Tensor  #: of m, the mean of its peers'
    product: th.Tensor  #: of x * m
    square: th.Tensor  #: of x squared


def check_paired(paired: bool | float) -> None:
    """Check the argument ``paired``.

    :raises ValueError: unless it is True, False or a number in [0, 1]
    """
    if isinstance(paired, bool):
        return
    if not isinstance(paired, Real) or not 0 <= paired <= 1:
        raise ValueError(
            f"baseline_kwargs: paired={paired!r} must be True (the share of luck is fitted), False, or a number in [0, 1] "
            "that takes the place of the fitted share."
        )


class Pairing(nn.Module):
    """Takes out of residuals what the peers at the same step of the same group had in common.

    With a residual x = luck + own part, luck common to the members and the own parts independent of each other, the best
    multiple of the mean over n peers to subtract is

        c(n) = covariance / (covariance + (variance - covariance) / n),

    where the covariance is that of two members and the variance that of one: a control variate's coefficient Cov / Var,
    for any number of peers. Both are means over rows, those of the last rollouts included; a row's own group is left out
    of them, so that no reward has a part in what it is multiplied with. They are taken over stretches of the episode apart:
    members start alike and drift apart, and what the same gust does to them is in common only while they are near each other.
    Where members have nothing in common c is 0.

    Peers that passed a step in an earlier rollout count with the residual that they had then.

    :param coefficient: takes the place of the fitted c, in [0, 1]; None: fitted
    """

    moments: th.Tensor

    def __init__(self, coefficient: float | None = None) -> None:
        super().__init__()
        self.coefficient = coefficient
        self.register_buffer("moments", th.zeros(STRETCHES, len(Moments._fields)))
        self._met: Met | None = None
        #: What the last rollout is to log.
        self.figures: dict[str, float] = {}

    @th.no_grad()
    def forward(self, residuals: Residuals, rollout: Rollout) -> th.Tensor:
        """Residuals without the luck that the peers show.

        A row is compared with its peers under the values that its own episode had no part in: were its own rewards in
        what the peers are measured against, they would come back with the peers' mean.

        :param residuals: of M steps
        :param rollout: with ``seed_group``
        :return: ``[M]``; rows without peers as they were
        """
        assert rollout.seed_group is not None
        own, group = residuals.own, rollout.seed_group[rollout.episode]
        peers, n = self._peers(residuals, (group << STEP_BITS) + rollout.t)
        self._forget(rollout.seed_group)
        paired = n > 0
        c = self._coefficients(own, peers, paired.to(own.dtype), group, rollout.t, n)
        after = th.where(paired, own - c * peers, own)
        self._note(own, after, paired, c)
        return after

    def _peers(self, residuals: Residuals, key: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Leave-one-out means over the members at the same step of the same group, and over how many they are.

        :param key: ``[M]`` group and step of each row
        :return: ``[M]`` means, 0 where there is no peer; ``[M]`` numbers of peers
        """
        by_fold, fold, own = residuals
        before = self._met or Met(key[:0], own[:0], own[:0])
        present, place = th.unique(th.cat([key, before.key]), return_inverse=True)
        here, there, n_keys = place[: len(key)], place[len(key) :], len(present)
        count = segment_sum(th.ones_like(own), here, n_keys).index_add_(0, there, before.members)
        earlier = segment_sum(before.total, there, n_keys)
        total = by_fold.new_zeros(n_keys, by_fold.shape[1]).index_add_(0, here, by_fold) + earlier.unsqueeze(1)
        n = count[here] - 1.0
        mean = (total[here, fold] - own) / n.clamp(min=1.0)
        self._met = Met(present, segment_sum(own, here, n_keys) + earlier, count)
        return th.where(n > 0, mean, th.zeros_like(mean)), n

    def _forget(self, groups: th.Tensor) -> None:
        """Drop the steps of groups that were not in the last rollout: they are complete."""
        assert self._met is not None
        keep = th.isin(self._met.key >> STEP_BITS, groups)
        self._met = Met(*(column[keep] for column in self._met))

    def _coefficients(
        self, own: th.Tensor, peers: th.Tensor, paired: th.Tensor, group: th.Tensor, t: th.Tensor, n: th.Tensor
    ) -> th.Tensor:
        """``[M]`` c of each row, from all groups but its own and from the rollouts before.

        :param paired: ``[M]`` 1 where the row has peers, 0 elsewhere
        """
        groups, place = th.unique(group, return_inverse=True)
        part = place * STRETCHES + stretch(t)
        columns = th.stack([paired, own * paired, peers, own * peers, own.square() * paired], dim=1)
        of_part = own.new_zeros(len(groups) * STRETCHES, columns.shape[1]).index_add_(0, part, columns)
        of_group = of_part.view(len(groups), STRETCHES, -1)
        whole = of_group.sum(0) + MEMORY * self.moments
        self.moments.copy_(whole)
        if self.coefficient is not None:
            return th.full_like(own, self.coefficient)
        others = (whole - of_group).flatten(0, 1)
        return fitted_coefficient(Moments(*others.unbind(1)), part, n)

    def _note(self, own: th.Tensor, after: th.Tensor, paired: th.Tensor, c: th.Tensor) -> None:
        share = paired.to(own.dtype).mean().item()
        self.figures = {"group/paired_fraction": share}
        if int(paired.sum()) > 1:
            before, left = own[paired].var(unbiased=False), after[paired].var(unbiased=False)
            self.figures["group/paired_coef"] = c[paired].mean().item()
            if before > 0:
                self.figures["group/paired_variance"] = (left / before).item()


def stretch(t: th.Tensor) -> th.Tensor:
    """Which stretch of its episode a step is in: 0 for t < 8, 1 for t < 24, 2 for t < 56, ...

    :param t: ``[M]`` int64
    :return: ``[M]`` int64 in [0, ``STRETCHES``)
    """
    return (t / FIRST_STRETCH + 1.0).log2().long().clamp(max=STRETCHES - 1)


def fitted_coefficient(moments: Moments, part: th.Tensor, n: th.Tensor) -> th.Tensor:
    """c(n) of :class:`Pairing` from sums over rows.

    :param moments: ``[P]`` each
    :param part: ``[M]`` int64, which of them are a row's
    :param n: ``[M]`` number of peers
    :return: ``[M]`` in [0, 1]; 0 where there are no moments, or the members have nothing in common
    """
    rows = moments.rows.clamp(min=1.0)
    mean = moments.own / rows
    variance = (moments.square / rows - mean.square()).clamp(min=0.0)
    covariance = th.minimum((moments.product / rows - mean * moments.peers / rows).clamp(min=0.0), variance)
    luck, own_part = covariance[part], (variance - covariance)[part]
    denominator = luck + own_part / n.clamp(min=1.0)
    return th.where(denominator > 0, luck / denominator.clamp(min=th.finfo(luck.dtype).tiny), th.zeros_like(luck))
