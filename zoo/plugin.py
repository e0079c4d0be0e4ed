"""GRPO in rl_zoo3's own commands: importing this registers it, and as ``--conf-file`` it holds the settings.

``python -c "import sb_grpo_zoo.plugin, rl_zoo3.train as t; t.train()" --algo grpo --env CartPole-v1 -conf sb_grpo_zoo.plugin``
"""

from __future__ import annotations

import rl_zoo3

from sb_grpo import GRPO

from .common.plain_files import HYPERPARAMS, read_sections

rl_zoo3.ALGOS["grpo"] = GRPO
hyperparams = read_sections(HYPERPARAMS)
