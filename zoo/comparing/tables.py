"""Tables of a comparison: each function makes one table and one CSV file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from ..benchmarking.results import Run
from . import statistics
from .comparison import Comparison
from .statistics import Array

PROFILE_POINTS = 81
PROFILE_RANGE = (-1.0, 3.0)
NONE = "-"  # cannot be computed, or does not apply
SHARES = np.linspace(0.0, 1.0, 21)


def runs(c: Comparison) -> pd.DataFrame:
    """One line per run, the basis of all other tables."""
    return pd.DataFrame(
        {
            "env": run.env,
            "algorithm": run.label,
            "seed": run.seed,
            "final_return": run.score,
            "episodes": len(run.final_returns),
            "env_steps": run.env_steps,
            "gradient_steps": run.gradient_steps,
            "train_wall_s": run.train_wall_s,
            "train_cpu_s": run.train_cpu_s,
        }
        for _, _, group in c.groups
        for run in group
    )


def summary(c: Comparison) -> pd.DataFrame:
    """Per env and algorithm: the final evaluation, its spread over seeds, success and convergence."""
    rows = []
    for env, label, group in c.groups:
        scores = c.scores(env, label)
        low, high = statistics.interval(statistics.iqm, [scores])
        steps = group[0].checkpoint_steps
        converged = [statistics.convergence_time(run.curve, steps) for run in group]
        returns = np.concatenate([run.final_returns for run in group])
        threshold = c.thresholds.get(env)
        rows.append(
            {
                "env": env,
                "algorithm": label,
                "seeds": len(group),
                "iqm": float(statistics.iqm([scores])),
                "iqm_low": float(low),
                "iqm_high": float(high),
                "mean": scores.mean(),
                "std": scores.std(ddof=1) if len(scores) > 1 else np.nan,
                "median": np.median(scores),
                "worst": scores.min(),
                "best": scores.max(),
                "success_rate": np.nan if threshold is None else statistics.success_rate(returns, threshold),
                "convergence_steps": np.median(converged),
            }
        )
    return pd.DataFrame(rows)


def threshold(c: Comparison) -> pd.DataFrame:
    """Per env with a threshold and algorithm: number of runs that reach it, and the time."""
    rows = []
    for env, label, group in c.groups:
        if env not in c.thresholds:
            continue
        level = c.thresholds[env]
        steps = [statistics.time_to_threshold(run.curve, run.checkpoint_steps, level) for run in group]
        seconds = [statistics.time_to_threshold(run.curve, run.checkpoint_wall_s, level) for run in group]
        reached = int(np.isfinite(steps).sum())
        medians = {"median_steps": np.median(steps), "median_train_s": np.median(seconds)}
        rows.append({"env": env, "algorithm": label, "threshold": level, "reached": reached, "seeds": len(group), **medians})
    return pd.DataFrame(rows)


def aggregate(c: Comparison) -> pd.DataFrame:
    """Per algorithm: normalised scores over the common envs, with stratified bootstrap intervals."""
    measures: dict[str, Callable[..., statistics.Array]] = {
        "iqm": statistics.iqm,
        "mean": statistics.mean,
        "median": statistics.median,
        "optimality_gap": statistics.optimality_gap,
    }
    rows = []
    for label in c.labels if c.common_envs else []:
        scores = c.normalised(label)
        row: dict[str, str | float] = {"algorithm": label}
        for name, measure in measures.items():
            row |= statistics.with_interval(name, float(measure(scores)), *statistics.interval(measure, scores))
        rows.append({**row, "envs": len(scores), "runs": sum(map(len, scores))})
    return pd.DataFrame(rows)


def improvement(c: Comparison) -> pd.DataFrame:
    """Probability that a run beats another algorithm's on a common env: every pair, or all against the baseline."""
    pairs = list(combinations(c.labels, 2))
    if c.baseline:
        pairs = [(label, c.baseline) for label in c.labels if label != c.baseline]
    rows = []
    for a, b in pairs if c.common_envs else []:
        x, y = ([c.scores(env, label) for env in c.common_envs] for label in (a, b))
        measure = statistics.probability_of_improvement
        values = statistics.with_interval("probability", float(measure(x, y)), *statistics.interval(measure, x, y))
        rows.append({"algorithm": a, "over": b, **values})
    return pd.DataFrame(rows)


