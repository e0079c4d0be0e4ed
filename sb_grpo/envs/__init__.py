"""Everything that touches an environment's reset or state."""

from sb_grpo.envs.checker import check_tensor_env
from sb_grpo.envs.tasks import register_suites

register_suites()

__all__ = ["check_tensor_env"]
