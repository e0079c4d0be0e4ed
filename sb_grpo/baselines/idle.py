"""Rewards that never change: when a baseline's advantages stop being worth anything.

As long as every step has paid the same r and no episode has ended by itself, all states are worth r / (1 - gamma) and every
true advantage is 0. What a fit by bootstrapping leaves is its own error on the way to that level. At first it is of use:
states seen seldom are still held for what they were before the first fit, and where r is a cost the policy moves towards them
(optimistic initial values; Sutton and Barto, 2nd ed., section 2.6). Then it is noise, which z-scores blow up to 1 and which
moves the policy for ever.
"""

from __future__ import annotations

import torch as th
from torch import nn

from sb_grpo import ranks
from sb_grpo.types import Rollout

#: Rewards that differ by less than this share of their size are the same.
SAME = 1e-5
#: Share of r / (1 - gamma) from which on differences between states count as errors of the fit.
LEVEL = 0.75


class Idle(nn.Module):
    """Tells whether a rollout's advantages are errors of the fit alone.

    It learns one number, the reward, until a reward or an episode's own end tells states apart; then it has done its work.
    """

    told: th.Tensor
    reward: th.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("told", th.tensor(False))
        self.register_buffer("reward", th.tensor(0.0))

    def look(self, rollout: Rollout, first: bool) -> None:
        """See whether a rollout tells states apart.

        :param first: no rollout has been seen before
        """
        if self.told:
            return
        if first:
            self.reward.copy_(ranks.mean(rollout.rewards))
        other = (rollout.rewards - self.reward).abs() > SAME * self.reward.abs()
        self.told.fill_(ranks.some(bool(other.any() or rollout.terminated.any())))

    def is_noise(self, targets: th.Tensor, gamma: float) -> bool:
        """Whether nothing has told states apart and the values are near their common level.

        :param targets: ``[M]`` lambda-returns
        :param gamma: discount; 1 has no such level, so nothing is noise then
        """
        if self.told or gamma == 1.0 or self.reward == 0.0:
            return False
        return float(ranks.mean(targets)) * (1.0 - gamma) / float(self.reward) >= LEVEL
