"""Random Fourier features of states."""

from __future__ import annotations

import math

import torch as th
from torch import nn

from sb_grpo.maths.normalizer import RunningNormalizer

#: With more inputs than this, projections replace the inputs among the features.
LARGEST_LINEAR = 512


def usual_n_features(dim: int) -> int:
    """Default number of random Fourier features: 32 per input, from 128 to 512."""
    return min(max(32 * dim, 128), 512)


class KernelFeatures(nn.Module):
    """``[1, z, z^2, cos(W z + p)]`` with standardised inputs z and fixed random numbers W and p.

    The random Fourier features (Rahimi & Recht, 2007) span a Gaussian kernel of length scale ``scale * sqrt(dim)``.
    With more than 64 inputs the squares are left out; with more than 512 the projections ``W z`` replace z, because the cost
    of the fit grows with the cube of the number of features.

    :param dim: number of inputs
    :param n_features: number of random Fourier features
    :param scale: length scale of the kernel, in standard deviations per input
    :param seed: of W and p; the same in every run, so there is nothing to save
    """

    projection: th.Tensor
    phase: th.Tensor

    def __init__(self, dim: int, n_features: int, scale: float, seed: int) -> None:
        super().__init__()
        self.dim = dim
        self.with_squares = dim <= 64
        self.wide = dim > LARGEST_LINEAR
        self.size = 1 + (n_features if self.wide else dim * (1 + self.with_squares)) + n_features
        generator = th.Generator().manual_seed(seed)
        projection = th.randn(dim, n_features, generator=generator) / (scale * math.sqrt(dim))
        self.register_buffer("projection", projection, persistent=False)
        phase = 2.0 * math.pi * th.rand(n_features, generator=generator)
        self.register_buffer("phase", phase, persistent=False)
        self.normalizer = RunningNormalizer(dim, clip=5.0)

    def forward(self, x: th.Tensor) -> th.Tensor:
        """Compute features of states.

        :param x: ``[M, dim]``
        :return: ``[M, size]``
        """
        z = self.normalizer(x)
        if self.wide:
            projected = z @ self.projection
            return th.cat([z.new_ones(len(z), 1), projected, (projected + self.phase).cos_()], dim=1)
        waves = th.addmm(self.phase, z, self.projection).cos_()
        return th.cat([z.new_ones(len(z), 1), z, *([z.square()] if self.with_squares else []), waves], dim=1)
