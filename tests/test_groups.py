"""Groups: every env busy, every member from the same start, whatever the stack of wrappers."""

import json
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from sb_grpo import GRPO, SeededResetWrapper
from sb_grpo.collect.groups import HostGroups
from sb_grpo.envs.installing import install_seeded_reset
from sb_grpo.envs.native import CartPole
from sb_grpo.envs.random import group_seed, mix
from sb_grpo.envs.seeded_reset import START_DIGEST, observation_digest
from sb_grpo.maths.estimators import outcome
from sb_grpo.maths.returns import episode_returns
from tests.helpers import ProbeEnv, SpaceEnv


def run_groups(env, group_size, episodes, seed=3):
    """Random actions under HostGroups; the raw first observation of every episode as (group, observation) pairs."""
    install_seeded_reset(env)
    groups = HostGroups(env.num_envs, group_size, seed)
    groups.queue_all(env)
    env.reset()
    groups.started_all(env)
    rng, starts, completed = np.random.default_rng(0), [], 0
    digest = lambda env_index: env.unwrapped.reset_infos[env_index][START_DIGEST]  # noqa: E731
    starts += [(int(groups.episode_id[s]), digest(s)) for s in range(env.num_envs)]
    env.action_space.seed(0)
    while len(starts) < episodes:
        # Members act differently on purpose: some envs fail early.
        actions = np.array([env.action_space.sample() for _ in range(env.num_envs)])
        if rng.random() < 0.5:
            actions[::2] = actions[0]
        _, _, dones, _ = groups.step_envs(env, actions)
        completed += groups.step(env, groups.starts(env, dones.nonzero()[0].tolist()))
        starts += [(int(groups.episode_id[s]), digest(s)) for s in np.flatnonzero(dones)]
    env.close()
    return groups, starts, completed


