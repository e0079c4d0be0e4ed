"""Counter-based random numbers on any device: a hash of (seed, counter) instead of a generator with a state.

:func:`mix` on the host and :func:`mix_tensor` on CPU or CUDA return the same integers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch as th

Word = TypeVar("Word", th.Tensor, int)


def signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    return word - (1 << 64) if word >= 1 << 63 else word


#: splitmix64's increment and multipliers, as int64.
_GOLDEN, _M1, _M2 = (signed(constant) for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_MASK64 = (1 << 64) - 1
_HALF = (1 << 32) - 1


def mix(*words: int) -> int:
    """Hash integers to 64 well-spread bits: splitmix64's finaliser, folded over the words.

    :param words: integers, negative ones taken modulo 2^64
    :return: an integer in [0, 2^64)
    """
    state: int = _rounds(words, 0, lambda x, y: (x + y) & _MASK64, lambda x, y: (x * y) & _MASK64)
    return state


def group_seed(base_seed: int, group: int) -> int:
    """Reset seed of a group: a pure function of the model's seed and the group's number.

    :return: an integer in [0, 2^31), the range that every Gymnasium env accepts
    """
    return mix(base_seed, group) >> 33


def _rounds(words: Sequence[Any], state: Any, plus: Callable[[Any, Any], Any], times: Callable[[Any, Any], Any]) -> Any:
    """Compute the hash with the given arithmetic modulo 2^64.

    :param state: zero
    """
    for word in words:
        state = plus(plus(state, word), _GOLDEN)
        state = times(state ^ _shift_right(state, 30), _M1)
        state = times(state ^ _shift_right(state, 27), _M2)
        state = state ^ _shift_right(state, 31)
    return state


def _shift_right(x: Word, bits: int) -> Word:
    """Logical shift of 64 bits: torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix_tensor(*words: th.Tensor | int) -> th.Tensor:
    """Hash integers to 64 well-spread bits, element by element, like :func:`mix`.

    :param words: int64 tensors that broadcast, or integers; at least one tensor
    :return: int64 tensor of the broadcast shape (all 64 bits used)
    """
    device = next(word.device for word in words if isinstance(word, th.Tensor))
    numbers = [word if isinstance(word, th.Tensor) else signed(word % (1 << 64)) for word in words]
    # torch's kernels wrap around; in compiled C++ the overflow of signed integers is undefined.
    without_overflow = th.compiler.is_compiling() and device.type == "cpu"
    plus, times = (_plus, _times) if without_overflow else (operator.add, operator.mul)
    state: th.Tensor = _rounds(numbers, th.zeros((), dtype=th.int64, device=device), plus, times)
    return state


def _times(x: th.Tensor, factor: int) -> th.Tensor:
    """Product modulo 2^64 of int64 without overflow."""
    return (x.view(th.uint64) * (factor % (1 << 64))).view(th.int64)


def _plus(x: th.Tensor, y: Any) -> th.Tensor:
    """Sum modulo 2^64 of int64 without overflow, by halves: unsigned integers have no sums in torch.

    :param y: int64 tensor, or an integer
    """
    low: th.Tensor = (x & _HALF) + (y & _HALF)
    high: th.Tensor = _shift_right(x, 32) + _shift_right(y, 32) + (low >> 32)
    return _times(high, 1 << 32) | (low & _HALF)


def group_seeds(base_seed: int | th.Tensor, groups: th.Tensor) -> th.Tensor:
    """:func:`group_seed` of many groups at once.

    :param base_seed: the model's seed, or the int64 scalar with the same 64 bits
    :param groups: int64 group numbers
    :return: int64 seeds in [0, 2^31)
    """
    return _shift_right(mix_tensor(base_seed, groups), 33)


def uniform(seeds: th.Tensor, n: int, dtype: th.dtype = th.float32) -> th.Tensor:
    """Uniform numbers that depend only on the seed.

    :param seeds: ``[m]`` int64
    :param n: numbers per seed
    :return: ``[m, n]`` in [0, 1), multiples of 2^-24, so exact in float32 and the same on every device
    """
    bits = _shift_right(mix_tensor(seeds.unsqueeze(1), th.arange(n, device=seeds.device)), 40)
    return bits.to(dtype) * 2.0**-24
