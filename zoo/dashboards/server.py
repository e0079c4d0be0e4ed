"""Server of a run's page during training: every request makes the page from the folder again."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..dashboards.page import as_script, page
from ..dashboards.runs import PageData


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
