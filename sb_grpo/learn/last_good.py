"""The guards around what learns: bad gradients never reach the weights that are kept, nor bad rollouts what else learns."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch as th
from torch import nn

from sb_grpo.state import own_attributes, own_state, own_tensors, put_own_state


class LastGood:
    """Weights and optimiser state as they were, to return to when a gradient is not finite.

    :param policy: module with an ``optimizer`` attribute
    """

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.names, self.parameters = zip(*((n, p) for n, p in policy.named_parameters() if p.requires_grad), strict=True)
        self.weights = [p.detach().clone() for p in self.parameters]
        self.optimizer = copy.deepcopy(policy.optimizer.state_dict())

    def check(self, norms: list[th.Tensor], epoch: int) -> None:
        """Look at the gradient norms of an epoch.

        :param norms: one ``[P]`` tensor per gradient step, from :func:`clip_gradients`
        :param epoch: number of the epoch, for the message
        :raises ValueError: naming the step and the tensor; weights and optimiser are back where they were
        """
        finite = th.isfinite(th.stack(norms))
        if bool(finite.all()):
            return
        step, tensor = (~finite).nonzero()[0].tolist()
        with th.no_grad():
            for parameter, good in zip(self.parameters, self.weights, strict=True):
                parameter.copy_(good)
        self.policy.optimizer.load_state_dict(self.optimizer)
        raise ValueError(
            f"The gradient of {self.names[tensor]} was not finite in gradient step {step} of epoch {epoch}. The weights are "
            "back at their values before this update and can be saved. Lower learning_rate or max_grad_norm, or bound the "
            "rewards with rewards=dict(scaling='clip')."
        )


@contextmanager
def unharmed(learners: Sequence[Any], at_fault: str) -> Iterator[None]:
    """Put all that learns or is averaged beside the policy back where it was if something fails, or is not finite after.

    Once a running mean has seen an inf it never recovers, and nothing says so.

    :param learners: modules with all that they are made of; what is no module has nothing to lose
    :param at_fault: sentence on what the rollout holds, for the message
    :raises ValueError: naming the tensor that is not finite
    """
    modules = [module for learner in learners if isinstance(learner, nn.Module) for module in learner.modules()]
    before = [own_state(module) for module in modules]
    try:
        yield
        for module in modules:
            for name, value in [*own_tensors(module).items(), *own_attributes(module).items()]:
                if not _is_finite(value):
                    raise ValueError(
                        f"{name} of the {type(module).__name__} was not finite after this rollout. {at_fault} What was learnt "
                        "is back at what it was before it, and can be saved. Bound the rewards with rewards=dict("
                        "scaling='clip'), or the observations with a wrapper."
                    )
    except BaseException:
        for module, state in zip(modules, before, strict=True):
            put_own_state(module, state)
        raise


def _is_finite(value: Any) -> bool:
    """Of tensors, alone or in tuples; the rest is no statistic."""
    if isinstance(value, tuple | deque):
        return all(_is_finite(part) for part in value)
    return not isinstance(value, th.Tensor) or not value.is_floating_point() or bool(value.isfinite().all())
