"""Files are whole or not there, also when the disk is full; models are read without running what somebody put into them."""

from __future__ import annotations

import base64
import inspect
import io
import json
import os
import pickle
import resource
import signal
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb_grpo import GRPO, CountBonus, MlpPolicy, files
from sb_grpo.normalization import statistics_to_bytes, with_statistics
from sb_grpo.plain import NotPlain, from_plain, to_plain
from sb_grpo.save_util import MADE_ANEW, PLAIN, STATE, STATISTICS, read_entry, with_entries
from zoo.training.settings import make_schedule

ROOT = Path(__file__).parents[1]


def small(env: Any = "CartPole-v1", **kwargs: Any) -> GRPO:
    return GRPO("MlpPolicy", env, **{"n_steps": 64, "n_epochs": 1, "seed": 0, **kwargs})


# ---------------------------------------------------------------- writing


def test_a_file_changes_in_one_step(tmp_path):
    path = files.write(tmp_path / "new" / "a.txt", "old")
    with pytest.raises(RuntimeError), files.replacing(path) as unfinished:
        assert unfinished.suffix == path.suffix and unfinished.parent.parent == path.parent
        unfinished.write_text("half of the ne")
        assert path.read_text() == "old"
        raise RuntimeError
    assert path.read_text() == "old" and os.listdir(path.parent) == ["a.txt"]
    files.write(path, b"new")
    assert path.read_bytes() == b"new" and os.listdir(path.parent) == ["a.txt"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """A limit on the size of files stands in for it: the same error, at the same place."""
    path = files.write(tmp_path / "a.bin", b"good")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            files.write(path, bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"good" and os.listdir(tmp_path) == ["a.bin"]


def test_a_model_is_written_in_one_step(tmp_path, monkeypatch):
    model = small()
    model.save(tmp_path / "model")
    good = (tmp_path / "model.zip").read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed here")))
    with pytest.raises(OSError, match="killed here"):
        model.save(tmp_path / "model")
    assert (tmp_path / "model.zip").read_bytes() == good and os.listdir(tmp_path) == ["model.zip"]
    file = io.BytesIO()
    model.save(file)
    assert GRPO.load(file).seed == 0


# ---------------------------------------------------------------- plain


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, "x", True], "b": (1, (2,))},
        spaces.Box(-np.inf, np.array([1.0, 2.0], dtype=np.float32), dtype=np.float32),
        spaces.Box(0, 255, (2, 3, 1), dtype=np.uint8),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary([2, 2]),
        spaces.Dict({"z": spaces.Discrete(2), "a": spaces.MultiBinary(3)}),
        CountBonus(scale=0.5, bits=8),
        MlpPolicy,
        th.nn.Tanh,
        th.optim.RMSprop,
    ],
    ids=str,
)
def test_values_survive_json(value):
    again = from_plain(json.loads(json.dumps(to_plain(value))))
    assert again == value and type(again) is type(value)
    if isinstance(value, spaces.Dict):
        assert list(again.spaces) == list(value.spaces)


@pytest.mark.parametrize(
    "schedule",
    [
        ConstantSchedule(0.1),
        LinearSchedule(1e-3, 1e-4, 0.5),
        FloatSchedule(LinearSchedule(1, 0, 1)),
        make_schedule("cos_1e-3_0.2"),
        make_schedule("lin_0.1"),
    ],
)
def test_schedules_survive_json(schedule):
    again = from_plain(json.loads(json.dumps(to_plain(schedule))))
    assert [again(p) for p in (1.0, 0.7, 0.0)] == [schedule(p) for p in (1.0, 0.7, 0.0)]


@pytest.mark.parametrize(
    "value", [lambda p: p, object(), th.optim.Optimizer.step, subprocess.Popen, {1: 2}, {":class": 1}, {1}]
)
def test_what_has_no_plain_form_is_named(value):
    with pytest.raises(NotPlain):
        to_plain(value)


