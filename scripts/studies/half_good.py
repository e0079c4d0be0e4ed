"""Fine-tuning of a half-good policy with one success at the end of an episode: PPO with a fresh critic, and GRPO's estimators.

usage: python -m scripts.studies.half_good run [--seeds 0 1 2] [--arms ...]      trains what is missing
       python -m scripts.studies.half_good report                               prints the table

The pendulum must stand for the last 40 of 200 steps. PPO learns it with Pendulum's dense reward until about 45 in 100 episodes
succeed; every run starts from that actor and sees the success alone. Raw runs: docs/studies/data/half_good, a file per arm.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb_grpo import GRPO
from sb_grpo.policies import load_actor
from scripts.studies.common import records
from scripts.studies.common.compared import markdown, middle
from scripts.studies.common.runs import DATA, EVAL_SEED
from zoo.common.provenance import commit, versions

FOLDER = DATA / "half_good"
STANDS = 40  #: last steps of an episode in which the pendulum must stand
UPRIGHT = 0.95  #: cosine of the angle
STEPS = 25_600
EPISODES = 100
SETTINGS: dict[str, Any] = dict(learning_rate=3e-4, n_steps=200, batch_size=256, n_epochs=5, device="cpu")
ARMS: dict[str, dict[str, Any]] = {
    "ppo": {"gamma": 0.99},
    "state-1": {"group_size": 1, "gamma": 0.99},
    "state-pairs": {"group_size": 2, "gamma": 0.99},
    "outcome-8": {"advantage": "outcome", "group_size": 8, "gamma": 1.0},
    "outcome-16": {"advantage": "outcome", "group_size": 16, "gamma": 1.0},
    "step-8": {"advantage": "step", "group_size": 8, "gamma": 1.0},
}


class Standing(gym.Wrapper[Any, Any, Any, Any]):
    """Pays 1 at the end of an episode if the pendulum has stood for its last steps, and nothing before."""

    stood = 0

    def reset(self, **kwargs: Any) -> Any:
        self.stood = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = self.env.step(action)
        self.stood = self.stood + 1 if obs[0] > UPRIGHT else 0
        success = bool(truncated and self.stood >= STANDS)
        if truncated:
            info["is_success"] = success
        return obs, float(success), terminated, truncated, info


def standing() -> gym.Env[Any, Any]:
    """Make the env; below the Monitor, whose returns are then the successes."""
    return Standing(gym.make("Pendulum-v1"))


def success(model: Any, deterministic: bool = False) -> float:
    """Share of successful episodes, the same starts for all."""
    envs = make_vec_env(standing, 16, seed=EVAL_SEED)
    with th.random.fork_rng(devices=[]):
        th.manual_seed(EVAL_SEED)
        return float(evaluate_policy(model, envs, EPISODES, deterministic)[0])  # type: ignore[arg-type]


class HalfGood(BaseCallback):
    """Stops at the first update after which more episodes succeed than wanted.

    One update takes the policy from hardly any success to nearly all. The policy goes back on the straight line between the
    weights before and after that update, by bisection, until its success is within 0.05 of the wanted one.
    """

    def __init__(self, wanted: float) -> None:
        super().__init__()
        self.wanted = wanted
        self.before: dict[str, th.Tensor] = {}
        self.found = False

    def _on_step(self) -> bool:
        return not self.found

    def _on_rollout_start(self) -> None:
        policy = self.model.policy
        after = {name: value.clone() for name, value in policy.state_dict().items()}
        self.found = bool(self.before) and success(self.model) >= self.wanted
        if not self.found:
            self.before = after
            return
        low = 0.0
        high = 1.0
        for _ in range(8):
            share = (low + high) / 2
            policy.load_state_dict({name: value.lerp(after[name], share) for name, value in self.before.items()})
            reached = success(self.model)
            if abs(reached - self.wanted) <= 0.05:
                return
            if reached < self.wanted:
                low = share
            else:
                high = share


class Curve(BaseCallback):
    """Records the share of successes of each rollout's episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[float]] = []
        self.ended: list[bool] = []

    def _on_step(self) -> bool:
        self.ended += [info["is_success"] for info in self.locals["infos"] if "is_success" in info]
        return True

    def _on_rollout_end(self) -> None:
        if self.ended:
            self.rows.append([self.num_timesteps, round(float(np.mean(self.ended)), 4)])
            self.ended = []


def make_start(path: Path, wanted: float) -> float:
    """Train the policy that all runs start from, and return its success."""
    envs = make_vec_env("Pendulum-v1", 4, seed=0)
    model = PPO("MlpPolicy", envs, n_steps=1024, gamma=0.9, learning_rate=1e-3, seed=0, device="cpu")
    model.learn(300_000, callback=HalfGood(wanted))
    model.save(path)
    return success(model)


def train(arm: str, seed: int, steps: int, start: Path) -> dict[str, Any]:
    """Train one arm from the half-good actor; all arms see the success alone."""
    envs = make_vec_env(standing, 16, seed=seed)
    kind: type = PPO if arm == "ppo" else GRPO
    model = kind("MlpPolicy", envs, seed=seed, **SETTINGS, **ARMS[arm])
    if arm == "ppo":  # the actor alone: its critic has learnt other rewards
        actor = PPO.load(start, device="cpu").policy.state_dict()
        kept = {name: value for name, value in actor.items() if "value" not in name}
        model.policy.load_state_dict({**model.policy.state_dict(), **kept})
    else:
        load_actor(model.policy, start)
    curve = Curve()
    began = time.process_time()
    model.learn(steps, callback=curve)
    return {
        "arm": arm, "seed": seed, "env_steps": model.num_timesteps, "cpu_seconds": round(time.process_time() - began, 1),
        "curve": curve.rows, "final": success(model), "final_deterministic": success(model, True),
        "commit": commit(), "versions": versions(),
    }  # fmt: skip


def report() -> str:
    """Markdown: means over seeds of success by steps and of the lowest rollout; IQM of the last weights."""
    rows = []
    for arm in ARMS:
        runs = records.read(FOLDER / f"{arm}.jsonl")
        if not runs:
            continue

        def at(run: dict[str, Any], steps: int) -> float:
            return float(next((row[1] for row in run["curve"] if row[0] >= steps), run["curve"][-1][1]))

        cells = [f"{np.mean([at(run, steps) for run in runs]):.2f}" for steps in (6_400, 12_800, 25_600)]
        lowest = np.mean([min(row[1] for row in run["curve"]) for run in runs])
        ends = [middle(np.array([run[kind] for run in runs])) for kind in ("final", "final_deterministic")]
        rows.append([f"`{arm}`", str(len(runs)), f"{runs[0]['start']:.2f}", *cells, f"{lowest:.2f}", *ends])
    heads = ["arm", "seeds", "start", "6,400 steps", "12,800", "25,600", "lowest rollout", "end, sampled", "end, likeliest"]
    return markdown(heads, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--start", type=float, default=0.45, help="success of the policy that runs start from")
    args = parser.parse_args(arguments)
    if args.what == "report":
        print(report())
        return
    th.set_num_threads(1)
    with TemporaryDirectory() as folder:
        path = Path(folder, "start.zip")
        start = make_start(path, args.start)
        print(f"start: {start:.2f}", flush=True)
        for seed in args.seeds:
            for arm in args.arms:
                file = FOLDER / f"{arm}.jsonl"
                if seed not in records.seeds(file):
                    run = {**train(arm, seed, args.steps, path), "start": start}
                    records.put(file, run)
                    print(arm, seed, f"{run['final']:.2f}", flush=True)


if __name__ == "__main__":
    main()
