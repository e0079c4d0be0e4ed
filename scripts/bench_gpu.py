"""The device path on a GPU, one command: rates of whole training loops beside JAX and the floors, time to solve, a Brax task.

usage: python scripts/bench_gpu.py [--device cuda] [--n-envs 4096 16384 65536] [--rejax PYTHON] [--brax NAME] [--json FILE]

CartPole-v1, 64-64 net, 32 steps per env, 8 minibatches, 4 epochs. Eager and captured (compile=True) models train
in turn, and rejax's PPO beside them where a Python that has it is given (see scripts/peer_rejax.py). With ``--device cpu`` and
``--n-envs 64`` the same code runs on a CPU, to see that it works.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import torch as th
from device_bench import Ours, Peer, count_kernels, floors, interleaved, ratio, time_to_solve, warmed_up

from sb_grpo import GRPO
from sb_grpo.envs.native import make_tensor_env

#: float32 arithmetic and memory bandwidth per second, as published, where the floor needs them.
H200 = (67e12, 4.8e12)
N_STEPS = 32
N_MINIBATCHES = 8
N_EPOCHS = 4


def make_model(n_envs: int, device: str, compile: bool, env: Any = None, seed: int = 0, **settings: Any) -> GRPO:
    """A model with the benchmark's settings."""
    batch_size = n_envs * N_STEPS // N_MINIBATCHES
    env = make_tensor_env("CartPole-v1", n_envs, device) if env is None else env
    settings = dict(n_steps=N_STEPS, batch_size=batch_size, n_epochs=N_EPOCHS, **settings)
    return GRPO("MlpPolicy", env, seed=seed, device=device, compile=compile, **settings)


def compare(n_envs: int, device: str, rounds: int, rejax: str | None) -> dict[str, Any]:
    """Rates of the eager, the captured and the JAX loop with so many envs, and the floors."""
    n_timesteps = 8 * n_envs * N_STEPS
    loops: dict[str, Any] = {
        "eager": Ours(lambda: make_model(n_envs, device, False), n_timesteps),
        "captured": Ours(lambda: make_model(n_envs, device, True), n_timesteps),
    }
    if rejax is not None:
        batch_size = n_envs * N_STEPS // N_MINIBATCHES
        settings = {"n_envs": n_envs, "n_steps": N_STEPS, "batch_size": batch_size, "n_epochs": N_EPOCHS}
        loops["rejax"] = Peer(rejax, settings)
    rates = interleaved(loops, rounds)
    kernels = {name: count_kernels(loops[name].model) for name in ("eager", "captured")}
    floor = floors(loops["captured"].model, kernels["captured"], *H200)
    median = {name: statistics.median(values) for name, values in rates.items()}
    versus_jax = f"{ratio(rates, 'captured', 'rejax'):.2f}" if rejax is not None else "-"
    print(
        f"| {n_envs:,} | {median['eager']:,.0f} | {median['captured']:,.0f} | {ratio(rates, 'captured', 'eager'):.1f} | "
        f"{median.get('rejax', 0.0):,.0f} | {versus_jax} | {kernels['eager']:,} / {kernels['captured']:,} | "
        + " / ".join(f"{floor[key] / 1e6:,.0f}" for key in ("launches", "flops", "bytes"))
        + f" | {loops['captured'].first_run_s:.0f} |",
        flush=True,
    )
    for loop in loops.values():
        loop.close()
    return {"rates": rates, "kernels": kernels, "floors": floor, "compile_s": loops["captured"].first_run_s}


def solve(n_envs: int, device: str, seeds: range) -> list[dict[str, Any]]:
    """Time until CartPole-v1 is at 475, compilation apart."""
    runs = []
    for seed in seeds:
        settings = dict(seed=seed, learning_rate=2e-3, gamma=0.99, gae_lambda=0.98)
        model, compile_s = warmed_up(make_model(n_envs, device, True, **settings))
        runs.append({"seed": seed, "compile_s": compile_s, **time_to_solve(model, 200 * n_envs * N_STEPS)})
        print(f"seed {seed}: {runs[-1]}", flush=True)
    return runs


def train_brax(name: str, n_envs: int, device: str) -> dict[str, Any]:
    """One Brax task, trained for a while: steps per second and the returns it ends with."""
    from sb_grpo.envs.brax import make_brax_env

    env = make_brax_env(name, n_envs, device, backend="mjx")
    model = make_model(n_envs, device, False, env, policy_kwargs=dict(normalize_obs=True))
    start = time.perf_counter()
    model.learn(40 * n_envs * N_STEPS)
    seconds = time.perf_counter() - start
    returns = [info["r"] for info in model.ep_info_buffer or []]
    result = {"env": name, "n_envs": n_envs, "steps_per_second": model.num_timesteps / seconds, "last_returns": returns}
    mean = statistics.fmean(returns) if returns else float("nan")
    print(f"\n{name}, {n_envs:,} envs, {model.num_timesteps:,} steps: {result['steps_per_second']:,.0f} steps/s")
    print(f"mean return of the last {len(returns)} episodes: {mean:.1f}")
    return result


def machine(device: str) -> dict[str, str]:
    """Machine and versions of the measurement."""
    found = {"torch": th.__version__, "python": platform.python_version(), "device": platform.processor() or "cpu"}
    if device.startswith("cuda"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        found["device"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
        found["cuda"] = str(th.version.cuda)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--n-envs", type=int, nargs="+", default=[4096, 16_384, 65_536])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5, help="runs to 475")
    parser.add_argument("--rejax", help="Python that has rejax (see scripts/peer_rejax.py)")
    parser.add_argument("--brax", help="Brax env to train too, for example inverted_pendulum")
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    args = parser.parse_args()
    th.set_num_threads(1)
    th.set_float32_matmul_precision("high")
    metrics: dict[str, Any] = {"machine": machine(args.device), "compare": {}}
    print(f"{metrics['machine']}; {N_STEPS} steps per env, {N_MINIBATCHES} minibatches, {N_EPOCHS} epochs")
    print("| envs | eager, steps/s | captured | captured / eager | rejax | captured / rejax | kernels, eager / captured "
          "| floor of launches / FLOPs / bytes (H200), M steps/s | first run, s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    for n_envs in args.n_envs:
        metrics["compare"][n_envs] = compare(n_envs, args.device, args.rounds, args.rejax)
    print("\nCartPole-v1 to 475:")
    metrics["to_475"] = solve(args.n_envs[0], args.device, range(args.seeds))
    if args.brax:
        metrics["brax"] = train_brax(args.brax, args.n_envs[0], args.device)
    if args.json:
        args.json.write_text(json.dumps(metrics, indent=2) + "\n")


if __name__ == "__main__":
    main()