@pytest.mark.parametrize(
    "planted",
    [
        {":class": "subprocess.Popen"},
        {":class": "os.system"},
        {":class": "torch.nn.Module.apply"},
        {":class": "sb_grpo.files.os"},
        {":class": "torch.hub.load"},
        {":sb_grpo": ["subprocess.Popen", {"args": "true"}]},
        {":sb_grpo": ["sb_grpo.grpo.GRPO", {}]},
        {":Box": {"low": 0, "high": 1, "dtype": "object"}},
        {":array": {"values": ["x"], "dtype": "O", "shape": [1]}},
        {":no": {}},
        {":class": ["a"]},
        {":tuple": 3},
    ],
    ids=str,
)
def test_planted_names_are_refused(planted):
    with pytest.raises(NotPlain):
        from_plain(planted)


# ---------------------------------------------------------------- reading what is not trusted


class Planted:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def plant(model: Path, trap: Path, *names: str, **plain: Any) -> None:
    """Put an object that runs into the zip, under these names."""
    with zipfile.ZipFile(model) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(entries["data"])
    pickled = {":type:": "x", ":serialized:": base64.b64encode(pickle.dumps(Planted(trap))).decode()}
    entries["data"] = json.dumps({**data, **plain, **dict.fromkeys(names, pickled)}).encode()
    model.write_bytes(with_entries(b"", entries))


def test_a_planted_object_does_not_run_without_trust(tmp_path):
    model, trap = tmp_path / "model.zip", tmp_path / "trap"
    small().save(model)
    plant(model, trap, "lr_schedule", "policy_class", "further", "env")
    loaded = GRPO.load(model, trusted=False)
    assert not trap.exists() and not hasattr(loaded, "further")
    loaded.set_parameters(str(model))
    assert not trap.exists()
    plant(model, trap, "learning_rate")
    with pytest.raises(ValueError, match=r"learning_rate \(no plain form.*custom_objects=\{'learning_rate'"):
        GRPO.load(model, trusted=False)
    assert GRPO.load(model, trusted=False, learning_rate=1e-3).learning_rate == 1e-3
    assert GRPO.load(model, trusted=False, custom_objects={"learning_rate": 2e-3}).learning_rate == 2e-3
    assert not trap.exists()
    load_from_zip_file(model)  # the trap works
    assert trap.exists()


def test_plain_text_in_the_data_names_no_env_and_no_folder(tmp_path):
    """``env="module:Id"`` would be imported, ``tensorboard_log`` written to."""
    model = tmp_path / "model.zip"
    small().save(model)
    plant(model, tmp_path / "trap", env="no_such_module:Env-v0", tensorboard_log="/somewhere", save="text")
    loaded = GRPO.load(model, trusted=False)
    assert loaded.env is None and loaded.tensorboard_log is None and callable(loaded.save)


def test_a_pickle_among_the_tensors_does_not_run(tmp_path):
    model, trap = tmp_path / "model.zip", tmp_path / "trap"
    small().save(model)
    with zipfile.ZipFile(model) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    file = io.BytesIO()
    th.save(Planted(trap), file)
    model.write_bytes(with_entries(b"", {**entries, "policy.pth": file.getvalue()}))
    with pytest.raises(pickle.UnpicklingError):
        GRPO.load(model, trusted=False)
    assert not trap.exists()


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"policy_kwargs": {"activation_fn": th.nn.ReLU, "net_arch": [8], "optimizer_class": th.optim.RMSprop}},
        {"learning_rate": LinearSchedule(1e-3, 0.0, 1.0), "rewards": {"bonus": CountBonus()}},
        {"advantage": "outcome", "kl_coef": 0.1, "multitask": {"tasks": 2, "grouping": "seed"}},
        {"env": "Pendulum-v1", "use_sde": True},
    ],
    ids=["defaults", "policy", "schedule", "outcome", "sde"],
)
def test_a_trusted_and_an_untrusted_load_are_the_same(kwargs, tmp_path):
    model = small(**kwargs)
    model.save(tmp_path / "model")
    trusted, untrusted = (GRPO.load(tmp_path / "model", trusted=trusted) for trusted in (True, False))
    for name, value in vars(trusted).items():
        if isinstance(value, int | float | str | bool | spaces.Space | dict | CountBonus | type(None)):
            assert getattr(untrusted, name) == value, name
    for a, b in zip(trusted.policy.parameters(), untrusted.policy.parameters(), strict=True):
        assert th.equal(a, b)
    obs = model.observation_space.sample()
    assert np.array_equal(trusted.predict(obs, deterministic=True)[0], untrusted.predict(obs, deterministic=True)[0])


