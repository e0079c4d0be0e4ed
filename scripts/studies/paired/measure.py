"""Further data of the page: known rules, one rollout before and after pairing, and the variance that pairing removes."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch as th

from scripts.studies.common.runs import DATA
from scripts.studies.paired.pictures import LEAD
from scripts.studies.paired.study import PAIRED, RUNS, load
from zoo.benchmarking.results import Run, find_results

RULES, ROLLOUT, VARIANCE = (DATA / f"paired_{name}.json" for name in ("rules", "rollout", "variance"))
#: Share of the budget that is spent when the rollout of the lead picture is taken.
LEAD_AT = 0.6


def rules() -> None:
    """Mean returns of the known rules."""
    from sb_grpo.tasks.input_driven.references import REFERENCES, evaluate_reference

    found = {env: {name: evaluate_reference(env, name, range(10**6, 10**6 + 1000)).mean for name in REFERENCES[env]}
             for env in REFERENCES}  # fmt: skip
    RULES.write_text(json.dumps(found, indent=1) + "\n")


def rollout() -> None:
    """Residuals of a rollout amid the training on the task of the lead picture, with the study's settings and first seed."""
    kept: dict[str, list[float]] = {}

    def keep(_: Any, given: tuple[Any, ...], after: th.Tensor) -> None:
        kept.update(before=given[0].own.tolist(), after=after.tolist())

    run = next(run for run in _runs() if run.env == LEAD)
    model = _model(run)
    model.estimator.pairing.register_forward_hook(keep)
    model.learn(int(LEAD_AT * run.steps))
    ROLLOUT.write_text(json.dumps({name: [round(x, 4) for x in values] for name, values in kept.items()}) + "\n")


def variance() -> None:
    """Repeat the first seed's training on every task of the study, without its evaluations."""
    found = {run.env: _pairing_of(run) for run in _runs()}
    VARIANCE.write_text("{\n" + ",\n".join(f'"{env}": {json.dumps(of)}' for env, of in found.items()) + "\n}\n")


def _runs() -> list[Run]:
    return [of[PAIRED][0] for of in load(find_results([RUNS])).runs.values()]


def _model(run: Run) -> Any:
    """A run's model, untrained."""
    import sb_grpo  # noqa: F401  registers the tasks
    from zoo.benchmarking.specs import Spec
    from zoo.benchmarking.worker import make_experiment

    th.set_num_threads(1)
    settings = dict(run.spec["hyperparams"])
    settings["advantage_kwargs"] = settings.pop("baseline_kwargs")  # its name when the runs were recorded
    with tempfile.TemporaryDirectory() as folder:
        fields: dict[str, Any] = {**run.spec, "hyperparams": settings}
        built = make_experiment(Spec(**fields), Path(folder), "cpu").setup_experiment()
    assert built is not None
    return built[0]


def _pairing_of(run: Run) -> dict[str, Any]:
    """Logged values of pairing by rollout, and its share of the training's processor time."""
    model = _model(run)
    metrics = []
    seconds = []
    pairing = model.estimator.pairing

    def note(*_: Any) -> None:
        seconds.append(time.process_time() - started.pop())
        metrics.append(dict(pairing.metrics))

    started: list[float] = []
    pairing.register_forward_pre_hook(lambda *_: started.append(time.process_time()))
    pairing.register_forward_hook(note)
    start = time.process_time()
    model.learn(run.steps)
    cost = sum(seconds) / (time.process_time() - start)
    by_name = {name.removeprefix("group/"): [round(of[name], 3) for of in metrics] for name in metrics[0]}
    return {"steps": run.steps, "seed": run.seed, "cost": round(cost, 6), **by_name}
