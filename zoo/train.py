"""Train an agent: rl_zoo3's command line with GRPO in it.

``python -m zoo.train --env CartPole-v1`` trains GRPO with the settings of ``zoo/hyperparams/grpo.yml``; ``--algo ppo`` and
the other algorithms of rl_zoo3 use its own. The run's folder gets the model, its settings, evaluations, a learning curve
and ``metrics.json``.
"""

from __future__ import annotations

import argparse
import sys

import rl_zoo3.train

from zoo.experiment import HYPERPARAMS, register


def main(arguments: list[str]) -> int:
    """Run rl_zoo3's ``train`` with our defaults where the user gave none.

    :param arguments: command line without the program's name
    :return: exit code; 2 for bad input
    """
    register()
    ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    ours.add_argument("--algo", default="grpo")
    ours.add_argument("-conf", "--conf-file")
    ours.add_argument("-tb", "--tensorboard-log", default="logs/tensorboard")
    given, rest = ours.parse_known_args(arguments)
    conf_file = given.conf_file or (str(HYPERPARAMS) if given.algo == "grpo" else None)
    arguments = ["--algo", given.algo, "--tensorboard-log", given.tensorboard_log, *rest]
    if conf_file is not None:
        arguments += ["--conf-file", conf_file]
    sys.argv = ["python -m zoo.train", *arguments]
    try:
        rl_zoo3.train.train()
    except (ValueError, FileNotFoundError) as error:
        print(f"zoo.train: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
