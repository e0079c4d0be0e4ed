"""The study of paired groups: what its page computes, on runs whose answers are known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from scripts.studies.paired import tables
from scripts.studies.paired.default import Default, default, on_minigrid
from scripts.studies.paired.page import MARKS, PAGE, TEXTS, USERS, make, page, users_page
from scripts.studies.paired.pictures import draw_curves, draw_lead
from scripts.studies.paired.study import (
    RUNS,
    Study,
    gap_closed,
    geometric_mean,
    improvement,
    load,
    rows,
    share_to_keep,
    share_to_touch,
)
from scripts.studies.paired.verdicts import Verdict, verdicts
from zoo.benchmarking.results import Run, find_results

#: Three seeds each: the score, and the curve at 0, 100, 200, 300 and 400 of 400 steps.
CURVES = {
    ("A-v0", "grpo-paired"): (9.0, [0, 4, 8, 8, 9]),
    ("A-v0", "grpo-state"): (6.0, [0, 2, 4, 5, 6]),
    ("A-v0", "ppo-grpo-settings"): (6.0, [0, 1, 2, 4, 6]),
    ("A-v0", "ppo-tuned"): (5.0, [0, 1, 2, 4, 5]),
    ("MotorSpeed-v0", "grpo-paired"): (1.0, [0, 0, 0, 1, 1]),
    ("MotorSpeed-v0", "grpo-state"): (1.0, [0, 0, 0, 1, 1]),
    ("MotorSpeed-v0", "ppo-grpo-settings"): (3.0, [0, 3, 3, 3.1, 3.2]),
}
RULES = {"A-v0": {"rule": 10.01, "worse rule": 2.0}}
VARIANCE = {"A-v0": {"cost": 0.004, "paired_fraction": [1.0, 0.5], "paired_coef": [0.2, 0.8], "paired_variance": [0.9, 0.3]}}


def run(env: str, label: str, seed: int) -> Run:
    score, curve = CURVES[env, label]
    returns = np.array(curve, float)[:, None] + 0.01 * seed
    origin = {"command": "python -m zoo.benchmark --out elsewhere --jobs 1", "settings_of": "here"}
    return Run(
        Path("x.json"), {}, env, label, "grpo", seed, 400, 400, 10, 1, 5, 1.0, 2.0, np.arange(5) * 100.0, np.zeros(5), returns,
        np.full(4, score + 0.01 * seed), {}, origin,
    )  # fmt: skip


@pytest.fixture
def study() -> Study:
    tasks: dict[str, dict[str, list[Run]]] = {}
    for env, label in CURVES:
        tasks.setdefault(env, {})[label] = [run(env, label, seed) for seed in range(3)]
    return Study(tasks)


def test_rows_by_hand(study: Study) -> None:
    """On A the better critic ends at 6.01. Pairing is at 8.01 after 200 of 400 steps; the mean of three checkpoints is
    4.01 then and 6.68 after 300. It closes 3 of the 4 up to the rule."""
    a, b = rows(study, RULES)
    assert (a.critic, a.touched, a.share, a.better.value) == ("ppo-grpo-settings", 0.5, 0.75, 1.0)
    assert math.isclose(a.level, 6.01) and math.isclose(a.end, 9.01)
    assert math.isclose(a.closed.value, 0.75) and 0 < a.gain.low <= 3 <= a.gain.high
    assert (b.critic, b.touched, b.share, b.own, b.better.value) == ("ppo-grpo-settings", math.inf, math.inf, 0.75, 0.0)
    assert math.isnan(b.closed.value) and b.gain.high < 0


def with_curve(runs: list[Run], curve: list[float], end: float) -> list[Run]:
    returns = np.array(curve, float)[:, None]
    return [Run(**{**r.__dict__, "checkpoint_returns": returns, "final_returns": np.array([end])}) for r in runs]


@pytest.mark.parametrize(
    ("curve", "end", "touched", "kept"),
    [
        ([0, 9, 0, 0, 0], 1.0, 0.25, math.inf),  # once, by chance
        ([0, 9, 9, 9, 0], 1.0, 0.25, math.inf),  # and lost again
        ([0, 9, 9, 9, 0], 6.0, 0.25, 0.5),  # (0 + 9 + 9) / 3 is the level
        ([0, 1, 2, 3, 4], 6.0, math.inf, 1.0),  # the last checkpoint was unlucky
    ],
)
def test_a_level_is_touched_or_kept(study: Study, curve: list[float], end: float, touched: float, kept: float) -> None:
    of = study.runs["A-v0"]
    of["grpo-paired"] = with_curve(of["grpo-paired"], curve, end)
    assert share_to_touch(study, "A-v0", "grpo-paired", 6.0) == touched
    assert share_to_keep(study, "A-v0", "grpo-paired", 6.0) == kept


def test_what_lies_beyond_a_rule_closes_one_gap_only(study: Study) -> None:
    """On A the gap to a rule at 7.01 is closed three times; on the motor minus half of the gap to 7.01 is."""
    found = gap_closed(study, rows(study, {"A-v0": {"rule": 7.01}, "MotorSpeed-v0": {"rule": 7.01}}))
    assert found is not None and math.isclose(found.value, (1 - 0.5) / 2)
    assert gap_closed(study, rows(study, {})) is None


def test_geometric_mean_of_the_finite_ones() -> None:
    assert math.isclose(geometric_mean([0.25, 1.0, math.inf]), 0.5)
    assert math.isnan(geometric_mean([math.inf]))


def test_improvement_is_a_mean_over_tasks(study: Study) -> None:
    """A: all nine pairs won. Motor: equal seeds tie, so 3 wins and 3 ties of 9 are one half."""
    assert improvement(study, ["A-v0", "MotorSpeed-v0"], "grpo-state").value == 0.75


def test_a_label_with_fewer_seeds_is_no_bar_yet(study: Study) -> None:
    del study.runs["A-v0"]["ppo-grpo-settings"][1:]
    assert study.critic("A-v0") == "ppo-tuned"


def test_the_bar_has_the_most_seeds_there_are(study: Study) -> None:
    """With three seeds of pairing and two of each critic the better of these is the bar; without any there is no row."""
    for label in ("ppo-grpo-settings", "ppo-tuned"):
        del study.runs["A-v0"][label][2:]
    assert study.critic("A-v0") == "ppo-grpo-settings"
    del study.runs["MotorSpeed-v0"]["ppo-grpo-settings"]
    assert study.critic("MotorSpeed-v0") is None
    assert [r.task for r in rows(study, {})] == ["A-v0"]


def test_verdicts_say_what_is_not_reached(study: Study) -> None:
    found = [(v.found, v.reached) for v in verdicts(study, rows(study, RULES), VARIANCE, [])]
    assert found[0] == ("2, 1 of them by others", False)
    assert found[1] == ("1 of 2", False)
    assert found[2] == ("0.75 of them on 1 tasks, not kept on 1 of 2", False)
    assert found[3][0].startswith("0.75 [") and found[3][1]
    assert found[4] == ("1.00 [1.00, 1.00] on 1 of 2 tasks", True)  # tuned PPO has not run on the motor
    assert found[5] == ("not run yet", None)
    assert found[6][0].startswith("0.50 [") and found[6][1] is False
    assert found[7] == ("at most 0.40%, all tasks", True)
    assert found[8:] == [("not run yet", None)] * 2


def test_both_searched(study: Study) -> None:
    """Compared where both have run; of nine pairs of runs GRPO wins six and ties none."""
    assert tables.searched_table(study) == "Not run yet."
    for task, scores in (("A-v0", (4.0, 5.5, 7.0)), ("MotorSpeed-v0", (1.0, 1.0, 1.0))):
        runs = [run(task, "grpo-paired", seed) for seed in range(3)]
        study.runs[task]["grpo-tuned"] = [replace(r, final_returns=np.full(4, x)) for r, x in zip(runs, scores, strict=True)]
    assert study.with_label("grpo-tuned", "ppo-tuned") == ["A-v0"]
    (row, overall) = tables.searched_table(study).splitlines()[2:]
    assert row.startswith("| `A-v0` | 5.5 [") and "| 5.0 [" in row and "| 0.67 [" in row
    assert overall.startswith("| all of them |  |  |  | 0.67 [")
    found = [(v.wanted, v.found) for v in verdicts(study, rows(study, RULES), VARIANCE, [])]
    assert found[5][0].endswith("both searched") and found[5][1].startswith("0.67 [")
    assert "grpo-tuned" not in tables.ablation_table(study)


def test_verdicts_where_all_but_the_number_of_tasks_is_reached(study: Study) -> None:
    only = Study({"A-v0": study.runs["A-v0"]})
    (a,) = rows(only, RULES)
    found = [v.reached for v in verdicts(only, [a._replace(share=0.5)], VARIANCE, [])]
    assert found == [False, True, True, True, True, None, True, True, None, None]


def test_verdicts_hold_so_far_until_all_has_run(study: Study) -> None:
    """Three seeds, and no tuned PPO on the motor, are not all; ten seeds of everything are."""
    assert not study.complete()
    full = Study({"A-v0": {label: runs * 4 for label, runs in study.runs["A-v0"].items()}})
    assert full.complete()
    for of, ends in ((study, " so far |"), (full, "reached |")):
        lines = tables.verdict_table(verdicts(of, rows(of, RULES), VARIANCE, [])).splitlines()[2:]
        assert all(line.endswith(ends) for line in lines if not line.endswith("| open |")), of
        assert sum(line.endswith("| open |") for line in lines) == 3  # both searched, and the two with pairs as the default
    found = [Verdict("this", "1", True), Verdict("that", "0", False), Verdict("more", "-", None)]
    for complete, words in (
        (False, ["reached so far", "not reached so far", "open"]),
        (True, ["reached", "not reached", "open"]),
    ):
        lines = tables.verdict_table([v._replace(complete=complete) for v in found]).splitlines()[2:]
        assert [line.split(" | ")[-1].removesuffix(" |") for line in lines] == words


def of_results(env: str, label: str, scores: list[float], settings: dict[str, Any] | None = None) -> list[Run]:
    """Runs of the tasks of results.md."""
    one = run("A-v0", "grpo-paired", 0)
    algo = "random" if label == "random" else "grpo"
    return [replace(one, env=env, label=label, algo=algo, seed=seed, final_returns=np.full(4, score), settings=settings or {})
            for seed, score in enumerate(scores)]  # fmt: skip


def test_pairs_as_the_default_by_hand() -> None:
    """0 is the random policy's 0 and 1 is PPO's 10. On A pairs lose half, on B they gain a tenth; seeds that only one side
    has do not count."""
    runs = []
    for env, paired in (("A-v0", 5.0), ("B-v0", 11.0)):
        runs += of_results(env, "random", [0.0] * 4) + of_results(env, "ppo-tuned", [10.0] * 4)
        runs += of_results(env, "grpo-state", [10.0] * 4 + [99.0] * 4) + of_results(env, "entry-paired", [paired] * 4)
    found = default(runs, "entry-paired")
    assert found is not None and default(runs, "defaults-paired") is None
    assert [(cell.task, cell.seeds, cell.difference.value) for cell in found.cells] == [("A-v0", 4, -5.0), ("B-v0", 4, 1.0)]
    assert math.isclose(found.aggregate.value, 0.8) and math.isclose(found.without.value, 1.0)
    assert found.worse == ["A-v0"] and found.tasks == 2 and not found.complete
    (line,) = (v for v in _verdicts_of(found) if v.wanted.startswith("the tuned entries"))
    assert line.found == "0.80 [0.80, 0.80] on 2 of 2 tasks; worse: A-v0" and line.reached is False and not line.complete
    text = tables.default_table(found)
    assert "| `A-v0` | 4 | 5.0 [5.0, 5.0] | 10.0 [10.0, 10.0] | -5.0 [-5.0, -5.0] |" in text
    assert "| all, normalised |  | 0.80 [0.80, 0.80] | 1.00 [1.00, 1.00] | -0.20 [-0.20, -0.20] |" in text


def test_minigrid_by_hand() -> None:
    """All end at 9; with pairs the checkpoints' mean is 5 in place of 3. The fourth seed has run without pairs only."""
    with_pairs, without = (of_results("A-v0", label, [9.0] * n) for label, n in (("entry-paired", 3), ("grpo-state", 4)))
    runs = with_curve(with_pairs, [1, 5, 9], 9.0) + with_curve(without, [0, 0, 9], 9.0)
    (found,) = on_minigrid(runs)
    assert [(cell.difference.value, cell.seeds) for cell in found] == [(0.0, 3), (2.0, 3)]
    line = "| `A-v0` | 3 | over all checkpoints | 5.000 [5.000, 5.000] | 3.000 [3.000, 3.000] |"
    assert line in tables.minigrid_table([found])


