"""Sums over several learners of one model, by torch.distributed: gloo on the CPU, nccl on GPUs (docs/scale.md).

``torchrun`` starts the same script N times and tells each process its rank. Each rank has its own envs and its own groups.
All have the same weights, because only sums over all ranks change them. In a single process every function returns its
argument unchanged, so callers need not know the number of ranks. A function that communicates raises :class:`RankLost` when
another rank has ended.
"""

from __future__ import annotations

import atexit
import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch as th
import torch.distributed as dist

T = TypeVar("T")


class World(NamedTuple):
    """Rank of this process, and the number of ranks."""

    rank: int
    size: int


class RankLost(SystemExit):
    """Another rank has ended too early, so the sums that this one waits for will never come.

    A script that does not catch it ends with the message, without a traceback.
    """


_world = World(0, 1)


def world() -> World:
    """Rank of this process, and the number of ranks; 0 and 1 before :func:`join` and in a single process."""
    return _world


def announced() -> World:
    """Rank and number of ranks from torchrun's environment variables, also before :func:`join`.

    :raises ValueError: for variables that are no rank and number
    """
    names = ("RANK", "WORLD_SIZE")
    if any(name not in os.environ for name in names):
        return World(0, 1)
    texts = [os.environ[name] for name in names]
    if not all(text.isdecimal() for text in texts) or not int(texts[0]) < int(texts[1]):
        raise ValueError(
            f"RANK={texts[0]!r} and WORLD_SIZE={texts[1]!r} must be whole numbers with 0 <= RANK < WORLD_SIZE: start the "
            "learners with torchrun --nproc-per-node N script.py, which sets them, or unset both."
        )
    return World(int(texts[0]), int(texts[1]))


def join(device: th.device | str) -> th.device | str:
    """Join the process group of torchrun, once per process; without torchrun nothing happens.

    :param device: the user's choice
    :return: the device to use: on CUDA this process's own GPU
    :raises ValueError: for a rank without a GPU of its own
    """
    global _world
    joined = dist.is_available() and dist.is_initialized()  # by an earlier model, or by the user
    if not joined and announced().size == 1:
        return device
    on_cuda = th.cuda.is_available() if device == "auto" else th.device(device).type == "cuda"
    if not joined:
        if on_cuda:
            th.cuda.set_device(_own_gpu())
        # Default arguments of this module hold the group that exists when it is imported. They would keep the threads of
        # that group alive to the end of the process, and such threads sometimes abort it. Imported now, it holds none.
        importlib.import_module("torch.distributed.nn.functional")
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo")
        atexit.register(_leave)
    _world = World(dist.get_rank(), dist.get_world_size())
    return f"cuda:{th.cuda.current_device()}" if on_cuda and _world.size > 1 else device


def _own_gpu() -> str:
    local = int(os.environ.get("LOCAL_RANK", "0"))
    n_gpus = th.cuda.device_count()
    if local >= n_gpus:
        raise ValueError(
            f"LOCAL_RANK={local} has no GPU of its own: this machine has {n_gpus}. Start torchrun with --nproc-per-node "
            f"{max(n_gpus, 1)}, or pass device='cpu'."
        )
    return f"cuda:{local}"


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def _alive() -> Iterator[None]:
    """Turn the errors of torch.distributed into :class:`RankLost`."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise RankLost(
            f"Rank {_world.rank} of {_world.size} stops, because another rank has ended: torchrun's report says which, and "
            "that one's messages why. What has been saved is whole; go on from the last checkpoint."
        ) from error


# ---------------------------------------------------------------- sums


def _reduce(values: th.Tensor, operation: dist.ReduceOp.RedOpType) -> th.Tensor:
    result = values.clone(memory_format=th.contiguous_format)
    with _alive():
        dist.all_reduce(result, operation)
    return result


def total(values: th.Tensor) -> th.Tensor:
    """Sum over the ranks of a tensor that has the same shape on all of them."""
    return values if _world.size == 1 else _reduce(values, dist.ReduceOp.SUM)


def totals(*parts: th.Tensor) -> list[th.Tensor]:
    """Sums of several tensors of one type as :func:`total`, in one reduction."""
    if _world.size == 1:
        return [*parts]
    flat = total(th.cat([part.flatten() for part in parts]))
    return [sums.view_as(part) for sums, part in zip(th.split(flat, [part.numel() for part in parts]), parts, strict=True)]


def counts(*numbers: int) -> list[int]:
    """Sums over the ranks of several numbers, in one reduction."""
    return [*numbers] if _world.size == 1 else total(th.tensor(numbers)).tolist()  # type: ignore[no-any-return]


def count(n: int) -> int:
    """Sum over the ranks of a number."""
    return counts(n)[0]


def largest(*numbers: float) -> list[float]:
    """The largest of the ranks' values for each of several numbers, in one reduction."""
    if _world.size == 1:
        return [*numbers]
    return _reduce(th.tensor(numbers, dtype=th.float64), dist.ReduceOp.MAX).tolist()  # type: ignore[no-any-return]


def every(flag: bool) -> bool:
    """Whether the flag is set on all ranks."""
    return flag if _world.size == 1 else count(not flag) == 0


def some(flag: bool) -> bool:
    """Whether the flag is set on at least one rank."""
    return not every(not flag)


def mean(rows: th.Tensor) -> th.Tensor:
    """Mean over the first dimension, the rows of all ranks taken together.

    :param rows: ``[M, ...]``, M differing between ranks, 0 included
    """
    if _world.size == 1:
        return rows.mean(0)
    return _summed(rows)[0].to(rows.dtype)


