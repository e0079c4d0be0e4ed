"""A saved model, and the env as it was trained in: wrappers, frames, and VecNormalize's statistics of the model, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import gymnasium as gym
import rl_zoo3
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.utils import get_wrapper_class
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

from sb_grpo.types import Kwargs

from ..common.command_line import BadInput
from ..common.plain_files import Hyperparams
from .checkpoints import statistics_of
from .run_files import RunFiles, env_kwargs, read_run_files


def check_untrusted(algo: str, trusted: bool) -> None:
    """See that a model can be read as is asked.

    :raises BadInput: where ``--untrusted`` is given for another algorithm than grpo
    """
    if not trusted and algo != "grpo":
        raise BadInput(f"--untrusted: models of {algo} cannot be read without unpickling them; those of grpo can.")


@dataclass(frozen=True)
class Saved:
    """Saved model with its settings.

    :param algo: algorithm of the model
    :param path: its zip
    :param settings_folder: of its run, with ``config.yml`` and ``args.yml``; a folder without them: no wrappers
    :param env_id: registered id
    :param trusted: False: no data of the files is unpickled, and no unknown module imported
    """

    algo: str
    path: Path
    settings_folder: Path
    env_id: str
    trusted: bool = True

    @cached_property
    def run(self) -> RunFiles:
        """Settings and options of the run."""
        return read_run_files(self.settings_folder, self.trusted)

    @property
    def hyperparams(self) -> Hyperparams:
        """Settings of the run."""
        return self.run.settings

    @property
    def draws_actions(self) -> bool:
        """Whether actions are sampled; as in rl_zoo3, on Atari and MiniGrid only."""
        return bool(ExperimentManager.is_atari(self.env_id) or ExperimentManager.is_minigrid(self.env_id))

    def make_env(self, kwargs: Mapping[str, object], seed: int = 0, n_envs: int = 1, monitor_dir: str | None = None) -> VecEnv:
        """Envs as in training.

        :param kwargs: of the env; they go over the run's own
        :param seed: of the first env
        :param monitor_dir: for monitor files
        :raises BadInput: if they cannot be built
        """
        hyperparams = self.hyperparams
        found = env_kwargs(self.run, self.settings_folder, kwargs)
        wrap = statistics_of(self.path, self.settings_folder, bool(hyperparams.get("normalize")), trusted=self.trusted)
        try:
            make = gym.spec(self.env_id).make
            env = make_vec_env(
                lambda **options: make(**options), n_envs, seed=seed, monitor_dir=monitor_dir,
                wrapper_class=get_wrapper_class(hyperparams), env_kwargs=found,
            )  # fmt: skip
            vec_env_wrapper = get_wrapper_class(hyperparams, "vec_env_wrapper")
            env = env if vec_env_wrapper is None else vec_env_wrapper(env)  # type: ignore[assignment, arg-type]
            env = env if wrap is None else wrap(env, True)
            n_stack = hyperparams.get("frame_stack") or 0
            return VecFrameStack(env, n_stack) if isinstance(n_stack, int) and n_stack > 0 else env
        except Exception as error:  # envs and their renderers raise any type
            raise BadInput(f"cannot build {self.env_id}: {str(error).rstrip('.')}.") from error

    def load(self, env: VecEnv, device: str = "auto") -> BaseAlgorithm:
        """The model, without memory for a replay buffer.

        :param env: for models that need one to be loaded
        :raises BadInput: if the file is no model
        """
        kwargs: Kwargs = {} if self.trusted else {"trusted": False}
        if issubclass(rl_zoo3.ALGOS[self.algo], OffPolicyAlgorithm):
            kwargs = {"buffer_size": 1, "optimize_memory_usage": False}
        if self.hyperparams.get("replay_buffer_class") in (HerReplayBuffer, "HerReplayBuffer"):
            kwargs["env"] = env
        try:
            return rl_zoo3.ALGOS[self.algo].load(self.path, device=device, **kwargs)
        except Exception as error:  # a broken zip, another algorithm's model, missing classes
            raise BadInput(f"cannot load {self.path}: {error}") from error
