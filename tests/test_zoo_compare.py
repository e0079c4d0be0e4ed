"""Comparison and plots on small result files with known numbers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from stable_baselines3.common.monitor import Monitor
from torch.utils.tensorboard import SummaryWriter

from tests.helpers import run_command
from zoo import compare, plot
from zoo.benchmarking.results import BrokenResult, read_run, write_result
from zoo.common.command_line import run as call
from zoo.comparing import figures, tables
from zoo.comparing.comparison import compare_runs, load
from zoo.training.run_files import write_values

ROOT = Path(__file__).parents[1]
PNG = b"\x89PNG"


def content(env, label, seed, final, steps=1000, algo="ppo", wall=2.0, settings=None, processor="x"):
    """A run whose curve rises in three checkpoints to its final return."""
    points = [
        {"steps": steps * i // 2, "env_steps": steps * i // 2, "train_wall_s": wall * i / 2, "returns": [final * i / 2] * 2}
        for i in range(3)
    ]
    return {
        "spec": {"env": env, "label": label, "algo": algo, "seed": seed, "steps": steps},
        **{"env_steps": steps, "gradient_steps": 40, "n_updates": 4, "parameters": 99},
        **{"train_wall_s": wall, "train_cpu_s": wall},
        "checkpoints": [] if algo == "random" else points,
        "final_returns": [final - 10, final + 10],
        "settings": settings or {},
        "machine": {"processor": processor, "cores": 2},
    }


def write_runs(folder, env, label, finals, first_seed=0, **options):
    for seed, final in enumerate(finals, first_seed):
        file = folder / env / label / f"seed_{seed}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_result(file, content(env, label, seed, final, **options))


@pytest.fixture
def results(tmp_path):
    """Two algorithms, two tasks, three seeds, and the random policy."""
    folder = tmp_path / "results"
    write_runs(folder, "CartPole-v1", "ppo", [300, 400, 500], wall=4.0)
    write_runs(folder, "CartPole-v1", "grpo", [480, 490, 500], wall=2.0)
    write_runs(folder, "CartPole-v1", "random", [20, 20], algo="random")
    write_runs(folder, "Acrobot-v1", "ppo", [-120, -100, -80], wall=9.0)
    write_runs(folder, "Acrobot-v1", "grpo", [-110, -100, -90], wall=1.0)
    write_runs(folder, "Acrobot-v1", "random", [-500], algo="random")
    return folder


def test_the_kept_folders_of_a_benchmark_belong_to_its_lines(results):
    """``--keep-models`` leaves a folder beside each result file: its episodes are those of the same line."""
    for label in ("ppo", "grpo"):
        for seed in range(3):
            run = results / f"CartPole-v1/{label}/seed_{seed}/grpo/CartPole-v1_1"
            write_values(run / "CartPole-v1" / "config.yml", {"gamma": 0.9} if label == "ppo" else {})
            (run / "0.monitor.csv").write_text('#{"t_start": 0, "env_id": "CartPole-v1"}\nr,l,t\n9,9,1\n8,8,2\n')
    curves, broken = plot.from_folder(results / "CartPole-v1")
    assert not broken and len(curves) == 12
    for by in ("setting", "env"):
        lines = [(c.label, c.kind) for c in plot.labelled(curves, by)]
        wanted = [(label, kind) for label in ("grpo", "ppo") for kind in ("evaluation", "training")]
        assert sorted(set(lines)) == wanted and all(lines.count(line) == 3 for line in wanted)


def table(out, name):
    return pd.read_csv(out / "tables" / f"{name}.csv")


def row(data, **where):
    for column, value in where.items():
        data = data[data[column] == value]
    assert len(data) == 1
    return data.iloc[0]


def test_tables_of_known_runs(results, tmp_path):
    out = tmp_path / "report"
    assert call("zoo.compare", compare.main, [str(results), "--baseline", "ppo", "--out", str(out)]) == 0
    ppo = row(table(out, "summary"), env="CartPole-v1", algorithm="ppo")
    assert (ppo["mean"], ppo["std"], ppo["median"], ppo["worst"], ppo["best"]) == (400, 100, 400, 300, 500)
    assert ppo["success_rate"] == pytest.approx(2 / 6)  # episodes 290 310 390 410 490 510 against 475
    assert ppo["convergence_steps"] == 1000
    assert row(table(out, "references"), env="CartPole-v1")[["low", "high"]].tolist() == [20, 400]
    scores = [(f - 20) / 380 for f in (480, 490, 500)] + [(f + 500) / 400 for f in (-110, -100, -90)]
    grpo = row(table(out, "aggregate"), algorithm="grpo")
    assert grpo["iqm"] == pytest.approx(np.mean(sorted(scores)[1:-1]), rel=1e-5)
    assert grpo["iqm_low"] <= grpo["iqm"] <= grpo["iqm_high"]
    better = row(table(out, "improvement"), algorithm="grpo", over="ppo")
    assert better["probability"] == pytest.approx((6.5 / 9 + 0.5) / 2, rel=1e-5)  # 6 wins and a tie of 9; even
    reached = row(table(out, "threshold"), env="CartPole-v1", algorithm="ppo")
    assert (reached["reached"], reached["seeds"], reached["median_steps"]) == (1, 3, np.inf)
    assert row(table(out, "speed"), env="Acrobot-v1")["speedup"] == 9
    assert row(table(out, "speed"), env="all")["speedup"] == pytest.approx(np.sqrt(2 * 9), rel=1e-5)
    assert row(table(out, "speed"), env="all")["cpu_speedup_low"] == pytest.approx(np.sqrt(2 * 9), rel=1e-5)  # no spread
    assert row(table(out, "ranking"), algorithm="grpo")["mean_rank"] == 1.25
    assert row(table(out, "pairwise"), env="Acrobot-v1")["difference"] == 0
    assert row(table(out, "cost"), env="CartPole-v1", algorithm="grpo")["gradient_steps"] == 40


def test_differences_pair_by_pair(results):
    """Per seed 180, 90 and 0: mean 90, standard error 90 / sqrt(3). The variances are 100 and 10000, the differences' 8100."""
    comparison = compare_runs(load([results])[0])
    it = row(tables.paired(comparison), env="CartPole-v1")
    assert (it["algorithm"], it["other"], it["pairs"], it["difference"]) == ("grpo", "ppo", 3, 90)
    assert it["t"] == pytest.approx(np.sqrt(3)) and it["p"] == pytest.approx(1 - np.sqrt(3 / 5))
    assert it["difference_high"] == pytest.approx(90 + 4.302653 * 90 / np.sqrt(3), rel=1e-5)
    assert it["correlation"] == pytest.approx(1) and it["variance_saved"] == pytest.approx(1 - 8100 / 10100)
    # Both episodes of every run are 10 from its mean.
    assert it[["correlation_within", "variance_saved_within"]].tolist() == pytest.approx([1, 1])
    assert np.isnan(it["p_wilcoxon"]) and tables.pairing_notes(comparison) == []


