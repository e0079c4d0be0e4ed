"""Pairs where nothing asks for them: the tasks of docs/studies/results.md, with the same settings and pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scripts.studies.common.runs import DATA
from scripts.studies.paired.study import FULL, Estimate, middle, middle_difference, read
from scripts.studies.results.bar import BAR, DEFAULTS, TUNED, with_bar, with_defaults
from scripts.studies.results.cells import ENOUGH
from zoo.benchmarking.results import RANDOM, Run, find_results
from zoo.comparing.comparison import compare_runs
from zoo.comparing.statistics import Array

RUNS = DATA / "paired_default"
WITHOUT = DATA / "study"
MINIGRID = DATA / "paired_minigrid"
ENTRY = "entry-paired"
CONSTRUCTOR = "defaults-paired"
#: Label with pairs -> the same settings without.
PAIRS = {ENTRY: TUNED, CONSTRUCTOR: DEFAULTS}


class Cell(NamedTuple):
    """A task: the same settings with and without pairs, by the same seeds."""

    task: str
    with_pairs: Estimate
    without: Estimate
    difference: Estimate
    seeds: int


class Learning(NamedTuple):
    """A task of MiniGrid: how long the same settings take with and without pairs, by the same seeds, and where they end."""

    end: Cell
    on_the_way: Cell  #: mean over all checkpoints: where all end at the top, it tells the quick from the slow


class Default(NamedTuple):
    """A label with pairs over all of its tasks."""

    label: str
    cells: list[Cell]
    aggregate: Estimate  #: IQM of normalised scores: 0 is a random policy, 1 the mean of PPO's better setting
    without: Estimate
    difference: Estimate
    tasks: int  #: that the settings have run on without pairs

    @property
    def complete(self) -> bool:
        """Whether all tasks have all seeds."""
        return len(self.cells) == self.tasks and all(cell.seeds >= FULL for cell in self.cells)

    @property
    def worse(self) -> list[str]:
        """Tasks on which pairs end lower, interval too; with fewer seeds than :data:`ENOUGH` it says nothing."""
        return [cell.task for cell in self.cells if cell.difference.high < 0 and cell.seeds >= ENOUGH]


def default(runs: Sequence[Run], label: str) -> Default | None:
    """Compare settings with and without pairs, on the tasks and seeds that pairs have run with.

    :param runs: of the study of results.md, and with pairs
    :param label: a key of :data:`PAIRS`
    :return: None: nothing with pairs has run
    """
    runs, _ = with_bar(with_defaults(with_defaults(runs), ENTRY, CONSTRUCTOR))
    without = PAIRS[label]
    seeds = {(r.env, r.seed) for r in runs if r.label == label}
    if not seeds:
        return None
    tasks = {env for env, _ in seeds}
    same = [r for r in runs if r.env in tasks and (r.label not in (label, without) or (r.env, r.seed) in seeds)]
    shown = [r for r in same if r.label in (label, without, BAR, RANDOM)]
    c = compare_runs(shown, [label, without, BAR], BAR, allow_unequal=True)  # checkpoints differ; only the end is compared
    ours = c.normalised(label)
    theirs = c.normalised(without)
    cells = [_cell(env, c.scores(env, label), c.scores(env, without)) for env in c.envs]
    requested = {r.env for r in runs if r.label == without}
    return Default(label, cells, middle(ours), middle(theirs), middle_difference(ours, theirs), len(requested))


def _cell(env: str, ours: Array, theirs: Array) -> Cell:
    return Cell(env, middle([ours]), middle([theirs]), middle_difference([ours], [theirs]), len(ours))


def load() -> list[Default]:
    """Load runs per label; empty if there are none."""
    runs = read(find_results([WITHOUT, RUNS]))
    return [found for found in (default(runs, label) for label in PAIRS) if found]


def on_minigrid(runs: Sequence[Run]) -> list[Learning]:
    """Compare the entries of MiniGrid's tasks with and without pairs; seeds of only one side do not count.

    :param runs: with the label :data:`ENTRY` and the label to compare with
    """
    found = {(r.env, r.label, r.seed): r for r in runs}
    learnings = []
    for env in sorted({r.env for r in runs}):
        labels = ENTRY, PAIRS[ENTRY]
        seeds = sorted(s for e, label, s in found if (e, label) == (env, ENTRY) and (env, labels[1], s) in found)
        cells = []
        for measure in (lambda run: run.score, lambda run: float(run.curve.mean())):
            ours, theirs = (np.array([measure(found[env, label, s]) for s in seeds]) for label in labels)
            cells.append(_cell(env, ours, theirs))
        learnings.append(Learning(*cells))
    return learnings


def load_minigrid() -> list[Learning]:
    """Load the runs on MiniGrid."""
    return on_minigrid(read(find_results([MINIGRID])))
