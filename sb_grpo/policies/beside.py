"""What the policy sees beside the env's observation: which actions are valid, and what it remembers.

Both travel as keys of the observation. So the buffer, packing, minibatches and the reference policy carry them as they carry
any observation, rows that wait for their group included; only the policy tells them apart. An observation that is no Dict
stands under the key ``""`` then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

MASK = "action_mask"  #: [batch, m] valid actions (sb_grpo.policies.masks)
MEMORY = "policy_memory"  #: [batch, n] state of a recurrent policy before the step (sb_grpo.policies.memory)
SEQUENCE = "policy_sequence"  #: [batch] int64: rows of one number follow each other, from the first one's memory on
ALONE = ""  #: key of an observation that is no Dict, beside these

BESIDE = (MASK, MEMORY, SEQUENCE)


def with_beside(obs: Any, parts: Mapping[str, Any]) -> Any:
    """An observation with what stands beside it; itself where that is nothing."""
    return {**(obs if isinstance(obs, Mapping) else {ALONE: obs}), **parts} if parts else obs


def env_part(obs: Any) -> Any:
    """An observation as the networks see it."""
    if not isinstance(obs, Mapping):
        return obs
    if ALONE in obs:
        return obs[ALONE]
    return {key: part for key, part in obs.items() if key not in BESIDE} if any(key in obs for key in BESIDE) else obs


def beside(obs: Any, key: str) -> Any:
    """One of the parts that stand beside an observation; None where it has none."""
    return obs.get(key) if isinstance(obs, Mapping) else None


def space_with(space: spaces.Space, parts: Mapping[str, spaces.Space]) -> spaces.Space:
    """Where :func:`with_beside` is at home."""
    if not parts:
        return space
    return spaces.Dict({**(dict(space.spaces) if isinstance(space, spaces.Dict) else {ALONE: space}), **parts})


def space_without(space: spaces.Space) -> spaces.Space:
    """What the networks see of a space.

    :raises ValueError: if nothing is left, and for keys that the policy needs for itself
    """
    if not isinstance(space, spaces.Dict):
        return space
    taken = [key for key in (MEMORY, SEQUENCE, ALONE) if key in space.spaces]
    if taken:
        raise ValueError(f"The observation has the key {taken[0]!r}, which the policy needs for itself: rename it.")
    if MASK not in space.spaces:
        return space
    rest = {key: part for key, part in space.items() if key != MASK}
    if not rest:
        raise ValueError(f"{space} holds nothing but {MASK!r}, which is no network input: add what the policy is to see.")
    return spaces.Dict(rest)
