"""Three action spaces for the variable to set and its value. The target, or an absent variable, means: only observe."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gymnasium import spaces

from sb_grpo.types import Action

#: (variable, or None to only observe; value)
Intervention = tuple[int | None, float]
Decoder = Callable[[np.ndarray], Intervention]


def _discrete(n: int, grid: np.ndarray) -> tuple[spaces.Space, Decoder]:
    def decode(action: np.ndarray) -> Intervention:
        if action == 0:
            return None, 0.0
        variable, value = divmod(int(action) - 1, len(grid))
        return variable + 1, float(grid[value])

    return spaces.Discrete(1 + (n - 1) * len(grid)), decode


def _multi_discrete(n: int, grid: np.ndarray) -> tuple[spaces.Space, Decoder]:
    def decode(action: np.ndarray) -> Intervention:
        return int(action[0]) or None, float(grid[int(action[1])])

    return spaces.MultiDiscrete([n, len(grid)]), decode


def _box(n: int, grid: np.ndarray) -> tuple[spaces.Space, Decoder]:
    limit = float(np.abs(grid).max())

    def decode(action: np.ndarray) -> Intervention:
        return int(np.argmax(action[:-1])) or None, float(action[-1]) * limit

    return spaces.Box(-1.0, 1.0, (n + 1,), np.float32), decode


#: ``"discrete"``: one number per pair of variable and value. ``"multi_discrete"``: a variable and a value, chosen
#: independently. ``"box"``: a score per variable, of which the highest counts, and the value divided by the maximum.
ACTIONS: dict[str, Callable[[int, np.ndarray], tuple[spaces.Space, Decoder]]] = {
    "discrete": _discrete,
    "multi_discrete": _multi_discrete,
    "box": _box,
}


def make_actions(kind: str, n: int, grid: np.ndarray) -> tuple[spaces.Space, Callable[[Action], Intervention]]:
    """Make an action space and the function that decodes its actions.

    :param kind: one of ``ACTIONS``
    :param n: variables, the target included
    :param grid: ``[B]`` values
    :raises ValueError: for an unknown kind, and, when decoding, for actions outside the space
    """
    if kind not in ACTIONS:
        raise ValueError(f"actions={kind!r}: choose {', '.join(map(repr, ACTIONS))}.")
    space, decode = ACTIONS[kind](n, grid)

    def checked(action: Action) -> Intervention:
        if isinstance(space, spaces.Box):
            action = np.asarray(action, dtype=np.float32)
        # Box.contains accepts NaN.
        if not space.contains(action) or not np.isfinite(action).all():
            raise ValueError(f"action {action!r} is not in {space}: it names no variable and value; see env.action_space.")
        return decode(np.asarray(action))

    return space, checked
