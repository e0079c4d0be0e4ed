"""Tasks of other packages in the study of masks and memory: what is legal on a board, and that every id is a flat task."""

import importlib.util

import gymnasium as gym
import numpy as np
import pytest

from scripts.studies.common import package_tasks
from scripts.studies.common.package_tasks import legal_moves


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({(0, 0): 1}, [False, True, True, False]),  # alone in a corner: away from its walls
        ({(0, 0): 1, (0, 1): 1}, [False, True, True, True]),  # two equal ones: together, too
        ({(3, 0): 1, (3, 1): 2, (3, 2): 3, (3, 3): 4}, [True, False, False, False]),  # a full last row of different tiles
    ],
)
def test_legal_moves_by_hand(cells: dict[tuple[int, int], int], expected: list[bool]) -> None:
    board = np.zeros((4, 4), dtype=np.uint8)
    for cell, tile in cells.items():
        board[cell] = tile
    assert legal_moves(board).tolist() == expected


def test_a_full_board_without_equal_neighbours_has_no_legal_move() -> None:
    board = np.indices((4, 4)).sum(0) % 2 + 1
    assert not legal_moves(board).any()
    board[0, 0] = board[0, 1]
    assert legal_moves(board).tolist() == [True, True, True, True]  # the tile below it is its equal, too


@pytest.mark.skipif(importlib.util.find_spec("gymnasium_2048") is None, reason="gymnasium-2048 is not installed")
def test_legal_moves_are_those_that_the_game_carries_out() -> None:
    env, rng = package_tasks.board_2048(), np.random.default_rng(0)
    env.reset(seed=0)
    game = env.unwrapped
    for _ in range(1_000):
        legal = env.get_wrapper_attr("action_masks")()
        assert legal.tolist() == [game.apply_action(game.board, move)[2] for move in range(4)]  # type: ignore[attr-defined]
        _, _, terminated, _, info = env.step(int(rng.choice(np.flatnonzero(legal))))
        assert info["is_legal"]
        if terminated:
            assert not env.get_wrapper_attr("action_masks")().any()
            env.reset()


@pytest.mark.parametrize(
    ("env_id", "package", "size"),
    [("Board2048-v0", "gymnasium_2048", 256), ("MemoryS7-v0", "minigrid", 980), ("RepeatPrevious-v0", "popgym", 4)],
)
def test_a_seed_decides_how_an_episode_starts(env_id: str, package: str, size: int) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    env = gym.make(env_id)
    first, again = (env.reset(seed=3)[0] for _ in range(2))
    assert np.array_equal(first, again)
    assert gym.spaces.flatdim(env.observation_space) == size
