"""Student's t distribution for whole degrees of freedom, as a paired t-test has them: finite sums, so SciPy is not needed.

Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 (odd) and 26.7.4 (even).
"""

from __future__ import annotations

import math

import numpy as np


def two_sided(t: float, freedom: int) -> float:
    """Probability of a t at least as far from 0; absolute error below 1e-12.

    :param t: finite
    :param freedom: degrees of freedom, at least 1
    """
    cos2 = freedom / (freedom + t * t)
    sin = abs(t) / math.sqrt(freedom + t * t)
    odd = freedom % 2
    j = np.arange(1, freedom // 2)
    ratios = 2 * j / (2 * j + 1) if odd else (2 * j - 1) / (2 * j)
    series = 1 + np.cumprod(ratios * cos2).sum()
    if not odd:
        inside = sin * series
    else:
        angle = math.atan(abs(t) / math.sqrt(freedom))
        inside = 2 / math.pi * (angle + (sin * math.sqrt(cos2) * series if freedom > 1 else 0.0))
    return max(0.0, float(1 - inside))


def critical_value(level: float, freedom: int) -> float:
    """The t that a share ``level`` of the distribution lies within, on both sides of 0, by bisection.

    :param level: in (0, 1)
    :param freedom: degrees of freedom, at least 1
    """
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 1 - level:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > 1 - level else (low, middle)
    return high
