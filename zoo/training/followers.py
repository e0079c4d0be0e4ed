"""Several learners of one run, started by torchrun: all ranks but 0 have a run that leaves nothing behind."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

from sb_grpo import ranks

from ..common.command_line import BadInput
from .experiment import Experiment


def check_learners(given: Namespace) -> None:
    """Check that the run supports several learners, and give all of them one seed.

    :param given: options; updated in place
    :raises BadInput: for another algorithm than GRPO
    """
    rank, n = ranks.announced()
    if n == 1:
        return
    if given.algo != "grpo":
        raise BadInput(f"--algo {given.algo} has one learner, but torchrun has started {n}: start it with python -m.")
    if rank > 0:
        given.track = given.progress = False
    if given.seed < 0:
        ranks.join(given.device)
        given.seed = ranks.gathered(int(np.random.randint(2**31)))[0]


class Follower(Experiment):
    """The run of a rank that neither logs nor saves nor evaluates; whatever needs a folder has one that goes with it."""

    def create_log_folder(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.save_path = self._folder.name
        self.params_path = f"{self.save_path}/{self.env_name}"
        Path(self.params_path).mkdir()

    def create_callbacks(self) -> None:
        self.save_freq = self.eval_freq = -1
        self.show_progress = False
        self.tensorboard_log = None
        super().create_callbacks()

    def save_trained_model(self, model: BaseAlgorithm) -> None:
        """Rank 0 has done it."""
