"""Play every model and the random policy on every variant of the env from the same reset seeds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.collect.given_starts import GivenStart
from sb_grpo.collect.seeded_episodes import Episodes, Policy, actor, frozen_statistics, held, play
from sb_grpo.envs.installing import install_seeded_reset

from ..common.command_line import BadInput, Grid
from ..common.episodes import RandomPolicy, close
from .models import Contestant


class Variant(NamedTuple):
    """Variant of the env."""

    name: str  #: ``CartPole-v1``, or ``CartPole-v1[masscart=2]``
    kwargs: dict[str, object]


class Played(NamedTuple):
    """Results of an evaluation."""

    variants: list[Variant]
    seeds: list[int]
    returns: dict[tuple[str, str], np.ndarray]  #: (variant, model) -> ``[n]`` in the order of the seeds
    random: dict[str, float]  #: variant -> mean return of random actions on the same seeds
    sizes: dict[str, tuple[int, int]]  #: model -> trainable parameters, SB3's count of updates
    notes: list[str]


def variants_of(env_id: str, grid: Grid) -> list[Variant]:
    """Make a variant per combination of a grid.

    :param grid: values by name; empty: the env as in training
    """
    made = []
    for values in product(*grid.values()):
        kwargs = dict(zip(grid, values, strict=True))
        inside = ",".join(f"{name}={value}" for name, value in kwargs.items())
        made.append(Variant(f"{env_id}[{inside}]" if kwargs else env_id, kwargs))
    return made


def play_all(
    contestants: Sequence[Contestant],
    variants: Sequence[Variant],
    seeds: list[int],
    n_envs: int,
    stochastic: bool,
    device: str,
) -> Played:
    """Play all models on all variants.

    :param seeds: of the episodes, the same for all
    :param n_envs: number of parallel envs
    :param stochastic: sample actions instead of taking the most likely
    :param device: of torch
    :raises BadInput: if a model or an env cannot be built
    """
    returns: dict[tuple[str, str], np.ndarray] = {}
    random: dict[str, float] = {}
    sizes: dict[str, tuple[int, int]] = {}
    notes: list[str] = []
    for variant in variants:
        starts: dict[str, list[str]] = {}
        for one in contestants:
            env = one.saved.make_env(variant.kwargs, n_envs=min(n_envs, len(seeds)))
            if variant.name not in random:
                random[variant.name] = random_reference(env, seeds)
            model = one.saved.load(env, device)
            parameters = sum(p.numel() for p in model.policy.parameters() if p.requires_grad)
            sizes[one.name] = parameters, int(getattr(model, "_n_updates", 0))
            try:
                episodes = _episodes(env, model, seeds, not (stochastic or one.saved.draws_actions))
            except ValueError as error:
                raise BadInput(f"{one.name} on {variant.name}: {error}") from error
            finally:
                close(env)
            returns[variant.name, one.name] = episodes.returns
            starts[one.name] = episodes.starts
        first, *others = starts
        unlike = [name for name in others if starts[name] != starts[first]]
        if unlike:
            notes.append(
                f"{variant.name}: {', '.join(unlike)} saw other first observations than {first}: other wrappers, or an env "
                "that ignores its seed; in the latter case the pairs are none."
            )
    return Played(list(variants), seeds, returns, random, sizes, notes)


def random_reference(env: VecEnv, seeds: list[int]) -> float:
    """Mean return of random actions, reproducible."""
    policy = RandomPolicy(env.action_space, 0)
    return float(_episodes(env, policy, seeds, False).returns.mean())


def _episodes(env: VecEnv, policy: Policy | RandomPolicy, seeds: list[int], deterministic: bool) -> Episodes:
    install_seeded_reset(env)
    th.manual_seed(seeds[0])
    with held(env), frozen_statistics(env):
        act = actor(policy, None, deterministic)  # type: ignore[arg-type]  # RandomPolicy has predict, too
        return play(act, env, [GivenStart(seed) for seed in seeds])
