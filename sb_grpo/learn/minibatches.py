"""Minibatches: every row of a rollout exactly once per epoch, in random order."""

from __future__ import annotations

from collections.abc import Iterator

import torch as th

from sb_grpo.types import Minibatch, map_obs


def minibatches(batch: Minibatch, batch_size: int, whole_episodes: bool = False) -> Iterator[Minibatch]:
    """Every row exactly once, in random order, in minibatches of nearly equal size.

    :param batch: M rows
    :param batch_size: rows per minibatch, met as closely as M allows
    :param whole_episodes: shuffle episodes instead of rows and keep each one together (episode-level ratios need it); the
        minibatches are then of unequal size, and their weights make up for it: the mean of weight * loss over a minibatch,
        averaged over minibatches, is that over all rows
    """
    n, device = len(batch.advantages), batch.advantages.device
    if whole_episodes:
        _, row, length = th.unique_consecutive(batch.episode, return_inverse=True, return_counts=True)
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
    shuffled = batch._replace(observations={}).map(lambda x: x.index_select(0, order))._replace(observations=order)
    start = 0
    for size in splits:
        part = shuffled.map(lambda x: x[start : start + size])  # noqa: B023
        start += size
        rows, weights = part.observations, part.weights
        if whole_episodes:
            weights = weights * (size * len(splits) / n)
        yield part._replace(observations=map_obs(lambda x: x.index_select(0, rows), batch.observations), weights=weights)  # noqa: B023
