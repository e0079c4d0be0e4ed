"""Tables of the page, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from scripts.studies.paired.default import ENTRY, PAIRS, Cell, Default, Learning
from scripts.studies.paired.study import (
    FULL,
    MAIN,
    PAIRED,
    SEARCHED,
    STATE,
    TUNED,
    WHOLE,
    Estimate,
    Row,
    Study,
    difference,
    geometric_mean,
    improvement,
    level,
)
from scripts.studies.paired.verdicts import Verdict

#: Share of a training's rollouts that is called its beginning, and its end.
PART = 0.2


def number(x: float) -> str:
    """Three or four digits."""
    return "-" if not math.isfinite(x) else f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.1f}"


def share(x: float) -> str:
    """Two digits."""
    return "-" if math.isnan(x) else "never" if math.isinf(x) else f"{x:.2f}"


def with_bounds(estimate: Estimate, write: Any = number) -> str:
    """A figure with its interval."""
    value, low, high = map(write, estimate)
    return value if value == "-" else f"{value} [{low}, {high}]"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines])


def verdict_table(found: Sequence[Verdict]) -> str:
    """Table of requirements and results."""
    words = {True: "reached", False: "not reached", None: "open"}
    lines = [[v.wanted, v.found, words[v.reached] + ("" if v.complete or v.reached is None else " so far")] for v in found]
    return table(["wanted", "found", ""], lines)


def seeds_table(study: Study) -> str:
    """Table of the runs."""
    lines = []
    for label in [*(x for x in WHOLE if study.with_label(x)), *_changes(study)]:
        counts = [len(study.runs[task][label]) for task in study.with_label(label)]
        lines.append([label, f"{len(counts)} of {len(study.runs)}", f"{_span(counts)} of {FULL}"])
    return table(["label", "tasks", "seeds"], lines)


def seeds_in_words(study: Study) -> str:
    """For users: how far the study has got."""
    counts = [len(of[PAIRED]) for of in study.runs.values()]
    return f"{len(counts)} tasks, {_span(counts)} of {FULL} seeds each."


def short_table(rows: Sequence[Row]) -> str:
    """For users."""
    head = ["task", "PPO ends at", "paired groups end at", "PPO's level after", "a run is better"]
    return table(head, [
        [f"`{r.task}`", number(r.level), number(r.end),
         f"{r.share:.0%} of the steps" if math.isfinite(r.share) else "not reached", f"{r.better.value:.0%}"]
        for r in rows
    ])  # fmt: skip


def final_table(study: Study) -> str:
    """Every label on every task."""
    labels = [x for x in MAIN if study.with_label(x)]
    return table(["task", *labels], [[f"`{task}`", *(_cell(study, task, label) for label in labels)] for task in study.runs])


def details_table(rows: Sequence[Row]) -> str:
    """Against the better critic."""
    head = ["task", "PPO", "difference of IQMs", "level touched", "level kept", "PPO itself", "gap closed"]
    lines = [[f"`{r.task}`", r.critic, with_bounds(r.gain), share(r.touched), share(r.share), share(r.own),
              with_bounds(r.closed, share)] for r in rows]  # fmt: skip
    means = [share(geometric_mean(of)) for of in ([r.touched for r in rows], [r.share for r in rows], [r.own for r in rows])]
    return table(head, [*lines, ["geometric mean where it is", "", "", *means, ""]])


def improvement_table(study: Study) -> str:
    """Probability of improvement over each of the others."""
    labels = [x for x in MAIN if x != PAIRED and study.with_label(x)]
    lines = [[f"`{task}`", *(_improvement(study, [task] if x in study.runs[task] else [], x) for x in labels)]
             for task in study.runs]  # fmt: skip
    overall = [_improvement(study, study.with_label(x), x) for x in labels]
    return table(["task", *(f"over {label}" for label in labels)], [*lines, ["all that have it", *overall]])


def searched_table(study: Study) -> str:
    """Both algorithms with settings that were searched by the same effort."""
    tasks = study.with_label(SEARCHED, TUNED)
    if not tasks:
        return "Not run yet."
    lines = [[f"`{task}`", *(_cell(study, task, label) for label in (SEARCHED, TUNED)),
              with_bounds(difference(study, task, TUNED, SEARCHED)),
              with_bounds(improvement(study, [task], TUNED, SEARCHED), share)] for task in tasks]  # fmt: skip
    overall = ["all of them", "", "", "", with_bounds(improvement(study, tasks, TUNED, SEARCHED), share)]
    return table(["task", SEARCHED, TUNED, "difference of IQMs", "a run is better"], [*lines, overall])


def cost_table(study: Study) -> str:
    """Medians over seeds."""
    labels = [x for x in MAIN if study.with_label(x)]
    lines = [[f"`{task}`", *(_cost(study, task, label) for label in labels)] for task in study.runs]
    return table(["task", *labels], lines)


def ablation_table(study: Study) -> str:
    """Labels that change one thing, on the tasks that have them."""
    changes = _changes(study)
    tasks = [task for task, of in study.runs.items() if of.keys() & {*changes}]
    if not changes:
        return "Not run yet."
    return table(["setting", *(f"`{task}`" for task in tasks)], [
        [label, *(_cell(study, task, label) for task in tasks)] for label in (PAIRED, STATE, *changes)
    ])  # fmt: skip


def default_table(found: Default) -> str:
    """The tasks of results.md: the same settings with pairs and without, and both over all of these tasks."""
    head = ["task", "seeds", found.label, PAIRS[found.label], "difference of IQMs"]
    lines = [[f"`{cell.task}`", str(cell.seeds), *_sides(cell, number)] for cell in found.cells]
    overall = [with_bounds(x, share) for x in (found.aggregate, found.without, found.difference)]
    return table(head, [*lines, ["all, normalised", "", *overall]])


def minigrid_table(found: Sequence[Learning]) -> str:
    """The entries of MiniGrid's tasks with pairs and without."""
    head = ["task", "seeds", "mean return", ENTRY, PAIRS[ENTRY], "difference of IQMs"]
    return table(head, [
        [f"`{cell.task}`", str(cell.seeds), what, *_sides(cell, lambda x: f"{round(x, 3) + 0.0:.3f}")]
        for learning in found for what, cell in (("at the end", learning.end), ("over all checkpoints", learning.on_the_way))
    ])  # fmt: skip


