"""From a rollout to the rows that an update learns from: rewards, groups, advantages, weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch as th

from sb_grpo import figures as log
from sb_grpo.baselines.estimation import estimate_each, features_of
from sb_grpo.collect.plan import LARGEST_REWARD, too_large
from sb_grpo.config import Rewards
from sb_grpo.extras.exploration import Bonus, bonus_of
from sb_grpo.extras.group_weights import GroupWeights, weights_by_label
from sb_grpo.extras.grouping import Grouping
from sb_grpo.learn.losses import Loss
from sb_grpo.maths.estimators import shape_rewards
from sb_grpo.maths.losses import step_weights
from sb_grpo.maths.per_step import per_step
from sb_grpo.maths.segments import segment_mean
from sb_grpo.policies import ActorPolicy
from sb_grpo.types import AdvantageOptions, Breakdown, Estimate, Minibatch, Rollout


class Prepared(NamedTuple):
    """A rollout, judged."""

    rollout: Rollout  #: with the groups that were compared
    batch: Minibatch  #: rows without signal left out
    estimate: Estimate
    has_signal: th.Tensor  #: [n_groups] bool: the group has a spread
    figures: log.Figures  #: of bonus and group weights


class Preparation(NamedTuple):
    """Judges rollouts by what a model was told."""

    advantage: Any  #: as the user named it, for messages
    estimator: Any
    grouper: Grouping
    weighting: GroupWeights | None
    bonus: Bonus | None
    rewards: Rewards
    objective_weights: th.Tensor | None  #: [K]
    loss: Loss

    def __call__(
        self, rollout: Rollout, policy: ActorPolicy, options: AdvantageOptions, horizon: Callable[[Rollout], int]
    ) -> Prepared:
        """Advantages and row weights of a rollout.

        :param horizon: steps of the longest episode possible
        :raises ValueError: for advantages or bonuses that are not finite, or of the wrong shape
        """
        rollout = weighted_rewards(rollout, self.objective_weights)
        rollout = rollout._replace(rewards=shape_rewards(rollout.rewards, self.rewards.scaling, self.rewards.clip))
        labels = self.grouper.labels(rollout)
        rollout = self.grouper.regroup(rollout, labels)
        rewarded, figures = self._with_bonus(rollout)
        check_size(rewarded)
        estimate = self._estimate(rewarded, policy, options)
        remedy = "Check the rewards, or bound them with rewards=dict(scaling='clip')."
        what = f"advantage={self.advantage!r}"
        advantages = per_step(what, f"advantage ({self.advantage!r})", remedy, estimate.advantages, rollout)
        advantages = self.grouper.rescale(advantages, labels[rollout.episode])
        estimate = estimate._replace(advantages=advantages)
        row_group = rollout.group[rollout.episode]
        has_signal = segment_mean((advantages != 0).float(), row_group, rollout.n_groups) > 0
        batch = Minibatch(
            observations=rollout.observations,
            actions=rollout.actions,
            old_log_probs=rollout.log_probs,
            advantages=advantages,
            weights=th.ones_like(advantages),
            episode=rollout.episode,
            extra=rollout.extra,
        )
        if not bool(has_signal.all()):
            keep = has_signal[row_group].nonzero().squeeze(1)
            batch = batch.map(lambda x: x.index_select(0, keep))
        weights = step_weights(batch.episode, self.loss.aggregation, horizon(rollout))
        if self.weighting is not None:
            row_label = labels[batch.episode]
            shares, by_label = weights_by_label(self.weighting, rollout, labels, row_label)
            figures |= log.of_weights(shares, by_label, row_label, self.grouper.names)
            weights = weights * by_label
        return Prepared(rollout, batch._replace(weights=weights), estimate, has_signal, figures)

    def _with_bonus(self, rollout: Rollout) -> tuple[Rollout, log.Figures]:
        """The rollout that advantages are computed from: its rewards plus the bonus, which is logged apart."""
        if self.bonus is None:
            return rollout, {}
        bonus = bonus_of(self.bonus, rollout, self.rewards.bonus)
        return rollout._replace(rewards=rollout.rewards + bonus), log.of_bonus(bonus, rollout)

    def _estimate(self, rollout: Rollout, policy: ActorPolicy, options: AdvantageOptions) -> Estimate:
        features = features_of(policy, rollout) if self.estimator.uses_values else None
        if self.objective_weights is None or self.rewards.normalization == "sum":
            estimate: Estimate = self.estimator.estimate(rollout, options, features)
            return estimate
        assert rollout.objectives is not None
        columns = shape_rewards(rollout.objectives, self.rewards.scaling, self.rewards.clip).unbind(1)
        return estimate_each(self.estimator, rollout, options, features, columns, self.objective_weights)


def check_size(rollout: Rollout) -> None:
    """Check the rewards that advantages are computed from: weights of objectives and bonuses may have made them too large.

    :raises Breakdown: naming the step
    """
    bad = ~(rollout.rewards.abs() <= LARGEST_REWARD)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        reward = float(rollout.rewards[row])
        wrong = too_large(LARGEST_REWARD) if math.isfinite(reward) else "is not finite"
        raise Breakdown(
            f"The reward of step {int(rollout.t[row])} of an episode in group {int(rollout.group[rollout.episode[row]])} of "
            f"this rollout, objectives and bonus included, {wrong}: {reward:g}. The policy has not been updated. Bound it "
            "with rewards=dict(scaling='clip'), or lower the weights or the bonus."
        )


def weighted_rewards(rollout: Rollout, weights: th.Tensor | None) -> Rollout:
    """The rollout whose reward is the weighted sum of its objectives, where it has any.

    :param weights: ``[K]``
    """
    return rollout if weights is None or rollout.objectives is None else rollout._replace(rewards=rollout.objectives @ weights)
