"""Fine-tuning a PPO policy with GRPO under stronger gravity, by ``kl_coef``: gain in the new env, loss in the old one.

usage: python -m scripts.studies.fine_tuning [--report]     train missing runs; docs/studies/fine_tuning.md and picture

PPO learns Pendulum-v1 (g = 10). GRPO starts from its actor on g = 14, with the KL to it as a penalty. Every run, and the
policy they start from, plays the same 100 reset seeds on both.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb_grpo import GRPO
from sb_grpo.policies import ActorPolicy, load_actor
from scripts.studies.common import records
from scripts.studies.common.runs import DATA, IMG
from zoo.common.provenance import commit, versions
from zoo.comparing.figures import OKABE_ITO

FILE = DATA / "fine_tuning.jsonl"
PICTURE = IMG / "fine_tuning.png"
ENV = "Pendulum-v1"
OLD = 10.0
NEW = 14.0
PPO_STEPS = 150_000
STEPS = 32_768
SEEDS = range(5)
EPISODES = 100
COEFFICIENTS = (0.0, 0.1, 0.3, 1.0, 3.0)
SCRATCH = "from scratch"
START = "PPO, as it is"
SETTINGS: dict[str, Any] = dict(
    n_steps=512, n_epochs=5, gamma=0.95, learning_rate=3e-4, clip_range=0.1, normalize_advantage="group", device="cpu"
)


def pretrained(path: Path) -> dict[str, Any]:
    """The policy that all runs start from."""
    envs = make_vec_env(ENV, 4, seed=0)
    settings: dict[str, Any] = dict(n_steps=1024, gamma=0.9, learning_rate=1e-3, seed=0, device="cpu")
    model = PPO("MlpPolicy", envs, **settings).learn(PPO_STEPS)
    model.save(path)
    return {"label": START, "seed": 0, "env_steps": model.num_timesteps, **returns(model), "kl": 0.0}


def fine_tuned(label: str, kl_coef: float, seed: int, path: Path) -> dict[str, Any]:
    """One run.

    :param path: of the PPO model
    """
    reference: dict[str, Any] = {"kl_coef": kl_coef, "loss_kwargs": {"ref_policy": path}} if kl_coef > 0 else {}
    envs = make_vec_env(ENV, 4, env_kwargs={"g": NEW})
    model = GRPO("MlpPolicy", envs, seed=seed, **SETTINGS, **reference)
    start = time.perf_counter()
    if label != SCRATCH:
        load_actor(model.policy, path)
    model.learn(STEPS)
    seconds = time.perf_counter() - start
    found = {"label": label, "seed": seed, "kl_coef": kl_coef, "env_steps": model.num_timesteps, "seconds": round(seconds, 2)}
    return {**found, **returns(model), "kl": kl_to(model, path)}


def returns(model: Any) -> dict[str, list[float]]:
    """Returns of deterministic episodes in the old and in the new env."""
    found = {}
    for name, g in (("old", OLD), ("new", NEW)):
        envs = make_vec_env(ENV, 10, seed=10_000, env_kwargs={"g": g})
        earned: Any = evaluate_policy(model, envs, EPISODES, return_episode_rewards=True)[0]
        found[name] = [round(float(r), 2) for r in earned]
    return found


def kl_to(model: GRPO, path: Path) -> float:
    """KL(policy || PPO's actor) in nats per step, over one more rollout of the policy."""
    other = ActorPolicy(model.observation_space, model.action_space, lambda _: 0.0)
    load_actor(other, path)
    rollout = model.collect()
    policies = (model.policy, other)
    assert rollout is not None
    with th.no_grad():
        found: list[Any] = [policy.get_distribution(rollout.observations).distribution for policy in policies]
        return float(th.distributions.kl_divergence(*found).sum(dim=1).mean())


def rows() -> list[tuple[str, Sequence[dict[str, Any]]]]:
    """The runs by label, in the order of the table."""
    runs = records.read(FILE)
    labels = [START, SCRATCH, *map(label_of, COEFFICIENTS)]
    return [(label, [run for run in runs if run["label"] == label]) for label in labels]


def label_of(kl_coef: float) -> str:
    return f"kl_coef {kl_coef:g}"


def table() -> str:
    """Markdown: means over seeds, and their range."""
    lines = ["| run | seeds | return at g = 14 | return at g = 10 | KL to PPO's policy |", "|---|---|---|---|---|"]
    measures: list[Callable[[dict[str, Any]], float]] = [
        lambda run: float(np.mean(run["new"])), lambda run: float(np.mean(run["old"])), lambda run: float(run["kl"])
    ]  # fmt: skip
    for label, runs in rows():
        cells = [_cell([of(run) for run in runs], ".0f" if i < 2 else ".3f") for i, of in enumerate(measures)]
        lines.append(f"| {label} | {len(runs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: Sequence[float], form: str) -> str:
    mean = f"{np.mean(values):{form}}"
    return mean if len(values) == 1 else f"{mean} ({min(values):{form}} to {max(values):{form}})"


def draw() -> None:
    """docs/img/fine_tuning.png: returns of every run in the new env and in the old one, by the weight of the penalty."""
    order = [START, *(label_of(k) for k in reversed(COEFFICIENTS)), SCRATCH]
    by_label = dict(rows())
    figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
    for name, colour, gravity in (("new", OKABE_ITO[0], NEW), ("old", OKABE_ITO[1], OLD)):
        returns = [[float(np.mean(run[name])) for run in by_label[label]] for label in order]
        for place, values in enumerate(returns):
            axes.plot([place] * len(values), values, "o", color=colour, alpha=0.5, markersize=5)
        word = "new env, where it is fine-tuned" if name == "new" else "old env, where PPO learnt"
        axes.plot([np.mean(values) for values in returns], color=colour, label=f"{word} (g = {gravity:g})")
    axes.set_xticks(range(len(order)), [label.replace("kl_coef ", "kl_coef\n") for label in order])
    axes.set(ylabel="return (mean of 100 episodes)", xlabel="from the strongest pull to PPO's policy to none")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="lower left", fontsize=9)
    IMG.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=100)
    plt.close(figure)


def train() -> None:
    """Whatever is missing; PPO is trained once more for it, with the same seed."""
    th.set_num_threads(1)
    done = {(run["label"], run["seed"]) for run in records.read(FILE)}
    wanted = [(SCRATCH, 0.0), *((label_of(k), k) for k in COEFFICIENTS)]
    left = [(label, k, seed) for seed in SEEDS for label, k in wanted if (label, seed) not in done]
    if not left:
        return
    origin = {"commit": commit(), "versions": versions()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ppo.zip")
        found = [{**pretrained(path), **origin}]
        for label, kl_coef, seed in left:
            found.append({**fine_tuned(label, kl_coef, seed, path), **origin})
            print(label, seed, round(float(np.mean(found[-1]["new"]))), round(float(np.mean(found[-1]["old"]))), flush=True)
    kept = [run for run in records.read(FILE) if (run["label"], run["seed"]) != (START, 0)]
    records.write(FILE, sorted([*kept, *found], key=lambda run: (run["label"], run["seed"])))


if __name__ == "__main__":
    if "--report" not in sys.argv[1:]:
        train()
    draw()
    print(table())
