"""A run that is saved, loaded and resumed is the run that went on: weights, logged figures, and every attribute."""

from __future__ import annotations

import copy
import io
import pickle
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnNoModelImprovement,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from sb_grpo import GRPO, CountBonus, RNDBonus, State
from sb_grpo.baselines.state import StateBaseline
from sb_grpo.callbacks import CurriculumCallback, GammaCallback, HealthCallback, RecoveryCallback
from sb_grpo.checkpoint import RUN, read_run, run_entries
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.save_util import read_entry, with_entries
from sb_grpo.state import NoPlainForm, pack, unpack
from sb_grpo.tasks.goal_car import TensorGoalCar
from scripts.torture import SECTIONS, broken, saves
from tests.test_masks import Moody, invalid_in, policy_of
from tests.test_simulator_groups import Together, Unseeded

SMALL: dict[str, Any] = dict(n_steps=32, batch_size=64, n_epochs=2, group_size=4, policy_kwargs=dict(net_arch=[8]))


class Rows(KVWriter):
    """Every figure that is logged, but for times."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        numbers = {k: v for k, v in key_values.items() if isinstance(v, int | float | np.generic | th.Tensor)}
        shown = {k: repr(v.tolist() if isinstance(v, th.Tensor) else float(v)) for k, v in numbers.items()}
        self.rows.append({"step": step} | {k: v for k, v in shown.items() if not k.startswith("time/")})

    def close(self) -> None:
        """Nothing is open."""


class Saver(BaseCallback):
    """Saves the run after some rollout; ``new_groups``: which a group boundary follows."""

    def __init__(self, at: int, new_groups: bool = False) -> None:
        super().__init__()
        self.at, self.new_groups, self.file, self.n = at, new_groups, io.BytesIO(), 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.n += 1
        if self.n == self.at:
            if self.new_groups:
                self.model.restart_groups()
            self.model.save_run(self.file)


Callbacks = Callable[[], list[BaseCallback]]


def went_on(make: Callable[[], Any], rollouts: int, saver: Saver, callbacks: Callbacks, **kwargs: Any) -> tuple[GRPO, list]:
    """A run that nobody stopped."""
    model, rows = GRPO(env=make(), seed=1, device="cpu", **{"policy": "MlpPolicy", **SMALL, **kwargs}), Rows()
    model.set_logger(Logger(None, [rows]))
    steps = model.steps_per_env * model.n_envs if model.n_groups is None else model.n_groups * model.current_group_size * 200
    model.learn(rollouts * steps, [saver, *callbacks()])
    return model, rows.rows


def resumed(make: Callable[[], Any], saver: Saver, callbacks: Callbacks) -> tuple[GRPO, list]:
    """The same, from the file; other random numbers have been drawn meanwhile."""
    saver.file.seek(0)
    th.manual_seed(99)
    np.random.seed(98)
    model, rows = GRPO.load_run(saver.file, make(), device="cpu"), Rows()
    model.set_logger(Logger(None, [rows]))
    model.resume([Saver(0), *callbacks()])
    return model, rows.rows


# ---------------------------------------------------------------- deep comparison

#: Times, and what points at the file system, at code or at other models' callbacks.
NOT_COMPARED = {
    "start_time", "_logger", "compiled", "_callback_in_use", "_own_loop", "callback", "_start", "lr_schedule", "locals",
    "_custom_logger", "_runs_due", "calls", "_left_at", "_ownership", "observation_space", "action_space", "fast_predict",
    "_last_original_obs", "model", "policy_class", "spec", "_num_timesteps_at_start", "buffer_size",
    "envs", "buf_infos",
}  # fmt: skip


def differences(a: Any, b: Any, path: str = "model", seen: frozenset[int] = frozenset()) -> Iterator[str]:
    """Paths of all values that differ between two objects, however deep."""
    if id(a) in seen:
        return
    if type(a) is not type(b) and not (isinstance(a, tuple) and isinstance(b, tuple)):
        yield f"{path}: {type(a).__name__} and {type(b).__name__}"
    elif isinstance(a, th.Tensor | np.ndarray):
        x, y = (v.detach().numpy() if isinstance(v, th.Tensor) else v for v in (a, b))
        if not np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
            yield path
    elif isinstance(a, int | float | str | bytes | set | None):
        if a != b and not (a != a and b != b):
            yield f"{path}: {a!r:.40} and {b!r:.40}"
    else:
        x, y = parts_of(a), parts_of(b)
        if x.keys() != y.keys():
            yield f"{path}: {set(x) ^ set(y)}"
        for key in [key for key in x if key in y and key not in NOT_COMPARED]:
            yield from differences(x[key], y[key], f"{path}.{key}", seen | {id(a)})


def parts_of(holder: Any) -> dict[Any, Any]:
    """What an object is made of, by name; nothing of objects that are not ours, SB3's or PyTorch's."""
    if isinstance(holder, dict):
        return holder
    if isinstance(holder, list | tuple | deque):
        return dict(enumerate(holder))
    if isinstance(holder, np.random.Generator):
        return dict(holder.bit_generator.state)
    if isinstance(holder, th.optim.Optimizer):
        return dict(holder.state_dict())
    if isinstance(holder, nn.Module):
        return {name: value for name, value in vars(holder).items() if "hook" not in name}
    ours = type(holder).__module__.split(".")[0] in ("sb_grpo", "tests", "stable_baselines3")
    return dict(vars(holder)) if ours and hasattr(holder, "__dict__") else {}


def trimmed(model: GRPO) -> GRPO:
    """Without what the buffer holds of rollouts that are over, and without the seconds of episodes."""
    for episode in model.ep_info_buffer:
        episode.pop("t", None)
    model.rollout_buffer.reset()
    for name in ("observations", "actions", "rewards", "episode_ids", "t", "ends", "next_observations", "log_probs"):
        vars(model.rollout_buffer).pop(name, None)
    for name in ("finished_return", "extra"):
        vars(model.rollout_buffer).pop(name, None)
    return model


# ---------------------------------------------------------------- runs that go on


def tensor_env(name: str = "CartPole-v1") -> Callable[[], Any]:
    return lambda: make_tensor_env(name, 8)


def watched() -> list[BaseCallback]:
    levels = CurriculumCallback([0.0, 0.5, 1.0], "terminated", window=4, promote_above=0.5)
    return [CallbackList([levels, GammaCallback(0.9)]), HealthCallback(verbose=0)]


class ChangesAll(BaseCallback):
    """After the first rollout, by hand: all that may be changed in a training."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps == self.training_env.num_envs * 32:
            changed = dict(
                n_steps=40, batch_size=32, n_epochs=3, ent_coef=0.01, max_grad_norm=0.3, target_kl=0.5, clip_range=0.1,
                normalize_advantage="none", group_size=2, kl_coef=0.05, gamma=0.9, gae_lambda=0.8,
            )  # fmt: skip
            vars(self.model).update(changed)
            self.model.lr_schedule = FloatSchedule(1e-2)
            self.model.set_random_seed(5)