def _sides(cell: Cell, write: Any) -> list[str]:
    return [with_bounds(x, write) for x in (cell.with_pairs, cell.without, cell.difference)]


def rules_table(rules: dict[str, dict[str, float]]) -> str:
    """Table of the known rules' returns.

    :param rules: task -> name -> return
    """
    known = [[f"`{task}`", name, number(value)] for task, of in rules.items() for name, value in of.items()]
    return table(["task", "rule", "return"], known)


def variance_table(variance: dict[str, dict[str, Any]]) -> str:
    """Table of the variance that pairing removes, at the beginning and the end of a training, and of its cost.

    :param variance: task -> metrics by rollout, and ``cost``
    """
    lines = []
    for task, of in variance.items():
        fraction, coef, left = (of[name] for name in ("paired_fraction", "paired_coef", "paired_variance"))
        lines.append([f"`{task}`", f"{np.mean(fraction):.2f}", *_ends(coef), *_ends(left), f"{of['cost']:.2%}"])
    head = ["steps with a peer", "c, first fifth", "c, last fifth", "variance left, first", "variance left, last", "cost"]
    return table(["task", *head], lines)


def _ends(series: Sequence[float]) -> tuple[str, str]:
    n = max(1, round(PART * len(series)))
    return f"{np.median(series[:n]):.2f}", f"{np.median(series[-n:]):.2f}"


def _span(counts: Sequence[int]) -> str:
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _changes(study: Study) -> list[str]:
    """Labels of one change each, in the order in which they are found."""
    return list(dict.fromkeys(label for of in study.runs.values() for label in of if label not in WHOLE))


def _cell(study: Study, task: str, label: str) -> str:
    return with_bounds(level(study, task, label)) if label in study.runs[task] else "-"


def _improvement(study: Study, tasks: Sequence[str], label: str) -> str:
    return with_bounds(improvement(study, tasks, label), share) if tasks else "-"


def _cost(study: Study, task: str, label: str) -> str:
    runs = study.runs[task].get(label)
    if not runs:
        return "-"
    return f"{np.median([r.train_cpu_s for r in runs]):.1f} s, {np.median([r.gradient_steps for r in runs]):,.0f}"
