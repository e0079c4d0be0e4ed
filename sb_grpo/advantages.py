"""Steps from a rollout to its advantages, and the rows that an update learns from. ``GRPO.compute_advantages`` joins them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch as th

from sb_grpo.baselines.estimation import estimate_each, features_of
from sb_grpo.collect.plan import LARGEST_REWARD, too_large
from sb_grpo.config import Rewards
from sb_grpo.maths.estimators import shape_rewards
from sb_grpo.policies import ActorPolicy
from sb_grpo.types import AdvantageOptions, Breakdown, Estimate, Estimator, Minibatch, Rollout


class TrainingBatch(NamedTuple):
    """A rollout with its advantages."""

    collected: Rollout  #: as it was handed out
    rollout: Rollout  #: with the rewards and the groups that were compared
    batch: Minibatch  #: rows without signal left out
    estimate: Estimate
    has_signal: th.Tensor  #: [n_groups] bool: the group has a spread


def total_rewards(rollout: Rollout, rewards: Rewards, objective_weights: th.Tensor | None) -> Rollout:
    """Make one reward per step: the weighted sum of the objectives, where there are any, scaled and clipped.

    :param objective_weights: ``[K]``
    """
    rollout = weighted_rewards(rollout, objective_weights)
    return rollout._replace(rewards=shape_rewards(rollout.rewards, rewards.scaling, rewards.clip))


def weighted_rewards(rollout: Rollout, weights: th.Tensor | None) -> Rollout:
    """Replace the rewards by the weighted sum of the objectives, where the rollout has any.

    :param weights: ``[K]``
    """
    return rollout if weights is None or rollout.objectives is None else rollout._replace(rewards=rollout.objectives @ weights)


def check_rewards(rollout: Rollout) -> None:
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


def estimate_advantages(
    estimator: Estimator,
    rollout: Rollout,
    policy: ActorPolicy | None,
    options: AdvantageOptions,
    rewards: Rewards,
    objective_weights: th.Tensor | None,
) -> Estimate:
    """Let the estimator judge a rollout: by its total reward, or by every objective apart.

    :param policy: whose features the values are fitted on; None: the estimator uses no values
    :param objective_weights: ``[K]``
    """
    features = features_of(policy, rollout) if policy is not None and estimator.uses_values else None
    if objective_weights is None or rewards.normalization == "sum":
        estimate: Estimate = estimator.estimate(rollout, options, features)
        return estimate
    assert rollout.objectives is not None
    columns = shape_rewards(rollout.objectives, rewards.scaling, rewards.clip).unbind(1)
    return estimate_each(estimator, rollout, options, features, columns, objective_weights)
