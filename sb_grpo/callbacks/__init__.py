"""SB3 callbacks for ``learn(callback=...)``."""

from sb_grpo.callbacks.curriculum import CurriculumCallback
from sb_grpo.callbacks.gamma import GammaCallback
from sb_grpo.callbacks.health import HealthCallback, HealthWarning
from sb_grpo.callbacks.health_rules import RULES, STRICT_RULES, Rule
from sb_grpo.callbacks.recovery import RECOVERY_RULES, RecoveryCallback

__all__ = [
    "RECOVERY_RULES", "RULES", "STRICT_RULES", "CurriculumCallback", "GammaCallback", "HealthCallback", "HealthWarning",
    "RecoveryCallback", "Rule",
]  # fmt: skip