def test_an_untrusted_model_goes_on_training(tmp_path):
    model = small().learn(64)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", gym.make("CartPole-v1"), trusted=False)
    loaded.learn(64, reset_num_timesteps=False)
    assert loaded.num_timesteps == 128 and loaded.groups.next_group > model.groups.next_group


def test_files_without_plain_settings_take_spaces_from_the_env(tmp_path):
    """Such as those of SB3's own ``save``."""
    small().save(tmp_path / "model")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        entries = {name: archive.read(name) for name in archive.namelist() if name != PLAIN}
    (tmp_path / "old.zip").write_bytes(with_entries(b"", entries))
    with pytest.raises(ValueError, match=r"policy_class.*observation_space.*action_space"):
        GRPO.load(tmp_path / "old", trusted=False)
    loaded = GRPO.load(
        tmp_path / "old", gym.make("CartPole-v1"), trusted=False, custom_objects={"policy_class": MlpPolicy, "clip_range": 0.2}
    )
    assert loaded.observation_space == gym.make("CartPole-v1").observation_space


def test_every_attribute_of_a_saved_model_is_known(tmp_path):
    """A new one belongs into a list, or an untrusted load would leave it out."""
    for n, model in enumerate((small().learn(64), small("Pendulum-v1", advantage="outcome", n_steps=256).learn(256))):
        model.save(tmp_path / f"{n}.zip")
        names = set(json.loads(read_entry(tmp_path / f"{n}.zip", "data") or b""))
        arguments = set(inspect.signature(GRPO).parameters)
        assert names - arguments - set(STATE) - set(MADE_ANEW) - {"verbose"} == set()


# ---------------------------------------------------------------- VecNormalize


def dict_env() -> gym.Env:
    env = gym.make("CartPole-v1")
    space = spaces.Dict({"a": env.observation_space})
    return gym.wrappers.TransformObservation(env, lambda obs: {"a": obs}, space)


@pytest.mark.parametrize("kind", ["box", "dict", "rewards only"])
def test_statistics_without_pickle(kind):
    make = dict_env if kind == "dict" else lambda: gym.make("CartPole-v1")
    keys = ["a"] if kind == "dict" else None
    env = VecNormalize(make_vec_env(make, 2), gamma=0.9, clip_obs=3.0, norm_obs=kind != "rewards only", norm_obs_keys=keys)
    env.reset()
    for _ in range(50):
        env.step(np.array([0, 1]))
    content = statistics_to_bytes(env)
    again = with_statistics(make_vec_env(make, 3), content)
    frozen = with_statistics(make_vec_env(make, 1), content, frozen=True)
    obs, rewards = env.get_original_obs(), np.array([1.0, 3.0])
    assert str(again.normalize_obs(obs)) == str(env.normalize_obs(obs)) and again.gamma == 0.9 and again.training
    assert np.array_equal(again.normalize_reward(rewards), env.normalize_reward(rewards))
    assert again.ret_rms.count == env.ret_rms.count > 50
    assert not frozen.training and not frozen.norm_reward
    if kind == "box":
        with pytest.raises(ValueError, match=r"have shape \(4,\), but this env needs \(3,\)"):
            with_statistics(make_vec_env("Pendulum-v1", 1), content)
    with pytest.raises(ValueError, match="do not fit"):
        with_statistics(make_vec_env(make, 1), with_entries(b"", {"x": b"y"}))


def test_a_model_keeps_the_statistics_of_its_weights(tmp_path):
    env = VecNormalize(make_vec_env("CartPole-v1", 2))
    model = small(env)
    model.learn(64)
    model.save(tmp_path / "model.zip")
    content = read_entry(tmp_path / "model.zip", STATISTICS)
    assert content is not None
    model.learn(64)
    assert with_statistics(make_vec_env("CartPole-v1", 1), content).obs_rms.count < env.obs_rms.count
    small().save(tmp_path / "without.zip")
    assert read_entry(tmp_path / "without.zip", STATISTICS) is None
    with pytest.raises(ValueError, match="broken, or no zip"):
        read_entry(io.BytesIO(b"none"), STATISTICS)


