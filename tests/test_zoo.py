"""The command line, run for real on tiny settings."""

import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import rl_zoo3
import yaml
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sb_grpo import GRPO
from tests.helpers import heed_ctrl_c, run_command, wait_for
from zoo.__main__ import COMMANDS
from zoo.common.command_line import run
from zoo.common.episodes import Counting, with_monitor_outside
from zoo.common.provenance import command, without_passwords
from zoo.train import main
from zoo.training.experiment import build, register
from zoo.training.settings import check_settings, make_schedule

ROOT = Path(__file__).parents[1]


def zoo_train(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    options = ["--log-folder", str(folder), "--tensorboard-log", str(folder / "tb"), "--num-threads", "1"]
    return run_command("zoo.train", *options, *arguments, cwd=ROOT, env={**os.environ, **variables})


@pytest.mark.parametrize(
    "options", [[], pytest.param(["--vec-env", "subproc"], marks=pytest.mark.slow)], ids=["dummy", "subproc"]
)
def test_a_run_leaves_model_settings_curve_and_metrics(options, tmp_path):
    small = ["--hyperparams", "n_steps:64", "n_envs:2", "normalize:True", "n_epochs:1"]
    result = zoo_train(tmp_path, "--env", "CartPole-v1", "-n", "300", "--eval-freq", "150", "--seed", "3", *small, *options)
    assert result.returncode == 0, result.stderr
    assert "Mean return over 20 episodes" in result.stdout and "Stopped after" not in result.stdout
    run = tmp_path / "grpo" / "CartPole-v1_1"
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["env_steps"] == 384 and metrics["gradient_steps"] > 0 and len(metrics["final_returns"]) == 20
    assert metrics["seed"] == 3 and "torch" in metrics["versions"] and metrics["wall_time_s"] > 0
    assert np.load(run / "evaluations.npz")["timesteps"].tolist() == [150, 300]
    assert (run / "CartPole-v1" / "vecnormalize.pkl").exists() and (run / "best_model.zip").exists()
    assert (run / "learning_curve.png").stat().st_size > 10_000
    assert GRPO.load(run / "CartPole-v1.zip").n_steps == 64
    assert list((tmp_path / "tb" / "CartPole-v1").glob("GRPO_1/events*"))
    assert not list(run.rglob("*.part"))


def test_a_run_that_goes_on_counts_its_own_gradient_steps(tmp_path):
    """And a run without TensorBoard names no command for it."""
    small = ["--env", "CartPole-v1", "-n", "128", "--eval-freq", "-1", "--hyperparams", "n_steps:64", "n_envs:2", "n_epochs:1"]
    assert zoo_train(tmp_path, *small).returncode == 0
    first = tmp_path / "grpo" / "CartPole-v1_1"
    result = zoo_train(tmp_path, *small, "--trained-agent", str(first / "CartPole-v1.zip"), "--tensorboard-log", "")
    assert result.returncode == 0, result.stderr
    for trust in ([], ["--untrusted"]):
        other = zoo_train(tmp_path, "--env", "Pendulum-v1", "--trained-agent", str(first / "CartPole-v1.zip"), *trust)
        assert other.returncode == 2 and other.stderr.count("\n") == 1
        assert f"{first / 'CartPole-v1.zip'}: a model of CartPole-v1 cannot go on in Pendulum-v1, whose obs" in other.stderr
    metrics = [json.loads((run / "metrics.json").read_text()) for run in (first, tmp_path / "grpo" / "CartPole-v1_2")]
    assert [m["gradient_steps"] for m in metrics] == [2, 2]
    assert "TensorBoard:" not in result.stdout and "Metrics:" in result.stdout


def test_ctrl_c_keeps_the_model_and_says_how_far_it_got(tmp_path):
    command = [sys.executable, "-m", "zoo.train", "--log-folder", tmp_path, "--tensorboard-log", tmp_path / "tb"]
    options = ["--env", "CartPole-v1", "-n", "10000000", "--eval-freq", "-1", "--num-threads", "1"]
    process = subprocess.Popen(
        [*map(str, command), *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=heed_ctrl_c,
    )  # fmt: skip
    wait_for(lambda: any(m.read_text().count("\n") > 10 for m in tmp_path.rglob("0.monitor.csv")))  # training has begun
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=60)
    run = tmp_path / "grpo" / "CartPole-v1_1"
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["planned_steps"] == 10_000_000 > metrics["env_steps"] > 0
    assert f"Stopped after {metrics['env_steps']:,} of 10,000,000 steps" in output and "Traceback" not in error
    assert GRPO.load(run / "CartPole-v1.zip").num_timesteps == metrics["env_steps"]


def test_other_algorithms_take_the_same_path(tmp_path):
    small = ["--hyperparams", "n_steps:32", "n_envs:2", "batch_size:32"]
    result = zoo_train(tmp_path, "--algo", "ppo", "--env", "CartPole-v1", "-n", "64", "--eval-freq", "-1", *small)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "ppo" / "CartPole-v1_1" / "metrics.json").read_text())["algo"] == "ppo"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--env", "CartPole-v7"], "env 'CartPole-v7' not found. Did you mean CartPole-v1"),
        (["--hyperparams", "learing_rate:0.1"], "no hyperparameter 'learing_rate'. Did you mean learning_rate?"),
        (["--conf-file", "broken.yml"], "n_epochs='ten' is str, but must be an integer"),
        (["--trial-id", "3", "--study-name", "x", "--storage", "none.log"], "--storage none.log: there is no such file"),
        (["--algo", "ppo", "--profile", "balanced"], "--profile balanced is for grpo, not for ppo"),
        (["--optimize-hyperparameters"], "python -m zoo.tune"),
        (["--trained-agent", "none.zip"], "there is no such .zip file"),
        (["-n", "0"], "--n-timesteps 0: at least 1"),
        (["-n", "-5"], "--n-timesteps -5: at least 1"),
        (["--n-eval-envs", "0"], "--n-eval-envs 0 must be at least 1"),
        (["--eval-episodes", "0"], "--eval-episodes 0 must be at least 1"),
        (["--log-interval", "0"], "--log-interval 0: at least 1"),
        (["--log-interval", "-7"], "--log-interval -7: at least 1"),
        (["--study-name", "x"], "--storage and --study-name say where the settings of --trial-id are from"),
        (["--env", "CartPole-v1", "--conf-file", "nosuch"], "--conf-file nosuch: No module named 'nosuch'"),
        (["--env", "CartPole-v1", "--conf-file", "nosuch.py"], "--conf-file nosuch.py: [Errno 2]"),
        (["--algo", "ppo", "--log-interval", "0"], "--log-interval 0: at least 1"),
        (["--seed", "99999999999"], "--seed 99999999999 must be a whole number from 0 to 4294967295; below 0: a random one"),
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--"], "unrecognized arguments: --"),
        (["--learning-rate", "3"], "a setting of the algorithm is given as -params learning_rate:3"),
        (["--learning-rate=3", "-n", "4"], "a setting of the algorithm is given as -params learning_rate:3"),
        (["--env", "CartPole-v1", "--hyperparams", "group_size:0"], "group_size=0 must be an integer"),
        (["-params", "gamma:0.9", "-params", "n_steps:8", "gamma:0.8"], "gamma is given twice, 0.9 before"),
        (["--conf-file", "twice.yml"], "twice.yml: line 1: 'n_envs' is given twice"),
        (["--env", "CartPole-v1", "-params", "callback:42"], "callback: 42 must be a class by its dotted name"),
        (["--env", "CartPole-v1", "-params", "normalize:{'clip_obs':-1}"], "normalize: clip_obs=-1 must be a number above 0"),
        (["--env", "CartPole-v1", "-params", "normalize:dict(gama=1)"], "VecNormalize has no argument 'gama'"),
        (["--env", "CartPole-v1", "-params", "normalize:dict(norm_obs=1)"], "norm_obs=1 must be True or False"),
        (["--env-kwargs", "max_episode_steps:abc"], "max_episode_steps:abc: must be a whole number of steps from 1 on"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, says, tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.yml").write_text("CartPole-v1: {n_timesteps: 100, policy: MlpPolicy, n_epochs: ten}")
    (tmp_path / "twice.yml").write_text("CartPole-v1: {n_timesteps: 100, n_envs: 2, policy: MlpPolicy, n_envs: 4}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    try:
        code = run("zoo.train", main, arguments)
    except SystemExit as stop:  # argparse
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2 and says in error and error.count("\n") == 1


def test_an_option_that_is_given_again_adds_to_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    arguments = ["--env", "CartPole-v1", "-n", "64", "--eval-freq", "-1", "-f", str(tmp_path), "--verbose", "0"]
    assert run("zoo.train", main, [*arguments, "-params", "n_steps:32", "n_envs:2", "-params", "gamma:0.9"]) == 0
    settings = GRPO.load(tmp_path / "grpo" / "CartPole-v1_1" / "CartPole-v1.zip", device="cpu").settings
    assert (settings["n_steps"], settings["gamma"]) == (32, 0.9)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("plot", ["{runs}", "--out", "{file}/p"]), ("plot", ["{runs}", "--out", "/proc/p.svg"]),
        ("compare", ["{runs}", "--out", "{file}"]), ("evaluate", ["{runs}", "--out", "{file}"]),
        ("export", ["{runs}", "--out", "{runs}"]), ("dashboard", ["{runs}", "--out", "{file}/x.html"]),
        ("report", ["{runs}", "--html", "--out", "{file}/x.html"]),
        ("record", ["--env", "CartPole-v1", "--out", "{file}/r.json"]),
        ("enjoy", ["--env", "CartPole-v1", "--record", "{file}/v.gif"]),
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_before_any_work(name, arguments, tmp_path, capsys):
    runs, file = tmp_path / "runs", tmp_path / "file"
    runs.mkdir()
    file.touch()
    command = importlib.import_module(f"zoo.{name}").main
    assert run(f"zoo.{name}", command, [a.format(runs=runs, file=file) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"zoo.{name}: --") and error.count("\n") == 1
    assert any(message in error for message in ("cannot be made", "cannot be written to", "is a folder: name a file"))


RESCALE = "env_wrapper: [gymnasium.wrappers.RescaleAction: {min_action: -1, max_action: 1}]"
STOP = "callback: [stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes: {max_episode: 5}]"
MONITOR = "vec_env_wrapper: [stable_baselines3.common.vec_env.VecMonitor: {filname: x}]"


@pytest.mark.parametrize(
    ("extra", "arguments", "says"),
    [
        (
            RESCALE,
            [],
            "a.yml: env_wrapper: gymnasium.wrappers.RescaleAction does not fit the env: RescaleAction requires",
        ),
        (
            RESCALE.replace("max_action", "most"),
            [],
            "RescaleAction missing a required argument: 'max_action'; it takes min",
        ),
        (RESCALE.replace("{", "[").replace("}", "]"), [], "its arguments must be a mapping"),
        (STOP, [], "StopTrainingOnMaxEpisodes missing a required argument: 'max_episodes'; it takes max_episodes, verbose=0."),
        (STOP, [], "Did you mean max_episodes?"),
        (MONITOR, [], "VecMonitor got an unexpected keyword argument 'filname'; it takes filename=None, info_keywords=()"),
        (
            "n_envs: 1",
            ["--env-kwargs", "gg:3"],
            "--env-kwargs gg:3: CartPole-v1 has no argument 'gg'; it takes sutton_",
        ),
        ("n_envs: 1", ["--eval-env-kwargs", "gg:3"], "--eval-env-kwargs gg:3: CartPole-v1 has no argument 'gg'; it takes"),
        ("env_kwargs: {gg: 3}", [], "a.yml: env_kwargs gg:3: CartPole-v1 has no argument 'gg'; it takes"),
        ("n_envs: 1", ["--env-kwargs", "g=3"], "'g=3' must be name:value, for example render_mode:rgb_array"),
        ("n_envs: 1", ["--hyperparams", "learning_rate:-0.1"], "learning_rate=-0.1"),
        ("n_envs: 1", ["--hyperparams", "n_envs:0"], "--hyperparams: n_envs=0 must be at least 1"),
        ("n_envs: 1", ["-f", "/proc/nowhere"], "--log-folder: /proc/nowhere/grpo cannot be made (No such file or directory)"),
        ("n_envs: 1", ["-tb", "/proc/nowhere"], "--tensorboard-log: /proc/nowhere/CartPole-v1 cannot be made"),
    ],
)
def test_a_command_that_is_refused_names_the_culprit_and_leaves_nothing(extra, arguments, says, tmp_path, monkeypatch, capsys):
    """No run folder above all, which would use up a number and be counted among the runs."""
    (tmp_path / "a.yml").write_text(f"CartPole-v1: {{n_timesteps: 100, policy: MlpPolicy, {extra}}}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    try:
        code = run("zoo.train", main, ["--env", "CartPole-v1", "-conf", "a.yml", *arguments])
    except SystemExit as stop:  # argparse
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2 and says in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.yml"]


def test_what_was_there_before_a_refused_command_stays(tmp_path, monkeypatch):
    (tmp_path / "grpo" / "CartPole-v1_1").mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", [])
    refused = ["--env", "CartPole-v1", "-f", str(tmp_path), "--hyperparams", "learning_rate:-0.1"]
    assert run("zoo.train", main, refused) == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["CartPole-v1_1", "grpo"]


def test_the_command_is_kept_as_a_shell_takes_it_but_for_passwords(monkeypatch):
    typed = [
        "python",
        "-m",
        "zoo.train",
        "--hyperparams",
        "policy_kwargs:dict(net_arch=[8, 8])",
        "--storage",
        "pg://me:p@w@db/x",
    ]
    monkeypatch.setattr(sys, "orig_argv", typed)
    assert shlex.split(command()) == [*typed[:-1], "pg://me:***@db/x"]
    for plain in ("grpc://host:13000", "sqlite:////a/b:c@d.db", "--env", "me@host"):
        assert without_passwords(plain) == plain
    for secret in ("pg://me:p/w@db/x", "pg://me:p w@db/x", "pg://me:p@w@db/x"):
        assert without_passwords(secret) == "pg://me:***@db/x"
    assert without_passwords("pg://db/x?user=me&password=secret&a=b") == "pg://db/x?user=me&password=***&a=b"


def test_the_table_of_the_docs_has_all_commands():
    rows = [line for line in (ROOT / "docs" / "zoo.md").read_text().splitlines() if line.startswith("| `python -m zoo.")]
    assert rows == [f"| `python -m zoo.{name}` | {does} |" for name, does in COMMANDS.items()]


def test_bad_input_of_the_real_command(tmp_path):
    result = zoo_train(tmp_path, "--env", "CartPole-v7")
    assert result.returncode == 2 and result.stderr.startswith("zoo.train: ") and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"gama": 0.9}, "grpo has no hyperparameter 'gama'. Did you mean gamma?"),
        ({"vf_coef": 0.5}, "vf_coef is a setting of PPO's critic, and here there is no critic. Leave it out"),
        ({"use_rms_prop": True}, "use_rms_prop is a setting of A2C's optimiser"),
        ({"cg_max_steps": 5}, "cg_max_steps is a setting of TRPO's step"),
        ({"seed": 3}, "seed is not a hyperparameter but an option: --seed"),
        ({"learning_rate": "3e-4"}, "YAML takes 3e-4 for text: write 0.0003 or !!float 3e-4"),
        ({"learning_rate": "step_3"}, "'step_3' is no schedule"),
        ({"clip_range": [0.2]}, "clip_range=[0.2] is list, but must be a number, lin_3e-4"),
        ({"gamma": "high"}, "gamma='high' is str, but must be a number"),
        ({"n_steps": 12.5}, "n_steps=12.5 is float, but must be an integer or null"),
        ({"use_sde": 1}, "use_sde=1 is int, but must be True or False"),
        ({"advantage_kwargs": "dict(memory=1)"}, "is str, but must be a mapping or null"),
        ({"n_envs": "8"}, "n_envs='8' is str, but must be an integer"),
        ({"n_envs": 0}, "n_envs=0 must be at least 1"),
        ({"n_envs": -2}, "n_envs=-2 must be at least 1"),
        ({"frame_stack": 0}, "frame_stack=0 must be at least 1"),
        ({"n_timesteps": 0}, "n_timesteps=0 must be at least 1"),
        ({"n_timesteps": float("inf")}, "n_timesteps=inf must be at least 1, and finite"),
        ({"n_timesteps": float("nan")}, "n_timesteps=nan must be at least 1"),
        ({"noise_type": "normal", "noise_std": -0.1}, "noise_std=-0.1 must be at least 0"),
        ({"noise_type": "norml"}, "noise_type='norml' must be normal or ornstein-uhlenbeck. Did you mean normal?"),
        ({"noise_type": "normal"}, "noise_type='normal' needs noise_std"),
    ],
)
def test_names_and_types_of_settings(settings, says):
    register()
    with pytest.raises(ValueError) as error:
        check_settings("grpo", {"n_timesteps": 1e5, "policy": "MlpPolicy", **settings}, lambda name: "my.yml")
    assert str(error.value).startswith("my.yml: ") and says in str(error.value)
    with pytest.raises(ValueError, match="policy is missing"):
        check_settings("grpo", {"n_timesteps": 1e5}, lambda name: "my.yml")


