"""``zoo.enjoy`` on a real run: which model it takes, what it says, and pictures without a display."""

import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import imageio.v3 as imageio
import pytest

from tests.helpers import run_command
from zoo import enjoy
from zoo.common.command_line import BadInput, run

ROOT = Path(__file__).parents[1]
WITHOUT_DISPLAY = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder of logs with one run: normalised observations, checkpoints, evaluations."""
    folder = tmp_path_factory.mktemp("logs")
    options = ["-f", str(folder), "-tb", "", "--num-threads", "1", "--seed", "1"]
    options += ["-n", "1024", "--eval-freq", "600", "--save-freq", "512", "-params", "n_steps:64", "normalize:True"]
    result = run_command("zoo.train", *options, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return folder


def enjoy_here(folder: Path, *arguments: str) -> int:
    return run("zoo.enjoy", enjoy.main, ["-f", str(folder), *arguments])


@pytest.mark.slow
def test_a_gif_and_its_returns_without_a_display(trained, tmp_path):
    picture = tmp_path / "new" / "cartpole.gif"
    command = [sys.executable, "-m", "zoo.enjoy", "-f", str(trained), "--n-episodes", "2", "--record", str(picture)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=WITHOUT_DISPLAY)
    assert result.returncode == 0 and result.stderr == ""
    assert f"Loading {trained}/grpo/CartPole-v1_1/CartPole-v1.zip" in result.stdout
    lengths = [int(line.rsplit(" ", 1)[1]) for line in result.stdout.splitlines() if line.startswith("Episode ")]
    assert len(lengths) == 2 and "2 episodes: mean return" in result.stdout
    frames = imageio.imread(picture)
    assert frames.shape[1:] == (400, 600, 3)
    # Every step is drawn; a GIF keeps one frame of those in a row that do not differ.
    assert 0.8 * sum(lengths) < len(frames) <= sum(lengths) + 1
    assert frames[0].min() < 50 < 200 < frames[0].max()  # a black cart on white


def test_a_video(trained, tmp_path, capsys):
    assert enjoy_here(trained, "-n", "30", "--record", str(tmp_path / "cartpole.mp4"), "--stochastic") == 0
    assert len(imageio.imread(tmp_path / "cartpole.mp4")) == 31


def test_the_newest_run_that_holds_a_model(trained, capsys):
    empty = trained / "grpo" / "CartPole-v1_7" / "CartPole-v1"
    empty.mkdir(parents=True, exist_ok=True)
    assert enjoy_here(trained, "--no-render", "--n-episodes", "1", "--verbose", "0") == 0
    assert "CartPole-v1_1/CartPole-v1.zip" in capsys.readouterr().out
    assert enjoy_here(trained, "--no-render", "--exp-id", "7") == 2
    assert "has no model of that run of CartPole-v1; there are 1." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "name"),
    [
        (["--load-best"], "best_model.zip"),
        (["--load-checkpoint", "512"], "rl_model_512_steps.zip"),
        (["--load-last-checkpoint"], "rl_model_1024_steps.zip"),
    ],
)
def test_which_model(trained, capsys, option, name):
    assert enjoy_here(trained, "--no-render", "--n-episodes", "1", *option) == 0
    assert name in capsys.readouterr().out.splitlines()[0]


def test_the_best_model_needs_no_checkpoints(tmp_path):
    args = Namespace(load_best=True, load_checkpoint=None, load_last_checkpoint=True)
    (tmp_path / "best_model.zip").touch()
    assert enjoy.find_model(tmp_path, "CartPole-v1", args).name == "best_model.zip"
    args.load_best = False
    with pytest.raises(BadInput, match=r"no rl_model_\*_steps.zip; there are \['best_model.zip'\]"):
        enjoy.find_model(tmp_path, "CartPole-v1", args)


def test_statistics_are_frozen_and_of_the_time_of_the_model(trained, monkeypatch, capsys):
    seen = []
    play = enjoy.play

    def keep(model, env, deterministic, args):
        before = env.obs_rms.mean.copy()
        episodes = play(model, env, deterministic, args)
        assert not env.training and not env.norm_reward and (env.obs_rms.mean == before).all()
        seen.append(env.obs_rms.count)
        return episodes

    monkeypatch.setattr(enjoy, "play", keep)
    assert enjoy_here(trained, "--no-render", "--n-episodes", "1") == 0
    assert enjoy_here(trained, "--no-render", "--n-episodes", "1", "--load-best") == 0
    last, best = seen
    assert 600 < best < last
    assert last > 1024  # the only evaluation was at step 600


def test_the_same_seed_shows_the_same_episodes(trained, capsys):
    messages = []
    for seed in ("5", "5", "6"):
        assert enjoy_here(trained, "--no-render", "--n-episodes", "3", "--seed", seed) == 0
        messages.append(capsys.readouterr().out)
    assert messages[0] == messages[1] != messages[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--env", "CartPole-v9"], "Did you mean CartPole-v1"),
        (["--env", "CartPole-v0", "--no-render"], "no model of a run of CartPole-v0. Did you mean CartPole-v1?"),
        (["--algo", "ppo", "--no-render"], "no model of a run of CartPole-v1"),
        (["--load-checkpoint", "7", "--no-render"], "no rl_model_7_steps.zip; there are ['CartPole-v1.zip', 'best_model.zip'"),
        (["--no-render", "--n-episodes", "0"], "--n-episodes 0 must be at least 1"),
        (["--no-render", "--n-episodes", "-3"], "--n-episodes -3 must be at least 1"),
        (["--no-render", "-n", "0"], "--n-timesteps 0 must be at least 1"),
        (["--no-render", "--seed", "-1"], "--seed -1 must be a whole number from 0 to 4294967295"),
        (["--record", "x.avi"], "must end in .gif or .mp4"),
        (["--deterministic", "--stochastic"], "not allowed with argument"),
        ([], "there is no display for a window: use --record FILE.gif, or --no-render"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(trained, arguments, says, monkeypatch, capsys):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    try:
        code = enjoy_here(trained, *arguments)
    except SystemExit as stop:  # argparse
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2 and says in error and error.count("\n") == 1


def test_a_broken_model_is_named(trained, tmp_path, capsys):
    shutil.copytree(trained / "grpo" / "CartPole-v1_1", tmp_path / "grpo" / "CartPole-v1_1")
    model = tmp_path / "grpo" / "CartPole-v1_1" / "CartPole-v1.zip"
    model.write_bytes(model.read_bytes()[:100])
    assert enjoy_here(tmp_path, "--no-render") == 2
    error = capsys.readouterr().err
    assert f"cannot load {model}" in error and error.count("\n") == 1
