"""The multi-task suites: good Gymnasium citizens, and the tensor versions do what the host versions do."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium.utils.env_checker import check_env as gymnasium_check
from stable_baselines3.common.env_checker import check_env as sb3_check

from sb_grpo.envs import check_tensor_env
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.envs.random import group_seeds
from sb_grpo.tasks.multi_task import SUITES, hang_down, hold_right, hover
from sb_grpo.tasks.multi_task_tensor import NATIVE_TASKS


@pytest.mark.parametrize("env_id", SUITES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_checkers_are_content(env_id):
    gymnasium_check(gym.make(env_id).unwrapped, skip_render_check=True)
    sb3_check(gym.make(env_id))


@pytest.mark.parametrize("env_id", SUITES)
def test_a_task_env_can_be_copied_and_pickled(env_id):
    env = gym.make(env_id)
    for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env.unwrapped))):
        np.testing.assert_array_equal(copied.reset(seed=3)[0], env.reset(seed=3)[0])


@pytest.mark.parametrize("env_id", SUITES)
def test_the_seed_decides_task_and_start(env_id):
    one, two, tasks = gym.make(env_id), gym.make(env_id), set()
    for seed in range(30):
        (a, info), (b, _) = one.reset(seed=seed), two.reset(seed=seed)
        assert (a == b).all() and a[-4:].argmax() == info["task"] and a[-4:].sum() == 1
        tasks.add(info["task"])
        for _ in range(5):
            action = one.action_space.sample()
            (a, ra, ea, _, info), (b, rb, eb, *_) = one.step(action), two.step(action)
            assert (a == b).all() and ra == rb and ea == eb and info["task"] == a[-4:].argmax()
    assert tasks == {0, 1, 2, 3}


@pytest.mark.parametrize("env_id", SUITES)
def test_every_task_ends_in_time_and_pays_on_its_scale(env_id):
    for number, task in enumerate(SUITES[env_id].tasks):
        env = gym.make(env_id, task=task.name)
        env.action_space.seed(0)
        for seed in range(3):
            _, info = env.reset(seed=seed)
            assert info["task"] == number
            steps, over = 0, False
            while not over:
                _, _, terminated, truncated, info = env.step(env.action_space.sample())
                steps, over = steps + 1, terminated or truncated
            assert steps <= task.max_steps and (steps == task.max_steps) == truncated
        env.close()


def test_a_task_can_be_chosen_and_leaves_no_trace_in_the_next():
    env = gym.make("LunarLanderTasks-v0")
    env.reset(seed=0, options={"task": "windy"})
    assert env.unwrapped.base.enable_wind and env.unwrapped.base.wind_power == 10.0
    env.reset(seed=0, options={"task": 1})
    assert not env.unwrapped.base.enable_wind and env.unwrapped.base.gravity == -5.0
    env.reset(seed=0, options={"task": 0})
    assert env.unwrapped.base.gravity == -10.0
    for task in (4, -1, "fly", 1.0):
        with pytest.raises(ValueError, match=f"task={task!r} is unknown: there are .'land'"):
            env.reset(options={"task": task})
    with pytest.raises(ValueError, match="task='fly' is unknown"):
        gym.make("LunarLanderTasks-v0", task="fly")
    with pytest.raises(ValueError, match="task='fly' is unknown"):
        make_tensor_env("CartPoleTasks-v0", 2, task="fly")


def test_goals_by_hand():
    assert hold_right(None, np.array([1.0, 0, 0, 0]), 0, 1.0) == 1.0
    assert np.isclose(hold_right(None, np.array([0.5, 0, 0, 0]), 0, 1.0), np.exp(-1.0))
    assert hang_down((np.pi, 0.0), None, np.array([0.0]), 0.0) == 0.0
    assert np.isclose(hang_down((0.0, 2.0), None, np.array([5.0]), 0.0), -(np.pi**2 + 0.4 + 0.004))
    assert hover(None, np.array([0.0, 0.7]), 0, -5.0) == 1.0


def test_the_lander_can_be_rendered():
    env = gym.make("CartPoleTasks-v0", render_mode="rgb_array")
    env.reset(seed=0)
    pytest.importorskip("pygame")
    assert env.render().ndim == 3
    env.close()


@pytest.mark.parametrize("env_id", NATIVE_TASKS)
@pytest.mark.parametrize("task", range(4))
def test_tensor_physics_and_rewards_equal_the_hosts(env_id, task):
    host, ours = gym.make(env_id, task=task), make_tensor_env(env_id, 1, dtype=th.float64, task=task)
    host.action_space.seed(0)
    for seed in range(4):
        obs, _ = host.reset(seed=seed)
        state = np.append(np.asarray(host.unwrapped.base.state, dtype=np.float64), task)
        ours.reset_all(th.tensor([seed]))
        ours.state = th.as_tensor(state).unsqueeze(0)
        np.testing.assert_allclose(ours.observations.numpy()[0], obs, atol=1e-6)
        over = False
        while not over:
            action = host.action_space.sample()
            obs, reward, terminated, truncated, info = host.step(action)
            step = ours.step_tensor(th.as_tensor(np.array(action)).unsqueeze(0))
            np.testing.assert_allclose(step.observations.numpy()[0], obs, atol=2e-5)
            np.testing.assert_allclose(float(step.rewards[0]), reward, rtol=1e-4, atol=1e-6)
            assert (bool(step.terminated), bool(step.truncated)) == (terminated, truncated)
            assert info["task"] == int(ours.tasks[0])
            over = terminated or truncated


@pytest.mark.parametrize("env_id", NATIVE_TASKS)
def test_tensor_suites_keep_the_promises_of_tensor_envs(env_id):
    check_tensor_env(make_tensor_env(env_id, 6))
    starts = make_tensor_env(env_id, 1).initial_state(group_seeds(0, th.arange(4000)))
    assert (th.bincount(starts[:, -1].long()) > 850).all()


def test_infos_of_the_vec_env_interface_name_the_task():
    env = make_tensor_env("CartPoleTasks-v0", 5)
    obs = env.reset()
    tasks = obs[:, -4:].argmax(1)
    _, _, dones, infos = env.step(np.zeros(5, dtype=np.int64))
    assert not dones.any() and [info["task"] for info in infos] == tasks.tolist()
