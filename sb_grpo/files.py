"""Files are there whole or not at all: written beside their place, flushed to the disk, then moved into it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A path to write to; the file written there takes the old one's place at the end of the block, in one step.

    Whoever opens the file meets the old content or the new one, also after ``kill -9``, a full disk or an exception: then the
    old one stays. The unfinished file has the same ending, by which programs choose a format, and lies in a folder
    ``.NAME.*.part`` of its own beside the file, which a killed process leaves behind.

    :param path: of the file; missing folders are made
    :return: where to write
    :raises OSError: if it cannot be written
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        unfinished = folder / f"unfinished{target.suffix}"  # a name that no pattern of finished files finds
        yield unfinished
        move(unfinished, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(path: str | Path, content: bytes | str) -> Path:
    """Write a file whole or not at all.

    :param path: of the file; missing folders are made
    :param content: text becomes UTF-8
    :return: the path
    :raises OSError: if it cannot be written; the old file is then untouched
    """
    with replacing(path) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


def move(unfinished: Path, target: Path) -> None:
    """Flush a finished file and put it in the place of another, in one step.

    :param unfinished: on the same disk
    :param target: path of the file that it becomes
    """
    _flush(unfinished)
    os.replace(unfinished, target)
    _flush(target.parent)  # the move itself


def _flush(path: Path) -> None:
    """Wait until a file, or a folder's list of names, has reached the disk. Windows opens no folders."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if path.is_file() and os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
