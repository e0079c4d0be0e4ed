"""``python -m zoo.showcase PART``: train what is missing under docs/data/PART, print its table, draw its picture."""

from __future__ import annotations

import argparse
import importlib

from zoo.showcase import runs

PARTS = ("exploration", "curriculum", "health")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.showcase", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="default: 0 to 4")
    parser.add_argument("--only", nargs="+", help="labels of the variants to train; default: all")
    parser.add_argument("--again", action="store_true", help="train also what is there")
    parser.add_argument("--report", action="store_true", help="only table and picture")
    args = parser.parse_args()
    part = importlib.import_module(f"zoo.showcase.{args.part}")
    if not args.report:
        chosen = [v for v in part.VARIANTS if args.only is None or v.label in args.only]
        runs.run(args.part, chosen, args.seeds, args.again)
    print(part.table())
    part.draw()


if __name__ == "__main__":
    main()
