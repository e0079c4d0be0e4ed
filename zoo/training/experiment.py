"""One training run: rl_zoo3's ExperimentManager, taught what GRPO is and what a run should leave behind."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import rl_zoo3
import rl_zoo3.train
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, sync_envs_normalization

from sb_grpo import GRPO, SeededResetWrapper

from ..common.command_line import BadInput
from ..common.literals import without_texts
from ..common.provenance import commit, versions
from ..common.yaml_files import HYPERPARAMS, read_sections
from ..schedules import with_schedules
from ..training.callbacks import HParamsCallback, as_json
from ..training.card import write_card
from ..training.checks import check_settings

FINAL_EPISODES = 20
#: Folder in a run's settings folder: VecNormalize statistics of the time when the best model was saved.
BEST = "best"


def register() -> None:
    """Make rl_zoo3 know ``--algo grpo`` and use :class:`Experiment`."""
    rl_zoo3.ALGOS["grpo"] = GRPO
    rl_zoo3.train.ExperimentManager = Experiment  # type: ignore[attr-defined]


class Experiment(ExperimentManager):
    """An rl_zoo3 run that ends with an evaluation, a learning curve and ``metrics.json`` in its folder."""

    wall_time = 0.0
    gradient_steps: int | None = None  #: of this run; a model that goes on training has taken others before
    settings: dict[str, Any]

    def setup_experiment(self) -> tuple[BaseAlgorithm, dict[str, Any]] | None:
        """rl_zoo3's, with everything that can be wrong before the first step as :class:`BadInput`."""
        try:
            return super().setup_experiment()
        except (ValueError, TypeError, AssertionError, AttributeError, OSError, ImportError, gym.error.Error) as error:
            raise error if isinstance(error, BadInput) else BadInput(str(error)) from error

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.config.endswith((".yml", ".yaml")):
            read_sections(self.config)
        hyperparams, saved = super().read_hyperparameters()
        custom = self.custom_hyperparams or {}

        def where(name: str) -> str:
            return "--hyperparams" if name in custom else self.config

        check_settings(self.algo, hyperparams, where)
        self.settings = saved
        return without_texts(hyperparams, where), saved

    @staticmethod
    def _preprocess_schedules(hyperparams: dict[str, Any]) -> dict[str, Any]:
        """Make schedules of their names; rl_zoo3 takes every name for a linear one, and knows none for clip_range_high."""
        made = with_schedules(hyperparams)
        named = {k: v for k, v in made.items() if v is not hyperparams[k]}
        others = {k: v for k, v in hyperparams.items() if k not in named}
        return {**ExperimentManager._preprocess_schedules(others), **named}

    def create_callbacks(self) -> None:
        super().create_callbacks()  # type: ignore[no-untyped-call]
        if self.tensorboard_log is not None:
            self.callbacks.append(HParamsCallback({"algo": self.algo, "seed": self.seed, **self.settings}))
        if getattr(self.args, "track", False):
            from wandb.integration.sb3 import WandbCallback  # an extra

            # rl_zoo3 has chosen a folder in the working directory.
            self.tensorboard_log = str(Path(self.log_folder, self.tensorboard_log or "runs"))
            self.callbacks.append(WandbCallback())

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        wrapper = self.env_wrapper
        if self.algo == "grpo" and self.vec_env_class is SubprocVecEnv:
            self.env_wrapper = lambda env: SeededResetWrapper(wrapper(env) if wrapper else env)
        try:
            return super().create_envs(n_envs, eval_env, no_log)
        finally:
            self.env_wrapper = wrapper

    def learn(self, model: BaseAlgorithm) -> None:
        start, before = time.perf_counter(), getattr(model, "_n_gradient_steps", None)
        super().learn(model)
        self.wall_time = time.perf_counter() - start
        self.gradient_steps = None if before is None else model._n_gradient_steps - before  # type: ignore[attr-defined]

    def evaluate(self, model: BaseAlgorithm, n_episodes: int = FINAL_EPISODES) -> list[float]:
        """Returns of fresh episodes, deterministic unless rl_zoo3 says otherwise (Atari, MiniGrid).

        :param model: trained model, its VecNormalize statistics included
        :param n_episodes: episodes, spread over as many envs as training used
        :return: one raw return per episode
        """
        env = self.evaluation_env(n_episodes)
        try:
            return self.returns_in(env, model, n_episodes)
        finally:
            env.close()

    def evaluation_env(self, n_episodes: int) -> VecEnv:
        """Where so many episodes are evaluated, in as many envs as training used, if there are enough episodes for them."""
        return self.create_envs(min(self.n_envs, n_episodes), eval_env=True, no_log=True)

    def returns_in(self, env: VecEnv, model: BaseAlgorithm, n_episodes: int) -> list[float]:
        """As :meth:`evaluate`, in an env that is there and stays: the same starts every time."""
        # A VecEnv seeds its envs with consecutive numbers: hashed, so that the runs of neighbouring seeds do not share starts.
        env.seed(int(np.random.SeedSequence([self.seed, 1]).generate_state(1)[0]) >> 1)
        sync(model, env)
        returns, _ = evaluate_policy(
            model, env, n_episodes, deterministic=self.deterministic_eval, return_episode_rewards=True
        )
        return [float(r) for r in returns]  # type: ignore[union-attr]

    def save_trained_model(self, model: BaseAlgorithm) -> None:
        at_best = Path(self.params_path) / "vecnormalize.pkl"
        if at_best.exists():  # rl_zoo3 would overwrite it by the last ones, which best_model.zip has never seen
            (at_best.parent / BEST).mkdir(exist_ok=True)
            at_best.replace(at_best.parent / BEST / at_best.name)
        super().save_trained_model(model)
        returns = self.evaluate(model)
        folder = Path(self.save_path)
        metrics = {
            "algo": self.algo,
            "env": self.env_name.gym_id,
            "seed": self.seed,
            "env_steps": model.num_timesteps,
            "planned_steps": self.n_timesteps,
            "gradient_steps": self.gradient_steps,
            "wall_time_s": round(self.wall_time, 2),
            "final_returns": returns,
            "settings": as_json(getattr(model, "settings", self.settings)),
            "mean_return": float(np.mean(returns)),
            "std_return": float(np.std(returns)),
            "commit": commit(),
            "versions": versions(),
        }
        (folder / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        from ..plot import plot_learning_curve  # with SciPy

        picture = plot_learning_curve(folder, f"{self.algo.upper()} on {self.env_name.gym_id}")
        if model.num_timesteps < self.n_timesteps:  # Ctrl-C, or a callback
            print(f"\nStopped after {model.num_timesteps:,} of {self.n_timesteps:,} steps; what follows is about that model.")
        print(f"\nMean return over {len(returns)} episodes: {metrics['mean_return']:.1f} +- {metrics['std_return']:.1f}")
        print(f"Model:          {folder / (self.env_name + '.zip')}")
        if self.tensorboard_log:
            print(f"TensorBoard:    tensorboard --logdir {self.tensorboard_log}")
        print(f"Learning curve: {picture}")
        print(f"Metrics:        {folder / 'metrics.json'}")
        print(f"Model card:     {write_card(folder)}")


def sync(model: BaseAlgorithm, env: VecEnv) -> None:
    """Give evaluation envs the training's observation statistics."""
    training_env = model.get_env()
    assert training_env is not None
    sync_envs_normalization(training_env, env)


def build(
    env_id: str,
    seed: int,
    log_folder: str,
    algo: str = "grpo",
    n_timesteps: int = -1,
    config: str | None = None,
    device: str = "auto",
    **hyperparams: Any,
) -> Experiment:
    """A run from Python.

    :param env_id: registered env id
    :param seed: of the run
    :param log_folder: where its folder goes
    :param algo: any algorithm that rl_zoo3 knows
    :param n_timesteps: in place of the file's
    :param config: the file; None: ``zoo/hyperparams/grpo.yml``, or rl_zoo3's of the algorithm
    :param device: as SB3's
    :param hyperparams: in place of the file's
    :return: the experiment; ``setup_experiment()`` gives the model
    """
    register()
    return Experiment(
        Namespace(env=env_id, seed=seed, algo=algo),
        algo,
        env_id,
        log_folder,
        n_timesteps=n_timesteps,
        eval_freq=-1,
        hyperparams=hyperparams,
        seed=seed,
        log_interval=-2,
        verbose=0,
        config=config or (str(HYPERPARAMS) if algo == "grpo" else None),
        device=device,
    )
