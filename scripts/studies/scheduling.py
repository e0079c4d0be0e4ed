"""Job shops with luck: group estimators, MaskablePPO with a shared and with its own trunk, rules and CP-SAT.

usage: python -m scripts.studies.scheduling [--problem JobShop-v0] [--steps 30000] [--seeds 0 1 2] [--methods ...] [--report]

All learners have the same network (``ItemPolicy``), env steps, batch and learning rate. Every method plans the same 100
instances with the same luck, and 10 further futures of each. Runs on disk are kept: ``docs/studies/data/scheduling``, one line
per method, seed and number of steps. The tables go into ``docs/scheduling.md``.
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
from scripts.studies.common.compared import better, markdown, middle
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


def mean_costs(problem: str, choose: Callable[[JobShop], Any], **kwargs: Any) -> list[float]:
    """Costs on the same instances, each a mean over :data:`FUTURES`, which are the same for all methods."""
    seeds = EVALUATION.repeat_interleave(FUTURES)
    env = PROBLEMS[problem](len(seeds), **kwargs)
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
    # CP-SAT takes most of an hour for ten futures of jobs that arrive.
    futures = problem == "JobShop-v0" or not planner
    return {
        "method": method,
        "seed": seed,
        "steps": steps if model else 0,
        "env_steps": model.num_timesteps if model else 0,
        "cpu": round(cpu, 2),
        "costs": found,
        **({"mean_costs": mean_costs(problem, choose, waiting=planner)} if futures else {}),
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
    """Mean costs with intervals, instances better than rules, processor time.

    :param problem: env's id
    """
    runs = _runs(problem)
    rules = np.array([runs[rule, 0][0]["mean_costs"] for rule in RIVALS[problem]])
    lines = []
    for (method, steps), mine in runs.items():
        means = [np.mean(row["costs"]) for row in mine]
        expected = np.array([row["mean_costs"] for row in mine if "mean_costs" in row])
        shares = [(expected < rule).mean() for rule in [*rules, rules.min(axis=0)]] if len(expected) else []
        cells = [
            LEARNERS[method][0] if steps else method,
            f"{steps:,}" if steps else "",
            str(len(mine)) if steps else "",
            f"{np.mean(means):.1f}",
            middle(expected.mean(axis=1)) if len(expected) else "",
            _signed(expected - rules[0]) if len(expected) and method != RIVALS[problem][0] else "",
            "; ".join(f"{100 * share:.0f}" for share in shares),
            f"{np.mean([row['cpu'] for row in mine]):.1f}",
        ]
        lines.append((steps, np.mean(means), cells))
    heads = [
        "method",
        "steps",
        "seeds",
        "mean cost",
        f"mean over {FUTURES} futures",
        f"minus {RIVALS[problem][0]}",
        f"instances below {', '.join(RIVALS[problem])}; all of these",
        "seconds",
    ]
    return markdown(heads, [cells for *_, cells in sorted(lines, key=lambda line: line[:2])])


def pairs(problem: str) -> str:
    """Differences between learners, for the numbers of steps that have several seeds.

    :param problem: env's id
    """
    runs = _runs(problem)
    groups = [name for name in LEARNERS if name not in ("own-luck", "ppo-shared", "ppo-own")]
    rows = []
    for steps in sorted({steps for _, steps in runs}):
        for ours, theirs in [*((g, p) for p in ("ppo-own", "ppo-shared") for g in groups), ("outcome", "own-luck")]:
            a, b = _of_same_seeds(runs.get((ours, steps), []), runs.get((theirs, steps), []))
            if len(a) > 1:
                name = "mean_costs" if all("mean_costs" in row for row in [*a, *b]) else "costs"
                costs, others = (np.array([row[name] for row in side]) for side in (a, b))
                seconds, other_seconds = (np.mean([row["cpu"] for row in side]) for side in (a, b))
                rows.append([
                    LEARNERS[ours][0],
                    LEARNERS[theirs][0],
                    f"{steps:,}",
                    str(len(a)),
                    _signed(costs - others),
                    better(-costs.mean(axis=1), -others.mean(axis=1)),
                    f"{seconds / other_seconds:.2f}",
                ])  # fmt: skip
    heads = ["A", "B", "steps", "seeds", "cost of A minus B", "probability that A is better", "seconds of A / B"]
    return markdown(heads, rows)


def _signed(differences: np.ndarray) -> str:
    """Mean of ``[seeds, instances]`` differences of costs, with its interval."""
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(differences.mean(), *interval(differences))


def _runs(problem: str) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Runs on disk by method and steps."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in records.read(DATA / f"{problem}.jsonl"):
        found.setdefault((row["method"], row["steps"]), []).append(row)
    return found


def _of_same_seeds(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """Runs of the seeds that both have, in the same order."""
    by_seed = {row["seed"]: row for row in theirs}
    both = [row for row in ours if row["seed"] in by_seed]
    return both, [by_seed[row["seed"]] for row in both]


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
            key = (method, seed, args.steps) if method in LEARNERS else (method, 0, 0)
            done = {(row["method"], row["seed"], row["steps"]) for row in records.read(file)}
            if key not in done:
                found = run(args.problem, *key)
                records.put(file, found, "method", "seed", "steps")
                print(f"{method} seed {seed}: {np.mean(found['costs']):.1f} in {found['cpu']:.1f} s", flush=True)
    page = put_between(PAGE.read_text(), args.problem, table(args.problem))
    PAGE.write_text(put_between(page, f"{args.problem}, pairs", pairs(args.problem)))


if __name__ == "__main__":
    main()
