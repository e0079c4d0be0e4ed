"""Env steps per second where a step takes 5 ms: in this process, in others, in Ray actors. Medians of interleaved rounds.

usage: python scripts/bench_ray_vec_env.py [--slots 16] [--workers 4] [--sleep-ms 5] [--steps 200] [--rounds 5]  (extra: scale)
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb_grpo.envs import ProcessVecEnv, RayVecEnv


class Sleeper(gym.Env):
    """Eight numbers that never change, after so many seconds.

    :param seconds: that a step takes
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.render_mode = None
        self.observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(8, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(self.seconds)
        return np.zeros(8, dtype=np.float32), 0.0, False, False, {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, default in (("slots", int, 16), ("workers", int, 4), ("steps", int, 200), ("rounds", int, 5)):
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--sleep-ms", type=float, default=5.0)
    args = parser.parse_args()
    th.set_num_threads(1)
    ray.init(address="local", num_cpus=args.workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    fns = [lambda: Sleeper(args.sleep_ms / 1000)] * args.slots
    makers: dict[str, Callable[[], Any]] = {
        "DummyVecEnv": lambda: DummyVecEnv(fns),
        f"SubprocVecEnv, {args.slots} processes": lambda: SubprocVecEnv(fns),
        f"ProcessVecEnv, {args.workers} processes": lambda: ProcessVecEnv(fns, args.workers),
        f"ProcessVecEnv, {args.workers} processes, threaded": lambda: ProcessVecEnv(fns, args.workers, threaded=True),
        f"RayVecEnv, {args.workers} actors": lambda: RayVecEnv(fns, args.workers, 0.5),
        f"RayVecEnv, {args.workers} actors, threaded": lambda: RayVecEnv(fns, args.workers, 0.5, threaded=True),
    }
    envs = {name: make() for name, make in makers.items()}
    rates: dict[str, list[float]] = {name: [] for name in envs}
    actions = np.zeros(args.slots, dtype=np.int64)
    for _ in range(args.rounds):
        for name, env in envs.items():
            steps = args.steps // 4 if name == "DummyVecEnv" else args.steps
            env.reset()
            env.step(actions)
            start = time.perf_counter()
            for _ in range(steps):
                env.step(actions)
            rates[name].append(steps * args.slots / (time.perf_counter() - start))
    base = statistics.median(rates["DummyVecEnv"])
    print(f"| {args.slots} slots, {args.sleep_ms:g} ms per step | env steps/s | of DummyVecEnv |\n|---|---|---|")
    for name, all_rates in rates.items():
        rate = statistics.median(all_rates)
        print(f"| {name} | {rate:,.0f} | {rate / base:.1f} |")
    for env in envs.values():
        env.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
