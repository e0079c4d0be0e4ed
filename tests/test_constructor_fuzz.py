"""Whatever the constructor is given: a ValueError that names argument, rule and remedy, a TypeError for an unknown name, or a
model that trains."""

from __future__ import annotations

import inspect
import math
import random
import re
import time
import traceback
import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th

from sb_grpo import GRPO, CountBonus, GroupRolloutBuffer, RNDBonus
from sb_grpo.baselines.state import StateBaseline
from sb_grpo.config import RANGES, at_progress, number, shown
from sb_grpo.extras.group_weights import GroupWeights
from tests.helpers import ProbeEnv


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def nothing() -> None:
    """Takes no arguments."""


#: Of every kind; for each argument some of them are fine.
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 10**6, 10**9, 10**12, 10**400, 10**5000, -(10**20), 0.0, -0.5, 0.5, 1.0, 1.5,
    1e30, -1e-3, math.nan, math.inf, -math.inf, "",
    "x", "1", "seed", b"x", [], [0], [1, 2], (), (1,), {}, {"x": 1}, {1: 2}, {None}, object(),
    Unprintable(), int, dict, GroupRolloutBuffer, th.nn.Tanh, Path("x"), nothing, lambda x: x, lambda x: -x, lambda x: "x",
    lambda x: math.nan, lambda x: {}[x], np.zeros(2), np.array(1), np.int64(3), np.float32(0.5), np.float64("nan"), np.True_,
    np.str_("x"), th.zeros(2), th.tensor(1), 1j, Decimal(1), Fraction(1, 2), range(3), CountBonus(), th.device("cpu"),
    10**30, 2**64, 1e39, 1e308, 5e-324, -0.0, np.array(None), np.array("x"), np.float64(1e30), th.tensor(math.nan), print, len,
    lambda p: None, lambda p: 10**30, "/proc/no", "/dev/null/x", Path("/dev/null/x"), "a\0b", "x" * 300, {"device": 3},
    {"self": 1}, {"": 1}, {"buffer_size": 1},
]  # fmt: skip
NAMES = [name for name in inspect.signature(GRPO.__init__).parameters if name not in ("self", "policy", "env")]
KEYS = [(where, key) for where, rules in RANGES.items() if where and not where.endswith("Bonus") for key in rules]
REMEDIES = (
    "must",
    "use ",
    "Use ",
    "pass ",
    "Pass ",
    "leave ",
    "Lower ",
    "Raise ",
    "Declare ",
    "takes ",
    "Set ",
    "give ",
    "declare ",
)
#: What a key of a dict needs beside it to be looked at.
BESIDE: dict[str, dict[str, Any]] = {
    "grouping_kwargs": {"grouping": "difficulty"},
    "n_clusters": {"grouping": "auto"},
    "window": {"grouping": "auto"},
    "weights_kwargs": {"weights": "balanced"},
    "memory_size": {"memory": "gru"},
    "n_layers": {"memory": "gru"},
    "memory_span": {"memory": "gru"},
    "sequence_length": {"memory": "gru"},
    "ref_sync_interval": {"kl_coef": 0.1},
    "kl_correction": {"kl_coef": 0.1},
    "temperature_pos": {"loss": "sapo"},
    "temperature_neg": {"loss": "sapo"},
    "baseline": {"advantage": "outcome"},
    "ended_members": {"advantage": "step"},
}


class Tiny(ProbeEnv):
    """Episodes of 4 steps."""

    def __init__(self) -> None:
        super().__init__("action", length=4)


