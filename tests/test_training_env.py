"""The training env stays the user's: as random, as readable and as writable as under SB3's PPO, whoever uses it and when."""

import copy
import inspect
import pickle
import random
import re
import warnings
from functools import partial

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from sb_grpo import GRPO, SeededResetWrapper
from sb_grpo.collect import plan
from sb_grpo.envs.gymnasium_vector import GymnasiumVectorEnv
from sb_grpo.envs.installing import install_seeded_reset
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.envs.ownership import ownership_of
from sb_grpo.evaluation import evaluate_paired
from tests.helpers import SpaceEnv

SUBPROC = dict(vec_env_cls=SubprocVecEnv, vec_env_kwargs=dict(start_method="fork"))  # without imports anew
SMALL = dict(n_steps=64, batch_size=32, n_epochs=1, seed=0, device="cpu")


def pendulums(n_envs=4, subproc=False, **kwargs):
    own = dict(SUBPROC, wrapper_class=SeededResetWrapper) if subproc else {}
    return make_vec_env("Pendulum-v1", n_envs, env_kwargs=dict(max_episode_steps=20), **own, **kwargs)


def stacked(env):
    return VecFrameStack(VecNormalize(VecMonitor(env), norm_obs=False), 2)


def different(starts):
    return len(np.unique(np.round(starts, 5), axis=0))


def walk_to_the_end(env):
    """Step until every env has reset itself; the observations that follow the ends."""
    starts = []
    for _ in range(20):
        obs, _, dones, _ = env.step(np.zeros((env.num_envs, 1), np.float32))
        starts += list(obs[dones])
    return starts


# ------------------------------------------------------------ whose resets take the seeds


@pytest.mark.parametrize("subproc", [False, True], ids=["dummy", "subproc"])
@pytest.mark.parametrize("wrap", [lambda e: e, stacked], ids=["bare", "wrapped"])
@pytest.mark.parametrize("group_size", [1, 8])
def test_after_training_the_env_is_as_random_as_before(subproc, wrap, group_size):
    env = wrap(pendulums(subproc=subproc))
    kwargs = dict(SMALL, group_size=group_size, normalize_advantage="batch")
    model = GRPO("MlpPolicy", env, **kwargs).learn(256)
    env = model.get_env()
    assert different(walk_to_the_end(env)) == 4  # nobody has called reset() since: auto-resets only
    model.learn(256)
    assert different(env.reset()) == 4
    model.learn(256, reset_num_timesteps=False)
    returns, _ = evaluate_policy(model, env, 12, return_episode_rewards=True, warn=False)
    assert different(returns) == 12
    model.learn(256)
    env.seed(7)
    first = env.reset().copy()
    model.learn(256)
    env.seed(7)
    np.testing.assert_array_equal(env.reset(), first)
    fresh = pendulums(seed=7)
    np.testing.assert_array_equal(first[..., -3:], fresh.reset())  # as an env that has never met a trainer
    assert different(np.concatenate([walk_to_the_end(env) for _ in range(3)])) == 12
    env.close()


def test_ppo_trained_on_the_env_afterwards_is_ppo():
    def trained(env):
        env.seed(5)
        model = PPO("MlpPolicy", env, n_steps=64, n_epochs=1, seed=3, device="cpu").learn(256)
        return model.policy.state_dict(), list(model.ep_info_buffer)

    used = GRPO("MlpPolicy", pendulums(), **SMALL).learn(512).get_env()
    (weights, episodes), (expected, expected_episodes) = trained(used), trained(pendulums())
    assert all((weights[name] == expected[name]).all() for name in expected)
    assert [e["r"] for e in episodes] == [e["r"] for e in expected_episodes]


class Meddle(BaseCallback):
    """Calls a function with the training env, in the given calls of one of SB3's hooks."""

    def __init__(self, meddle, hook="_on_step", calls=(70,)):
        super().__init__()
        self.meddle, self.calls, self.count, self.results = meddle, calls, 0, []
        setattr(self, hook, self.run)

    def _on_step(self):
        return True

    def run(self):
        self.count += 1
        if self.count in self.calls:
            self.results.append(self.meddle(self.training_env))
        return True


def direct(env):
    return np.array([one.reset()[0] for one in env.unwrapped.envs])


def direct_and_bare(env):
    return np.array([one.unwrapped.reset()[0] for one in env.unwrapped.envs])


def through_env_method(env):
    return np.array([obs for obs, _ in env.env_method("reset")])


@pytest.mark.parametrize("meddle", [lambda e: e.reset(), walk_to_the_end, direct, direct_and_bare, through_env_method])
@pytest.mark.parametrize("hook", ["_on_step", "_on_rollout_start", "_on_rollout_end"])
def test_what_a_callback_resets_is_random_too(meddle, hook):
    callback = Meddle(meddle, hook, (2,))
    with pytest.warns(UserWarning, match="Something other than this model's training has reset or stepped"):
        GRPO("MlpPolicy", pendulums(), group_size=8, **SMALL).learn(1024, callback=callback)
    assert different(callback.results[0]) == 4


def test_what_a_callback_resets_in_processes_is_random_too():
    for meddle in (walk_to_the_end, through_env_method):
        env, callback = pendulums(subproc=True), Meddle(meddle)
        with pytest.warns(UserWarning, match="Something other"):
            model = GRPO("MlpPolicy", env, group_size=8, **SMALL).learn(1024, callback=callback)
        assert different(callback.results[0]) == 4 and model.groups.start_mismatches == 0
        env.close()


# ------------------------------------------------------------ somebody else in mid-rollout


