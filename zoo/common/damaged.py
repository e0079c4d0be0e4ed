"""Files that a killed process, a full disk or another program has left damaged: named in one line, and left out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from ..common.command_line import one_line

T = TypeVar("T")


def read_or_note(path: Path, read: Callable[[Path], T], broken: list[str]) -> T | None:
    """Content of a file; None where there is none, and where it is damaged.

    :param read: reads it, and raises anything
    :param broken: takes a line on a damaged file, which stderr gets once
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
    """A line on stderr; a page that is served reads the same files again and again."""
    print(line, file=sys.stderr)
