"""Command-line parsing: errors of one line with exit code 2, settings as ``name:value``, suggestions for misspelt names."""

from __future__ import annotations

import argparse
import ast
import difflib
import errno
import importlib
import os
import re
import select
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import gymnasium as gym
from rl_zoo3.utils import StoreDict

#: ``zoo`` in a checkout, ``sb_grpo_zoo`` where the wheel is installed.
PACKAGE = __name__.split(".")[0]

T = TypeVar("T")
#: Exit code of a command that the user has interrupted.
INTERRUPTED = 130
#: Exit code after a full disk.
NO_ROOM = 1


def program(name: str = "") -> str:
    """Name of a command in its messages.

    :param name: such as ``zoo.train`` or ``train``; empty: all of them
    """
    name = name.removeprefix("zoo.")
    return f"sb-grpo {name}".strip() if PACKAGE != "zoo" else f"zoo.{name}" if name else "python -m zoo"


def call(name: str) -> str:
    """Command line that runs a command.

    :param name: such as ``train``
    """
    return program(name) if PACKAGE != "zoo" else f"python -m zoo.{name}"


def default_threads() -> int:
    """Default number of torch's threads: 1, as small networks are much slower with more; -1 (unchanged) with
    OMP_NUM_THREADS."""
    return -1 if os.environ.get("OMP_NUM_THREADS") else 1


class BadInput(ValueError):
    """Error of the user's input; the message gives reason and remedy."""


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help with defaults, and with an unwrapped description."""


class Parser(argparse.ArgumentParser):
    """Argument parser with errors of one line, without the list of all options."""

    def __init__(self, name: str, description: str | None) -> None:
        super().__init__(prog=program(name), description=description, formatter_class=Help)

    def error(self, message: str) -> NoReturn:
        found = re.search(r"unrecognized arguments: --([a-zA-Z][\w-]*)(?:[= ](\S+))?", message)
        if found is not None and "--hyperparams" in self._option_string_actions:
            name = found[1].replace("-", "_")
            value = found[2] or "VALUE"
            message += f" (a setting of the algorithm is given as -params {name}:{value})"
        self.exit(2, f"{self.prog}: {one_line(message)}\n")


def add_untrusted(parser: argparse.ArgumentParser) -> None:
    """Add ``--untrusted``, an option of every command that reads a run or a model; see docs/security.md.

    :param parser: of the command
    """
    parser.add_argument(
        "--untrusted",
        action="store_true",
        help="files of strangers: nothing in them runs, and nothing outside of their folder is read or written "
        "(docs/security.md); models: of grpo only",
    )


class Settings(StoreDict):
    """Action for ``name:value`` pairs. Values are Python, as in rl_zoo3; other plain words are text."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        settings: dict[str, object] = dict(getattr(namespace, self.dest, None) or {})  # of the same option before
        example = "render_mode:rgb_array" if self.dest.endswith("env_kwargs") else "learning_rate:3e-4"
        for pair in map(str, values or ()):
            name, colon, value = pair.partition(":")
            if not colon or not name:
                raise argparse.ArgumentError(self, f"{pair!r} must be name:value, for example {example}")
            if name in settings:
                raise argparse.ArgumentError(
                    self, f"{pair!r}: {name} is given twice, {settings[name]!r} before; leave one out"
                )
            try:
                super().__call__(parser, namespace, [pair], option_string)  # type: ignore[no-untyped-call]
                settings[name] = getattr(namespace, self.dest)[name]
            except (NameError, SyntaxError) as error:
                if not value.replace("_", "").replace(".", "").replace("-", "").isalnum():
                    raise argparse.ArgumentError(self, f"{pair!r}: the value is not valid Python ({error})") from error
                settings[name] = value
            except Exception as error:  # the value is the user's own code
                raise argparse.ArgumentError(self, f"{pair!r}: {type(error).__name__}: {error}") from error
        setattr(namespace, self.dest, settings)


def one_line(text: object) -> str:
    return " ".join(str(text).split())


def read_or_note(path: Path, read: Callable[[Path], T], broken: list[str]) -> T | None:
    """Content of a file; None where there is none, and where it is damaged.

    :param read: reads it, and raises anything
    :param broken: takes a line on a damaged file, which stderr gets once
    """
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except Exception as error:  # of JSON, CSV, NumPy, zipfile, zlib
        line = f"{path.name} is left out: it cannot be read ({type(error).__name__}: {one_line(error)})"
        broken.append(line)
        say_once(f"{path.parent}/{line}")
        return None


@cache
def say_once(line: str) -> None:
    """A line on stderr; a page that is served reads the same files again and again."""
    print(line, file=sys.stderr)


def how_many(n: int, noun: str) -> str:
    """Format a count: ``1 episode``, ``1,000 episodes``."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Question that suggests known names spelt like ``name``, ignoring case; empty if there are none."""
    by_lower = {k.lower(): k for k in sorted(known)}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(by_lower[n] for n in nearest)}?" if nearest else ""


def check_at_least(given: argparse.Namespace, **least: int) -> None:
    """Check that options are numbers from a least one on, or None if not given.

    :param given: options
    :param least: by name of the option
    :raises BadInput: naming the first that is less
    """
    for name, lowest in least.items():
        value = getattr(given, name)
        if value is not None and value < lowest:
            raise BadInput(f"--{name.replace('_', '-')} {value} must be at least {lowest}.")


