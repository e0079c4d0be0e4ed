"""``zoo.tune`` for real on tiny settings: found, written, trained, interrupted, shared, crashed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import yaml
from optuna.trial import TrialState
from stable_baselines3 import PPO
from torch import nn

from sb_grpo import GRPO
from sb_grpo.profiles import PROFILES
from tests.helpers import heed_ctrl_c, run_command, wait_for
from zoo import recommend, train, tune
from zoo.common.command_line import run
from zoo.common.literals import parse
from zoo.training.run_files import read_values
from zoo.tuning.objective import Objective
from zoo.tuning.search_space import grpo_space, grpo_start, widened, with_net
from zoo.tuning.study import SAMPLERS, check_source, load_study, note_source, open_storage, settings_of_trial

ROOT = Path(__file__).parents[1]
TINY = ["-n", "256", "--n-seeds", "1", "--n-evaluations", "2", "--eval-episodes", "2", "--hyperparams", "n_steps:32"]


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "zoo.tune", "--log-folder", str(folder), *arguments]


def tune_beside(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return run_command("zoo.tune", "--log-folder", str(folder), *arguments, cwd=ROOT)


def trials_of(storage: str, name: str) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=name, storage=open_storage(storage)).get_trials()


def tune_here(folder: Path, *arguments: str) -> int:
    """The command without the seconds that a new process takes to import torch."""
    return run("zoo.tune", tune.main, ["--log-folder", str(folder), *arguments])


@pytest.mark.slow
def test_a_study_leaves_settings_that_train_reads_a_table_and_plots(tmp_path):
    result = tune_beside(tmp_path, *TINY, "--n-trials", "4", "--pruner", "none")
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "tune" / "grpo_CartPole-v1_256"
    assert "4 complete" in result.stdout and f"optuna-dashboard {folder / 'journal.log'}" in result.stdout
    assert len((folder / "trials.csv").read_text().splitlines()) == 5
    for name in ("importance", "history", "slice", "parallel_coordinate"):
        assert (folder / f"{name}.png").stat().st_size > 10_000
        assert "plotly.min.js" in (folder / f"{name}.html").read_text()
    assert not list(folder.glob("contour.*"))  # no landscape of four points
    best = yaml.safe_load((folder / "best.yml").read_text())["CartPole-v1"]
    trials = trials_of(str(folder / "journal.log"), folder.name)
    winner = max(trials, key=lambda t: t.value)
    assert best["group_size"] == winner.params["group_size"] and best["n_timesteps"] == 256

    line = next(x for x in result.stdout.splitlines() if x.startswith("Train it:")).split("-m ")[1].split()
    train = [*line, "-f", str(tmp_path), "-tb", "", "--eval-freq", "-1", "--num-threads", "1"]
    trained = run_command(*train, cwd=ROOT)
    assert trained.returncode == 0, trained.stderr
    model = GRPO.load(tmp_path / "grpo" / "CartPole-v1_1" / "CartPole-v1.zip")
    assert model.group_size == best["group_size"] and model.gamma == best["gamma"]
    assert model.policy.net_arch == best["policy_kwargs"]["net_arch"]


@pytest.mark.slow
def test_a_killed_study_goes_on_without_a_loss_or_a_double(tmp_path):
    arguments = ["--max-total-trials", "5", "-n", "1500", "--n-seeds", "1", "--eval-episodes", "2", "--no-optim-plots"]
    arguments += ["--study-name", "killed", "--pruner", "none"]
    storage = str(tmp_path / "tune" / "killed" / "journal.log")
    first = subprocess.Popen(command(tmp_path, *arguments), cwd=ROOT, stdout=subprocess.DEVNULL)

    def in_the_middle_of_a_trial() -> bool:
        """With two behind it."""
        assert first.poll() is None
        if not (Path(storage).exists() and "worker" in Path(storage).read_text()):
            return False
        trials = trials_of(storage, "killed")
        completed = [t.state for t in trials].count(TrialState.COMPLETE)
        return completed >= 2 and trials[-1].state == TrialState.RUNNING and "training_seeds" in trials[-1].user_attrs

    wait_for(in_the_middle_of_a_trial, seconds=120)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    before = trials_of(storage, "killed")
    assert before[-1].state == TrialState.RUNNING

    again = tune_beside(tmp_path, *arguments)
    assert again.returncode == 0, again.stderr
    assert f"Trials [{before[-1].number}] had been left" in again.stdout
    after = trials_of(storage, "killed")
    done = [t for t in after if t.state == TrialState.COMPLETE]
    assert [t.value for t in after[: len(before) - 1]] == [t.value for t in before[:-1]]
    assert len(done) == 5 and len(after) == 6  # five results, and the one that was cut short
    dead, retried = after[before[-1].number], next(t for t in after if t.user_attrs.get("retry_of") == before[-1].number)
    assert dead.state == TrialState.FAIL and retried.params == dead.params
    assert retried.user_attrs["training_seeds"] == dead.user_attrs["training_seeds"]
    assert len({json.dumps(t.params) for t in done}) == 5

    assert tune_here(tmp_path, *arguments) == 0  # nothing left to do
    assert len(trials_of(storage, "killed")) == 6


@pytest.mark.slow
def test_ctrl_c_reports_and_keeps_the_trial_for_later(tmp_path):
    arguments = ["-n", "1000000", "--n-seeds", "3", "--study-name", "cut", "--no-optim-plots"]
    storage = tmp_path / "tune" / "cut" / "journal.log"
    process = subprocess.Popen(
        command(tmp_path, *arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
    )
    wait_for(lambda: storage.exists() and "training_seeds" in storage.read_text())
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "Interrupted: trials [0] will be tried again" in output
    cut, waiting = trials_of(str(storage), "cut")
    assert (cut.state, waiting.state) == (TrialState.FAIL, TrialState.WAITING)
    assert waiting.system_attrs["fixed_params"] == cut.params
    assert waiting.user_attrs == {
        "first_try": 0,
        "retry_of": 0,
        "entry": True,
    }


@pytest.mark.slow
def test_two_processes_share_a_study(tmp_path):
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    arguments = [*TINY, "--n-trials", "3", "--storage", storage, "--study-name", "shared", "--no-optim-plots"]
    workers = [
        subprocess.Popen(command(tmp_path / str(i), *arguments), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        for i in range(2)
    ]
    errors = [worker.communicate()[1].decode() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], errors
    trials = trials_of(storage, "shared")
    assert [t.number for t in trials] == list(range(6)) and all(t.state.is_finished() for t in trials)
    assert {t.user_attrs["worker"][1] for t in trials} == {worker.pid for worker in workers}
    assert len({json.dumps(t.params) for t in trials}) == 6


@pytest.mark.slow
def test_a_crash_is_failed_not_pruned_and_the_study_goes_on(tmp_path):
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    fragile = ["--env", "Fragile-v0", "--gym-packages", "zoo_envs", "--study-name", "fragile", "--pruner", "none"]
    options = ["--log-folder", str(tmp_path), *TINY, *fragile, "--n-trials", "3", "--no-optim-plots"]
    result = run_command("zoo.tune", *options, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})
    assert result.returncode == 0, result.stderr
    trials = trials_of(str(tmp_path / "tune" / "fragile" / "journal.log"), "fragile")
    states = [t.state for t in trials]
    assert sorted(s.name for s in states) == ["COMPLETE", "COMPLETE", "FAIL"] and states[0] == TrialState.COMPLETE
    crashed = trials[states.index(TrialState.FAIL)]
    assert "zoo_envs.py" in crashed.user_attrs["traceback"] and "settings" in crashed.user_attrs
    assert "1 trial FAILED: RuntimeError: the arm fell off" in result.stdout


def test_a_study_of_one_job_is_repeatable_and_continues_with_new_trials(tmp_path, capsys):
    for name in ("once", "twice"):
        assert tune_here(tmp_path / name, *TINY, "--n-trials", "3", "--no-optim-plots", "--seed", "7") == 0
        assert "The first trial is the entry as it stands." in capsys.readouterr().out
    assert tune_here(tmp_path / "twice", *TINY, "--n-trials", "2", "--no-optim-plots", "--seed", "7") == 0
    assert "The first trial" not in capsys.readouterr().out  # it has been
    name = "grpo_CartPole-v1_256"
    once, twice = (trials_of(str(tmp_path / x / "tune" / name / "journal.log"), name) for x in ("once", "twice"))
    assert [(t.params, t.value) for t in once] == [(t.params, t.value) for t in twice[:3]]
    assert len(twice) == 5 and len({json.dumps(t.params) for t in twice}) == 5


@pytest.mark.parametrize(
    ("env_id", "n_envs"), [("CartPole-v1", 8), ("CartPole-v1", 24), ("Pendulum-v1", 4), ("LunarLander-v3", 16)]
)
def test_every_draw_of_the_space_is_accepted_by_the_model(env_id, n_envs):
    base = yaml.safe_load((ROOT / "zoo/hyperparams/grpo.yml").read_text())[env_id] | {"n_envs": n_envs}
    objective = Objective("grpo", env_id, base, {}, 1000, 1, 1, 1, 0)
    study = optuna.create_study(sampler=SAMPLERS["random"](0, 0))
    seen = set()
    for _ in range(20):
        drawn = grpo_space(study.ask(), base, {})
        model = objective.build({**base, **drawn}, 0)[1]
        assert model.gamma == drawn["gamma"] and model.n_groups == drawn["n_groups"]
        seen.add(drawn["advantage"])
        model.get_env().close()
    model = objective.build(base, 0)[1]
    space, start, _ = widened(grpo_start(model, base))
    first = grpo_space(optuna.trial.FixedTrial({"n_groups": 1} | start), base, {}, space)
    assert all(first[name] == pytest.approx(base[name]) for name in ("gae_lambda", "gamma", "n_epochs") if name in base)
    assert str(first["learning_rate"]) == str(base.get("learning_rate", "3e-4")).replace("3e-4", "0.0003").replace(
        "1e-3", "0.001"
    )
    assert seen == {"state", "step", "outcome", "process"}


def test_settings_that_are_fixed_are_not_searched():
    trial = optuna.create_study().ask()
    fixed = {"advantage": "outcome", "n_steps": 2, "learning_rate": "lin_1e-3", "clip_range": "lin_0.2"}
    drawn = grpo_space(trial, {"n_envs": 8, **fixed}, fixed)
    assert drawn["batch_size"] == 16  # no larger than the rollout
    assert not drawn.keys() & fixed.keys() and not drawn.keys() & {"n_groups", "gae_lambda", "clip_range_high"}
    assert not {"learning_rate", "schedule", "clip_range", "advantage"} & trial.params.keys()
    assert parse(with_net("dict(activation_fn=nn.ReLU)", "tiny")) == {"activation_fn": nn.ReLU, "net_arch": [64]}


@pytest.mark.slow
def test_another_trial_than_the_best_can_be_trained(tmp_path, capsys):
    assert tune_here(tmp_path, *TINY, "--n-trials", "1", "--no-optim-plots") == 0
    storage, name = str(tmp_path / "tune" / "grpo_CartPole-v1_256" / "journal.log"), "grpo_CartPole-v1_256"
    settings = settings_of_trial(load_study(storage, name), 0)
    begin = ["zoo.train", "-f", str(tmp_path), "-n", "64", "--eval-freq", "-1", "--num-threads", "1"]
    load = ["--storage", storage, "--study-name", name, "--trial-id", "0"]
    result = run_command(*begin, *load, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert GRPO.load(tmp_path / "grpo" / "CartPole-v1_1" / "CartPole-v1.zip").gamma == settings["gamma"]


@pytest.fixture
def a_trial(tmp_path, monkeypatch):
    """Trains trial 0 of a study on another entry than that of today, and without its own env's arguments."""
    storage = str(tmp_path / "study.log")
    study = optuna.create_study(storage=open_storage(storage), study_name="s")
    settings = {"policy": "MlpPolicy", "n_timesteps": 64, "n_steps": 32, "n_envs": 1, "gamma": 0.9, "n_epochs": 1}
    study.add_trial(optuna.trial.create_trial(value=1.0, user_attrs={"settings": settings}))
    about = {"algo": "grpo", "env": "Pendulum-v1", "env_kwargs": {"g": 5.0}, "eval_env_kwargs": {"g": 6.0}}
    for key, value in about.items():
        study.set_user_attr(key, value)
    monkeypatch.setattr(sys, "argv", [])
    of_trial = ["--storage", storage, "--study-name", "s", "--trial-id", "0", "--eval-freq", "-1", "-tb", ""]
    return lambda *more: run("zoo.train", train.main, ["-f", str(tmp_path), *of_trial, *more]), settings


