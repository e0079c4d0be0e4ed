"""Policies with a memory: GRPO against sb3-contrib's RecurrentPPO, collecting and updating apart, interleaved.

usage: python scripts/bench_memory.py [--rounds 5] [--json FILE]

Same envs, LSTM, nets and settings, one torch thread. A round runs every algorithm once; a ratio is the median of the
rounds' ratios. Times are the process's own (``time.process_time``), which other work on the machine changes little.
Updating is all of ``learn()`` but the taking of steps: GRPO's fit of its baseline too, as the critic's training is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch as th
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env

import sb_grpo.tasks.memory  # noqa: F401  # registers the task
from sb_grpo import GRPO

TASK = "CartPolePositions-v0"
N_ENVS = 8
UNITS = 64
SETTINGS: dict[str, Any] = dict(n_steps=128, batch_size=128, n_epochs=10, learning_rate=1e-3, seed=0, device="cpu")
#: The one LSTM serves the critic too: less work than sb3-contrib's default, which has two.
SHARED = dict(lstm_hidden_size=UNITS, shared_lstm=True, enable_critic_lstm=False)
LSTM = dict(memory="lstm", memory_size=UNITS)


def _grpo(**update: Any) -> Callable[[Any], Any]:
    return lambda env: GRPO("MlpPolicy", env, policy_kwargs=LSTM, update_kwargs=update, **SETTINGS)


ALGORITHMS: dict[str, Callable[[Any], Any]] = {
    "RecurrentPPO": lambda env: RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=SHARED, **SETTINGS),
    "GRPO": _grpo(),
    "GRPO, `sequence_length=32`": _grpo(sequence_length=32),
}


def seconds(make: Callable[[Any], Any], n_timesteps: int) -> list[float]:
    """Processor time per env step of collecting, of updating, and of both."""
    model = make(make_vec_env(TASK, N_ENVS, seed=0))
    collected = 0.0

    def timed(method: Callable[..., Any], sign: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal collected
            start = time.process_time()
            result = method(*args, **kwargs)
            collected += sign * (time.process_time() - start)
            return result

        return call

    model.collect_rollouts = timed(model.collect_rollouts, 1)
    if isinstance(model, GRPO):  # its advantages are part of the update, and computed at the end of collect_rollouts()
        model.compute_advantages = timed(model.compute_advantages, -1)  # type: ignore[method-assign]
    start = time.process_time()
    model.learn(n_timesteps)
    whole = time.process_time() - start
    return [taken / model.num_timesteps for taken in (collected, whole - collected, whole)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each algorithm")
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    args = parser.parse_args()
    th.set_num_threads(1)
    for make in ALGORITHMS.values():
        seconds(make, 2_048)  # warm up
    rounds = [{name: seconds(make, 10_240) for name, make in ALGORITHMS.items()} for _ in range(args.rounds)]
    print("| microseconds per env step | collecting | x | updating | x | both | x |")
    print("|---|---|---|---|---|---|---|")
    for name in ALGORITHMS:
        cells = []
        for part in range(3):
            taken = statistics.median(metrics[name][part] for metrics in rounds)
            faster = statistics.median(metrics["RecurrentPPO"][part] / metrics[name][part] for metrics in rounds)
            cells += [f"{1e6 * taken:,.0f}", f"{faster:.2f}"]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"settings": SETTINGS, "rounds": rounds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
