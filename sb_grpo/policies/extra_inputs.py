"""Extra inputs of the policy besides the env's observation: action masks and recurrent states.

Both are keys of a Dict observation, so the buffer, packing, minibatches and the reference policy handle them like any
observation; only the policy distinguishes them. An observation that is not a Dict gets the key ``""``.
"""

from __future__ import annotations

from collections.abc import Mapping

from gymnasium import spaces

from sb_grpo.types import Obs, Settings

MASK = "action_mask"  #: [batch, m] valid actions (sb_grpo.policies.masks)
MEMORY = "policy_memory"  #: [batch, n] state of a recurrent policy before the step (sb_grpo.policies.memory)
SEQUENCE = "policy_sequence"  #: [batch] int64: number of the sequence; a sequence starts from its first row's state
INSTANCE = "policy_instance"  #: [b, ...] instances (or a dict): rows i * k to (i + 1) * k of the batch belong to instance i
CODE = "policy_code"  #: [b, ...] encoded instances of an EncodingPolicy, in place of the instances
ALONE = ""  #: key of an observation that is not a Dict

EXTRA_INPUTS = (MASK, MEMORY, SEQUENCE, INSTANCE, CODE)


def with_extra_inputs(obs: Obs, parts: Settings) -> Obs:
    """Add extra inputs to an observation; unchanged without any."""
    return {**(obs if isinstance(obs, Mapping) else {ALONE: obs}), **parts} if parts else obs


def env_part(obs: Obs) -> Obs:
    """Observation without the extra inputs."""
    if not isinstance(obs, Mapping):
        return obs
    if ALONE in obs:
        return obs[ALONE]
    return (
        {key: part for key, part in obs.items() if key not in EXTRA_INPUTS} if any(key in obs for key in EXTRA_INPUTS) else obs
    )


def with_instances(obs: Obs, instances: Obs) -> Obs:
    """Add the instances that a batch belongs to; unchanged without any."""
    return obs if instances is None else with_extra_inputs(obs, {INSTANCE: instances})


def extra_input(obs: Obs, key: str) -> Obs:
    """One of the extra inputs of an observation, or None."""
    return obs.get(key) if isinstance(obs, Mapping) else None


def space_with(space: spaces.Space, parts: Mapping[str, spaces.Space]) -> spaces.Space:
    """Observation space of :func:`with_extra_inputs`'s result."""
    if not parts:
        return space
    return spaces.Dict({**(dict(space.spaces) if isinstance(space, spaces.Dict) else {ALONE: space}), **parts})


def space_without(space: spaces.Space) -> spaces.Space:
    """Observation space without the extra inputs.

    :raises ValueError: if nothing is left, and for keys that the policy reserves
    """
    if not isinstance(space, spaces.Dict):
        return space
    taken = [key for key in (MEMORY, SEQUENCE, INSTANCE, CODE, ALONE) if key in space.spaces]
    if taken:
        raise ValueError(f"The observation has the key {taken[0]!r}, which the policy needs for itself: rename it.")
    if MASK not in space.spaces:
        return space
    rest = {key: part for key, part in space.items() if key != MASK}
    if not rest:
        raise ValueError(f"{space} holds nothing but {MASK!r}, which is no network input: add what the policy is to see.")
    return spaces.Dict(rest)
