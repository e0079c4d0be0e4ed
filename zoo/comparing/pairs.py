"""Paired differences: runs of two algorithms with the same seed are evaluated on the same initial states.

:func:`zoo.benchmarking.worker.evaluation_seed` derives an evaluation's initial states from the run's seed alone, and keeps
returns in their order. So two runs with the same env and seed share initial state and env noise, episode by episode. One run's
score is one observation: tests are over seeds, never over episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from ..benchmarking.results import Run
from ..comparing import statistics
from ..comparing.comparison import Comparison

NAMED = 3  # of the pairs of algorithms that a note lists


def match(some: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Match runs with the same seed and number of final episodes.

    :param some: runs of one env and algorithm
    :param others: of the same env and another algorithm
    :return: in the order of the seeds
    """
    by_seed = {run.seed: run for run in others}
    both = [(run, by_seed[run.seed]) for run in sorted(some, key=lambda run: run.seed) if run.seed in by_seed]
    return [(a, b) for a, b in both if len(a.final_returns) == len(b.final_returns)]


def paired(c: Comparison) -> pd.DataFrame:
    """Per env and pair of algorithms: the paired t-test over the seeds that both have, and the variance it saves.

    ``correlation`` and ``variance_saved`` are of the runs' scores over seeds; with ``_within`` they are of episodes within
    their seeds: the effect of shared initial states alone.
    """
    rows = []
    for env in c.envs:
        of_env = [_row(env, a, b, match(c.runs[env, a], c.runs[env, b])) for a, b in combinations(c.on(env), 2)]
        corrected = statistics.holm(np.array([row["p"] for row in of_env]))
        rows += [{**row, "p_holm": p} for row, p in zip(of_env, corrected, strict=True)]
    names = ["env", "algorithm", "other", "pairs", "difference", "difference_low", "difference_high", "t", "p", "p_holm"]
    names += ["p_wilcoxon", "correlation", "variance_saved", "correlation_within", "variance_saved_within"]
    table = pd.DataFrame(rows, columns=names)
    return table if (table["pairs"] >= 2).any() else table.iloc[:0]


def _row(env: str, a: str, b: str, pairs: Sequence[tuple[Run, Run]]) -> dict[str, str | float]:
    row: dict[str, str | float] = {"env": env, "algorithm": a, "other": b, "pairs": len(pairs), "p": np.nan}
    if len(pairs) < 2:
        return row
    x, y = ([pair[side].final_returns for pair in pairs] for side in (0, 1))
    scores_x, scores_y = (np.array([block.mean() for block in blocks]) for blocks in (x, y))
    test = statistics.paired(scores_x, scores_y)
    row |= {"difference": test.difference, "difference_low": test.low, "difference_high": test.high}
    row |= {"t": test.t, "p": test.p, "p_wilcoxon": test.wilcoxon}
    row["correlation"], row["variance_saved"] = statistics.common_noise([scores_x], [scores_y])
    row["correlation_within"], row["variance_saved_within"] = statistics.common_noise(x, y)
    return row


def notes(c: Comparison) -> list[str]:
    """At most one line about algorithms that cannot be paired, and seeds left out of pairs."""
    apart = []
    partial = []
    for env in c.envs:
        for a, b in combinations(c.on(env), 2):
            some = c.runs[env, a]
            others = c.runs[env, b]
            n = len(match(some, others))
            if n < 2:
                apart.append(f"{env} {a} and {b} ({_why(some, others)})")
            elif n < max(len(some), len(others)):
                partial.append(f"{env} {a} and {b} ({n} of {len(some)} and {len(others)} runs)")
    messages = [
        f"{what} {', '.join(found[:NAMED])}{f' and {len(found) - NAMED} more' * (len(found) > NAMED)}."
        for what, found in (("Not paired:", apart), ("Paired in part:", partial))
        if found
    ]
    return [" ".join(messages)] if messages else []


def _why(some: Sequence[Run], others: Sequence[Run]) -> str:
    common = {run.seed for run in some} & {run.seed for run in others}
    if len(common) < 2:
        return f"{len(common) or 'no'} seed in common"
    return "other numbers of final episodes"
