"""Runs of ``zoo.train`` as rl_zoo3's users know them: which settings an env gets, where files go, what is said."""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image, ImageSequence
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from sb_grpo import GRPO
from tests.helpers import ProbeEnv, run_command
from zoo import enjoy, plot, workflow
from zoo.benchmarking.results import find_results
from zoo.common.command_line import BadInput, known_env, run
from zoo.common.plain_files import to_json
from zoo.train import main
from zoo.training.run_files import write_values
from zoo.training.settings import entry_name, read_entries
from zoo.training.setup import is_bad_input

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


@pytest.mark.slow
def test_verbose_0_is_silent(tmp_path):
    """Of the whole process, warnings apart; the run is there."""
    done = run_command("zoo.train", "-f", str(tmp_path), *SMALL, "--verbose", "0", cwd=ROOT)
    assert done.returncode == 0 and done.stdout == "", done.stdout
    assert "Traceback" not in done.stderr and (tmp_path / "grpo" / "CartPole-v1_1" / "metrics.json").exists()


def test_a_progress_bar_that_is_asked_for_is_shown_and_so_is_the_result(tmp_path):
    done = run_command("zoo.train", "-f", str(tmp_path), *SMALL, "--verbose", "0", "--progress", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "100%" in done.stdout and "mean return" in done.stdout.lower()
    assert "ep_rew_mean" not in done.stdout  # no tables


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


@pytest.mark.parametrize(("fps", "shortest"), [(10, 100), (30, 30), (50, 20), (125, 20)])
def test_a_gif_plays_as_long_as_the_episode_was(fps, shortest, tmp_path):
    """Also where an env draws more frames than a GIF can show, and where its rate is no whole number of hundredths."""
    writer = enjoy.writer(tmp_path / "a.gif", fps)
    for number in range(2 * fps):
        writer.append_data(np.full((4, 4, 3), number, dtype=np.uint8))
    writer.close()
    with Image.open(tmp_path / "a.gif") as picture:
        shown = [frame.info["duration"] for frame in ImageSequence.Iterator(picture)]
    assert sum(shown) == 2000 and min(shown) >= shortest


def test_a_gif_of_one_picture(tmp_path):
    writer = enjoy.writer(tmp_path / "a.gif", 30)
    writer.append_data(np.zeros((4, 4, 3), dtype=np.uint8))
    writer.close()
    assert Image.open(tmp_path / "a.gif").size == (4, 4)


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
        (["--env-kwargs", "gravity:3"], "CartPole-v1 has no argument 'gravity'; it takes sutton_barto_reward, render_mode"),
        (["-params", "policy_kwargs:dict(hidden=3)"], "policy_kwargs has an unknown key 'hidden'. ActorPolicy takes"),
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
    code = run("zoo.workflow", workflow.main, arguments)
    assert code != 0 and "the report is without the runs that failed" in capfd.readouterr().err
    assert "good" in (tmp_path / "study/report/report.md").read_text() and len(find_results([tmp_path / "study/results"])) == 2
    assert (tmp_path / "study/report/figures/curves.png").exists() and np.isfinite(code)


@pytest.fixture(scope="module")
def went_on(tmp_path_factory):
    """A run of 256 steps with a linear learning rate, and its continuation up to 512."""
    folder = tmp_path_factory.mktemp("logs")
    settings = ["-params", "n_steps:32", "n_envs:2", "n_epochs:1", "learning_rate:lin_1e-2", "normalize:True"]
    plain = ["--env", "CartPole-v1", "--eval-freq", "64", "-tb", str(folder / "tb"), "--verbose", "0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [])
        assert train(folder, *plain, "-n", "256", *settings) == 0
        model = folder / "grpo" / "CartPole-v1_1" / "CartPole-v1.zip"
        assert train(folder, *plain, "-n", "512", "-i", str(model), "--continue") == 0
    return folder


def test_a_run_goes_on_with_its_settings_step_count_and_schedule(went_on):
    first, second = (GRPO.load(went_on / f"grpo/CartPole-v1_{n}/CartPole-v1.zip") for n in (1, 2))
    assert (first.num_timesteps, second.num_timesteps) == (256, 512)
    assert second.n_steps == 32 and second.n_epochs == 1 and second._n_updates == 2 * first._n_updates
    events = EventAccumulator(str(went_on / "tb/CartPole-v1/GRPO_1_continued_1")).Reload()
    rates = {point.step: point.value for point in events.Scalars("train/learning_rate")}
    # What an update has logged is written after the next rollout. The rates are those of one run of 512 steps.
    assert rates == {step: pytest.approx(1e-2 * (1 - (step - 64) / 512), rel=1e-6) for step in (384, 448, 512)}
    evaluated = np.load(went_on / "grpo/CartPole-v1_2/evaluations.npz")["timesteps"]
    assert evaluated.tolist() == [320, 384, 448, 512]
    metrics = json.loads((went_on / "grpo/CartPole-v1_2/metrics.json").read_text())
    assert (metrics["env_steps"], metrics["planned_steps"]) == (512, 512)


def test_a_run_and_its_continuation_are_one_line(went_on, tmp_path):
    assert plot.find_chains(went_on) == [[(went_on / f"grpo/CartPole-v1_{n}").resolve() for n in (1, 2)]]
    curves, _ = plot.from_folder(went_on)
    evaluation, training = ({c.kind: c for c in curves}[kind] for kind in (plot.EVALUATION, plot.TRAINING))
    assert len(curves) == 2 and evaluation.steps.tolist() == list(range(64, 513, 64))
    assert (np.diff(training.steps) >= 0).all() and training.steps[-1] > 300
    alone, _ = plot.from_folder(went_on / "grpo" / "CartPole-v1_1")
    (rates,) = plot.from_tensorboard(went_on / "tb", "train/learning_rate")
    assert rates.label == "GRPO" and rates.steps.tolist() == [128, 192, 256, 384, 448, 512]  # as the two runs have logged
    assert {c.kind: c for c in alone}[plot.EVALUATION].steps[-1] == 256


def test_the_picture_of_a_continuation_counts_on(went_on, tmp_path, monkeypatch):
    """Episodes stand where the evaluations do: behind the first run's 256 steps."""
    folder, drawn = tmp_path / "CartPole-v1_2", []
    shutil.copytree(went_on / "grpo/CartPole-v1_2", folder)
    monkeypatch.setattr(plot.plt, "close", drawn.append)
    plot.plot_learning_curve(folder, "title")
    episodes, _, evaluations = (line.get_xdata() for line in drawn[0].axes[0].lines[:3])
    assert 256 < min(episodes) <= max(episodes) <= 512 and evaluations.tolist() == [320, 384, 448, 512]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-n", "256"], "has taken 256 of 256 steps: give a larger -n"),
        (["--env", "Pendulum-v1"], "the run is of --algo grpo --env CartPole-v1"),
        (["-i", "MOVED"], "is in no run folder"),
        (["-i", ""], "--continue needs --trained-agent"),
    ],
)
def test_what_cannot_go_on_is_refused(went_on, options, says, tmp_path, capsys):
    model = went_on / "grpo" / "CartPole-v1_1" / "CartPole-v1.zip"
    (tmp_path / "model.zip").write_bytes(model.read_bytes())
    options = [str(tmp_path / "model.zip") if option == "MOVED" else option for option in options]
    assert train(tmp_path, "--env", "CartPole-v1", "-i", str(model), "--continue", "-tb", "", *options) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def plain_run(folder, lr, success=False):
    """A run folder without a training: evaluations, lengths, and perhaps successes."""
    settings = folder / "ALE-Pong-v5"
    settings.mkdir(parents=True)
    write_values(settings / "config.yml", {"learning_rate": lr, "n_timesteps": 1})
    write_values(settings / "args.yml", {"env": "ALE/Pong-v5", "algo": "grpo"})
    more = {"successes": [[True, False]] * 3} if success else {}
    np.savez(folder / "evaluations.npz", timesteps=[1, 2, 3], results=np.ones((3, 2)), ep_lengths=np.full((3, 2), 7), **more)