def evaluated(env: Callable[[], Any]) -> Callbacks:
    def callbacks() -> list[BaseCallback]:
        stop = StopTrainingOnNoModelImprovement(100)
        return [
            EvalCallback(env(), callback_after_eval=stop, eval_freq=50, n_eval_episodes=2, verbose=0),
            EveryNTimesteps(300, Saver(0)),
        ]

    return callbacks


def none() -> list[BaseCallback]:
    return []


NORMALIZED = dict(net_arch=[8], normalize_obs=True)
TENSOR: dict[str, tuple[Callable[[], Any], Callbacks, dict[str, Any]]] = {
    "default": (tensor_env(), none, {}),
    "whole episodes": (tensor_env(), none, dict(advantage="process")),
    "refilled": (
        tensor_env(), none,
        dict(advantage="anchor", n_steps=None, n_groups=16, group_size=2, group_kwargs=dict(refill=True)),
    ),
    "normalised, gSDE, schedule": (
        tensor_env("Pendulum-v1"), none, dict(policy_kwargs=NORMALIZED, use_sde=True, learning_rate=lambda p: 1e-2 * p)
    ),
    "RND, reference": (tensor_env(), none, dict(rewards=dict(bonus=RNDBonus()), kl_coef=0.1)),
    "counts": (tensor_env("MountainCar-v0"), none, dict(rewards=dict(bonus=CountBonus()))),
    "clusters": (tensor_env(), none, dict(advantage="outcome", multitask=dict(grouping="auto", weights="adaptive"))),
    "tasks": (
        tensor_env("CartPoleTasks-v0"), none,
        dict(multitask=dict(tasks=5, grouping="task", weights="performance", surgery=True)),
    ),
    "horizons": (tensor_env(), none, dict(advantage_kwargs=dict(horizons=True))),
    "memory": (tensor_env(), none, dict(policy_kwargs=dict(net_arch=[8], memory="gru"))),
    "synchronous": (lambda: Together(8), none, {}),
    "copied starts": (lambda: Unseeded(8), none, {}),
    "callbacks": (lambda: TensorGoalCar(8), watched, {}),
    "recovery": (tensor_env(), lambda: [RecoveryCallback(verbose=0)], {}),
    "evaluations": (tensor_env(), evaluated(lambda: make_vec_env("CartPole-v1", 2, seed=3)), {}),
    "evaluations on tensors": (tensor_env(), evaluated(tensor_env()), dict(normalize_advantage="none")),
}  # fmt: skip


