"""Healthy trainings with the constructor's defaults, which must break no rule, and a faulty one for the picture.

usage: python -m scripts.studies.health [--report]     train missing runs; table of docs/studies/health.md and picture
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.callbacks import RULES, HealthCallback, HealthWarning
from scripts.studies.common.runs import DATA, IMG, Variant, main, results

PICTURED = ("kl", "entropy", "grad_norm")
EXAMPLE = DATA / "health" / "example.json"
PICTURE = IMG / "health.png"


class Kept(HealthCallback):
    """A health check that goes into the raw file."""

    def __init__(self) -> None:
        super().__init__(verbose=0)

    def kept(self) -> dict[str, Any]:
        """Range of the watched value and verdict, by rule."""
        return {
            "health": {
                w.rule.name: {"n": w.n, "bad": w.n_bad, "said_at": w.reported_at, "low": w.low, "high": w.high}
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
            low = min((s["low"] for s in seen), default=0.0)
            high = max((s["high"] for s in seen), default=0.0)
            reported = sum(s["said_at"] is not None for s in seen)
            cells.append(f"{low:.3g} to {high:.3g}{f', **broken in {reported}**' if reported else ''}" if seen else "-")
        what = ", ".join(bounds) + (" x its start" if rule.relative else "")
        rows.append(f"| `{rule.name}` | {what}, {rule.patience} in a row | " + " | ".join(cells) + " |")
    return "\n".join([*rows, "", f"({seeds})"])


class Watched(HealthCallback):
    """Health check that records the values of every rollout."""

    def __init__(self) -> None:
        super().__init__(verbose=0)
        self.seen: list[dict[str, float]] = []

    def _look(self) -> None:
        judged = self._seen
        super()._look()
        if self._seen is not judged:
            seen = {rule.name: rule.value(self._seen) for rule in self.rules if rule.name in PICTURED}
            self.seen.append({"steps": self.num_timesteps, **seen})


def example() -> dict[str, dict[str, Any]]:
    """Values and warnings of three rules in the page's example, a learning rate of 0.1, and with the default.

    Trained if the file is missing."""
    if not EXAMPLE.exists():
        found = {}
        for name, rate in (("learning_rate=0.1", 0.1), ("the default", 3e-4)):
            watched = Watched()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HealthWarning)
                GRPO("MlpPolicy", "CartPole-v1", learning_rate=rate, seed=0, device="cpu").learn(20_000, callback=watched)
            reported = {watch.rule.name: watch.reported_at for watch in watched._watches}
            found[name] = {"seen": watched.seen, "said_at": reported}
        EXAMPLE.write_text(json.dumps(found) + "\n")
    content: dict[str, dict[str, Any]] = json.loads(EXAMPLE.read_text())
    return content


def draw() -> None:
    """Draw the values of three rules in the trainings of :func:`example`, with bounds (dashed) and warnings (crosses)."""
    figure, panels = plt.subplots(1, len(PICTURED), figsize=(3.0 * len(PICTURED), 2.8), layout="constrained")
    rules = {rule.name: rule for rule in RULES}
    trainings = example()
    for axis, name in zip(panels, PICTURED, strict=True):
        rule = rules[name]
        for label, training in trainings.items():
            steps, values = ([point[key] for point in training["seen"]] for key in ("steps", name))
            (line,) = axis.plot(steps, values, marker=".", label=label)
            if (reported := training["said_at"][name]) is not None:
                at = values[steps.index(reported)]
                axis.plot(reported, at, "x", color=line.get_color(), markersize=11, markeredgewidth=2)
        axis.axhline(rule.low if rule.low > -1e9 else rule.high, color="grey", linestyle="--", linewidth=0.8)
        axis.set(title=name, xlabel="environment steps", ylabel=rule.key)
        axis.set_yscale("log" if name in ("kl", "grad_norm") else "linear")
        axis.grid(alpha=0.3)
    panels[0].legend(fontsize=8)
    figure.savefig(PICTURE, dpi=90)
    plt.close(figure)


if __name__ == "__main__":
    main("health", __doc__, VARIANTS, table, draw)
