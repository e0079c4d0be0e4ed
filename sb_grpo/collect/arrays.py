"""Steps of a rollout as callbacks written for SB3's PPO read them: arrays of NumPy, time first."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.types import map_obs

#: What PPO's buffer has and one without a critic has not.
OF_A_CRITIC = {"values", "returns", "advantages", "get", "compute_returns_and_advantage"}


class AsArrays:
    """A rollout buffer whose ``steps`` are read, and on the CPU written, as those of SB3's ``RolloutBuffer``.

    Only the steps that are there: ``[pos, n_envs, ...]``. Of other devices they are copies that cannot be written.
    """

    steps: dict[str, Any]  #: ``[buffer_size, n_envs, ...]`` tensors (dicts of such) of which the first ``pos`` are there
    pos: int
    n_envs: int
    obs_shape: Any
    action_dim: int
    action_space: spaces.Space

    @property
    def observations(self) -> np.ndarray | dict[str, np.ndarray]:
        """``[pos, n_envs, ...]`` before each step, shaped as SB3 shapes the space."""
        taken: Any = self._array("observations")
        if isinstance(taken, dict):
            return {key: self._shaped(part, self.obs_shape[key]) for key, part in taken.items()}
        return self._shaped(taken, self.obs_shape)

    @property
    def actions(self) -> np.ndarray:
        """``[pos, n_envs, n]`` as they were sampled, before they were clipped to the bounds, in the space's number type."""
        return self._shaped(self._array("actions").astype(self.action_space.dtype, copy=False), (self.action_dim,))

    @property
    def log_probs(self) -> np.ndarray:
        """``[pos, n_envs]`` of the actions, by the policy that took them."""
        return self._array("log_probs")  # type: ignore[no-any-return]

    @property
    def rewards(self) -> np.ndarray:
        """``[pos, n_envs]`` as the env gave them: group baselines scale on their own."""
        return self._array("rewards")  # type: ignore[no-any-return]

    @property
    def episode_starts(self) -> np.ndarray:
        """``[pos, n_envs]`` 1 where the step was the first of its episode."""
        return (self._array("t") == 0).astype(np.float32)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name in OF_A_CRITIC:
            raise AttributeError(
                f"A {type(self).__name__} has no {name}: there is no critic, and advantages are computed when all steps are "
                "there, in train(), which logs them as 'group/advantages'. It has observations, actions, rewards, log_probs "
                "and episode_starts."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _array(self, name: str) -> Any:
        return map_obs(lambda column: _readable(column[: self.pos]), self.steps[name])

    def _shaped(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return array.reshape(self.pos, self.n_envs, *shape)


def _readable(column: th.Tensor) -> np.ndarray:
    array: np.ndarray = column.cpu().numpy()
    if column.device.type != "cpu":
        array.flags.writeable = False
    return array