def test_holm_is_over_the_pairs_of_the_env(results):
    write_runs(results, "CartPole-v1", "trpo", [100, 250, 130])
    of_env = tables.paired(compare_runs(load([results])[0])).query("env == 'CartPole-v1'")
    assert len(of_env) == 3 and of_env["p_holm"].min() == pytest.approx(3 * of_env["p"].min())


def test_what_cannot_be_paired_is_left_out_and_said_once(results, tmp_path, capsys):
    """trpo has no seed of the others; a2c one more than ppo, and one with other final episodes."""
    write_runs(results, "CartPole-v1", "trpo", [450, 460], first_seed=7)
    write_runs(results, "CartPole-v1", "a2c", [310, 420, 505, 430])
    more = content("CartPole-v1", "a2c", 2, 505) | {"final_returns": [500.0, 505.0, 510.0]}
    write_result(results / "CartPole-v1/a2c/seed_2.json", more)
    assert call("zoo.compare", compare.main, [str(results), "--labels", "ppo", "a2c", "trpo", "--out", str(tmp_path)]) == 0
    messages = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("Not paired", "Paired"))]
    assert messages == [
        "Not paired: CartPole-v1 ppo and trpo (no seed in common), CartPole-v1 a2c and trpo (no seed in common). "
        "Paired in part: CartPole-v1 ppo and a2c (2 of 3 and 4 runs)."
    ]
    paired = table(tmp_path, "paired")
    assert row(paired, other="a2c")[["pairs", "difference"]].tolist() == [2, -15]
    apart = row(paired, algorithm="a2c", other="trpo")
    assert apart["pairs"] == 0 and apart["difference":].isna().all()
    report = (tmp_path / "report.md").read_text()
    assert "| CartPole-v1 | ppo | trpo | 0 | - | - | - | - | - | - | - | - | - |" in report and messages[0] in report


