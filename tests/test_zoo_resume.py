"""``zoo.train --resume``: a run that was stopped goes on in its own folder, and is then the run that nobody stopped."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from stable_baselines3.common.monitor import load_results

from sb_grpo import GRPO
from tests.helpers import run_command
from zoo.common.command_line import run
from zoo.common.folders import alone_in
from zoo.dashboards.runs import NO_LOG, read_runs
from zoo.train import main
from zoo.training import experiment, resuming
from zoo.training.resuming import FILE, RunSaves, take_up_run
from zoo.training.run_files import read_values, write_values

ROOT = Path(__file__).parents[1]
ARGUMENTS = ["--env", "Pendulum-v1", "--num-threads", "1", "--eval-freq", "800", "--n-eval-envs", "2", "--eval-episodes", "2"]
# Episodes of 200 steps that all end together: every rollout ends at a group boundary.
SETTINGS = ["-n", "4000", "--seed", "3", "-params", "n_steps:None", "n_groups:1", "group_size:4", "n_envs:4", "normalize:True",
            "n_epochs:1", "policy_kwargs:dict(net_arch=[8])"]  # fmt: skip


def train(*arguments: str) -> int:
    return run("zoo.train", main, ["--verbose", "0", *arguments])


def stopped_after(calls: int):
    """Ctrl-C in the middle of a rollout."""
    before = RunSaves._on_step

    def step(self: RunSaves) -> bool:
        if self.n_calls == calls:
            raise KeyboardInterrupt
        return before(self)

    return step


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One that nobody stopped, and one that was stopped in its third rollout and resumed."""
    folder = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [])
        patch.setattr(resuming, "KEEP_EVERY", 0.0)
        assert train(*ARGUMENTS, "-f", str(folder / "whole"), *SETTINGS) == 0
        patch.setattr(RunSaves, "_on_step", stopped_after(500))
        assert train(*ARGUMENTS, "-f", str(folder / "cut"), *SETTINGS) == 0
        patch.undo()
        patch.setattr(sys, "argv", [])
        cut = folder / "cut" / "grpo" / "Pendulum-v1_1"
        assert json.loads((cut / "metrics.json").read_text())["env_steps"] == 2000 and (cut / "Pendulum-v1" / FILE).exists()
        assert train("--resume", str(cut)) == 0
    return folder / "whole" / "grpo" / "Pendulum-v1_1", cut


@pytest.mark.slow
def test_the_resumed_run_is_the_run_that_nobody_stopped(runs):
    whole, cut = (GRPO.load(folder / "Pendulum-v1.zip", device="cpu") for folder in runs)
    for name, weight in whole.policy.state_dict().items():
        assert th.equal(weight, cut.policy.state_dict()[name]), name
    metrics = [json.loads((folder / "metrics.json").read_text()) for folder in runs]
    for name in ("env_steps", "planned_steps", "gradient_steps", "final_returns"):
        assert metrics[0][name] == metrics[1][name], name
    evaluations = [np.load(folder / "evaluations.npz") for folder in runs]
    for name in ("timesteps", "results", "ep_lengths"):
        assert np.array_equal(evaluations[0][name], evaluations[1][name]), name


def test_its_episodes_are_those_of_one_run(runs):
    """In two sets of monitor files; what came after the save is there once."""
    whole, cut = (load_results(str(folder)) for folder in runs)
    assert sorted(whole.r) == sorted(cut.r)
    assert len(list(runs[1].glob("before_*.monitor.csv"))) == len(list(runs[1].glob("[0-9].monitor.csv"))) == 4


def test_it_stays_in_its_folders(runs):
    cut = runs[1]
    assert [path.name for path in cut.parent.iterdir()] == ["Pendulum-v1_1"]
    tensorboard = cut.parents[1] / "tensorboard" / "Pendulum-v1"
    assert [path.name for path in tensorboard.iterdir()] == ["GRPO_1"] and len(list(tensorboard.glob("*/events*"))) == 2


