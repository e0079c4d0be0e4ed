"""The measured examples: pages hold what the raw files say, and their code runs as written."""

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
import yaml
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import sb_grpo.tasks.memory  # noqa: F401  # registers the T-maze
from scripts.studies import (
    critic_probe,
    device,
    fine_tuning,
    gradient_agreement,
    half_good,
    learning,
    masks,
    memory,
    merge,
    multi_task,
    routing,
    scheduling,
    search,
    shop_sizes,
    sparse,
    speed,
    transfer,
)
from scripts.studies.common import package_tasks, records
from scripts.studies.common.package_tasks import legal_moves
from scripts.studies.common.recurrent_ppo import WholeSequences
from scripts.studies.common.runs import Variant, train
from scripts.studies.common.tables import on_one_grid, table
from scripts.studies.ppo_changes import CHANGES, MAX_NORM, build
from tests.test_zoo_compare import write_runs
from zoo.comparing.comparison import load

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


def test_the_page_of_scheduling_has_the_tables_of_the_raw_files():
    page = (DOCS / "scheduling.md").read_text()
    for problem in scheduling.PROBLEMS:
        assert scheduling.table(problem) in page
        assert scheduling.pairs(problem) in page
    assert shop_sizes.table() in page
    assert shop_sizes.known_table() in page
    assert routing.table(20) in page


def test_the_interval_of_costs_draws_seeds_and_instances():
    assert scheduling.interval(np.full((3, 4), 2.5)) == (2.5, 2.5)
    low, high = scheduling.interval(np.array([[0.0, 1.0] * 50]))  # a standard error of 0.05
    assert 0.38 < low < 0.43
    assert 0.57 < high < 0.62
    assert scheduling.interval(np.repeat([[0.0], [1.0]], 100, axis=1)) == (0.0, 1.0)  # two seeds, of which one is drawn twice


def test_a_planner_without_a_plan_in_time_has_no_costs(tmp_path, monkeypatch):
    monkeypatch.setattr(shop_sizes, "DATA", tmp_path)
    monkeypatch.setattr(shop_sizes, "SIZES", {3: 2})
    monkeypatch.setattr(shop_sizes, "EVALUATION", shop_sizes.EVALUATION[:4])
    shop_sizes.measure(3, "MWKR", 0, 0.0)
    for limit in (1e-9, 10.0):
        shop_sizes.measure(3, "CP-SAT, one plan", 0, limit)
    rows = {(row["method"], row["limit"]): row for row in records.read(tmp_path / "sizes.jsonl")}
    assert [len(row["costs"]) for row in rows.values()] == [0, 2, 2]
    assert len(rows["MWKR", 0.0]["all_costs"]) == 4
    assert "no plan within 1e-09 s" in shop_sizes.table()


@pytest.mark.parametrize("suite", multi_task.SETTINGS)
def test_the_page_of_multi_task_has_the_tables_of_the_raw_files(suite):
    assert multi_task.table(suite) in (DOCS / "studies" / "multi_task.md").read_text()


def test_the_pages_of_single_trainings_have_the_tables_of_the_raw_files():
    assert learning.table() in (DOCS / "studies" / "learning.md").read_text()
    assert search.table() in (DOCS / "studies" / "tuning.md").read_text()
    assert fine_tuning.table() in (DOCS / "studies" / "fine_tuning.md").read_text()


@pytest.mark.parametrize("task", half_good.TASKS)
def test_the_page_of_fine_tuning_has_the_tables_of_half_good_policies(task):
    assert half_good.report(half_good.TASKS[task]) in (DOCS / "studies" / "fine_tuning.md").read_text()


def test_the_page_of_sparse_rewards_has_the_tables_of_the_raw_files():
    page = (DOCS / "studies" / "sparse.md").read_text()
    tables = sparse.report().split("### ")[1:]
    assert [made for made in tables if made.strip() not in page and not made.startswith("Ant,")] == []  # Ant: settings.md


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


# Raw results of studies: files of single runs become lines of one, and stay what they were

def contents(folder):
    return {file: json.loads(file.read_text()) for file in folder.rglob("seed_*.json")}


