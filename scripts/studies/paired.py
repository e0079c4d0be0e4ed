"""What the luck that members of a group share is worth: docs/studies/paired.md, table and picture of docs/when_groups_win.md.

usage: python -m scripts.studies.paired                  make page, table and pictures from what is committed
       python -m scripts.studies.paired --measure        first measure the known rules, and one rollout as it is and paired

The runs: python -m zoo.benchmark --variants zoo/variants/paired.yml (the page has the command), then scripts.studies.merge.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import yaml

from scripts.studies.common.runs import DATA
from zoo.benchmarking.results import Run, find_results, read_all
from zoo.comparing.statistics import curve_interval, interval, iqm, mean, probability_of_improvement

ROOT = Path(__file__).parents[2]
RUNS, TEXTS = DATA / "paired", DATA / "paired.yml"
RULES, ROLLOUT = DATA / "paired_rules.json", DATA / "paired_rollout.json"
PAGE, USERS = ROOT / "docs" / "studies" / "paired.md", ROOT / "docs" / "when_groups_win.md"
PAIRED, STATE, CRITICS = "grpo-paired", "grpo-state", ("ppo-tuned", "ppo-grpo-settings")
COLOURS = {PAIRED: "tab:blue", STATE: "tab:orange", "ppo-grpo-settings": "tab:grey", "ppo-tuned": "black"}
MARKS = "<!-- table: python -m scripts.studies.paired -->", "<!-- end of table -->"


class Study(NamedTuple):
    """All runs, by task and label."""

    runs: dict[str, dict[str, list[Run]]]

    def scores(self, task: str, label: str) -> np.ndarray:
        """``[seeds]``"""
        return np.array([run.score for run in self.runs[task][label]])

    def curves(self, task: str, label: str) -> np.ndarray:
        """``[seeds, C]``"""
        return np.array([run.curve for run in self.runs[task][label]])

    def critic(self, task: str) -> str:
        """The label with a critic that ends highest on a task, of those with all seeds."""
        seeds = len(self.runs[task][PAIRED])
        whole = [label for label in CRITICS if len(self.runs[task].get(label, ())) >= seeds]
        return max(whole, key=lambda label: float(iqm([self.scores(task, label)])))


def load(files: Sequence[Path]) -> Study:
    """The runs of a study, in the order of the variants' file; labels that not all tasks have are left out.

    :raises ValueError: for a broken file
    """
    found, broken = read_all(files)
    if broken:
        raise ValueError(f"broken: {broken}")
    tasks: dict[str, dict[str, list[Run]]] = {}
    for run in sorted(found, key=lambda run: run.seed):
        tasks.setdefault(run.env, {}).setdefault(run.label, []).append(run)
    return Study(tasks)


class Row(NamedTuple):
    """A task: levels, and what pairing makes of them."""

    task: str
    critic: str  #: label
    level: float  #: where the critic ends, IQM
    end: float  #: where pairing ends
    low: float  #: of the difference to the critic
    high: float
    share: float  #: of the budget until pairing is at the critic's level; inf: never
    closed: float  #: of the gap between critic and rule; nan where the rule is no better
    better: float  #: probability that a run is better


def row(study: Study, task: str, rules: dict[str, float]) -> Row:
    """Compare pairing with the better critic on a task."""
    critic = study.critic(task)
    ours, theirs = study.scores(task, PAIRED), study.scores(task, critic)
    level, end = float(iqm([theirs])), float(iqm([ours]))
    low, high = interval(lambda a, b: iqm(a) - iqm(b), [ours], [theirs])
    steps = study.runs[task][PAIRED][0].checkpoint_steps
    at = np.flatnonzero(study.curves(task, PAIRED).mean(0) >= level)
    share = float(steps[at[0]] / study.runs[task][PAIRED][0].steps) if len(at) else math.inf
    best = max(rules.values(), default=-math.inf)
    closed = (end - level) / (best - level) if best > level else math.nan
    return Row(task, critic, level, end, float(low), float(high), share, closed,
               float(probability_of_improvement([ours], [theirs])))  # fmt: skip


def verdicts(study: Study, rows: Sequence[Row]) -> list[tuple[str, str, bool]]:
    """Each wanted figure: what was wanted, what was found, whether it is reached."""
    above = [r.task for r in rows if r.low > 0]
    shares = [r.share for r in rows]
    middle = math.exp(np.mean(np.log(shares))) if np.isfinite(shares).all() else math.inf
    closed = [min(r.closed, 1.0) for r in rows if math.isfinite(r.closed)]
    pairs = [(study.scores(r.task, PAIRED), study.scores(r.task, r.critic)) for r in rows]
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    wins, (low, high) = float(probability_of_improvement(ours, theirs)), interval(probability_of_improvement, ours, theirs)
    never = sum(not math.isfinite(s) for s in shares)
    return [
        ("above PPO, interval of the difference too, on every task", f"{len(above)} of {len(rows)}", len(above) == len(rows)),
        ("PPO's final level in at most half of its steps (geometric mean)",
         f"never on {never} of {len(rows)} tasks" if never else f"{middle:.2f} of them", middle <= 0.5),
        ("gap to the best known rule halved, mean over the tasks where there is one",
         f"{np.mean(closed):.2f} of it closed ({len(closed)} tasks)" if closed else "no such task",
         bool(closed) and float(np.mean(closed)) >= 0.5),
        ("probability of improvement at least 0.9", f"{wins:.2f} [{low:.2f}, {high:.2f}]", wins >= 0.9),
    ]  # fmt: skip


def number(x: float) -> str:
    """Three or four digits."""
    return "-" if not math.isfinite(x) else f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.1f}"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines])


def cell(study: Study, task: str, label: str) -> str:
    """IQM with interval."""
    if label not in study.runs[task]:
        return "-"
    scores = study.scores(task, label)
    low, high = interval(iqm, [scores])
    return f"{number(float(iqm([scores])))} [{number(float(low))}, {number(float(high))}]"


def short_table(rows: Sequence[Row]) -> str:
    """For users."""
    head = ["task", "PPO ends at", "paired groups end at", "PPO's level after", "a run is better"]
    after = [f"{r.share:.0%} of the steps" if math.isfinite(r.share) else "not reached" for r in rows]
    return table(head, [
        [f"`{r.task}`", number(r.level), number(r.end), share, f"{r.better:.0%}"]
        for r, share in zip(rows, after, strict=True)
    ])  # fmt: skip


def final_table(study: Study) -> str:
    """Every label on every task."""
    labels = [x for x in (PAIRED, STATE, *CRITICS) if any(x in of for of in study.runs.values())]
    seeds = {task: len(of[PAIRED]) for task, of in study.runs.items()}
    return table(["task", "seeds", *labels], [
        [f"`{task}`", str(seeds[task]), *(cell(study, task, label) for label in labels)] for task in study.runs
    ])  # fmt: skip


def cost_table(study: Study) -> str:
    """Medians over all runs of a label."""
    labels = [x for x in (PAIRED, STATE, *CRITICS) if any(x in of for of in study.runs.values())]
    lines = []
    for label in labels:
        runs = [run for of in study.runs.values() for run in of.get(label, [])]
        gradient_steps = np.median([run.gradient_steps for run in runs])
        speed = np.median([run.env_steps / run.train_cpu_s for run in runs])
        lines.append([label, str(len(runs)), f"{gradient_steps:,.0f}", f"{speed:,.0f}"])
    return table(["label", "runs", "gradient steps", "env steps per processor second"], lines)


def ablation_table(study: Study) -> str:
    """Labels that change one thing, on the tasks that have them."""
    known = {PAIRED, STATE, *CRITICS}
    tasks = [task for task, of in study.runs.items() if of.keys() - known]
    labels = list(dict.fromkeys(label for task in tasks for label in study.runs[task] if label not in known))
    if not labels:
        return "Not run yet."
    return table(["setting", *(f"`{task}`" for task in tasks)], [
        [label, *(cell(study, task, label) for task in tasks)] for label in (PAIRED, STATE, *labels)
    ])  # fmt: skip


def page(study: Study, rows: Sequence[Row], rules: dict[str, dict[str, float]], texts: dict[str, str]) -> str:
    """All of it, as Markdown."""
    command = re.sub(r"--out \S+", "--out results/paired", next(iter(study.runs.values()))[PAIRED][0].origin["command"])
    known = [[f"`{task}`", name, number(value)] for task, of in rules.items() for name, value in of.items()]
    verdict = [[wanted, found, "reached" if fine else "not reached"] for wanted, found, fine in verdicts(study, rows)]
    details = [[f"`{r.task}`", r.critic, f"{number(r.end - r.level)} [{number(r.low)}, {number(r.high)}]", f"{r.share:.2f}",
                "-" if math.isnan(r.closed) else f"{r.closed:.2f}", f"{r.better:.2f}"] for r in rows]  # fmt: skip
    parts = [
        "# Study: paired groups on input-driven tasks", texts["intro"], f"```bash\n{command}\n```",
        "## Wanted and found", table(["wanted", "found", ""], verdict), texts["verdict"],
        "![Learning curves per task](img/paired_curves.png)",
        "## Final returns", texts["final"], final_table(study),
        "## Against PPO, task by task", texts["details"],
        table(["task", "PPO", "difference of IQMs", "share of the budget to PPO's level", "gap closed", "P(better)"], details),
        "## One change at a time", ablation_table(study), "## What it costs", texts["cost"], cost_table(study),
        "## Known rules", texts["rules"], table(["task", "rule", "return"], known), "## What is left", texts["left"],
    ]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts) + "\n"


def draw_curves(study: Study, file: Path) -> None:
    """One panel per task."""
    figure, axes = plt.subplots(2, math.ceil(len(study.runs) / 2), figsize=(16, 6.5), squeeze=False)
    for axis, (task, of) in zip(axes.flat, study.runs.items(), strict=False):
        _curves(axis, study, task, [label for label in COLOURS if label in of])
        axis.set_title(task, fontsize=10)
        axis.legend(fontsize=6, loc="lower right")
    _save(figure, file)


def _curves(axis: Any, study: Study, task: str, labels: Sequence[str]) -> None:
    """Means with intervals; the scale is that of what comes after a quarter of the budget, not of untrained policies."""
    later: list[np.ndarray] = []
    for label in labels:
        curves, steps = study.curves(task, label), study.runs[task][label][0].checkpoint_steps
        low, high = curve_interval([curves], mean)
        axis.plot(steps, curves.mean(0), color=COLOURS[label], label=f"{label} ({len(curves)} seeds)")
        axis.fill_between(steps, low, high, color=COLOURS[label], alpha=0.15, linewidth=0)
        later.append(curves.mean(0)[len(steps) // 4 :])
    bottom, top = np.min(np.concatenate(later)), np.max(np.concatenate(later))
    axis.set_ylim(bottom - 0.1 * (top - bottom), top + 0.25 * (top - bottom))
    axis.tick_params(labelsize=8)


def draw_lead(study: Study, rollout: dict[str, list[float]], file: Path) -> None:
    """Advantages of a rollout before and after, and what comes of it."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8))
    before, after = (np.array(rollout[name]) for name in ("before", "after"))
    low, high = np.quantile(before, [0.005, 0.995])
    bins = np.linspace(low, high, 60)
    left.hist(before, bins, alpha=0.5, color="tab:orange", label=f"state baseline: standard deviation {before.std():.1f}")
    left.hist(after, bins, alpha=0.5, color="tab:blue", label=f"minus the peers' luck: {after.std():.1f}")
    left.set_title("LoadBalancing-v0: advantages of one rollout", fontsize=10)
    left.legend(fontsize=8)
    task = "LoadBalancing-v0"
    _curves(right, study, task, [label for label in COLOURS if label in study.runs[task]])
    right.set_title("LoadBalancing-v0: return, mean and 95 % interval", fontsize=10)
    right.set_xlabel("env steps", fontsize=9)
    right.legend(fontsize=8)
    _save(figure, file)


