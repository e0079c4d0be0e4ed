"""Whole ``learn()`` of GRPO against SB3's PPO: same envs, net, epochs and batch size, interleaved, median of several pairs.

usage: python scripts/bench_speed.py [--pairs 5] [--envs CartPole-v1 ...] [--device-path [--rejax PYTHON]] [--json FILE]

Both run with one torch thread. A pair is one run of each, back to back; the ratio is the median of the pairs' ratios,
because the machine's noise is common to both halves of a pair. Memory needs no timing: see ``update_memory``.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from device_path import compare_loops, solve_cartpole
from gymnasium import spaces
from stable_baselines3 import PPO, __version__
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.learn.losses import Clipped
from sb_grpo.types import map_obs

SETTINGS = dict(n_steps=256, batch_size=64, n_epochs=10)  # SB3's defaults, with 8 x 256 steps per rollout
LIGHT = dict(n_steps=128, batch_size=256, n_epochs=4)  # 16 gradient steps per rollout in place of 320


class Task(NamedTuple):
    """A row of the table."""

    env_id: str
    n_timesteps: int
    wanted: float
    settings: dict[str, int] = SETTINGS


TASKS = {
    "CartPole-v1": Task("CartPole-v1", 20_480, 2.0),
    "CartPole-v1, light updates": Task("CartPole-v1", 20_480, 2.0, LIGHT),
    "Pendulum-v1": Task("Pendulum-v1", 20_480, 1.8),
    "HalfCheetah-v5": Task("HalfCheetah-v5", 16_384, 1.5),
}


def steps_per_second(algorithm: Any, task: Task) -> float:
    """:func:`learn_rate` on 8 host envs."""
    return learn_rate(algorithm, make_vec_env(task.env_id, 8, seed=0), task.n_timesteps, task.settings)


def learn_rate(algorithm: Any, env: Any, n_timesteps: int, settings: dict[str, int]) -> float:
    """Env steps per second of a whole ``learn()``, set-up and imports excluded."""
    model = algorithm("MlpPolicy", env, seed=0, device="cpu", **settings)
    start = time.perf_counter()
    model.learn(n_timesteps)
    rate = model.num_timesteps / (time.perf_counter() - start)
    env.close()
    return rate


def fit_share(task: Task) -> float:
    """Share of an iteration that the closed-form baseline takes (fit, prediction and advantages together)."""
    model = GRPO("MlpPolicy", make_vec_env(task.env_id, 8, seed=0), seed=0, device="cpu", **task.settings)
    assert model.estimator is not None
    compute = model.estimator.advantages
    spent = []

    def timed(*args: Any) -> Any:
        start = time.perf_counter()
        result = compute(*args)
        spent.append(time.perf_counter() - start)
        return result

    model.estimator.advantages = timed  # type: ignore[method-assign]
    start = time.perf_counter()
    model.learn(task.n_timesteps)
    return sum(spent) / (time.perf_counter() - start)


def update_memory(model: Any, batch_size: int = 64) -> int:
    """Bytes that an update holds at its peak: weights, gradients, Adam's moments, activations saved for backward."""
    obs = map_obs(lambda x: np.repeat(x[None], batch_size, axis=0), model.observation_space.sample())
    obs, _ = model.policy.obs_to_tensor(obs)
    actions = th.as_tensor(np.array([model.action_space.sample() for _ in range(batch_size)]))
    saved: dict[int, int] = {}

    def pack(tensor: th.Tensor) -> th.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    weights = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.policy.parameters()}
    with th.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        if isinstance(model, PPO):
            values, log_prob, entropy = model.policy.evaluate_actions(obs, actions)
            loss = (values**2).mean() + entropy.mean()
        else:
            log_prob, loss = model.policy.log_prob(obs, actions), th.zeros(())
        loss = loss + Clipped().surrogate(log_prob, log_prob.exp(), th.ones(batch_size), (0.2, 0.2)).mean()
    assert loss.requires_grad
    activations = sum(size for pointer, size in saved.items() if pointer not in weights)
    return 4 * sum(weights.values()) + activations