@pytest.mark.parametrize(
    ("seeds", "finals", "why"),
    [
        (2, {}, "no seed in common"),
        (1, {}, "1 seed in common"),
        (0, {"final_returns": [1.0, 2.0, 3.0]}, "other numbers of final episodes"),
    ],
)
def test_without_any_pair_there_is_no_table(seeds, finals, why, tmp_path):
    write_runs(tmp_path, "CartPole-v1", "ppo", [400, 410])
    for seed in (seeds, seeds + 1):
        file = tmp_path / f"CartPole-v1/grpo/seed_{seed}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_result(file, content("CartPole-v1", "grpo", seed, 480) | finals)
    comparison = compare_runs(load([tmp_path])[0])
    assert len(tables.paired(comparison)) == 0
    assert tables.pairing_notes(comparison) == [f"Not paired: CartPole-v1 grpo and ppo ({why})."]


def test_seconds_of_different_processors_are_not_compared(results, tmp_path):
    write_runs(results, "Acrobot-v1", "grpo", [-110, -100, -90], wall=0.1, processor="y")
    assert call("zoo.compare", compare.main, [str(results), "--baseline", "ppo", "--out", str(tmp_path), "--no-figures"]) == 0
    speed = table(tmp_path, "speed")
    assert speed["env"].tolist() == ["CartPole-v1", "all"] and set(speed["speedup"]) == {2.0}
    assert row(table(tmp_path, "cost"), env="Acrobot-v1", algorithm="grpo")["processor"] == "y"


def test_seconds_are_compared_on_the_processor_that_both_ran_on_most(results, tmp_path):
    """Most of PPO's runs on x, most of GRPO's on y: the ratio is the one on y, where there are two of each, not one."""
    write_runs(results, "CartPole-v1", "ppo", [500], first_seed=3, wall=40.0, processor="y")
    write_runs(results, "CartPole-v1", "ppo", [500], first_seed=4, wall=60.0, processor="y")
    write_runs(results, "CartPole-v1", "grpo", [480, 490, 500], wall=10.0, processor="y")
    write_runs(results, "CartPole-v1", "grpo", [500], first_seed=3, wall=2.0)
    assert call("zoo.compare", compare.main, [str(results), "--baseline", "ppo", "--out", str(tmp_path), "--no-figures"]) == 0
    speed = row(table(tmp_path, "speed"), env="CartPole-v1")
    assert (speed["speedup"], speed["speedup_low"], speed["speedup_high"]) == (5, 4, 6)
    assert row(table(tmp_path, "cost"), env="CartPole-v1", algorithm="ppo")["processor"] == "x"


def test_seconds_are_those_of_the_processor_that_most_runs_used(results, tmp_path):
    """One more run of PPO, a hundred times slower on another machine: it counts for the returns, not for the seconds."""
    write_runs(results, "CartPole-v1", "ppo", [500], first_seed=3, wall=400.0, processor="y")
    assert call("zoo.compare", compare.main, [str(results), "--baseline", "ppo", "--out", str(tmp_path), "--no-figures"]) == 0
    assert set(row(table(tmp_path, "speed"), env="CartPole-v1")[["speedup", "speedup_low", "speedup_high"]]) == {2.0}
    cost = row(table(tmp_path, "cost"), env="CartPole-v1", algorithm="ppo")
    assert cost["processor"] == "x" and cost["train_wall_s"] == 4.0
    assert row(table(tmp_path, "summary"), env="CartPole-v1", algorithm="ppo")["seeds"] == 4


