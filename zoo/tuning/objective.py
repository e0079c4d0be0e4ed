"""One trial: train with drawn settings, tell the pruner how it goes, return the mean evaluation at the end."""

from __future__ import annotations

import threading
import traceback
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import optuna
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.types import Kwargs

from ..common.episodes import close
from ..common.literals import check_named_classes, without_texts
from ..common.plain_files import Hyperparams
from ..training.experiment import Experiment, register
from ..tuning.search_space import SPACES, Draw
from ..tuning.study import derived_seed, worker
from .search_space import AS_IT_STANDS

#: SB3 trains on whole rollouts, so beyond the budget. Some rollouts of whole episodes are larger than the budget itself:
#: steps this far beyond are not trained, or the study would find that more steps are better.
OVERSHOOT = 1.05


class TrialRun(Experiment):
    """A run that leaves no folder behind: its settings come from the study, its results go there."""

    def read_hyperparameters(self) -> tuple[Hyperparams, Hyperparams]:
        self.settings = deepcopy(self.custom_hyperparams or {})
        read = without_texts(self.settings, lambda name: "settings")
        check_named_classes(read, lambda name: "settings")
        return read, OrderedDict(sorted(self.settings.items()))

    def create_log_folder(self) -> None:
        """None: two trials at once would choose the same one."""

    def _save_config(self, saved_hyperparams: Hyperparams) -> None:
        """The study's storage holds them."""

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        return super().create_envs(n_envs, eval_env, no_log=True)


class EvaluationEnvs:
    """Envs that stay from one evaluation to the next, a VecEnv per thread: starting workers can outlast training."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._idle: list[VecEnv] = []

    def returns(self, run: TrialRun, model: BaseAlgorithm, n_episodes: int) -> list[float]:
        """Evaluate like ``run.evaluate``."""
        env: VecEnv = getattr(self._of_thread, "env", None) or run.evaluation_env(n_episodes)
        self._of_thread.env = None  # whoever crashes in it leaves it in a state that nobody knows
        try:
            returns = run.returns_in(env, model, n_episodes)
        except BaseException:
            self._idle = [other for other in self._idle if other is not env]
            close(env)
            raise
        self._of_thread.env = env
        self._idle = [*(other for other in self._idle if other is not env), env]
        return returns

    def close(self) -> None:
        """End their workers."""
        while self._idle:
            self._idle.pop().close()
        self._of_thread = threading.local()


class ReportCallback(BaseCallback):
    """Evaluate at equal distances, except at the end, which the objective does, and limit the trial to its budget.

    The first evaluation comes after the first update, because the untrained policy's return does not depend on the settings.

    :param n_evaluations: evaluations in a run, including the one at the end
    :param evaluate: called with the number of the evaluation, from 1
    """

    def __init__(self, n_timesteps: int, n_evaluations: int, evaluate: Callable[[int], object]) -> None:
        super().__init__()
        self.n_timesteps = n_timesteps
        self.n_evaluations = n_evaluations
        self.evaluate = evaluate
        self.done = 0

    def _on_step(self) -> bool:
        due = min(self.num_timesteps * self.n_evaluations // self.n_timesteps, self.n_evaluations - 1)
        if due > self.done:
            self.done = due
            if getattr(self.model, "_n_updates", 1) > 0:
                self.evaluate(due)
        return self.num_timesteps <= OVERSHOOT * self.n_timesteps


@dataclass
class Objective:
    """Objective of Optuna: the mean return of ``eval_episodes`` episodes after training, averaged over ``n_seeds`` seeds.

    The best of many trials with one seed each is the luckiest, not the best.

    :param algo: ``"grpo"`` or ``"ppo"``
    :param env_id: registered env id
    :param base: the env's entry, ``fixed`` in it
    :param fixed: settings that are not searched
    :param n_timesteps: budget of a training
    :param n_seeds: trainings in a trial
    :param n_evaluations: evaluations in a training, the last at its end; the pruner sees them all
    :param eval_episodes: episodes of each
    :param seed: of the study; each training's is derived from it and the trial's number
    :param run_options: further arguments of rl_zoo3's ExperimentManager
    :param draw: a trial's settings; None: from the space of the algorithm
    """

    algo: str
    env_id: str
    base: Hyperparams
    fixed: Hyperparams
    n_timesteps: int
    n_seeds: int
    n_evaluations: int
    eval_episodes: int
    seed: int
    run_options: Kwargs = field(default_factory=dict)
    draw: Draw | None = None
    evaluation_envs: EvaluationEnvs = field(default_factory=EvaluationEnvs)

    def __call__(self, trial: optuna.Trial) -> float:
        trial.set_user_attr("worker", worker())
        try:
            drawn = (self.draw or SPACES[self.algo])(trial, self.base, self.fixed)
            as_it_stands = trial.user_attrs.get(AS_IT_STANDS, False)
            settings = {**self.base, **({} if as_it_stands else drawn), "n_timesteps": self.n_timesteps}
            number = trial.user_attrs.get("first_try", trial.number)
            seeds = [derived_seed(self.seed, number, i) for i in range(self.n_seeds)]
            trial.set_user_attr("settings", settings)
            trial.set_user_attr("training_seeds", seeds)
            values: list[float] = []
            for seed in seeds:
                values.append(self._train(trial, settings, seed, values))
                trial.set_user_attr("values", values)
            return float(np.mean(values))
        except optuna.TrialPruned:
            raise
        except Exception:
            trial.set_user_attr("traceback", traceback.format_exc())
            raise

    def _train(self, trial: optuna.Trial, settings: Hyperparams, seed: int, earlier: list[float]) -> float:
        """Run one training of a trial.

        :param earlier: results of its trainings with other seeds
        :return: mean return at the end
        """
        before = len(earlier) * self.n_evaluations

        def report(number: int, value: float) -> None:
            step = before + number
            trial.report(float(np.mean([*earlier, value])), step)
            if step < self.n_seeds * self.n_evaluations and trial.should_prune():
                raise optuna.TrialPruned

        return self.train(settings, seed, report)

    def train(self, settings: Hyperparams, seed: int, report: Callable[[int, float], object]) -> float:
        """Train once.

        :param report: called with the number and the mean return of each evaluation
        :return: mean return at the end
        """
        run, model = self.build(settings, seed)

        def evaluate(number: int) -> float:
            value = float(np.mean(self.evaluation_envs.returns(run, model, self.eval_episodes)))
            if not np.isfinite(value):
                raise ValueError(f"evaluation {number} of {self.n_evaluations} with seed {seed}: the mean return is {value}")
            report(number, value)
            return value

        evaluations = ReportCallback(self.n_timesteps, self.n_evaluations, evaluate)
        try:
            model.learn(self.n_timesteps, callback=[*run.callbacks, evaluations])
            return evaluate(self.n_evaluations)
        finally:
            env = model.get_env()
            assert env is not None
            close(env)

    def build(self, settings: Hyperparams, seed: int) -> tuple[TrialRun, BaseAlgorithm]:
        """The run and its model.

        :raises BadInput: if the settings are refused
        """
        register()
        run = TrialRun(
            Namespace(), self.algo, self.env_id, "", n_timesteps=self.n_timesteps, eval_freq=-1, hyperparams=settings,
            seed=seed, verbose=0, **self.run_options,
        )  # fmt: skip
        model = run.setup_experiment()
        assert model is not None
        return run, model[0]
