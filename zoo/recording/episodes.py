"""Groups of episodes under a trained policy: every member from the group's own reset seed, as GRPO collects them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb_grpo import Rollout
from sb_grpo.collect.host_steps import Beside
from sb_grpo.collect.masks import source_of
from sb_grpo.policies import ActorPolicy
from sb_grpo.types import Info, Obs, TensorOrDict, map_obs

from ..common.command_line import BadInput

#: Seeds tried per group before giving up on having every task equally often.
TRIES = 50


class Episode(NamedTuple):
    """One member of a group."""

    #: T + 1 as the policy sees them, with valid actions and memory; the last one after the last step
    observations: list[TensorOrDict]
    actions: list[th.Tensor]
    rewards: list[float]
    terminated: bool
    task: int


def collect(env: gym.Env, policy: ActorPolicy, n_groups: int, group_size: int, max_steps: int, n_tasks: int) -> Rollout:
    """Run groups of episodes, one after another.

    :param env: with flat observations; its reset seed decides its randomness
    :param policy: draws the actions, with torch's generator
    :param n_groups: groups; where there are tasks, every task gets as many of them as the others, or one more
    :param group_size: members of a group
    :param max_steps: episodes are cut after so many steps
    :param n_tasks: 0: the env has one task
    """
    seeds = group_seeds(env, n_groups, n_tasks)
    alone = DummyVecEnv([lambda: env])
    return as_rollout([[run(alone, policy, seed, max_steps) for _ in range(group_size)] for seed in seeds])


def group_seeds(env: gym.Env, n_groups: int, n_tasks: int) -> list[int]:
    """Reset seeds from 1 on, those left out whose task has had its groups.

    :raises BadInput: where the env hardly ever draws some task
    """
    if not n_tasks:
        return list(range(1, n_groups + 1))
    found: list[int] = []
    had: Counter[int] = Counter()
    for seed in range(1, TRIES * n_groups):
        task = task_of(env.reset(seed=seed)[1])
        if had[task] < (n_groups + n_tasks - 1) // n_tasks and len(found) < n_groups:
            found.append(seed)
            had[task] += 1
    if len(found) < n_groups:
        raise BadInput(
            f"--groups {n_groups}: {TRIES * n_groups} seeds brought only the tasks {sorted(had)} of {n_tasks}. Ask for fewer."
        )
    return found


def task_of(info: Info) -> int:
    """Number of the episode's task; 0 where the env names none."""
    return int(info.get("task", 0))


def run(env: VecEnv, policy: ActorPolicy, seed: int, max_steps: int) -> Episode:
    """One episode, as GRPO collects them.

    :param env: with one slot
    """
    env.seed(seed)
    observations = list[TensorOrDict]()
    actions = list[th.Tensor]()
    rewards = list[float]()
    obs: Obs = env.reset()
    task = task_of(env.reset_infos[0])
    terminated = False
    carried = Beside(source_of(env))
    carried.see(env)
    for t in range(max_steps):
        seen = carried.observe(th.as_tensor(obs), policy, np.array([t]), t)
        with th.no_grad():
            action, memory = policy.act_and_remember(seen)
        carried.remember(memory)
        obs, reward, dones, infos = env.step(policy.in_bounds(action.numpy()))
        carried.see(env, infos, dones, t)
        observations.append(map_obs(lambda x: x[0], seen))
        actions.append(action[0])
        rewards.append(float(reward[0]))
        if dones[0]:
            obs = infos[0]["terminal_observation"][None]
            terminated = not infos[0]["TimeLimit.truncated"]
            break
    observations.append(map_obs(th.as_tensor, carried.after(0, obs[0])))
    return Episode(observations, actions, rewards, terminated, task)


def packed(
    observations: TensorOrDict,
    actions: th.Tensor,
    rewards: th.Tensor,
    lengths: th.Tensor,
    group: th.Tensor,
    terminated: th.Tensor,
    final_observations: TensorOrDict,
    task: th.Tensor,
) -> Rollout:
    """Pack whole episodes into a rollout for GRPO's estimators; log-probabilities are 0.

    :param observations: ``[M, ...]``; like actions and rewards by step, episode after episode
    :param lengths: ``[E]`` steps; like the next arguments by episode
    :param group: ``[E]`` 0 to the number of groups - 1
    """
    return Rollout(
        observations=observations,
        actions=actions,
        log_probs=th.zeros_like(rewards),
        rewards=rewards,
        t=th.cat([th.arange(n) for n in lengths.tolist()]),
        episode=th.repeat_interleave(th.arange(len(lengths)), lengths),
        group=group,
        terminated=terminated,
        truncated=~terminated,
        final_observations=final_observations,
        n_groups=int(group.max()) + 1,
        max_length=int(lengths.max()),
        task=task,
        seed_group=group,
    )


def as_rollout(groups: list[list[Episode]]) -> Rollout:
    """The episodes of some groups."""
    episodes = [episode for group in groups for episode in group]
    return packed(
        observations=stacked([obs for e in episodes for obs in e.observations[:-1]]),
        actions=th.stack([action for e in episodes for action in e.actions]),
        rewards=th.tensor([r for e in episodes for r in e.rewards]),
        lengths=th.tensor([len(e.rewards) for e in episodes]),
        group=th.repeat_interleave(th.arange(len(groups)), th.tensor([len(group) for group in groups])),
        terminated=th.tensor([e.terminated for e in episodes]),
        final_observations=stacked([e.observations[-1] for e in episodes]),
        task=th.tensor([e.task for e in episodes]),
    )


def stacked(observations: list[TensorOrDict]) -> TensorOrDict:
    """Observations of single steps as one batch."""
    found: TensorOrDict = map_obs(lambda *parts: th.stack(parts), *observations)
    return found


def chunks(n: int, size: int, generator: th.Generator) -> Iterator[th.Tensor]:
    """Row numbers in a random order, a minibatch at a time."""
    order = th.randperm(n, generator=generator)
    yield from (order[i : i + size] for i in range(0, n, size))
