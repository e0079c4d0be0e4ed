"""All commands under one name: ``sb-grpo train --env CartPole-v1``, or ``python -m zoo train`` in a checkout."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from .common.command_line import did_you_mean, program, run

#: Command -> its summary. Each is the module of its name, imported when it is called.
COMMANDS = {
    "train": "one training run, of GRPO or any algorithm of rl_zoo3",
    "enjoy": "show a trained agent in a window, a video or a GIF, or print its returns",
    "tune": "search hyperparameters with Optuna",
    "recommend": "after a search: sensitivity, and a setting that is good and not merely lucky",
    "benchmark": "train env x algorithm x seed",
    "evaluate": "saved models against each other, on common seeds",
    "compare": "statistics, tables and figures of a benchmark",
    "plot": "learning curves",
    "record": "groups of episodes for the explorer, in one file",
    "dashboard": "one page of a run or a folder of runs",
    "report": "what a run came to, in a few lines or as one page",
    "check": "an env, before training on it",
    "export": "a policy as one ONNX or .pt2 file, without this library",
    "solve": "a job list or cities from a file: schedule or tour, picture, gap to rules and solver",
    "push": "a run folder with its model card to the Hugging Face Hub",
    "workflow": "benchmark, compare and plot in a row",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script.

    :param arguments: command and its options; None: those of this process
    :return: exit code
    """
    name, *rest = [*(sys.argv[1:] if arguments is None else arguments), ""]
    if name in ("", "-h", "--help"):
        width = max(map(len, COMMANDS))
        print(f"usage: {program()} COMMAND [options]\n")
        print("\n".join(f"  {command:{width}}  {does}" for command, does in COMMANDS.items()))
        print(f"\n{program()} COMMAND --help explains a command's options.")
        return 0 if name else 2
    if name == "--version":
        import sb_grpo

        print(sb_grpo.__version__)
        return 0
    if name not in COMMANDS:
        print(f"{program()}: no command {name!r}.{did_you_mean(name, COMMANDS)}", file=sys.stderr)
        return 2
    return run(f"zoo.{name}", importlib.import_module(f".{name}", __package__).main, rest[:-1])


if __name__ == "__main__":
    sys.exit(main())
