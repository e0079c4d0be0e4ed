"""``--mlflow``: a run's scalars, settings, models and results in MLflow, by a writer for SB3's logger."""

from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter

from sb_grpo.figures import as_shown

from ..common.command_line import BadInput
from .tracking import Keep

#: Characters of a parameter's value that are kept.
LONGEST = 500
#: What of a run's folder is kept when it has finished, beside the model.
RESULTS = ("metrics.json", "README.md", "learning_curve.png", "evaluations.npz")


def check_mlflow() -> None:
    """See that mlflow is installed.

    :raises BadInput: naming the extra
    """
    if importlib.util.find_spec("mlflow") is None:
        raise BadInput("--mlflow needs MLflow: pip install -e '.[mlflow]'.")


class MlflowOutput(KVWriter):
    """Takes the numbers of SB3's logger; what is no number, or excluded from TensorBoard, is left out.

    :param client: of mlflow
    :param run_id: that they belong to
    """

    def __init__(self, client: Any, run_id: str) -> None:
        self.client, self.run_id = client, run_id

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        from mlflow.entities import Metric  # an extra

        now, taken = int(1000 * time.time()), []
        for key, value in key_values.items():
            if isinstance(value, int | float | np.number) and "tensorboard" not in (key_excluded.get(key) or ()):
                taken.append(Metric(name_of(key), float(value), now, step))
        self.client.log_batch(self.run_id, metrics=taken)

    def close(self) -> None:
        """Nothing is open."""


class MlflowCallback(BaseCallback):
    """A run of MLflow for a training: all that its logger writes, and models and results as artifacts.

    :param experiment: of MLflow, made where it is missing
    :param name: of the run
    :param settings: of the run; for GRPO all arguments of the model among them
    :param home: where MLflow keeps everything, unless ``MLFLOW_TRACKING_URI`` says otherwise
    """

    rank_0_only = True

    def __init__(self, experiment: str, name: str, settings: dict[str, Any], home: Path) -> None:
        super().__init__()
        from mlflow import MlflowClient  # an extra

        home.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        self.client = MlflowClient(uri or f"sqlite:///{home.resolve()}/mlflow.db")
        known = self.client.get_experiment_by_name(experiment)
        artifacts = None if uri else (home / "artifacts").resolve().as_uri()
        number = known.experiment_id if known else self.client.create_experiment(experiment, artifacts)
        self.settings = settings
        self.run_id: str = self.client.create_run(number, run_name=name).info.run_id

    def _on_training_start(self) -> None:
        from mlflow.entities import Param  # an extra

        shown = as_shown({**getattr(self.model, "settings", {}), **self.settings})
        params = [Param(name_of(name), str(value)[:LONGEST]) for name, value in shown.items()]
        self.client.log_batch(self.run_id, params=params[:100])  # as many as MLflow takes
        self.logger.output_formats.append(MlflowOutput(self.client, self.run_id))

    def _on_step(self) -> bool:
        return True

    def keeper(self, alias: str) -> Keep:
        """What keeps a model file, with what is known of it.

        :param alias: folder of the artifact
        """

        def keep(path: Path, known: dict[str, Any]) -> None:
            self.client.log_artifact(self.run_id, str(path), alias)
            self.client.log_dict(self.run_id, known, f"{alias}/{path.stem}.json")

        return keep

    def finish(self, results: Iterable[Path] = (), failed: bool = False) -> None:
        """The run is over.

        :param results: files to keep; those that are not there are left out
        """
        for path in results:
            if path.exists():
                self.client.log_artifact(self.run_id, str(path))
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


def name_of(key: str) -> str:
    """A key as MLflow takes it."""
    return re.sub(r"[^\w\-. /]", "-", key)
