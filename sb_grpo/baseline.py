"""The state-conditioned group baseline: what the other episodes lead one to expect from a state, solved in closed form.

b(s, t) is a ridge regression of lambda-returns on fixed features of the state. It is fitted on the last few rollouts
and used on the next one, so no episode is ever compared with itself; there is no critic network, no optimiser, and
nothing to save beside one weight vector and the statistics that standardise the features.
"""

from __future__ import annotations

import math

import torch as th
from torch import nn

from sb_grpo.advantages import AdvantageOptions, centre_and_scale, explained_variance, gae, rewards_to_go
from sb_grpo.buffers import Rollout

RIDGES = (0.1, 1.0, 10.0, 100.0, 1000.0)


class StateBaseline(nn.Module):
    """Ridge regression on [1, z, z^2, cos(W z + p)], z being standardised policy features and the step number.

    The random Fourier features (Rahimi & Recht 2007) span a Gaussian kernel of length scale ``scale * sqrt(dim)``.
    The ridge is the one among ``RIDGES`` that predicted the last rollouts best before it saw them.

    :param input_dim: size of the policy's feature vector
    :param n_features: number of random Fourier features; by default 32 per input, between 128 and 512
    :param scale: length scale of the kernel, in standard deviations per input
    :param window: rollouts that a fit remembers
    :param seed: of the random projection; the same in every run, so there is nothing to save
    """

    mean: th.Tensor
    var: th.Tensor
    count: th.Tensor
    weights: th.Tensor
    errors: th.Tensor
    projection: th.Tensor
    phase: th.Tensor

    def __init__(
        self, input_dim: int, n_features: int | None = None, scale: float = 1.0, window: int = 4, seed: int = 0
    ) -> None:
        super().__init__()
        self.dim = input_dim + 1
        self.n_features = min(max(32 * input_dim, 128), 512) if n_features is None else n_features
        self.with_squares = self.dim <= 64
        self.window = window
        size = 1 + self.dim * (1 + self.with_squares) + self.n_features
        generator = th.Generator().manual_seed(seed)
        projection = th.randn(self.dim, self.n_features, generator=generator) / (scale * math.sqrt(self.dim))
        self.register_buffer("projection", projection, persistent=False)
        phase = 2.0 * math.pi * th.rand(self.n_features, generator=generator)
        self.register_buffer("phase", phase, persistent=False)
        self.register_buffer("mean", th.zeros(self.dim))
        self.register_buffer("var", th.ones(self.dim))
        self.register_buffer("count", th.zeros(()))
        self.register_buffer("weights", th.zeros(size, len(RIDGES)))
        self.register_buffer("errors", th.zeros(len(RIDGES)))
        self._moments: list[tuple[th.Tensor, th.Tensor]] = []

    @property
    def best(self) -> int:
        """Index into ``RIDGES`` of the smallest prediction error so far."""
        return int(self.errors.argmin())

    def _standardise(self, x: th.Tensor) -> th.Tensor:
        return ((x - self.mean) / (self.var + 1e-8).sqrt()).clamp_(-5.0, 5.0)

    def phi(self, x: th.Tensor) -> th.Tensor:
        """Features of states.

        :param x: ``[M, input_dim + 1]`` policy features and the step number
        :return: ``[M, size]``
        """
        z = self._standardise(x)
        waves = th.addmm(self.phase, z, self.projection).cos_()
        parts = [z.new_ones(len(z), 1), z, *([z.square()] if self.with_squares else []), waves]
        return th.cat(parts, dim=1)

    @th.no_grad()
    def advantages(
        self, rollout: Rollout, options: AdvantageOptions, features: th.Tensor, final_features: th.Tensor
    ) -> tuple[th.Tensor, float]:
        """Advantages of a rollout under the baseline fitted on earlier ones; then refit with this one.

        :param features: ``[M, input_dim]`` of each step's observation
        :param final_features: ``[E, input_dim]`` of the observation after each episode's last step
        :return: ``[M]`` advantages, and the explained variance of the baseline before it saw this rollout
        """
        x = th.cat([features, rollout.t.unsqueeze(1).to(features.dtype)], dim=1)
        last_t = th.zeros_like(rollout.group).scatter_reduce(0, rollout.episode, rollout.t, "amax")
        x_final = th.cat([final_features, (last_t + 1).unsqueeze(1).to(features.dtype)], dim=1)
        if self.count == 0:
            self._update_statistics(x)
            phi = self.phi(x)
            # Nothing to predict with yet: the first rollout is compared with its own fit to plain returns.
            self._fit(phi, rewards_to_go(rollout, options.gamma))
            self._moments.clear()
        else:
            phi = self.phi(x)
        best = self.best
        values, final_values = phi @ self.weights, self.phi(x_final) @ self.weights[:, best]
        raw = gae(rollout, values[:, best], final_values, options.gamma, options.gae_lambda)
        target = raw + values[:, best]
        explained = explained_variance(values[:, best], target)
        self.errors.mul_(0.5).add_((values - target.unsqueeze(1)).square().mean(0) / target.var(unbiased=False).clamp(min=1e-12))
        self._fit(phi, target)
        self._update_statistics(x)
        return centre_and_scale(raw, rollout, options.normalize), explained

    def _fit(self, phi: th.Tensor, target: th.Tensor) -> None:
        self._moments = [*self._moments[-(self.window - 1) :], (phi.T @ phi, phi.T @ target)] if self.window > 1 else [
            (phi.T @ phi, phi.T @ target)
        ]
        gram = th.stack([g for g, _ in self._moments]).sum(0).double()
        moment = th.stack([m for _, m in self._moments]).sum(0).double()
        penalty = th.ones(len(gram), dtype=gram.dtype, device=gram.device)
        penalty[0] = 1e-6  # the constant is not shrunk
        systems = gram + th.diag_embed(penalty * gram.new_tensor(RIDGES).unsqueeze(1))
        solution = th.cholesky_solve(moment.expand(len(RIDGES), -1).unsqueeze(2), th.linalg.cholesky(systems))
        self.weights.copy_(solution.squeeze(2).T)

    def _update_statistics(self, x: th.Tensor) -> None:
        """Merge the batch into mean and variance (Chan et al. 1979)."""
        n, m = float(self.count), len(x)
        mean, var = x.mean(0), x.var(0, unbiased=False)
        delta = mean - self.mean
        self.var.copy_((self.var * n + var * m) / (n + m) + delta.square() * (n * m / (n + m) ** 2))
        self.mean.add_(delta * (m / (n + m)))
        self.count.add_(m)
