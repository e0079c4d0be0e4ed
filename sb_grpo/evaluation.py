"""Paired comparison of two policies: both play every episode from the same reset seed, and returns differ pair by pair.

The seed fixes the start and, where an env draws from its own generator, the luck to come (common random numbers): its share in
both returns cancels in the difference. The interval and p are those of the paired t-test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, VecTransposeImage, unwrap_vec_normalize

from sb_grpo.collect.given_starts import GivenStart, Starts, check_start, each_start
from sb_grpo.collect.seeded_episodes import Episodes, Policy, actor, first_starts, frozen_statistics, held, play
from sb_grpo.config import shown
from sb_grpo.envs.installing import install_seeded_reset
from sb_grpo.envs.seeded_reset import observation_digest
from sb_grpo.envs.tensor_env import TensorVecEnv

FIRST_SEED = 2**30  # of seeds that are not given: far from SB3's training starts (seed + env index), valid for tensor envs
ROUNDING = 1e-12  # differences that vary less than this share of the returns are equal


@dataclass(frozen=True, eq=False)
class PairedEvaluation:
    """Result of :func:`evaluate_paired`. Nothing in it is NaN.

    :param seeds: of the episodes
    :param returns_a: ``[n]`` undiscounted returns of A, in the order of the seeds
    :param returns_b: ``[n]`` of B
    :param level: coverage of the interval
    :param mean_a: mean return of A
    :param mean_b: mean return of B
    :param difference: mean of B minus mean of A
    :param low: lower end of the interval of the difference
    :param high: upper end
    :param p: two-sided, of the paired t-test; 1 if every pair is equal, 0 if all pairs differ by the same amount
    :param correlation: of the returns of a pair; 0 if those of one policy are all equal
    :param independent_episodes: episodes of each policy on seeds of its own that would give the same standard error; infinite
        if all pairs differ by the same amount and the returns do not
    """

    seeds: tuple[int, ...]
    returns_a: np.ndarray
    returns_b: np.ndarray
    level: float
    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    p: float
    correlation: float
    independent_episodes: float

    @property
    def episodes(self) -> int:
        """Episodes that each policy played."""
        return len(self.seeds)

    @property
    def episodes_saved(self) -> float:
        """Episodes of each policy that pairing saved; negative where one's luck is the other's bad luck."""
        return self.independent_episodes - self.episodes

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        answer = "No difference between B and A is shown"
        if self.low > 0 or self.high < 0:
            answer = f"B is {'better' if self.low > 0 else 'worse'} than A"
        interval = f"[{self.low:.4g}, {self.high:.4g}]"
        p = "p < 0.0001" if self.p < 0.0001 else f"p = {self.p:.2g}"
        worth = f"without pairs {self.independent_episodes:,.0f} episodes of each would say as much"
        if math.isinf(self.independent_episodes):
            worth = "every pair differs by the same amount"
        return (
            f"{answer}: mean return {self.mean_b:.4g} against {self.mean_a:.4g}, difference {self.difference:.4g} "
            f"({100 * self.level:g} % interval {interval}, {p}) from {self.episodes} pairs of episodes; {worth}."
        )


def evaluate_paired(
    policy_a: Policy,
    policy_b: Policy,
    env: str | gym.Env | Callable[[], gym.Env] | VecEnv,
    seeds: Sequence[int] | int = 100,
    *,
    deterministic: bool = True,
    normalize: tuple[VecNormalize | None, VecNormalize | None] = (None, None),
    level: float = 0.95,
    n_envs: int = 1,
    starts: Starts | None = None,
) -> PairedEvaluation:
    """Play every seed with both policies and compare their returns pair by pair.

    The answer is about these two policies. For two algorithms the training seed is the unit: see ``zoo.compare``.

    :param policy_a: a model or policy with SB3's ``predict``, or a function: observations ``[N, ...]`` to actions ``[N, ...]``
    :param policy_b: likewise
    :param env: an id, an env, a function that makes one, a VecEnv (of processes: built with ``SeededResetWrapper``), or a
        TensorVecEnv. It is reset: do not give the one that a model is training on. Returns are Monitor's, or else sums of
        rewards before VecNormalize, whose statistics stand still meanwhile
    :param seeds: reset seeds, at least 2, none twice; or a number of episodes, whose seeds count on from 2^30
    :param deterministic: take the mode of a policy with ``predict``. Else both sample from the same random numbers, so actions
        of equal policies are equal; the caller's generators stay as they are
    :param normalize: VecNormalize of A and of B, where each was trained with statistics of its own; ``env`` gives raw
        observations then
    :param level: coverage of the interval, in (0, 1)
    :param n_envs: envs side by side, where ``env`` is no VecEnv
    :param starts: starts as in ``group_kwargs=dict(starts=...)``, in place of seeds: a sequence, of which every one is played
        once, or a function, which is asked for those of the numbers below ``seeds``. Starts without a seed get those that
        count on from 2^30
    :raises ValueError: for bad seeds or starts, a policy with other spaces, an env whose starts do not follow from its seeds,
        and returns that are not finite
    :raises ImportError: without SciPy
    """
    _students_t()
    chosen = _checked_seeds(seeds, env) if starts is None else _read_starts(starts, seeds)
    if not 0 < level < 1:
        raise ValueError(f"level={level} must lie between 0 and 1, such as 0.95.")
    made = not isinstance(env, VecEnv | gym.Env)
    venv = env if isinstance(env, VecEnv) else _make(env, min(n_envs, len(chosen)))
    try:
        if unwrap_vec_normalize(venv) is not None and normalize != (None, None):
            raise ValueError("env is wrapped in VecNormalize: normalize= would normalise observations twice. Drop one.")
        for name, policy in (("policy_a", policy_a), ("policy_b", policy_b)):
            _check_policy(name, policy, venv)
        if not isinstance(venv, TensorVecEnv):
            install_seeded_reset(venv)
        for number, start in enumerate(chosen):
            check_start(start, venv, f"starts[{number}]")
        few = chosen[: venv.num_envs]
        with frozen_statistics(venv), held(venv):
            _check_starts(few, first_starts(venv, few), first_starts(venv, few))
            a, b = (_play(*one, venv, chosen, deterministic) for one in zip((policy_a, policy_b), normalize, strict=True))
        _check_starts(chosen, a.starts, b.starts)
    finally:
        if made:
            venv.close()
    return paired_difference(a.returns, b.returns, _seeds_of(chosen), level)


def _students_t() -> Any:
    """Student's t distribution of SciPy, which is no dependency of SB3."""
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError(f"evaluate_paired needs SciPy ({error}): pip install scipy.") from error
    return stats.t


