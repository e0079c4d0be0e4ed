"""Classify errors during set-up: errors of the user's input, or crashes of code.

The former are one line. The latter need their traceback, especially in the user's own env.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
from rl_zoo3.utils import get_wrapper_class

import sb_grpo

from ..common.command_line import BadInput

#: Packages whose code checks its arguments.
LIBRARIES = (
    *(Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")),
    Path(sb_grpo.__file__).resolve().parent,
    Path(__file__).resolve().parents[1],
)
REFUSALS = (ValueError, AssertionError, OSError, ImportError, gym.error.Error)


def naming(key: str, setting: object, where: str) -> Callable | None:
    """Make a function that applies the wrappers of a setting, and names the one that fails.

    :param key: ``env_wrapper`` or ``vec_env_wrapper``
    :param setting: in rl_zoo3's form
    :param where: place of the setting in the user's input
    :return: None without wrappers
    """
    if not setting:
        return None
    parts = [(entry, get_wrapper_class({key: entry}, key)) for entry in (setting if isinstance(setting, list) else [setting])]

    def wrap(env: gym.Env) -> gym.Env:
        for entry, part in parts:
            try:
                env = env if part is None else part(env)
            except Exception as error:
                if not _in_a_library(error):  # the user's own code has crashed
                    raise
                name = next(iter(entry)) if isinstance(entry, dict) else entry
                raise BadInput(f"{where}: {key}: {name} does not fit the env: {error}. Take it out, or change what it is "
                               "given.") from error  # fmt: skip
        return env

    return wrap


def is_bad_input(error: BaseException) -> bool:
    """Whether an error is a library's answer to wrong arguments, wrong names or missing files.

    A TypeError or AttributeError is one only where it speaks of an argument, or of a name that a module lacks.
    """
    root: BaseException = error
    while root.__cause__ is not None:  # gymnasium wraps errors of an env's constructor
        root = root.__cause__
    if not _in_a_library(root):
        return False
    said = str(error)
    if isinstance(error, TypeError):
        return "argument" in said
    if isinstance(error, AttributeError):
        return said.startswith("module ")
    return isinstance(error, REFUSALS) and bool(said)


def _in_a_library(error: BaseException) -> bool:
    """Whether it was raised there, and not in a user's own code."""
    trace = error.__traceback__
    if trace is None:
        return True
    while trace.tb_next is not None:
        trace = trace.tb_next
    name = trace.tb_frame.f_code.co_filename
    return name.startswith("<frozen") or any(Path(name).resolve().is_relative_to(folder) for folder in LIBRARIES)