@pytest.mark.parametrize("kind", [DummyVecEnv, SubprocVecEnv])
def test_what_we_add_to_reset_infos_is_plain(kind):
    """A log of one's own can write it as JSON."""
    env = make_vec_env("CartPole-v1", 2, vec_env_cls=kind, wrapper_class=SeededResetWrapper)
    GRPO("MlpPolicy", env, n_steps=64, group_size=500, device="cpu").learn(128)  # all of one group
    infos = [json.loads(json.dumps(info)) for info in env.reset_infos]
    env.close()
    assert len({info[START_DIGEST] for info in infos}) == 1 and len(infos[0][START_DIGEST]) == 16


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3", "Hopper-v5"])
@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
@pytest.mark.parametrize(
    "wrap",
    [pytest.param(lambda e: e, marks=pytest.mark.slow), lambda e: VecFrameStack(VecNormalize(VecMonitor(e)), 2)],
    ids=["bare", "wrapped"],
)
def test_members_start_bit_equal(env_id, vec_env_cls, wrap):
    group_size, episodes = 4, 60
    process = dict(start_method="fork") if vec_env_cls is SubprocVecEnv else {}  # without imports anew
    made = make_vec_env(env_id, 3, vec_env_cls=vec_env_cls, vec_env_kwargs=process, wrapper_class=SeededResetWrapper, seed=0)
    env = wrap(made)
    groups, starts, completed = run_groups(env, group_size, episodes)
    assert groups.start_mismatches == 0 and completed >= episodes // group_size - 3
    by_group: dict = {}
    for episode_id, start in starts:
        by_group.setdefault(episode_id // group_size, set()).add(start)
    assert all(len(digests) == 1 for digests in by_group.values())
    assert len({next(iter(d)) for d in by_group.values()}) == len(by_group)  # different groups start differently
    assert sorted(episode_id for episode_id, _ in starts) == sorted(
        {episode_id for episode_id, _ in starts}
    )  # no episode twice


def test_bit_equality_is_of_the_observation_itself():
    env = SeededResetWrapper(gym.make("LunarLander-v3"))
    env.set_next_seed(11)
    first, info = env.reset(seed=5)  # the queued seed wins
    for _ in range(30):
        env.step(env.action_space.sample())
    env.set_next_seed(11)
    again, info_again = env.reset()
    np.testing.assert_array_equal(first, again)
    assert info[START_DIGEST] == info_again[START_DIGEST]
    other, _ = env.reset()
    assert (other != first).any()


def test_image_stack_with_transpose_keeps_groups():
    image = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    env = VecFrameStack(VecTransposeImage(DummyVecEnv([lambda: SpaceEnv(image, spaces.Discrete(2))] * 2)), 2)
    groups, _, completed = run_groups(env, 2, 20)
    assert groups.start_mismatches == 0 and completed >= 8


@pytest.mark.parametrize(("n_envs", "group_size"), [(1, 4), (3, 2), (8, 8), (5, 3), (4, 1)])
def test_any_number_of_envs_with_any_group_size(n_envs, group_size):
    env = make_vec_env("CartPole-v1", n_envs)
    groups, starts, completed = run_groups(env, group_size, 50)
    episode_ids = sorted(episode_id for episode_id, _ in starts)
    assert episode_ids == list(range(episode_ids[-1] + 1)) or set(range(len(episode_ids) - n_envs)) <= set(episode_ids)
    assert completed >= (50 - n_envs) // group_size - n_envs and groups.next_group >= completed


def test_an_env_that_ignores_its_seed_is_found_and_warned_about_once():
    class Unseeded(SpaceEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=None)

    env = Unseeded(spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
    model = GRPO("MlpPolicy", env, n_steps=64, group_size=4, n_epochs=1)
    with pytest.warns(UserWarning, match="different observations") as caught:
        model.learn(128)
    assert len([w for w in caught if "different observations" in str(w.message)]) == 1
    assert model.groups.start_mismatches > 5


def test_independent_noise_keeps_the_start_and_changes_the_rest():
    def trajectory(noise_seed):
        env = SeededResetWrapper(gym.make("LunarLander-v3"))
        env.set_next_seed(3, noise_seed)
        start, _ = env.reset()
        return start, np.array([env.step(2)[0] for _ in range(20)])

    (start_a, a), (_, b), (start_c, c) = trajectory(None), trajectory(None), trajectory(77)
    np.testing.assert_array_equal(start_a, start_c)
    np.testing.assert_array_equal(a, b)  # common random numbers
    assert (a != c).any()
    model = GRPO("MlpPolicy", "LunarLander-v3", n_steps=300, n_epochs=1, group_kwargs=dict(shared_noise=False), seed=0).learn(
        300
    )
    assert model.groups.start_mismatches == 0


def test_group_seeds_are_pure_well_spread_and_accepted_everywhere():
    seeds = [group_seed(7, g) for g in range(20_000)]
    assert seeds == [group_seed(7, g) for g in range(20_000)] and len(set(seeds)) > 19_990
    assert 0 <= min(seeds) and max(seeds) < 2**31
    assert abs(np.mean(seeds) / 2**30 - 1) < 0.02
    assert group_seed(7, 1) != group_seed(8, 0) and mix(1, 2) != mix(2, 1)


def test_digest_sees_every_leaf_and_every_bit():
    a = {"x": np.zeros(3), "y": (np.ones(2, dtype=np.uint8), 4)}
    b = {"y": (np.ones(2, dtype=np.uint8), 4), "x": np.zeros(3)}
    assert observation_digest(a) == observation_digest(b)
    b["x"][2] = np.nextafter(0.0, 1.0)
    assert observation_digest(a) != observation_digest(b)


def test_digest_goes_by_value():
    """Equal values have one digest in whatever type they come; a space says in which type they are compared."""
    half = np.full(2, 0.5)
    assert observation_digest(half) == observation_digest(half.astype(np.float32)) != observation_digest(half + 1e-9)
    assert observation_digest(np.array([0.0, 1.0])) == observation_digest(np.array([-0.0, 1.0]))
    assert observation_digest(np.uint8(3)) == observation_digest(3) != observation_digest(4)
    tenth, box = np.full(2, 0.1), spaces.Box(-1, 1, (2,), np.float32)
    assert observation_digest(tenth) != observation_digest(tenth.astype(np.float32))
    assert observation_digest(tenth, box) == observation_digest(tenth.astype(np.float32), box)
    both, of = ({"x": tenth}, {"x": tenth.astype(np.float32)}), spaces.Dict(x=box)
    assert observation_digest(both[0], of) == observation_digest(both[1], of)
    assert observation_digest(object()) == observation_digest(object())  # where it lies in memory is no value


class Turncoat(gym.Env):
    """Equal starts, every second one in another type and with another zero."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    n = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n, self.t = self.n + 1, 0
        obs = np.array([self.np_random.uniform(), 0.0])
        return (obs if self.n % 2 else obs.astype(np.float32) * [1, -1]).astype([np.float32, np.float64][self.n % 2]), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), float(action), self.t == 5, False, {}


def test_starts_are_compared_by_value():
    model = GRPO("MlpPolicy", make_vec_env(Turncoat, 2), n_steps=64, group_size=4, device="cpu", seed=0).learn(128)
    assert model.groups.start_mismatches == 0


@pytest.mark.parametrize("n_instances", [1, 3, None])
def test_groups_that_all_start_alike_are_noticed(n_instances):
    """As those of a generator of job shops that gives every seed the same instance."""

    class Shop(Turncoat):
        def reset(self, *, seed=None, options=None):
            self.t = 0
            instance = seed if n_instances is None else (seed or 0) % n_instances
            return np.random.default_rng(instance).uniform(size=2).astype(np.float32), {}

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = GRPO("MlpPolicy", make_vec_env(Shop, 4), n_steps=128, group_size=4, device="cpu", seed=0).learn(512)
    messages = [str(w.message) for w in caught if "started alike" in str(w.message)]
    begun = sum(model.groups.starts_seen.values())
    assert begun > 20 and len(model.groups.starts_seen) == (n_instances or begun)
    assert len(messages) == (n_instances == 1) and all(text.startswith("All 10 groups so far") for text in messages)


def test_installing_twice_changes_nothing():
    env = make_vec_env("CartPole-v1", 2)
    install_seeded_reset(env)
    wrapped = list(env.envs)
    install_seeded_reset(VecNormalize(env))
    assert env.envs == wrapped


def test_subproc_without_the_wrapper_names_the_remedy():
    env = make_vec_env("CartPole-v1", 2, vec_env_cls=SubprocVecEnv)
    with pytest.raises(ValueError, match=r"wrapper_class=sb_grpo.SeededResetWrapper"):
        GRPO("MlpPolicy", env)
    env.close()


def test_set_random_seed_chooses_the_groups_that_begin_from_here_on():
    """As SB3's PPO, whose env is seeded anew: equal seeds play equal episodes, other seeds others."""

    def first_start(seed):
        model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 4), n_steps=16, group_size=2, seed=7, device="cpu")
        model.learn(64)
        model.set_random_seed(seed)
        model.learn(64)
        return model.rollout_buffer.new_rows()[0][:4].flatten().tolist()

    assert first_start(1) == first_start(1) != first_start(2)