def moments(rows: th.Tensor) -> tuple[int, th.Tensor, th.Tensor]:
    """Number, mean and population variance of the rows of all ranks.

    :param rows: ``[M, ...]`` as of :func:`mean`
    """
    if _world.size == 1:
        return len(rows), rows.mean(0), rows.var(0, unbiased=False)
    middle, n = _summed(rows)
    variance, _ = _summed((rows.double() - middle).square())
    return n, middle.to(rows.dtype), variance.to(rows.dtype)


def means(*columns: th.Tensor) -> list[float]:
    """Mean of each of several columns, as :func:`mean`, in one reduction.

    :param columns: ``[M]``, M differing between columns and ranks
    """
    if _world.size == 1:
        return [column.mean().item() for column in columns]
    return _means(columns).tolist()  # type: ignore[no-any-return]


def variances(*columns: th.Tensor, known: Sequence[float] | None = None) -> list[float]:
    """Population variance of each of several columns, in two reductions; arguments as of :func:`means`.

    :param known: the columns' means, if they have been asked for; saves a reduction
    """
    if _world.size == 1:
        return [column.var(0, unbiased=False).item() for column in columns]
    middles = _means(columns).tolist() if known is None else known
    squares = [(column.double() - middle).square() for column, middle in zip(columns, middles, strict=True)]
    return _means(squares).tolist()  # type: ignore[no-any-return]


def _means(columns: Sequence[th.Tensor]) -> th.Tensor:
    """In double precision, on the CPU: for metrics."""
    sums = [column.sum(dtype=th.float64).cpu() for column in columns]
    counts = th.tensor([len(column) for column in columns], dtype=th.float64)
    sum_of_all, count_of_all = total(th.stack([th.stack(sums), counts])).unbind(0)
    return sum_of_all / count_of_all


def spread(rows: th.Tensor) -> th.Tensor:
    """Population standard deviation over the rows of all ranks; arguments as of :func:`mean`."""
    return rows.std(0, unbiased=False) if _world.size == 1 else moments(rows)[2].sqrt()


def _summed(rows: th.Tensor) -> tuple[th.Tensor, int]:
    """Mean in double precision, and number, in one reduction."""
    sums = total(th.cat([rows.sum(0, dtype=th.float64).flatten(), rows.new_full((1,), len(rows), dtype=th.float64)]))
    return (sums[:-1] / sums[-1]).view(rows.shape[1:]), int(sums[-1])


# ---------------------------------------------------------------- weights


def average_gradients(parameters: list[th.nn.Parameter], rows: int) -> None:
    """Put the mean over the rows of all ranks into every ``.grad``: one reduction of one flat tensor.

    :param parameters: the same on all ranks; ``.grad`` is None where a rank has no rows
    :param rows: that this rank's gradients are the means of
    """
    if _world.size == 1:
        return
    parts = [(th.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]
    flat = total(th.cat([*parts, parts[0].new_ones(1)]) * rows)
    flat /= flat[-1].clamp(min=1.0)
    for parameter, part in zip(parameters, th.split(flat[:-1], [p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


@th.no_grad()
def broadcast(tensors: Iterable[th.Tensor]) -> None:
    """Give every rank the tensors of rank 0."""
    if _world.size == 1:
        return
    for tensor in tensors:
        whole = tensor.contiguous()
        with _alive():
            dist.broadcast(whole, 0)
        tensor.copy_(whole)


def gathered(value: T) -> list[T]:
    """Picklable values of all ranks, in the order of the ranks."""
    if _world.size == 1:
        return [value]
    values: list[Any] = [None] * _world.size
    with _alive():
        dist.all_gather_object(values, value)
    return values


# ---------------------------------------------------------------- groups


def global_group(group: T) -> T:
    """Number in the stream of all groups of a rank's own k-th: they are dealt out in turn, as cards are.

    :param group: a number or a tensor of them
    """
    every: Any = group
    return group if _world.size == 1 else every * _world.size + _world.rank  # type: ignore[no-any-return]


def next_global_group(group: int) -> int:
    """Number of the first of all groups that no rank has begun when it is known which of its own this rank has not.

    :param group: number of the first of the rank's own
    """
    return group * _world.size


def first_own_group(group: int) -> int:
    """Number of a rank's own first group, of those from ``group`` on in the stream of all."""
    return -(-group // _world.size)


def episodes_before(key: th.Tensor, lengths: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """Positions of a rank's episodes among those of all ranks, by key.

    :param key: ``[E]`` ascending; no two ranks share one
    :param lengths: ``[E]`` steps of each episode
    :return: ``[E]`` numbers of episodes, and ``[E]`` of their steps, that come before
    """
    if _world.size == 1:
        return th.arange(len(key), device=key.device), lengths.cumsum(0) - lengths
    everyone = gathered((key.cpu().numpy(), lengths.cpu().numpy()))  # a tensor takes fifteen times as long to pickle
    keys, steps = (th.from_numpy(np.concatenate([part[i] for part in everyone])) for i in range(2))
    order = keys.argsort(stable=True)
    number = th.empty_like(order)
    before = th.empty_like(steps)
    number[order] = th.arange(len(order))
    before[order] = steps[order].cumsum(0) - steps[order]
    first = sum(len(part[0]) for part in everyone[: _world.rank])
    own = slice(first, first + len(key))
    return number[own].to(key.device), before[own].to(key.device)
