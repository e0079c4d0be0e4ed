"""Agreement of several learners of one model: arguments that can be shared out, equal settings, statistics, the writer."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EventCallback,
    ProgressBarCallback,
)
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import distributed
from sb_grpo.types import Info, Settings

#: Settings that may differ: each rank has a device of its own, and only rank 0 speaks.
OWN = ("device", "verbose", "tensorboard_log")
#: Callbacks of rank 0 alone, beside those that have ``rank_0_only = True``; all others run on every rank.
WRITERS = (EvalCallback, CheckpointCallback, ProgressBarCallback)


def check_equal(settings: Settings) -> None:
    """Check that all ranks were given the same settings.

    :param settings: by name
    :raises ValueError: on every rank, naming the first setting that differs
    """
    if distributed.world().size == 1:
        return
    # An object's address is another one in every process.
    texts = {name: re.sub(r" at 0x[0-9a-f]+", "", repr(value)) for name, value in settings.items() if name not in OWN}
    everyone = distributed.gathered(texts)
    for rank, others in enumerate(everyone):
        for name, text in everyone[0].items():
            if others.get(name) != text:
                raise ValueError(
                    f"{name} is {text} on rank 0 and {others.get(name)} on rank {rank}: all learners must be given the same "
                    "settings. Let nothing but the envs' own randomness depend on RANK or on the machine."
                )


def own_callbacks(callback: MaybeCallback) -> Any:
    """Select the user's callbacks that run on this rank: on rank 0 all, elsewhere none that writes, evaluates or draws.

    :param callback: a callback, a list of them, a function or None
    """
    if distributed.world().rank == 0 or callback is None:
        return callback
    if isinstance(callback, list | CallbackList):
        parts = callback.callbacks if isinstance(callback, CallbackList) else callback
        return [part for part in map(own_callbacks, parts) if part is not None]
    inner = callback.callback if isinstance(callback, EventCallback) else None
    writes = isinstance(callback, WRITERS) or getattr(callback, "rank_0_only", False)
    if writes or (isinstance(inner, BaseCallback) and own_callbacks(inner) in (None, [])):
        return None
    return callback


def seen_by_all(before: list[Info], now: deque[Info], steps: int) -> tuple[deque[Info], int]:
    """Merge the data of SB3's statistics: the episodes that have ended on all ranks, and the steps of all.

    :param before: episodes that all ranks knew
    :param now: the same, and those that have ended here since
    :param steps: that were taken here
    """
    known = {id(episode) for episode in before}
    own = [{"r": float(e["r"]), "l": int(e["l"]), "group": e.get("group")} for e in now if id(e) not in known]
    parts = distributed.gathered((own, steps))
    return deque([*before, *(episode for part, _ in parts for episode in part)], now.maxlen), sum(n for _, n in parts)


class SharedStatistics:
    """Running statistics of a VecNormalize that every rank feeds with its own observations, put together now and then.

    Number, sum and sum of squares of each rank's observations since the last time are added to the common ones.

    :param vec_normalize: equal on all ranks; None: there are none
    """

    def __init__(self, vec_normalize: VecNormalize | None) -> None:
        self.parts: list[RunningMeanStd] = []
        if vec_normalize is not None and distributed.world().size > 1:
            of_obs = getattr(vec_normalize, "obs_rms", None)
            found = [*of_obs.values()] if isinstance(of_obs, dict) else [of_obs]
            self.parts = [part for part in (*found, vec_normalize.ret_rms) if part is not None]
        self.known = [sums_of(part) for part in self.parts]

    def merge(self) -> None:
        """Give all ranks the statistics of all observations."""
        for i, (part, known) in enumerate(zip(self.parts, self.known, strict=True)):
            new = known + distributed.total(sums_of(part) - known)
            count = new[0, 0]
            mean = new[1] / new[0]
            square = new[2] / new[0]
            shape = np.shape(part.mean)
            part.count = float(count)
            part.mean, part.var = (x.numpy().reshape(shape) for x in (mean, (square - mean.square()).clamp(min=0.0)))
            self.known[i] = new


def sums_of(statistics: RunningMeanStd) -> th.Tensor:
    """``[3, size]`` number, sum and sum of squares, float64."""
    mean = th.as_tensor(np.asarray(statistics.mean, dtype=np.float64).reshape(-1))
    var = th.as_tensor(np.asarray(statistics.var, dtype=np.float64).reshape(-1))
    number = th.full_like(mean, float(statistics.count))
    return th.stack([number, number * mean, number * (var + mean.square())])
