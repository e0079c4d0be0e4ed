"""GRPO (Group Relative Policy Optimization) for control, in the manner of Stable-Baselines3."""

from importlib.metadata import version

from sb_grpo.advantages import AdvantageOptions
from sb_grpo.buffers import GroupRolloutBuffer
from sb_grpo.envs.seeded_reset import SeededResetWrapper
from sb_grpo.evaluation import PairedEvaluation, evaluate_paired
from sb_grpo.exploration import CountBonus, RNDBonus
from sb_grpo.grpo import GRPO
from sb_grpo.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from sb_grpo.types import Rollout

__version__ = version("sb_grpo")

__all__ = [
    "GRPO",
    "AdvantageOptions",
    "CnnPolicy",
    "CountBonus",
    "GroupRolloutBuffer",
    "MlpPolicy",
    "MultiInputPolicy",
    "PairedEvaluation",
    "RNDBonus",
    "Rollout",
    "SeededResetWrapper",
    "evaluate_paired",
]