def _verdicts_of(found: Default) -> list[Verdict]:
    study = Study({"A-v0": {label: [run("A-v0", label, 0)] for label in ("grpo-paired", "ppo-tuned", "ppo-grpo-settings")}})
    return verdicts(study, rows(study, RULES), VARIANCE, [found])


def test_an_entry_that_is_the_defaults_counts_for_both() -> None:
    """On B the entry has the constructor's settings, so its runs with pairs are the defaults' too; on A they differ."""
    runs = []
    for env, settings in (("A-v0", {"gamma": 0.9}), ("B-v0", {"gamma": 0.99})):
        runs += of_results(env, "random", [0.0] * 2) + of_results(env, "ppo-tuned", [10.0] * 2)
        runs += of_results(env, "grpo-state", [9.0] * 2, settings) + of_results(env, "entry-paired", [8.0] * 2, settings)
    runs += of_results("A-v0", "grpo-defaults", [7.0] * 2, {"gamma": 0.99})
    runs += of_results("A-v0", "defaults-paired", [6.0] * 2, {"gamma": 0.99})
    found = default(runs, "defaults-paired")
    assert found is not None
    cells = [(cell.task, cell.with_pairs.value, cell.without.value) for cell in found.cells]
    assert cells == [("A-v0", 6.0, 7.0), ("B-v0", 8.0, 9.0)]


