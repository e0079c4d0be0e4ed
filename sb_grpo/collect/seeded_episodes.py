"""Whole episodes of a policy, one from each given start, on any VecEnv that GRPO can seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import NamedTuple, TypeAlias

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize, is_vecenv_wrapped, unwrap_vec_normalize

from sb_grpo.collect.given_starts import GivenStart, states_of
from sb_grpo.collect.masks import masks_of, source_of
from sb_grpo.collect.starts import start_of
from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.ownership import ownership_of
from sb_grpo.envs.seeded_reset import observation_digest
from sb_grpo.envs.tensor_env import TensorVecEnv, check_actions
from sb_grpo.types import Obs

#: A model or policy with SB3's ``predict``, or a function: observations ``[N, ...]`` -> actions ``[N, ...]``.
Policy: TypeAlias = BaseAlgorithm | BasePolicy | Callable[[Obs], np.ndarray]
#: State of a recurrent policy.
Memory: TypeAlias = tuple[np.ndarray, ...] | None
#: Observations ``[N, ...]``, state of a recurrent policy, starts ``[N]``, valid actions ``[N, m]`` where observations do not
#: hold them -> actions ``[N, ...]``, next state.
Act = Callable[[Obs, Memory, np.ndarray, np.ndarray | None], tuple[np.ndarray, Memory]]


class Episodes(NamedTuple):
    """Episodes in the order of their starts."""

    returns: np.ndarray  #: [n] undiscounted, of the env's own rewards
    starts: list[str]  #: [n] digests of the raw first observations


def actor(policy: Policy, normalize: VecNormalize | None, deterministic: bool) -> Act:
    """A policy as one function.

    :param policy: with SB3's ``predict``, or a function of observations; one without masks, as PPO's, is not told of them
    :param normalize: whose statistics the policy's observations are normalised with
    :param deterministic: take the mode of a policy with ``predict``
    """

    known = signature(policy.predict).parameters if hasattr(policy, "predict") else {}
    takes_masks = "action_masks" in known or any(one.kind is one.VAR_KEYWORD for one in known.values())

    def act(observations: Obs, state: Memory, starts: np.ndarray, masks: np.ndarray | None) -> tuple[np.ndarray, Memory]:
        seen = observations if normalize is None else normalize.normalize_obs(observations)
        if not hasattr(policy, "predict"):
            return np.asarray(policy(seen)), None
        further = {} if masks is None or not takes_masks else {"action_masks": masks}
        actions, state = policy.predict(seen, state=state, episode_start=starts, deterministic=deterministic, **further)
        return actions, state

    return act


def first_starts(env: VecEnv, starts: Sequence[GivenStart]) -> list[str]:
    """Reset, with one start per env; envs beyond these start anywhere.

    :param env: with :class:`sb_grpo.SeededResetWrapper`, or a TensorVecEnv
    :param starts: at most as many as there are envs, with seeds
    :return: digests of the raw first observations
    """
    observations = _reset(env, starts)
    if isinstance(env, TensorVecEnv):
        return [observation_digest(row) for row in observations[: len(starts)]]
    return [_start(env, observations, env_index) for env_index in range(len(starts))]


def play(act: Act, env: VecEnv, starts: Sequence[GivenStart]) -> Episodes:
    """One episode per start. The k-th always runs in env k modulo the number of envs, whatever the policy does.

    :param act: see :func:`actor`
    :param env: see :func:`first_starts`
    :param starts: with seeds
    """
    if isinstance(env, TensorVecEnv):
        parts = [_play_batch(act, env, starts[i : i + env.num_envs]) for i in range(0, len(starts), env.num_envs)]
        return Episodes(np.concatenate([p.returns for p in parts]), [start for p in parts for start in p.starts])
    return _play_in_turn(act, env, starts)


class _Judge:
    """Holds a VecEnv while policies are judged on it."""

    def __init__(self, n_envs: int) -> None:
        self.n_envs = n_envs

    def seeds_for_others(self) -> list[int]:
        """Random ones, from NumPy's global generator, as SB3's own are."""
        return np.random.randint(2**31, size=self.n_envs).tolist()  # type: ignore[no-any-return]


@contextmanager
def held(env: VecEnv) -> Iterator[None]:
    """Resets and steps inside may consume the seeds that are queued for them; afterwards the envs are as random as before.

    :param env: with installed seeded resets, or a TensorVecEnv
    """
    if isinstance(env, TensorVecEnv):
        yield
        return
    ownership = ownership_of(env)
    judge = _Judge(env.num_envs)
    ownership.notice()  # whoever held the envs has lost them
    ownership.take(judge)
    try:
        yield
    finally:
        ownership.actor = None
        ownership.notice()


@contextmanager
def frozen_statistics(env: VecEnv) -> Iterator[None]:
    """VecNormalize learns nothing inside: while policies are judged, their observations must not drift.

    :param env: with VecNormalize or without
    """
    normalize = unwrap_vec_normalize(env)
    if normalize is None:
        yield
        return
    training = normalize.training
    normalize.training = False
    try:
        yield
    finally:
        normalize.training = training


def _reset(env: VecEnv, starts: Sequence[GivenStart]) -> Obs:
    if isinstance(env, TensorVecEnv):
        padded = [*starts, *[starts[-1]] * (env.num_envs - len(starts))]
        env.reset_all(th.tensor([start.seed for start in padded], dtype=th.int64, device=env.device))
        if isinstance(env, FunctionalTensorEnv) and any(start.state is not None for start in starts):
            has_state = th.tensor([start.state is not None for start in padded], device=env.device)
            env.set_states(has_state, states_of(env, padded))
        return env.observations.cpu().numpy()
    for env_index, start in enumerate(starts):
        _queue(env, env_index, start)
    for env_index in range(len(starts), env.num_envs):
        _queue_spare(env, env_index, starts)
    return env.reset()


def _queue_spare(env: VecEnv, env_index: int, starts: Sequence[GivenStart]) -> None:
    """Let an env that has nothing to play begin anywhere; where starts have options, an env may not begin without."""
    start = next((start for start in starts if start.options is not None), None)
    if start is not None:
        _queue(env, env_index, start)


def _queue(env: VecEnv, env_index: int, start: GivenStart) -> None:
    assert start.seed is not None
    ownership_of(env).queue(env_index, start.seed, None if start.options is None else dict(start.options))


def _start(env: VecEnv, observations: Obs, env_index: int) -> str:
    """Digest of an env's first observation, as its env returned it where that is known."""
    start = start_of(env, env_index, observations)
    assert start is not None
    return start[-1][1]


