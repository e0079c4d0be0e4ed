"""Runs of a comparison, sorted; comparisons that would mislead are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium as gym
import numpy as np

from ..benchmarking.results import EVALUATED, RANDOM, Run, find_results, read_all
from ..common.command_line import BadInput, check_has_runs, did_you_mean
from ..comparing import statistics

ROLLOUT_TOLERANCE = 0.1  # of a run of zoo.train, which ends with a whole rollout
FEW = 5  # runs: references from fewer are reported
BUDGET_TOLERANCE = 0.02  # of the steps taken, as whole vector steps may exceed the budget


@dataclass
class Comparison:
    """Runs by env and label, and the references of normalised scores.

    :param runs: (env, label) -> runs in the order of their seeds
    :param envs: in order
    :param labels: in order
    :param references: env -> (low, high): 0 and 1 of normalised scores
    :param thresholds: env -> return that counts as solved; envs without one are missing
    :param baseline: label that the others are compared with; None: every pair
    :param notes: omissions and their reasons
    """

    runs: Mapping[tuple[str, str], list[Run]]
    envs: list[str]
    labels: list[str]
    references: dict[str, tuple[float, float]]
    thresholds: dict[str, float]
    baseline: str | None = None
    notes: list[str] = field(default_factory=list)

    def scores(self, env: str, label: str) -> np.ndarray:
        """``[runs]`` mean final return of each run."""
        return np.array([run.score for run in self.runs[env, label]])

    def curves(self, env: str, label: str) -> np.ndarray:
        """``[runs, C]`` mean return of each checkpoint."""
        return np.array([run.curve for run in self.runs[env, label]])

    def on(self, env: str) -> list[str]:
        """Labels that have runs on this env."""
        return [label for label in self.labels if (env, label) in self.runs]

    @property
    def keys(self) -> list[tuple[str, str]]:
        """(env, label) of all runs, in order."""
        return [(env, label) for env in self.envs for label in self.on(env)]

    @property
    def groups(self) -> list[tuple[str, str, list[Run]]]:
        """(env, label, runs), in order."""
        return [(*key, self.runs[key]) for key in self.keys]

    @property
    def common_envs(self) -> list[str]:
        """Envs of the aggregates: every label has runs on them, and they have references."""
        return [env for env in self.envs if self.on(env) == self.labels and env in self.references]

    def normalised(self, label: str) -> list[np.ndarray]:
        """Normalised scores on the common envs, one array per env."""
        return [statistics.normalise(self.scores(env, label), *self.references[env]) for env in self.common_envs]

    def normalised_curves(self, label: str, shares: np.ndarray) -> list[np.ndarray]:
        """Normalised learning curves on the common envs, at shares of the budget.

        :param label: of the curves
        :param shares: ``[S]`` from 0 to 1
        :return: per env ``[runs, S]``
        """
        curves = []
        for env in self.common_envs:
            at = self.runs[env, label][0].checkpoint_steps / self.runs[env, label][0].steps
            curve = [np.interp(shares, at, row) for row in self.curves(env, label)]
            curves.append(statistics.normalise(np.array(curve), *self.references[env]))
        return curves


def load(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read the runs of some folders.

    :param folders: of ``zoo.benchmark``
    :return: runs, and a line per broken file
    :raises BadInput: for a folder that does not exist or holds no result, and for a run given twice
    """
    places: dict[Path, Path] = {}
    for folder in folders:
        if not folder.exists():
            raise BadInput(f"{folder} does not exist")
        found = find_results([folder])
        if not found:
            raise BadInput(f"{folder} holds no result file (<env>/<label>/seed_<s>.json or <label>.jsonl)")
        for file in found:
            first = places.setdefault(file.resolve(), folder)
            if first is not folder:
                raise BadInput(f"{file} is given twice, in {first} and in {folder}: leave one of them out.")
    runs, broken = read_all(find_results(folders))
    if not runs:
        raise BadInput(f"no result file can be read; the first: {broken[0]}")
    seen: dict[tuple[str, str, int], Path] = {}
    for run in runs:
        key = (run.env, run.label, run.seed)
        if key in seen:
            raise BadInput(f"{run.env} {run.label} seed {run.seed} is given twice: {seen[key]} and {run.path}")
        seen[key] = run.path
    return runs, broken


