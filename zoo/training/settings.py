"""Settings of a run: the entry that an env gets, schedules by name, and checks against the algorithm's constructor."""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import re
import runpy
import sys
import types
import typing
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import gymnasium as gym
import rl_zoo3
from gymnasium.envs.registration import load_env_creator
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.utils import SimpleLinearSchedule
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo.maths.schedules import SYNTAX, linear, named
from sb_grpo.plain import FORMS, attributes
from sb_grpo.validation import OF_OTHERS

from ..common.command_line import BadInput, did_you_mean
from ..common.plain_files import Hyperparams, read_sections

MINIGRID = "MiniGrid-"


def entry_name(names: Collection[str], env_id: str, path: str | Path) -> str:
    """The env's own entry, that of another version of it (rl_zoo3 has Hopper-v4, not v5), for MiniGrid the one whose id is
    spelt most alike, "atari", or "default".

    :param names: of the file's entries
    :param env_id: registered id
    :param path: of the file, for the message
    :raises BadInput: if the file has none of them
    """
    base, _, _ = env_id.rpartition("-v")
    versions = [name for name in names if base and re.fullmatch(re.escape(base) + r"-v\d+", name)]
    versions.sort(key=lambda name: int(name.rpartition("-v")[2]), reverse=True)
    relatives: list[str] = []
    if ExperimentManager.is_minigrid(env_id):
        relatives = difflib.get_close_matches(env_id, [name for name in names if name.startswith(MINIGRID)], n=1, cutoff=0.0)
    family = ["atari"] if ExperimentManager.is_atari(env_id) else []
    for name in [env_id, *versions, *relatives, *family, "default"]:
        if name in names:
            return name
    raise BadInput(f"{path} has neither an entry for {env_id} nor a default")


def read_entries(path: str) -> dict[str, Hyperparams]:
    """All entries of a settings file.

    :param path: YAML, a ``.py`` file or the name of a module; the latter two define ``hyperparams``
    :raises BadInput: if it holds none
    """
    if path.endswith((".yml", ".yaml")):
        return read_sections(path)
    try:
        found = runpy.run_path(path) if path.endswith(".py") else vars(importlib.import_module(path))
    except (ImportError, OSError) as error:
        raise BadInput(f"--conf-file {path}: {error}. Pass a .yml or .py file, or the name of a module.") from error
    if not isinstance(found.get("hyperparams"), dict):
        raise BadInput(f"{path} must define hyperparams, a dict of entries such as {{'CartPole-v1': {{...}}}}.")
    return dict(found["hyperparams"])


FORMS["SimpleLinearSchedule"] = attributes(SimpleLinearSchedule, "initial_value")

#: Hyperparameters that may be a schedule, such as ``lin_3e-4``, ``cos_3e-4`` or ``cos_3e-4_0.05``.
SCHEDULED = ("learning_rate", "clip_range", "clip_range_vf", "delta_std")


def with_schedules(settings: Hyperparams) -> Hyperparams:
    """Settings in which the names of schedules have become functions, those within ``loss_kwargs`` too.

    :raises ValueError: for text that is none
    """
    made: Hyperparams = {k: make_schedule(v) if k in SCHEDULED and isinstance(v, str) else v for k, v in settings.items()}
    of_loss = made.get("loss_kwargs")
    if isinstance(of_loss, dict) and isinstance(high := of_loss.get("clip_range_high"), str):
        made["loss_kwargs"] = {**of_loss, "clip_range_high": make_schedule(high)}
    return made


def make_schedule(text: str) -> Schedule:
    """The function that a schedule's name stands for; linear ones are rl_zoo3's own.

    :raises ValueError: if the text is none
    """
    made = named(text)
    is_linear = isinstance(made, partial) and made.func is linear
    return SimpleLinearSchedule(made.keywords["initial"]) if is_linear else made  # type: ignore[attr-defined]


#: Settings of a run that are none of the algorithm's.
RUN_SETTINGS: dict[str, object] = {
    "n_timesteps": float, "n_envs": int, "normalize": bool | str | dict, "frame_stack": int, "env_wrapper": object,
    "vec_env_wrapper": object, "monitor_kwargs": dict | str, "env_kwargs": dict, "callback": object, "policy": str,
    "noise_type": str, "noise_std": float,
}  # fmt: skip
#: The least that settings of a run may be; the constructor looks after its own.
LEAST = {"n_timesteps": 1, "n_envs": 1, "frame_stack": 1, "noise_std": 0}
#: Names that rl_zoo3 recognises in ``noise_type``.
NOISES = ("normal", "ornstein-uhlenbeck")
#: Arguments of the constructor that an option of the command line sets.
OPTIONS = {"env", "tensorboard_log", "verbose", "seed", "device"}
#: rl_zoo3 evaluates these where they are text.
EVALUATED = ("policy_kwargs", "replay_buffer_class", "replay_buffer_kwargs")
REQUIRED = ("n_timesteps", "policy")


def _within(least: float, most: float) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least < value <= most


POSITIVE = "a number above 0", _within(0.0, sys.float_info.max)
YES_OR_NO = "True or False", lambda value: isinstance(value, bool)
#: Rules of VecNormalize's arguments: in words, and as a test.
OF_NORMALIZE: dict[str, tuple[str, Callable[[object], bool]]] = {
    "training": YES_OR_NO, "norm_obs": YES_OR_NO, "norm_reward": YES_OR_NO, "clip_obs": POSITIVE, "clip_reward": POSITIVE,
    "epsilon": POSITIVE, "gamma": ("a number in (0, 1]", _within(0.0, 1.0)),
}  # fmt: skip
PLAIN = {int: "an integer", float: "a number", bool: "True or False", str: "text", dict: "a mapping", type(None): "null"}


