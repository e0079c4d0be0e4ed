"""Table of docs/studies/third_party.md: shared noise of members with one seed, and speed.

usage: python -m scripts.studies.alignment [ENV_ID ...]
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

import sb_grpo  # noqa: F401  registers the ids
from sb_grpo.envs import noise_alignment
from sb_grpo.tasks.third_party import INVENTORY, MOTORS

#: Share of the action range at which orders meet the mean demand: there stocks run out at times, and the demand reaches the
#: rewards. Uniform orders fill every store instead.
NEAR_DEMAND = {"OrNewsvendor": 0.05, "OrInventory": 0.22, "OrNetwork": 0.006}


def orders_about(share: float, shape: tuple[int, ...], seed: int = 0) -> Callable[[Any], np.ndarray]:
    """A policy that draws within 10 % of a share of the range."""
    rng = np.random.default_rng(seed)
    return lambda obs: (2.0 * share * rng.uniform(0.9, 1.1, shape) - 1.0).astype(np.float32)


def steps_per_second(env: gym.Env[Any, Any], episodes: int = 3) -> float:
    steps = 0
    begin = time.process_time()
    for seed in range(episodes):
        env.reset(seed=seed)
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            steps = steps + 1
            over = terminated or truncated
    return steps / (time.process_time() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", default=[*INVENTORY, *MOTORS])
    parser.add_argument("--n-seeds", type=int, default=40)
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    columns = ["env", "actions", "common share", "by thirds", "np_random alike", "verdict", "steps per CPU second"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for env_id in options.ids:
        env = gym.make(env_id)
        speed = steps_per_second(env)
        share = next((share for name, share in NEAR_DEMAND.items() if env_id.startswith(name)), None)
        policies: dict[str, Any] = {"uniform": None}
        if share is not None:
            policies["near the mean demand"] = orders_about(share, env.action_space.shape or ())
        for name, policy in policies.items():
            found = noise_alignment(env_id, n_seeds=options.n_seeds, n_steps=500, policy=policy)
            error = found.standard_error[found.lags == 0][0]
            alike = "rests" if found.generator_alike is None else f"{found.generator_alike:.2f}"
            thirds = ", ".join(f"{third:.2f}" for third in found.thirds)
            figures = f"{found.common_share:.2f} +- {error:.2f} | {thirds} | {alike} | {found.verdict} | {speed:,.0f}"
            print(f"| `{env_id}` | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