def test_the_report_shows_tables_and_figures_that_exist(results, tmp_path):
    out = tmp_path / "report"
    assert call("zoo.compare", compare.main, [str(results), "--out", str(out)]) == 0
    report = (out / "report.md").read_text()
    for heading in compare.SECTIONS:
        assert f"## {heading}" in report
    assert "| CartPole-v1 | ppo | 3 | 400 [300, 500] | 400 |" in report
    linked = [part.split(")")[0] for part in report.split("](")[1:]]
    assert len(linked) > 15 and all((out / link).stat().st_size > 0 for link in linked)
    for picture in (out / "figures").glob("*.png"):
        assert picture.read_bytes().startswith(PNG) and picture.stat().st_size > 5_000
        assert picture.with_suffix(".svg").exists()


@pytest.mark.slow
def test_tables_and_pictures_go_to_weights_and_biases(results, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_DIR", raising=False)
    out = tmp_path / "report"
    assert call("zoo.compare", compare.main, [str(results), "--baseline", "ppo", "--out", str(out), "--track"]) == 0
    assert "WANDB_DIR" not in os.environ  # what runs next in this process finds its own folder
    (media,) = (out / "wandb").glob("offline-run-*/files/media")
    logged = {file.name.rsplit("_", 2)[0] for file in media.rglob("*") if file.is_file()}
    assert {file.stem for part in ("tables/*.csv", "figures/*.png") for file in out.glob(part)} <= logged


def test_the_same_files_give_the_same_bytes(results, tmp_path):
    """Whatever the order that the file system lists them in."""
    parts = [str(results / env) for env in ("CartPole-v1", "Acrobot-v1")]
    assert call("zoo.compare", compare.main, [str(results), "--out", str(tmp_path / "a")]) == 0
    assert call("zoo.compare", compare.main, [*parts, "--out", str(tmp_path / "b")]) == 0
    files = [file for file in (tmp_path / "a").rglob("*") if file.is_file()]
    assert len(files) > 20
    for file in files:
        assert file.read_bytes() == (tmp_path / "b" / file.relative_to(tmp_path / "a")).read_bytes(), file


def test_long_labels_fit_in_the_pictures():
    """Those of a sweep: legends within the figure, panels that keep their room."""
    labels = [f"grpo-learning_rate=0.000{n}-group_size=16-n_epochs=20" for n in range(4)]
    curve = pd.DataFrame(
        [("E", label, x, x, x, x) for label in labels for x in (0.0, 1.0)],
        columns=["env", "algorithm", "env_steps", "mean", "mean_low", "mean_high"],
    )
    pair = pd.DataFrame(
        [(labels[0], labels[1], 0.5, 0.4, 0.6)],
        columns=["algorithm", "over", "probability", "probability_low", "probability_high"],
    )
    for figure in (figures.learning_curves(curve, labels), figures.improvements(pair, labels)):
        figure.canvas.draw()
        for part in (*figure.legends, *(text for axes in figure.axes for text in axes.get_yticklabels())):
            box = part.get_window_extent()
            assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert figure.axes[0].get_window_extent().width > 0.3 * figure.bbox.width


def test_the_committed_example_is_that_of_its_raw_files(tmp_path):
    """The report that docs/benchmark.md shows, made again; pictures depend on matplotlib's version, text and tables do not."""
    data = ROOT / "docs" / "data"
    assert (
        call("zoo.compare", compare.main, [str(data / "example_benchmark"), "--baseline", "ppo", "--out", str(tmp_path)]) == 0
    )
    for file in [data / "example_report" / "report.md", *(data / "example_report" / "tables").iterdir()]:
        assert (tmp_path / file.relative_to(data / "example_report")).read_text() == file.read_text(), file


def test_unequal_budgets_are_refused_unless_asked_for(results, tmp_path, capsys):
    write_runs(results, "CartPole-v1", "a2c", [100, 200], steps=2000)
    arguments = [str(results), "--out", str(tmp_path / "report")]
    assert call("zoo.compare", compare.main, arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "CartPole-v1: unequal budgets" in error and "2,000" in error and "1,000" in error
    assert not (tmp_path / "report").exists()
    assert call("zoo.compare", compare.main, [*arguments, "--allow-unequal", "--no-figures"]) == 0


def test_steps_really_taken_count(results, tmp_path, capsys):
    file = results / "CartPole-v1" / "ppo" / "seed_0.json"
    file.write_text(file.read_text().replace('"env_steps": 1000,\n', '"env_steps": 1500,\n'))
    assert call("zoo.compare", compare.main, [str(results), "--out", str(tmp_path / "report")]) == 2
    assert "took 1,500 steps of a budget of 1,000" in capsys.readouterr().err


def test_one_label_with_two_budgets_is_refused_even_then(results, tmp_path, capsys):
    write_result(results / "CartPole-v1/ppo/seed_7.json", content("CartPole-v1", "ppo", 7, 1.0, steps=500))
    assert call("zoo.compare", compare.main, [str(results), "--allow-unequal", "--out", str(tmp_path / "report")]) == 2
    assert "runs of ppo have different budgets" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not readable as JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "'spec' is missing"),
        (json.dumps(content("CartPole-v1", "ppo", 9, 1.0) | {"final_returns": []}), "no final returns"),
        (json.dumps(content("CartPole-v1", "ppo", 9, 1.0) | {"final_returns": [1.0, float("nan")]}), "not finite"),
        (json.dumps(content("CartPole-v1", "ppo", 9, 1.0) | {"checkpoints": 3}), "wrong type"),
        (json.dumps(content("CartPole-v1", "ppo", 9, 1.0) | {"checkpoints": []}), "no evaluation returns"),
    ],
)
def test_a_broken_file_is_named_and_left_out(text, why, results, tmp_path, capsys):
    broken = results / "CartPole-v1" / "ppo" / "seed_9.json"
    broken.write_text(text)
    with pytest.raises(BrokenResult, match=why):
        read_run(broken)
    assert call("zoo.compare", compare.main, [str(results), "--out", str(tmp_path / "report"), "--no-figures"]) == 0
    error = capsys.readouterr().err
    assert str(broken) in error and why in error and error.count("\n") == 1
    assert str(broken) in (tmp_path / "report" / "report.md").read_text() and not (tmp_path / "report" / "figures").exists()
    assert row(table(tmp_path / "report", "summary"), env="CartPole-v1", algorithm="ppo")["seeds"] == 3


