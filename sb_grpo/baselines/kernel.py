"""Features of states that span a kernel, and the metric of that kernel, which follows what the fit on them says.

A kernel that is equally wide in all directions wastes its features where the values hardly change. The average outer product
of the fitted function's gradients says in which directions they do (Radhakrishnan et al., 2024, "Mechanism for feature
learning in neural networks and backpropagation-free machine learning models"); stretched by its root, a third of the
features predicts better. It is feature learning in closed form: one matrix, no optimiser.
"""

from __future__ import annotations

import math
from typing import Any

import torch as th
from torch import nn

from sb_grpo import ranks
from sb_grpo.maths.normalizer import RunningNormalizer

#: Share of the identity in the metric (what the fit does not look at now, it may need later), and weight of the metric before.
ISOTROPIC, METRIC_MEMORY = 0.1, 0.5
#: More inputs than this keep the metric they have: its root would cost more than it saves.
LARGEST_METRIC = 512
#: More inputs than this are not features themselves; no fewer than have a metric, whose slopes need them.
LARGEST_LINEAR = 512


def usual_n_features(dim: int, at_most: int = 512) -> int:
    """Random Fourier features that do for ``dim`` inputs: 32 per input, from 128 to ``at_most``."""
    return min(max(32 * dim, 128), at_most)


class KernelFeatures(nn.Module):
    """``[1, z, z^2, cos(W R z + p)]``, z being standardised inputs, W fixed random numbers and R the root of the metric.

    The random Fourier features (Rahimi & Recht, 2007) span a Gaussian kernel of length scale ``scale * sqrt(dim)``, on average
    over the directions. Squares are left out where there are more than 64 inputs, and with more than 512 the projections
    ``W z`` stand in for z: the cost of the fit grows with the cube of the number of features.

    :param dim: number of inputs
    :param n_features: number of random Fourier features
    :param scale: length scale of the kernel, in standard deviations per input
    :param learn_metric: have a metric, which :meth:`follow` changes; without it, or with too many inputs, R = 1
    :param seed: of W; the same in every run, so that only the metric is saved
    """

    directions: th.Tensor
    projection: th.Tensor
    phase: th.Tensor
    metric: th.Tensor | None

    def __init__(self, dim: int, n_features: int, scale: float, learn_metric: bool, seed: int) -> None:
        super().__init__()
        self.dim, self.with_squares = dim, dim <= 64
        self.wide = dim > LARGEST_LINEAR
        self.size = 1 + (n_features if self.wide else dim * (1 + self.with_squares)) + n_features
        generator = th.Generator().manual_seed(seed)
        directions = th.randn(dim, n_features, generator=generator) / (scale * math.sqrt(dim))
        self.register_buffer("directions", directions, persistent=False)
        self.register_buffer("projection", directions.clone(), persistent=False)
        phase = 2.0 * math.pi * th.rand(n_features, generator=generator)
        self.register_buffer("phase", phase, persistent=False)
        self.normalizer = RunningNormalizer(dim, clip=5.0)
        self.register_buffer("metric", th.eye(dim) if learn_metric and dim <= LARGEST_METRIC else None)

    def forward(self, x: th.Tensor) -> th.Tensor:
        """Features of states.

        :param x: ``[M, dim]``
        :return: ``[M, size]``
        """
        z = self.normalizer(x)
        if self.wide:
            projected = z @ self.projection
            return th.cat([z.new_ones(len(z), 1), projected, (projected + self.phase).cos_()], dim=1)
        waves = th.addmm(self.phase, z, self.projection).cos_()
        return th.cat([z.new_ones(len(z), 1), z, *([z.square()] if self.with_squares else []), waves], dim=1)

    def slopes(self, x: th.Tensor, weights: th.Tensor) -> th.Tensor:
        """Gradients by z of a function that is linear in the features.

        :param x: ``[M, dim]``
        :param weights: ``[size]``
        :return: ``[M, dim]``
        """
        z = self.normalizer(x)
        parts = [self.dim, self.dim * self.with_squares, self.projection.shape[1]]
        linear, squares, waves = th.split(weights[1:], parts)  # type: ignore[no-untyped-call]
        slopes: th.Tensor = linear - (th.addmm(self.phase, z, self.projection).sin_() * waves) @ self.projection.T
        return slopes.addcmul_(squares, z, value=2.0) if self.with_squares else slopes

    def follow(self, x: th.Tensor, weights: th.Tensor) -> bool:
        """Move the metric towards the average outer product of a function's gradients; features change with it.

        :param x: ``[M, dim]`` states to average over
        :param weights: ``[size]`` of the function
        :return: whether the features have changed: not where there is no metric, or the function is constant
        """
        if self.metric is None:
            return False
        slopes = self.slopes(x, weights)
        outer = ranks.total(slopes.T @ slopes)
        total = float(outer.trace())
        if not total > 0.0 or not math.isfinite(total):
            return False
        self.metric.lerp_(outer * (self.dim / total), 1.0 - METRIC_MEMORY)
        self._project()
        return True

    def _project(self) -> None:
        """Directions stretched by the root of the metric; its trace stays ``dim``, so the mean length scale does not move."""
        assert self.metric is not None
        stretch = self.metric.double() * (1.0 - ISOTROPIC)
        stretch.diagonal().add_(ISOTROPIC)
        spread, axes = th.linalg.eigh(stretch)
        root = (axes * spread.clamp(min=0.0).sqrt()) @ axes.T
        self.projection.copy_(root.to(self.directions.dtype) @ self.directions)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        if self.metric is not None:
            self._project()
