"""Everything that touches an environment's reset or state."""

import gymnasium as gym

from sb_grpo.envs import causal, input_driven  # noqa: F401  they register their ids
from sb_grpo.envs.alignment import Alignment, noise_alignment
from sb_grpo.envs.checker import check_tensor_env
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.envs.process_vec_env import ProcessVecEnv
from sb_grpo.envs.ray_vec_env import RayVecEnv
from sb_grpo.envs.tasks import register_suites
from sb_grpo.envs.third_party import register_third_party

register_suites()
register_third_party()

__all__ = ["Alignment", "ProcessVecEnv", "RayVecEnv", "check_tensor_env", "make_tensor_env", "noise_alignment"]

# As a string: the env is imported when it is made.
gym.register("MountainCarGoal-v0", entry_point="sb_grpo.envs.goal_car:GoalCar", max_episode_steps=200)
