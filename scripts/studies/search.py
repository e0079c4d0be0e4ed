"""Does a search find something? The best trial of a study of zoo.tune, trained again on seeds that the study had not seen.

usage: python -m scripts.studies.search     the table of docs/studies/tuning.md, which says how its runs are made
"""

from __future__ import annotations

import argparse

import numpy as np

from scripts.studies.common import records
from scripts.studies.common.runs import DATA

FOLDER = DATA / "tune"
#: File of a row, and the description of its settings.
SETTINGS = {
    "best": "best trial",
    "default": "where the study started",
    "constructor": "the constructor's defaults, gamma 0.99",
}


def table() -> str:
    """Markdown, a row per setting: mean return of each seed."""
    found = {name: records.read(FOLDER / f"{name}.jsonl") for name in SETTINGS}
    seeds = [run["seed"] for run in found["best"]]
    lines = [f"| settings | seeds {seeds[0]} to {seeds[-1]} | mean |", "|---|---|---|"]
    for name, setting in SETTINGS.items():
        returns = [run["mean_return"] for run in found[name]]
        lines.append(f"| {setting} | {', '.join(f'{x:.0f}' for x in returns)} | {np.mean(returns):.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(table())
