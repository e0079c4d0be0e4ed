"""The small studies: a few variants of one setting, all seeds of a variant in one file."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch as th

from zoo.common.provenance import commit, versions


def path(folder: Path, variant: str) -> Path:
    """File of a variant: letters and digits of its name, underscores between."""
    return folder / f"{re.sub(r'[^0-9a-zA-Z]+', '_', variant)}.json"


def runs_of(folder: Path, variant: str) -> list[dict[str, Any]]:
    """What ``run`` returned for the seeds of a variant."""
    runs: list[dict[str, Any]] = json.loads(path(folder, variant).read_text())["runs"]
    return runs


def main(
    doc: str | None,
    folder: Path,
    variants: Mapping[str, dict[str, Any]],
    common: dict[str, Any],
    steps: int,
    run: Callable[[dict[str, Any], int], dict[str, Any]],
    report: Callable[[], None],
) -> None:
    """``run [--seeds N]`` what is not there yet, or ``report``.

    :param doc: help text
    :param folder: of the files
    :param variants: name -> settings that differ from ``common``
    :param common: settings of all
    :param steps: env steps of a run
    :param run: from a variant's settings and a seed to what is kept of the run
    :param report: prints the table and draws the picture
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    th.set_num_threads(1)
    if args.what == "report":
        report()
        return
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in variants if not path(folder, name).exists()]
    print(f"{folder}: {len(missing)} of {len(variants)} files to make; what is there is left as it is", flush=True)
    for name in missing:
        file, kwargs = path(folder, name), variants[name]
        runs = [run(kwargs, seed) for seed in range(args.seeds)]
        settings = {**common, **kwargs, "env_steps": steps}
        content = {"runs": runs, "settings": settings, "versions": versions(), "commit": commit()}
        file.write_text(json.dumps(content) + "\n")
        print(file, flush=True)
