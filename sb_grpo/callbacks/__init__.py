"""SB3 callbacks that plug into a training: passed to ``learn(callback=...)``, they need nothing in the algorithm."""

from sb_grpo.callbacks.curriculum import CurriculumCallback
from sb_grpo.callbacks.gamma import GammaCallback
from sb_grpo.callbacks.health import HealthCallback, HealthWarning
from sb_grpo.callbacks.health_rules import RULES, STRICT_RULES, Rule

__all__ = ["RULES", "STRICT_RULES", "CurriculumCallback", "GammaCallback", "HealthCallback", "HealthWarning", "Rule"]
