"""Record groups of episodes for the explorer of the docs: train for a while, then run groups and write them down.

``python -m zoo.record --env CartPole-v1 --out rollout.json``; the page opens the file with "Open a recording".
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import gymnasium as gym
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger

import sb_grpo
from sb_grpo import GRPO, AdvantageOptions, Rollout
from sb_grpo.policies.beside import env_part

from .common.command_line import BadInput, Parser, Settings, add_untrusted, known_env, run
from .common.folders import check_place
from .recording import policy_figures as figures
from .recording.document import FORMAT, VERSION, Document, columns, episodes_of, rounded, write
from .recording.episodes import collect
from .recording.history import History

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
    for name, least in (("steps", 0), ("groups", 2), ("members", 2), ("max_steps", 2)):
        if getattr(args, name) < least:
            raise BadInput(f"--{name.replace('_', '-')} {getattr(args, name)} must be at least {least}.")
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
    of_steps, after = figures.values(model, rollout)
    options = AdvantageOptions(model.gamma, model.gae_lambda, normalize="batch")
    advantages = figures.advantages(rollout, of_steps, after, options)
    labels, names = (rollout.task, list(tasks)) if tasks else (rollout.group, [f"group {i}" for i in range(rollout.n_groups)])
    assert labels is not None
    observations = env_part(rollout.observations)
    cosines = figures.conflicts(model.policy, rollout, advantages, labels, len(names))
    draw = next((kind for name, kind in DRAWN.items() if args.env.startswith(name)), "lines")
    return {
        "format": FORMAT,
        "version": VERSION,
        "env": args.env,
        "draw": draw,
        "sb_grpo": sb_grpo.__version__,
        "settings": {
            "seed": args.seed, "train_steps": model.num_timesteps, "group_size": args.members, "gamma": model.gamma,
            "gae_lambda": model.gae_lambda, "clip_range": figures.CLIP,
        },
        "tasks": list(tasks),
        "observation_names": NAMES.get(draw, [f"observation {i}" for i in range(observations.shape[1])]),
        "episodes": episodes_of(rollout, after),
        "steps": {
            "reward": rounded(rollout.rewards),
            "value": rounded(of_steps),
            "ratio": columns(figures.ratios_after_update(model.policy, rollout, advantages, args.seed))[0],
            "observation": columns(observations, len(NAMES[draw]) if draw in NAMES else 8),
            "action": columns(rollout.actions),
            "score": columns(figures.scores(model.policy, rollout)),
        },
        "conflicts": {"labels": names, "cosines": [rounded(th.tensor(row)) for row in cosines]},
        "weighting": figures.weighting(model),
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
    write(document(args, model, rollout, history, tasks), args.out)
    size = args.out.stat().st_size / 1024
    print(f"{args.out}: {args.groups} groups of {args.members}, {len(rollout.rewards):,} steps, {size:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(run("zoo.record", main, sys.argv[1:]))
