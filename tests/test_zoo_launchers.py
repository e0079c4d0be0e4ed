"""Runs and studies on a Ray cluster of two machines, one of which dies, and through submitit's local executor."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import psutil
import pytest

from tests.helpers import free_port, heed_ctrl_c, wait_for
from zoo import benchmark, tune
from zoo.benchmarking.results import read_run
from zoo.common import cluster
from zoo.common.cluster import Resources, parse_resources
from zoo.common.command_line import BadInput, run
from zoo.tuning.study import load_study, open_storage

ROOT = Path(__file__).parents[1]
SIZE = ["--evaluations", "2", "--eval-episodes", "2", "--final-episodes", "2"]
STORE = 80 * 2**20  # bytes, about the least that Ray takes


def command(out: Path, *more: str, seeds: str = "0-1", steps: str = "2000") -> list[str]:
    envs = ["--envs", "CartPole-v1", "--algos", "ppo", "--seeds", seeds, "--steps", steps, *SIZE]
    return [sys.executable, "-m", "zoo.benchmark", *envs, "--out", str(out), *more]


def finished(arguments: list[str]) -> str:
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def returns(out: Path) -> dict[str, list[float]]:
    return {str(f.relative_to(out)): read_run(f).final_returns.tolist() for f in sorted(out.rglob("seed_*.json"))}


def runs_below(pid: int) -> list[psutil.Process]:
    """Processes in which the zoo is at work for another one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [p for p in psutil.Process(pid).children(recursive=True) if is_run(p)]
    return []


def is_run(process: psutil.Process) -> bool:
    try:
        return "zoo.common.lifeline" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def two_machines(monkeypatch) -> Iterator[tuple[str, object, object]]:
    """A Ray cluster of two nodes with one CPU each: its address, the cluster, the second node."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'sb_grpo[scale]'")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    machines = Cluster(initialize_head=True, head_node_args=head)
    second = machines.add_node(num_cpus=1, object_store_memory=STORE)
    yield machines.address, machines, second
    ray.shutdown()
    machines.shutdown()


def pid_of(node) -> int:
    return node.all_processes["raylet"][0].process.pid


# ------------------------------------------------------------ benchmark


def test_the_help_names_the_launchers_that_can_be_chosen():
    searches, benchmarks = (" ".join(parser.format_help().split()) for parser in (tune.make_parser(), benchmark.parser()))
    assert "local: processes of this machine; ray: a Ray cluster (docs/scale.md)" in searches and "SLURM" not in searches
    assert "ray: a Ray cluster; submitit: SLURM (docs/scale.md)" in benchmarks


@pytest.mark.slow
def test_a_machine_that_dies_costs_its_run_only(two_machines, tmp_path):
    """What it was running begins anew on the other one; every result equals that of a run on this machine."""
    address, machines, second = two_machines
    arguments = command(tmp_path / "ray", "--launcher", "ray", "--ray-address", address, seeds="0-2")
    process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(runs_below(pid_of(second))) == 1)
    (lost,) = runs_below(pid_of(second))
    machines.remove_node(second, allow_graceful=False)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "3 runs, 0 done before, 3 to do, 2 at a time" in output
    assert output.count("its machine is gone") == 1 and "begins anew" in output
    wait_for(lambda: not is_run(lost), seconds=20)  # nothing runs on
    finished(command(tmp_path / "local", seeds="0-2"))
    assert returns(tmp_path / "ray") == returns(tmp_path / "local") and len(returns(tmp_path / "ray")) == 3


@pytest.mark.slow
def test_submitit_runs_what_is_left_and_repeats_what_was_killed(tmp_path):
    """The first seed was done by this machine; of the others' jobs one is killed; a third launcher finds all of them done."""
    pytest.importorskip("submitit", reason="needs submitit: pip install 'sb_grpo[scale]'")
    out = tmp_path / "results"
    finished(command(out, seeds="0"))
    before = (out / "CartPole-v1" / "ppo" / "seed_0.json").read_bytes()
    arguments = command(out, "--launcher", "submitit", "--keep-models", "--jobs", "1", seeds="0-1")
    process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(runs_below(process.pid)) == 1)
    (lost,) = runs_below(process.pid)
    for parent in lost.parents()[:1]:  # submitit's, which would answer for the run
        parent.send_signal(signal.SIGKILL)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "2 runs, 1 done before, 1 to do, 1 at a time" in output and output.count("its machine is gone") == 1
    assert (out / "CartPole-v1" / "ppo" / "seed_0.json").read_bytes() == before
    kept = out / "CartPole-v1" / "ppo" / "seed_1"
    assert any(kept.rglob("*.zip")) and not (out / ".submitit").exists()
    finished(command(tmp_path / "local", seeds="0-1"))
    assert returns(out) == returns(tmp_path / "local")
    assert "2 runs, 2 done before, 0 to do" in finished(command(out, seeds="0-1"))


