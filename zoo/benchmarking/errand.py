"""One run on a launcher's machine: it leaves no files there, and its results return as bytes.

The machines need the same packages, and no common file system.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass, replace
from json import dumps
from pathlib import Path

from sb_grpo import files

from ..benchmarking.specs import RunOptions, Spec
from ..common.command_line import PACKAGE

#: Small networks are many times slower with more threads, and a machine runs as many runs as it has cores.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Brought:
    """Files and exit code of a remote run.

    :param code: exit code of the run
    :param log: its output
    :param result: its result file; empty: none
    :param folder: its folder as a zip, if it is to be kept; else empty
    """

    code: int
    log: str
    result: bytes = b""
    folder: bytes = b""


def start(spec: Spec, options: RunOptions, folder: Path) -> subprocess.Popen[bytes]:
    """Start a run in a new process, which ends when its standard input is closed.

    :param spec: the run
    :param folder: for its log and other files
    """
    command = [sys.executable, "-m", f"{PACKAGE}.common.lifeline", "benchmarking.worker", dumps(asdict(spec))]
    with (folder / "log.txt").open("w") as log:
        return subprocess.Popen(
            [*command, dumps({**asdict(options), "folder": str(folder)})],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ONE_THREAD},
        )


def run(spec: Spec, options: RunOptions) -> Brought:
    """Execute a run here. It ends with this process, also if that is killed.

    :param spec: the run
    :param options: ``out`` is ignored
    """
    with tempfile.TemporaryDirectory(prefix="sb_grpo_") as scratch:
        out = Path(scratch, "out")
        folder = Path(scratch, "run")
        folder.mkdir()
        process = start(spec, replace(options, out=str(out)), folder)
        try:
            code = process.wait()
        finally:
            process.kill()
            process.communicate()
        result = spec.file(out)
        log = (folder / "log.txt").read_text()
        if code != 0:
            return Brought(code, log)
        return Brought(code, log, result.read_bytes(), _packed(folder) if options.keep else b"")


def _packed(folder: Path) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", strict_timestamps=False) as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, path.relative_to(folder))
    return archive.getvalue()


def deliver(brought: Brought, result: Path) -> None:
    """Write the files of a remote run to the places of a local run.

    :param result: path of the result file; the kept folder is written beside it
    """
    if brought.folder:
        folder = result.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(io.BytesIO(brought.folder)) as packed:  # unlike tarfile's, safe on every Python
            packed.extractall(folder)
    result.parent.mkdir(parents=True, exist_ok=True)
    files.write(result, brought.result)  # last: a run with a result file is done


def run_and_deliver(spec: Spec, options: RunOptions) -> Brought:
    """Execute a run here, on a machine with access to the output folder: the result is written even without the caller.

    :param spec: the run
    :param options: with an absolute path as ``out``
    :return: exit code and log without the files
    """
    brought = run(spec, options)
    if brought.code == 0:
        deliver(brought, spec.file(Path(options.out)))
    return Brought(brought.code, brought.log)
