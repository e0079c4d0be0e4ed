"""Runs of ``zoo.train`` as rl_zoo3's users know them: which settings an env gets, where files go, what is said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from zoo.common.command_line import BadInput, known_env, run
from zoo.train import main
from zoo.training.entries import entry_name, read_entries

SMALL = ["--env", "CartPole-v1", "-n", "128", "--eval-freq", "-1", "-params", "n_steps:32", "n_envs:2", "n_epochs:1"]


def train(folder: Path, *arguments: str) -> int:
    return run("zoo.train", main, ["-f", str(folder), *arguments])


@pytest.fixture(autouse=True)
def no_arguments(monkeypatch):
    monkeypatch.setattr(sys, "argv", [])


@pytest.mark.parametrize(
    ("env_id", "names", "chosen"),
    [
        ("CartPole-v1", ["CartPole-v1", "default"], "CartPole-v1"),
        ("Hopper-v5", ["Hopper-v3", "Hopper-v4", "default"], "Hopper-v4"),
        ("Pendulum-v1", ["CartPole-v1", "default"], "default"),
    ],
)
def test_the_entry_that_an_env_gets(env_id, names, chosen):
    assert entry_name(names, env_id, "x.yml") == chosen


def test_minigrid_ids_get_the_entry_that_is_spelt_most_alike():
    pytest.importorskip("minigrid")
    names = ["default", "MiniGrid-Empty-Random-5x5-v0", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-FourRooms-v0"]
    assert entry_name(names, "MiniGrid-DoorKey-8x8-v0", "x.yml") == "MiniGrid-DoorKey-5x5-v0"
    assert entry_name(names, "MiniGrid-Empty-16x16-v0", "x.yml") == "MiniGrid-Empty-Random-5x5-v0"


def test_a_minigrid_id_without_an_entry_trains_and_says_with_what(tmp_path, capsys):
    pytest.importorskip("minigrid")
    assert train(tmp_path, "--env", "MiniGrid-Empty-6x6-v0", *SMALL[2:], "-tb", "") == 0
    assert "MiniGrid-Empty-6x6-v0 has no entry of its own: settings of MiniGrid-Empty-Random-5x5-v0" in capsys.readouterr().out


def test_a_file_without_an_entry_is_refused():
    with pytest.raises(BadInput, match=r"x.yml has neither an entry for CartPole-v1 nor a default"):
        entry_name(["Pendulum-v1"], "CartPole-v1", "x.yml")


def test_a_python_file_without_hyperparams_is_one_line(tmp_path, capsys):
    file = tmp_path / "conf.py"
    file.write_text("settings = {}\n")
    assert train(tmp_path, *SMALL, "-conf", str(file)) == 2
    error = capsys.readouterr().err
    assert "conf.py must define hyperparams" in error and error.count("\n") == 1
    file.write_text("hyperparams = {'CartPole-v1': dict(n_envs=2)}\n")
    assert read_entries(str(file)) == {"CartPole-v1": {"n_envs": 2}}


def test_an_id_may_name_its_package(tmp_path):
    assert known_env("tests.zoo_envs:Paying-v0", ["json"]) == ("Paying-v0", ["json", "tests.zoo_envs"])
    assert train(tmp_path, "--env", "tests.zoo_envs:Paying-v0", *SMALL[2:], "-tb", "") == 0
    assert (tmp_path / "grpo" / "Paying-v0_1" / "Paying-v0.zip").exists()


@pytest.mark.parametrize(
    ("env_id", "says"),
    [
        ("no_such_package:Paying-v0", "--env no_such_package: No module named 'no_such_package'"),
        ("MiniGrid-Nowhere-v0", "pip install 'sb_grpo[minigrid]'"),
        ("ALE/Nowhere-v5", "pip install 'sb_grpo[atari]'"),
        ("CartPol-v1", "Did you mean CartPole-v1"),
    ],
)
def test_an_unknown_id_is_refused_with_what_would_help(env_id, says):
    with pytest.raises(BadInput, match=r"CartPole|pip install|package") as refused:
        known_env(env_id)
    assert says in str(refused.value)