@pytest.mark.parametrize("case", TENSOR.values(), ids=TENSOR)
def test_a_resumed_run_is_the_run_that_went_on(case):
    """Down to the last attribute, also where the file was written in the middle of groups."""
    make, callbacks, kwargs = case
    saver = Saver(3)
    model, rows = went_on(make, 5, saver, callbacks, **kwargs)
    again, rows_again = resumed(make, saver, callbacks)
    assert 0 < len(rows_again) < len(rows) and rows[-len(rows_again) :] == rows_again
    assert list(differences(trimmed(model), trimmed(again))) == []


def test_what_was_changed_by_hand_on_the_way_goes_on_too():
    """The seed and a schedule that no argument knows of among it; then learns the same, whatever becomes of its types."""
    saver = Saver(3)
    model, rows = went_on(tensor_env(), 5, saver, lambda: [ChangesAll()], kl_coef=0.1)
    again, rows_again = resumed(tensor_env(), saver, lambda: [ChangesAll()])
    assert len(rows_again) == 2 and rows[-2:] == rows_again and rows[-1]["train/learning_rate"] == "0.01"
    assert all(th.equal(a, b) for a, b in zip(model.policy.parameters(), again.policy.parameters(), strict=True))


def pendulum() -> Any:
    return VecNormalize(make_vec_env("Pendulum-v1", 4, seed=0))


BY_NUMBER = dict(n_steps=None, n_groups=1)


@pytest.mark.parametrize("advantage", ["outcome", "state"])
def test_host_envs_go_on_exactly_where_all_episodes_had_just_begun(advantage):
    saver = Saver(2)
    model, rows = went_on(pendulum, 4, saver, none, advantage=advantage, **BY_NUMBER)
    again, rows_again = resumed(pendulum, saver, none)
    assert len(rows_again) == 2 and rows[-2:] == rows_again
    assert list(differences(trimmed(model), trimmed(again))) == []


@pytest.mark.parametrize("advantage", ["process", "state"])
def test_host_envs_go_on_exactly_where_new_groups_were_asked_for(advantage):
    def make() -> Any:
        return VecNormalize(make_vec_env("CartPole-v1", 4, seed=0))

    saver = Saver(2, new_groups=True)
    model, rows = went_on(make, 4, saver, none, advantage=advantage)
    again, rows_again = resumed(make, saver, none)
    assert rows[-len(rows_again) :] == rows_again and again.interruptions == 0
    assert list(differences(trimmed(model), trimmed(again))) == []