def compare_runs(
    runs: Sequence[Run],
    labels: Sequence[str] = (),
    baseline: str | None = None,
    thresholds: Mapping[str, float] | None = None,
    references: Mapping[str, tuple[float, float]] | None = None,
    allow_unequal: bool = False,
) -> Comparison:
    """Sort runs and decide thresholds and references.

    :param runs: to compare; those of the random policy only give the lower reference
    :param labels: selection and order; empty: all, by name
    :param baseline: label that the others are compared with; its mean has the normalised score 1
    :param thresholds: env -> return that counts as solved, in place of Gymnasium's
    :param references: env -> (low, high), in place of those from the runs
    :param allow_unequal: accept labels with different budgets
    :raises BadInput: for unknown labels and unequal budgets
    """
    contestants = [run for run in runs if run.algo != RANDOM]
    known = sorted({run.label for run in contestants})
    for label in [*labels, *([baseline] if baseline else [])]:
        if label not in known:
            raise BadInput(f"no runs of {label!r}.{did_you_mean(label, known)} (there are: {', '.join(known)})")
    chosen = list(dict.fromkeys(labels)) or known
    if baseline and baseline not in chosen:
        raise BadInput(f"--baseline {baseline} is not among --labels")
    table: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(contestants, key=lambda run: run.seed):
        if run.label in chosen:
            table.setdefault((run.env, run.label), []).append(run)
    if not table:
        raise BadInput("only runs of the random policy: nothing to compare")
    envs = sorted({env for env, _ in table})
    _check_budgets(table, allow_unequal)
    comparison = Comparison(table, envs, chosen, {}, _thresholds(envs, thresholds or {}), baseline)
    _set_references(comparison, [run for run in runs if run.algo == RANDOM], references or {})
    _note_gaps(comparison)
    return comparison


def _check_budgets(table: Mapping[tuple[str, str], list[Run]], allow_unequal: bool) -> None:
    plans: dict[str, tuple[str, Run]] = {}
    for (env, label), runs in table.items():
        for run in runs:
            if not np.array_equal(run.checkpoint_steps, runs[0].checkpoint_steps) or run.steps != runs[0].steps:
                raise BadInput(f"{env}: runs of {label} have different budgets or checkpoints: {runs[0].path} and {run.path}")
            excess = run.env_steps - run.steps
            tolerance = BUDGET_TOLERANCE
            if run.origin["settings_of"].startswith(EVALUATED) and excess > 0:
                tolerance = ROLLOUT_TOLERANCE
            if abs(excess) > max(tolerance * run.steps, 64) and not allow_unequal:
                raise BadInput(f"{run.path}: took {run.env_steps:,} steps of a budget of {run.steps:,} (--allow-unequal)")
        first, other = plans.setdefault(env, (label, runs[0]))
        if (other.steps != runs[0].steps or len(other.curve) != len(runs[0].curve)) and not allow_unequal:
            raise BadInput(
                f"{env}: unequal budgets: {first} {other.steps:,} steps and {len(other.curve)} checkpoints, "
                f"{label} {runs[0].steps:,} and {len(runs[0].curve)} (--allow-unequal compares them all the same)"
            )


def _thresholds(envs: Sequence[str], given: Mapping[str, float]) -> dict[str, float]:
    check_has_runs("--threshold", given, envs)
    registered = {env: gym.registry[env].reward_threshold for env in envs if env in gym.registry}
    return {env: float(x) for env, x in {**registered, **given}.items() if x is not None}


def _set_references(comparison: Comparison, random_runs: Sequence[Run], given: Mapping[str, tuple[float, float]]) -> None:
    for env in comparison.envs:
        labels = comparison.on(env)
        means = {label: float(comparison.scores(env, label).mean()) for label in labels}
        random = [run.score for run in random_runs if run.env == env]
        low = float(np.mean(random)) if random else min(float(comparison.scores(env, label).min()) for label in labels)
        high = means.get(comparison.baseline or "", max(means.values()))
        low, high = given.get(env, (low, high))
        if high > low:
            comparison.references[env] = low, high
            if env not in given:
                top = comparison.baseline if comparison.baseline in means else max(means, key=lambda label: means[label])
                _note_few(comparison, env, len(random), str(top))
        else:
            comparison.notes.append(f"{env} is left out of normalised scores: its references are {low:g} and {high:g}.")


def _note_few(comparison: Comparison, env: str, n_random: int, top: str) -> None:
    """Report references from few runs, because the intervals ignore their error."""
    n_top = len(comparison.runs[env, top])
    few = [f"0 on {n_random} of random"] if 0 < n_random < FEW else []
    few += [f"1 on {n_top} of {top}"] if n_top < FEW else []
    if few:
        comparison.notes.append(
            f"{env}: normalised scores, and so their IQM, rest on few runs ({', '.join(few)}), and their intervals take "
            "those for known: more seeds, or --references."
        )


def _note_gaps(comparison: Comparison) -> None:
    for env in comparison.envs:
        missing = [label for label in comparison.labels if label not in comparison.on(env)]
        if missing:
            comparison.notes.append(f"{env} is left out of aggregates: no runs of {', '.join(missing)}.")
        for label in comparison.on(env):
            settings = [run.settings for run in comparison.runs[env, label]]
            if any(other != settings[0] for other in settings):
                comparison.notes.append(f"{env} {label}: its runs were made with different settings.")
    for label in comparison.labels:
        single = [env for env in comparison.envs if len(comparison.runs.get((env, label), [])) == 1]
        if single:
            lacking = "no standard deviation, interval, t-test, effect size or ANOVA there"
            comparison.notes.append(f"{label} has one seed on {', '.join(single)}: {lacking}.")
