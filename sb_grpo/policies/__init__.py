"""Policies without a critic, and the heads that turn their outputs into actions."""

from sb_grpo.policies.actor import (
    ActorCnnPolicy,
    ActorMultiInputPolicy,
    ActorPolicy,
    CnnPolicy,
    MlpPolicy,
    MultiInputPolicy,
)
from sb_grpo.policies.encoding import EncodingPolicy, SetPolicy
from sb_grpo.policies.routing import RoutedPolicy
from sb_grpo.policies.weights import load_actor

__all__ = [
    "ActorCnnPolicy",
    "ActorMultiInputPolicy",
    "ActorPolicy",
    "CnnPolicy",
    "EncodingPolicy",
    "MlpPolicy",
    "MultiInputPolicy",
    "RoutedPolicy",
    "SetPolicy",
    "load_actor",
]
