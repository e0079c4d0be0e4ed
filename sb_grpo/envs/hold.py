"""Whose episodes a VecEnv of host envs runs: a trainer's, until anybody else resets or steps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from stable_baselines3.common.vec_env import VecEnv


class Holder(Protocol):
    """Who may hold a VecEnv."""

    def seeds_for_others(self) -> Sequence[int]:
        """One seed per slot for whoever comes next: other ones every time, and none that the holder uses."""


class Hold:
    """Lets one trainer at a time queue seeds in a VecEnv, and withdraws them when somebody else takes the envs.

    Only the holder's own steps and resets may consume a seed that it queued: those that it announces by ``actor`` and
    :meth:`take`. Whatever else calls the VecEnv (a callback's evaluation, another model, the user) first ends the hold, and
    finds the envs as random as SB3 leaves them. The holder sees that it has lost them and starts over.

    :param base: the VecEnv without its wrappers; three of its methods pass through here from now on
    :param ours: the envs have this package's resets, and not only ``set_next_seed``
    """

    def __init__(self, base: VecEnv, ours: bool) -> None:
        self.base, self.ours = base, ours
        self.holder: Holder | None = None
        self.actor: Holder | None = None  #: who is stepping or resetting the envs right now, if that is a trainer
        self._reset_to_come = False
        self._step_async, self._reset, self._env_method = base.step_async, base.reset, base.env_method
        for name in ("step_async", "reset", "env_method"):
            setattr(base, name, getattr(self, name))

    def take(self, holder: Holder) -> None:
        """From now on the envs are the holder's, and the next ``reset()`` of the VecEnv is its own."""
        self.holder, self._reset_to_come = holder, True

    def notice(self) -> None:
        """The envs are being reset or stepped: end the hold unless it is the holder that does."""
        if self.holder is not None and self.actor is not self.holder:
            seeds = self.holder.seeds_for_others()
            self.holder, self._reset_to_come = None, False
            for slot, seed in enumerate(seeds):
                self._env_method("withdraw_seed" if self.ours else "set_next_seed", seed, indices=[slot])

    # ------------------------------------------------------------ the VecEnv's own methods

    def step_async(self, actions: np.ndarray) -> None:
        self.notice()
        self._step_async(actions)

    def reset(self) -> Any:
        before = self.actor
        if self._reset_to_come:
            self.actor, self._reset_to_come = self.holder, False
        try:
            self.notice()
            return self._reset()
        finally:
            self.actor = before

    def env_method(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        if method_name in ("reset", "step"):
            self.notice()
        return self._env_method(method_name, *args, **kwargs)


def hold_of(env: VecEnv) -> Hold:
    """The hold on a VecEnv in which :func:`~sb_grpo.envs.installing.install_seeded_reset` has put one."""
    hold = getattr(vars(env.unwrapped).get("reset"), "__self__", None)
    if not isinstance(hold, Hold):
        raise ValueError(f"{type(env.unwrapped).__name__} takes no seeds yet: call install_seeded_reset(env) first.")
    return hold
