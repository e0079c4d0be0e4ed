"""Which trials of a study are worth a second look: not the luckiest ones, but those whose neighbours are good too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from optuna.search_space import intersection_search_space
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from ..comparing.statistics import Array
from .surrogate import Encoding, Surrogate

#: Fewer completed trials say nothing about neighbours.
FEWEST = 4


@dataclass(frozen=True)
class Candidate:
    """A trial that may be recommended.

    :param trial: of the study
    :param mean: over the study's seeds
    :param expected: the surrogate's expectation, with the noise shrunk
    :param worst_neighbour: lowest expectation of it and its neighbours
    :param fresh: means of trainings with seeds that the study has not used; empty: not trained again
    """

    trial: FrozenTrial
    mean: float
    expected: float
    worst_neighbour: float
    fresh: tuple[float, ...] = ()

    @property
    def fresh_mean(self) -> float:
        """Mean over the fresh seeds."""
        return float(np.mean(self.fresh))


def completed(study: Study) -> list[FrozenTrial]:
    """Trials with a value for each of their seeds."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [trial for trial in trials if trial.user_attrs.get("values") and trial.user_attrs.get("settings")]


def fit(trials: Sequence[FrozenTrial]) -> Surrogate:
    """The surrogate of a study.

    The variance of a trial's mean is the variance between seeds, pooled over trials, by the number of its seeds.

    :param trials: completed
    """
    space = {name: among for name, among in intersection_search_space(list(trials)).items() if not among.single()}
    values = [np.array(trial.user_attrs["values"]) for trial in trials]
    several = [v.var(ddof=1) for v in values if len(v) > 1]
    between = float(np.mean(several)) if several else 0.0
    noise = np.array([between / len(v) for v in values])
    return Surrogate(Encoding(space), [trial.params for trial in trials], np.array([v.mean() for v in values]), noise)


def candidates(trials: Sequence[FrozenTrial], surrogate: Surrogate, n: int) -> list[Candidate]:
    """The best by their worst neighbour, the best by their mean over seeds, in turn, until there are enough.

    :param trials: completed
    :param n: how many
    """
    found = []
    for trial in trials:
        around, _ = surrogate.predict([trial.params, *surrogate.encoding.neighbours(trial.params)])
        mean = float(np.mean(trial.user_attrs["values"]))
        found.append(Candidate(trial, mean, float(around[0]), float(around.min())))
    by_neighbour = sorted(found, key=lambda c: -c.worst_neighbour)
    by_mean = sorted(found, key=lambda c: -c.mean)
    in_turn = [c for pair in zip(by_neighbour, by_mean, strict=True) for c in pair]
    return list({c.trial.number: c for c in in_turn}.values())[:n]


def recommended(again: Sequence[Candidate]) -> Candidate:
    """Recommend the candidate with the best worst neighbour, among those within a standard error of the best fresh mean.

    :param again: candidates that were trained again
    """
    best = max(again, key=lambda c: c.fresh_mean)
    error = np.nan_to_num(standard_error(best.fresh))
    return max((c for c in again if c.fresh_mean >= best.fresh_mean - error), key=lambda c: c.worst_neighbour)


def standard_error(values: Sequence[float] | Array) -> float:
    """Standard error of a mean; NaN for a single value."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def mean_and_error(values: Sequence[float] | Array) -> str:
    """A mean and its standard error, where there is one."""
    error = standard_error(values)
    return f"{np.mean(values):.1f} +- {error:.1f}" if np.isfinite(error) else f"{np.mean(values):.1f}"
