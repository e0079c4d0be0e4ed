"""Loss terms: pure functions on tensors, each the formula of one paper. sb_grpo.learn.losses adds them up."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch as th

from sb_grpo import distributed

#: A float; a 0-d tensor where the loss is compiled in a graph (torch's annotations know no such union).
Scalar: TypeAlias = Any
#: Lower and upper clip range.
Clip: TypeAlias = tuple[Scalar, Scalar]


def importance_ratio(log_ratio: th.Tensor, level: str, episode: th.Tensor, turn: th.Tensor | None = None) -> th.Tensor:
    """pi_new / pi_old of each row.

    :param log_ratio: ``[B]`` log pi_new - log pi_old
    :param level: ``"step"``: each action's own ratio; ``"episode"``: the geometric mean over the rows of the same
        episode (GSPO, arXiv 2507.18071, eq. 7), shared by all of them; ``"turn"``: that over the rows of the same turn
        (ST-PPO, arXiv 2511.20718, eq. 4)
    :param episode: ``[B]`` ascending episode numbers (not used by ``"step"``; the rows of an episode must be together)
    :param turn: ``[B]`` number of the turn within its episode (used by ``"turn"``; the rows of a turn must be together)
    :return: ``[B]``
    :raises ValueError: for ``"turn"`` without ``turn``
    """
    if level == "step":
        return th.exp(log_ratio)
    segment = episode
    if level == "turn":
        if turn is None:
            raise ValueError(
                "importance_level='turn' needs the turn of every step, but the rollout's extra columns have no 'turn': add "
                "one integer per step with rollout._replace(extra={'turn': ...}), or use 'step' or 'episode'."
            )
        segment = th.unique_consecutive(th.stack([episode, turn], dim=1), dim=0, return_inverse=True)[1]
    _, row, count = th.unique_consecutive(segment, return_inverse=True, return_counts=True)
    mean = log_ratio.new_zeros(len(count)).index_add(0, row, log_ratio) / count
    ratio: th.Tensor = mean.exp()[row]
    return ratio


def kl_k3(log_prob: th.Tensor, other_log_prob: th.Tensor) -> th.Tensor:
    """Schulman's k3 estimate of KL(pi || other) per row, from actions drawn near pi: e^d - d - 1, d = log other - log pi.

    :return: ``[B]``, never negative
    """
    d = other_log_prob - log_prob
    return d.exp() - d - 1.0


def step_weights(episode: th.Tensor, aggregation: str, horizon: int) -> th.Tensor:
    """Weight of each row, such that the mean of weight * loss over rows is the requested aggregation.

    :param episode: ``[M]`` ascending episode numbers; M is 0 if no group of the rollout has a signal
    :param aggregation: ``"step"``: all steps equal; ``"episode"``: mean per episode first (DeepSeekMath's 1/|o_i|);
        ``"constant"``: sum per episode divided by ``horizon`` (Dr. GRPO, arXiv 2503.20783), no length bias
    :param horizon: steps of the longest episode possible (``"constant"`` only)
    :return: ``[M]``
    """
    if aggregation == "step":
        return th.ones(len(episode), device=episode.device)
    _, row, length = th.unique_consecutive(episode, return_inverse=True, return_counts=True)
    rows = distributed.count(len(episode))
    episodes = distributed.count(len(length))
    if aggregation == "constant":
        return th.full((len(episode),), rows / (max(episodes, 1) * horizon), device=episode.device)
    weights: th.Tensor = rows / (episodes * length.float())
    return weights[row]
