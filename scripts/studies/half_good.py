"""Fine-tuning of a half-good policy with one success at the end of an episode: PPO with a fresh critic, and GRPO's estimators.

usage: python -m scripts.studies.half_good run [--task ...] [--seeds 0 1 2] [--arms ...]      trains what is missing
       python -m scripts.studies.half_good report                                            prints the tables

pendulum: it must stand for the last 40 of 200 steps. PPO learns it with Pendulum's dense reward until about 45 in 100 episodes
succeed. grid: MiniGrid's DoorKey-5x5; the actor is a clone of a trained one, stopped at about 45 successes in 100 episodes.
Every run starts from that actor and sees the success alone. Raw runs: docs/studies/data/half_good and half_good_grid, a file
per arm.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.wrappers import DtypeObservation, FlattenObservation
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb_grpo import GRPO
from sb_grpo.policies import load_actor
from scripts.studies.common import records
from scripts.studies.common.compared import better, markdown, middle
from scripts.studies.common.runs import DATA, EVAL_SEED
from zoo.common.provenance import commit, versions

STANDS = 40  #: last steps of an episode in which the pendulum must stand
MOVES = 50  #: time limit of the grid; a trained policy needs about 12
UPRIGHT = 0.95  #: cosine of the angle
STEPS = 25_600
EARLY = 12_800
EPISODES = 100
N_ENVS = 16
SETTINGS: dict[str, Any] = dict(learning_rate=3e-4, batch_size=256, n_epochs=5, device="cpu")
WARM_UP = 2  #: updates of the critic alone
ARMS: dict[str, dict[str, Any]] = {
    "ppo": {"gamma": 0.99},
    "ppo-warm": {"gamma": 0.99},
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


class Arriving(gym.Wrapper[Any, Any, Any, Any]):
    """Pays 1 for the goal, however long the way was."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            info["is_success"] = float(reward) > 0
        return obs, float(float(reward) > 0), terminated, truncated, info


def arriving() -> gym.Env[Any, Any]:
    """Make the env, with MiniGrid's view as 147 floats."""
    wrappers = import_module("minigrid.wrappers")
    view = wrappers.ImgObsWrapper(Arriving(gym.make("MiniGrid-DoorKey-5x5-v0", max_steps=MOVES)))
    return DtypeObservation(FlattenObservation(view), np.float32)


class WarmPPO(PPO):
    """PPO whose first updates train the critic alone."""

    def train(self) -> None:
        both = self._n_updates >= WARM_UP * self.n_epochs
        for name, parameter in self.policy.named_parameters():
            parameter.requires_grad_(both or "value" in name)
        super().train()


def success(model: Any, make: Callable[[], gym.Env[Any, Any]], deterministic: bool = False) -> float:
    """Share of successful episodes, the same starts for all."""
    envs = make_vec_env(make, N_ENVS, seed=EVAL_SEED)
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
        self.found = bool(self.before) and success(self.model, standing) >= self.wanted
        if not self.found:
            self.before = after
            return
        low = 0.0
        high = 1.0
        for _ in range(8):
            share = (low + high) / 2
            policy.load_state_dict({name: value.lerp(after[name], share) for name, value in self.before.items()})
            reached = success(self.model, standing)
            if abs(reached - self.wanted) <= 0.05:
                return
            if reached < self.wanted:
                low = share
            else:
                high = share


class Curve(BaseCallback):
    """Records the share of successes of each rollout's episodes, and their number."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[float]] = []
        self.ended: list[bool] = []

    def _on_step(self) -> bool:
        self.ended += [info["is_success"] for info in self.locals["infos"] if "is_success" in info]
        return True

    def _on_rollout_end(self) -> None:
        if self.ended:
            self.rows.append([self.num_timesteps, round(float(np.mean(self.ended)), 4), len(self.ended)])
            self.ended = []


def half_trained(wanted: float) -> PPO:
    """Train the pendulum's policy with the dense reward until it is half good."""
    envs = make_vec_env("Pendulum-v1", 4, seed=0)
    model = PPO("MlpPolicy", envs, n_steps=1024, gamma=0.9, learning_rate=1e-3, seed=0, device="cpu")
    model.learn(300_000, callback=HalfGood(wanted))
    return model


