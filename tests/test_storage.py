"""A study of several processes in PostgreSQL and behind Optuna's gRPC proxy: one of them is killed, and no trial is lost."""

import glob
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tests.helpers import free_port, wait_for
from zoo.tuning.study import SURPLUS, open_storage

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1:]
TINY = ["-n", "2048", "--n-seeds", "1", "--n-evaluations", "2", "--eval-episodes", "2", "--hyperparams", "n_steps:32"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PROGRAMS, reason="needs PostgreSQL: apt-get install postgresql"),
]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """URL of a PostgreSQL of our own in a folder of its own, which root may not run: then the user that its package made."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'sb_grpo[scale]'")
    folder, port = tempfile.mkdtemp(prefix="sb_grpo_pg_"), free_port()
    user = {}
    if os.geteuid() == 0:
        of = pwd.getpwnam("postgres")
        os.chown(folder, of.pw_uid, of.pw_gid)
        user = {"user": of.pw_uid, "group": of.pw_gid, "extra_groups": []}

    def call(program: str, *arguments: str) -> None:
        subprocess.run([f"{PROGRAMS[0]}/{program}", *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL, **user)

    data = f"{folder}/data"
    call("initdb", "-D", data, "-U", "me", "--auth", "trust")
    call(
        "pg_ctl",
        "-D",
        data,
        "-w",
        "-l",
        f"{folder}/log",
        "-o",
        f"-p {port} -k {folder} -c listen_addresses=127.0.0.1",
        "start",
    )
    try:
        call("createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "me", "studies")
        yield f"postgresql+psycopg://me@127.0.0.1:{port}/studies"
    finally:
        call("pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder)


def searching(folder: Path, storage: str, name: str) -> subprocess.Popen:
    more = ["--storage", storage, "--study-name", name, "--max-total-trials", "8", "--no-optim-plots", "--pruner", "none"]
    command = [sys.executable, "-m", "zoo.tune", "--log-folder", str(folder), *TINY, *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def check_four_processes_of_which_one_is_killed(folder: Path, storage: str, name: str) -> None:
    """The trial of the killed one is marked as failed and tried again by who comes next; the study has its eight trials."""

    opened = open_storage(storage)  # once: each has connections of its own, and a database has only so many

    def trials() -> list[optuna.trial.FrozenTrial]:
        if name not in optuna.get_all_study_names(opened):
            return []
        found = optuna.load_study(study_name=name, storage=opened).get_trials()
        return [t for t in found if SURPLUS not in t.user_attrs]  # two began at once, and one has given its place back

    def at_work(pid: int) -> bool:
        return any(t.state == TrialState.RUNNING and t.user_attrs.get("worker", [0, 0])[1] == pid for t in trials())

    processes = [searching(folder, storage, name) for _ in range(4)]
    victim, others = processes[0], processes[1:]
    wait_for(lambda: at_work(victim.pid), seconds=120)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    outputs = [process.communicate(timeout=240)[0] for process in others]
    assert [process.returncode for process in others] == [0, 0, 0], outputs
    after = searching(folder, storage, name)
    last = after.communicate(timeout=240)[0]
    # Whoever begins after it was killed says so: the last one, or one of the others that was slow to start.
    assert after.returncode == 0 and "had been left by a process that is gone" in "".join([*outputs, last])
    states = [t.state for t in trials()]
    assert states.count(TrialState.COMPLETE) == 8 and states.count(TrialState.FAIL) == 1 and len(states) == 9
    lost = next(t.number for t in trials() if t.state == TrialState.FAIL)
    assert [t.user_attrs.get("retry_of") for t in trials()].count(lost) == 1
    assert len({t.user_attrs["worker"][1] for t in trials()}) >= 4


def test_four_processes_share_a_study_in_postgresql(database, tmp_path):
    check_four_processes_of_which_one_is_killed(tmp_path, database, "direct")


def test_four_processes_share_a_study_behind_the_proxy(database, tmp_path):
    port = free_port()
    serve = "from optuna.storages import RDBStorage as S, run_grpc_proxy_server as serve; "
    serve += f"serve(S({database!r}), host='127.0.0.1', port={port})"
    proxy = subprocess.Popen([sys.executable, "-c", serve])
    try:
        check_four_processes_of_which_one_is_killed(tmp_path, f"grpc://127.0.0.1:{port}", "proxied")
    finally:
        proxy.kill()
        proxy.communicate()
