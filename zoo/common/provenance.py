"""Provenance of results: commit, versions, machine, command."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("sb_grpo", "stable_baselines3", "sb3_contrib", "rl_zoo3", "gymnasium", "torch", "numpy")
#: Packages of extras that affect the envs' behaviour.
PHYSICS = ("mujoco", "Box2D")
CHECKOUT = Path(__file__).parents[2]


def versions() -> dict[str, str]:
    """Versions of Python, of the packages that affect results, and of installed simulators."""
    found = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    for name in PHYSICS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Commit of the checkout, with ``+changes`` if tracked files differ; None outside of a checkout."""
    if shutil.which("git") is None or not (CHECKOUT / ".git").exists():
        return None
    head = _git("rev-parse", "HEAD")
    return head and head + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


def machine() -> dict[str, str | int | None]:
    """Processor and number of cores, because wall times of different machines are not comparable."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    return {"processor": model, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}


def command() -> str:
    """Command line of this process, quoted for a shell, without passwords."""
    return shlex.join(map(without_passwords, sys.orig_argv))


def without_passwords(argument: str) -> str:
    """Replace the password of a URL by ``***``, because the result is read, copied and uploaded."""
    hidden = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", argument)
    return re.sub(r"([?&](?:password|passwd|pwd|sslpassword)=)[^&]*", r"\1***", hidden)


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