def test_the_checks_refuse_none_of_the_entries_of_rl_zoo3():
    folder = Path(rl_zoo3.__file__).parent / "hyperparams"
    checked = 0
    for algo in set(rl_zoo3.ALGOS) - {"grpo"}:
        for settings in yaml.safe_load((folder / f"{algo}.yml").read_text()).values():
            check_settings(algo, settings, lambda name: name)
            checked += 1
    assert checked > 100


def test_a_schedule_warms_up_is_saved_and_loaded(tmp_path):
    schedule = make_schedule("cos_1e-3_0.2")
    assert [schedule(1 - done) for done in (0, 0.1, 0.2, 0.6, 1)] == pytest.approx([0, 5e-4, 1e-3, 5e-4, 0])
    assert make_schedule("lin_2e-3")(0.5) == pytest.approx(1e-3)
    for wrong in ("sin_1", "lin_x", "lin_1_2", "cos_1_2", "3e-4", "cos"):
        with pytest.raises(ValueError, match="is no schedule"):
            make_schedule(wrong)
    small = {"n_steps": 32, "n_envs": 2, "n_epochs": 1, "batch_size": 32}
    model, _ = build(
        "CartPole-v1",
        0,
        str(tmp_path),
        n_timesteps=256,
        learning_rate="cos_1e-3_0.5",
        loss_kwargs=dict(clip_range_high="lin_0.3"),
        **small,
    ).setup_experiment()
    model.learn(256)
    assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model")
    assert loaded.lr_schedule(0.75) == pytest.approx(5e-4) and loaded.lr_schedule(0.5) == pytest.approx(1e-3)
    assert loaded.options.loss.clip_range_high(0.5) == pytest.approx(0.15)


