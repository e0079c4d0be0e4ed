"""Estimated effects of interventions on the target: Bayesian regressions of the target on the value set.

Only samples in which a variable was set enter its regression: in a randomised experiment nothing else can explain an
association, whatever the graph.
"""

from __future__ import annotations

import numpy as np

from sb_grpo.tasks.causal.regression import Regressions
from sb_grpo.tasks.causal.scm import FEATURES, N_FEATURES


class Effects:
    """Estimates of E[target | do(x_i = v)] for every variable i but the target and every value v of a grid.

    Effects are differences from the target's mean without interventions, in units of its standard deviation there.

    :param d: variables; the target is variable 0
    :param grid: ``[B]`` values
    :param mechanism: its features are inputs of the regressions
    :param baseline: ``[n]`` values of the target without interventions
    :param unit: prior standard deviation, with the weight of one sample
    :param n_max: largest number of samples
    """

    def __init__(self, d: int, grid: np.ndarray, mechanism: str, baseline: np.ndarray, unit: float, n_max: int) -> None:
        self._features = FEATURES[mechanism]
        self._centre = float(baseline.mean()) if len(baseline) else 0.0
        self._unit = float(np.sqrt((unit**2 + ((baseline - self._centre) ** 2).sum()) / (1 + len(baseline))))
        self._regressions = Regressions(np.ones((d - 1, 1 + N_FEATURES[mechanism]), dtype=bool), n_max)
        arms = np.concatenate([np.ones((len(grid), 1)), self._features(grid)], axis=1)
        self._arms = np.tile(arms, (d - 1, 1))
        self._which = np.repeat(np.arange(d - 1), len(grid))
        self._shape = d - 1, len(grid)

    def update(self, variable: int, value: float, target_value: float) -> None:
        """Update with one sample.

        :param variable: the variable that was set, 1 to d - 1
        :param value: its value
        :param target_value: observed value of the target
        """
        z = np.concatenate([[1.0], self._features(np.array(value))])
        n = self._shape[0]
        y = np.full(n, (target_value - self._centre) / self._unit)
        self._regressions.update(np.tile(z, (n, 1)), y, np.arange(n) == variable - 1)

    def estimates(self) -> tuple[np.ndarray, np.ndarray]:
        """``[d - 1, B]`` means and ``[d - 1, B]`` standard deviations of the effects."""
        mean, deviation = self._regressions.predict(self._arms, self._which)
        return mean.reshape(self._shape), deviation.reshape(self._shape)
