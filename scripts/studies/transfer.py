"""Transfer on CausalIntervention-v0: returns of a policy on families of systems that it was not trained on.

usage: python -m scripts.studies.transfer [SEED ...]     train missing runs of the seeds, default 0 to 9
       python -m scripts.studies.transfer --report       table of docs/studies/causal.md

Per shift and training seed: the source policy on the target without training (zero-shot), after ``FEW`` steps there, and new
policies after ``FEW`` and after as many steps as the source. All play the same unseen systems of the target.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from typing import Any

import numpy as np
import torch as th

from sb_grpo import GRPO
from sb_grpo.tasks.causal import ENV_ID
from sb_grpo.tasks.causal.baselines import BASELINES
from sb_grpo.tasks.causal.env import CausalInterventionEnv
from scripts.studies.causal import PAGE, SEEDS, cell, check_unmet, play
from scripts.studies.common import records
from scripts.studies.common.runs import DATA
from scripts.studies.common.tables import put_between
from zoo.common.provenance import commit, versions
from zoo.training.experiment import build

FILE = DATA / "transfer.jsonl"
STEPS = 20_480
FEW = 4_096
#: By name: arguments of the source's env, and of the target's.
SHIFTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "chain, fork -> star, collider, random": (
        {"structures": ["chain", "fork"]},
        {"structures": ["star", "collider", "random"]},
    ),
    "linear -> nonlinear": ({"mechanism": "linear"}, {"mechanism": "nonlinear"}),
}
ARMS = (
    "random",
    "upper confidence",
    "from scratch, few steps",
    "zero-shot",
    "source, few steps",
    "from scratch, as many steps",
)


def trained(kwargs: dict[str, Any], seed: int, steps: int, start: GRPO | None = None) -> GRPO:
    """A policy with the zoo's settings.

    :param kwargs: of the env
    :param steps: env steps; schedules end with them
    :param start: whose policy it begins with
    """
    with tempfile.TemporaryDirectory() as folder:
        made = build(ENV_ID, seed, folder, n_timesteps=steps, device="cpu", env_kwargs=kwargs).setup_experiment()
    assert made is not None and isinstance(made[0], GRPO)
    model = made[0]
    if start is not None:
        model.policy.load_state_dict(start.policy.state_dict())
    model.learn(steps)
    check_unmet(model)
    return model


def returns(model: GRPO | None, kwargs: dict[str, Any], baseline: str = "") -> list[float]:
    """Returns of deterministic episodes, one per system.

    :param model: None: the policy without learning
    :param kwargs: of the env
    """
    env = CausalInterventionEnv(**kwargs)
    fixed = BASELINES.get(baseline)

    def choose(env: CausalInterventionEnv, obs: np.ndarray, rng: np.random.Generator) -> Any:
        return fixed(env.parts(obs), rng) if model is None and fixed else model.predict(obs, deterministic=True)[0]  # type: ignore[union-attr]

    return [round(play(env, choose, seed)["return"], 4) for seed in SEEDS]


def compared(shift: str, seed: int) -> dict[str, list[float]]:
    """Returns on the target, by arm."""
    source, target = SHIFTS[shift]
    on_target = partial(returns, kwargs=target)
    start = trained(source, seed, STEPS)
    return {
        "random": on_target(None, baseline="random"),
        "upper confidence": on_target(None, baseline="upper_confidence"),
        "from scratch, few steps": on_target(trained(target, seed, FEW)),
        "zero-shot": on_target(start),
        "source, few steps": on_target(trained(target, seed, FEW, start)),
        "from scratch, as many steps": on_target(trained(target, seed, STEPS)),
    }


def run(seeds: list[int]) -> None:
    """Train missing runs; runs on disk are kept."""
    for seed in sorted(set(seeds) - records.seeds(FILE)):
        found = {shift: compared(shift, seed) for shift in SHIFTS}
        records.put(FILE, {"seed": seed, "returns": found, "commit": commit(), "versions": versions()})
        print(seed, {shift: {arm: round(float(np.mean(x)), 3) for arm, x in arms.items()} for shift, arms in found.items()})


def table() -> str:
    """Markdown: arms down, shifts across; then differences system by system."""
    runs = records.read(FILE)
    lines = [f"| target returns, {len(runs)} training seeds | {' | '.join(SHIFTS)} |", "|---" * (len(SHIFTS) + 1) + "|"]
    scores = {shift: {arm: np.array([run["returns"][shift][arm] for run in runs]) for arm in ARMS} for shift in SHIFTS}
    for arm in ARMS:
        lines.append(f"| {arm} | {' | '.join(cell(scores[shift][arm]) for shift in SHIFTS)} |")
    for first, second in (("zero-shot", "from scratch, few steps"), ("source, few steps", "zero-shot"),
                          ("source, few steps", "from scratch, as many steps")):  # fmt: skip
        cells = [cell(scores[shift][first] - scores[shift][second]) for shift in SHIFTS]
        lines.append(f"| {first} minus {second} | {' | '.join(cells)} |")
    return "\n".join(lines)


def report() -> None:
    """Put the table between the marks of docs/studies/causal.md."""
    PAGE.write_text(put_between(PAGE.read_text(), "transfer", table()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="*", type=int, default=list(range(10)))
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    th.set_num_threads(1)
    if given.report:
        report()
    else:
        run(given.seeds)


if __name__ == "__main__":
    main()
