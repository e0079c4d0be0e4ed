"""Minibatches: every row of a rollout exactly once per epoch, in random order."""

from __future__ import annotations

from collections.abc import Iterator

import torch as th

from sb_grpo import distributed
from sb_grpo.maths.chunks import evenly_spaced
from sb_grpo.maths.segments import InstanceRows, rows_by_instance
from sb_grpo.policies.extra_inputs import MEMORY, SEQUENCE, extra_input, with_extra_inputs
from sb_grpo.types import Minibatch, map_obs


def sequence_numbers(episode: th.Tensor, length: int) -> th.Tensor:
    """Cut episodes into sequences of steps.

    :param episode: ``[M]`` of each row, rows of an episode adjacent and in order
    :param length: steps of a sequence; the last one of an episode may be shorter
    :return: ``[M]`` number of the sequence
    """
    _, row, lengths = th.unique_consecutive(episode, return_inverse=True, return_counts=True)
    first = lengths.cumsum(0) - lengths
    place = th.arange(len(episode), device=episode.device) - first[row]
    sequence: th.Tensor = th.unique_consecutive(row * len(episode) + place // length, return_inverse=True)[1]
    return sequence


def portions(minibatch: Minibatch, size: int) -> list[tuple[int, int]]:
    """Cut a minibatch into parts that fit into memory; a sequence that a memory learns from stays whole.

    :param minibatch: B rows
    :param size: rows at once, as many as a sequence at least
    :return: first row and end of each part
    """
    rows = len(minibatch.advantages)
    sequence = extra_input(minibatch.observations, SEQUENCE)
    if sequence is None or size >= rows:
        return [(start, min(start + size, rows)) for start in range(0, rows, size)]
    cuts = [0]
    end = 0
    for length in th.unique_consecutive(sequence, return_counts=True)[1].tolist():
        if end + length - cuts[-1] > size and end > cuts[-1]:
            cuts.append(end)
        end += length
    return list(zip(cuts, [*cuts[1:], rows], strict=True))


def take_instances(batch: Minibatch, by_instance: InstanceRows, chosen: th.Tensor) -> Minibatch:
    """Rows of some instances; those that fill up weigh nothing and belong to no episode.

    :param batch: with the rows of each instance together
    :param by_instance: its rows
    :param chosen: ``[b]`` int64, which of the n instances
    :return: b * K rows
    """
    rows = by_instance.row[chosen].flatten()
    part = batch.map(lambda x: x.index_select(0, rows))
    there = by_instance.is_there[chosen].flatten()
    instances = map_obs(lambda x: x.index_select(0, by_instance.instance[chosen]), batch.instances)
    return part._replace(weights=part.weights * there, episode=part.episode.masked_fill(~there, -1), instances=instances)


def of_whole_instances(batch: Minibatch, batch_size: int) -> Iterator[Minibatch]:
    """Every instance once, in random order, with all of its rows, so that it need be encoded once per minibatch.

    :param batch: M rows
    :param batch_size: rows per minibatch, met as closely as whole instances allow
    """
    assert batch.instance is not None
    n_rows = len(batch.advantages)
    by_instance = rows_by_instance(batch.instance)
    n, length = by_instance.row.shape
    k = min(max(1, round(n_rows / batch_size)), n)
    for chosen in th.randperm(n, device=batch.advantages.device).tensor_split(k):
        part = take_instances(batch, by_instance, chosen)
        # The mean of weight * loss over a part, averaged over parts, is that over all rows.
        yield part._replace(weights=part.weights * (len(chosen) * length * k / n_rows))


def some_instances(batch: Minibatch, rows: int) -> Minibatch:
    """Evenly spaced instances of a batch with all of their rows, about as many rows as wanted, in one part."""
    assert batch.instance is not None
    by_instance = rows_by_instance(batch.instance)
    n, length = by_instance.row.shape
    every = th.arange(n, device=by_instance.row.device)
    return take_instances(batch, by_instance, every[evenly_spaced(n, max(1, rows // length), every.device)])


def minibatches(
    batch: Minibatch, batch_size: int, together: th.Tensor | None = None, of_all: int | None = None
) -> Iterator[Minibatch]:
    """Every row exactly once, in random order, in minibatches of nearly equal size.

    Several learners cut their own rows into the same number of minibatches; the k-th ones of all together are one.

    :param batch: M rows
    :param batch_size: rows per minibatch, met as closely as M allows; those of all ranks
    :param together: ``[M]`` adjacent rows of one number are kept together and in order: episodes, or sequences of them; these
        are shuffled instead of rows. The minibatches are then of unequal size, and their weights make up for it: the mean of
        weight * loss over a minibatch, averaged over minibatches, is that over all rows. A memory learns which rows these are
    :param of_all: rows of all ranks, where they have been counted
    """
    if batch.instance is not None:
        yield from of_whole_instances(batch, batch_size)
        return
    n = len(batch.advantages)
    device = batch.advantages.device
    of_all = distributed.count(n) if of_all is None else of_all
    k = max(1, round(of_all / batch_size))
    if together is not None:
        _, row, length = th.unique_consecutive(together, return_inverse=True, return_counts=True)
        rank = th.randperm(len(length), device=device)
        order = rank[row].argsort(stable=True)
        ranked_length = th.zeros_like(length).scatter_(0, rank, length)
        before = ranked_length.cumsum(0) - ranked_length
        if distributed.world().size == 1:
            _, bucket = th.unique_consecutive(before // batch_size, return_inverse=True)
            counts = th.bincount(bucket, ranked_length).long()
        else:
            counts = th.bincount(before * k // max(n, 1), ranked_length, minlength=k).long()
        splits = counts.tolist()
        whole = distributed.total(counts).tolist()
    else:
        order = th.randperm(n, device=device)
        splits = whole = [n // k + (i < n % k) for i in range(k)]
    # The small columns are shuffled at once; observations, which may be images, one minibatch at a time.
    shuffled = batch._replace(observations={}).map(lambda x: x.index_select(0, order))
    start = 0
    n_parts = sum(size > 0 for size in whole)
    for size, size_of_all in zip(splits, whole, strict=True):
        part = shuffled.map(lambda x: x[start : start + size])  # noqa: B023
        start += size
        rows = order[start - size : start]
        weights = part.weights
        observations = map_obs(lambda x: x.index_select(0, rows), batch.observations)  # noqa: B023
        if together is not None:
            weights = weights * (size_of_all * n_parts / of_all)
            if extra_input(observations, MEMORY) is not None:
                observations = with_extra_inputs(observations, {SEQUENCE: together[rows]})
        yield part._replace(observations=observations, weights=weights)
