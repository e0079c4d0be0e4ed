"""Folders with a lock, and new numbered folders."""

from __future__ import annotations

import fcntl
import glob
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ..common.command_line import BadInput

#: Lock file of a folder.
LOCK = ".lock"


def make_folder(option: str, folder: Path) -> tuple[Path, ...]:
    """Make the folder that an option names.

    :return: the new folders, from the outermost on
    :raises BadInput: if it cannot be made
    """
    missing = tuple(path for path in (*reversed(folder.parents), folder) if not path.exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{option}: {folder} cannot be made ({error.strerror}): name a place that you may write to.") from error
    return missing


def check_place(option: str, path: Path, is_folder: bool = False) -> None:
    """Check, before any work, that the path of an option can be written. The attempt leaves no files.

    :param path: of a file, or of a folder
    :raises BadInput: if it cannot be written
    """
    folder = path if is_folder else path.parent
    if not is_folder and path.is_dir():
        raise BadInput(f"{option}: {path} is a folder: name a file.")
    made = make_folder(option, folder)
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise BadInput(f"{option}: {folder} cannot be written to ({error.strerror}): name another place.") from error
    finally:
        for one in reversed(made):
            one.rmdir()


@contextmanager
def alone_in(folder: Path, refusal: str) -> Iterator[None]:
    """Lock a folder for this process; the system releases the lock when the process ends.

    :param folder: an existing folder
    :param refusal: message if another process has the lock
    :raises BadInput: in that case
    """
    path = folder / LOCK
    with open(path, "w") as held:
        try:
            _lock(held, folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(refusal) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _lock(held: TextIO, folder: Path, how: int) -> None:
    """Take the lock of a folder; report a file system without locks.

    :raises BlockingIOError: if another process has it and ``how`` does not wait
    """
    try:
        fcntl.flock(held, how)
    except BlockingIOError:
        raise
    except OSError as error:
        print(f"{folder} cannot be kept from other processes: {error.strerror}", file=sys.stderr)


def new_folder(parent: Path, name: str, suffix: str = "") -> Path:
    """Make ``parent/name_N`` with the first number above all existing ones; safe with several processes.

    :param parent: created if missing
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
        except FileExistsError:  # made by another process in the meantime
            number += 1
        else:
            return folder
