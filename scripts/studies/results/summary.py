"""The page in a few lines, made from the same runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from scripts.studies.results.bar import BAR, DEFAULTS, TUNED
from scripts.studies.results.beside import Timing
from scripts.studies.results.cells import verdict
from scripts.studies.results.same_settings import Pair
from scripts.studies.results.study import Overall
from scripts.studies.results.texts import text
from zoo.comparing.comparison import Comparison

LITERAL = "grpo-outcome"


def in_short(c: Comparison, totals: Mapping[str, Overall | None], found: Sequence[Pair], times: Timing | None) -> list[str]:
    """Summary of the page.

    :param c: of the study, the bar among its labels
    :param totals: label -> :func:`~scripts.studies.results.study.overall`
    :param found: pairs of equal settings
    :param times: of the tuned entry; None: not measured
    """
    verdicts: dict[str, list[str]] = {}
    for env in [env for env in c.envs if {TUNED, BAR} <= {*c.on(env)}]:
        verdicts.setdefault(verdict(c, env, TUNED).replace("*", ""), []).append(env)
    tasks = "; ".join(f"{words} on {len(envs)} ({', '.join(envs)})" for words, envs in sorted(verdicts.items()))
    lines = ["## In short", "", f"- **GRPO's tuned entries against the better of two PPO settings, task by task**: {tasks}."]
    lines += _aggregate("Over all tasks", totals.get(TUNED))
    for pair in found:
        lines.append(
            f"- **The same settings for both, {pair.what}**: aggregate IQM of GRPO less PPO's {pair.difference}, "
            f"P(improvement) {pair.improvement}, {len(pair.comparison.envs)} tasks."
        )
    lines += _aggregate("The constructor's defaults, one setting for all tasks", totals.get(DEFAULTS))
    literal = _aggregate("GRPO as DeepSeekMath has it (`outcome`, the entries' other settings)", totals.get(LITERAL))
    lines += [f"{line} {text('ours')}" for line in literal]
    if times is not None:
        words = f"{_times(times.bar)} less than the bar's, with fewer gradient steps on some tasks"
        if not times.control.empty:
            words += f"; {_times(times.control)} less than PPO's with the same settings"
        lines.append(f"- **Training time on one machine**: {words}.")
    return [*lines, "- " + text("group"), ""]


def _aggregate(what: str, row: Overall | None) -> list[str]:
    if row is None:
        return []
    text = f"aggregate IQM {row.aggregate}, the bar's own on these tasks {row.bar}, difference {row.difference}"
    return [f"- **{what}**: {text}; P(improvement over PPO) {row.improvement}; {row.n_tasks} tasks."]


def _times(speed: pd.DataFrame) -> str:
    ratio = speed.set_index("env")["speedup"]
    by_task = ratio.drop("all")
    return f"{ratio['all']:.2f} times ({by_task.min():.1f} to {by_task.max():.1f} by task)"