@pytest.mark.slow
def test_ctrl_c_ends_the_runs_of_a_cluster(two_machines, tmp_path):
    address, _, second = two_machines
    arguments = command(tmp_path / "ray", "--launcher", "ray", "--ray-address", address, steps="200000")
    pipe = subprocess.PIPE
    process = subprocess.Popen(arguments, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed_ctrl_c)
    wait_for(lambda: len(runs_below(pid_of(second))) == 1)
    runs = runs_below(pid_of(second))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command goes on from here" in errors
    wait_for(lambda: not any(is_run(p) for p in runs), seconds=20)


@pytest.mark.slow
def test_a_setting_that_a_model_refuses_fails_on_a_cluster_as_it_does_here(two_machines, tmp_path):
    """One line with the reason, the log beside the results, exit code 2."""
    variants = tmp_path / "variants.yml"
    variants.write_text("broken: {algo: ppo, conf_file: defaults, hyperparams: {batch_size: 1, n_steps: 1, n_envs: 1}}")
    arguments = ["--envs", "CartPole-v1", "--variants", str(variants), "--seeds", "0", "--steps", "100", *SIZE]
    remote = ["--out", str(tmp_path / "o"), "--launcher", "ray", "--ray-address", two_machines[0]]
    done = subprocess.run(
        [sys.executable, "-m", "zoo.benchmark", *arguments, *remote], cwd=ROOT, capture_output=True, text=True, check=False
    )
    log = tmp_path / "o" / "CartPole-v1" / "broken" / "seed_0.failed.log"
    assert done.returncode == 2 and "failed with code 2" in done.stderr and log.exists()


# ------------------------------------------------------------ search


@pytest.mark.slow
def test_workers_on_two_machines_search_one_study(two_machines, tmp_path):
    """One of them dies: its trial is retired and tried again, and the study ends with the trials that it was to have."""
    address, machines, second = two_machines
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    tiny = ["-n", "4096", "--n-seeds", "1", "--n-evaluations", "2", "--eval-episodes", "2", "--hyperparams", "n_steps:32"]
    cluster_ = ["--launcher", "ray", "--ray-address", address, "--resources", "cpus=1", "--storage", storage]
    more = ["--n-trials", "5", "--log-folder", str(tmp_path), "--no-optim-plots", "--pruner", "none"]
    arguments = [sys.executable, "-m", "zoo.tune", *tiny, *more, *cluster_]
    process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    study = "grpo_CartPole-v1_4096"

    def lost_trials() -> list[int]:
        workers = {p.pid for p in runs_below(pid_of(second))}
        return [t.number for t in trials_of(storage, study) if t.user_attrs.get("worker", [0, 0])[1] in workers]

    wait_for(lambda: Path(tmp_path, "study.db").exists() and len(runs_below(pid_of(second))) == 1)
    wait_for(lambda: len(lost_trials()) > 0)
    machines.remove_node(second, allow_graceful=False)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    trials = trials_of(storage, study)
    done = [t for t in trials if t.state.name == "COMPLETE"]
    assert output.count("A worker is gone") == 1 and len(done) >= 4 and "complete" in output
    assert len({t.user_attrs["worker"][1] for t in trials if "worker" in t.user_attrs}) >= 2
    assert (tmp_path / "tune" / study / "best.yml").exists()