class Staged(gym.Env):
    """Methods of its own that reset and step it, as a curriculum or a search may have."""

    observation_space, action_space = spaces.Box(-10, 10, (1,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.normal(size=1).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(1, self.t, np.float32), float(action), self.t == 10, False, {}

    def to_stage(self, stage):
        self.reset()

    def look_ahead(self):
        self.step(1)

    def say(self):
        return self.t


@pytest.mark.parametrize("subproc", [False, True], ids=["dummy", "subproc"])
@pytest.mark.parametrize(("call", "times"), [(("to_stage", 2), 1), (("look_ahead",), 1), (("say",), 0)])
def test_methods_of_the_env_that_reset_or_step_it_are_noticed(subproc, call, times):
    own = dict(SUBPROC, wrapper_class=SeededResetWrapper) if subproc else {}
    env = make_vec_env(Staged, 4, **own)
    callback = Meddle(lambda e: e.env_method(*call))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model = GRPO("MlpPolicy", env, group_size=4, **SMALL).learn(512, callback=callback)
    assert model.interruptions == times and model.groups.start_mismatches == 0
    assert len([w for w in caught if "Something other" in str(w.message)]) == times
    env.close()


def test_a_step_of_the_bare_env_inside_its_wrappers_is_noticed():
    callback = Meddle(lambda e: e.envs[1].unwrapped.step(0))
    with pytest.warns(UserWarning, match="Something other"):
        model = GRPO("MlpPolicy", make_vec_env(Staged, 4), group_size=4, **SMALL).learn(512, callback=callback)
    assert model.interruptions == 1


@pytest.mark.parametrize("kind", [np.random.RandomState, random.Random])
@pytest.mark.parametrize("shared_noise", [True, False])
def test_a_generator_of_another_kind_stays_the_envs(kind, shared_noise):
    class Old(Staged):
        def __init__(self):
            self.np_random = kind(0)

        def reset(self, *, seed=None, options=None):
            if seed is not None:
                self.np_random.seed(seed % 2**32)
            self.t = 0
            return np.full(1, self.np_random.normal(0, 1) if kind is np.random.RandomState else 0.5, np.float32), {}

        def step(self, action):
            self.np_random.shuffle([1, 2])
            return super().step(action)

    env, callback = make_vec_env(Old, 2), Meddle(lambda e: e.step([0, 0]))
    with pytest.warns(UserWarning, match="Something other"):
        GRPO("MlpPolicy", env, group_kwargs=dict(shared_noise=shared_noise), **SMALL).learn(512, callback=callback)
    assert all(type(one.unwrapped.np_random) is kind for one in env.envs)
    env.step([0, 0])


class SeedsAll(Staged):
    """Seeds every library, as many envs do."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            random.seed(seed), np.random.seed(seed % 2**32), th.manual_seed(seed)
        return super().reset(seed=seed)


def test_members_act_for_themselves_whatever_the_env_seeds():
    model = GRPO("MlpPolicy", make_vec_env(SeedsAll, 1), group_size=8, **{**SMALL, "n_steps": 160})
    rollout = model.collect()
    assert len({tuple(actions) for actions in rollout.actions.reshape(16, 10).tolist()}) > 12
    env = make_vec_env(SeedsAll, 1)
    plain, expected = GRPO("MlpPolicy", make_vec_env(Staged, 1), **SMALL).learn(64), GRPO("MlpPolicy", env, **SMALL).learn(64)
    for a, b in zip(plain.policy.parameters(), expected.policy.parameters(), strict=True):
        assert th.equal(a, b)
    env.envs[0].reset(seed=5)  # somebody else's, who may mean it
    assert th.initial_seed() == 5


def test_an_env_whose_generator_cannot_be_set_is_given_back_too():
    class Guarded(Staged):
        np_random = property(lambda self: self.generator)

        def reset(self, *, seed=None, options=None):
            if seed is not None or not hasattr(self, "generator"):
                self.generator = np.random.default_rng(seed)
            self.t = 0
            return self.generator.normal(size=1).astype(np.float32), {}

    env = make_vec_env(Guarded, 4)
    GRPO("MlpPolicy", env, group_size=4, **SMALL).learn(256)
    assert different(env.reset()) == 4


class Clock(gym.Env):
    """Shows the time and a number that the episode keeps: what is spliced out of two episodes is seen at once."""

    observation_space, action_space = spaces.Box(0, 1e4, (2,)), spaces.Discrete(2)

    def __init__(self, length=30):
        self.length, self.t = length, 0

    def _obs(self):
        return np.array([self.t, self.mark], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.mark = 0, self.np_random.integers(1000)
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        return self._obs(), float(action), False, self.t == self.length, {}


def whole(rollout):
    """Every episode of a rollout is one episode of the env, its steps in order; from the start where ``t`` says so."""
    obs, episode = rollout.observations, rollout.episode
    np.testing.assert_array_equal(obs[:, 0].numpy(), rollout.t.numpy())
    inside = episode[1:] == episode[:-1]
    assert (obs[1:, 1] == obs[:-1, 1])[inside].all() and (obs[1:, 0] == obs[:-1, 0] + 1)[inside].all()


def seen_rollouts(advantage, env, callback, learn=2000, **kwargs):
    """Train, and check every rollout on the way.

    :return: the model, and the warnings
    """
    model = GRPO("MlpPolicy", env, advantage=advantage, **{**SMALL, "n_steps": 50, "group_size": 3, **kwargs})
    prepare = model.compute_advantages
    model.compute_advantages = lambda rollout: whole(rollout) or prepare(rollout)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model.learn(learn, callback=callback)
    del model.compute_advantages
    return model, [str(w.message) for w in caught]


MEDDLERS = {
    "reset": lambda env: env.reset(),
    "step": lambda env: env.step([0, 0]),
    "reset of one": lambda env: env.envs[1].reset(),
    "step of one": lambda env: env.envs[0].step(0),
}


@pytest.mark.parametrize("advantage", ["state", "outcome"])
@pytest.mark.parametrize("hook", ["_on_step", "_on_rollout_start", "_on_rollout_end", "_on_training_start", "_init_callback"])
@pytest.mark.parametrize("meddle", MEDDLERS.values(), ids=MEDDLERS)
def test_no_episode_is_spliced_whoever_meddles_and_when(advantage, hook, meddle):
    env = DummyVecEnv([Clock, Clock])
    calls = (1,) if "training" in hook or "init" in hook else (2, 7, 11)
    model, messages = seen_rollouts(advantage, env, Meddle(meddle, hook, calls), learn=1200)  # twelve rollouts of 50 steps
    assert model.groups.start_mismatches == 0
    assert len([text for text in messages if "Something other" in text]) == 1 and not any(
        "does not fix" in text for text in messages
    )
    assert 1 <= model.interruptions <= len(calls)
    trained = model._steps_trained + model._steps_dropped + model.rollout_buffer.n_kept
    assert trained == model.num_timesteps
    assert model.last_metrics["rollout/interruptions"] == model.interruptions


@pytest.mark.parametrize("advantage", ["state", "outcome"])
def test_evaluating_on_the_training_env_costs_the_running_episodes_only(advantage):
    env = make_vec_env(Clock, 3)
    callback = EvalCallback(env, eval_freq=70, n_eval_episodes=3, verbose=0, warn=False)
    model, messages = seen_rollouts(advantage, env, callback, learn=3000)
    assert model.interruptions == callback.n_calls // 70 and len([text for text in messages if "training env" in text]) == 1
    if advantage == "state":
        assert model._steps_dropped == 0  # an episode may end anywhere: what was done up to there is used
    else:
        lost = 70 % 30 * 3
        assert 0 < model._steps_dropped <= model.interruptions * lost
        assert model.last_metrics["rollout/useful_fraction"] > 0.7


def test_two_models_on_one_env_take_turns():
    env = make_vec_env(Clock, 2)
    other = PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, device="cpu")
    ours = GRPO("MlpPolicy", env, group_size=2, **SMALL)
    meddlers = [lambda e: other.learn(64, reset_num_timesteps=False), lambda e: ours.learn(128, reset_num_timesteps=False)]
    model, _ = seen_rollouts("outcome", env, Meddle(meddlers[0], calls=(20, 90)))
    assert model.interruptions == 2
    model, _ = seen_rollouts("outcome", env, Meddle(meddlers[1], calls=(20, 90)))
    assert model.interruptions == 2 and ours.interruptions == 0


def test_two_models_that_share_one_gym_env_notice_each_other():
    env = Clock()  # each model puts a Monitor of its own around it
    ppo = PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, device="cpu")
    ours = GRPO("MlpPolicy", env, group_size=2, **SMALL)
    for other in (ppo, ours):
        meddle = partial(type(other).learn, other, 64)
        model, _ = seen_rollouts("state", env, Meddle(lambda e, learn=meddle: learn(), calls=(40,)), learn=300)
        assert model.interruptions == 1 and model.groups.start_mismatches == 0


def test_somebody_who_comes_before_any_episode_can_end_is_named(monkeypatch):
    monkeypatch.setattr(plan, "HOPELESS", 500)
    env = DummyVecEnv([lambda: Clock(10_000)])
    model = GRPO("MlpPolicy", env, advantage="outcome", group_size=2, **SMALL)
    callback = Meddle(lambda e: e.reset(), calls=range(100, 10**6, 100))
    with pytest.warns(UserWarning, match="Something other"), pytest.raises(ValueError, match=r"No group .* reset or stepped"):
        model.learn(2_000, callback=callback)


@pytest.mark.parametrize("advantage", ["state", "outcome"])
@pytest.mark.parametrize("meddle", [lambda e: e.reset(), lambda e: e.step(np.zeros(4, int))], ids=["reset", "step"])
def test_tensor_envs_are_started_over_too(advantage, meddle):
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 4), advantage=advantage, group_size=2, **SMALL)
    with pytest.warns(UserWarning, match="Something other"):
        model.learn(2000, callback=Meddle(meddle, calls=(20, 100)))
    assert model.interruptions == 2 and model.groups.start_mismatches == 0
    assert model._steps_trained + model._steps_dropped + model.rollout_buffer.n_kept == model.num_timesteps
    assert (model._steps_dropped > 0) == (advantage == "outcome")


def test_monitored_episodes_are_whole_ones():
    env = make_vec_env(Clock, 2)
    model = GRPO("MlpPolicy", env, group_size=2, **SMALL)
    with pytest.warns(UserWarning, match="Something other"):
        model.learn(1000, callback=Meddle(lambda e: e.reset(), calls=(40, 100)))
    assert {info["l"] for info in model.ep_info_buffer} == {30}


def test_a_quiet_callback_interrupts_nothing():
    def look(env):
        env.get_attr("render_mode"), env.env_method("has_wrapper_attr", "x"), env.seed(3), env.unwrapped.envs[0].unwrapped

    model, messages = seen_rollouts("outcome", make_vec_env(Clock, 2), Meddle(look, calls=range(200)))
    assert model.interruptions == 0 and [message for message in messages if "different starts" not in message] == []


class WarmsUp(VecEnvWrapper):
    """Steps in its reset."""

    def reset(self):
        self.venv.reset()
        return [self.venv.step(np.zeros(self.num_envs, int)) for _ in range(3)][-1][0]

    def step_wait(self):
        return self.venv.step_wait()


class ResetsTwice(WarmsUp):
    def reset(self):
        return self.venv.reset() if self.venv.reset() is not None else None


@pytest.mark.parametrize("wrap", [WarmsUp, ResetsTwice, lambda env: VecNormalize(ResetsTwice(WarmsUp(env)))])
@pytest.mark.parametrize("subproc", [False, True], ids=["dummy", "subproc"])
def test_a_wrapper_that_resets_at_length_is_no_interruption(wrap, subproc):
    own = dict(SUBPROC, wrapper_class=SeededResetWrapper) if subproc else {}
    env = wrap(make_vec_env(Staged, 2, **own))
    callback = Meddle(lambda e: e.reset(), calls=())
    # Groups of as many as there are envs: what steps in reset() alone moves the starts of the first group, and of all of it.
    model = GRPO("MlpPolicy", env, group_size=2, **SMALL).learn(256, callback=callback)
    assert model.interruptions == 0 and model.groups.start_mismatches == 0
    model.learn(256, reset_num_timesteps=False)
    model.learn(128)
    assert model.interruptions == 0 and model.groups.start_mismatches == 0
    callback.calls, callback.count = (10,), 0
    with pytest.warns(UserWarning, match="Something other"):
        model.learn(256, callback=callback)
    assert model.interruptions == 1 and model.groups.start_mismatches == 0
    env.close()


# ------------------------------------------------------------ attributes


class Lesson(SpaceEnv):
    """An env with something to read, write and call."""

    difficulty, describe = 1, "its own attribute"

    def __init__(self):
        super().__init__(spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
        self.used = None

    def step(self, action):
        self.used = self.difficulty
        return super().step(action)

    def harder(self, by):
        self.difficulty += by
        return self.difficulty


def test_attributes_reach_the_env_as_without_us():
    raw = Lesson()
    env = DummyVecEnv([lambda: raw])
    model = GRPO("MlpPolicy", env, **SMALL)
    env.set_attr("difficulty", 7)
    model.learn(64)
    assert (raw.used, env.get_attr("difficulty"), env.envs[0].used) == (7, [7], 7)
    assert env.env_method("harder", 2) == [9] and env.envs[0].get_wrapper_attr("difficulty") == 9
    model.learn(64)
    assert raw.used == 9
    assert env.envs[0] is raw is model.get_env().envs[0].unwrapped and isinstance(env.envs[0], Lesson)
    assert env.get_attr("describe") == ["its own attribute"]
    assert env.env_is_wrapped(gym.Wrapper) == env.env_is_wrapped(Monitor) == [False]
    env.envs[0].difficulty = 4
    model.learn(64)
    assert raw.used == 4


@pytest.mark.parametrize("subproc", [False, True], ids=["dummy", "subproc"])
def test_a_vec_env_answers_as_under_ppo(subproc):
    def answers(cls, wrapper):
        env = make_vec_env(Lesson, 2, wrapper_class=wrapper, **(SUBPROC if subproc else {}))
        cls("MlpPolicy", env, **SMALL)
        messages = [env.get_attr("difficulty"), env.env_method("harder", 3), env.get_attr("difficulty", [1])]
        env.set_attr("difficulty", 8, [0])
        messages += [env.get_attr("difficulty"), env.env_is_wrapped(Monitor), env.env_is_wrapped(gym.Wrapper)]
        messages += [env.has_attr("difficulty"), env.has_attr("no_such_thing"), env.get_attr("spec")]
        env.close()
        return messages

    assert answers(GRPO, SeededResetWrapper if subproc else None) == answers(PPO, None)


class Warmup(gym.Wrapper):
    """Resets itself within steps, and steps itself within resets."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        obs, *_ = self.step(0)
        self.n = 0
        return obs, info

    def step(self, action):
        result = self.env.step(action)
        self.n = getattr(self, "n", 0) + 1
        if self.n == 3:
            self.reset()
        return result


@pytest.mark.parametrize("wrap", [lambda e: e, Monitor, Warmup, lambda e: Monitor(Warmup(e)), lambda e: Warmup(Monitor(e))])
@pytest.mark.parametrize("inside", [False, True])
def test_groups_start_alike_with_any_wrapper_above_or_below(wrap, inside):
    one = SeededResetWrapper if inside else lambda env: env
    env = DummyVecEnv([lambda: wrap(one(gym.wrappers.TimeLimit(Lesson(), 4)))] * 2)
    model = GRPO("MlpPolicy", env, group_size=4, **SMALL).learn(256)
    assert model.groups.start_mismatches == 0 and model.interruptions == 0 and model.groups.next_group >= 8


def test_a_limit_around_the_seeded_env_in_another_process_keeps_groups():
    env = make_vec_env(Lesson, 2, **SUBPROC, wrapper_class=limited_outside)
    model = GRPO("MlpPolicy", env, group_size=4, **SMALL).learn(256)
    assert model.groups.start_mismatches == 0 and model.interruptions == 0
    env.close()


def test_a_limit_around_the_seeded_env_in_another_process_is_known():
    env = make_vec_env(Lesson, 2, **SUBPROC, wrapper_class=lambda env: gym.wrappers.TimeLimit(SeededResetWrapper(env), 50))
    assert GRPO("MlpPolicy", env, **SMALL).gamma == 0.95
    env.close()


def limited_outside(env):
    return gym.wrappers.TimeLimit(SeededResetWrapper(env), 3)


DUPLICATES = {
    "deepcopy": copy.deepcopy,
    "cloudpickle": lambda env: cloudpickle.loads(cloudpickle.dumps(env)),
    "pickle": lambda env: pickle.loads(pickle.dumps(env)),
}


@pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)
@pytest.mark.parametrize("wrap", [lambda e: e, Monitor], ids=["bare", "monitor"])
def test_a_copy_of_the_env_is_an_env_of_its_own(duplicate, wrap):
    env = DummyVecEnv([lambda: wrap(Lesson())])
    model = GRPO("MlpPolicy", env, group_size=2, **SMALL).learn(64)
    twin = duplicate(env.envs[0])
    twin.reset(seed=1)
    twin.step(0)
    assert twin.unwrapped.t == 1 and model.groups.in_step_with(env)
    assert not twin.has_wrapper_attr("set_next_seed")
    one, _ = twin.reset(seed=5)
    two, _ = wrap(Lesson()).reset(seed=5)
    np.testing.assert_array_equal(one, two)
    again = GRPO("MlpPolicy", DummyVecEnv([lambda: twin]), group_size=2, **SMALL).learn(64)
    assert again.groups.start_mismatches == 0 and model.groups.in_step_with(env)


def test_models_built_on_one_env_do_not_pile_up():
    raw = gym.make("CartPole-v1")
    for _ in range(3):
        GRPO("MlpPolicy", raw, **SMALL)
    assert not hasattr(type(raw.unwrapped).reset.__wrapped__, "__wrapped__")


# ------------------------------------------------------------ the env stays the object that it was


class Walk(gym.Env):
    """Deterministic, and easy to copy."""

    observation_space, action_space, made = spaces.Box(-99, 99, (1,), np.float32), spaces.Discrete(3), 0

    def __init__(self):
        type(self).made += 1
        self.t, self.marks = 0, [0]

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.t, self.marks = 0, [0]
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        self.marks.append(self.t)
        return np.full(1, self.t, np.float32), float(action), False, self.t >= 20, {}


class Plus(gym.ObservationWrapper):
    def observation(self, observation):
        return observation + 1


def chain(env):
    """An env with its wrappers, from the outside in."""
    found = [env]
    while isinstance(found[-1], gym.Wrapper):
        found.append(found[-1].env)
    return found


def seen_from_outside(env):
    """All that can be asked of each layer of an env."""
    facts = []
    for layer in chain(env):
        names = sorted(
            set(dir(layer)) - {"np_random", "np_random_seed", "__weakref__", "__slotnames__"}
        )  # the last by copyreg
        copies = [one(layer) for one in (copy.copy, copy.deepcopy, *list(DUPLICATES.values())[1:])]
        facts.append({
            "type": [type(layer), layer.__class__, type(layer).__name__, type(layer).__mro__, type(type(layer))],
            "isinstance": [isinstance(layer, kind) for kind in (Walk, gym.Wrapper, Monitor, Plus, gym.Env)],
            "dict": {name: type(value) for name, value in vars(layer).items()},
            "attributes": {name: type(getattr(layer, name, None)) for name in names},
            "signatures": [str(inspect.signature(method)) for method in (layer.reset, layer.step, type(layer).reset)],
            "specs": [inspect.getfullargspec(method)[:6] for method in (layer.reset, layer.step)],
            "arguments": [method.__code__.co_varnames[: method.__code__.co_argcount] for method in (layer.reset, layer.step)],
            "source": [inspect.getsource(method) for method in (layer.reset, layer.step)],
            "bound": [method.__self__ is layer and type(method).__name__ == "method" for method in (layer.reset, layer.step)],
            "names": [method.__qualname__ for method in (layer.reset, layer.step)],
            "copies": [(type(one), sorted(vars(one))) for one in copies],
            "text": repr(layer).partition(" at 0x")[0],
            "found": [layer.has_wrapper_attr(name) for name in ("set_next_seed", "t", "withdraw_seed")],
        })  # fmt: skip
    return facts


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: Monitor(Plus(gym.wrappers.TimeLimit(e, 30)))])
def test_an_env_under_grpo_and_one_under_ppo_are_not_told_apart(wrap):
    def seen(algorithm):
        raw = Walk()
        env = DummyVecEnv([lambda: wrap(raw)])
        before = [{name: id(value) for name, value in vars(layer).items()} for layer in chain(env.envs[0])]
        model = algorithm("MlpPolicy", env, **SMALL)
        after = [{name: id(value) for name, value in vars(layer).items()} for layer in chain(env.envs[0])]
        assert before == after and env.envs[0].unwrapped is raw and type(env.envs) is list
        facts = [seen_from_outside(env.envs[0])]
        model.learn(64)
        facts.append(seen_from_outside(env.envs[0]))
        del model
        facts.append(seen_from_outside(env.envs[0]))
        return facts, sorted(vars(env))

    unlike = Walk.made
    assert seen(GRPO) == seen(PPO)
    assert Walk.made - unlike == 2  # who counts its objects in the class finds those that it made


