"""Running mean and variance of vectors, as buffers on the device."""

from __future__ import annotations

import torch as th
from torch import nn

from sb_grpo import distributed


class RunningNormalizer(nn.Module):
    """Standardise vectors by running statistics: (x - mean) / std, clipped.

    :param dim: length of the vectors
    :param clip: bound of the result, in standard deviations
    """

    mean: th.Tensor
    var: th.Tensor
    count: th.Tensor

    def __init__(self, dim: int, clip: float) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", th.zeros(dim))
        self.register_buffer("var", th.ones(dim))
        self.register_buffer("count", th.zeros(()))

    def forward(self, x: th.Tensor) -> th.Tensor:
        """Standardise.

        :param x: ``[M, dim]``
        :return: ``[M, dim]``, within [-clip, clip]
        """
        return ((x - self.mean) / (self.var + 1e-8).sqrt()).clamp(-self.clip, self.clip)

    @th.no_grad()
    def update(self, x: th.Tensor) -> None:
        """Merge a batch into mean and variance (Chan et al., 1979); with one learner it never makes the host wait.

        :param x: ``[M, dim]``; of several learners the rows of all
        """
        n, mean, var = distributed.moments(x)
        total = self.count + n
        delta = mean - self.mean
        share = n / total
        self.var.mul_(1.0 - share).add_(var * share).add_(delta.square() * share * (1.0 - share))
        self.mean.add_(delta * share)
        self.count.copy_(total)
