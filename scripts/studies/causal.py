"""GRPO on CausalIntervention-v0 against policies that do not learn, on graphs that training has not seen.

usage: python -m scripts.studies.causal train --mechanism linear --seed 0       one training run, evaluated
       (with --algo ppo or grpo-mlp: with defaults and MlpPolicy, to compare the algorithms alone)
       python -m scripts.studies.causal baselines --mechanism linear     the policies that do not learn, on the same graphs
       python -m scripts.studies.causal speed                            time of a step and of a reset
       python -m scripts.studies.causal report     tables of docs/studies/causal.md and picture, from the files

Settings of training: zoo/hyperparams/grpo.yml. Evaluation: deterministic, ``GRAPHS`` models of each structure, the same for
all. One file per mechanism in docs/studies/data/causal, one line per run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.collect.groups import HostGroups
from sb_grpo.envs.random import group_seed
from sb_grpo.tasks.causal import ENV_ID
from sb_grpo.tasks.causal.baselines import BASELINES
from sb_grpo.tasks.causal.env import CausalInterventionEnv
from sb_grpo.tasks.causal.graphs import STRUCTURES
from sb_grpo.tasks.causal.scm import FEATURES
from scripts.studies.common import records
from scripts.studies.common.runs import DATA, DOCS, IMG
from scripts.studies.common.tables import put_between
from zoo.common.provenance import commit, machine, versions
from zoo.training.experiment import build

GRAPHS = 200
#: Reset seeds of the evaluation.
SEEDS = range(1_000_000, 1_000_000 + GRAPHS)
FOLDER = DATA / "causal"
PAGE = DOCS / "studies" / "causal.md"
RESAMPLES = 2000
NAMES = {
    "grpo": "GRPO",
    "grpo-mlp": "GRPO, MlpPolicy, defaults",
    "ppo": "PPO, MlpPolicy, defaults",
    "upper_confidence": "upper confidence",
    "greedy_information": "greedy, information",
    "greedy_target": "greedy, target",
    "random": "random",
}

#: Policies of which there are several runs, one per training seed.
LEARNT = ("grpo", "grpo-mlp", "ppo")

#: From the env, the observation and a generator to an action.
Choose = Callable[[CausalInterventionEnv, np.ndarray, np.random.Generator], Any]


def play(env: CausalInterventionEnv, choose: Choose, seed: int) -> dict[str, float]:
    """Return and last potentials of one episode."""
    obs, _ = env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    total = 0.0
    over = False
    while not over:
        obs, reward, over, _, info = env.step(choose(env, obs, rng))
        total += reward
    return {"return": total, **info["potentials"]}


def evaluate(choose: Choose, mechanism: str) -> dict[str, dict[str, list[float]]]:
    """Per structure and quantity, one number per graph."""
    results = {}
    for structure in STRUCTURES:
        env = CausalInterventionEnv(structure, mechanism=mechanism)
        episodes = [play(env, choose, seed) for seed in SEEDS]
        results[structure] = {key: [round(e[key], 4) for e in episodes] for key in episodes[0]}
    return results


def write(content: dict[str, Any], choose: Choose) -> None:
    """Evaluate, and put a run into the file of its mechanism."""
    start = time.perf_counter()
    content["results"] = evaluate(choose, content["mechanism"])
    content |= {"evaluation_s": round(time.perf_counter() - start, 1), "commit": commit(), "versions": versions()}
    content["machine"] = machine()
    records.put(FOLDER / f"{content['mechanism']}.jsonl", content, "policy", "train_seed")
    means = {s: round(float(np.mean(r["return"])), 3) for s, r in content["results"].items()}
    print(content["mechanism"], content["policy"], means, flush=True)


def check_unmet(model: GRPO) -> None:
    """See that no training episode had the seed of an evaluation."""
    assert isinstance(model.groups, HostGroups)
    met = {group_seed(model.groups.base_seed, group) for group in range(model.groups.next_group + 1)}
    assert met.isdisjoint(SEEDS), "an evaluation seed was met in training: choose other SEEDS"


def train(mechanism: str, seed: int, algo: str) -> None:
    """Train and evaluate: ``grpo`` with the zoo's settings, the others with as many envs and steps and otherwise defaults."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = build(ENV_ID, seed, folder, env_kwargs={"mechanism": mechanism})
        model, _ = experiment.setup_experiment()  # type: ignore[misc]
    assert isinstance(model, GRPO)
    settings = experiment.settings
    if algo != "grpo":
        env = make_vec_env(ENV_ID, experiment.n_envs, seed=seed, env_kwargs={"mechanism": mechanism})
        settings = {"policy": "MlpPolicy", "n_steps": model.steps_per_env, "gamma": 1.0}
        model = {"grpo-mlp": GRPO, "ppo": PPO}[algo](env=env, seed=seed, device="cpu", **settings)
    start = time.perf_counter()
    model.learn(experiment.n_timesteps)
    seconds = time.perf_counter() - start
    if isinstance(model, GRPO):
        check_unmet(model)
    content = {
        "policy": algo, "mechanism": mechanism, "train_seed": seed, "env_steps": model.num_timesteps,
        "train_s": round(seconds, 1), "settings": {k: str(v) for k, v in settings.items()},
    }  # fmt: skip
    write(content, lambda env, obs, rng: model.predict(obs, deterministic=True)[0])