def test_the_vec_env_too_stays_what_it_was():
    env = DummyVecEnv([Walk, Walk])
    before = dict(vars(env))
    GRPO("MlpPolicy", env, **SMALL).learn(64)
    assert set(vars(env)) - {"actions"} == set(before)
    assert all(method.__self__ is env for method in (env.reset, env.step, env.step_wait, env.env_method))
    twin = copy.copy(env)
    twin.envs = [Walk(), Walk()]
    twin.reset(), twin.step(np.array([0, 0]))
    assert [one.t for one in twin.envs] == [1, 1] and env.envs[0].t != 1
    pickle.loads(pickle.dumps(env)).reset()


class StepsAtOnce(DummyVecEnv):
    """Steps its envs in a loop of its own, and looks at them there."""

    def step(self, actions):
        self.actions = actions
        assert [env.made for env in self.envs] and all(isinstance(env, Walk) for env in self.envs)
        return self.step_wait()


def with_methods_of_its_own():
    env = DummyVecEnv([Walk, Walk])
    env.step_wait, env.reset = partial(DummyVecEnv.step_wait, env), partial(DummyVecEnv.reset, env)
    return env


@pytest.mark.parametrize("make", [lambda: StepsAtOnce([Walk, Walk]), with_methods_of_its_own])
def test_dummy_vec_envs_with_methods_of_their_own_run_groups(make):
    model = GRPO("MlpPolicy", make(), group_size=4, **SMALL).learn(512)
    assert model.groups.start_mismatches == model.interruptions == 0 and model.groups.next_group > 4


