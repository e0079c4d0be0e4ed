"""Resources of jobs outside this process, and connections to a Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TextIO, TypedDict

from sb_grpo.envs.ray_vec_env import ITS_TOKEN, check_answers, enter, imported
from sb_grpo.types import Kwargs

from ..common.command_line import PACKAGE, BadInput, Parser, did_you_mean

#: Small networks are many times slower with more threads, and a machine runs as many runs as it has cores.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
#: Launcher -> its name in messages.
ENGINES = {"local": "processes of this machine", "ray": "a Ray cluster", "submitit": "SLURM"}
PACKAGES = {"ray": "ray", "submitit": "submitit"}


class Node(TypedDict):
    """One machine in the answer of ``ray.nodes()``."""

    Alive: bool
    Resources: dict[str, float]


@dataclass(frozen=True)
class Resources:
    """Resources of one job.

    :param cpus: cores; a fraction lets several share one (Ray only)
    :param gpus: GPUs; a fraction lets several share one (Ray only)
    :param memory_gb: memory; 0: unspecified
    :param minutes: time limit of a SLURM job
    :param partition: of SLURM; empty: its default
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory_gb: float = 0.0
    minutes: int = 240
    partition: str = ""

    def for_ray(self) -> dict[str, float]:
        """Arguments of Ray's ``options``."""
        memory = {"memory": int(self.memory_gb * 2**30)} if self.memory_gb else {}
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, **memory}

    def for_submitit(self) -> dict[str, float | str]:
        """Arguments of submitit's ``update_parameters``.

        :raises BadInput: for fractions of a core or GPU, which SLURM does not support
        """
        for name in ("cpus", "gpus"):
            if getattr(self, name) != int(getattr(self, name)):
                raise BadInput(
                    f"--resources {name}={getattr(self, name):g}: submitit gives whole {name}; only Ray shares one."
                )
        wanted: dict[str, float | str] = {"cpus_per_task": max(int(self.cpus), 1), "gpus_per_node": int(self.gpus)}
        wanted["timeout_min"] = self.minutes
        if self.memory_gb:
            wanted["mem_gb"] = self.memory_gb
        if self.partition:
            wanted["slurm_partition"] = self.partition
        return wanted


def parse_resources(text: str) -> Resources:
    """Resources from ``cpus=1,gpus=0.25``.

    :param text: pairs, separated by commas
    :raises BadInput: for an unknown name, or a value that is no number from 0 on
    """
    kinds: dict[str, type] = {name: type(value) for name, value in asdict(Resources()).items()}
    values: Kwargs = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = pair.partition("=")
        if not equals or name not in kinds:
            raise BadInput(f"--resources {text!r}: {pair!r} is not NAME=VALUE with NAME one of {', '.join(kinds)}."
                           f"{did_you_mean(name, kinds)} Write cpus=1,gpus=0.25.")  # fmt: skip
        try:
            values[name] = kinds[name](value)
            valid = kinds[name] is str or 0 <= values[name] < float("inf")
        except ValueError:
            valid = False
        if not valid:
            raise BadInput(f"--resources {text!r}: {name}={value} must be a number from 0 on, as in cpus=1,gpus=0.25.")
    return Resources(**values)


@dataclass(frozen=True)
class Launch:
    """Launcher from the command line.

    :param launcher: ``"local"``, ``"ray"`` or ``"submitit"``
    :param address: of a Ray cluster; None: RAY_ADDRESS, or else this machine
    :param resources: of one job
    """

    launcher: str
    address: str | None
    resources: Resources


def add_launcher(parser: Parser, *launchers: str) -> None:
    """Add the options of :func:`read_launch`.

    :param launchers: to choose from, the default first
    """
    add = parser.add_argument
    engines = "; ".join(f"{name}: {ENGINES[name]}" for name in launchers)
    add("--launcher", default=launchers[0], choices=launchers, help=f"who runs them; {engines} (docs/scale.md)")
    add("--ray-address", metavar="HOST:PORT", help="of the Ray cluster; default: RAY_ADDRESS, or else this machine alone")
    add(
        "--resources",
        default="",
        metavar="NAME=V,V",
        help="of each, such as cpus=1,gpus=0.25 (default: cpus=1); not for local",
    )