class Rare(ProbeEnv):
    """Pays 1 at the end if all four actions were 1: a random policy earns it once in 16 episodes."""

    def step(self, action):
        self.good = (self.t == 0 or self.good) and action == 1
        obs, _, over, *rest = super().step(action)
        return obs, float(over and self.good and self.kind != "constant"), over, *rest


def collected(env, **kwargs):
    """Numbers of groups, by whether they have a spread, of two rollouts of groups of 2; and the model."""
    seen = []

    def keep(rollout, options):
        returns = episode_returns(rollout, 1.0).view(-1, 2)
        seen.append((returns[:, 0] != returns[:, 1]).tolist())
        return outcome(rollout, options)

    settings = dict(advantage=keep, group_size=2, n_groups=4, n_epochs=1, seed=0, device="cpu")
    model = GRPO("MlpPolicy", env, **settings, **kwargs)
    for _ in range(2):
        model.collect()
    return seen, model


def test_refill_collects_on_until_groups_have_a_spread():
    """Two envs run a group side by side, so that a rollout may end after each group, and every step of all is counted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few starts, and rollouts below a minibatch
        plain, _ = collected(DummyVecEnv([lambda: Rare("delayed")] * 2))
        refilled, model = collected(DummyVecEnv([lambda: Rare("delayed")] * 2), group_kwargs=dict(refill=True))
        never, idle = collected(DummyVecEnv([lambda: Rare("constant")] * 2), group_kwargs=dict(refill=True))
    assert [len(groups) for groups in plain] == [4, 4] and sum(map(sum, plain)) < 8
    for groups in refilled:
        assert len(groups) > 4
        assert (sum(groups) == 4 and groups[-1]) or (sum(groups) < 4 and len(groups) == 16)
    assert model.num_timesteps == sum(map(len, refilled)) * 2 * 4
    assert [len(groups) for groups in never] == [16, 16] and idle.num_timesteps == 2 * 16 * 2 * 4


@pytest.mark.parametrize("pays", [0.0, 1.0])
def test_refill_on_tensors(pays):
    class Pays(CartPole):
        def transition(self, state, actions):
            after, rewards, terminated = super().transition(state, actions)
            return after, pays * rewards, terminated

    seen, model = collected(Pays(64), group_kwargs=dict(refill=True))
    least = 4 if pays else 16
    # A rollout ends with the step that completes the last wanted group; 32 groups run side by side.
    assert all(least <= len(groups) < least + 32 for groups in seen)
    assert all(sum(groups) >= 4 for groups in seen) if pays else not any(map(sum, seen))
    assert model.num_timesteps % 64 == 0


@pytest.mark.parametrize(
    "wrong",
    [
        dict(n_groups=None),
        dict(group_size=1, normalize_advantage="batch", advantage_kwargs=dict(baseline="global")),
        dict(rewards=dict(objectives=dict(a=1.0))),
        dict(multitask=dict(grouping="length")),
    ],
)
def test_refill_needs_same_seed_groups_to_count(wrong):
    kwargs = dict(advantage="outcome", group_size=2, n_groups=4, group_kwargs=dict(refill=True))
    with pytest.raises(ValueError, match="refill=True"):
        GRPO("MlpPolicy", "CartPole-v1", **{**kwargs, **wrong})
