"""The device path on a CPU: CartPole-v1 on tensor envs against SB3's PPO and JAX. Run by bench_speed.py --device-path."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from device_bench import Ours, Peer, interleaved, ratio, time_to_solve, warmed_up
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule

from sb_grpo import GRPO
from sb_grpo.envs.native import make_tensor_env

LIGHT = dict(n_steps=128, batch_size=256, n_epochs=4)
BIG = dict(n_steps=128, batch_size=4096, n_epochs=4)
#: rl_zoo3's tuned PPO on CartPole-v1.
ZOO_PPO = dict(
    n_steps=32,
    batch_size=256,
    n_epochs=20,
    gamma=0.98,
    gae_lambda=0.8,
    learning_rate=LinearSchedule(1e-3, 0.0, 1.0),
    clip_range=LinearSchedule(0.2, 0.0, 1.0),
)
#: GRPO's settings for tensor envs; chosen on seeds 100 to 102.
SOLVER = dict(n_steps=64, batch_size=512, n_epochs=10, learning_rate=2e-3, gamma=0.99, gae_lambda=0.98)
BIG_SOLVER = dict(**BIG, learning_rate=2e-3, gamma=0.99, gae_lambda=0.98)


def make_model(algorithm: Any, env: Any, seed: int = 0, **settings: Any) -> Any:
    """A model on one CPU."""
    return algorithm("MlpPolicy", env, seed=seed, device="cpu", **settings)


def on_host(n_envs: int, seed: int = 0) -> Any:
    return make_vec_env("CartPole-v1", n_envs, seed=seed)


def on_tensors(n_envs: int) -> Any:
    return make_tensor_env("CartPole-v1", n_envs)


def compare_loops(rounds: int, rejax: str | None) -> dict[str, Any]:
    """Whole training loops, interleaved: PPO on 8 and 256 host envs, GRPO on host and tensor envs, eager and compiled, JAX.

    :param rounds: runs of each
    :param rejax: Python that has rejax; None leaves it out
    :return: raw figures
    """
    loops: dict[str, Any] = {
        "SB3 PPO, 8 envs": Ours(lambda: make_model(PPO, on_host(8), **LIGHT), 40_960),
        "SB3 PPO, 256 envs": Ours(lambda: make_model(PPO, on_host(256), **BIG), 131_072),
        "GRPO, 256 host envs": Ours(lambda: make_model(GRPO, on_host(256), **BIG), 131_072),
        "GRPO, 256 tensor envs, eager": Ours(lambda: make_model(GRPO, on_tensors(256), **BIG), 262_144),
        "GRPO, 256 tensor envs, compiled": Ours(lambda: make_model(GRPO, on_tensors(256), compile=True, **BIG), 262_144),
    }
    if rejax is not None:
        loops["rejax PPO (JAX), 256 envs"] = Peer(rejax, {"n_envs": 256, **BIG})
    rates = interleaved(loops, rounds)
    print(f"CartPole-v1, 64-64 net, 1 thread; 8 envs: {LIGHT}; 256 envs: {BIG}")
    print("| loop | steps/s | / SB3 PPO with 8 envs | / with 256 | first rollout and update, s |")
    print("|---|---|---|---|---|")
    for name, values in rates.items():
        eight, many = (ratio(rates, name, f"SB3 PPO, {n} envs") for n in (8, 256))
        first = loops[name].first_run_s
        print(f"| {name} | {statistics.median(values):,.0f} | {eight:.1f} | {many:.1f} | {first:.1f} |", flush=True)
    peers = {name: {"cpu_rates": x.cpu_rates, **x.versions} for name, x in loops.items() if isinstance(x, Peer)}
    for loop in loops.values():
        loop.close()
    first_runs = {name: loop.first_run_s for name, loop in loops.items()}
    return {"rates": rates, "first_run_s": first_runs, "peers": peers, "light": LIGHT, "big": BIG}


def contestants(seed: int) -> list[tuple[str, Callable[[], Any], int, bool]]:
    """Name, model, env steps after which to give up, and whether to compile beforehand."""
    return [
        ("SB3 PPO, 8 envs, rl_zoo3's settings", lambda: make_model(PPO, on_host(8, seed), seed, **ZOO_PPO), 10**5, False),
        ("GRPO, 32 tensor envs, eager", lambda: make_model(GRPO, on_tensors(32), seed, **SOLVER), 10**6, False),
        ("GRPO, 32, compiled", lambda: make_model(GRPO, on_tensors(32), seed, compile=True, **SOLVER), 10**6, True),
        ("GRPO, 256, compiled", lambda: make_model(GRPO, on_tensors(256), seed, compile=True, **BIG_SOLVER), 4 * 10**6, True),
    ]


def solve_cartpole(seeds: range) -> dict[str, Any]:
    """Env steps and wall time until CartPole-v1 is at 475, each contestant in turn, seed by seed.

    :return: raw figures
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    for seed in seeds:
        for name, make, limit, compiled in contestants(seed):
            model, compile_s = warmed_up(make()) if compiled else (make(), 0.0)
            runs.setdefault(name, []).append({"seed": seed, "compile_s": compile_s, **time_to_solve(model, limit)})
    reference = statistics.median(run["seconds"] for run in next(iter(runs.values())))
    print(f"\nCartPole-v1 to 475 (64 deterministic episodes after each update, clock stopped meanwhile), seeds {list(seeds)}")
    print(f"32 envs: {SOLVER}; 256 envs: {BIG_SOLVER}")
    print("| loop | solved | env steps, median | seconds, median | longest | / SB3's | compiling, s |")
    print("|---|---|---|---|---|---|---|")
    for name, results in runs.items():
        steps, seconds, apart = (statistics.median(r[key] for r in results) for key in ("steps", "seconds", "compile_s"))
        solved = sum(r["solved"] for r in results)
        longest = max(r["seconds"] for r in results)
        share = seconds / reference
        times = f"{seconds:.2f} | {longest:.2f} | {share:.2f} | {apart:.1f}"
        print(f"| {name} | {solved} of {len(results)} | {steps:,.0f} | {times} |")
    return runs
