"""Sparse rewards on small tasks: PPO and GRPO's estimators, and the parts that make SB3's PPO and GRPO differ, one at a time.

usage: python -m scripts.studies.sparse run [--tasks ...] [--arms ...] [--seeds ...]     trains what is missing
       python -m scripts.studies.sparse report                                          prints the tables of the page

Needs minigrid. Raw runs: docs/studies/data/sparse, one file per arm.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import DtypeObservation, FlattenObservation
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import GRPO, GroupRolloutBuffer
from sb_grpo.baselines.estimators import State
from scripts.studies.common import records
from scripts.studies.common.compared import better, markdown, middle
from scripts.studies.common.runs import DATA, EVAL_SEED
from zoo.common.provenance import commit, versions
from zoo.comparing.statistics import iqm

FOLDER = DATA / "sparse"
N_ENVS = 8
SEEDS_TO_COMPARE = 3  #: from which a cell has an interval


class Task(NamedTuple):
    """Env and its budget."""

    env: str
    steps: int
    solved: float  #: mean training return that counts as solved
    flat_view: bool = False  #: 147 numbers of MiniGrid's egocentric view
    episodes: int = 50  #: played with the last weights


TASKS = {
    "Empty-Random-5x5": Task("MiniGrid-Empty-Random-5x5-v0", 60_000, 0.9, True),
    "DoorKey-5x5": Task("MiniGrid-DoorKey-5x5-v0", 100_000, 0.9, True),
    "FrozenLake8x8": Task("FrozenLake8x8-v1", 150_000, 0.5, episodes=200),
    "Taxi": Task("Taxi-v4", 60_000, 7.5),
    "MountainCar": Task("MountainCar-v0", 100_000, -150.0),
    "Ant": Task("Ant-v5", 100_000, 1_000.0, episodes=10),  # not sparse: docs/studies/settings.md
}


class SignalPPO(PPO):
    """PPO that leaves the policy as it is after a rollout whose rewards are all equal."""

    def train(self) -> None:
        if np.ptp(self.rollout_buffer.rewards) > 0:
            super().train()


class RolloutPPO(PPO):
    """PPO whose advantages are normalised once over the rollout, as GRPO's are, in place of over each minibatch."""

    def train(self) -> None:
        advantages = self.rollout_buffer.advantages
        self.rollout_buffer.advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        super().train()


class RandomStart(State):
    """``"state"`` whose baseline begins with random values, as a critic does, so that rollouts without reward have noise."""

    def build(self, features_dim: int, n_tasks: int, n_objectives: int) -> Any:
        baseline: Any = super().build(features_dim, n_tasks, n_objectives)
        baseline.weights.normal_(std=0.1, generator=th.Generator().manual_seed(0))
        return baseline


class FloatBuffer(RolloutBuffer):
    """SB3's buffer with floats for observations, as before SB3 2.7.1, whatever the type of the observation space."""

    def reset(self) -> None:
        super().reset()
        self.observations = self.observations.astype(np.float32)


class SpaceBuffer(GroupRolloutBuffer):
    """GRPO's buffer with observations in the type of the observation space, as SB3's has them."""

    def add(self, obs: Any, *args: Any, **kwargs: Any) -> None:
        super().add(th.as_tensor(obs.numpy().astype(self.observation_space.dtype)), *args, **kwargs)


class Arm(NamedTuple):
    """One setting: class and its arguments beside the defaults."""

    kind: type
    change: str  #: for the table
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed
    norm_obs: bool = True
    norm_reward: bool = True
    declares: type | None = None  #: type of the observation space, in place of the env's


