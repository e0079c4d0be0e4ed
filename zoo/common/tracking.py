"""Extensions of rl_zoo3's ``--track`` for Weights & Biases: models as versioned artifacts, and the x-axis of charts."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .command_line import BadInput, one_line

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run  # an extra

    from ..training.checkpoints import Facts, Keep

#: Step of all charts, as in TensorBoard's scalars.
STEP = "global_step"
#: Scalars whose summary is the best value and not the last.
BEST = ("eval/mean_reward", "rollout/ep_rew_mean")


def take_note(given: Namespace) -> None:
    """Keep with the options which run of wandb this is, and put TensorBoard's files below the log folder.

    :param given: options of a run that wandb has begun, with the folder that rl_zoo3 has chosen in the working directory
    """
    import wandb  # an extra

    assert wandb.run is not None
    if getattr(given, "wandb_run", None):
        for name in ("WANDB_RUN_ID", "WANDB_RESUME"):  # for this run alone
            os.environ.pop(name, None)
    else:
        given.wandb_run = {"id": wandb.run.id, "name": Path(given.tensorboard_log).name}
    wandb.run.name = given.wandb_run["name"]  # rl_zoo3's says when it was begun
    given.tensorboard_log = str(Path(given.log_folder, "runs", given.wandb_run["name"]))


def define_metrics(run: Run) -> None:
    """Draw everything over env steps, and summarise returns by their maximum.

    :param run: of wandb
    """
    run.define_metric(STEP)
    run.define_metric("*", step_metric=STEP)
    for name in BEST:
        run.define_metric(name, step_metric=STEP, summary="max")


def is_of_wandb(error: Exception) -> bool:
    """Whether wandb has refused to begin a run: no key, no network, a project that is not yours."""
    errors = sys.modules.get("wandb.errors")
    return errors is not None and isinstance(error, errors.Error)


def not_begun(error: Exception) -> BadInput:
    """Message with a remedy for an error at the start."""
    from wandb.errors import CommError  # an extra

    message = one_line(error)
    remedy = ""
    if re.search(r"api.?key|log ?in|not logged|authenticat", message, re.IGNORECASE):
        remedy = " Run wandb login first, or set WANDB_MODE=offline and wandb sync later."
    elif isinstance(error, CommError):
        remedy = " Without a network, set WANDB_MODE=offline and wandb sync later."
    return BadInput(f"--track: {message}{remedy}")


def finish() -> None:
    """End wandb's run, because a service of another process would keep unwritten data until that process ends."""
    wandb = sys.modules.get("wandb")
    if getattr(wandb, "run", None) is not None:
        wandb.finish()  # type: ignore[union-attr]


def artifact_name(*parts: object) -> str:
    """A name that W&B accepts.

    :param parts: such as algorithm and env
    """
    return "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", str(part)) for part in parts)


def keeper(run: Run, name: str, alias: str) -> Keep:
    """Make a function that logs a model file as a version of an artifact, with its facts as metadata.

    :param run: of wandb
    :param name: of the artifact
    :param alias: of the version, in addition to ``latest``
    """
    import wandb  # an extra

    def keep(path: Path, known: Facts) -> None:
        artifact = wandb.Artifact(name, type="model", metadata=dict(known))
        artifact.add_file(str(path), name=path.name)
        run.log_artifact(artifact, aliases=[alias, "latest"])

    return keep


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
    import pandas as pd
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
