"""Ownership of a VecEnv of host envs: its episodes are a trainer's, until anybody else resets or steps it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any, Protocol, TypeVar
from weakref import ref

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb_grpo.envs.listening import listen, listener_of
from sb_grpo.types import Info, Kwargs

#: Methods that this package calls by ``env_method``; any other may reset or step the envs.
PROTOCOL = ("set_next_seed", "withdraw_seed", "count_calls", "seeded_reset_facts")


T = TypeVar("T")


class EnvOwner(Protocol):
    """Interface: a trainer that may own a VecEnv."""

    def seeds_for_others(self) -> Sequence[int]:
        """One seed per env for whoever comes next: other ones every time, and none that the owner uses."""


class Seat(Protocol):
    """An env whose resets the trainer chooses: :class:`sb_grpo.envs.seeded_reset.SeededEnv`."""

    def watch(self, ownership: EnvOwnership) -> None:
        """Tell an ownership when somebody else resets or steps the env."""

    def leave(self, ownership: EnvOwnership, seed: int) -> None:
        """Tell it nothing any more, and forget its queued seeds."""

    def set_next_seed(self, seed: int, noise_seed: int | None = None, options: Kwargs | None = None) -> bool | int:
        """Queue seed and options of the next reset."""

    def withdraw_seed(self, seed: int) -> None:
        """Forget it."""

    def seeded_reset_facts(self) -> tuple[str | None, int | None]:
        """Id and time limit of the env."""


class EnvOwnership:
    """Lets one trainer at a time queue seeds in a VecEnv, and withdraws them when somebody else takes the envs.

    Only the owner's own steps and resets may consume a seed that it queued: those that it announces by ``actor``.
    Whatever else calls the VecEnv (a callback's evaluation, another model, the user) first ends the ownership, and finds the
    envs as random as SB3 leaves them. The owner sees that it has lost them and starts over.

    It listens to the VecEnv (:mod:`sb_grpo.envs.listening`). Envs of this process are called through their seats, which stand
    in ``DummyVecEnv.envs`` only while that steps or resets them for the owner.

    :param base: the VecEnv without its wrappers
    :param ours: the envs have this package's resets, and not only ``set_next_seed``
    :param near: the envs are in this process, and tell by themselves who calls them
    :param takes_noise: ``set_next_seed`` has a second argument, the seed of the draws in ``step()``
    """

    def __init__(self, base: VecEnv, ours: bool, near: bool = False, takes_noise: bool = True) -> None:
        self._base = ref(base)
        self.ours = ours
        self.near = near
        self.takes_noise = takes_noise
        self.owner: EnvOwner | None = None
        self.actor: EnvOwner | None = None  #: who is stepping or resetting the envs right now, if that is a trainer
        self._queued: dict[int, tuple[Any, ...]] = {}  #: by env, what the owner has queued last
        self.seats: list[Seat] = []  #: of envs that are near, by env; DummyVecEnv.envs now and then
        self._seats: tuple[Seat, ...] = ()  #: the same, which nobody changes
        self._envs: tuple[object, ...] = ()  #: that they were made for
        names = ["reset", "env_method", "step_wait" if near else "step_async", *([] if ours else ["seed"])]
        if type(base).step is not VecEnv.step:  # which calls the other two
            names.append("step")
        if near and type(base).step_async is not DummyVecEnv.step_async:  # which only keeps the actions
            names.append("step_async")
        for name in names:
            if not listen(base, self, [name]):
                self._answer_for(base, name)

    def _answer_for(self, base: VecEnv, name: str) -> None:
        """Stand in for a method that is the object's own, and not its class's."""
        own = getattr(base, name)
        there = ref(base)

        def answer(*args: object, **kwargs: object) -> object:
            return getattr(self, name)(lambda _, *args, **kwargs: own(*args, **kwargs), there(), *args, **kwargs)

        setattr(base, name, answer)

    @property
    def base(self) -> VecEnv:
        """The VecEnv without its wrappers; it is not kept alive by being owned."""
        base = self._base()
        assert base is not None
        return base

    def sit(self, envs: Sequence[object], seats: Sequence[Seat]) -> None:
        """Take the seats of the envs that are near; envs that somebody has taken out of the VecEnv are let go."""
        for gone in self._seats:
            if gone not in seats:
                gone.leave(self, int(np.random.randint(2**31)))
        self._envs = tuple(envs)
        self._seats = tuple(seats)
        self.seats = list(seats)
        for seat in seats:
            seat.watch(self)

    def seat_of(self, env: object) -> Seat | None:
        """The seat of an env that is here already."""
        return next((seat for there, seat in zip(self._envs, self._seats, strict=True) if there is env), None)

    @property
    def has_its_envs(self) -> bool:
        """Nobody has put another env in the place of one."""
        return not self.near or all(map(is_, self._envs, self.base.envs))  # type: ignore[attr-defined]

    def take(self, owner: EnvOwner) -> None:
        """From now on the envs are the owner's, which is :func:`resetting` them.

        The wrappers around the VecEnv may step it in their ``reset()``, or reset it more than once.
        """
        self.owner = self.actor = owner
        self._queued = {}

    def notice(self) -> None:
        """The envs are being reset or stepped: end the ownership unless it is the owner that does."""
        if self.owner is not None and self.actor is not self.owner:
            seeds = self.owner.seeds_for_others()
            self.owner = None
            for env_index, seed in enumerate(seeds):
                if self.near:
                    self._seats[env_index].withdraw_seed(seed)
                elif self.ours:
                    self.base.env_method("withdraw_seed", seed, indices=[env_index])
                else:
                    self.queue(env_index, seed)

    def queue(self, env_index: int, seed: int, options: Kwargs | None = None, noise_seed: int | None = None) -> bool | int:
        """Let the next reset of an env start from a seed.

        :param options: of that reset; None: none
        :param noise_seed: of the draws in ``step()`` afterwards; None: as ``seed`` leaves it
        :return: True where the env has not been reset since a seed was queued before; else its steps since, as far as known
        :raises ValueError: if the envs do not take the options or the noise seed
        """
        if options is not None and not self.ours:
            raise ValueError(
                "group_kwargs: starts with options, and tell_member, need resets that take options, but set_next_seed of "
                f"{type(self.base).__name__} takes seeds alone. Use DummyVecEnv, ProcessVecEnv, RayVecEnv, or SubprocVecEnv "
                "with wrapper_class=sb_grpo.SeededResetWrapper, or give seeds."
            )
        if noise_seed is not None and not self.takes_noise:
            raise ValueError(
                f"shared_noise=False seeds the noise of every episode, but set_next_seed of {type(self.base).__name__} takes "
                "only the seed of the start: give it a second argument noise_seed, or leave shared_noise=True."
            )
        self._queued[env_index] = (seed, noise_seed) if self.takes_noise else (seed,)
        if options is not None:
            self._queued[env_index] = (seed, noise_seed, options)
        return self._send(env_index)

    def _send(self, env_index: int) -> bool | int:
        seeds = self._queued[env_index]
        if self.near:
            return self._seats[env_index].set_next_seed(*seeds)
        answers = self.base.env_method("set_next_seed", *seeds, indices=[env_index])
        return answers[0] or 0 if self.ours else 0

    def facts(self) -> tuple[str | None, int | None]:
        """Id and time limit of the first env, which has this package's resets."""
        if self.near:
            return self._seats[0].seeded_reset_facts()
        answer: tuple[str | None, int | None] = self.base.env_method("seeded_reset_facts", indices=[0])[0]
        return answer

    def _through_seats(self, function: Callable[..., T], base: Any, *args: object, **kwargs: object) -> T:
        """Call the VecEnv's function; it finds the seats in its list of envs, if it is called for the owner."""
        if not self.near or self.actor is None or self.actor is not self.owner or not self.has_its_envs:
            return function(base, *args, **kwargs)
        envs = base.envs
        base.envs = self.seats
        try:
            return function(base, *args, **kwargs)
        finally:
            base.envs = envs
            if not all(map(is_, self.seats, self._seats)):  # its own code has put another env in the place of one
                for env_index, seat in enumerate(self._seats):
                    envs[env_index] = envs[env_index] if self.seats[env_index] is seat else self.seats[env_index]
                self.seats = list(self._seats)

    # ------------------------------------------------------------ the VecEnv's own methods

    def step_wait(self, function: Callable[..., T], base: VecEnv, *args: object, **kwargs: object) -> T:
        if self.actor is not self.owner:
            self.notice()
        return self._through_seats(function, base, *args, **kwargs)

    step = step_async = step_wait

    def reset(self, function: Callable[..., T], base: VecEnv) -> T:
        self.notice()
        if self.owner is not None:  # it is the owner's, and perhaps the second in a row: every one begins what was queued
            for env_index in self._queued:
                self._send(env_index)
        return self._through_seats(function, base)

    def env_method(
        self, function: Callable[..., list[object]], base: VecEnv, method_name: str, *args: object, **kwargs: object
    ) -> list[object]:
        if method_name in ("reset", "step"):
            self.notice()
        if method_name == "reset" and self.owner is not None:  # by a wrapper that ends an episode in the owner's step
            return self._reset_some(function, base, *args, **kwargs)
        if self.near or not self.ours or self.owner is None or method_name in PROTOCOL:
            return function(base, method_name, *args, **kwargs)
        before = function(base, "count_calls")
        answers = function(base, method_name, *args, **kwargs)
        if function(base, "count_calls") != before:  # a method of the user's, which resets or steps the env
            self.notice()
        return answers

    def _reset_some(
        self, function: Callable[..., list[Any]], base: VecEnv, *args: object, indices: Any = None, **kwargs: object
    ) -> list[object]:
        """Reset some envs; their infos take the place of those of resets before, as they do where the VecEnv resets."""
        answers = self._through_seats(function, base, "reset", *args, indices=indices, **kwargs)
        infos = list(getattr(base, "reset_infos", ()))
        if infos:
            env_indices = range(len(infos)) if indices is None else np.atleast_1d(indices)
            for env_index, (_, info) in zip(env_indices, answers, strict=True):
                infos[env_index] = info
            base.reset_infos = infos
        return answers

    def seed(
        self, function: Callable[..., Sequence[int | None]], base: VecEnv, *args: object, **kwargs: object
    ) -> Sequence[int | None]:
        """Envs that only know ``set_next_seed`` start from it too: seeds queued before would win over it."""
        if self.ours:
            return function(base, *args, **kwargs)
        self.notice()
        seeds = function(base, *args, **kwargs)
        for env_index, one in enumerate(seeds or ()):
            if one is not None:
                self.queue(env_index, one)
        return seeds


def reset_is_over(env: VecEnv | None) -> None:
    """The owner's reset of a VecEnv is done, if there was one: who resets or steps it from here on is somebody else."""
    ownership = None if env is None else _found(env)
    if ownership is not None:
        ownership.actor = None


@contextmanager
def resetting(env: VecEnv) -> Iterator[None]:
    """Around the reset for which an owner has taken a VecEnv: it is over afterwards, also where it has failed."""
    try:
        yield
    finally:
        reset_is_over(env)


def ownership_of(env: VecEnv) -> EnvOwnership:
    """The ownership of a VecEnv in which :func:`~sb_grpo.envs.installing.install_seeded_reset` has put one."""
    ownership = _found(env)
    if ownership is None:
        raise ValueError(f"{type(env.unwrapped).__name__} takes no seeds yet: call install_seeded_reset(env) first.")
    return ownership


def _found(env: VecEnv) -> EnvOwnership | None:
    ownership = listener_of(env.unwrapped)
    return ownership if isinstance(ownership, EnvOwnership) else None


#: Immutable types, which need no copy.
FIXED = frozenset((bool, int, float, str, bytes, type(None), np.bool_, np.float32, np.float64, np.int32, np.int64))


class Infos(list[Info]):
    """List of one info per env. Its deep copy skips immutable values."""

    def __deepcopy__(self, memo: dict[int, object]) -> list[Info]:
        return [
            info.copy() if type(info) is dict and FIXED.issuperset(map(type, info.values())) else _copied(info, memo)
            for info in self
        ]


class Observations(OrderedDict[str, np.ndarray]):
    """Last observation of every env, by key. Its deep copy copies arrays and nothing else."""

    def __deepcopy__(self, memo: dict[int, object]) -> OrderedDict[str, np.ndarray]:
        return OrderedDict((key, array.__deepcopy__(memo)) for key, array in self.items())


def _copied(info: Info, memo: dict[int, object]) -> Info:
    if type(info) is not dict:
        return copy.deepcopy(info, memo)
    return {key: value if type(value) in FIXED else copy.deepcopy(value, memo) for key, value in info.items()}
