"""Where the episodes of a group started, and who is to blame when they did not start alike."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.envs.installing import facts, wrappers_of
from sb_grpo.envs.seeded_reset import START_DIGEST, START_LAYERS, Begun, observation_digest
from sb_grpo.types import map_obs

#: By layer, from the env itself to its outermost wrapper.
Start = tuple[Begun, ...]

#: In the place of a layer's name: the wrappers around the VecEnv.
AROUND = "the wrappers around the VecEnv"

UNEQUAL = "Groups still average over episodes, but not over equal starts. Counted as group/start_mismatch."


def start_of(env: VecEnv, slot: int, raw_obs: Any) -> Start | None:
    """The start of a slot's episode as its reset info has it, or else from the observation.

    :param env: a VecEnv of somebody's own may have no reset infos, or fewer than slots
    :param raw_obs: ``[n_envs, ...]`` after the reset, below any VecNormalize; None: not known
    :return: None where neither says
    """
    reset_infos = getattr(env.unwrapped, "reset_infos", None) or ()
    reset_info = (reset_infos[slot] if slot < len(reset_infos) else None) or {}
    if START_LAYERS in reset_info:
        layers: Start = reset_info[START_LAYERS]
        return layers
    if START_DIGEST in reset_info:
        return (("", reset_info[START_DIGEST], "", 0),)
    if raw_obs is None:
        return None
    return (("", observation_digest(map_obs(lambda o: o[slot], raw_obs)), "", 0),)


def left_behind(start: Start, steps: int) -> Start:
    """A start that the policy does not see, because wrappers around the VecEnv take some steps before they show the env."""
    return start if steps == 0 else (*start, (AROUND, f"{start[-1][1]} and {steps} steps", "", steps))


def same_start(first: Start, other: Start) -> bool:
    """Whether two episodes began with the same observation."""
    return first[-1][1] == other[-1][1]


def mismatch_message(env: VecEnv, group: int, seed: int, first: Start, other: Start) -> str:
    """Says that two members of a group started differently, and which layer made the difference.

    :param env: with its wrappers
    :param first: of the group's first member
    :param other: of another one; its last digest differs
    """
    where = f"{facts(env)[0] or 'this env'} (group {group}, seed {seed})"
    begin = f"Two members of a group started from different observations in {where}: "
    if AROUND in (first[-1][0], other[-1][0]):
        steps = [start[-1][3] if start[-1][0] == AROUND else 0 for start in (first, other)]
        names = ", ".join(type(wrapper).__name__ for wrapper in wrappers_of(env))
        return (
            f"{begin}one of {AROUND} ({names}) steps an env on after its reset, and not alike for "
            f"all members ({steps[0]} and {steps[1]} times). Put what warms up inside the env, as a gymnasium wrapper; let "
            f"one that repeats actions stop where an episode ends. {UNEQUAL}"
        )
    layer = next((i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a[1] != b[1]), 0)
    wrapper = _not_reset(first, other, layer) or (_moved(first, other, layer) if layer > 0 else None)
    if wrapper is not None:
        return f"{begin}{wrapper} {UNEQUAL}"
    if layer == 0:
        return (
            f"{begin}reset(seed=...) does not fix its start state, or the envs are not alike: built with other arguments, or "
            "changed from outside between two episodes. After a change call model.restart_groups(); envs that are to differ "
            f"are tasks (multitask=). {UNEQUAL}"
        )
    name, inside = other[layer][0], other[layer - 1][0]
    return (
        f"{begin}{name} made the difference, a wrapper inside the env. What it wraps ({inside}) did start from one state, so "
        f"groups are compared from equal starts, but {name} shows it differently from episode to episode, because it keeps "
        "running statistics or draws random numbers of its own. In place of a normalisation inside the env use "
        "VecNormalize around the VecEnv, or policy_kwargs=dict(normalize_obs=True). Counted as group/start_mismatch."
    )


def not_reset_message(env: VecEnv, slot: int) -> str:
    """Says that an episode ended, and the next one began where it had been left.

    :param env: with its wrappers
    """
    wrappers = [type(wrapper).__name__ for wrapper in wrappers_of(env)]
    if not wrappers:
        return (
            f"Env {slot} was not reset although its episode ended: a wrapper around SeededResetWrapper plays on in its reset, "
            f"so the members of a group start wherever they were left. Put SeededResetWrapper outermost. {UNEQUAL}"
        )
    return (
        f"Env {slot} was not reset although its episode ended: one of the wrappers around the VecEnv ({', '.join(wrappers)}) "
        "says that episodes are done while the envs play on, so the members of a group start wherever they were left. End "
        f"episodes by a gymnasium wrapper inside the env, whose done lets the VecEnv reset it. {UNEQUAL}"
    )


def _not_reset(first: Start, other: Start, layer: int) -> str | None:
    """The outermost wrapper that keeps a reset, or its seed, from what it wraps; None where that made no difference.

    :param layer: the innermost one of which the members saw different things
    """
    for i in range(len(other) - 1, max(layer, 1) - 1, -1):
        name, (inside, *_) = other[i][0], other[i - 1]
        if not (first[i - 1][1] and other[i - 1][1]):
            return (
                f"{name}.reset() does not always reset what it wraps ({inside}): an episode begins where another was left. "
                "Let it call self.env.reset(**kwargs) every time, or do without it."
            )
        if i > layer and (not other[i - 1][2] or first[i - 1][2] != other[i - 1][2]):
            return (
                f"{name}.reset(seed=...) does not hand the seed on to what it wraps ({inside}). Let it call "
                "self.env.reset(seed=seed, options=options)."
            )
    return None


def _moved(first: Start, other: Start, layer: int) -> str | None:
    """The wrapper that steps what it wraps before the episode begins, and not alike for both members; None: nobody does.

    :param layer: the innermost one of which the members saw different things; not the env itself
    """
    for i in range(layer, len(other)):
        steps = [start[i][3] - start[i - 1][3] for start in (first, other)]
        if steps[0] != steps[1] or (i == layer and steps[0] > 0):
            return (
                f"{other[i][0]} steps what it wraps ({other[i - 1][0]}) in reset(), after that has been reset, and not alike "
                f"for all members ({steps[0]} and {steps[1]} times). Let it draw from self.np_random, which the seed fixes."
            )
    return None
