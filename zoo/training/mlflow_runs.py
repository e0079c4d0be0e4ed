"""``--mlflow``: a run's scalars, settings, models and results in MLflow, by a writer for SB3's logger."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter

from sb_grpo.figures import as_shown

from ..common.command_line import BadInput, one_line
from ..common.folders import one_at_a_time
from ..common.provenance import without_passwords
from .tracking import Keep

#: Characters of a parameter's value that are kept.
LONGEST = 500
#: What of a run's folder is kept when it has finished, beside the model.
RESULTS = ("metrics.json", "README.md", "learning_curve.png", "evaluations.npz")
#: Seconds in which a tracking server must answer; MLflow itself would try for minutes.
PATIENCE_S = 5.0
#: Where a server listens whose address says no port.
PORTS = {"http": 80, "https": 443}
REMEDY = "Correct MLFLOW_TRACKING_URI, or unset it to log to the folder mlflow of the log folder."


def check_mlflow() -> None:
    """See that mlflow is installed.

    :raises BadInput: naming the extra
    """
    if importlib.util.find_spec("mlflow") is None:
        raise BadInput("--mlflow needs MLflow: pip install -e '.[mlflow]'.")


def check_answers(uri: str) -> None:
    """See that somebody listens at the address of a tracking server; other places have none.

    :param uri: of MLflow
    :raises BadInput: if nobody does
    """
    try:
        parts = urlsplit(uri)
        port = parts.port or PORTS.get(parts.scheme)
        if not parts.hostname or port is None or (parts.scheme in getproxies() and not proxy_bypass(parts.hostname)):
            return
        socket.create_connection((parts.hostname, port), timeout=PATIENCE_S).close()
    except (OSError, ValueError) as error:
        raise BadInput(
            f"MLFLOW_TRACKING_URI={without_passwords(uri)}: no MLflow server answers there ({error}). Start it with mlflow "
            f"server. {REMEDY}"
        ) from error


class MlflowOutput(KVWriter):
    """Takes the numbers of SB3's logger; what is no number, or excluded from TensorBoard, is left out.

    :param send: takes the name of a method of MLflow's client, and what it is given beside the run
    """

    def __init__(self, send: Callable[..., None]) -> None:
        self.send = send

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        from mlflow.entities import Metric  # an extra

        now, taken = int(1000 * time.time()), []
        for key, value in key_values.items():
            if isinstance(value, int | float | np.number) and "tensorboard" not in (key_excluded.get(key) or ()):
                taken.append(Metric(name_of(key), float(value), now, step))
        self.send("log_batch", metrics=taken)

    def close(self) -> None:
        """Nothing is open."""


class MlflowCallback(BaseCallback):
    """A run of MLflow for a training: all that its logger writes, and models and results as artifacts.

    An error of MLflow's does not end the training: it is said once, and what MLflow does not take is left out.

    :param experiment: of MLflow, made where it is missing
    :param name: of the run
    :param settings: of the run; for GRPO all arguments of the model among them
    :param home: where MLflow keeps everything, unless ``MLFLOW_TRACKING_URI`` says otherwise
    :param run_id: of a run that goes on; None: a new one
    :raises BadInput: if MLflow does not begin the run
    """

    rank_0_only = True

    def __init__(self, experiment: str, name: str, settings: dict[str, Any], home: Path, run_id: str | None = None) -> None:
        super().__init__()
        self.settings, self.failed = settings, False
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri:
            check_answers(uri)
        else:
            home.mkdir(parents=True, exist_ok=True)
        self.uri = uri or sqlite_in(home)
        self.place = without_passwords(self.uri)
        try:
            # Two that make the same tables at once would be in each other's way.
            with contextlib.nullcontext() if uri else one_at_a_time(home):
                self._begin(experiment, name, None if uri else (home / "artifacts").resolve().as_uri(), run_id)
        except BadInput:
            raise
        except Exception as error:  # of MLflow, of SQLAlchemy, or of a driver
            remedy = REMEDY if uri else f"If {home} is broken, move it away."
            raise BadInput(f"--mlflow {experiment}: MLflow at {self.place}: {one_line(error):.300}. {remedy}") from error

    def _begin(self, experiment: str, name: str, artifacts: str | None, run_id: str | None) -> None:
        from mlflow import MlflowClient  # an extra
        from mlflow.exceptions import MlflowException

        self.client = MlflowClient(self.uri)
        self.goes_on = False
        if run_id is not None:
            try:
                self.client.update_run(run_id, status="RUNNING")
                self.run_id, self.goes_on = run_id, True
                return
            except MlflowException as error:
                print(f"MLflow at {self.place} has no run {run_id} to go on in ({one_line(error)}): a new one begins.",
                      file=sys.stderr)  # fmt: skip
        known = self.client.get_experiment_by_name(experiment)
        if known and known.lifecycle_stage == "deleted":
            raise BadInput(
                f"--mlflow {experiment}: this experiment has been deleted at {self.place}. Restore it with mlflow experiments "
                f"restore --experiment-id {known.experiment_id}, or give another name."
            )
        number = known.experiment_id if known else self.client.create_experiment(experiment, artifacts)
        self.run_id = self.client.create_run(number, run_name=name).info.run_id

    def send(self, method: str, *arguments: Any, **named: Any) -> None:
        """Tell MLflow something of the run, if that can be done.

        :param method: of MLflow's client
        """
        try:
            self._call(method, *arguments, **named)
        except Exception as error:  # of MLflow, of SQLAlchemy, or of a driver
            if not self.failed:
                self._say(f"does not take what is logged ({one_line(error):.300}). The training goes on; what is missing "
                          "there is in its folder.")  # fmt: skip
            self.failed = True

    def _call(self, method: str, *arguments: Any, **named: Any) -> None:
        if self.failed:  # MLflow would try for minutes, every time
            check_answers(self.uri)
        getattr(self.client, method)(self.run_id, *arguments, **named)

    def _say(self, what: str) -> None:
        print(f"MLflow at {self.place} {what}", file=sys.stderr)

    def _on_training_start(self) -> None:
        from mlflow.entities import Param  # an extra

        shown = as_shown({**getattr(self.model, "settings", {}), **self.settings})
        params = [Param(name_of(name), str(value)[:LONGEST]) for name, value in shown.items()]
        if not self.goes_on:  # they are there, and cannot be changed
            self.send("log_batch", params=params[:100])  # as many as MLflow takes
        self.logger.output_formats.append(MlflowOutput(self.send))

    def _on_step(self) -> bool:
        return True

    def keeper(self, alias: str) -> Keep:
        """What keeps a model file, with what is known of it.

        :param alias: folder of the artifact
        """

        def keep(path: Path, known: dict[str, Any]) -> None:
            self.send("log_artifact", str(path), alias)
            self.send("log_dict", known, f"{alias}/{path.stem}.json")

        return keep

    def finish(self, results: Iterable[Path] = (), failed: bool = False) -> None:
        """The run is over; if MLflow cannot be told so, that is said.

        :param results: files to keep; those that are not there are left out
        """
        try:
            for path in results:
                if path.exists():
                    self._call("log_artifact", str(path))
            self._call("set_terminated", "FAILED" if failed else "FINISHED")
        except Exception as error:  # of MLflow, of SQLAlchemy, or of a driver
            self._say(f"was not told how run {self.run_id} has ended ({one_line(error):.300}).")


def sqlite_in(home: Path) -> str:
    """MLflow's database in a folder, whose path may hold what means something in a URL."""
    path = str(home.resolve()).replace("%", "%25").replace("?", "%3F")
    return f"sqlite:///{path}/mlflow.db"


def name_of(key: str) -> str:
    """A key as MLflow takes it."""
    return re.sub(r"[^\w\-. /]", "-", key)