def test_merged_files_are_lines_by_env_and_seed(tmp_path, capsys):
    write_runs(tmp_path, "CartPole-v1", "gamma-0.9", range(100, 112))  # so that seed 10 comes after 9, and labels hold dots
    write_runs(tmp_path, "Acrobot-v1", "gamma-0.9", [-100])
    write_runs(tmp_path, "CartPole-v1", "random", [20], algo="random")
    before, runs = contents(tmp_path), load([tmp_path])[0]
    assert merge.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "14 files merged into 2\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["gamma-0.9.jsonl", "random.jsonl"]
    files = [tmp_path / "CartPole-v1" / "gamma-0.9" / f"seed_{seed}.json" for seed in range(12)]
    files.insert(0, tmp_path / "Acrobot-v1" / "gamma-0.9" / "seed_0.json")
    assert records.read(tmp_path / "gamma-0.9.jsonl") == [before[file] for file in files]
    assert [(run.file, run.score) for run in load([tmp_path])[0]] == [(run.path, run.score) for run in runs]


def test_more_runs_join_the_lines_and_another_run_of_a_seed_is_refused(tmp_path, capsys):
    write_runs(tmp_path, "CartPole-v1", "ppo", [100, 110])
    merge.main([str(tmp_path)])
    write_runs(tmp_path, "CartPole-v1", "ppo", [110, 120], first_seed=1)
    assert merge.main([str(tmp_path)]) == 0
    lines = tmp_path / "ppo.jsonl"
    assert [record["final_returns"] for record in records.read(lines)] == [[90, 110], [100, 120], [110, 130]]
    write_runs(tmp_path, "CartPole-v1", "ppo", [300], first_seed=2)
    before = lines.read_bytes()
    assert merge.main([str(tmp_path)]) == 2
    assert "seed_2.json: " in capsys.readouterr().err and lines.read_bytes() == before and contents(tmp_path)


def test_a_record_takes_the_place_of_the_one_with_its_seed(tmp_path):
    file = tmp_path / "study" / "a.jsonl"
    assert records.read(file) == [] and records.seeds(file) == set()
    for record in ({"seed": 11, "x": 1.5}, {"seed": 2, "x": 2}, {"seed": 11, "x": float("inf")}):
        records.put(file, record)
    assert records.read(file) == [{"seed": 2, "x": 2}, {"seed": 11, "x": float("inf")}]
    assert records.seeds(file) == {2, 11}


# Tasks of other packages in the study of masks and memory: what is legal on a board, and that every id is a flat task

@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({(0, 0): 1}, [False, True, True, False]),  # alone in a corner: away from its walls
        ({(0, 0): 1, (0, 1): 1}, [False, True, True, True]),  # two equal ones: together, too
        ({(3, 0): 1, (3, 1): 2, (3, 2): 3, (3, 3): 4}, [True, False, False, False]),  # a full last row of different tiles
    ],
)
def test_legal_moves_by_hand(cells: dict[tuple[int, int], int], expected: list[bool]) -> None:
    board = np.zeros((4, 4), dtype=np.uint8)
    for cell, tile in cells.items():
        board[cell] = tile
    assert legal_moves(board).tolist() == expected


def test_a_full_board_without_equal_neighbours_has_no_legal_move() -> None:
    board = np.indices((4, 4)).sum(0) % 2 + 1
    assert not legal_moves(board).any()
    board[0, 0] = board[0, 1]
    assert legal_moves(board).tolist() == [True, True, True, True]  # the tile below it is its equal, too


@pytest.mark.skipif(importlib.util.find_spec("gymnasium_2048") is None, reason="gymnasium-2048 is not installed")
def test_legal_moves_are_those_that_the_game_carries_out() -> None:
    env, rng = package_tasks.board_2048(), np.random.default_rng(0)
    env.reset(seed=0)
    game = env.unwrapped
    for _ in range(1_000):
        legal = env.get_wrapper_attr("action_masks")()
        assert legal.tolist() == [game.apply_action(game.board, move)[2] for move in range(4)]  # type: ignore[attr-defined]
        _, _, terminated, _, info = env.step(int(rng.choice(np.flatnonzero(legal))))
        assert info["is_legal"]
        if terminated:
            assert not env.get_wrapper_attr("action_masks")().any()
            env.reset()


