"""Stand between a database and many searches: they speak gRPC with this process, and it alone with the database.

``python -m zoo.storage_proxy --storage postgresql+psycopg://me@db/studies``, and on every machine ``zoo.tune --storage
grpc://HOST:13000``. Optuna's own proxy: hundreds of searches need no more connections to the database than one.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from .common.command_line import BadInput, Parser, run
from .common.provenance import without_passwords
from .tuning.study import PROXY, open_storage


def make_parser() -> Parser:
    parser = Parser("zoo.storage_proxy", __doc__)
    parser.add_argument("--storage", required=True, metavar="URL", help="of the database, as zoo.tune takes it")
    parser.add_argument("--host", default="127.0.0.1", help="to listen at; 0.0.0.0: for every machine that can reach this one")
    parser.add_argument("--port", type=int, default=13000, help="to listen at")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Serve until stopped.

    :param arguments: command line without the program's name
    :return: exit code
    """
    args = make_parser().parse_args(arguments)
    if args.storage.startswith(PROXY):
        raise BadInput(f"--storage {args.storage} is a proxy itself: give the database.")
    try:
        from optuna.storages import run_grpc_proxy_server
    except ImportError as error:
        raise BadInput(f"{error}: pip install 'sb_grpo[scale]'") from error
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((args.host, args.port))
        except (OSError, OverflowError) as error:
            raise BadInput(f"--host {args.host} --port {args.port}: {error}") from error
    storage = open_storage(args.storage)
    print(f"{without_passwords(args.storage)} behind {PROXY}{args.host}:{args.port}", flush=True)
    try:
        run_grpc_proxy_server(storage, host=args.host, port=args.port)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        print("Stopped.")
    return 0


if __name__ == "__main__":
    sys.exit(run("zoo.storage_proxy", main, sys.argv[1:]))