def trials_of(storage, study):
    try:
        return optuna.load_study(study_name=study, storage=open_storage(storage)).get_trials()
    except KeyError:
        return []


SEARCH = ["-n", "256", "--n-seeds", "1", "--n-evaluations", "1", "--eval-episodes", "2", "--hyperparams", "n_steps:32"]


def test_what_a_worker_is_told_is_a_command_that_tune_takes(tmp_path, capsys):
    """It finds the study, whatever the team's own options were, and searches in a process of its own."""
    mine = [*SEARCH, "--n-trials", "1", "--log-folder", str(tmp_path), "--no-optim-plots"]
    assert run("zoo.tune", tune.main, mine) == 0
    team = [*mine, "--launcher", "ray", "--workers", "2", "--ray-address", "HOST:6379", "--resources", "cpus=2"]
    args = tune.make_parser().parse_args(team)
    args.study_name, args.storage = "grpo_CartPole-v1_256", str(tmp_path / "tune/grpo_CartPole-v1_256/journal.log")
    reported = tune.team_arguments(team, args, load_study(args.storage, args.study_name))
    assert run("zoo.tune", tune.main, reported) == 0
    assert [t.state.name for t in trials_of(args.storage, args.study_name)] == ["COMPLETE"] * 2
    assert run("zoo.tune", tune.main, [*mine, "--workers", "2"]) == 2
    assert "--workers 2 needs --launcher ray" in capsys.readouterr().err


