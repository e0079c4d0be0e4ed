"""The command line, run for real on tiny settings."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from sb_grpo import GRPO
from zoo.experiment import build

ROOT = Path(__file__).parents[1]


def zoo_train(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "zoo.train", "--log-folder", str(folder), "--tensorboard-log", str(folder / "tb")]
    return subprocess.run([*command, "--num-threads", "1", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("options", [[], ["--vec-env", "subproc"]], ids=["dummy", "subproc"])
def test_a_run_leaves_model_settings_curve_and_metrics(options, tmp_path):
    small = ["--hyperparams", "n_steps:64", "n_envs:2", "normalize:True", "n_epochs:1"]
    result = zoo_train(tmp_path, "--env", "CartPole-v1", "-n", "300", "--eval-freq", "150", "--seed", "3", *small, *options)
    assert result.returncode == 0, result.stderr
    assert "Mean return over 20 episodes" in result.stdout
    run = tmp_path / "grpo" / "CartPole-v1_1"
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["env_steps"] == 384 and metrics["gradient_steps"] > 0 and len(metrics["final_returns"]) == 20
    assert metrics["seed"] == 3 and "torch" in metrics["versions"] and metrics["wall_time_s"] > 0
    assert np.load(run / "evaluations.npz")["timesteps"].tolist() == [150, 300]
    assert (run / "CartPole-v1" / "vecnormalize.pkl").exists() and (run / "best_model.zip").exists()
    assert (run / "learning_curve.png").stat().st_size > 10_000
    assert GRPO.load(run / "CartPole-v1.zip").n_steps == 64
    assert list((tmp_path / "tb" / "CartPole-v1").glob("GRPO_1/events*"))


def test_other_algorithms_take_the_same_path(tmp_path):
    small = ["--hyperparams", "n_steps:32", "n_envs:2", "batch_size:32"]
    result = zoo_train(tmp_path, "--algo", "ppo", "--env", "CartPole-v1", "-n", "64", "--eval-freq", "-1", *small)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "ppo" / "CartPole-v1_1" / "metrics.json").read_text())["algo"] == "ppo"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--env", "CartPole-v7"], "CartPole-v7 not found"),
        (["--env", "CartPole-v1", "--hyperparams", "group_size:0"], "group_size=0 is too small"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, says, tmp_path):
    result = zoo_train(tmp_path, *arguments)
    assert result.returncode == 2 and says in result.stderr and "Traceback" not in result.stderr


def test_every_entry_of_the_yaml_builds_a_model(tmp_path):
    entries = yaml.safe_load((ROOT / "zoo/hyperparams/grpo.yml").read_text())
    for env_id in entries:
        if env_id != "default":
            model, _ = build(env_id, 0, str(tmp_path)).setup_experiment()
            assert isinstance(model, GRPO)
    model, _ = build("Acrobot-v1", 0, str(tmp_path)).setup_experiment()  # no entry of its own: "default"
    assert model.n_envs == entries["default"]["n_envs"]
