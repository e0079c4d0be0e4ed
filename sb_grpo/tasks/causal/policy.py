"""Policy that scores every intervention with one shared network, so that it generalises over variables.

Labels of variables carry no information. The logit of an intervention is a shared function of the data about it (equivariance
under relabelling: Zaheer et al., Deep Sets, NeurIPS 2017).
"""

from __future__ import annotations

import math

import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import create_mlp
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from sb_grpo.policies import ActorPolicy
from sb_grpo.policies.actor import Layers

#: Inputs of the network per intervention; see :func:`describe`.
N_DESCRIPTORS = 12


def layout(observation_space: spaces.Space, action_space: spaces.Space) -> tuple[int, int]:
    """Number of variables D and of values B, from the sizes of the spaces.

    :raises ValueError: for spaces that are not those of CausalIntervention-v0 with ``actions="discrete"``
    """
    if isinstance(action_space, spaces.Discrete) and isinstance(observation_space, spaces.Box):
        arms = int(action_space.n) - 1
        size = observation_space.shape[0]
        d = math.isqrt(max(size - 2 * arms, 0)) - 1  # size = d (d + 2) + 2 arms + 1
        if d >= 2 and arms % (d - 1) == 0 and d * (d + 2) + 2 * arms + 1 == size:
            return d, arms // (d - 1)
    raise ValueError(
        f"InterventionPolicy cannot read {observation_space} and {action_space}: it is for CausalIntervention-v0 with "
        "actions='discrete' and unwrapped observations. Use MlpPolicy instead."
    )


def describe(obs: th.Tensor, d: int, n_values: int) -> th.Tensor:
    """Compute the network's inputs for each intervention.

    :param obs: ``[batch, size]`` of ``CausalInterventionEnv``
    :param d: variables
    :param n_values: values
    :return: ``[batch, 1 + (d - 1) n_values, N_DESCRIPTORS]``; the first is observing, all 0 except the budget left
    """
    arms = (d - 1) * n_values
    present, tried, edges, effects, deviations, left = th.split(obs, [d, d, d * d, arms, arms, 1], dim=1)
    p = edges.view(-1, d, d).clamp(1e-6, 1.0 - 1e-6)
    entropy = (-p * p.log() - (1.0 - p) * (1.0 - p).log()) * (1.0 - th.eye(d, device=obs.device))
    p_cause = edges.view(-1, d, d)[:, 1:, 0]
    p_effect = edges.view(-1, d, d)[:, 0, 1:]
    of_variable = [present[:, 1:], tried[:, 1:], p_cause, p_effect, entropy.sum(2)[:, 1:], entropy.sum(1)[:, 1:]]
    value = th.linspace(-1.0, 1.0, n_values, device=obs.device).repeat(d - 1).expand_as(effects)
    below_best = effects - effects.max(1, keepdim=True).values
    columns = [x.repeat_interleave(n_values, dim=1) for x in of_variable]
    columns += [effects, deviations, below_best, value, value.square(), left.expand_as(effects)]
    known = th.stack(columns, dim=2)
    look_on = th.zeros_like(known[:, :1])
    look_on[:, 0, -1] = left[:, 0]
    return th.cat([look_on, known], dim=1)


class InterventionPolicy(ActorPolicy):
    """:class:`ActorPolicy` for CausalIntervention-v0 with ``actions="discrete"``: ``net_arch`` is that of the shared network.

    :raises ValueError: for other spaces
    """

    def _build_action_head(self, latent_dim: int) -> None:
        self._sizes = layout(self.observation_space, self.action_space)
        super()._build_action_head(latent_dim)
        self.policy_net = Layers(*create_mlp(N_DESCRIPTORS, -1, self.net_arch, self.activation_fn))
        self.action_net = nn.Linear(self.net_arch[-1] if self.net_arch else N_DESCRIPTORS, 1)

    def _scores(self, features: th.Tensor, obs: PyTorchObs) -> th.Tensor:
        known = describe(self.flat_observations(obs), *self._sizes)
        return self.action_net(self.policy_net(known)).squeeze(2)  # type: ignore[no-any-return]
