"""Starts of groups that the user gives (``group_kwargs=dict(starts=...)``): reset seed, reset options, state.

The start of a group follows from the model's seed and the number of the group alone, so that there is nothing to save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo import distributed
from sb_grpo.config import GroupOptions, check_keys, shown, to_python
from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.random import group_seed, group_seeds, mix, mix_tensor, signed
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.types import Kwargs, Settings

#: Largest reset seed; every env takes it.
MAX_SEED = 2**31 - 1
#: Key of the member's number in the reset options (``tell_member=True``).
MEMBER = "member"
#: A sequence of starts, or a function of a group's number.
Starts = Sequence[object] | Callable[[int], object]
#: Name of the argument in messages.
STARTS = "group_kwargs: starts"


class GivenStart(NamedTuple):
    """Start of a group."""

    seed: int | None = None  #: in [0, MAX_SEED]; None: the group's own
    options: Settings | None = None  #: of ``reset``; None: none
    state: object = None  #: that a FunctionalTensorEnv begins in; None: its ``initial_state``


def read_start(entry: object, where: str) -> GivenStart:
    """Read one start from a reset seed, or a dict with keys among seed, options and state.

    :param entry: as the user gave it
    :param where: its place, for the message
    :raises ValueError: for anything else
    """
    entry = to_python(entry)
    if isinstance(entry, int) and not isinstance(entry, bool):
        entry = {"seed": entry}
    keys = list(GivenStart._fields)
    if not isinstance(entry, Mapping):
        raise ValueError(
            f"{where} is {shown(entry)}: it must be a reset seed (an integer from 0 to {MAX_SEED}), or a dict with keys among "
            f"{keys}."
        )
    check_keys(where, entry, keys, "A start")
    seed = to_python(entry.get("seed"))
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED):
        raise ValueError(f"{where} has the seed {shown(seed)}: it must be an integer from 0 to {MAX_SEED}, or None.")
    options = entry.get("options")
    if options is not None and (not isinstance(options, Mapping) or not _has_text_keys(options)):
        raise ValueError(
            f"{where} has the options {shown(options)}: they must be a dict whose keys are text, also in dicts inside it (a "
            "saved model keeps no others), or None."
        )
    return GivenStart(seed, options, entry.get("state"))


def _has_text_keys(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_text_keys(part) for key, part in value.items())
    return not isinstance(value, list | tuple) or all(_has_text_keys(part) for part in value)


def check_start(start: GivenStart, env: VecEnv, where: str) -> None:
    """Check that an env can take a start.

    :param env: of any kind
    :param where: its place, for the message
    :raises ValueError: naming the part that the env cannot take
    """
    name = type(env.unwrapped).__name__
    if start.options is not None and isinstance(env, TensorVecEnv):
        raise ValueError(
            f"{where} has options, but the resets of a {name} (a tensor env) take seeds alone. Let initial_state(seeds) look "
            "up instances by the seed, give a 'state', or use host envs (make_vec_env)."
        )
    if start.state is None:
        return
    if not isinstance(env, FunctionalTensorEnv):
        raise ValueError(
            f"{where} has a state, which a {name} cannot take: that is for subclasses of FunctionalTensorEnv. Give a host env "
            "what it needs as 'options', which its reset(seed=..., options=...) gets."
        )
    shape = tuple(env.state.shape[1:])
    try:
        state = np.asarray(start.state, dtype=np.float64)
    except (TypeError, ValueError):
        state = np.array(np.nan)
    if state.shape != shape or not np.isfinite(state).all():
        raise ValueError(
            f"{where} has the state {shown(start.state)}: it must be finite numbers of shape {shape}, one row of {name}.state."
        )


def each_start(starts: Sequence[object], env: VecEnv | None, where: str) -> Iterator[GivenStart]:
    """Read every start of a sequence.

    :param env: that it must go with; None: not known
    :param where: name of the argument, for the message
    :raises ValueError: naming the number of the first bad one
    """
    for number in range(len(starts)):
        start = read_start(starts[number], f"{where}[{number}]")
        if env is not None:
            check_start(start, env, f"{where}[{number}]")
        yield start


class GivenStarts:
    """Starts of the groups of host envs; those of tensor envs have the same order.

    :param options: of the model
    :param base_seed: seed of the stream of groups
    :param env: that they go with
    """

    def __init__(self, options: GroupOptions, base_seed: int, env: VecEnv) -> None:
        self.starts = options.starts
        self.order = options.starts_order
        self.tell_member = options.tell_member
        self.order_seed = mix(base_seed, 0, 4)  # the 4 keeps it apart from groups and from noise
        self.env = env
        self.known: dict[int, GivenStart] = {}
        self._orders: dict[int, list[int]] = {}

    def of_member(self, group: int, member: int, seed: int) -> tuple[int, Kwargs | None]:
        """Return the reset seed and the reset options of a member.

        :param group: number in the stream of all learners
        :param seed: of the group, where none is given
        """
        start = self.of_group(group)
        options = None if start.options is None else dict(start.options)
        if self.tell_member:
            options = {**(options or {}), MEMBER: member}
        return (seed if start.seed is None else start.seed), options

    def of_group(self, group: int) -> GivenStart:
        """Return the start of a group; a function is called once, until the group has ended.

        :raises ValueError: for a bad one
        """
        if group not in self.known:
            self.known[group] = self._read(group)
        return self.known[group]

    def forget(self, group: int) -> None:
        """Drop the start of a group that has ended."""
        self.known.pop(group, None)

    def _read(self, group: int) -> GivenStart:
        if self.starts is None:
            return GivenStart()
        if not callable(self.starts):
            number = self.number(group)
            return read_start(self.starts[number], f"{STARTS}[{number}]")
        try:
            entry = self.starts(group)
        except Exception as error:
            raise ValueError(
                f"{STARTS} failed for group {group} ({type(error).__name__}: {error}): it must return a start for every "
                "group, from number 0 on."
            ) from error
        start = read_start(entry, f"{STARTS}({group})")
        check_start(start, self.env, f"{STARTS}({group})")
        return start

    def number(self, group: int) -> int:
        """Return the place in the sequence of the start of a group."""
        assert self.starts is not None and not callable(self.starts)
        n = len(self.starts)
        if self.order == "random":
            return group_seed(self.order_seed, group) % n
        turn, place = divmod(group, n)
        if self.order == "cycle":
            return place
        if turn not in self._orders:
            if len(self._orders) > 1:  # running groups are of two turns at most
                del self._orders[next(iter(self._orders))]
            self._orders[turn] = shuffled(self.order_seed, th.tensor([turn]), n)[0].tolist()
        return self._orders[turn][place]


def shuffled(order_seed: int | th.Tensor, turns: th.Tensor, n: int) -> th.Tensor:
    """Permute the numbers below n, for each turn anew.

    :param turns: ``[k]`` int64
    :return: ``[k, n]`` int64
    """
    keys = mix_tensor(order_seed, turns.unsqueeze(1), th.arange(n, device=turns.device))
    return keys.argsort(dim=1, stable=True)


class TensorStarts:
    """Starts of the groups of a tensor env. Those of a sequence are looked up by tensor arithmetic.

    A function of the user's is called on the host, for which every step waits for the device.

    :param options: of the model, with starts
    :param base_seed: seed of the stream of groups
    :param env: that they go with
    :param groups_at_once: groups that can begin in one step, at most
    """

    def __init__(self, options: GroupOptions, base_seed: int, env: TensorVecEnv, groups_at_once: int) -> None:
        self.given = GivenStarts(options, base_seed, env)
        self.env = env
        self.waits = callable(options.starts)
        self.order_seed = th.tensor(signed(self.given.order_seed), device=env.device)  # see TensorGroups.seed_word
        if not self.waits:
            assert options.starts is not None and not callable(options.starts)
            self.seeds, self.has_state, self.states = self._table(list(each_start(options.starts, None, STARTS)))
            self._n_turns = groups_at_once * distributed.world().size // len(self.seeds) + 2

    def _table(self, starts: list[GivenStart]) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Return ``[n]`` seeds, -1 for none, ``[n]`` bool, and ``[n, ...]`` states or None."""
        seeds = th.tensor([-1 if start.seed is None else start.seed for start in starts], device=self.env.device)
        has_state = th.tensor([start.state is not None for start in starts], device=self.env.device)
        if all(start.state is None for start in starts):
            return seeds, has_state, None
        return seeds, has_state, states_of(self.env, starts)

    def of_groups(self, groups: th.Tensor, seeds: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Return the starts of groups: ``[N]`` seeds, ``[N]`` bool, whether there is a state, and ``[N, ...]`` states or None.

        :param groups: ``[N]`` int64, numbers in the stream of all learners; those of running episodes may be wrong
        :param seeds: ``[N]`` int64, where none are given
        """
        if self.waits:
            numbers = groups.tolist()
            idle = GivenStart()  # of envs without an episode, whose number is negative
            known = {group: idle if group < 0 else self.given.of_group(group) for group in set(numbers)}
            self.given.known = known  # a group that goes on is among them
            given, has_state, states = self._table([known[group] for group in numbers])
        else:
            index = self._index(groups)
            given = self.seeds[index]
            has_state = self.has_state[index]
            states = None if self.states is None else self.states[index]
        return th.where(given < 0, seeds, given), has_state, states

    def _index(self, groups: th.Tensor) -> th.Tensor:
        """:meth:`GivenStarts.number` of many groups; for those that begin now."""
        n = len(self.seeds)
        if self.given.order == "random":
            return group_seeds(self.order_seed, groups) % n
        if self.given.order == "cycle":
            return groups % n
        turn = groups.div(n, rounding_mode="floor")
        if self.env.grouping == "instances":  # its envs wait for the device anyway, and begin old groups beside new ones
            turns, row = th.unique(turn, return_inverse=True)
            return shuffled(self.order_seed, turns, n)[row, groups % n]
        turns = turn.max() - th.arange(self._n_turns, device=groups.device)
        row = (turns[0] - turn).clamp(max=self._n_turns - 1)
        return shuffled(self.order_seed, turns, n)[row, groups % n]


def states_of(env: TensorVecEnv, starts: Sequence[GivenStart]) -> th.Tensor:
    """Return ``[n, ...]`` states of starts in the form of an env's; zeros where there is none."""
    assert isinstance(env, FunctionalTensorEnv)
    state = env.state
    rows = [np.zeros(state.shape[1:]) if start.state is None else np.asarray(start.state) for start in starts]
    return th.as_tensor(np.stack(rows), dtype=state.dtype, device=state.device)