def pairwise(c: Comparison) -> pd.DataFrame:
    """Per env and pair: Welch's t-test with Holm's correction over the env's pairs, and Cohen's d."""
    rows = []
    for env in c.envs:
        for a, b, test, corrected, d in statistics.pairwise({label: c.scores(env, label) for label in c.on(env)}):
            values = statistics.with_interval("difference", test.difference, test.low, test.high)
            rows.append(
                {
                    "env": env,
                    "algorithm": a,
                    "other": b,
                    **values,
                    "t": test.t,
                    "p": test.p,
                    "p_holm": corrected,
                    "cohens_d": d,
                }
            )
    return pd.DataFrame(rows)


def anova(c: Comparison) -> pd.DataFrame:
    """Per env: one-way ANOVA over the algorithms."""
    rows = []
    for env in c.envs:
        f, p = statistics.anova([c.scores(env, label) for label in c.on(env)])
        rows.append({"env": env, "algorithms": len(c.on(env)), "F": f, "p": p})
    return pd.DataFrame(rows)


def ranking(c: Comparison) -> pd.DataFrame:
    """Rank of each algorithm by IQM on each common env, and the mean of its ranks."""
    envs = [env for env in c.envs if c.on(env) == c.labels]
    if not envs:
        return pd.DataFrame()
    iqms = [[float(statistics.iqm([c.scores(env, label)])) for env in envs] for label in c.labels]
    ranks = statistics.ranks(np.array(iqms))
    table = pd.DataFrame({"algorithm": c.labels, "mean_rank": ranks.mean(axis=1), **dict(zip(envs, ranks.T, strict=True))})
    return table.sort_values(["mean_rank", "algorithm"], ignore_index=True)


