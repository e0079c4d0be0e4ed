"""Tables of an evaluation: each function makes one table and one CSV file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from ..comparing import statistics
from .models import Contestant
from .playing import Played


def returns(models: Sequence[Contestant], played: Played) -> pd.DataFrame:
    """One line per episode, the basis of all other tables."""
    return pd.DataFrame(
        {"env": variant.name, "model": one.name, "seed": seed, "return": value}
        for variant in played.variants
        for one in models
        for seed, value in zip(played.seeds, played.returns[variant.name, one.name], strict=True)
    )


def summary(models: Sequence[Contestant], played: Played) -> pd.DataFrame:
    """Per variant of the env and model: mean with its 95 % bootstrap interval over episodes, IQM and extremes."""
    rows = []
    for variant in played.variants:
        for one in models:
            earned = played.returns[variant.name, one.name]
            low, high = statistics.interval(statistics.mean, [earned])
            row = {"env": variant.name, "model": one.name, "episodes": len(earned), "mean": earned.mean()}
            row |= {"mean_low": float(low), "mean_high": float(high), "iqm": float(statistics.iqm([earned]))}
            row |= {"std": earned.std(ddof=1), "worst": earned.min(), "best": earned.max()}
            rows.append({**row, "random": played.random[variant.name]})
    return pd.DataFrame(rows)


def paired(models: Sequence[Contestant], played: Played) -> pd.DataFrame:
    """Per variant and pair of models: difference seed by seed, paired t-test, Holm's correction over the variant's pairs."""
    rows: list[dict[str, str | float]] = []
    for variant in played.variants:
        of_variant: list[dict[str, str | float]] = []
        for a, b in combinations(models, 2):
            x, y = (played.returns[variant.name, one.name] for one in (a, b))
            test = statistics.paired(x, y)
            correlation, saved = statistics.common_luck([x], [y])
            row: dict[str, str | float] = {"env": variant.name, "model": a.name, "other": b.name, "pairs": len(x)}
            row |= {"difference": test.difference, "difference_low": test.low, "difference_high": test.high, "p": test.p}
            of_variant.append({**row, "p_wilcoxon": test.wilcoxon, "correlation": correlation, "variance_saved": saved})
        corrected = statistics.holm(np.array([row["p"] for row in of_variant]))
        rows += [{**row, "p_holm": p} for row, p in zip(of_variant, corrected, strict=True)]
    return pd.DataFrame(rows)


def stability(models: Sequence[Contestant], played: Played) -> pd.DataFrame:
    """Per model with evaluations during training: best, last, drop between them, area under the curve."""
    rows = []
    for one in models:
        if one.curve is None:
            continue
        steps, results = one.curve
        curve = results.mean(axis=1)
        row = {"model": one.name, "evaluations": len(curve), "best": curve.max(), "best_at": int(steps[curve.argmax()])}
        row |= {"last": curve[-1], "drop_from_best": statistics.drop_from_best(curve)}
        rows.append({**row, "area_under_curve": statistics.area_under_curve(curve, steps)})
    return pd.DataFrame(rows)


def normalised(models: Sequence[Contestant], played: Played) -> tuple[list[str], dict[str, np.ndarray]]:
    """Normalise mean returns: 0 is the return of random actions on the same seeds, 1 that of the best model.

    :return: variants in which the best model is better than random, and per model ``[variants]``
    """
    means = {v.name: {one.name: played.returns[v.name, one.name].mean() for one in models} for v in played.variants}
    usable = [name for name, of in means.items() if max(of.values()) > played.random[name]]
    scores = {
        one.name: np.array(
            [(means[v][one.name] - played.random[v]) / (max(means[v].values()) - played.random[v]) for v in usable]
        )
        for one in models
    }
    return usable, scores


def fairness(models: Sequence[Contestant], played: Played) -> pd.DataFrame:
    """Per model, over the variants of the env: worst and best one, worst over best, and Gini, of normalised scores."""
    usable, scores = normalised(models, played)
    if len(usable) < 2:
        return pd.DataFrame()
    return pd.DataFrame({"model": one.name, **statistics.fairness_row(usable, scores[one.name])} for one in models)


ALL: dict[str, Callable[[Sequence[Contestant], Played], pd.DataFrame]] = {
    table.__name__: table for table in (summary, paired, stability, fairness, returns)
}
