"""Run a part of the zoo in a process that ends with its parent, when its standard input closes.

The pipe closes even if the parent is killed by SIGKILL. This module runs before all imports, because importing torch takes
seconds, in which a killed benchmark would leave an orphan.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading


def end_with_parent() -> None:
    """Wait for the end of standard input, then end this process at once."""
    os.read(0, 1)
    os._exit(1)


def main(arguments: list[str]) -> int:
    """Call the ``main`` of a module; bad input becomes one line on stderr.

    :param arguments: the module within this package, such as ``benchmarking.worker``, and the arguments of its ``main``
    :return: exit code
    """
    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides the reaction
    module = importlib.import_module(f"..{arguments[0]}", __package__)
    from .command_line import run

    return run(f"zoo.{arguments[0]}", module.main, arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