def _save(figure: Any, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file, dpi=100, metadata={"Software": None})
    plt.close(figure)


def measure() -> None:
    """Write what the page needs beside the runs: returns of the known rules, and residuals of one rollout."""
    import torch as th
    from stable_baselines3.common.env_util import make_vec_env

    from sb_grpo import GRPO
    from sb_grpo.envs.input_driven.references import REFERENCES, evaluate_reference

    th.set_num_threads(1)
    rules = {env: {name: evaluate_reference(env, name, range(10**6, 10**6 + 1000)).mean for name in REFERENCES[env]}
             for env in REFERENCES}  # fmt: skip
    RULES.write_text(json.dumps(rules, indent=1) + "\n")
    settings: dict[str, Any] = dict(n_steps=128, batch_size=256, learning_rate=1e-3, gamma=0.99, seed=0, device="cpu")
    env = make_vec_env("LoadBalancing-v0", 16, seed=0)
    model = GRPO("MlpPolicy", env, normalize_advantage="none", baseline_kwargs=dict(paired=True), **settings).learn(59_000)
    pairing = model.state_baseline.pairing  # type: ignore[union-attr]
    kept: dict[str, list[float]] = {}
    pairing.register_forward_hook(  # type: ignore[union-attr]
        lambda _, given, after: kept.update(before=given[0].own.tolist(), after=after.tolist())
    )
    model.learn(2_048, reset_num_timesteps=False)
    ROLLOUT.write_text(json.dumps({name: [round(x, 4) for x in values] for name, values in kept.items()}) + "\n")


def make(files: Sequence[Path], page_file: Path, users_file: Path, images: Path, users_images: Path) -> None:
    """Write the page, the users' table, and the pictures."""
    study = load(files)
    rules, texts = json.loads(RULES.read_text()), yaml.safe_load(TEXTS.read_text())
    rows = [row(study, task, rules.get(task, {})) for task in study.runs]
    page_file.write_text(page(study, rows, rules, texts))
    before, _, rest = users_file.read_text().partition(MARKS[0])
    users_file.write_text(f"{before}{MARKS[0]}\n\n{short_table(rows)}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")
    draw_curves(study, images / "paired_curves.png")
    draw_lead(study, json.loads(ROLLOUT.read_text()), users_images / "paired.png")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="first measure rules and one rollout anew")
    if parser.parse_args().measure:
        measure()
    make(find_results([RUNS]), PAGE, USERS, PAGE.parent / "img", USERS.parent / "img")


if __name__ == "__main__":
    main()
