"""Everything that touches an environment's reset or state."""

import gymnasium as gym

from sb_grpo.envs import causal, input_driven  # noqa: F401  they register their ids
from sb_grpo.envs.checker import check_tensor_env
from sb_grpo.envs.tasks import register_suites

register_suites()

__all__ = ["check_tensor_env"]

# As a string: the env is imported when it is made.
gym.register("MountainCarGoal-v0", entry_point="sb_grpo.envs.goal_car:GoalCar", max_episode_steps=200)