def test_the_settings_of_a_trial_are_the_whole_entry(a_trial, tmp_path):
    """Today's entry of Pendulum-v1 normalises; the study's did not. What is given on the command line goes over both."""
    begin, settings = a_trial
    assert begin("--env", "Pendulum-v1", "-params", "gamma:0.8") == 0
    assert begin("--env", "Pendulum-v1", "--env-kwargs", "g:7.0", "--profile", "conservative", "-n", "32") == 0
    first, second = (tmp_path / "grpo" / f"Pendulum-v1_{number}" / "Pendulum-v1" for number in (1, 2))
    assert read_values(first / "config.yml") == {**settings, "gamma": 0.8}
    assert read_values(second / "config.yml") == dict(sorted({**settings, **PROFILES["conservative"]}.items()))
    options = [read_values(folder / "args.yml") for folder in (first, second)]
    assert [x["env_kwargs"] for x in options] == [{"g": 5.0}, {"g": 7.0}]
    assert [x["eval_env_kwargs"] for x in options] == [{"g": 6.0}] * 2 and [x["trial_id"] for x in options] == [0, 0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "--trial-id 0: study s is of --algo grpo --env Pendulum-v1, not --algo grpo --env CartPole-v1: say so"),
        (["--env", "Pendulum-v1", "--algo", "ppo"], "not --algo ppo --env Pendulum-v1: say so"),
        (["--env", "Pendulum-v1", "-conf", "my.yml"], "--trial-id 0: a trial has all its settings: leave --conf-file my.yml"),
        (["--env", "Pendulum-v1", "--trial-id", "1"], "--trial-id 1: s has no such trial"),
    ],
    ids=["env", "algo", "conf-file", "no-such-trial"],
)
def test_a_trial_is_not_trained_as_something_else(a_trial, options, says, tmp_path, capsys):
    assert a_trial[0](*options) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1 and not (tmp_path / "grpo").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--env", "CartPole-v9"], "Did you mean CartPole-v1"),
        (["--hyperparams", "gama:0.9"], "no hyperparameter 'gama'. Did you mean gamma?"),
        (["--hyperparams", "group_size:0"], "group_size=0 must be an integer"),
        (["--sampler", "best"], "invalid choice: 'best'"),
        (["--n-trials", "0"], "--n-trials 0 must be at least 1"),
        (["--storage", "study.json"], "--storage study.json is no storage: give a journal file that ends in .log, the URL"),
        (["--storage", "nosuchdb://me:secret@x"], "--storage nosuchdb://me:***@x: "),
        (["--log-folder", "/proc/nowhere"], "--log-folder: /proc/nowhere/tune/grpo_CartPole-v1_256 cannot be made"),
        (["--storage", "nosuchdb://x"], "give a journal file that ends in .log, the URL of a database such as sqlite:///"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, says, tmp_path, capsys):
    try:
        code = tune_here(tmp_path, *TINY, *arguments)
    except SystemExit as stop:  # argparse
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2 and says in error and error.count("\n") == 1


