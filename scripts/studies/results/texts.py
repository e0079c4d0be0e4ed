"""The prose of the page: a YAML file beside the raw data, which says of every number where it comes from."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from scripts.studies.common.runs import DATA
from zoo.common.plain_files import read_sections

FILE = DATA / "results.yml"


def text(name: str, **numbers: int) -> str:
    """A text of the page.

    :param name: of its entry
    :param numbers: that the page knows, for the places that name them
    """
    words: str = _entries()[name]["text"]
    return words.format(**numbers) if numbers else words


def history() -> str:
    """History of the tuned entries: the page's results before each change."""
    entry = _entries()["history"]
    rows = [f"| {row['task']} | {row['entry']} | {row['changed']} |" for row in entry["rows"]]
    return "\n".join([entry["before"], *rows, "", entry["after"]])


@lru_cache(maxsize=1)
def _entries() -> dict[str, dict[str, Any]]:
    return read_sections(FILE, "cost: {source: definitions, text: Medians over seeds.}")