def test_an_invalid_result_is_never_written(tmp_path):
    file = tmp_path / "seed_0.json"
    with pytest.raises(BrokenResult, match="not finite"):
        write_result(file, content("CartPole-v1", "ppo", 0, float("inf")))
    assert not file.exists()


def in_lines(folder, label):
    """The files of a label as lines of one file, the last first."""
    files = sorted(folder.glob(f"*/{label}/*.json"), reverse=True)
    lines = folder / f"{label}.jsonl"
    lines.write_text("".join(json.dumps(json.loads(file.read_text())) + "\n" for file in files))
    for label_folder in folder.glob(f"*/{label}"):
        shutil.rmtree(label_folder)
    return lines


@pytest.mark.slow
def test_runs_in_lines_of_one_file_are_the_runs_of_a_folder(results, tmp_path):
    """Some labels in this form, some in that: the same report; ``step`` comes before ``step-drop`` either way."""
    write_runs(results, "CartPole-v1", "step", [400, 500])
    write_runs(results, "CartPole-v1", "step-drop", [450, 480])
    runs, order = load([results])[0], [(run.env, run.label) for run in load([results])[0]]
    call("zoo.plot", plot.main, [str(results), "--out", str(tmp_path / "before")])
    assert call("zoo.compare", compare.main, [str(results), "--out", str(tmp_path / "report")]) == 0
    for label in ("grpo", "step", "step-drop"):
        in_lines(results, label)
    again = load([results])[0]
    assert [(run.env, run.label) for run in again] == order
    assert len({run.path for run in again}) == len({run.file for run in again}) == len(runs)
    assert {run.file for run in again} == {run.file for run in runs}
    assert call("zoo.compare", compare.main, [str(results), "--out", str(tmp_path / "report_of_lines")]) == 0
    call("zoo.plot", plot.main, [str(results), "--out", str(tmp_path / "after")])
    for a, b in (("report/report.md", "report_of_lines/report.md"), ("before.png", "after.png")):
        assert (tmp_path / a).read_bytes() == (tmp_path / b).read_bytes()


