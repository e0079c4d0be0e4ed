"""A discount that rises while training: near goals first, far ones when the way to them is known."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback

from sb_grpo.grpo import GRPO


class GammaCallback(BaseCallback):
    """Move ``model.gamma`` from ``start`` to ``end`` over the first ``share`` of the training, then leave it there.

    It moves before every rollout, so all steps of an update have one discount. The horizon ``1 / (1 - gamma)`` changes by the
    same factor in equal numbers of env steps, as in François-Lavet et al. 2015, "How to Discount Deep Reinforcement Learning",
    section 4.1. The constructor's ``gamma`` is overwritten; the discount of the moment is saved with the model and logged as
    ``train/gamma``.

    :param start: discount of the first rollout, in [0, 1)
    :param end: discount of the last rollouts, in [0, 1)
    :param share: of the training's env steps until ``end`` is reached, in (0, 1]
    :raises ValueError: for values out of range, and for another algorithm at the start of a training
    """

    def __init__(self, start: float, end: float, share: float = 0.5) -> None:
        super().__init__()
        for name, value in (("start", start), ("end", end)):
            if not 0.0 <= value < 1.0:
                raise ValueError(f"{name}={value} must lie in [0, 1): the horizon 1 / (1 - gamma) has to be finite.")
        if not 0.0 < share <= 1.0:
            raise ValueError(f"share={share} must lie in (0, 1]: it is the part of the training until end={end} is reached.")
        self.start, self.end, self.share = start, end, share

    def gamma(self, progress: float) -> float:
        """The discount at a point of the training.

        :param progress: env steps done over all env steps, from 0
        """
        way = min(progress / self.share, 1.0)
        return float(1.0 - (1.0 - self.start) ** (1.0 - way) * (1.0 - self.end) ** way)

    def _init_callback(self) -> None:
        if not isinstance(self.model, GRPO):
            raise ValueError(
                f"GammaCallback moves the discount that GRPO reads at every rollout, but the model is a "
                f"{type(self.model).__name__}, which copies it when it is built: train with sb_grpo.GRPO."
            )

    def _on_rollout_start(self) -> None:
        self.model.gamma = self.gamma(self.model.num_timesteps / self.model._total_timesteps)  # type: ignore[attr-defined]
        self.logger.record("train/gamma", self.model.gamma)  # type: ignore[attr-defined]

    def _on_step(self) -> bool:
        return True
