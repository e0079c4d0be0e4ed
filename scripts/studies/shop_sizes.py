"""Job shops of three sizes with uncertain times: seconds and costs of rules, of one policy for all sizes, and of CP-SAT.

usage: python -m scripts.studies.shop_sizes [--sizes 6 10 20] [--methods ...] [--seconds 1.0] [--report]
       python -m scripts.studies.shop_sizes --known 300000 [--waiting] [--seed 0]

The policy is trained on 6x6 and plans all sizes. Every method plans the same instances with the same luck, one at a time.
``--known`` trains on 6x6 with known times instead, and compares with the optimum, which CP-SAT proves. Runs on disk are kept:
``docs/studies/data/scheduling/sizes.jsonl`` and ``known.jsonl``. The tables go into ``docs/scheduling.md``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th

from sb_grpo import GRPO
from sb_grpo.tasks.item_policy import ItemPolicy
from sb_grpo.tasks.scheduling import Instance, JobShop
from sb_grpo.tasks.solving import Planner, by_model, by_rule, play
from scripts.studies.common import records
from scripts.studies.common.compared import markdown
from scripts.studies.common.tables import put_between
from scripts.studies.scheduling import DATA, EVALUATION, N_ENVS, PAGE, SETTINGS, grpo

#: Jobs and machines -> instances that CP-SAT plans too.
SIZES = {6: 20, 10: 5, 20: 2}
STEPS = 300_000  #: of the policy's training on 6x6
SEEDS = (0,)
RULES = ("MWKR", "MOR")
PLANNERS = ("CP-SAT, one plan", "CP-SAT, planned again")
KEY = ("size", "method", "seed", "limit")
DRAWS = 64


class Timed:
    """Decisions with the processor seconds that each has taken.

    :param choose: decisions
    """

    def __init__(self, choose: Callable[..., th.Tensor]) -> None:
        self.choose = choose
        self.seconds: list[float] = []

    def __call__(self, instance: Instance, state: th.Tensor, valid: th.Tensor) -> th.Tensor:
        begun = time.process_time()
        try:
            return self.choose(instance, state, valid)
        finally:
            self.seconds.append(time.process_time() - begun)


def measure(size: int, method: str, seed: int, limit: float, model: Any = None) -> None:
    """Plan instances one at a time, and keep costs and processor seconds. No costs: CP-SAT found no plan within the limit.

    :param size: jobs and machines
    :param method: rule, planner, or ``"policy"``
    :param seed: of the policy
    :param limit: seconds of wall-clock time for every plan of CP-SAT; 0 for the others
    :param model: the policy
    """
    row: dict[str, Any] = {"size": size, "method": method, "seed": seed, "limit": limit, "costs": []}
    timed = []
    for number in EVALUATION[: SIZES[size]]:
        env = JobShop(1, size, size, waiting=method in PLANNERS)
        timed.append(Timed(_decisions(env, method, limit, model)))
        try:
            row["costs"] += _costs(env, number.view(1), timed[-1])
        except ValueError as error:
            if "found no solution" not in str(error):
                raise
            row["costs"] = []
            break
    row["seconds"] = [round(sum(one.seconds), 5) for one in timed]
    row["longest"] = [round(max(one.seconds), 5) for one in timed]
    if method not in PLANNERS:
        many = JobShop(len(EVALUATION), size, size)
        row["all_costs"] = _costs(many, EVALUATION, _decisions(many, method, limit, model))
    records.put(DATA / "sizes.jsonl", row, *KEY)
    print(f"{size}x{size} {method} seed {seed}: {row['costs']}, {np.mean(row['seconds']):.3f} s per instance", flush=True)


def _decisions(env: JobShop, method: str, limit: float, model: Any) -> Callable[..., th.Tensor]:
    if method in PLANNERS:
        return Planner(env, method == PLANNERS[1], limit)
    return by_rule(env, method) if model is None else by_model(env, model)


def _costs(env: JobShop, seeds: th.Tensor, choose: Callable[..., th.Tensor]) -> list[float]:
    with th.no_grad():
        return [round(x, 3) for x in play(env, env.instance(seeds), choose).cost[:, 0].tolist()]


def known(steps: int, seed: int, waiting: bool) -> None:
    """Train on 6x6 with known times, and keep the costs of greedy actions, of the best draw, and of the optimal plans.

    :param steps: env steps
    :param seed: of the training
    :param waiting: let the policy wait for the next event, as optimal plans may
    """
    begun = time.process_time()
    shops = JobShop(N_ENVS, cv=0.0, waiting=waiting)
    model = GRPO(ItemPolicy, shops, advantage="outcome", group_size=8, n_groups=16, seed=seed, **SETTINGS).learn(steps)
    cpu = time.process_time() - begun
    env = JobShop(len(EVALUATION), cv=0.0, waiting=waiting)
    instance = env.instance(EVALUATION)
    th.manual_seed(0)
    with th.no_grad():
        greedy = play(env, instance, by_model(env, model)).cost[:, 0]
        drawn = play(env, instance, by_model(env, model, "sample"), DRAWS).cost.amin(dim=1)
    patient = JobShop(len(EVALUATION), cv=0.0, waiting=True)
    planner = Planner(patient, False, 30.0)
    optimum = play(patient, patient.instance(EVALUATION), planner).cost[:, 0]
    if not all(planner.optimal.values()):
        raise RuntimeError("CP-SAT has not proven every optimum: give it more seconds.")
    row = {"steps": steps, "seed": seed, "waiting": waiting, "cpu": round(cpu, 1)}
    costs = {"greedy": greedy.tolist(), "drawn": drawn.tolist(), "optimum": optimum.tolist()}
    records.put(DATA / "known.jsonl", {**row, **costs}, "steps", "waiting", "seed")


def table() -> str:
    """Costs relative to MWKR's, and processor seconds, by size and method."""
    rows = records.read(DATA / "sizes.jsonl")
    lines = []
    for size in SIZES:
        mine = [row for row in rows if row["size"] == size]
        rules = [row for row in mine if row["method"] == RULES[0]]
        for method, limit in dict.fromkeys((row["method"], row["limit"]) for row in mine):
            of = [row for row in mine if (row["method"], row["limit"]) == (method, limit)]
            costs = [row["costs"] for row in of]
            lines.append([
                f"{size}x{size}",
                "policy of 6x6" if method == "policy" else method,
                f"{limit:g} s" if limit else "",
                f"{np.mean(costs):.0f}" if min(map(len, costs)) else f"no plan within {limit:g} s",
                _percent(of, rules, "costs"),
                _percent(of, rules, "all_costs"),
                f"{np.mean([row['seconds'] for row in of]):.2g}",
                f"{1000 * np.max([row['longest'] for row in of]):.0f}",
            ])  # fmt: skip
    few = ", ".join(str(n) for n in SIZES.values())
    heads = [
        "size",
        "method",
        "limit of a plan",
        f"mean cost of the first {few}",
        f"minus {RULES[0]}, %",
        f"the same, {len(EVALUATION)} instances",
        "seconds per instance",
        "longest decision, ms",
    ]
    return markdown(heads, lines)


