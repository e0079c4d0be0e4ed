"""Minibatches: every row of a rollout exactly once per epoch, in random order."""

from __future__ import annotations

from collections.abc import Iterator

import torch as th

from sb_grpo.policies.beside import MEMORY, SEQUENCE, beside, with_beside
from sb_grpo.types import Minibatch, map_obs


def stretches(episode: th.Tensor, length: int) -> th.Tensor:
    """Cut episodes into stretches of steps.

    :param episode: ``[M]`` of each row, rows of an episode adjacent and in order
    :param length: steps of a stretch; the last one of an episode may be shorter
    :return: ``[M]`` number of the stretch
    """
    _, row, lengths = th.unique_consecutive(episode, return_inverse=True, return_counts=True)
    first = lengths.cumsum(0) - lengths
    place = th.arange(len(episode), device=episode.device) - first[row]
    stretch: th.Tensor = th.unique_consecutive(row * len(episode) + place // length, return_inverse=True)[1]
    return stretch


def minibatches(batch: Minibatch, batch_size: int, together: th.Tensor | None = None) -> Iterator[Minibatch]:
    """Every row exactly once, in random order, in minibatches of nearly equal size.

    :param batch: M rows
    :param batch_size: rows per minibatch, met as closely as M allows
    :param together: ``[M]`` adjacent rows of one number are kept together and in order: episodes, or stretches of them; these
        are shuffled instead of rows. The minibatches are then of unequal size, and their weights make up for it: the mean of
        weight * loss over a minibatch, averaged over minibatches, is that over all rows. A memory learns what these rows are
    """
    n, device = len(batch.advantages), batch.advantages.device
    if together is not None:
        _, row, length = th.unique_consecutive(together, return_inverse=True, return_counts=True)
        rank = th.randperm(len(length), device=device)
        order = rank[row].argsort(stable=True)
        ranked_length = th.zeros_like(length).scatter_(0, rank, length)
        _, bucket = th.unique_consecutive((ranked_length.cumsum(0) - ranked_length) // batch_size, return_inverse=True)
        splits = th.bincount(bucket, ranked_length).long().tolist()
    else:
        order = th.randperm(n, device=device)
        k = max(1, round(n / batch_size))
        splits = [n // k + (i < n % k) for i in range(k)]
    # The small columns are shuffled at once; observations, which may be images, one minibatch at a time.
    shuffled = batch._replace(observations={}).map(lambda x: x.index_select(0, order))
    start = 0
    for size in splits:
        part = shuffled.map(lambda x: x[start : start + size])  # noqa: B023
        start += size
        rows, weights = order[start - size : start], part.weights
        observations = map_obs(lambda x: x.index_select(0, rows), batch.observations)  # noqa: B023
        if together is not None:
            weights = weights * (size * len(splits) / n)
            if beside(observations, MEMORY) is not None:
                observations = with_beside(observations, {SEQUENCE: together[rows]})
        yield part._replace(observations=observations, weights=weights)
