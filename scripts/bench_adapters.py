"""Whole ``learn()`` of GRPO on adapted simulators against SB3's PPO, in one run: interleaved, one torch thread, medians.

usage: python scripts/bench_adapters.py [--rounds 3] [--device cuda] [--json FILE]      (needs the extra [sim])

CartPole-v1 with 256 envs, unless the row says otherwise. A ratio is the median of the rounds' ratios to PPO with 8 envs in
the same round, because the machine's noise is common to a round; by CPU time of all threads, because it is not common enough.
``useful``: steps trained on / steps taken.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import envpool
import gymnasium as gym
import torch as th
from device_path import BIG, LIGHT
from stable_baselines3 import PPO, __version__
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.envs.envpool import EnvPoolEnv
from sb_grpo.envs.gymnasium_vector import GymnasiumVectorEnv
from sb_grpo.envs.native import make_tensor_env

TASK = "CartPole-v1"
REFERENCE = "SB3 PPO, 8 envs"


def entry_point(device: str) -> GymnasiumVectorEnv:
    vec_env = gym.make_vec(TASK, 256, vectorization_mode="vector_entry_point")
    return GymnasiumVectorEnv(
        vec_env, device, synchronous=True, broadcast=lambda env, leader: setattr(env, "state", env.state[:, leader])
    )


#: Row name: algorithm, env on a device, steps, settings.
CASES: dict[str, tuple[Any, Callable[[str], Any], int, dict[str, Any]]] = {
    REFERENCE: (PPO, lambda _: make_vec_env(TASK, 8, seed=0), 40_960, LIGHT),
    "SB3 PPO, 256 envs": (PPO, lambda _: make_vec_env(TASK, 256, seed=0), 131_072, BIG),
    "GRPO, native": (GRPO, lambda device: make_tensor_env(TASK, 256, device), 262_144, BIG),
    "GRPO, EnvPool": (GRPO, lambda device: EnvPoolEnv(TASK, 256, device, num_threads=1), 262_144, BIG),
    "GRPO, EnvPool, advantage='outcome'": (
        GRPO, lambda device: EnvPoolEnv(TASK, 256, device, num_threads=1), 262_144, {**BIG, "advantage": "outcome"},
    ),
    "GRPO, gymnasium sync": (
        GRPO, lambda device: GymnasiumVectorEnv(gym.make_vec(TASK, 256, vectorization_mode="sync"), device), 131_072, BIG,
    ),
    "GRPO, gymnasium entry point, synchronous": (GRPO, entry_point, 262_144, BIG),
}  # fmt: skip


def run(name: str, device: str) -> dict[str, float]:
    """Run one ``learn()``: steps per second, and shares of useful steps. PPO runs on the CPU, where it is faster."""
    algorithm, make, n_timesteps, settings = CASES[name]
    env = make(device)
    model = algorithm("MlpPolicy", env, seed=0, device=device if algorithm is GRPO else "cpu", **settings)
    start = time.perf_counter()
    cpu_start = time.process_time()
    model.learn(n_timesteps)
    seconds = time.perf_counter() - start
    cpu_seconds = time.process_time() - cpu_start
    metrics = {"steps_per_s": model.num_timesteps / seconds, "steps_per_cpu_s": model.num_timesteps / cpu_seconds}
    if algorithm is GRPO:
        metrics["useful"] = model._steps_trained / (model._steps_trained + model._steps_dropped)
        metrics["pending"] = model.rollout_buffer.n_kept / model.num_timesteps
        metrics["start_mismatch"] = model.groups.start_mismatches
    env.close()
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="of the tensors and of GRPO")
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    args = parser.parse_args()
    th.set_num_threads(1)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    for _ in range(args.rounds):
        for name in CASES:
            results[name].append(run(name, args.device))
    print(f"{TASK}, 64-64 net, 1 thread; 8 envs: {LIGHT}; 256 envs: {BIG}")
    print("| loop | steps/s | steps per CPU second | / SB3 PPO with 8 envs | useful | pending | start mismatches |")
    print("|---|---|---|---|---|---|---|")
    for name, rounds in results.items():
        pairs = zip(rounds, results[REFERENCE], strict=True)
        ratio = statistics.median(ours["steps_per_cpu_s"] / reference["steps_per_cpu_s"] for ours, reference in pairs)
        speed, cpu_speed = (statistics.median(r[key] for r in rounds) for key in ("steps_per_s", "steps_per_cpu_s"))
        last = rounds[-1]
        more = f"{last['useful']:.2f} | {last['pending']:.2f} | {last['start_mismatch']}" if "useful" in last else " | | "
        print(f"| {name} | {speed:,.0f} | {cpu_speed:,.0f} | {ratio:.1f} | {more} |")
    if args.json:
        versions = {"torch": th.__version__, "stable_baselines3": __version__, "envpool": envpool.__version__}
        versions |= {"gymnasium": gym.__version__, "python": platform.python_version()}
        args.json.write_text(json.dumps({"versions": versions, "light": LIGHT, "big": BIG, "runs": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
