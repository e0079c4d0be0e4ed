"""Record groups of episodes for the explorer of the docs: train for a while, then run groups and write them down.

``python -m zoo.record --env CartPole-v1 --out rollout.json``; the page opens the file with "Open a recording".
"""

from __future__ import annotations

import copy
import json
import math
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

import sb_grpo
from sb_grpo import GRPO, AdvantageOptions, Rollout, files
from sb_grpo.baselines.state import StateBaseline
from sb_grpo.collect.host_steps import ExtraInputs
from sb_grpo.collect.masks import source_of
from sb_grpo.learn.gradients import clip_gradients
from sb_grpo.learn.losses import Clipped
from sb_grpo.maths.estimators import centre_and_scale
from sb_grpo.maths.returns import gae
from sb_grpo.policies import ActorPolicy
from sb_grpo.policies.extra_inputs import env_part
from sb_grpo.types import Info, Obs, TensorOrDict, map_obs

from .common.command_line import BadInput, Parser, Settings, add_untrusted, check_at_least, known_env, run
from .common.folders import check_place

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
    return as_rollout([[run_episode(alone, policy, seed, max_steps) for _ in range(group_size)] for seed in seeds])


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


def run_episode(env: VecEnv, policy: ActorPolicy, seed: int, max_steps: int) -> Episode:
    """One episode, as GRPO collects them.

    :param env: with ``num_envs=1``
    """
    env.seed(seed)
    observations = list[TensorOrDict]()
    actions = list[th.Tensor]()
    rewards = list[float]()
    obs: Obs = env.reset()
    task = task_of(env.reset_infos[0])
    terminated = False
    carried = ExtraInputs(source_of(env))
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


FORMAT = "sb_grpo.rollout"
VERSION = 1
#: Significant digits of rewards and values, and of values that are only drawn.
DIGITS = 6
DRAWN_DIGITS = 4
#: Components of an observation that are kept, at most.
MAX_COLUMNS = 24
#: Rounded; None: nan or inf.
Number = float | int | None


class Episodes(TypedDict):
    """Columns of the episodes."""

    group: list[int]
    task: list[int]
    length: list[int]
    terminated: list[int]
    final_value: list[Number]


class Steps(TypedDict):
    """Columns of the steps, episode after episode."""

    reward: list[Number]
    value: list[Number]
    ratio: list[Number]
    observation: list[list[Number]]
    action: list[list[Number]]
    score: list[list[Number]]


class Document(TypedDict):
    """Content of a recording."""

    format: str
    version: int
    env: str
    draw: str
    sb_grpo: str
    settings: dict[str, float]
    tasks: list[str]
    observation_names: list[str]
    episodes: Episodes
    steps: Steps
    conflicts: dict[str, list[str] | list[list[Number]]]
    weighting: dict[str, list[Number]] | None
    history: dict[str, list[int] | dict[str, list[Number]]]


def rounded(values: th.Tensor, digits: int = DIGITS) -> list[Number]:
    """Round a column to few digits; whole numbers lose their fraction, and nan or inf becomes None."""
    return [_short(x, digits) for x in values.tolist()]


def _short(x: float, digits: int) -> Number:
    if not math.isfinite(x):
        return None
    short = float(f"{x:.{digits}g}")
    return int(short) if short.is_integer() else short


def columns(values: th.Tensor, at_most: int = MAX_COLUMNS) -> list[list[Number]]:
    """``[M]`` or ``[M, k]`` as a list of columns."""
    table = values.unsqueeze(1) if values.ndim == 1 else values.flatten(1)
    return [rounded(column, DRAWN_DIGITS) for column in table[:, :at_most].unbind(1)]


def episodes_of(rollout: Rollout, final_values: th.Tensor) -> Episodes:
    """The columns of the episodes."""
    assert rollout.task is not None
    return {
        "group": rollout.group.tolist(),
        "task": rollout.task.tolist(),
        "length": th.bincount(rollout.episode).tolist(),
        "terminated": rollout.terminated.int().tolist(),
        "final_value": rounded(final_values),
    }


#: First parts of the keys that the explorer draws.
KEPT = ("task/", "share/", "group/", "train/conflict_rate", "train/explained_variance", "train/clip_fraction", "rollout/ep_")


