"""Probe envs with known answers, rollouts built from plain lists, and commands in processes of their own."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo import Rollout


def heed_ctrl_c() -> None:
    """For the ``preexec_fn`` of a subprocess that is to be interrupted: jobs in a shell's background ignore SIGINT, and hand
    that on to their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def run_command(module: str, *arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """``python -m MODULE ARGUMENTS`` in a process of its own, which is forked from one that has imported torch (conftest.py).

    As ``subprocess.run(..., text=True)`` with both outputs captured. Where imports, signals or the start itself are the
    subject, begin a new Python.
    """
    context: Any = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        outputs = [str(Path(folder, name)) for name in ("stdout", "stderr")]
        given = (module, list(arguments), str(cwd), dict(os.environ if env is None else env), outputs)
        process = context.Process(target=_as_main, args=given)
        process.start()
        process.join(120)
        process.kill()
        process.join()
        return subprocess.CompletedProcess(
            [module, *arguments], process.exitcode, *(Path(file).read_text() for file in outputs)
        )


def _as_main(module: str, arguments: list[str], cwd: str, env: dict[str, str], outputs: list[str]) -> None:
    for stream, file in enumerate(outputs, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:0] = [cwd, *env.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # which a forked process leaves out


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def make_rollout(rewards: list[list[float]], groups: list[int], **changes: Any) -> Rollout:
    """A rollout of complete, terminated episodes: one list of step rewards per episode, and the group of each."""
    lengths = [len(r) for r in rewards]
    flat = th.tensor([x for r in rewards for x in r])
    rollout = Rollout(
        observations=th.zeros(len(flat), 1),
        actions=th.zeros(len(flat), dtype=th.int64),
        log_probs=th.zeros(len(flat)),
        rewards=flat,
        t=th.cat([th.arange(n) for n in lengths]),
        episode=th.repeat_interleave(th.arange(len(lengths)), th.tensor(lengths)),
        group=th.tensor(groups),
        terminated=th.ones(len(lengths), dtype=th.bool),
        truncated=th.zeros(len(lengths), dtype=th.bool),
        final_observations=th.zeros(len(lengths), 1),
        n_groups=max(groups) + 1,
        max_length=max(lengths),
    )
    return rollout._replace(**changes)


class ProbeEnv(gym.Env):
    """Two actions, a random bit as observation, episodes of ``length`` steps.

    ``kind`` says what pays: ``"constant"`` always 1; ``"action"`` action 1; ``"observation"`` the action that equals the
    bit; ``"delayed"`` only the first action counts and pays at the end.
    """

    def __init__(self, kind: str, length: int = 4, action_space: spaces.Space | None = None) -> None:
        self.kind, self.length = kind, length
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = action_space or spaces.Discrete(2)

    def _obs(self) -> np.ndarray:
        self.bit = int(self.np_random.integers(2))
        return np.array([2 * self.bit - 1, self.t / self.length], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t, self.first = 0, 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.first = int(action) if self.t == 0 else self.first
        self.t += 1
        over = self.t >= self.length
        reward = {
            "constant": 1.0,
            "action": float(action),
            "observation": float(action == self.bit),
            "delayed": float(over and self.first),
        }[self.kind]
        return self._obs(), reward, over, False, {}


class TurnEnv(ProbeEnv):
    """A probe env whose infos number its turns, two steps each."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        turn = self.t // 2
        return *super().step(action)[:4], {"turn": turn}


class SpaceEnv(gym.Env):
    """Random observations of any space, any action space, reward that depends on the action, 5-step episodes."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.t = 0

    def _obs(self) -> Any:
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), (action, self.action_space)
        self.t += 1
        return self._obs(), float(np.sum(action)), self.t >= 5, False, {}


class BrokenEnv(ProbeEnv):
    """A probe env that returns NaN in its reward or observation after some steps."""

    def __init__(self, where: str, after: int = 70) -> None:
        super().__init__("action")
        self.where, self.after, self.steps = where, after, 0

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        if self.steps > self.after:
            if self.where == "reward":
                reward = float("nan")
            else:
                obs = obs + np.array([0.0, np.inf], dtype=np.float32)
        return obs, reward, terminated, truncated, info


class Fragile(gym.Env):
    """Episodes of 6 steps, a random start, masks, and a switch that kills the process at the next step, or lets it hang."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-9.0, 9.0, (2,), np.float32), spaces.Discrete(2)
        self.render_mode, self.level, self.doomed, self.hanging = None, 0, False, False

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t, self.start = 0, self.np_random.normal()
        return self._obs(), {}

    def _obs(self) -> np.ndarray:
        return np.array([np.clip(self.start, -9, 9), self.t], dtype=np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        while self.hanging:
            time.sleep(1.0)
        self.t += 1
        return self._obs(), float(action) + 0.1 * self.start, self.t == 6, False, {"level": self.level}

    def doom(self) -> None:
        self.doomed = True

    def hang(self) -> None:
        self.hanging = True

    def fail(self) -> None:
        raise ZeroDivisionError("of the env")

    def action_masks(self) -> np.ndarray:
        return np.array([True, self.t % 2 == 0])
