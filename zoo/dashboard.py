"""Make a page about a run, or about all runs in a folder: curves, groups, advantages, weights, health, speed, settings, files.

``python -m zoo.dashboard logs/grpo/CartPole-v1_1`` writes one self-contained HTML file; with ``--serve`` the page is served on
this machine and follows a running training.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import plotly

from sb_grpo import files

from .common.command_line import BadInput, Parser, run
from .common.folders import check_place
from .common.plain_files import to_json
from .dashboards.runs import PageData, add_place, read_runs


def make_server(read: Callable[[], PageData], title: str, port: int) -> ThreadingHTTPServer:
    """Make a server that is only reachable from this machine.

    :param read: returns the newest data
    :param title: of the page
    :param port: 0: any free one
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":
                self._answer("text/html; charset=utf-8", page(read(), title, live=True))
            elif self.path == "/data.json":
                self._answer("application/json", as_script(read()))
            elif self.path == "/favicon.ico":
                self._answer("image/x-icon", "")
            else:
                self.send_error(404)

        def _answer(self, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Do not log requests."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


# ---------------------------------------------------------------- command line

ASSETS = Path(__file__).parent / "dashboards" / "assets"
#: Plotly's own build for browsers, from its Python package: pages need no network.
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
#: In the order of their imports.
MODULES = ("dom.js", "charts.js", "dashboard.js")


def write_page(place: Path, out: Path, tensorboard: Path | None, trusted: bool = True) -> int:
    """Write the page of a run or of the runs below a folder, and print its path.

    :param place: folder
    :param out: the file
    :param tensorboard: folder of TensorBoard's files; None: from the run's command line
    :param trusted: see :func:`~zoo.dashboards.runs.read_runs`
    :return: exit code
    """
    check_place("--out", out)
    data = read_runs(place, tensorboard, out.parent, trusted)
    files.write(out, page(data, title_of(place)))
    print(f"{out}: {len(data['runs'])} run{'s' * (len(data['runs']) > 1)}; open it in a browser")
    return 0


def title_of(place: Path) -> str:
    """Title of the page."""
    return f"{place.resolve().name} - sb_grpo"


def page(data: PageData, title: str, live: bool = False) -> str:
    """Make the page of some runs.

    :param data: of :func:`~zoo.dashboards.runs.read_runs`
    :param title: of the page
    :param live: the page polls its server for newer data every few seconds
    """
    text = (ASSETS / "dashboard.html").read_text()
    parts = {
        "TITLE": html.escape(title),
        "STYLE": (ASSETS / "page.css").read_text(),
        "PLOTLY": PLOTLY.read_text(),
        "DATA": as_script(data),
        "LIVE": json.dumps(live),
        "SCRIPT": one_script(),
    }
    return re.sub(r"@@([A-Z]+)@@", lambda match: parts[match[1]], text)


def as_script(data: PageData) -> str:
    """Write JSON that is safe within a script: it contains no tag or comment of HTML."""
    return to_json(data, separators=(",", ":")).replace("<", "\\u003c")


def one_script() -> str:
    """Join the modules to one script without their imports, for a self-contained page."""
    text = "\n".join((ASSETS / name).read_text() for name in MODULES)
    return re.sub(r"^export ", "", re.sub(r"^import .*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)


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
