"""Requirements of pairing, results, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sb_grpo.tasks.third_party import INVENTORY, MOTORS
from scripts.studies.paired.default import CONSTRUCTOR, ENTRY, Default
from scripts.studies.paired.study import CONTROL, PAIRED, SEARCHED, TUNED, Row, Study, gap_closed, geometric_mean, improvement

#: The bar, as it was set before the study.
TASKS = 6
BY_OTHERS = 2
SHARE = 0.5
CLOSED = 0.5
BETTER = 0.9
COST = 0.03
#: On the tasks of results.md with pairs: the measure, and the least aggregate IQM.
DEFAULTS = {ENTRY: "the tuned entries", CONSTRUCTOR: "the constructor's defaults"}
AGGREGATE = {ENTRY: 1.09, CONSTRUCTOR: 0.97}


class Verdict(NamedTuple):
    """One line of the bar."""

    wanted: str
    found: str
    reached: bool | None  #: None: nothing has run that could tell
    complete: bool = True  #: whether all runs are there


def verdicts(
    study: Study, rows: Sequence[Row], variance: dict[str, dict[str, Any]], defaults: Sequence[Default]
) -> list[Verdict]:
    """Each line of the bar.

    :param rows: of all tasks
    :param variance: task -> variance that pairing removes, and its ``cost``
    :param defaults: with pairs as the default, per label
    """
    by_label = {x.label: x for x in defaults}
    return [
        *(v._replace(complete=study.complete()) for v in _where_noise_counts(study, rows, variance)),
        *(_default(by_label.get(label), what, AGGREGATE[label]) for label, what in DEFAULTS.items()),
    ]


def _where_noise_counts(study: Study, rows: Sequence[Row], variance: dict[str, dict[str, Any]]) -> list[Verdict]:
    others = sum(task in {**INVENTORY, **MOTORS} for task in study.runs)
    above = [r for r in rows if r.gain.low > 0]
    cost = max(of["cost"] for of in variance.values())
    return [
        Verdict(f"at least {TASKS} input-driven tasks, {BY_OTHERS} of them by others",
                f"{len(study.runs)}, {others} of them by others", len(study.runs) >= TASKS and others >= BY_OTHERS),
        Verdict("above PPO with its interval on every task", f"{len(above)} of {len(rows)}", len(above) == len(rows)),
        _sooner(rows),
        _gap(study, rows),
        _better(study, TUNED, "tuned PPO"),
        _better(study, TUNED, "tuned PPO", SEARCHED, ", both searched"),
        _better(study, CONTROL, "PPO with the same settings"),
        Verdict(f"under {COST:.0%} of an iteration", f"at most {cost:.2%}, all tasks", cost < COST),
    ]  # fmt: skip


def _sooner(rows: Sequence[Row]) -> Verdict:
    shares = [r.share for r in rows]
    never = sum(not math.isfinite(share) for share in shares)
    middle = geometric_mean(shares)
    found = [f"{middle:.2f} of them on {len(shares) - never} tasks"] if never < len(shares) else []
    found += [f"not kept on {never} of {len(shares)}"] if never else []
    return Verdict(f"PPO's final level in at most {SHARE} of its steps (geometric mean)", ", ".join(found),
                   not never and middle <= SHARE)  # fmt: skip


def _gap(study: Study, rows: Sequence[Row]) -> Verdict:
    wanted = f"at least {CLOSED} of the gap from PPO to the best known rule closed, mean over the tasks where there is one"
    found = gap_closed(study, rows)
    if found is None:
        return Verdict(wanted, "no such task", None)
    tasks = sum(math.isfinite(r.gap) for r in rows)
    return Verdict(wanted, f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}] on {tasks} tasks", found.value >= CLOSED)


def _better(study: Study, label: str, name: str, of: str = PAIRED, how: str = "") -> Verdict:
    wanted = f"probability of improvement over {name} at least {BETTER}{how}"
    tasks = study.with_label(of, label)
    if not tasks:
        return Verdict(wanted, "not run yet", None)
    p = improvement(study, tasks, label, of)
    words = f"{p.value:.2f} [{p.low:.2f}, {p.high:.2f}] on {len(tasks)} of {len(study.runs)} tasks"
    return Verdict(wanted, words, p.value >= BETTER)


def _default(found: Default | None, what: str, least: float) -> Verdict:
    wanted = f"{what} on the tasks of results.md, with pairs: aggregate IQM not below {least}, no task worse, interval too"
    if found is None:
        return Verdict(wanted, "not run yet", None)
    a = found.aggregate
    tasks = ", ".join(found.worse) or "none"
    words = f"{a.value:.2f} [{a.low:.2f}, {a.high:.2f}] on {len(found.cells)} of {found.tasks} tasks; worse: {tasks}"
    return Verdict(wanted, words, round(a.value, 2) >= least and not found.worse, found.complete)
