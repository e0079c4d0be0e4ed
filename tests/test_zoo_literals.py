"""What files write as Python text is read as rl_zoo3 would evaluate it, and can run nothing."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
import rl_zoo3
import yaml
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike  # noqa: F401  # for eval
from torch import nn

from zoo import train
from zoo.common.command_line import run
from zoo.common.literals import TEXTS, check_named_classes, parse, read_text, to_text
from zoo.tuning.study import open_storage

ROOT = Path(__file__).parents[1]
PLANTED = "__import__('pathlib').Path('ran').touch() or dict(net_arch=[8])"


def texts() -> set[str]:
    files = [*(Path(rl_zoo3.__file__).parent / "hyperparams").glob("*.yml"), *(ROOT / "zoo" / "hyperparams").glob("*.yml")]
    entries = [entry for file in files for entry in yaml.safe_load(file.read_text()).values()]
    return {entry[name] for entry in entries for name in TEXTS if isinstance(entry.get(name), str)}


def test_every_text_of_rl_zoo3_and_of_ours_means_what_eval_makes_of_it():
    known = {**globals(), "nn": nn, "HerReplayBuffer": HerReplayBuffer}
    assert len(texts()) > 30
    for text in texts():
        assert parse(text) == eval(text, known)
        assert parse(to_text(parse(text))) == parse(text)


def test_the_grammar():
    assert parse("dict(a=-1.5e-3, b=[True, None, 'x'], c=(1, 2), d={3: dict()})") == {
        "a": -0.0015, "b": [True, None, "x"], "c": (1, 2), "d": {3: {}}
    }  # fmt: skip
    assert parse("{**dict(net_arch=[64], activation_fn=nn.ReLU), 'net_arch': [8]}") == {
        "net_arch": [8], "activation_fn": nn.ReLU
    }  # fmt: skip
    assert (
        to_text({"net_arch": {"pi": [8]}, "activation_fn": nn.GELU}) == "{'net_arch': {'pi': [8]}, 'activation_fn': nn.GELU}"
    )


@pytest.mark.parametrize(
    "text",
    [
        PLANTED, "open('x')", "dict([('a', 1)])", "nn.ReLU()", "nn.functional", "nn.Module.__subclasses__", "os.system",
        "lambda: 0", "[x for x in 'ab']", "().__class__", "f'{1}'", "a", "th.nn.utils.parametrize", "(" * 500 + ")" * 500,
        "dict(**1)",
    ],
)  # fmt: skip
def test_everything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"is none of literals, dict\(name=value, \.\.\.\) and classes such as nn\.ReLU"):
        parse(text)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"callback": [{"timeit.timeit": {"stmt": "open('ran', 'w')"}}]}, "callback: timeit.timeit is no BaseCallback"),
        ({"env_wrapper": "os.system"}, "env_wrapper: os.system is no Wrapper"),
        ({"vec_env_wrapper": {"subprocess.Popen": {"args": ["touch", "ran"]}}}, "subprocess.Popen is no VecEnvWrapper"),
        ({"env_wrapper": ["no_such_module.Wrapper"]}, "no_such_module.Wrapper cannot be imported"),
        ({"env_wrapper": "nodots"}, "nodots cannot be imported"),
    ],
)
def test_named_classes_must_be_of_their_kind(settings, says):
    with pytest.raises(ValueError, match=r"^my\.yml: ") as error:
        check_named_classes(settings, lambda name: "my.yml")
    assert says in str(error.value)
    fine = {
        "env_wrapper": [
            {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 5}},
            "gymnasium.wrappers.RecordEpisodeStatistics",
        ]
    }
    check_named_classes(fine, lambda name: "my.yml")


def test_text_within_text_is_refused():
    """rl_zoo3 evaluates whatever is still text."""
    with pytest.raises(ValueError, match=r"my\.yml: normalize: .* is text within text"):
        read_text("normalize", repr(PLANTED), "my.yml")


def test_settings_are_checked_before_anything_is_imported(tmp_path, monkeypatch):
    (tmp_path / "planted_wrapper.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for wrong in ({"callback": 3}, {"env_wrapper": ["planted_wrapper.W", {"planted_wrapper.W": 5}]}):
        with pytest.raises(ValueError, match=r"^my\.yml: "):
            check_named_classes({"env_wrapper": "planted_wrapper.W", **wrong}, lambda name: "my.yml")
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", TEXTS)
def test_a_planted_study_and_a_planted_best_yml_run_nothing(name, tmp_path, monkeypatch, capsys):
    """Every setting that rl_zoo3 evaluates where it is text."""
    monkeypatch.chdir(tmp_path)
    plain = {"policy": "MlpPolicy", "n_timesteps": 64, "n_steps": 32, "n_envs": 1}
    settings = {**plain, name: PLANTED}
    study = optuna.create_study(storage=open_storage("study.log"), study_name="s")
    study.add_trial(optuna.trial.create_trial(value=1.0, user_attrs={"settings": settings}))
    Path("best.yml").write_text(yaml.safe_dump({"CartPole-v1": settings}))
    quiet = ["--algo", "dqn" if name.startswith("replay") else "grpo", "--env", "CartPole-v1", "-tb", "", "--eval-freq", "-1"]
    for source in (["--storage", "study.log", "--study-name", "s", "--trial-id", "0"], ["--conf-file", "best.yml"]):
        monkeypatch.setattr("sys.argv", [])
        assert run("zoo.train", train.main, [*quiet, *source]) == 2
        assert name in capsys.readouterr().err and not Path("ran").exists()
