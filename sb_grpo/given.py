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
from sb_grpo.rules import shown

#: What is read when a model is built and not again: changed by hand it would have no effect, but be shown and saved.
READ_ONCE = (
    "advantage", "advantage_kwargs", "loss", "loss_kwargs", "group_kwargs", "update_kwargs", "multitask", "rewards", "compile",
)  # fmt: skip


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
    rollout_buffer_kwargs: Any
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


def read_once(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of :data:`READ_ONCE` as they are now; dicts as copies."""
    return {name: dict(given[name]) if isinstance(given[name], Mapping) else given[name] for name in READ_ONCE}


def check_as_read(read: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check that nothing was changed that nobody would notice.

    :param read: of :func:`read_once`, when the model was built
    :param given: the arguments as they are now
    :raises ValueError: naming the one that has changed
    """
    for name, then in read.items():
        now = given[name]
        if not _same(then, now):
            raise ValueError(
                f"{name}={shown(now)} was set by hand, but the model was built with {shown(then)} and reads it only then, so "
                f"the change would have no effect. Build a model with it, or save this one and load it with {name}=: "
                f"GRPO.load(path, env, {name}=...)."
            )


def _same(then: Any, now: Any) -> bool:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        return then.keys() == now.keys() and all(_same(then[key], now[key]) for key in then)
    return then is now or (isinstance(then, str | int | float | tuple | list) and type(then) is type(now) and then == now)