OWN = {"n_steps": 256}
LIKE_GRPO = {**OWN, "gamma": 0.995, "normalize_advantage": False}
ANCHOR = {**OWN, "group_size": 8, "advantage": "anchor", "gamma": 0.95}
GROUPS = {**OWN, "group_size": 8}
ZOO = {"n_steps": 128, "learning_rate": 2.5e-4}
ARMS = {
    "ppo": Arm(PPO, "SB3's defaults, `n_steps=256`, VecNormalize", OWN),
    "ppo-obs": Arm(PPO, "rewards not normalised", OWN, norm_reward=False),
    "ppo-plain": Arm(PPO, "no VecNormalize", OWN, False, False),
    "ppo-signal": Arm(SignalPPO, "no update where all rewards are equal", OWN),
    "ppo-rollout": Arm(RolloutPPO, "advantages normalised over the rollout", {**OWN, "normalize_advantage": False}),
    "ppo-clip": Arm(PPO, "gradient not clipped (SB3 clips actor and critic together)", {**OWN, "max_grad_norm": 1e6}),
    "ppo-gamma": Arm(PPO, "gamma 0.98, GRPO's default for episodes of 100 steps", {**OWN, "gamma": 0.98}),
    "ppo-buffer": Arm(PPO, "the rollout buffer keeps floats", {**OWN, "rollout_buffer_class": FloatBuffer}),
    "ppo-float": Arm(PPO, "the env declares float32", OWN, declares=np.float32),
    "ppo-own": Arm(RolloutPPO, "GRPO's settings: gamma, raw rewards, advantages by rollout", LIKE_GRPO, norm_reward=False),
    "ppo-zoo": Arm(PPO, "rl_zoo3's settings for MiniGrid", ZOO),
    "grpo": Arm(GRPO, "the constructor's defaults, observations normalised", OWN, norm_reward=False),
    "grpo-random": Arm(GRPO, "the baseline begins with random values", {**OWN, "advantage": RandomStart()}, norm_reward=False),
    "grpo-cut": Arm(GRPO, "the rollout buffer keeps `uint8`", {**OWN, "rollout_buffer_class": SpaceBuffer}, norm_reward=False),
    "grpo-quiet": Arm(GRPO, "`log_std_init=-1`", {**OWN, "policy_kwargs": {"log_std_init": -1.0}}, norm_reward=False),
    "grpo-plain": Arm(GRPO, "no VecNormalize", OWN, False, False),
    "step": Arm(GRPO, '`"step"`, groups of 8', {**GROUPS, "advantage": "step"}, norm_reward=False),
    "outcome": Arm(GRPO, '`"outcome"`, groups of 8', {**GROUPS, "advantage": "outcome"}, norm_reward=False),
    "outcome-anchor": Arm(GRPO, '`"outcome"` with the settings of `anchor`', {**ANCHOR, "advantage": "outcome"}, False, False),
    "anchor-gamma": Arm(GRPO, '`"anchor"` with gamma 0.995', {**ANCHOR, "gamma": 0.995}, False, False),
    "anchor": Arm(GRPO, '`"anchor"`, groups of 8, gamma 0.95, no VecNormalize', ANCHOR, False, False),
}  # fmt: skip