def run_baselines(mechanism: str) -> None:
    """Evaluate every policy that does not learn."""
    for name, baseline in BASELINES.items():
        content = {"policy": name, "mechanism": mechanism}

        def choose(env: CausalInterventionEnv, obs: np.ndarray, rng: np.random.Generator, baseline: Any = baseline) -> Any:
            return baseline(env.parts(obs), rng)

        write(content, choose)


def measure_speed(episodes: int = 40) -> None:
    """CPU time (not wall time: the machine may be busy) of a step and a reset with random actions: median over episodes."""
    rows = []
    for mechanism in FEATURES:
        for d in (3, 5, 8, 10):
            env = CausalInterventionEnv(n_variables=d, mechanism=mechanism)
            env.reset(seed=0)
            env.action_space.seed(0)
            steps = []
            resets = []
            for _ in range(episodes):
                start = time.process_time()
                env.reset()
                middle = time.process_time()
                for _ in range(env.budget):
                    env.step(env.action_space.sample())
                steps.append((time.process_time() - middle) / env.budget)
                resets.append(middle - start)
            milliseconds = {"step_ms": 1e3 * float(np.median(steps)), "reset_ms": 1e3 * float(np.median(resets))}
            rows.append({"mechanism": mechanism, "variables": d, **{k: round(v, 3) for k, v in milliseconds.items()}})
            print(rows[-1], flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    content = {"rows": rows, "commit": commit(), "versions": versions(), "machine": machine()}
    (FOLDER / "speed.json").write_text(json.dumps(content, indent=1) + "\n")


def load(mechanism: str, quantity: str) -> dict[str, dict[str, np.ndarray]]:
    """Per policy and structure, ``[runs, GRAPHS]``."""
    runs = [run for run in records.read_folder(FOLDER) if run["mechanism"] == mechanism]
    return {
        policy: {s: np.array([r["results"][s][quantity] for r in runs if r["policy"] == policy]) for s in STRUCTURES}
        for policy in NAMES
        if any(r["policy"] == policy for r in runs)
    }


def draws(scores: np.ndarray) -> np.ndarray:
    """Means of bootstrap samples, ``[RESAMPLES]``: runs and graphs are drawn, the same graphs at every call."""
    rng = np.random.default_rng(0)
    graphs = rng.integers(scores.shape[1], size=(RESAMPLES, scores.shape[1]))
    runs = rng.integers(len(scores), size=(RESAMPLES, len(scores)))
    return np.array([scores[r][:, g].mean() for r, g in zip(runs, graphs, strict=True)])


def cell(scores: np.ndarray) -> str:
    low, high = np.quantile(draws(scores), [0.025, 0.975])
    return f"{scores.mean():.3f} [{low:.3f}, {high:.3f}]"


def together(by_structure: dict[str, np.ndarray]) -> np.ndarray:
    """``[runs, graphs]`` over all structures."""
    return np.concatenate(list(by_structure.values()), axis=1)


def returns_table(mechanism: str) -> list[str]:
    """Returns, policies down and structures across; then GRPO minus each other policy, graph by graph."""
    data = load(mechanism, "return")
    lines = [f"| {mechanism}: return | {' | '.join([*STRUCTURES, 'all'])} |", "|---" * (len(STRUCTURES) + 2) + "|"]
    for policy, scores in data.items():
        cells = [cell(s) for s in [*scores.values(), together(scores)]]
        runs = f" ({len(scores['chain'])} seeds)" if policy in LEARNT else ""
        lines.append(f"| {NAMES[policy]}{runs} | {' | '.join(cells)} |")
    for policy in data:
        if policy not in LEARNT:
            rest = {s: data["grpo"][s] - data[policy][s] for s in STRUCTURES}
            cells = [cell(r) for r in [*rest.values(), together(rest)]]
            lines.append(f"| GRPO minus {NAMES[policy]} | {' | '.join(cells)} |")
    return lines


def potentials_table(mechanism: str) -> list[str]:
    """Potentials at the end of an episode, all structures together."""
    quantities = ("optimization", "structure", "parent", "exploration")
    lines = [f"| {mechanism}: potential at the end | {' | '.join(quantities)} |", "|---" * (len(quantities) + 1) + "|"]
    data = {quantity: load(mechanism, quantity) for quantity in quantities}
    for policy in data["parent"]:
        lines.append(f"| {NAMES[policy]} | {' | '.join(cell(together(data[q][policy])) for q in quantities)} |")
    return lines


def speed_table() -> list[str]:
    """Times of a step and a reset."""
    rows = json.loads((FOLDER / "speed.json").read_text())["rows"]
    lines = ["| mechanism | variables | step, ms | reset, ms |", "|---|---|---|---|"]
    return lines + [f"| {r['mechanism']} | {r['variables']} | {r['step_ms']} | {r['reset_ms']} |" for r in rows]


def draw(mechanisms: list[str]) -> None:
    """One panel per mechanism: mean return and interval of every policy on every structure."""
    figure, axes = plt.subplots(1, len(mechanisms), figsize=(5.5 * len(mechanisms), 3.6), sharey=True, squeeze=False)
    for panel, mechanism in zip(axes[0], mechanisms, strict=True):
        data = load(mechanism, "return")
        for i, (policy, by_structure) in enumerate(data.items()):
            mean = np.array([s.mean() for s in by_structure.values()])
            low, high = np.array([np.quantile(draws(s), [0.025, 0.975]) for s in by_structure.values()]).T
            x = np.arange(len(mean)) + 0.13 * (i - (len(data) - 1) / 2)
            # Circles learn, squares are rules made by hand.
            look = {"fmt": "o"} if policy in LEARNT else {"fmt": "s", "mfc": "white"}
            word = "" if policy in LEARNT else "rule: "
            panel.errorbar(x, mean, [mean - low, high - mean], ms=5, capsize=2, label=word + NAMES[policy], **look)
        panel.set(title=f"{mechanism} mechanisms", xticks=range(len(STRUCTURES)), xticklabels=list(STRUCTURES))
        panel.set_xlabel("structure of the causal graph")
        panel.grid(axis="y", alpha=0.3)
        for border in np.arange(len(STRUCTURES) - 1) + 0.5:
            panel.axvline(border, color="grey", alpha=0.2, linewidth=0.8)
    axes[0][0].set_ylabel("return on unseen graphs (95 % interval)")
    axes[0][-1].legend(fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(IMG / "causal.png", dpi=100)


def report() -> None:
    """Put the tables between the marks of docs/studies/causal.md, and draw the picture."""
    runs = records.read_folder(FOLDER)
    mechanisms = [m for m in FEATURES if {"grpo", "random"} <= {run["policy"] for run in runs if run["mechanism"] == m}]
    tables = [table(m) for table in (returns_table, potentials_table) for m in mechanisms]
    text = PAGE.read_text()
    for name, part in (("results", tables), ("speed", [speed_table()])):
        text = put_between(text, name, "\n\n".join("\n".join(lines) for lines in part))
    PAGE.write_text(text)
    draw(mechanisms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "baselines", "speed", "report"])
    parser.add_argument("--mechanism", choices=list(FEATURES), default="linear")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algo", choices=LEARNT, default="grpo")
    given = parser.parse_args()
    th.set_num_threads(1)
    if given.what == "train":
        train(given.mechanism, given.seed, given.algo)
    elif given.what == "baselines":
        run_baselines(given.mechanism)
    elif given.what == "speed":
        measure_speed()
    else:
        report()


if __name__ == "__main__":
    main()
