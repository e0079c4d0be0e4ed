"""One gradient step, and the guard around many: bad gradients never reach the weights that are kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch as th
from torch import nn

from sb_grpo.types import Minibatch, map_obs

#: Rows per forward pass where no gradient is needed; a GPU, which waits for launches, gets more of them where rows are narrow.
CHUNK, GPU_CHUNK, NARROW = 4096, 65536, 256


def chunk_rows(x: th.Tensor) -> int:
    """Rows per forward pass, for rows like these."""
    return GPU_CHUNK if x.is_cuda and x[:1].numel() <= NARROW else CHUNK


@th.no_grad()
def in_chunks(fn: Callable[..., th.Tensor], *columns: Any) -> th.Tensor:
    """Apply a function to columns of rows, a few thousand rows at a time, without gradients.

    :param fn: function of tensors (or dicts of them) with as many rows each
    :param columns: ``[M, ...]`` tensors or dicts of tensors
    :return: ``[M, ...]``
    """
    first = next(iter(columns[0].values())) if isinstance(columns[0], dict) else columns[0]
    n, size = len(first), chunk_rows(first)
    if n <= size:
        return fn(*columns)
    parts = [fn(*(map_obs(lambda x: x[i : i + size], column) for column in columns)) for i in range(0, n, size)]  # noqa: B023
    return th.cat(parts)


def evenly_spaced(n: int, at_most: int, device: th.device) -> th.Tensor | slice:
    """Some of n rows: all of them, or ``at_most`` at equal distances.

    :return: an index of rows
    """
    if n <= at_most:
        return slice(None)
    return th.arange(at_most, device=device) * n // at_most


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
    small = ("actions", "old_log_probs", "advantages", "weights", "episode")
    shuffled = batch._replace(
        observations=order,
        **{name: getattr(batch, name).index_select(0, order) for name in small},
    )
    start = 0
    for size in splits:
        part = Minibatch(*(map_obs(lambda x: x[start : start + size], column) for column in shuffled))  # noqa: B023
        start += size
        rows, weights = part.observations, part.weights
        if whole_episodes:
            weights = weights * (size * len(splits) / n)
        yield part._replace(observations=map_obs(lambda x: x.index_select(0, rows), batch.observations), weights=weights)  # noqa: B023


def clip_gradients(parameters: list[nn.Parameter], max_norm: float) -> th.Tensor:
    """Scale all gradients so that their joint norm is at most ``max_norm``; never makes the host wait.

    :return: ``[P]`` norm of each parameter's gradient before clipping (0 where there is none)
    """
    grads = [th.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    norms = th.stack(th._foreach_norm(grads))
    th._foreach_mul_(grads, gradient_scale(norms, max_norm))
    return norms


def gradient_scale(norms: th.Tensor, max_norm: float | th.Tensor) -> th.Tensor:
    """What to multiply gradients with so that their joint norm is at most ``max_norm``.

    :param norms: ``[P]`` norm of each gradient
    """
    scale: th.Tensor = (max_norm / (norms.norm() + 1e-6)).clamp(max=1.0)
    return scale


class LastGood:
    """Weights and optimiser state as they were, to return to when a gradient is not finite.

    :param policy: module with an ``optimizer`` attribute
    """

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.names, self.parameters = zip(*((n, p) for n, p in policy.named_parameters() if p.requires_grad), strict=True)
        self.weights = [p.detach().clone() for p in self.parameters]
        self.optimizer = copy.deepcopy(policy.optimizer.state_dict())

    def check(self, norms: list[th.Tensor], epoch: int) -> None:
        """Look at the gradient norms of an epoch.

        :param norms: one ``[P]`` tensor per gradient step, from :func:`clip_gradients`
        :param epoch: number of the epoch, for the message
        :raises ValueError: naming the step and the tensor; weights and optimiser are back where they were
        """
        finite = th.isfinite(th.stack(norms))
        if bool(finite.all()):
            return
        step, tensor = (~finite).nonzero()[0].tolist()
        with th.no_grad():
            for parameter, good in zip(self.parameters, self.weights, strict=True):
                parameter.copy_(good)
        self.policy.optimizer.load_state_dict(self.optimizer)
        raise ValueError(
            f"The gradient of {self.names[tensor]} was not finite in gradient step {step} of epoch {epoch}. The weights are "
            "back at their values before this update and can be saved. Lower learning_rate or max_grad_norm, or bound the "
            "rewards with reward_scaling='clip'."
        )
