"""What a study says of settings that it has not tried: a Gaussian process over its completed trials.

Matern 5/2 with a length scale per parameter, fitted by its marginal likelihood (Rasmussen and Williams, Gaussian Processes
for Machine Learning, 2006, chapters 2 and 5) under a weak prior, as trials are few. A trial is a mean over seeds: its noise is
known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from scipy import linalg, optimize

from ..comparing.statistics import Array

#: Share of a numeric parameter's range by which a neighbour differs.
STEP = 0.1
#: Median and spread of the prior of log length scales, in ranges.
PRIOR = (np.log(0.5), 1.0)
_JITTER = 1e-6


def is_ordered(among: BaseDistribution) -> bool:
    """Numbers, or choices that are numbers."""
    if isinstance(among, CategoricalDistribution):
        return all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in among.choices)
    return True


class Encoding:
    """Parameters as points of a unit cube; choices that are no numbers get a column each.

    :param space: distributions by name, as :func:`optuna.search_space.intersection_search_space` gives them
    """

    def __init__(self, space: Mapping[str, BaseDistribution]) -> None:
        self.space = dict(space)
        widths = [1 if is_ordered(among) else len(self._choices(among)) for among in self.space.values()]
        self.owner = np.repeat(np.arange(len(widths)), widths)  #: ``[D]`` number of the parameter of each column

    @staticmethod
    def _choices(among: BaseDistribution) -> list[Any]:
        assert isinstance(among, CategoricalDistribution)
        return sorted(among.choices) if is_ordered(among) else list(among.choices)  # type: ignore[type-var]

    def __call__(self, params: Mapping[str, Any]) -> Array:
        """``[D]`` of one setting."""
        return np.concatenate([self.column(among, params[name]) for name, among in self.space.items()])

    def column(self, among: BaseDistribution, value: Any) -> Array:
        """Columns of one parameter."""
        if isinstance(among, CategoricalDistribution):
            choices = self._choices(among)
            place = choices.index(value)
            return (
                np.array([place / max(len(choices) - 1, 1)]) if is_ordered(among) else np.eye(len(choices))[place] / np.sqrt(2)
            )
        assert isinstance(among, FloatDistribution | IntDistribution)
        low, high, at = (np.log(x) if among.log else float(x) for x in (among.low, among.high, value))
        return np.array([(at - low) / (high - low) if high > low else 0.0])

    def values(self, name: str, n: int = 25) -> list[Any]:
        """Values of a parameter to draw it over: its choices, or so many numbers."""
        among = self.space[name]
        if isinstance(among, CategoricalDistribution):
            return self._choices(among)
        assert isinstance(among, FloatDistribution | IntDistribution)
        return [self._number(among, share) for share in np.linspace(0.0, 1.0, n)]

    @staticmethod
    def _number(among: FloatDistribution | IntDistribution, share: float) -> float:
        low, high = (np.log(x) if among.log else float(x) for x in (among.low, among.high))
        value = low + share * (high - low)
        return float(np.exp(value) if among.log else value)

    def neighbours(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Settings that differ in one ordered parameter by a tenth of its range, or by one choice.

        :param params: of a trial
        """
        found = []
        for name, among in self.space.items():
            if isinstance(among, CategoricalDistribution):
                choices, place = self._choices(among), self._choices(among).index(params[name])
                beside = choices[max(place - 1, 0) : place] + choices[place + 1 : place + 2] if is_ordered(among) else []
            else:
                assert isinstance(among, FloatDistribution | IntDistribution)
                at = float(self.column(among, params[name])[0])
                beside = [self._number(among, share) for share in (at - STEP, at + STEP) if -1e-9 <= share <= 1 + 1e-9]
            found += [{**params, name: value} for value in beside]
        return found


class Surrogate:
    """The fitted process.

    :param encoding: of the parameters
    :param params: ``[n]`` settings of the trials
    :param values: ``[n]`` what they are worth, means over seeds
    :param noise: ``[n]`` variance of those means
    """

    def __init__(self, encoding: Encoding, params: Sequence[Mapping[str, Any]], values: Array, noise: Array) -> None:
        self.encoding, self.x = encoding, np.array([encoding(p) for p in params])
        self.mean, self.scale = float(np.mean(values)), float(np.std(values)) or 1.0
        self.y, self.noise = (np.asarray(values) - self.mean) / self.scale, np.asarray(noise) / self.scale**2
        n = len(encoding.space)
        starts = [np.array([*([np.log(scale)] * n), 0.0, np.log(0.1)]) for scale in (0.2, 0.5, 2.0)]
        bounds = [*([(np.log(0.05), np.log(20.0))] * n), (np.log(0.05), np.log(20.0)), (np.log(1e-3), np.log(2.0))]
        fits = [optimize.minimize(self._loss, start, method="L-BFGS-B", bounds=bounds) for start in starts]
        self.parameters = min(fits, key=lambda fit: fit.fun).x
        self._factor, self._weights = self._solve(self.parameters)

    def _kernel(self, a: Array, b: Array, parameters: Array) -> Array:
        lengths = np.exp(parameters[:-2])[self.encoding.owner]
        distance = np.sqrt(5.0 * (((a[:, None] - b[None]) / lengths) ** 2).sum(axis=2))
        return np.asarray(np.exp(parameters[-2]) * (1.0 + distance + distance**2 / 3.0) * np.exp(-distance))

    def _solve(self, parameters: Array) -> tuple[Array, Array]:
        noise = self.noise + np.exp(2.0 * parameters[-1]) + _JITTER
        factor = linalg.cholesky(self._kernel(self.x, self.x, parameters) + np.diag(noise), lower=True)
        return factor, linalg.cho_solve((factor, True), self.y)

    def _loss(self, parameters: Array) -> float:
        factor, weights = self._solve(parameters)
        likelihood = 0.5 * self.y @ weights + np.log(np.diag(factor)).sum()
        middle, spread = PRIOR
        return float(likelihood + 0.5 * (((parameters[:-2] - middle) / spread) ** 2).sum() + 0.5 * parameters[-2] ** 2)

    def predict(self, params: Sequence[Mapping[str, Any]]) -> tuple[Array, Array]:
        """Expected value of settings over seeds, and how uncertain that is.

        :return: ``[m]`` means and standard deviations
        """
        points = np.array([self.encoding(p) for p in params])
        across = self._kernel(points, self.x, self.parameters)
        within = linalg.solve_triangular(self._factor, across.T, lower=True)
        variance = np.exp(self.parameters[-2]) - (within**2).sum(axis=0)
        return self.mean + self.scale * (across @ self._weights), self.scale * np.sqrt(np.maximum(variance, 0.0))