def verdict(kwargs: dict[str, Any], names: tuple[str, ...]) -> str:
    """What a call ends in: "refused", "unknown", "trains"; else what is wrong with that.

    :param names: one of which the message must hold
    """
    start = time.process_time()
    try:
        model = GRPO(**{"policy": "MlpPolicy", "env": Tiny(), "device": "cpu", "n_steps": 8, "n_epochs": 1, **kwargs})
    except ValueError as error:
        text = str(error)
        explains = any(name in text for name in names) and any(word in text for word in REMEDIES) and len(text) < 1500
        return "refused" if explains else f"does not name {names}: {error!r}"
    except TypeError as error:
        return "unknown" if "GRPO got an unexpected keyword" in str(error) else repr(error)
    except Exception as error:
        return repr(error)
    seconds = time.process_time() - start
    too_slow = seconds > 5  # for the sizes that are allowed; absurd ones would need hours, or all memory
    members = 0 if model.group_size is None else model.current_group_size  # None: _init_setup_model=False
    if too_slow or members > 100 or max(getattr(model, name) or 0 for name in ("n_steps", "n_epochs", "n_groups")) > 100:
        return f"took {seconds:.1f} s" if too_slow else "trains"  # for a long time
    try:
        model.learn(16)
    except ValueError as error:  # a function that returned something else, or an env that does not report what it must
        named = any(name in str(error) for name in names) and ("it must" in str(error) or "Report " in str(error))
        return "refused" if named else f"does not train: {error!r}"
    except Exception as error:
        of_the_function = traceback.extract_tb(error.__traceback__)[-1].filename == __file__  # a bug in what the user wrote
        return "refused" if of_the_function else f"does not train: {error!r}"
    fine = all(bool(th.isfinite(p).all()) for p in model.policy.parameters())
    return "trains" if fine else "weights are not finite"


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # tensorboard_log="x" is fine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "compile")) for n in NAMES])
def test_each_odd_value_of_each_argument(name):
    found = {shown(value): verdict({name: value}, (name,)) for value in ODD}
    assert {text: what for text, what in found.items() if what not in ("refused", "unknown", "trains")} == {}


@pytest.mark.parametrize(("where", "key"), KEYS, ids=lambda x: x.replace(": ", "-"))
def test_each_odd_value_of_each_key(where, key):
    outer, _, inner = where.partition(": ")
    beside = BESIDE.get(key) or BESIDE.get(inner, {})

    def kwargs(value: Any) -> dict[str, Any]:
        if outer == "multitask":
            return {"normalize_advantage": "group", outer: {**beside, **({inner: {key: value}} if inner else {key: value})}}
        if "memory" in beside:
            return {outer: {key: value}} | {"policy_kwargs": {**beside, **({key: value} if outer == "policy_kwargs" else {})}}
        return {outer: {key: value}, **beside}

    found = {shown(value): verdict(kwargs(value), (key,)) for value in ODD}
    assert {text: what for text, what in found.items() if what not in ("refused", "unknown", "trains")} == {}


@pytest.mark.parametrize("key", ["eps", "betas", "weight_decay", "amsgrad"])
def test_each_odd_value_of_each_setting_of_the_optimiser(key):
    found = {
        shown(value): verdict({"policy_kwargs": {"optimizer_kwargs": {key: value}}}, ("optimizer_kwargs",)) for value in ODD
    }
    assert {text: what for text, what in found.items() if what not in ("refused", "trains")} == {}


def test_a_thousand_random_calls():
    """Several arguments at once, most of them fine; an error names one of those that are not the default."""
    draw = random.Random(0)
    fine: dict[str, list[Any]] = {
        "learning_rate": [1e-3, lambda p: p * 1e-3], "n_steps": [None, 4, 8], "batch_size": [1, 8, 64],
        "gamma": [0.9, 1.0, None],
        "clip_range": [0.1, lambda p: 0.2 * p], "normalize_advantage": [True, "batch", "none"], "ent_coef": [0.01],
        "target_kl": [0.01], "seed": [0, np.int64(3)], "group_size": [1, 2, lambda p: 2], "n_groups": [1], "kl_coef": [0.1],
        "advantage": ["outcome", "step", "process", "state"], "advantage_kwargs": [{"memory": 0.5}, {"baseline": "median"}],
        "loss": ["clip", "cispo", "sapo"],
        "loss_kwargs": [
            {"aggregation": "episode"}, {"ratio_cap": 3}, {"importance_level": "episode"}, {"importance_level": "turn"},
            {"temperature_neg": 2}, {"mask_truncated": True}, {"advantage_clip": 1}, {"kl_correction": True},
        ],
        "multitask": [{"grouping": "length"}, {"weights": "balanced"}],
        "rewards": [{"scaling": "tanh"}, {"bonus": RNDBonus()}],
        "update_kwargs": [{"autocast": True}, {"micro_batch_size": 4}],
        "policy_kwargs": [{"net_arch": [4]}, {"normalize_obs": True}],
    }  # fmt: skip
    wrong: list[tuple[dict[str, Any], str]] = []
    ends = {"refused": 0, "unknown": 0, "trains": 0}
    for _ in range(1000):
        kwargs = {}
        for name in draw.sample(NAMES, draw.randint(1, 6)):
            kwargs[name] = draw.choice(ODD if draw.random() < 0.15 or name not in fine else fine[name])
        kwargs.pop("compile", None)  # takes half a minute
        found = verdict(kwargs, (*kwargs, "group_size", "advantage"))
        if found in ends:
            ends[found] += 1
        else:
            wrong.append((kwargs, found))
    assert wrong == []
    assert min(ends["refused"], ends["trains"]) > 100


