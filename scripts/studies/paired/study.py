"""Runs of the study, and comparisons of pairing with another label per task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scripts.studies.common.runs import DATA
from zoo.benchmarking.results import Run, read_all
from zoo.comparing.statistics import Scores, interval, iqm, probability_of_improvement, time_to_threshold

RUNS = DATA / "paired"
PAIRED = "grpo-paired"
STATE = "grpo-state"
TUNED = "ppo-tuned"
CONTROL = "ppo-grpo-settings"
CRITICS = (TUNED, CONTROL)
#: Pairing with settings that were searched as those of tuned PPO.
SEARCHED = "grpo-tuned"
MAIN = (PAIRED, STATE, *CRITICS)
#: All that are no change of one thing.
WHOLE = (*MAIN, SEARCHED)
#: Seeds per task and label that the protocol asks for.
FULL = 10
#: A level is kept where the mean over so many checkpoints in a row is at or above it: one alone is noisy.
IN_A_ROW = 3


class Study(NamedTuple):
    """All runs, by task and label."""

    runs: dict[str, dict[str, list[Run]]]

    def scores(self, task: str, label: str) -> np.ndarray:
        """``[seeds]``"""
        return np.array([run.score for run in self.runs[task][label]])

    def curve(self, task: str, label: str) -> np.ndarray:
        """``[C]`` IQM over seeds of each checkpoint."""
        return iqm([np.array([run.curve for run in self.runs[task][label]]).T])

    def with_label(self, *labels: str) -> list[str]:
        """Tasks that a label has run on, or all of several."""
        return [task for task, of in self.runs.items() if of.keys() >= {*labels}]

    def complete(self) -> bool:
        """Whether each of the four main labels has all seeds on every task."""
        return all(len(of.get(label, ())) >= FULL for of in self.runs.values() for label in MAIN)

    def critic(self, task: str) -> str | None:
        """The label with a critic that ends highest on a task, of those with no fewer seeds than pairing or than the other.

        :return: None: there is none
        """
        of = self.runs[task]
        there = [label for label in CRITICS if label in of]
        enough = min(len(of[PAIRED]), max((len(of[label]) for label in there), default=0))
        whole = [label for label in there if len(of[label]) >= enough]
        return max(whole, key=lambda label: float(iqm([self.scores(task, label)])), default=None)


def read(files: Sequence[Path]) -> list[Run]:
    """All runs of some files.

    :raises ValueError: for a broken file
    """
    found, broken = read_all(files)
    if broken:
        raise ValueError(f"broken: {broken}")
    return found


def load(files: Sequence[Path]) -> Study:
    """The runs of a study, tasks by name, seeds in order; tasks without runs of pairing are left out.

    :raises ValueError: for a broken file, or if no task has runs of pairing
    """
    tasks: dict[str, dict[str, list[Run]]] = {}
    for run in sorted(read(files), key=lambda run: run.seed):
        tasks.setdefault(run.env, {}).setdefault(run.label, []).append(run)
    tasks = {task: tasks[task] for task in sorted(tasks) if PAIRED in tasks[task]}
    if not tasks:
        raise ValueError(f"no runs with the label {PAIRED} in {len(files)} files: run zoo/variants/paired.yml first")
    return Study(tasks)


class Estimate(NamedTuple):
    """A figure with its 95 % bootstrap interval over seeds; NaN bounds where a label has one seed."""

    value: float
    low: float
    high: float


def middle(scores: Scores) -> Estimate:
    """IQM."""
    return Estimate(float(iqm(scores)), *_bounds(interval(iqm, scores)))


def middle_difference(ours: Scores, theirs: Scores) -> Estimate:
    """Difference of two IQMs."""
    return Estimate(float(iqm(ours) - iqm(theirs)), *_bounds(interval(lambda a, b: iqm(a) - iqm(b), ours, theirs)))


def level(study: Study, task: str, label: str) -> Estimate:
    """Final level of a label: IQM over seeds."""
    return middle([study.scores(task, label)])


def difference(study: Study, task: str, label: str, of: str = PAIRED) -> Estimate:
    """By how much pairing ends above a label.

    :param of: the label that stands for pairing
    """
    return middle_difference([study.scores(task, of)], [study.scores(task, label)])


def improvement(study: Study, tasks: Sequence[str], label: str, of: str = PAIRED) -> Estimate:
    """Probability that a run with pairs is better than one of a label, mean over tasks.

    :param tasks: at least one, all with runs of both labels
    :param of: the label that stands for pairing
    """
    ours, theirs = ([study.scores(task, x) for task in tasks] for x in (of, label))
    bounds = _bounds(interval(probability_of_improvement, ours, theirs))
    return Estimate(float(probability_of_improvement(ours, theirs)), *bounds)


def share_to_touch(study: Study, task: str, label: str, wanted: float, in_a_row: int = 1) -> float:
    """Share of the budget after which a label's curve is at a level for the first time.

    :param wanted: the level
    :param in_a_row: checkpoints whose mean must be at or above it; the last of them counts
    :return: in [0, 1]; inf: never
    """
    run = study.runs[task][label][0]
    means = np.convolve(study.curve(task, label), np.full(in_a_row, 1 / in_a_row), "valid")
    return time_to_threshold(means, run.checkpoint_steps[in_a_row - 1 :], wanted) / run.steps


def share_to_keep(study: Study, task: str, label: str, wanted: float) -> float:
    """Share of the budget after which :data:`IN_A_ROW` checkpoints are at a level, if the final evaluation is too.

    The final evaluation has the most episodes: a run that ends at the level has reached it by the end of the budget, and a run
    that ends below has not kept it.

    :param wanted: the level
    :return: in [0, 1]; inf: never
    """
    if level(study, task, label).value < wanted:
        return math.inf
    return min(share_to_touch(study, task, label, wanted, IN_A_ROW), 1.0)


class Row(NamedTuple):
    """A task: pairing against the better critic there."""

    task: str
    critic: str  #: label
    level: float  #: where the critic ends, IQM
    end: float  #: where pairing ends
    gain: Estimate  #: difference of the two
    touched: float  #: share of the budget until pairing is at the critic's level for the first time; inf: never
    share: float  #: until it keeps the level
    own: float  #: until the critic itself keeps it
    gap: float  #: from the critic's level to the best known rule; nan where the rule is no better or there is none
    better: Estimate  #: probability that a run is better

    @property
    def closed(self) -> Estimate:
        """Share of the gap that pairing closes."""
        return Estimate(*(x / self.gap for x in self.gain))


def row(study: Study, task: str, critic: str, rules: dict[str, float]) -> Row:
    """Compare pairing with a critic on a task.

    :param critic: label
    :param rules: name -> return
    """
    theirs = level(study, task, critic).value
    ours = level(study, task, PAIRED).value
    best = max(rules.values(), default=-math.inf)
    return Row(
        task, critic, theirs, ours, difference(study, task, critic),
        share_to_touch(study, task, PAIRED, theirs), share_to_keep(study, task, PAIRED, theirs),
        share_to_keep(study, task, critic, theirs), best - theirs if best > theirs else math.nan,
        improvement(study, [task], critic),
    )  # fmt: skip


def rows(study: Study, rules: dict[str, dict[str, float]]) -> list[Row]:
    """A row per task on which something with a critic has run.

    :param rules: task -> name -> return
    """
    critics = {task: study.critic(task) for task in study.runs}
    return [row(study, task, critic, rules.get(task, {})) for task, critic in critics.items() if critic]


def gap_closed(study: Study, rows: Sequence[Row]) -> Estimate | None:
    """Mean share of the gaps between critic and rule that pairing closes; each share is at most 1.

    :return: None without gaps
    """
    there = [r for r in rows if math.isfinite(r.gap)]
    if not there:
        return None

    def closed(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> np.ndarray:
        gains = [(iqm([a]) - iqm([b])) / r.gap for a, b, r in zip(ours, theirs, there, strict=True)]
        return np.asarray(np.minimum(gains, 1.0).mean(0))

    ours = [study.scores(r.task, PAIRED) for r in there]
    theirs = [study.scores(r.task, r.critic) for r in there]
    return Estimate(float(closed(ours, theirs)), *_bounds(interval(closed, ours, theirs)))


def geometric_mean(shares: Sequence[float]) -> float:
    """Geometric mean of the finite shares; nan if there are none."""
    finite = [s for s in shares if math.isfinite(s)]
    return math.exp(np.mean(np.log(finite))) if finite else math.nan


def _bounds(found: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    low, high = found
    return float(low), float(high)
