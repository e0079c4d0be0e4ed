"""Write an evaluation as result files of ``zoo.benchmark`` for ``zoo.compare``, one run per model and variant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sb_grpo import files

from ..benchmarking.results import EVALUATED, LINES, Point, Record
from .models import Contestant
from .playing import Played


def write(models: Sequence[Contestant], played: Played, out: Path) -> list[Path]:
    """Write one file of lines per label. A run with a damaged file is left out if complete runs exist.

    :param out: folder
    """
    lines: dict[str, list[str]] = {}
    for one in models:
        _ = one.metrics, one.curve  # reads them, and finds damaged files
    whole = [one for one in models if not one.broken]
    for variant in played.variants:
        for one in whole or models:
            earned = [float(x) for x in played.returns[variant.name, one.name]]
            lines.setdefault(one.label, []).append(
                json.dumps(_record(one, variant.name, earned, played.sizes[one.name]), default=str)
            )
    return [files.write(out / f"{label}{LINES}", "\n".join(of) + "\n") for label, of in lines.items()]


def _record(one: Contestant, env: str, earned: list[float], size: tuple[int, int]) -> Record:
    """Make a record. Times include evaluations, if the run has them; processor times are unknown."""
    metrics = one.metrics
    curve = one.curve
    last = int(curve[0][-1]) if curve is not None and len(curve[0]) else 0
    steps = int(metrics.get("planned_steps") or metrics.get("env_steps") or last)
    wall = float(metrics.get("wall_time_s") or 0.0)
    if curve is None:
        points: list[Point] = [{"steps": steps, "env_steps": steps, "train_wall_s": wall, "returns": earned}]
    else:
        points = [
            {
                "steps": int(at),
                "env_steps": int(at),
                "train_wall_s": wall * int(at) / max(steps, 1),
                "returns": list(map(float, of)),
            }
            for at, of in zip(*curve, strict=True)
        ]
    source = f"{EVALUATED}{one.saved.path}"
    return {
        "spec": {"env": env, "label": one.label, "algo": one.saved.algo, "seed": one.seed, "steps": steps, "source": source},
        "env_steps": int(metrics.get("env_steps") or steps),
        "gradient_steps": int(metrics.get("gradient_steps") or 0),
        "n_updates": size[1],
        "parameters": size[0],
        "train_wall_s": wall,
        "train_cpu_s": 0.0,
        "checkpoints": points,
        "final_returns": earned,
        "settings": {name: str(value) for name, value in one.saved.hyperparams.items()},
        "commit": metrics.get("commit"),
        "versions": metrics.get("versions"),
    }
