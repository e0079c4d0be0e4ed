"""Everything that touches an environment's reset or state."""

from sb_grpo.envs.checker import check_tensor_env

__all__ = ["check_tensor_env"]
