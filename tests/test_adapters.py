"""Adapters to real simulators: groups whole and from one start, every step trained once or counted, clear refusals."""

import copy
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import DictInfoToList, NormalizeObservation
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecMonitor

from sb_grpo import GRPO
from sb_grpo.envs import check_tensor_env
from sb_grpo.envs.gymnasium_vector import GymnasiumVectorEnv
from sb_grpo.envs.native import make_tensor_env
from tests.helpers import BrokenEnv, SpaceEnv

ROOT = Path(__file__).parents[1]
SMALL = dict(n_steps=64, batch_size=64, n_epochs=1, group_size=4, seed=0, device="cpu")


def gym_env(n=8, env_id="CartPole-v1", mode="sync", autoreset=AutoresetMode.NEXT_STEP):
    # Forking this process, in which JAX may have started threads, could hang.
    kwargs = dict(autoreset_mode=autoreset, **(dict(context="forkserver") if mode == "async" else {}))
    return GymnasiumVectorEnv(gym.make_vec(env_id, n, vectorization_mode=mode, vector_kwargs=kwargs))


def entry_point():
    return gym.make_vec("CartPole-v1", num_envs=8, vectorization_mode="vector_entry_point")


def copy_leaders(vec_env, leader):
    vec_env.state = vec_env.state[:, leader]


def synchronous():
    return GymnasiumVectorEnv(entry_point(), synchronous=True, broadcast=copy_leaders)


def pool(task="CartPole-v1", n=8):
    pytest.importorskip("envpool")
    from sb_grpo.envs.envpool import EnvPoolEnv

    return EnvPoolEnv(task, n, num_threads=1)


@pytest.fixture(scope="module")
def brax_env():
    """One for all tests: compiling takes seconds."""
    pytest.importorskip("brax")
    from sb_grpo.envs.brax import make_brax_env

    return make_brax_env("inverted_pendulum", 8, episode_length=30, backend="spring")


ADAPTERS = {"gymnasium": gym_env, "synchronous": synchronous, "envpool": pool, "brax": None}


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name == "brax")) for name in ADAPTERS])
def env(request):
    return request.getfixturevalue("brax_env") if request.param == "brax" else ADAPTERS[request.param]()


def test_groups_are_whole_start_equal_and_every_step_is_accounted_for(env):
    seen = []

    def advantage(rollout, options):
        seen.append(rollout)
        return rollout.rewards + 0.1 * th.randn_like(rollout.rewards)

    model = GRPO("MlpPolicy", env, advantage=advantage, **SMALL).learn(3000)
    for rollout in seen:
        assert (th.bincount(rollout.group) == 4).all() and (rollout.terminated ^ rollout.truncated).all()
        starts = rollout.t == 0
        first = rollout.observations[starts]
        for g in range(rollout.n_groups):
            assert (first[rollout.group == g] == first[rollout.group == g][0]).all()
        assert (rollout.rewards == 1).all()  # no reset's reward of 0 among them
        # Steps of an episode are consecutive, and each begins where the one before ended.
        assert (rollout.t == th.cat([th.arange(n) for n in th.bincount(rollout.episode)])).all()
    trained = sum(len(r.rewards) for r in seen)
    assert model.groups.start_mismatches == 0 and trained == model._steps_trained > 1000
    assert trained + model.rollout_buffer.n_kept + model._steps_dropped == model.num_timesteps
    assert (model._steps_dropped > 0) == (env.grouping in ("streams", "synchronous"))  # envs idle, for few or for all
    assert all(info["r"] == info["l"] for info in model.ep_info_buffer)


def test_final_observations_are_those_of_the_ended_episode(env):
    if env.action_space != spaces.Discrete(2):
        pytest.skip("CartPole's bounds")
    env.seed(3)
    env.reset()
    for _ in range(30):
        _, _, dones, infos = env.step(np.ones(8, dtype=np.int64))
        for env_index in np.flatnonzero(dones):
            assert 0.2 < abs(infos[env_index]["terminal_observation"][2]) < 0.3
            assert infos[env_index]["episode"]["r"] == infos[env_index]["episode"]["l"] < 12


