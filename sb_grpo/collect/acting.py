"""Which weights took which steps: old log-probabilities are those of the policy that acted.

They are computed for many steps at once, after them. That is the same only as long as nobody changes the weights, which a
callback may do at any step: a schedule of the standard deviation, a return to better weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch as th

from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.policies import ActorPolicy


class Acting:
    """Log-probabilities of a rollout's steps, each under the weights that it was taken with.

    :param policy: acts
    :param buffer: has the steps, none so far
    """

    def __init__(self, policy: ActorPolicy, buffer: GroupRolloutBuffer) -> None:
        self.policy, self.buffer = policy, buffer
        self.parameters = list(policy.parameters())
        #: Place of what callbacks change by hand, often in ways that a version does not tell of (``log_std.data``).
        self.by_hand = next((i for i, p in enumerate(self.parameters) if p is getattr(policy, "log_std", None)), None)
        self._note_weights()
        #: Steps per env that were taken with earlier weights, and those; they may not be in the buffer yet.
        self._earlier: tuple[int, list[th.Tensor]] | None = None
        self._done, self._parts = 0, list[th.Tensor]()

    def look(self, n_steps: int) -> None:
        """Somebody had the policy in hand: see whether its weights are what they were.

        :param n_steps: per env that have been taken in this rollout
        """
        i = self.by_hand
        if self._versions() == self._noted and (i is None or th.equal(self.parameters[i], self._weights[i])):
            return
        self._settle()
        self._earlier = n_steps, self._weights
        self._note_weights()

    def log_probs(self) -> th.Tensor:
        """``[time * slots]``, of all steps of the rollout, before anybody else has the policy in hand."""
        self._settle()
        rest = self.buffer.log_probs_of(self.policy.log_prob, self._done)
        return th.cat([*self._parts, rest]) if self._parts else rest

    def _versions(self) -> int:
        """Grows whenever weights are changed in place."""
        return sum(p._version for p in self.parameters)

    def _note_weights(self) -> None:
        self._noted = self._versions()
        self._weights = [p.detach().clone() for p in self.parameters]

    def _settle(self) -> None:
        """Steps of earlier weights are in the buffer by now."""
        if self._earlier is None:
            return
        n_steps, weights = self._earlier
        with _having(self.parameters, weights):
            self._parts.append(self.buffer.log_probs_of(self.policy.log_prob, self._done, n_steps))
        self._done, self._earlier = n_steps, None


@contextmanager
def _having(parameters: Sequence[th.nn.Parameter], weights: Sequence[th.Tensor]) -> Iterator[None]:
    """Parameters with other values; where they are in memory does not change, nor do their versions."""
    now = [p.data for p in parameters]
    for parameter, value in zip(parameters, weights, strict=True):
        parameter.data = value
    try:
        yield
    finally:
        for parameter, value in zip(parameters, now, strict=True):
            parameter.data = value
