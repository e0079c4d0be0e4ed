"""Saved models against each other: common seeds, variants, pairs, stability and fairness; also by way of ``zoo.compare``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO, evaluate_paired
from sb_grpo.normalization import with_statistics
from sb_grpo.save_util import STATISTICS, read_entry
from tests.test_zoo_compare import write_runs
from zoo import compare, evaluate
from zoo.benchmarking.results import find_results, read_all
from zoo.common.command_line import run
from zoo.comparing.statistics import area_under_curve, drop_from_best, gini, worst_over_best
from zoo.evaluate import variants_of
from zoo.train import main as train

SMALL = ["--env", "Pendulum-v1", "-n", "256", "--eval-freq", "128", "-tb", "", "--verbose", "0"]
SETTINGS = ["-params", "n_steps:32", "n_envs:2", "n_epochs:1", "normalize:True"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs each of GRPO and PPO, seeds 0 and 1, with VecNormalize."""
    folder = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [])
        for algo in ("grpo", "ppo"):
            for seed in ("0", "1"):
                arguments = [*SMALL, "--algo", algo, "--seed", seed, "-f", str(folder), *SETTINGS]
                assert run("zoo.train", train, arguments) == 0
    return folder


def evaluate_here(*arguments: object) -> int:
    return run("zoo.evaluate", evaluate.main, list(map(str, arguments)))


