"""Stress tests by sections; the exit code is 1 if one fails. ``python -m scripts.torture saves``.

``saves``: processes that save without a pause are killed at random moments; every remaining file must be readable.
``recovery``: trainings with far too high learning rates, and with envs that return a huge reward or NaN, must end healthy with
a RecoveryCallback; healthy ones must not retry.
``resume``: runs are killed at random moments and resumed; they must end bitwise equal to undisturbed ones.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import GRPO, files
from sb_grpo.callbacks import RECOVERY_RULES, HealthCallback, RecoveryCallback
from sb_grpo.normalization import with_statistics
from sb_grpo.save_util import STATISTICS, read_entry
from sb_grpo.types import Breakdown
from scripts.torture_resume import HOST, TENSOR, resumed


class Figure(NamedTuple):
    """Count, and its largest allowed value."""

    what: str
    count: int
    of: int
    allowed: int = 0


def models() -> dict[str, GRPO]:
    """A small model and a large one, both with VecNormalize."""
    nets = {"small": [16], "large": [512, 512]}
    made = {}
    for name, net_arch in nets.items():
        env = VecNormalize(make_vec_env("CartPole-v1", 2))
        made[name] = GRPO("MlpPolicy", env, n_steps=32, seed=0, policy_kwargs={"net_arch": net_arch})
        env.reset()
    return made


def save_for_ever(made: dict[str, GRPO], folder: Path, life: int) -> None:
    """Save under new names and over old ones until somebody ends the process."""
    for n in itertools.count():
        for name, model in made.items():
            model.save(folder / f"{name}_{life}_{n}")
            model.save(folder / f"{name}_best")
        files.write(folder / "metrics.json", f"{life} {n}\n" * 5000)
        with files.replacing(folder / "evaluations.npz") as unfinished:
            np.savez(unfinished, results=np.arange(20_000))


def broken(folder: Path) -> Iterator[str]:
    """Files that cannot be read in their format."""
    for path in sorted(folder.glob("*.*")):
        try:
            if path.suffix == ".zip":
                _read_model(path)
            elif path.suffix == ".npz":
                assert len(np.load(path)["results"]) == 20_000
            elif path.suffix == ".json":
                lines = path.read_text().splitlines()
                assert len(lines) == 5000 and len(set(lines)) == 1
        except Exception as error:  # whatever a half file leads to
            yield f"{path.name}: {error!r}"


def _read_model(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    content = read_entry(path, STATISTICS)
    assert content is not None
    with_statistics(make_vec_env("CartPole-v1"), content)


def saves(short: bool) -> list[Figure]:
    """``kill -9`` at random moments while models, statistics, tables and texts are written."""
    kills, least = (5, 100) if short else (50, 3000)
    made = models()
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        life = 0
        while life < kills or len(list(folder.glob("*.zip"))) < least:
            _live_and_die(made, folder, life, chance.uniform(0.2, 0.6 if short else 2.0))
            life += 1
        found = list(broken(folder))
        n_files = len(list(folder.glob("*.*")))
        unfinished = len(list(folder.glob(".*.part")))
        GRPO.load(folder / "small_best.zip")
        GRPO.load(folder / "large_best.zip", trusted=False)
    for line in found:
        print(line)
    print(f"{life} kills, {unfinished} of them in the middle of a file")
    return [Figure("broken files", len(found), n_files)]


def _live_and_die(made: dict[str, GRPO], folder: Path, life: int, seconds: float) -> None:
    child = os.fork()
    if child == 0:
        save_for_ever(made, folder, life)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


class Hiccup(gym.Wrapper):
    """Wrapper with one faulty reward."""

    def __init__(self, env: gym.Env, reward: float, at: int) -> None:
        super().__init__(env)
        self.reward = reward
        self.at = at
        self.n = 0

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        self.n += 1
        return (obs, self.reward if self.n == self.at else reward, *rest)


#: Learning rates, a hundred and three hundred times the usual one; and rewards that one step sends.
TOO_HIGH = [(env_id, rate) for rate in (0.03, 0.1) for env_id in ("CartPole-v1", "Pendulum-v1")]
HICCUPS = [("CartPole-v1", reward) for reward in (1e9, 1e13, 1e30, 3e38, float("inf"), float("nan"))]


def recovery(short: bool) -> list[Figure]:
    """Run trainings that break down, and check their final state with a health check."""
    seeds = range(1 if short else 3)
    steps = 16_000 if short else 24_000
    chosen = [(*one, seed) for one in TOO_HIGH[2 * short :] for seed in seeds]
    fast = [_recovered(env_id, seed, steps, learning_rate=rate) for env_id, rate, seed in chosen]
    alone = [_recovered(env_id, seed, steps, learning_rate=rate, retries=0) for env_id, rate, seed in chosen]
    odd = [_recovered(env_id, seed, 4_000, reward=reward) for env_id, reward in HICCUPS for seed in seeds]
    sound = [_recovered(env_id, seed, steps) for env_id in ("CartPole-v1", "Pendulum-v1") for seed in seeds]
    print(f"gone back: {sum(n for n, _ in fast)} times for learning rates, {sum(n for n, _ in odd)} for rewards")
    print(f"without the callback {sum(not good for _, good in alone)} of {len(alone)} such learning rates end ill")
    return [
        Figure("ended ill after a learning rate far too high", sum(not good for _, good in fast), len(fast)),
        Figure("ended ill after one odd reward", sum(not good for _, good in odd), len(odd)),
        Figure("one odd reward, and no or several recoveries", sum(n != 1 for n, _ in odd), len(odd)),
        Figure("sound trainings that went back", sum(n > 0 for n, _ in sound), len(sound)),
    ]


def _recovered(
    env_id: str, seed: int, steps: int, learning_rate: float = 3e-4, reward: float | None = None, retries: int = 5
) -> tuple[int, bool]:
    """Number of retries, and whether the training ends healthy.

    Healthy: all steps taken, all learnt values finite, and no rule on step sizes and exploration broken."""
    odd = {} if reward is None else {"wrapper_class": Hiccup, "wrapper_kwargs": {"reward": reward, "at": 300}}
    env = VecNormalize(make_vec_env(env_id, 4, seed=seed, **odd))  # type: ignore[arg-type]
    # Groups of 8, for which these rates were chosen: the default of a new version must not move them.
    groups: dict[str, Any] = {"group_size": 8, "advantage_kwargs": {"paired": False}}
    model = GRPO("MlpPolicy", env, learning_rate, n_steps=128, seed=seed, device="cpu", **groups)
    callback = RecoveryCallback(max(retries, 1), verbose=0)
    health = HealthCallback(RECOVERY_RULES, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.learn(steps, callback=[callback, health] if retries else [health])
        except Breakdown as error:
            print(f"{env_id}, learning rate {learning_rate}, reward {reward}, seed {seed}: {error}")
            return callback.n, False
    modules = [part for part in (model.policy, model.estimator) if isinstance(part, th.nn.Module)]
    finite = all(bool(value.isfinite().all()) for module in modules for value in module.state_dict().values())
    if retries and not health.ok:
        print(f"{env_id}, learning rate {learning_rate}, reward {reward}, seed {seed}: ends with {health.broken} broken")
    return callback.n, finite and health.ok and bool(np.isfinite(env.ret_rms.var))


def resume(short: bool) -> list[Figure]:
    """``kill -9`` at random moments; then the run goes on from the last state that was saved."""
    of_tensor_envs = Figure("runs of tensor envs that ended elsewhere", *resumed(TENSOR, 2 if short else 20))
    return [of_tensor_envs, Figure("runs of host envs that ended elsewhere", *resumed(HOST, 2 if short else 10))]


SECTIONS: dict[str, Callable[[bool], list[Figure]]] = {"saves": saves, "recovery": recovery, "resume": resume}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="all of them, unless some are named")
    parser.add_argument("--short", action="store_true", help="a few seconds each, as in the tests")
    args = parser.parse_args()
    th.set_num_threads(1)
    failed = 0
    for name in args.sections or SECTIONS:
        start = time.perf_counter()
        for figure in SECTIONS[name](args.short):
            good = figure.count <= figure.allowed
            failed += not good
            print(
                f"{name}: {figure.what}: {figure.count} of {figure.of} (allowed: {figure.allowed}){'' if good else ' FAILED'}"
            )
        print(f"{name}: {time.perf_counter() - start:.0f} s")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
