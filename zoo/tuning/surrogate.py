"""Gaussian process over the completed trials of a study: predictions for settings that it has not tried.

Matern 5/2 with a length scale per parameter, by scikit-learn. A trial is a mean over seeds, whose noise is known.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from ..comparing.statistics import Array

#: Parameters of a trial, as Optuna has them.
Params = Mapping[str, Any]
#: Share of a numeric parameter's range by which a neighbour differs.
STEP = 0.1
#: Added to the variance of every trial, so that equal settings leave the matrix invertible.
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

    @staticmethod
    def _choices(among: BaseDistribution) -> list[Any]:
        assert isinstance(among, CategoricalDistribution)
        return sorted(among.choices) if is_ordered(among) else list(among.choices)  # type: ignore[type-var]

    def __call__(self, params: Params) -> Array:
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

    def neighbours(self, params: Params) -> list[Params]:
        """Settings that differ in one ordered parameter by a tenth of its range, or by one choice.

        :param params: of a trial
        """
        found: list[Params] = []
        for name, among in self.space.items():
            if isinstance(among, CategoricalDistribution):
                choices = self._choices(among)
                place = self._choices(among).index(params[name])
                beside = choices[max(place - 1, 0) : place] + choices[place + 1 : place + 2] if is_ordered(among) else []
            else:
                assert isinstance(among, FloatDistribution | IntDistribution)
                at = float(self.column(among, params[name])[0])
                beside = [self._number(among, share) for share in (at - STEP, at + STEP) if -1e-9 <= share <= 1 + 1e-9]
            found += [{**params, name: value} for value in beside]
        return found


class Surrogate:
    """Fitted Gaussian process.

    :param encoding: of the parameters
    :param params: ``[n]`` settings of the trials
    :param values: ``[n]`` objective, means over seeds
    :param noise: ``[n]`` variance of those means
    """

    def __init__(self, encoding: Encoding, params: Sequence[Params], values: Array, noise: Array) -> None:
        self.encoding = encoding
        self.x = np.array([encoding(p) for p in params])
        self.mean = float(np.mean(values))
        self.scale = float(np.std(values)) or 1.0
        lengths = np.full(self.x.shape[1], 0.5)
        kernel = ConstantKernel(1.0, (0.05, 20.0)) * Matern(lengths, (0.05, 20.0), nu=2.5) + WhiteKernel(0.01, (1e-6, 4.0))
        self.process = GaussianProcessRegressor(
            kernel, alpha=np.asarray(noise) / self.scale**2 + _JITTER, n_restarts_optimizer=4, random_state=0
        )
        with warnings.catch_warnings():  # a parameter that does nothing has the longest length scale there is
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.process.fit(self.x, (np.asarray(values) - self.mean) / self.scale)

    def predict(self, params: Sequence[Params]) -> tuple[Array, Array]:
        """Expected value of settings over seeds, and how uncertain that is.

        :return: ``[m]`` means and standard deviations
        """
        points = np.array([self.encoding(p) for p in params])
        mean, deviation = self.process.predict(points, return_std=True)
        noise = self.process.kernel_.k2.noise_level  # of one more trial, not of the expected value
        return self.mean + self.scale * mean, self.scale * np.sqrt(np.maximum(deviation**2 - noise, 0.0))
