"""Upload a run folder with its model card to the Hugging Face Hub.

``python -m zoo.push logs/grpo/CartPole-v1_1 --repo-id me/grpo-cartpole`` after ``hf auth login``. A missing repository is
created. ``--dry-run`` uploads nothing, and shows files that may contain names of your machine.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

from .common.command_line import BadInput, Parser, add_untrusted, one_line, run
from .training.card import write_card
from .training.run_files import check_links, is_run_folder, read_run_files, settings_folder_of

#: Files to upload by default; monitor files, checkpoints and replay buffers are not.
FILES = ("README.md", "metrics.json", "evaluations.npz", "learning_curve.png", "*.zip", "*/config.yml", "*/vecnormalize.pkl")
CHECKPOINTS = "rl_model_*"
#: Files with the run's provenance, which contain paths and names of the machine.
PRIVATE = ("*/args.yml", "*/command.txt")


class Client(Protocol):
    """Interface: the methods used of :class:`huggingface_hub.HfApi`."""

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> object: ...

    def upload_folder(
        self, *, repo_id: str, folder_path: str, commit_message: str, allow_patterns: list[str], ignore_patterns: list[str]
    ) -> object: ...


def make_parser() -> Parser:
    parser = Parser("zoo.push", __doc__)
    add = parser.add_argument
    add("folder", type=Path, help="run folder")
    add("--repo-id", required=True, metavar="USER/NAME", help="of the repository")
    add("--private", action="store_true", help="a new repository is not public")
    add("--checkpoints", action="store_true", help="checkpoints too")
    add("--with-command", action="store_true", help="args.yml and command.txt too, which hold paths of this machine")
    add_untrusted(parser)
    add("--message", default="A run of sb_grpo's zoo", help="of the commit")
    add("--dry-run", action="store_true", help="say what would be uploaded, and upload nothing")
    return parser


def patterns(checkpoints: bool, with_command: bool) -> tuple[list[str], list[str]]:
    """Patterns of allowed and ignored files, in the form of ``upload_folder``."""
    return [*FILES, *(PRIVATE if with_command else ())], [] if checkpoints else [CHECKPOINTS]


def files_of(folder: Path, allowed: Sequence[str], ignored: Sequence[str]) -> list[Path]:
    """List the files that the patterns select.

    :param folder: of the run
    """
    found = [file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file()]
    return [
        file
        for file in found
        if any(fnmatch(str(file), p) for p in allowed) and not any(fnmatch(str(file), p) for p in ignored)
    ]


def push(folder: Path, client: Client, args: Namespace) -> list[Path]:
    """Upload a run folder.

    :param folder: of a finished run
    :param client: uploads it
    :param args: of the command line
    :return: files, relative to the folder
    :raises BadInput: for a folder without a finished run, and for refusals of the Hub
    """
    if not (folder / "metrics.json").exists() or not is_run_folder(folder):
        raise BadInput(f"{folder} is no folder of a finished run: it lacks metrics.json, or a folder with config.yml.")
    check_links(folder)  # the target of a link would be uploaded
    if args.untrusted:
        read_run_files(settings_folder_of(folder), trusted=False)
    if not (folder / "README.md").exists():  # the run's own card contains the command
        try:
            write_card(folder)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"{folder / 'metrics.json'} is not as zoo.train writes it: {one_line(repr(error))}") from error
    allowed, ignored = patterns(args.checkpoints, args.with_command)
    chosen = files_of(folder, allowed, ignored)
    if not any(file.suffix == ".zip" for file in chosen):
        raise BadInput(f"{folder} holds no model.")
    if args.dry_run:
        return chosen
    from huggingface_hub.errors import HfHubHTTPError  # comes with rl_zoo3

    try:
        client.create_repo(args.repo_id, private=args.private, exist_ok=True)
        client.upload_folder(
            repo_id=args.repo_id, folder_path=str(folder), commit_message=args.message, allow_patterns=allowed,
            ignore_patterns=ignored,
        )  # fmt: skip
    except (OSError, ValueError) as error:  # of the network, the Hub, a missing token, a bad name
        raise BadInput(
            f"the Hub refused {args.repo_id}: {one_line(error)} (hf auth login, a token that may write?)"
        ) from error
    except HfHubHTTPError.__bases__ as error:  # type: ignore[misc]  # of its HTTP library, which changes with its version
        raise BadInput(
            f"the Hub cannot be reached for {args.repo_id}: {one_line(error)} (a network, HTTPS_PROXY, HF_ENDPOINT?)"
        ) from error
    return chosen


def main(arguments: Sequence[str], client: Client | None = None) -> int:
    """Execute the command.

    :param arguments: command line
    :param client: does the upload; None: huggingface_hub's
    :return: 0
    """
    args = make_parser().parse_args(arguments)
    if args.repo_id.count("/") != 1 or args.repo_id.startswith("/") or args.repo_id.endswith("/"):
        raise BadInput(f"--repo-id {args.repo_id} must be USER/NAME.")
    if client is None:
        from huggingface_hub import HfApi  # comes with rl_zoo3

        client = HfApi()  # type: ignore[assignment]
    assert client is not None
    for file in push(args.folder, client, args):
        print(file)
    where = f"https://huggingface.co/{args.repo_id}"
    print(f"{'Would be uploaded to' if args.dry_run else 'Uploaded to'} {where}")
    return 0


if __name__ == "__main__":
    sys.exit(run("zoo.push", main, sys.argv[1:]))
