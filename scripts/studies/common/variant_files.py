"""The small studies: a few variants of one setting, all seeds of a variant in one line of the study's file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch as th

from scripts.studies.common import records
from zoo.common.provenance import commit, versions


def runs_of(file: Path, variant: str) -> list[dict[str, Any]]:
    """Results of ``run`` for the seeds of a variant."""
    runs: list[dict[str, Any]] = next(it["runs"] for it in records.read(file) if it["variant"] == variant)
    return runs


def main(
    doc: str | None,
    file: Path,
    variants: Mapping[str, dict[str, Any]],
    common: dict[str, Any],
    steps: int,
    run: Callable[[dict[str, Any], int], dict[str, Any]],
    report: Callable[[], None],
) -> None:
    """Execute ``run [--seeds N]`` for missing runs, or ``report``.

    :param doc: help text
    :param file: of JSON lines
    :param variants: name -> settings that differ from ``common``
    :param common: settings of all
    :param steps: env steps of a run
    :param run: from a variant's settings and a seed to the run's results
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
    done = {it["variant"] for it in records.read(file)}
    missing = [name for name in variants if name not in done]
    print(f"{file}: {len(missing)} of {len(variants)} variants to run; what is there is left as it is", flush=True)
    for name in missing:
        kwargs = variants[name]
        runs = [run(kwargs, seed) for seed in range(args.seeds)]
        settings = {**common, **kwargs, "env_steps": steps}
        content = {"variant": name, "runs": runs, "settings": settings, "versions": versions(), "commit": commit()}
        records.put(file, content, "variant")
        print(name, flush=True)
