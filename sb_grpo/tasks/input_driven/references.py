"""Known rules for the input-driven tasks and their returns, for comparison with a trained policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces

from sb_grpo.envs.native import make_tensor_env
from sb_grpo.tasks.input_driven import INPUT_DRIVEN, TENSOR_VERSIONS
from sb_grpo.tasks.input_driven.battery import LEVEL
from sb_grpo.tasks.input_driven.battery_optimum import optimal
from sb_grpo.tasks.input_driven.inventory import LARGEST, LEAD_TIME
from sb_grpo.tasks.input_driven.load_balancing import N_SERVERS

#: Function from observations ``[n, ...]`` to actions ``[n, ...]``.
Policy = Callable[[np.ndarray], np.ndarray]

#: Best parameters on 2,000 episodes with seeds from 2 * 10^6 on, found by :func:`search`.
BASE_STOCK = 47.0
SEASONAL_BASE_STOCK = (48.0, 0.5)
THRESHOLDS = (48.0, 62.0)
GAINS = (30.0, 9.0)


class Reference(NamedTuple):
    """Return of a rule."""

    mean: float  #: return
    standard_error: float


def random_policy(space: spaces.Space, seed: int = 0) -> Policy:
    """Make a policy of uniform actions."""
    rng = np.random.default_rng(seed)
    if isinstance(space, spaces.Discrete):
        return lambda obs: rng.integers(int(space.n), size=len(obs))
    assert isinstance(space, spaces.Box)
    return lambda obs: rng.uniform(space.low, space.high, size=(len(obs), *space.shape))


# ------------------------------------------------------------ LoadBalancing-v0


def shortest_completion(obs: np.ndarray) -> np.ndarray:
    """Choose the server that would finish the job first."""
    actions: np.ndarray = obs[:, N_SERVERS : 2 * N_SERVERS].argmin(1)
    return actions


def least_work(obs: np.ndarray) -> np.ndarray:
    """Choose the server with the least work, whatever its speed."""
    actions: np.ndarray = obs[:, :N_SERVERS].argmin(1)
    return actions


# ------------------------------------------------------------ QueueRouting-v0


def shortest_queue(obs: np.ndarray) -> np.ndarray:
    """Choose the line with the least waiting work."""
    actions: np.ndarray = obs[:, :4].argmin(1)
    return actions


def shortest_delay(obs: np.ndarray) -> np.ndarray:
    """Choose the line with the shortest expected delay, including the batch's own work and the station behind it."""
    actions: np.ndarray = obs[:, 6:10].argmin(1)
    return actions


# ------------------------------------------------------------ Inventory-v0


def base_stock(obs: np.ndarray, level: float, swing: float = 0.0) -> np.ndarray:
    """Order up to a level of units on hand, outstanding orders included.

    :param level: units
    :param swing: relative amplitude of the level over the season, two days ahead
    """
    position = 20.0 * obs[:, : 1 + LEAD_TIME].sum(1)
    ahead = 2.0 * np.pi / 20.0 * 2.0
    season = obs[:, -2] * np.cos(ahead) + obs[:, -1] * np.sin(ahead)
    order = np.clip(level * (1.0 + swing * season) - position, 0.0, LARGEST)
    actions: np.ndarray = (order / (LARGEST / 2.0) - 1.0)[:, None]
    return actions


# ------------------------------------------------------------ BatteryArbitrage-v0


def two_thresholds(obs: np.ndarray, low: float, high: float) -> np.ndarray:
    """Buy at full rate below a price, sell at full rate above another."""
    price = LEVEL + 25.0 * obs[:, 1]
    actions: np.ndarray = ((price < low).astype(np.float64) - (price > high))[:, None]
    return actions


# ------------------------------------------------------------ DisturbedPendulum-v0


def swing_up(obs: np.ndarray, angle_gain: float, speed_gain: float) -> np.ndarray:
    """Pump energy until the pole is near the top, and hold it there by angle and speed.

    After Astrom and Furuta, "Swinging up a pendulum by energy control" (Automatica 36, 2000).
    """
    angle = np.arctan2(obs[:, 1], obs[:, 0])
    speed = obs[:, 2]
    missing = 5.0 * (1.0 - obs[:, 0]) - speed**2 / 6.0
    pump = 2.0 * np.sign(missing * np.where(speed == 0.0, 1.0, speed))
    hold = -angle_gain * angle - speed_gain * speed
    near = np.abs(angle + 0.25 * speed) < 0.5
    actions: np.ndarray = np.clip(np.where(near, hold, pump), -2.0, 2.0)[:, None]
    return actions


