"""Taxi-v4 with its ``action_mask``: GRPO with it and without, and sb3-contrib's MaskablePPO, all with the same settings.

usage: python -m scripts.studies.masks [--report] [--seeds 0 1 ...]     train what is missing; print the table
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_maskable
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb_grpo import GRPO
from scripts.studies.common.runs import Variant, main, results

TASK, STEPS, SOLVED = "Taxi-v4", 300_000, 7.5
SETTINGS: dict[str, Any] = dict(
    learning_rate=1e-3, n_steps=128, batch_size=256, n_epochs=5, gamma=0.99, ent_coef=0.01, device="cpu"
)


def masker(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """``env.action_masks()``, as MaskablePPO wants it."""
    return ActionMasker(env, lambda e: e.unwrapped.action_mask(e.unwrapped.s).astype(bool))  # type: ignore[attr-defined]


class WithoutMask(gym.Wrapper[Any, Any, Any, Any]):
    """The env without the mask in its infos."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return obs, {key: value for key, value in info.items() if key != "action_mask"}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {key: value for key, value in info.items() if key != "action_mask"}


def make_masked(seed: int) -> Any:
    return GRPO("MlpPolicy", make_vec_env(TASK, 16, seed=seed), seed=seed, **SETTINGS)


def make_unmasked(seed: int) -> Any:
    return GRPO("MlpPolicy", make_vec_env(TASK, 16, seed=seed, wrapper_class=WithoutMask), seed=seed, **SETTINGS)


def make_maskable(seed: int) -> Any:
    return MaskablePPO("MlpPolicy", make_vec_env(TASK, 16, seed=seed, wrapper_class=masker), seed=seed, **SETTINGS)


def _evaluate_maskable(model: Any, env: Any, n: int, **kwargs: Any) -> Any:
    return evaluate_maskable(model, make_vec_env(TASK, 1, seed=10_000, wrapper_class=masker), n, **kwargs)


def _evaluate_unmasked(model: Any, env: Any, n: int, **kwargs: Any) -> Any:
    return evaluate_policy(model, make_vec_env(TASK, 1, seed=10_000, wrapper_class=WithoutMask), n, **kwargs)


VARIANTS = [
    Variant("masked", "GRPO, masks", STEPS, make_masked, TASK),
    Variant("unmasked", "GRPO without masks", STEPS, make_unmasked, TASK, evaluate=_evaluate_unmasked),
    Variant("maskable-ppo", "MaskablePPO", STEPS, make_maskable, TASK, evaluate=_evaluate_maskable),
]


def steps_to(run: dict[str, Any]) -> float:
    """Env steps until the last 100 training episodes return ``SOLVED`` on average; infinite where they never do."""
    return float(next((steps for steps, value in run["curve"] if value >= SOLVED), np.inf))


def table() -> str:
    """Steps to the goal (median and worst seed), seeds that reach it, final return."""
    found = results("masks", VARIANTS)
    lines = [
        f"| policy | seeds | reach {SOLVED} | median steps to it | worst | final return | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for variant in VARIANTS:
        runs = found.get(variant.label, [])
        if runs:
            steps = np.array([steps_to(run) for run in runs])
            final, seconds = np.mean([np.mean(r["final_returns"]) for r in runs]), np.median([r["wall_time_s"] for r in runs])
            shown = [f"{x:,.0f}" if np.isfinite(x) else "never" for x in (np.median(steps), steps.max())]
            lines.append(
                f"| {variant.setting} | {len(runs)} | {int(np.isfinite(steps).sum())} | {shown[0]} | {shown[1]} | "
                f"{final:.2f} | {seconds:.0f} |"
            )
    return "\n".join(lines)


def draw() -> None:
    """No picture."""


if __name__ == "__main__":
    main("masks", __doc__, VARIANTS, table, draw)
