"""Logged values of a training as columns, one row per rollout."""

from __future__ import annotations

from stable_baselines3.common.logger import KVWriter

#: First parts of the keys that the explorer draws.
KEPT = ("task/", "share/", "group/", "train/conflict_rate", "train/explained_variance", "train/clip_fraction", "rollout/ep_")


class History(KVWriter):
    """An output of SB3's logger that remembers numbers."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.columns: dict[str, list[float | None]] = {}

    def write(self, key_values: dict[str, object], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        for key, value in key_values.items():
            if key.startswith(KEPT) and isinstance(value, int | float):
                self.columns.setdefault(key, [None] * len(self.steps)).append(float(value))
        self.steps.append(step)
        for column in self.columns.values():
            column.extend([None] * (len(self.steps) - len(column)))

    def close(self) -> None:
        """Nothing is open."""