def paired_difference(returns_a: np.ndarray, returns_b: np.ndarray, seeds: Sequence[int], level: float) -> PairedEvaluation:
    """The paired t-test, and the worth of the pairs.

    The mean difference of m independent episodes of each has the variance (Var A + Var B) / m, that of n pairs Var(B - A) / n:
    they are equal at m = n (Var A + Var B) / Var(B - A).

    :param returns_a: ``[n]``
    :param returns_b: ``[n]`` from the same seeds
    :param seeds: the seeds
    :param level: coverage of the interval
    """
    n = len(seeds)
    differences = returns_b - returns_a
    mean = float(differences.mean())
    a = returns_a - returns_a.mean()
    b = returns_b - returns_b.mean()
    separate = float(a @ a + b @ b)
    product = float(a @ a) * float(b @ b)
    if np.ptp(differences) <= ROUNDING * max(np.abs(returns_a).max(), np.abs(returns_b).max()):
        half = 0.0
        p = float(mean == 0)
        independent = math.inf if separate > 0 else float(n)
    else:
        error = float(differences.std(ddof=1)) / math.sqrt(n)
        t = _students_t()
        half = float(t.ppf((1 + level) / 2, n - 1)) * error
        p = float(2 * t.sf(abs(mean) / error, n - 1))
        independent = n * separate / float(np.square(differences - mean).sum())
    return PairedEvaluation(
        tuple(seeds),
        returns_a,
        returns_b,
        level,
        mean_a=float(returns_a.mean()),
        mean_b=float(returns_b.mean()),
        difference=mean,
        low=mean - half,
        high=mean + half,
        p=p,
        correlation=float(a @ b) / math.sqrt(product) if product > 0 else 0.0,
        independent_episodes=independent,
    )


