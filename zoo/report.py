"""Report on a run: steps, returns, speed and health messages in a few lines, or with ``--html`` as one page.

``python -m zoo.report logs/grpo/CartPole-v1_1 --html`` writes ``report.html`` in the run's folder: the page of
``zoo.dashboard``, one file that needs no server and no network.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from .common.command_line import BadInput, Parser, run
from .dashboard import write_page
from .dashboards.runs import add_place, read_runs, summary


def main(arguments: Sequence[str]) -> int:
    """Print the lines, or write the page."""
    parser = Parser("zoo.report", __doc__)
    add_place(parser)
    parser.add_argument("--html", action="store_true", help="write a page in place of the lines")
    parser.add_argument("--out", type=Path, default=None, help="its file; report.html in the folder if left out")
    args = parser.parse_args(arguments)
    if args.out is not None and not args.html:
        raise BadInput(f"--out {args.out} is for a page: add --html.")
    if args.html:
        return write_page(args.place, args.out or args.place / "report.html", args.tensorboard, not args.untrusted)
    print("\n\n".join(summary(one) for one in read_runs(args.place, args.tensorboard, trusted=not args.untrusted)["runs"]))
    return 0


if __name__ == "__main__":
    sys.exit(run("zoo.report", main, sys.argv[1:]))