def half_cloned(wanted: float) -> PPO:
    """Clone the actions of a trained policy until the clone is half good."""
    envs: Any = make_vec_env(arriving, N_ENVS, seed=0)
    expert = GRPO("MlpPolicy", envs, n_steps=128, seed=0, **{**SETTINGS, "learning_rate": 1e-3}).learn(40_960)
    observations = []
    actions = []
    obs = envs.reset()
    for _ in range(64):
        chosen, _ = expert.predict(obs)
        observations.append(th.as_tensor(obs))
        actions.append(th.as_tensor(chosen))
        obs = envs.step(chosen)[0]
    shown = th.cat(observations)
    wished = th.cat(actions)

    clone = PPO("MlpPolicy", envs, seed=0, device="cpu")
    optimizer = th.optim.Adam(clone.policy.parameters(), lr=1e-3)
    while success(clone, arriving) < wanted - 0.05:
        for _ in range(5):
            rows = th.randint(len(shown), (256,))
            loss = -clone.policy.evaluate_actions(shown[rows], wished[rows])[1].mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return clone


class Task(NamedTuple):
    """Env with one success at the end, and the policy that all runs start from."""

    make: Callable[[], gym.Env[Any, Any]]
    start: Callable[[float], PPO]
    n_steps: int
    folder: Path


TASKS = {
    "pendulum": Task(standing, half_trained, 200, DATA / "half_good"),
    "grid": Task(arriving, half_cloned, 128, DATA / "half_good_grid"),
}


def train(task: Task, arm: str, seed: int, steps: int, start: Path) -> dict[str, Any]:
    """Train one arm from the half-good actor; all arms see the success alone."""
    envs = make_vec_env(task.make, N_ENVS, seed=seed)
    kind: type = {"ppo": PPO, "ppo-warm": WarmPPO}.get(arm, GRPO)
    model = kind("MlpPolicy", envs, n_steps=task.n_steps, seed=seed, **SETTINGS, **ARMS[arm])
    if isinstance(model, PPO):  # the actor alone: its critic has learnt other rewards
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
        "curve": curve.rows, "final": success(model, task.make), "final_deterministic": success(model, task.make, True),
        "commit": commit(), "versions": versions(),
    }  # fmt: skip


def early(run: dict[str, Any]) -> float:
    """Share of successes of all training episodes that ended in the first 12,800 steps."""
    rows = [row for row in run["curve"] if row[0] <= EARLY]
    episodes = [row[2] if len(row) > 2 else N_ENVS for row in rows]
    return float(np.average([row[1] for row in rows], weights=episodes))


def report(task: Task) -> str:
    """Markdown: lowest and early success in training, and that of the last weights; P(above) is that over `ppo`."""
    found = {arm: records.read(task.folder / f"{arm}.jsonl") for arm in ARMS}
    rows = []
    for arm, runs in found.items():
        if not runs:
            continue
        cells = []
        for of in (early, lambda run: run["final"]):
            values = np.array([of(run) for run in runs])
            others = np.array([of(run) for run in found["ppo"]])
            cells += [middle(values), "" if arm == "ppo" else better(values, others)]
        lowest = np.mean([min(row[1] for row in run["curve"][1:]) for run in runs])  # the first is the start's own
        likeliest = middle(np.array([run["final_deterministic"] for run in runs]))
        rows.append([f"`{arm}`", str(len(runs)), f"{lowest:.2f}", *cells, likeliest])
    heads = ["arm", "seeds", "lowest rollout", "first 12,800 steps", "P(above)", "end, sampled", "P(above)", "end, likeliest"]
    return markdown(heads, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--task", choices=list(TASKS), default="pendulum")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--start", type=float, default=0.45, help="success of the policy that runs start from")
    args = parser.parse_args(arguments)
    if args.what == "report":
        for name, task in TASKS.items():
            print(f"### {name}\n\n{report(task)}\n")
        return
    th.set_num_threads(1)
    task = TASKS[args.task]
    with TemporaryDirectory() as folder:
        path = Path(folder, "start.zip")
        start = task.start(args.start)
        start.save(path)
        measured = {"start": success(start, task.make), "start_deterministic": success(start, task.make, True)}
        print(measured, flush=True)
        for seed in args.seeds:
            for arm in args.arms:
                file = task.folder / f"{arm}.jsonl"
                if seed not in records.seeds(file):
                    run = {**train(task, arm, seed, args.steps, path), **measured}
                    records.put(file, run)
                    print(arm, seed, f"{early(run):.2f} {run['final']:.2f} {run['cpu_seconds']} s", flush=True)


if __name__ == "__main__":
    main()
