"""Seeded resets, tensor envs, adapters, environment noise and checks of envs."""

from sb_grpo.envs.alignment import Alignment, noise_alignment
from sb_grpo.envs.checker import check_tensor_env
from sb_grpo.envs.instance_env import HostInstance, InstanceEnv
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.envs.process_vec_env import ProcessVecEnv
from sb_grpo.envs.ray_vec_env import RayVecEnv

__all__ = [
    "Alignment",
    "HostInstance",
    "InstanceEnv",
    "ProcessVecEnv",
    "RayVecEnv",
    "check_tensor_env",
    "make_tensor_env",
    "noise_alignment",
]
