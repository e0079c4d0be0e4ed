"""Native tensor envs against Gymnasium's own, and the TensorVecEnv contract."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from scipy import stats
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from sb_grpo.envs.native import NATIVE, make_tensor_env
from sb_grpo.envs.random import group_seed, group_seeds, mix, mix_tensor, signed, uniform

DEVICES = ["cpu", *(["cuda"] if th.cuda.is_available() else [])]


def gymnasium_transitions(env_id, episodes, max_steps=None):
    """States, step numbers, actions and what Gymnasium made of them, over random episodes or the first steps of them."""
    env = gym.make(env_id, disable_env_checker=True)
    env.action_space.seed(0)
    rows = []
    for seed in range(episodes):
        env.reset(seed=seed)
        t, over = 0, False
        while not over and t != max_steps:
            before, action = np.array(env.unwrapped.state, dtype=np.float64), env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(action)
            rows.append((before, t, action, obs, float(reward), terminated, truncated))
            t, over = t + 1, terminated or truncated
    return [np.array(column) for column in zip(*rows, strict=True)]


def check_physics(env_id, dtype, transitions):
    states, t, actions, observations, rewards, terminated, truncated = transitions
    env = make_tensor_env(env_id, len(states), dtype=dtype)
    env.state, env.elapsed = th.as_tensor(states, dtype=dtype), th.as_tensor(t)
    step = env.step_tensor(th.as_tensor(actions))
    # float32 physics: absolute 2e-5 on observations of size 1 (Acrobot's fast second link: relative 1e-4).
    tolerance = dict(atol=2e-5, rtol=1e-4) if dtype == th.float32 else dict(atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(step.observations.numpy(), observations, **tolerance)
    np.testing.assert_allclose(step.rewards.numpy(), rewards, **tolerance)
    wrong = (step.terminated.numpy() != terminated) | (step.truncated.numpy() != (truncated & ~terminated))
    assert wrong.mean() <= (1e-4 if dtype == th.float32 else 0.0)


@pytest.mark.parametrize("dtype", [th.float32, th.float64])
@pytest.mark.parametrize("env_id", NATIVE)
def test_physics_equals_gymnasiums_over_200_beginnings_of_random_episodes(env_id, dtype):
    check_physics(env_id, dtype, gymnasium_transitions(env_id, 200, max_steps=40))


@pytest.mark.slow
@pytest.mark.parametrize("env_id", NATIVE)
def test_physics_equals_gymnasiums_over_1000_random_episodes(env_id):
    transitions = gymnasium_transitions(env_id, 1000)
    assert transitions[-1].sum() + transitions[-2].sum() >= 1000  # every episode came to its end
    for dtype in (th.float32, th.float64):
        check_physics(env_id, dtype, transitions)


@pytest.mark.parametrize("env_id", ["MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"])
def test_ends_and_walls_equal_gymnasiums_near_the_goal(env_id):
    """Random play rarely gets there, so start all over the state space."""
    rng, env = np.random.default_rng(0), gym.make(env_id).unwrapped
    env.action_space.seed(0)
    low, high = ([-1.2, -0.07], [0.6, 0.07]) if "Car" in env_id else ([-3, -3, -12, -28], [3, 3, 12, 28])
    states = rng.uniform(low, high, size=(3000, len(low)))
    actions, observations, rewards, terminated = [], [], [], []
    for state in states:
        env.reset(seed=0)
        env.state = state.copy()
        actions.append(env.action_space.sample())
        obs, reward, end, _, _ = env.step(actions[-1])
        observations.append(obs), rewards.append(reward), terminated.append(end)
    ours = make_tensor_env(env_id, 3000, dtype=th.float64)
    ours.state = th.as_tensor(states)
    step = ours.step_tensor(th.as_tensor(np.array(actions)))
    assert 10 < sum(terminated) < 2990
    np.testing.assert_array_equal(step.terminated.numpy(), terminated)
    np.testing.assert_allclose(step.observations.numpy(), observations, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(step.rewards.numpy(), rewards, atol=1e-6)


@pytest.mark.parametrize("env_id", NATIVE)
def test_start_states_follow_gymnasiums_distribution(env_id):
    reference = gym.make(env_id).unwrapped
    theirs = []
    for seed in range(2000):
        reference.reset(seed=seed)
        theirs.append(np.array(reference.state, dtype=np.float64))
    theirs = np.array(theirs)
    ours = make_tensor_env(env_id, 1).initial_state(group_seeds(0, th.arange(2000))).numpy()
    for a, b in zip(theirs.T, ours.T, strict=True):
        assert (a == b).all() or stats.ks_2samp(a, b).pvalue > 1e-3


def test_the_tensor_hash_is_the_hosts_hash():
    words = th.tensor([0, 1, 2, 77, 2**40, -5])
    assert mix_tensor(123, words).tolist() == [signed(mix(123, w)) for w in words.tolist()]
    assert mix_tensor(words, 9).tolist() == [signed(mix(w, 9)) for w in words.tolist()]
    assert group_seeds(7, th.arange(50)).tolist() == [group_seed(7, g) for g in range(50)]


def test_uniform_numbers_are_uniform_and_independent():
    u = uniform(th.arange(20_000), 3)
    assert 0 <= float(u.min()) and float(u.max()) < 1
    for column in u.T:
        assert stats.kstest(column.numpy(), "uniform").pvalue > 1e-3
    assert np.abs(np.corrcoef(u.T.numpy()) - np.eye(3)).max() < 0.03


@pytest.mark.parametrize("device", DEVICES)
def test_same_seed_same_start_in_any_env_and_any_batch(device):
    small, large = make_tensor_env("CartPole-v1", 3, device), make_tensor_env("CartPole-v1", 64, "cpu")
    small.reset_envs(th.tensor([True, True, False], device=device), th.tensor([5, 9, 5], device=device))
    before = large.state.clone()
    mask = th.zeros(64, dtype=th.bool)
    mask[40] = True
    large.reset_envs(mask, th.full((64,), 9))
    assert (small.state[1].cpu() == large.state[40]).all() and (small.state[0] != small.state[1]).any()
    assert (large.state[~mask] == before[~mask]).all()  # envs outside the mask are left alone


def test_snapshot_and_restore_branch_an_episode():
    env = make_tensor_env("Acrobot-v1", 4)
    env.reset()
    for _ in range(20):
        env.step_tensor(th.randint(0, 3, (4,)))
    here = env.snapshot(th.tensor([1, 1, 1]))
    env.restore(th.tensor([0, 2, 3]), here)
    assert (env.state == env.state[1]).all() and (env.elapsed == 20).all()
    step = env.step_tensor(th.tensor([0, 0, 2, 0]))
    assert (step.observations[0] == step.observations[3]).all() and (step.observations[0] != step.observations[2]).any()


def test_time_limit_is_truncation_and_not_termination():
    env = make_tensor_env("Pendulum-v1", 2)
    env.reset()
    for _ in range(200):
        step = env.step_tensor(th.zeros(2, 1))
    assert step.truncated.all() and not step.terminated.any()


def test_the_vec_env_side_serves_sb3():
    env = make_tensor_env("CartPole-v1", 4)
    env.seed(0)
    first = env.reset()
    assert first.dtype == np.float32 and first.shape == (4, 4)
    lengths = []
    for _ in range(200):
        _, rewards, dones, infos = env.step(np.ones(4, dtype=np.int64))
        assert (rewards == 1).all()
        for env_index in np.flatnonzero(dones):
            lengths.append(infos[env_index]["episode"]["l"])
            assert infos[env_index]["episode"]["r"] == infos[env_index]["episode"]["l"]
            assert abs(infos[env_index]["terminal_observation"][2]) > 0.2 and not infos[env_index]["TimeLimit.truncated"]
    assert 7 < np.mean(lengths) < 12  # always pushing right falls in about 9 steps
    env.seed(0)
    np.testing.assert_array_equal(env.reset(), first)
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1).learn(256)
    assert len(model.ep_info_buffer) > 0 and evaluate_policy(model, env, 5)[0] > 5
    assert env.get_attr("max_episode_steps") == [500] * 4


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"Did you mean 'CartPole-v1'.*Acrobot-v1"):
        make_tensor_env("CartPole-v0", 2)
    with pytest.raises(ValueError, match="num_envs=0"):
        make_tensor_env("CartPole-v1", 0)
    if not th.cuda.is_available():
        with pytest.raises(ValueError, match="device='cuda' is not there"):
            make_tensor_env("CartPole-v1", 2, device="cuda")
    env = make_tensor_env("CartPole-v1", 2)
    env.reset()
    with pytest.raises(ValueError, match="Action 3 of env 1 is outside"):
        env.step(np.array([0, 3]))
    for call in (lambda: env.set_attr("x", 1, indices=[0]), lambda: env.env_method("reset", indices=0)):
        with pytest.raises(ValueError, match="all envs"):
            call()
