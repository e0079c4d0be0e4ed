"""Starts of a group's episodes, and the layer to blame when they did not start alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.envs.installing import facts, wrappers_of
from sb_grpo.envs.seeded_reset import START_DIGEST, START_LAYERS, Begun, observation_digest
from sb_grpo.types import Obs, map_obs

#: By layer, from the env itself to its outermost wrapper.
Start = tuple[Begun, ...]

#: In the place of a layer's name: the wrappers around the VecEnv.
AROUND = "the wrappers around the VecEnv"

UNEQUAL = "Groups still average over episodes, but not over equal starts. Counted as group/start_mismatch."


def start_of(env: VecEnv, env_index: int, raw_obs: Obs) -> Start | None:
    """The start of an env's episode as its reset info has it, or else from the observation.

    :param env: a VecEnv of somebody's own may have no reset infos, or fewer than envs
    :param raw_obs: ``[n_envs, ...]`` after the reset, below any VecNormalize; None: not known
    :return: None where neither says
    """
    reset_infos = getattr(env.unwrapped, "reset_infos", None) or ()
    reset_info = (reset_infos[env_index] if env_index < len(reset_infos) else None) or {}
    if START_LAYERS in reset_info:
        return as_start(reset_info[START_LAYERS])
    if START_DIGEST in reset_info:
        return (Begun("", reset_info[START_DIGEST]),)
    if raw_obs is None:
        return None
    return (Begun("", observation_digest(map_obs(lambda o: o[env_index], raw_obs))),)


def as_start(layers: Iterable[Sequence[Any]]) -> Start:
    """A start that has travelled, or waited in a file, as plain tuples."""
    return tuple(Begun(*layer) for layer in layers)


def left_behind(start: Start, steps: int) -> Start:
    """A start that the policy does not see, because wrappers around the VecEnv take some steps before they show the env."""
    return start if steps == 0 else (*start, Begun(AROUND, f"{start[-1].digest} and {steps} steps", calls=steps))


def same_start(first: Start, other: Start) -> bool:
    """Whether the policy saw equal first observations in two episodes."""
    return first[-1].digest == other[-1].digest


def same_inside(first: Start, other: Start) -> bool:
    """Whether the env without its wrappers began with equal observations, as far as known; wrappers may hide some of them."""
    return not (first[0].digest and other[0].digest) or first[0].digest == other[0].digest


def start_mismatch_message(env: VecEnv, group: int, seed: int, first: Start, other: Start) -> str:
    """Says that two members of a group started differently, and which layer made the difference.

    :param env: with its wrappers
    :param first: of the group's first member
    :param other: of another one; its last digest differs
    """
    begin = f"Two members of a group started from different observations in {_where(env, group, seed)}: "
    if AROUND in (first[-1].name, other[-1].name):
        steps = [start[-1].calls if start[-1].name == AROUND else 0 for start in (first, other)]
        names = ", ".join(type(wrapper).__name__ for wrapper in wrappers_of(env))
        return (
            f"{begin}one of {AROUND} ({names}) steps an env on after its reset, and not alike for "
            f"all members ({steps[0]} and {steps[1]} times). Put what warms up inside the env, as a gymnasium wrapper; let "
            f"one that repeats actions stop where an episode ends. {UNEQUAL}"
        )
    layer = next((i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a.digest != b.digest), 0)
    cause = _cause(first, other, layer)
    if cause is not None:
        return f"{begin}{cause} {UNEQUAL}"
    name = other[layer].name
    inside = other[layer - 1].name
    return (
        f"{begin}{name} made the difference, a wrapper inside the env. What it wraps ({inside}) did start from one state, so "
        f"groups are compared from equal starts, but {name} shows it differently from episode to episode, because it keeps "
        "running statistics or draws random numbers of its own. In place of a normalisation inside the env use "
        "VecNormalize around the VecEnv, or policy_kwargs=dict(normalize_obs=True). Counted as group/start_mismatch."
    )


def hidden_message(env: VecEnv, group: int, seed: int, first: Start, other: Start) -> str:
    """Says that two members of a group started differently where the policy does not see it.

    :param env: with its wrappers
    :param first: of the group's first member
    :param other: of another one; its first digest differs, and its last one does not
    """
    return (
        f"Two members of a group may have started from different states in {_where(env, group, seed)}. The policy saw equal "
        f"observations, but those of {other[0].name} without its wrappers differ: {_cause(first, other, 0)} Ignore this if "
        "neither rewards nor later observations depend on what differs. Counted as group/start_mismatch."
    )


def alike_message(env: VecEnv, n_groups: int) -> str:
    """Says that every group has started from one state."""
    return (
        f"All {n_groups} groups so far started alike in {facts(env)[0] or 'this env'}, though each has a seed of its own. "
        "This is right for a task with one start; an env that generates instances should draw them in reset(seed=...) from "
        "self.np_random, or else all training is on one of them."
    )


def _where(env: VecEnv, group: int, seed: int) -> str:
    return f"{facts(env)[0] or 'this env'} (group {group}, seed {seed})"


def _cause(first: Start, other: Start, layer: int) -> str | None:
    """The layer to blame, and the remedy; None: a wrapper shows equal starts differently.

    :param layer: the innermost one of which the members saw different things
    """
    found = _not_reset(first, other, layer) or _other_options(first, other, layer)
    if found is None and layer > 0:
        return _moved(first, other, layer)
    return found or (
        "reset(seed=...) does not fix its start state, or the envs are not alike: built with other arguments, or "
        "changed from outside between two episodes. After a change call model.restart_groups(); envs that are to differ "
        "are tasks (multitask=)."
    )


def _other_options(first: Start, other: Start, layer: int) -> str | None:
    """The outermost place from which the members' resets got different options; None where that made no difference."""
    for i in range(len(other) - 1, layer - 1, -1):
        if i < len(first) and first[i].options != other[i].options:
            break
    else:
        return None
    if i == len(other) - 1:
        return (
            "reset() got other options with the same seed, from VecEnv.set_options(), which holds for one reset only: the "
            "resets at the ends of episodes get none. Give the env what all of its episodes need when it is built, or by "
            "set_attr()."
        )
    return (
        f"{other[i + 1].name}.reset() hands other options to what it wraps ({other[i].name}) with the same seed. Let it draw "
        "them from np.random.default_rng(seed), where it gets a seed."
    )


