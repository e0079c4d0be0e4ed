"""The rollout buffer of tensor envs: every column on the device, filled without waiting for it."""

from __future__ import annotations

import torch as th

from sb_grpo.collect.buffer import GroupRolloutBuffer, Rows
from sb_grpo.policies.extra_inputs import MASK
from sb_grpo.types import Obs, TensorOrDict, map_obs


class TensorRolloutBuffer(GroupRolloutBuffer):
    """A :class:`GroupRolloutBuffer` of which every column lives on the model's device (device envs).

    The observation after each step is kept for every step: finding out which of them matter would make the host wait.
    """

    keeps_next = True  #: False: nobody asks for the value of a cut episode, so final observations are zeros

    def without_next(self) -> None:
        """Keep no observation after a step."""
        self.keeps_next = False
        del self.steps["next_observations"]

    @property
    def column_device(self) -> th.device | str:
        return self.device

    def _allocate(self, size: int) -> None:
        super()._allocate(size)
        self.steps["finished_return"] = self._grown(self.steps.get("finished_return"), size, (), th.float32, self.device)
        if not self.keeps_next:
            return
        before = self.steps.get("next_observations")

        def grown(obs: th.Tensor, old: th.Tensor | None) -> th.Tensor:
            return self._grown(old, size, obs.shape[2:], obs.dtype, self.device)

        seen = self.steps["observations"]
        if isinstance(seen, dict):  # nobody acts on the last observation, so its mask is not kept
            kept = {key: obs for key, obs in seen.items() if key != MASK}
            self.steps["next_observations"] = {key: grown(obs, before and before[key]) for key, obs in kept.items()}
        else:
            self.steps["next_observations"] = grown(seen, before)

    def add_steps(self, n: int, columns: dict[str, th.Tensor]) -> None:
        """Append steps of every env, without leaving the device.

        :param n: how many; the buffer's size is a multiple of it
        :param columns: ``observations``, ``actions``, ``log_probs``, ``rewards``, ``episode_ids``, ``t``, ``ends``,
            ``next_observations`` and ``finished_return`` (return of the episode where it ended), and those that
            :meth:`add_fields` declared, ``[n, n_envs, ...]`` each
        """
        if self.pos == self.buffer_size:
            self._allocate(2 * self.buffer_size)
        for name, values in columns.items():
            if name == "next_observations" and not self.keeps_next:
                continue
            column = self.extra[name] if name in self.extra else self.steps[name]
            for place, part in zip(_parts(column), _parts(values), strict=True):
                place[self.pos : self.pos + n] = part
        self.pos += n
        self.full = self.pos == self.buffer_size

    def _new_final_observations(self) -> Obs:
        return self.flat("next_observations") if self.keeps_next else None

    def _join_final_observations(self, kept: Obs, new: Obs) -> Obs:
        return map_obs(lambda a, b: th.cat([a, b]), kept, new) if self.keeps_next else None

    def _take_final_observations(self, final_obs: Obs, index: th.Tensor, episode_ids: th.Tensor) -> Obs:
        return map_obs(lambda obs: obs.index_select(0, index), final_obs) if self.keeps_next else None

    def _final_observations(self, rows: Rows, episode_ids: th.Tensor, last: th.Tensor) -> TensorOrDict:
        if not self.keeps_next:
            return map_obs(lambda obs: th.zeros_like(obs[: len(last)]), rows["obs"])  # type: ignore[no-any-return]
        return map_obs(lambda obs: obs.index_select(0, last), rows["final_obs"])  # type: ignore[no-any-return]


def _parts(column: TensorOrDict) -> list[th.Tensor]:
    return [column[key] for key in sorted(column)] if isinstance(column, dict) else [column]
