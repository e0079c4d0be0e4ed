"""Whose episodes a VecEnv of host envs runs: a trainer's, until anybody else resets or steps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

#: What this package asks of envs by ``env_method``; whatever else is called may reset or step them.
PROTOCOL = ("set_next_seed", "withdraw_seed", "count_calls", "seeded_reset_facts")


class Holder(Protocol):
    """Who may hold a VecEnv."""

    def seeds_for_others(self) -> Sequence[int]:
        """One seed per slot for whoever comes next: other ones every time, and none that the holder uses."""


class Watched(Protocol):
    """An env whose resets the trainer chooses, as :class:`sb_grpo.envs.seeded_reset.SeededReset` makes it one."""

    env: Any

    def watch(self, hold: Hold) -> None:
        """Tell a hold when somebody else resets or steps the env."""

    def leave(self, hold: Hold, seed: int) -> None:
        """Tell it nothing any more, and forget what it has queued."""


class Hold:
    """Lets one trainer at a time queue seeds in a VecEnv, and withdraws them when somebody else takes the envs.

    Only the holder's own steps and resets may consume a seed that it queued: those that it announces by ``actor``.
    Whatever else calls the VecEnv (a callback's evaluation, another model, the user) first ends the hold, and finds the envs
    as random as SB3 leaves them. The holder sees that it has lost them and starts over.

    :param base: the VecEnv without its wrappers; some of its methods pass through here from now on
    :param ours: the envs have this package's resets, and not only ``set_next_seed``
    :param near: the envs are in this process, and tell by themselves who calls them
    :param takes_noise: ``set_next_seed`` has a second argument, the seed of what ``step()`` draws
    """

    def __init__(self, base: VecEnv, ours: bool, near: bool = False, takes_noise: bool = True) -> None:
        self.base, self.ours, self.near, self.takes_noise = base, ours, near, takes_noise
        self.holder: Holder | None = None
        self.actor: Holder | None = None  #: who is stepping or resetting the envs right now, if that is a trainer
        self._queued: dict[int, tuple[Any, ...]] = {}  #: by slot, what the holder has queued last
        self._watched: list[Watched] = []  #: of envs that are near, by slot
        self._step, self._step_async, self._reset = base.step, base.step_async, base.reset
        self._env_method, self._seed = base.env_method, base.seed
        names = ["step_async", "reset", "env_method"]
        names += ["step"] if type(base).step is not VecEnv.step else []  # else it calls step_async
        names += [] if ours else ["seed"]
        for name in names:
            setattr(base, name, getattr(self, name))

    def watch_over(self, envs: Sequence[Watched]) -> None:
        """These are the envs that are near; those that somebody has taken out of the VecEnv are let go."""
        for gone in self._watched:
            if gone not in envs:
                gone.leave(self, int(np.random.randint(2**31)))
        self._watched = list(envs)
        for one in envs:
            one.watch(self)

    @property
    def has_its_envs(self) -> bool:
        """Nobody has put another env into a slot."""
        return not self.near or all(a.env is b for a, b in zip(self._watched, self.base.envs, strict=False))  # type: ignore[attr-defined]

    def take(self, holder: Holder) -> None:
        """From now on the envs are the holder's, which is :func:`resetting` them.

        The wrappers around the VecEnv may step it in their ``reset()``, or reset it more than once.
        """
        self.holder = self.actor = holder
        self._queued = {}

    def notice(self) -> None:
        """The envs are being reset or stepped: end the hold unless it is the holder that does."""
        if self.holder is not None and self.actor is not self.holder:
            seeds = self.holder.seeds_for_others()
            self.holder = None
            for slot, seed in enumerate(seeds):
                if self.ours:
                    self._env_method("withdraw_seed", seed, indices=[slot])
                else:
                    self.queue(slot, seed)

    def queue(self, slot: int, seed: int, noise_seed: int | None = None) -> bool | int:
        """Let the next reset of a slot start from a seed.

        :param noise_seed: of what ``step()`` draws afterwards; None: as ``seed`` leaves it
        :return: True where the slot has not been reset since a seed was queued before; else its steps since, as far as known
        :raises ValueError: if the envs do not take the second
        """
        if noise_seed is not None and not self.takes_noise:
            raise ValueError(
                f"shared_noise=False seeds the noise of every episode, but set_next_seed of {type(self.base).__name__} takes "
                "only the seed of the start: give it a second argument noise_seed, or leave shared_noise=True."
            )
        self._queued[slot] = (seed, noise_seed) if self.takes_noise else (seed,)
        answers = self._env_method("set_next_seed", *self._queued[slot], indices=[slot])
        return answers[0] or 0 if self.ours else 0

    # ------------------------------------------------------------ the VecEnv's own methods

    def step(self, actions: np.ndarray) -> Any:
        self.notice()
        return self._step(actions)

    def step_async(self, actions: np.ndarray) -> None:
        self.notice()
        self._step_async(actions)

    def reset(self) -> Any:
        self.notice()
        if self.holder is not None:  # it is the holder's, and perhaps the second in a row: every one begins what was queued
            for slot, seeds in self._queued.items():
                self._env_method("set_next_seed", *seeds, indices=[slot])
        return self._reset()

    def env_method(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        if method_name in ("reset", "step"):
            self.notice()
        if method_name == "reset" and self.holder is not None:  # by a wrapper that ends an episode in the holder's step
            return self._reset_some(*args, **kwargs)
        if self.near or not self.ours or self.holder is None or method_name in PROTOCOL:
            return self._env_method(method_name, *args, **kwargs)
        before = self._env_method("count_calls")
        answers = self._env_method(method_name, *args, **kwargs)
        if self._env_method("count_calls") != before:  # a method of the user's, which resets or steps the env
            self.notice()
        return answers

    def _reset_some(self, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Reset some envs; their infos take the place of those of resets before, as they do where the VecEnv resets."""
        answers = self._env_method("reset", *args, indices=indices, **kwargs)
        infos = list(getattr(self.base, "reset_infos", ()))
        if infos:
            slots = range(len(infos)) if indices is None else np.atleast_1d(indices)
            for slot, (_, info) in zip(slots, answers, strict=True):
                infos[slot] = info
            self.base.reset_infos = infos
        return answers

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Envs that only know ``set_next_seed`` start from it too: what was queued before would win over it."""
        self.notice()
        seeds = self._seed(seed)
        for slot, one in enumerate(seeds or ()):
            if one is not None:
                self.queue(slot, one)
        return seeds


def reset_is_over(env: VecEnv | None) -> None:
    """The holder's reset of a VecEnv is done, if there was one: who resets or steps it from here on is somebody else."""
    hold = None if env is None else _found(env)
    if hold is not None:
        hold.actor = None


@contextmanager
def resetting(env: VecEnv) -> Iterator[None]:
    """Around the reset for which a holder has taken a VecEnv: it is over afterwards, also where it has failed."""
    try:
        yield
    finally:
        reset_is_over(env)


def hold_of(env: VecEnv) -> Hold:
    """The hold on a VecEnv in which :func:`~sb_grpo.envs.installing.install_seeded_reset` has put one."""
    hold = _found(env)
    if hold is None:
        raise ValueError(f"{type(env.unwrapped).__name__} takes no seeds yet: call install_seeded_reset(env) first.")
    return hold


def _found(env: VecEnv) -> Hold | None:
    hold = getattr(vars(env.unwrapped).get("reset"), "__self__", None)
    return hold if isinstance(hold, Hold) else None
