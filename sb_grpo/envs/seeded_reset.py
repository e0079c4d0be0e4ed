"""A seed for the next ``reset()`` of an env: SB3's unseeded auto-reset starts the right group."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from copy import copy, deepcopy
from hashlib import blake2b
from typing import Any, NamedTuple, SupportsIndex, TypeVar
from weakref import ref

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.config import shown
from sb_grpo.envs.listening import listen, listener_of
from sb_grpo.envs.ownership import PROTOCOL, EnvOwnership
from sb_grpo.envs.time_limits import attribute_of, layers, limit_of
from sb_grpo.types import Action, Info, Kwargs, Obs

START_DIGEST = "group_start_digest"
START_LAYERS = "group_start_layers"
#: In the place of the digest of options: those that the trainer queued, which are the same for all members of a group.
QUEUED_OPTIONS = "queued"
FLOAT = np.dtype(np.float64)
INTEGER = np.dtype(np.int64)


T = TypeVar("T")


class Begun(NamedTuple):
    """The start of an episode in one layer of an env. Travels in infos as a plain tuple."""

    name: str  #: of the layer's class
    digest: str = ""  #: of its first observation; empty: it was not reset
    seed: str = ""  #: that its reset got, also where another one without a seed came after it; empty: none
    calls: int = 0  #: of the env without its wrappers in this reset, when the layer's own was over
    options: str = ""  #: digest of the options that its reset got; empty: none


def observation_digest(obs: Obs, space: spaces.Space | None = None) -> str:
    """Sixteen hexadecimal digits, other ones for observations with other values: text, which any log can hold.

    Equal values have one digest whatever holds them: -0.0 is 0.0, and a float32 is the float64 of the same value.

    :param obs: an array, a scalar, or a dict or tuple of them
    :param space: that says in which type values are compared: 0.1 in float32 and in float64 are one number in a float32 space
    :return: BLAKE2b digest, eight bytes of it, the same in every process
    """
    if isinstance(obs, np.ndarray):
        return blake2b(_canonical(obs, getattr(space, "dtype", None)), digest_size=8).hexdigest()
    digest = blake2b(digest_size=8)

    def feed(part: Obs, space: spaces.Space | None) -> None:
        if isinstance(part, dict):
            for key in sorted(part):
                feed(part[key], space[key] if isinstance(space, spaces.Dict) and key in space.spaces else None)
        elif isinstance(part, tuple | list):
            of = space.spaces if isinstance(space, spaces.Tuple) and len(space.spaces) == len(part) else [None] * len(part)
            for item, inner in zip(part, of, strict=True):
                feed(item, inner)
        else:
            digest.update(_canonical(part, getattr(space, "dtype", None)))

    feed(obs, space)
    return digest.hexdigest()


def _canonical(part: object, dtype: np.typing.DTypeLike | None) -> bytes:
    """The bytes of a value, the same ones in whatever type it comes.

    :param dtype: in which values are compared; None: integers as int64, other numbers as float64
    """
    array = part if type(part) is np.ndarray else np.asarray(part)
    kind = array.dtype.kind
    if kind == "O":
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(part)).encode()  # where it lies in memory is no value
    if kind in "biuf":
        dtype = dtype or (FLOAT if kind == "f" else INTEGER)
        if array.dtype is not dtype and np.dtype(dtype).kind in "biuf":
            with np.errstate(all="ignore"):  # a NaN in a space of integers
                array = array.astype(dtype)
        if array.dtype.kind == "f":
            array = array + 0.0  # -0.0 has another sign bit
    return array.tobytes()


def reseed(env: gym.Env, seed: int) -> None:
    """Give an env another generator in place of Gymnasium's; one of another kind has other methods, which the env calls.

    :param env: without wrappers
    """
    with suppress(Exception):  # of a generator that the env alone may set; the next reset seeds it
        if isinstance(env.np_random, np.random.Generator):
            env.np_random = np.random.default_rng(seed)


@contextmanager
def torchs_numbers_kept() -> Iterator[None]:
    """Put torch's own generator back where an env seeds it in ``reset(seed=...)``, which the trainer makes every episode.

    The policy draws its actions from it, and would give all members of a group the same ones. Numbers that an env draws
    from it without seeding it stay drawn.
    """
    seed = th.initial_seed()
    state = th.get_rng_state()
    try:
        yield
    finally:
        if th.initial_seed() != seed:
            th.set_rng_state(state)


class Layer:
    """The listener of one layer of an env: remembers the start of its episode, and tells ownerships of calls.

    :param env: the layer
    :param base: that of the env without its wrappers; None: this is it
    """

    def __init__(self, env: gym.Env, base: Layer | None) -> None:
        self.name = type(env).__name__
        self.space = attribute_of(env, "observation_space")
        self.calls = 0
        self.base: Layer = self if base is None else base
        #: of all VecEnvs that share this layer; they come and go with their models
        self.ownerships: tuple[ref[EnvOwnership], ...] = ()
        self.pending: int | None = None  #: seed of the next reset, if that is given none
        self.known: tuple[object, ...] | None = None  #: by a reset last, of any layer on this base
        self.known_digest = ""
        self.queued: Kwargs | None = None  #: options of the trainer's that the running reset began with
        self.forget()

    def watch(self, ownership: EnvOwnership) -> None:
        """Tell an ownership when somebody else resets or steps this layer."""
        self.leave(ownership)
        self.ownerships = (*self.ownerships, ref(ownership))

    def leave(self, ownership: EnvOwnership) -> None:
        """Tell an ownership nothing any more."""
        self.ownerships = tuple(there for there in self.ownerships if there() not in (None, ownership))

    def forget(self) -> None:
        """The next episode has not begun here."""
        self.digest = self.seed = self.options = ""
        self.calls_then = 0  #: of the env without its wrappers, when the reset was over

    def began(self, calls_before: int) -> tuple[object, ...]:
        """The start of the running episode: the fields of :class:`Begun`.

        :param calls_before: of the env without its wrappers, before anything was reset
        """
        return self.name, self.digest, self.seed, max(self.calls_then - calls_before, 0), self.options

    def called(self) -> None:
        """A reset or a step of the env without its wrappers, or a wrapper's reset, begins."""
        self.calls += 1
        for there in self.ownerships:
            ownership = there()
            if ownership is not None and ownership.actor is not ownership.owner:
                ownership.notice()

    # ------------------------------------------------------------ the env's own methods

    def reset(self, function: Callable[..., T], env: object, *args: object, **kwargs: object) -> T:
        self.called()
        seed = kwargs.get("seed", args[0] if args else None)
        if self.pending is not None and seed is None and not args:
            seed = kwargs["seed"] = self.pending
        self.pending = None
        self.note(seed, kwargs.get("options", args[1] if len(args) > 1 else None))
        result = function(env, *args, **kwargs)
        self.see(result)
        return result

    def note(self, seed: object, options: object) -> None:
        """Remember the arguments of a reset."""
        if seed is not None:
            self.seed = str(seed)
        if options is not None and options is self.base.queued:
            self.options = QUEUED_OPTIONS
        else:
            self.options = observation_digest(options) if options else ""

    def see(self, result: object) -> None:
        """Remember the first observation; at once, because a wrapper may change it in place.

        :param result: of the reset; old Gym's are bare observations
        """
        obs = result[0] if isinstance(result, tuple) and len(result) == 2 else result
        self.calls_then = self.base.calls
        if type(obs) is not np.ndarray:
            self.digest = observation_digest(obs, self.space)
            return
        known = obs.tobytes(), obs.dtype, getattr(self.space, "dtype", None)
        if self.base.known != known:  # most wrappers hand on the very numbers that they got
            self.base.known = known
            self.base.known_digest = observation_digest(obs, self.space)
        self.digest = self.base.known_digest


