"""Handle damaged files, for example after a kill or a full disk: report them in one line, and skip them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from ..common.command_line import one_line

T = TypeVar("T")


def read_or_note(path: Path, read: Callable[[Path], T], broken: list[str]) -> T | None:
    """Read a file; None if it is missing or damaged.

    :param read: reads it, and may raise anything
    :param broken: gets a line about a damaged file, which is also printed to stderr once
    """
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except Exception as error:  # of JSON, CSV, NumPy, zipfile, zlib
        line = f"{path.name} is left out: it cannot be read ({type(error).__name__}: {one_line(error)})"
        broken.append(line)
        say_once(f"{path.parent}/{line}")
        return None


@cache
def say_once(line: str) -> None:
    """Print a line to stderr once, because a served page reads the same files repeatedly."""
    print(line, file=sys.stderr)
