"""Rollback on error: bad gradients never reach the weights that are kept, nor bad rollouts the other trainable parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch as th
from stable_baselines3.common.policies import BasePolicy
from torch import nn

from sb_grpo.policies.numbers import no_numbers
from sb_grpo.state import copied, own_attributes, own_state, own_tensors, put_own_state
from sb_grpo.types import Breakdown


class LastGood:
    """Weights and optimiser state as they were, to return to when a gradient is not finite.

    :param policy: module with an ``optimizer`` attribute
    :raises ValueError: if none of its parameters can learn
    """

    def __init__(self, policy: BasePolicy) -> None:
        self.policy = policy
        learning = {name: p for name, p in policy.named_parameters() if p.requires_grad}
        if not learning:
            raise ValueError(
                "requires_grad=False for every parameter of the policy, so there is nothing to train: leave some of them as "
                "they are, for example those of model.policy.action_net, or use predict() alone."
            )
        self.names = tuple(learning)
        self.parameters = tuple(learning.values())
        self.weights = [p.detach().clone() for p in self.parameters]
        self.optimizer = copied(policy.optimizer.state_dict())

    def check(self, norms: list[th.Tensor], epoch: int) -> None:
        """Look at the gradient norms of an epoch.

        :param norms: one ``[P]`` tensor per gradient step, from :func:`clip_gradients`
        :param epoch: number of the epoch, for the message
        :raises Breakdown: naming the step and the tensor; weights and optimiser are back where they were
        """
        finite = th.isfinite(th.stack(norms))
        if bool(finite.all()):
            return
        step, tensor = (~finite).nonzero()[0].tolist()
        with th.no_grad():
            for parameter, good in zip(self.parameters, self.weights, strict=True):
                parameter.copy_(good)
        self.policy.optimizer.load_state_dict(self.optimizer)
        if not all(bool(good.isfinite().all()) for good in self.weights):
            raise Breakdown(f"Before this update {no_numbers(self.policy)}")
        raise Breakdown(
            f"The gradient of {self.names[tensor]} was not finite in gradient step {step} of epoch {epoch}. The weights are "
            "back at their values before this update and can be saved. Lower learning_rate or max_grad_norm, or bound the "
            "rewards with rewards=dict(scaling='clip')."
        )


@contextmanager
def rollback_on_error(trainable_parts: Sequence[object], at_fault: str) -> Iterator[None]:
    """Put all that learns or is averaged beside the policy back to its former state on an error, or if it is not finite after.

    Once a running mean has seen an inf it never recovers, and nothing says so.

    :param trainable_parts: modules with all their parts; other objects have nothing to lose
    :param at_fault: sentence about the rollout, for the message
    :raises Breakdown: naming the tensor that is not finite
    """
    before = Snapshot(trainable_parts)
    try:
        yield
        for module in before.modules:
            for name, value in [*own_tensors(module).items(), *own_attributes(module).items()]:
                if not _is_finite(value):
                    raise Breakdown(
                        f"{name} of the {type(module).__name__} was not finite after this rollout. {at_fault} What was learnt "
                        "is back at what it was before it, and can be saved. Bound the rewards with rewards=dict("
                        "scaling='clip'), or the observations with a wrapper."
                    )
    except BaseException:
        before.put_back()
        raise


class Snapshot:
    """All that learns, as it was: to go back to, as often as need be.

    :param trainable_parts: modules with all their parts, optimisers included; other objects have nothing to keep
    """

    def __init__(self, trainable_parts: Sequence[object]) -> None:
        self.modules = [module for part in trainable_parts if isinstance(part, nn.Module) for module in part.modules()]
        self._states = [own_state(module) for module in self.modules]

    def put_back(self) -> None:
        """Restore it."""
        for module, state in zip(self.modules, self._states, strict=True):
            put_own_state(module, state)


def _is_finite(value: object) -> bool:
    """Whether tensors, alone or in tuples, are finite; other values are no statistics."""
    if isinstance(value, tuple | deque):
        return all(_is_finite(part) for part in value)
    return not isinstance(value, th.Tensor) or not value.is_floating_point() or bool(value.isfinite().all())