def _make(env: str | gym.Env | Callable[[], gym.Env], n_envs: int) -> VecEnv:
    if n_envs < 1:
        raise ValueError(f"n_envs={n_envs} is too small: it must be at least 1.")
    if isinstance(env, gym.Env):
        return DummyVecEnv([lambda: env])
    return make_vec_env(env, n_envs)


def _play(
    policy: Policy, normalize: VecNormalize | None, env: VecEnv, starts: list[GivenStart], deterministic: bool
) -> Episodes:
    seeds = _seeds_of(starts)
    with th.random.fork_rng(devices=range(th.cuda.device_count())):
        th.manual_seed(seeds[0])
        episodes = play(actor(policy, normalize, deterministic), env, starts)
    for seed, value in zip(seeds, episodes.returns, strict=True):
        if not math.isfinite(value):
            raise ValueError(f"The episode from seed {seed} has the return {value}: the env's rewards must be finite.")
    return episodes


def _seeds_of(starts: Sequence[GivenStart]) -> list[int]:
    return [start.seed for start in starts if start.seed is not None]


def _read_starts(starts: Starts, seeds: Sequence[int] | int) -> list[GivenStart]:
    if not isinstance(seeds, int | np.integer) or (not callable(starts) and seeds != 100):
        raise ValueError(
            f"starts and seeds={shown(seeds)} both say which episodes are played: leave seeds out, or let it be the number of "
            "episodes where starts is a function."
        )
    entries = [starts(number) for number in range(seeds)] if callable(starts) else starts
    read = list(each_start(entries, None, "starts"))
    if len(read) < 2:
        raise ValueError(f"{len(read)} start(s) give no interval: at least 2 are needed, 30 or more are better.")
    keys = [(start.seed, observation_digest([start.options or {}, start.state])) for start in read if start.seed is not None]
    if len(set(keys)) < len(keys):
        twice = next(i for i, key in enumerate(keys) if key in keys[:i])
        raise ValueError(f"starts holds {shown(entries[twice])} twice: an episode counted twice proves nothing more.")
    return [start if start.seed is not None else start._replace(seed=FIRST_SEED + i) for i, start in enumerate(read)]


def _checked_seeds(seeds: Sequence[int] | int, env: object) -> list[GivenStart]:
    chosen = list(range(FIRST_SEED, FIRST_SEED + int(seeds))) if isinstance(seeds, int | np.integer) else list(seeds)
    if len(chosen) < 2:
        raise ValueError(f"{len(chosen)} seed(s) give no interval: at least 2 are needed, 30 or more are better.")
    limit = 2**31 if isinstance(env, TensorVecEnv) else 2**32
    wrong = [s for s in chosen if isinstance(s, bool) or not isinstance(s, int | np.integer) or not 0 <= s < limit]
    if wrong:
        raise ValueError(f"seeds holds {wrong[0]!r}: a seed must be a whole number from 0 to {limit - 1}.")
    twice = sorted({s for s in chosen if chosen.count(s) > 1}) if len(set(chosen)) < len(chosen) else []
    if twice:
        raise ValueError(f"seeds holds {twice[0]} twice: an episode counted twice proves nothing more. Give each seed once.")
    return [GivenStart(int(s)) for s in chosen]


def _check_policy(name: str, policy: Policy, env: VecEnv) -> None:
    if not hasattr(policy, "predict") and not callable(policy):
        raise ValueError(f"{name} is a {type(policy).__name__}: give an object with SB3's predict, or a function.")
    for kind in ("observation_space", "action_space"):
        its = getattr(policy, kind, None)
        space = getattr(env, kind)
        if its is not None and its != space and its != _transposed(space):
            raise ValueError(f"{name} has the {kind} {its}, the env has {space}: give the env that it was trained for.")


def _transposed(space: spaces.Space) -> spaces.Space:
    """Channels first, as SB3's models have the space of images that ``predict`` turns by itself."""
    return VecTransposeImage.transpose_space(space) if isinstance(space, spaces.Box) and is_image_space(space) else space


def _check_starts(starts: Sequence[GivenStart], some: Sequence[str], others: Sequence[str]) -> None:
    for seed, one, other in zip(_seeds_of(starts), some, others, strict=True):
        if one != other:
            raise ValueError(
                f"Two resets with seed {seed} start differently: the env ignores its seed, so its episodes are no pairs. "
                "Let its reset() call super().reset(seed=seed) and draw from self.np_random alone."
            )