def layer_of(env: gym.Env, base: Layer | None) -> Layer | None:
    """The layer's own :class:`Layer`, one for all models that are built on the env; None where nobody can listen to it."""
    there = listener_of(env)
    if isinstance(there, Layer):
        return there
    layer = Layer(env, base)
    return layer if listen(env, layer, ["reset"], [] if isinstance(env, gym.Wrapper) else ["step"]) else None


class Seat:
    """The place of an env in a VecEnv, where the trainer chooses its next start.

    SB3's vectorized envs reset an env the moment its episode ends, without a seed (SB3 issue 1790). The trainer calls
    :meth:`set_next_seed` while the episode still runs; the auto-reset then consumes it. The start of each layer of wrappers
    travels back in the reset info, so that members of a group can be compared, and the layer that moves a start be named.

    :param env: with all of its wrappers
    """

    __slots__ = (
        "__weakref__", "_calls_then", "_heard", "_layers", "_next_options", "_next_seed", "_noise_seed", "_takes_seeds",
        "sb_grpo_env",
    )  # fmt: skip
    OWN = frozenset((*PROTOCOL, "reset", "step"))

    def __init__(self, env: gym.Env) -> None:
        self.sb_grpo_env = env = inner_env(env)
        self._next_seed: int | None = None
        self._noise_seed: int | None = None
        self._next_options: Kwargs | None = None
        self._takes_seeds = False
        self._layers: list[Layer] = []  #: from the env itself to its outermost wrapper
        self._heard: Layer | None = None  #: the outermost one, where somebody can listen to it
        for one in reversed(layers(env)):
            one = inner_env(one)
            base = self._layers[0] if self._layers else None
            self._heard = layer_of(one, base)
            if self._heard is not None and self._heard not in self._layers:
                self._layers.append(self._heard)
        if self._heard is None:
            self._layers.append(Layer(env, self._layers[0] if self._layers else None))
        self._calls_then = self._calls()  #: when the last reset was over

    def _calls(self) -> int:
        return self._layers[0].calls

    # ------------------------------------------------------------ for the trainer

    def watch(self, ownership: EnvOwnership) -> None:
        """Tell an ownership when somebody else resets or steps the env."""
        self._layers[0].watch(ownership)

    def leave(self, ownership: EnvOwnership, seed: int) -> None:
        """The env is no longer in the VecEnv of an ownership; whoever has it now finds it random.

        :param seed: of its generator
        """
        self.withdraw_seed(seed)
        self._layers[0].leave(ownership)

    def seeded_reset_facts(self) -> tuple[str | None, int | None]:
        """Id and time limit of the env; None where it has none.

        Plain values, because the ``spec`` itself may not survive the way between processes.
        """
        return attribute_of(attribute_of(self.sb_grpo_env, "spec"), "id"), limit_of(self.sb_grpo_env)

    def set_next_seed(self, seed: int, noise_seed: int | None = None, options: Kwargs | None = None) -> bool | int:
        """Queue the seed of the next reset; it wins over the seed that ``VecEnv.seed`` left for the first reset.

        :param seed: non-negative seed of the start state
        :param noise_seed: when given, the env's generator is reseeded with it after the reset, so that episodes with
            the same start draw independent noise in ``step``
        :param options: of the next reset; None: none
        :return: True where another seed still waits, because no reset has come for it; else the steps since the last reset
        """
        waited = self._next_seed is not None
        self._next_seed = int(seed)
        self._noise_seed = noise_seed
        self._next_options = options
        return waited or self._calls() - self._calls_then

    def withdraw_seed(self, seed: int) -> None:
        """Forget the queued seed, and the numbers that members of a group have in common.

        Without a seed the env would go on with the random numbers of its group, which are those of the other members.

        :param seed: of the next reset, unless the caller gives one, and of the env's generator until then
        """
        self._next_seed = self._noise_seed = self._next_options = None
        if self._heard is not None:
            self._heard.pending = int(seed)
        reseed(self.sb_grpo_env.unwrapped, seed)

    def count_calls(self) -> int:
        """Resets and steps of the env without its wrappers so far."""
        return self._calls()

    # ------------------------------------------------------------ for the VecEnv

    def step(self, action: Action) -> Any:
        """The env's."""
        return self.sb_grpo_env.step(action)

    def reset(self, *args: object, **kwargs: object) -> tuple[Obs, Info]:
        """The env's, with the queued seed; ``options`` only where some were queued or given, as not every env knows them."""
        queued = self._next_seed
        self._next_seed = None
        if queued is not None:
            args = ()
            kwargs["seed"] = queued
        if self._next_options is not None:  # a copy, as an env may use up parts of what it gets
            kwargs["options"] = self._layers[0].queued = deepcopy(self._next_options)
            self._next_options = None
        for layer in self._layers:
            layer.forget()
        calls_before = self._calls()
        with nullcontext() if queued is None else torchs_numbers_kept():
            known = self._takes_seeds or queued is None
            result = self.sb_grpo_env.reset(*args, **kwargs) if known else self._first_reset(**kwargs)
        if self._noise_seed is not None:
            reseed(self.sb_grpo_env.unwrapped, self._noise_seed)
            self._noise_seed = None
        self._calls_then = self._calls()
        if self._heard is None or not self._heard.digest:  # it has a reset of its own, past which nobody hears
            self._layers[-1].note(kwargs.get("seed"), kwargs.get("options"))
            self._layers[-1].see(result)
        starts = tuple(layer.began(calls_before) for layer in self._layers)
        obs, info = result
        if info is not None and not isinstance(info, Mapping):
            return result  # without the start, which is looked for in the observation then
        info = copy(info) if isinstance(info, dict) else dict(info or {})
        info.update({START_DIGEST: starts[-1][1], START_LAYERS: starts})
        return obs, info

    def _first_reset(self, **kwargs: object) -> tuple[Obs, Info]:
        """The first one with a seed of the trainer's.

        :raises ValueError: if the env takes no seed, not any seed, or not these options
        """
        try:
            result: tuple[Obs, Info] = self.sb_grpo_env.reset(**kwargs)
        except Exception as error:
            name = type(self.sb_grpo_env.unwrapped).__name__
            if self._resets_without("options", kwargs):
                raise ValueError(
                    f"{name}.reset(options={shown(kwargs['options'])}) raised {type(error).__name__}: {error}. Without them "
                    "it works: let reset(self, *, seed=None, options=None) take them, or leave them out of the starts."
                ) from error
            if not self._resets_without("seed", kwargs):
                raise
            raise ValueError(
                f"{name}.reset(seed={kwargs['seed']}) raised {type(error).__name__}: {error}. Without a seed it works, but "
                "members of a group start alike by their seed, any number from 0 to 2**31 - 1: let "
                "reset(self, *, seed=None, options=None) call super().reset(seed=seed) and draw from self.np_random."
            ) from error
        self._takes_seeds = True
        return result

    def _resets_without(self, name: str, kwargs: Kwargs) -> bool:
        """Whether a reset works without one of its arguments."""
        if name not in kwargs:
            return False
        try:
            self.sb_grpo_env.reset(**{key: value for key, value in kwargs.items() if key != name})
        except Exception:
            return False
        return True

    def get_wrapper_attr(self, name: str) -> Any:
        """An attribute from the outside in, as Gymnasium's envs have this method."""
        return getattr(self, name) if name in self.OWN else self.sb_grpo_env.get_wrapper_attr(name)


