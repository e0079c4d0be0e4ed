"""Optimal policy for the battery with a known price process: dynamic programming on a grid."""

from __future__ import annotations

from functools import cache

import numpy as np

from sb_grpo.tasks.input_driven.battery import (
    EFFICIENCY,
    INNOVATION,
    LEVEL,
    PERSISTENCE,
    RATE,
    SCALE,
    SHAPE,
    SPIKE,
    SPIKES,
)

CELLS = 24  #: of the charge; RATE is 6 of them
MOVES = (np.array([-1.0, -0.5, 0.0, 0.5, 1.0]) * RATE * CELLS).astype(int)
WANDER = np.linspace(-60.0, 60.0, 31)  #: grid of the AR(1) process
HEIGHTS = -SPIKE * np.log(1.0 - (np.arange(4) + 0.5) / 4.0)  #: four equally likely spikes
_CHANCES = np.array([1.0 - SPIKES, *[SPIKES / 4.0] * 4])


def _trades() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cell after every move from every cell, the energy stored, and the energy traded: each ``[CELLS + 1, moves]``."""
    cell = np.arange(CELLS + 1)[:, None]
    after = np.clip(cell + MOVES, 0, CELLS)
    stored = (after - cell) / CELLS
    return after, stored, np.where(stored > 0, stored / EFFICIENCY, stored * EFFICIENCY)


def _next_wander() -> np.ndarray:
    """Transition probabilities of the AR(1) process on its grid."""
    weight = np.exp(-0.5 * ((WANDER[None, :] - PERSISTENCE * WANDER[:, None]) / INNOVATION) ** 2)
    probabilities: np.ndarray = weight / weight.sum(1, keepdims=True)
    return probabilities


@cache
def expected_values(hours: int = 168) -> np.ndarray:
    """Value of a charge after the hour's trade, ``[24, CELLS + 1, len(WANDER)]``, with ``hours`` left.

    Undiscounted backward induction. The rest of the week does not matter, because energy stored at the end is paid for.
    """
    after, stored, traded = (column[:, None, None] for column in _trades())
    price = SHAPE[:, None, None] + WANDER[:, None] + np.array([0.0, *HEIGHTS])  # [hour, wander, spike]
    money = (LEVEL * stored - price[:, None, :, :, None] * traded) / SCALE  # [hour, cell, wander, spike, move]
    transition = _next_wander()
    expected = np.zeros((24, CELLS + 1, len(WANDER)))
    for _ in range(hours):
        ahead = expected[:, after[:, 0, 0]].transpose(0, 1, 3, 2)[:, :, :, None]
        value = (money + ahead).max(4) @ _CHANCES
        expected = np.roll(value, -1, axis=0) @ transition.T
    return expected


def optimal(observations: np.ndarray) -> np.ndarray:
    """Choose the trade with the greatest expected value. The AR(1) process is estimated from the price, without spikes below
    60.

    :param observations: ``[n, 5]`` of BatteryArbitrage-v0
    :return: actions ``[n, 1]``
    """
    charge = (observations[:, 0] + 1.0) / 2.0
    price = LEVEL + 25.0 * observations[:, 1]
    hour = np.rint(np.arctan2(observations[:, 3], observations[:, 4]) * 12.0 / np.pi).astype(int) % 24
    cell = np.rint(charge * CELLS).astype(int)
    wander = np.abs((price - SHAPE[hour])[:, None] - WANDER).argmin(1)
    after, stored, traded = (column[cell] for column in _trades())
    money = LEVEL * stored - price[:, None] * traded
    total = money / SCALE + expected_values()[hour[:, None], after, wander[:, None]]
    actions: np.ndarray = (MOVES[total.argmax(1)] / (RATE * CELLS))[:, None]
    return actions
