"""Tasks on which a critic wins."""

from __future__ import annotations

import pandas as pd

from scripts.studies.results.bar import BAR, BAR_SETTINGS, CONTROL, DEFAULTS, TUNED
from scripts.studies.results.cells import iqm_text, verdict
from scripts.studies.results.texts import text
from zoo.comparing import statistics, tables
from zoo.comparing.comparison import Comparison

CRITICS = (*BAR_SETTINGS, CONTROL, "a2c", "trpo")


def critic_wins(*comparisons: Comparison) -> list[str]:
    """A table of the tasks where an algorithm with a critic has a higher IQM than the tuned entry, or than the defaults.

    :param comparisons: of the study, and of other tasks
    """
    rows = []
    for c in comparisons:
        for env in c.envs:
            iqm = {label: float(statistics.iqm([c.scores(env, label)])) for label in c.on(env) if label != BAR}
            critics = [label for label in CRITICS if label in iqm]
            for mine in [label for label in (TUNED, DEFAULTS) if label in iqm and critics]:
                best = max(critics, key=lambda label: iqm[label])
                if iqm[best] > iqm[mine]:
                    row = {"task": env, "without a critic": mine, "IQM": iqm_text(c, env, mine), "with a critic": best}
                    rows.append(row | {"its IQM": iqm_text(c, env, best), "without against with": verdict(c, env, mine, best)})
    if not rows:
        return ["None of the tasks that ran: no IQM of an algorithm with a critic is above GRPO's."]
    return [text("wins"), "", tables.to_markdown(pd.DataFrame(rows)), "", text("besides")]
