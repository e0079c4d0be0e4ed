"""Sums, means, standard deviations and medians per segment: pure functions of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch as th

#: Adds up sums over the ranks, if segments span several.
Total = Callable[[th.Tensor], th.Tensor]


def own(values: th.Tensor) -> th.Tensor:
    """Return the sums unchanged: every segment lies on one rank."""
    return values


def segment_sum(values: th.Tensor, segment: th.Tensor, n: int) -> th.Tensor:
    """Sum per segment.

    :param values: ``[M]``
    :param segment: ``[M]`` int64 in [0, n)
    :param n: number of segments
    :return: ``[n]``
    """
    return values.new_zeros(n).index_add_(0, segment, values)


def segment_mean(values: th.Tensor, segment: th.Tensor, n: int, total: Total = own) -> th.Tensor:
    """Mean per segment, 0 for an empty one; arguments as in :func:`segment_sum`.

    :param total: sum over the ranks
    """
    return segment_means((values,), segment, n, total)[0]


def segment_means(columns: Sequence[th.Tensor], segment: th.Tensor, n: int, total: Total = own) -> tuple[th.Tensor, ...]:
    """:func:`segment_mean` of several columns of one type, in one sum over the ranks."""
    sums = [segment_sum(values, segment, n) for values in (*columns, th.ones_like(columns[0]))]
    *wholes, count = total(th.stack(sums)).unbind(0)
    count.clamp_(min=1.0)
    return tuple(whole / count for whole in wholes)


def segment_std(values: th.Tensor, segment: th.Tensor, n: int, total: Total = own, mean: th.Tensor | None = None) -> th.Tensor:
    """Population standard deviation per segment; arguments as in :func:`segment_mean`.

    :param mean: ``[n]``, if already known
    """
    mean = segment_mean(values, segment, n, total) if mean is None else mean
    return segment_mean((values - mean[segment]).square(), segment, n, total).sqrt()


def segment_median(values: th.Tensor, segment: th.Tensor, n: int) -> th.Tensor:
    """Median per segment (mean of the two middle values of an even count); arguments as in :func:`segment_sum`."""
    by_value = values.argsort(stable=True)
    ordered = values[by_value[segment[by_value].argsort(stable=True)]]
    count = segment_sum(th.ones_like(segment), segment, n)
    start = count.cumsum(0) - count
    low = (start + (count - 1).clamp(min=0) // 2).clamp(max=len(values) - 1)
    high = (start + count // 2).clamp(max=len(values) - 1)
    return 0.5 * (ordered[low] + ordered[high])


class InstanceRows(NamedTuple):
    """Rows of a batch by problem instance, as many of each: shorter ones are filled up with their last row."""

    row: th.Tensor  #: [n, K] int64
    is_there: th.Tensor  #: [n, K] bool; False: filled up
    instance: th.Tensor  #: [n] int64, row of the batch's ``instances``


def rows_by_instance(instance: th.Tensor) -> InstanceRows:
    """Find the rows of each problem instance.

    :param instance: ``[M]`` of each row, equal ones adjacent
    """
    numbers, counts = th.unique_consecutive(instance, return_counts=True)
    first = counts.cumsum(0) - counts
    place = th.arange(int(counts.max()), device=instance.device)
    is_there = place < counts.unsqueeze(1)
    row = first.unsqueeze(1) + th.minimum(place, counts.unsqueeze(1) - 1)
    return InstanceRows(row, is_there, numbers)