class Advantage(gym.Wrapper):
    """The reward, less what doing nothing would have earned: tried out on a copy."""

    duplicate = staticmethod(copy.copy)

    def step(self, action):
        idle = self.duplicate(self.env.unwrapped).step(1)[1]
        obs, reward, *rest = self.env.step(action)
        return obs, reward - idle, *rest


class TryOut(gym.Wrapper):
    """Tries two actions out, and puts what the env was back."""

    def step(self, action):
        env = self.env.unwrapped
        kept = copy.deepcopy(vars(env))
        env.step(1), env.step(2)
        vars(env).clear()
        vars(env).update(kept)
        return self.env.step(action)


class Search(gym.Wrapper):
    """Plays on to the end on a copy of all that it wraps, before every step and in every reset, and masks by what it found."""

    def action_masks(self):
        return np.array([self.worth(action) >= 0 for action in range(3)])

    def worth(self, action):
        twin = copy.deepcopy(self.env)
        twin.reset(seed=3)
        return sum(twin.step(action)[1] for _ in range(5))

    def step(self, action):
        self.worth(action)
        return self.env.step(action)

    def reset(self, **kwargs):
        result = self.env.reset(**kwargs)
        self.worth(0)
        return result


@pytest.mark.parametrize("subproc", [False, True], ids=["dummy", "subproc"])
@pytest.mark.parametrize("wrap", [Advantage, TryOut, Search])
def test_what_wrappers_try_out_on_copies_and_snapshots_disturbs_nothing(wrap, subproc):
    def make():
        return Monitor(wrap(Plus(Walk())))

    env = SubprocVecEnv([lambda: SeededResetWrapper(make())] * 2, "fork") if subproc else DummyVecEnv([make] * 2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Something other|Two members")
        model = GRPO("MlpPolicy", env, **SMALL).learn(256)
    assert {episode["l"] for episode in model.ep_info_buffer} == {20}
    assert model.interruptions == model.groups.start_mismatches == 0
    env.close()


def test_a_callback_that_plays_on_copies_disturbs_nothing():
    def play_on(env):
        for one in env.envs:
            for layer in chain(one):
                twin = copy.deepcopy(layer)
                twin.reset(), twin.step(0)
            copy.copy(one.unwrapped).step(1)

    callback = Meddle(play_on, calls=range(0, 100, 7))
    model = GRPO("MlpPolicy", DummyVecEnv([lambda: Monitor(Plus(Walk()))] * 2), **SMALL).learn(256, callback)
    assert model.interruptions == 0 and {episode["l"] for episode in model.ep_info_buffer} == {20}


class OldAndNew(gym.Wrapper):
    """Wraps envs of before and after ``reset(seed=...)``."""

    def reset(self, *, seed=None, options=None):
        if "seed" in inspect.signature(self.env.reset).parameters and "seed" in self.env.reset.__code__.co_varnames:
            return self.env.reset(seed=seed)
        return self.env.reset()


def test_a_wrapper_that_looks_which_arguments_reset_takes_finds_them():
    env = DummyVecEnv([lambda: Monitor(OldAndNew(gym.make("CartPole-v1").unwrapped))])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Two members")
        model = GRPO("MlpPolicy", env, **SMALL).learn(256)
    assert model.groups.start_mismatches == 0


def test_an_env_with_a_reset_and_a_step_of_its_own_starts_its_groups_alike():
    """Set on the object, as ``functools.partial`` does: past them nobody hears, but the VecEnv gives the seed all the same."""
    env = DummyVecEnv([lambda: gym.wrappers.TimeLimit(gym.make("CartPole-v1").unwrapped, 20)] * 2)
    for one in env.envs:
        one.reset, one.unwrapped.step = partial(one.reset, options={"low": -0.1, "high": 0.1}), one.unwrapped.step
    model = GRPO("MlpPolicy", env, group_size=4, **SMALL).learn(256)
    assert model.groups.start_mismatches == 0 and model.groups.next_group > 4


# ------------------------------------------------------------ resets without options


class Bare(Lesson):
    def reset(self, seed=None):
        return super().reset(seed=seed)


@pytest.mark.parametrize("kind", ["env", "dummy", "monitored", "subproc"])
def test_an_env_whose_reset_knows_no_options_trains(kind):
    env = {
        "env": Bare,
        "dummy": lambda: DummyVecEnv([Bare, Bare]),
        "monitored": lambda: make_vec_env(Bare, 2),
        "subproc": lambda: make_vec_env(Bare, 2, **SUBPROC, wrapper_class=SeededResetWrapper),
    }[kind]()
    model = GRPO("MlpPolicy", env, group_size=2, **SMALL).learn(128)
    assert model.groups.start_mismatches == 0 and evaluate_policy(model, model.get_env(), 2, warn=False)
    model.get_env().close()


def test_gymnasiums_vector_envs_need_options_and_say_so():
    with pytest.raises(ValueError, match=r"reset\(\) without options.*make_vec_env"):
        GymnasiumVectorEnv(gym.vector.SyncVectorEnv([Bare, Bare]))


def test_options_that_a_user_sets_arrive():
    class WithOptions(Lesson):
        options_given = None

        def reset(self, *, seed=None, options=None):
            self.options_given = options or self.options_given
            return super().reset(seed=seed)

    env = DummyVecEnv([WithOptions])
    model = GRPO("MlpPolicy", env, **SMALL)
    env.set_options({"level": 3})
    model.learn(64)
    assert env.get_attr("options_given") == [{"level": 3}]


# ------------------------------------------------------------ who made starts differ


class Jittered(gym.ObservationWrapper):
    """Draws from a generator that no seed reaches."""

    noise = np.random.default_rng(0)

    def observation(self, observation):
        return observation + self.noise.normal(size=observation.shape).astype(np.float32)


class InPlace(gym.ObservationWrapper):
    """Hands on the very array that it got, changed."""

    shift = 0.0

    def observation(self, observation):
        self.shift += 0.01
        observation += np.float32(self.shift)
        return observation


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (InPlace, "InPlace"),
        (lambda e: Monitor(InPlace(e)), "InPlace"),
        (gym.wrappers.NormalizeObservation, "NormalizeObservation"),
        (lambda e: gym.wrappers.FlattenObservation(gym.wrappers.NormalizeObservation(e)), "NormalizeObservation"),
        (lambda e: Jittered(gym.wrappers.RescaleObservation(e, -1, 1)), "Jittered"),
        (lambda e: Monitor(gym.wrappers.TimeLimit(Jittered(e), 20)), "Jittered"),
    ],
)
def test_a_wrapper_that_moves_is_named_and_not_the_env(wrap, name):
    env = wrap(gym.make("Pendulum-v1", max_episode_steps=20))
    with pytest.warns(UserWarning, match=rf"{name} made the difference, .* \(\w+\) did start from one state") as caught:
        model = GRPO("MlpPolicy", env, group_size=2, **SMALL).learn(128)
    assert not any("does not fix" in str(w.message) for w in caught) and model.groups.start_mismatches > 0


