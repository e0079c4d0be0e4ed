"""The rollout buffer of tensor envs: every column on the device, filled without waiting for it."""

from __future__ import annotations

from typing import Any

import torch as th

from sb_grpo.buffers import GroupRolloutBuffer
from sb_grpo.types import TensorOrDict

#: What an env reports of itself, whether it is asked for or not.
OPTIONAL_COLUMNS = ("task", "objectives")


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
            ``next_observations`` and ``finished_return`` (return of the episode where it ended), ``[n, n_envs, ...]`` each;
            ``task`` and ``objectives`` are passed over where nobody asked for them
        """
        if self.pos == self.buffer_size:
            self._allocate(2 * self.buffer_size)
        for name, values in columns.items():
            column = self.extra.get(name) if name in OPTIONAL_COLUMNS else getattr(self, name)
            if column is not None:
                column[self.pos : self.pos + n] = values
        if "episode_return" in self.extra:
            self.extra["episode_return"][self.pos : self.pos + n] = columns["finished_return"]
        self.pos += n

    @property
    def new_log_probs(self) -> th.Tensor:
        """``[time * slots]`` log-probabilities that :meth:`new_rows` had when they were drawn."""
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
