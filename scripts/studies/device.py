"""Learning on tensor envs by variant: IQM over seeds with bootstrap intervals.

usage: python -m scripts.studies.device paths [--seeds 10] [--out docs/studies/data/device]

``paths``: the same settings (zoo/hyperparams/grpo.yml) and seeds on host envs and on tensor envs. One line per run; existing
runs are kept. The final evaluation is 20 deterministic episodes of Gymnasium's own env for all.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb_grpo import GRPO
from sb_grpo.envs.native import make_tensor_env
from scripts.studies.common import records
from scripts.studies.common.runs import DATA
from zoo.comparing.statistics import interval, iqm
from zoo.training.experiment import build


def with_zoo_settings(env_id: str, seed: int, on_device: bool) -> tuple[Any, int]:
    """A model with the zoo's settings, on host or on tensor envs, and its budget in env steps."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = build(env_id, seed, folder)
        model, _ = experiment.setup_experiment()  # type: ignore[misc]
    if on_device:
        env = make_tensor_env(env_id, model.n_envs)
        model = GRPO(env=env, seed=seed, device="cpu", **experiment._hyperparams)
    return model, experiment.n_timesteps


Variant = Callable[[str, int], tuple[Any, int]]
STUDIES: dict[str, tuple[tuple[str, ...], dict[str, Variant]]] = {
    "paths": (
        ("CartPole-v1", "Pendulum-v1"),
        {
            "host": lambda env_id, seed: with_zoo_settings(env_id, seed, on_device=False),
            "device": lambda env_id, seed: with_zoo_settings(env_id, seed, on_device=True),
        },
    ),
}


def run(env_id: str, name: str, variant: Variant, seed: int) -> dict[str, Any]:
    """Train and evaluate once."""
    model, n_timesteps = variant(env_id, seed)
    model.learn(n_timesteps)
    returns, _ = evaluate_policy(model, make_vec_env(env_id, 4, seed=10_000 + 100 * seed), 20, return_episode_rewards=True)
    result = {"env": env_id, "variant": name, "seed": seed, "env_steps": model.num_timesteps, "returns": returns}
    return {**result, "gradient_steps": model._n_gradient_steps, "torch": th.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=DATA / "device")
    args = parser.parse_args()
    th.set_num_threads(1)
    tasks, variants = STUDIES[args.study]
    means: dict[tuple[str, str], list[float]] = {}
    file = args.out / f"{args.study}.jsonl"
    for seed in range(args.seeds):
        for env_id in tasks:
            for name, variant in variants.items():
                key = {"env": env_id, "variant": name, "seed": seed}
                found = [record for record in records.read(file) if key.items() <= record.items()]
                if not found:
                    found = [run(env_id, name, variant, seed)]
                    records.put(file, found[0], *key)
                means.setdefault((env_id, name), []).append(float(np.mean(found[0]["returns"])))
    print(f"Final evaluation, seeds 0 to {args.seeds - 1}: IQM over seeds with its 95 % bootstrap interval")
    print(f"| task | {' | '.join(variants)} |\n|---|{'---|' * len(variants)}")
    for env_id in tasks:
        cells = []
        for name in variants:
            scores = [np.array(means[env_id, name])]
            low, high = interval(iqm, scores)
            cells.append(f"{float(iqm(scores)):.1f} ({low:.1f} to {high:.1f})")
        print(f"| {env_id} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
