"""Journal files that a crash has cut inside their last line."""

from __future__ import annotations

import json
from pathlib import Path

from optuna.storages.journal import JournalFileSymlinkLock


def mend(path: Path) -> int:
    """Drop an incomplete last line after a crash; the next append would otherwise make a broken line in the middle.

    No other process can be writing it, because every write takes the journal's lock, which is held here.

    :param path: of the journal
    :return: number of dropped bytes
    """
    if not path.exists() or _ends_well(path):
        return 0
    lock = JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        rest = content[whole:]
        if not rest:
            return 0
        with path.open("r+b") as file:
            if _is_json(rest):  # but for its end
                file.seek(0, 2)
                file.write(b"\n")
                return 0
            file.truncate(whole)
        return len(rest)
    finally:
        lock.release()


def _ends_well(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - 1, 0))
        return file.read(1) in (b"", b"\n")


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
