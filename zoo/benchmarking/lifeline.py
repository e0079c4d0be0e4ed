"""Starts a benchmark's run, tied to the benchmark's life: when this process's standard input closes, the run ends.

The pipe closes however the benchmark ends, even by SIGKILL. This stands before everything else because importing torch
takes seconds, in which a killed benchmark would leave an orphan.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def end_with_parent() -> None:
    """Wait for the end of standard input, then end this process at once."""
    os.read(0, 1)
    os._exit(1)


def main(arguments: list[str]) -> int:
    """Run once; see :func:`zoo.benchmarking.worker.main`.

    :param arguments: passed on
    :return: exit code
    """
    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the benchmark decides what it means
    from ..benchmarking.worker import main as work

    return work(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
