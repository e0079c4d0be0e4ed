"""A picture that cannot be drawn is said, and ends nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from .command_line import one_line


def drawn(what: str, draw: Callable[[], Path]) -> Path | None:
    """Draw a picture that goes with results, which are worth more than it.

    :param what: for the message
    :param draw: draws it and returns its path
    :return: the path; None where it could not be drawn, which stderr says
    """
    try:
        return draw()
    except Exception as error:  # fonts, backends, full disks, files of others: all that can go wrong in a picture
        print(f"The {what} could not be drawn: {type(error).__name__}: {one_line(error)}", file=sys.stderr)
        return None
