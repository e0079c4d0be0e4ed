"""How episodes begin where a set-up fails on the way, and where wrappers around the VecEnv reset or step it by themselves."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecCheckNan, VecEnvWrapper

from sb_grpo import GRPO, SeededResetWrapper
from tests.test_training_env import SMALL, Clock, different, whole

N = 4


class Refuses(BaseCallback):
    """Cannot be set up."""

    def _init_callback(self):
        raise OSError("no such folder")

    def _on_step(self):
        return True


class FailsOnce(VecEnvWrapper):
    """Its reset of a given number raises, before or after the envs have been reset."""

    def __init__(self, venv, number, after):
        super().__init__(venv)
        self.number, self.after, self.n = number, after, 0

    def reset(self):
        self.n += 1
        obs = self.venv.reset() if self.after or self.n != self.number else None
        if self.n == self.number:
            raise KeyboardInterrupt
        return obs

    def step_wait(self):
        return self.venv.step_wait()


def model_on(env, **kwargs):
    """A model that checks every rollout."""
    model = GRPO("MlpPolicy", env, **{**SMALL, "n_steps": 50, "group_size": 3, **kwargs})
    prepare = model.compute_advantages
    model.compute_advantages = lambda rollout: whole(rollout) or prepare(rollout)
    return model


def clocks(subproc=False):
    if subproc:
        return SubprocVecEnv([lambda: SeededResetWrapper(Clock())] * N, start_method="fork")
    return DummyVecEnv([Clock] * N)


def starts_of(env, n=5):
    """``[n * envs, 2]`` what resets by hand show."""
    return np.concatenate([env.reset() for _ in range(n)])


# ------------------------------------------------------------ a set-up that fails


@pytest.mark.parametrize("before", [0, 400], ids=["at once", "later"])
@pytest.mark.parametrize("subproc", [False, True], ids=["dummy", "subproc"])
def test_after_a_callback_that_cannot_be_set_up_training_goes_on(before, subproc):
    env = clocks(subproc)
    model = model_on(env)
    if before:
        model.learn(before)
    with pytest.raises(OSError, match="no such folder"):
        model.learn(400, callback=Refuses(), reset_num_timesteps=not before)
    model.learn(400, reset_num_timesteps=False)
    assert model.groups.start_mismatches == 0 and model.num_timesteps >= 400
    assert model._steps_trained + model._steps_dropped + model.rollout_buffer.n_kept == model.num_timesteps
    env.close()


def test_a_second_training_that_cannot_be_set_up_costs_no_episode():
    model = model_on(clocks()).learn(400)
    episode_ids = model.groups.episode_id.copy()
    with pytest.raises(OSError, match="no such folder"):
        model.learn(400, callback=Refuses(), reset_num_timesteps=False)
    assert (model.groups.episode_id == episode_ids).all()
    model.learn(400, reset_num_timesteps=False)
    assert model.interruptions == 0


def test_a_loop_of_ones_own_goes_on_after_a_training_that_could_not_be_set_up():
    model = model_on(clocks())
    model.update(model.collect())
    with pytest.raises(OSError, match="no such folder"):
        model.learn(400, callback=Refuses())
    model.update(model.collect())
    assert model.groups.start_mismatches == 0


@pytest.mark.parametrize("folder", ["logs", None], ids=["logger", "callback"])
def test_after_a_set_up_that_failed_the_env_is_as_random_as_before(folder, tmp_path):
    env = clocks()
    model = GRPO("MlpPolicy", env, tensorboard_log=folder and str(tmp_path / folder), **SMALL)
    if folder is not None:  # the folder was there when the model was made
        (tmp_path / folder).rmdir()
        (tmp_path / folder).touch()
    with pytest.raises((OSError, ValueError)):
        model.learn(400, callback=Refuses())
    assert different(starts_of(env)) > 4 * N  # of 20; some of the 1,000 marks may be drawn twice


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2], ids=["first", "second"])
def test_a_reset_that_fails_leaves_the_env_random_and_the_model_able_to_learn(number, after):
    env = FailsOnce(clocks(), number, after)
    model = model_on(env)
    for _ in range(number - 1):
        model.learn(400)
    with pytest.raises(KeyboardInterrupt):
        model.learn(400)
    assert different(starts_of(env)) > 4 * N  # of 20; some of the 1,000 marks may be drawn twice
    model.learn(400, reset_num_timesteps=False)
    assert model.groups.start_mismatches == 0


def test_new_groups_whose_reset_fails_are_begun_again():
    env = FailsOnce(clocks(), 2, after=True)
    model = model_on(env).learn(400)
    model.restart_groups()
    with pytest.raises(KeyboardInterrupt):
        model.learn(400, reset_num_timesteps=False)
    assert different(starts_of(env)) > 4 * N  # of 20; some of the 1,000 marks may be drawn twice
    model.learn(400, reset_num_timesteps=False)
    assert model.groups.start_mismatches == 0


def test_a_run_whose_reset_fails_can_be_resumed(tmp_path):
    model_on(clocks(), n_steps=30, group_size=4).learn(240).save_run(tmp_path / "run")
    env = FailsOnce(clocks(), 1, after=True)
    model = GRPO.load_run(tmp_path / "run", env)
    with pytest.raises(KeyboardInterrupt):
        model.learn(240, reset_num_timesteps=False)
    assert different(starts_of(env)) > 4 * N  # of 20; some of the 1,000 marks may be drawn twice
    assert model.learn(240, reset_num_timesteps=False).groups.start_mismatches == 0


def test_an_observation_that_a_wrapper_refuses_leaves_the_env_random():
    class FirstIsNaN(Clock):
        resets = 0

        def reset(self, **kwargs):
            obs, info = super().reset(**kwargs)
            FirstIsNaN.resets += 1
            return obs * (np.nan if FirstIsNaN.resets == 1 else 1), info

    env = VecCheckNan(DummyVecEnv([FirstIsNaN]), raise_exception=True)
    with pytest.raises(ValueError, match="nan"):
        GRPO("MlpPolicy", env, **SMALL).learn(64)
    assert different(starts_of(env)) > 3


# ------------------------------------------------------------ wrappers that do more than hand on


class Last(VecEnvWrapper):
    """Learns from the last env; the others are opponents."""

    def __init__(self, venv):
        super().__init__(venv)
        self.num_envs = 1

    def reset(self):
        return self.venv.reset()[-1:]

    def step_wait(self):
        return tuple(part[-1:] for part in self.venv.step_wait())


class Doubled(VecEnvWrapper):
    """Two agents per env."""

    def __init__(self, venv):
        super().__init__(venv)
        self.num_envs = 2 * venv.num_envs

    def reset(self):
        return np.repeat(self.venv.reset(), 2, axis=0)

    def step_wait(self):
        raise NotImplementedError


@pytest.mark.parametrize(("wrapper", "expected"), [(Last, "Last shows 1 slots"), (Doubled, "Doubled shows 8 slots")])
@pytest.mark.parametrize("subproc", [False, True], ids=["dummy", "subproc"])
def test_a_wrapper_with_another_number_of_envs_is_refused(wrapper, expected, subproc):
    env = wrapper(VecCheckNan(clocks(subproc)))
    with pytest.raises(ValueError, match=f"{expected} of 4 envs: GRPO seeds the resets env by env"):
        GRPO("MlpPolicy", env, **SMALL).learn(100)
    env.close()


class Masked(Clock):
    """An action is valid for a whole episode; the infos say which."""

    sent = invalid = 0

    def _info(self):
        return {"action_mask": np.arange(2) == self.mark % 2}

    def reset(self, **kwargs):
        obs, _ = super().reset(**kwargs)
        return obs, self._info()

    def step(self, action):
        Masked.sent, Masked.invalid = Masked.sent + 1, Masked.invalid + (action != self.mark % 2)
        *rest, _ = super().step(action)
        return *rest, self._info()


class EndsEarly(VecEnvWrapper):
    """Ends episodes after some steps, each at another time, and resets those envs by itself."""

    def reset(self):
        self.n = np.arange(self.num_envs)
        return self.venv.reset()

    def step_wait(self):
        obs, rewards, dones, infos = self.venv.step_wait()
        self.n += 1
        for env_index in np.flatnonzero((self.n >= 7) & ~dones):
            infos[env_index].update({"terminal_observation": obs[env_index].copy(), "TimeLimit.truncated": True})
            obs[env_index] = self.venv.env_method("reset", indices=[env_index])[0][0]
            dones[env_index] = True
        self.n[dones] = 0
        return obs, rewards, dones, infos


@pytest.mark.parametrize("subproc", [False, True], ids=["dummy", "subproc"])
def test_episodes_that_a_wrapper_ends_and_begins_itself_start_alike(subproc):
    env = EndsEarly(clocks(subproc))
    model = model_on(env).learn(600)
    assert model.groups.start_mismatches == model.interruptions == 0 and model.groups.next_group > 10
    env.close()


def test_their_masks_are_those_of_the_new_episode():
    Masked.sent = Masked.invalid = 0
    GRPO("MlpPolicy", EndsEarly(DummyVecEnv([Masked] * 2)), group_size=2, **SMALL).learn(256)
    assert Masked.sent >= 256 and Masked.invalid == 0


class Repeats(VecEnvWrapper):
    """Takes every action some times, and does not stop where an episode ends."""

    times = 4

    def reset(self):
        return self.venv.reset()

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        ended = np.zeros(self.num_envs, bool)
        for _ in range(self.times):
            obs, rewards, dones, infos = self.venv.step(self.actions)
            ended |= dones
        for env_index in np.flatnonzero(ended):
            infos[env_index].setdefault("terminal_observation", obs[env_index])
        return obs, rewards, ended, infos


@pytest.mark.parametrize("subproc", [False, True], ids=["dummy", "subproc"])
def test_a_wrapper_that_steps_on_after_a_reset_is_named(subproc):
    env = Repeats(clocks(subproc))  # of 30 steps: every second episode begins two steps after its reset
    model = GRPO("MlpPolicy", env, **{**SMALL, "group_size": 8})
    with pytest.warns(UserWarning, match=r"\(Repeats\) steps an env on after its reset, and not alike .* \(0 and 2 times\)"):
        model.learn(256)
    assert model.groups.start_mismatches == 16  # half of the 32 episodes
    env.close()


def test_a_wrapper_that_warms_up_in_its_reset_alone_is_named():
    class WarmsUp(VecEnvWrapper):
        def reset(self):
            self.venv.reset()
            return [self.venv.step(np.zeros(N, int)) for _ in range(3)][-1][0]

        def step_wait(self):
            return self.venv.step_wait()

    model = GRPO("MlpPolicy", WarmsUp(clocks()), **{**SMALL, "group_size": 2 * N})
    with pytest.warns(UserWarning, match=r"\(WarmsUp\) steps an env on after its reset, .* \(3 and 0 times\)"):
        model.learn(500)
    assert model.groups.start_mismatches == N  # the second half of the first group


def test_a_wrapper_that_stops_where_an_episode_ends_is_fine():
    class Stops(Repeats):
        times = 5

    model = GRPO("MlpPolicy", Stops(clocks()), **{**SMALL, "group_size": 8}).learn(256)
    assert model.groups.start_mismatches == 0


# ------------------------------------------------------------ envs that answer otherwise


class Bare(gym.Wrapper):
    """Adapts an env of the old kind, whose reset gives the observation alone."""

    observation_space = spaces.Box(0, 1e4, (2,))

    def reset(self, *, seed=None, options=None):
        self.env.reset(seed=seed)
        return self.env.unwrapped._obs(), {}


@pytest.mark.parametrize("answer", [3, None, {"a": 1}, np.zeros(2)], ids=["number", "none", "dict", "array"])
def test_a_reset_of_the_old_kind_inside_an_adapter_trains(answer):
    class Old(Clock):
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return answer

    assert model_on(DummyVecEnv([lambda: Bare(Old())] * N)).learn(400).groups.start_mismatches == 0


class Counted(dict):
    """An info of a class of its own."""


@pytest.mark.parametrize("info", ["level 3", [("a", 1)], Counted(a=1)], ids=["text", "pairs", "subclass"])
def test_whatever_info_a_reset_gives_is_given_on(info):
    class Reports(Clock):
        def reset(self, **kwargs):
            return super().reset(**kwargs)[0], info

    env = DummyVecEnv([Reports] * N)
    assert model_on(env).learn(400).groups.start_mismatches == 0
    env.reset()
    assert type(env.reset_infos[0]) is type(info) and env.reset_infos[0]["a" if isinstance(info, dict) else 0] == (
        1 if isinstance(info, dict) else info[0]
    )
    assert not isinstance(info, dict) or dict(info) == {"a": 1}  # the env's own object stays as it was


class Forbids(Clock):
    """Answers some names with errors of another kind than AttributeError."""

    @property
    def np_random(self):
        return self.generator

    @np_random.setter
    def np_random(self, value):
        raise ValueError("read only")

    @property
    def max_episode_steps(self):
        raise RuntimeError("ask after the first step")

    spec = property(lambda self: 1 / 0)

    def __getattr__(self, name):
        raise RuntimeError(f"{name} is not there")

    def reset(self, *, seed=None, options=None):
        if seed is not None or "generator" not in vars(self):
            self.generator = np.random.default_rng(seed)
        self.t, self.mark = 0, self.generator.integers(1000)
        return self._obs(), {}


def test_an_env_that_answers_names_with_errors_trains_and_is_given_back():
    env = DummyVecEnv([Forbids] * N)
    assert model_on(env).learn(400).groups.start_mismatches == 0
    assert different(env.reset()) == N
    GRPO("MlpPolicy", Forbids(), **SMALL)
