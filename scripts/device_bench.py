"""Common parts of the two device benchmarks: rates of whole training loops, time to solve CartPole, and floors."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy

from sb_grpo.envs.native import make_tensor_env

#: Seconds of one small dependent kernel in a replayed CUDA graph (assumed; see docs/device.md).
KERNEL_SECONDS = 2.3e-6


class Ours:
    """A model that goes on training with every call: compiling and warming up happen once, and apart.

    :param make: builds the model
    :param n_timesteps: env steps per run
    """

    def __init__(self, make: Callable[[], Any], n_timesteps: int) -> None:
        self.model = make()
        self.n_timesteps = n_timesteps
        self.first_run_s, _ = self._run(1)

    def _run(self, n_timesteps: int) -> tuple[float, int]:
        before = self.model.num_timesteps
        start = time.perf_counter()
        self.model.learn(n_timesteps, reset_num_timesteps=False)
        if self.model.device.type == "cuda":
            th.cuda.synchronize()
        return time.perf_counter() - start, self.model.num_timesteps - before

    def rate(self) -> float:
        """Env steps per second of one more run."""
        seconds, steps = self._run(self.n_timesteps)
        return steps / seconds

    def close(self) -> None:
        self.model.get_env().close()


class Peer:
    """rejax's PPO in a Python of its own (see peer_rejax.py), one run per line sent to it.

    :param python: interpreter that has rejax
    :param settings: ``n_envs``, ``n_steps``, ``batch_size``, ``n_epochs``
    """

    def __init__(self, python: str, settings: dict[str, int]) -> None:
        script = Path(__file__).with_name("peer_rejax.py")
        flags = [x for name, value in settings.items() for x in (f"--{name.replace('_', '-')}", str(value))]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([python, str(script), *flags], stdin=pipe, stdout=pipe, text=True, bufsize=1)
        first = self._answer()
        self.first_run_s = first.pop("first_run_s")
        self.versions = first
        self.cpu_rates: list[float] = []

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"peer_rejax.py ended with code {self.process.wait()}: see its message above.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def rate(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        run = self._answer()
        self.cpu_rates.append(run["steps_per_second"] * run["seconds"] / run["cpu_seconds"])
        return float(run["steps_per_second"])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def interleaved(loops: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Rates of all loops, one run of each per round: the machine's noise is common to a round."""
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, loop in loops.items():
            rates[name].append(loop.rate())
    return rates


def ratio(rates: dict[str, list[float]], name: str, reference: str) -> float:
    """Median over rounds of one loop's rate by another's."""
    return statistics.median(a / b for a, b in zip(rates[name], rates[reference], strict=True))


class UntilSolved(BaseCallback):
    """Stops when CartPole is solved: mean return of 64 deterministic episodes of at least 475, looked at after each update.

    The clock stands still while it looks.
    """

    def __init__(self, threshold: float = 475.0) -> None:
        super().__init__()
        self.threshold = threshold
        self.solved = False
        self.looking_s = 0.0
        self.env = make_tensor_env("CartPole-v1", 64)

    def _on_training_start(self) -> None:
        self.start = time.perf_counter()

    def _on_rollout_start(self) -> None:
        begin = time.perf_counter()
        self.env.seed(12345)
        mean, _ = evaluate_policy(self.model, self.env, 64)
        self.looking_s += time.perf_counter() - begin
        self.solved = mean >= self.threshold
        self.seconds = time.perf_counter() - self.start - self.looking_s
        self.steps = self.num_timesteps

    def _on_step(self) -> bool:
        return not self.solved


def time_to_solve(model: Any, limit: int) -> dict[str, Any]:
    """Env steps and wall seconds until CartPole-v1 is solved.

    :param model: fresh, or trained for a moment so that its graphs are compiled and then reset
    :param limit: env steps after which to give up
    """
    callback = UntilSolved()
    model.learn(limit, callback=callback)
    return {"solved": bool(callback.solved), "steps": callback.steps, "seconds": callback.seconds}


def warmed_up(model: Any) -> tuple[Any, float]:
    """Compile a model's graphs on one rollout, then put its weights, optimiser and baseline back.

    :return: the model, and the seconds that took
    """
    start = time.perf_counter()
    parameters = model.get_parameters()
    model.learn(1)
    model.set_parameters(parameters)
    if model.estimator is not None:
        model.estimator._moments = None
    return model, time.perf_counter() - start


def floors(model: Any, n_kernels: int, flops_per_s: float, bytes_per_s: float) -> dict[str, float]:
    """Env steps per second that launches, arithmetic and memory traffic would each allow alone.

    :param model: with its settings
    :param n_kernels: kernels of one rollout and its update
    :param flops_per_s: of the device, float32
    :param bytes_per_s: of its memory
    """
    layers = [layer for layer in model.policy.modules() if isinstance(layer, th.nn.Linear)]
    weights = sum(layer.in_features * layer.out_features for layer in layers)
    outputs = sum(layer.out_features for layer in layers)
    steps = model.steps_per_env * model.n_envs
    forward_passes = 1 + 3 * model.n_epochs  # a backward pass is worth two
    return {
        "launches": steps / (n_kernels * KERNEL_SECONDS),
        "flops": flops_per_s / (2 * weights * forward_passes),
        "bytes": bytes_per_s / (4 * 2 * outputs * forward_passes),  # each layer's output written and read once, unfused
    }


def count_kernels(model: Any) -> int:
    """Kernels of one rollout and update: launched ones on a GPU, operator calls without inner ones on a CPU."""
    activities = [th.profiler.ProfilerActivity.CPU]
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        activities.append(th.profiler.ProfilerActivity.CUDA)
    with th.profiler.profile(activities=activities) as profile:
        model.learn(1, reset_num_timesteps=False)
    if on_gpu:
        return sum(1 for event in profile.events() if event.device_type == th.autograd.DeviceType.CUDA)
    return sum(1 for event in profile.events() if not event.cpu_children and event.name.startswith(("aten::", "graph_")))
