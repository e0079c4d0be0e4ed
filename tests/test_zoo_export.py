"""``zoo.export`` on runs of ``zoo.train``, and the model card beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import GRPO
from sb_grpo.export import run_exported
from sb_grpo.normalization import with_statistics
from sb_grpo.save_util import STATISTICS, read_entry
from tests.test_zoo import zoo_train
from zoo import export
from zoo.common.command_line import run

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose observations VecNormalize normalises, with a best model that is not its last."""
    logs = tmp_path_factory.mktemp("logs")
    small = ["-n", "128", "--eval-freq", "32", "-params", "n_steps:32", "n_envs:2", "n_epochs:1", "normalize:True"]
    assert zoo_train(logs, "--env", "Pendulum-v1", *small).returncode == 0
    return logs / "grpo" / "Pendulum-v1_1"


def export_here(*arguments: object) -> int:
    return run("zoo.export", export.main, list(map(str, arguments)))


@pytest.mark.parametrize("best", [[], ["--load-best"]], ids=["last", "best"])
def test_a_run_is_exported_with_the_statistics_of_its_weights(folder, best, tmp_path, capsys):
    out = tmp_path / "policy.onnx"
    assert export_here(folder, *best, "--out", out) == 0
    assert "Largest difference to predict(deterministic=True) over 1,000 sampled observations:" in capsys.readouterr().out
    settings = folder / "Pendulum-v1"
    model = GRPO.load(folder / ("best_model.zip" if best else "Pendulum-v1.zip"))
    zipped = folder / ("best_model.zip" if best else "Pendulum-v1.zip")
    statistics = with_statistics(make_vec_env("Pendulum-v1"), read_entry(zipped, STATISTICS), frozen=True)
    assert (settings / "config.yml").exists() and isinstance(statistics, VecNormalize)
    obs = np.array([[0.6, 0.8, -3.0], [1.0, 0.0, 5.0]], np.float32)
    expected, _ = model.predict(statistics.normalize_obs(obs), deterministic=True)
    assert run_exported(out, [obs])[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_statistics_of_single_frames_are_refused_where_the_policy_sees_several(tmp_path, capsys):
    small = [
        "-n",
        "64",
        "--eval-freq",
        "-1",
        "-params",
        "n_steps:32",
        "n_envs:2",
        "n_epochs:1",
        "normalize:True",
        "frame_stack:2",
    ]
    assert zoo_train(tmp_path, "--env", "CartPole-v1", *small).returncode == 0
    stacked, out = tmp_path / "grpo" / "CartPole-v1_1", tmp_path / "policy.onnx"
    pickled = stacked / "CartPole-v1" / "vecnormalize.pkl"
    for options in ([], ["--vec-normalize", pickled]):
        assert export_here(stacked, "--out", out, *options) == 2
        error = capsys.readouterr().err
        assert "shape (4,)" in error and "frame_stack, has statistics of single frames" in error and error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.zip"], "nowhere.zip: there is no such file."),
        (["."], "is no run folder: it holds 0 folders with a config.yml"),
        (["RUN", "--out", "policy.h5"], "policy.h5: the name must end in .onnx or .pt2."),
        (["BROKEN"], "as a GRPO model"),
        (["RUN", "--vec-normalize", "BROKEN"], "cannot read"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder, arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"no zip")
    assert export_here(*({"RUN": folder, "BROKEN": broken}.get(a, a) for a in arguments)) == 2
    error = capsys.readouterr().err
    assert says in error and error.startswith("zoo.export: ") and error.count("\n") == 1


def test_a_finished_run_has_a_model_card(folder):
    _, head, text = (folder / "README.md").read_text().split("---\n", 2)
    metrics = json.loads((folder / "metrics.json").read_text())
    (result,) = yaml.safe_load(head)["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == f"{metrics['mean_return']:.2f} +/- {metrics['std_return']:.2f}"
    assert result["dataset"]["name"] == "Pendulum-v1" and "grpo" in yaml.safe_load(head)["tags"]
    for part in (
        "# GRPO on Pendulum-v1",
        "![learning curve](learning_curve.png)",
        "python -m zoo.train --log-folder",
        "n_steps",
        "torch ",
    ):
        assert part in text
    assert f"| env steps | {metrics['env_steps']} |" in text and "stopped" not in text
    assert "| settings |" not in text and "tensorboard_log" not in metrics["settings"]  # many, and a path of this machine
