"""Old log-probabilities are those of the policy that acted.

A callback may change its weights at any step, or put another policy in its place, and a network may keep statistics or draw
noise as it acts: so each step's are taken down as it is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch as th
from torch import nn

from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.maths.chunks import in_chunks
from sb_grpo.policies import ActorPolicy, EncodingPolicy

#: What two ways of computing the same may differ by, of log-probabilities and of their size.
ROUNDING, ROUNDING_BFLOAT16 = 1e-4, 0.1


def log_probs_of_actor(policy: ActorPolicy, buffer: GroupRolloutBuffer, bfloat16: bool) -> th.Tensor:
    """Log-probabilities of a rollout's actions under what chose them.

    As long as nothing has changed since, they are computed anew for all steps at once, as an update computes them: its first
    ratios are then 1 to the last digit.

    :param policy: as it is at the end of the rollout
    :param bfloat16: an update computes in it, while envs were acted on in float32
    :return: ``[time * slots]``
    """
    acted: th.Tensor = buffer.flat("log_probs")
    if isinstance(policy, EncodingPolicy):  # one row at a time would encode an instance at every step
        return acted
    if isinstance(buffer, TensorRolloutBuffer):  # has acted as updates compute, and asks no value of the device
        return acted
    with unseen(policy):
        anew = in_chunks(policy.log_prob, *buffer.new_rows())
    rounding = ROUNDING_BFLOAT16 if bfloat16 else ROUNDING
    return anew if th.allclose(anew, acted, rounding, rounding) else acted


@contextmanager
def unseen(policy: nn.Module) -> Iterator[None]:
    """What a network keeps of what it sees is afterwards as it was: to score what was done is not to see it again."""
    before = [(name, buffer, buffer.clone()) for name, buffer in policy.named_buffers()]
    try:
        yield
    finally:
        for name, buffer, values in before:
            place, _, attribute = name.rpartition(".")
            setattr(policy.get_submodule(place), attribute, buffer)
            buffer.copy_(values)
