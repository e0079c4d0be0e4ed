"""The page about the runs behind the results: when they reached thresholds, which commits, machines and commands made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
        THRESHOLD,
        "",
        threshold,
        "",
    ]
    return "\n".join([*lines, "## Where the runs come from", "", ORIGINS, "", *origins(runs), ""])


def origins(runs: Sequence[Run]) -> list[str]:
    """Where the runs come from; versions and machines stand above the table where no two runs contradict each other."""
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
    """All that any run names, and how many name what not all do; None if two name different versions of a package.

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


THRESHOLD = """\
First checkpoint at or above Gymnasium's threshold, median over seeds. Seconds are of whatever processors the runs had."""
ORIGINS = """\
Commands are as they were given; --out was a folder of the machine, and docs/studies/data has its content. Two files of
variants lay outside of the checkout: /tmp/b2/zoo/variants/critic_free.yml is that of the commit beside it, and /tmp/r/held.yml
held ppo-defaults as in zoo/variants/critic_free.yml. Runs of `grpo-gamma-0.99` have commands that name grpo-defaults or grpo-state:
they were made when gamma 0.99 was the default, and were labelled anew when it became 0.995. So were those of `grpo-defaults`
on Walker2d-v5, whose commands name grpo-state: the entry was the defaults until it got a second layer (horizons). Among the
training times GRPO's seed 0 on Walker2d-v5 was run again after its turn, because other work had run beside it."""