def _percent(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], name: str) -> str:
    """Difference to a rule's costs on the same instances, in percent, with its standard error over instances."""
    if not theirs or ours == theirs or not all(row.get(name) for row in ours):
        return ""
    percent = 100 * (np.mean([row[name] for row in ours], axis=0) / np.array(theirs[0][name]) - 1)
    return f"{percent.mean():+.1f} ± {percent.std(ddof=1) / len(percent) ** 0.5:.1f}"


def known_table() -> str:
    """Gaps to the optimum, in percent."""
    lines = []
    for row in records.read(DATA / "known.jsonl"):
        gaps = [100 * np.mean(np.array(row[name]) / np.array(row["optimum"]) - 1) for name in ("greedy", "drawn")]
        waiting = "may wait" if row["waiting"] else "no"
        lines.append([f"{row['steps']:,}", waiting, str(row["seed"]), *(f"{gap:.2f}" for gap in gaps), f"{row['cpu']:.0f}"])
    return markdown(["steps", "waiting", "seed", "greedy, %", f"best of {DRAWS}, %", "seconds"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--methods", nargs="+", choices=[*RULES, "policy", *PLANNERS], default=[*RULES, "policy", *PLANNERS])
    parser.add_argument("--seconds", type=float, default=1.0, help="limit of a plan of CP-SAT, wall-clock time")
    parser.add_argument("--known", type=int, metavar="STEPS", help="train on known times for so many env steps instead")
    parser.add_argument("--seed", type=int, default=0, help="of the training with known times")
    parser.add_argument("--waiting", action="store_true", help="let the policy of known times wait")
    parser.add_argument("--report", action="store_true", help="write the tables of the runs on disk alone")
    args = parser.parse_args()
    th.set_num_threads(1)
    if args.known and not args.report:
        known(args.known, args.seed, args.waiting)
    elif not args.report:
        _run(args.sizes, args.methods, args.seconds)
    for name, made in (("sizes", table()), ("known times", known_table())):
        PAGE.write_text(put_between(PAGE.read_text(), name, made))


def _run(sizes: list[int], methods: list[str], seconds: float) -> None:
    """Run what is not on disk."""
    models: dict[int, Any] = {}
    for size in sizes:
        for method in methods:
            limit = seconds if method in PLANNERS else 0.0
            for seed in SEEDS if method == "policy" else (0,):
                done = {tuple(row[name] for name in KEY) for row in records.read(DATA / "sizes.jsonl")}
                if (size, method, seed, limit) in done:
                    continue
                if method == "policy" and seed not in models:
                    models[seed] = grpo("JobShop-v0", seed, advantage="outcome", group_size=8).learn(STEPS)
                measure(size, method, seed, limit, models.get(seed) if method == "policy" else None)


if __name__ == "__main__":
    main()
