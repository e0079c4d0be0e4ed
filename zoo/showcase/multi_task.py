"""One policy for several tasks: per-task normalisation against global normalisation, and against one policy per task.

usage: python -m zoo.showcase.multi_task run [--seeds 5] [--variants ...]     one JSON file per run that is not there yet
       python -m zoo.showcase.multi_task report                               table and picture from the files

Every run of several tasks has two env slots per task, so every task gets the same steps; a single-task run has the same two
slots and the same steps of its task. All have one set of hyperparameters: n_steps 256, minibatches of 64, 10 epochs.
Scores are normalised: 0 is a random policy, 1 the single-task policies of GRPO (mean over seeds).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from sb_grpo import GRPO
from sb_grpo.envs.tasks import SUITES
from zoo.provenance import commit, versions
from zoo.showcase.runs import DATA, IMG

SUITE = "CartPoleTasks-v0"
TASKS = [task.name for task in SUITES[SUITE].tasks]
STEPS_PER_TASK, SLOTS_PER_TASK, EPISODES = 25_000, 2, 20
FOLDER, PICTURE = DATA / "multi_task", IMG / "multi_task.png"

COMMON = dict(n_steps=256, batch_size=64, n_epochs=10, learning_rate=3e-4, gamma=0.99, gae_lambda=0.95, device="cpu")
#: Algorithm, its arguments, and whether one policy learns all tasks.
VARIANTS: dict[str, tuple[Any, dict[str, Any], bool]] = {
    "grpo_task": (GRPO, dict(group_size=1, tasks=TASKS, grouping="task"), True),
    "ppo": (PPO, {}, True),
    "grpo_single": (GRPO, dict(group_size=1, normalize_advantage="batch"), False),
    "grpo_global": (GRPO, dict(group_size=1, tasks=TASKS, normalize_advantage="batch"), True),
    "ppo_single": (PPO, {}, False),
}
LABELS = {
    "grpo_task": "GRPO, grouping=task",
    "grpo_global": "GRPO, global normalisation",
    "ppo": "PPO (SB3), global normalisation",
}


def make_env(tasks: list[str], seed: int) -> DummyVecEnv:
    """Two slots per task."""
    env = DummyVecEnv(
        [lambda name=name: Monitor(gym.make(SUITE, task=name)) for name in tasks for _ in range(SLOTS_PER_TASK)]  # type: ignore[misc]
    )
    env.seed(seed)
    return env


def evaluate(model: Any, task: str) -> list[float]:
    """Returns of deterministic episodes from fixed starts; of random actions where there is no model."""
    envs = [gym.make(SUITE, task=task) for _ in range(EPISODES if model else 10 * EPISODES)]
    envs[0].action_space.seed(0)
    obs = np.stack([env.reset(seed=100_000 + i)[0] for i, env in enumerate(envs)])
    returns, running = np.zeros(len(envs)), np.arange(len(envs))
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


def train(algorithm: Any, kwargs: dict[str, Any], tasks: list[str], seed: int) -> dict[str, Any]:
    """One policy for these tasks: its returns by task."""
    start = time.perf_counter()
    model = algorithm("MlpPolicy", make_env(tasks, seed), seed=seed, **COMMON, **kwargs)
    model.learn(STEPS_PER_TASK * len(tasks))
    seconds = time.perf_counter() - start
    returns = {task: evaluate(model, task) for task in tasks}
    return {"returns": returns, "env_steps": model.num_timesteps, "seconds": round(seconds, 1)}


def run(variant: str, seed: int) -> dict[str, Any]:
    """All tasks of a variant: in one training, or in one training each."""
    algorithm, kwargs, together = VARIANTS[variant]
    parts = [train(algorithm, kwargs, tasks, seed) for tasks in ([TASKS] if together else [[task] for task in TASKS])]
    return {
        "suite": SUITE,
        "variant": variant,
        "seed": seed,
        "steps_per_task": STEPS_PER_TASK,
        "env_steps": sum(part["env_steps"] for part in parts),
        "seconds": sum(part["seconds"] for part in parts),
        "returns": {task: returns for part in parts for task, returns in part["returns"].items()},
        "settings": {**COMMON, **kwargs, "slots_per_task": SLOTS_PER_TASK},
        "versions": versions(),
        "commit": commit(),
    }


def results(variant: str) -> Iterator[tuple[int, np.ndarray]]:
    """Seed and mean return of every task, of the files that there are."""
    for file in sorted(FOLDER.glob(f"{variant}_[0-9]*.json")):
        found = json.loads(file.read_text())
        yield found["seed"], np.array([np.mean(found["returns"][task]) for task in TASKS])


def gini(scores: np.ndarray) -> float:
    """Mean absolute difference between two scores over twice their mean: 0 all equal, near 1 one has everything."""
    scores = np.clip(scores, 0.0, None)
    return float(np.abs(scores[:, None] - scores[None]).mean() / (2.0 * max(scores.mean(), 1e-12)))


def table_and_scores() -> tuple[list[str], dict[str, np.ndarray]]:
    """Markdown rows, and ``[seeds, tasks]`` normalised scores by variant."""
    random = json.loads((FOLDER / "random.json").read_text())
    floor = np.array([np.mean(random[task]) for task in TASKS])
    rows = [f"| | seeds | {' | '.join(TASKS)} | worst task | worst / best | Gini |", f"|---|---|{'---|' * (len(TASKS) + 3)}"]
    scores: dict[str, np.ndarray] = {}
    for variant, label in LABELS.items():
        reference, found = [r for _, r in results("grpo_single")], [r for _, r in results(variant)]
        if not reference or not found:
            continue
        ceiling = np.mean(reference, axis=0)
        score = (np.array(found) - floor) / (ceiling - floor)
        scores[variant] = score
        worst, fair = score.min(1), np.clip(score.min(1), 0, None) / score.max(1)
        figures = [f"{m:.2f} ± {s:.2f}" for m, s in zip(score.mean(0), score.std(0), strict=True)]
        figures += [f"{x.mean():.2f} ± {x.std():.2f}" for x in (worst, fair, np.array([gini(s) for s in score]))]
        rows.append(f"| {label} | {len(found)} | {' | '.join(figures)} |")
    returns = [f"| random policy | {' | '.join(f'{x:.3g}' for x in floor)} |"]
    for variant in VARIANTS:
        means = np.array([r for _, r in results(variant)])
        if len(means):
            cells = [f"{m:.4g} ± {s:.2g}" for m, s in zip(means.mean(0), means.std(0), strict=True)]
            returns.append(f"| {variant} ({len(means)} seeds) | {' | '.join(cells)} |")
    return [*rows, "", f"| mean return | {' | '.join(TASKS)} |", f"|---|{'---|' * len(TASKS)}", *returns], scores


def draw(scores: dict[str, np.ndarray]) -> None:
    """Bars of normalised scores by task, a dot per seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.0, 3.2))
    width = 0.8 / len(scores)
    for i, (variant, score) in enumerate(scores.items()):
        x = np.arange(len(TASKS)) + (i - (len(scores) - 1) / 2) * width
        axis.bar(x, score.mean(0), width, label=LABELS[variant], alpha=0.6)
        for row in score:
            axis.plot(x, row, "k.", markersize=3)
    axis.axhline(0.9, color="grey", linewidth=0.8, linestyle="--")
    axis.set_xticks(range(len(TASKS)), [f"{t.name}\nreward x {t.scale:g}" for t in SUITES[SUITE].tasks])
    axis.set_ylabel("score (1 = single-task policy)")
    axis.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
    figure.savefig(PICTURE, dpi=110, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    args = parser.parse_args()
    th.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    if args.what == "report":
        rows, scores = table_and_scores()
        print("\n".join(rows))
        draw(scores)
        return
    file = FOLDER / "random.json"
    if not file.exists():
        file.write_text(json.dumps({task: evaluate(None, task) for task in TASKS}) + "\n")
    for seed in range(args.seeds):
        for variant in args.variants:
            file = FOLDER / f"{variant}_{seed}.json"
            if not file.exists():
                file.write_text(json.dumps(run(variant, seed)) + "\n")
                print(file, flush=True)


if __name__ == "__main__":
    main()
