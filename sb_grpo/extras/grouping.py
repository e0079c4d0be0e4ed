"""Groupings: which episodes of a rollout are compared with each other.

The default is the group that shares a reset seed. Every other grouping writes its own numbers into ``Rollout.group``;
the estimators then run unchanged. ``normalize_advantage="group"`` means z-scores within these groups.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch as th
from gymnasium import spaces
from torch import nn

from sb_grpo.config import Multitask, check_settings
from sb_grpo.envs.random import mix
from sb_grpo.maths.estimators import to_one_scale
from sb_grpo.maths.returns import episode_returns
from sb_grpo.maths.segments import segment_mean, segment_std, segment_sum
from sb_grpo.policies.extra_inputs import env_part
from sb_grpo.types import Rollout


class Grouping:
    """Base of all groupings."""

    #: Names of the labels if a label means the same in every rollout, else ().
    names: tuple[str, ...] = ()
    #: Labels are the declared tasks: ``"state"`` then fits one baseline per task.
    by_task = False

    def labels(self, rollout: Rollout) -> th.Tensor:
        """``[E]`` int64 label of each episode, 0 or more, in any order; used for weights and logs."""
        raise NotImplementedError

    def regroup(self, rollout: Rollout, labels: th.Tensor) -> Rollout:
        """Use these labels as the rollout's groups; labels without an episode make no empty group."""
        present, group = th.unique(labels, return_inverse=True)
        return rollout._replace(group=group, n_groups=len(present))

    def rescale(self, advantages: th.Tensor, row_labels: th.Tensor) -> th.Tensor:
        """Rescale the estimator's advantages; unchanged by default.

        :param advantages: ``[M]``
        :param row_labels: ``[M]`` label of each row's episode
        :return: ``[M]``
        """
        return advantages


class BySeed(Grouping):
    """Episodes that share a reset seed: the groups as they were collected."""

    def labels(self, rollout: Rollout) -> th.Tensor:
        return rollout.group

    def regroup(self, rollout: Rollout, labels: th.Tensor) -> Rollout:
        return rollout


class ByTask(Grouping):
    """Episodes of one task.

    :param names: of the declared tasks
    """

    by_task = True

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def labels(self, rollout: Rollout) -> th.Tensor:
        assert rollout.task is not None
        return rollout.task


class Hierarchical(ByTask):
    """Same-seed groups within tasks: z-scores within the seed group, then one scale for all tasks."""

    def regroup(self, rollout: Rollout, labels: th.Tensor) -> Rollout:
        return rollout

    def rescale(self, advantages: th.Tensor, row_labels: th.Tensor) -> th.Tensor:
        return to_one_scale(advantages, row_labels, len(self.names))


class ByQuantile(Grouping):
    """Episodes of similar return (``"difficulty"``) or length, split at the rollout's quantiles.

    :param what: function from a rollout to the sorted quantity of each episode, ``[E]``
    :param n_quantiles: number of groups
    :raises ValueError: for fewer than 2
    """

    def __init__(self, what: Callable[[Rollout], th.Tensor], n_quantiles: int = 4) -> None:
        check_settings("multitask: grouping_kwargs", {"n_quantiles": n_quantiles})
        self.what = what
        self.n_quantiles = n_quantiles
        self.names = tuple(f"quantile_{i}" for i in range(n_quantiles))

    def labels(self, rollout: Rollout) -> th.Tensor:
        values = self.what(rollout)
        places = th.arange(1, self.n_quantiles, device=values.device, dtype=values.dtype) / self.n_quantiles
        return th.bucketize(values, th.quantile(values, places))


def undiscounted_returns(rollout: Rollout) -> th.Tensor:
    """``[E]`` sum of the rewards of each episode in this rollout."""
    return episode_returns(rollout, 1.0)


def lengths(rollout: Rollout) -> th.Tensor:
    """``[E]`` float32 steps of each episode in this rollout."""
    return segment_sum(th.ones_like(rollout.rewards), rollout.episode, len(rollout.group))


class ByFunction(Grouping):
    """Episodes with the same label from a user function.

    :param fn: from a rollout to ``[E]`` int64 labels; with an attribute ``n_labels``, its labels 0 to n_labels - 1 mean the
        same in every rollout
    """

    def __init__(self, fn: Callable[[Rollout], th.Tensor]) -> None:
        self.fn = fn
        self.names = tuple(f"label_{i}" for i in range(getattr(fn, "n_labels", 0)))

    def labels(self, rollout: Rollout) -> th.Tensor:
        labels = self.fn(rollout)
        expected = tuple(rollout.group.shape)
        if not isinstance(labels, th.Tensor) or labels.dtype != th.int64 or tuple(labels.shape) != expected:
            got = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, th.Tensor) else type(labels).__name__
            raise ValueError(
                f"grouping={self.fn!r} returned {got}; it must return one label per episode: a torch int64 tensor {expected}."
            )
        low = int(labels.min())
        high = int(labels.max())
        if low < 0 or (self.names and high >= len(self.names)):
            upper = f" and at most n_labels - 1 = {len(self.names) - 1}" if self.names else ""
            raise ValueError(f"grouping={self.fn!r} returned labels from {low} to {high}; they must be at least 0{upper}.")
        return labels