def check_settings(algo: str, settings: Hyperparams, where: Callable[[str], str]) -> None:
    """Check every name and, as far as the constructor declares plain types, every value.

    :param algo: algorithm that the settings are for
    :param settings: of one run
    :param where: tells of a name where the user has written it
    :raises BadInput: for the first that is wrong
    """
    constructor = rl_zoo3.ALGOS[algo].__init__
    parameters = inspect.signature(constructor, eval_str=True).parameters
    names = set(parameters) - {"self", "_init_setup_model"} - OPTIONS
    hints = {**{name: parameters[name].annotation for name in names}, **RUN_SETTINGS}
    known = names | set(RUN_SETTINGS)
    for name, value in settings.items():
        if name in OPTIONS:
            raise BadInput(f"{where(name)}: {name} is not a hyperparameter but an option: --{name.replace('_', '-')}.")
        if algo == "grpo" and name in OF_OTHERS:
            raise BadInput(f"{where(name)}: {name} is {OF_OTHERS[name]}")
        if name not in known:
            raise BadInput(f"{where(name)}: {algo} has no hyperparameter {name!r}.{did_you_mean(name, known)}")
        _check_type(name, value, hints.get(name, object), where(name))
        if name in LEAST and isinstance(value, int | float) and not LEAST[name] <= value < math.inf:
            raise BadInput(f"{where(name)}: {name}={value} must be at least {LEAST[name]}, and finite.")
    for name in REQUIRED:
        if name not in settings:
            raise BadInput(f"{where(name)}: {name} is missing; every entry needs {' and '.join(REQUIRED)}.")
    _check_noise(settings, where)


def _check_noise(settings: Hyperparams, where: Callable[[str], str]) -> None:
    """See that the noise of an off-policy algorithm is one that rl_zoo3 makes."""
    kind = settings.get("noise_type")
    if not isinstance(kind, str):
        return
    if not any(name in kind for name in NOISES):
        raise BadInput(
            f"{where('noise_type')}: noise_type={kind!r} must be {' or '.join(NOISES)}.{did_you_mean(kind, NOISES)}"
        )
    if "noise_std" not in settings:
        raise BadInput(f"{where('noise_type')}: noise_type={kind!r} needs noise_std, such as noise_std:0.1.")


def check_normalize(arguments: object, where: str) -> None:
    """See that VecNormalize takes the arguments that it is to be made with, where ``normalize`` is a mapping.

    :param where: the user has written them
    :raises BadInput: naming the first that is wrong
    """
    known = [name for name in inspect.signature(VecNormalize.__init__).parameters if name not in ("self", "venv")]
    for name, value in arguments.items() if isinstance(arguments, dict) else ():
        if name not in known:
            raise BadInput(
                f"{where}: normalize: VecNormalize has no argument {name!r}; it takes {', '.join(known)}."
                f"{did_you_mean(str(name), known)}"
            )
        wanted, fine = OF_NORMALIZE.get(name, ("", lambda _: True))
        if not fine(value):
            raise BadInput(f"{where}: normalize: {name}={value!r} must be {wanted}.")


def check_env_kwargs(option: str, env_id: str, kwargs: Hyperparams) -> None:
    """See that an env takes the arguments that it is to be made with, as far as its constructor says which it takes.

    :param option: or key, that they were given with
    :param env_id: registered id
    :param kwargs: arguments
    :raises BadInput: naming those that it takes
    """
    limit = kwargs.get("max_episode_steps")
    if limit is not None and not (type(limit) is int and (limit > 0 or limit == -1)):
        raise BadInput(f"{option} max_episode_steps:{limit}: must be a whole number of steps from 1 on; -1: no limit.")
    entry = gym.spec(env_id).entry_point
    if not kwargs or entry is None:
        return
    made_by = load_env_creator(entry) if isinstance(entry, str) else entry
    parameters = inspect.signature(made_by).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return  # passes unknown arguments on
    own = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = {*own, *inspect.signature(gym.make).parameters} - {"id"}  # such as max_episode_steps
    for name, value in kwargs.items():
        if name not in known:
            takes = f"it takes {', '.join(own)}" if own else "it takes none"
            raise BadInput(f"{option} {name}:{value}: {env_id} has no argument {name!r}; {takes}.{did_you_mean(name, own)}")


def _check_type(name: str, value: object, hint: object, where: str) -> None:
    if isinstance(value, str) and name in SCHEDULED:
        try:
            make_schedule(value)
        except ValueError as error:
            raise BadInput(f"{where}: {name}: {error}.{_number_as_text(value)}") from error
        return
    alternatives = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    kinds = [typing.get_origin(kind) or kind for kind in alternatives]
    plain = [kind for kind in kinds if kind in PLAIN]
    if any(kind not in PLAIN and not (name in SCHEDULED and not callable(value)) for kind in kinds):
        return  # the constructor checks its own arguments
    if (isinstance(value, str) and name in EVALUATED) or any(_is(value, kind) for kind in plain):
        return
    wanted = SYNTAX if name in SCHEDULED else " or ".join(PLAIN[kind] for kind in plain)
    raise BadInput(f"{where}: {name}={value!r} is {type(value).__name__}, but must be {wanted}.{_number_as_text(value)}")


def _is(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _number_as_text(value: object) -> str:
    try:
        return f" YAML takes {value} for text: write {float(value)!r} or !!float {value}." if isinstance(value, str) else ""
    except ValueError:
        return ""
