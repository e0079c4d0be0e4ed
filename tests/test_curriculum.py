"""Curriculum: when the level moves, what it is called with, and that no group mixes difficulties."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from sb_grpo import GRPO, SeededResetWrapper
from sb_grpo.callbacks import CurriculumCallback
from sb_grpo.callbacks.curriculum import StartWindow
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.tasks.goal_car import TensorGoalCar, goal_position
from tests.helpers import ProbeEnv
from tests.test_grpo import record

SMALL = dict(n_steps=64, batch_size=32, n_epochs=1, group_size=1, seed=0, device="cpu")


class Ladder(gym.Env):
    """Episodes of ``length`` steps that succeed up to a difficulty; the difficulty in force is the observation."""

    def __init__(self, solvable_up_to: float = 2, length: int = 4) -> None:
        self.observation_space = spaces.Box(0.0, 10.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.solvable_up_to, self.length, self.next_difficulty = solvable_up_to, length, 9

    def set_difficulty(self, value: float) -> None:
        self.next_difficulty = value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.difficulty = 0, self.next_difficulty
        return np.float32([self.difficulty]), {}

    def step(self, action):
        self.t += 1
        over, good = self.t >= self.length, self.difficulty <= self.solvable_up_to
        truncated = over and not good
        reward = float(good and over) + 1e-3 * float(action)
        return np.float32([self.difficulty]), reward, over and good, truncated, {"is_success": good} if over else {}


def ladder(**kwargs):
    return make_vec_env(lambda: Ladder(**kwargs), 2)


@pytest.mark.parametrize("success", ["is_success", "terminated", 0.5])
def test_the_level_rises_until_it_is_too_hard(success):
    model, callback = GRPO("MlpPolicy", ladder(), **SMALL), CurriculumCallback([0, 1, 2, 3, 4], success, window=20)
    dumps = record(model)
    model.learn(128 * 8, callback=callback)
    assert [level for _, level in callback.moves] == [1, 2, 3]  # 3 is not solvable, so nothing leads beyond
    assert [d["curriculum/level"] for d in dumps] == [0, 1, 2, 3, 3, 3, 3, 3]
    assert [d["curriculum/value"] for d in dumps] == [d["curriculum/level"] for d in dumps]
    assert [d["curriculum/success_rate"] for d in dumps] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_demotion():
    callback = CurriculumCallback([0, 2, 5], window=20, demote_below=0.2, start=2)
    GRPO("MlpPolicy", ladder(), **SMALL).learn(128 * 4, callback=callback)
    assert [level for _, level in callback.moves] == [1, 2, 1, 2]


def test_worked_out_rates():
    """Between the two bounds the level stays; at them it moves; before the window is full nothing does."""
    callback = CurriculumCallback([0, 1, 2], window=10, promote_above=0.8, demote_below=0.2, start=1)
    callback.model = SimpleNamespace(
        logger=SimpleNamespace(record=lambda *_: None),
        rollout_buffer=None,
        num_timesteps=0,
        restart_groups=lambda: None,
        get_env=lambda: SimpleNamespace(env_method=lambda *_: None),
    )
    rounds = enumerate(((9, 1), (3, 1), (7, 1), (8, 2), (3, 2), (2, 1), (2, 0), (0, 0)))
    for number, (successes, level) in rounds:
        for start in range(9 if successes == 9 else 10):  # nine of nine so far: not enough starts
            callback._successes.add(10 * number + start, start < successes)
        callback._on_rollout_end()
        assert callback.level == level, successes


def test_members_of_a_group_are_one_start():
    """Four lucky members of one group do not outvote three starts that failed: (1 + 0 + 0 + 0) / 4."""
    window = StartWindow(4)
    for group, success in [(0, True)] * 4 + [(1, False), (2, False), (3, False)]:
        window.add(group, success)
    assert len(window) == 4 and window.rate == 0.25
    window.add(4, True)  # the oldest start leaves
    assert list(window.by_start) == [1, 2, 3, 4] and window.rate == 0.25
    window.add(4, False)
    assert window.rate == 0.125


@pytest.mark.parametrize("advantage", ["outcome", "state"])
@pytest.mark.parametrize("n_steps", [64, 67])
def test_no_group_mixes_difficulties(advantage, n_steps):
    seen = []

    class Recording(GRPO):
        def compute_advantages(self, rollout):
            seen.append(rollout)
            return super().compute_advantages(rollout)

    venv = make_vec_env(lambda: Ladder(length=5), 3)
    model = Recording("MlpPolicy", venv, advantage=advantage, **{**SMALL, "n_steps": n_steps, "group_size": 4})
    model.learn(3 * n_steps * 6, callback=CurriculumCallback([0, 1, 2, 3], window=3))
    levels = set()
    for rollout in seen:
        group = rollout.group[rollout.episode]
        for g in range(rollout.n_groups):
            of_group = rollout.observations[group == g].unique().tolist()
            assert len(of_group) == 1
            levels.add(of_group[0])
    assert levels == {0.0, 1.0, 2.0, 3.0}
    dropped = model._steps_dropped
    assert (dropped > 0) == (advantage == "outcome")  # "state" trains on the cut parts of episodes
    assert sum(len(r.rewards) for r in seen) + dropped + model.rollout_buffer.n_kept == model.num_timesteps
    assert model.groups.start_mismatches == 0


def test_vec_normalize_and_processes():
    venv = make_vec_env(Ladder, 2, vec_env_cls=SubprocVecEnv, wrapper_class=SeededResetWrapper)
    callback = CurriculumCallback(np.arange(5), window=20)
    GRPO("MlpPolicy", VecNormalize(venv), **SMALL).learn(128 * 5, callback=callback)
    assert callback.level == 3
    venv.close()


def test_the_level_is_saved_with_the_model(tmp_path):
    model = GRPO("MlpPolicy", ladder(), **SMALL)
    checkpoints = CheckpointCallback(128, str(tmp_path), name_prefix="c")
    model.learn(128 * 3, callback=[CurriculumCallback(range(5), window=20), checkpoints])
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", env=ladder(), device="cpu")
    again = CurriculumCallback(range(5), window=20)
    loaded.learn(128, callback=again, reset_num_timesteps=False)
    assert again.level == 3 and again.moves == []
    assert {e.env.unwrapped.difficulty for e in loaded.env.envs} == {3}
    anew = CurriculumCallback(range(5), window=20, start=0)
    loaded.learn(128, callback=anew)
    assert anew.level == 1
    with pytest.raises(ValueError, match=r"level saved with the model=1 is no level: there are 1.*start=0"):
        loaded.learn(128, callback=CurriculumCallback([0]))


def test_without_the_callback_nothing_restarts():
    model = GRPO("MlpPolicy", ladder(), **SMALL).learn(256)
    assert model.curriculum_level is None and model.groups.next_episode_id > 256 // 4  # one stream of episodes, none skipped


# ------------------------------------------------------------------- tensor envs and the example


@pytest.mark.parametrize("success", ["terminated", -199.0])
def test_on_tensor_envs(success):
    env = TensorGoalCar(16)
    callback = CurriculumCallback([0.0, 0.01, 1.0], success, window=10, promote_above=0.3)
    model = GRPO("MlpPolicy", env, **{**SMALL, "n_steps": 256, "gamma": 0.99})
    dumps = record(model)
    model.learn(16 * 256 * 4, callback=callback)
    assert callback.level == 2 and env.goal.item() == pytest.approx(0.5)
    assert dumps[-1]["curriculum/success_rate"] < 0.3 and model.groups.start_mismatches == 0


def test_the_tensor_car_drives_as_the_host_car():
    host, tensor = gym.make("MountainCarGoal-v0").unwrapped, TensorGoalCar(1, dtype=th.float64)
    for difficulty in (0.0, 0.3, 1.0):
        host.set_difficulty(difficulty)
        tensor.set_difficulty(difficulty)
        host.reset(seed=0)
        assert host.goal_position == pytest.approx(tensor.goal.item()) == goal_position(difficulty)
        state, over = th.tensor(np.array([host.state]), dtype=th.float64), False
        for _ in range(300):
            action = int(state[0, 1] >= 0) * 2  # push where it rolls: reaches any flag
            obs, reward, over, _, info = host.step(action)
            state, r, ended = tensor.transition(state, th.tensor([action]))
            np.testing.assert_allclose(obs, state[0].numpy(), atol=1e-6)
            assert (reward, over, info["is_success"]) == (r.item(), bool(ended), over)
            if over:
                break
        assert over


def test_the_host_car_passes_sb3s_checker_and_difficulty_1_is_mountain_car():
    check_env(gym.make("MountainCarGoal-v0").unwrapped)
    ours, theirs = gym.make("MountainCarGoal-v0").unwrapped, gym.make("MountainCar-v0").unwrapped
    assert (ours.reset(seed=3)[0] == theirs.reset(seed=3)[0]).all() and ours.goal_position == theirs.goal_position


@pytest.mark.parametrize("difficulty", [-0.1, 1.1, float("nan")])
def test_a_difficulty_out_of_range(difficulty):
    for env in (gym.make("MountainCarGoal-v0").unwrapped, TensorGoalCar(2)):
        with pytest.raises(ValueError, match=rf"difficulty={difficulty} must lie in \[0, 1\]"):
            env.set_difficulty(difficulty)


# ------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        (dict(levels=[]), r"levels=\[\] is empty"),
        (dict(window=0), "window=0 must be at least 1 start"),
        (dict(promote_above=1.2), r"promote_above=1.2 must lie in \[0, 1\]"),
        (dict(promote_above=float("nan")), "promote_above=nan must lie"),
        (dict(demote_below=0.8), r"demote_below=0.8 must lie in \[0, promote_above=0.8\)"),
        (dict(success="win"), "success='win' is unknown: use 'is_success', 'terminated' or a least return"),
        (dict(start=2), "start=2 is no level: there are 2, numbered from 0"),
    ],
)
def test_bad_arguments(kwargs, says):
    with pytest.raises(ValueError, match=says):
        CurriculumCallback(**{"levels": [0, 1], **kwargs})


@pytest.mark.parametrize(
    ("make", "kwargs", "says"),
    [
        (lambda: make_vec_env("CartPole-v1", 2), {}, "the env has no method 'set_difficulty'.*method=..."),
        (lambda: make_tensor_env("CartPole-v1", 2), {}, "CartPole has no method 'set_difficulty'"),
        (lambda: TensorGoalCar(2), {}, "success='is_success' is read from infos, which a TensorGoalCar does not have"),
        (ladder, dict(method="set_level"), "no method 'set_level'"),
        (
            lambda: DummyVecEnv([lambda: Monitor(Ladder(), allow_early_resets=False)]),
            {},
            "Build the Monitor with allow_early_resets=True",
        ),
    ],
)
def test_an_env_that_will_not_do_is_refused_before_the_first_step(make, kwargs, says):
    model = GRPO("MlpPolicy", make(), **SMALL)
    with pytest.raises(ValueError, match=says):
        model.learn(256, callback=CurriculumCallback([0, 1], **kwargs))
    assert model.num_timesteps == 0


class Silent(ProbeEnv):
    """Says neither is_success nor, without a Monitor, a return."""

    def set_difficulty(self, value):
        pass


@pytest.mark.parametrize(
    ("success", "says"), [("is_success", "no 'is_success' at the end"), (1.0, "success=1.0 is a return.*VecMonitor")]
)
def test_success_that_cannot_be_told(success, says):
    model = GRPO("MlpPolicy", DummyVecEnv([lambda: Silent("action")]), **SMALL)
    with pytest.raises(ValueError, match=says):
        model.learn(256, callback=CurriculumCallback([0, 1], success))


def test_other_algorithms_are_refused():
    with pytest.raises(ValueError, match=r"the model is a PPO: train with sb_grpo\.GRPO"):
        PPO("MlpPolicy", ladder(), n_steps=64).learn(128, callback=CurriculumCallback([0, 1]))


def test_a_start_that_is_not_finite_after_a_move_is_named():
    """The reset between two levels is looked at as that of learn() is."""

    class Breaks(Ladder):
        def set_difficulty(self, difficulty):
            super().set_difficulty(difficulty)
            self.spoilt = difficulty > 0

        def reset(self, **kwargs):
            obs, info = super().reset(**kwargs)
            return (obs * np.nan if getattr(self, "spoilt", False) else obs), info

    model = GRPO("MlpPolicy", make_vec_env(lambda: Breaks(length=5), 3), **SMALL)
    with pytest.raises(ValueError, match=r"observation of env 0 .* is not finite at vector step 0"):
        model.learn(128 * 6, callback=CurriculumCallback([0, 1], window=10))
