"""noise_alignment: test whether episodes with one seed meet the same noise at the same step. Run it once on a new env.

Shared noise can only be subtracted if it is aligned: the rewards of members i and j at the same step t must be correlated. The
correlation is measured on pairs of episodes that share only the seed.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from sb_grpo.envs.random import group_seed
from sb_grpo.envs.seeded_reset import observation_digest
from sb_grpo.envs.valid_actions import ValidActions
from sb_grpo.types import Action, Obs

#: Standard errors by which a correlation must exceed zero, and another lag's must exceed that at lag 0.
_Z = 3.0
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
#: Longer lists among an env's attributes are not searched for generators.
_PARTS = 64
#: Number of seeds whose episodes are replayed.
_REPLAYS = 5
#: Discount of returns to go.
GAMMA = 0.99

REMEDIES = {
    "in step": "nothing to mend",
    "fades": "nothing to mend where members share their start and then part by their actions; if step() draws from a "
    "generator that Python does not see, draw the episode's luck in reset(), or from a hash of (seed, t)",
    "falls out of step": "draw the episode's luck in reset(), or the same number of draws in every step, whatever the action",
    "out of step": "set everything back in reset(seed), counters and generators included",
    "nothing in common": "either no luck reaches the rewards, or these actions drown it: pass policy= to measure with others",
    "deterministic": "nothing to pair: one seed is as good as another",
    "ignores its seed": "draw all luck from self.np_random, and call super().reset(seed=seed) first in reset()",
}


class Alignment(NamedTuple):
    """Result of :func:`noise_alignment`."""

    lags: np.ndarray  #: ``[2 * max_lag + 1]``, from -max_lag to max_lag
    correlation: np.ndarray  #: by lag: of one member's centred reward at t with the other's at t + lag
    standard_error: np.ndarray  #: of the correlations, over seeds
    common_share: float  #: share of the reward variance that is common at lag 0
    common_return: float  #: the same for discounted returns to go: noise may affect rewards only steps later
    thirds: tuple[float, float, float]  #: common share in the first, middle and last third of the steps of both members
    starts_equal: bool  #: equal seeds always gave equal first observations
    replays: bool  #: equal seeds and actions always gave equal rewards
    seeds_matter: bool  #: with equal actions, different seeds gave different initial states or rewards
    generator_alike: float | None  #: share of steps after which members' generators agree; None: unused after reset
    verdict: str  #: key of :data:`REMEDIES`, "out of step" with "by k" behind it
    sentence: str  #: verdict, figures and remedy


#: Function from an observation to an action; None: the episode ends.
Play = Callable[[Obs], Action | None]


class _Episode(NamedTuple):
    start: str  #: digest of the first observation
    generators: list[list[int]]  #: states of the env's generators after reset and after each step
    actions: list[Action]
    rewards: list[float]


def noise_alignment(
    make_env: str | Callable[[], gym.Env],
    n_seeds: int = 100,
    n_steps: int = 200,
    max_lag: int = 5,
    seed: int = 0,
    policy: Play | None = None,
) -> Alignment:
    """Play pairs of episodes with the same reset seed and different actions, and correlate their rewards by lag.

    Rewards are centred by their mean over all pairs at the same t, until the shorter episode ends. Some episodes are also
    replayed with their own actions and with another seed. The states of the env's generators (``np_random`` and others among
    its attributes) are compared exactly.

    :param make_env: id, or function that makes the env; one env plays all episodes in turn
    :param n_seeds: pairs, at least 3; for rewards independent over time the standard error is about ``1 / sqrt(n_seeds *
        steps)``
    :param n_steps: largest number of steps per episode
    :param max_lag: largest lag, less than ``n_steps``
    :param seed: of seeds and random actions
    :param policy: from an observation to a random action, as in training; None: uniform actions (valid ones under masks). The
        shared part depends on the policy: if random orders fill every store, demand does not affect the rewards
    :raises ValueError: for sizes out of range, and rewards that are not finite
    """
    if n_seeds < 3 or n_steps < 3 or not 0 <= max_lag < n_steps:
        raise ValueError(
            f"n_seeds={n_seeds}, n_steps={n_steps}, max_lag={max_lag}: take 3 seeds and 3 steps or more, and "
            "0 <= max_lag < n_steps."
        )
    env = ValidActions(gym.make(make_env) if isinstance(make_env, str) else make_env())
    env.action_space.seed(seed)
    seeds = [group_seed(seed, number) for number in range(n_seeds)]
    act = policy or (lambda obs: env.action_space.sample())
    pairs = [(_play(env, s, [act] * n_steps), _play(env, s, [act] * n_steps)) for s in seeds]
    checked = range(min(_REPLAYS, n_seeds))
    again = [_play(env, seeds[i], _repeat(env, pairs[i][0])) for i in checked]
    other = [_play(env, seeds[i - 1], _repeat(env, pairs[i][0])) for i in checked]
    env.close()
    return _judge(
        _centred(pairs, n_steps),
        max_lag,
        starts_equal=all(a.start == b.start for a, b in pairs),
        replays=all(_same(pairs[i][0], again[i]) for i in checked),
        seeds_matter=not all(_same(pairs[i][0], other[i]) for i in checked),
        generator_alike=_generator_alike(pairs),
    )


def _play(env: gym.Env, seed: int, policies: list[Play]) -> _Episode:
    """Play one episode.

    :param policies: function for each step's action; the episode ends after the last, or at the action None
    """
    obs, _ = env.reset(seed=seed)
    generators = list({id(g): g for g in [env.unwrapped.np_random, *_generators(env.unwrapped)]}.values())
    episode = _Episode(observation_digest(obs), [_state(generators)], [], [])
    for policy in policies:
        action = policy(obs)
        if action is None:
            break
        obs, reward, terminated, truncated, _ = env.step(action)
        episode.actions.append(action)
        episode.rewards.append(float(reward))
        if not math.isfinite(episode.rewards[-1]):
            raise ValueError(
                f"The reward of step {len(episode.rewards)} is {episode.rewards[-1]}, which correlates with nothing: return "
                "finite rewards."
            )
        episode.generators.append(_state(generators))
        if terminated or truncated:
            break
    return episode


def _repeat(env: ValidActions, episode: _Episode) -> list[Play]:
    """Repeat the actions of an episode, up to the first that is invalid in the new episode."""
    actions = iter(episode.actions)

    def again(obs: Obs) -> Action | None:
        action = next(actions)
        return action if env.allows(action) else None

    return [again] * len(episode.actions)


def _generators(owner: object, depth: int = 3) -> Iterator[object]:
    """Find the random generators of an env (``np_random`` and others) among its attributes; spaces are skipped.

    :param depth: attributes of attributes, and so on
    """
    parts: Iterable[object] = vars(owner).values() if hasattr(owner, "__dict__") else ()
    if isinstance(owner, dict | list | tuple) and len(owner) <= _PARTS:
        parts = owner.values() if isinstance(owner, dict) else owner
    for part in list(parts):
        if isinstance(part, _GENERATORS):
            yield part
        elif depth > 0 and not isinstance(part, type | gym.Space | ModuleType):
            yield from _generators(part, depth - 1)


def _state(generators: list[object]) -> list[int]:
    """Hashes of the generators' states."""
    return [hash(pickle.dumps(generator)) for generator in generators]


