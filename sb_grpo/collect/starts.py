"""Where the episodes of a group started, and who is to blame when they did not start alike."""

from __future__ import annotations

from typing import Any

from sb_grpo.envs.seeded_reset import START_DIGEST, START_LAYERS, observation_digest
from sb_grpo.types import map_obs

#: Name and digest of the first observation by layer, from the env itself to its outermost wrapper.
Start = tuple[tuple[str, bytes], ...]


def start_of(reset_info: dict[str, Any], raw_obs: Any, slot: int) -> Start | None:
    """The start of a slot's episode as its reset info has it, or else from the observation.

    :param raw_obs: ``[n_envs, ...]`` after the reset, below any VecNormalize; None: not known
    :return: None where neither says
    """
    if START_LAYERS in reset_info:
        layers: Start = reset_info[START_LAYERS]
        return layers
    if START_DIGEST in reset_info:
        return (("", reset_info[START_DIGEST]),)
    if raw_obs is None:
        return None
    return (("", observation_digest(map_obs(lambda o: o[slot], raw_obs))),)


def mismatch_message(env_id: str | None, group: int, seed: int, first: Start, other: Start) -> str:
    """Says that two members of a group started differently, and which layer made the difference.

    :param first: of the group's first member
    :param other: of another one; its last digest differs
    """
    where = f"{env_id or 'this env'} (group {group}, seed {seed})"
    begin = f"Two members of a group started from different observations in {where}: "
    end = " Counted as group/start_mismatch."
    layer = next((i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a[1] != b[1]), 0)
    if layer == 0:
        return (
            f"{begin}reset(seed=...) does not fix its start state. Groups still average over episodes, but not over equal "
            f"starts.{end}"
        )
    name, inside = other[layer][0], other[layer - 1][0]
    return (
        f"{begin}{name} made the difference, a wrapper inside the env. What it wraps ({inside}) did start from one state, so "
        f"groups are compared from equal starts, but {name} shows it differently from episode to episode, because it keeps "
        "running statistics or draws random numbers of its own. In place of a normalisation inside the env use "
        f"VecNormalize around the VecEnv, or policy_kwargs=dict(normalize_obs=True).{end}"
    )
