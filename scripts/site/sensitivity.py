"""Hyperparameter studies in the explorer's form: per trial the parameters and the result."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class Study(NamedTuple):
    """A search whose trials are kept in the repository."""

    name: str
    file: str  #: as ``zoo.tune`` writes it, relative to the repository
    better: str  #: meaning of a larger value


STUDIES = (
    Study("GRPO on CartPole-v1, 20,000 steps", "docs/studies/data/tune/trials.csv", "mean return at the end"),
    Study("GRPO on LoadBalancing-v0, 30,000 steps", "docs/studies/data/tune/load_balancing.csv", "mean return at the end"),
)
#: Parameters that a study searches on a logarithmic scale: the largest value is so many times the smallest.
SPAN = 5.0


def surfaces() -> dict[str, Any]:
    """All studies."""
    return {"format": "sb_grpo.sensitivity", "version": 1, "studies": [surface(study) for study in STUDIES]}


def surface(study: Study) -> dict[str, Any]:
    """One study: its complete trials and the numeric parameters that most of them have (None where one has not).

    :raises ValueError: for a study without a complete trial
    """
    with (ROOT / study.file).open() as file:
        trials = [row for row in csv.DictReader(file) if row["state"] == "COMPLETE"]
    if not trials:
        raise ValueError(f"{study.file} holds no complete trial: nothing can be shown. Leave it out of STUDIES.")
    parameters = []
    for column in (name for name in trials[0] if name.startswith("params_")):
        values = [number(row[column]) for row in trials]
        known = [value for value in values if value is not None]
        if 2 * len(known) > len(values) and len(set(known)) > 1:
            log = min(known) > 0 and max(known) / min(known) > SPAN
            parameters.append({"name": column.removeprefix("params_"), "log": log, "values": values})
    values = [float(row["value"]) for row in trials]
    return {"name": study.name, "source": study.file, "better": study.better, "parameters": parameters, "values": values}


def number(text: str) -> float | None:
    """A number, or None for words and empty cells."""
    try:
        return float(text)
    except ValueError:
        return None
