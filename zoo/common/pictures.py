"""Pictures: failures to draw are reported and end nothing; GIFs play at the env's speed.

A GIF's unit is a hundredth of a second, and browsers slow down frames shorter than two units: not all of Hopper's 125 frames
per second can be shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from .command_line import one_line

SHORTEST = 2  # hundredths of a second that browsers keep to


def drawn(what: str, draw: Callable[[], Path]) -> Path | None:
    """Draw a picture; a failure must not lose the results.

    :param what: name of the picture, for the message
    :param draw: draws it and returns its path
    :return: the path; None after a failure, which stderr reports
    """
    try:
        return draw()
    except Exception as error:  # fonts, backends, full disks and others
        print(f"The {what} could not be drawn: {type(error).__name__}: {one_line(error)}", file=sys.stderr)
        return None


class GifWriter:
    """GIF writer that drops frames if there are too many; each is shown until the next one's time, so errors do not add up.

    :param path: of the file, written by :meth:`close`
    :param fps: frames per second of the env
    """

    def __init__(self, path: Path, fps: float) -> None:
        self.path = path
        self.fps = fps
        self.n_frames = 0
        self.shown: list[tuple[int, Image.Image]] = []  #: hundredths of a second, picture

    def append_data(self, picture: np.ndarray) -> None:
        moment = self._moment()
        self.n_frames += 1
        if not self.shown or moment - self.shown[-1][0] >= SHORTEST:
            self.shown.append((moment, Image.fromarray(picture)))

    def close(self) -> None:
        if not self.shown:
            return
        moments, pictures = zip(*self.shown, strict=True)
        end = max(self._moment(), moments[-1] + SHORTEST)
        durations = [10 * int(step) for step in np.diff([*moments, end])]
        pictures[0].save(self.path, save_all=True, append_images=pictures[1:], duration=durations, loop=0)

    def _moment(self) -> int:
        return round(100 * self.n_frames / self.fps)