def test_one_env_of_lines_is_the_folder_of_that_env(results, tmp_path, capsys):
    assert call("zoo.compare", compare.main, [str(results / "CartPole-v1"), "--out", str(tmp_path / "report")]) == 0
    call("zoo.plot", plot.main, [str(results / "CartPole-v1"), "--out", str(tmp_path / "curves")])
    for label in ("grpo", "ppo", "random"):
        in_lines(results, label)
    one = [str(results), "--envs", "CartPole-v1"]
    assert call("zoo.compare", compare.main, [*one, "--out", str(tmp_path / "report_of_lines")]) == 0
    call("zoo.plot", plot.main, [*one, "--out", str(tmp_path / "curves_of_lines")])
    for a, b in (("report/report.md", "report_of_lines/report.md"), ("curves.png", "curves_of_lines.png")):
        assert (tmp_path / a).read_bytes() == (tmp_path / b).read_bytes()
    assert call("zoo.plot", plot.main, [str(results), "--envs", "Acrobt-v1"]) == 2
    assert "Did you mean Acrobot-v1 or" in capsys.readouterr().err


def test_a_broken_line_is_named_and_a_run_may_be_given_once(results, tmp_path, capsys):
    lines = in_lines(results, "ppo")
    whole = lines.read_text()
    lines.write_text(whole[:100] + "\n\n" + whole)
    runs, broken = load([lines])
    assert [(run.env, run.seed) for run in runs] == [(e, s) for e in ("Acrobot-v1", "CartPole-v1") for s in (0, 1, 2)]
    assert len(broken) == 1 and broken[0].startswith(f"{lines}:1: not readable as JSON")
    assert runs[-1].path == lines.with_name("ppo.jsonl:3")
    lines.write_text(whole)
    write_runs(results, "CartPole-v1", "ppo", [300], wall=4.0)
    assert call("zoo.compare", compare.main, [str(results), "--out", str(tmp_path / "report")]) == 2
    error = capsys.readouterr().err
    assert "CartPole-v1 ppo seed 0 is given twice: " in error and f"{lines}:3" in error and "ppo/seed_0.json" in error


def test_one_seed_says_what_is_missing(tmp_path, capsys):
    write_runs(tmp_path / "results", "CartPole-v1", "ppo", [400])
    write_runs(tmp_path / "results", "CartPole-v1", "grpo", [480, 500])
    assert (
        call("zoo.compare", compare.main, [str(tmp_path / "results"), "--out", str(tmp_path / "report"), "--no-figures"]) == 0
    )
    assert "ppo has one seed on CartPole-v1: no standard deviation, interval, t-test" in capsys.readouterr().out
    assert "| CartPole-v1 | ppo | 1 | 400 | 400 | - |" in (tmp_path / "report" / "report.md").read_text()
    assert row(table(tmp_path / "report", "pairwise"), env="CartPole-v1")[["p", "p_holm", "cohens_d"]].isna().all()


def test_aggregates_leave_out_tasks_that_not_all_have(results, tmp_path, capsys):
    write_runs(results, "CartPole-v1", "trpo", [450, 460])
    assert call("zoo.compare", compare.main, [str(results), "--out", str(tmp_path / "report"), "--no-figures"]) == 0
    assert "Acrobot-v1 is left out of aggregates: no runs of trpo." in capsys.readouterr().out
    assert table(tmp_path / "report", "aggregate")["envs"].tolist() == [1, 1, 1]


def test_a_task_that_all_solve_equally_cannot_be_normalised(tmp_path, capsys):
    for label in ("ppo", "grpo"):
        write_runs(tmp_path / "results", "CartPole-v1", label, [500, 500])
    assert call("zoo.compare", compare.main, [str(tmp_path / "results"), "--out", str(tmp_path / "report")]) == 0
    assert "left out of normalised scores" in capsys.readouterr().out
    assert "## Over all tasks" not in (tmp_path / "report" / "report.md").read_text()


