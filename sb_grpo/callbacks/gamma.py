"""Discount that changes during training: a short horizon first, then the full one."""

from __future__ import annotations

import math

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb_grpo.grpo import GRPO

#: Attribute of SB3's algorithms: the current discount, as saved in their zips, and the final one.
MOVED = "gamma_on_its_way"


class GammaCallback(BaseCallback):
    """Move the discount from ``start`` to the model's ``gamma`` over the first ``share`` of the training.

    The discount changes before every rollout, so all steps of an update have the same. The horizon ``1 / (1 - gamma)`` changes
    by the same factor in equal numbers of env steps, as in François-Lavet et al. 2015, "How to Discount Deep Reinforcement
    Learning", section 4.1. It is logged as ``train/gamma``. GRPO's ``gamma`` keeps its value; its ``moving_gamma`` is the
    discount of the rollout. SB3's on-policy algorithms (PPO, A2C, TRPO) have only ``gamma``, in the model and in the rollout
    buffer: it changes and is restored when the training ends. As with SB3's schedules, a continued training
    (``reset_num_timesteps=False``) counts all env steps, earlier ones included, and begins at their share of the new total.

    :param start: discount of the first rollout, in [0, 1)
    :param share: share of the training's env steps until the model's ``gamma`` is reached, in (0, 1]
    :raises ValueError: for values out of range; at the start of a training also for ``gamma=1`` and algorithms with replay
    """

    def __init__(self, start: float, share: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= start < 1.0:
            raise ValueError(f"start={start} must lie in [0, 1): the horizon 1 / (1 - start) has to be finite.")
        if not 0.0 < share <= 1.0:
            raise ValueError(f"share={share} must lie in (0, 1]: it is the part of the training until gamma is reached.")
        self.start = start
        self.share = share

    def gamma(self, progress: float, end: float) -> float:
        """Discount at a point of the training.

        :param progress: env steps done over all env steps, from 0
        :param end: final discount, in [0, 1)
        """
        way = min(progress / self.share, 1.0)
        return float(1.0 - (1.0 - self.start) ** (1.0 - way) * (1.0 - end) ** way)

    def _init_callback(self) -> None:
        if not isinstance(self.model, OnPolicyAlgorithm):
            raise ValueError(
                f"GammaCallback moves the discount from rollout to rollout, but the model is a {type(self.model).__name__}, "
                "which learns from steps of all times: train with sb_grpo.GRPO, or with an on-policy algorithm such as PPO."
            )
        moved, end = getattr(self.model, MOVED, (math.nan, math.nan))
        if moved == self.model.gamma:  # saved during a training, or one that failed
            self.model.gamma = end
        if self.model.gamma >= 1.0:
            raise ValueError(
                f"gamma={self.model.gamma} is out of reach for GammaCallback, as its horizon is infinite: give the model a "
                "gamma below 1, such as 0.9999, or leave the callback out."
            )
        self.end = self.model.gamma

    def _on_training_start(self) -> None:
        #: A user's own loop has no total, so the discount stays at its start, as with schedules.
        self.has_end = self.locals["total_timesteps"] > self.num_timesteps

    def _on_rollout_start(self) -> None:
        model = self.model
        gamma = self.gamma(model.num_timesteps / model._total_timesteps if self.has_end else 0.0, self.end)
        if isinstance(model, GRPO):
            model.moving_gamma = gamma
        else:
            assert isinstance(model, OnPolicyAlgorithm)
            model.gamma = model.rollout_buffer.gamma = gamma
            vars(model)[MOVED] = gamma, self.end
        self.logger.record("train/gamma", gamma)

    def _on_training_end(self) -> None:
        if isinstance(self.model, OnPolicyAlgorithm) and not isinstance(self.model, GRPO):
            self.model.gamma = self.model.rollout_buffer.gamma = self.end

    def _on_step(self) -> bool:
        return True