class History(KVWriter):
    """An output of SB3's logger that remembers numbers."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.columns: dict[str, list[float | None]] = {}

    def write(self, key_values: dict[str, object], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        for key, value in key_values.items():
            if key.startswith(KEPT) and isinstance(value, int | float):
                self.columns.setdefault(key, [None] * len(self.steps)).append(float(value))
        self.steps.append(step)
        for column in self.columns.values():
            column.extend([None] * (len(self.steps) - len(column)))

    def close(self) -> None:
        """Nothing is open."""


#: Rows of a minibatch, passes, and the learning rate of the update whose ratios are recorded.
BATCH = 64
EPOCHS = 4
RATE = 3e-4
CLIP = 0.2
MAX_NORM = 0.5


@th.no_grad()
def state_values(model: GRPO, rollout: Rollout) -> tuple[th.Tensor, th.Tensor]:
    """The state baseline of the past at each step, ``[M]``, and after each episode's last step, ``[E]``.

    :param model: trained with ``advantage="state"``
    """
    assert rollout.task is not None and model.estimator is not None
    baseline = model.estimator
    single = isinstance(baseline, StateBaseline)
    parts = [baseline] if single else list(baseline)

    def of(observations: TensorOrDict, task: th.Tensor) -> th.Tensor:
        features = model.policy.features(observations)
        by_part = th.stack([part.predict(features)[:, 1] for part in parts], dim=1)
        return by_part[:, 0] if single else by_part.gather(1, task.unsqueeze(1)).squeeze(1)

    return of(rollout.observations, rollout.task[rollout.episode]), of(rollout.final_observations, rollout.task)


def state_advantages(rollout: Rollout, of_steps: th.Tensor, after: th.Tensor, options: AdvantageOptions) -> th.Tensor:
    """State-conditioned advantages, ``[M]``, under given values."""
    own = gae(rollout, of_steps, after, options.gamma, options.gae_lambda)
    return centre_and_scale(own, own + of_steps, rollout, options)


def score_columns(policy: ActorPolicy, rollout: Rollout) -> th.Tensor:
    """Gradient of each action's log-probability by the outputs of the policy network (logits or means), ``[M, n_outputs]``."""
    outputs: list[th.Tensor] = []
    handle = policy.action_net.register_forward_hook(lambda module, given, output: outputs.append(output))
    log_prob = policy.log_prob(rollout.observations, rollout.actions)
    handle.remove()
    return th.autograd.grad(log_prob.sum(), outputs[0])[0]


def ratios_after_update(policy: ActorPolicy, rollout: Rollout, advantage: th.Tensor, seed: int) -> th.Tensor:
    """pi_new / pi_old of each row, ``[M]``, once a copy of the policy has been updated with this rollout (clipped surrogate).

    :param seed: of the minibatches
    """
    new = copy.deepcopy(policy)
    generator = th.Generator().manual_seed(seed)
    parameters = list(new.parameters())
    optimizer = th.optim.Adam(parameters, lr=RATE, eps=1e-5)
    with th.no_grad():
        old = policy.log_prob(rollout.observations, rollout.actions)
    for _ in range(EPOCHS):
        for rows in chunks(len(advantage), BATCH, generator):
            observations = map_obs(lambda part: part[rows], rollout.observations)  # noqa: B023
            log_prob = new.log_prob(observations, rollout.actions[rows])
            ratio = (log_prob - old[rows]).exp()
            loss = Clipped().surrogate(log_prob, ratio, advantage[rows], (CLIP, CLIP)).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            clip_gradients(parameters, MAX_NORM)
            optimizer.step()
    with th.no_grad():
        return (new.log_prob(rollout.observations, rollout.actions) - old).exp()


def gradient_cosines(
    policy: ActorPolicy, rollout: Rollout, advantage: th.Tensor, label: th.Tensor, n: int
) -> list[list[float]]:
    """Cosines between the policy gradients of n labels, over all parameters.

    :param label: ``[E]`` int64 in [0, n)
    :return: ``[n, n]``; 0 where a label has no gradient
    """
    parameters = [p for p in policy.parameters() if p.requires_grad]
    log_prob = policy.log_prob(rollout.observations, rollout.actions)
    gradients = []
    for one in range(n):
        loss = -(log_prob * advantage * (label[rollout.episode] == one)).sum()
        parts = th.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        gradients.append(th.cat([part.flatten() for part in parts]))
    matrix = th.nn.functional.normalize(th.stack(gradients), dim=1)
    return [[float(x) for x in row] for row in matrix @ matrix.T]


def weighting_averages(model: GRPO) -> dict[str, list[Number]] | None:
    """Averages of the group weights over the training, by task, or None."""
    followed = getattr(model, "group_weighting", None)
    if followed is None or followed.n_labels == 0 or model.options.multitask.grouping not in ("task", "hierarchical"):
        return None
    names = ("fast", "slow", "spread")
    return {name: rounded(getattr(followed, name)) for name in names} | {"seen": followed.seen.int().tolist()}


# ---------------------------------------------------------------- command line

N_ENVS = 8
#: How the explorer draws an env; others as lines over time.
DRAWN = {"CartPole": "cartpole", "LunarLander": "lander", "LoadBalancing": "queues"}
NAMES = {
    "cartpole": ["cart position", "cart speed", "pole angle", "pole speed"],
    "lander": ["x", "y", "speed x", "speed y", "angle", "angular speed", "left leg", "right leg"],
    "queues": [f"log work at server {i}" for i in range(10)],
}


