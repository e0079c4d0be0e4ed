"""Healthy trainings with the constructor's defaults, on which every rule must stay silent."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.callbacks import RULES, HealthCallback
from zoo.showcase.runs import Variant, results


class Kept(HealthCallback):
    """A health check that goes into the raw file."""

    def __init__(self) -> None:
        super().__init__(verbose=0)

    def kept(self) -> dict[str, Any]:
        """Range of the watched value and verdict, by rule."""
        return {
            "health": {
                w.rule.name: {"n": w.n, "bad": w.n_bad, "said_at": w.said_at, "low": w.low, "high": w.high}
                for w in self._watches
                if w.n > 0
            }
        }


def _variant(env_id: str, steps: int) -> Variant:
    def make(seed: int) -> GRPO:
        return GRPO("MlpPolicy", make_vec_env(env_id, 8), seed=seed, device="cpu")

    return Variant(env_id, env_id, steps, make, env_id, lambda: [Kept()])


VARIANTS = [_variant("CartPole-v1", 49_152), _variant("Pendulum-v1", 98_304)]


def table() -> str:
    """Markdown: the range that each rule saw in the healthy runs, and how often it was broken."""
    found = results("health", VARIANTS)
    seeds = "; ".join(f"{name}: {len(runs)} seeds" for name, runs in found.items())
    rows = ["| rule | broken beyond | " + " | ".join(found) + " |", "|---|---|" + "---|" * len(found)]
    for rule in RULES:
        bounds = ([f"below {rule.low:g}"] if rule.low > -1e9 else []) + ([f"above {rule.high:g}"] if rule.high < 1e9 else [])
        cells = []
        for runs in found.values():
            seen = [run["health"][rule.name] for run in runs if rule.name in run["health"]]
            low, high = min((s["low"] for s in seen), default=0.0), max((s["high"] for s in seen), default=0.0)
            said = sum(s["said_at"] is not None for s in seen)
            cells.append(f"{low:.3g} to {high:.3g}{f', **broken in {said}**' if said else ''}" if seen else "-")
        what = ", ".join(bounds) + (" x its start" if rule.relative else "")
        rows.append(f"| `{rule.name}` | {what}, {rule.patience} in a row | " + " | ".join(cells) + " |")
    return "\n".join([*rows, "", f"({seeds})"])


def draw() -> None:
    """No picture: a range says it."""
