"""What the weights of a training are known by: their hashes, and a sample of them for machines that round otherwise.

Record anew, which is right only for a change that is meant to alter what is learnt (say so in its commit):

    OMP_NUM_THREADS=1 python -m tests.record_guards                 all configurations
    OMP_NUM_THREADS=1 python -m tests.record_guards defaults gsde   these only
    OMP_NUM_THREADS=1 python -m tests.record_guards --check         two runs, each in its own process: are they one to the bit?

A hash holds for one kind of machine: other vector instructions, another CPU or another torch sum in another order. So each
record names the machine that made it (:func:`machine`), and on any other one the sample is compared instead.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch as th

from tests.guards.configurations import CONFIGURATIONS, SLOW, learnt, logged

FOLDER = Path(__file__).parent / "guards"
RECORDS = FOLDER / "records.jsonl"
SAMPLE = 16
#: Variables that make the libraries choose other kernels than the CPU allows.
CHOICES = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA")


def cpu() -> dict[str, str]:
    """Maker and model of the CPU and its vector instructions, as far as the system tells."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {"model name": platform.processor()}
    first = path.read_text().split("\n\n")[0].splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first)}
    flags = (facts.get("flags") or facts.get("Features", "")).split()
    vectors = [flag for flag in flags if flag.startswith(("avx", "fma", "amx", "asimd", "sve"))]
    wanted = ("vendor_id", "cpu family", "model", "model name", "CPU implementer", "CPU part")
    return {**{key: facts[key] for key in wanted if key in facts}, "vectors": " ".join(sorted(vectors))}


def machine(compiled: bool) -> dict[str, Any]:
    """What decides how sums are rounded.

    :param compiled: of a configuration whose kernels are compiled here
    """
    packages = {name: version(name) for name in ("torch", "numpy", "gymnasium", "stable_baselines3")}
    made = dict(
        packages=packages,
        platform=f"{platform.system()} {platform.machine()}",
        cpu=cpu(),
        capability=th.backends.cpu.get_cpu_capability(),
        mkl=th.backends.mkl.is_available(),
        mkldnn=th.backends.mkldnn.is_available(),
        threads=th.get_num_threads(),
        choices={name: os.environ[name] for name in CHOICES if name in os.environ},
    )
    if compiled:
        compiler = os.environ.get("CXX", "g++")
        made["compiler"] = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout.partition("\n")[0]
    return made


def digest(tensors: list[th.Tensor]) -> str:
    """SHA-256 of the bytes of tensors, one after the other; what they are called does not count."""
    result = hashlib.sha256()
    for tensor in tensors:
        result.update(tensor.detach().cpu().contiguous().flatten().view(th.uint8).numpy().tobytes())
    return result.hexdigest()


def summary(tensors: list[th.Tensor]) -> dict[str, Any]:
    """Hash, number, norm, and a sample evenly spaced over all entries."""
    flat = th.cat([tensor.detach().cpu().double().flatten() for tensor in tensors])
    chosen = th.linspace(0, len(flat) - 1, SAMPLE).round().long()
    return dict(sha256=digest(tensors), size=len(flat), norm=float(flat.norm()), sample=flat[chosen].tolist())


def measure(name: str) -> dict[str, Any]:
    """Train one configuration and describe what came out."""
    model = CONFIGURATIONS[name]()
    parts = {part: summary(tensors) for part, tensors in learnt(model).items()}
    return dict(parts=parts, figures=sorted(logged(model)), env_steps=model.num_timesteps, machine=machine(name in SLOW))


def read_records() -> dict[str, dict[str, Any]]:
    """What is recorded, by configuration."""
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    return {record.pop("configuration"): record for record in records}


def record(names: list[str]) -> None:
    """Measure configurations anew; the others stay as they are."""
    records = read_records()
    for name in names:
        records[name] = measure(name)
        lines = [json.dumps({"configuration": key, **value}) + "\n" for key, value in sorted(records.items())]
        RECORDS.write_text("".join(lines))
        print(name, flush=True)


def check(names: list[str]) -> int:
    """How many configurations differ between two processes."""
    command = [sys.executable, "-m", "tests.record_guards", "--print", *names]
    one, two = (json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(2))
    differing = [name for name in names if one[name] != two[name]]
    print(
        f"{len(names) - len(differing)} of {len(names)} are the same to the bit"
        + "".join(f"\ndiffers: {n}" for n in differing)
    )
    return len(differing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*CONFIGURATIONS, []], metavar="configuration")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare two runs and record nothing")
    what.add_argument("--print", action="store_true", help="print the records and write nothing")
    args = parser.parse_args()
    th.set_num_threads(1)
    names = args.names or list(CONFIGURATIONS)
    if args.check:
        return min(check(names), 1)
    elif args.print:
        print(json.dumps({name: measure(name) for name in names}))
    else:
        record(names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
