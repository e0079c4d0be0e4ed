"""Hard use, by sections: what must survive does, or the exit code is 1. ``python -m scripts.torture saves``.

``saves``: processes that save without a pause are killed at random moments; every file that stands there afterwards is read.
``resume``: runs are killed at random moments and resumed; they must end where undisturbed ones do, bit by bit.
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
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import GRPO, files
from sb_grpo.normalization import with_statistics
from sb_grpo.saving import STATISTICS, read_entry
from scripts.torture_resume import HOST, TENSOR, resumed


class Figure(NamedTuple):
    """What was counted, and the most that is allowed of it."""

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
    """Every file that cannot be read as what it was written as."""
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
    made, chance = models(), random.Random(0)
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


def resume(short: bool) -> list[Figure]:
    """``kill -9`` at random moments; then the run goes on from the last state that was saved."""
    of_tensor_envs = Figure("runs of tensor envs that ended elsewhere", *resumed(TENSOR, 2 if short else 20))
    return [of_tensor_envs, Figure("runs of host envs that ended elsewhere", *resumed(HOST, 2 if short else 10))]


SECTIONS: dict[str, Callable[[bool], list[Figure]]] = {"saves": saves, "resume": resume}


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
