"""Estimate advantages per task and objective, and combine them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch as th
from torch import nn

from sb_grpo.baselines.state import StateBaseline
from sb_grpo.maths.chunks import CHUNK, in_chunks
from sb_grpo.maths.estimators import to_one_scale
from sb_grpo.maths.segments import rows_by_instance
from sb_grpo.policies.extra_inputs import with_instances
from sb_grpo.types import AdvantageOptions, Breakdown, Estimate, Estimator, Features, Obs, Rollout, map_obs, select_episodes

if TYPE_CHECKING:
    from sb_grpo.policies.actor import ActorPolicy

#: Largest feature whose square, summed over a rollout, fits in float32.
LARGEST_FEATURE = 1e17


class Baselines(nn.ModuleList):
    """One :class:`StateBaseline` per task and objective, so that no part's errors drown another's returns.

    A fit over tasks with returns in the thousands and in the hundredths leaves residuals of the size of the former. Dividing
    by each task's spread would turn them into noise for the latter. Predicts eagerly, also with ``compile=``.

    :param make: builds one baseline
    :param n_tasks: number of tasks; 1: one fit for all episodes
    :param n_objectives: number of reward columns
    """

    uses_values = True
    whole_episodes = False
    needs_other_members = False

    def __init__(self, make: Callable[[], StateBaseline], n_tasks: int, n_objectives: int) -> None:
        super().__init__(make() for _ in range(n_tasks * n_objectives))
        self.n_tasks = n_tasks

    def estimate(self, rollout: Rollout, options: AdvantageOptions, features: Features | None, objective: int = 0) -> Estimate:
        """Estimate advantages under the baselines of one objective, each task separately.

        :param rollout: with ``task`` if there are several
        :param features: of its observations
        :param objective: index of the reward column in the rollout's rewards
        """
        assert features is not None
        advantages = th.zeros_like(rollout.rewards)
        explained = []
        metrics = []
        task = rollout.task if self.n_tasks > 1 and rollout.task is not None else th.zeros_like(rollout.group)
        for label in th.unique(task).tolist():
            episodes = task == label
            part, rows = select_episodes(rollout, episodes)
            baseline = self[objective * self.n_tasks + label]
            assert isinstance(baseline, StateBaseline)
            advantages[rows], share = baseline.advantages(part, options, features.steps[rows], features.final[episodes])
            explained.append(share)
            metrics.append(baseline.metrics)
        finite = [x for x in explained if math.isfinite(x)]
        return Estimate(advantages, sum(finite) / len(finite) if finite else math.nan, mean_metrics(metrics))


def mean_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each figure over the parts that have it."""
    found = {name: [part[name] for part in parts if name in part] for part in parts for name in part}
    return {name: sum(values) / len(values) for name, values in found.items()}


def features_of(policy: ActorPolicy, rollout: Rollout) -> Features:
    """Compute the policy's features of a rollout's observations, the inputs of values.

    :raises Breakdown: if a feature or its square is not finite
    """
    policy.set_training_mode(False)  # a rollout may be judged after an update
    if rollout.instance is None:
        features = in_chunks(policy.features, rollout.observations)
        final = in_chunks(policy.features, rollout.final_observations)
    else:
        features = features_of_instances(policy, rollout.observations, rollout.instance[rollout.episode], rollout.instances)
        final = features_of_instances(policy, rollout.final_observations, rollout.instance, rollout.instances)
    check_features(features, final, rollout)
    return Features(features, final)


@th.no_grad()
def features_of_instances(policy: ActorPolicy, observations: Obs, instance: th.Tensor, instances: Obs) -> th.Tensor:
    """Compute the features of rows that belong to problem instances, each of which is encoded once.

    :param observations: of M rows
    :param instance: ``[M]`` row of ``instances``, equal ones adjacent
    :param instances: ``[n, ...]``
    :return: ``[M, d]``
    """
    by_instance = rows_by_instance(instance)
    n, length = by_instance.row.shape
    parts = []
    for chosen in th.split(th.arange(n, device=instance.device), max(1, CHUNK // length)):
        rows = by_instance.row[chosen].flatten()
        own = map_obs(lambda x: x.index_select(0, by_instance.instance[chosen]), instances)  # noqa: B023
        seen = with_instances(map_obs(lambda x: x.index_select(0, rows), observations), own)  # noqa: B023
        parts.append(policy.features(seen)[by_instance.is_there[chosen].flatten()])
    return th.cat(parts)


def estimate_each(
    estimator: Estimator,
    rollout: Rollout,
    options: AdvantageOptions,
    features: Features | None,
    columns: Sequence[th.Tensor],
    weights: th.Tensor,
) -> Estimate:
    """Estimate and normalise each objective separately, sum by weight, and scale to a spread of 1 over the rollout.

    GDPO, arXiv 2601.05242, section 3. Rows without signal stay 0.

    :param columns: K reward columns, ``[M]`` each
    :param weights: ``[K]``
    """
    parts = [estimator.estimate(rollout._replace(rewards=rewards), options, features, k) for k, rewards in enumerate(columns)]
    total = th.stack([part.advantages for part in parts], dim=1) @ weights
    explained = [part.explained for part in parts if part.explained is not None]
    return Estimate(
        to_one_scale(total, th.zeros_like(rollout.episode), 1),
        sum(explained) / len(explained) if explained else None,
        mean_metrics([part.metrics for part in parts]),
    )


def check_features(features: th.Tensor, final_features: th.Tensor, rollout: Rollout) -> None:
    """Check that the state baseline can standardise its inputs: they and their squares must be finite.

    :param features: ``[M, d]`` the policy's features of each step's observation
    :param final_features: ``[E, d]`` of the observation after each episode's last step
    :raises Breakdown: naming the step, the component and its value
    """
    for values, group, t in ((features, rollout.group[rollout.episode], rollout.t), (final_features, rollout.group, None)):
        bad = ~(values.abs() <= LARGEST_FEATURE)
        if bool(bad.any()):
            row, component = bad.nonzero()[0].tolist()
            when = f"of step {int(t[row])}" if t is not None else "after the last step"
            raise Breakdown(
                f"Feature {component} {when} of an episode in group {int(group[row])} of this rollout is "
                f"{float(values[row, component]):g}, but the fit of values needs it within +-{LARGEST_FEATURE:g}. The "
                "policy has not been updated. Features are what its features extractor makes of an observation (float32): "
                "bound or scale the observation in the env or with a wrapper, or check the extractor."
            )
