"""Soft modularization: layers of shared modules, and a routing network that mixes them by task and state.

Yang, Xu, Wu and Wang, 2020 (https://arxiv.org/abs/2003.13661), section 4: only the routing network sees the task. Tasks can
share modules, and tasks with conflicting gradients can use different ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from sb_grpo.config import check_settings
from sb_grpo.policies.actor import ActorPolicy, NetArch
from sb_grpo.types import Kwargs


class RoutedNet(nn.Module):
    """Layer that encodes the state, then layers of modules with a routing after each.

    :param n_inputs: features of a step
    :param task: columns of the task's one-hot among them
    :param layers: units of the encoding, and of each module, layer by layer
    :param n_modules: modules per layer
    :param activation_fn: after the encoding, after every module, and in front of every routing
    """

    def __init__(
        self, n_inputs: int, task: slice, layers: list[int], n_modules: int, activation_fn: type[nn.Module] = nn.Tanh
    ) -> None:
        super().__init__()
        code, *sizes = layers
        n_tasks = task.stop - task.start
        self.task = task
        self.n_modules = n_modules
        self.n_outputs = n_modules * sizes[-1]
        self.activation = activation_fn()
        self.encode = nn.Linear(n_inputs - n_tasks, code)
        self.embed = nn.Linear(n_tasks, code)
        self.banks = nn.ModuleList(ModuleBank(n_modules, n, m) for n, m in zip([code, *sizes[:-1]], sizes, strict=True))
        self.route = nn.ModuleList(nn.Linear(code, n_modules**2) for _ in sizes)
        self.carry = nn.ModuleList(nn.Linear(n_modules**2, code) for _ in sizes[1:])

    def forward(self, features: th.Tensor) -> th.Tensor:
        """Inputs of the output layer's modules, ``[batch, n_inputs]`` -> ``[batch, n_modules * units]``.

        The output layer's modules are linear and their outputs are added up: one linear layer on all of it.
        """
        code, task = self._parts(features)
        at = code.unsqueeze(1).expand(-1, self.n_modules, -1)
        for bank, share in zip(self.banks, self._shares(code, task), strict=True):
            at = share.to(code.dtype) @ self.activation(bank(at))
        return at.flatten(1)

    def shares(self, features: th.Tensor) -> list[th.Tensor]:
        """Routing weights by layer, ``[batch, to, from]``; they sum to 1 over ``from``."""
        return self._shares(*self._parts(features))

    def _parts(self, features: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Encoded state, ``[batch, units]``, and the task's one-hot."""
        state = th.cat([features[:, : self.task.start], features[:, self.task.stop :]], dim=1)
        return self.activation(self.encode(state)), features[:, self.task]

    def _shares(self, code: th.Tensor, task: th.Tensor) -> list[th.Tensor]:
        wanted = code * self.embed(task)  # f(s) h(z), element by element
        logits = [self.route[0](self.activation(wanted))]
        for carry, route in zip(self.carry, self.route[1:], strict=True):  # type: ignore[arg-type]
            logits.append(route(self.activation(carry(logits[-1]) * wanted)))
        return [x.view(-1, self.n_modules, self.n_modules).softmax(dim=2) for x in logits]


class ModuleBank(nn.Module):
    """Parallel linear layers, each with its own input.

    :param n: number of layers
    :param n_inputs: of each
    :param n_outputs: of each
    """

    def __init__(self, n: int, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(th.empty(n, n_inputs, n_outputs))
        self.bias = nn.Parameter(th.zeros(n, 1, n_outputs))
        for one in self.weight:
            nn.init.orthogonal_(one, np.sqrt(2))

    def forward(self, x: th.Tensor) -> th.Tensor:
        """``[batch, n, n_inputs]`` -> ``[batch, n, n_outputs]``"""
        return (x.transpose(0, 1) @ self.weight + self.bias).transpose(0, 1)


class RoutedPolicy(ActorPolicy):
    """:class:`ActorPolicy` whose hidden layers are routed modules, for many tasks.

    :param n_tasks: length of the task's one-hot at the end of the flat observation
    :param n_modules: modules per layer
    :param net_arch: units of the layer that encodes the state, and of each module, layer by layer; at least two sizes
    :raises ValueError: for observations without such a one-hot, for another features extractor, and for fewer sizes
    """

    features_beside_memory = True  # the routing needs the task

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        net_arch: NetArch = (64, 64),
        n_tasks: int | None = None,
        n_modules: int = 4,
        **kwargs: Any,
    ) -> None:
        shape = observation_space.shape if isinstance(observation_space, spaces.Box) else None
        if shape is None or len(shape) != 1 or "features_extractor_class" in kwargs:
            raise ValueError(
                f"RoutedPolicy is for flat observations as they are, not for {observation_space} or a features extractor of "
                "your own: flatten them (gymnasium.wrappers.FlattenObservation), or use 'MlpPolicy'."
            )
        check_settings("policy_kwargs", {"n_modules": n_modules} | ({} if n_tasks is None else {"n_tasks": n_tasks}))
        if n_tasks is None or n_tasks >= shape[0]:
            raise ValueError(
                f"policy_kwargs: n_tasks={n_tasks!r}, but RoutedPolicy must know how many of the {shape[0]} numbers of an "
                f"observation, the last ones, are the one-hot of the task: pass 2 to {shape[0] - 1}."
            )
        self.n_tasks = int(n_tasks)
        self.n_modules = int(n_modules)
        super().__init__(observation_space, action_space, lr_schedule, net_arch, **kwargs)

    def _build_action_head(self, latent_dim: int) -> None:
        if len(self.net_arch) < 2:
            raise ValueError(
                f"policy_kwargs: net_arch={self.net_arch} must give RoutedPolicy two sizes or more, of the encoding and of "
                "the modules of each layer: [64, 64] is usual."
            )
        n_features = self.features_extractor.features_dim  # the outputs of a memory come after them
        task = slice(n_features - self.n_tasks, n_features)
        self.policy_net: Any = RoutedNet(self.features_dim, task, self.net_arch, self.n_modules, self.activation_fn)
        super()._build_action_head(self.policy_net.n_outputs)

    def _get_constructor_parameters(self) -> Kwargs:
        data = super()._get_constructor_parameters()
        for name in ("features_extractor_class", "features_extractor_kwargs"):
            del data[name]
        return data | {"n_tasks": self.n_tasks, "n_modules": self.n_modules}
