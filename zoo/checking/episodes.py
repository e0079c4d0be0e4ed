"""Episodes under random actions, with the data for the checks: digests, rewards, ends, observations outside the space."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb_grpo.envs.random import group_seed
from sb_grpo.envs.seeded_reset import observation_digest

#: Largest numbers of members and groups; fewer if the env is slow.
MEMBERS = 8
GROUPS = 16
#: Episodes are cut after this number of steps.
LONGEST = 5000


class Step(NamedTuple):
    """Result of one action."""

    observation: str  #: digest
    reward: float
    terminated: bool
    truncated: bool


@dataclass
class Episode:
    """One episode of the checks."""

    seed: int  #: of its reset
    start: str  #: digest of the first observation
    actions: list[object] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    problem: str = ""  #: description of the first invalid observation or reward
    largest: float = 0.0  #: size of the largest number in an observation; images and dicts aside

    @property
    def rewards(self) -> list[float]:
        """Reward of each step."""
        return [step.reward for step in self.steps]

    @property
    def ended(self) -> bool:
        """Whether the env has ended the episode."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)


def play(env: gym.Env, seed: int, actions: Iterable[object], longest: int = LONGEST) -> Episode:
    """Play one episode.

    :param seed: of its reset
    :param actions: the episode ends after the last one
    :param longest: largest number of steps
    """
    obs, _ = env.reset(seed=seed)
    episode = Episode(seed, observation_digest(obs), problem=observation_problem(env.observation_space, obs, "reset()"))
    for action in islice(actions, longest):
        obs, reward, terminated, truncated, _ = env.step(action)
        episode.actions.append(action)
        episode.steps.append(Step(observation_digest(obs), float(reward), bool(terminated), bool(truncated)))
        if isinstance(obs, np.ndarray) and obs.dtype != np.uint8 and obs.size:
            episode.largest = max(episode.largest, float(np.abs(obs).max()))
        when = f"step {len(episode.steps)}"
        episode.problem = episode.problem or observation_problem(env.observation_space, obs, when)
        if not np.isfinite(episode.steps[-1].reward):
            episode.problem = episode.problem or f"the reward of {when} is {float(reward)}"
        if episode.ended:
            break
    return episode


def random_actions(env: gym.Env) -> Iterator[object]:
    """Draw uniform actions without end."""
    while True:
        yield env.action_space.sample()


def play_groups(env: gym.Env, seconds: float, seed: int = 0) -> list[list[Episode]]:
    """Groups of episodes: members share the reset seed, not the actions.

    :param seconds: no group is begun after this time, except the first two
    :param seed: of resets and actions
    """
    env.action_space.seed(seed)
    groups: list[list[Episode]] = []
    start = time.perf_counter()
    while len(groups) < GROUPS and (len(groups) < 2 or time.perf_counter() - start < seconds):
        number = group_seed(seed, len(groups))
        groups.append([play(env, number, random_actions(env)) for _ in range(MEMBERS)])
    return groups


def observation_problem(space: spaces.Space, obs: object, when: str) -> str:
    """Describe the fault of an observation in a few words; empty if there is none.

    :param space: declared by the env
    :param when: time of the observation
    """
    if isinstance(space, spaces.Dict) and isinstance(obs, dict):
        parts = [observation_problem(part, obs.get(name), f"{when}, {name!r}") for name, part in space.spaces.items()]
        return next(filter(None, parts), "")
    if not isinstance(space, spaces.Box) or not isinstance(obs, np.ndarray):
        return "" if space.contains(obs) else f"the observation of {when}, {obs!r:.80}, is not in {space}"
    if obs.shape != space.shape or not np.can_cast(obs.dtype, space.dtype):
        return f"the observation of {when} has shape {obs.shape} and {obs.dtype}, the space {space.shape} and {space.dtype}"
    if not np.isfinite(obs).all():
        return f"the observation of {when} holds {obs[~np.isfinite(obs)][0]}"
    out = np.flatnonzero((obs < space.low) | (obs > space.high))
    if len(out):
        place = out[0]
        value, low, high = (part.flat[place] for part in (obs, space.low, space.high))
        digits = 17 if f"{value:.6g}" in (f"{low:.6g}", f"{high:.6g}") else 6  # six digits may not show the excess
        bounds = f"[{low:.{digits}g}, {high:.{digits}g}]"
        return f"the observation of {when} has {value:.{digits}g} in place {place}, outside {bounds}"
    return ""