def test_save_load_and_evaluation(env, tmp_path):
    model = GRPO("MlpPolicy", env, advantage="outcome", **SMALL).learn(1000)
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", env=env, device="cpu")
    returns, lengths = evaluate_policy(loaded, env, 10, return_episode_rewards=True)
    assert returns == lengths and len(returns) == 10 and max(lengths) <= env.max_episode_steps
    loaded.learn(600)
    assert loaded.groups.start_mismatches == 0


def test_checker_agrees_with_every_adapter(env):
    check_tensor_env(env)


@pytest.mark.slow
def test_the_documented_env_runs_as_written(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tensor_env.md").read_text(), re.DOTALL)
    example = tmp_path / "example.py"
    example.write_text(blocks[0])
    run = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    before, after = (float(mean) for mean in re.findall(r"float64\(([\d.]+)\), ", run.stdout))
    assert before < 40 and after > 80
    for block in blocks[1:]:  # Isaac Lab and ManiSkill3 are not here: their classes can be built, no more
        exec(block, {})


# ---------------------------------------------------------------- gymnasium.vector


def trajectories(env, steps=60):
    """Everything that a caller sees of some steps with seeded restarts."""
    seeds, rng, seen = th.arange(100, 100 + env.num_envs), np.random.default_rng(0), []
    env.reset_all(seeds)
    for i in range(steps):
        seen.append(env.observations.numpy().copy())
        step = env.step_tensor(th.as_tensor(rng.integers(2, size=env.num_envs)))
        seen += [column.numpy().copy() for column in step]
        env.reset_envs(step.terminated | step.truncated, seeds + 1000 * (i + 1))
    env.close()
    return seen


@pytest.fixture(scope="module")
def by_hand():
    """The same episodes from plain Gymnasium envs."""
    envs, rng, seen = [gym.make("CartPole-v1") for _ in range(3)], np.random.default_rng(0), []
    obs = [env.reset(seed=100 + i)[0] for i, env in enumerate(envs)]
    for step in range(60):
        seen.append(np.array(obs))
        outcome = [env.step(int(a))[:4] for env, a in zip(envs, rng.integers(2, size=3), strict=True)]
        obs, rewards, terminated, truncated = (list(column) for column in zip(*outcome, strict=True))
        seen += [np.array(obs), np.array(rewards), np.array(terminated), np.array(truncated)]
        for env_index in np.flatnonzero(terminated):
            obs[env_index] = envs[env_index].reset(seed=int(100 + env_index + 1000 * (step + 1)))[0]
    assert sum(column.sum() for column in seen[3::5]) > 3
    return seen


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("autoreset", AutoresetMode)
def test_all_autoreset_modes_give_the_same_episodes(autoreset, mode, by_hand):
    for ours, theirs in zip(trajectories(gym_env(3, mode=mode, autoreset=autoreset)), by_hand, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("autoreset", AutoresetMode)
def test_infos_as_a_list_hold_final_observations_too(autoreset, by_hand):
    env = GymnasiumVectorEnv(DictInfoToList(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=autoreset)))
    for ours, theirs in zip(trajectories(env), by_hand, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("autoreset", AutoresetMode)
def test_workers_without_shared_memory_give_the_same_episodes_or_are_refused(autoreset, by_hand):
    """With NEXT_STEP they reset an env once more, unseeded, in the step after a reset: rewards of 0, other starts."""
    workers = dict(shared_memory=False, context="forkserver", autoreset_mode=autoreset)
    vec_env = gym.make_vec("CartPole-v1", 3, vectorization_mode="async", vector_kwargs=workers)
    if autoreset != AutoresetMode.NEXT_STEP:
        for ours, theirs in zip(trajectories(GymnasiumVectorEnv(vec_env)), by_hand, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        return
    for synchronous in (False, True):
        with pytest.raises(ValueError, match=r"shared_memory=False.*once more.*autoreset_mode=.*DISABLED, or leave"):
            GymnasiumVectorEnv(vec_env, synchronous=synchronous)
    vec_env.close()


@pytest.mark.parametrize(
    "action_space",
    [spaces.Discrete(3), spaces.Box(-2.0, 2.0, (2,)), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)],
    ids=lambda space: type(space).__name__,
)
@pytest.mark.parametrize(
    "observation_space",
    [spaces.Box(-1, 1, (2, 2), np.float64), spaces.Box(0, 255, (36, 36, 1), np.uint8), spaces.MultiBinary(3)],
    ids=["float64", "image", "MultiBinary"],
)
def test_spaces(observation_space, action_space):
    env = GymnasiumVectorEnv(SyncVectorEnv([lambda: SpaceEnv(copy.deepcopy(observation_space), action_space)] * 4))
    image = len(observation_space.shape) == 3
    assert env.observation_space.shape == ((1, 36, 36) if image else observation_space.shape)
    assert env.observation_space.dtype != np.float64
    check_tensor_env(env, n_steps=3)
    model = GRPO("CnnPolicy" if image else "MlpPolicy", env, **{**SMALL, "n_steps": 16}).learn(64)
    assert model.groups.start_mismatches == 0 and model._n_gradient_steps > 0


def test_time_limit_comes_from_the_registration():
    assert gym_env(2, "Pendulum-v1").max_episode_steps == 200
    assert GymnasiumVectorEnv(entry_point(), synchronous=True, broadcast=copy_leaders).max_episode_steps == 500
    assert GymnasiumVectorEnv(SyncVectorEnv([lambda: gym.make("CartPole-v1")])).max_episode_steps == 500


# ---------------------------------------------------------------- EnvPool


@pytest.mark.parametrize("task", ["Pendulum-v1", *(pytest.param(f"HalfCheetah-v{n}", marks=pytest.mark.slow) for n in (4, 5))])
def test_envpool_tasks(task):
    env = pool(task, 4)
    limit = env.max_episode_steps
    check_tensor_env(env, n_steps=5)
    model = GRPO("MlpPolicy", env, advantage="step", **SMALL).learn(2 * 4 * limit)
    assert model.groups.start_mismatches == 0 and {info["l"] for info in model.ep_info_buffer} == {limit}


def test_a_pool_of_envpool_is_sent_to_its_adapter():
    class Wrapped(VecEnv):
        """Somebody's own bridge to SB3."""

        def __init__(self, pool):
            self.pool = pool
            super().__init__(4, pool.observation_space, pool.action_space)

        def env_method(self, method_name, *args, indices=None, **kwargs):
            raise AttributeError(method_name)

        get_attr = set_attr = env_is_wrapped = reset = step_async = step_wait = close = env_method

    envpool = pytest.importorskip("envpool")
    made = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4)
    for env in (made, Wrapped(made)):
        with pytest.raises(ValueError, match=r"CartPoleGymnasiumEnvPool is a pool of EnvPool.*envs.envpool.EnvPoolEnv"):
            GRPO("MlpPolicy", env, **SMALL)


def test_envpool_atari():
    env = pool("Pong-v5", 4)
    model = GRPO("CnnPolicy", env, **{**SMALL, "n_steps": 16}).learn(128)
    assert env.observations.dtype == th.uint8 == model.rollout_buffer.steps["observations"].dtype
    assert model.groups.start_mismatches == 0 and model._steps_trained == 128


def test_envpool_members_stay_paired_when_their_episodes_differ_in_length():
    env = pool(n=4)
    env.reset_all(th.tensor([5, 5, 9, 9]))
    starts = [[env.observations[env_index].tolist()] for env_index in range(4)]
    before = env.observations
    kept, still = before.clone(), 0
    for i in range(150):
        step = env.step_tensor(th.tensor([0, i % 2, 1, (i // 2) % 2]))
        done = step.terminated | step.truncated
        if (done | env.idle).any() and i % 10:  # let ended envs wait a while: they stay as they are, and end once
            assert (step.observations[env.idle & ~done] == env.observations[env.idle & ~done]).all()
            assert (step.rewards[env.idle & ~done] == 0).all()
            still += int((env.idle & ~done).sum())
            continue
        done = env.idle
        env.reset_envs(done, th.zeros(4, dtype=th.int64))
        for env_index in done.nonzero().flatten().tolist():
            starts[env_index].append(env.observations[env_index].tolist())
    assert still > 20 and (before == kept).all()  # the pool does not write into what it gave away
    assert len(starts[0]) != len(starts[1]) and len(starts[1]) > 2
    for a, b in ((0, 1), (2, 3)):
        n = min(len(starts[a]), len(starts[b]))
        assert starts[a][:n] == starts[b][:n] and len({tuple(s) for s in starts[a]}) == len(starts[a])
    assert starts[0][0] != starts[2][0]


# ---------------------------------------------------------------- Brax


@pytest.mark.slow
def test_brax_shares_memory_and_keeps_the_time_limit(brax_env):
    brax_env.reset_all(th.arange(8))
    assert brax_env.observations.data_ptr() == brax_env._state.obs.unsafe_buffer_pointer()
    for _ in range(30):
        step = brax_env.step_tensor(th.zeros(8, 1))
    assert (step.truncated == ~step.terminated).all() and step.truncated.any()
    brax_env.reset_envs(step.truncated, th.arange(8) + 50)
    assert (brax_env.elapsed[step.truncated] == 0).all()


@pytest.mark.slow
def test_brax_seed_alone_decides_the_start(brax_env):
    brax_env.reset_all(th.arange(8))
    before = brax_env.observations.clone()
    brax_env.reset_envs(th.arange(8) == 6, th.full((8,), 2))
    assert (brax_env.observations[6] == before[2]).all() and (brax_env.observations[7] == before[7]).all()


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["jax", "warp"])
def test_playground(impl):
    pytest.importorskip("mujoco_playground")
    from sb_grpo.envs.brax import make_playground_env

    env = make_playground_env("CartpoleBalance", 4, config_overrides={"impl": impl})
    check_tensor_env(env, n_steps=5)
    model = GRPO("MlpPolicy", env, **{**SMALL, "n_steps": 32}).learn(256)
    assert env.max_episode_steps == 1000 and model.groups.start_mismatches == 0


@pytest.mark.slow
def test_brax_mjx():
    pytest.importorskip("brax")
    from sb_grpo.envs.brax import make_brax_env

    check_tensor_env(make_brax_env("inverted_pendulum", 4, backend="mjx"), n_steps=5)


# ---------------------------------------------------------------- bad input


class SimpleState(NamedTuple):
    obs: dict


class IgnoresSeeds(SyncVectorEnv):
    """Knows the mask but not the seed, as EnvPool's Gymnasium interface does."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None, options=options)


class IgnoresMask(SyncVectorEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class PlayersEnv(VectorEnv):
    """Three players of one env begin and end together, and each sees its number: in the manner of SuperSuit's ConcatVecEnv."""

    def __init__(self, reset_infos=({}, {}, {})):
        self.num_envs, self.metadata, self.reset_infos = 3, {}, list(reset_infos)
        self.observation_space, self.action_space = spaces.Box(-10.0, 10.0, (2,)), spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.t = 0
        if seed is not None:
            self.luck = np.random.default_rng(seed)
        self.start = self.luck.uniform(-1, 1)
        return self._seen(), self.reset_infos

    def _seen(self):
        return np.array([[self.start, player] for player in range(3)], dtype=np.float32)

    def step_async(self, actions):
        self.moves = actions

    def step_wait(self):
        self.t += 1
        infos, rewards, over = [{} for _ in range(3)], self.moves.astype(np.float32), self.t == 10
        if over:
            last, _ = self._seen(), self.reset()
            infos = [{"terminal_observation": row} for row in last]
        return self._seen(), rewards, np.zeros(3, np.uint8), np.full(3, over, np.uint8), infos


@pytest.mark.parametrize("reset_infos", [({}, {}, {}), ([{}, {}, {}],), (None, None, None)], ids=["flat", "nested", "none"])
def test_agents_of_one_env_are_envs_as_documented(reset_infos):
    page = (ROOT / "docs/own_env.md").read_text()
    names: dict = {}
    exec(next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Agents(" in code), names)
    starts = []
    for _ in range(2):
        model = GRPO("MlpPolicy", VecMonitor(names["Agents"](PlayersEnv(reset_infos))), **{**SMALL, "group_size": 1}).learn(
            600
        )
        assert model.groups.start_mismatches == 0 and {int(ep["l"]) for ep in model.ep_info_buffer} == {10}
        starts.append(model.env.unwrapped.vec_env.start)
    assert starts[0] == starts[1], "the model's seed decides how the agents begin"
    players = PlayersEnv()
    with pytest.raises(ValueError, match=r"PlayersEnv has no way to say it.*Several agents"):
        GRPO("MlpPolicy", AsSuperSuitDoes(players), **SMALL)


class AsSuperSuitDoes(VecEnvWrapper):
    """Around what is no VecEnv."""

    def __init__(self, vec_env):
        self.venv, self.num_envs, self.reset_infos, self.render_mode = vec_env, vec_env.num_envs, [], None
        self.observation_space, self.action_space = vec_env.observation_space, vec_env.action_space

    def reset(self):
        return self.venv.reset()[0]

    def step_wait(self):
        observations, rewards, terminated, truncated, infos = self.venv.step_wait()
        return observations, rewards, terminated | truncated, infos

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


def test_resets_that_cannot_make_groups_are_refused():
    cartpole = [lambda: gym.make("CartPole-v1")] * 4
    for vec_env, reason in (
        (entry_point(), "Seed must be a python integer"),
        (IgnoresSeeds(cartpole), "equal seeds gave different starts"),
        (IgnoresMask(cartpole), "changed envs outside it"),
    ):
        with pytest.raises(ValueError, match=rf"cannot reset single envs.*{reason}.*synchronous=True.*useful_fraction"):
            GymnasiumVectorEnv(vec_env)
    # Where single envs stand behind it, another way to make the vector env would change nothing.
    in_the_way = r"cannot reset single envs.*{}.*leave out the wrapper.*normalize_obs=True.*synchronous=True"
    with pytest.raises(ValueError, match=in_the_way.format("does not support partial resets")):
        GymnasiumVectorEnv(NormalizeObservation(SyncVectorEnv(cartpole)))
    with pytest.raises(ValueError, match=in_the_way.format("equal seeds gave different starts")):
        GymnasiumVectorEnv(SyncVectorEnv([lambda: gym.wrappers.NormalizeObservation(gym.make("CartPole-v1"))] * 2))
    with pytest.raises(ValueError, match=r"PlayersEnv has no single_observation_space.*Several agents"):
        GymnasiumVectorEnv(PlayersEnv())
    for wrong in (gym.make("CartPole-v1"), make_vec_env("CartPole-v1", 2)):
        with pytest.raises(ValueError, match=r"not a gymnasium\.vector\.VectorEnv"):
            GymnasiumVectorEnv(wrong)


def test_synchronous_without_equal_starts_says_so():
    with pytest.warns(UserWarning, match="start in different states"):
        env = GymnasiumVectorEnv(entry_point(), synchronous=True)
    model = GRPO("MlpPolicy", env, advantage="outcome", **SMALL).learn(600)
    assert model.groups.start_mismatches > 0
    # One seed per env is enough for equal starts, masks are not needed.
    env = GymnasiumVectorEnv(IgnoresMask([lambda: gym.make("CartPole-v1")] * 4), synchronous=True)
    env.reset_all(th.tensor([3, 3, 4, 4]))
    assert (env.observations[0] == env.observations[1]).all() and (env.observations[0] != env.observations[2]).any()
    with pytest.raises(NotImplementedError, match="starts all envs together"):
        env.reset_envs(th.ones(4, dtype=th.bool), th.zeros(4, dtype=th.int64))


def test_group_size_must_divide_the_envs_of_streams_and_common_starts():
    for env in (pool(n=6), synchronous()):
        with pytest.raises(ValueError, match=rf"num_envs={env.num_envs} is no multiple of group_size=5.*num_envs=10, or"):
            GRPO("MlpPolicy", env, group_size=5)


def test_bad_spaces_actions_and_values_are_named():
    env = GymnasiumVectorEnv(SyncVectorEnv([lambda: SpaceEnv(spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3]))] * 2))
    env.reset()
    with pytest.raises(ValueError, match=r"Action \[1 3\] of env 1 is outside MultiDiscrete"):
        env.step(np.array([[1, 2], [1, 3]]))
    for where in ("observation", "reward"):
        env = GymnasiumVectorEnv(SyncVectorEnv([lambda: BrokenEnv("reward", 1000), lambda where=where: BrokenEnv(where, 20)]))
        with pytest.raises(ValueError, match=f"{where} of env 1 is not finite at step 1"):
            GRPO("MlpPolicy", env, **{**SMALL, "group_size": 2}).learn(200)


def test_unknown_tasks_and_modes_are_named():
    with pytest.raises(ValueError, match=r"no task 'CartPole-v7'\. Nearest.*CartPole-v1"):
        pool("CartPole-v7")
    with pytest.raises(ValueError, match=r"seed=3: GRPO\(\.\.\., seed=\.\.\.\) decides"):
        importlib.import_module("sb_grpo.envs.envpool").EnvPoolEnv("CartPole-v1", 4, seed=3)
    with pytest.raises(ValueError, match="batch_size=2 with num_envs=4 is EnvPool's asynchronous mode"):
        importlib.import_module("sb_grpo.envs.envpool").EnvPoolEnv("CartPole-v1", 4, batch_size=2)


def test_unknown_brax_names_and_devices_are_named():
    pytest.importorskip("brax")
    from sb_grpo.envs.brax import BraxEnv, make_brax_env

    with pytest.raises(ValueError, match=r"no env 'half_cheetah'\. Did you mean 'halfcheetah'"):
        make_brax_env("half_cheetah", 2)
    with pytest.raises(ValueError, match=r"device='meta': JAX has no meta here"):
        make_brax_env("fast", 2, device="meta")

    class Asymmetric:
        action_size = 1

        def reset(self, key):
            return SimpleState(obs={"state": key, "privileged": key})

    with pytest.raises(ValueError, match=r"obs_key=None does not choose.*'privileged', 'state'"):
        BraxEnv(Asymmetric(), 2)


@pytest.mark.parametrize(("package", "module"), [("envpool", "envpool"), ("jax", "brax")])
def test_a_missing_package_names_the_pip_command(monkeypatch, package, module):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"sb_grpo.envs.{module}", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'sb_grpo\[sim\]'"):
        importlib.import_module(f"sb_grpo.envs.{module}")


@pytest.mark.slow
def test_cartpole_learns_through_a_vector_env_as_natively():
    means = []
    for env in (gym_env(16), make_tensor_env("CartPole-v1", 16)):
        model = GRPO("MlpPolicy", env, n_steps=64, seed=0, device="cpu").learn(80_000)
        means.append(evaluate_policy(model, gym_env(8), 16)[0])
    assert min(means) > 450, means
