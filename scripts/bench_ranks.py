"""Env steps per second of whole training loops with 1, 2, ... learners, one thread each: medians of interleaved rounds.

usage: python scripts/bench_ranks.py [--ranks 1 2] [--tasks CartPole LunarLander] [--rollouts 12] [--rounds 3] [--json FILE]

Every learner has its own envs, and the minibatch grows with their number: 64 tensor CartPoles, or 8 host LunarLanders (extra
[box2d]). Also reported: the rate of N independent processes, which is the machine's limit; processor time per step of a
learner's own envs, which does not depend on other load; milliseconds per reduction of the policy's gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch as th
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO, distributed
from sb_grpo.envs.native import make_tensor_env

#: Envs and rows of a minibatch, per learner.
TASKS = {"CartPole": (64, 512), "LunarLander": (8, 256)}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def worker(task: str, rollouts: int, out: str) -> None:
    """One learner: the rate of all of them, and how long a reduction takes."""
    th.set_num_threads(1)
    n = distributed.announced().size
    n_envs, rows = TASKS[task]
    env: Any = make_tensor_env("CartPole-v1", n_envs) if task == "CartPole" else make_vec_env("LunarLander-v3", n_envs)
    model = GRPO("MlpPolicy", env, n_steps=2048 // n_envs, batch_size=rows * n, n_epochs=4, seed=0, device="cpu")
    size = rollouts * 2048 * n
    model.learn(size // 4)  # warm
    steps = model.num_timesteps
    start = time.perf_counter()
    busy = time.process_time()
    model.learn(size, reset_num_timesteps=False)
    taken = model.num_timesteps - steps
    busy = time.process_time() - busy
    rate = taken / (time.perf_counter() - start)
    parameters = list(model.policy.parameters())
    start = time.perf_counter()
    for _ in range(200):
        distributed.average_gradients(parameters, 1)
    reduction = (time.perf_counter() - start) / 200
    if distributed.world().rank == 0:
        n_bytes = 4 * sum(p.numel() for p in parameters)
        Path(out).write_text(
            json.dumps({"rate": rate, "cpu_us": 1e6 * busy / (taken / n), "reduction_ms": 1e3 * reduction, "bytes": n_bytes})
        )


def measure(task: str, n: int, rollouts: int, apart: bool) -> dict[str, float]:
    """Learners in processes of their own.

    :param apart: N trainings that know nothing of each other
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        outs = [str(Path(folder, f"{i}.json")) for i in range(n if apart else 1)]
        command = [__file__, "--worker", task, "--rollouts", str(rollouts), "--out"]
        start = [sys.executable] if apart or n == 1 else [sys.executable, *TORCHRUN, str(n)]
        processes = [subprocess.Popen([*start, *command, out], env=env) for out in outs]
        if any([process.wait() for process in processes]):
            raise SystemExit(f"bench_ranks: {task} with {n} learners failed; what it said is above.")
        found = [json.loads(Path(out).read_text()) for out in outs]
    return {**found[0], "rate": sum(part["rate"] for part in found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--rollouts", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", choices=list(TASKS), help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker, given.rollouts, given.out)
        return
    results = {}
    for task in given.tasks:
        cells = [(n, apart) for n in given.ranks for apart in ((False, True) if n > 1 else (False,))]
        rounds: dict[tuple[int, bool], list[dict[str, float]]] = {cell: [] for cell in cells}
        for _ in range(given.rounds):
            for n, apart in cells:
                rounds[n, apart].append(measure(task, n, given.rollouts, apart))
        for (n, apart), found in rounds.items():
            middle = {key: statistics.median(part[key] for part in found) for key in found[0]}
            base = statistics.median(part["rate"] for part in rounds[cells[0]])
            name = f"{task}, {n} {'apart' if apart else 'learners'}"
            results[name] = {**middle, "times": middle["rate"] / base}
            cpu = f"{middle['cpu_us']:5.1f} CPU us per own step"
            reported = (
                "" if apart or n == 1 else f"  {middle['reduction_ms']:.2f} ms per reduction of {middle['bytes']:,.0f} bytes"
            )
            print(
                f"{name:26s} {middle['rate']:9,.0f} env steps/s  {middle['rate'] / base:.2f}x  {cpu}{reported}",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps({"load": os.getloadavg(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
