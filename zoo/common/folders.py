"""Folders that one process has to itself."""

from __future__ import annotations

import glob
import re
from pathlib import Path


def new_folder(parent: Path, name: str, suffix: str = "") -> Path:
    """Make ``parent/name_N``, with the first number above all that are there; two that ask at once get two.

    :param parent: made where it is missing
    :param name: in front of the number
    :param suffix: behind the number
    :return: the folder, which did not exist before
    """
    parent.mkdir(parents=True, exist_ok=True)
    taken = [0]
    for path in parent.glob(f"{glob.escape(name)}_*"):
        found = re.fullmatch(r"_(\d+)(_.+)?", path.name.removeprefix(name))
        taken += [int(found[1])] if found else []
    number = max(taken) + 1
    while True:
        folder = parent / f"{name}_{number}{suffix}"
        try:
            folder.mkdir()
        except FileExistsError:  # of another process, made since we looked
            number += 1
        else:
            return folder
