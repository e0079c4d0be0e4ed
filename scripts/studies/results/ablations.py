"""Ablations: question, table, finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scripts.studies.results.cells import estimate, left_out, shown_pictures, steps_text
from zoo.benchmarking.results import Run
from zoo.common.plain_files import read_sections
from zoo.comparing import figures, tables
from zoo.comparing.comparison import Comparison, compare_runs, load

MEASURES = ("end", "on the way")


def read_ablations(folder: Path | None) -> list[dict[str, Any]]:
    """Read the entries of ``ablations.yml`` with existing runs.

    :param folder: of the file; None: no ablations
    :return: each with its ``name`` and ``loaded``: the runs in its folder, and messages about broken files
    :raises BadInput: if it cannot be read
    """
    if folder is None:
        return []
    entries = read_sections(folder / "ablations.yml", "groups: {section: Ablations, title: Groups, labels: [defaults]}")
    where = {name: folder / str(entry.get("folder", name)) for name, entry in entries.items()}
    loaded = {path: load([path]) for path in set(where.values()) if path.exists()}  # once, however many entries share it
    return [{**entry, "name": name, "loaded": loaded[where[name]]} for name, entry in entries.items() if where[name] in loaded]


def ablation(entry: dict[str, Any], pictures: Path | None) -> tuple[list[str], list[Run]]:
    """Write one ablation: per label and task the IQM of the final scores, and of the mean over checkpoints (learning speed).

    :param entry: of :func:`read_ablations`: ``title``, ``question``, ``finding`` (the author's conclusion), ``loaded`` and,
        for a selection, ``labels`` in their order and ``envs``
    :param pictures: folder for its picture; None: no picture
    :return: lines, and their runs
    """
    runs, broken = entry["loaded"]
    runs = [run for run in runs if run.env in entry.get("envs", [run.env])]
    c = compare_runs(runs, entry.get("labels", ()))
    runs = [run for run in runs if run.label in c.labels]
    budgets = ", ".join(f"{env} {steps_text(c, env)}" for env in c.envs)
    seeds = sorted({r.seed for r in runs})
    rows = []
    points = []
    for label in c.labels:
        there = [env for env in c.envs if (env, label) in c.runs]
        steps = [f"{np.median([r.gradient_steps for r in c.runs[env, label]]):,.0f}" for env in there]
        row = {"setting": label}
        for env in c.envs:
            for measure, scores in _measures(c, env, label).items() if env in there else ():
                it = estimate(scores)
                row[f"{env}, {measure}"] = str(it)
                numbers = {"iqm": it.iqm, "iqm_low": it.low, "iqm_high": it.high}
                points.append({"env": env, "setting": label, "measure": measure, **numbers})
        rows.append(row | {"gradient steps": " / ".join(steps)})
    lines = [f"### {entry['title']}", "", f"{entry['question']} Env steps: {budgets}; seeds {seeds[0]} to {seeds[-1]}.", ""]
    columns = ["setting", *(f"{env}, {measure}" for env in c.envs for measure in MEASURES), "gradient steps"]
    lines += [tables.to_markdown(pd.DataFrame(rows, columns=columns).fillna("not run")), ""]
    name = f"ablation_{entry['name']}"
    if pictures is not None:
        figures.save(figures.settings(pd.DataFrame(points)), pictures / name)
    lines += shown_pictures([name])
    return [*lines, *left_out(broken), entry["finding"], ""], runs


def _measures(c: Comparison, env: str, label: str) -> dict[str, np.ndarray]:
    """``[runs]`` final scores, and the mean of each run's checkpoints after the one at step 0, which is of no training."""
    return dict(zip(MEASURES, (c.scores(env, label), c.curves(env, label)[:, 1:].mean(1)), strict=True))