def parse(arguments: Sequence[str]) -> Namespace:
    """The command line."""
    parser = Parser("zoo.record", __doc__)
    parser.add_argument("--env", required=True, help="env id with flat observations")
    parser.add_argument("--out", required=True, type=Path, help="the file to write")
    parser.add_argument("--steps", type=int, default=8192, help="training steps before the recording; 0: the untrained policy")
    parser.add_argument("--groups", type=int, default=6, help="same-seed groups that are played")
    parser.add_argument("--members", type=int, default=6, help="members of a group")
    parser.add_argument("--max-steps", type=int, default=200, help="episodes are cut after so many steps")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--hyperparams", nargs="+", action=Settings, default={}, help="of GRPO, as name:value")
    add_untrusted(parser)
    args = parser.parse_args(arguments)
    check_place("--out", args.out)
    args.env, _ = known_env(args.env)
    check_at_least(args, steps=0, groups=2, members=2, max_steps=2)
    return args


def train(args: Namespace, tasks: Sequence[str]) -> tuple[GRPO, History]:
    """Train a model with ``advantage="state"`` for a while; return it with its logged values."""
    history = History()
    settings = {"gamma": 0.99, **args.hyperparams}
    if tasks:
        settings["multitask"] = {"tasks": list(tasks), "grouping": "task", **settings.get("multitask", {})}
    try:
        model = GRPO("MlpPolicy", make_vec_env(args.env, N_ENVS), seed=args.seed, device="cpu", **settings)
    except (TypeError, ValueError) as error:
        raise BadInput(str(error)) from error
    if model.advantage != "state":
        raise BadInput(f"advantage={model.advantage!r} has no values to record: leave it out, the page computes the others.")
    model.set_logger(Logger(None, [history]))
    # One rollout at least: a baseline that has seen nothing has no values.
    model.learn(max(args.steps, 1))
    return model, history


def document(args: Namespace, model: GRPO, rollout: Rollout, history: History, tasks: Sequence[str]) -> Document:
    """Make the content of the file; see docs/recordings.md."""
    of_steps, after = state_values(model, rollout)
    options = AdvantageOptions(model.gamma, model.gae_lambda, normalize="batch")
    advantages = state_advantages(rollout, of_steps, after, options)
    labels, names = (rollout.task, list(tasks)) if tasks else (rollout.group, [f"group {i}" for i in range(rollout.n_groups)])
    assert labels is not None
    observations = env_part(rollout.observations)
    cosines = gradient_cosines(model.policy, rollout, advantages, labels, len(names))
    draw = next((kind for name, kind in DRAWN.items() if args.env.startswith(name)), "lines")
    return {
        "format": FORMAT,
        "version": VERSION,
        "env": args.env,
        "draw": draw,
        "sb_grpo": sb_grpo.__version__,
        "settings": {
            "seed": args.seed, "train_steps": model.num_timesteps, "group_size": args.members, "gamma": model.gamma,
            "gae_lambda": model.gae_lambda, "clip_range": CLIP,
        },
        "tasks": list(tasks),
        "observation_names": NAMES.get(draw, [f"observation {i}" for i in range(observations.shape[1])]),
        "episodes": episodes_of(rollout, after),
        "steps": {
            "reward": rounded(rollout.rewards),
            "value": rounded(of_steps),
            "ratio": columns(ratios_after_update(model.policy, rollout, advantages, args.seed))[0],
            "observation": columns(observations, len(NAMES[draw]) if draw in NAMES else 8),
            "action": columns(rollout.actions),
            "score": columns(score_columns(model.policy, rollout)),
        },
        "conflicts": {"labels": names, "cosines": [rounded(th.tensor(row)) for row in cosines]},
        "weighting": weighting_averages(model),
        "history": {
            "steps": history.steps,
            "columns": {key: rounded(th.tensor([float("nan") if x is None else x for x in column]))
                        for key, column in sorted(history.columns.items())},
        },
    }  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Train, run the groups, write the file."""
    args = parse(arguments)
    th.set_num_threads(1)
    env = gym.make(args.env)
    if not isinstance(env.observation_space, gym.spaces.Box) or len(env.observation_space.shape or ()) != 1:
        raise BadInput(f"--env {args.env} has observations {env.observation_space}: only flat vectors can be recorded.")
    tasks = tuple(getattr(env.unwrapped, "task_names", ()))
    model, history = train(args, tasks)
    th.manual_seed(args.seed)
    rollout = collect(env, model.policy, args.groups, args.members, args.max_steps, len(tasks))
    content = document(args, model, rollout, history, tasks)
    files.write(args.out, json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n")
    size = args.out.stat().st_size / 1024
    print(f"{args.out}: {args.groups} groups of {args.members}, {len(rollout.rewards):,} steps, {size:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(run("zoo.record", main, sys.argv[1:]))