def cost(c: Comparison) -> pd.DataFrame:
    """Per env and algorithm: cost of a run (medians)."""
    rows = []
    for env, label, group in c.groups:
        processor, timed = max(_by_processor(group).items(), key=lambda entry: len(entry[1]))
        row = {
            "env": env,
            "algorithm": label,
            "env_steps": np.median([run.env_steps for run in group]),
            "gradient_steps": np.median([run.gradient_steps for run in group]),
            "updates": np.median([run.n_updates for run in group]),
            "parameters": group[0].parameters,
            "train_wall_s": np.median([run.train_wall_s for run in timed]),
            "train_cpu_s": np.median([run.train_cpu_s for run in timed]),
            "processor": processor,
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _by_processor(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by processor, because seconds of different processors are not comparable."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.origin["machine"].split(",")[0].removeprefix("processor "), []).append(run)
    return dict(sorted(found.items()))


def _timed_together(some: Iterable[Run], others: Iterable[Run]) -> tuple[list[Run], list[Run]] | None:
    """Runs of both on a common processor with the largest smaller number of runs; None without one."""
    a = _by_processor(some)
    b = _by_processor(others)
    pairs = [(a[processor], b[processor]) for processor in a if processor in b]
    return max(pairs, key=lambda pair: min(map(len, pair)), default=None)


def speed(c: Comparison) -> pd.DataFrame:
    """Speed-up of training over the baseline in wall and processor time: per env, and the geometric mean over envs.

    Envs without runs of both on the same processor are left out."""
    if c.baseline is None:
        return pd.DataFrame()
    rows = []
    for label in [label for label in c.labels if label != c.baseline]:
        both = [env for env in c.envs if {label, c.baseline} <= set(c.on(env))]
        timed = {env: pair for env in both if (pair := _timed_together(c.runs[env, c.baseline], c.runs[env, label]))}
        for name, envs in [*((env, [env]) for env in timed), ("all", list(timed))] if timed else []:
            row: dict[str, str | float] = {"algorithm": label, "over": c.baseline, "env": name}
            for column, field in (("speedup", "train_wall_s"), ("cpu_speedup", "train_cpu_s")):
                times = [[np.array([getattr(run, field) for run in timed[env][side]]) for env in envs] for side in (0, 1)]
                known = all((t > 0).all() for side in times for t in side)  # later evaluations have no times
                values = (_speedup(*times), *statistics.interval(_speedup, *times)) if known else [np.nan] * 3
                row |= statistics.with_interval(column, *values)
            rows.append(row)
    return pd.DataFrame(rows)


def references(c: Comparison) -> pd.DataFrame:
    """Per env: returns with the normalised scores 0 and 1."""
    return pd.DataFrame([{"env": env, "low": low, "high": high} for env, (low, high) in c.references.items()])


def settings(c: Comparison) -> pd.DataFrame:
    """Per env and algorithm: source of its settings, and all effective settings as JSON."""
    rows = []
    for env, label, group in c.groups:
        used = json.dumps(group[0].settings, sort_keys=True)
        rows.append({"env": env, "algorithm": label, "settings_of": group[0].origin["settings_of"], "settings": used})
    return pd.DataFrame(rows)


def provenance(c: Comparison) -> pd.DataFrame:
    """Commits, versions, machines and commands of the runs."""
    return origins(run for key in c.keys for run in c.runs[key])


def origins(runs: Iterable[Run]) -> pd.DataFrame:
    """Number of runs per commit, versions, machine and command.

    :param runs: a file with two labels counts once
    """
    names = ("commit", "versions", "machine", "command")
    counts = Counter(tuple(run.origin[name] for name in names) for run in {run.path: run for run in runs}.values())
    return pd.DataFrame([dict(zip(("runs", *names), (n, *key), strict=True)) for key, n in sorted(counts.items())])


def curves(c: Comparison) -> pd.DataFrame:
    """Per env, algorithm and checkpoint: mean return over seeds with its interval."""
    rows = []
    for env, label, group in c.groups:
        matrix = c.curves(env, label)
        low, high = statistics.curve_interval([matrix], statistics.mean)
        for step, value, *bounds in zip(group[0].checkpoint_steps, matrix.mean(axis=0), low, high, strict=True):
            rows.append(
                {"env": env, "algorithm": label, "env_steps": step, **statistics.with_interval("mean", value, *bounds)}
            )
    return pd.DataFrame(rows)


def sample_efficiency(c: Comparison) -> pd.DataFrame:
    """Per algorithm and share of the budget: IQM of the normalised scores over the common envs."""
    rows = []
    for label in c.labels if c.common_envs else []:
        matrices = c.normalised_curves(label, SHARES)
        values = statistics.iqm([m.T for m in matrices])
        low, high = statistics.curve_interval(matrices, statistics.iqm)
        for share, value, *bounds in zip(SHARES, values, low, high, strict=True):
            rows.append({"algorithm": label, "share_of_budget": share, **statistics.with_interval("iqm", value, *bounds)})
    return pd.DataFrame(rows)


def profile(c: Comparison) -> pd.DataFrame:
    """Per algorithm and normalised score: share of runs above it."""
    scores = {label: c.normalised(label) for label in c.labels if c.common_envs}
    everything = np.concatenate([[0.0, 1.0], *(s for per_env in scores.values() for s in per_env)])
    start, end = np.clip([everything.min(), everything.max()], *PROFILE_RANGE).tolist()
    points = np.linspace(start, end, PROFILE_POINTS)
    rows = []
    for label, own in scores.items():
        values = statistics.performance_profile(own, points)
        low, high = statistics.interval(lambda s: statistics.performance_profile(s, points), own)
        for point, value, *bounds in zip(points, values, low, high, strict=True):
            rows.append({"algorithm": label, "score": point, **statistics.with_interval("share", value, *bounds)})
    return pd.DataFrame(rows)


NAMED_PAIRS = 3  # of the pairs of algorithms that a note lists


def same_seeds(some: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
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

    :func:`zoo.benchmarking.worker.evaluation_seed` derives the initial states of an evaluation from the run's seed alone, so
    two runs of one seed share them and the env's noise, episode by episode. A run's score is one observation.

    ``correlation`` and ``variance_saved`` are of the runs' scores over seeds; with ``_within`` they are of episodes within
    their seeds: the effect of shared initial states alone.
    """
    rows = []
    for env in c.envs:
        of_env = [_paired_row(env, a, b, same_seeds(c.runs[env, a], c.runs[env, b])) for a, b in combinations(c.on(env), 2)]
        corrected = statistics.holm(np.array([row["p"] for row in of_env]))
        rows += [{**row, "p_holm": p} for row, p in zip(of_env, corrected, strict=True)]
    names = ["env", "algorithm", "other", "pairs", "difference", "difference_low", "difference_high", "t", "p", "p_holm"]
    names += ["p_wilcoxon", "correlation", "variance_saved", "correlation_within", "variance_saved_within"]
    table = pd.DataFrame(rows, columns=names)
    return table if (table["pairs"] >= 2).any() else table.iloc[:0]


def _paired_row(env: str, a: str, b: str, pairs: Sequence[tuple[Run, Run]]) -> dict[str, str | float]:
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


def pairing_notes(c: Comparison) -> list[str]:
    """At most one line about algorithms that cannot be paired, and seeds left out of pairs."""
    apart = []
    partial = []
    for env in c.envs:
        for a, b in combinations(c.on(env), 2):
            some = c.runs[env, a]
            others = c.runs[env, b]
            n = len(same_seeds(some, others))
            if n < 2:
                apart.append(f"{env} {a} and {b} ({_why(some, others)})")
            elif n < max(len(some), len(others)):
                partial.append(f"{env} {a} and {b} ({n} of {len(some)} and {len(others)} runs)")
    messages = [
        f"{what} {', '.join(found[:NAMED_PAIRS])}{f' and {len(found) - NAMED_PAIRS} more' * (len(found) > NAMED_PAIRS)}."
        for what, found in (("Not paired:", apart), ("Paired in part:", partial))
        if found
    ]
    return [" ".join(messages)] if messages else []


def _why(some: Sequence[Run], others: Sequence[Run]) -> str:
    common = {run.seed for run in some} & {run.seed for run in others}
    if len(common) < 2:
        return f"{len(common) or 'no'} seed in common"
    return "other numbers of final episodes"


def stability(c: Comparison) -> pd.DataFrame:
    """Per env and algorithm, means over runs: drop from the best checkpoint, and area under the curve."""
    rows = []
    for env, label in c.keys:
        curves = c.curves(env, label)
        steps = c.runs[env, label][0].checkpoint_steps
        drops = np.array([statistics.drop_from_best(curve) for curve in curves])
        areas = np.array([statistics.area_under_curve(curve, steps) for curve in curves])
        row: dict[str, str | float] = {"env": env, "algorithm": label, "seeds": len(curves)}
        for name, values in (("drop_from_best", drops), ("area_under_curve", areas)):
            row |= statistics.with_interval(name, values.mean(), *statistics.interval(statistics.mean, [values]))
        rows.append({**row, "largest_drop": drops.max()})
    return pd.DataFrame(rows)


def fairness(c: Comparison) -> pd.DataFrame:
    """Per algorithm, over the common envs: worst and best one, worst over best, and Gini, of mean normalised scores."""
    rows = []
    for label in c.labels if len(c.common_envs) > 1 else []:
        scores = c.normalised(label)
        line = {"algorithm": label, **statistics.fairness_row(c.common_envs, np.array([s.mean() for s in scores]))}
        for name, measure in (("worst_over_best", statistics.worst_over_best), ("gini", statistics.gini)):

            def of_means(scores: statistics.Scores, measure: Callable[[Array], Array] = measure) -> Array:
                return measure(np.stack([s.mean(axis=-1) for s in scores], axis=-1))

            line |= statistics.with_interval(name, float(line[name]), *statistics.interval(of_means, scores))
        rows.append(line)
    return pd.DataFrame(rows)


ALL: dict[str, Callable[[Comparison], pd.DataFrame]] = {
    table.__name__: table
    for table in (
        summary,
        threshold,
        aggregate,
        improvement,
        pairwise,
        paired,
        anova,
        ranking,
        stability,
        fairness,
        cost,
        speed,
        references,
        provenance,
        settings,
        curves,
        sample_efficiency,
        profile,
        runs,
    )
}


def to_markdown(table: pd.DataFrame) -> str:
    """Format a table as Markdown; ``x``, ``x_low``, ``x_high`` become one column.

    :param table: of this module
    """
    columns = [name for name in table.columns if not (name.endswith(("_low", "_high")) and name.rpartition("_")[0] in table)]
    lines = ["| " + " | ".join(name.replace("_", " ") for name in columns) + " |", "|" + "---|" * len(columns)]
    for _, row in table.iterrows():
        cells = []
        for name in columns:
            bounds = [f"{_text(row[f'{name}_{end}'])}" for end in ("low", "high") if f"{name}_{end}" in table]
            cells.append(_text(row[name]) + (f" [{', '.join(bounds)}]" if bounds and bounds[0] != NONE else ""))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _text(value: str | float) -> str:
    if isinstance(value, str):
        return value
    if np.isnan(value):
        return NONE
    if np.isinf(value):
        return "not reached"
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def _speedup(bar: statistics.Scores, mine: statistics.Scores) -> statistics.Array:
    """Geometric mean over envs of the ratio of the median times."""
    logs = [np.log(np.median(b, axis=-1)) - np.log(np.median(m, axis=-1)) for b, m in zip(bar, mine, strict=True)]
    return np.asarray(np.exp(np.mean(logs, axis=0)))
