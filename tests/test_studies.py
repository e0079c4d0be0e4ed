"""The measured examples: pages hold what the raw files say, and their code runs as written."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scripts.studies import (
    critic_probe,
    device,
    fine_tuning,
    gradient_agreement,
    learning,
    masks,
    memory,
    multi_task,
    search,
    speed,
    transfer,
)
from scripts.studies.common.runs import Variant, train
from scripts.studies.common.tables import on_one_grid, table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PARTS = ["exploration", "curriculum", "health"]


def imported(file):
    """Names of the modules that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_nothing_of_the_product_needs_a_study():
    """Neither its code nor its tests."""
    files = [*ROOT.glob("sb_grpo/**/*.py"), *ROOT.glob("zoo/**/*.py"), *ROOT.glob("tests/*.py")]
    product = [file for file in files if not file.name.startswith("test_studies")]
    assert len(product) > 100
    assert [file for file in product for name in imported(file) if name.startswith("scripts.studies")] == []


def test_links_between_the_pages_lead_somewhere():
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("studies/*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()) if "://" not in link]
    assert len(links) > 100
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_every_text_of_the_results_page_says_where_its_numbers_come_from():
    entries = yaml.safe_load((DOCS / "studies" / "data" / "results.yml").read_text())
    assert all(entry["source"] for entry in entries.values())
    assert all(row["shown"] for row in entries["history"]["rows"])


@pytest.mark.parametrize("part", PARTS)
def test_the_page_has_the_table_of_the_raw_files(part):
    assert importlib.import_module(f"scripts.studies.{part}").table() in (DOCS / "studies" / f"{part}.md").read_text()


def test_the_page_of_causal_systems_has_the_table_of_transfer():
    assert transfer.table() in (DOCS / "studies" / "causal.md").read_text()


@pytest.mark.parametrize("suite", multi_task.SETTINGS)
def test_the_page_of_multi_task_has_the_tables_of_the_raw_files(suite):
    assert multi_task.table(suite) in (DOCS / "studies" / "multi_task.md").read_text()


def test_the_pages_of_single_trainings_have_the_tables_of_the_raw_files():
    assert learning.table() in (DOCS / "studies" / "learning.md").read_text()
    assert search.table() in (DOCS / "studies" / "tuning.md").read_text()
    assert fine_tuning.table() in (DOCS / "studies" / "fine_tuning.md").read_text()


def test_the_page_of_masks_and_memory_has_the_tables_of_the_raw_files():
    page = (DOCS / "studies" / "masks_and_memory.md").read_text()
    assert [made.__name__ for made in (masks.taxi, masks.board, memory.table) if made() not in page] == []


@pytest.mark.parametrize(("page", "made"), [(page, made) for page, tables in speed.TABLES.items() for made in tables])
def test_pages_about_speed_have_the_tables_of_the_raw_files(page, made):
    assert made() in (DOCS / f"{page}.md").read_text()


@pytest.mark.parametrize("study", [critic_probe, gradient_agreement])
def test_the_page_about_the_critic_has_the_tables_of_the_raw_files(study, capsys):
    study.report()
    for made in capsys.readouterr().out.strip().split("\n\n"):
        assert made in (DOCS / "studies" / "critic.md").read_text()


@pytest.mark.parametrize("study", device.STUDIES)
def test_the_page_of_tensor_envs_has_the_tables_of_the_raw_files(study, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["device", study])
    device.main()
    _, made = capsys.readouterr().out.strip().split("\n", 1)
    assert made in (DOCS / "studies" / "device.md").read_text()


def test_a_table_by_hand():
    runs = [
        {"first_goal": 100, "final_returns": [-1.0, -2.0]},
        {"first_goal": None, "final_returns": [-200.0]},
        {"first_goal": 3000, "final_returns": [-5.0]},
    ]
    rows = table([("a", runs), ("b", runs[1:2])], {"n": lambda run: str(len(run["final_returns"]))}).splitlines()
    assert rows[2] == "| a | 2 of 3 | 1,550 steps | -2, -200, -5 | 2, 1, 1 |"
    assert rows[3] == "| b | 0 of 1 | - | -200 | 1 |"


def test_curves_on_one_grid():
    steps, values = on_one_grid([[(0, 0.0), (10, 10.0)], [(2, 1.0), (12, 1.0)]])
    assert (steps[0], steps[-1]) == (2, 10) and (values[0] == steps).all() and (values[1] == 1.0).all()


def test_one_training_leaves_what_the_tables_need():
    exploration = importlib.import_module("scripts.studies.exploration")
    short: Variant = exploration.VARIANTS[1]._replace(steps=4096)
    result = train(short, 100)
    assert result["env_steps"] == 4096 and result["episodes"] == 16 and len(result["final_returns"]) == 20
    assert result["first_goal"] is None and [step for step, _ in result["curve"]] == [2048, 4096]


def test_variants_are_named():
    command = [sys.executable, "-m", "scripts.studies.health", "--only", "Walker2d-v5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "invalid choice: 'Walker2d-v5' (choose from" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_the_code_of_the_page_runs_as_written(part):
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / f"{part}.md").read_text(), re.DOTALL):
        exec(block, names)
    assert names
