"""What ``--track`` tells Weights & Biases beyond rl_zoo3: models as versioned artifacts, what charts are drawn over."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Step of all charts: what TensorBoard's scalars are synchronised with.
STEP = "global_step"
#: Scalars whose summary is the best value and not the last.
BEST = ("eval/mean_reward", "rollout/ep_rew_mean")

#: Is given the path of a model and what is known of it.
Keep = Callable[[Path, dict[str, Any]], None]


def define_metrics(run: Any) -> None:
    """Draw everything over env steps, and summarise returns by their maximum.

    :param run: of wandb
    """
    run.define_metric(STEP)
    run.define_metric("*", step_metric=STEP)
    for name in BEST:
        run.define_metric(name, step_metric=STEP, summary="max")


def finish() -> None:
    """End wandb's run: its service may be another process's, which keeps what is not written yet as long as it lives."""
    wandb = sys.modules.get("wandb")
    if getattr(wandb, "run", None) is not None:
        wandb.finish()  # type: ignore[union-attr]


def artifact_name(*parts: object) -> str:
    """A name that W&B accepts.

    :param parts: such as algorithm and env
    """
    return "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", str(part)) for part in parts)


def all_of(keepers: list[Keep]) -> Keep | None:
    """Several as one; None where there are none."""

    def keep(path: Path, known: dict[str, Any]) -> None:
        for one in keepers:
            one(path, known)

    return keep if keepers else None


def keeper(run: Any, name: str, alias: str) -> Keep:
    """What logs a model file as a version of an artifact, with what is known of it as metadata.

    :param run: of wandb
    :param name: of the artifact
    :param alias: of the version, beside ``latest``
    """
    import wandb  # an extra

    def keep(path: Path, known: dict[str, Any]) -> None:
        artifact = wandb.Artifact(name, type="model", metadata=known)
        artifact.add_file(str(path), name=path.name)
        run.log_artifact(artifact, aliases=[alias, "latest"])

    return keep
