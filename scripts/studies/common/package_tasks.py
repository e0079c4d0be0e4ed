"""Tasks of other packages as a flat network can take them, each under an id of its own. A package is imported when it is made.

minigrid is among the pinned versions, and brings pygame. popgym 1.0.7 asks for NumPy and Gymnasium only; gymnasium-2048 0.1.2
pins Gymnasium 1.3 and runs with 1.4: ``pip install --no-deps popgym==1.0.7 gymnasium-2048==0.1.2``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation, TimeLimit, TransformReward

#: Points of a game of 2048 that make one of the study's return, so that a critic need not learn values in the thousands.
POINTS = 100
#: Moves after which a game is stopped: a policy without masks may choose a move that changes nothing for ever.
MOVES = 2_000


class Float(gym.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Flat observations as float32, which no policy divides by 255."""

    def __init__(self, env: gym.Env[np.ndarray, Any]) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Box)
        self.observation_space = spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation.astype(np.float32)


def legal_moves(board: np.ndarray) -> np.ndarray:
    """Moves (up, right, down, left) that change a board of 2048: a tile has an empty or an equal cell before it.

    :param board: exponents of the tiles, 0 for empty cells
    """

    def changes(to: np.ndarray, tile: np.ndarray) -> bool:
        return bool(np.any((tile != 0) & ((to == 0) | (to == tile))))

    above = board[:-1]
    below = board[1:]
    left = board[:, :-1]
    right = board[:, 1:]
    return np.array([changes(above, below), changes(right, left), changes(below, above), changes(left, right)])


class LegalMoves(gym.Wrapper[Any, Any, Any, Any]):
    """``action_masks()`` of a game of 2048: the moves that change its board."""

    def action_masks(self) -> np.ndarray:
        return legal_moves(self.env.unwrapped.board)  # type: ignore[attr-defined]


def board_2048(masks: bool = True) -> gym.Env[Any, Any]:
    """gymnasium-2048's game: 16 cells of 16 possible tiles, four moves, a hundredth of its score as reward.

    :param masks: say which moves are legal
    """
    import_module("gymnasium_2048")
    game: Any = TimeLimit(gym.make("gymnasium_2048/TwentyFortyEight-v0"), MOVES)
    game = Float(FlattenObservation(TransformReward(game, lambda score: float(score) / POINTS)))
    return LegalMoves(game) if masks else game


def memory_s7() -> gym.Env[Any, Any]:
    """Make MiniGrid-MemoryS7-v0 with one bit per kind, colour and state of each visible cell."""
    wrappers = import_module("minigrid.wrappers")
    return Float(
        FlattenObservation(wrappers.ImgObsWrapper(wrappers.OneHotPartialObsWrapper(gym.make("MiniGrid-MemoryS7-v0"))))
    )


def repeat_previous() -> gym.Env[Any, Any]:
    """popgym's RepeatPreviousEasy: name the suit of the card of four steps ago."""
    return import_module("popgym.envs.repeat_previous").RepeatPreviousEasy()  # type: ignore[no-any-return]


def register() -> None:
    """Make the ids known to Gymnasium; safe to call twice."""
    made: dict[str, Any] = {"MemoryS7-v0": memory_s7, "RepeatPrevious-v0": repeat_previous, "Board2048-v0": board_2048}
    for env_id, entry_point in made.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=entry_point)


register()
