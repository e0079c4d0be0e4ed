"""The rollout buffer of tensor envs: every column on the device, filled without waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch as th

from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.types import TensorOrDict


class TensorRolloutBuffer(GroupRolloutBuffer):
    """A :class:`GroupRolloutBuffer` of which every column lives on the model's device (device envs).

    The observation after each step is kept for every step: finding out which of them matter would make the host wait.
    """

    @property
    def column_device(self) -> th.device | str:
        return self.device

    def _allocate(self, size: int) -> None:
        super()._allocate(size)
        obs = self.observations
        assert isinstance(obs, th.Tensor)
        old = {name: getattr(self, name, None) for name in ("next_observations", "finished_return", "log_probs")}
        self.next_observations = self._grown(old["next_observations"], size, obs.shape[2:], obs.dtype, self.device)
        self.finished_return = self._grown(old["finished_return"], size, (), th.float32, self.device)
        self.log_probs = self._grown(old["log_probs"], size, (), th.float32, self.device)

    def add_steps(self, n: int, columns: dict[str, th.Tensor]) -> None:
        """Append steps of every slot, without leaving the device.

        :param n: how many; the buffer's size is a multiple of it
        :param columns: ``observations``, ``actions``, ``log_probs``, ``rewards``, ``jobs``, ``t``, ``ends``,
            ``next_observations`` and ``finished_return`` (return of the episode where it ended), and those that
            :meth:`add_columns` declared, ``[n, n_envs, ...]`` each
        """
        if self.pos == self.buffer_size:
            self._allocate(2 * self.buffer_size)
        for name, values in columns.items():
            column = self.extra[name] if name in self.extra else getattr(self, name)
            column[self.pos : self.pos + n] = values
        self.pos += n

    def log_probs_of(self, policy_log_prob: Callable[..., th.Tensor]) -> th.Tensor:
        """Those that :meth:`new_rows` had when they were drawn."""
        return self.log_probs[: self.pos].flatten()

    def _new_final_observations(self) -> th.Tensor:
        return self.next_observations[: self.pos].flatten(0, 1)

    def _join_final_observations(self, kept: th.Tensor, new: th.Tensor) -> th.Tensor:
        return th.cat([kept, new])

    def _take_final_observations(self, final_obs: th.Tensor, index: th.Tensor, jobs: th.Tensor) -> th.Tensor:
        return final_obs.index_select(0, index)

    def _final_observations(self, rows: dict[str, Any], jobs: th.Tensor, last: th.Tensor) -> TensorOrDict:
        final: th.Tensor = rows["final_obs"].index_select(0, last)
        return final