class Skips(gym.Wrapper):
    """Steps at random before the episode begins, from a generator of its own."""

    def __init__(self, env):
        super().__init__(env)
        self.rng = np.random.default_rng(0)

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        for _ in range(self.rng.integers(1, 5)):
            obs, *_, info = self.env.step(self.env.action_space.sample() * 0 + 1)
        return obs, info


class DropsSeed(gym.Wrapper):
    def reset(self, **kwargs):
        return self.env.reset()


class OtherSeed(gym.Wrapper):
    """Seeds what it wraps from a generator that nobody seeds."""

    def __init__(self, env):
        super().__init__(env)
        self.rng = np.random.default_rng(0)

    def reset(self, **kwargs):
        return self.env.reset(seed=int(self.rng.integers(1000)))


class GoesOn(gym.Wrapper):
    """A life is lost: the episode ends, and the next one begins where it was, as with SB3's EpisodicLifeEnv."""

    over = True

    def __init__(self, env):
        super().__init__(env)
        self.n = 0

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.n, self.over = self.n + 1, terminated or truncated
        return obs, reward, terminated or self.n % 7 == 0, truncated, info

    def reset(self, **kwargs):
        if self.over:
            self.over = False
            return self.env.reset(**kwargs)
        obs, *_, info = self.env.step(self.env.action_space.sample() * 0)
        return obs, info


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (Skips, r"Skips steps what it wraps \(\w+\) in reset\(\), after that has been reset, and not alike .*[1-4] times"),
        (lambda e: Monitor(Skips(gym.wrappers.RescaleAction(e, -1, 1))), r"Skips steps what it wraps \(RescaleAction\)"),
        (lambda e: Skips(gym.wrappers.NormalizeObservation(e)), r"Skips steps what it wraps \(NormalizeObservation\)"),
        (lambda e: gym.wrappers.NormalizeObservation(Skips(e)), r"Skips steps what it wraps \(\w+\)"),
        (DropsSeed, r"DropsSeed.reset\(seed=...\) does not hand the seed on to what it wraps \(\w+\)"),
        (lambda e: Monitor(DropsSeed(gym.wrappers.RescaleAction(e, -1, 1))), r"DropsSeed.reset\(seed=...\) does not hand"),
        (lambda e: DropsSeed(Skips(e)), r"DropsSeed.reset\(seed=...\) does not hand"),
        (OtherSeed, r"OtherSeed.reset\(seed=...\) does not hand"),
        (GoesOn, r"GoesOn.reset\(\) does not always reset what it wraps \(\w+\)"),
        (lambda e: Monitor(GoesOn(gym.wrappers.RescaleAction(e, -1, 1))), r"GoesOn.reset\(\) .* \(RescaleAction\)"),
    ],
)
def test_a_wrapper_that_moves_the_start_is_named(wrap, expected):
    env = wrap(gym.make("Pendulum-v1", max_episode_steps=20))
    with pytest.warns(UserWarning, match=expected) as caught:
        GRPO("MlpPolicy", env, group_size=2, **SMALL).learn(128)
    (text,) = [str(w.message) for w in caught if "Two members" in str(w.message)]
    assert "did start from one state" not in text and "does not fix" not in text and "not over equal starts" in text


