"""Make a page about a run, or about all runs in a folder: curves, groups, advantages, weights, health, speed, settings, files.

``python -m zoo.dashboard logs/grpo/CartPole-v1_1`` writes one self-contained HTML file; with ``--serve`` the page is served on
this machine and follows a running training.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from .common.command_line import BadInput, Parser, run
from .dashboards.page import title_of, write_page
from .dashboards.runs import PageData, add_place, read_runs
from .dashboards.server import make_server


def main(arguments: Sequence[str]) -> int:
    """Write or serve the page."""
    parser = Parser("zoo.dashboard", __doc__)
    add_place(parser)
    parser.add_argument("--out", type=Path, default=None, help="file to write; dashboard.html in the folder if left out")
    parser.add_argument("--serve", action="store_true", help="serve the page at http://localhost:PORT instead, until Ctrl-C")
    parser.add_argument("--port", type=int, default=8050, help="for --serve; 0: any that is free")
    args = parser.parse_args(arguments)
    if not 0 <= args.port < 65536:
        raise BadInput(f"--port {args.port} must lie in 0 to 65535.")
    if not args.serve:
        return write_page(args.place, args.out or args.place / "dashboard.html", args.tensorboard, not args.untrusted)

    def read() -> PageData:
        return read_runs(args.place, args.tensorboard, trusted=not args.untrusted)

    read()  # faults are reported now, not in the browser
    try:
        server = make_server(read, title_of(args.place), args.port)
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