def test_lines_by_run_setting_and_env(tmp_path):
    for number, lr in enumerate((1e-3, 1e-3, 3e-4), 1):
        plain_run(tmp_path / "grpo" / f"ALE-Pong-v5_{number}", lr)
    curves, _ = plot.from_folder(tmp_path)
    lines = {by: sorted({c.label for c in plot.labelled(curves, by)}) for by in ("run", "setting", "env")}
    assert lines["run"] == [f"grpo ALE-Pong-v5_{n}" for n in (1, 2, 3)]
    assert lines["setting"] == ["grpo learning_rate=0.0003", "grpo learning_rate=0.001"] and lines["env"] == ["grpo"]


def test_a_continuation_is_found_from_any_directory(went_on, tmp_path, monkeypatch):
    """The run has noted the model's path as it was given."""
    logs = tmp_path / "there" / "logs"
    shutil.copytree(went_on / "grpo", logs / "grpo")
    args = logs / "grpo/CartPole-v1_2/CartPole-v1/args.yml"
    absolute = str(went_on / "grpo/CartPole-v1_1/CartPole-v1.zip")
    for noted in ("logs/grpo/CartPole-v1_1/CartPole-v1.zip", "gone/grpo/CartPole-v1_1/CartPole-v1.zip"):
        args.write_text((went_on / "grpo/CartPole-v1_2/CartPole-v1/args.yml").read_text().replace(absolute, noted))
        for place in (tmp_path, tmp_path / "there"):
            monkeypatch.chdir(place)
            found = plot.find_chains(logs)
            assert [[run.name for run in chain] for chain in found] == [["CartPole-v1_1", "CartPole-v1_2"]]


