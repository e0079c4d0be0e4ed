"""A line on each logged key for TensorBoard; docs/logger.md has the same lines."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata

#: Meaning by key, as in the table of docs/logger.md. A key that ends with a slash stands for all below it.
MEANINGS = {
    "rollout/ep_rew_mean": "mean raw return of the last `stats_window_size` episodes (from Monitor)",
    "rollout/ep_len_mean": "mean length of these episodes in steps",
    "rollout/n_starts": (
        "different starts (reset seeds) among the episodes of `rollout/ep_rew_mean`; with few starts that mean jumps, "
        "because members share their luck"
    ),
    "rollout/success_rate": "success rate of the last episodes, where the env reports `is_success`",
    "rollout/useful_fraction": "steps trained on / all steps, since the start of `learn()`",
    "rollout/pending_steps": "steps that wait for the other members of their group (whole-episode estimators)",
    "rollout/n_steps": "steps in this rollout",
    "rollout/age": 'mean number of updates that its steps have waited for their group; 0 with `"state"`',
    "rollout/age_max": "most updates that one of its steps has waited for its group",
    "rollout/interruptions": "times that something else reset or stepped the training env during a rollout; should stay 0",
    "rollout/episodes_lost": "episodes so far that ended because their worker died (`ProcessVecEnv`, `RayVecEnv`)",
    "group/n_groups": "groups with steps in this rollout",
    "group/n_starts": (
        "different starts (reset seeds) in this rollout. Fewer than 8 are warned about once, and break the health rule "
        "`few_groups`"
    ),
    "group/frac_zero_std": "share of groups whose members all earned the same; they are left out of the update",
    "group/start_mismatch": (
        "episodes so far whose first observation differed from that of their group, as the policy saw it or before the "
        "wrappers inside the env; must stay 0"
    ),
    "group/anchor_fraction": (
        "share of the steps after an episode's start whose state occurs at another step of their group; only with "
        '`advantage="anchor"`'
    ),
    "group/paired_fraction": "share of the steps with a peer at the same step; only with pairs, as the next two",
    "group/paired_coef": "mean coefficient c: near 1 if shared noise dominates, 0 if nothing is shared",
    "group/paired_variance": "variance of the residuals after / before the shared noise is taken out",
    "group/baseline": "mean undiscounted return, averaged over groups",
    "group/return_std": "standard deviation of the undiscounted returns of the rollout's episodes",
    "group/reward_mean": "mean reward per step",
    "group/reward_max": "largest size of a step's reward; beyond 1e12 the training stops and says which env sent it",
    "group/reward_std": "standard deviation of the reward per step",
    "group/weight_min": "smallest weight of a row; only with `weights`. The mean is 1",
    "group/weight_max": "largest weight of a row; only with `weights`. The mean is 1",
    "share/": "share of the loss; only with `weights` and labels that last",
    "task/": "mean undiscounted return of a task's episodes that ended in this rollout; only with `tasks`",
    "objective/": "mean reward per step for an objective, before its weight; only with `objectives`",
    "group/advantage_mean": (
        "mean advantage over the steps; near 0, except with ended members as 0, or with `outcome` if long episodes earn"
        " more"
    ),
    "group/episode_advantage": "mean over episodes of their mean advantage",
    "group/advantage_std": "standard deviation of the advantages; near 1 when normalised",
    "rollout/bonus_mean": (
        "mean exploration bonus per step (`rewards=dict(bonus=...)`); returns and `group/reward_mean` leave it out"
    ),
    "rollout/bonus_max": "largest exploration bonus of a step",
    "rollout/bonus_return": "exploration bonus summed over an episode's steps in this rollout, mean over episodes",
    "curriculum/level": "level in force in this rollout, from 0 (`CurriculumCallback`)",
    "curriculum/value": "value of the level in force, where it is a number",
    "curriculum/success_rate": "share of successes over the last `window` starts on this level; a group counts as one",
    "recovery/n": "restarts by `RecoveryCallback`",
    "recovery/lr_scale": "factor of the learning rate after restarts by `RecoveryCallback`",
    "health/n_broken": "rules of `HealthCallback` that are broken now; about the rollout before",
    "health/": "1 while the rule is broken, 0 while it is not",
    "train/explained_variance": (
        "share of the variance of lambda-returns that the `state` baseline predicted before it saw this rollout"
    ),
    "train/loss": "policy loss + `ent_coef` x entropy loss + `kl_coef` x KL loss",
    "train/policy_gradient_loss": "clipped surrogate",
    "train/entropy_loss": "minus the mean entropy, aggregated as the loss is",
    "train/mean_entropy": "mean entropy of the policy, in nats",
    "train/kl_loss": "k3 estimate of KL(policy, reference policy); 0 without a reference",
    "train/approx_kl": "k3 estimate of KL(policy before, policy after the update)",
    "train/clip_fraction": "share of steps whose ratio left the clip range",
    "train/clip_fraction_low": "share of steps whose ratio fell below `1 - clip_range`",
    "train/clip_fraction_high": "share of steps whose ratio rose above `1 + clip_range_high`",
    "train/grad_norm": "mean joint gradient norm before clipping",
    "train/conflict_rate": "share of pairs of tasks with opposed gradients; only with `surgery`",
    "train/std": "mean standard deviation of Box actions",
    "train/learning_rate": "learning rate of the update",
    "train/clip_range": "lower clip range of the update",
    "train/gamma": "discount of this rollout; only with `GammaCallback`",
    "train/n_updates": "epochs so far",
    "train/n_gradient_steps": "optimiser steps so far",
    "time/fps": "env steps per second since `learn()` began, training included",
    "time/iterations": "rollouts so far",
    "time/time_elapsed": "seconds since `learn()` began",
    "time/total_timesteps": "env steps so far",
}


def meaning(key: str) -> str | None:
    """Meaning of a logged key in Markdown; none for a key of somebody else's."""
    return MEANINGS.get(key) or MEANINGS.get(key.partition("/")[0] + "/")


class DescribedTensorBoard(TensorBoardOutputFormat):
    """SB3's TensorBoard output, with the meaning of each key beside its chart.

    TensorBoard keeps the description that it reads first for a key, and `SummaryWriter.add_scalar` takes none.

    :param output: whose event file is written on
    """

    def __init__(self, output: TensorBoardOutputFormat) -> None:
        self.writer = output.writer
        self._is_closed = False
        self._described: set[str] = set()

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Write values; a key's description before its first value."""
        new = [key for key, value in key_values.items() if self._needs_description(key, value, key_excluded[key])]
        assert self.writer.file_writer is not None
        for key in new:
            plugin = SummaryMetadata.PluginData(plugin_name="scalars")
            metadata = SummaryMetadata(summary_description=meaning(key), plugin_data=plugin)
            self.writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=key, metadata=metadata)]), step)
        self._described.update(new)
        super().write(key_values, key_excluded, step)

    def _needs_description(self, key: str, value: object, excluded: tuple[str, ...] | None) -> bool:
        shown = isinstance(value, np.ScalarType) and not isinstance(value, str) and "tensorboard" not in (excluded or ())
        return shown and key not in self._described and meaning(key) is not None


def describe_keys(logger: Logger) -> None:
    """Let a logger write the meaning of each key to TensorBoard."""
    logger.output_formats = [
        DescribedTensorBoard(output) if type(output) is TensorBoardOutputFormat else output
        for output in logger.output_formats
    ]