# ------------------------------------------------------------ WindyLunarLander-v3


@cache
def _lander() -> gym.Env:
    return gym.make("LunarLander-v3")


def landing_heuristic(obs: np.ndarray) -> np.ndarray:
    """Gymnasium's heuristic: aim at the pad, brake in proportion to height. It ignores the wind."""
    from gymnasium.envs.box2d.lunar_lander import heuristic  # needs Box2D

    return np.array([heuristic(_lander(), row) for row in obs])  # type: ignore[no-untyped-call]


REFERENCES: dict[str, dict[str, Policy]] = {
    "LoadBalancing-v0": {"shortest completion": shortest_completion, "least work": least_work},
    "QueueRouting-v0": {"shortest delay": shortest_delay, "shortest queue": shortest_queue},
    "Inventory-v0": {
        "base stock": partial(base_stock, level=BASE_STOCK),
        "seasonal base stock": lambda obs: base_stock(obs, *SEASONAL_BASE_STOCK),
    },
    "BatteryArbitrage-v0": {"two thresholds": lambda obs: two_thresholds(obs, *THRESHOLDS), "optimal": optimal},
    "DisturbedPendulum-v0": {"swing up": lambda obs: swing_up(obs, *GAINS)},
    "WindyLunarLander-v3": {"heuristic": landing_heuristic},
}


# ------------------------------------------------------------ returns


def evaluate_reference(env_id: str, name: str, seeds: Iterable[int]) -> Reference:
    """Mean return of a rule over whole episodes.

    :param env_id: key of :data:`REFERENCES`
    :param name: key of its rules, or ``"random"``
    :param seeds: one episode each
    :raises ValueError: for an unknown env or rule
    """
    if env_id not in REFERENCES:
        raise ValueError(f"env_id={env_id!r} is no input-driven task; there are {list(INPUT_DRIVEN)}.")
    rules = REFERENCES[env_id]
    if name != "random" and name not in rules:
        raise ValueError(f"name={name!r} is no rule for {env_id}; there are {['random', *rules]}.")
    policy = random_policy(gym.make(env_id).action_space) if name == "random" else rules[name]
    returns = episode_returns(env_id, policy, list(seeds))
    return Reference(float(returns.mean()), float(returns.std(ddof=1) / len(returns) ** 0.5))


def episode_returns(env_id: str, policy: Policy, seeds: Sequence[int]) -> np.ndarray:
    """Return of a policy in one episode per seed, in parallel if there is a tensor version."""
    if env_id not in TENSOR_VERSIONS:
        return _returns_one_by_one(gym.make(env_id), policy, seeds)
    env = make_tensor_env(env_id, len(seeds))
    env.reset_all(th.tensor(seeds))
    total = th.zeros(len(seeds), dtype=th.float64)
    for _ in range(env.max_episode_steps or 0):
        total += env.step_tensor(th.as_tensor(policy(env.observations.numpy()))).rewards
    return total.numpy()


def _returns_one_by_one(env: gym.Env, policy: Policy, seeds: Iterable[int]) -> np.ndarray:
    returns = []
    for seed in seeds:
        obs = env.reset(seed=seed)[0]
        total = 0.0
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy(obs[None])[0])
            total = total + float(reward)
            over = terminated or truncated
        returns.append(total)
    return np.array(returns)


def search(env_id: str, rule: Callable[..., np.ndarray], *ranges: Iterable[float]) -> tuple[tuple[float, ...], float]:
    """Best parameters of a rule by trying every combination on the same 2,000 episodes.

    For example ``search("Inventory-v0", base_stock, range(20, 80))``.

    :param ranges: values to try, one iterable per parameter
    :return: parameters, mean return
    """
    seeds = range(2 * 10**6, 2 * 10**6 + 2000)

    def earned(parameters: tuple[float, ...]) -> float:
        return float(episode_returns(env_id, lambda obs: rule(obs, *parameters), seeds).mean())

    best = max(product(*ranges), key=earned)
    return best, earned(best)
