"""MountainCarGoal-v0 in 100,000 steps: the flag moves to the hill top as the car reaches it.

usage: python -m scripts.studies.curriculum [--report]     train missing runs; docs/studies/curriculum.md and picture
"""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.callbacks import CurriculumCallback
from scripts.studies import exploration
from scripts.studies.common import tables
from scripts.studies.common.runs import EVAL_EPISODES, Variant, main, results

STEPS = 98_304  # 48 rollouts of 2048


class Kept(CurriculumCallback):
    """A curriculum whose moves go into the raw file."""

    def __init__(self, n_levels: int) -> None:
        super().__init__(np.linspace(0.0, 1.0, n_levels), window=30, promote_above=0.6)

    def kept(self) -> dict[str, Any]:
        """Env steps and level of every move."""
        return {"moves": self.moves, "last_level": self.level, "n_levels": len(self.levels)}


#: Of the exploration example's models.
BASES = ("outcome", "state")


def _variant(base: str, n_levels: int) -> Variant:
    """A model of the exploration example; the env begins with the flag at the hill top."""
    name, settings = exploration.BASES[base]

    def make(seed: int) -> GRPO:
        return GRPO("MlpPolicy", make_vec_env("MountainCarGoal-v0", 8), seed=seed, device="cpu", **settings)

    setting = f"{name}: `CurriculumCallback`, {n_levels} levels"
    return Variant(f"{base}-{n_levels}", setting, STEPS, make, "MountainCar-v0", lambda: [Kept(n_levels)])


VARIANTS = [_variant("outcome", 19), _variant("outcome", 10), _variant("state", 19)]


def rows() -> tables.Rows:
    """By estimator: without (the same model on MountainCar-v0, measured for docs/studies/exploration.md), then with."""
    without = results("exploration", exploration.VARIANTS)
    found = results("curriculum", VARIANTS)
    made = []
    for base in BASES:
        made.append((f"{exploration.BASES[base][0]}: flag at the hill top (MountainCar-v0)", without[f"{base}-none"]))
        made += [(v.setting, found[v.label]) for v in VARIANTS if v.label.startswith(base) and v.label in found]
    return made


def table() -> str:
    up = f"of {EVAL_EPISODES} episodes, up the hill"
    return tables.table(rows(), {up: _reached, "last level reached after": _last_level})


def draw() -> None:
    tables.draw("curriculum", rows()[:2], "MountainCarGoal-v0, mean and range of the seeds")


def _reached(run: dict[str, Any]) -> str:
    return str(sum(r > -200.0 for r in run["final_returns"]))


def _last_level(run: dict[str, Any]) -> str:
    moves = run.get("moves")
    if moves is None:
        return "-"
    return f"{moves[-1][0]:,}" if run["last_level"] == run["n_levels"] - 1 else f"not (level {run['last_level']})"


if __name__ == "__main__":
    main("curriculum", __doc__, VARIANTS, table, draw)