@pytest.mark.parametrize(
    ("name", "schedule", "says"),
    [
        ("learning_rate", lambda p: p - 0.5, r"returned -0.\d+ at progress 0.\d+: it must be a number in .0, 1.* 3e-4"),
        ("learning_rate", lambda p: 1e-3 if p > 0.5 else math.nan, "returned nan"),
        ("learning_rate", lambda p: 1e-3 if p > 0.5 else math.inf, "returned inf"),
        ("clip_range", lambda p: p - 0.5, "returned -0"),
        ("clip_range", lambda p: 0.2 if p > 0.5 else None, "failed at progress"),
        ("clip_range_high", lambda p: p - 0.5, "loss_kwargs: clip_range_high=.* returned -0"),
        ("group_size", lambda p: -3 if 0.2 < p < 0.5 else 2, "returned -3"),
        ("group_size", lambda p: math.inf if 0.2 < p < 0.5 else 2, "returned inf"),
    ],
)
def test_schedules_stop_where_they_turn(name, schedule, says):
    """A rate below 0 would unlearn; the weights stay what they were before that update."""
    kwargs = {"loss_kwargs": {name: schedule}} if name == "clip_range_high" else {name: schedule}
    model = GRPO("MlpPolicy", Tiny(), n_steps=8, n_epochs=1, device="cpu", seed=0, **kwargs)
    with pytest.raises(ValueError, match=says):
        model.learn(80)
    assert 0 < model.num_timesteps < 80 and all(bool(th.isfinite(p).all()) for p in model.policy.parameters())


def test_a_group_size_that_ends_badly_is_refused_before_the_training():
    with pytest.raises(ValueError, match=r"group_size=.* returned -3 at progress 0: it must be an integer"):
        GRPO("MlpPolicy", Tiny(), group_size=lambda p: 2 if p > 0.5 else -3)


@pytest.mark.parametrize(
    ("name", "value"), [("ent_coef", -1.0), ("n_epochs", 0), ("max_grad_norm", math.nan), ("batch_size", 2.5)]
)
def test_what_is_changed_by_hand_is_checked_before_the_next_update(name, value):
    model = GRPO("MlpPolicy", Tiny(), n_steps=8, n_epochs=1, device="cpu").learn(8)
    setattr(model, name, value)
    with pytest.raises(ValueError, match=f"{name}={value} must be"):
        model.learn(8)


def test_a_learning_rate_that_a_callback_has_put_below_zero_stops():
    model = GRPO("MlpPolicy", Tiny(), n_steps=8, n_epochs=1, device="cpu").learn(8)
    model.lr_schedule = lambda _: -1e-3
    with pytest.raises(ValueError, match=r"learning_rate=.* returned -0.001"):
        model.learn(8)


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(group_size=10**9), dict(multitask=dict(tasks=10**6)), dict(n_steps=10**12), dict(n_groups=10**9),
        dict(advantage_kwargs=dict(n_features=10**9)), dict(policy_kwargs=dict(net_arch=[10**6, 10**6])),
        dict(rewards=dict(bonus=CountBonus())) | dict(n_epochs=10**9), dict(policy_kwargs=dict(net_arch=[16_000, 16_000])),
    ],
    ids=lambda x: next(iter(x)),
)  # fmt: skip
def test_absurd_sizes_are_refused(kwargs):
    with pytest.raises(ValueError, match="must"):
        GRPO("MlpPolicy", Tiny(), **kwargs)


