"""Runs of ``zoo.train`` as rl_zoo3's users know them: which settings an env gets, where files go, what is said."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from tests.helpers import ProbeEnv
from zoo import enjoy, workflow
from zoo.benchmarking.results import find_results
from zoo.common.command_line import BadInput, known_env, run
from zoo.common.strict_json import to_json
from zoo.train import main
from zoo.training.crashes import is_bad_input
from zoo.training.entries import entry_name, read_entries

ROOT = Path(__file__).parents[1]

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


def test_the_log_folder_moves_tensorboard_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(Path("elsewhere"), *SMALL) == 0
    assert list((tmp_path / "elsewhere" / "tensorboard" / "CartPole-v1").glob("GRPO_1/events*"))
    assert not (tmp_path / "logs").exists()
    assert train(Path("elsewhere"), *SMALL, "-tb", "apart") == 0 and (tmp_path / "apart").exists()


@pytest.mark.parametrize(
    "options",
    [["-optimize"], ["--n-trials", "500"], ["--sampler", "tpe"], ["--pruner", "median"], ["--n-jobs", "1"],
     ["--n-startup-trials", "10"], ["--n-evaluations", "1"], ["--no-optim-plots"], ["--max-total-trials", "3"],
     ["--optimization-log-path", "x"]],
    ids=lambda options: options[0].lstrip("-"),
)  # fmt: skip
def test_options_of_a_search_are_refused_also_with_their_defaults(options, tmp_path, capsys):
    assert train(tmp_path, *SMALL, *options) == 2
    error = capsys.readouterr().err
    assert "the search is a command of its own" in error and error.count("\n") == 1


def test_options_of_a_search_are_not_shown(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "--optimize" not in shown and "--n-trials" not in shown and "--sampler" not in shown and "--study-name" in shown


def test_verbose_0_is_silent(tmp_path):
    """Of the whole process, warnings apart; the run is there."""
    command = [sys.executable, "-m", "zoo.train", "-f", str(tmp_path), *SMALL, "--verbose", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "", done.stdout
    assert "Traceback" not in done.stderr and (tmp_path / "grpo" / "CartPole-v1_1" / "metrics.json").exists()


def test_json_has_no_number_that_is_none():
    text = to_json({"a": float("nan"), "b": [1.0, float("inf")], "c": ({"d": -float("inf")},), "e": "NaN"})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": [1.0, None], "c": [{"d": None}], "e": "NaN"}


def test_files_of_a_run_are_json_where_a_return_is_not_a_number(tmp_path, monkeypatch):
    monkeypatch.setattr("zoo.training.experiment.Experiment.evaluate", lambda self, model: [float("nan"), 1.0])
    assert train(tmp_path, *SMALL, "-tb", "") == 0
    metrics = json.loads((tmp_path / "grpo/CartPole-v1_1/metrics.json").read_text(), parse_constant=pytest.fail)
    assert metrics["mean_return"] is None and metrics["final_returns"] == [None, 1.0]


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: VecNormalize(env), lambda env: VecFrameStack(env, 2)])
def test_a_recording_runs_at_the_envs_own_frame_rate(wrap, tmp_path):
    """CartPole's 50 frames a second, Pendulum's 30."""
    for env_id, fps in (("CartPole-v1", 50), ("Pendulum-v1", 30)):
        env = wrap(make_vec_env(env_id, env_kwargs={"render_mode": "rgb_array"}))
        env.reset()
        recorder = enjoy.Recorder(env, tmp_path / f"{env_id}.mp4")
        for _ in range(fps):
            recorder.frame()
        recorder.close()
        import imageio.v2 as imageio

        assert imageio.get_reader(tmp_path / f"{env_id}.mp4").get_meta_data()["fps"] == pytest.approx(fps)


class NoneIsIterated(ProbeEnv):
    """Its constructor crashes with the message that says nothing."""

    def __init__(self, where: str = "init", render_mode: str | None = None) -> None:
        super().__init__("action")
        self.where = where
        if where == "init":
            list(None)

    def reset(self, **kwargs):
        if self.where == "reset":
            raise ValueError("no table to sit at")
        return super().reset(**kwargs)


gym.register("NoneIsIterated-v7", NoneIsIterated)


@pytest.mark.parametrize(("where", "kind"), [("init", TypeError), ("reset", ValueError)])
def test_a_crash_in_set_up_keeps_its_traceback(where, kind, tmp_path):
    with pytest.raises(kind) as crash:
        train(tmp_path, "--env", "NoneIsIterated-v7", *SMALL[2:], "-tb", "", "--env-kwargs", f"where:'{where}'")
        if where == "reset":
            pytest.fail("the env is reset in learn()")
    shown = "".join(traceback.format_exception(crash.value))
    assert "test_zoo_runs.py" in shown and ("list(None)" in shown or "no table to sit at" in shown)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--env-kwargs", "gravity:3"], "unexpected keyword argument 'gravity'"),
        (["-params", "policy_kwargs:dict(hidden=3)"], "unexpected keyword argument 'hidden'"),
        (["-params", "env_wrapper:gymnasium.wrappers.NoSuch"], "NoSuch"),
        (["-params", "env_wrapper:no_such_module.Wrapper"], "no_such_module"),
        (["-params", "group_size:0"], "group_size=0"),
    ],
)
def test_what_was_asked_for_wrongly_stays_one_line(options, says, tmp_path, capsys):
    assert train(tmp_path, "--env", "CartPole-v1", "-n", "128", "-tb", "", *options) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_bad_input_is_told_from_a_crash():
    assert is_bad_input(ValueError("raised nowhere")) and not is_bad_input(ValueError(""))
    assert is_bad_input(TypeError("f() got an unexpected keyword argument 'x'"))
    assert not is_bad_input(TypeError("'NoneType' object is not iterable"))
    assert not is_bad_input(AttributeError("'NoneType' object has no attribute 'x'")) and not is_bad_input(KeyError("x"))


@pytest.mark.slow
def test_a_run_that_fails_does_not_keep_the_workflow_from_its_report(tmp_path, capfd):
    """One of two variants is refused by its model; the report is about the other, and the exit code tells."""
    variants = tmp_path / "variants.yml"
    plain = {"n_envs": 2, "n_steps": 32, "n_epochs": 1}
    broken = {"policy_kwargs": {"hidden": 3}}
    table = {"good": {"algo": "grpo", "hyperparams": plain}, "bad": {"algo": "grpo", "hyperparams": {**plain, **broken}}}
    variants.write_text(json.dumps(table))
    size = ["--steps", "128", "--evaluations", "1", "--eval-episodes", "1", "--final-episodes", "2", "--jobs", "1"]
    arguments = [
        "--n-runs",
        "2",
        "--envs",
        "CartPole-v1",
        "--variants",
        str(variants),
        *size,
        "--out",
        str(tmp_path / "study"),
    ]
    code = workflow.main(arguments)
    assert code != 0 and "the report is without the runs that failed" in capfd.readouterr().err
    assert "good" in (tmp_path / "study/report/report.md").read_text() and len(find_results([tmp_path / "study/results"])) == 2
    assert (tmp_path / "study/report/figures/curves.png").exists() and np.isfinite(code)
