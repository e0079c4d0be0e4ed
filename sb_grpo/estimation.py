"""From rewards to advantages where there are several tasks or objectives: split, estimate each part, put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch as th
from torch import nn

from sb_grpo.advantages import ESTIMATORS, AdvantageOptions, shape_rewards
from sb_grpo.baseline import StateBaseline
from sb_grpo.grouping import Grouping, to_one_scale
from sb_grpo.types import NOTHING, Rollout, select_episodes
from sb_grpo.update import in_chunks
from sb_grpo.validation import check_features

if TYPE_CHECKING:
    from sb_grpo.grpo import GRPO


class Estimate(NamedTuple):
    """What an estimator says of a rollout."""

    advantages: th.Tensor  #: [M]
    explained: float | None  #: explained variance of the ``"state"`` baseline (mean over its parts)
    figures: Mapping[str, float] = NOTHING  #: what else it has to log


class Baselines(nn.ModuleList):
    """One :class:`StateBaseline` per task and objective, so that no part's errors drown another's returns.

    A fit over tasks with returns in the thousands and in the hundredths leaves residuals of the size of the former; dividing
    by each task's spread afterwards would blow them up to noise in the latter. They predict eagerly, also with ``compile=``.

    :param make: builds one baseline
    :param n_tasks: number of tasks; 1: one fit for all episodes
    :param n_objectives: number of reward columns
    """

    def __init__(self, make: Callable[[], StateBaseline], n_tasks: int, n_objectives: int) -> None:
        super().__init__(make() for _ in range(n_tasks * n_objectives))
        self.n_tasks = n_tasks

    def estimate(
        self, rollout: Rollout, options: AdvantageOptions, features: th.Tensor, final_features: th.Tensor, objective: int
    ) -> Estimate:
        """Advantages under the baselines of one objective, each task by itself.

        :param rollout: with ``task`` where there are several
        :param features: ``[M, d]`` of each step's observation
        :param final_features: ``[E, d]`` of the observation after each episode's last step
        :param objective: which reward column the rollout's rewards are
        """
        advantages, explained, figures = th.zeros_like(rollout.rewards), [], []
        task = rollout.task if self.n_tasks > 1 and rollout.task is not None else th.zeros_like(rollout.group)
        for label in th.unique(task).tolist():
            episodes = task == label
            part, rows = select_episodes(rollout, episodes)
            baseline = self[objective * self.n_tasks + label]
            assert isinstance(baseline, StateBaseline)
            advantages[rows], share = baseline.advantages(part, options, features[rows], final_features[episodes])
            explained.append(share)
            figures.append(baseline.figures)
        finite = [x for x in explained if math.isfinite(x)]
        return Estimate(advantages, sum(finite) / len(finite) if finite else math.nan, mean_figures(figures))


def mean_figures(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each figure's mean over the parts that have it."""
    found = {name: [part[name] for part in parts if name in part] for part in parts for name in part}
    return {name: sum(values) / len(values) for name, values in found.items()}


def make_state_baseline(model: GRPO, grouping: Grouping) -> StateBaseline | Baselines:
    """The baseline of ``advantage="state"`` for a model's tasks and objectives."""

    def make() -> StateBaseline:
        return StateBaseline(model.policy.features_dim, **(model.baseline_kwargs or {}))

    n_tasks = len(grouping.names) if grouping.by_task else 1
    n_objectives = len(model.objectives or {}) if model.objective_normalization == "each" else 1
    return make() if n_tasks * n_objectives == 1 else Baselines(make, n_tasks, n_objectives)


def weighted_rewards(rollout: Rollout, weights: th.Tensor | None) -> Rollout:
    """The rollout whose reward is the weighted sum of its objectives, where it has any.

    :param weights: ``[K]``
    """
    return rollout if weights is None or rollout.objectives is None else rollout._replace(rewards=rollout.objectives @ weights)


def estimate(model: GRPO, rollout: Rollout, options: AdvantageOptions, weights: th.Tensor | None) -> Estimate:
    """Advantages of a rollout by the model's estimator.

    With ``objective_normalization="each"`` every objective is estimated, and normalised, by itself; then they are summed
    by weight and brought to a spread of 1 over the rollout (GDPO, arXiv 2601.05242, section 3; rows without signal stay 0).

    :param weights: ``[K]`` weights of the objectives; None: there is one reward
    """
    one = _estimator(model, rollout, options)
    if weights is None or model.objective_normalization == "sum":
        return one(rollout, 0)
    assert rollout.objectives is not None
    columns = shape_rewards(rollout.objectives, model.reward_scaling, model.reward_clip).unbind(1)
    parts = [one(rollout._replace(rewards=rewards), k) for k, rewards in enumerate(columns)]
    total = th.stack([part.advantages for part in parts], dim=1) @ weights
    explained = [part.explained for part in parts if part.explained is not None]
    return Estimate(
        to_one_scale(total, th.zeros_like(rollout.episode), 1),
        sum(explained) / len(explained) if explained else None,
        mean_figures([part.figures for part in parts]),
    )


def _estimator(model: GRPO, rollout: Rollout, options: AdvantageOptions) -> Callable[[Rollout, int], Estimate]:
    """From a rollout and the number of its objective to advantages. The policy's features are computed once for all."""
    baseline = model.state_baseline
    if baseline is None:
        function = model.advantage if callable(model.advantage) else ESTIMATORS[model.advantage]
        return lambda part, objective: Estimate(function(part, options), None)
    features = in_chunks(model.policy.features, rollout.observations)
    final = in_chunks(model.policy.features, rollout.final_observations)
    check_features(features, final, rollout)
    if isinstance(baseline, Baselines):
        return lambda part, objective: baseline.estimate(part, options, features, final, objective)
    predict = model.captured.predict(baseline)

    def of_one(part: Rollout, objective: int) -> Estimate:
        return Estimate(*baseline.advantages(part, options, features, final, predict), baseline.figures)

    return of_one
