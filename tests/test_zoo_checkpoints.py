"""What a run leaves behind: whole checkpoints in a folder of its own, after signals and errors too."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.callbacks import HealthWarning
from sb_grpo.normalization import with_statistics
from sb_grpo.save_util import PLAIN, STATISTICS, read_entry, with_entries
from tests.helpers import run_command, wait_for
from zoo import enjoy
from zoo.common.command_line import BadInput, drawn, run
from zoo.common.folders import new_folder
from zoo.train import main
from zoo.training.checkpoints import FACTS, read_facts, statistics_of
from zoo.training.experiment import end_all
from zoo.training.run_files import Unreadable, check_settings, env_kwargs, read_run_files, read_values, write_values

ROOT = Path(__file__).parents[1]
SMALL = ["--env", "CartPole-v1", "-tb", "", "--num-threads", "1", "--eval-freq", "-1"]
NORMALIZED = ["-params", "n_steps:64", "n_envs:2", "n_epochs:1", "normalize:True"]


def train(folder: Path, *arguments: str) -> int:
    return run("zoo.train", main, ["-f", str(folder), *SMALL, *arguments])


@pytest.fixture
def no_arguments(monkeypatch):
    monkeypatch.setattr(sys, "argv", [])


def count(path: Path) -> float:
    content = read_entry(path, STATISTICS)
    assert content is not None
    return with_statistics(make_vec_env("CartPole-v1"), content).obs_rms.count


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [])
        assert train(folder, "-n", "512", "--save-freq", "256", *NORMALIZED) == 0
    return folder / "grpo" / "CartPole-v1_1"


def test_a_checkpoint_holds_its_statistics_and_says_what_it_is(trained):
    early, last = trained / "rl_model_256_steps.zip", trained / "CartPole-v1.zip"
    assert 256 <= count(early) < 512 <= count(last)
    known = read_facts(early)
    assert known["env_steps"] == 256 and known["step"] == 128 and known["updates"] > 0 and known["mean_return"] > 0
    assert "torch" in known["versions"] and len(known["settings_sha256"]) == 64 and "commit" in known


def test_training_goes_on_with_the_statistics_of_the_weights(trained, tmp_path, no_arguments):
    early = trained / "rl_model_256_steps.zip"
    for number, further in enumerate(([], ["--untrusted"]), 1):
        assert train(tmp_path, "-n", "128", "-i", str(early), *further, *NORMALIZED) == 0
        again = tmp_path / "grpo" / f"CartPole-v1_{number}" / "CartPole-v1.zip"
        assert count(early) + 128 <= count(again) < count(early) + 140  # from 256 steps on, not from 512 or 0


def test_weights_without_their_statistics_are_refused(trained, tmp_path, capsys, no_arguments):
    """A checkpoint as rl_zoo3 leaves it."""
    model = tmp_path / "rl_model_256_steps.zip"
    settings = tmp_path / "CartPole-v1"
    settings.mkdir()
    with zipfile.ZipFile(trained / model.name) as archive:
        entries = {name: archive.read(name) for name in archive.namelist() if name not in (PLAIN, FACTS, STATISTICS)}
    model.write_bytes(with_entries(b"", entries))
    (settings / "config.yml").write_text("normalize: true\n")
    (settings / "vecnormalize.pkl").write_bytes(b"of the end")
    with pytest.raises(BadInput, match="statistics that belong to these weights were not kept"):
        statistics_of(model, settings, normalized=True, trusted=True)
    assert train(tmp_path / "new", "-n", "128", "-i", str(model), *NORMALIZED) == 2
    assert "were not kept" in capsys.readouterr().err
    beside = tmp_path / "rl_model_vecnormalize_256_steps.pkl"  # of SB3's CheckpointCallback
    beside.write_bytes(b"pickled")
    assert statistics_of(model, settings, normalized=True, trusted=True) is not None
    with pytest.raises(BadInput, match=r"--untrusted: the statistics of .* are pickled"):
        statistics_of(model, settings, normalized=True, trusted=False)


def test_normalising_what_was_trained_without_is_refused(tmp_path, capsys, no_arguments):
    plain = ["-params", "n_steps:64", "n_envs:2", "n_epochs:1", "normalize:False"]
    assert train(tmp_path, "-n", "128", *plain) == 0
    model = tmp_path / "grpo" / "CartPole-v1_1" / "CartPole-v1.zip"
    assert train(tmp_path, "-n", "128", "-i", str(model), *NORMALIZED) == 2
    assert "was trained without VecNormalize" in capsys.readouterr().err


def test_going_on_without_the_statistics_of_the_weights_is_refused(trained, tmp_path, capsys, no_arguments):
    model, plain = trained / "CartPole-v1.zip", ["-params", "n_steps:64", "n_envs:2", "n_epochs:1", "normalize:False"]
    assert train(tmp_path, "-n", "128", "-i", str(model), *plain) == 2
    output = capsys.readouterr().err
    assert "normalize:False" in output and "was trained with VecNormalize" in output and "leave normalize out" in output
    assert not (tmp_path / "grpo").exists()


@pytest.mark.parametrize("option", [["--load-checkpoint", "256"], ["--load-last-checkpoint"], []])
def test_a_killed_run_can_be_watched_without_trust(trained, option, capsys):
    arguments = ["-f", str(trained.parents[1]), "--untrusted", "--no-render", "--n-episodes", "1", *option]
    assert run("zoo.enjoy", enjoy.main, arguments) == 0
    assert "(saved after " in capsys.readouterr().out.splitlines()[0]


def test_other_algorithms_have_whole_checkpoints_too(tmp_path, no_arguments):
    options = ["--algo", "ppo", "-n", "128", "--save-freq", "64", "-params", "n_steps:32", "n_envs:2", "normalize:True"]
    assert train(tmp_path, *options) == 0
    run_folder = tmp_path / "ppo" / "CartPole-v1_1"
    assert count(run_folder / "rl_model_64_steps.zip") < count(run_folder / "CartPole-v1.zip")
    assert read_entry(run_folder / "CartPole-v1.zip", PLAIN) is None
    assert read_entry(run_folder / "CartPole-v1.zip", FACTS) is not None


# ---------------------------------------------------------------- how a run ends


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_like_ctrl_c(number, tmp_path):
    command = [sys.executable, "-m", "zoo.train", "-f", str(tmp_path), *SMALL, "-n", "10000000"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(m.read_text().count("\n") > 10 for m in tmp_path.rglob("0.monitor.csv")))
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    folder = tmp_path / "grpo" / "CartPole-v1_1"
    steps = json.loads((folder / "metrics.json").read_text())["env_steps"]
    assert process.returncode == 0 and "Traceback" not in error and steps > 0
    assert read_facts(folder / "CartPole-v1.zip")["env_steps"] == steps


def test_a_full_disk_is_one_line_and_what_was_saved_stays(tmp_path):
    """Files of more than 100 KB find no room: the state to go on from does not fit, the models do."""
    limited = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
    limited += "sys.argv = sys.argv[1:]; runpy.run_module(sys.argv[0], run_name='__main__')"
    options = ["-f", str(tmp_path), *SMALL, "-n", "4096", "--save-freq", "512", "-params", "n_steps:64", "n_envs:2"]
    command = [sys.executable, "-W", "ignore", "-c", limited, "zoo.train", *options, "policy_kwargs:dict(net_arch=[128])"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1 and result.stderr.startswith("zoo.train: File too large"), result.stderr
    assert result.stderr.count("\n") == 1
    for model in tmp_path.rglob("*.zip"):
        assert GRPO.load(model, device="cpu").num_timesteps > 0


def test_outputs_that_nobody_reads_are_dropped():
    """A process whose pipe has no reader any more can go on printing."""
    code = "import os, sys; r, w = os.pipe(); os.dup2(w, 1); os.close(r); os.close(w)\n"
    code += "from zoo.common.command_line import drop_dead_outputs; drop_dead_outputs(); print('x' * 10**6, flush=True)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and result.stderr == ""


def train_in(env, folder, *options):
    """``zoo.train`` in an env of tests/zoo_envs.py."""
    size = ["-n", "1000", "-params", "n_steps:64", "n_envs:1", "n_epochs:1"]
    command = ["zoo.train", "-f", str(folder), *SMALL, "--gym-packages", "zoo_envs", "--env", env, *size, *options]
    return run_command(*command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")})


def test_an_env_that_cannot_be_built_in_its_own_process_is_said(tmp_path):
    result = train_in("Unbuilt-v0", tmp_path, "--vec-env", "subproc")
    messages = result.stderr.strip().splitlines()
    assert result.returncode == 2 and messages[-1].startswith("zoo.train: --vec-env subproc: the process of an env ended")
    assert "OSError: no licence for a second simulator" in messages and not list(tmp_path.rglob("*.zip"))


def test_an_env_that_does_not_reach_its_simulator_says_so_itself(tmp_path):
    result = train_in("Unreached-v0", tmp_path)
    assert "no simulator at port 5" in result.stderr and "subproc" not in result.stderr and result.returncode != 0


def test_observations_by_name_need_a_policy_that_is_named(tmp_path):
    result = train_in("Parts-v0", tmp_path)
    assert result.returncode == 2 and "add --hyperparams policy:MultiInputPolicy, or give Parts-v0 an" in result.stderr
    assert train_in("Parts-v0", tmp_path, "policy:MultiInputPolicy", "n_timesteps:64").returncode == 0


class Unbegun(BaseCallback):
    """Cannot be ended before it has begun."""

    def _on_training_start(self):
        self.begun = True

    def _on_training_end(self):
        assert self.begun

    def _on_step(self):
        return True


class Endless(Unbegun):
    def _on_training_end(self):
        raise RuntimeError("no end")


def test_ends_of_callbacks_hide_no_error(capsys):
    begun, unbegun = Endless(), Unbegun()
    begun.model = SimpleNamespace(num_timesteps=0)
    begun.on_training_start({"self": begun.model}, {})
    end_all([begun, unbegun])
    assert capsys.readouterr().err == "Endless could not end: RuntimeError: no end\n"


def test_what_was_learnt_before_an_error_is_saved(tmp_path):
    result = train_in("Fragile-v0", tmp_path)
    assert result.returncode == 1 and "the arm fell off" in result.stderr
    known = read_facts(tmp_path / "grpo" / "Fragile-v0_1" / "Fragile-v0.zip")
    assert 300 < known["env_steps"] < 400 and f"ended in an error after {known['env_steps']} steps" in result.stdout


@pytest.mark.slow
def test_two_trainings_started_at_once_have_two_folders(tmp_path):
    options = ["-n", "512", "-params", "n_steps:512", "n_envs:1", "n_epochs:1", "group_size:2"]
    command = [sys.executable, "-m", "zoo.train", "-f", str(tmp_path), *SMALL, "-tb", str(tmp_path / "tb"), *options]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate(timeout=120)[1] for process in both] == [b"", b""]
    assert len(list((tmp_path / "grpo").glob("CartPole-v1_[12]/metrics.json"))) == 2
    assert len(list((tmp_path / "tb" / "CartPole-v1").glob("GRPO_[12]/events*"))) == 2


def test_many_at_once_have_as_many_folders(tmp_path):
    (tmp_path / "a[1]_7_of_old").mkdir()
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: new_folder(tmp_path, "a[1]"), range(64)))
    assert sorted(int(path.name.split("_")[1]) for path in made) == list(range(8, 72))


def test_a_picture_that_cannot_be_drawn_ends_nothing(tmp_path, capsys, no_arguments, monkeypatch):
    def fail(*_):
        raise RuntimeError("no\nfonts")

    monkeypatch.setattr("zoo.plot.plot_learning_curve", fail)
    assert train(tmp_path, "-n", "64", "-params", "n_steps:64", "n_envs:1", "n_epochs:1") == 0
    output = capsys.readouterr()
    assert "The learning curve could not be drawn: RuntimeError: no fonts" in output.err and "Metrics:" in output.out
    assert drawn("picture", lambda: tmp_path) == tmp_path


def test_a_training_that_gives_up_is_saved_and_says_why(tmp_path, capsys, no_arguments):
    options = ["--recover", "1", "-n", "4096", "--seed", "0", "-params", "n_steps:64", "n_envs:2", "learning_rate:1.0"]
    assert train(tmp_path, *options) == 3
    output = capsys.readouterr()
    assert "Recovery: 1 of 1" in output.out and "Traceback" not in output.err
    assert output.err.startswith(
        "zoo.train: The training has broken down 2 times, and max_retries is 1; the last time: The rule"
    )
    assert read_facts(tmp_path / "grpo" / "CartPole-v1_1" / "CartPole-v1.zip")["env_steps"] < 4096


@pytest.mark.parametrize(("rate", "code"), [("1e-4", 0), ("0.5", 3)])
def test_the_exit_code_of_an_unhealthy_training_is_3(rate, code, tmp_path, no_arguments):
    options = ["--health", "strict", "-n", "1024", "-params", "n_steps:256", "n_envs:2", f"learning_rate:{rate}"]
    with pytest.warns(HealthWarning) if code else contextlib.nullcontext():
        assert train(tmp_path, *options) == code


# ---------------------------------------------------------------- settings


def test_settings_are_plain_yaml(tmp_path):
    values = {"b": (1, 2), "a": {"x": [1.5, None, True]}, "rate": "lin_3e-4", "object": Path}
    write_values(tmp_path / "a.yml", values)
    assert read_values(tmp_path / "a.yml") == {**values, "object": Unreadable("<class 'pathlib.Path'>")}
    assert read_values(tmp_path / "none.yml") == {}


def test_settings_of_rl_zoo3_are_read_without_running_them(tmp_path):
    trap = tmp_path / "trap"
    (tmp_path / "config.yml").write_text("env_kwargs: {c: 3}\n")
    (tmp_path / "args.yml").write_text(
        "!!python/object/apply:collections.OrderedDict\n- - - env_kwargs\n    - a: 1\n"
        f"      b: !!python/object/apply:os.system ['touch {trap}']\n"
    )
    assert yaml.compose((tmp_path / "args.yml").read_text()) is not None
    with pytest.raises(BadInput, match=r"a Python object as b, object/apply:os\.system.*--env-kwargs b:VALUE"):
        env_kwargs(read_run_files(tmp_path), tmp_path, {})
    assert env_kwargs(read_run_files(tmp_path), tmp_path, {"b": 2}) == {"a": 1, "b": 2, "c": 3}
    assert not trap.exists()


@pytest.mark.parametrize(
    "name",
    [
        "os.system", "subprocess.Popen", "gymnasium.wrappers.os", "gymnasium.make", {"a": 1, "b": 2},
        {"gymnasium.wrappers.RecordVideo": {"video_folder": "x"}}, {"gymnasium.wrappers.ArrayConversion": {"env_xp": "evil"}},
        "gymnasium.wrappers.rendering.RecordVideo", "stable_baselines3.common.monitor.Monitor", 3, ["a"],
        {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": "/etc/passwd"}},
    ],
)
def test_wrappers_of_strangers_are_refused(name):
    with pytest.raises(BadInput, match="--untrusted: the run's files have env_wrapper"):
        check_settings({"env_wrapper": [name]})
    check_settings({"env_wrapper": {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 5}}})
    check_settings({"env_wrapper": "rl_zoo3.wrappers.FrameSkip"})
    check_settings({})


def test_another_algorithms_weights_are_named_before_their_statistics(tmp_path, capsys, no_arguments):
    PPO("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu").save(tmp_path / "ppo")
    for settings in (NORMALIZED, ["-params", "normalize:False"]):
        assert train(tmp_path, "-n", "128", "-i", str(tmp_path / "ppo.zip"), *settings) == 2
        assert "ppo.zip was written by PPO" in (message := capsys.readouterr().err) and "docs/fine_tuning.md" in message