def test_a_seed_that_arrives_by_another_way_is_no_fault():
    class Twice(gym.Wrapper):
        """Resets once more, without a seed, and steps a fixed number of times."""

        def reset(self, **kwargs):
            self.env.reset(**kwargs)
            self.env.reset()
            obs, *_, info = self.env.step(np.zeros(1, np.float32))
            return obs, info

    model = GRPO("MlpPolicy", Twice(gym.make("Pendulum-v1", max_episode_steps=20)), group_size=2, **SMALL).learn(128)
    assert model.groups.start_mismatches == 0
    env = gym.wrappers.NormalizeObservation(Twice(gym.make("Pendulum-v1", max_episode_steps=20)))
    with pytest.warns(UserWarning, match=r"NormalizeObservation made the difference, .* \(Twice\) did start from one state"):
        GRPO("MlpPolicy", env, group_size=2, **SMALL).learn(128)


def test_an_env_without_an_info_trains():
    class NoInfo(Lesson):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], None

    env = DummyVecEnv([lambda: gym.wrappers.TimeLimit(NoInfo(), 10)])
    env.reset()  # the user's, before anybody looks for masks in its info
    model = GRPO("MlpPolicy", env, group_size=2, **SMALL).learn(64)
    assert model.groups.start_mismatches == 0


def test_an_env_that_ignores_its_seed_is_blamed_under_wrappers_too():
    class Unseeded(Lesson):
        def reset(self, *, seed=None, options=None):
            return super().reset()

    env = Skips(gym.wrappers.NormalizeObservation(Unseeded()))
    with pytest.warns(UserWarning, match=r"reset\(seed=...\) does not fix its start state, or the envs are not alike"):
        GRPO("MlpPolicy", env, group_size=2, **SMALL).learn(128)


