"""Read and write files of a run as plain values. Every command reads them by :func:`read_run_files`.

Reading runs no code. A run that is not trusted is checked completely before any of its names is looked up: names must be
registered or imported already, and no link or path may leave its folder.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import yaml
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy

from sb_grpo import GRPO, files

from ..common.command_line import BadInput
from ..common.literals import TEXTS, named_classes, read_text
from ..common.plain_files import Hyperparams, Loader, read_mapping

#: Wrappers of Gymnasium that an untrusted file may name; others write files, open windows or import modules.
OF_GYMNASIUM = frozenset(
    "AddRenderObservation AddWhiteNoise AtariPreprocessing Autoreset ClipAction ClipReward DelayObservation "
    "DiscretizeAction DiscretizeObservation DtypeObservation FilterObservation FlattenObservation FrameStackObservation "
    "GrayscaleObservation MaxAndSkipObservation NormalizeObservation NormalizeReward ObstructView OrderEnforcing "
    "PassiveEnvChecker RecordEpisodeStatistics RepeatAction RescaleAction RescaleObservation ReshapeObservation "
    "ResizeObservation StickyAction TimeAwareObservation TimeLimit".split()
)
#: Settings that name classes -> base of the classes, and allowed modules with their names; None: all names of a module.
NAMED: dict[str, tuple[type, dict[str, frozenset[str] | None]]] = {
    "env_wrapper": (
        gym.Wrapper,
        {
            "gymnasium.wrappers": OF_GYMNASIUM,
            "stable_baselines3.common.atari_wrappers": None,
            "rl_zoo3.wrappers": None,
            "minigrid.wrappers": None,
        },
    ),
    "callback": (BaseCallback, {"sb_grpo.callbacks": frozenset(["GammaCallback", "HealthCallback", "RecoveryCallback"])}),
    "policy": (BasePolicy, {"sb_grpo.envs.causal.policy": frozenset(["InterventionPolicy"])}),
}
#: Settings that name code of the file's choice.
NEVER = ("vec_env_wrapper", "replay_buffer_class", "rollout_buffer_class")
#: Text among arguments of an env or a wrapper: a word, and neither a path nor a name to import.
WORD = re.compile(r"[\w -]{0,64}")
#: Id of an env without a module to import in front of it.
ENV_ID = re.compile(r"[\w./-]+")


class Unreadable(NamedTuple):
    """Stands where the file has a Python object."""

    text: str

    def __str__(self) -> str:
        return self.text


class RunFiles(NamedTuple):
    """Plain values of a run, with :class:`Unreadable` in the place of Python objects."""

    settings: Hyperparams  #: ``config.yml``; empty where there is none
    options: dict[str, object]  #: ``args.yml``; empty where there is none


class _Dumper(yaml.SafeDumper):
    """Plain values; a Python object becomes text with the tag ``!object``."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_multi_representer(dict, lambda dumper, value: dumper.represent_dict(value.items()))