def test_a_loaded_model_gets_the_statistics_of_its_weights(tmp_path):
    """In a VecNormalize that has seen nothing; one that has, of the user's own loading, keeps what it has seen."""
    env = VecNormalize(make_vec_env("Pendulum-v1", 2))
    model = GRPO("MlpPolicy", env, n_steps=64, seed=0, device="cpu").learn(512)
    model.save(tmp_path / "model")

    fresh = VecNormalize(make_vec_env("Pendulum-v1", 2))
    GRPO.load(tmp_path / "model", env=fresh)
    np.testing.assert_array_equal(fresh.obs_rms.mean, env.obs_rms.mean)
    assert fresh.obs_rms.count == env.obs_rms.count and fresh.ret_rms.var == env.ret_rms.var

    used = VecNormalize(make_vec_env("Pendulum-v1", 2))
    used.reset()
    mean = used.obs_rms.mean.copy()
    GRPO.load(tmp_path / "model", env=used)
    np.testing.assert_array_equal(used.obs_rms.mean, mean)

    later, of_file = VecNormalize(make_vec_env("Pendulum-v1", 2)), io.BytesIO((tmp_path / "model.zip").read_bytes())
    loaded = GRPO.load(of_file, trusted=False, custom_objects=dict(n_steps=32))
    loaded.save(tmp_path / "again")  # without an env they are not lost
    assert read_entry(tmp_path / "again.zip", STATISTICS) is not None
    loaded.set_env(later)
    assert later.obs_rms.count == env.obs_rms.count


def test_a_loaded_model_whose_statistics_fit_nowhere_says_so(tmp_path):
    model = GRPO("MlpPolicy", VecNormalize(make_vec_env("Pendulum-v1", 2)), n_steps=64, device="cpu").learn(128)
    model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match=r"VecNormalize had normalised.*env=VecNormalize\(env\)"):
        GRPO.load(tmp_path / "model", env=make_vec_env("Pendulum-v1", 2))
    for changed in (dict(norm_obs=False), dict(clip_obs=0.5), dict(epsilon=1.0)):
        with pytest.warns(UserWarning, match=rf"with {next(iter(changed))}=.*but that of its env has.*give it the same"):
            GRPO.load(tmp_path / "model", env=VecNormalize(make_vec_env("Pendulum-v1", 2), **changed))
    for broken in (b"", b"PK", b"numbers"):
        (tmp_path / "broken.zip").write_bytes(with_entries((tmp_path / "model.zip").read_bytes(), {STATISTICS: broken}))
        with pytest.warns(UserWarning, match="they are broken.*Those in the zip are left aside"):
            GRPO.load(tmp_path / "broken", env=VecNormalize(make_vec_env("Pendulum-v1", 2)))
    stacked = GRPO("MlpPolicy", VecNormalize(VecFrameStack(make_vec_env("Pendulum-v1", 2), 2)), n_steps=64, device="cpu")
    stacked.learn(128).save(tmp_path / "stacked")
    other = VecFrameStack(VecNormalize(make_vec_env("Pendulum-v1", 2)), 2)
    with pytest.warns(UserWarning, match=r"shape \(6,\).*left aside"):
        GRPO.load(tmp_path / "stacked", env=other)


class HandsOn(GRPO):
    """Names some arguments, and hands on the others."""

    def __init__(self, policy, env, mine=3, **kwargs):
        super().__init__(policy, env, **kwargs)
        self.mine = mine


@pytest.mark.parametrize("trusted", [True, False])
def test_arguments_that_a_subclass_hands_on_come_back(tmp_path, trusted):
    given = dict(gamma=0.9, n_steps=256, batch_size=32, n_epochs=3, ent_coef=0.01, group_size=4, learning_rate=1e-2)
    model = HandsOn("MlpPolicy", "CartPole-v1", mine=5, device="cpu", **given)
    assert {name: model.settings[name] for name in given} == given and model.settings["mine"] == 5
    model.save(tmp_path / "model")
    loaded = HandsOn.load(tmp_path / "model", device="cpu", trusted=trusted)
    assert {name: getattr(loaded, name) for name in given} == given
