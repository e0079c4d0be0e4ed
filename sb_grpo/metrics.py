"""Metrics of a run by logger key: the rollout, the update, the settings. docs/logger.md explains every key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.logger import HParam, HumanOutputFormat, Logger, TensorBoardOutputFormat

from sb_grpo import distributed
from sb_grpo.collect.host_steps import unseen
from sb_grpo.config import shown
from sb_grpo.learn.losses import Objective
from sb_grpo.learn.minibatches import sequence_numbers, some_instances
from sb_grpo.logged_keys import DescribedTensorBoard
from sb_grpo.maths.chunks import evenly_spaced, in_chunks
from sb_grpo.maths.losses import Clip, kl_k3
from sb_grpo.maths.returns import episode_returns
from sb_grpo.maths.segments import segment_mean, segment_sum
from sb_grpo.policies.extra_inputs import SEQUENCE, with_extra_inputs, with_instances
from sb_grpo.types import Estimate, Kwargs, Minibatch, Rollout, Settings, UpdateResult

Metrics = dict[str, float]

#: For what only TensorBoard can show: those of SB3's writers that are to leave it out.
NOT_PRINTED = ("stdout", "log", "json", "csv")

#: Characters of a setting that are shown whole.
LONGEST_SETTING = 2000

#: Rows that are enough for the metrics of an update.
SAMPLE = 2048


def show(logger: Logger, key: str, value: th.Tensor | HParam, step: int) -> None:
    """Write to TensorBoard alone values that only it can show: other readers expect numbers.

    :param value: for a histogram, or settings
    :param step: env steps
    """
    for output in logger.output_formats:
        if isinstance(output, TensorBoardOutputFormat):
            output.write({key: value}, {key: ()}, step)


def record_settings(logger: Logger, settings: Settings, step: int) -> None:
    """Log all settings for TensorBoard's HParams tab, if it is there.

    :param settings: by name
    :param step: env steps
    """
    outputs = [type(output) for output in logger.output_formats]
    known = {TensorBoardOutputFormat.__module__, DescribedTensorBoard.__module__}
    if any(output.__module__ not in known for output in outputs):
        show(logger, "hparams", hparams(settings), step)
    elif any(issubclass(output, TensorBoardOutputFormat) for output in outputs):
        # SB3's own writers heed exclusions, and a callback that records hparams replaces these.
        logger.record("hparams", hparams(settings), exclude=NOT_PRINTED)


def make_room(logger: Logger, keys: Iterable[str]) -> None:
    """Let printed tables show keys whole: SB3 cuts them to 36 characters, and ends a training where two become the same.

    :param keys: some of whose names are those of tasks, objectives or rules, and as long as these
    """
    longest = max((3 + len(key.rpartition("/")[2]) for key in keys), default=0)
    for output in logger.output_formats:
        if isinstance(output, HumanOutputFormat):
            output.max_length = max(output.max_length, longest)


def record(logger: Logger, metrics: Metrics) -> None:
    """Log metrics."""
    make_room(logger, metrics)
    for key, value in metrics.items():
        logger.record(key, value)


def of_episodes(episodes: Iterable[Settings] | None, successes: Iterable[float] | None) -> Metrics:
    """The metrics of the last episodes, which SB3 logs when it prints."""
    found = {
        "rollout/ep_rew_mean": [episode["r"] for episode in episodes or () if "r" in episode],
        "rollout/ep_len_mean": [episode["l"] for episode in episodes or () if "l" in episode],
        "rollout/success_rate": list(successes or ()),
    }
    metrics = {key: float(np.mean(values)) for key, values in found.items() if values}
    groups = {episode["group"] for episode in episodes or () if episode.get("group") is not None}
    return {**metrics, "rollout/n_starts": len(groups)} if groups else metrics


class Counts(NamedTuple):
    """Counts of the steps taken so far, by their fate."""

    trained: int
    dropped: int
    pending: int  #: waiting for their group to complete
    interruptions: int
    start_mismatches: int
    lost: int  #: episodes that ended with the worker that ran them
    n_starts: int  #: same-seed groups in the rollout
    age: th.Tensor  #: [M] updates since each row was collected


def as_shown(settings: Settings) -> Kwargs:
    """Settings by name; values that neither TensorBoard nor JSON can show become text."""

    def text(value: object) -> str:
        whole = str(value)
        return whole if len(whole) <= LONGEST_SETTING else shown(value)  # a list of thousands of starts

    return {name: value if isinstance(value, int | float | str) else text(value) for name, value in settings.items()}


def hparams(settings: Settings) -> HParam:
    """All settings for TensorBoard's HParams tab.

    :param settings: by name
    """
    return HParam(
        as_shown(settings),
        {"rollout/ep_rew_mean": 0.0, "rollout/ep_len_mean": 0.0, "train/approx_kl": 0.0},
    )


def of_rollout(rollout: Rollout, estimate: Estimate, has_signal: th.Tensor, counts: Counts) -> Metrics:
    """Group health of a rollout; those of several learners are one.

    :param estimate: its advantages, and further metrics of the estimator
    :param has_signal: ``[n_groups]`` bool: the group has a spread
    """
    returns = episode_returns(rollout, 1.0)
    advantages = estimate.advantages
    numbers = th.tensor([*counts[:-1], len(advantages), rollout.n_groups])
    trained, dropped, pending, interruptions, mismatches, lost, n_starts, n_steps, n_groups = distributed.total(
        numbers
    ).tolist()
    counts = Counts(trained, dropped, pending, interruptions, mismatches, lost, n_starts, counts.age)
    of_groups = segment_mean(returns, rollout.group, rollout.n_groups)
    of_episodes = segment_mean(advantages, rollout.episode, len(rollout.group))
    baseline, mean_return, reward, advantage, of_episode, age, alive = distributed.means(
        of_groups, returns, rollout.rewards, advantages, of_episodes, counts.age.float(), has_signal.float()
    )
    variances = distributed.variances(returns, rollout.rewards, advantages, known=(mean_return, reward, advantage))
    spreads = [math.sqrt(variance) for variance in variances]
    age_max, reward_max = distributed.largest(float(counts.age.max()), rollout.rewards.abs().max().item())
    metrics = {
        "rollout/useful_fraction": counts.trained / (counts.trained + counts.dropped),
        "rollout/pending_steps": counts.pending,
        "rollout/n_steps": n_steps,
        "rollout/age": age,
        "rollout/age_max": int(age_max),
        "rollout/interruptions": counts.interruptions,
        "rollout/episodes_lost": counts.lost,
        "group/n_groups": n_groups,
        "group/n_starts": n_starts,
        "group/frac_zero_std": 1.0 - alive,
        "group/start_mismatch": counts.start_mismatches,
        "group/baseline": baseline,
        "group/return_std": spreads[0],
        "group/reward_mean": reward,
        "group/reward_max": reward_max,
        "group/reward_std": spreads[1],
        "group/advantage_mean": advantage,
        "group/advantage_std": spreads[2],
        "group/episode_advantage": of_episode,
    }
    if estimate.explained is not None:
        metrics["train/explained_variance"] = estimate.explained
    return {**metrics, **estimate.metrics}


def of_parts(rollout: Rollout, tasks: Sequence[str], objectives: Sequence[str]) -> Metrics:
    """Returns by task, of the episodes that ended in this rollout, and rewards by objective.

    :param tasks: names
    :param objectives: names
    """
    metrics = {}
    if rollout.task is not None and rollout.episode_return is not None:
        ended = rollout.terminated | rollout.truncated
        for label, name in enumerate(tasks):
            returns = rollout.episode_return[ended & (rollout.task == label)]
            if distributed.count(len(returns)):
                metrics[f"task/{name}"] = distributed.mean(returns).item()
    if rollout.objectives is not None:
        for name, mean in zip(objectives, distributed.mean(rollout.objectives).tolist(), strict=False):
            metrics[f"objective/{name}"] = mean
    return metrics


def of_bonus(bonus: th.Tensor, rollout: Rollout) -> Metrics:
    """Metrics of an exploration bonus.

    :param bonus: ``[M]``
    """
    per_episode = segment_sum(bonus, rollout.episode, len(rollout.group))
    values = (("mean", bonus.mean()), ("max", bonus.max()), ("return", per_episode.mean()))
    return {f"rollout/bonus_{name}": value.item() for name, value in values}


def of_weights(shares: th.Tensor, weights: th.Tensor, row_label: th.Tensor, names: Sequence[str]) -> Metrics:
    """Metrics of the group weights.

    :param shares: ``[n]`` of the loss
    :param weights: ``[B]`` of the rows
    :param row_label: ``[B]`` label of each
    :param names: of the labels, where they have any
    """
    if len(weights) == 0:
        return {}
    by_label = segment_sum(weights, row_label, len(shares)).tolist()
    return {
        "group/weight_min": weights.min().item(),
        "group/weight_max": weights.max().item(),
        **{f"share/{name}": weight / len(weights) for name, weight in zip(names, by_label, strict=False)},
    }


@th.no_grad()
def of_update(
    objective: Objective,
    batch: Minibatch,
    clip: Clip,
    norms: list[th.Tensor],
    n_epochs: int,
    stopped_early: bool,
    rollout: Metrics,
    sequence_length: int | None = None,
) -> UpdateResult:
    """Evaluate the rollout under the updated policy: one pass, none inside the minibatch loop.

    :param batch: rows of the update; of more than ``SAMPLE`` of them, so many at equal distances are looked at
    :param clip: lower and upper clip range
    :param norms: ``[P]`` gradient norms before clipping, one tensor per gradient step
    :param n_epochs: begun
    :param stopped_early: by the KL
    :param rollout: metrics of the rollout
    :param sequence_length: of a policy with a memory: all rows are looked at, in sequences as the update saw them. A row by
        itself begins from the memory before the update, and hides the change of the memory since
    """
    if batch.instance is not None:
        batch = some_instances(batch, SAMPLE)
    elif sequence_length is not None:
        sequence = {SEQUENCE: sequence_numbers(batch.episode, sequence_length)}
        batch = batch._replace(observations=with_extra_inputs(batch.observations, sequence))
    elif objective.loss.importance_level == "step":  # other ratios need all rows of an episode
        rows = evenly_spaced(len(batch.advantages), SAMPLE, batch.advantages.device)
        batch = batch.map(lambda x: x[rows])
    policy = objective.policy
    reference = objective.reference

    def evaluate(fn: Callable[..., th.Tensor]) -> th.Tensor:
        if batch.instances is None:
            return in_chunks(fn, batch.observations, batch.actions)
        return fn(with_instances(batch.observations, batch.instances), batch.actions)

    with objective.autocasting(), unseen(policy):
        evaluated = evaluate(lambda o, a: th.stack(policy.log_prob_and_entropy(o, a), dim=1))
    log_prob, entropy = evaluated.unbind(dim=1)
    ratio = objective.ratio(log_prob, batch)
    surrogate = objective.loss.surrogate(log_prob, ratio, batch.advantages, clip)
    columns = [
        batch.weights * surrogate, batch.weights * entropy, entropy,
        kl_k3(batch.old_log_probs, log_prob), (ratio < 1.0 - clip[0]).float(), (ratio > 1.0 + clip[1]).float(),
    ]  # fmt: skip
    if reference is not None:
        with objective.autocasting():
            ref_log_prob = evaluate(reference.log_prob)
        columns.append(batch.weights * objective.loss.kl(log_prob, ratio, ref_log_prob))
    if batch.instances is not None:
        columns = [column[batch.episode >= 0] for column in columns]  # the others fill up the rows of an instance
    policy_loss, weighted_entropy, mean_entropy, approx_kl, low, high, *reference_kl = distributed.means(*columns)
    entropy_loss = -weighted_entropy
    kl_loss = sum(reference_kl)
    return UpdateResult(
        policy_loss=policy_loss,
        entropy_loss=entropy_loss,
        kl_penalty=kl_loss,
        total_loss=policy_loss + objective.ent_coef * entropy_loss + objective.kl_coef * kl_loss,
        grad_norm=th.stack(norms).norm(dim=1).mean().item() if norms else math.nan,
        mean_entropy=mean_entropy,
        approx_kl=approx_kl,
        clip_fraction=low + high,
        clip_fraction_low=low,
        clip_fraction_high=high,
        n_epochs=n_epochs,
        n_gradient_steps=len(norms),
        stopped_early=stopped_early,
        **of_the_rollout(rollout),
    )


def nothing_to_learn(rollout: Metrics) -> UpdateResult:
    """The result of an update whose rollout had no signal."""
    return UpdateResult(**of_the_rollout(rollout))


def of_the_rollout(metrics: Metrics) -> Kwargs:
    """Those fields of an :class:`UpdateResult` that tell of its rollout."""
    return {name: metrics.get(key, math.nan) for name, key in OF_THE_ROLLOUT.items()}


#: Fields of an :class:`UpdateResult` that tell of its rollout, and their logger keys.
OF_THE_ROLLOUT = {
    "group_baseline": "group/baseline",
    "mean_reward": "group/reward_mean",
    "reward_std": "group/reward_std",
    "mean_advantage": "group/advantage_mean",
    "advantage_std": "group/advantage_std",
}
#: Fields that tell of the update, and their logger keys.
OF_THE_UPDATE = {
    "policy_loss": "train/policy_gradient_loss",
    "entropy_loss": "train/entropy_loss",
    "kl_penalty": "train/kl_loss",
    "total_loss": "train/loss",
    "mean_entropy": "train/mean_entropy",
    "approx_kl": "train/approx_kl",
    "clip_fraction": "train/clip_fraction",
    "clip_fraction_low": "train/clip_fraction_low",
    "clip_fraction_high": "train/clip_fraction_high",
    "grad_norm": "train/grad_norm",
}


def by_key(result: UpdateResult) -> Metrics:
    """Metrics of an update; a gradient norm only where there was a step."""
    metrics = {key: getattr(result, name) for name, key in OF_THE_UPDATE.items()}
    if result.n_gradient_steps == 0:
        del metrics["train/grad_norm"]
    return metrics