def memory_table() -> list[dict[str, Any]]:
    """Parameters, update memory and saved size of both, per policy."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.helpers import SpaceEnv

    cases = {
        "CartPole-v1, MlpPolicy": ("MlpPolicy", "CartPole-v1"),
        "HalfCheetah-v5, MlpPolicy": ("MlpPolicy", "HalfCheetah-v5"),
        "84x84x4 image, CnnPolicy": ("CnnPolicy", SpaceEnv(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6))),
    }
    mixed = spaces.Dict({"image": spaces.Box(0, 255, (4, 84, 84), np.uint8), "vector": spaces.Box(-1.0, 1.0, (8,))})
    cases["84x84x4 image + vector, MultiInputPolicy"] = ("MultiInputPolicy", SpaceEnv(mixed, spaces.Discrete(6)))
    rows = []
    for name, (policy, env) in cases.items():
        row: dict[str, Any] = {"case": name}
        for label, algorithm in (("grpo", GRPO), ("ppo", PPO)):
            model = algorithm(policy, env, n_steps=64, batch_size=64, n_epochs=1, device="cpu", seed=0).learn(64)
            with tempfile.TemporaryDirectory() as folder:
                model.save(Path(folder) / "model")
                saved = (Path(folder) / "model.zip").stat().st_size
            parameters = sum(p.numel() for p in model.policy.parameters())
            row[label] = {"parameters": parameters, "update_bytes": update_memory(model), "saved_bytes": saved}
        rows.append(row)
    return rows


def print_memory(rows: list[dict[str, Any]]) -> None:
    print("\n| model (GRPO / PPO) | parameters | critic's share of PPO | memory of an update, kB | saved file, kB |")
    print("|---|---|---|---|---|")
    for row in rows:
        ours = row["grpo"]
        theirs = row["ppo"]
        share = 100 * (1 - ours["parameters"] / theirs["parameters"])
        memory, saved = (f"{ours[k] / 1e3:,.0f} / {theirs[k] / 1e3:,.0f}" for k in ("update_bytes", "saved_bytes"))
        print(f"| {row['case']} | {ours['parameters']:,} / {theirs['parameters']:,} | {share:.2f} % | {memory} | {saved} |")


def versions() -> dict[str, str]:
    return {"torch": th.__version__, "stable_baselines3": __version__, "python": platform.python_version()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="runs of each algorithm per task")
    parser.add_argument("--envs", nargs="+", default=list(TASKS), choices=list(TASKS), help="tasks")
    parser.add_argument("--device-path", action="store_true", help="tensor envs against host envs instead")
    parser.add_argument("--rejax", help="Python that has rejax, to run it beside (see scripts/peer_rejax.py)")
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    args = parser.parse_args()
    th.set_num_threads(1)
    if args.device_path:
        metrics = {"versions": versions(), **compare_loops(args.pairs, args.rejax), "to_475": solve_cartpole(range(5))}
        if args.json:
            args.json.write_text(json.dumps(metrics, indent=2) + "\n")
        return
    results: dict[str, Any] = {"settings": SETTINGS, "light": LIGHT, "versions": versions(), "speed": {}}
    for kind, settings in (("", SETTINGS), ("light updates: ", LIGHT)):
        print(f"{kind}8 envs, 64-64 net, 1 thread, " + ", ".join(f"{name} {value}" for name, value in settings.items()))
    print("| task | PPO, steps/s | GRPO, steps/s | GRPO / PPO | wanted | share of the baseline fit |")
    print("|---|---|---|---|---|---|")
    for name in args.envs:
        task = TASKS[name]
        for algorithm in (PPO, GRPO):
            steps_per_second(algorithm, task._replace(n_timesteps=4_096))  # warm up
        pairs = [(steps_per_second(PPO, task), steps_per_second(GRPO, task)) for _ in range(args.pairs)]
        ratio = statistics.median(grpo / ppo for ppo, grpo in pairs)
        ppo, grpo = (statistics.median(column) for column in zip(*pairs, strict=True))
        share = fit_share(task)
        results["speed"][name] = {"pairs": pairs, "ratio": ratio, "fit_share": share}
        print(f"| {name} | {ppo:,.0f} | {grpo:,.0f} | {ratio:.2f} | {task.wanted} | {100 * share:.1f} % |", flush=True)
    results["memory"] = memory_table()
    print_memory(results["memory"])
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