def test_the_page_of_an_incomplete_study(study: Study, tmp_path: Path) -> None:
    """Labels that are missing are left out, seeds that are missing are counted, single seeds have no interval."""
    study.runs["A-v0"]["step"] = [run("A-v0", "grpo-state", 0)]
    del study.runs["MotorSpeed-v0"]["grpo-state"]
    texts = yaml.safe_load(TEXTS.read_text())
    text = page(study, rows(study, RULES), RULES, VARIANCE, [], [], texts)
    assert "| grpo-state | 1 of 2 | 3 of 10 |" in text and "| step | 1 of 2 | 1 of 10 |" in text
    assert "| step | 6.0 [-, -] |" in text
    assert "| `MotorSpeed-v0` | 1.0 [1.0, 1.0] | - | - | 3.0 [3.0, 3.0] |" in text
    assert "--out docs/studies/data/paired --jobs 1" in text
    assert "| `A-v0` | 0.75 | 0.20 | 0.80 | 0.90 | 0.30 | 0.40% |" in text
    assert "nan" not in text and "inf" not in text.replace("input_driven", "")
    draw_curves(study, tmp_path / "curves.png")
    draw_lead(study, {"before": [-1.0, 0.0, 1.0], "after": [0.0, 0.0, 0.1]}, tmp_path / "lead.png")
    assert {file.name for file in tmp_path.glob("lead*.png")} == {"lead.png", "lead-dark.png"}


