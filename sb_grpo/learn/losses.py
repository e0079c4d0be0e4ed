"""The losses that ``loss=`` names, and the loss of a minibatch: surrogate + KL to a reference - entropy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch as th
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from sb_grpo import distributed
from sb_grpo.config import check_keys, read_settings, shown
from sb_grpo.maths.losses import Clip, importance_ratio, kl_k3
from sb_grpo.maths.precision import autocasting
from sb_grpo.policies import ActorPolicy
from sb_grpo.policies.extra_inputs import with_instances
from sb_grpo.types import TURN, Minibatch


@dataclass(frozen=True)
class Loss:
    """Base of the losses: which ratio they look at, and how rows add up. A loss of one's own has a method ``surrogate``."""

    #: Upper clip range (DAPO); None: as ``clip_range``.
    clip_range_high: float | Schedule | None = None
    #: ``"step"``, ``"episode"`` (DeepSeekMath) or ``"constant"`` (Dr. GRPO).
    aggregation: str = "step"
    #: Ratio per ``"step"``, per ``"episode"`` (GSPO) or per ``"turn"`` (ST-PPO; turns are numbered by ``info["turn"]``). With
    #: the latter two, minibatches hold whole episodes.
    importance_level: str = "step"
    #: Leave the rows of truncated episodes out of the update (DAPO's overlong filtering); their returns still count in the
    #: group. Where the time limit is the success, as on CartPole, this leaves out the best episodes.
    mask_truncated: bool = False
    #: Bound of the advantages, on both sides; None: off.
    advantage_clip: float | None = None
    #: Multiply the KL of ``kl_coef`` by the ratio, which makes its gradient that of the KL (DeepSeek-V3.2, arXiv 2512.02556).
    kl_correction: bool = False
    #: Rollouts after which the reference policy of ``kl_coef`` becomes the current one; None: never.
    ref_sync_interval: int | None = None
    #: Reference policy of ``kl_coef`` at the start: a policy, a model that has one, or a saved model's zip (GRPO, PPO, A2C).
    #: None: the policy itself as it is before the first update. Its weights are copied, and saved with the model.
    ref_policy: object = field(default=None, repr=False, compare=False)

    def kl(self, log_prob: th.Tensor, ratio: th.Tensor, ref_log_prob: th.Tensor) -> th.Tensor:
        """Estimate the KL of each row to the reference policy (k3).

        :param log_prob: ``[B]`` under the policy as it is now
        :param ratio: ``[B]`` of it to the policy that acted; a factor with ``kl_correction``
        :param ref_log_prob: ``[B]`` under the reference policy
        :return: ``[B]``, never negative
        """
        estimate = kl_k3(log_prob, ref_log_prob)
        return ratio * estimate if self.kl_correction else estimate

    def surrogate(self, log_prob: th.Tensor, ratio: th.Tensor, advantages: th.Tensor, clip: Clip) -> th.Tensor:
        """Loss of each row, to be minimised.

        :param log_prob: ``[B]`` under the policy as it is now
        :param ratio: ``[B]`` of it to the policy that acted
        :param advantages: ``[B]``
        :param clip: lower and upper clip range
        :return: ``[B]``
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Clipped(Loss):
    """Clipped surrogate (PPO, arXiv 1707.06347, eq. 7), with separate bounds (DAPO, arXiv 2503.14476)."""

    #: Bound of the ratio where the advantage is negative too (two-sided clip, INTELLECT-2); None: off.
    ratio_cap: float | None = None

    def surrogate(self, log_prob: th.Tensor, ratio: th.Tensor, advantages: th.Tensor, clip: Clip) -> th.Tensor:
        clip_low, clip_high = clip
        clipped_ratio = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
        if self.ratio_cap is not None:
            ratio = ratio.clamp(max=self.ratio_cap)
        return -th.min(ratio * advantages, clipped_ratio * advantages)


class Cispo(Loss):
    """REINFORCE weighted by the clipped, detached ratio (CISPO, arXiv 2506.13585): no row loses its gradient."""

    def surrogate(self, log_prob: th.Tensor, ratio: th.Tensor, advantages: th.Tensor, clip: Clip) -> th.Tensor:
        clip_low, clip_high = clip
        weight = ratio.detach().clamp(1.0 - clip_low, 1.0 + clip_high)
        return -weight * advantages * log_prob


@dataclass(frozen=True)
class Sapo(Loss):
    """Soft gate in place of the clip (SAPO, arXiv 2511.20347): -4 / tau * sigmoid(tau * (ratio - 1)) * advantage.

    At ratio 1 the gradient is that of the ratio; it fades on both sides, the faster the higher tau. The clip range has no
    part in it.
    """

    #: tau of rows with a positive advantage.
    temperature_pos: float = 1.0
    #: tau of the other rows.
    temperature_neg: float = 1.05

    def surrogate(self, log_prob: th.Tensor, ratio: th.Tensor, advantages: th.Tensor, clip: Clip) -> th.Tensor:
        tau = th.where(advantages > 0, self.temperature_pos, self.temperature_neg)
        return -4.0 / tau * th.sigmoid(tau * (ratio - 1.0)) * advantages


NAMES: dict[str, type[Loss]] = {"clip": Clipped, "cispo": Cispo, "sapo": Sapo}


def make_loss(loss: object, kwargs: Mapping[str, object] | None) -> Loss:
    """The loss that the arguments ``loss`` and ``loss_kwargs`` describe.

    :raises ValueError: for a value that is no loss, and for keyword arguments that it does not take
    """
    if isinstance(loss, Loss):
        check_keys("loss_kwargs", kwargs or {}, (), f"loss={loss!r}, which has its own settings,")
        return loss
    if not isinstance(loss, str) or loss not in NAMES:
        raise ValueError(
            f"loss={shown(loss)} is unknown; use one of {list(NAMES)}, or an object of a subclass of sb_grpo.Loss."
        )
    return read_settings("loss_kwargs", NAMES[loss], kwargs, f"loss={loss!r}")


class Objective(nn.Module):
    """Loss of a minibatch: surrogate + kl_coef * KL(policy || reference) - ent_coef * entropy, by the rows' weights.

    :param policy: that learns
    :param reference: frozen; None: no KL term
    :param loss: the surrogate
    :param ent_coef: weight of the entropy
    :param kl_coef: weight of the KL
    :param weighted: False: the rows' weights are known to be 1
    :param autocast: run the networks in bfloat16
    """

    def __init__(
        self,
        policy: ActorPolicy,
        reference: ActorPolicy | None,
        loss: Loss,
        ent_coef: float,
        kl_coef: float,
        weighted: bool,
        autocast: bool,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.reference = reference
        self.loss = loss
        self.ent_coef = ent_coef
        self.kl_coef = kl_coef
        self.weighted = weighted
        self.autocast = autocast
        self.device = policy.device  # SB3's property looks at every parameter for it
        #: Names of the learning parameters, as torch.func knows them here.
        self.names = [f"policy.{name}" for name, p in policy.named_parameters() if p.requires_grad]

    @property
    def settings(self) -> tuple[object, ...]:
        """Settings that are part of a compiled graph."""
        return self.reference is None, self.loss, self.ent_coef, self.kl_coef, self.autocast

    def looking_at_weights(self) -> Objective:
        """Return the same loss for rows whose weights are not known."""
        return Objective(self.policy, self.reference, self.loss, self.ent_coef, self.kl_coef, True, self.autocast)

    def forward(self, minibatch: Minibatch, clip: Clip) -> th.Tensor:
        """Compute the loss of some rows, a scalar.

        :param clip: lower and upper clip range
        """
        entropy = None
        observations = with_instances(minibatch.observations, minibatch.instances)
        if self.ent_coef == 0.0:
            log_prob = self.policy.log_prob(observations, minibatch.actions)
        else:
            log_prob, entropy = self.policy.log_prob_and_entropy(observations, minibatch.actions)
        # ratio between new and old policy, should be one at the first gradient step
        ratio = self.ratio(log_prob, minibatch)
        # by default PPO's: -min(ratio * advantages, clip(ratio) * advantages)
        per_step = self.loss.surrogate(log_prob, ratio, minibatch.advantages, clip)
        if self.reference is not None:
            with th.no_grad():
                ref_log_prob = self.reference.log_prob(observations, minibatch.actions)
            per_step = per_step + self.kl_coef * self.loss.kl(log_prob, ratio, ref_log_prob)
        if entropy is not None:
            per_step = per_step - self.ent_coef * entropy
        return (minibatch.weights * per_step).mean() if self.weighted else per_step.mean()

    def ratio(self, log_prob: th.Tensor, minibatch: Minibatch) -> th.Tensor:
        """Ratio of each row to the policy that acted, at the loss's importance level.

        :param log_prob: ``[B]`` under the policy as it is now
        :return: ``[B]``
        """
        log_ratio = log_prob - minibatch.old_log_probs
        return importance_ratio(log_ratio, self.loss.importance_level, minibatch.episode, minibatch.extra.get(TURN))

    def autocasting(self) -> AbstractContextManager[object]:
        """Return the context of its forward passes."""
        return autocasting(self.device, self.autocast)

    @th.no_grad()
    def approximate_kl(self, minibatch: Minibatch) -> float:
        """k3 KL between the policy that acted and the one as it is now, over some rows; those of all ranks."""
        if len(minibatch.advantages) == 0:  # of one of several learners
            return distributed.mean(minibatch.old_log_probs).item()
        with self.autocasting():
            observations = with_instances(minibatch.observations, minibatch.instances)
            log_prob = self.policy.log_prob(observations, minibatch.actions)
        divergence = kl_k3(minibatch.old_log_probs, log_prob)
        if minibatch.instances is not None:
            divergence = divergence[minibatch.episode >= 0]  # the others fill up the rows of an instance
        return distributed.mean(divergence).item()
