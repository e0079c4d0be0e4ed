"""rejax's PPO (JAX) on CartPole-v1 as a yardstick: a worker for the benchmarks, run by a Python that has rejax.

rejax 0.1.3 and gymnax 1.0.1 ask for an older Gymnasium than ours, so they get an environment of their own:

    python3 -m venv .venv-rejax && .venv-rejax/bin/pip install rejax==0.1.3 gymnax==1.0.1

usage: .venv-rejax/bin/python scripts/peer_rejax.py --n-envs 256 --n-steps 128 --batch-size 4096 --n-epochs 4

It compiles, prints one JSON line, then answers every line on standard input with another run of the same training.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--n-envs", type=int, default=256)
parser.add_argument("--n-steps", type=int, default=128)
parser.add_argument("--batch-size", type=int, default=4096)
parser.add_argument("--n-epochs", type=int, default=4)
parser.add_argument("--iterations", type=int, default=8, help="rollouts and updates per run")
args = parser.parse_args()
# One thread, like the others; set before jax is imported. It still takes some of a second core: see cpu_seconds.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the GPU is shared with the others


import jax  # noqa: E402
from gymnax.environments.classic_control.cartpole import CartPole  # noqa: E402
from rejax import PPO  # noqa: E402


class FiveValues(CartPole):
    """gymnax 1.0 tells terminated from truncated; rejax 0.1.3 knows one ``done``."""

    def step(self, *step_args: Any) -> tuple:
        obs, state, reward, terminated, truncated, info = super().step(*step_args)
        return obs, state, reward, terminated | truncated, info


env = FiveValues()
algorithm = PPO.create(
    env=env,
    env_params=env.default_params,
    agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
    num_envs=args.n_envs,
    num_steps=args.n_steps,
    num_minibatches=args.n_envs * args.n_steps // args.batch_size,
    num_epochs=args.n_epochs,
    learning_rate=3e-4,
    gamma=0.99,
    gae_lambda=0.95,
    clip_eps=0.2,
    ent_coef=0.0,
    max_grad_norm=0.5,
)
train = jax.jit(lambda state: jax.lax.fori_loop(0, args.iterations, lambda _, s: algorithm.train_iteration(s), state))
state = algorithm.init_state(jax.random.PRNGKey(0))


def timed_run() -> dict[str, float]:
    """One run; the first one compiles."""
    global state
    start = time.perf_counter()
    cpu_start = time.process_time()
    state = jax.block_until_ready(train(state))
    seconds = time.perf_counter() - start
    cpu_seconds = time.process_time() - cpu_start
    n_steps = args.iterations * args.n_envs * args.n_steps
    return {"steps_per_second": n_steps / seconds, "seconds": seconds, "cpu_seconds": cpu_seconds}


first = timed_run()
versions = {"jax": jax.__version__, "rejax": version("rejax"), "device": str(jax.devices()[0])}
print(json.dumps({"first_run_s": first["seconds"], **versions}), flush=True)
for _ in sys.stdin:
    print(json.dumps(timed_run()), flush=True)
