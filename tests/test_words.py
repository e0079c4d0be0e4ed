"""Words of docstrings as a test: they begin with a verb or a noun, and state things without "what"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: First words of a docstring that begin a clause instead of naming the thing or the action.
ODD = {"What", "Who", "Whose", "Where", "How", "As", "Of"}
#: Most uses of "what" per 1,000 words of docstrings.
MOST_WHATS = 1.0
#: Packages whose docstrings are checked.
CHECKED = ("sb_grpo", "zoo", "scripts")


@cache
def docstrings() -> tuple[tuple[str, str], ...]:
    """(place, docstring) of every module, class and function to check."""
    paths = sorted(path for package in CHECKED for path in (ROOT / package).rglob("*.py"))
    names = {path: path.relative_to(ROOT).as_posix() for path in paths}
    return tuple(
        (f"{names[path]}:{line}", text)
        for path in paths
        for line, text in docstrings_in(path.read_text())
    )


def docstrings_in(code: str) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings in a module."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z']+", text)


def is_odd(text: str) -> bool:
    first = re.search(r"[A-Za-z']+", text)
    return first is not None and first[0] in ODD


def whats(text: str) -> int:
    """Number of uses of "what"; names of parameters do not count."""
    return sum(word.lower() == "what" for word in words(re.sub(r":param what:", "", text)))


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    assert [f"{place} {text.splitlines()[0]}" for place, text in docstrings() if is_odd(text)] == []


def test_docstrings_avoid_what() -> None:
    used = {place: n for place, text in docstrings() if (n := whats(text))}
    total = sum(len(words(text)) for _, text in docstrings())
    assert 1000 * sum(used.values()) <= MOST_WHATS * total, used


@pytest.mark.parametrize(
    ("code", "odd", "n"),
    [
        ('"""What travels between the boxes."""', True, 1),
        ('def f():\n    """As SB3\'s."""', True, 0),
        ('"""Data types: Rollout, Minibatch.\n\n:param what: name\n"""', False, 0),
        ('class A:\n    """Ask for what is left."""', False, 1),
        ('"""Asks for a seed."""', False, 0),
        ('"""``[n, T]``"""', False, 0),
    ],
)
def test_words_are_read_as_meant(code: str, odd: bool, n: int) -> None:
    ((_, text),) = docstrings_in(code)
    assert (is_odd(text), whats(text)) == (odd, n)