def test_length_and_success_may_be_drawn(tmp_path, capsys):
    plain_run(tmp_path / "grpo" / "ALE-Pong-v5_1", 1e-3, success=True)
    assert plot.from_folder(tmp_path, "length")[0][0].values.tolist() == [7, 7, 7]
    assert plot.from_folder(tmp_path, "success")[0][0].values.tolist() == [0.5, 0.5, 0.5]
    plain_run(tmp_path / "other" / "ALE-Pong-v5_1", 1e-3)
    assert run("zoo.plot", plot.main, [str(tmp_path / "other"), "--y", "success"]) == 2
    assert "--y success: no run in" in capsys.readouterr().err


def test_a_damaged_file_is_named_and_the_others_are_drawn(tmp_path, capsys):
    """As a full disk, a killed process, or two processes in one folder leave them."""
    good = '#{"t_start": 0, "env_id": "CartPole-v1"}\nr,l,t\n9,9,1\n8,8,2\n'
    contents = {
        "good": good,
        "empty": "",
        "cut": good[:10],
        "headless": "r,l,t\n1,1,1\n",
        "nul": good + "\0" * 20 + "\n7,7,3\n",
    }
    for number, text in enumerate(contents.values()):
        run_folder = tmp_path / "grpo" / f"CartPole-v1_{number}"
        write_values(run_folder / "CartPole-v1" / "config.yml", {"n_envs": 1})
        (run_folder / "0.monitor.csv").write_text(text)
    (tmp_path / "grpo" / "CartPole-v1_0" / "evaluations.npz").write_bytes(b"PK")
    curves, broken = plot.from_folder(tmp_path)
    assert len(curves) == 1 and sum("*.monitor.csv of" in line for line in broken) == 4
    assert sum("evaluations.npz of" in line and "CartPole-v1_0" in line for line in broken) == 1
    assert run("zoo.plot", plot.main, [str(tmp_path), "--out", str(tmp_path / "picture")]) == 0
    assert capsys.readouterr().err.count("broken file left out") == 5 and (tmp_path / "picture.png").stat().st_size > 1000
    shutil.rmtree(tmp_path / "grpo" / "CartPole-v1_0")
    assert run("zoo.plot", plot.main, [str(tmp_path)]) == 2
    assert "can be read; the first: *.monitor.csv of" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "text"), [("config.yml", "a: ["), ("args.yml", "- 1\n"), ("config.yml", "\udcff")])
