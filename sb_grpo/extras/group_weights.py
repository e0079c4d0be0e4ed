"""Group weights: shares of the loss by group size, performance or progress.

A weighting gives each group its *share* of the loss. A row then weighs share / (rows of the group), scaled to a mean of 1 over
the rows, so that learning rate and gradient norm keep their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch as th
from torch import nn

from sb_grpo.config import check_settings
from sb_grpo.maths.per_step import numbers_of
from sb_grpo.maths.segments import segment_mean, segment_std, segment_sum
from sb_grpo.types import Rollout


def row_weights(shares: th.Tensor, label: th.Tensor, max_weight: float = 10.0) -> th.Tensor:
    """Weight of each row, such that every label gets its share of the loss.

    :param shares: ``[n]`` 0 or more; labels without rows are skipped
    :param label: ``[M]`` int64 in [0, n)
    :param max_weight: largest weight relative to the mean row, before weights are scaled to a mean of 1 (then possibly more),
        so that a group of three steps cannot dominate the update
    :return: ``[M]`` with mean 1
    """
    rows = segment_sum(th.ones_like(label, dtype=shares.dtype), label, len(shares))
    total = shares[rows > 0].sum()
    if not bool(total > 0):
        return th.ones_like(label, dtype=shares.dtype)
    per_row = shares / total * len(label) / rows.clamp(min=1.0)
    weights = per_row.clamp(max=max_weight)[label]
    return weights / weights.mean()


def performance_shares(scores: th.Tensor, temperature: float) -> th.Tensor:
    """Larger shares for lower scores: proportional to exp(-score / temperature).

    :param scores: ``[n]``, 0 is worst and 1 best
    :param temperature: 0.5 gives the worst 7 times the share of the best
    :return: ``[n]`` with sum 1
    """
    return th.softmax(-scores / temperature, dim=0)


def progress_shares(progress: th.Tensor, floor: float) -> th.Tensor:
    """Larger shares for faster change: proportional to the absolute progress, above a common floor.

    As in teacher-student curricula (Matiisen et al., arXiv 1707.00183, section 2): practise tasks that improve or are being
    forgotten, not those that are solved or out of reach.

    :param progress: ``[n]`` 0 or more
    :param floor: part that is shared equally, in (0, 1]
    :return: ``[n]`` with sum 1
    """
    n = len(progress)
    total = progress.sum()
    equal = th.full_like(progress, 1.0 / n)
    return th.where(total > 0, floor / n + (1.0 - floor) * progress / total.clamp(min=th.finfo(total.dtype).tiny), equal)


class GroupWeights(nn.Module):
    """Shares of the loss for the groups of a rollout, with running returns per label.

    Each label has a fast and a slow exponential average of whole episodes' returns; both are buffers, saved with the model. A
    label without a complete episode counts as average.

    :param kind: ``"balanced"``, ``"performance"``, ``"adaptive"``, or a function of (rollout, labels) to ``[n]`` shares
    :param n_labels: number of labels with the same meaning in every rollout; 0: they have none
    :param temperature: of ``"performance"``
    :param ranges: returns that count as score 0 and 1, one pair per label (``"performance"``); None: the lowest and
        highest average return over the labels, which requires returns on one scale
    :param floor: of ``"adaptive"``
    :param max_weight: of :func:`row_weights`
    :raises ValueError: for values out of range
    """

    fast: th.Tensor
    slow: th.Tensor
    spread: th.Tensor
    seen: th.Tensor
    #: Weight of the newest rollout in the averages.
    FAST = 0.5
    SLOW = 0.1

    def __init__(
        self,
        kind: str | Callable[[Rollout, th.Tensor], th.Tensor],
        n_labels: int,
        temperature: float = 0.5,
        ranges: Sequence[tuple[float, float]] | None = None,
        floor: float = 0.3,
        max_weight: float = 10.0,
    ) -> None:
        super().__init__()
        given = {"temperature": temperature, "ranges": ranges, "floor": floor, "max_weight": max_weight}
        check_settings("multitask: weights_kwargs", given)
        if ranges is not None and len(ranges) != n_labels:
            raise ValueError(f"weights_kwargs: ranges has {len(ranges)} pairs for {n_labels} groups: give one for each.")
        self.kind = kind
        self.n_labels = n_labels
        self.max_weight = max_weight
        self.temperature = temperature
        self.ranges = ranges
        self.floor = floor
        for name in ("fast", "slow", "spread"):
            self.register_buffer(name, th.zeros(n_labels))
        self.register_buffer("seen", th.zeros(n_labels, dtype=th.bool))

    @th.no_grad()
    def observe(self, rollout: Rollout, labels: th.Tensor) -> None:
        """Update the averages with the episodes that ended in this rollout.

        :param labels: ``[E]``
        """
        if self.n_labels == 0:
            return
        assert rollout.episode_return is not None
        ended = rollout.terminated | rollout.truncated
        returns = rollout.episode_return[ended]
        label = labels[ended]
        here = segment_sum(th.ones_like(returns), label, self.n_labels) > 0
        mean = segment_mean(returns, label, self.n_labels)
        for name, value, share in (
            ("fast", mean, self.FAST),
            ("slow", mean, self.SLOW),
            ("spread", segment_std(returns, label, self.n_labels), self.SLOW),
        ):
            average = getattr(self, name)
            moved = th.where(self.seen, average + share * (value - average), value)
            average.copy_(th.where(here, moved, average))
        self.seen |= here

    def scores(self) -> th.Tensor:
        """``[n_labels]`` average return of each label between 0 (worst) and 1 (best)."""
        if self.ranges is not None:
            low, high = self.fast.new_tensor(self.ranges).unbind(1)
        else:
            known = self.fast[self.seen]
            low, high = (known.min(), known.max()) if len(known) else (self.fast.new_zeros(()), self.fast.new_ones(()))
        scores = ((self.fast - low) / (high - low).clamp(min=1e-12)).clamp(0.0, 1.0)
        average = scores[self.seen].mean() if bool(self.seen.any()) else 0.5
        return th.where(self.seen, scores, average)

    def progress(self) -> th.Tensor:
        """``[n_labels]`` absolute difference of the averages, in standard deviations of the label's returns."""
        progress = (self.fast - self.slow).abs() / (self.spread + 1e-3 * self.fast.abs() + 1e-12)
        average = progress[self.seen].mean() if bool(self.seen.any()) else 0.0
        return th.where(self.seen, progress, average)

    @th.no_grad()
    def shares(self, rollout: Rollout, labels: th.Tensor) -> th.Tensor:
        """Compute shares of the loss.

        :param labels: ``[E]``
        :return: ``[n]``; n is ``n_labels``, or the number of labels in this rollout if that is 0
        :raises ValueError: if a function returned invalid shares
        """
        n = self.n_labels or int(labels.max()) + 1
        if self.kind == "performance":
            return performance_shares(self.scores(), self.temperature)
        if self.kind == "adaptive":
            return progress_shares(self.progress(), self.floor)
        if self.kind == "balanced":
            return th.full((n,), 1.0 / n, device=labels.device)
        assert callable(self.kind)
        return self._checked(self.kind(rollout, labels), n, labels.device)

    def _checked(self, returned: object, n: int, device: th.device) -> th.Tensor:
        shares = numbers_of(returned, device)
        if shares is None or shares.shape != (n,):
            got = type(returned).__name__ if shares is None else tuple(shares.shape)
            raise ValueError(f"weights={self.kind!r} returned {got}; it must return one share per group: tensor ({n},).")
        if not bool((th.isfinite(shares) & (shares >= 0)).all()) or not bool(shares.sum() > 0):
            raise ValueError(
                f"weights={self.kind!r} returned {shares.tolist()}; shares must be finite, 0 or more, and not all 0."
            )
        return shares.float()


def weights_by_label(
    weighting: GroupWeights, rollout: Rollout, labels: th.Tensor, row_label: th.Tensor
) -> tuple[th.Tensor, th.Tensor]:
    """Update the weighting with a rollout, and weigh its rows.

    :param labels: ``[E]`` int64 label of each episode
    :param row_label: ``[B]`` int64 label of each row
    :return: shares of the labels ``[n]``; weights of the rows ``[B]``
    """
    weighting.observe(rollout, labels)
    shares = weighting.shares(rollout, labels)
    return shares, row_weights(shares, row_label, weighting.max_weight)
