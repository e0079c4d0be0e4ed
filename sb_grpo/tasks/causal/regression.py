"""Many parallel conjugate Bayesian linear regressions, updated one sample at a time.

Model of each: y = w.z + noise, noise ~ N(0, s2), w | s2 ~ N(0, s2 I / prior_precision), 1 / s2 ~ Gamma(a, b). By the chain
rule log p(y_1..n) is the sum of the log predictive densities of each sample given the previous ones, and these are Student-t.
So the update, which needs no matrix inversion (Sherman and Morrison), also yields the marginal likelihood.

Formulas: Murphy, Machine Learning (2012), section 7.6.3; the use as a score of parent sets: Geiger and Heckerman, Learning
Gaussian Networks (1994), sections 3 and 4.
"""

from __future__ import annotations

import math

import numpy as np

#: Shape and rate of the prior on the noise precision: about the weight of 2 samples for a variance near 1.
SHAPE = 1.0
RATE = 1.0
#: Prior precision of the weights, in units of the noise variance.
PRECISION = 0.5


class Regressions:
    """N regressions with p features each.

    :param active: ``[N, p]`` bool: the features that exist; the others are padding and must always be 0
    :param n_max: largest number of samples
    """

    def __init__(self, active: np.ndarray, n_max: int) -> None:
        n, p = active.shape
        self.covariance = np.zeros((n, p, p))  #: of the weights, in units of the noise variance
        self.covariance[:, range(p), range(p)] = active / PRECISION
        self.mean = np.zeros((n, p))
        self.rate = np.full(n, RATE)
        self.count = np.zeros(n, dtype=np.int64)
        self.log_evidence = np.zeros(n)  #: log p(samples so far) of each regression
        self._log_gamma_step = np.array(
            [math.lgamma(SHAPE + (k + 1) / 2) - math.lgamma(SHAPE + k / 2) for k in range(n_max + 1)]
        )

    @property
    def shape(self) -> np.ndarray:
        """``[N]`` shape of the posterior on the noise precision."""
        return SHAPE + 0.5 * self.count

    def update(self, z: np.ndarray, y: np.ndarray, which: np.ndarray) -> None:
        """Update with one sample each.

        :param z: ``[N, p]`` features
        :param y: ``[N]`` responses
        :param which: ``[N]`` bool: regressions to update; the others do not change
        """
        shape = self.shape
        gain = (self.covariance @ z[:, :, None])[:, :, 0]
        # Rounding of huge values may make the quadratic form negative.
        spread = 1.0 + np.maximum((gain * z).sum(1), 0.0)
        error = y - (self.mean * z).sum(1)
        surprise = error * error / (2.0 * spread)
        self.log_evidence += which * (
            self._log_gamma_step[self.count]
            - 0.5 * np.log(2.0 * math.pi * self.rate * spread)
            - (shape + 0.5) * np.log1p(surprise / self.rate)
        )
        step = gain * (which / spread)[:, None]
        self.covariance -= step[:, :, None] * gain[:, None, :]
        self.mean += step * error[:, None]
        self.rate += which * surprise
        self.count += which

    def predict(self, z: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Predict w.z: the mean response without noise.

        :param z: ``[K, p]`` features
        :param which: ``[K]`` int: regression of each row
        :return: ``[K]`` mean and ``[K]`` standard deviation (of the normal with the mean noise variance)
        """
        variance = np.maximum(((self.covariance[which] @ z[:, :, None])[:, :, 0] * z).sum(1), 0.0)
        return (self.mean[which] * z).sum(1), np.sqrt(variance * (self.rate / self.shape)[which])
