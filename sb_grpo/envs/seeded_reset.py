"""A seed for the next ``reset()``, put on the env instance itself: how SB3's unseeded auto-reset starts the right group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from hashlib import blake2b
from typing import Any
from weakref import ref

import gymnasium as gym
import numpy as np
import torch as th

from sb_grpo.envs.hold import PROTOCOL, Hold
from sb_grpo.envs.time_limits import asked, layers, limit_of

START_DIGEST = "group_start_digest"
START_LAYERS = "group_start_layers"

#: Of a layer: its name, the digest of its first observation (empty: it was not reset), the seed that its reset got (empty:
#: none), and how often the env without its wrappers had been called in this reset when the layer's own was over.
Begun = tuple[str, str, str, int]


def observation_digest(obs: Any) -> str:
    """Sixteen hexadecimal digits, other ones for observations that differ in any bit: text, which any log can hold.

    :param obs: an array, a scalar, or a dict or tuple of them
    :return: BLAKE2b digest of the raw bytes, eight of them, the same in every process
    """
    digest = blake2b(digest_size=8)

    def feed(part: Any) -> None:
        if isinstance(part, dict):
            for key in sorted(part):
                feed(part[key])
        elif isinstance(part, tuple | list):
            for item in part:
                feed(item)
        else:
            array = np.ascontiguousarray(part)
            digest.update(repr(part).encode() if array.dtype == object else array.tobytes())

    feed(obs)
    return digest.hexdigest()


def put(env: gym.Env[Any, Any], name: str, value: Any) -> None:
    """Set an attribute of this very env, also where its class hands attributes on to what it wraps."""
    object.__setattr__(env, name, value)


def reseed(env: gym.Env[Any, Any], seed: int) -> None:
    """Give an env another generator in place of Gymnasium's; one of another kind has other methods, which the env calls.

    :param env: without wrappers
    """
    with suppress(Exception):  # of a generator that the env alone may set; the next reset seeds it
        if isinstance(env.np_random, np.random.Generator):
            env.np_random = np.random.default_rng(seed)


@contextmanager
def torchs_numbers_kept() -> Iterator[None]:
    """Put torch's own generator back where an env seeds it in ``reset(seed=...)``, which the trainer makes every episode.

    The policy draws its actions from it, and would give all members of a group the same ones. What an env draws from it
    without seeding it stays drawn.
    """
    seed, state = th.initial_seed(), th.get_rng_state()
    try:
        yield
    finally:
        if th.initial_seed() != seed:
            th.set_rng_state(state)


class Layer:
    """One layer under an env's outermost wrapper: remembers what it started with, and hears who else uses the env.

    :param env: the layer; its ``reset`` is this object's from now on, and its ``step`` if no layer is further in
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env, self.calls = env, 0
        self.forget()
        #: of the env without its wrappers: who steps it in reset() is told by its calls
        self.base: Layer = layer_of(layers(env)[-1]) if isinstance(env, gym.Wrapper) else self
        self.holds: list[ref[Hold]] = []  #: of all VecEnvs that share this layer; they come and go with their models
        self._reset, self._step = env.reset, env.step
        put(env, "reset", self.reset)
        if not isinstance(env, gym.Wrapper):
            put(env, "step", self.step)

    def watch(self, hold: Hold) -> None:
        """Tell a hold when somebody else resets or steps this layer."""
        self.leave(hold)
        self.holds.append(ref(hold))

    def leave(self, hold: Hold) -> None:
        """Tell a hold nothing any more."""
        self.holds = [there for there in self.holds if there() not in (None, hold)]

    def _called(self) -> None:
        self.calls += 1
        for there in self.holds:
            hold = there()
            if hold is not None and hold.actor is not hold.holder:
                hold.notice()

    def forget(self) -> None:
        """The next episode has not begun here."""
        self.start = ""  #: digest of the first observation; empty: not reset
        self.seed = ""  #: that a reset has got, also where another one without a seed came after it
        self.calls_then = 0  #: of the env without its wrappers, when the reset was over

    def began(self, calls_before: int) -> Begun:
        """How the episode began here.

        :param calls_before: of the env without its wrappers, before anything was reset
        """
        return type(self.env).__name__, self.start, self.seed, max(self.calls_then - calls_before, 0)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        self._called()
        seed = kwargs.get("seed", args[0] if args else None)
        if seed is not None:
            self.seed = str(seed)
        result = self._reset(*args, **kwargs)
        obs = result[0] if isinstance(result, tuple) and len(result) == 2 else result  # old Gym's are bare
        self.start = observation_digest(obs)  # now, because a wrapper may change the observation in place
        self.calls_then = self.base.calls
        return result

    def step(self, action: Any) -> Any:
        self._called()
        return self._step(action)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "holds": []}  # a copy of the env belongs to nobody


def layer_of(env: gym.Env[Any, Any]) -> Layer:
    """The layer's own :class:`Layer`; one is enough, however many models are built on the env."""
    there = getattr(env.reset, "__self__", None)
    return there if isinstance(there, Layer) and there.env is env else Layer(env)