@pytest.mark.parametrize("advantage", ["process", "state"])
def test_elsewhere_host_envs_end_their_episodes_and_go_on(advantage):
    """Counted; the new starts are seen through the statistics of the run, which see them."""

    def make() -> Any:
        return VecNormalize(make_vec_env("CartPole-v1", 4, seed=0))

    saver = Saver(2)
    model, _ = went_on(make, 4, saver, none, advantage=advantage)
    again, _ = resumed(make, saver, none)
    assert again.num_timesteps >= model._total_timesteps and again.interruptions == 1
    run = read_run(saver.file)
    count, steps = run["normalized"]["moments"]["observations"]["count"], again.num_timesteps - again._num_timesteps_at_start
    assert again.get_env().obs_rms.count == pytest.approx(count + 4 + steps)


def masked(source: str, steps: int = 16) -> Callable[[], Any]:
    """Every episode is as long as the others, so that all begin together."""
    return lambda: make_vec_env(lambda: Moody(source=source, steps=steps), 4, seed=0)


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.parametrize("source", ["method", "info", "observation"])
@pytest.mark.parametrize("new_groups", [False, True], ids=["starts", "new groups"])
def test_masked_runs_go_on_exactly(source, new_groups, memory):
    make, saver = masked(source, steps=20 if new_groups else 16), Saver(3, new_groups)
    policy_kwargs = dict(net_arch=[8]) if memory is None else dict(net_arch=[8], memory=memory, memory_size=4)
    model, rows = went_on(make, 6, saver, none, policy=policy_of(source), policy_kwargs=policy_kwargs)
    again, rows_again = resumed(make, saver, none)
    assert again.mask_source == source and invalid_in(again.get_env()) == 0 and again.interruptions == 0
    assert rows[-len(rows_again) :] == rows_again
    assert list(differences(trimmed(model), trimmed(again))) == []


@pytest.mark.parametrize("memory", [None, "gru"])
def test_masked_runs_go_on_in_the_middle_of_episodes(memory):
    make, saver = masked("info", steps=20), Saver(3)
    policy_kwargs = dict(net_arch=[8]) if memory is None else dict(net_arch=[8], memory=memory, memory_size=4)
    went_on(make, 6, saver, none, policy_kwargs=policy_kwargs)
    again, _ = resumed(make, saver, none)
    assert again.num_timesteps >= again._total_timesteps and again.interruptions == 1
    assert invalid_in(again.get_env()) == 0


@pytest.mark.parametrize(("then", "now"), [("info", "none"), ("none", "info"), ("info", "method"), ("method", "none")])
def test_a_run_with_masks_from_elsewhere_is_refused(then, now):
    saver = Saver(1)
    went_on(masked(then), 1, saver, none)
    with pytest.raises(ValueError, match="The run had action masks of the source"):
        resumed(masked(now), saver, none)


def test_a_curriculum_sets_its_level_before_the_first_episode():
    """Episodes of 40 steps, rollouts of 40: all have just begun, at the level that the callback has reached."""

    def make() -> Any:
        return make_vec_env("MountainCarGoal-v0", 4, seed=0, env_kwargs={"max_episode_steps": 40})

    def callbacks() -> list[BaseCallback]:
        return [CurriculumCallback([0.0, 0.5], success=-1000.0, window=4)]

    saver = Saver(2)
    model, rows = went_on(make, 4, saver, callbacks, n_steps=40)
    again, rows_again = resumed(make, saver, callbacks)
    assert rows[-len(rows_again) :] == rows_again and model.curriculum_level == 1
    assert list(differences(trimmed(model), trimmed(again))) == []


