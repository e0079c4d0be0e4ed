"""One run of a benchmark in a process of its own: train to the budget, evaluate at fixed steps, write one result file.

Started by :mod:`zoo.benchmarking.launchers` through :mod:`zoo.common.lifeline`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import time
from pathlib import Path

import numpy as np
import torch as th
import yaml
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.type_aliases import PolicyPredictor
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule
from stable_baselines3.common.vec_env import VecEnv
from torch.optim.optimizer import register_optimizer_step_post_hook

from sb_grpo import files

from ..benchmarking.results import RANDOM, Point, Record, Results, write_result
from ..benchmarking.specs import RunOptions, Spec
from ..common import provenance
from ..common.episodes import Counting, Locals, RandomPolicy, close
from ..training.experiment import Experiment, build, sync

BAD_SETTINGS = 2
NO_SETTINGS = ("self", "env", "policy", "tensorboard_log", "verbose", "_init_setup_model", "monitor_wrapper")


def evaluation_seed(seed: int, evaluation: int) -> int:
    """Seed of an evaluation's first episode; the others count up from it.

    It depends only on the run's seed, so all algorithms meet the same initial states. It is at least 2^31; seeds of training
    are below (SB3: seed + env index; GRPO's groups: 31 bits), so no evaluation repeats a training episode's initial state.

    :param seed: of the run
    :param evaluation: 0 for the final one, then 1, 2, ... for the checkpoints
    """
    return 2**31 + int(np.random.SeedSequence([seed, evaluation]).generate_state(1)[0]) % (2**31 - 2**16)


def evaluate(model: PolicyPredictor, env: VecEnv, seed: int, deterministic: bool) -> list[float]:
    """Return of one episode per env of a VecEnv.

    :param model: with ``predict``
    :param env: one env per episode, so that every start is seeded, however long the episodes before it were
    :param seed: of the first env
    :param deterministic: take the mode of the policy
    :return: in the order of the envs, so of the starts
    """
    finished: list[int] = []
    counting = Counting()

    def note(step: Locals, everything: Locals) -> None:
        counting(step, everything)
        if step["done"] and "episode" in step["info"]:
            finished.append(step["i"])

    env.seed(seed)
    with th.random.fork_rng(devices=[]):  # a stochastic evaluation must not change the training's random numbers
        returns, _ = evaluate_policy(model, env, env.num_envs, deterministic, callback=note, return_episode_rewards=True)
    return [float(x) for _, x in sorted(zip(finished, returns, strict=True))]  # type: ignore[arg-type]


class Checkpoints(BaseCallback):
    """Evaluates at fixed env steps, measures training time without evaluations, and ends the training at the budget.

    The evaluation follows the step of the VecEnv that passes the checkpoint, with the current weights.

    :param experiment: makes the evaluation envs
    :param spec: the run
    """

    def __init__(self, experiment: Experiment, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.experiment = experiment
        self.points = [spec.steps * i // spec.evaluations for i in range(spec.evaluations + 1)]
        self.records: list[Point] = []
        self.wall = 0.0
        self.cpu = 0.0
        self.eval_wall = self.eval_cpu = 0.0
        self.env: VecEnv | None = None

    def _on_training_start(self) -> None:
        self._started = time.perf_counter(), time.process_time()
        self.record()

    def _on_step(self) -> bool:
        # The last point belongs to the final weights, after the last update: see ``finish``.
        while len(self.records) < len(self.points) - 1 and self.num_timesteps >= self.points[len(self.records)]:
            self.record()
        # Continue at exactly the budget, so that a rollout that ends there is used; others end one step later.
        return self.num_timesteps <= self.spec.steps

    def record(self) -> None:
        """Evaluate, and record returns, env steps and training time."""
        start = time.perf_counter()
        start_cpu = time.process_time()
        self.wall = start - self._started[0] - self.eval_wall
        self.cpu = start_cpu - self._started[1] - self.eval_cpu
        if self.env is None:
            self.env = self.experiment.create_envs(self.spec.eval_episodes, eval_env=True, no_log=True)
        sync(self.model, self.env)
        seed = evaluation_seed(self.spec.seed, 1 + len(self.records))
        self.records.append(
            {
                "steps": self.points[len(self.records)],
                "env_steps": self.num_timesteps,
                "train_wall_s": round(self.wall, 3),
                "returns": evaluate(self.model, self.env, seed, self.experiment.deterministic_eval),
            }
        )
        self.eval_wall += time.perf_counter() - start
        self.eval_cpu += time.process_time() - start_cpu

    def finish(self) -> None:
        """Evaluate the final weights as the last checkpoint; ``wall`` and ``cpu`` are then the whole training's.

        :raises RuntimeError: if the training ended before its budget
        """
        if self.num_timesteps < self.spec.steps or len(self.records) < len(self.points) - 1:
            raise RuntimeError(f"training stopped after {self.num_timesteps} of {self.spec.steps} env steps")
        self.record()
        assert self.env is not None
        close(self.env)


def run_random(spec: Spec, experiment: Experiment) -> Results:
    """Evaluate the random policy; there is only a final evaluation."""
    env = experiment.create_envs(spec.final_episodes, eval_env=True, no_log=True)
    start = time.perf_counter()
    policy = RandomPolicy(env.action_space, spec.seed)
    returns = evaluate(policy, env, evaluation_seed(spec.seed, 0), deterministic=False)
    return {
        "env_steps": 0,
        "gradient_steps": 0,
        "n_updates": 0,
        "parameters": 0,
        "train_wall_s": 0.0,
        "train_cpu_s": 0.0,
        "eval_wall_s": round(time.perf_counter() - start, 3),
        "checkpoints": [],
        "final_returns": returns,
        "settings": {},
    }


def run_training(spec: Spec, experiment: Experiment, model: BaseAlgorithm, keep: bool) -> Results:
    """Train and evaluate.

    :param spec: the run
    :param experiment: its rl_zoo3 experiment
    :param model: untrained
    :param keep: save the trained model in the run's folder
    """
    gradient_steps = 0

    def count(*_: object) -> None:
        nonlocal gradient_steps
        gradient_steps += 1

    checkpoints = Checkpoints(experiment, spec)
    experiment.callbacks.append(checkpoints)
    # Count the optimisers' steps: formulas from n_updates are wrong with early stops.
    hook = register_optimizer_step_post_hook(count)
    experiment.learn(model)
    hook.remove()
    checkpoints.finish()
    env = experiment.create_envs(spec.final_episodes, eval_env=True, no_log=True)
    start = time.perf_counter()
    sync(model, env)
    final = evaluate(model, env, evaluation_seed(spec.seed, 0), experiment.deterministic_eval)
    if keep:
        experiment.save_model(model)
    return {
        "env_steps": model.num_timesteps,
        # A captured GRPO does not call its optimiser object, and counts by itself.
        "gradient_steps": getattr(model, "_n_gradient_steps", gradient_steps),
        "n_updates": getattr(model, "_n_updates", 0),
        "parameters": sum(p.numel() for p in model.policy.parameters() if p.requires_grad),
        "train_wall_s": round(checkpoints.wall, 3),
        "train_cpu_s": round(checkpoints.cpu, 3),
        "eval_wall_s": round(checkpoints.eval_wall + time.perf_counter() - start, 3),
        "checkpoints": checkpoints.records,
        "final_returns": final,
        "settings": settings_used(model, experiment),
    }


def settings_used(model: BaseAlgorithm, experiment: Experiment) -> dict[str, object]:
    """Effective constructor arguments of the model, and the settings of its envs."""
    names = [name for name in inspect.signature(type(model).__init__).parameters if name not in NO_SETTINGS]
    settings = {name: to_json(getattr(model, name)) for name in names if hasattr(model, name)}
    return {
        **settings,
        "policy": type(model.policy).__name__,
        "n_envs": model.n_envs,
        "normalize": to_json({"on": bool(experiment.normalize), **experiment.normalize_kwargs}),
        "frame_stack": experiment.frame_stack,
        "torch_threads": th.get_num_threads(),
    }


def to_json(value: object) -> object:
    """Convert a value to JSON: schedules by their numbers, classes and functions by their names."""
    if isinstance(value, FloatSchedule):
        return to_json(value.value_schedule)
    if isinstance(value, ConstantSchedule):
        return value.val
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): to_json(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(x) for x in value]
    name = getattr(value, "__qualname__", None) or str(value)
    return type(value).__qualname__ if " at 0x" in name else name


def make_experiment(spec: Spec, folder: Path, device: str) -> Experiment:
    """Make an rl_zoo3 run from a spec, with a settings file of its own.

    :param folder: for that file and the run's files
    """
    settings = {spec.env: {**spec.hyperparams, "n_timesteps": spec.steps}}
    config = files.write(folder / "hyperparams.yml", yaml.safe_dump(settings))
    return build(spec.env, spec.seed, str(folder), spec.algo, spec.steps, config=str(config), device=device)


def main(arguments: list[str]) -> int:
    """Run once.

    :param arguments: JSON of the spec and of ``{out, folder, keep, device, gym_packages, command}``
    :return: exit code; 2 if the settings build no model
    """
    th.set_num_threads(1)
    spec = Spec(**json.loads(arguments[0]))
    given = json.loads(arguments[1])
    folder = Path(given.pop("folder"))
    options = RunOptions(**given)
    for package in options.gym_packages:
        importlib.import_module(package)
    origin: Record = {
        "commit": provenance.commit(),
        "versions": provenance.versions(),
        "machine": provenance.machine(),
        "command": options.command,
    }
    experiment = make_experiment(spec, folder, options.device)
    if spec.algo == RANDOM:
        result = run_random(spec, experiment)
    else:
        try:
            built = experiment.setup_experiment()
        except (ValueError, TypeError, AssertionError, NameError) as error:
            print(" ".join(str(error).split()) or repr(error))
            return BAD_SETTINGS
        assert built is not None
        result = run_training(spec, experiment, built[0], options.keep)
    write_result(spec.file(Path(options.out)), {"spec": json.loads(arguments[0]), **result, **origin})
    return 0