class SeededReset:
    """The ``reset`` and ``step`` of one env whose next start the trainer chooses.

    SB3's vectorized envs reset an env the moment its episode ends, without a seed (SB3 issue 1790). The trainer calls
    :meth:`set_next_seed` (through ``VecEnv.env_method``) while the episode still runs; the auto-reset then consumes it.
    What each layer of wrappers began with travels back in the reset info, so that members of a group can be compared, and
    the layer that moves a start be named. The env stays the object that it was: a wrapper around it would take the
    attributes that are meant for the env, and hide those that it has.

    :param env: with all of its wrappers
    """

    hold: Hold | None = None  #: of the VecEnv that the env is in, where that is in the same process

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env
        self._reset, self._step = env.reset, env.step
        self._next_seed: int | None = None
        self._takes_seeds = False
        self._noise_seed: int | None = None
        self._gives_way = self._inside = False
        self.calls = self._calls_then = 0  #: now, and when the last reset was over
        self._layers = [layer_of(layer) for layer in reversed(layers(env)[1:])]
        for name in ("reset", "step", *PROTOCOL):
            put(env, name, getattr(self, name))

    def watch(self, hold: Hold) -> None:
        """Tell a hold when somebody else resets or steps the env or what it wraps."""
        self.hold = hold
        if self._layers:
            self._layers[0].watch(hold)

    def leave(self, hold: Hold, seed: int) -> None:
        """The env is no longer in a hold's VecEnv; whoever has it now finds it random.

        :param seed: of its generator
        """
        self.withdraw_seed(seed)
        self.hold = None
        if self._layers:
            self._layers[0].leave(hold)

    def seeded_reset_facts(self) -> tuple[str | None, int | None]:
        """Id and time limit of the env; None where it has none.

        Plain values, because the ``spec`` itself may not survive the way between processes.
        """
        return asked(asked(self.env, "spec"), "id"), limit_of(self.env)

    def set_next_seed(self, seed: int, noise_seed: int | None = None) -> bool | int:
        """Queue the seed of the next reset; it wins over the seed that ``VecEnv.seed`` left for the first reset.

        :param seed: non-negative seed of the start state
        :param noise_seed: when given, the env's generator is reseeded with it after the reset, so that episodes with
            the same start draw independent noise in ``step``
        :return: True where another seed still waits, because no reset has come for it; else the steps since the last reset
        """
        waited = self._next_seed is not None and not self._gives_way
        self._next_seed, self._noise_seed, self._gives_way = int(seed), noise_seed, False
        return waited or self.calls - self._calls_then

    def withdraw_seed(self, seed: int) -> None:
        """Forget the queued seed, and what members of a group have in common.

        Without a seed the env would go on with the random numbers of its group, which are those of the other members.

        :param seed: of the next reset, unless the caller gives one, and of the env's generator until then
        """
        self._next_seed, self._noise_seed, self._gives_way = int(seed), None, True
        reseed(self.env.unwrapped, seed)

    def count_calls(self) -> int:
        """Resets and steps so far, of the env and of the env without its wrappers."""
        return self.calls + sum(layer.calls for layer in self._layers)

    def reset(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The env's, with the queued seed; ``options`` only where the caller gave some, as not every env knows them."""
        if self._inside:  # the env's own step or reset calls it
            return self._reset(*args, **kwargs)
        self._called()
        given = args or kwargs.get("seed") is not None
        queued = self._next_seed is not None and not (self._gives_way and given)
        if queued:
            args, kwargs["seed"] = (), self._next_seed
        self._next_seed = None
        for layer in self._layers:
            layer.forget()
        calls_before = self._layers[0].calls if self._layers else 0
        self._inside = True
        try:
            with torchs_numbers_kept() if queued else nullcontext():
                obs, info = self._reset(*args, **kwargs) if self._takes_seeds or not queued else self._first_reset(**kwargs)
        finally:
            self._inside = False
        if self._noise_seed is not None:
            reseed(self.env.unwrapped, self._noise_seed)
            self._noise_seed = None
        self._calls_then = self.calls
        seed, calls = kwargs.get("seed"), self._layers[0].calls - calls_before if self._layers else 0
        own: Begun = type(self.env).__name__, observation_digest(obs), "" if seed is None else str(seed), calls
        starts = (*(layer.began(calls_before) for layer in self._layers), own)
        if info is not None and not isinstance(info, Mapping):
            return obs, info  # without the start, which is looked for in the observation then
        info = copy(info) if isinstance(info, dict) else dict(info or {})
        info.update({START_DIGEST: own[1], START_LAYERS: starts})
        return obs, info

    def _first_reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The first one with a seed of the trainer's.

        :raises ValueError: if the env takes none, or not any
        """
        try:
            result = self._reset(**kwargs)
        except Exception as error:
            seed = kwargs.pop("seed")
            try:
                self._reset(**kwargs)
            except Exception:
                raise error from None  # not for the seed
            raise ValueError(
                f"{type(self.env.unwrapped).__name__}.reset(seed={seed}) raised {type(error).__name__}: {error}. Without a "
                "seed it works, but members of a group start alike by their seed, any number from 0 to 2**31 - 1: let "
                "reset(self, *, seed=None, options=None) call super().reset(seed=seed) and draw from self.np_random."
            ) from error
        self._takes_seeds = True
        return result

    def step(self, action: Any) -> Any:
        if self._inside:
            return self._step(action)
        self._called()
        self._inside = True
        try:
            return self._step(action)
        finally:
            self._inside = False

    def _called(self) -> None:
        self.calls += 1
        hold = self.hold
        if hold is not None and hold.actor is not hold.holder:
            hold.notice()

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, in which a seed that somebody gives wins over the one that the trainer has queued here."""
        return {**vars(self), "hold": None, "_gives_way": True}


def seeded_reset_of(env: gym.Env[Any, Any]) -> SeededReset:
    """The :class:`SeededReset` of an env with all of its wrappers; made where there is none."""
    there = asked(asked(env, "set_next_seed"), "__self__")
    return there if isinstance(there, SeededReset) and there.env is env else SeededReset(env)


def SeededResetWrapper(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:  # named for its place: wrapper_class=
    """Let a trainer choose the seeds of an env's resets: for ``make_vec_env(..., wrapper_class=SeededResetWrapper)``.

    :param env: with all of its wrappers
    :return: the same object, with ``set_next_seed`` (:class:`SeededReset`)
    """
    seeded_reset_of(env)
    return env
