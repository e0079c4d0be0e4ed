"""What a run records: hyperparameters, the rollout, the update. docs/logger.md explains every key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch as th
from stable_baselines3.common.logger import HParam

from sb_grpo.collect.columns import task_names
from sb_grpo.maths.chunks import evenly_spaced, in_chunks
from sb_grpo.maths.losses import importance_ratio, kl_k3
from sb_grpo.maths.returns import episode_returns
from sb_grpo.maths.segments import segment_mean, segment_sum
from sb_grpo.types import Minibatch, Rollout, map_obs

if TYPE_CHECKING:
    from sb_grpo.grpo import GRPO

#: For what only TensorBoard can show.
NOT_PRINTED = ("stdout", "log", "json", "csv")

#: Rows that are enough for the figures of an update.
SAMPLE = 2048

HPARAMS = """
learning_rate n_steps batch_size n_epochs gamma gae_lambda clip_range clip_range_high ratio_cap group_size n_groups advantage
baseline normalize_advantage ended_members surrogate aggregation importance_level ent_coef kl_coef ref_sync_interval target_kl
max_grad_norm reward_scaling exploration_bonus tasks grouping group_weights gradient_surgery objectives objective_normalization
shared_noise restart use_sde seed n_envs
""".split()


def record_hparams(model: GRPO) -> None:
    """Constructor settings for TensorBoard's HParams tab."""
    values = {name: getattr(model, name) for name in HPARAMS}
    hparams = HParam(
        {name: value if isinstance(value, int | float | str) else str(value) for name, value in values.items()},
        {"rollout/ep_rew_mean": 0.0, "rollout/ep_len_mean": 0.0, "train/approx_kl": 0.0},
    )
    model.logger.record("hparams", hparams, exclude=NOT_PRINTED)


def note(model: GRPO, key: str, value: float, **kwargs: Any) -> None:
    """Log a value, and keep it for who looks at the rollout later; the logger forgets it when it dumps."""
    model.logger.record(key, value, **kwargs)
    model.last_figures[key] = value


def record_rollout(
    model: GRPO,
    rollout: Rollout,
    advantages: th.Tensor,
    has_signal: th.Tensor,
    explained: float | None,
    figures: Mapping[str, float],
) -> None:
    """Group health of the rollout just collected.

    :param advantages: ``[M]``
    :param has_signal: ``[n_groups]`` bool: the group has a spread
    :param explained: explained variance of the ``"state"`` baseline
    :param figures: what else the estimator has to log, by key
    """
    assert model.slots is not None
    returns = episode_returns(rollout, 1.0)
    model.last_figures = {}
    record = partial(note, model)
    record("rollout/useful_fraction", model._steps_trained / (model._steps_trained + model._steps_dropped))
    record("rollout/pending_steps", model.rollout_buffer.n_kept)
    record("rollout/n_steps", len(advantages))
    record("rollout/interruptions", model.interruptions)
    record("group/n_groups", rollout.n_groups)
    record("group/frac_zero_std", 1.0 - has_signal.float().mean().item())
    record("group/start_mismatch", model.slots.start_mismatches)
    record("group/baseline", segment_mean(returns, rollout.group, rollout.n_groups).mean().item())
    record("group/return_std", returns.std(unbiased=False).item())
    record("group/reward_mean", rollout.rewards.mean().item())
    record("group/reward_std", rollout.rewards.std(unbiased=False).item())
    record("group/advantage_mean", advantages.mean().item())
    record("group/advantage_std", advantages.std(unbiased=False).item())
    by_episode = segment_mean(advantages, rollout.episode, len(rollout.group))
    record("group/episode_advantage", by_episode.mean().item())
    model.logger.record("group/advantages", advantages, exclude=NOT_PRINTED)
    if explained is not None:
        record("train/explained_variance", explained)
    for key, value in figures.items():
        record(key, value)
    record_parts(model, rollout)


