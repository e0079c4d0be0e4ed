"""The study of paired groups: what its page computes, on runs whose answers are known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from scripts.studies import paired
from zoo.benchmarking.results import Run, find_results

#: Three seeds each: the score, and the curve at 0, 100, 200, 300 and 400 of 400 steps.
CURVES = {
    ("A-v0", "grpo-paired"): (9.0, [0, 4, 5, 8, 9]),
    ("A-v0", "grpo-state"): (6.0, [0, 2, 4, 5, 6]),
    ("A-v0", "ppo-grpo-settings"): (6.0, [0, 1, 2, 4, 6]),
    ("A-v0", "ppo-tuned"): (5.0, [0, 1, 2, 4, 5]),
    ("B-v0", "grpo-paired"): (1.0, [0, 0, 0, 1, 1]),
    ("B-v0", "grpo-state"): (1.0, [0, 0, 0, 1, 1]),
    ("B-v0", "ppo-grpo-settings"): (3.0, [0, 1, 2, 3, 3]),
}


def run(env: str, label: str, seed: int) -> Run:
    score, curve = CURVES[env, label]
    returns = np.array(curve, float)[:, None] + 0.01 * seed
    origin = {"command": "python -m zoo.benchmark ..."}
    return Run(
        Path("x.json"), {}, env, label, "grpo", seed, 400, 400, 10, 1, 5, 1.0, 2.0, np.arange(5) * 100.0, np.zeros(5), returns,
        np.full(4, score + 0.01 * seed), {}, origin,
    )  # fmt: skip


@pytest.fixture
def study() -> paired.Study:
    tasks: dict[str, dict[str, list[Run]]] = {}
    for env, label in CURVES:
        tasks.setdefault(env, {})[label] = [run(env, label, seed) for seed in range(3)]
    return paired.Study(tasks)


def test_rows_by_hand(study: paired.Study) -> None:
    """On A the better critic ends at 6.01; pairing is there after 300 of 400 steps, and closes 3 of the 4 up to the rule."""
    a, b = (paired.row(study, task, {"rule": 10.01} if task == "A-v0" else {}) for task in ("A-v0", "B-v0"))
    assert (a.critic, a.share, a.better) == ("ppo-grpo-settings", 0.75, 1.0)
    assert math.isclose(a.level, 6.01) and math.isclose(a.end, 9.01)
    assert math.isclose(a.closed, 0.75) and 0 < a.low <= 3 <= a.high
    assert (b.critic, b.share, b.better) == ("ppo-grpo-settings", math.inf, 0.0)
    assert math.isnan(b.closed) and b.high < 0


def test_a_label_with_fewer_seeds_is_no_bar_yet(study: paired.Study) -> None:
    del study.runs["A-v0"]["ppo-grpo-settings"][1:]
    assert study.critic("A-v0") == "ppo-tuned"


def test_verdicts_say_what_is_not_reached(study: paired.Study) -> None:
    rows = [paired.row(study, task, {"rule": 10.01} if task == "A-v0" else {}) for task in study.runs]
    found = [(text, fine) for _, text, fine in paired.verdicts(study, rows)]
    assert found[0] == ("1 of 2", False)
    assert found[1] == ("never on 1 of 2 tasks", False)
    assert found[2] == ("0.75 of it closed (1 tasks)", True)
    assert found[3][0].startswith("0.50 [") and not found[3][1]


def test_the_committed_page_is_what_the_command_writes(tmp_path: Path) -> None:
    users = tmp_path / "when_groups_win.md"
    users.write_text(paired.USERS.read_text())
    paired.make(find_results([paired.RUNS]), tmp_path / "paired.md", users, tmp_path, tmp_path)
    assert (tmp_path / "paired.md").read_text() == paired.PAGE.read_text()
    assert users.read_text() == paired.USERS.read_text()
    assert (tmp_path / "paired_curves.png").stat().st_size > 10_000 and (tmp_path / "paired.png").stat().st_size > 10_000