def test_references_and_thresholds_can_be_given(results, tmp_path):
    given = tmp_path / "references.yml"
    given.write_text("CartPole-v1: [0, 500]\n")
    out = tmp_path / "report"
    options = ["--references", str(given), "--threshold", "CartPole-v1:300", "--labels", "ppo", "grpo"]
    assert call("zoo.compare", compare.main, [str(results), "--out", str(out), *options]) == 0
    assert row(table(out, "references"), env="CartPole-v1")[["low", "high"]].tolist() == [0, 500]
    assert row(table(out, "threshold"), env="CartPole-v1", algorithm="ppo")["reached"] == 3
    assert (out / "report.md").read_text().startswith("# ppo against grpo\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing"], "does not exist"),
        (["empty"], "holds no result file"),
        (["results", "results/../twice"], "is given twice"),
        (["results", "results"], "is given twice, in results and in results: leave one of them out"),
        (["results", "./empty/../results/CartPole-v1"], "is given twice, in results and in empty/../results/cartpole-v1"),
        (["results", "--labels", "grpp"], "did you mean grpo"),
        (["results", "--baseline", "dqn"], "there are: grpo, ppo"),
        (["results", "--envs", "CartPole-v7"], "did you mean cartpole-v1"),
        (["results", "--threshold", "CartPole-v1=3"], "is not id:value"),
        (["results", "--threshold", "CartPole-v7:3"], "did you mean cartpole-v1"),
        (["results", "--references", "bad.yml"], "must hold lines"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, says, results, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.yml").write_text("CartPole-v1: 500\n")
    write_runs(tmp_path / "twice", "CartPole-v1", "ppo", [1.0])
    assert call("zoo.compare", compare.main, [*arguments, "--out", "report"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and says in error.lower()
    assert not (tmp_path / "report").exists()


@pytest.mark.slow
def test_the_commands_themselves(results, tmp_path):
    """The real commands, each in a process of its own."""

    def command(name, *arguments):
        line = [sys.executable, "-m", f"zoo.{name}", str(results), "--out", str(tmp_path / name), *arguments]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)

    done = command("compare", "--baseline", "ppo")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "compare" / "report.md").exists() and (tmp_path / "compare" / "tables" / "summary.csv").exists()
    done = command("plot")
    assert done.returncode == 0, done.stderr
    assert is_picture(tmp_path / "plot")


def test_the_command_line_itself(tmp_path):
    done = run_command("zoo.compare", str(tmp_path), cwd=ROOT)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "holds no result file" in done.stderr
    done = run_command("zoo.compare", "--nonsense", cwd=ROOT)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


# ---------------------------------------------------------------- plot


def is_picture(stem):
    return Path(f"{stem}.png").read_bytes().startswith(PNG) and "<svg" in Path(f"{stem}.svg").read_text()


def test_curves_of_result_files(results, tmp_path):
    assert call("zoo.plot", plot.main, [str(results), "--out", str(tmp_path / "curves")]) == 0
    assert is_picture(tmp_path / "curves")
    svg = (tmp_path / "curves.svg").read_text()
    assert svg.count("environment steps") == 2 and "grpo, evaluation (3 runs)" in svg and "random" not in svg


@pytest.fixture
def zoo_folder(tmp_path):
    """Two runs as rl_zoo3 leaves them."""
    for number in (1, 2):
        folder = tmp_path / "logs" / "grpo" / f"CartPole-v1_{number}"
        folder.mkdir(parents=True)
        env = Monitor(gym.make("CartPole-v1"), str(folder / "0"))
        env.action_space.seed(number)
        for seed in range(20):
            env.reset(seed=seed)
            while not any(env.step(env.action_space.sample())[2:4]):
                pass
        env.close()
        np.savez(folder / "evaluations.npz", timesteps=[100, 200], results=np.full((2, 5), 10.0 * number), ep_lengths=[])
    return tmp_path / "logs"


def test_curves_of_zoo_folders(zoo_folder, tmp_path, capsys):
    assert call("zoo.plot", plot.main, [str(zoo_folder), "--out", str(tmp_path / "both")]) == 0
    svg = (tmp_path / "both.svg").read_text()
    assert "grpo, evaluation (2 runs)" in svg and "grpo, training (2 runs)" in svg
    one = str(zoo_folder / "grpo" / "CartPole-v1_1")
    assert call("zoo.plot", plot.main, [one, "--kind", "evaluation", "--out", str(tmp_path / "one")]) == 0
    svg = (tmp_path / "one.svg").read_text()
    assert "grpo, evaluation (one run, its episodes)" in svg and "training" not in svg


def zoo_run(folder, steps):
    folder.mkdir(parents=True)
    np.savez(folder / "evaluations.npz", timesteps=steps, results=np.ones((len(steps), 5)), ep_lengths=[])


def test_runs_of_other_lengths_are_drawn_as_far_as_all_go_which_is_said(tmp_path, capsys):
    zoo_run(tmp_path / "logs/grpo/CartPole-v1_1", [100, 1000])
    zoo_run(tmp_path / "logs/grpo/CartPole-v1_2", [100, 950])
    assert call("zoo.plot", plot.main, [str(tmp_path / "logs"), "--out", str(tmp_path / "near")]) == 0
    assert capsys.readouterr().err == ""
    zoo_run(tmp_path / "logs/grpo/CartPole-v1_3", [100, 200])
    assert call("zoo.plot", plot.main, [str(tmp_path / "logs"), "--out", str(tmp_path / "far")]) == 0
    error = capsys.readouterr().err
    assert "CartPole-v1: grpo, evaluation: drawn up to step 200 of 1,000" in error and "CartPole-v1_3 ends" in error
    zoo_run(tmp_path / "logs/grpo/CartPole-v1_4", [300, 400])
    assert call("zoo.plot", plot.main, [str(tmp_path / "logs"), "--out", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert "CartPole-v1_4 begins at 300" in error and "CartPole-v1_3 ends at 200" in error and error.count("\n") == 1


def test_curves_of_tensorboard(tmp_path, capsys):
    for number in (1, 2):
        with SummaryWriter(str(tmp_path / "tb" / "CartPole-v1" / f"GRPO_{number}")) as writer:
            for step in (10, 20, 30):
                writer.add_scalar("rollout/ep_rew_mean", step * number, step)
    assert call("zoo.plot", plot.main, ["--tensorboard", str(tmp_path / "tb"), "--out", str(tmp_path / "tb.curves")]) == 0
    assert "GRPO, training (2 runs)" in (tmp_path / "tb.curves.svg").read_text()
    assert call("zoo.plot", plot.main, ["--tensorboard", str(tmp_path / "tb"), "--tag", "rollout/ep_rew"]) == 2
    assert "did you mean rollout/ep_rew_mean" in capsys.readouterr().err.lower()


@pytest.mark.parametrize(("folders", "says"), [([], "nothing to draw"), (["missing"], "does not exist"), (["."], "holds no")])
def test_nothing_to_draw(folders, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call("zoo.plot", plot.main, folders) == 2
    assert says in capsys.readouterr().err


def test_a_label_keeps_its_colour_when_others_join():
    labels = ["grpo-state", "ppo-tuned", "grpo", "ppo"]
    alone = figures.styles(labels)
    more = figures.styles([*labels, "a2c", "trpo", "sac", "td3", "random", "x", "y", "z"])
    assert {label: more[label] for label in labels} == alone
    assert figures.styles(["z", "ppo", "grpo"])["grpo"] == figures.styles(["grpo"])["grpo"]
    looks = [(look["color"], look["linestyle"]) for look in more.values()]
    assert len(set(looks)) == len(looks)  # told apart by colour, then by line style


def test_processor_time_is_drawn_beside_wall_time():
    cost = pd.DataFrame(
        {"env": "E", "algorithm": ["grpo", "ppo"], "processor": "p", "train_wall_s": [2.0, 5.0], "train_cpu_s": [1.5, 4.0]}
    )
    figure = figures.times(cost, ["grpo", "ppo"])
    (axes,) = figure.axes
    assert sorted(bar.get_width() for bar in axes.patches) == [1.5, 2.0, 4.0, 5.0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["grpo", "ppo"]