@pytest.mark.parametrize("of_run, given, found", [("0", [], 0), ("1", [], 1), ("0", ["--verbose", "2"], 2)])
def test_it_is_as_silent_as_it_was(of_run, given, found, tmp_path):
    settings = tmp_path / "Pendulum-v1_1" / "Pendulum-v1"
    settings.mkdir(parents=True)
    write_values(settings / "config.yml", {"n_envs": 4})
    write_values(settings / "args.yml", {"verbose": int(of_run), "progress": of_run == "0", "log_folder": "l"})
    (settings / FILE).touch()
    parser = ArgumentParser()
    for name, default in (("resume", None), ("verbose", 1), ("log_folder", "logs"), ("tensorboard_log", "")):
        parser.add_argument(f"--{name}", default=default, type=str if default is None else type(default))
    for name in ("progress", "untrusted"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--gym-packages", nargs="+", default=[])
    options = parser.parse_args(["--resume", str(settings.parent), *given])
    take_up_run(options, parser, not_ours=())
    assert options.verbose == found and options.progress == (of_run == "0") and options.resume == str(settings.parent)


def test_what_cannot_be_resumed_is_named(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    for arguments, expected in (
        (["--resume", str(tmp_path)], "is no run folder"),
        (["--resume", str(runs[1])], "deletes it when it has come to its end"),
        (["--resume", str(runs[1]), "--seed", "4"], "leave --seed out"),
        (["--resume", str(runs[1]), "-n", "99"], "leave --n-timesteps out"),
    ):
        assert train(*arguments) == 2
        assert expected in capsys.readouterr().err
    broken = runs[1] / "Pendulum-v1" / FILE
    broken.write_bytes(b"PK")
    assert train("--resume", str(runs[1])) == 2
    expected = capsys.readouterr().err
    assert "is broken, or no zip" in expected and f"-i {runs[1]}/Pendulum-v1.zip --continue -n STEPS" in expected
    for name, content in (("config.yml", ""), ("args.yml", "a: [")):
        damaged = runs[1] / "Pendulum-v1" / name
        before = damaged.read_text()
        damaged.write_text(content)
        assert train("--resume", str(runs[1])) == 2
        expected = capsys.readouterr().err
        assert f"Pendulum-v1/{name}" in expected and "Put the file back" in expected and "--continue -n STEPS" in expected
        damaged.write_text(before)
    broken.unlink()
    killed_at_once = tmp_path / "Pendulum-v1_2"
    shutil.copytree(runs[1] / "Pendulum-v1", killed_at_once / "Pendulum-v1")
    for model, expected in ((None, "start it anew"), (killed_at_once / "rl_model_64_steps.zip", "-i {} --continue -n STEPS")):
        if model is not None:
            model.write_bytes(b"PK")
        assert train("--resume", str(killed_at_once)) == 2
        assert expected.format(model) in capsys.readouterr().err


# ---------------------------------------------------------------- nothing learnt is lost, and nothing of others comes in

SHORT = ["--num-threads", "1", "--eval-freq", "-1", "--eval-episodes", "2", "-n", "256"]
SMALL = ["n_envs:2", "n_steps:32", "policy_kwargs:dict(net_arch=[8])"]


class BadClose(CartPoleEnv):
    """Its simulator has gone before it is closed."""

    def close(self) -> None:
        raise RuntimeError("Not connected to physics server.")


def test_an_env_that_cannot_be_closed_takes_nothing_away(tmp_path, capsys):
    gym.register("BadClose-v0", entry_point=BadClose, max_episode_steps=50)
    assert train("--env", "BadClose-v0", "-f", str(tmp_path), *SHORT, "-params", *SMALL) == 0
    folder = tmp_path / "grpo" / "BadClose-v0_1"
    assert GRPO.load(folder / "BadClose-v0.zip", device="cpu").num_timesteps == 256
    assert len(json.loads((folder / "metrics.json").read_text())["final_returns"]) == 20
    assert "The env could not be closed: RuntimeError: Not connected" in capsys.readouterr().err


def test_a_model_that_cannot_be_written_leaves_the_run_to_go_on_from(tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "argv", [])
    with monkeypatch.context() as patch:
        patch.setattr(experiment, "save", full)
        assert train("--env", "CartPole-v1", "-f", str(tmp_path), *SHORT, "-params", *SMALL) == 1
    folder = tmp_path / "grpo" / "CartPole-v1_1"
    assert not (folder / "CartPole-v1.zip").exists()
    assert f"The model could not be saved. Its run can go on: --resume {folder}" in capsys.readouterr().err
    assert train("--resume", str(folder)) == 0
    assert GRPO.load(folder / "CartPole-v1.zip", device="cpu").num_timesteps == 256
    assert (folder / "metrics.json").exists() and not (folder / "CartPole-v1" / FILE).exists()


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A run by a file of one's own, with settings unlike those of the entry; its folder and the file."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.yml"
    own.write_text("CartPole-v1: {policy: MlpPolicy, n_timesteps: 256, n_envs: 2, n_steps: 32, gamma: 0.9}\n")
    with monkeypatch.context() as patch:
        patch.setattr(RunSaves, "_on_step", stopped_after(100))
        assert train("--env", "CartPole-v1", "-f", "logs", *SHORT[:-2], "-conf", "own.yml") == 0
    return tmp_path / "logs" / "grpo" / "CartPole-v1_1", own


@pytest.mark.parametrize("change", ["edited", "removed", "elsewhere"])
def test_a_resumed_run_has_its_own_settings_whatever_became_of_the_file(stopped, change, tmp_path, monkeypatch):
    folder, own = stopped
    if change == "edited":
        limit = "[{gymnasium.wrappers.TimeLimit: {max_episode_steps: 5}}]"
        own.write_text(f"CartPole-v1: {{policy: MlpPolicy, n_envs: 2, ent_coef: 0.5, env_wrapper: {limit}}}\n")
    elif change == "removed":
        own.unlink()
    else:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
    assert train("--resume", str(folder)) == 0
    model = GRPO.load(folder / "CartPole-v1.zip", device="cpu")
    assert model.num_timesteps == 256 and (model.gamma, model.ent_coef) == (0.9, 0.0)
    assert load_results(str(folder))["l"].max() > 5
    assert len(list((tmp_path / "logs" / "tensorboard" / "CartPole-v1").iterdir())) == 1
    assert change != "elsewhere" or not list(Path.cwd().iterdir())


def test_a_run_that_continues_has_the_settings_of_the_run_before(stopped):
    folder, _ = stopped
    before = GRPO.load(folder / "CartPole-v1.zip", device="cpu")
    went_on = ["-i", str(folder / "CartPole-v1.zip"), "--continue", "-n", "384"]
    assert train("--env", "CartPole-v1", "-f", "logs", *SHORT[:-2], *went_on, "-params", "ent_coef:0.01") == 0
    after = GRPO.load("logs/grpo/CartPole-v1_2/CartPole-v1.zip", device="cpu")
    changed = {name for name, value in after.settings.items() if str(value) != str(before.settings[name])}
    assert changed - {"seed", "tensorboard_log"} == {"ent_coef"} and after.num_timesteps >= 384
    assert (after.lr_schedule(0.5), after.gamma) == (before.lr_schedule(0.5), 0.9)


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """wandb without a network, in a working directory of the test's own."""
    pytest.importorskip("wandb")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("WANDB_DIR", str(tmp_path / "logs"))):
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_a_tracked_run_writes_below_the_log_folder_and_goes_on_in_its_run(offline, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RunSaves, "_on_step", stopped_after(100))
        assert train("--env", "CartPole-v1", "-f", "logs", *SHORT, "--track", "-params", *SMALL) == 0
    folder = tmp_path / "logs" / "grpo" / "CartPole-v1_1"
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    command = [sys.executable, "-m", "zoo.train", "--resume", str(folder), "--verbose", "1"]  # wandb reads ids once a process
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    (events,) = (tmp_path / "logs" / "runs").glob("CartPole-v1__grpo__*/CartPole-v1/GRPO_1")
    assert f"tensorboard --logdir {events.parent}" in result.stdout and len(list(events.iterdir())) == 2, result.stderr
    begun = {path.name.rpartition("-")[2] for path in (tmp_path / "logs" / "wandb").glob("offline-run-*")}
    assert begun == {read_values(folder / "CartPole-v1" / "args.yml")["wandb_run"]["id"]}
    assert NO_LOG not in read_runs(folder, None)["runs"][0]["notes"]


def test_a_project_that_wandb_refuses_is_not_about_the_key(offline, capsys):
    assert train("--env", "CartPole-v1", "-f", "logs", *SHORT, "--track", "--wandb-project-name", "p r/x") == 2
    error = capsys.readouterr().err
    assert "--track: Invalid project name" in error and "wandb login" not in error and "offline" not in error


def test_a_run_that_is_going_on_is_not_resumed_beside_itself(stopped, capsys):
    folder, _ = stopped
    with alone_in(folder / "CartPole-v1", ""):
        held = run_command("zoo.train", "--resume", str(folder), cwd=ROOT)
    assert held.returncode == 2
    assert held.stderr.strip().endswith("this run is going on in another process. Stop that one first.")
    assert train("--resume", str(folder)) == 0


def test_episodes_that_a_limit_outside_monitor_ends_are_in_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    limit = "env_wrapper:[{'gymnasium.wrappers.TimeLimit':{'max_episode_steps':8}}]"
    assert train("--env", "CartPole-v1", "-f", str(tmp_path), *SHORT, "-params", *SMALL, limit) == 0
    episodes = load_results(str(tmp_path / "grpo" / "CartPole-v1_1"))
    assert (episodes["l"] <= 8).all() and episodes["l"].sum() > 256 - 2 * 8


def test_a_resume_that_is_killed_before_it_saves_loses_no_episode(stopped):
    folder, _ = stopped
    saved, new = folder / "CartPole-v1" / FILE, folder / "0.monitor.csv"
    resuming.set_monitors_aside(folder, saved, "cpu")
    aside = {path.name: path.read_bytes() for path in folder.glob("before_*")}
    assert len(aside) == 2 and not list(folder.glob("[0-9].monitor.csv"))
    new.write_bytes(next(iter(aside.values())))  # the resumed run had played on, and will do so again
    resuming.set_monitors_aside(folder, saved, "cpu")
    assert {path.name: path.read_bytes() for path in folder.glob("before_*")} == aside and not new.exists()
    episodes = len(load_results(str(folder)))
    assert train("--resume", str(folder)) == 0
    assert len(load_results(str(folder))) > episodes > 0


def test_a_run_that_continues_is_evaluated_on_the_env_of_before(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    plain = ["--env", "Pendulum-v1", "-f", str(tmp_path), "-tb", "", "--eval-freq", "-1"]
    settings = ["-params", "n_envs:2", "n_steps:32", "n_epochs:1"]
    assert train(*plain, "-n", "64", *settings, "--env-kwargs", "g:9.0", "--eval-env-kwargs", "g:2.0") == 0
    model = tmp_path / "grpo" / "Pendulum-v1_1" / "Pendulum-v1.zip"
    assert train(*plain, "-n", "128", "-i", str(model), "--continue") == 0
    assert train(*plain, "-n", "128", "-i", str(model), "--continue", "--eval-env-kwargs", "g:3.0") == 0
    options = [read_values(tmp_path / "grpo" / f"Pendulum-v1_{n}" / "Pendulum-v1" / "args.yml") for n in (1, 2, 3)]
    assert [o["env_kwargs"] for o in options] == 3 * [{"g": 9.0}]
    assert [o["eval_env_kwargs"] for o in options] == [{"g": 2.0}, {"g": 2.0}, {"g": 3.0}]
