"""Job shops with luck: group estimators, MaskablePPO with a shared and with its own trunk, rules and CP-SAT.

usage: python -m scripts.studies.scheduling [--problem JobShop-v0] [--steps 30000] [--seeds 0 1 2] [--methods ...] [--report]

All learners have the same network (``ItemPolicy``), env steps, batch and learning rate. Every method plans the same 100
instances with the same luck. Runs on disk are kept: ``docs/studies/data/scheduling``, one line per method, seed and number of
steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy

from sb_grpo import GRPO
from sb_grpo.envs import make_tensor_env
from sb_grpo.envs.random import mix_tensor
from sb_grpo.tasks.item_policy import ItemExtractor, ItemHead, ItemPolicy
from sb_grpo.tasks.scheduling import DynamicJobShop, Instance, JobShop
from sb_grpo.tasks.solving import Planner, by_model, by_rule, play
from scripts.studies.common import records
from scripts.studies.common.compared import markdown
from scripts.studies.common.runs import DOCS

DATA = DOCS / "studies" / "data" / "scheduling"
N_ENVS = 64
N_STEPS = 72  #: per env and rollout: two episodes of 36 steps
SETTINGS: dict[str, Any] = {"learning_rate": 1e-3, "batch_size": 512, "n_epochs": 4, "gamma": 1.0, "device": "cpu"}
#: Seeds of the instances of the evaluation.
EVALUATION = th.arange(10**6, 10**6 + 100)
PROBLEMS: dict[str, type[JobShop]] = {"JobShop-v0": JobShop, "DynamicJobShop-v0": DynamicJobShop}


class OwnLuckJobShop(JobShop):
    """Job shop whose members share the instance, and draw durations of their own."""

    def with_luck(self, instance: Instance, seeds: th.Tensor) -> Instance:
        each = [super(OwnLuckJobShop, self).with_luck(instance, mix_tensor(seeds, 9, k)) for k in range(self.group_size)]
        return {**instance, "duration": th.stack([one["duration"] for one in each], dim=1)}


class ItemActorCritic(MaskableActorCriticPolicy):
    """MaskablePPO's policy with the network of ``ItemPolicy``, and a critic on the mean of the actions' features."""

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        n = int(self.action_space.n)  # type: ignore[attr-defined]
        hidden = self.features_dim // n
        self.action_net = ItemHead(n, hidden)  # type: ignore[assignment]
        self.value_net = Mean(n, hidden)  # type: ignore[assignment]
        made: Any = self.optimizer_class
        self.optimizer = made(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)


class Mean(ItemHead):
    """Value from the mean over the actions' scores."""

    def forward(self, features: th.Tensor) -> th.Tensor:
        return super().forward(features).mean(dim=1, keepdim=True)


def grpo(problem: str, seed: int, own_luck: bool = False, **kwargs: Any) -> GRPO:
    env = OwnLuckJobShop(N_ENVS) if own_luck else make_tensor_env(problem, N_ENVS)
    size = {"n_steps": N_STEPS} if kwargs["advantage"] == "state" else {"n_groups": 16}
    return GRPO(ItemPolicy, env, seed=seed, **{**SETTINGS, **size, **kwargs})


def ppo(problem: str, seed: int, shared: bool) -> MaskablePPO:
    env = make_tensor_env(problem, N_ENVS)
    policy_kwargs = {
        "net_arch": [],
        "features_extractor_class": ItemExtractor,
        "features_extractor_kwargs": {"n_actions": int(env.action_space.n)},  # type: ignore[attr-defined]
        "share_features_extractor": shared,
    }
    env.seed(seed)
    return MaskablePPO(ItemActorCritic, env, n_steps=N_STEPS, seed=seed, policy_kwargs=policy_kwargs, **SETTINGS)


#: Name -> (what it is, maker of an untrained model).
LEARNERS: dict[str, tuple[str, Callable[[str, int], Any]]] = {
    "outcome": ('GRPO, `"outcome"`, 8 members', lambda p, s: grpo(p, s, advantage="outcome", group_size=8)),
    "own-luck": (
        "the same, own luck in place of shared luck",
        lambda p, s: grpo(p, s, True, advantage="outcome", group_size=8),
    ),
    "step": ('GRPO, `"step"`, 8 members', lambda p, s: grpo(p, s, advantage="step", group_size=8)),
    "state": (
        'GRPO, `"state"`, no pairs',
        lambda p, s: grpo(p, s, advantage="state", group_size=2, advantage_kwargs={"paired": False}),
    ),
    "paired": (
        'GRPO, `"state"`, pairs',
        lambda p, s: grpo(p, s, advantage="state", group_size=2, advantage_kwargs={"paired": True}),
    ),
    "ppo-shared": ("MaskablePPO, shared trunk", lambda p, s: ppo(p, s, True)),
    "ppo-own": ("MaskablePPO, critic with its own trunk", lambda p, s: ppo(p, s, False)),
}


