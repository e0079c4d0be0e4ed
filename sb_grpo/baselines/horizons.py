"""What comes over several horizons, predicted in closed form: a first layer of features that the values have shaped.

One kernel for all states measures their distance in the observations. Where a few of these tell a good state from a bad one by
how they go together, a fit needs a distance that knows it. Predictions of rewards and of ends, near and far, are such a
measure: states from which the same comes are alike. They are value functions like the baseline itself (general value
functions, Sutton et al., 2011, "Horde"), share one ridge regression, and have no network and no optimiser.
"""

from __future__ import annotations

import torch as th
from torch import nn

from sb_grpo import ranks
from sb_grpo.baselines.kernel import KernelFeatures, usual_n_features
from sb_grpo.maths.chunks import evenly_spaced_steps, in_chunks
from sb_grpo.maths.returns import gae, is_last
from sb_grpo.maths.ridge import AnchoredRidge
from sb_grpo.types import AdvantageOptions, Rollout

#: Steps that a prediction reaches ahead, on average: the discount is 1 - 1 / horizon. Ends begin with the second.
HORIZONS = (1, 5, 10, 20, 50, 100, 200)
#: Weight of the rollouts before, per rollout of age; share of the weights before that the ridge pulls towards; the ridge.
MEMORY = 0.9
ANCHOR = 0.9
RIDGE = 100.0


class Horizons(nn.Module):
    """Discounted sums of rewards, and of ends, from a state on: one ridge regression with a column per horizon.

    An end is a 1 at the last step of an episode that the env ended (``terminated``). Targets are lambda-returns which
    bootstrap from the predictions before, as the baseline's do. Predictions that a rollout is given come from the rollouts
    before it, except for the first.

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
        """Predictions: rewards by horizon, then ends by horizon.

        :param x: ``[M, input_dim]``
        :return: ``[M, size]``
        """
        predicted: th.Tensor = self.phi(x) @ self.weights
        return predicted

    @th.no_grad()
    def learn(
        self, rollout: Rollout, options: AdvantageOptions, x: th.Tensor, x_final: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor]:
        """Predict for a rollout, then refit with it; the first is fitted before.

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
        rows = evenly_spaced_steps(rollout, self.fit_rows, ranks.count(len(rollout.t)))
        self.phi.normalizer.update(x[rows])
        phi = self.phi(x[rows])
        gram = ranks.total(phi.T @ phi)
        moment = ranks.total(phi.T @ target[rows])
        if self._moments is not None:
            gram.add_(self._moments[0], alpha=MEMORY)
            moment.add_(self._moments[1], alpha=MEMORY)
        self._moments = gram, moment
        ridge = gram.new_full((1,), RIDGE, dtype=th.float64)
        self.weights.copy_(AnchoredRidge(gram.double().unsqueeze(0), ridge, self.weights, ANCHOR).solve(moment))
