"""One policy for several tasks: per-task normalisation against global normalisation, and against one policy per task.

usage: python -m scripts.studies.multi_task run [--suite ID] [--seeds 5] [--variants ...]  a line of JSON per run not there yet
       python -m scripts.studies.multi_task report                                         tables and picture from the files

Every run of several tasks has two envs per task, so every task gets the same steps; a single-task run has the same two
envs and the same steps of its task. All of a suite have one set of hyperparameters.
Scores are normalised: 0 is a random policy, 1 the single-task policies of GRPO (mean over seeds).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sb_grpo import GRPO
from sb_grpo.tasks.multi_task import SUITES
from scripts.studies.common import records
from scripts.studies.common.runs import DATA, IMG
from zoo.common.provenance import commit, versions
from zoo.training.settings import make_schedule

ENVS_PER_TASK = 2
EPISODES = 20
FOLDER = DATA / "multi_task"
PICTURE = IMG / "multi_task.png"
RANDOM = "random"
KEY = ("variant", "seed")  # key of a run in a suite

COMMON = dict(n_steps=256, batch_size=64, n_epochs=10, learning_rate="lin_3e-4", gamma=0.99, gae_lambda=0.95, device="cpu")
#: By suite: steps per task, and differences from COMMON for every algorithm.
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "CartPoleTasks-v0": (25_000, {}),
    "PendulumTasks-v0": (50_000, dict(gamma=0.95, learning_rate="lin_1e-3")),
    "LunarLanderTasks-v0": (100_000, dict(n_steps=512, learning_rate="lin_1e-3", gae_lambda=0.98, ent_coef=0.005)),
}


class Variant(NamedTuple):
    """An algorithm and its further arguments.

    ``together``: one policy learns all tasks. ``scaled``: VecNormalize divides the rewards by the spread of their returns.
    """

    label: str
    algorithm: Any
    kwargs: dict[str, Any]
    together: bool = True
    scaled: bool = False
    policy: str = "MlpPolicy"


#: Of GRPO, ``tasks`` is added where one policy learns all.
VARIANTS = {
    "grpo_task": Variant("GRPO, grouping=task", GRPO, dict(group_size=1, multitask=dict(grouping="task"))),
    "grpo_task_constant": Variant(
        "GRPO, grouping=task, constant rate", GRPO, dict(group_size=1, multitask=dict(grouping="task"), learning_rate=3e-4)
    ),
    "grpo_wide": Variant(
        "GRPO, grouping=task, net_arch=[128, 128]",
        GRPO,
        dict(group_size=1, multitask=dict(grouping="task"), policy_kwargs=dict(net_arch=[128, 128])),
    ),
    "grpo_routed": Variant(
        "GRPO, grouping=task, soft modularization",
        GRPO,
        dict(group_size=1, multitask=dict(grouping="task"), policy_kwargs=dict(n_tasks=4)),
        policy="RoutedPolicy",
    ),
    "grpo_global": Variant("GRPO, global normalisation", GRPO, dict(group_size=1, normalize_advantage="batch")),
    "ppo": Variant("PPO", PPO, {}),
    "ppo_scaled": Variant("PPO, rewards scaled by VecNormalize", PPO, {}, scaled=True),
    "grpo_single": Variant("GRPO, a policy per task", GRPO, dict(group_size=1, normalize_advantage="batch"), together=False),
    "ppo_single": Variant("PPO, a policy per task, rewards scaled by VecNormalize", PPO, {}, together=False, scaled=True),
}


def task_names(suite: str) -> list[str]:
    return [task.name for task in SUITES[suite].tasks]


def make_env(suite: str, tasks: list[str], seed: int) -> VecEnv:
    """Two envs per task."""
    env = DummyVecEnv(
        [lambda name=name: Monitor(gym.make(suite, task=name)) for name in tasks for _ in range(ENVS_PER_TASK)]  # type: ignore[misc]
    )
    env.seed(seed)
    return env


def evaluate(suite: str, model: Any, task: str) -> list[float]:
    """Returns of deterministic episodes from fixed starts; of random actions where there is no model."""
    envs = [gym.make(suite, task=task) for _ in range(EPISODES if model else 10 * EPISODES)]
    envs[0].action_space.seed(0)
    obs = np.stack([env.reset(seed=100_000 + i)[0] for i, env in enumerate(envs)])
    returns = np.zeros(len(envs))
    running = np.arange(len(envs))
    while len(running):
        actions = (
            model.predict(obs[running], deterministic=True)[0] if model else [envs[0].action_space.sample() for _ in running]
        )
        going = []
        for i, action in zip(running, actions, strict=True):
            obs[i], reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += float(reward)
            if not (terminated or truncated):
                going.append(i)
        running = np.array(going, dtype=np.int64)
    return returns.tolist()


def settings(suite: str, variant: Variant) -> dict[str, Any]:
    """Constructor arguments, the learning rate as text where it is a schedule."""
    return {**COMMON, **SETTINGS[suite][1], **variant.kwargs}


def train(suite: str, variant: Variant, tasks: list[str], seed: int) -> dict[str, Any]:
    """One policy for these tasks: its returns by task."""
    kwargs = settings(suite, variant)
    if variant.algorithm is GRPO and variant.together:
        kwargs["multitask"] = {**kwargs.get("multitask", {}), "tasks": tasks}
    if isinstance(kwargs["learning_rate"], str):
        kwargs["learning_rate"] = make_schedule(kwargs["learning_rate"])
    env = make_env(suite, tasks, seed)
    start = time.perf_counter()
    if variant.scaled:
        env = VecNormalize(env, norm_obs=False, gamma=kwargs["gamma"])
    model = variant.algorithm(variant.policy, env, seed=seed, **kwargs)
    model.learn(SETTINGS[suite][0] * len(tasks))
    seconds = time.perf_counter() - start
    returns = {task: evaluate(suite, model, task) for task in tasks}
    return {"returns": returns, "env_steps": model.num_timesteps, "seconds": round(seconds, 1)}


def run(suite: str, name: str, seed: int) -> dict[str, Any]:
    """All tasks of a variant: in one training, or in one training each."""
    variant = VARIANTS[name]
    tasks = task_names(suite)
    parts = [train(suite, variant, part, seed) for part in ([tasks] if variant.together else [[task] for task in tasks])]
    return {
        "suite": suite,
        "variant": name,
        "seed": seed,
        "steps_per_task": SETTINGS[suite][0],
        "env_steps": sum(part["env_steps"] for part in parts),
        "seconds": sum(part["seconds"] for part in parts),
        "returns": {task: returns for part in parts for task, returns in part["returns"].items()},
        "settings": {**settings(suite, variant), "slots_per_task": ENVS_PER_TASK, "scaled": variant.scaled},
        "versions": versions(),
        "commit": commit(),
    }


def file_of(suite: str) -> Path:
    """Its raw results: a line per run, and one for random actions."""
    return FOLDER / f"{suite}.jsonl"


def done(suite: str, variant: str, seed: int = 0) -> bool:
    """Whether that has run."""
    return any((run["variant"], run.get("seed", 0)) == (variant, seed) for run in records.read(file_of(suite)))


def random_returns(suite: str) -> np.ndarray:
    """``[tasks]`` mean returns of random actions."""
    found = next(run["returns"] for run in records.read(file_of(suite)) if run["variant"] == RANDOM)
    return np.array([np.mean(found[task]) for task in task_names(suite)])


def results(suite: str, name: str) -> np.ndarray:
    """``[seeds, tasks]`` mean returns, of the runs that there are."""
    found = [run for run in records.read(file_of(suite)) if run["variant"] == name]
    return np.array([[np.mean(run["returns"][task]) for task in task_names(suite)] for run in found])


def gini(scores: np.ndarray) -> float:
    """Mean absolute difference between two scores over twice their mean: 0 all equal, near 1 one has everything."""
    scores = np.clip(scores, 0.0, None)
    return float(np.abs(scores[:, None] - scores[None]).mean() / (2.0 * max(scores.mean(), 1e-12)))


def normalised(suite: str) -> dict[str, np.ndarray]:
    """``[seeds, tasks]`` scores by variant that learns all tasks with one policy."""
    floor = random_returns(suite)
    ceiling = results(suite, "grpo_single").mean(0)
    found = {name: results(suite, name) for name, variant in VARIANTS.items() if variant.together}
    return {name: (returns - floor) / (ceiling - floor) for name, returns in found.items() if len(returns)}


def table(suite: str) -> str:
    """Markdown: scores and fairness by variant, then mean returns."""
    tasks = task_names(suite)
    heads = ["one policy", "seeds", *tasks, "worst task", "worst / best", "Gini"]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, score in normalised(suite).items():
        worst = score.min(1)
        fair = np.clip(score.min(1), 0, None) / score.max(1)
        figures = [f"{m:.2f} ± {s:.2f}" for m, s in zip(score.mean(0), score.std(0), strict=True)]
        figures += [f"{x.mean():.2f} ± {x.std():.2f}" for x in (worst, fair, np.array([gini(s) for s in score]))]
        rows.append(f"| {VARIANTS[name].label} | {len(score)} | {' | '.join(figures)} |")
    rows += ["", f"| mean return | seeds | {' | '.join(tasks)} |", f"|---|---|{'---|' * len(tasks)}"]
    rows.append(f"| random policy | - | {' | '.join(f'{x:.3g}' for x in random_returns(suite))} |")
    for name, variant in VARIANTS.items():
        means = results(suite, name)
        if len(means):
            cells = [f"{m:.4g} ± {s:.2g}" for m, s in zip(means.mean(0), means.std(0), strict=True)]
            rows.append(f"| {variant.label} | {len(means)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def draw(suites: list[str]) -> None:
    """Bars of normalised scores by task, a dot per seed; a panel per suite."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from zoo.comparing import figures

    figure, panels = plt.subplots(len(suites), figsize=(8.0, 2.9 * len(suites)), squeeze=False, layout="constrained")
    style = figures.styles(list(VARIANTS))  # of all of them, so that they look the same whichever a suite has
    for axis, suite in zip(panels[:, 0], suites, strict=True):
        scores = normalised(suite)
        width = 0.8 / len(scores)
        for i, (name, score) in enumerate(scores.items()):
            x = np.arange(score.shape[1]) + (i - (len(scores) - 1) / 2) * width
            axis.bar(x, score.mean(0), width, label=VARIANTS[name].label, alpha=0.6, color=style[name]["color"])
            for row in score:
                axis.plot(x, np.clip(row, -1.0, None), "k.", markersize=3)
        axis.axhline(0.9, color="grey", linewidth=0.8, linestyle="--")
        axis.set_xticks(range(len(SUITES[suite].tasks)), [f"{t.name}\nreward x {t.scale:g}" for t in SUITES[suite].tasks])
        lowest = min(score.min() for score in scores.values())
        axis.set(ylabel="score (1 = policy per task)", title=suite, ylim=(max(-1.0, lowest - 0.1), None))
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(PICTURE, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--suite", choices=list(SETTINGS), help="default: all of these")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    args = parser.parse_args()
    th.set_num_threads(1)
    suites = [args.suite] if args.suite else list(SETTINGS)
    if args.what == "report":
        for suite in suites:
            print(f"{suite}\n\n{table(suite)}\n")
        draw(suites)
        return
    for suite in suites:
        file = file_of(suite)
        if not done(suite, RANDOM):
            returns = {task: evaluate(suite, None, task) for task in task_names(suite)}
            records.put(file, {"variant": RANDOM, "returns": returns}, *KEY)
        for seed in range(args.seeds):
            for name in args.variants:
                if not done(suite, name, seed):
                    records.put(file, run(suite, name, seed), *KEY)
                    print(f"{file}: {name}, seed {seed}", flush=True)


if __name__ == "__main__":
    main()