def costs(problem: str, choose: Callable[[JobShop], Any], **kwargs: Any) -> list[float]:
    """Costs on the 100 instances of the evaluation."""
    env = PROBLEMS[problem](len(EVALUATION), **kwargs)
    with th.no_grad():
        return [round(x, 3) for x in play(env, env.instance(EVALUATION), choose(env)).cost[:, 0].tolist()]


def run(problem: str, method: str, seed: int, steps: int) -> dict[str, Any]:
    """Train if the method learns, and evaluate."""
    begun = time.process_time()
    trained = 0
    if method in LEARNERS:
        model = LEARNERS[method][1](problem, seed)
        model.learn(steps)
        trained = model.num_timesteps
        cpu = time.process_time() - begun
        found = costs(problem, lambda env: by_model(env, model))
    elif method.startswith("CP-SAT"):
        found = costs(problem, lambda env: Planner(env, method.endswith("again"), 1.0), waiting=True)
        cpu = time.process_time() - begun
    else:
        found = costs(problem, lambda env: by_rule(env, method))
        cpu = time.process_time() - begun
    return {
        "method": method,
        "seed": seed,
        "steps": steps if trained else 0,
        "env_steps": trained,
        "cpu": round(cpu, 2),
        "costs": found,
    }


def methods_of(problem: str) -> list[str]:
    """All methods, learners last."""
    solver = ["CP-SAT, one plan"] if problem == "JobShop-v0" else []
    learners = [name for name in LEARNERS if name != "own-luck" or problem == "JobShop-v0"]
    return [*PROBLEMS[problem].rules, *solver, "CP-SAT, planned again", *learners]


def table(problem: str) -> str:
    """Mean cost over seeds and instances, its range over the seeds, instances better than the best rule, processor time."""
    rows = records.read(DATA / f"{problem}.jsonl")
    rules = {row["method"]: np.array(row["costs"]) for row in rows if row["method"] in PROBLEMS[problem].rules}
    best = min(rules.values(), key=lambda found: float(found.mean()))
    lines = []
    for method, steps in dict.fromkeys((row["method"], row["steps"]) for row in rows):
        mine = [row for row in rows if (row["method"], row["steps"]) == (method, steps)]
        each = np.array([row["costs"] for row in mine])
        means = each.mean(axis=1)
        spread = f"{means.min():.1f} to {means.max():.1f}" if len(mine) > 1 else ""
        name = LEARNERS[method][0] if method in LEARNERS else method
        cells = [name, f"{steps:,}" if steps else "", str(len(mine)) if steps else "", f"{means.mean():.1f}", spread]
        lines.append(
            (means.mean(), [*cells, f"{100 * (each < best).mean():.0f}", f"{np.mean([row['cpu'] for row in mine]):.1f}"])
        )
    heads = ["method", "steps", "seeds", "mean cost", "over seeds", "better than the best rule on", "cpu seconds"]
    return markdown(heads, [cells for _, cells in sorted(lines, key=lambda line: line[0])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=list(PROBLEMS), default="JobShop-v0")
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--report", action="store_true", help="print the table of the runs on disk alone")
    args = parser.parse_args()
    th.set_num_threads(1)
    file = DATA / f"{args.problem}.jsonl"
    todo = [] if args.report else args.methods or methods_of(args.problem)
    for seed in args.seeds:
        for method in todo:
            steps = args.steps if method in LEARNERS else 0
            if method not in LEARNERS and seed != args.seeds[0]:
                continue
            done = {(row["method"], row["seed"], row["steps"]) for row in records.read(file)}
            if (method, seed, steps) not in done:
                found = run(args.problem, method, seed, args.steps)
                records.put(file, found, "method", "seed", "steps")
                print(f"{method} seed {seed}: {np.mean(found['costs']):.1f} in {found['cpu']:.1f} s", flush=True)
    print(table(args.problem))


if __name__ == "__main__":
    main()