def _same(a: _Episode, b: _Episode) -> bool:
    return a.start == b.start and len(a.rewards) == len(b.rewards) and np.allclose(a.rewards, b.rewards)


def _generator_alike(pairs: list[tuple[_Episode, _Episode]]) -> float | None:
    """Share of steps after which both members' generators have equal states; None if steps use no generator."""
    episodes = [episode.generators for pair in pairs for episode in pair]
    number = min(len(states[0]) for states in episodes)
    moving = [k for k in range(number) if any(state[k] != states[0][k] for states in episodes for state in states)]
    if not moving:
        return None
    after = [step for a, b in pairs for step in zip(a.generators[1:], b.generators[1:], strict=False)]
    return float(np.mean([all(x[k] == y[k] for k in moving) for x, y in after]))


def _centred(pairs: list[tuple[_Episode, _Episode]], n_steps: int) -> np.ndarray:
    """``[pairs, 2, steps]`` rewards minus their mean at the same t; NaN from the end of a pair's shorter episode.

    Steps reached by less than a tenth of the pairs are left out, because each pair would dominate the mean.
    """
    rewards = np.full((len(pairs), 2, n_steps), np.nan)
    for number, pair in enumerate(pairs):
        common = min(len(episode.rewards) for episode in pair)
        rewards[number, :, :common] = [episode.rewards[:common] for episode in pair]
    alive = (~np.isnan(rewards[:, 0])).sum(axis=0)
    rewards = rewards[:, :, alive >= max(2.0, 0.1 * len(pairs))]
    centred: np.ndarray = rewards - np.nanmean(rewards, axis=(0, 1))
    return centred


