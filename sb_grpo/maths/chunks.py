"""Process many rows in chunks, and choose evenly spaced rows."""

from __future__ import annotations

from collections.abc import Callable

import torch as th

from sb_grpo import distributed
from sb_grpo.types import Obs, Rollout, map_obs

#: Rows per forward pass without gradient. A GPU gets more if rows are narrow, because launches dominate its time.
CHUNK = 4096
GPU_CHUNK = 65536
NARROW = 256


def chunk_rows(x: th.Tensor) -> int:
    """Rows per forward pass for rows of this width and device."""
    return GPU_CHUNK if x.is_cuda and x[:1].numel() <= NARROW else CHUNK


@th.no_grad()
def in_chunks(fn: Callable[..., th.Tensor], *columns: Obs) -> th.Tensor:
    """Apply a function to columns of rows, a few thousand rows at a time, without gradients.

    :param fn: function of tensors (or dicts of them) with as many rows each
    :param columns: ``[M, ...]`` tensors or dicts of tensors
    :return: ``[M, ...]``
    """
    first = next(iter(columns[0].values())) if isinstance(columns[0], dict) else columns[0]
    n = len(first)
    size = chunk_rows(first)
    if n <= size:
        return fn(*columns)
    parts = [fn(*(map_obs(lambda x: x[i : i + size], column) for column in columns)) for i in range(0, n, size)]  # noqa: B023
    return th.cat(parts)


def evenly_spaced(n: int, at_most: int, device: th.device) -> th.Tensor | slice:
    """Index of all n rows, or of ``at_most`` rows at equal distances.

    :return: index of rows
    """
    if n <= at_most:
        return slice(None)
    return th.arange(at_most, device=device) * n // at_most


def evenly_spaced_steps(rollout: Rollout, at_most: int, of_all: int) -> th.Tensor | slice:
    """Choose :func:`evenly_spaced` steps among those of all ranks, and index the ones on this rank.

    :param rollout: M steps, its episodes in the order of their groups
    :param of_all: steps of all ranks
    """
    n = len(rollout.t)
    world = distributed.world()
    if world.size == 1:
        return evenly_spaced(n, at_most, rollout.t.device)
    if of_all <= at_most:
        return slice(None)
    _, lengths = th.unique_consecutive(rollout.episode, return_counts=True)
    assert rollout.seed_group is not None
    before = distributed.episodes_before(rollout.seed_group, lengths)[1]
    number = before[rollout.episode] + th.arange(n, device=before.device) - (lengths.cumsum(0) - lengths)[rollout.episode]
    chosen = th.arange(at_most, device=before.device) * of_all // at_most
    return th.isin(number, chosen).nonzero().squeeze(1)
