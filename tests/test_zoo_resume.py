"""``zoo.train --resume``: a run that was stopped goes on in its own folder, and is then the run that nobody stopped."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import ArgumentParser

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.monitor import load_results

from sb_grpo import GRPO
from zoo.common.command_line import run
from zoo.train import main
from zoo.training import resuming
from zoo.training.resuming import FILE, RunSaves, take_up_run
from zoo.training.run_files import write_values

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
    write_values(settings / "args.yml", {"verbose": int(of_run), "progress": of_run == "0", "env": "Pendulum-v1"})
    (settings / FILE).touch()
    parser = ArgumentParser()
    for name, default in (("resume", None), ("verbose", 1), ("env", "CartPole-v1")):
        parser.add_argument(f"--{name}", default=default, type=str if default is None else type(default))
    for name in ("progress", "untrusted"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args(["--resume", str(settings.parent), *given])
    take_up_run(options, parser, not_ours=())
    assert options.verbose == found and options.progress == (of_run == "0") and options.resume == str(settings.parent)


def test_what_cannot_be_resumed_is_named(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    for arguments, said in (
        (["--resume", str(tmp_path)], "is no run folder"),
        (["--resume", str(runs[1])], "deletes it when it has come to its end"),
        (["--resume", str(runs[1]), "--seed", "4"], "leave --seed out"),
        (["--resume", str(runs[1]), "-n", "99"], "leave --n-timesteps out"),
    ):
        assert train(*arguments) == 2
        assert said in capsys.readouterr().err
    broken = runs[1] / "Pendulum-v1" / FILE
    broken.write_bytes(b"PK")
    assert train("--resume", str(runs[1])) == 2
    said = capsys.readouterr().err
    assert "is broken, or no zip" in said and f"-i {runs[1]}/Pendulum-v1.zip --continue -n STEPS" in said
    for name, content in (("config.yml", ""), ("args.yml", "a: [")):
        damaged = runs[1] / "Pendulum-v1" / name
        before = damaged.read_text()
        damaged.write_text(content)
        assert train("--resume", str(runs[1])) == 2
        said = capsys.readouterr().err
        assert f"Pendulum-v1/{name}" in said and "Put the file back" in said and "--continue -n STEPS" in said
        damaged.write_text(before)
    broken.unlink()
    killed_at_once = tmp_path / "Pendulum-v1_2"
    shutil.copytree(runs[1] / "Pendulum-v1", killed_at_once / "Pendulum-v1")
    for model, said in ((None, "start it anew"), (killed_at_once / "rl_model_64_steps.zip", "-i {} --continue -n STEPS")):
        if model is not None:
            model.write_bytes(b"PK")
        assert train("--resume", str(killed_at_once)) == 2
        assert said.format(model) in capsys.readouterr().err
