"""Policies without a critic, and the heads that turn their outputs into actions."""

from sb_grpo.policies.actor import (
    ActorCnnPolicy,
    ActorMultiInputPolicy,
    ActorPolicy,
    CnnPolicy,
    MlpPolicy,
    MultiInputPolicy,
)

__all__ = ["ActorCnnPolicy", "ActorMultiInputPolicy", "ActorPolicy", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
