"""Which weights took which steps: old log-probabilities are those of the policy that acted.

They are computed for many steps at once, after them. That is the same only as long as nobody changes the weights, which a
callback may do at any step: a schedule of the standard deviation, noise on the weights, a return to better ones. A features
extractor may do so too, by statistics that it keeps of what it sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch as th
from torch import nn

from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.policies import ActorPolicy

Tensors = dict[str, th.Tensor]

#: Buffers that change between rollouts only.
OURS = "obs_normalizer."


class Acting:
    """Log-probabilities of a rollout's steps, each under the weights that it was taken with.

    :param policy: acts
    :param buffer: has the steps, none so far
    :param in_hand: of somebody who may replace tensors, or change them in ways that no version tells of (``.data``)
    """

    def __init__(self, policy: ActorPolicy, buffer: GroupRolloutBuffer, in_hand: bool = True) -> None:
        self.policy, self.buffer = policy, buffer
        #: A network may do so too.
        self.closely = in_hand or any(not name.startswith(OURS) for name, _ in policy.named_buffers())
        self._note_weights()
        #: Steps per env that were taken with earlier weights, and those; they may not be in the buffer yet.
        self._earlier: tuple[int, Tensors] | None = None
        self._done, self._parts = 0, list[th.Tensor]()

    def look(self, n_steps: int) -> None:
        """Somebody had the policy in hand: see whether its weights are what they were.

        :param n_steps: per env that have been taken in this rollout
        :raises ValueError: where there are others than before
        """
        if self._versions() == self._noted and not (self.closely and self._differ()):
            return
        self._settle()
        self._earlier = n_steps, self._values
        self._note_weights()

    def log_probs(self) -> th.Tensor:
        """``[time * slots]``, of all steps of the rollout, before anybody else has the policy in hand."""
        self._settle()
        if self._done < self.buffer.pos:
            self._parts.append(self.buffer.log_probs_of(self.policy.log_prob, self._done))
        return self._parts[0] if len(self._parts) == 1 else th.cat(self._parts)

    def _versions(self) -> int:
        """Grows whenever weights are changed in place."""
        return sum(tensor._version for tensor in self._counted)

    def _differ(self) -> bool:
        now = tensors_of(self.policy)
        others = [name for name in now.keys() ^ self._tensors.keys() if isinstance((now | self._tensors)[name], nn.Parameter)]
        if others:
            names = ", ".join(sorted(others))
            raise ValueError(
                f"The policy has got or lost weights ({names}) in mid-rollout, and the log-probabilities of the steps so far "
                "cannot be had without the former ones: let the callback do so in _on_rollout_start()."
            )
        if now.keys() != self._tensors.keys():  # buffers that a network makes when it is first used
            return True
        for name, tensor in now.items():
            if tensor is not self._tensors[name] or not th.equal(tensor, self._values[name]):
                return True
        return False

    def _note_weights(self) -> None:
        self._tensors = tensors_of(self.policy)
        self._counted = [tensor for tensor in self._tensors.values() if not tensor.is_inference()]  # others have no version
        self._noted = self._versions()
        self._values = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}

    def _settle(self) -> None:
        """Steps of earlier weights are in the buffer by now."""
        if self._earlier is None:
            return
        n_steps, values = self._earlier
        with _having(self.policy, values):
            self._parts.append(self.buffer.log_probs_of(self.policy.log_prob, self._done, n_steps))
        self._done, self._earlier = n_steps, None


def tensors_of(policy: nn.Module) -> Tensors:
    """Parameters and buffers by name."""
    return {**dict(policy.named_parameters()), **dict(policy.named_buffers())}


@contextmanager
def _having(policy: nn.Module, values: Mapping[str, th.Tensor]) -> Iterator[None]:
    """A policy with other values; where its parameters are in memory does not change, nor do their versions."""
    now = tensors_of(policy)
    parameters = {name: tensor.data for name, tensor in now.items() if isinstance(tensor, nn.Parameter)}
    buffers = {name: tensor for name, tensor in now.items() if name not in parameters and name in values}
    try:
        for name in parameters:
            now[name].data = values[name]
        for name in buffers:  # which a network may change as it runs
            _put(policy, name, values[name].clone())
        yield
    finally:
        for name, data in parameters.items():
            now[name].data = data
        for name, tensor in buffers.items():
            _put(policy, name, tensor)


def _put(policy: nn.Module, name: str, tensor: th.Tensor) -> None:
    place, _, attribute = name.rpartition(".")
    setattr(policy.get_submodule(place), attribute, tensor)
