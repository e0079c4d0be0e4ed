"""MountainCar-v0 in 100,000 steps, with and without an exploration bonus.

usage: python -m scripts.studies.exploration [--report]     train missing runs; docs/studies/exploration.md and picture
"""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO, CountBonus, RNDBonus
from scripts.studies.common import tables
from scripts.studies.common.runs import Variant, main, results

STEPS = 98_304  # 48 rollouts of 2048
BONUSES: dict[str, Any] = {"none": None, "count": CountBonus(), "rnd": RNDBonus()}
NAMES = {"none": "no bonus", "count": "`CountBonus()`", "rnd": "`RNDBonus()`"}
COMMON: dict[str, Any] = dict(gamma=0.99)
NORMALIZED: dict[str, Any] = dict(policy_kwargs=dict(normalize_obs=True), **COMMON)
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "state": ('`"state"`', COMMON),
    "normalized": ('`"state"`, `normalize_obs`', NORMALIZED),
    "outcome": ('`"outcome"`, `normalize_obs`', dict(advantage="outcome", **NORMALIZED)),
}


def _variant(base: str, bonus: str) -> Variant:
    name, settings = BASES[base]

    def make(seed: int) -> GRPO:
        env = make_vec_env("MountainCar-v0", 8)
        return GRPO("MlpPolicy", env, rewards=dict(bonus=BONUSES[bonus]), seed=seed, device="cpu", **settings)

    return Variant(f"{base}-{bonus}", f"{name}: {NAMES[bonus]}", STEPS, make, "MountainCar-v0")


VARIANTS = [_variant(base, bonus) for base in BASES for bonus in BONUSES]


def rows() -> tables.Rows:
    """Every variant that has run."""
    found = results("exploration", VARIANTS)
    return [(v.setting, found[v.label]) for v in VARIANTS if v.label in found]


def table() -> str:
    return tables.table(rows())


def draw() -> None:
    """Draw the runs of ``"state"`` with more than one seed."""
    name = BASES["state"][0]
    drawn = [(setting, runs) for setting, runs in rows() if setting.startswith(f"{name}:") and len(runs) > 1]
    tables.draw("exploration", drawn, "MountainCar-v0, mean and range of the seeds")


if __name__ == "__main__":
    main("exploration", __doc__, VARIANTS, table, draw)
