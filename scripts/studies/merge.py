"""Merge the results of zoo.benchmark into files of JSON lines: ``ENV/LABEL/seed_*.json`` becomes ``LABEL.jsonl``.

usage: python -m scripts.studies.merge results/study docs/studies/data/study [...]      each with all folders below

A run keeps all its fields. Runs are added to the file of their label; the original files are removed after the merged file
reads back equal. zoo.benchmark, zoo.compare and zoo.plot read both forms.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.studies.common import records
from zoo.benchmarking.results import LINES, BrokenResult, read_content, read_run, seed_file


def merge(out: Path, label: str) -> int:
    """Merge the files of one label.

    :param out: output folder of zoo.benchmark
    :param label: of the runs
    :return: number of files merged
    :raises BrokenResult: if one cannot be used, or is there already and says something else; then nothing is changed
    """
    files = sorted(out.glob(f"*/{label}/{seed_file('*')}"))
    target = out / f"{label}{LINES}"
    found = {_key(record): record for record in records.read(target)}
    for file in files:
        read_run(file)  # or it is named as broken
        content = dict(read_content(file))
        if found.setdefault(_key(content), content) != content:
            raise BrokenResult(f"{file}: {target} holds another run with this seed; remove one of them")
    merged = [found[key] for key in sorted(found)]
    records.write(target, merged)
    if records.read(target) != merged:
        raise BrokenResult(f"{target}: does not read back as what was written; the files are left as they are")
    for file in files:
        file.unlink()
    for folder in [*{file.parent for file in files}, *{file.parents[1] for file in files}]:
        if not any(folder.iterdir()):
            folder.rmdir()
    return len(files)


def _key(content: dict[str, Any]) -> tuple[str, int]:
    return content["spec"]["env"], content["spec"]["seed"]


def main(arguments: Sequence[str]) -> int:
    """``python -m scripts.studies.merge``.

    :param arguments: command line
    :return: 0; 2 if something cannot be merged
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="output of zoo.benchmark, or a part of it")
    files = [file for top in parser.parse_args(arguments).folders for file in top.rglob(seed_file("*"))]
    try:
        merged = [merge(out, label) for out, label in sorted({(file.parents[2], file.parent.name) for file in files})]
    except BrokenResult as error:
        print(f"scripts.studies.merge: {error}", file=sys.stderr)
        return 2
    print(f"{sum(merged)} files merged into {len(merged)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
