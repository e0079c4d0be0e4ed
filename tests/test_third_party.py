"""Tasks written by others: fit for SB3, all luck from the seed and in step, and a clear word where the package is missing."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_checker import check_env as sb3_check
from stable_baselines3.common.env_util import make_vec_env

import sb_grpo  # noqa: F401  registers the ids
from sb_grpo import GRPO
from sb_grpo.envs import noise_alignment
from sb_grpo.tasks.third_party import INVENTORY, MOTORS

pytest.importorskip("or_gym_inventory")
pytest.importorskip("gym_electric_motor")
ALL = [*INVENTORY, *MOTORS]
#: The network takes some 30 ms a step.
FAST = [env_id for env_id in ALL if "Network" not in env_id]


@pytest.mark.parametrize("env_id", ALL)
def test_sb3_is_content(env_id):
    env = gym.make(env_id)
    sb3_check(env)
    assert env.spec.id == env_id and env.spec.max_episode_steps in (30, 40, 500)
    assert env.observation_space.dtype == env.action_space.dtype == np.float32
    assert (env.action_space.low == -1).all() and (env.action_space.high == 1).all()


def rewards(env, actions, **reset):
    obs, _ = env.reset(**reset)
    return [obs.tolist(), *(env.step(action)[1] for action in actions)]


@pytest.mark.parametrize("env_id", ALL)
def test_all_noise_follows_from_the_seed_and_goes_on_from_it(env_id):
    one, two = gym.make(env_id), gym.make(env_id)
    two.reset(seed=7)
    two.step(two.action_space.sample())  # what came before does not matter
    actions = [np.full(one.action_space.shape, -0.95, np.float32)] * 6
    first = rewards(one, actions, seed=3)
    assert first == rewards(two, actions, seed=3) != rewards(two, actions, seed=4)
    rewards(two, actions, seed=3)
    second = rewards(one, actions)
    assert first != second == rewards(two, actions)


@pytest.mark.parametrize("env_id", FAST)
def test_episodes_last_as_long_as_registered(env_id):
    env = gym.make(env_id)
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(env.spec.max_episode_steps)]
    assert ends[-1] == (False, True) and not np.any(ends[:-1])


def test_actions_reach_the_package_in_its_own_units():
    env = gym.make("OrNewsvendor-v0")
    env.reset(seed=0)
    for action, order in [(-1.0, 0.0), (-0.75, 250.0), (5.0, 2000.0)]:
        obs = env.step(np.array([action], dtype=np.float32))[0]
        assert obs[-1] == order  # the order just placed is last on its way
    env = gym.make("OrInventoryBacklog-v0")
    env.reset(seed=0)
    env.step(np.array([-0.497, 0.0, 1.0], dtype=np.float32))
    assert env.unwrapped.action_log[0].tolist() == [25, 45, 80]  # of 100, 90 and 80, in whole units


@pytest.mark.parametrize("env_id", [env_id for env_id in INVENTORY if env_id != "OrNewsvendor-v0"])
def test_lost_sales_are_lost_and_backlogs_kept(env_id):
    env = gym.make(env_id)
    env.reset(seed=0)
    for _ in range(12):  # order nothing: the stock runs out
        env.step(-np.ones(env.action_space.shape, dtype=np.float32))
    inner = env.unwrapped
    waiting = inner.U.loc[12].sum() if "Network" in env_id else inner.B[12, 0]
    assert (waiting > 0) == ("Backlog" in env_id)


def near_the_mean_demand(obs, rng=np.random.default_rng(0)):  # noqa: B008
    return np.array([2 * 0.05 * rng.uniform(0.9, 1.1) - 1], dtype=np.float32)


def test_noise_is_in_step():
    newsvendor = noise_alignment("OrNewsvendor-v0", n_seeds=20, policy=near_the_mean_demand)
    assert newsvendor.verdict == "in step" and newsvendor.generator_alike == 1.0 and newsvendor.common_share > 0.9
    motor = noise_alignment("MotorSpeed-v0", n_seeds=8, n_steps=60)
    assert motor.verdict == "in step" and motor.generator_alike is None and motor.common_share > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ALL)
def test_nothing_but_the_seed_and_the_actions_decides(env_id):
    found = noise_alignment(env_id, n_seeds=6, n_steps=40)
    assert found.replays and found.starts_equal and found.seeds_matter and found.generator_alike in (None, 1.0)


@pytest.mark.parametrize("env_id", ["OrNewsvendor-v0", "MotorTorque-v0"])
def test_grpo_trains_on_it(env_id):
    model = GRPO("MlpPolicy", make_vec_env(env_id, 4), n_steps=64, batch_size=64, n_epochs=1, group_size=4, seed=0)
    model.learn(512)
    assert model.groups.start_mismatches == 0 and model._n_gradient_steps > 0


@pytest.mark.parametrize(
    ("env_id", "module", "package"),
    [
        ("OrNewsvendor-v0", "or_gym_inventory.newsvendor", "or-gym-inventory"),
        ("MotorSpeed-v0", "gym_electric_motor", "gym-electric-motor"),
    ],
)
def test_a_missing_package_is_named_with_the_line_that_installs_it(env_id, module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # what Python takes for "not there"
    with pytest.raises(ValueError, match=rf'needs {package} .*pip install "sb_grpo\[input_driven\]"'):
        gym.make(env_id)


# docs/examples/simpy_clinic.py: hours by hand, common random numbers, and a training

pytest.importorskip("simpy")
ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs/examples/simpy_clinic.py"


@pytest.fixture
def clinic():
    spec = importlib.util.spec_from_file_location("simpy_clinic", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def episode(env, actions):
    return [env.step(action)[1] for action in actions]


def test_hours_by_hand(clinic, monkeypatch):
    monkeypatch.setattr(clinic, "N_PATIENTS", 2)
    env = clinic.Clinic()
    for actions, hours in [
        ((0, 0), [1.0, 1.0 + 2.0]),  # 0 to 2; the second one comes at 1, waits until 2 and leaves at 3
        ((0, 1), [1.0, 1.0 + 2.0]),  # 0 to 2; the slow doctor begins at 1 and ends at 3
        ((1, 0), [1.0, 3.0 + 1.0]),  # 0 to 4; 1 to 2
        ((1, 1), [1.0, 3.0 + 5.0]),  # 0 to 4; 1 to 6
    ]:
        env.reset(seed=0)
        env.gaps, env.work = np.array([9.0, 1.0, 50.0]), np.array([2.0, 1.0, 1.0])
        assert episode(env, actions) == pytest.approx([-h for h in hours])
        assert env.present == [0, 0] and env.clock.now == 51.0


def test_patients_are_the_same_whatever_is_decided(clinic):
    one, two = clinic.Clinic(), clinic.Clinic()
    one.reset(seed=1), two.reset(seed=1)
    a, b = episode(one, [0] * 150), episode(two, [1] * 150)
    assert a != b and (one.gaps == two.gaps).all() and (one.work == two.work).all()
    one.reset(), two.reset()  # and so are the next episode's
    assert (one.gaps == two.gaps).all() and a != episode(one, [0] * 150)
    assert np.corrcoef(one.gaps, one.work)[0, 1] ** 2 < 0.1  # a stream of its own for each purpose


def test_noise_is_in_step_and_grpo_trains(clinic):
    sb3_check(clinic.Clinic())
    found = noise_alignment(clinic.Clinic, n_seeds=30, n_steps=150)
    assert found.verdict == "in step" and found.common_share > 0.5 and found.replays
    model = GRPO("MlpPolicy", make_vec_env(clinic.Clinic, 4), n_steps=150, batch_size=150, n_epochs=1, group_size=4, seed=0)
    model.learn(1200)
    assert model.groups.start_mismatches == 0 and model._n_gradient_steps > 0


@pytest.mark.slow
def test_the_example_runs_as_written():
    run = subprocess.run(
        [sys.executable, EXAMPLE], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    before, after = (float(mean) for mean in re.findall(r"float64\((-[\d.]+)\), ", run.stdout))
    assert run.stdout.startswith("In step") and after > -600 > before