def make_envs(task: Task, seed: int, declares: type | None = None, n_envs: int = N_ENVS) -> Any:
    """Envs of a task below any VecNormalize."""
    wrapper: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]] | None = None
    if task.flat_view:
        wrappers = import_module("minigrid.wrappers")

        def wrapper(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
            flat = FlattenObservation(wrappers.ImgObsWrapper(env))
            return flat if declares is None else DtypeObservation(flat, declares)

    return make_vec_env(task.env, n_envs, seed=seed, wrapper_class=wrapper)  # type: ignore[arg-type]


class Curve(BaseCallback):
    """Records training return and entropy after each rollout, and rollouts of which all rewards are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[float]] = []
        self.without_signal = 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        buffer = model.rollout_buffer
        rewards = np.asarray(buffer.steps["rewards"][: buffer.pos] if isinstance(model, GRPO) else buffer.rewards)
        self.without_signal = self.without_signal + int(np.ptp(rewards) == 0)
        with th.no_grad():
            entropy = model.policy.get_distribution(obs_as_tensor(model._last_obs, model.device)).entropy().mean()
        returns = [info["r"] for info in model.ep_info_buffer]
        self.rows.append([self.num_timesteps, round(float(np.mean(returns)), 4) if returns else 0.0, round(float(entropy), 4)])


def train(name: str, task_name: str, seed: int, budget: int) -> dict[str, Any]:
    """Train one arm with one seed, then play the last weights with the likeliest and with sampled actions."""
    th.set_num_threads(1)
    arm = ARMS[name]
    task = TASKS[task_name]
    envs = make_envs(task, seed, arm.declares)
    norm_obs = arm.norm_obs and isinstance(envs.observation_space, spaces.Box)
    if norm_obs or arm.norm_reward:
        gamma = arm.settings.get("gamma", 0.99)
        envs = VecNormalize(envs, norm_obs=norm_obs, norm_reward=arm.norm_reward, gamma=gamma)
    model = arm.kind("MlpPolicy", envs, seed=seed, device="cpu", **arm.settings)
    curve = Curve()
    start = time.process_time()
    model.learn(budget, callback=curve)
    seconds = time.process_time() - start
    returns = {}
    for deterministic in (True, False):
        played = make_envs(task, EVAL_SEED, arm.declares)
        if isinstance(envs, VecNormalize):
            played = VecNormalize(played, training=False, norm_obs=norm_obs, norm_reward=False)
            if norm_obs:
                played.obs_rms = envs.obs_rms
        th.manual_seed(EVAL_SEED)
        earned: Any = evaluate_policy(model, played, task.episodes, deterministic, return_episode_rewards=True)[0]
        returns["deterministic" if deterministic else "stochastic"] = [round(float(r), 4) for r in earned]
    return {
        "arm": name,
        "task": task_name,
        "seed": seed,
        "budget": budget,
        "env_steps": model.num_timesteps,
        "cpu_seconds": round(seconds, 1),
        "group_size": getattr(model, "group_size", None),
        "rollouts_without_signal": curve.without_signal,
        "curve": curve.rows,
        **returns,
        "commit": commit(),
        "versions": versions(),
    }


def solved_at(run: dict[str, Any]) -> int | None:
    """Env steps after which the mean training return of the last 100 episodes is at the task's level."""
    return next((int(row[0]) for row in run["curve"] if row[1] >= TASKS[run["task"]].solved), None)


def _over_seeds(values: np.ndarray) -> str:
    """Interquartile mean with the 95 % interval, or a number per seed where there are fewer than three."""
    return middle(values) if len(values) >= SEEDS_TO_COMPARE else ", ".join(f"{value:.2f}" for value in values)


def _measures(runs: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return a number per run: mean return over the training, at its end, and of the last weights."""
    return {
        "on the way": np.array([np.mean([row[1] for row in run["curve"]]) for run in runs]),
        "in training": np.array([run["curve"][-1][1] for run in runs]),
        "likeliest action": np.array([np.mean(run["deterministic"]) for run in runs]),
        "sampled actions": np.array([np.mean(run["stochastic"]) for run in runs]),
    }


def _table(task: Task, of_arms: dict[str, list[dict[str, Any]]]) -> str:
    """Table of a task; P(above) compares with the PPO that has the highest interquartile mean of the column before."""
    measures = {name: _measures(runs) for name, runs in of_arms.items()}
    compared = [name for name, runs in of_arms.items() if len(runs) >= SEEDS_TO_COMPARE]

    def above(name: str, measure: str) -> str:
        ppo = {rival: measures[rival][measure] for rival in compared if issubclass(ARMS[rival].kind, PPO)}
        best = max(ppo, key=lambda rival: float(iqm([ppo[rival]])), default=None)
        if best is None or name not in compared:
            return ""
        return "best PPO" if name == best else better(measures[name][measure], ppo[best])

    rows = []
    for name, runs in of_arms.items():
        cells = {measure: _over_seeds(values) for measure, values in measures[name].items()}
        steps = [solved_at(run) for run in runs]
        rows.append([
            f"`{name}`", ARMS[name].change, str(len(runs)), cells["on the way"], above(name, "on the way"),
            cells["in training"], cells["likeliest action"], cells["sampled actions"], above(name, "sampled actions"),
            ", ".join("-" if n is None else f"{n:,}" for n in steps),
            f"{np.mean([run['curve'][-1][2] for run in runs]):.2f}",
            f"{np.mean([run['rollouts_without_signal'] for run in runs]):.1f}",
        ])  # fmt: skip
    heads = ["arm", "change", "seeds", "on the way", "P(above)", "in training", "likeliest action", "sampled actions"]
    heads += ["P(above)", f"steps to {task.solved:g} in training", "entropy at the end", "rollouts with equal rewards"]
    return markdown(heads, rows)


def report() -> str:
    """Markdown: one table per task, one row per arm."""
    runs = records.read_folder(FOLDER)
    lines = []
    for task, budget in sorted({(run["task"], run["budget"]) for run in runs}):
        here = [run for run in runs if (run["task"], run["budget"]) == (task, budget)]
        of_arms = {arm: of_arm for arm in ARMS if (of_arm := [run for run in here if run["arm"] == arm])}
        lines += [f"### {task}, {budget:,} steps", "", _table(TASKS[task], of_arms), ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["Empty-Random-5x5", "DoorKey-5x5"])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--steps", type=int, help="in place of the task's budget")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args(arguments)
    if args.what == "report":
        print(report())
        return
    for task in args.tasks:
        for seed in args.seeds:
            for arm in args.arms:
                file = FOLDER / f"{arm}.jsonl"
                budget = args.steps or TASKS[task].steps
                if (task, seed, budget) in {(run["task"], run["seed"], run["budget"]) for run in records.read(file)}:
                    continue
                run = train(arm, task, seed, budget)
                records.put(file, run, "task", "seed", "budget")
                means = [f"{np.mean(run[kind]):.2f}" for kind in ("deterministic", "stochastic")]
                print(task, arm, seed, *means, "solved at", solved_at(run), f"{run['cpu_seconds']} s", flush=True)


if __name__ == "__main__":
    main()
