"""Plan of a rollout: how far it goes, and which values it takes."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
import torch as th

#: With whole-episode estimators and no known time limit, an episode may run this long before we call it endless.
ENDLESS = 10_000
#: Steps per env in which no group becomes complete, because somebody else keeps taking the envs.
HOPELESS = 10_000

#: Rewards whose returns have squares that add up to a float32, over a rollout of a million steps and episodes of ten thousand.
LARGEST_REWARD = 1e12
#: Observations whose squares, summed over a rollout, are still a float32.
LARGEST_OBSERVATION = 1e17


#: Groups that a rollout collects at most, in units of ``n_groups``, while it waits for groups with a spread.
MOST_REFILLS = 4


class CountsGroups(Protocol):
    """Part of :class:`~sb_grpo.collect.buffer.GroupRolloutBuffer` that a plan asks."""

    def groups_with_spread(self, group_size: int, gamma: float) -> int: ...


class Limits(NamedTuple):
    """Largest values that an env may report; values that are not finite are never taken."""

    reward: float = math.inf
    observation: float = math.inf


class Plan(NamedTuple):
    """End of a rollout: steps, groups, and the settings that decide them."""

    group_size: int
    n_groups: int | None  #: complete groups that are wanted; None: ``steps_per_env`` decides
    steps_per_env: int
    whole_episodes: bool  #: rollouts end when groups are complete; otherwise episodes are cut and carried over
    time_limit: int | None  #: that the env is known to keep
    whole_because: str  #: which argument asks for whole episodes, for the message
    cut_instead: str  #: what to do if episodes do not end, for the message
    use_sde: bool
    sde_sample_freq: int  #: steps after which gSDE draws new noise; 0 or less: once per rollout
    steps_before: int  #: steps per env before this rollout, for messages
    limits: Limits = Limits()
    refill: bool = False  #: groups without a spread of returns do not count
    gamma: float = 1.0  #: discount of these returns

    @property
    def least_steps(self) -> int:
        """Steps per env that the rollout has at least; a number of groups alone decides where one was given."""
        return 0 if self.whole_episodes and self.n_groups else self.steps_per_env

    @property
    def least_groups(self) -> int:
        """Groups that are complete at its end; 0 where episodes are cut."""
        return (self.n_groups or 1) if self.whole_episodes else 0

    def wanted_groups(self, n_complete: int, buffer: CountsGroups) -> int:
        """Groups that must be complete before the rollout may end.

        :param n_complete: groups that are complete now
        :param buffer: the rollout so far
        """
        if not self.refill or n_complete < self.least_groups:
            return self.least_groups
        missing = self.least_groups - buffer.groups_with_spread(self.group_size, self.gamma)
        return min(n_complete + max(missing, 0), MOST_REFILLS * self.least_groups)

    def draws_noise(self, n_steps: int) -> bool:
        """gSDE draws new noise before this step."""
        return self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0


def too_large(largest: float) -> str:
    """Describe the fault of a number beyond a limit, for messages."""
    return f"is beyond +-{largest:g}, where statistics in float32 break down"


def check_endless(t: np.ndarray | th.Tensor, plan: Plan) -> None:
    """Whole-episode estimators would wait for ever for an episode that does not end.

    :param t: ``[n_envs]`` steps of the running episodes so far
    :raises ValueError: if one has gone on for ``ENDLESS`` steps and no time limit is known
    """
    steps = int(t.max())
    if steps >= ENDLESS and steps > (plan.time_limit or 0):  # a limit that a registration promises may not be kept
        raise ValueError(
            f"No end after {ENDLESS} steps of an episode, and the env has no time limit, but {plan.whole_because} needs whole "
            "episodes. Set a limit with gymnasium.make(..., max_episode_steps=1000) or gymnasium.wrappers.TimeLimit, or "
            f"{plan.cut_instead}."
        )


def check_hopeless(times: int, n_steps: int, completed: int) -> None:
    """Whole-episode estimators would wait for ever if no group ever became complete.

    :param times: interruptions in this rollout
    :param n_steps: steps per env so far in it
    :param completed: groups completed in it
    :raises ValueError: if none has for ``HOPELESS`` steps
    """
    if completed == 0 and times > 0 and n_steps >= HOPELESS:
        raise ValueError(
            f"No group has become complete in {n_steps} steps per env, because something other than this model's training has "
            f"reset or stepped the training env {times} times meanwhile, always before the episodes ended. Give it an env of "
            "its own, as in EvalCallback(make_vec_env(...)), let it come less often, or use advantage='state' with n_steps, "
            "which needs no whole episodes."
        )
