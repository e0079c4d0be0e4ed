"""Predictions over several horizons in closed form: a first layer of learnt features.

A kernel measures distances of states in their observations. If the value depends on how a few components combine, the fit
needs a better distance. Predictions of rewards and of terminations over short and long horizons give one: states with the same
expected future get the same features. The predictions are value functions like the baseline itself (general value functions,
Sutton et al., 2011, "Horde"), share one ridge regression, and need no network and no optimiser.
"""

from __future__ import annotations

import torch as th
from torch import nn

from sb_grpo import distributed
from sb_grpo.baselines.kernel import KernelFeatures, usual_n_features
from sb_grpo.maths.chunks import evenly_spaced_steps, in_chunks
from sb_grpo.maths.returns import gae, is_last
from sb_grpo.maths.ridge import AnchoredRidge
from sb_grpo.types import AdvantageOptions, Rollout

#: Horizons in steps: the discount is 1 - 1 / horizon. Terminations use all but the first.
HORIZONS = (1, 5, 10, 20, 50, 100, 200)
#: Weight of earlier rollouts, per rollout of age; share of the previous weights that the ridge pulls towards; the ridge.
MEMORY = 0.9
ANCHOR = 0.9
RIDGE = 100.0


class Horizons(nn.Module):
    """Predict discounted sums of rewards and of terminations: one ridge regression with a column per horizon.

    `end` is 1 at the last step of a terminated episode, else 0. Targets are lambda-returns that bootstrap from the previous
    predictions, as for the baseline. The predictions for a rollout come from earlier rollouts, except for the first.

    :param input_dim: size of the policy's feature vector
    :param seed: of the random projection
    :param fit_rows: a rollout of more steps is fitted on that many of them, evenly spaced
    """

    size = 2 * len(HORIZONS) - 1
    weights: th.Tensor

    def __init__(self, input_dim: int, seed: int, fit_rows: int) -> None:
        super().__init__()
        self.fit_rows = fit_rows
        self.phi = KernelFeatures(input_dim, usual_n_features(input_dim), 1.0, seed)
        self.register_buffer("weights", th.zeros(self.phi.size, self.size))
        self._moments: tuple[th.Tensor, th.Tensor] | None = None

    def forward(self, x: th.Tensor) -> th.Tensor:
        """Predict rewards by horizon, then ends by horizon.

        :param x: ``[M, input_dim]``
        :return: ``[M, size]``
        """
        predicted: th.Tensor = self.phi(x) @ self.weights
        return predicted

    @th.no_grad()
    def learn(
        self, rollout: Rollout, options: AdvantageOptions, x: th.Tensor, x_final: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor]:
        """Predict for a rollout, then refit with it; the first rollout is fitted before.

        :param x: ``[M, input_dim]`` of each step's observation
        :param x_final: ``[E, input_dim]`` of the observation after each episode's last step
        :return: ``[M, size]`` and ``[E, size]``
        """
        first = bool(self.phi.normalizer.count == 0)
        predicted = in_chunks(self, x)
        predicted_final = in_chunks(self, x_final)
        self._fit(rollout, options, x, predicted, predicted_final)
        return (in_chunks(self, x), in_chunks(self, x_final)) if first else (predicted, predicted_final)

    def _fit(
        self,
        rollout: Rollout,
        options: AdvantageOptions,
        x: th.Tensor,
        predicted: th.Tensor,
        predicted_final: th.Tensor,
    ) -> None:
        ends = (is_last(rollout) & rollout.terminated[rollout.episode]).to(rollout.rewards.dtype)
        columns = [(rollout.rewards, h) for h in HORIZONS] + [(ends, h) for h in HORIZONS[1:]]
        residuals = [
            gae(rollout._replace(rewards=signal), values, final_values, 1.0 - 1.0 / horizon, options.gae_lambda)
            for (signal, horizon), values, final_values in zip(columns, predicted.T, predicted_final.T, strict=True)
        ]
        target = th.stack(residuals, dim=1) + predicted
        rows = evenly_spaced_steps(rollout, self.fit_rows, distributed.count(len(rollout.t)))
        self.phi.normalizer.update(x[rows])
        phi = self.phi(x[rows])
        gram = distributed.total(phi.T @ phi)
        moment = distributed.total(phi.T @ target[rows])
        if self._moments is not None:
            gram.add_(self._moments[0], alpha=MEMORY)
            moment.add_(self._moments[1], alpha=MEMORY)
        self._moments = gram, moment
        ridge = gram.new_full((1,), RIDGE, dtype=th.float64)
        self.weights.copy_(AnchoredRidge(gram.double().unsqueeze(0), ridge, self.weights, ANCHOR).solve(moment))