def record_parts(model: GRPO, rollout: Rollout) -> None:
    """Returns by task, of the episodes that ended in this rollout, and rewards by objective."""
    if rollout.task is not None and rollout.episode_return is not None:
        ended = rollout.terminated | rollout.truncated
        for label, name in enumerate(task_names(model.tasks)):
            returns = rollout.episode_return[ended & (rollout.task == label)]
            if len(returns):
                model.logger.record(f"task/{name}", returns.mean().item())
    if rollout.objectives is not None and model.objectives is not None:
        for name, mean in zip(model.objectives, rollout.objectives.mean(0).tolist(), strict=True):
            model.logger.record(f"objective/{name}", mean)


def record_weights(model: GRPO, shares: th.Tensor, weights: th.Tensor, row_label: th.Tensor) -> None:
    """What the group weights are.

    :param shares: ``[n]`` of the loss
    :param weights: ``[B]`` of the rows
    :param row_label: ``[B]`` label of each
    """
    if len(weights) == 0:
        return
    model.logger.record("group/weight_min", weights.min().item())
    model.logger.record("group/weight_max", weights.max().item())
    for name, weight in zip(model.grouper.names, segment_sum(weights, row_label, len(shares)).tolist(), strict=False):
        model.logger.record(f"share/{name}", weight / len(weights))


@th.no_grad()
def record_update(model: GRPO, batch: Minibatch, clip: tuple[float, float], norms: list[th.Tensor]) -> None:
    """The rollout under the updated policy: one pass, none inside the minibatch loop.

    :param batch: rows of the update; of more than ``SAMPLE`` of them, so many at equal distances are looked at
    :param clip: lower and upper clip range
    :param norms: gradient norms, one ``[P]`` tensor per gradient step
    """
    policy = model.policy
    rows = evenly_spaced(len(batch.advantages), SAMPLE, model.device)
    if model.importance_level == "step":  # episode-level ratios need all rows of an episode
        batch = Minibatch(*(map_obs(lambda x: x[rows], column) for column in batch))
    with model.autocasting():
        evaluated = in_chunks(lambda o, a: th.stack(policy.evaluate_actions(o, a), dim=1), batch.observations, batch.actions)
    log_prob, entropy = evaluated.unbind(dim=1)
    ratio = importance_ratio(log_prob - batch.old_log_probs, model.importance_level, batch.episode)
    policy_loss = (batch.weights * model.surrogate_loss(log_prob, batch, clip)).mean().item()
    entropy_loss = -(batch.weights * entropy).mean().item()
    kl_loss = 0.0
    if model.ref_policy is not None:
        with model.autocasting():
            ref_log_prob = in_chunks(model.ref_policy.log_prob, batch.observations, batch.actions)
        kl_loss = (batch.weights * kl_k3(log_prob, ref_log_prob)).mean().item()
    low, high = (ratio < 1.0 - clip[0]).float().mean().item(), (ratio > 1.0 + clip[1]).float().mean().item()
    record = partial(note, model)
    record("train/policy_gradient_loss", policy_loss)
    record("train/entropy_loss", entropy_loss)
    record("train/kl_loss", kl_loss)
    record("train/loss", policy_loss + model.ent_coef * entropy_loss + model.kl_coef * kl_loss)
    record("train/mean_entropy", entropy.mean().item())
    record("train/approx_kl", kl_k3(batch.old_log_probs, log_prob).mean().item())
    record("train/clip_fraction", low + high)
    record("train/clip_fraction_low", low)
    record("train/clip_fraction_high", high)
    if norms:
        record("train/grad_norm", th.stack(norms).norm(dim=1).mean().item())
    for key, value in model.gradient.metrics().items():
        record(key, value)
    if hasattr(policy, "log_std"):
        record("train/std", policy.log_std.exp().mean().item())
    record("train/clip_range", clip[0])
    record("train/n_updates", model._n_updates, exclude="tensorboard")
    record("train/n_gradient_steps", model._n_gradient_steps)
