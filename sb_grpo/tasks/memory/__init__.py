"""Tasks that require memory: the T-maze, and classic control without velocities.

Importing this registers them with Gymnasium. ``TENSOR_VERSIONS`` are known to ``make_tensor_env``.
"""

import gymnasium as gym

_HERE = "sb_grpo.tasks.memory"

#: Entry points of host and tensor version, steps of an episode, arguments.
_TASKS: dict[str, tuple[str, str, int, dict[str, int]]] = {
    "TMaze10-v0": (f"{_HERE}.t_maze:TMaze", f"{_HERE}.t_maze:TensorTMaze10", 40, {"length": 10}),
    "TMaze50-v0": (f"{_HERE}.t_maze:TMaze", f"{_HERE}.t_maze:TensorTMaze50", 200, {"length": 50}),
    "CartPolePositions-v0": (f"{_HERE}.positions:cart_pole", f"{_HERE}.positions:TensorCartPolePositions", 500, {}),
    "PendulumPositions-v0": (f"{_HERE}.positions:pendulum", f"{_HERE}.positions:TensorPendulumPositions", 200, {}),
}

#: Entry point of the tensor version by id.
TENSOR_VERSIONS = {env_id: tensor for env_id, (_, tensor, _, _) in _TASKS.items()}


def register() -> None:
    """Register the ids with Gymnasium; safe to call twice."""
    for env_id, (host, _, steps, kwargs) in _TASKS.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=host, max_episode_steps=steps, kwargs=kwargs)


register()
