"""What a rollout is discounted by: a buffer of SB3 holds it, and callbacks written for PPO change it there."""

from __future__ import annotations

from sb_grpo.config import check_settings


class Discounted:
    """A rollout buffer with ``gamma`` and ``gae_lambda``, which may be set."""

    gamma: float | None = None  #: the model's, until somebody sets it here
    gae_lambda: float | None = None  #: the model's, until somebody sets it here
    _of_model: tuple[float | None, float | None] = None, None

    def discount(self, gamma: float, gae_lambda: float) -> tuple[float, float]:
        """What counts for the next advantages. What was set here stays, as with PPO; the rest is the model's.

        :param gamma: of the model
        :param gae_lambda: of the model
        :raises ValueError: for what was set here and is no discount
        """
        if self.gamma == self._of_model[0]:
            self.gamma = gamma
        if self.gae_lambda == self._of_model[1]:
            self.gae_lambda = gae_lambda
        self._of_model = gamma, gae_lambda
        assert self.gamma is not None and self.gae_lambda is not None
        check_settings("", {"gamma": self.gamma, "gae_lambda": self.gae_lambda})
        return self.gamma, self.gae_lambda