def add_torch(parser: argparse.ArgumentParser, with_device: bool = True) -> None:
    """Add the options of torch; see :func:`use_threads`."""
    if with_device:
        parser.add_argument("--device", default="auto", help="of torch")
    parser.add_argument("--num-threads", type=int, default=default_threads(), help="threads of torch; -1: its own choice")


def use_threads(args: argparse.Namespace) -> None:
    """Set the number of torch's threads, unless torch shall choose it."""
    if args.num_threads > 0:
        import torch

        torch.set_num_threads(args.num_threads)


def add_gym_packages(parser: argparse.ArgumentParser) -> None:
    """Add ``--gym-packages``; see :func:`known_env`."""
    parser.add_argument("--gym-packages", nargs="+", default=[], help="packages to import that register envs")


#: Largest seed of NumPy's generators.
LARGEST_SEED = 2**32 - 1


def check_seed(seed: int, least: float = 0) -> None:
    """Check that all generators accept a seed.

    :param seed: of the option
    :param least: -inf if negative seeds mean a random one
    :raises BadInput: for an invalid seed
    """
    if not least <= seed <= LARGEST_SEED:
        below = "; below 0: a random one" if least < 0 else ""
        raise BadInput(f"--seed {seed} must be a whole number from 0 to {LARGEST_SEED}{below}.")


def check_has_runs(option: str, names: Iterable[str], known: Collection[str]) -> None:
    """Check that runs exist for the names of an option.

    :param option: such as ``--envs``
    :param names: of the option
    :param known: names that have runs
    :raises BadInput: naming the nearest ones
    """
    for name in names:
        if name not in known:
            raise BadInput(f"{option} names {name!r}, which has no runs.{did_you_mean(name, known)}")


#: Prefixes of ids that an extra registers.
EXTRAS = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "ALE/": "atari", "Or": "input_driven", "Motor": "input_driven"}


def known_env(env_id: str, packages: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Import the packages that register envs, and check that the env exists.

    :param env_id: as Gymnasium takes it: ``package:Id`` imports a package first
    :param packages: to import
    :return: the id without its package, and all packages
    :raises BadInput: naming the nearest ids, or the extra with the env
    """
    *before, plain = env_id.split(":")
    for package, option in (*((name, "--gym-packages ") for name in packages), *((name, "--env ") for name in before)):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise BadInput(f"{option}{package}: {error}") from error
    if plain not in gym.registry:
        extra = next((extra for start, extra in EXTRAS.items() if plain.startswith(start)), None)
        hint = f" Such envs come with an extra: pip install 'sb_grpo[{extra}]'." if extra else ""
        raise BadInput(
            f"env {plain!r} not found.{did_you_mean(plain, gym.registry)}{hint} "
            "(An env of a package of yours is found with --gym-packages PACKAGE, or as PACKAGE:ID.)"
        )
    return plain, list(dict.fromkeys([*packages, *before]))


def run(name: str, main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Call a command's ``main``; bad input becomes one line on stderr and exit code 2, a full disk one line and 1.

    :param name: of the command, in front of the message
    :param main: takes the arguments, returns the exit code
    :param arguments: command line without the program's name
    """
    try:
        return main(arguments)
    except BadInput as error:
        print(f"{program(name)}: {one_line(error)}", file=sys.stderr)
        return 2
    except Exception as error:
        full = full_disk(error)
        if full is None:
            raise
        place = f"{full.filename}: " if full.filename else ""
        message = f"{place}{full.strerror}. Files that were saved before are whole; make room, and run the command again."
        print(f"{program(name)}: {message}", file=sys.stderr)
        return NO_ROOM


def full_disk(error: BaseException | None) -> OSError | None:
    """Find the error of a full disk among an error's causes, or None."""
    while error is not None and not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)):
        error = error.__cause__ or error.__context__
    return error


def drop_dead_outputs() -> None:
    """Drop a closed terminal or pipe, because an error of ``print`` would prevent saving."""
    for descriptor in (1, 2):
        poll = select.poll()
        poll.register(descriptor, 0)  # reports only errors
        if poll.poll(0):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, descriptor)
            os.close(nothing)


def drawn(what: str, draw: Callable[[], Path]) -> Path | None:
    """Draw a picture; a failure must not lose the results.

    :param what: name of the picture, for the message
    :param draw: draws it and returns its path
    :return: the path; None after a failure, which stderr reports
    """
    try:
        return draw()
    except Exception as error:  # fonts, backends, full disks and others
        print(f"The {what} could not be drawn: {type(error).__name__}: {one_line(error)}", file=sys.stderr)
        return None


#: Values of settings by name.
Grid = dict[str, list[Any]]


def parse_grid(option: str, texts: Sequence[str]) -> Grid:
    """Parse values by name. They are literals, or plain words: ``net_arch=[64],[64,64]``, ``advantage=state,step``.

    :param option: such as ``--grid``, for messages
    :param texts: of the command line
    :raises BadInput: for text that is not ``name=value,value``, and for a repeated name or value
    """
    grid: Grid = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.isidentifier() or not values.strip(", "):
            raise BadInput(f"{option} {text!r} must be name=value,value,..., for example learning_rate=3e-4,1e-3")
        if name in grid:
            raise BadInput(f"{option} names {name} twice")
        try:
            grid[name] = list(ast.literal_eval(f"[{values}]"))
        except (ValueError, SyntaxError):
            grid[name] = [_word(word.strip()) for word in values.split(",")]
        if len({repr(value) for value in grid[name]}) < len(grid[name]):
            raise BadInput(f"{option} {text!r} has a value twice")
    return grid


def _word(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
