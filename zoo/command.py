"""What all commands of the zoo have in common: bad input is one line on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn


class BadInput(ValueError):
    """The user can mend this; the message is one line that says how."""


class Parser(argparse.ArgumentParser):
    """argparse that reports a mistake in one line instead of after a screen of usage."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(
            prog=f"python -m {name}",
            description=description,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message} (--help explains every option)")


def run(name: str, body: Callable[[list[str]], int], arguments: list[str]) -> int:
    """Run a command.

    :param name: module, as in ``python -m zoo.compare``
    :param body: takes the command line without the program's name, returns the exit code
    :param arguments: the command line
    :return: exit code
    """
    try:
        return body(arguments)
    except BadInput as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest known names, as the end of an error message; empty where none is near.

    :param name: what was given
    :param known: what there is
    """
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"; did you mean {', '.join(near)}?" if near else ""


def parse_seeds(text: str) -> list[int]:
    """Seeds from ``0-9``, ``3`` or ``0,2,5-7``.

    :param text: numbers and ranges, both ends included
    :return: the seeds, in order, each once
    :raises BadInput: for anything else
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise BadInput(f"--seeds {text!r} is not a list of seeds; write 0-9, 3 or 0,2,5-7")
        seeds += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(seeds))