def table(out: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(out / "tables" / f"{name}.csv")


@pytest.mark.slow
def test_models_meet_the_same_starts_with_their_own_statistics(runs, tmp_path):
    """The numbers are those of evaluate_paired with each model's own VecNormalize."""
    first, second = runs / "grpo" / "Pendulum-v1_1", runs / "grpo" / "Pendulum-v1_2"
    assert evaluate_here(first, second, "--episodes", 6, "--first-seed", 77, "--out", tmp_path) == 0
    row = table(tmp_path, "paired").iloc[0]
    zips = [folder / "Pendulum-v1.zip" for folder in (first, second)]
    models = [GRPO.load(file) for file in zips]
    a, b = (with_statistics(make_vec_env("Pendulum-v1"), read_entry(file, STATISTICS), frozen=True) for file in zips)
    expected = evaluate_paired(models[1], models[0], "Pendulum-v1", range(77, 83), normalize=(b, a))
    assert row["difference"] == pytest.approx(expected.difference, rel=1e-4)
    assert (row["difference_low"], row["difference_high"]) == pytest.approx((expected.low, expected.high), rel=1e-4)
    assert row["p"] == pytest.approx(expected.p, rel=1e-3) and row["pairs"] == 6


def test_untrusted_models_are_compared_without_unpickling(runs, tmp_path, monkeypatch, capsys):
    both = [runs / "grpo" / f"Pendulum-v1_{number}" for number in (1, 2)]
    assert evaluate_here(*both, "--episodes", 4, "--out", tmp_path / "trusted") == 0

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("loads", "load"):
        monkeypatch.setattr(f"cloudpickle.{name}", refuse)
        monkeypatch.setattr(f"pickle.{name}", refuse)
    capsys.readouterr()
    assert evaluate_here(*both, "--episodes", 4, "--out", tmp_path, "--untrusted") == 0
    assert table(tmp_path, "returns").equals(table(tmp_path / "trusted", "returns"))
    assert evaluate_here(runs / "ppo" / "Pendulum-v1_1", "--out", tmp_path, "--untrusted") == 2
    assert "models of ppo cannot be read without unpickling" in capsys.readouterr().err


def test_variants_fairness_and_stability_are_reported(runs, tmp_path, capsys):
    places = [runs / "grpo" / "Pendulum-v1_1", f"best={runs / 'ppo' / 'Pendulum-v1_1' / 'best_model.zip'}"]
    assert evaluate_here(*places, "--env-kwargs-grid", "g=5.0,10.0", "--episodes", 4, "--out", tmp_path) == 0
    message, report = capsys.readouterr().out, (tmp_path / "report.md").read_text()
    assert message.count("mean return") == 4 and "Pendulum-v1[g=5.0]" in message
    assert set(table(tmp_path, "summary")["env"]) == {"Pendulum-v1[g=5.0]", "Pendulum-v1[g=10.0]"}
    assert list(table(tmp_path, "stability")["evaluations"]) == [2, 2]
    assert len(table(tmp_path, "returns")) == 2 * 2 * 4
    assert "label best" in report and (tmp_path / "figures" / "returns.png").stat().st_size > 5_000
    of_runs, broken = read_all(find_results([tmp_path / "results"]))
    assert not broken and {(r.env, r.label) for r in of_runs} == {
        (f"Pendulum-v1[g={g}]", label) for g in ("5.0", "10.0") for label in ("grpo", "best")
    }
    assert all(r.parameters > 0 and r.n_updates > 0 for r in of_runs)


def test_the_random_reference_and_the_seeds_are_the_same_every_time(runs, tmp_path):
    for name in ("a", "b"):
        assert evaluate_here(runs / "ppo" / "Pendulum-v1_1", "--episodes", 3, "--out", tmp_path / name) == 0
    assert (tmp_path / "a/tables/summary.csv").read_bytes() == (tmp_path / "b/tables/summary.csv").read_bytes()


def test_compare_takes_folders_of_runs(runs, tmp_path, capsys):
    arguments = [str(runs / "grpo"), str(runs / "ppo"), "--episodes", "3", "--baseline", "ppo", "--out", str(tmp_path)]
    assert run("zoo.compare", compare.main, arguments) == 0
    pairs = table(tmp_path, "paired").iloc[0]
    assert (pairs["algorithm"], pairs["other"], pairs["pairs"]) == ("grpo", "ppo", 2)
    assert "rest on few runs (1 on 2 of ppo)" in capsys.readouterr().out
    assert {"drop_from_best", "area_under_curve"} <= set(table(tmp_path, "stability"))


def test_compare_takes_zips_of_models(runs, tmp_path, capsys):
    zips = [f"{name}={next((runs / name).glob('*_1/Pendulum-v1.zip'))}" for name in ("grpo", "ppo")]
    zips[1] = zips[1].removeprefix("ppo=")
    assert run("zoo.compare", compare.main, [*zips, "--episodes", "3", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "" and len(table(tmp_path, "pairwise")) == 1


def test_models_of_one_label_and_seed_are_told_apart(runs, tmp_path, capsys):
    shutil.copytree(runs / "grpo" / "Pendulum-v1_1", tmp_path / "grpo" / "Pendulum-v1_7")
    places = [runs / "grpo" / "Pendulum-v1_1", tmp_path / "grpo" / "Pendulum-v1_7"]
    assert evaluate_here(*places, "--episodes", 2, "--out", tmp_path / "out") == 0
    assert {file.stem for file in (tmp_path / "out/results").iterdir()} == {"grpo-Pendulum-v1_1", "grpo-Pendulum-v1_7"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere: there is no such run folder."),
        (["nowhere.zip"], "nowhere.zip: there is no such file."),
        (["RUN", "--episodes", "1"], "--episodes 1 must be at least 2."),
        (["RUN", "--env-kwargs-grid", "g"], "must be name=value,value"),
        (["RUN", "--env-kwargs-grid", "gravity=5"], "cannot build Pendulum-v1"),
        (["RUN", "--env", "CartPole-v1"], "cannot build CartPole-v1: VecNormalize"),
        (["RUN", "RUN"], "is given twice."),
        (["ALONE"], "no run stands beside it, so say --algo and --env."),
        (["ALONE", "--algo", "gppo", "--env", "CartPole-v1"], "unknown algorithm 'gppo'"),
        (["ALONE", "--algo", "grpo", "--env", "CartPole-v1"], "is broken, or no zip"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(runs, arguments, says, tmp_path, capsys):
    (tmp_path / "alone.zip").write_bytes(b"no zip")
    places = {"RUN": runs / "grpo" / "Pendulum-v1_1", "ALONE": tmp_path / "alone.zip"}
    assert evaluate_here(*(places.get(a, a) for a in arguments), "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_a_grid_names_its_variants():
    made = variants_of("A-v0", {"g": [1, 2], "w": ["a"]})
    assert [(v.name, v.kwargs) for v in made] == [("A-v0[g=1,w=a]", {"g": 1, "w": "a"}), ("A-v0[g=2,w=a]", {"g": 2, "w": "a"})]
    assert variants_of("A-v0", {}) == [("A-v0", {})]


def test_stability_of_known_curves():
    curve, steps = np.array([0.0, 10.0, 4.0]), np.array([0, 100, 300])
    assert drop_from_best(curve) == 6.0 and drop_from_best(curve[:2]) == 0.0
    assert area_under_curve(curve, steps) == (5 * 100 + 7 * 200) / 300
    assert area_under_curve(curve[:1], steps[:1]) == 0.0


def test_fairness_of_known_scores():
    assert gini(np.array([1.0, 1.0, 1.0])) == 0.0
    assert gini(np.array([1.0, 0.0, 0.0, 0.0])) == 0.75  # (n - 1) / n: one has everything
    assert gini(np.array([1.0, 3.0])) == 0.25 and gini(np.array([10.0, 30.0])) == 0.25  # no unit
    assert gini(np.array([-5.0, 1.0])) == gini(np.array([0.0, 1.0]))
    assert np.isnan(gini(np.array([0.0, -1.0]))) and np.isnan(worst_over_best(np.array([0.0, 0.0])))
    assert worst_over_best(np.array([[0.5, 1.0], [2.0, 2.0]])).tolist() == [0.5, 1.0]


def test_fairness_over_the_tasks_of_a_benchmark(tmp_path):
    """Known scores: of ``even`` 0.5 on both tasks, of ``odd`` 1 and 0.2."""
    for env, even, odd in (("CartPole-v1", 50, 100), ("Acrobot-v1", 50, 20)):
        write_runs(tmp_path / "r", env, "even", [even] * 5)
        write_runs(tmp_path / "r", env, "odd", [odd] * 5)
        write_runs(tmp_path / "r", env, "random", [0] * 5, algo="random")
    references = tmp_path / "references.yml"
    references.write_text("CartPole-v1: [0, 100]\nAcrobot-v1: [0, 100]\n")
    assert (
        run(
            "zoo.compare", compare.main, [str(tmp_path / "r"), "--references", str(references), "--out", str(tmp_path / "out")]
        )
        == 0
    )
    found = table(tmp_path / "out", "fairness").set_index("algorithm")
    assert found.loc["even", ["worst", "best", "worst_over_best", "gini"]].tolist() == [0.5, 0.5, 1.0, 0.0]
    assert found.loc["odd", "worst_task"] == "Acrobot-v1"
    assert found.loc["odd", ["worst_over_best", "gini"]].tolist() == pytest.approx([0.2, 1 / 3], rel=1e-5)
    assert "rest on few runs" not in (tmp_path / "out" / "report.md").read_text()


def test_a_run_without_evaluations_still_has_a_record(runs, tmp_path):
    folder = tmp_path / "grpo" / "Pendulum-v1_1"
    shutil.copytree(runs / "grpo" / "Pendulum-v1_1", folder)
    (folder / "evaluations.npz").unlink()
    assert evaluate_here(folder, "--episodes", 2, "--out", tmp_path / "out") == 0
    record = json.loads((tmp_path / "out" / "results" / "grpo.jsonl").read_text())
    assert len(record["checkpoints"]) == 1 and not (tmp_path / "out/tables/stability.csv").exists()
    assert gym.spec(record["spec"]["env"]).id == "Pendulum-v1"


@pytest.mark.parametrize(("name", "content"), [("evaluations.npz", b""), ("metrics.json", b'{"a": ')])
def test_a_damaged_file_costs_its_own_figures_alone(runs, tmp_path, capsys, name, content):
    folder = tmp_path / "grpo" / "Pendulum-v1_1"
    shutil.copytree(runs / "grpo" / "Pendulum-v1_1", folder)
    (folder / name).write_bytes(content)
    assert evaluate_here(folder, "--episodes", 2, "--out", tmp_path / "out") == 0
    assert capsys.readouterr().err.count(f"{folder / name} is left out: it cannot be read") == 1
    assert (tmp_path / "out" / "results" / "grpo.jsonl").exists()


def test_a_path_may_hold_an_equals_sign(runs, tmp_path, capsys):
    folder = tmp_path / "grpo-learning_rate=0.001" / "Pendulum-v1_1"
    shutil.copytree(runs / "grpo" / "Pendulum-v1_1", folder)
    assert evaluate_here(folder, f"mine={runs / 'ppo' / 'Pendulum-v1_1'}", "--episodes", 2, "--out", tmp_path / "out") == 0
    assert {file.stem for file in (tmp_path / "out" / "results").glob("*.jsonl")} == {"grpo", "mine"}
    assert evaluate_here(tmp_path / "rate=0.1" / "none", "--episodes", 2, "--out", tmp_path / "other") == 2
    assert f"{tmp_path / 'rate=0.1' / 'none'}: there is no such run folder." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["metrics.json", "evaluations.npz", "Pendulum-v1.zip", "Pendulum-v1/args.yml"])
def test_a_damaged_run_is_left_out_of_a_comparison(runs, tmp_path, capsys, name):
    """Under its own label; its figures would not compare with those of the whole one."""
    for number in (1, 2):
        shutil.copytree(runs / "grpo" / f"Pendulum-v1_{number}", tmp_path / "grpo" / f"Pendulum-v1_{number}")
    (tmp_path / "grpo" / "Pendulum-v1_2" / name).write_bytes(b"a: [" if name.endswith("yml") else b'{"planned_steps": "many"}')
    arguments = [str(tmp_path / "grpo"), "--episodes", "2", "--no-figures", "--out", str(tmp_path / "out")]
    assert run("zoo.compare", compare.main, arguments) == 0
    assert f"Pendulum-v1_2/{name}" in capsys.readouterr().err
    assert list(table(tmp_path / "out", "runs")["seed"]) == [0]