def _play_batch(act: Act, env: TensorVecEnv, given: Sequence[GivenStart]) -> Episodes:
    observations = _reset(env, given)
    starts = [observation_digest(row) for row in observations[: len(given)]]
    returns = np.zeros(env.num_envs)
    running = np.ones(env.num_envs, dtype=bool)
    running[len(given) :] = False
    state = None
    begins = np.ones(env.num_envs, dtype=bool)
    source = source_of(env)
    while running.any():
        actions, state = act(observations, state, begins, masks_of(env, source))
        check_actions(actions, env.action_space)
        step = env.step_tensor(th.as_tensor(actions, device=env.device))
        observations = step.observations.cpu().numpy()
        returns += step.rewards.double().cpu().numpy() * running
        running &= ~(step.terminated | step.truncated).cpu().numpy()
        begins = np.zeros_like(begins)
    return Episodes(returns[: len(given)], starts)


def _play_in_turn(act: Act, env: VecEnv, given: Sequence[GivenStart]) -> Episodes:
    """SB3's VecEnvs reset an env as its episode ends: the start of its next episode must be queued before."""
    n = min(env.num_envs, len(given))
    turns = [list(range(env_index, len(given), n)) for env_index in range(n)]  # episodes of an env, the running one first
    returns = np.zeros(len(given))
    starts = [""] * len(given)
    earned = np.zeros(env.num_envs)
    normalize = unwrap_vec_normalize(env)
    monitored = is_vecenv_wrapped(env, VecMonitor) or env.env_is_wrapped(Monitor)[0]

    def begin(env_index: int) -> None:
        earned[env_index] = 0.0
        if turns[env_index]:
            starts[turns[env_index][0]] = _start(env, observations, env_index)
        queue_next(env_index)

    def queue_next(env_index: int) -> None:
        if len(turns[env_index]) > 1:
            _queue(env, env_index, given[turns[env_index][1]])
        else:
            _queue_spare(env, env_index, given)

    observations = _reset(env, given[:n])
    state = None
    dones = np.ones(env.num_envs, dtype=bool)
    infos = None
    source = source_of(env)
    for env_index in range(n):
        begin(env_index)
    while any(turns):
        actions, state = act(observations, state, dones, masks_of(env, source, infos, dones))
        observations, rewards, dones, infos = env.step(actions)
        earned += rewards if normalize is None else normalize.get_original_reward()
        for env_index in dones.nonzero()[0].tolist():
            if env_index >= n or not turns[env_index]:
                _queue_spare(env, env_index, given)
                continue
            # a lost life of Atari: the reset took the seed, the game goes on
            if monitored and "episode" not in infos[env_index]:
                queue_next(env_index)
                continue
            returns[turns[env_index].pop(0)] = infos[env_index]["episode"]["r"] if monitored else earned[env_index]
            begin(env_index)
    return Episodes(returns, starts)
