"""Folders that one process has to itself."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from ..common.command_line import BadInput


def make_folder(option: str, folder: Path) -> tuple[Path, ...]:
    """Make the folder that an option names.

    :return: what was not there before, from the outside in
    :raises BadInput: if it cannot be made
    """
    missing = tuple(path for path in (*reversed(folder.parents), folder) if not path.exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{option}: {folder} cannot be made ({error.strerror}): name a place that you may write to.") from error
    return missing


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
