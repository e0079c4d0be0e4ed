"""Raw results on disk: files of JSON lines, a run per line, sorted by key."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read(file: Path) -> list[Record]:
    """The runs of a file; none if it is not there.

    :param file: of JSON lines
    """
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def read_folder(folder: Path) -> list[Record]:
    """The runs of all files of JSON lines in a folder, files by name.

    :param folder: of a study
    """
    return [record for file in sorted(folder.glob("*.jsonl")) for record in read(file)]


def seeds(file: Path, name: str = "seed") -> set[int]:
    """Seeds that have run.

    :param file: of JSON lines
    :param name: key of the seed in a record
    """
    return {record[name] for record in read(file)}


def put(file: Path, record: Record, *key: str) -> None:
    """Add a run, or replace the one with its key. Several processes may do so at once.

    :param file: of JSON lines, created if missing
    :param record: JSON values
    :param key: names of the fields of the key; default: the seed
    """
    names = key or ("seed",)

    def of(it: Record) -> list[Any]:
        return [it.get(name, 0) for name in names]

    file.parent.mkdir(parents=True, exist_ok=True)
    with (file.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = [other for other in read(file) if of(other) != of(record)]
        write(file, sorted([*others, record], key=of))


def write(file: Path, records: Iterable[Record]) -> None:
    """Write a file of JSON lines whole or not at all.

    :param file: to write
    :param records: a line each, in this order
    """
    unfinished = file.with_name(file.name + ".new")
    unfinished.write_text("".join(json.dumps(record) + "\n" for record in records))
    os.replace(unfinished, file)
