"""Make docs/studies/paired.md, the table of docs/when_groups_win.md, and the pictures of both.

usage: python -m scripts.studies.paired             make page, table and pictures from committed data
       python -m scripts.studies.paired rules       first measure the known rules again
       python -m scripts.studies.paired rollout     first collect one rollout, unpaired and paired
       python -m scripts.studies.paired variance    first train on each task with one seed, and record the removed variance

The runs: python -m zoo.benchmark --variants zoo/variants/paired.yml (the page has the command), then scripts.studies.merge.
"""

from __future__ import annotations

import argparse

from scripts.studies.paired import measure
from scripts.studies.paired.page import IMAGES, PAGE, USERS, USERS_IMAGES, make
from scripts.studies.paired.study import RUNS
from zoo.benchmarking.results import find_results

MEASURE = {"rules": measure.rules, "rollout": measure.rollout, "variance": measure.variance}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measure", nargs="?", choices=list(MEASURE), help="what to measure anew before the page is made")
    name = parser.parse_args().measure
    if name:
        MEASURE[name]()
    make(find_results([RUNS]), PAGE, USERS, IMAGES, USERS_IMAGES)


if __name__ == "__main__":
    main()
