"""Train an agent: rl_zoo3's command line with GRPO in it.

``python -m zoo.train --env CartPole-v1`` trains GRPO with the settings of ``zoo/hyperparams/grpo.yml``; ``--algo ppo`` and
the other algorithms of rl_zoo3 use its own. The run's folder gets the model, its settings, evaluations, a learning curve
and ``metrics.json``.
"""

from __future__ import annotations

import sys

import rl_zoo3.train

from zoo.experiment import HYPERPARAMS, register


def main(arguments: list[str]) -> int:
    """Run rl_zoo3's ``train`` with our defaults where the user gave none.

    :param arguments: command line without the program's name
    :return: exit code; 2 for bad input
    """
    register()
    given = {argument.split("=")[0] for argument in arguments}
    if "--algo" not in given:
        arguments = ["--algo", "grpo", *arguments]
    algo = arguments[arguments.index("--algo") + 1]
    if algo == "grpo" and not given & {"--conf-file", "-conf"}:
        arguments = [*arguments, "--conf-file", str(HYPERPARAMS)]
    if not given & {"--tensorboard-log", "-tb"}:
        arguments = [*arguments, "--tensorboard-log", "logs/tensorboard"]
    sys.argv = ["python -m zoo.train", *arguments]
    try:
        rl_zoo3.train.train()
    except ValueError as error:
        print(f"zoo.train: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
