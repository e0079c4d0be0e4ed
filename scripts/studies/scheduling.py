"""Job shops with luck: group estimators, MaskablePPO with a shared and with its own trunk, rules and CP-SAT.

usage: python -m scripts.studies.scheduling [--problem JobShop-v0] [--steps 30000] [--seeds 0 1 2] [--methods ...] [--report]

All learners have the same network (``ItemPolicy``), env steps, batch and learning rate. Every method plans the same 100
instances with the same luck, and 10 further futures of each. Runs on disk are kept: ``docs/studies/data/scheduling``, one line
per method, seed and number of steps. The table goes into ``docs/scheduling.md``.
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
from scripts.studies.common.tables import put_between

DATA = DOCS / "studies" / "data" / "scheduling"
PAGE = DOCS / "scheduling.md"
N_ENVS = 64
N_STEPS = 72  #: per env and rollout: two episodes of 36 steps
SETTINGS: dict[str, Any] = {"learning_rate": 1e-3, "batch_size": 512, "n_epochs": 4, "gamma": 1.0, "device": "cpu"}
#: Seeds of the instances of the evaluation.
EVALUATION = th.arange(10**6, 10**6 + 100)
#: Futures per instance of the second evaluation, whose means depend less on the luck of one.
FUTURES = 10
#: Rules that the tables count wins against.
RIVALS = {"JobShop-v0": ("MWKR", "MOR"), "DynamicJobShop-v0": ("WSPT", "ATC")}
RESAMPLES = 2000  #: of the bootstrap
PROBLEMS: dict[str, type[JobShop]] = {"JobShop-v0": JobShop, "DynamicJobShop-v0": DynamicJobShop}


class OwnLuckJobShop(JobShop):
    """Job shop whose members share the instance, and draw durations of their own."""

    def with_noise(self, instance: Instance, seeds: th.Tensor) -> Instance:
        each = [super(OwnLuckJobShop, self).with_noise(instance, mix_tensor(seeds, 9, k)) for k in range(self.group_size)]
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
        '`"outcome"`, own luck in place of shared luck',
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
    return [round(x, 3) for x in _played(env, env.instance(EVALUATION), choose).tolist()]


def mean_costs(problem: str, choose: Callable[[JobShop], Any]) -> list[float]:
    """Costs on the same instances, each a mean over :data:`FUTURES`, which are the same for all methods."""
    seeds = EVALUATION.repeat_interleave(FUTURES)
    env = PROBLEMS[problem](len(seeds))
    instance = env.with_noise(env.instance(seeds), mix_tensor(seeds, 10, th.arange(FUTURES).repeat(len(EVALUATION))))
    return [round(x, 3) for x in _played(env, instance, choose).view(-1, FUTURES).mean(dim=1).tolist()]


def _played(env: JobShop, instance: Instance, choose: Callable[[JobShop], Any]) -> th.Tensor:
    with th.no_grad():
        return play(env, instance, choose(env)).cost[:, 0]


def run(problem: str, method: str, seed: int, steps: int) -> dict[str, Any]:
    """Train if the method learns, and evaluate."""
    begun = time.process_time()
    model = LEARNERS[method][1](problem, seed).learn(steps) if method in LEARNERS else None
    trained = time.process_time()

    def choose(env: JobShop) -> Any:
        if method.startswith("CP-SAT"):
            return Planner(env, method.endswith("again"), 1.0)
        return by_rule(env, method) if model is None else by_model(env, model)

    planner = method.startswith("CP-SAT")
    found = costs(problem, choose, waiting=planner)
    cpu = trained - begun if model else time.process_time() - trained
    return {
        "method": method,
        "seed": seed,
        "steps": steps if model else 0,
        "env_steps": model.num_timesteps if model else 0,
        "cpu": round(cpu, 2),
        "costs": found,
        **({} if planner else {"mean_costs": mean_costs(problem, choose)}),
    }


def methods_of(problem: str) -> list[str]:
    """All methods, learners last."""
    solver = ["CP-SAT, one plan"] if problem == "JobShop-v0" else []
    learners = [name for name in LEARNERS if name != "own-luck" or problem == "JobShop-v0"]
    return [*PROBLEMS[problem].rules, *solver, "CP-SAT, planned again", *learners]


def interval(costs: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean cost, by a bootstrap that draws seeds and instances, the same instances for all seeds.

    :param costs: ``[seeds, instances]``, or differences of such
    """
    rng = np.random.default_rng(0)
    n_seeds, n_instances = costs.shape
    means = [
        costs[rng.integers(n_seeds, size=n_seeds)][:, rng.integers(n_instances, size=n_instances)].mean()
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def table(problem: str) -> str:
    """Mean costs, differences to MaskablePPO's critic with its own trunk, instances better than rules, processor time.

    :param problem: env's id
    """
    rows = records.read(DATA / f"{problem}.jsonl")
    by_key = {(row["method"], row["steps"], row["seed"]): row for row in rows}
    rules = np.array([by_key[rule, 0, 0]["mean_costs"] for rule in RIVALS[problem]])
    lines = []
    for method, steps in dict.fromkeys((row["method"], row["steps"]) for row in rows):
        mine = [row for row in rows if (row["method"], row["steps"]) == (method, steps)]
        means = np.array([row["costs"] for row in mine]).mean(axis=1)
        expected = np.array([row["mean_costs"] for row in mine if "mean_costs" in row])
        differences = [_difference(row, by_key.get(("ppo-own", steps, row["seed"]))) for row in mine if steps]
        both = np.array([one for one in differences if one is not None])
        shares = [(expected < rule).mean() for rule in [*rules, rules.min(axis=0)]] if len(expected) else []
        cells = [
            LEARNERS[method][0] if steps else method,
            f"{steps:,}" if steps else "",
            str(len(mine)) if steps else "",
            f"{means.mean():.1f}",
            f"{means.min():.1f} to {means.max():.1f}" if len(mine) > 1 else "",
            f"{expected.mean():.1f}" if len(expected) else "",
            "{:+.1f} [{:+.1f}, {:+.1f}]".format(both.mean(), *interval(both)) if method != "ppo-own" and len(both) else "",
            "; ".join(f"{100 * share:.0f}" for share in shares),
            f"{np.mean([row['cpu'] for row in mine]):.1f}",
        ]
        lines.append((steps, means.mean(), cells))
    heads = [
        "method",
        "steps",
        "seeds",
        "mean cost",
        "over seeds",
        f"mean over {FUTURES} futures",
        "minus MaskablePPO with its own trunk",
        f"instances below {', '.join(RIVALS[problem])}; all of these",
        "seconds",
    ]
    return markdown(heads, [cells for *_, cells in sorted(lines, key=lambda line: line[:2])])


def _difference(ours: dict[str, Any], theirs: dict[str, Any] | None) -> np.ndarray | None:
    """``[instances]`` differences of costs: of means over futures where both runs have them."""
    if theirs is None:
        return None
    name = "mean_costs" if "mean_costs" in ours and "mean_costs" in theirs else "costs"
    difference: np.ndarray = np.array(ours[name]) - np.array(theirs[name])
    return difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=list(PROBLEMS), default="JobShop-v0")
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--report", action="store_true", help="write the table of the runs on disk alone")
    args = parser.parse_args()
    th.set_num_threads(1)
    file = DATA / f"{args.problem}.jsonl"
    todo = [] if args.report else [*PROBLEMS[args.problem].rules, *(args.methods or methods_of(args.problem))]
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
    PAGE.write_text(put_between(PAGE.read_text(), args.problem, table(args.problem)))


if __name__ == "__main__":
    main()
