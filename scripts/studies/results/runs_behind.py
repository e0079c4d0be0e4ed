"""The page about the runs behind the results: when they reached thresholds, which commits, machines and commands made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scripts.studies.results.texts import text
from zoo.benchmarking.results import Run
from zoo.comparing import tables
from zoo.comparing.comparison import Comparison


def runs_behind(made: str, results: str, c: Comparison, runs: Sequence[Run]) -> str:
    """The whole page.

    :param made: how it is made
    :param results: file name of the page it belongs to
    :param c: of the study, each run once
    :param runs: all of them, those of the ablations too
    """
    threshold = tables.to_markdown(tables.threshold(c))
    lines = [
        f"# The runs behind [{results}]({results})",
        "",
        made,
        "",
        "## Steps to the threshold",
        "",
        text("threshold"),
        "",
        threshold,
        "",
    ]
    return "\n".join([*lines, "## Where the runs come from", "", text("origins"), "", *origins(runs), ""])


def origins(runs: Sequence[Run]) -> list[str]:
    """Provenance of the runs; versions and machines are above the table if no two runs differ."""
    table = tables.origins(runs)
    lines = []
    agreed = _agreed(table["versions"], table["runs"])
    if agreed is not None:
        lines.append(f"Versions: {agreed}. What a run does not name, scripts/constraints.txt of its commit pins.")
        table = table.drop(columns="versions")
    if table["machine"].nunique() == 1:
        lines.append(f"Machine: {table['machine'].iloc[0]}.")
        table = table.drop(columns="machine")
    return [*lines, "", tables.to_markdown(table)]


def _agreed(versions: Sequence[str], counts: Sequence[int]) -> str | None:
    """Versions that any run names, with counts if not all name them; None if two runs differ.

    :param versions: "package version, package version, ..."
    :param counts: runs that name exactly these
    """
    named: Counter[str] = Counter()
    for words, count in zip(versions, counts, strict=True):
        named.update(dict.fromkeys(words.split(", "), count))
    if len({entry.split()[0] for entry in named}) < len(named):
        return None
    total = sum(counts)
    return ", ".join(entry if n == total else f"{entry} (named by {n:,} of {total:,} runs)" for entry, n in named.items())
