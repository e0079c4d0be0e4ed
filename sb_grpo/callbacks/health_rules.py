"""Table of the health rules: the logged value, its bounds, and the argument to change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sb_grpo.config import FEW_STARTS


@dataclass(frozen=True)
class Rule:
    """Bounds of one logged value.

    :param name: logged as ``health/<name>``
    :param key: key of the logged value
    :param advice: one sentence: the fault and the argument to change; ``{value}`` becomes the value
    :param why: the reason for the bound
    :param low: values below it are bad
    :param high: values above it are bad
    :param relative: the bounds are multiples of the run's first positive value
    :param unless: a key; the rule does not apply to trainings that log it
    :param excused_by: a key; no value is bad while this key's value exceeds the run's first by more than half of the first
        one's size
    :param patience: consecutive bad rollouts until the rule is broken, and consecutive good ones until it holds again
    :raises ValueError: without a bound, or with a patience below 1
    """

    name: str
    key: str
    advice: str
    why: str
    low: float = -math.inf
    high: float = math.inf
    relative: bool = False
    unless: str = ""
    excused_by: str = ""
    patience: int = 3

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.low == -math.inf and self.high == math.inf):
            raise ValueError(f"Rule {self.name!r}: low={self.low}, high={self.high} bound nothing; set one, or low < high.")
        if self.patience < 1:
            raise ValueError(f"Rule {self.name!r}: patience={self.patience} must be at least 1 rollout.")

    def value(self, metrics: Mapping[str, float]) -> float:
        """Logged value of the rule; nan if it is not logged."""
        return math.nan if self.unless in metrics else float(metrics.get(self.key, math.nan))

    def is_bad(self, value: float, first: float) -> bool:
        """Whether a value is out of bounds; False for nan.

        :param value: of :meth:`value`
        :param first: the run's first positive value
        """
        unit = first if self.relative else 1.0
        return value < self.low * unit or value > self.high * unit


RULES: tuple[Rule, ...] = (
    Rule(
        "start_mismatch",
        "group/start_mismatch",
        "{value:.0f} episodes did not start where their group did: the env's reset ignores its seed, so members are not "
        "compared from equal starts; draw the start state from self.np_random after super().reset(seed=seed).",
        "Groups are episodes with one start state; a single mismatch breaks that.",
        high=0.0,
        patience=1,
    ),
    Rule(
        "dead_groups",
        "group/frac_zero_std",
        "In {value:.0%} of the groups all members earn the same and teach nothing: unless the task is solved, raise "
        "group_size or ent_coef, add an exploration bonus, or check that the reward depends on the actions.",
        "Above one half most of what was collected is thrown away; where returns have grown, a solved task looks the same.",
        high=0.5,
        excused_by="group/baseline",
    ),
    Rule(
        "few_groups",
        "group/n_starts",
        "A rollout shows only {value:.0f} different starts, so the policy learns their luck: lower group_size (None derives "
        "one), or raise n_envs or n_steps (n_groups where that is set).",
        "A mean over fewer than 8 starts says more of their luck than of the policy.",
        low=FEW_STARTS,
    ),
    Rule(
        "advantage_spread",
        "group/advantage_std",
        "The advantages have a standard deviation of {value:.3g}, where clipping and learning rates expect about 1: set "
        "normalize_advantage='group' or 'batch', or bound the rewards with rewards=dict(scaling='clip').",
        "Normalised advantages have 1; sums of normalised step rewards ('process') a few times that.",
        high=20.0,
    ),
    Rule(
        "reward_outlier",
        "group/reward_max",
        "A reward of size {value:.3g} is more than a million times the largest of the first rollout: one such step decides "
        "what the baseline expects everywhere; fix the env, or bound the rewards with rewards=dict(scaling='clip').",
        "The baseline forgets by a factor of 4 a rollout, so such a step shows in it for ten more.",
        high=1e6,
        relative=True,
        patience=1,
    ),
    Rule(
        "entropy",
        "train/mean_entropy",
        "The policy's entropy is down to {value:.2g} nats, so it tries nothing new: unless the task is solved, raise ent_coef "
        "(0.01 is usual) or lower learning_rate.",
        "0.02 nats is the other of two actions once in 400 steps.",
        low=0.02,
        unless="train/std",
    ),
    Rule(
        "noise_collapse",
        "train/std",
        "The standard deviation of the actions is down to {value:.2g}, so the policy tries nothing new: unless the task is "
        "solved, raise ent_coef or lower learning_rate.",
        "A tenth of what it began with: exploration is all but over.",
        low=0.1,
        relative=True,
    ),
    Rule(
        "noise_growth",
        "train/std",
        "The standard deviation of the actions has grown to {value:.2g}, so the policy drowns in its own noise: lower "
        "ent_coef.",
        "Three times what it began with; learning shrinks it.",
        high=3.0,
        relative=True,
    ),
    Rule(
        "kl",
        "train/approx_kl",
        "One update changes the policy by a KL of {value:.2g}, so most of a rollout is off-policy by its last epoch: lower "
        "learning_rate or n_epochs, or set target_kl=0.03.",
        "PPO's updates have 0.003 to 0.03; at 0.2 most of the rollout is off-policy by the last epoch.",
        high=0.2,
    ),
    Rule(
        "grad_norm",
        "train/grad_norm",
        "Gradients have a mean norm of {value:.3g} before clipping, so clipping alone decides the steps: lower "
        "learning_rate, or normalise the advantages and observations (normalize_advantage, normalize_obs).",
        "Advantages of order 1 give norms below 1.",
        high=20.0,
    ),
    Rule(
        "useful_fraction",
        "rollout/useful_fraction",
        "Only {value:.0%} of the steps taken are trained on: use advantage='state', which needs no whole groups, fewer envs, "
        "or an env that can be reset env by env.",
        "Below one half more is thrown away than used.",
        low=0.5,
    ),
    Rule(
        "explained_variance",
        "train/explained_variance",
        "The state baseline predicts worse than a constant (explained variance {value:.2g}): normalise the observations "
        "(VecNormalize, or policy_kwargs=dict(normalize_obs=True)), use advantage='step', or check that what decides the "
        "reward is observed.",
        "Below 0 it adds noise instead of removing it. A jump of the returns makes it dip for a rollout or two; where they "
        "have grown and all members earn the same, there is no variance left to explain.",
        low=0.0,
        excused_by="group/baseline",
        patience=5,
    ),
)


def _strict(name: str, key: str, says: str, way_out: str, **bounds: Any) -> Rule:
    return Rule(
        name, key, f"{says}: {way_out}.", "A bound for nightly runs: tighter than what usual trainings need.", **bounds
    )


#: Tighter bounds, with verdicts after one rollout: for known trainings, such as nightly ones.
STRICT_RULES: tuple[Rule, ...] = (
    next(rule for rule in RULES if rule.name == "start_mismatch"),
    _strict(
        "advantage_spread", "group/advantage_std", "The advantages have a standard deviation of {value:.3g}",
        "raise group_size, or normalise by the batch (normalize_advantage='batch')", high=3.0, patience=1,
    ),
    _strict(
        "advantage_mean", "group/episode_advantage", "The mean advantage of an episode is {value:.3g}, not about 0",
        "groups are compared with something other than their own mean; see advantage_kwargs: baseline, ended_members",
        low=-0.1, high=0.1, patience=1,
        unless="train/explained_variance",  # "state" subtracts a state value, not the mean of a group
    ),
    _strict(
        "entropy", "train/mean_entropy", "The policy's entropy is {value:.3g} nats, outside 0.1 to 3",
        "below, raise ent_coef or lower learning_rate; above, lower ent_coef", low=0.1, high=3.0, patience=1,
    ),
    _strict(
        "kl", "train/approx_kl", "One update changes the policy by a KL of {value:.2g}",
        "lower learning_rate or n_epochs, or set target_kl=0.03", high=0.1, patience=1,
    ),
    _strict(
        "grad_norm", "train/grad_norm", "Gradients have a mean norm of {value:.3g} before clipping",
        "lower learning_rate", high=2.0, patience=1,
    ),
    _strict(
        "grad_norm_high", "train/grad_norm", "Gradients have a mean norm of {value:.3g} before clipping",
        "lower max_grad_norm, bound the rewards with rewards=dict(scaling='clip'), or normalise the observations",
        high=5.0, patience=1,
    ),
)  # fmt: skip
