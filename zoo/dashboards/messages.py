"""Messages about a run: its state, broken health rules, start mismatches."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from sb_grpo.callbacks import RULES, STRICT_RULES

from ..common.command_line import how_many
from ..dashboards.logs import Column

if TYPE_CHECKING:
    from .runs import RunData

ADVICE = {rule.name: rule for rule in (*STRICT_RULES, *RULES)}


def watched(log: dict[str, Column]) -> list[str]:
    """Names of the health rules that watched the run.

    :param log: by key, as logged
    """
    return [key.removeprefix("health/") for key in log if key.startswith("health/") and key != "health/n_broken"]


def health_messages(log: dict[str, Column]) -> list[str]:
    """Sentences about each period in which a health rule was broken, the worst first.

    :param log: by key, as logged; ``health/<rule>`` is 1 while a rule is broken
    """
    rules = watched(log)
    broken = [(log[f"health/{name}"]["values"][-1] > 0, sentence) for name in rules for sentence in stretches(name, log)]
    found = [sentence for _, sentence in sorted(broken, key=lambda pair: not pair[0])]
    wrong = log.get("group/start_mismatch", {"values": [0.0]})["values"][-1]
    if wrong > 0 and "start_mismatch" not in rules:
        found.insert(0, ADVICE["start_mismatch"].advice.format(value=wrong))
    return found


def stretches(name: str, log: dict[str, Column]) -> list[str]:
    """Periods in which a rule was broken, with its advice for the last value."""
    column = log[f"health/{name}"]
    rule = ADVICE.get(name)
    rows = list(zip(column["steps"], column["values"], strict=True))
    found = []
    for is_broken, part in itertools.groupby(rows, key=lambda row: row[1] > 0):
        if not is_broken:
            continue
        steps = [step for step, _ in part]
        end = "the end" if steps[-1] == rows[-1][0] else f"{steps[-1]:,.0f}"
        values = log.get(rule.key) if rule is not None else None
        seen = [] if values is None else [v for s, v in zip(values["steps"], values["values"], strict=True) if s <= steps[-1]]
        own = "a rule of your own." if rule is None else f"{rule.key} is not in the log."
        advice = rule.advice.format(value=seen[-1]) if rule is not None and seen else own
        found.append(f"{name}, from step {steps[0]:,.0f} to {end}: {advice}")
    return found


def summary(run: RunData) -> str:
    """Summarise a run in a few lines of text.

    :param run: of :func:`~zoo.dashboards.runs.page_of`
    """
    final = run["final"]
    episodes = run["episodes"]
    log = run["log"]
    steps = final.get("env_steps") or (episodes["steps"] or [0])[-1]
    lines = [f"{run['name']}: {run['algo']} on {run['env'] or 'an unnamed env'}, {run['state']}"]
    planned = f" of {float(run['planned']):,.0f}" if run["planned"] else ""
    lines.append(f"  steps      {steps:,.0f}{planned}, {how_many(episodes['n'], 'episode')}")
    if episodes["n"]:
        lines.append(f"  training   {episodes['mean'][-1]:,.4g} (last returns)")
    if final.get("mean_return") is not None:
        lines.append(f"  evaluation {final['mean_return']:,.4g} ± {final['std_return'] or 0:,.3g}")
    if "time/fps" in log:
        lines.append(f"  speed      {log['time/fps']['values'][-1]:,.0f} steps per second")
    return "\n".join([*lines, *(f"  - {sentence}" for sentence in (*run["messages"], *run["notes"]))])