def test_the_walk_notices_what_is_forgotten():
    """A baseline that counts in a set, which no state holds, and in an object that has one."""

    class Counter:
        n = 0

        def state_dict(self) -> dict[str, Any]:
            return {"n": self.n}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.n = state["n"]

    class Forgetful(StateBaseline):
        def estimate(self, *args: Any, **kwargs: Any) -> Any:
            self.__dict__.setdefault("seen", set()).add(len(self.__dict__.get("seen", ())))
            self.counter.n += 1
            return super().estimate(*args, **kwargs)

    class Settings(State):
        def build(self, features_dim: int, n_tasks: int, n_objectives: int) -> Any:
            baseline = Forgetful(features_dim)
            baseline.counter = Counter()
            return baseline

    made, saver = Settings(), Saver(3)
    model, _ = went_on(tensor_env(), 5, saver, none, advantage=made)
    again, _ = resumed(tensor_env(), saver, none)
    assert [path.split(":")[0] for path in differences(trimmed(model), trimmed(again))] == ["model.estimator.seen"]
    assert model.estimator.counter.n == again.estimator.counter.n == 5


def test_log_interval_goes_on_counting_and_saves_can_be_saved_again(tmp_path):
    """Tables every third rollout: at 3 and 6, not at 5 again; TensorBoard's folder is the run's, whatever came later."""
    saver = Saver(2)
    env = make_tensor_env("CartPole-v1", 8)
    model = GRPO("MlpPolicy", env, seed=1, tensorboard_log=str(tmp_path), **SMALL).learn(7 * 256, saver, log_interval=3)
    assert model.num_timesteps == 7 * 256
    GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 8), seed=2, tensorboard_log=str(tmp_path), **SMALL).learn(256)
    (tmp_path / "run.zip").write_bytes(saver.file.getvalue())
    GRPO.load_run(tmp_path / "run.zip", make_tensor_env("CartPole-v1", 8)).save_run(tmp_path / "again")
    again = GRPO.load_run(tmp_path / "again.zip", make_tensor_env("CartPole-v1", 8))
    again.resume(Saver(0), log_interval=3)
    assert [len(list((tmp_path / f"GRPO_{i}").glob("events*"))) for i in (1, 2)] == [2, 1]
    assert again.num_timesteps == model.num_timesteps and again.logger.dir == str(tmp_path / "GRPO_1")
    assert all(th.equal(a, b) for a, b in zip(model.policy.parameters(), again.policy.parameters(), strict=True))


def test_a_loop_of_ones_own_goes_on(tmp_path):
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 8), seed=1, **SMALL)
    for _ in range(2):
        rollout = model.collect()
        model.save_run(tmp_path / "run")  # is written when the rollout has been learnt from
        model.update(rollout)
    went_on = model.collect()
    again = GRPO.load_run(tmp_path / "run", make_tensor_env("CartPole-v1", 8)).collect()
    assert th.equal(went_on.actions, again.actions) and th.equal(went_on.seed_group, again.seed_group)


# ---------------------------------------------------------------- files


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run.zip"
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 8), seed=1, device="cpu", **SMALL)
    model.learn(512, HealthCallback(verbose=0))
    model.save_run(path)
    model.save(path.with_name("model.zip"))
    return path


def test_nothing_in_a_run_is_pickled_that_trusted_false_needs(saved, tmp_path):
    again = GRPO.load_run(saved, make_tensor_env("CartPole-v1", 8), trusted=False)
    assert again.resume(HealthCallback(verbose=0)).num_timesteps == 512  # it had come to its end

    class Planted:
        def __reduce__(self) -> Any:
            return (tmp_path.joinpath("ran").touch, ())

    file = io.BytesIO()
    with zipfile.ZipFile(saved) as archive:
        entries = {name: archive.read(name) for name in archive.namelist() if name != RUN}
    th.save({"facts": Planted()}, file, pickle_module=pickle)
    (tmp_path / "planted.zip").write_bytes(with_entries(b"", {**entries, **run_entries(file.getvalue())}))
    with pytest.raises(ValueError, match="broken, or not of save_run"):
        GRPO.load_run(tmp_path / "planted.zip", make_tensor_env("CartPole-v1", 8))
    assert not (tmp_path / "ran").exists()