def correlate(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Correlate centred values of pairs; return the correlation and its standard error over pairs.

    :param first: ``[pairs, steps]``, NaN if missing
    :param second: the same shape
    :return: zeros if the values do not vary
    """
    seen = ~(np.isnan(first) | np.isnan(second))
    a = np.where(seen, first, 0.0)
    b = np.where(seen, second, 0.0)
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    if scale < 1e-12 * max(1, seen.sum()):
        return 0.0, 0.0
    products = (a * b).sum(axis=1) / scale
    correlation = float(products.sum())
    # Standard error of a ratio, from each pair's product minus correlation times variance.
    expected = correlation * (a**2 / (a**2).sum() + b**2 / (b**2).sum()).sum(axis=1) / 2.0
    n = len(products)
    return correlation, float(np.sqrt(((products - expected) ** 2).sum() * n / (n - 1)))


def _by_lag(residuals: np.ndarray, max_lag: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lags, correlations and standard errors; lags beyond the longest episode are left out."""
    length = residuals.shape[2]
    lags = np.arange(-min(max_lag, length - 1), min(max_lag, length - 1) + 1)
    found = [
        correlate(residuals[:, 0, max(0, -k) : length - max(0, k)], residuals[:, 1, max(0, k) : length - max(0, -k)])
        for k in lags.tolist()
    ]
    correlation, error = np.array(found).T
    return lags, correlation, error


def _thirds(residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Common share in each third of the steps of both members, and the standard errors."""
    both = ~np.isnan(residuals[:, 0])
    place = 3 * np.arange(both.shape[1]) // np.maximum(both.sum(axis=1, keepdims=True), 1)
    parts = [np.where(both & (place == third), 1.0, np.nan) for third in range(3)]
    shares, errors = np.array([correlate(residuals[:, 0] * part, residuals[:, 1] * part) for part in parts]).T
    return shares, errors


def _judge(
    residuals: np.ndarray,
    max_lag: int,
    starts_equal: bool,
    replays: bool,
    seeds_matter: bool,
    generator_alike: float | None,
) -> Alignment:
    """Compute the result from the episodes.

    :param residuals: ``[pairs, 2, steps]`` centred rewards, NaN after the shorter episode's end
    """
    lags, correlation, error = _by_lag(residuals, max_lag)
    thirds, thirds_error = _thirds(residuals)
    fades = 0.5 * thirds[0] - thirds[2] > _Z * np.hypot(0.5 * thirds_error[0], thirds_error[2])
    now = int(np.flatnonzero(lags == 0)[0])
    peak = int(np.argmax(correlation))
    shifted = correlation[peak] - correlation[now] > _Z * np.hypot(error[peak], error[now])
    to_go = returns_to_go(residuals)
    in_returns, returns_error = correlate(to_go[:, 0], to_go[:, 1])
    shared = correlation[now] > _Z * error[now] or thirds[0] > _Z * thirds_error[0] or in_returns > _Z * returns_error > 0.0
    if shifted and correlation[peak] > _Z * error[peak]:
        verdict = f"out of step by {abs(int(lags[peak]))}"
    elif not (replays and starts_equal):
        verdict = "ignores its seed"
    elif not seeds_matter:
        verdict = "deterministic"
    elif generator_alike is not None and generator_alike < 1.0:
        verdict = "falls out of step"
    elif not shared:
        verdict = "nothing in common"
    elif fades and generator_alike is None:
        verdict = "fades"
    else:
        verdict = "in step"
    share = float(correlation[now])
    by_third = (float(thirds[0]), float(thirds[1]), float(thirds[2]))
    return Alignment(
        *(lags, correlation, error, share, in_returns, by_third),
        *(starts_equal, replays, seeds_matter, generator_alike, verdict),
        sentence=_sentence(verdict, starts_equal, share, in_returns, by_third, generator_alike),
    )


def returns_to_go(residuals: np.ndarray) -> np.ndarray:
    """Discounted sums of the rewards from each step on.

    :param residuals: ``[..., steps]`` rewards, NaN after an episode's end
    :return: the same shape, NaN at the same places
    """
    sums = np.zeros_like(residuals)
    after = np.zeros(residuals.shape[:-1])
    for t in range(residuals.shape[-1] - 1, -1, -1):
        after = np.nan_to_num(residuals[..., t]) + GAMMA * after
        sums[..., t] = after
    return np.where(np.isnan(residuals), np.nan, sums)


def _sentence(
    verdict: str,
    starts_equal: bool,
    share: float,
    in_returns: float,
    thirds: tuple[float, float, float],
    generator_alike: float | None,
) -> str:
    by_third = ", ".join(f"{100 * third:.0f}" for third in thirds)
    generator = "rest after reset" if generator_alike is None else f"agree after {100 * generator_alike:.0f} % of the steps"
    unequal = "rewards under equal actions" if starts_equal else "starts"
    proof = f"equal seeds gave unequal {unequal}, " if verdict == "ignores its seed" else ""
    return (
        f"{verdict.capitalize()}: {proof}{100 * share:.0f} % of the reward variance is common at the same step "
        f"({by_third} % by thirds of an episode), and {100 * in_returns:.0f} % of that of returns to go, its generators "
        f"{generator}; {REMEDIES[verdict.partition(' by ')[0]]}."
    )
