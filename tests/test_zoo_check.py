"""``zoo.check`` on envs with one known fault each: the check that is about it says so, and no other one calls it broken."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb_grpo.envs.valid_actions import ValidActions
from zoo import check
from zoo.benchmarking.worker import evaluate
from zoo.check import BROKEN, FINE, LOOK, observation_problem
from zoo.common.command_line import run
from zoo.common.episodes import RandomPolicy
from zoo.evaluate import random_reference


class Sound(gym.Env[Any, Any]):
    """Walk on a line: action 1 pays. Episodes of 10 to 19 steps, whose length and noise the reset has drawn."""

    observation_space: spaces.Space[Any] = spaces.Box(-2.0, 2.0, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(10, 20))
        self.noise = self.np_random.uniform(-1.0, 1.0, 20)
        return self.observe(), {}

    def observe(self) -> Any:
        return np.array([self.noise[self.t], self.t / 20], np.float32)

    def reward(self, action: Any) -> float:
        return float(action) + float(self.noise[self.t])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self.reward(action)
        self.t += 1
        return self.observe(), reward, self.t >= self.length, False, {}


class IgnoresSeed(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(options=options)


class OneStart(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=1)


class GlobalNoise(Sound):
    def reward(self, action: Any) -> float:
        return super().reward(action) + float(np.random.normal())


class KeepsState(Sound):
    """What the last episode did shows in the next one."""

    charge = 0.0

    def reward(self, action: Any) -> float:
        self.charge = 0.5 * self.charge + float(action)
        return super().reward(action) + self.charge


class DrawsByAction(Sound):
    """One more number is drawn after action 1, so members fall out of step."""

    def reward(self, action: Any) -> float:
        self.np_random.normal(size=1 + int(action))
        return super().reward(action) + float(self.np_random.normal())


class NotANumber(Sound):
    def reward(self, action: Any) -> float:
        return float("nan") if self.t == 7 else super().reward(action)


class OutsideItsSpace(Sound):
    def observe(self) -> Any:
        return super().observe() + np.float32(5.0) * (self.t == 3)


class Deaf(Sound):
    def reward(self, action: Any) -> float:
        return float(self.noise[self.t])


class Nested(Sound):
    observation_space = spaces.Dict({"one": spaces.Tuple((spaces.Box(-2.0, 2.0, (2,), np.float32),))})

    def observe(self) -> Any:
        return {"one": (super().observe(),)}


class NeverEnds(Sound):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, _, _, info = super().step(action)
        self.t %= 5
        return obs, reward, False, False, info


class ClockTerminates(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed)
        self.length = 12
        return obs, info


class PaysNothing(Sound):
    def reward(self, action: Any) -> float:
        return 0.0


class PaysMillions(Sound):
    def reward(self, action: Any) -> float:
        return 1e6 * super().reward(action)


class Slow(Sound):
    def observe(self) -> Any:
        time.sleep(0.003)
        return super().observe()


class WideObservations(Sound):
    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)

    def observe(self) -> Any:
        return 1e4 * super().observe()


class Raises(Sound):
    def reward(self, action: Any) -> float:
        if self.t == 5:
            raise RuntimeError("the arm fell off")
        return super().reward(action)


class Masked(Sound):
    """Refuses actions that are not valid, as board games do: three of four, other ones in every episode and at every step."""

    action_space = spaces.Discrete(4)

    def allowed(self) -> np.ndarray:
        return np.arange(4) != (self.t + int(4 * abs(self.noise[0]))) % 4

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.allowed()[action], "no such move"
        return super().step(action)


class MaskedByMethod(Masked):
    def action_masks(self) -> np.ndarray:
        return self.allowed()


class MaskedByInfo(Masked):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"action_mask": self.allowed()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {"action_mask": self.allowed()}


class MaskedByObservation(Masked):
    observation_space = spaces.Dict({"seen": Sound.observation_space, "action_mask": spaces.MultiBinary(4)})

    def observe(self) -> Any:
        return {"seen": super().observe(), "action_mask": self.allowed().astype(np.int8)}


MASKED = (MaskedByMethod, MaskedByInfo, MaskedByObservation)
FAULTS = {
    IgnoresSeed: (BROKEN, "seeded resets", "super().reset(seed=seed)"),
    OneStart: (LOOK, "seeded resets", "gave the same start"),
    GlobalNoise: (BROKEN, "determinism", "self.np_random"),
    KeepsState: (BROKEN, "determinism", "set everything back in reset()"),
    DrawsByAction: (LOOK, "luck", "Falls out of step"),
    NotANumber: (BROKEN, "observations", "the reward of step 8 is nan"),
    OutsideItsSpace: (BROKEN, "observations", "the observation of step 3 has"),
    Deaf: (BROKEN, "group spread", "use the action"),
    Nested: (BROKEN, "spaces", "FlattenObservation"),
    NeverEnds: (BROKEN, "time limit", "max_episode_steps"),
    ClockTerminates: (LOOK, "time limit", "truncated=True"),
    PaysNothing: (LOOK, "reward", "no step of any episode paid anything"),
    PaysMillions: (LOOK, "reward", "scaling='clip'"),
    Slow: (LOOK, "speed", "--vec-env subproc"),
    WideObservations: (LOOK, "observations", "normalize:True"),
    Raises: (BROKEN, "episodes", "RuntimeError: the arm fell off (test_zoo_check.py:"),
}
#: Faults that another check rightly sees as well.
ALSO = {KeepsState: {"luck"}, GlobalNoise: {"luck"}, NotANumber: {"luck"}, PaysNothing: {"group spread"}, Raises: {"spaces"}}

for env in (Sound, *MASKED, *FAULTS):
    gym.register(f"{env.__name__}-v7", env)


def findings(env_id: str, seconds: float = 0.6) -> list[check.Finding]:
    args = check.make_parser().parse_args(["--env", env_id])
    return check.check(check.subject(args), seconds, lambda finding: None)


@pytest.fixture(autouse=True)
def without_training(monkeypatch):
    """The real one runs in a process of its own below."""
    monkeypatch.setattr(check, "check_training", lambda model, seconds: [])


def test_a_sound_env_has_nothing_to_mend():
    assert {(f.level, f.check) for f in findings("Sound-v7") if f.level != "fine"} == set()


@pytest.mark.parametrize("env", MASKED, ids=lambda env: env.__name__)
def test_an_env_that_refuses_what_its_mask_forbids_is_sound(env):
    assert [f.line() for f in findings(f"{env.__name__}-v7") if f.level != "fine"] == []


@pytest.mark.parametrize("env", MASKED, ids=lambda env: env.__name__)
def test_the_random_references_keep_to_the_masks(env):
    """Those of ``zoo.evaluate`` and of ``zoo.benchmark``, which ask in different ways."""
    venv = make_vec_env(f"{env.__name__}-v7", 3)
    assert len(evaluate(RandomPolicy(venv.action_space, 0), venv, 5, deterministic=False)) == 3
    assert random_reference(venv, [7, 8, 9, 10]) == random_reference(venv, [7, 8, 9, 10])


@pytest.mark.parametrize("env", FAULTS, ids=lambda env: env.__name__)
def test_a_known_fault_is_found_and_named(env):
    level, name, says = FAULTS[env]
    found = findings(f"{env.__name__}-v7")
    about = [f for f in found if f.check == name]
    assert [f.level for f in about] == [level], found
    assert says in about[0].line()
    assert {f.check for f in found if f.level == BROKEN} <= {name, *ALSO.get(env, set())}, found


@pytest.mark.parametrize(("env", "code", "last"), [(Sound, 0, "0 broken, "), (KeepsState, 1, " broken, ")])
def test_exit_code_and_last_line(env, code, last, capsys):
    assert run("zoo.check", check.main, ["--env", f"{env.__name__}-v7", "--seconds", "0"]) == code
    assert last in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--env", "CartPol-v1"], "Did you mean CartPole-v1"),
        (["--env", "CartPole-v1", "--seconds", "-1"], "--seconds -1.0: 0, or more."),
        (["--env", "CartPole-v1", "--seed", "-1"], "--seed -1 must be a whole number from 0 to 4294967295."),
        (["--env", "CartPole-v1", "-params", "learning_rat:1"], "Did you mean learning_rate"),
        (["--env", "CartPole-v1", "-conf", "nowhere.yml"], "cannot read nowhere.yml"),
    ],
)
def test_bad_input_is_one_line(arguments, says, capsys):
    assert run("zoo.check", check.main, arguments) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


@pytest.mark.slow
def test_the_training_is_of_the_env_and_its_settings():
    """Twenty seconds by default; as a subprocess, with the console script's name for it."""
    command = [sys.executable, "-m", "zoo", "check", "--env", "CartPole-v1", "--seconds", "2"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CartPole-v1, with the settings of grpo.yml: CartPole-v1" in done.stdout
    message = re.search(r"fine    training       (learns|runs).*\d steps/s\)", done.stdout)  # which, depends on the machine
    assert message, done.stdout


@pytest.mark.parametrize("last, says", [(30.0, "learns: mean return 20.5 at first, 30.5 at last"), (20.0, "no rise yet")])
def test_a_rise_is_one_beyond_chance(last, says):
    """Ten episodes of 20 and 21 in turn at first, and as many at last."""
    returns = [20.0 + i % 2 for i in range(50)] + [last + i % 2 for i in range(50)]
    assert says in check._progress(returns, "2 s").says


def test_a_goal_env_is_asked_through_its_wrappers():
    env = ValidActions(gym.wrappers.TimeLimit(BitFlippingEnv(4), 20))
    assert [finding.level for finding in check.check_spaces(env)] == [FINE]
    env.unwrapped.compute_reward = lambda *_: np.float32(7.0)
    assert "not computed with `compute_reward()`" in check.check_spaces(env)[0].says


@pytest.mark.parametrize(
    ("space", "obs", "says"),
    [
        (spaces.Box(0.0, 1.0, (2,)), np.array([0.5, 1.5], np.float32), "has 1.5 in place 1, outside [0, 1]"),
        (spaces.Box(0.0, 1.0, (1,), np.float64), np.array([1 + 2**-52]), "has 1.0000000000000002 in place 0, outside [0, 1]"),
        (spaces.Box(0.0, 1.0, (2,)), np.zeros(3, np.float32), "has shape (3,) and float32"),
        (spaces.Box(0.0, 1.0, (2,)), np.zeros(2, np.float64), "float64"),
        (spaces.Discrete(3), 3, "is not in Discrete(3)"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": 5}, "'a'"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {}, "'a'"),
        (spaces.Box(0.0, 1.0, (1,)), np.array([0.5], np.float32), ""),
    ],
)
def test_what_is_wrong_with_an_observation(space, obs, says):
    found = observation_problem(space, obs, "step 1")
    assert says in found and bool(found) == bool(says)