def test_a_run_with_damaged_settings_stops_no_picture_of_the_others(name, text, tmp_path, capsys):
    for number in (1, 2):
        plain_run(tmp_path / "grpo" / f"ALE-Pong-v5_{number}", 1e-3)
    damaged = tmp_path / "grpo" / "ALE-Pong-v5_2" / "ALE-Pong-v5" / name
    damaged.write_bytes(text.encode(errors="surrogateescape"))
    assert run("zoo.plot", plot.main, [str(tmp_path), "--out", str(tmp_path / "picture.svg")]) == 0
    error = capsys.readouterr().err
    assert error.startswith(f"zoo.plot: broken file left out: settings of {damaged.parents[1]}") and error.count("\n") == 1
    assert "(one run" in (tmp_path / "picture.svg").read_text()


def test_ids_with_a_slash_share_a_panel_with_the_folders_of_their_runs():
    curves = [
        plot.Curve(panel, "a", plot.EVALUATION, np.ones(1), np.ones(1)) for panel in ("ALE-Pong-v5", "ALE/Pong-v5")
    ]
    assert {c.panel for c in plot.in_common_panels(curves)} == {"ALE/Pong-v5"}


def test_markers_stand_where_something_was_measured():
    def curve(steps):
        return plot.Curve("p", "a", plot.EVALUATION, np.array(steps), np.array(steps, dtype=float))

    (same,) = plot.average([curve([1, 2, 3]), curve([1, 2, 3])])
    (other,) = plot.average([curve([1, 2, 3]), curve([1, 2.5, 3])])
    assert same.measured and not other.measured
    (longer,) = plot.average([curve([1, 2, 3]), curve([1, 2, 3, 4])])
    assert longer.measured and longer.steps.tolist() == longer.value.tolist() == [1, 2, 3]
    lines = {mean: plot.draw([c]).axes[0].lines[0] for mean, c in {"e": curve([1, 2]), "long": curve(list(range(60)))}.items()}
    without = ("None", None, "")
    assert lines["e"].get_marker() not in without and lines["long"].get_marker() in without


@pytest.mark.parametrize("suffix", [".pdf", ".png", ".svg"])
def test_one_format_where_the_name_says_so(suffix, tmp_path):
    plain_run(tmp_path / "grpo" / "ALE-Pong-v5_1", 1e-3)
    for name in ("a", "b"):
        assert run("zoo.plot", plot.main, [str(tmp_path), "--out", str(tmp_path / f"{name}{suffix}")]) == 0
    made = sorted(file.name for file in tmp_path.glob("[ab].*"))
    assert made == [f"a{suffix}", f"b{suffix}"]
    start = {".pdf": b"%PDF", ".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    assert (tmp_path / f"a{suffix}").read_bytes().startswith(start)


def test_several_tags_have_a_panel_each(tmp_path):
    with SummaryWriter(str(tmp_path / "tb" / "CartPole-v1" / "GRPO_1")) as writer:
        for step in (10, 20):
            for tag in ("train/loss", "eval/mean_reward"):
                writer.add_scalar(tag, step, step)
    arguments = ["--tensorboard", str(tmp_path / "tb"), "--tag", "train/loss", "eval/mean_reward"]
    assert run("zoo.plot", plot.main, [*arguments, "--out", str(tmp_path / "two.svg")]) == 0
    svg = (tmp_path / "two.svg").read_text()
    assert "CartPole-v1: train/loss" in svg and "CartPole-v1: eval/mean_reward" in svg
    assert "GRPO, training (one run)" in svg and "GRPO, evaluation (one run)" in svg