def test_what_is_no_run_is_named(saved, tmp_path):
    env = make_tensor_env("CartPole-v1", 8)
    with pytest.raises(ValueError, match=r"no file .*nothing"):
        GRPO.load_run(tmp_path / "nothing", env)
    with pytest.raises(ValueError, match="holds a model, but no run"):
        GRPO.load_run(saved.with_name("model.zip"), env)
    content = saved.read_bytes()
    (tmp_path / "cut.zip").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="broken"):
        GRPO.load_run(tmp_path / "cut.zip", env)
    entry = read_entry(saved, RUN)
    (tmp_path / "half.zip").write_bytes(with_entries(b"", run_entries(entry[: len(entry) // 2])))
    with pytest.raises(ValueError, match="broken, or not of save_run"):
        GRPO.load_run(tmp_path / "half.zip", env)


def changed(state: Any, where: tuple[Any, ...], value: Any) -> bytes:
    """The bytes of a run's state with another value in one place."""
    part = state
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    file = io.BytesIO()
    th.save(state, file)
    return file.getvalue()


#: Places in a run, and other values for them.
CHANGES: list[tuple[tuple[Any, ...], Any]] = [
    (("loop", "random", "python"), None),
    (("loop", "random", "torch"), th.zeros(3, dtype=th.uint8)),
    (("own", "ep_success_buffer"), {":deque": 1.0, ":length": 5}),
    (("trainable_parts", "estimator"), {}),
    (("buffer",), None),
    (("action_space", "state", "inc"), 2**200),
]
PLAUSIBLE = [(("own", "_base_seed"), []), (("groups", "group_size"), 3), (("loop", "iteration"), "2")]


@pytest.mark.parametrize(
    ("where", "value", "fits"),
    [
        pytest.param(*change, fits, id=".".join(change[0]) + "-with-its-checksum" * fits)
        for fits in (False, True)
        for change in (CHANGES if fits else CHANGES + PLAUSIBLE)
    ],
)
def test_a_run_with_a_changed_value_is_refused_when_it_is_loaded(where, value, fits, saved, tmp_path):
    """By its checksum; values that cannot be put anywhere are refused with a checksum that fits, too."""
    with zipfile.ZipFile(saved) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    content = changed(th.load(io.BytesIO(entries[RUN]), weights_only=True), where, value)
    path, before = tmp_path / "changed.zip", th.get_rng_state()
    path.write_bytes(with_entries(b"", {**entries, **(run_entries(content) if fits else {RUN: content})}))
    with pytest.raises(
        ValueError, match=r"state of the run in .*changed\.zip " + ("" if fits else "is broken.* its checksum")
    ):
        GRPO.load_run(path, make_tensor_env("CartPole-v1", 8))
    assert fits or th.equal(th.get_rng_state(), before)


def test_other_envs_and_settings_are_refused(saved):
    host = make_vec_env("CartPole-v1", 8)
    for env, what in (
        (make_tensor_env("CartPole-v1", 4), "n_envs=8, but here it is 4"),
        (make_tensor_env("Acrobot-v1", 8), "env=CartPole-v1, but here it is Acrobot-v1"),
        (host, "tensor_env=True, but here it is False"),
    ):
        with pytest.raises(ValueError, match=what):
            GRPO.load_run(saved, env)
    saver = Saver(1)
    GRPO("MlpPolicy", host, seed=1, device="cpu", **SMALL).learn(256, saver)
    with pytest.raises(ValueError, match="vec_normalize=False, but here it is True"):
        GRPO.load_run(saver.file, VecNormalize(make_vec_env("CartPole-v1", 8)))
    with pytest.raises(ValueError, match="takes no gamma"):
        GRPO.load_run(saved, make_tensor_env("CartPole-v1", 8), gamma=0.9)


def test_a_run_has_one_learner(saved, monkeypatch):
    """As torchrun would start it, before anything is joined."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="one learner"):
        GRPO.load_run(saved, make_tensor_env("CartPole-v1", 8))


def test_callbacks_that_knew_something_are_missed(saved):
    model = GRPO.load_run(saved, make_tensor_env("CartPole-v1", 8))
    with pytest.raises(ValueError, match="had HealthCallback among its callbacks"):
        model.resume()


def test_there_must_be_something_to_save_and_to_resume(tmp_path):
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 8), **SMALL)
    with pytest.raises(ValueError, match="no run to save"):
        model.save_run(tmp_path / "run")
    with pytest.raises(ValueError, match="no run to resume"):
        model.resume()


def test_packed_states_are_plain_and_come_back(tmp_path):
    """Also through a file that is read without pickle; numbers of 128 bits are what NumPy's generators have."""
    state = {
        "array": np.arange(3, dtype=np.uint32), "deque": deque([1, (2.5, None)], 7), 3: [True, "text", b"\0\1"],
        "big": 2**127 + 1, "tensor": th.arange(2.0), "scalar": np.float32(0.5), "none": None,
    }  # fmt: skip
    th.save(pack(state), tmp_path / "state")
    back = unpack(th.load(tmp_path / "state", weights_only=True))
    assert list(differences({**state, "scalar": 0.5}, back)) == [] and back["deque"].maxlen == 7
    assert back["array"].dtype == np.uint32
    with pytest.raises(NoPlainForm, match=r"a\.b is a builtins\.object"):
        pack({"a": {"b": object()}})


def test_a_state_without_a_plain_form_is_named(tmp_path):
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 8), **SMALL).learn(256)
    model.estimator.odd = {"a": object()}
    with pytest.raises(ValueError, match=r"estimator.*odd\.a is a builtins\.object"):
        model.save_run(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_a_models_zip_too(saved):
    assert GRPO.load(saved).num_timesteps == 512
    assert read_run(saved)["loop"]["iteration"] == 2


# ---------------------------------------------------------------- copies

COPIES: dict[str, Callable[[Any], Any]] = {"deepcopy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m))}
COPIED = {
    "state": {}, "outcome": dict(advantage="outcome"), "reference": dict(kl_coef=0.1),
    "clusters": dict(multitask=dict(grouping="auto")),
    "memory": dict(policy_kwargs=dict(net_arch=[8], memory="gru", memory_size=4)),
}  # fmt: skip


def going_on(model: GRPO, reset_num_timesteps: bool) -> GRPO:
    th.manual_seed(7)
    np.random.seed(7)
    return model.learn(128, reset_num_timesteps=reset_num_timesteps)


@pytest.mark.parametrize("make", [lambda: make_vec_env("CartPole-v1", 2), lambda: make_tensor_env("CartPole-v1", 2)])
@pytest.mark.parametrize("way", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("kwargs", COPIED.values(), ids=COPIED)
def test_a_copy_trains_as_what_it_was_copied_from(kwargs, way, make):
    """Before the first rollout and after, with episodes that go on and with new ones."""
    for steps in (0, 128):
        for new in (True, False):
            model = GRPO("MlpPolicy", make(), seed=0, device="cpu", **{**SMALL, **kwargs})
            if steps:
                model.learn(steps, HealthCallback())
            other = way(model)
            before = th.cat([p.detach().flatten() for p in other.policy.parameters()])
            going_on(model, new)
            assert th.equal(before, th.cat([p.detach().flatten() for p in other.policy.parameters()]))
            going_on(other, new)
            assert [path for path in differences(model, other) if not path.startswith("model.ep_info_buffer")] == []


@pytest.mark.parametrize("way", COPIES.values(), ids=COPIES)
def test_a_copy_of_gsde_is_made_at_any_time(way, tmp_path):
    """Noise that hangs on to the gradients of its scale cannot be copied: PPO's are refused by torch until they have acted."""
    model = GRPO("MlpPolicy", "Pendulum-v1", use_sde=True, seed=0, device="cpu", **SMALL)
    model.save(tmp_path / "model")
    for one in (model, GRPO.load(tmp_path / "model", model.env), model.learn(64)):
        one.policy.reset_noise()
        copied = way(one)
        a, b = (going_on(m, True) for m in (one, copied))
        assert all(th.equal(x, y) for x, y in zip(a.policy.parameters(), b.policy.parameters(), strict=True))


@pytest.mark.parametrize("way", COPIES.values(), ids=COPIES)
def test_copies_are_made_while_a_model_learns(way):
    """What a callback copies has no part in the training; it begins new groups, as a loaded model does."""

    class Copier(Saver):
        def _on_step(self) -> bool:
            if self.n_calls == 21:
                self.other = way(self.model)
            return True

    copier = Copier(0)
    copies, plain = (
        GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), seed=0, device="cpu", **SMALL).learn(128, callback)
        for callback in (copier, None)
    )
    th.testing.assert_close(copies.policy.state_dict(), plain.policy.state_dict(), rtol=0, atol=0)
    other = copier.other.learn(128, reset_num_timesteps=False)
    assert other.num_timesteps == 42 + 128 and other.interruptions == 0
    other.save_run(io.BytesIO())


@pytest.mark.parametrize("way", COPIES.values(), ids=COPIES)
def test_a_copy_of_compiled_execution_compiles_its_own(way):
    """The baseline of a copy predicts with the weights of the copy, in a graph of its own."""
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 4), compile=True, device="cpu", **SMALL)
    other = way(model)
    assert other.estimator.fast_predict.baseline is other.estimator is not model.estimator
    assert other.compiled._predict.compiled not in (None, model.compiled._predict.compiled)
    assert other.estimator.fast_predict.graph is other.compiled._predict


class Asks(BaseCallback):
    """Asks for the run's file in mid-rollout."""

    def __init__(self, path, stop=False):
        super().__init__()
        self.path, self.stop = path, stop

    def _on_step(self):
        if self.n_calls == 3:
            self.model.save_run(self.path)
            return not self.stop
        return True


class Own(GRPO):
    """Learns in a way of its own."""

    def train(self):
        self._training_batch = None


@pytest.mark.parametrize(("kind", "stop"), [(GRPO, True), (Own, False)])
def test_a_run_that_was_asked_for_is_written_whatever_becomes_of_the_rollout(tmp_path, kind, stop):
    kind("MlpPolicy", "CartPole-v1", n_steps=32, seed=0, device="cpu").learn(64, Asks(tmp_path / "run.zip", stop))
    assert (tmp_path / "run.zip").exists()


def test_a_run_that_cannot_be_written_is_named_and_the_next_one_is(tmp_path):
    class Broken(GRPO):
        def train(self):
            raise KeyboardInterrupt

    model = Broken("MlpPolicy", "CartPole-v1", n_steps=32, seed=0, device="cpu")
    with pytest.warns(UserWarning, match=r"save_run\(.*has written nothing"), pytest.raises(KeyboardInterrupt):
        model.learn(64, Asks(tmp_path / "run.zip"))
    model.save_run(tmp_path / "later.zip")
    assert (tmp_path / "later.zip").exists()


# The sections of ``scripts/torture.py`` in their short form, as in ``python -m scripts.torture --short``

@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_what_must_survive_does(section):
    assert [figure for figure in section(True) if figure.count > figure.allowed or figure.of == 0] == []


def test_half_a_file_is_found(tmp_path):
    """The section would notice."""
    (tmp_path / "a.zip").write_bytes(b"PK\3\4 half of a zip")
    (tmp_path / "b.npz").write_bytes(b"")
    (tmp_path / "c.json").write_text("0 1\n0 1\n0")
    assert [line.split(":")[0] for line in broken(tmp_path)] == ["a.zip", "b.npz", "c.json"]
    assert saves is SECTIONS["saves"]
