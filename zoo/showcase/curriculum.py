"""MountainCarGoal-v0 in 100,000 steps: the flag at the hill top from the start, or moved there by success."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.callbacks import CurriculumCallback
from zoo.showcase import tables
from zoo.showcase.runs import Variant

STEPS = 98_304  # 48 rollouts of 2048


class Kept(CurriculumCallback):
    """A curriculum whose moves go into the raw file."""

    def __init__(self) -> None:
        super().__init__(np.linspace(0.0, 1.0, 10), window=50, promote_above=0.6)

    def kept(self) -> dict[str, Any]:
        """Env steps and level of every move."""
        return {"moves": self.moves, "last_level": self.level}


def make(seed: int) -> GRPO:
    """A model with the constructor's defaults; the env begins with the flag at the hill top."""
    return GRPO("MlpPolicy", make_vec_env("MountainCarGoal-v0", 8), seed=seed, device="cpu")


VARIANTS = [
    Variant("fixed", "flag at the hill top", STEPS, make, "MountainCar-v0"),
    Variant("curriculum", "`CurriculumCallback`, ten levels", STEPS, make, "MountainCar-v0", lambda: [Kept()]),
]
DRAWN = VARIANTS
TITLE = "MountainCarGoal-v0, mean and range of five seeds"


def table() -> str:
    """Markdown: with and without, and when the last level was reached."""
    return tables.table("curriculum", VARIANTS, {"last level reached after": _last_level})


def _last_level(run: dict[str, Any]) -> str:
    moves = run.get("moves")
    if moves is None:
        return "-"
    return f"{moves[-1][0]:,}" if run["last_level"] == 9 else f"never (level {run['last_level']})"