#: Vector observations with more components are not part of the features of episodes.
MAX_OBSERVATION = 64


def n_episode_features(space: spaces.Space) -> int:
    """Length of :func:`episode_features` for an observation space."""
    vector = isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0] <= MAX_OBSERVATION
    return 4 + (2 * space.shape[0] if vector else 0)  # type: ignore[index]


def episode_features(rollout: Rollout, n_features: int) -> th.Tensor:
    """Features of episodes: return, length, mean and std of the rewards; mean and std of vector observations.

    :param n_features: of :func:`n_episode_features`
    :return: ``[E, n_features]`` float32
    """
    episode = rollout.episode
    n = len(rollout.group)
    rewards = rollout.rewards
    columns = [
        segment_sum(rewards, episode, n), lengths(rollout), segment_mean(rewards, episode, n), segment_std(rewards, episode, n)
    ]  # fmt: skip
    if n_features > len(columns):
        for x in env_part(rollout.observations).float().unbind(1):
            columns += [segment_mean(x, episode, n), segment_std(x, episode, n)]
    return th.stack(columns, dim=1)


class Clusters(nn.Module, Grouping):
    """Clusters of similar episodes, followed over time: k-means on standardised features of the last ``window`` episodes.

    Mini-batch k-means (Sculley, 2010; scikit-learn's) takes one step per rollout from the previous centres, so that a cluster
    keeps its number. While the window holds fewer episodes than clusters, all episodes are one group. Window and centres are
    buffers, saved with the model.

    :param n_features: of :func:`n_episode_features`
    :param seed: of the first centres
    :param n_clusters: number of groups
    :param window: number of last episodes
    :raises ValueError: for sizes out of range, or without scikit-learn
    """

    history: th.Tensor
    centres: th.Tensor
    n_seen: th.Tensor
    n_fits: th.Tensor

    def __init__(self, n_features: int, seed: int, n_clusters: int = 4, window: int = 1000) -> None:
        super().__init__()
        try:
            import sklearn.cluster  # noqa: F401
        except ImportError as error:
            raise ValueError(
                f"grouping='auto' needs scikit-learn, which is not installed ({error}): pip install 'sb_grpo[grouping]'."
            ) from error
        check_settings("multitask: grouping_kwargs", {"n_clusters": n_clusters, "window": window})
        if window < n_clusters:
            raise ValueError(
                f"grouping_kwargs: n_clusters={n_clusters} is more than window={window}, the episodes that are remembered. "
                "Raise window or lower n_clusters."
            )
        self.n_clusters = n_clusters
        self.seed = seed
        self.names = tuple(f"cluster_{i}" for i in range(n_clusters))
        self.register_buffer("history", th.zeros(window, n_features))
        self.register_buffer("centres", th.zeros(n_clusters, n_features))
        self.register_buffer("n_seen", th.zeros((), dtype=th.int64))
        self.register_buffer("n_fits", th.zeros((), dtype=th.int64))

    @th.no_grad()
    def labels(self, rollout: Rollout) -> th.Tensor:
        from sklearn.cluster import MiniBatchKMeans

        window = len(self.history)
        features = episode_features(rollout, self.history.shape[1])
        self.history.copy_(th.cat([self.history, features])[-window:])
        self.n_seen += len(features)
        remembered = self.history[-min(int(self.n_seen), window) :]
        if len(remembered) < self.n_clusters:
            return th.zeros_like(rollout.group)
        mean = remembered.mean(0)
        spread = remembered.std(0, unbiased=False)
        spread = th.where(spread > 1e-6 * mean.abs(), spread, th.ones_like(spread))  # constant features

        def standardised(x: th.Tensor) -> np.ndarray:
            return ((x - mean) / spread).double().cpu().numpy()

        fits = int(self.n_fits)
        means = MiniBatchKMeans(
            self.n_clusters,
            init="k-means++" if fits == 0 else standardised(self.centres),
            n_init=1,
            batch_size=len(remembered),
            random_state=mix(self.seed, fits, 2) >> 33,
        ).partial_fit(standardised(remembered))
        centres = th.as_tensor(means.cluster_centers_, device=mean.device, dtype=mean.dtype)
        self.centres.copy_(centres * spread + mean)
        self.n_fits += 1
        return th.as_tensor(means.predict(standardised(features)), device=mean.device).long()


def make_grouping(multitask: Multitask, observation_space: spaces.Space, seed: int) -> Grouping:
    """Make the grouping that a model's arguments describe.

    :param multitask: the argument of GRPO
    :param observation_space: of the env
    :param seed: of the model
    """
    grouping = multitask.grouping
    kwargs = multitask.grouping_kwargs or {}
    if callable(grouping):
        return ByFunction(grouping)
    if grouping in ("task", "hierarchical"):
        return (ByTask if grouping == "task" else Hierarchical)(multitask.names)
    if grouping in ("difficulty", "length"):
        return ByQuantile(undiscounted_returns if grouping == "difficulty" else lengths, **kwargs)
    if grouping == "auto":
        return Clusters(n_episode_features(observation_space), seed, **kwargs)
    return BySeed()