@pytest.mark.parametrize(
    ("env_id", "package", "size"),
    [("Board2048-v0", "gymnasium_2048", 256), ("MemoryS7-v0", "minigrid", 980), ("RepeatPrevious-v0", "popgym", 4)],
)
def test_a_seed_decides_how_an_episode_starts(env_id: str, package: str, size: int) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    env = gym.make(env_id)
    first, again = (env.reset(seed=3)[0] for _ in range(2))
    assert np.array_equal(first, again)
    assert gym.spaces.flatdim(env.observation_space) == size


# What the studies hold GRPO against is what it is called

STEPS = 2048


def norms_after_a_step(model):
    """Of actor's and critic's gradients, which were too long before SB3's clipping and the optimiser's step."""
    for p in model.policy.parameters():
        p.grad = th.full_like(p, 3.0)
    th.nn.utils.clip_grad_norm_(model.policy.parameters(), model.max_grad_norm)
    model.policy.optimizer.step()
    named = dict(model.policy.named_parameters())
    parts = ([p.grad for name, p in named.items() if ("value" in name) == critic] for critic in (False, True))
    return [float(th.nn.utils.get_total_norm(grads)) for grads in parts]


def test_all_changes_together():
    model, callbacks = build("Pendulum-v1", set(CHANGES), seed=0)
    model.learn(2 * STEPS, callback=callbacks)
    groups = callbacks[0].groups
    assert groups.start_mismatches == 0
    assert groups.next_group > 2  # a second and a third group have begun, and were compared
    assert groups.in_step_with(model.get_env())
    np.testing.assert_allclose(norms_after_a_step(model), MAX_NORM, rtol=1e-3)  # each at its own limit
    env = model.get_vec_normalize_env()
    assert isinstance(env, VecNormalize)
    assert not env.norm_reward
    rewards = env.get_original_reward()
    assert -16.3 * 0.02 < rewards.min() < 0  # Pendulum's worst reward is -16.27


def test_no_change_is_the_study():
    model, callbacks = build("Pendulum-v1", set(), seed=0)
    assert callbacks == []
    assert (model.n_steps, model.n_envs, model.max_grad_norm) == (256, 8, MAX_NORM)
    assert model.get_vec_normalize_env().norm_reward
    np.testing.assert_allclose(np.hypot(*norms_after_a_step(model)), MAX_NORM, rtol=1e-3)  # one limit for both


@pytest.mark.parametrize("starts", [[[0, 0, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 1]]])
def test_a_sequence_in_one_call_is_the_same_network(starts: list[list[int]]) -> None:
    """Outputs, states after it and gradients; with no start, starts at the first step, and one in the middle."""
    th.manual_seed(0)
    lstm, features = th.nn.LSTM(5, 4), th.randn(6, 5, requires_grad=True)
    states, begins = (th.randn(1, 2, 4), th.randn(1, 2, 4)), th.tensor(starts, dtype=th.float32).flatten()
    found = []
    for policy in (WholeSequences, WholeSequences.__base__):
        output, after = policy._process_sequence(features, states, begins, lstm)  # type: ignore[union-attr]
        gradient = th.autograd.grad(output.square().sum(), [features, *lstm.parameters()])
        found.append([output, *after, *gradient])
    for one, other in zip(*found, strict=True):
        th.testing.assert_close(one, other)


def test_a_training_with_it_is_the_same_training() -> None:
    weights = []
    for policy in (WholeSequences, "MlpLstmPolicy"):
        model = RecurrentPPO(policy, make_vec_env("TMaze10-v0", 4, seed=0), n_steps=32, batch_size=32, n_epochs=2, seed=0)
        weights.append(model.learn(256).policy.state_dict())
    for name, weight in weights[0].items():
        th.testing.assert_close(weight, weights[1][name], rtol=1e-3, atol=1e-5)