def test_a_rollout_that_no_memory_holds_is_refused():
    class Large(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Box(0, 255, (1000, 1000, 3), np.uint8)

    with pytest.raises(ValueError, match=r"n_steps=1000000 x n_envs=1 needs \d+ GiB .* Lower n_steps"):
        GRPO("MlpPolicy", Large(), n_steps=10**6)


def test_unknown_names_and_unknown_envs():
    with pytest.raises(TypeError, match="unexpected keyword argument 'entropy'"):
        GRPO("MlpPolicy", Tiny(), entropy=0.1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'pairde'; did you mean 'paired'"):
        GRPO("MlpPolicy", Tiny(), pairde=True)
    for name in ("vf_coef", "clip_range_vf"):
        assert verdict({name: 0.5}, (name,)) == "unknown"
    with pytest.raises(ValueError, match="env='NoSuchEnv-v0' is no registered environment"):
        GRPO("MlpPolicy", "NoSuchEnv-v0")
    with pytest.raises(ValueError, match=r"policy='Mlp' is unknown; use one of .'MlpPolicy'"):
        GRPO("Mlp", Tiny())


@pytest.mark.parametrize(
    ("name", "value", "ways"),
    [
        ("paired", True, ["advantage_kwargs=dict(paired=True)"]),
        ("n_features", 64, ["advantage_kwargs=dict(n_features=64)"]),
        ("ref_policy", None, ["loss_kwargs=dict(ref_policy=None)"]),
        ("bonus", None, ["rewards=dict(bonus=None)"]),
        ("surgery", True, ["multitask=dict(surgery=True)"]),
        ("n_quantiles", 4, ["multitask=dict(grouping_kwargs=dict(n_quantiles=4))"]),
        ("temperature", 0.5, ["multitask=dict(weights_kwargs=dict(temperature=0.5))"]),
        ("sequence_length", 8, ["update_kwargs=dict(sequence_length=8)"]),
        ("net_arch", [64], ["policy_kwargs=dict(net_arch=[64])"]),
        ("memory", "gru", ["advantage_kwargs=dict(memory='gru')", "policy_kwargs=dict(memory='gru')"]),
    ],
)
def test_a_key_beside_its_dict_is_answered_with_the_dict(name, value, ways, tmp_path):
    says = f"unexpected keyword argument '{name}', which is a key of a dict: pass {' or '.join(ways)}."
    with pytest.raises(TypeError, match=re.escape(says)):
        GRPO("MlpPolicy", Tiny(), **{name: value})
    with pytest.raises(TypeError, match=re.escape(says)):
        GRPO.load(tmp_path / "model", **{name: value})


def test_every_key_of_every_dict_is_answered():
    for where, key in KEYS:
        outer = where.partition(":")[0]
        if key not in inspect.signature(GRPO.__init__).parameters:
            with pytest.raises((TypeError, ValueError), match=rf"{outer}=dict\("):
                GRPO("MlpPolicy", Tiny(), **{key: 1})


@pytest.mark.parametrize(
    ("name", "value", "start"),
    [("learning_rate", "lin_1e-3", "1e-3"), ("clip_range", "lin_0.2", "0.2"), ("learning_rate", "x", "3e-4")],
)
def test_a_schedule_in_words_is_answered_with_sb3s(name, value, start):
    says = rf"{name}='{value}' must be .* A string is for the YAML files .* LinearSchedule\({start}, 0.0, 1.0\)"
    with pytest.raises(ValueError, match=says):
        GRPO("MlpPolicy", Tiny(), **{name: value})


@pytest.mark.parametrize(
    ("env_id", "extra"), [("ALE/Pong-v5", "atari"), ("PongNoFrameskip-v4", "atari"), ("MiniGrid-Empty-5x5-v0", "minigrid")]
)
def test_the_extra_that_brings_an_env_is_named(env_id, extra, monkeypatch):
    for known in [known for known in gym.registry if known.startswith(("ALE/", "MiniGrid-")) or "NoFrameskip" in known]:
        monkeypatch.delitem(gym.registry, known)
    with pytest.raises(ValueError, match=rf'env=.{env_id}. is no registered .* pip install -e "\.\[{extra}\]", and import'):
        GRPO("MlpPolicy", env_id)


def test_every_argument_has_a_rule_and_one_table_serves_all():
    assert set(inspect.signature(GRPO.__init__).parameters) - {"self"} == RANGES[""].keys()
    with pytest.raises(ValueError, match=r"advantage_kwargs: memory=2 must be a number in .0, 1.;"):
        StateBaseline(3, memory=2)
    with pytest.raises(ValueError, match="weights_kwargs: floor=2 must be a positive number up to 1"):
        GroupWeights("adaptive", 2, floor=2)
    assert at_progress("x", number(0, 1, scheduled=True), 0.5, 0.3) == 0.5
