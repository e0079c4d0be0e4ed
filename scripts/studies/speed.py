"""Tables of docs/performance.md and docs/studies/device.md, from the results of the speed benchmarks.

usage: python -m scripts.studies.speed     all of them

The raw figures come from scripts/bench_speed.py, with --device-path those of docs/studies/device.md, and from
scripts/bench_adapters.py, each with --json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from scripts.studies.common.runs import DATA

PPO_8 = "SB3 PPO, 8 envs"
PPO_256 = "SB3 PPO, 256 envs"
#: GRPO / PPO that each task should reach, as scripts/bench_speed.py says.
WANTED = {"CartPole-v1": 2.0, "CartPole-v1, light updates": 2.0, "Pendulum-v1": 1.8, "HalfCheetah-v5": 1.5}


def speed() -> str:
    """GRPO and PPO in turn."""
    lines = _head("task", "PPO, steps/s", "GRPO, steps/s", "GRPO / PPO", "wanted", "share of the baseline fit")
    for env, found in _raw("speed")["speed"].items():
        ppo, grpo = (median(rates) for rates in zip(*found["pairs"], strict=True))
        share = f"{100 * found['fit_share']:.1f} %"
        lines.append(f"| {env} | {ppo:,.0f} | {grpo:,.0f} | {found['ratio']:.2f} | {WANTED[env]} | {share} |")
    return "\n".join(lines)


def memory() -> str:
    """Memory saved by a model without a critic."""
    columns = ("model (GRPO / PPO)", "parameters", "critic's share of PPO", "memory of an update, kB", "saved file, kB")
    lines = _head(*columns)
    for row in _raw("speed")["memory"]:
        grpo = row["grpo"]
        ppo = row["ppo"]
        share = f"{100 * (1 - grpo['parameters'] / ppo['parameters']):.2f} %"
        kilobytes = (f"{grpo[name] / 1e3:,.0f} / {ppo[name] / 1e3:,.0f}" for name in ("update_bytes", "saved_bytes"))
        parameters = f"{grpo['parameters']:,} / {ppo['parameters']:,}"
        lines.append(f"| {row['case']} | {parameters} | {share} | {' | '.join(kilobytes)} |")
    return "\n".join(lines)


def loops() -> str:
    """Host and tensor envs, eager and compiled."""
    raw = _raw("device_speed")
    lines = _head("loop", "steps/s", "/ SB3 PPO with 8 envs", "/ with 256", "first rollout and update, s")
    for name, rates in raw["rates"].items():
        times = (f"{_ratio(rates, raw['rates'][other]):.1f}" for other in (PPO_8, PPO_256))
        lines.append(f"| {name} | {median(rates):,.0f} | {' | '.join(times)} | {raw['first_run_s'][name]:.1f} |")
    return "\n".join(lines)


def solved() -> str:
    """Time until CartPole-v1 is solved, relative to the first loop."""
    found: Mapping[str, Sequence[Mapping[str, Any]]] = _raw("device_speed")["to_475"]
    reference = median(run["seconds"] for run in next(iter(found.values())))
    heads = ("loop", "solved", "env steps, median", "seconds, median", "longest", "/ SB3's", "compiling, s")
    lines = _head(*heads)
    for name, runs in found.items():
        steps, seconds, apart = (median(run[key] for run in runs) for key in ("steps", "seconds", "compile_s"))
        cells = [name, f"{sum(run['solved'] for run in runs)} of {len(runs)}", f"{steps:,.0f}", f"{seconds:.2f}"]
        cells += [f"{max(run['seconds'] for run in runs):.2f}", f"{seconds / reference:.2f}", f"{apart:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def adapters() -> str:
    """Simulators behind adapters."""
    found = _raw("adapters")["runs"]
    lines = _head("loop", "steps/s", "steps per CPU second", "/ SB3 PPO with 8 envs", "useful fraction")
    for name, rounds in found.items():
        rates, cpu_rates = ([it[key] for it in rounds] for key in ("steps_per_s", "steps_per_cpu_s"))
        times = _ratio(cpu_rates, [it["steps_per_cpu_s"] for it in found[PPO_8]])
        useful = f"{rounds[-1]['useful']:.2f}" if "useful" in rounds[-1] else ""
        lines.append(f"| {name} | {median(rates):,.0f} | {median(cpu_rates):,.0f} | {times:.1f} | {useful} |")
    return "\n".join(lines)


#: Page -> its tables.
TABLES = {"performance": (speed, memory), "studies/device": (loops, solved, adapters)}


def _raw(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return content


def _head(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    """Median over rounds, as those of a round ran one after the other."""
    return median(a / b for a, b in zip(rates, others, strict=True))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for page, made in TABLES.items():
        print(f"docs/{page}.md\n", *(f"\n{table()}\n" for table in made), sep="")
