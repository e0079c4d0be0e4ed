"""What GRPO was given, as values: what the rules between arguments look at, and what is logged of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch as th
from gymnasium import spaces

from sb_grpo.baselines.estimators import make_estimator
from sb_grpo.learn.losses import Loss, make_loss
from sb_grpo.options import GroupOptions, Multitask, Rewards, UpdateOptions, read_options


@dataclass(frozen=True)
class Arguments:
    """What GRPO was given, and the env that it is to go with: the values that the rules look at."""

    env: Any
    observation_space: spaces.Space | None
    action_space: spaces.Space
    n_envs: int
    use_sde: Any
    device: th.device
    policy_class: Any
    learning_rate: Any
    n_steps: Any
    batch_size: Any
    n_epochs: Any
    gamma: Any
    gae_lambda: Any
    clip_range: Any
    normalize_advantage: Any
    ent_coef: Any
    max_grad_norm: Any
    target_kl: Any
    rollout_buffer_class: Any
    group_size: Any
    n_groups: Any
    advantage: Any
    kl_coef: Any
    compile: Any
    estimator: Any  #: that ``advantage`` and ``advantage_kwargs`` describe
    loss: Loss
    groups: GroupOptions
    update: UpdateOptions
    multitask: Multitask
    rewards: Rewards

    def dicts(self) -> dict[str, Any]:
        """The settings that were given in dicts, by argument."""
        return {
            "loss_kwargs": self.loss, "group_kwargs": self.groups, "update_kwargs": self.update, "multitask": self.multitask,
            "rewards": self.rewards,
        }  # fmt: skip


class Options(NamedTuple):
    """The objects that a model's arguments describe."""

    estimator: Any  #: settings; its ``build`` makes what learns
    loss: Loss
    groups: GroupOptions
    update: UpdateOptions
    multitask: Multitask
    rewards: Rewards

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Options:
        """From arguments by name.

        :raises ValueError: for unknown names and keys
        """
        return cls(
            make_estimator(given["advantage"], given["advantage_kwargs"]),
            make_loss(given["loss"], given["loss_kwargs"]),
            read_options(GroupOptions, "group_kwargs", given["group_kwargs"]),
            read_options(UpdateOptions, "update_kwargs", given["update_kwargs"]),
            read_options(Multitask, "multitask", given["multitask"]),
            read_options(Rewards, "rewards", given["rewards"]),
        )