@pytest.mark.slow
def test_a_profile_lies_between_entry_and_command_line_and_is_tracked(tmp_path):
    arguments = ["--profile", "conservative", "--hyperparams", "n_epochs:1", "n_steps:32", "advantage:step", "--track"]
    often = ["--eval-freq", "128", "--save-freq", "256"]
    result = zoo_train(tmp_path, "--env", "CartPole-v1", "-n", "256", *often, *arguments, WANDB_MODE="offline")
    assert result.returncode == 0, result.stderr
    model = GRPO.load(tmp_path / "grpo" / "CartPole-v1_1" / "CartPole-v1.zip")
    assert model.gae_lambda == 0.98  # the entry's
    assert model.group_size == 16 and model.target_kl == 0.01  # the profile's, which the entry does not name
    assert model.lr_schedule(0.9) == pytest.approx(1e-4)  # the profile's, over the entry's
    assert model.n_epochs == 1 and model.advantage == "step"  # the command line's

    (event,) = (tmp_path / "runs").glob("CartPole-v1__grpo__*/CartPole-v1/GRPO_1/events*")
    tags = EventAccumulator(str(event)).Reload()
    content = tags.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"learning_rate" in content and b"cos_1e-4_0.1" in content and b"group_size" in content

    # Through TensorBoard, and the callback's settings; models are versions of an artifact, with what is known of them; charts
    # are over env steps.
    parts = (
        b"rollout/ep_rew_mean",
        b"group_size",
        b"grpo-CartPole-v1-seed-",
        b"best_model.zip",
        b"settings_sha256",
        b'\x12\x01*"\x0bglobal_step',  # wandb's own records: the step of all that matches "*", and of one by its name
        b'eval/mean_reward"\x0bglobal_step',
    )

    def missing() -> list[bytes]:
        logged = [file.read_bytes() for file in (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")]
        return [part for part in parts if len(logged) != 1 or part not in logged[0]]

    wait_for(lambda: not missing(), seconds=30)  # wandb writes in a process of its own


def test_tracking_without_wandb_names_the_extra(tmp_path):
    without = "import sys; sys.modules['wandb'] = None; from zoo.train import main; from zoo.common.command_line import run; "
    call = without + f"sys.exit(run('zoo.train', main, ['--track', '-f', {str(tmp_path)!r}]))"
    result = subprocess.run([sys.executable, "-c", call], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (
        result.returncode == 2 and result.stderr == "zoo.train: --track needs Weights & Biases: pip install -e '.[track]'.\n"
    )


def test_tracking_without_a_key_says_how_to_get_one(tmp_path):
    without = {"WANDB_MODE": "online", "WANDB_API_KEY": "", "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    result = zoo_train(tmp_path, "--env", "CartPole-v1", "-n", "64", "--track", **without)
    error = result.stderr.splitlines()[-1]
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert error.startswith("zoo.train: --track: ") and "wandb login" in error and "WANDB_MODE=offline" in error


def test_every_entry_of_the_yaml_builds_a_model(tmp_path):
    entries = yaml.safe_load((ROOT / "zoo/hyperparams/grpo.yml").read_text())
    mujoco = "HalfCheetah Hopper Walker2d Ant Humanoid HumanoidStandup Swimmer Reacher Pusher InvertedPendulum"
    requested = [f"{name}-v5" for name in [*mujoco.split(), "InvertedDoublePendulum"]]
    requested += ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "LunarLander-v3"]
    requested += ["LunarLanderContinuous-v3", "BipedalWalker-v3", "MiniGrid-Empty-Random-5x5-v0", "atari", "default"]
    assert set(requested) <= set(entries)
    for env_id in sorted(set(entries) - {"atari", "default"}) + ["PongNoFrameskip-v4"]:
        model, _ = build(env_id, 0, str(tmp_path)).setup_experiment()
        assert isinstance(model, GRPO) and gym.spec(env_id) is not None
        model.env.close()
    model, _ = build("CartPole-v0", 0, str(tmp_path)).setup_experiment()  # no entry of its own: "default"
    assert model.n_envs == entries["default"]["n_envs"]


def test_saved_models_find_their_schedule_from_a_checkout_and_from_a_wheel():
    """Models name its function by module: one that both have."""
    assert make_schedule("cos_3e-4").func.__module__ == "sb_grpo.maths.schedules"


def test_a_time_limit_outside_monitor_ends_the_final_evaluation_too(tmp_path):
    """As in rl_zoo3's own example config; Monitor, below it, never learns of these ends."""
    config = tmp_path / "limit.yml"
    config.write_text(
        "Pendulum-v1:\n  n_timesteps: 600\n  policy: MlpPolicy\n  n_envs: 2\n  n_steps: 64\n"
        "  env_wrapper:\n    - gymnasium.wrappers.TimeLimit:\n        max_episode_steps: 30\n"
    )
    finished = zoo_train(tmp_path, "--env", "Pendulum-v1", "-c", str(config), "--eval-freq", "200", "--eval-episodes", "2")
    assert finished.returncode == 0, finished.stderr
    metrics = json.loads(next(tmp_path.rglob("metrics.json")).read_text())
    assert len(metrics["final_returns"]) > 0 and all(-30 * 17 < x < 0 for x in metrics["final_returns"])  # of 30 steps


def test_a_monitor_is_put_outside_a_time_limit_only():
    short = partial(TimeLimit, max_episode_steps=9)
    inside, outside = (with_monitor_outside(kind)(Monitor(gym.make("CartPole-v1"))) for kind in (None, short))
    assert isinstance(inside, Monitor) and isinstance(inside.env, TimeLimit)  # the registration's, where it belongs
    assert isinstance(outside, Monitor) and isinstance(outside.env, TimeLimit) and isinstance(outside.env.env, Monitor)


class Life(gym.Wrapper):
    """Ends an episode at every second step, and goes on with the same one at a reset."""

    def reset(self, **kwargs):
        self.t = 0
        return np.zeros(4, dtype=np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(4, dtype=np.float32), 0.0, self.t == 2, False, {}


class Endless(gym.Wrapper):
    def step(self, action):
        return np.zeros(4, dtype=np.float32), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("wrapper", "says"),
    [(Life, "100 episodes of env 0 ended, and its Monitor has closed none"), (Endless, "20 steps without an end")],
)
def test_an_evaluation_that_cannot_count_says_why(wrapper, says, monkeypatch):
    monkeypatch.setattr("zoo.common.episodes.ENDLESS_STEPS", 20)
    env = DummyVecEnv([lambda: wrapper(Monitor(gym.make("CartPole-v1")))])
    with pytest.raises(ValueError, match=f"cannot count: .*{says}"):
        evaluate_policy(GRPO("MlpPolicy", "CartPole-v1", device="cpu"), env, 1, callback=Counting())
