"""Policies that encode a problem instance once, and then score actions for any number of its states."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch as th
import torch.nn.functional as F
from gymnasium import spaces
from stable_baselines3.common.distributions import make_proba_distribution
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn
from torch.utils._pytree import tree_leaves

from sb_grpo.policies.actor import ActorPolicy
from sb_grpo.policies.extra_inputs import CODE, INSTANCE, MASK, env_part, extra_input, with_extra_inputs
from sb_grpo.policies.heads import make_discrete_head
from sb_grpo.policies.observations import ONE, InstanceSpace
from sb_grpo.policies.weights import versions
from sb_grpo.types import Kwargs, Rollout, TensorOrDict

#: Encoded instances: tensors ``[b, ...]``, in any nesting of tuples, lists and dicts.
CodeT = TypeVar("CodeT")


class LastCode(Generic[CodeT]):
    """Code of the instances that a policy was asked for last, for ``predict`` in a loop over steps. A copy begins without."""

    def __init__(self) -> None:
        self.instance: th.Tensor | None = None
        self.code: CodeT | None = None
        self.weights: object = None

    def __reduce__(self) -> tuple[type[LastCode], tuple[()]]:
        return LastCode, ()


class EncodingPolicy(ActorPolicy, Generic[CodeT]):
    """Base of policies for :class:`~sb_grpo.envs.instance_env.InstanceEnv`: encode an instance once, score many states.

    GRPO calls :meth:`encode` once per group and set of weights while it acts, and in an update once per minibatch, which
    holds whole groups, with gradients. Subclasses make their networks in :meth:`build`, which gets the further
    ``policy_kwargs``.

    :param observation_space: of an ``InstanceEnv``, or a Dict with static parts
    :param action_space: Discrete
    :param lr_schedule: learning rate as a function of the remaining progress (1 to 0)
    :param optimizer_class: optimiser, Adam by default (then fused, with eps 1e-5)
    :param optimizer_kwargs: its keyword arguments, learning rate excluded
    :param static_keys: keys of a Dict observation that stay as they are during an episode: the instance. The others, in the
        order of the space and without a mask, are the state
    :param pointers: of a Dict: entries at the beginning of the state that are numbers of items
    :param per_item: of a Dict: blocks at its end with one entry per item
    :param kwargs: of :meth:`build`
    :raises ValueError: for another observation or action space
    """

    #: Whether the weights fit instances of any size, so that a saved model can be loaded with an env of another one.
    size_free: ClassVar[bool] = False

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        use_sde: bool = False,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: Kwargs | None = None,
        static_keys: Sequence[str] = (),
        pointers: int = 0,
        per_item: int = 0,
        **kwargs: object,
    ) -> None:
        fits = isinstance(observation_space, InstanceSpace)
        if isinstance(observation_space, spaces.Dict) and static_keys:
            fits = set(static_keys) < set(observation_space.spaces)
        if not fits or not isinstance(action_space, spaces.Discrete):
            raise ValueError(
                f"{type(self).__name__} needs observations and actions of an InstanceEnv, or a Dict observation with a state "
                f"beside its static_keys={list(static_keys)}, not {observation_space} and {action_space}: derive the env from "
                "sb_grpo.envs.InstanceEnv, pass policy_kwargs=dict(static_keys=[...]), or use 'MlpPolicy'."
            )
        self.build_kwargs = kwargs
        self.dict_kwargs = {"static_keys": list(static_keys), "pointers": pointers, "per_item": per_item}
        self.parts_seen: list[str] = []  #: keys of a Dict observation, static ones first
        self.static_keys: list[str] = []  #: those of them that a rollout holds once per episode
        if isinstance(observation_space, InstanceSpace):
            self.instance_space = observation_space
        else:
            assert isinstance(observation_space, spaces.Dict)
            shapes = {key: space.shape or () for key, space in observation_space.items() if key != MASK}
            rest = [key for key in shapes if key not in static_keys]
            self.parts_seen = [*static_keys, *rest]
            self.static_keys = list(static_keys)
            state_dim = sum(int(np.prod(shapes[key])) for key in rest)
            static = {key: shapes[key] for key in static_keys}
            self.instance_space = InstanceSpace(static, state_dim, pointers=pointers, per_item=per_item)
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch=[],
            ortho_init=False,
            use_sde=use_sde,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )
        self.last_code: LastCode[CodeT] = LastCode()

    def _build_action_head(self, latent_dim: int) -> None:
        self.n_actions = int(self.action_space.n)  # type: ignore[attr-defined]
        self.head = make_discrete_head(self.action_space)
        self.action_dist = make_proba_distribution(self.action_space)
        self.action_net = nn.Identity()  # type: ignore[assignment]
        self.build(**self.build_kwargs)

    @abstractmethod
    def build(self, **kwargs: Any) -> None:
        """Make the networks; the optimiser is made after them.

        :param kwargs: further ``policy_kwargs``
        """

    @abstractmethod
    def encode(self, instance: TensorOrDict) -> CodeT:
        """Encode instances.

        :param instance: ``[b, ...]`` float32, or a dict of such: the visible parts of the env's instances
        :return: tensors ``[b, ...]``, in any nesting of tuples, lists and dicts
        """

    @abstractmethod
    def scores(self, code: CodeT, state: th.Tensor) -> th.Tensor:
        """Score the actions in states of encoded instances.

        :param code: of :meth:`encode`, ``[b, ...]``
        :param state: ``[b, k, s]`` float32, with any k: members while acting, members x steps in an update
        :return: logits ``[b, k, n]`` before any mask
        """

    @property
    def device(self) -> th.device:
        return next(self.parameters()).device

    @property
    def seen_space(self) -> spaces.Space:
        space = self.instance_space
        whole = np.issubdtype(space.state_dtype, np.integer)
        low, high = (np.iinfo(space.state_dtype).min, np.iinfo(space.state_dtype).max) if whole else (-np.inf, np.inf)
        return spaces.Box(low, high, (space.state_dim,), space.state_dtype.type)

    def rows_of(self, obs: PyTorchObs) -> th.Tensor:
        """Observations as rows, ``[batch, n]``: instance and state, or one of them where the other is not there."""
        part = env_part(obs)
        if isinstance(part, th.Tensor):
            return part
        return th.cat([part[key].reshape(len(part[key]), -1).float() for key in self.parts_seen if key in part], dim=1)

    def split_rollout(self, rollout: Rollout) -> Rollout:
        """Find one instance for each group, in a rollout of whole observations or of states with an instance per episode.

        :raises ValueError: for an instance that changes within an episode
        """
        rows = self.rows_of(rollout.observations)
        n_static = rows.shape[1] - self.instance_space.state_dim
        if rollout.instances is None:
            _, lengths = th.unique_consecutive(rollout.episode, return_counts=True)
            of_episode = rows[lengths.cumsum(0) - lengths, :n_static]
            if not th.equal(of_episode[rollout.episode], rows[:, :n_static]):
                raise ValueError(
                    f"The instance {list(self.instance_space.parts)} changes within an episode, but {type(self).__name__} "
                    "encodes it once: move what changes into the state."
                )
        else:
            of_episode = self.rows_of(rollout.instances)
        _, members = th.unique_consecutive(rollout.group, return_counts=True)
        of_group = of_episode[members.cumsum(0) - members]
        instance = rollout.group
        if not th.equal(of_group[instance], of_episode):  # members that did not start alike
            instance, of_group = th.arange(len(of_episode), device=rows.device), of_episode
        instances, _ = self.instance_space.split(F.pad(of_group, (0, self.instance_space.state_dim)))
        masks = extra_input(rollout.observations, MASK)
        return rollout._replace(
            observations=with_extra_inputs(rows[:, n_static:], {} if masks is None else {MASK: masks}),
            final_observations=self.rows_of(rollout.final_observations)[:, n_static:],
            instance=instance,
            instances=instances,
        )

    def _code_and_state(self, obs: PyTorchObs) -> tuple[CodeT, th.Tensor]:
        code = extra_input(obs, CODE)
        instance = extra_input(obs, INSTANCE)
        rows = self.rows_of(obs)
        if code is None and instance is None:
            code, rows = self._code_of_rows(rows)
        elif code is None:
            code = self.encode(instance)
        b = len(tree_leaves(code)[0])
        return code, rows.float().view(b, -1, self.instance_space.state_dim)

    def _outputs(self, obs: PyTorchObs) -> tuple[th.Tensor, th.Tensor | None]:
        code, state = self._code_and_state(obs)
        out = self.scores(code, state)
        wanted = (*state.shape[:2], self.n_actions)
        if tuple(out.shape) != wanted:
            raise ValueError(
                f"scores() of {type(self).__name__} returns the shape {tuple(out.shape)} and must return {wanted}: instances, "
                "states of each, actions."
            )
        return self._masked(out.flatten(0, 1), obs), None

    def _code_of_rows(self, rows: th.Tensor) -> tuple[CodeT, th.Tensor]:
        """Code and states of whole observations, as ``predict`` gets them, each with an instance of its own."""
        space = self.instance_space
        last = self.last_code
        given = rows[:, : rows.shape[1] - space.state_dim]
        instance, state = space.split(rows)
        if th.is_grad_enabled() or th.compiler.is_compiling():
            return self.encode(instance), state
        weights = versions(self.parameters())
        if last.weights != weights or last.code is None or last.instance is None or not th.equal(last.instance, given):
            last.instance = given.clone()
            last.weights = weights
            last.code = self.encode(instance)
        return last.code, state

    def state_features(self, code: CodeT, state: th.Tensor) -> th.Tensor:
        """Features of states for ``advantage="state"``; a policy that has them sets ``features_dim`` in :meth:`build`.

        :param code: of :meth:`encode`, ``[b, ...]``
        :param state: ``[b, k, s]`` float32
        :return: ``[b, k, features_dim]``
        """
        raise NotImplementedError(f"{type(self).__name__} has no state_features().")

    def features(self, obs: PyTorchObs) -> th.Tensor:
        return self.state_features(*self._code_and_state(obs)).flatten(0, 1)

    def _get_constructor_parameters(self) -> Kwargs:
        return {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "lr_schedule": self._dummy_schedule,
            "optimizer_class": self.optimizer_class,
            "optimizer_kwargs": self.optimizer_kwargs,
            **self.dict_kwargs,
            **self.build_kwargs,
        }


# ---------------------------------------------------------------- SetPolicy


class Block(nn.Module):
    """Transformer layer with the normalisation in front (Xiong et al., 2020, arXiv 2002.04745).

    :param width: units
    :param n_heads: heads of the attention
    """

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: th.Tensor, bias: th.Tensor | None) -> th.Tensor:
        """Mix items, ``[b, n, width]`` -> ``[b, n, width]``; ``bias`` ``[b, 1, n or 1, n]`` is added to the attention."""
        b, n, width = x.shape
        query, key, value = self.read(self.norms[0](x)).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = x + self.write(mixed.transpose(1, 2).reshape(b, n, width))
        out: th.Tensor = x + self.feed(self.norms[1](x))
        return out


class SetPolicy(EncodingPolicy[tuple[th.Tensor, ...]]):
    """Transformer encoder of a set of items, and a pointer decoder with a glimpse, for actions that choose an item.

    Kool et al., 2019 (https://arxiv.org/abs/1803.08475), with pre-normalisation. Every part of the instance with one row per
    item, ``[b, n]`` or ``[b, n, f]``, is a feature of the items. Special names: ``"padding"`` ``[b, n]`` is 1 for items that
    are not there; ``"adjacency"`` ``[b, n, n]`` is 1 where an item may attend to another one. Other parts are flattened and
    describe the whole instance. Of the state the first ``pointers`` entries are numbers of items and the last ``per_item``
    blocks of n entries describe items (:class:`~sb_grpo.envs.instance_env.InstanceEnv`).

    The weights do not depend on the number of items, so a model can be loaded with an env of another size. The arguments of
    :meth:`build` are keys of ``policy_kwargs``.
    """

    size_free = True

    def build(self, width: int = 64, n_layers: int = 2, n_heads: int = 4, clip: float = 10.0) -> None:  # type: ignore[override]
        """Make the layers.

        :param width: units per item
        :param n_layers: layers of the encoder
        :param n_heads: heads of its attention and of the glimpse; divides ``width``
        :param clip: logits are ``clip * tanh(score)``
        :raises ValueError: for an instance without a part per item, and a state that is too short for its blocks
        """
        space = self.instance_space
        n = self.n_actions
        self.n_heads = n_heads
        self.clip = clip
        self.width = width
        self.features_dim = width  # of the glimpse
        self.of_items = [
            name for name, shape in space.parts.items() if shape[:1] == (n,) and len(shape) < 3 and name not in SPECIAL
        ]
        self.of_all = [name for name in space.parts if name not in (*self.of_items, *SPECIAL)]
        if not self.of_items:
            raise ValueError(
                f"SetPolicy needs a part of the instance with one row for each of the {n} actions, but the parts are "
                f"{space.parts}: add one, or write an EncodingPolicy of your own."
            )
        n_item = sum(int(np.prod(space.parts[name][1:])) for name in self.of_items)
        n_all = sum(int(np.prod(space.parts[name])) for name in self.of_all)
        n_rest = space.state_dim - space.pointers - space.per_item * n
        if n_rest < 0:
            raise ValueError(
                f"The state has {space.state_dim} entries, fewer than pointers={space.pointers} and per_item="
                f"{space.per_item} blocks of {n}: correct these attributes of the env."
            )
        self.embed = nn.Linear(n_item, width)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.keys = nn.Linear(width, 3 * width, bias=False)  # of the glimpse, its values, and keys of the pointer
        self.pointed = nn.Linear(width, space.pointers * width, bias=False) if space.pointers else None
        self.whole = nn.Linear(width + n_all, width)
        self.now = nn.Linear(n_rest, width, bias=False) if n_rest else None
        self.item_now = nn.Linear(space.per_item, 3 * width, bias=False) if space.per_item else None
        self.write = nn.Linear(width, width, bias=False)

    def encode(self, instance: TensorOrDict) -> tuple[th.Tensor, ...]:
        parts = instance if isinstance(instance, dict) else {ONE: instance}
        first = parts[self.of_items[0]]
        b, n = first.shape[:2]
        x = self.embed(th.cat([parts[name].view(b, n, -1) for name in self.of_items], dim=2))
        bias = None
        there = None
        if "padding" in parts:
            there = (parts["padding"] < 0.5).to(x.dtype).unsqueeze(2)
            bias = (there - 1.0).view(b, 1, 1, n) * FAR
        if "adjacency" in parts:
            near = th.maximum(parts["adjacency"], th.eye(n, device=x.device)).clamp(max=1.0)
            apart = (near - 1.0).unsqueeze(1) * FAR
            bias = apart if bias is None else bias + apart
        for block in self.blocks:
            x = block(x, bias)
        x = self.norm(x)
        mean = x.mean(dim=1) if there is None else (x * there).sum(dim=1) / there.sum(dim=1).clamp(min=1.0)
        whole = self.whole(th.cat([mean, *(parts[name].flatten(1) for name in self.of_all)], dim=1))
        keys, values, pointer = self.keys(x).chunk(3, dim=2)
        code: tuple[th.Tensor, ...] = (self._heads(keys), self._heads(values), pointer, whole)
        code = code if self.pointed is None else (*code, self.pointed(x))
        return code if there is None else (*code, bias_of_items(there))

    def _heads(self, x: th.Tensor) -> th.Tensor:
        return x.view(*x.shape[:2], self.n_heads, -1).transpose(1, 2)

    def state_features(self, code: tuple[th.Tensor, ...], state: th.Tensor) -> th.Tensor:
        """Compute the glimpse: what the attention of a state finds among the items, ``[b, k, width]``."""
        space = self.instance_space
        keys, values, _, whole, *more = code
        b, k = state.shape[:2]
        n = keys.shape[2]
        bias = more.pop() if len(more) > bool(space.pointers) else None
        query = whole.unsqueeze(1)
        if space.pointers:
            at = state[..., : space.pointers].long()
            for i, table in enumerate(more[0].chunk(space.pointers, dim=2)):
                query = query + table.gather(1, at[..., i : i + 1].expand(-1, -1, self.width))
        if self.now is not None:
            query = query + self.now(state[..., space.pointers : state.shape[2] - space.per_item * n])
        query = self._heads(query.expand(b, k, -1))  # [b, h, k, d]
        logits = query @ keys.transpose(2, 3)
        if self.item_now is not None:
            # Adding W d_j to the keys, values and pointers of item j, without a tensor of states x items x units.
            items = self._items(state, n)
            of_key, of_value, _ = self.item_now.weight.view(3, self.width, -1)
            by_head = (query @ of_key.view(self.n_heads, -1, space.per_item)).transpose(1, 2)  # [b, k, h, p]
            logits = logits + (by_head @ items).transpose(1, 2)
        logits = logits * (query.shape[3] ** -0.5)
        if bias is not None:
            logits = logits + bias.unsqueeze(1)
        share = logits.softmax(dim=3)
        found = (share @ values).transpose(1, 2)  # [b, k, h, d]
        if self.item_now is not None:
            seen = share.transpose(1, 2) @ items.transpose(2, 3)  # [b, k, h, p]
            found = found + th.einsum("bkhp,hdp->bkhd", seen, of_value.view(self.n_heads, -1, space.per_item))
        glimpse: th.Tensor = self.write(found.flatten(2))
        return glimpse

    def _items(self, state: th.Tensor, n: int) -> th.Tensor:
        """Entries of the state that describe items, ``[b, k, per_item, n]``."""
        return state[..., state.shape[2] - self.instance_space.per_item * n :].view(*state.shape[:2], -1, n)

    def scores(self, code: tuple[th.Tensor, ...], state: th.Tensor) -> th.Tensor:
        glimpse = self.state_features(code, state)
        pointer = code[2]
        score = glimpse @ pointer.transpose(1, 2)
        if self.item_now is not None:
            of_pointer = self.item_now.weight.view(3, self.width, -1)[2]
            score = score + ((glimpse @ of_pointer).unsqueeze(2) @ self._items(state, pointer.shape[1])).squeeze(2)
        return self.clip * th.tanh(score * (self.width**-0.5))


#: Parts of an instance that are no features.
SPECIAL = ("padding", "adjacency")
#: Logits of what is not attended to lie this much below the others.
FAR = 1e4


def bias_of_items(there: th.Tensor) -> th.Tensor:
    """Added to logits so that absent items are not attended to: ``[b, n, 1]`` -> ``[b, 1, n]``."""
    return (there - 1.0).transpose(1, 2) * FAR
