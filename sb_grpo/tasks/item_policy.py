"""Policy that scores every action from its own features, with weights that fit any number of actions."""

from __future__ import annotations

from typing import Any, ClassVar

import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from sb_grpo.policies import ActorPolicy
from sb_grpo.policies.observations import InstanceSpace
from sb_grpo.types import Kwargs


class ItemExtractor(BaseFeaturesExtractor):
    """Features per action: two shared layers, the second of which also sees the mean over all actions (deep sets, Zaheer et
    al., 2017).

    :param observation_space: of an env with ``per_item`` features per action; it reads these alone
    :param n_actions: number of actions
    :param hidden: units per row and layer
    """

    def __init__(self, observation_space: InstanceSpace, n_actions: int, hidden: int = 64) -> None:
        per_item = getattr(observation_space, "per_item", 0)
        if not per_item or observation_space.state_dim < per_item * n_actions:
            raise ValueError(
                f"{observation_space} has no features for each of {n_actions} actions: use 'MlpPolicy', or set per_item in "
                "the InstanceEnv, as those of sb_grpo.tasks.scheduling and sb_grpo.tasks.uncertain."
            )
        super().__init__(observation_space, n_actions * hidden)
        self.n_actions = n_actions
        self.per_item = per_item
        self.first = nn.Linear(per_item, hidden)
        self.second = nn.Linear(2 * hidden, hidden)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        columns = observations[:, -self.per_item * self.n_actions :].view(len(observations), self.per_item, self.n_actions)
        rows = self.first(columns.transpose(1, 2)).tanh()
        mean = rows.mean(dim=1, keepdim=True).expand_as(rows)
        found: th.Tensor = self.second(th.cat([rows, mean], dim=2)).tanh().flatten(1)
        return found


class ItemHead(nn.Module):
    """One score per action from its features.

    :param n_actions: number of actions
    :param hidden: units per action
    """

    def __init__(self, n_actions: int, hidden: int) -> None:
        super().__init__()
        self.n_actions = n_actions
        self.score = nn.Linear(hidden, 1)

    def forward(self, features: th.Tensor) -> th.Tensor:
        scores: th.Tensor = self.score(features.view(len(features), self.n_actions, -1)).squeeze(2)
        return scores


class ItemPolicy(ActorPolicy):
    """Policy for :class:`~sb_grpo.envs.instance_env.InstanceEnv` that scores actions by their features in the state.

    Its weights fit any number of actions.

    :param args: of :class:`~sb_grpo.policies.ActorPolicy`
    :param hidden: units per action and layer
    :param kwargs: of :class:`~sb_grpo.policies.ActorPolicy`
    :raises ValueError: for other observations, and actions that are not Discrete
    """

    size_free: ClassVar[bool] = True

    def __init__(
        self, observation_space: InstanceSpace, action_space: spaces.Discrete, *args: Any, hidden: int = 64, **kwargs: Any
    ) -> None:
        if not isinstance(action_space, spaces.Discrete):
            raise ValueError(f"ItemPolicy scores Discrete actions, not {action_space}: use 'MlpPolicy'.")
        self.hidden = hidden
        kwargs |= {"features_extractor_class": ItemExtractor, "net_arch": []}
        kwargs["features_extractor_kwargs"] = {"n_actions": int(action_space.n), "hidden": hidden}
        super().__init__(observation_space, action_space, *args, **kwargs)

    def _build_action_head(self, latent_dim: int) -> None:
        super()._build_action_head(latent_dim)
        assert isinstance(self.action_space, spaces.Discrete)
        self.action_net = ItemHead(int(self.action_space.n), self.hidden)  # type: ignore[assignment]

    def _get_constructor_parameters(self) -> Kwargs:
        return {**super()._get_constructor_parameters(), "hidden": self.hidden}
