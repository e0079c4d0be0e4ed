"""Trainable parts as they were before a rollout: an estimator that judges it again must not have seen it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import ref

import torch as th
from gymnasium import spaces

from sb_grpo.learn.given_rollouts import as_collected, check_made_of
from sb_grpo.learn.last_good import Snapshot
from sb_grpo.types import Rollout, State


class AdvantageReplay:
    """Trainable parts besides the policy, as they were before each rollout that somebody still holds.

    A baseline that has been fitted to a rollout explains its noise as well, so that its residuals are too small. Rollouts are
    known by their column ``t``, which changed ones (``rollout._replace(rewards=...)``) have in common with the original.
    """

    def __init__(self) -> None:
        self._before: list[tuple[ref[th.Tensor], ref[th.Tensor], Snapshot]] = []

    def __getstate__(self) -> State:
        return {"_before": []}  # a copy of the model holds none of them

    def note(self, rollout: Rollout, before: Snapshot) -> None:
        """A rollout has been collected and judged.

        :param before: of all that learns, before it was
        """
        alive = [entry for entry in self._before if entry[0]() is not None]
        self._before = [*alive, (ref(rollout.t), ref(rollout.rewards), before)]

    @contextmanager
    def replay(
        self, rollout: Rollout | None, space: spaces.Space, trainable_parts: Sequence[object]
    ) -> Iterator[tuple[Rollout, bool]]:
        """Judge a rollout again, by the trainable parts as they were before it.

        The newest one is then learnt from in place of the first time; an older one leaves everything as later rollouts have
        made it. A rollout that nobody collected is judged by the trainable parts as they are now.

        :param space: of actions
        :return: the rollout with columns of their own types; whether it has been judged before
        :raises ValueError: for one that is none, and for rewards that nobody would look at
        """
        rollout = as_collected(rollout, space)
        found = next((i for i, (t, _, _) in enumerate(self._before) if t() is rollout.t), None)
        if found is None:
            yield rollout, False
            return
        _, rewards, before = self._before[found]
        check_made_of(rollout, rewards())
        now = Snapshot(trainable_parts)
        before.put_back()
        try:
            yield rollout, True
        except BaseException:
            now.put_back()
            raise
        if found < len(self._before) - 1:
            now.put_back()