class Goal(gym.Env):
    """Draws a goal from a generator that no seed reaches."""

    one = spaces.Box(-1, 1, (1,), np.float32)
    observation_space, action_space = spaces.Dict(place=one, goal=one), spaces.Discrete(2)

    def seen(self):
        return {"place": np.full(1, self.place, np.float32), "goal": np.full(1, self.goal, np.float32)}

    def draw(self):
        return np.random.randint(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal, self.t = self.np_random.uniform(), self.draw(), 0
        return self.seen(), {}

    def step(self, action):
        self.t += 1
        return self.seen(), float(action == self.goal), False, self.t >= 5, {}


class GoalOfTheSeed(Goal):
    def draw(self):
        return self.np_random.integers(2)


@pytest.mark.parametrize(
    ("kind", "hidden", "expected"),
    [
        (Goal, False, r"^Two members of a group started from different observations.*does not fix its start state"),
        (
            Goal,
            True,
            r"^Two members of a group may have started.*of Goal without its wrappers differ: reset\(seed=...\)",
        ),
        (GoalOfTheSeed, True, None),
    ],
)
def test_starts_that_differ_behind_a_wrapper_are_noticed_in_softer_words(kind, hidden, expected):
    def make():
        return Monitor(gym.wrappers.FilterObservation(kind(), ["place"]) if hidden else kind())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = GRPO("MultiInputPolicy", DummyVecEnv([make] * 2), group_size=8, **SMALL).learn(512)
    texts = [str(w.message) for w in caught if "Two members" in str(w.message)]
    assert (model.groups.start_mismatches > 10) == (expected is not None) and len(texts) == (expected is not None)
    assert expected is None or re.search(expected, texts[0])


class RandomRange(gym.Wrapper):
    """Draws where to start before the seed has arrived."""

    def reset(self, *, seed=None, options=None):
        high = self.np_random.uniform(0.01, 0.2)
        return self.env.reset(seed=seed, options={"low": -high, "high": high})


def test_whoever_hands_out_other_options_is_named():
    env = make_vec_env("CartPole-v1", 4, wrapper_class=RandomRange)
    with pytest.warns(UserWarning, match=r"RandomRange.reset\(\) hands other options to what it wraps \(\w+\) with the same"):
        GRPO("MlpPolicy", env, group_size=4, **SMALL).learn(256)
    env = Monitor(RandomRange(gym.wrappers.TimeLimit(gym.make("CartPole-v1").unwrapped, 20)))
    with pytest.warns(UserWarning, match=r"RandomRange.reset\(\) hands other options to what it wraps \(\w*TimeLimit\)"):
        GRPO("MlpPolicy", env, group_size=4, **SMALL).learn(256)
    env = make_vec_env("CartPole-v1", 3)
    env.set_options({"low": -0.2, "high": 0.2})
    with pytest.warns(UserWarning, match=r"other options with the same seed, from VecEnv.set_options\(\)"):
        GRPO("MlpPolicy", env, group_size=4, **SMALL).learn(256)


# ------------------------------------------------------------ VecEnvs of one's own


class Batched(VecEnv):
    """All envs in one array, as a simulator of one's own has them; no seeds."""

    def __init__(self, n_envs=4):
        super().__init__(n_envs, spaces.Box(-10, 10, (1,)), spaces.Discrete(2))
        self.x, self.t = np.zeros((n_envs, 1), np.float32), np.zeros(n_envs, int)

    def start(self, env_index):
        self.x[env_index], self.t[env_index] = np.random.default_rng(self.seed_of(env_index)).normal(), 0

    def seed_of(self, env_index):
        return None

    def reset(self):
        for env_index in range(self.num_envs):
            self.start(env_index)
        return self.x.copy()

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        self.x[:, 0] += np.asarray(self.actions) - 0.5
        self.t += 1
        dones, last = self.t >= 10, self.x.copy()
        infos = [{"terminal_observation": last[i], "TimeLimit.truncated": True} if dones[i] else {} for i in range(len(dones))]
        for env_index in np.flatnonzero(dones):
            self.start(env_index)
        return self.x.copy(), -np.abs(last[:, 0]), dones, infos

    def close(self):
        pass

    def get_attr(self, attr_name, indices=None):
        raise AttributeError(attr_name)

    def set_attr(self, attr_name, value, indices=None):
        raise NotImplementedError

    def env_method(self, method_name, *args, indices=None, **kwargs):
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


class SeededBatch(Batched):
    """The same with the one method that groups need."""

    max_episode_steps = 10

    def __init__(self, n_envs=4):
        super().__init__(n_envs)
        self.next_seed = np.full(n_envs, -1)

    def env_method(self, method_name, *args, indices=None, **kwargs):
        if method_name != "set_next_seed":
            raise AttributeError(method_name)
        env_indices = list(self._get_indices(indices))
        self.next_seed[env_indices] = args[0]
        return [None] * len(env_indices)

    def seed_of(self, env_index):
        seed, self.next_seed[env_index] = self.next_seed[env_index], -1
        return None if seed < 0 else seed


@pytest.mark.parametrize("wrap", [lambda e: e, VecMonitor, lambda e: VecFrameStack(VecNormalize(e), 2)])
def test_a_batched_vec_env_with_seeds_just_works(wrap):
    env = wrap(SeededBatch())
    model = GRPO("MlpPolicy", env, group_size=2, **SMALL)
    assert model.gamma == 0.95  # it says that it cuts its episodes after 10 steps
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(512)
        model.learn(256, reset_num_timesteps=False)
    assert model.groups.start_mismatches == 0 and model.groups.next_group >= 12
    assert different(env.reset()) == 4
    callback = Meddle(lambda e: e.reset().copy())
    with pytest.warns(UserWarning, match="Something other"):
        model.learn(512, callback=callback)
    assert different(callback.results[0]) == 4 and model.groups.start_mismatches == 0


def test_a_batched_vec_env_respects_seeds_of_the_user():
    env = SeededBatch()
    model = GRPO("MlpPolicy", env, group_size=4, **SMALL).learn(256)
    env.seed(7)
    first = env.reset()
    np.testing.assert_array_equal(first[:, 0], [np.float32(np.random.default_rng(7 + i).normal()) for i in range(4)])
    model.learn(256)
    env.reset()
    env.seed(7)
    np.testing.assert_array_equal(env.reset(), first)


class SeedOnly(SeededBatch):
    """Takes no seed of noise, and says nothing."""

    def set_next_seed(self, seed, env_indices):
        self.next_seed[env_indices] = seed

    def env_method(self, method_name, *args, indices=None, **kwargs):
        if method_name != "set_next_seed":
            raise NotImplementedError
        self.set_next_seed(*args, list(self._get_indices(indices)))


class YesToAll(SeededBatch):
    """Knows the one method, and answers to any other name."""

    def env_method(self, method_name, *args, indices=None, **kwargs):
        if method_name == "set_next_seed":
            return super().env_method(method_name, *args, indices=indices)
        return [None] * self.num_envs


class OwnStep(SeededBatch):
    """Steps at once."""

    def step(self, actions):
        self.actions = actions
        return self.step_wait()


@pytest.mark.parametrize("kind", [SeedOnly, YesToAll, OwnStep])
def test_whatever_way_a_batched_vec_env_takes_seeds(kind):
    env = kind()
    model = GRPO("MlpPolicy", env, group_size=4, **SMALL).learn(512)
    assert model.groups.start_mismatches == 0 and model.groups.next_group >= 8 and different(env.reset()) == 4
    with pytest.warns(UserWarning, match="Something other"):
        model.learn(512, callback=Meddle(lambda e: e.step(np.zeros(4))))
    assert model.groups.start_mismatches == 0 and model.interruptions == 1


@pytest.mark.parametrize("wrap", [lambda e: e, VecNormalize])
def test_policies_are_compared_on_a_batched_vec_env(wrap):
    policy = GRPO("MlpPolicy", SeededBatch(), **SMALL).policy
    compared = evaluate_paired(policy, policy, wrap(SeededBatch()), 8)
    assert compared.difference == 0 and different(compared.returns_a[:, None]) > 1


def test_noise_of_its_own_needs_a_seed_for_it():
    with pytest.raises(ValueError, match=r"shared_noise=False.*SeedOnly.*noise_seed"):
        GRPO("MlpPolicy", SeedOnly(), group_size=4, group_kwargs=dict(shared_noise=False), **SMALL).learn(256)


def test_a_set_next_seed_of_the_users_own_works_in_processes_too():
    class Own(Staged):
        next_seed = None

        def set_next_seed(self, seed, noise_seed=None):
            self.next_seed = seed

        def reset(self, *, seed=None, options=None):
            seed, self.next_seed = seed if self.next_seed is None else self.next_seed, None
            return super().reset(seed=seed)

    env = make_vec_env(Own, 4, **SUBPROC)
    model = GRPO("MlpPolicy", env, group_size=4, **SMALL).learn(512)
    assert model.groups.start_mismatches == 0 and different(env.reset()) == 4
    env.close()


def test_seeds_that_a_batched_vec_env_takes_and_ignores_are_found():
    class Deaf(SeededBatch):
        def seed_of(self, env_index):
            return None

    with pytest.warns(UserWarning, match="does not fix its start state"):
        GRPO("MlpPolicy", Deaf(), group_size=4, **SMALL).learn(256)


@pytest.mark.parametrize("how", ["absent", "none"])
def test_a_cut_episode_without_its_last_observation_ends_as_for_ppo(how):
    class Forgetful(SeededBatch):
        def step_wait(self):
            obs, rewards, dones, infos = super().step_wait()
            for info in infos:
                last = info.pop("terminal_observation", None)
                if how == "none" and last is not None:
                    info["terminal_observation"] = None
            return obs, rewards, dones, infos

    model = GRPO("MlpPolicy", Forgetful(), group_size=4, **SMALL)
    with pytest.warns(UserWarning, match="no 'terminal_observation'") as caught:
        model.learn(256)
    assert len([w for w in caught if "terminal_observation" in str(w.message)]) == 1
    rollout = model.collect()
    assert rollout.terminated.any()
    length = th.bincount(rollout.episode)
    assert rollout.terminated[length == 10].all() and not rollout.truncated.any()


class SaysYes(Batched):
    def env_method(self, method_name, *args, indices=None, **kwargs):
        return [None] * self.num_envs


@pytest.mark.parametrize("kind", [Batched, SaysYes])
def test_a_batched_vec_env_without_seeds_hears_what_fits(kind):
    with pytest.raises(ValueError, match=r"set_next_seed.*TensorVecEnv.*GymnasiumVectorEnv") as caught:
        GRPO("MlpPolicy", kind(), **SMALL)
    assert "SubprocVecEnv" not in str(caught.value)


@pytest.mark.parametrize("error", [ConnectionError, ValueError, TypeError, AttributeError])
def test_an_error_that_says_nothing_of_seeds_is_the_vec_envs_own(error):
    class Away(Batched):
        def env_method(self, method_name, *args, indices=None, **kwargs):
            raise error("the simulator has gone away")

    with pytest.raises(error, match=r"^the simulator has gone away$"):
        GRPO("MlpPolicy", Away(), **SMALL)


def test_installing_twice_holds_the_env_once():
    env = make_vec_env("CartPole-v1", 2)
    install_seeded_reset(env)
    methods = env.reset, env.step_async, env.envs[0].reset, env.envs[0].step
    ownership = ownership_of(env)
    install_seeded_reset(VecNormalize(env))
    assert methods == (env.reset, env.step_async, env.envs[0].reset, env.envs[0].step) and ownership_of(env) is ownership


class Tells(gym.Wrapper):
    """Infos with what can change and what cannot."""

    def step(self, action):
        obs, reward, terminated, truncated, _ = self.env.step(action)
        self.reported = {"n": 3, "name": "x", "where": np.zeros(2), "parts": {"a": [1.0]}, "size": np.float32(0.5)}
        return obs, reward, terminated, truncated, self.reported


def test_infos_are_copies_as_without_us():
    env = make_vec_env("CartPole-v1", 2, wrapper_class=Tells)
    GRPO("MlpPolicy", env, n_steps=8).learn(16)
    infos = env.step(np.zeros(2, dtype=np.int64))[3]
    reported, found = env.envs[0].reported, infos[0]
    reported["parts"]["a"][0], reported["where"][0], reported["n"] = 9.0, 9.0, 9
    assert type(infos) is list
    assert (found["n"], found["name"], found["parts"], found["size"]) == (3, "x", {"a": [1.0]}, 0.5)
    np.testing.assert_array_equal(found["where"], [0.0, 0.0])
    assert found["TimeLimit.truncated"] is False


@pytest.mark.parametrize("vec_env_cls", [DummyVecEnv, SubprocVecEnv])
def test_episodes_that_a_wrapper_ends_without_a_reset_start_anywhere_and_are_counted(vec_env_cls):
    class LifeLost(VecEnvWrapper):
        def reset(self):
            self.n = 0
            return self.venv.reset()

        def step_wait(self):
            obs, rewards, dones, infos = self.venv.step_wait()
            self.n += 1
            return obs, rewards, np.ones_like(dones) if self.n % 10 == 0 else dones, infos

    wrapper = SeededResetWrapper if vec_env_cls is SubprocVecEnv else None
    env = LifeLost(make_vec_env("Pendulum-v1", 4, vec_env_cls=vec_env_cls, wrapper_class=wrapper))
    model = GRPO("MlpPolicy", env, advantage="outcome", group_size=4, **{**SMALL, "n_steps": 40})
    with pytest.warns(UserWarning, match=r"Env 0 was not reset although its episode ended.*\(LifeLost\)") as caught:
        model.collect()
    assert len([w for w in caught if "not reset" in str(w.message)]) == 1
    assert model.groups.start_mismatches == 16  # all but those of the first reset
    env.close()


class Unbuilt(VecEnv):
    """Has not called VecEnv's constructor, and so lacks what that makes."""

    def __init__(self):
        self.num_envs, self.render_mode, self.n = 4, None, 0
        self.action_space, self.observation_space = spaces.Discrete(2), spaces.Box(0, 1, (3,), np.float32)

    def reset(self):
        return np.zeros((4, 3), np.float32)

    def step_async(self, actions):
        self.n += 1

    def step_wait(self):
        done = self.n % 5 == 0
        infos = [{"terminal_observation": np.zeros(3, np.float32)} if done else {} for _ in range(4)]
        return self.reset(), np.zeros(4, np.float32), np.full(4, done), infos

    def close(self):
        pass

    def get_attr(self, attr_name, indices=None):
        return [getattr(self, attr_name)] * 4

    def set_attr(self, attr_name, value, indices=None):
        raise AttributeError(attr_name)

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * 4

    def env_method(self, method_name, *args, indices=None, **kwargs):
        if method_name != "set_next_seed":
            raise AttributeError(method_name)
        return [None] * 4


def test_a_vec_env_of_ones_own_that_has_not_called_super_trains():
    model = GRPO("MlpPolicy", Unbuilt(), group_size=4, **SMALL).learn(256)
    assert model.num_timesteps >= 256 and model.groups.start_mismatches == 0


def test_an_env_that_a_callback_puts_in_the_place_of_another_is_trained_on():
    """The one it replaces is free: it starts anywhere again, and whoever plays it disturbs nobody."""

    class Replace(BaseCallback):
        def _on_step(self):
            if self.n_calls in (80, 130):
                self.gone, new = self.training_env.envs[1], Monitor(gym.make("Pendulum-v1", max_episode_steps=20))
                new.reset()
                self.training_env.envs[1] = new
            elif self.n_calls > 130 and self.n_calls % 7 == 0:
                starts.append(self.gone.reset()[0])
            return True

    env, starts = pendulums(2), []
    with pytest.warns(UserWarning, match="or replaced it"):
        model = GRPO("MlpPolicy", env, **SMALL).learn(512, Replace())
    assert model.interruptions == 2 and model.groups.start_mismatches == 0 and model.num_timesteps == 512
    assert different(starts) == len(starts) > 10
    GRPO("MlpPolicy", env, **SMALL).learn(128)


def test_an_env_that_a_callback_wraps_in_its_place_is_trained_on():
    class Wrap(BaseCallback):
        def _on_step(self):
            if self.n_calls == 80:
                self.training_env.envs[0] = gym.wrappers.TimeLimit(self.training_env.envs[0], 7)
            return True

    env = pendulums(2)
    with pytest.warns(UserWarning, match="or replaced it"):
        model = GRPO("MlpPolicy", env, **SMALL).learn(512, Wrap())
    assert model.interruptions == 1 and model.groups.start_mismatches == 0
    ends = [env.step(np.zeros((2, 1)))[2].tolist() for _ in range(20)]
    assert sum(first for first, _ in ends) in (2, 3) and sum(second for _, second in ends) == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: cloudpickle.loads(cloudpickle.dumps(env))])
