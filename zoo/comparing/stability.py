"""Stability of a run: its drop from the best checkpoint, and the area under its curve."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.integrate import trapezoid

from ..comparing import statistics
from ..comparing.comparison import Comparison
from ..comparing.statistics import Array


def drop_from_best(curve: Array) -> float:
    """Difference between the best and the last checkpoint; 0 if the last is the best.

    :param curve: ``[C]`` mean return of each checkpoint
    """
    return float(curve.max() - curve[-1])


def area_under_curve(curve: Array, steps: Array) -> float:
    """Mean height of the curve over the steps that it covers (trapezoids): a return, comparable between budgets.

    :param curve: ``[C]``
    :param steps: ``[C]`` increasing; where there is one checkpoint, its value
    """
    if len(curve) == 1:
        return float(curve[0])
    return float(trapezoid(curve, steps) / (steps[-1] - steps[0]))


def stability(c: Comparison) -> pd.DataFrame:
    """Per env and algorithm, means over runs: drop from the best checkpoint, and area under the curve."""
    rows = []
    for env, label in c.keys:
        curves = c.curves(env, label)
        steps = c.runs[env, label][0].checkpoint_steps
        drops = np.array([drop_from_best(curve) for curve in curves])
        areas = np.array([area_under_curve(curve, steps) for curve in curves])
        row: dict[str, str | float] = {"env": env, "algorithm": label, "seeds": len(curves)}
        for name, values in (("drop_from_best", drops), ("area_under_curve", areas)):
            row |= statistics.with_interval(name, values.mean(), *statistics.interval(statistics.mean, [values]))
        rows.append({**row, "largest_drop": drops.max()})
    return pd.DataFrame(rows)
