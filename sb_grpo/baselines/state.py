"""State-conditioned group baseline: state values from other episodes, solved in closed form.

b(s) is a ridge regression of lambda-returns on fixed features of the state, anchored at the previous fit. The values for an
episode are fitted to earlier rollouts and to the other episodes of its rollout (cross-fitting), never to itself. There is no
critic network and no optimiser. A saved model holds the weights, the statistics that standardise the inputs and, with a second
layer, its weights; it does not hold the memory of data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch as th
from torch import nn

from sb_grpo import distributed
from sb_grpo.baselines.horizons import Horizons
from sb_grpo.baselines.kernel import KernelFeatures, usual_n_features
from sb_grpo.baselines.paired import Pairing
from sb_grpo.config import StateSettings
from sb_grpo.maths.chunks import evenly_spaced_steps, in_chunks
from sb_grpo.maths.estimators import centre_and_scale
from sb_grpo.maths.returns import Gae, Residuals, explained_variance, residuals_of, rewards_to_go
from sb_grpo.maths.ridge import AnchoredRidge
from sb_grpo.types import AdvantageOptions, Estimate, Features, Rollout, join_rollouts

RIDGE_RANGE = (0.1, 1000.0)
RIDGE_FACTORS = (0.1, 1.0, 10.0)

Predict = Callable[[th.Tensor], th.Tensor]


class StateBaseline(nn.Module):
    """Ridge regression on :class:`~sb_grpo.baselines.kernel.KernelFeatures` of the policy's features.

    Every fit uses three ridges (x0.1, x1, x10). The one that predicts the next rollout best, before fitting it, is used for
    that rollout and becomes the middle one. The ridge pulls towards ``anchor`` times the previous weights, not towards 0, so
    directions absent from the newest rollout are kept. If returns grow, old targets are wrong but old weights are close;
    therefore the memory of data is short and that of weights long.

    :param input_dim: size of the policy's feature vector
    :param settings: keyword arguments of :class:`~sb_grpo.config.StateSettings`
    :raises ValueError: for values out of range
    """

    ridge: th.Tensor
    weights: th.Tensor
    uses_values = True
    whole_episodes = False
    needs_other_members = False
    #: Faster replacement for :meth:`predict` with the same result.
    fast_predict: Predict | None = None

    def __init__(self, input_dim: int, **settings: Any) -> None:
        super().__init__()
        s = StateSettings(**settings)
        dim = Horizons.size if s.horizons else input_dim
        n_features = usual_n_features(dim) if s.n_features is None else s.n_features
        self.memory = s.memory
        self.anchor = s.anchor
        self.follow_level = s.follow_level
        self.sweeps = s.sweeps
        self.folds = s.folds
        self.fit_rows = s.fit_rows
        self.least_rows = s.least_rows
        self.horizons = Horizons(input_dim, s.seed + 1, s.fit_rows) if s.horizons else None
        self.phi = KernelFeatures(dim, n_features, s.scale, s.seed)
        self.register_buffer("ridge", th.tensor(100.0))
        self.register_buffer("weights", th.zeros(self.phi.size, len(RIDGE_FACTORS)))
        self._moments: tuple[th.Tensor, th.Tensor] | None = None
        #: A :class:`~sb_grpo.types.Rollout` of the steps since the last fit; its observations are the policy's features.
        self._waiting: tuple[Any, ...] | None = None
        self.pairing = None
        if s.paired is not None and s.paired is not False:
            self.pairing = Pairing(None if s.paired is True else float(s.paired))

    def estimate(self, rollout: Rollout, options: AdvantageOptions, features: Features | None, objective: int = 0) -> Estimate:
        """Advantages and metrics of a rollout; see :meth:`advantages`."""
        assert features is not None
        return Estimate(*self.advantages(rollout, options, *features), self.metrics)

    @th.no_grad()
    def advantages(
        self, rollout: Rollout, options: AdvantageOptions, features: th.Tensor, final_features: th.Tensor
    ) -> tuple[th.Tensor, float]:
        """Compute advantages under values fitted without each step's own episode; then refit with the whole rollout.

        :param features: ``[M, input_dim]`` of each step's observation
        :param final_features: ``[E, input_dim]`` of the observation after each episode's last step
        :return: ``[M]`` advantages, and the explained variance of their baseline
        """
        residuals, values, target = self._judged(rollout, options, features, final_features)
        advantages = residuals.own if self.pairing is None else self.pairing(residuals, rollout)
        return centre_and_scale(advantages, target, rollout, options), explained_variance(values, target)

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the last rollout besides the explained variance."""
        return {} if self.pairing is None else self.pairing.metrics

    def _judged(
        self, rollout: Rollout, options: AdvantageOptions, features: th.Tensor, final_features: th.Tensor
    ) -> tuple[Residuals, th.Tensor, th.Tensor]:
        """:meth:`_residuals` of a rollout; one that is too small for a fit is kept for the next."""
        n = len(rollout.t)
        waiting = self._waiting
        whole = rollout._replace(observations=features, final_observations=final_features, extra={})
        if waiting is not None:
            whole = join_rollouts(Rollout(*waiting), whole)
        n_steps, n_episodes = distributed.counts(len(whole.t), len(whole.group))
        if n_steps >= self.least_rows:
            self._waiting = None
            residuals, values, target = self._residuals(whole, options, n_steps, n_episodes)
            return Residuals(*(column[-n:] for column in residuals)), values[-n:], target[-n:]
        self._waiting = tuple(whole)
        if self.horizons is not None:
            features = self.horizons(features)
            final_features = self.horizons(final_features)
        values = self.predict(features)[:, 1:2]
        final_values = self.predict(final_features)[:, 1:2]
        fold = th.zeros_like(rollout.group)
        residuals = residuals_of(Gae(rollout, options.gamma, options.gae_lambda), values, final_values, fold)
        return residuals, values[:, 0], residuals.own + values[:, 0]

    def _residuals(
        self, rollout: Rollout, options: AdvantageOptions, n_steps: int, n_episodes: int
    ) -> tuple[Residuals, th.Tensor, th.Tensor]:
        """Compute lambda-advantages under values fitted without each step's own episode; then fit the whole rollout.

        :param rollout: its observations are the policy's features
        :param n_steps: of all ranks
        :param n_episodes: of all ranks
        :return: the residuals, ``[M]`` values and ``[M]`` lambda-returns
        """
        x = rollout.observations
        x_final = rollout.final_observations
        assert isinstance(x, th.Tensor) and isinstance(x_final, th.Tensor)
        if self.horizons is not None:
            x, x_final = self.horizons.learn(rollout, options, x, x_final)
        first = bool(self.phi.normalizer.count == 0)
        rows = evenly_spaced_steps(rollout, self.fit_rows, n_steps)
        x_fit = x[rows]
        if first:
            self._begin(x_fit, rewards_to_go(rollout, options.gamma)[rows])
        predict = self.fast_predict or self.predict
        predictions = in_chunks(predict, x)
        final_predictions = in_chunks(predict, x_final)
        under = Gae(rollout, options.gamma, options.gae_lambda)
        best = 1 if first else self._best_ridge(under, predictions, final_predictions)
        fold = th.zeros_like(rollout.group)
        values = predictions[:, best : best + 1]
        final_values = final_predictions[:, best : best + 1]
        residuals = residuals_of(under, values, final_values, fold)
        target = residuals.own + values[:, 0]
        if not first:  # weights belong to the statistics that they were fitted under
            self.phi.normalizer.update(x_fit)
        phi = self.phi(x_fit)
        before = self.weights[:, best].clone()
        if not isinstance(rows, slice):
            self.weights.copy_(self._regression(phi, before)(target[rows]))
            return residuals, values[:, 0], target
        phi_final = self.phi(x_final)
        own_values = values[:, 0]
        gram = None
        if self.folds > 1 and n_episodes > 1 and not first:
            fold = self._folds(rollout)
            weights, gram = self._cross_fitted(phi, fold[rollout.episode], target, before)
            values = phi @ weights
            final_values = phi_final @ weights
            own_values = values.gather(1, fold[rollout.episode].unsqueeze(1)).squeeze(1)
            if self.pairing is None:  # only the pairing needs other folds' values
                values = own_values.unsqueeze(1)
                final_values = final_values.gather(1, fold.unsqueeze(1))
                fold = th.zeros_like(fold)
            residuals = residuals_of(under, values, final_values, fold)
            target = residuals.own + own_values
        self._sweep(under, phi, phi_final, target, self._regression(phi, before, gram))
        return residuals, own_values, target

    def _begin(self, x: th.Tensor, returns: th.Tensor) -> None:
        """Fit the first rollout to plain returns, since no earlier fit exists."""
        self.phi.normalizer.update(x)
        self.weights.copy_(self._regression(self.phi(x), self.weights[:, 1])(returns))
        self._moments = None

    def _sweep(
        self,
        under: Gae,
        phi: th.Tensor,
        phi_final: th.Tensor,
        target: th.Tensor,
        solve: Callable[..., th.Tensor],
    ) -> None:
        """Fit the weights to a rollout several times; from the second on, lambda-returns bootstrap from the newest fit.

        :param solve: of :meth:`_regression`
        """
        for _ in range(self.sweeps - 1):
            middle = solve(target, slice(1, 2)).squeeze(1)
            values = phi @ middle
            target = under(values, phi_final @ middle) + values
        self.weights.copy_(solve(target))

    def _folds(self, rollout: Rollout) -> th.Tensor:
        """``[E]`` fold of each episode, assigned in turn over all ranks."""
        number = th.arange(len(rollout.group), device=rollout.group.device)
        if distributed.world().size > 1:
            assert rollout.seed_group is not None
            number, _ = distributed.episodes_before(rollout.seed_group, th.ones_like(number))
        return number % self.folds

    def _cross_fitted(
        self, phi: th.Tensor, fold: th.Tensor, target: th.Tensor, before: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor]:
        """Fit the past and the other folds, for every fold.

        The targets must use values of the past alone. Otherwise an episode's own rewards would return through the values that
        the others bootstrap from.

        :param phi: ``[M, size]`` features of each step
        :param fold: ``[M]`` of each step's episode
        :param target: ``[M]`` lambda-returns under the baseline of the past
        :param before: ``[size]`` weights of the past
        :return: weights ``[size, folds]``, and the Gram matrix ``[size, size]`` of all features
        """
        parts = [(phi[rows], target[rows]) for rows in (fold == k for k in range(self.folds))]
        grams, moments = distributed.totals(th.stack([x.T @ x for x, _ in parts]), th.stack([x.T @ y for x, y in parts]))
        whole = grams.sum(0)
        gram = whole - grams
        moment = moments.sum(0) - moments
        if self._moments is not None:
            moment.add_(self._past_moment(self._moments, moment[:, :1], gram[:, 0], before), alpha=self.memory)
            gram.add_(self._moments[0], alpha=self.memory)
        ridges = self.ridge.double().expand(self.folds)
        return AnchoredRidge(gram.double(), ridges, before, self.anchor).solve(moment).to(phi.dtype), whole

    def predict(self, x: th.Tensor) -> th.Tensor:
        """Predict the baseline under each ridge.

        :param x: inputs of :meth:`phi`: features of the policy, or with ``horizons`` their predictions
        :return: ``[M, 3]``
        """
        values: th.Tensor = self.phi(x) @ self.weights
        return values

    def _best_ridge(self, under: Gae, values: th.Tensor, final_values: th.Tensor) -> int:
        """Index of the ridge whose predictions come closest to the lambda-returns under the middle one."""
        middle = values[:, 1]
        target = under(middle, final_values[:, 1]) + middle
        best = int(distributed.mean((values - target.unsqueeze(1)).square()).argmin())
        self.ridge.mul_(RIDGE_FACTORS[best]).clamp_(*RIDGE_RANGE)
        return best

    def _regression(self, phi: th.Tensor, before: th.Tensor, gram: th.Tensor | None = None) -> Callable[..., th.Tensor]:
        """Factorise the ridge regression on given features.

        :param phi: ``[M, size]``
        :param before: ``[size]`` weights that the ridge pulls towards, times ``anchor``
        :param gram: ``[size, size]`` Gram matrix of the features, if already known; modified in place
        :return: function from targets ``[M]`` and a slice of the ridges (default: all) to weights ``[size, ridges]``
        """
        gram = distributed.total(phi.T @ phi) if gram is None else gram
        past = self._moments
        sums = gram[0].clone()
        if past is not None:
            gram.add_(past[0], alpha=self.memory)
        ridges = self.ridge * gram.new_tensor(RIDGE_FACTORS, dtype=th.float64)
        regression = AnchoredRidge(gram.double().repeat(len(RIDGE_FACTORS), 1, 1), ridges, before, self.anchor)

        def solve(target: th.Tensor, which: slice = slice(None)) -> th.Tensor:
            moment = distributed.total(phi.T @ target)
            if past is not None:
                moment.add_(self._past_moment(past, moment[:1], sums, before), alpha=self.memory)
            self._moments = gram, moment
            return regression.solve(moment, which).to(phi.dtype)

        return solve

    def _past_moment(
        self, past: tuple[th.Tensor, th.Tensor], target_sum: th.Tensor, sums: th.Tensor, before: th.Tensor
    ) -> th.Tensor:
        """Moment of the earlier data, with its targets unchanged or shifted with the level.

        :param past: Gram matrix ``[size, size]`` and moment ``[size]`` of that data
        :param target_sum: ``[..., 1]`` sum of the newest targets
        :param sums: ``[..., size]`` sums of their features; the first is the number of targets
        :param before: ``[size]`` weights of the past
        :return: ``[size]`` or ``[..., size]``
        """
        gram, moment = past
        if not self.follow_level:
            return moment
        rise = (target_sum - (sums @ before).unsqueeze(-1)) / sums[..., :1]
        return moment + rise * gram[0]
