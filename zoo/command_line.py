"""What the commands share: bad input is one line on stderr and exit code 2, and names that were nearly right are suggested."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NoReturn

import gymnasium as gym


class BadInput(ValueError):
    """The user can mend this; the message says how."""


class Parser(argparse.ArgumentParser):
    """argparse that shows defaults, and reports a mistake in one line instead of after a screen of usage."""

    def __init__(self, program: str, description: str | None) -> None:
        super().__init__(prog=program, description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)}\n")


def one_line(text: object) -> str:
    """Without line breaks."""
    return " ".join(str(text).split())


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest known names as a question to append; empty where none is near.

    :param name: what was given
    :param known: what there is
    """
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" Did you mean {', '.join(near)}?" if near else ""


def check_env_id(env_id: str, packages: Collection[str] = ()) -> None:
    """See that an env is registered.

    :param env_id: as the user gave it
    :param packages: to import first, because they register envs
    :raises BadInput: with the nearest ids, if it is not
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise BadInput(f"--gym-packages {package}: {error}") from error
    if env_id not in gym.registry:
        raise BadInput(f"unknown env {env_id!r}.{did_you_mean(env_id, gym.registry)}")


def run(program: str, main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command.

    :param program: module, as in ``python -m zoo.compare``
    :param main: takes the command line without the program's name, returns the exit code
    :param arguments: the command line
    :return: exit code
    """
    try:
        return main(arguments)
    except BadInput as error:
        print(f"{program}: {one_line(error)}", file=sys.stderr)
        return 2
