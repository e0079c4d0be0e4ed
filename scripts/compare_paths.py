"""Do both paths learn alike? The same settings and seeds on host envs and on tensor envs; IQM with bootstrap intervals.

usage: python scripts/compare_paths.py [--seeds 10] [--out docs/data/paths]

Settings are those of zoo/hyperparams/grpo.yml. One file per run; what exists is not run again. The final evaluation is 20
deterministic episodes of Gymnasium's own env for both.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb_grpo.envs.native import make_tensor_env

sys.path.insert(0, str(Path(__file__).parents[1]))
from zoo.statistics import interval, iqm

from zoo.experiment import build

TASKS = ("CartPole-v1", "Pendulum-v1")
PATHS = ("host", "device")


def run(env_id: str, path: str, seed: int) -> dict[str, Any]:
    """Train and evaluate once."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = build(env_id, seed, folder)
        model, _ = experiment.setup_experiment()  # type: ignore[misc]
        if path == "device":
            env = make_tensor_env(env_id, model.n_envs)
            settings = {k: v for k, v in experiment._hyperparams.items() if k != "n_envs"}
            model = type(model)(env=env, seed=seed, device="cpu", **settings)
        model.learn(experiment.n_timesteps)
    eval_env = make_vec_env(env_id, 4, seed=10_000 + 100 * seed)
    returns, _ = evaluate_policy(model, eval_env, 20, return_episode_rewards=True)
    return {
        "env": env_id,
        "path": path,
        "seed": seed,
        "env_steps": model.num_timesteps,
        "returns": returns,
        "torch": th.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("docs/data/paths"))
    args = parser.parse_args()
    th.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    means: dict[tuple[str, str], list[float]] = {}
    for seed in range(args.seeds):
        for env_id in TASKS:
            for path in PATHS:
                file = args.out / f"{env_id}_{path}_{seed}.json"
                if not file.exists():
                    file.write_text(json.dumps(run(env_id, path, seed)) + "\n")
                means.setdefault((env_id, path), []).append(float(np.mean(json.loads(file.read_text())["returns"])))
    print(f"Final evaluation, seeds 0 to {args.seeds - 1}: IQM over seeds with its 95 % bootstrap interval")
    print("| task | host envs | tensor envs |")
    print("|---|---|---|")
    for env_id in TASKS:
        cells = []
        for path in PATHS:
            scores = [np.array(means[env_id, path])]
            low, high = interval(iqm, scores)
            cells.append(f"{float(iqm(scores)):.1f} ({low:.1f} to {high:.1f})")
        print(f"| {env_id} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