@pytest.mark.slow
def test_workers_of_this_machine_search_and_one_that_fails_is_named(tmp_path, monkeypatch):
    """By a package that two processes can import, the command's own and one worker's, which finishes the study alone."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'sb_grpo[scale]'")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "twice.py").write_text(
        "import os\ntry:\n    os.mkdir('first')\nexcept FileExistsError:\n    try:\n        os.mkdir('second')\n"
        "    except FileExistsError:\n        raise ImportError('no third time') from None\n"
    )
    team = ["--launcher", "ray", "--workers", "2", "--n-trials", "2", "--gym-packages", "twice", "--no-optim-plots"]
    arguments = [sys.executable, "-m", "zoo.tune", *SEARCH, *team, "--storage", "sqlite:///study.db"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "2 complete" in done.stdout, done.stderr
    assert sum(f"zoo.tune: worker {number} ended with code 2" in done.stderr for number in (1, 2)) == 1
    output = done.stdout + done.stderr
    assert output.count("zoo.tune: --gym-packages twice: no third time") == 1 and "Traceback" not in output


# ------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("text", "resources"),
    [
        ("", Resources()),
        ("cpus=1,gpus=0.25", Resources(cpus=1.0, gpus=0.25)),
        ("cpus=0.5,memory_gb=2", Resources(cpus=0.5, memory_gb=2.0)),
        ("minutes=60,partition=long", Resources(minutes=60, partition="long")),
    ],
    ids=["nothing", "part-of-a-gpu", "part-of-a-core", "slurm"],
)
def test_resources_are_read(text, resources):
    assert parse_resources(text) == resources


def test_resources_as_the_engines_want_them():
    some = Resources(cpus=2, gpus=1, memory_gb=4, minutes=30, partition="gpu")
    assert some.for_ray() == {"num_cpus": 2, "num_gpus": 1, "memory": 4 * 2**30}
    assert some.for_submitit() == {
        "cpus_per_task": 2, "gpus_per_node": 1, "timeout_min": 30, "mem_gb": 4, "slurm_partition": "gpu",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpu=1", "'gpu=1' is not NAME=VALUE with NAME one of cpus, gpus, memory_gb, minutes, partition. Did you mean gpus"),
        ("cpus", "'cpus' is not NAME=VALUE"),
        ("cpus=many", "cpus=many must be a number from 0 on"),
        ("gpus=-1", "gpus=-1 must be a number from 0 on"),
        ("cpus=nan", "cpus=nan must be a number from 0 on"),
        ("minutes=1.5", "minutes=1.5 must be a"),
    ],
    ids=["typo", "no-value", "a-word", "negative", "nan", "part-of-a-minute"],
)
def test_resources_that_cannot_be_read(text, says):
    with pytest.raises(BadInput, match="resources") as error:
        parse_resources(text)
    assert says in str(error.value)


def nobody_there() -> str:
    return f"127.0.0.1:{free_port()}"


COMMANDS = {
    "benchmark": lambda out, more: run("zoo.benchmark", benchmark.main, [*command(out)[3:], *more]),
    "tune": lambda out, more: run("zoo.tune", tune.main, ["--log-folder", str(out), *more]),
}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_an_address_where_no_cluster_is(name, tmp_path, capsys):
    """Said at once, with the remedy; nothing has been made."""
    address = nobody_there()
    assert COMMANDS[name](tmp_path / "out", ["--launcher", "ray", "--ray-address", address]) == 2
    output = capsys.readouterr().err
    assert f"--ray-address: no Ray cluster answers at address '{address}'" in output and "ray start --head" in output
    assert output.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            ["--launcher", "ray", "--ray-address", "somewhere"],
            "--ray-address: address 'somewhere' of a Ray cluster is not HOST:PORT",
        ),
        (["--launcher", "ray", "--resources", "cpu:1"], "'cpu:1' is not NAME=VALUE"),
        (["--resources", "cpus=2"], "--resources cpus=2 is not for --launcher local: choose --launcher ray or submitit"),
        (["--ray-address", "a:1"], "--ray-address a:1 is not for --launcher local: choose --launcher ray."),
        (["--launcher", "submitit", "--resources", "gpus=0.25"], "gpus=0.25: submitit gives whole gpus; only Ray shares one"),
        (["--launcher", "slurm"], "argument --launcher: invalid choice: 'slurm'"),
    ],
    ids=["no-port", "colon", "local-resources", "local-address", "part-of-a-gpu", "unknown"],
)
def test_what_cannot_be_launched_is_one_line(more, says, tmp_path, capsys):
    with pytest.raises(SystemExit) if "slurm" in more else contextlib.nullcontext():
        assert COMMANDS["benchmark"](tmp_path / "out", more) == 2
    output = capsys.readouterr().err
    assert says in output and output.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("launcher", ["ray", "submitit"])
def test_an_engine_that_is_not_installed(launcher, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(cluster.PACKAGES, launcher, "a_package_that_nobody_has")
    assert COMMANDS["benchmark"](tmp_path / "out", ["--launcher", launcher]) == 2
    assert f"{launcher} is not installed. Install it: pip install 'sb_grpo[scale]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_resources_that_no_machine_has(tmp_path):
    """Said by the cluster that this machine alone makes; nothing is run."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'sb_grpo[scale]'")
    arguments = command(tmp_path / "out", "--launcher", "ray", "--resources", "cpus=1,gpus=64")
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "cpus=1,gpus=64: no machine of the Ray cluster has that" in done.stderr
    assert not list((tmp_path / "out").rglob("seed_*"))


def test_a_result_says_which_command_made_it(tmp_path):
    """Runs on this very machine: what they bring is what a run here leaves, and nothing else stays behind."""
    from zoo.benchmarking.launchers import deliver, run_here
    from zoo.benchmarking.specs import RunOptions, Spec

    spec = Spec("CartPole-v1", "random", "random", 3, 10, 1, 1, 2, {}, "none")
    brought = run_here(spec, RunOptions("", "the command", keep=True, device="cpu", gym_packages=[]))
    assert brought.code == 0, brought.log
    deliver(brought, spec.file(tmp_path))
    content = json.loads(spec.file(tmp_path).read_text())
    assert content["command"] == "the command" and content["settings"] == {} and len(content["final_returns"]) == 2
    assert (spec.folder(tmp_path) / "seed_3" / "log.txt").exists()