def test_a_seed_given_to_a_copy_of_an_env_counts(copied):
    env = pendulums(2)
    GRPO("MlpPolicy", env, **SMALL).learn(70)
    wanted = gym.make("Pendulum-v1").reset(seed=5)[0]
    np.testing.assert_array_equal(copied(env.envs[0]).reset(seed=5)[0], wanted)
    whole = copied(env)
    whole.seed(5)
    np.testing.assert_array_equal(whole.reset()[0], wanted)


class Seedless(SpaceEnv):
    """Takes no seed, or only numbers of its three levels."""

    levels = 0

    def reset(self, *, seed=None, options=None):
        if seed is not None and seed >= self.levels:
            raise IndexError("no such level") if self.levels else NotImplementedError("seeding not supported")
        return super().reset(options=options)


@pytest.mark.parametrize("levels", [0, 3])
def test_an_env_that_takes_no_seed_is_named_before_it_is_trained_on(levels):
    env = Seedless(spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
    env.levels = levels
    model = GRPO("MlpPolicy", env, n_steps=64, device="cpu")
    with pytest.raises(
        ValueError, match=r"Seedless\.reset\(seed=\d+\) raised .*Without a seed it works, but members of a group"
    ):
        model.learn(64)
    assert model.num_timesteps == 0


def test_an_error_of_a_reset_that_is_not_for_the_seed_is_its_own():
    class Broken(SpaceEnv):
        def reset(self, *, seed=None, options=None):
            raise ConnectionError("no server")

    with pytest.raises(ConnectionError, match="no server"):
        GRPO("MlpPolicy", Broken(spaces.Box(-1, 1, (2,)), spaces.Discrete(2)), device="cpu").learn(64)


def test_envs_of_which_some_have_a_monitor_are_trained_on_again():
    def make(**kwargs):
        return Monitor(gym.make("Pendulum-v1", max_episode_steps=20), **kwargs)

    env = DummyVecEnv([make, lambda: make().env])
    model = GRPO("MlpPolicy", env, **SMALL).learn(64)
    assert model.learn(64).num_timesteps == 128  # two envs
    for reset_num_timesteps in (True, False):  # a strict one that has never been reset may be
        model.set_env(DummyVecEnv([partial(make, allow_early_resets=False)] * 2))
        model.learn(64, reset_num_timesteps=reset_num_timesteps)
    with pytest.raises(ValueError, match="in mid-episode"):
        model.learn(64)
