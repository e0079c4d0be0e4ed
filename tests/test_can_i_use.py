"""The tables of docs/can_i_use.md: every cell is tried."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb_grpo import GRPO
from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.random import uniform
from sb_grpo.policies.masks import choices_of
from tests.helpers import SpaceEnv

PAGE = (Path(__file__).parent.parent / "docs" / "can_i_use.md").read_text()
FLAT = spaces.Box(-1.0, 1.0, (3,))
ACTIONS: dict[str, spaces.Space] = {
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(2),
    "Box": spaces.Box(-1.0, 1.0, (2,)),
}
OBSERVATIONS: dict[str, tuple[str, spaces.Space]] = {
    "Box observations": ("MlpPolicy", FLAT),
    "Discrete observations": ("MlpPolicy", spaces.Discrete(4)),
    "Dict observations": ("MultiInputPolicy", spaces.Dict(a=FLAT, b=spaces.Discrete(3))),
    "images": ("CnnPolicy", spaces.Box(0, 255, (36, 36, 1), np.uint8)),
}


class Masked(SpaceEnv):
    """Allows the first action of each choice at one step, all at the next."""

    def action_masks(self) -> np.ndarray:
        self.queried = getattr(self, "queried", 0) + 1
        first = [[True] + [False] * (n - 1) for n in choices_of(self.action_space)] or [[True]]
        return np.concatenate(first) if self.queried % 2 else np.ones(sum(map(len, first)), dtype=bool)


class Body(FunctionalTensorEnv):
    """A body of three numbers that actions do not move."""

    capturable = True

    def __init__(self, action_space: spaces.Space) -> None:
        super().__init__(8, FLAT, action_space, 10)

    def initial_state(self, seeds: th.Tensor) -> th.Tensor:
        return uniform(seeds, 3, self.dtype)

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        reward = actions.float().reshape(len(state), -1).sum(1) * state[:, 0]
        return state, reward, th.zeros(len(state), dtype=th.bool)


def cells() -> list[tuple[str, str, bool]]:
    """Row, column and whether the page says yes."""
    found = []
    for table in re.findall(r"((?:^\|.*\n)+)", PAGE.split("## What goes with what")[1].split("## Operating")[0], re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]
        found += [(row[0], column, cell == "yes") for row in rows for column, cell in zip(header[1:], row[1:], strict=True)]
    return found


def train(row: str, column: str) -> None:
    """The shortest training of one cell."""
    policy, seen = OBSERVATIONS.get(row, ("MlpPolicy", FLAT))
    acted = ACTIONS.get(row, spaces.Discrete(3))
    kwargs: dict[str, Any] = dict(n_steps=16, batch_size=32, n_epochs=1, seed=0, device="cpu")
    if "memory" in column:
        kwargs["policy_kwargs"] = dict(memory="gru", memory_size=4)
    if "gSDE" in column:
        kwargs["use_sde"] = True
    if column == "whole episodes":
        kwargs["advantage"] = "outcome"
    if column in ("tensor env", "compiled"):
        GRPO(policy, Body(acted), compile=column == "compiled", **kwargs).learn(128)
        return
    venv = make_vec_env(lambda: (Masked if "masks" in column else SpaceEnv)(seen, acted), 4)
    model = GRPO(policy, venv, **kwargs).learn(128)
    assert (model.mask_source == "method") == ("masks" in column)
    evaluate_policy(model, venv, 2, warn=False)


def test_the_tables_are_there() -> None:
    assert {row for row, _, _ in cells()} == {*ACTIONS, *OBSERVATIONS}
    assert len(cells()) == 8 * len(ACTIONS) + 4 * len(OBSERVATIONS)


@pytest.mark.parametrize(
    ("row", "column", "works"),
    [pytest.param(*cell, marks=pytest.mark.slow if cell[1] == "compiled" else ()) for cell in cells()],
)
def test_a_cell_is_what_it_says(row: str, column: str, works: bool) -> None:
    if works:
        train(row, column)
    else:
        with pytest.raises(ValueError, match=r"masks are for|gSDE|use_sde"):
            train(row, column)