def test_the_users_page_changes_between_its_marks_alone(study: Study) -> None:
    found = rows(study, RULES)
    before = f"above\n\n{MARKS[0]}\n\nold\n\n{MARKS[1]}\n\nbelow\n"
    after = users_page(before, study, found)
    assert after.startswith("above\n") and after.endswith(f"{MARKS[1]}\n\nbelow\n") and "old" not in after
    assert "| `A-v0` | 6.0 | 9.0 | 75% of the steps | 100% |" in after
    assert "2 tasks, 3 of 10 seeds each." in after
    assert users_page(after, study, found) == after


def test_a_study_without_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no runs with the label grpo-paired .* zoo/variants/paired.yml"):
        load([])


def test_ablations_that_have_not_run() -> None:
    assert tables.ablation_table(Study({"A-v0": {"grpo-paired": [run("A-v0", "grpo-paired", 0)]}})) == "Not run yet."


def test_the_committed_page_is_what_the_command_writes(tmp_path: Path) -> None:
    users = tmp_path / "when_groups_win.md"
    users.write_text(USERS.read_text())
    make(find_results([RUNS]), tmp_path / "paired.md", users, tmp_path, tmp_path)
    assert (tmp_path / "paired.md").read_text() == PAGE.read_text()
    assert users.read_text() == USERS.read_text()
    assert (tmp_path / "paired_curves.png").stat().st_size > 10_000 and (tmp_path / "paired.png").stat().st_size > 10_000