def test_a_study_about_something_else_is_not_continued(tmp_path, capsys):
    arguments = ["--n-trials", "1", "--study-name", "mine", "--no-optim-plots"]
    assert tune_here(tmp_path, *TINY, *arguments) == 0
    assert tune_here(tmp_path, *TINY, *arguments, "--env", "Acrobot-v1") == 2
    assert "was begun with env='CartPole-v1', not 'Acrobot-v1'" in capsys.readouterr().err


def test_a_study_of_the_same_name_in_another_storage_does_not_take_the_place_of_the_first(tmp_path, capsys):
    """Nor is it begun; another log folder is the way out, and so is a folder of a version that kept no note."""
    folder, other = tmp_path / "tune" / "j", f"sqlite:///{tmp_path / 'other.db'}"
    arguments = [*TINY, "--n-trials", "1", "--study-name", "j", "--no-optim-plots"]
    assert tune_here(tmp_path, *arguments) == 0
    table = (folder / "trials.csv").read_text()
    capsys.readouterr()
    for again in ([], ["--storage", str(folder / ".." / "j" / "journal.log")]):
        check_source(folder, *again[1:] or [str(folder / "journal.log")])
    assert tune_here(tmp_path, *arguments, "--storage", other) == 2
    error = capsys.readouterr().err
    assert f"in journal.log, and that in {other} would overwrite them: choose another --study-name" in error
    assert error.count("\n") == 1 and not (tmp_path / "other.db").exists()
    assert (folder / "trials.csv").read_text() == table
    assert run("zoo.recommend", recommend.main, ["-f", str(tmp_path), "--study-name", "j", "--storage", other]) == 2
    (folder / "storage.txt").unlink()
    check_source(folder, other)
    note_source(folder, "postgresql+psycopg://me:s3@cret@db/studies")
    assert (folder / "storage.txt").read_text() == "postgresql+psycopg://me:***@db/studies\n"
    check_source(folder, "postgresql+psycopg://me:changed@db/studies")


@pytest.mark.slow
def test_ppo_is_searched_in_the_space_of_rl_zoo3(tmp_path):
    assert tune_here(tmp_path, *TINY, "--algo", "ppo", "--n-trials", "2", "--no-optim-plots") == 0
    path = tmp_path / "tune" / "ppo_CartPole-v1_256" / "best.yml"
    best = yaml.safe_load(path.read_text())["CartPole-v1"]
    assert best["policy_kwargs"].startswith("{'net_arch': {'pi':") and best["n_steps"] == 32  # fixed by TINY
    train = ["zoo.train", "--algo", "ppo", "--conf-file", str(path), "-f", str(tmp_path), "-tb", ""]
    result = run_command(*train, "--num-threads", "1", cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert PPO.load(tmp_path / "ppo" / "CartPole-v1_1" / "CartPole-v1.zip").gamma == best["gamma"]
