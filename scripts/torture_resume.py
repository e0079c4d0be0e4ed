"""Kill and resume runs, for ``python -m scripts.torture resume``: they must end like an undisturbed run.

A child process trains and saves the run after every rollout; after a random one it is killed with ``kill -9`` at a random
moment, in the middle of the next rollout, its update or its save. Another process goes on from the file. The final weights and
all logged values except times are compared by SHA-256 with the undisturbed run.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import GRPO, RNDBonus
from sb_grpo.callbacks import CurriculumCallback, GammaCallback, HealthCallback
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.tasks.goal_car import TensorGoalCar

RUN = "run.zip"
METRICS = "figures.jsonl"
WEIGHTS = "weights"
ROLLOUTS = 10


class Case(NamedTuple):
    """One kind of run."""

    make: Callable[[], Any]
    settings: dict[str, Any] = {}  # noqa: RUF012
    callbacks: Callable[[], list[BaseCallback]] = list
    new_groups: bool = False  #: with every save: a group boundary, where episodes are long and short


def tensors(env_id: str) -> Callable[[], Any]:
    return lambda: make_tensor_env(env_id, 16)


def evaluations() -> list[BaseCallback]:
    return [EvalCallback(make_vec_env("CartPole-v1", 2, seed=5), eval_freq=70, n_eval_episodes=2, verbose=0)]


def watched() -> list[BaseCallback]:
    levels = CurriculumCallback([0.0, 0.5, 1.0], "terminated", window=8, promote_above=0.5)
    return [levels, GammaCallback(0.9), HealthCallback(verbose=0)]


NORMALIZED = {"policy_kwargs": {"net_arch": [16], "normalize_obs": True}, "use_sde": True}
TENSOR = {
    "state": Case(tensors("CartPole-v1"), {"learning_rate": lambda progress: 1e-3 * progress}, evaluations),
    "whole episodes": Case(tensors("CartPole-v1"), {"advantage": "process", "kl_coef": 0.1}),
    "normalised, gSDE": Case(tensors("Pendulum-v1"), NORMALIZED),
    "RND": Case(tensors("MountainCar-v0"), {"rewards": {"bonus": RNDBonus()}}),
    "curriculum": Case(lambda: TensorGoalCar(16), {}, watched),
}
HOST = {
    "equal lengths": Case(
        lambda: VecNormalize(make_vec_env("Pendulum-v1", 4, seed=0)), {"n_steps": None, "n_groups": 1, "advantage": "outcome"}
    ),
    "new groups": Case(lambda: VecNormalize(make_vec_env("CartPole-v1", 4, seed=0)), {"n_steps": 64}, new_groups=True),
}


class Lines(KVWriter):
    """Appends every figure that is logged, but for times, to a file."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "a")

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        numbers = {k: v for k, v in sorted(key_values.items()) if isinstance(v, int | float | np.generic | th.Tensor)}
        texts = {k: repr(v.tolist() if isinstance(v, th.Tensor) else float(v)) for k, v in numbers.items()}
        self.file.write(json.dumps({"step": step} | {k: v for k, v in texts.items() if not k.startswith("time/")}) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class Saves(BaseCallback):
    """Saves the run after every rollout; ``path=None``: nowhere, but with the same group boundaries."""

    def __init__(self, path: Path | None, new_groups: bool) -> None:
        super().__init__()
        self.path = path
        self.new_groups = new_groups

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.new_groups:
            self.model.restart_groups()  # type: ignore[attr-defined]
        if self.path is not None:
            self.model.save_run(self.path)  # type: ignore[attr-defined]


def train(case: Case, folder: Path, seed: int, save: bool) -> None:
    """From the beginning to the end, unless somebody ends the process."""
    settings = {"n_steps": 32, "n_epochs": 3, "group_size": 4, "policy_kwargs": {"net_arch": [16]}, **case.settings}
    model = GRPO("MlpPolicy", case.make(), seed=seed, device="cpu", **settings)
    model.set_logger(Logger(None, [Lines(folder / METRICS)]))
    per_rollout = model.n_groups * 4 * 200 if model.n_groups else model.steps_per_env * model.n_envs
    model.learn(ROLLOUTS * per_rollout, [Saves(folder / RUN if save else None, case.new_groups), *case.callbacks()])
    (folder / WEIGHTS).write_text(sha_of_weights(model))


def go_on(case: Case, folder: Path) -> None:
    """From the file to the end."""
    model = GRPO.load_run(folder / RUN, case.make(), device="cpu")
    model.set_logger(Logger(None, [Lines(folder / METRICS)]))
    model.resume([Saves(None, case.new_groups), *case.callbacks()])
    (folder / WEIGHTS).write_text(sha_of_weights(model))


def sha_of_weights(model: GRPO) -> str:
    digest = hashlib.sha256()
    for tensor in model.policy.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def in_a_process(work: Callable[[], None]) -> int:
    """Start a process that does some work.

    :return: its id
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def ended_well(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def same_end(case: Case, seed: int, folder: Path, rollouts: int, share: float) -> tuple[bool, int]:
    """Kill a run and resume it.

    :param rollouts: after which it is killed
    :param share: of the time of another rollout that passes before
    :return: whether it ended where the undisturbed one did; how many figures were logged after the save
    """
    whole, cut, rest = (folder / name for name in ("whole", "cut", "rest"))
    for path in (whole, cut, rest):
        path.mkdir(parents=True)
    start = time.monotonic()
    assert ended_well(in_a_process(lambda: train(case, whole, seed, save=True)))
    seconds = time.monotonic() - start
    child = in_a_process(lambda: train(case, cut, seed, save=True))
    while not (cut / RUN).exists() or len((cut / METRICS).read_text().splitlines()) < rollouts:
        time.sleep(0.001)
    time.sleep(share * seconds / ROLLOUTS)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    (cut / RUN).rename(rest / RUN)
    if not ended_well(in_a_process(lambda: go_on(case, rest))):
        return False, 0
    after = (rest / METRICS).read_text().splitlines() if (rest / METRICS).exists() else []
    same = (whole / METRICS).read_text().splitlines()[-len(after) :]
    return (whole / WEIGHTS).read_text() == (rest / WEIGHTS).read_text() and sha(after) == sha(same), len(after)


def sha(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def resumed(cases: dict[str, Case], moments: int, seed: int = 0) -> tuple[int, int]:
    """Kill and resume runs at random moments.

    :return: how many ended elsewhere, of how many
    """
    chance = random.Random(seed)
    elsewhere = 0
    names = list(cases)
    with tempfile.TemporaryDirectory() as name:
        for moment in range(moments):
            case = names[moment % len(names)]
            rollouts = chance.randint(1, ROLLOUTS - 3)
            share = chance.random()
            same, n = same_end(cases[case], seed + moment, Path(name, str(moment)), rollouts, share)
            elsewhere += not same
            print(f"{case}: killed, then {n} tables more: {'the same end' if same else 'ANOTHER END'}", flush=True)
    return elsewhere, moments
