"""Weights from other policies: load_actor reads GRPO's and the actors of SB3's PPO and A2C; copies for references.

The actor of an SB3 ``ActorCriticPolicy`` has the layers of :class:`ActorPolicy` under other names. With the same weights,
observations and activation the deterministic actions are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TypeVar

import torch as th
from stable_baselines3.common.save_util import load_from_zip_file
from torch.multiprocessing.reductions import StorageWeakRef

from sb_grpo.policies.actor import ActorPolicy
from sb_grpo.state import copied
from sb_grpo.types import Kwargs, Settings, State

#: Prefixes of names in an actor-critic, and the actor's prefix; the first that exists is used.
ACTOR = (("mlp_extractor.policy_net.", "policy_net."), ("pi_features_extractor.", "features_extractor."))
#: Prefixes of the critic's weights.
CRITIC = ("mlp_extractor.", "value_net.", "vf_features_extractor.", "pi_features_extractor.")

#: Prefix of a memory's weights.
MEMORY = "memory."


T = TypeVar("T")


def load_actor(policy: ActorPolicy, source: object) -> None:
    """Copy the weights of another policy into a policy.

    :param policy: for example ``GRPO(...).policy``; its optimiser is reset
    :param source: a policy, a model with a policy, or the zip of a saved model, of which only tensors are read. VecNormalize's
        statistics are not part of a policy: use the same ones (docs/fine_tuning.md)
    :raises ValueError: naming the first layer that does not fit, or an activation that differs
    """
    if not isinstance(policy, ActorPolicy):
        raise ValueError(f"policy={policy!r:.80} must be a policy of sb_grpo: pass model.policy of a GRPO.")
    other = getattr(source, "policy", source)
    weights: Settings
    if isinstance(other, th.nn.Module):
        _check_activation(policy, other)
        weights = other.state_dict()
    else:
        weights = _from_zip(source)
    found = actor_weights(weights)
    wanted = policy.state_dict()
    _check_fits(found, wanted)
    policy.load_state_dict(found)
    policy.newly_loaded = True


def versions(weights: Iterable[th.Tensor]) -> list[int]:
    """Read the versions of tensors, which differ as soon as one was changed in place."""
    return [tensor._version for tensor in weights]


def shared_tensor(policy: th.nn.Module, other: th.nn.Module) -> str | None:
    """Name of a parameter or buffer whose memory two modules share, or None."""

    def memory(x: th.Tensor) -> int:
        found: int = StorageWeakRef(x.untyped_storage()).cdata  # type: ignore[no-untyped-call]
        return found

    theirs = {memory(x) for x in (*other.parameters(), *other.buffers())}
    own = (*policy.named_parameters(), *policy.named_buffers())
    return next((name for name, x in own if memory(x) in theirs), None)


def check_apart(policy: th.nn.Module, reference: th.nn.Module) -> None:
    """Check that a policy and its reference share no network, which would be frozen with the reference's weights.

    :raises ValueError: naming a shared tensor
    """
    name = shared_tensor(policy, reference)
    if name is not None:
        raise ValueError(
            f"{name} of the policy belongs to the reference policy of kl_coef, too, so it would be frozen. Pass the network "
            "in policy_kwargs in a form that copy.deepcopy() can copy (the reference is built from a copy), or set kl_coef=0."
        )


def made_apart(policy: ActorPolicy, make: Callable[[Kwargs], ActorPolicy], kwargs: Kwargs) -> ActorPolicy:
    """Build a second policy that shares no parameter or buffer with the first.

    :param policy: the first
    :param make: builds one from keyword arguments; a network among these is copied before
    :param kwargs: arguments of the first
    :raises ValueError: if neither arguments nor policy can be copied
    """
    before = copied(policy.state_dict())
    second = make(_copy_of(kwargs))
    if shared_tensor(policy, second) is not None:  # its class holds a network and may have initialised it again
        policy.load_state_dict(before)
        second = _copy_of(policy)
    check_apart(policy, second)
    return second


def _copy_of(value: T) -> T:
    try:
        return deepcopy(value)
    except Exception:  # any object may refuse to be copied; check_apart finds shared tensors
        return value


def actor_weights(weights: Mapping[str, th.Tensor]) -> dict[str, th.Tensor]:
    """Rename an actor-critic's weights to :class:`ActorPolicy`'s names, without its critic; an actor's are unchanged.

    :param weights: by name
    """
    renamed = {
        new + name.removeprefix(old): value for old, new in ACTOR for name, value in weights.items() if name.startswith(old)
    }
    rest = {name: value for name, value in weights.items() if not name.startswith(CRITIC)}
    return {**rest, **renamed}


def _from_zip(source: object) -> State:
    if not isinstance(source, str | Path):
        raise ValueError(f"{source!r:.80} is no policy: give one, a model that has one, or the path of a model's zip.")
    if not any(Path(f"{source}{suffix}").is_file() for suffix in ("", ".zip")):
        raise ValueError(f"cannot read the weights of {source}: there is no such file.")
    try:
        _, tensors, _ = load_from_zip_file(source, load_data=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"cannot read the weights of {source}: {error}") from error
    if not tensors or "policy" not in tensors:
        raise ValueError(f"{source} holds no policy: give the zip that save() of a GRPO, PPO or A2C model has written.")
    return dict(tensors["policy"])  # type: ignore[arg-type]


def _check_activation(policy: ActorPolicy, other: th.nn.Module) -> None:
    theirs = getattr(other, "activation_fn", policy.activation_fn)
    if theirs is not policy.activation_fn:
        raise ValueError(
            f"the other policy has {theirs.__name__} between its layers, this one {policy.activation_fn.__name__}: pass "
            f"policy_kwargs=dict(activation_fn=torch.nn.{theirs.__name__})."
        )


def _check_fits(found: Mapping[str, th.Tensor], wanted: Mapping[str, th.Tensor]) -> None:
    for name in sorted([*wanted, *found], key=lambda name: not name.startswith(MEMORY)):  # explains the others
        theirs, own = (None if name not in side else tuple(side[name].shape) for side in (found, wanted))
        if theirs != own:
            raise ValueError(
                f"the other policy does not fit: {name} is {theirs or 'not there'} in it and {own or 'not there'} here. "
                f"{_remedy(name)}"
            )


def _remedy(name: str) -> str:
    if name.startswith("obs_normalizer"):
        return "Give both normalize_obs, or neither: VecNormalize's statistics are no part of a policy."
    if name.startswith(MEMORY):
        return "Give both the same memory, or neither: policy_kwargs=dict(memory=..., memory_size=..., n_layers=...)."
    if name == "log_std":
        return "Give both the same action space and use_sde."
    return "Give both the same spaces, features extractor and policy_kwargs=dict(net_arch=...)."