class SeededEnv(Seat):
    """A seat that stands for its env: everything else that is asked of it, or set, is the env's.

    :param env: with all of its wrappers
    """

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.sb_grpo_env)

    def __getattr__(self, name: str) -> Any:
        if name in Seat.__slots__:
            raise AttributeError(name)  # not there yet: it is being copied
        return getattr(self.sb_grpo_env, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in Seat.__slots__:
            object.__setattr__(self, name, value)
        else:
            setattr(self.sb_grpo_env, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.sb_grpo_env, name)

    def has_wrapper_attr(self, name: str) -> bool:
        """Whether the env or a wrapper of it has an attribute."""
        return name in self.OWN or self.sb_grpo_env.has_wrapper_attr(name)

    def __enter__(self) -> SeededEnv:
        return self

    def __exit__(self, *error: object) -> None:
        self.sb_grpo_env.close()

    def __repr__(self) -> str:
        return repr(self.sb_grpo_env)

    def __copy__(self) -> SeededEnv:
        return SeededEnv(copy(self.sb_grpo_env))

    def __deepcopy__(self, memo: dict[int, object]) -> SeededEnv:
        return SeededEnv(deepcopy(self.sb_grpo_env, memo))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        return SeededEnv, (self.sb_grpo_env,)


def inner_env(env: Any) -> Any:
    """The env itself, where a :class:`SeededEnv` stands for it."""
    while type(env) is SeededEnv:
        env = env.sb_grpo_env
    return env


def SeededResetWrapper(env: gym.Env) -> gym.Env:  # named for its place: wrapper_class=
    """Let a trainer choose the seeds of an env's resets: for ``make_vec_env(..., wrapper_class=SeededResetWrapper)``.

    :param env: with all of its wrappers
    :return: an object with ``set_next_seed`` that stands for the env in everything else (:class:`SeededEnv`)
    """
    return SeededEnv(env)  # type: ignore[return-value]
