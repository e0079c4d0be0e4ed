"""GRPO (Group Relative Policy Optimization) for control, in the manner of Stable-Baselines3."""

from importlib.metadata import version

from sb_grpo import tasks  # noqa: F401  # registers their ids
from sb_grpo.baselines.estimators import Anchor, Outcome, Process, State, Step
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.config import GroupOptions, Multitask, Rewards, UpdateOptions
from sb_grpo.envs.seeded_reset import SeededResetWrapper
from sb_grpo.evaluation import PairedEvaluation, evaluate_paired
from sb_grpo.extras.exploration import CountBonus, RNDBonus
from sb_grpo.grpo import GRPO
from sb_grpo.learn.losses import Cispo, Clipped, Loss, Sapo
from sb_grpo.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from sb_grpo.types import AdvantageOptions, Breakdown, Estimate, Features, Rollout, UpdateResult

__version__ = version("sb_grpo")

__all__ = [
    "GRPO",
    "AdvantageOptions",
    "Anchor",
    "Breakdown",
    "Cispo",
    "Clipped",
    "CnnPolicy",
    "CountBonus",
    "Estimate",
    "Features",
    "GroupOptions",
    "GroupRolloutBuffer",
    "Loss",
    "MlpPolicy",
    "MultiInputPolicy",
    "Multitask",
    "Outcome",
    "PairedEvaluation",
    "Process",
    "RNDBonus",
    "Rewards",
    "Rollout",
    "Sapo",
    "SeededResetWrapper",
    "State",
    "Step",
    "UpdateOptions",
    "UpdateResult",
    "evaluate_paired",
]
