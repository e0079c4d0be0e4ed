"""Curriculum: change the env's difficulty with the success rate."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from sb_grpo import distributed
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.types import Info, State
from sb_grpo.validation import check_early_reset

if TYPE_CHECKING:
    from sb_grpo.collect.groups import HostGroups
    from sb_grpo.grpo import GRPO


class CurriculumCallback(BaseCallback):
    """Promote to the next level if enough of the last episodes succeed, demote if too few do.

    The method is called with the level's value on every env (``env_method``) when training starts and when the level changes,
    always between two rollouts. Then every env is reset and new groups begin, so no group mixes difficulties. Running episodes
    are cut: ``"state"`` trains on their steps; other estimators drop them, and they count in ``rollout/useful_fraction``. The
    level is saved with the model.

    :param levels: values for the method, from easy to hard; a number range is ``np.linspace(0.0, 1.0, 11)``
    :param success: criterion of an episode: ``"is_success"`` (host envs: ``info["is_success"]`` at the end of the episode),
        ``"terminated"`` (not cut by the time limit: for tasks with a goal), or a number: the least return
    :param window: number of different initial states (groups) for the success rate, as members of a group share their noise;
        the window is empty at the beginning of a level
    :param promote_above: success rate, in [0, 1], at or above which the next level begins
    :param demote_below: success rate, in [0, promote_above), at or below which the previous level begins; None: never
    :param method: of the envs; a setter that takes effect at the next reset at the latest
    :param start: initial level, from 0; None: the level where the model's last curriculum stopped
    :param verbose: 1 prints every change of level
    :raises ValueError: for values out of range; at the start of a training also for envs without the method, and for tensor
        envs without the ``success`` criterion; on host envs this is known at the end of an episode
    """

    def __init__(
        self,
        levels: Sequence[Any] | np.ndarray,
        success: str | float = "is_success",
        window: int = 100,
        promote_above: float = 0.8,
        demote_below: float | None = None,
        method: str = "set_difficulty",
        start: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.levels = levels.tolist() if isinstance(levels, np.ndarray) else list(levels)
        self.success = success
        self.window = window
        self.method = method
        self.start = start
        self.promote_above = promote_above
        self.demote_below = demote_below
        self._check_arguments()
        self.level = start or 0
        self.moves: list[tuple[int, int]] = []  #: env steps and level of every change
        self._successes = StartWindow(window)
        self._of_rollout: list[tuple[int, bool]] = []  #: group and success of this learner's episodes, not counted yet

    def _check_arguments(self) -> None:
        if not self.levels:
            raise ValueError("levels=[] is empty: pass the values of the difficulty from easy to hard.")
        if self.window < 1:
            raise ValueError(f"window={self.window} must be at least 1 start.")
        if not 0.0 <= self.promote_above <= 1.0:
            raise ValueError(f"promote_above={self.promote_above} must lie in [0, 1]: it is a success rate.")
        if self.demote_below is not None and not 0.0 <= self.demote_below < self.promote_above:
            raise ValueError(
                f"demote_below={self.demote_below} must lie in [0, promote_above={self.promote_above}), or be None: a level "
                "would be left upwards and downwards at the same success rate."
            )
        is_number = isinstance(self.success, numbers.Real) and not isinstance(self.success, bool)
        if not is_number and self.success not in ("is_success", "terminated"):
            raise ValueError(f"success={self.success!r} is unknown: use 'is_success', 'terminated' or a least return.")
        self._check_level(self.start or 0, "start")

    def _check_level(self, level: int, name: str) -> None:
        if not 0 <= level < len(self.levels):
            raise ValueError(
                f"{name}={level} is no level: there are {len(self.levels)}, numbered from 0. Pass start=0 to begin anew."
            )

    # ---------------------------------------------------------------- SB3's hooks

    def _init_callback(self) -> None:
        if not hasattr(self.model, "restart_groups"):
            raise ValueError(
                f"CurriculumCallback starts new groups when the level moves, but the model is a {type(self.model).__name__}: "
                "train with sb_grpo.GRPO."
            )

    def _on_training_start(self) -> None:
        model = cast("GRPO", self.model)
        env = self.training_env
        if not env.has_attr(self.method):
            kind = type(env).__name__ if isinstance(env, TensorVecEnv) else "the env"
            raise ValueError(
                f"{kind} has no method {self.method!r}, so its difficulty cannot be moved: give it one that takes a level's "
                f"value, or pass CurriculumCallback(method=...) the name that it has."
            )
        if self.success == "is_success" and isinstance(env, TensorVecEnv):
            raise ValueError(
                f"success='is_success' is read from infos, which a {type(env).__name__} does not have: use 'terminated' or a "
                "least return."
            )
        check_early_reset(env, can_continue=False)
        if self.start is None and model.curriculum_level is not None:
            self._check_level(model.curriculum_level, "The level saved with the model")
            self.level = model.curriculum_level
        self._set_level(self.level)

    def _on_step(self) -> bool:
        if not isinstance(self.training_env, TensorVecEnv):
            dones = self.locals["dones"]
            infos = self.locals["infos"]
            groups = cast("HostGroups", cast("GRPO", self.model).groups)
            for env_index in np.flatnonzero(dones).tolist():
                self._of_rollout.append((int(groups.group_ids[env_index]), self._succeeded(infos[env_index])))
        return True

    def _on_rollout_end(self) -> None:
        buffer = cast("GRPO", self.model).rollout_buffer
        if isinstance(buffer, TensorRolloutBuffer):
            self._of_rollout.extend(device_successes(buffer, self.success, cast("GRPO", self.model).current_group_size))
        self._count()
        self.logger.record("curriculum/level", self.level)
        if isinstance(self.levels[self.level], numbers.Real):
            self.logger.record("curriculum/value", float(self.levels[self.level]))
        if len(self._successes) == 0:
            return
        rate = self._successes.rate
        self.logger.record("curriculum/success_rate", rate)
        if len(self._successes) == self.window:
            self._move(rate)

    def state_dict(self) -> State:
        """Level, changes, and the episodes in the window."""
        return {"level": self.level, "moves": self.moves, "successes": list(self._successes.by_start.items())}

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        self._check_level(state["level"], "The level of the run")
        self._set_level(state["level"])
        self.moves = state["moves"]
        self._successes.by_start.update((group, tuple(counts)) for group, counts in state["successes"])

    # ---------------------------------------------------------------- levels

    def _move(self, rate: float) -> None:
        """Change to the next or the previous level if the success rate requires it and the level exists."""
        up = rate >= self.promote_above and self.level + 1 < len(self.levels)
        down = self.demote_below is not None and rate <= self.demote_below and self.level > 0
        if up or down:
            self._set_level(self.level + 1 if up else self.level - 1)
            self.moves.append((self.num_timesteps, self.level))
            if self.verbose > 0:
                print(f"Level {self.level} ({self.levels[self.level]}) at step {self.num_timesteps}: success rate {rate:.2f}")

    def _count(self) -> None:
        """Count the successes of a rollout, over all learners, so that their levels are equal."""
        of_all = zip_longest(*distributed.gathered(self._of_rollout))  # interleaved: no rank counts as the newest
        for found in of_all:
            for episode in found:
                if episode is not None:
                    self._successes.add(*episode)
        self._of_rollout = []

    def _set_level(self, level: int) -> None:
        model = cast("GRPO", self.model)
        self.level = model.curriculum_level = level
        self._successes.clear()
        self._of_rollout = []
        self.training_env.env_method(self.method, self.levels[level])
        model.restart_groups()

    def _succeeded(self, info: Info) -> bool:
        """Whether an episode of a host env was a success, from its last info.

        :raises ValueError: if the info lacks the criterion
        """
        if self.success == "terminated":
            return not info.get("TimeLimit.truncated", False)
        if self.success == "is_success":
            if "is_success" not in info:
                raise ValueError(
                    "success='is_success', but the env's info has no 'is_success' at the end of an episode: report it there, "
                    "or use success='terminated' or a least return."
                )
            return bool(info["is_success"])
        if "episode" not in info:
            raise ValueError(
                f"success={self.success} is a return, but nothing reports returns: wrap the env in "
                "stable_baselines3.common.vec_env.VecMonitor, or build it with make_vec_env."
            )
        return bool(info["episode"]["r"] >= float(self.success))


class StartWindow:
    """Success rate over the last initial states; members of one group share one.

    :param size: number of initial states
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.by_start: dict[int, tuple[int, int]] = {}  #: group -> successes and episodes, oldest first

    def __len__(self) -> int:
        return len(self.by_start)

    def add(self, group: int, success: bool) -> None:
        """Count an episode."""
        successes, episodes = self.by_start.get(group, (0, 0))
        self.by_start[group] = successes + success, episodes + 1
        if len(self.by_start) > self.size:
            del self.by_start[next(iter(self.by_start))]

    def clear(self) -> None:
        """Empty the window."""
        self.by_start.clear()

    @property
    def rate(self) -> float:
        """Mean success rate of the initial states."""
        return sum(successes / episodes for successes, episodes in self.by_start.values()) / len(self.by_start)


def device_successes(buffer: TensorRolloutBuffer, success: str | float, group_size: int) -> list[tuple[int, bool]]:
    """Group and success of the episodes that ended in a rollout of tensor envs, oldest first; one transfer to the host.

    :param success: ``"terminated"`` or a least return
    """
    ends = buffer.flat("ends")
    good = ends == 1 if success == "terminated" else buffer.flat("finished_return") >= float(success)
    groups = distributed.global_group(buffer.flat("episode_ids")[ends > 0] // group_size)
    return list(zip(groups.tolist(), good[ends > 0].tolist(), strict=True))
