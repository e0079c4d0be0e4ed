"""``zoo.compare --track``: the report's tables and pictures as a run of Weights & Biases."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from ..common.command_line import BadInput
from ..training.tracking import not_begun


def check_wandb() -> None:
    """Check that wandb is installed.

    :raises BadInput: naming the extra
    """
    if importlib.util.find_spec("wandb") is None:
        raise BadInput("--track needs Weights & Biases: pip install -e '.[track]'.")


def log_report(out: Path, project: str, about: Mapping[str, object]) -> None:
    """Log the files of a comparison.

    :param out: folder of the report, with ``tables`` and ``figures``; wandb's files go beside them
    :param project: of the run
    :param about: subject of the comparison, for the run's configuration
    :raises BadInput: if wandb does not begin the run; the report is written anyway
    """
    import wandb  # an extra

    try:
        run = wandb.init(project=project, job_type="compare", config=dict(about), dir=os.environ.get("WANDB_DIR", str(out)))
    except wandb.errors.Error as error:
        raise not_begun(error) from error
    for file in sorted((out / "tables").glob("*.csv")):
        run.log({f"tables/{file.stem}": wandb.Table(dataframe=pd.read_csv(file))})
    for file in sorted((out / "figures").glob("*.png")):
        run.log({f"figures/{file.stem}": wandb.Image(str(file))})
    artifact = wandb.Artifact("report", type="report")
    artifact.add_file(str(out / "report.md"))
    run.log_artifact(artifact)
    run.finish()
