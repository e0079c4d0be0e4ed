"""Action distributions as plain tensor functions: the hot path of sampling and of the update.

``torch.distributions`` validates arguments and builds an object per call; with 64-64 networks that overhead is a
quarter of SB3's training time. Each head below holds the formulas of one distribution and nothing else. They are
tested against SB3's own distribution classes.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from torch.distributions import Normal
from torch.nn import functional as F

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class ActionHead(Protocol):
    """Interface of an action distribution. ``out`` is the output of the action net, ``[batch, n]``.

    Random numbers are drawn separately, so that one call draws those of many steps and the arithmetic can be compiled.
    """

    def noise(self, like: th.Tensor) -> th.Tensor:
        """Draw random numbers for :meth:`sample`.

        :param like: ``[..., n]`` tensor of the shape, type and device of ``out``
        """

    def sample(self, out: th.Tensor, noise: th.Tensor) -> th.Tensor:
        """One action per row, a function of the row's random numbers."""

    def mode(self, out: th.Tensor) -> th.Tensor:
        """The most likely action per row."""

    def log_prob(self, out: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """Log-probability (density) of each row's action, ``[batch]``."""

    def entropy(self, out: th.Tensor) -> th.Tensor | None:
        """Entropy per row in nats, ``[batch]``; None without a closed form."""


class HasLogStd(Protocol):
    """Interface: the policy's part that a head for Box actions needs."""

    log_std: th.nn.Parameter


class CategoricalHead:
    """Discrete actions; ``out`` are unnormalised log-probabilities ``[batch, n]``, actions ``[batch]`` int64."""

    def noise(self, like: th.Tensor) -> th.Tensor:
        return th.empty_like(like).exponential_().log_().neg_()

    def sample(self, out: th.Tensor, noise: th.Tensor) -> th.Tensor:
        # Gumbel-max: argmax(logits + g) with g = -log(e), e ~ Exp(1).
        return (out + noise).argmax(dim=-1)

    def mode(self, out: th.Tensor) -> th.Tensor:
        return out.argmax(dim=-1)

    def log_prob(self, out: th.Tensor, actions: th.Tensor) -> th.Tensor:
        return -F.cross_entropy(out, actions.long(), reduction="none")

    def entropy(self, out: th.Tensor) -> th.Tensor:
        log_p = F.log_softmax(out, dim=-1)
        return -(log_p.exp() * log_p).sum(dim=-1)


class MultiCategoricalHead:
    """One independent categorical per action dimension; actions ``[batch, len(sizes)]`` int64."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.head = CategoricalHead()

    def _split(self, out: th.Tensor) -> tuple[th.Tensor, ...]:
        return th.split(out, self.sizes, dim=-1)

    def noise(self, like: th.Tensor) -> th.Tensor:
        return self.head.noise(like)

    def sample(self, out: th.Tensor, noise: th.Tensor) -> th.Tensor:
        parts = zip(self._split(out), self._split(noise), strict=True)
        return th.stack([self.head.sample(part, part_noise) for part, part_noise in parts], dim=-1)

    def mode(self, out: th.Tensor) -> th.Tensor:
        return th.stack([self.head.mode(part) for part in self._split(out)], dim=-1)

    def log_prob(self, out: th.Tensor, actions: th.Tensor) -> th.Tensor:
        parts = [self.head.log_prob(part, actions[:, i]) for i, part in enumerate(self._split(out))]
        return th.stack(parts, dim=-1).sum(dim=-1)

    def entropy(self, out: th.Tensor) -> th.Tensor:
        return th.stack([self.head.entropy(part) for part in self._split(out)], dim=-1).sum(dim=-1)


class BernoulliHead:
    """Independent bits; ``out`` are logits ``[batch, n]``, actions ``[batch, n]`` of 0 and 1."""

    def noise(self, like: th.Tensor) -> th.Tensor:
        return th.rand_like(like)

    def sample(self, out: th.Tensor, noise: th.Tensor) -> th.Tensor:
        return (noise < th.sigmoid(out)).to(out.dtype)

    def mode(self, out: th.Tensor) -> th.Tensor:
        return (out > 0).to(out.dtype)

    def log_prob(self, out: th.Tensor, actions: th.Tensor) -> th.Tensor:
        return -F.binary_cross_entropy_with_logits(out, actions.to(out.dtype), reduction="none").sum(dim=-1)

    def entropy(self, out: th.Tensor) -> th.Tensor:
        return F.binary_cross_entropy_with_logits(out, th.sigmoid(out), reduction="none").sum(dim=-1)


class GaussianHead:
    """Diagonal Gaussian with a state-independent log standard deviation; ``out`` is the mean ``[batch, n]``.

    :param owner: module with ``log_std``; looked up each time, because ``torch.func`` swaps parameters
    """

    def __init__(self, owner: HasLogStd) -> None:
        self.owner = owner

    @property
    def log_std(self) -> th.Tensor:
        """Log standard deviation ``[n]``."""
        return self.owner.log_std

    def noise(self, like: th.Tensor) -> th.Tensor:
        return th.randn_like(like)

    def sample(self, out: th.Tensor, noise: th.Tensor) -> th.Tensor:
        return th.addcmul(out, noise, self.log_std.exp())

    def mode(self, out: th.Tensor) -> th.Tensor:
        return out

    def log_prob(self, out: th.Tensor, actions: th.Tensor) -> th.Tensor:
        z = (actions - out) * (-self.log_std).exp()
        return z.square().sum(dim=-1) * -0.5 - (self.log_std.sum() + HALF_LOG_2PI * self.log_std.numel())

    def entropy(self, out: th.Tensor) -> th.Tensor:
        per_row = self.log_std.sum() + (0.5 + HALF_LOG_2PI) * self.log_std.numel()
        return per_row.expand(out.shape[0])


class StateDependentNoiseHead:
    """gSDE (arXiv 2005.05719) through SB3's own distribution: the noise is a function of the policy's last layer.

    ``out`` is ``cat([mean, latent])``: the head needs both and the policy hands over one tensor.
    """

    def __init__(self, dist: StateDependentNoiseDistribution, owner: HasLogStd) -> None:
        self.dist = dist
        self.owner = owner

    def distribution(self, out: th.Tensor) -> StateDependentNoiseDistribution:
        """SB3's ``proba_distribution`` without argument validation, which makes the host wait for the device."""
        dist = self.dist
        mean = out[:, : self.dist.action_dim]
        latent = out[:, self.dist.action_dim :]
        dist._latent_sde = latent if dist.learn_features else latent.detach()
        variance = th.mm(dist._latent_sde**2, dist.get_std(self.owner.log_std) ** 2)
        dist.distribution = Normal(mean, th.sqrt(variance + dist.epsilon), validate_args=False)
        return dist

    @th.no_grad()
    def draw(self, n_envs: int) -> None:
        """SB3's ``sample_weights`` without validation: an exploration matrix per env, without gradient."""
        dist = self.dist
        std = self.dist.get_std(self.owner.log_std)
        dist.weights_dist = Normal(th.zeros_like(std), std, validate_args=False)
        dist.exploration_mat = dist.weights_dist.rsample()
        dist.exploration_matrices = dist.weights_dist.rsample(th.Size((n_envs,)))

    def noise(self, like: th.Tensor) -> th.Tensor:
        return like.new_zeros(like.shape)  # the noise is in the exploration matrices: see ActorPolicy.reset_noise

    def sample(self, out: th.Tensor, noise: th.Tensor) -> th.Tensor:
        return self.distribution(out).sample()

    def mode(self, out: th.Tensor) -> th.Tensor:
        mean = out[:, : self.dist.action_dim]  # without the distribution object, which cannot be exported
        return mean if self.dist.bijector is None else self.dist.bijector.forward(mean)

    def log_prob(self, out: th.Tensor, actions: th.Tensor) -> th.Tensor:
        return self.distribution(out).log_prob(actions)

    def entropy(self, out: th.Tensor) -> th.Tensor | None:
        return self.distribution(out).entropy()


def make_discrete_head(action_space: spaces.Space) -> ActionHead:
    """Make the head of a discrete action space.

    :param action_space: Discrete, MultiDiscrete or MultiBinary
    :return: its head
    :raises ValueError: for any other space, or one whose numbering does not start at 0
    """
    if isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete):
        if np.any(action_space.start != 0):
            raise ValueError(
                f"{action_space} starts counting at {action_space.start}; actions must start at 0. "
                "Wrap the env in a gymnasium.ActionWrapper that adds the offset."
            )
        if isinstance(action_space, spaces.Discrete):
            return CategoricalHead()
        if action_space.nvec.ndim != 1:
            raise ValueError(f"{action_space} has {action_space.nvec.ndim} axes; flatten it to one with an ActionWrapper.")
        return MultiCategoricalHead([int(n) for n in action_space.nvec])
    if isinstance(action_space, spaces.MultiBinary):
        if len(action_space.shape) != 1:
            raise ValueError(f"{action_space} has {len(action_space.shape)} axes; flatten it to one with an ActionWrapper.")
        return BernoulliHead()
    raise ValueError(
        f"Unsupported action space {action_space}. GRPO takes Box, Discrete, MultiDiscrete and MultiBinary, as SB3's PPO does."
    )
