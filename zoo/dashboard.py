"""A page about a run, or about all runs in a folder: curves, groups, advantages, weights, health, speed, settings, files.

``python -m zoo.dashboard logs/grpo/CartPole-v1_1`` writes one HTML file that needs nothing else; with ``--serve`` the page is
served on this machine and follows a training that goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sb_grpo import files

from .common.command_line import BadInput, Parser, run
from .dashboards.page import page
from .dashboards.runs import read_runs
from .dashboards.server import make_server


def main(arguments: Sequence[str]) -> int:
    """Write or serve the page."""
    parser = Parser("zoo.dashboard", __doc__)
    parser.add_argument("place", type=Path, metavar="RUN_OR_FOLDER", help="folder of a run, or one above several")
    parser.add_argument("--out", type=Path, default=None, help="file to write; dashboard.html in the folder if left out")
    parser.add_argument(
        "--tensorboard", type=Path, default=None, help="where TensorBoard's files are; the run's own if left out"
    )
    parser.add_argument("--serve", action="store_true", help="serve the page at http://localhost:PORT instead, until Ctrl-C")
    parser.add_argument("--port", type=int, default=8050)
    args = parser.parse_args(arguments)
    if args.tensorboard is not None and not args.tensorboard.is_dir():
        raise BadInput(f"--tensorboard {args.tensorboard} is no folder.")
    if not 0 <= args.port < 65536:
        raise BadInput(f"--port {args.port} must lie in 0 to 65535.")
    title = f"{args.place.resolve().name} - sb_grpo"
    out: Path = args.out or args.place / "dashboard.html"
    data = read_runs(args.place, args.tensorboard, out.parent)
    if not args.serve:
        files.write(out, page(data, title))
        print(f"{out}: {len(data['runs'])} run{'s' * (len(data['runs']) > 1)}; open it in a browser")
        return 0
    try:
        server = make_server(lambda: read_runs(args.place, args.tensorboard), title, args.port)
    except OSError as error:
        raise BadInput(f"--port {args.port}: {error.strerror}. Choose another one; 0 takes any that is free.") from error
    print(f"http://localhost:{server.server_port} (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    return 0


if __name__ == "__main__":
    sys.exit(run("zoo.dashboard", main, sys.argv[1:]))