_Dumper.add_representer(tuple, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:python/tuple", value))
_Dumper.add_multi_representer(np.generic, lambda dumper, value: dumper.represent_data(value.item()))  # type: ignore[type-abstract]
_Dumper.add_multi_representer(object, lambda dumper, value: dumper.represent_scalar("!object", repr(value)))


class _Loader(Loader):
    """Plain values, tuples and the ordered mappings that rl_zoo3 writes."""


def _tuple(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> tuple[object, ...]:
    return tuple(loader.construct_sequence(node, deep=True))


def _pairs(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> dict[str, object]:
    (pairs,) = loader.construct_sequence(node, deep=True)
    return dict(pairs)


_Loader.add_constructor("tag:yaml.org,2002:python/object/apply:collections.OrderedDict", _pairs)
_Loader.add_constructor("tag:yaml.org,2002:python/tuple", _tuple)
_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: Unreadable(suffix))
_Loader.add_constructor("!object", lambda loader, node: Unreadable(str(node.value)))


def is_run_folder(path: Path) -> bool:
    """Whether a folder is a run folder."""
    return path.is_dir() and len(list(path.glob("*/config.yml"))) == 1


def settings_folder_of(folder: Path) -> Path:
    """Folder with ``config.yml`` in a run's folder; one that is not there where the run has none."""
    found = sorted(file.parent for name in ("config.yml", "args.yml") for file in folder.glob(f"*/{name}"))
    return found[0] if found else folder / "none"


def write_values(path: Path, values: Mapping[str, object]) -> None:
    """Write a mapping; values that are not plain are written as their repr."""
    files.write(path, yaml.dump(values, Dumper=_Dumper, sort_keys=False))


def read_values(path: Path) -> dict[str, object]:
    """The mapping in a file; empty where there is no file.

    :return: with :class:`Unreadable` in the place of Python objects
    :raises BadInput: if it is none
    """
    return read_mapping(path, "n_envs: 8", _Loader) if path.exists() else {}


def read_run_files(settings_folder: Path, trusted: bool = True) -> RunFiles:
    """Read settings and options of a run.

    :param settings_folder: in the run's folder, with ``config.yml`` and ``args.yml``
    :param trusted: False: the run is refused if it names code or leaves its folder
    :raises BadInput: naming the file that cannot be read, or the refused value
    """
    if not trusted:
        check_links(settings_folder.parent)
    run = RunFiles(*(read_values(settings_folder / name) for name in ("config.yml", "args.yml")))
    if not trusted:
        check_settings(run.settings)
        check_options(run.options)
    return run


def check_links(folder: Path, itself: bool = False) -> None:
    """See that a folder holds files and folders of its own alone: writing to a link would change a file elsewhere.

    :param folder: of a run; it may be reached by a link itself
    :param itself: the folder may be none either
    :raises BadInput: naming the first entry that is a link, a pipe or a device, or a file with a name elsewhere
    """
    for path in [*([folder] if itself and folder.is_symlink() else []), *sorted(folder.rglob("*"))]:
        of_its_own = path.is_dir() or (path.is_file() and path.stat().st_nlink == 1)
        if path.is_symlink() or not of_its_own:
            raise BadInput(
                f"{path} is a link, or no file: a run has files in its own folder alone. If you know where it leads, "
                "put a copy in its place (cp -rL RUN COPY)."
            )


def check_settings(settings: Hyperparams) -> None:
    """Check that settings only name objects that are imported already.

    :param settings: of a run or a file that is not trusted
    :raises BadInput: naming the first value that does
    """
    for name in NEVER:
        if settings.get(name):
            raise _refused(name, settings[name], "names code")
    for name in TEXTS:
        if isinstance(text := settings.get(name), str):
            read_text(name, text, "--untrusted")
    for name, (base, modules) in NAMED.items():
        for path, arguments in named_classes(settings.get(name)):
            if not _is_known(path, base, modules) and not (name == "policy" and path in GRPO.policy_aliases):
                raise _refused(name, path, f"is none of the known ones of {', '.join(modules)}")
            _check_words(f"{name}: {path}", arguments)
    for name in ("env_kwargs", "monitor_kwargs"):
        _check_words(name, settings.get(name))


def _is_known(path: object, base: type, modules: dict[str, frozenset[str] | None]) -> bool:
    """Whether a dotted name is that of a class which a file may name."""
    module, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    if module not in modules:
        return False
    if module.startswith("sb_grpo."):
        importlib.import_module(module)  # our own
    allowed = modules[module]
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return isinstance(found, type) and issubclass(found, base) and (allowed is None or name in allowed)


def check_options(options: Mapping[str, object]) -> None:
    """See that options name no code, and nothing outside of the run's folder.

    :param options: of a run that is not trusted
    :raises BadInput: naming the first that does
    """
    env = options.get("env")
    if env is not None and not (isinstance(env, str) and ENV_ID.fullmatch(env)):
        raise _refused("env", env, "is no id of a registered env")
    for name in ("env_kwargs", "eval_env_kwargs"):
        _check_words(name, options.get(name))


def _check_words(where: str, value: object) -> None:
    """See that arguments are numbers and words, however deep."""
    for part in _parts(value):
        if isinstance(part, str) and not WORD.fullmatch(part):
            raise _refused(where, part, "may be a path, or a name to import")


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _parts(key)
            yield from _parts(part)
    elif isinstance(value, list | tuple) and not isinstance(value, Unreadable):
        for part in value:
            yield from _parts(part)
    else:
        yield value


def _refused(name: str, value: object, why: str) -> BadInput:
    return BadInput(f"--untrusted: the run's files have {name}={value!s:.80}, which {why}. Without --untrusted it is used.")


def env_kwargs(run: RunFiles, settings_folder: Path, given: Mapping[str, object]) -> dict[str, object]:
    """Arguments of a run's env: from its settings, its command line, and ``given``.

    :param run: of :func:`read_run_files`
    :param settings_folder: of the run, for the message
    :param given: take precedence
    :raises BadInput: naming the values missing in the files
    """
    found: dict[str, object] = {}
    for source, arguments in (("config.yml", run.settings.get("env_kwargs")), ("args.yml", run.options.get("env_kwargs"))):
        if arguments is not None and not isinstance(arguments, dict):
            raise BadInput(f"{settings_folder / source}: env_kwargs must be a mapping, but is {arguments!s:.80}.")
        found |= arguments or {}
    found |= given
    for name, value in found.items():
        if isinstance(value, Unreadable):
            raise BadInput(
                f"{settings_folder}: the run's env_kwargs have a Python object as {name}, {value.text}, which is not made "
                f"from a file: pass --env-kwargs {name}:VALUE."
            )
    return found