def read_launch(args: Namespace) -> Launch:
    """Read the launcher's options, and check before the start that its resources are available.

    :param args: with the options of :func:`add_launcher`
    :raises BadInput: for invalid resources, an engine that is not installed, or a cluster that does not answer
    """
    resources = parse_resources(args.resources)
    for option, value, of in (
        ("--resources", args.resources, ("ray", "submitit")),
        ("--ray-address", args.ray_address, ("ray",)),
    ):
        if value and args.launcher not in of:
            raise BadInput(f"{option} {value} is not for --launcher {args.launcher}: choose --launcher {' or '.join(of)}.")
    check_installed(args.launcher)
    address = (args.ray_address or os.environ.get("RAY_ADDRESS") or None) if args.launcher == "ray" else None
    if address and address != "auto":
        try:
            check_answers(address)
        except ValueError as error:
            raise BadInput(f"--ray-address: {error}") from error
    if args.launcher == "submitit":
        resources.for_submitit()
    return Launch(args.launcher, address, resources)


def check_installed(launcher: str) -> None:
    """Check that a launcher's package is installed.

    :raises BadInput: with the command that installs it
    """
    if launcher in PACKAGES and find_spec(PACKAGES[launcher]) is None:
        raise BadInput(f"--launcher {launcher}: {launcher} is not installed. Install it: pip install 'sb_grpo[scale]'")


def connect_ray(launch: Launch, show_output: bool = False) -> ModuleType:
    """Join a Ray cluster, or start one on this machine that ends with this process.

    :param launch: some machine of the cluster must have its resources
    :param said: print the output of the jobs here
    :return: the module ``ray``
    :raises BadInput: if there is no such cluster, or no machine in it has the resources
    """
    address = launch.address
    ray = imported(address)
    try:
        enter(ray, address, show_output)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BadInput(f"--ray-address {address}: {error}; {ITS_TOKEN}.") from error
    try:
        _check_room(ray.nodes(), launch.resources)
    except BadInput:
        ray.shutdown()
        raise
    return ray


def _jobs_of(machine: dict[str, float], resources: Resources) -> int:
    """Number of jobs that fit on a machine."""
    wanted = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory_gb * 2**30}
    return min((int(machine.get(name, 0) / amount) for name, amount in wanted.items() if amount > 0), default=1)


def _check_room(nodes: Sequence[Node], resources: Resources) -> None:
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(_jobs_of(machine, resources) for machine in machines):
        most = ", ".join(f"{max(m.get(name, 0) for m in machines):g} {name}" for name in ("CPU", "GPU"))
        requested = f"cpus={resources.cpus:g},gpus={resources.gpus:g}"
        raise BadInput(
            f"--resources {requested}: no machine of the Ray cluster has that (the most of one: {most}); ask for less."
        )


def room_in(ray: ModuleType, resources: Resources) -> int:
    """Number of jobs that fit on the machines of a Ray cluster, including machines that have joined later."""
    return max(sum(_jobs_of(node["Resources"], resources) for node in ray.nodes() if node["Alive"]), 1)


def search_here(arguments: Sequence[str], folder: str) -> int:
    """Search here, in a process that ends with this one.

    :param arguments: command line of ``zoo.tune``
    :param folder: where the command was given; paths count from there, if this machine has it
    :return: exit code
    """
    return wait_for(start_part("tune", *arguments, folder=folder if Path(folder).is_dir() else None))


def start_part(module: str, *arguments: str, log: TextIO | None = None, folder: str | None = None) -> subprocess.Popen[bytes]:
    """Start a module's ``main`` in a process that ends when its standard input is closed.

    :param module: within this package
    :param log: for its output
    :param folder: working directory
    """
    return subprocess.Popen(
        [sys.executable, "-m", f"{PACKAGE}.common.lifeline", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=None if log is None else subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, **ONE_THREAD},
    )


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """Exit code of a process, which ends with this one at the latest."""
    try:
        return process.wait()
    finally:
        process.kill()
        process.communicate()