def not_reset_message(env: VecEnv, env_index: int) -> str:
    """Says that an episode ended, and the next one began where it had been left.

    :param env: with its wrappers
    """
    wrappers = [type(wrapper).__name__ for wrapper in wrappers_of(env)]
    if not wrappers:
        return (
            f"Env {env_index} was not reset although its episode ended: a wrapper around SeededResetWrapper plays on in its "
            f"reset, so the members of a group start wherever they were left. Put SeededResetWrapper outermost. {UNEQUAL}"
        )
    return (
        f"Env {env_index} was not reset although its episode ended: one of the wrappers around the VecEnv "
        f"({', '.join(wrappers)}) says that episodes are done while the envs play on, so the members of a group start "
        f"wherever they were left. End episodes by a gymnasium wrapper inside the env, whose done lets the VecEnv reset it. "
        f"{UNEQUAL}"
    )


def _not_reset(first: Start, other: Start, layer: int) -> str | None:
    """The outermost wrapper that keeps a reset, or its seed, from the env inside; None where that made no difference.

    :param layer: the innermost one of which the members saw different things
    """
    for i in range(len(other) - 1, max(layer, 1) - 1, -1):
        name = other[i].name
        before = first[i - 1]
        inside = other[i - 1]
        if not (before.digest and inside.digest):
            return (
                f"{name}.reset() does not always reset what it wraps ({inside.name}): an episode begins where another was "
                "left. Let it call self.env.reset(**kwargs) every time, or do without it."
            )
        if i > layer and (not inside.seed or before.seed != inside.seed):
            return (
                f"{name}.reset(seed=...) does not hand the seed on to what it wraps ({inside.name}). Let it call "
                "self.env.reset(seed=seed, options=options)."
            )
    return None


def _moved(first: Start, other: Start, layer: int) -> str | None:
    """The wrapper that steps the env inside before the episode begins, and not alike for both members; None: nobody does.

    :param layer: the innermost one of which the members saw different things; not the env itself
    """
    for i in range(layer, len(other)):
        steps = [start[i].calls - start[i - 1].calls for start in (first, other)]
        if steps[0] != steps[1] or (i == layer and steps[0] > 0):
            return (
                f"{other[i].name} steps what it wraps ({other[i - 1].name}) in reset(), after that has been reset, and not "
                f"alike for all members ({steps[0]} and {steps[1]} times). Let it draw from self.np_random, which the seed "
                "fixes."
            )
    return None
