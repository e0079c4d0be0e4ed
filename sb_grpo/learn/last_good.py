"""The guard around many gradient steps: bad gradients never reach the weights that are kept."""

from __future__ import annotations

import copy
from typing import Any

import torch as th


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
