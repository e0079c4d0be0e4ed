"""``config.yml`` and ``args.yml`` of a run: written and read as plain values. Reading them runs nothing."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import yaml

from sb_grpo import files

from ..common.command_line import BadInput, one_line

#: Modules whose wrappers a file that is not trusted may name.
WRAPPERS = ("gymnasium.wrappers", "stable_baselines3.common.atari_wrappers", "rl_zoo3.wrappers", "minigrid.wrappers")


class Unreadable(NamedTuple):
    """Stands where the file has a Python object."""

    text: str


class _Dumper(yaml.SafeDumper):
    """Plain values; a Python object becomes text with the tag ``!object``."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_multi_representer(dict, lambda dumper, value: dumper.represent_dict(value.items()))
_Dumper.add_representer(tuple, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:python/tuple", value))
_Dumper.add_multi_representer(np.generic, lambda dumper, value: dumper.represent_data(value.item()))  # type: ignore[type-abstract]
_Dumper.add_multi_representer(object, lambda dumper, value: dumper.represent_scalar("!object", repr(value)))


class _Loader(yaml.SafeLoader):
    """Plain values, tuples and the ordered mappings that rl_zoo3 writes."""


def _tuple(loader: yaml.SafeLoader, node: Any) -> tuple[Any, ...]:
    return tuple(loader.construct_sequence(node, deep=True))


def _pairs(loader: yaml.SafeLoader, node: Any) -> dict[str, Any]:
    (pairs,) = loader.construct_sequence(node, deep=True)
    return dict(pairs)


_Loader.add_constructor("tag:yaml.org,2002:python/object/apply:collections.OrderedDict", _pairs)
_Loader.add_constructor("tag:yaml.org,2002:python/tuple", _tuple)
_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: Unreadable(suffix))
_Loader.add_constructor("!object", lambda loader, node: Unreadable(str(node.value)))


def is_run_folder(path: Path) -> bool:
    """Whether a folder is what one training has left."""
    return path.is_dir() and len(list(path.glob("*/config.yml"))) == 1


def write_values(path: Path, values: dict[str, Any]) -> None:
    """Write a mapping; what is no plain value is kept as the text that Python shows of it."""
    files.write(path, yaml.dump(values, Dumper=_Dumper, sort_keys=False))


def read_values(path: Path) -> dict[str, Any]:
    """The mapping in a file; empty where there is no file.

    :return: with :class:`Unreadable` in the place of Python objects
    :raises BadInput: if it is none
    """
    if not path.exists():
        return {}
    try:
        values = yaml.load(path.read_text(), Loader=_Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BadInput(f"cannot read {path}: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise BadInput(f"{path} must be a mapping, but is {type(values).__name__}.")
    return values


def env_kwargs(settings_folder: Path, hyperparams: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a run's env: of its settings, its command line, and those given now.

    :param settings_folder: of the run
    :param hyperparams: of the run
    :param given: go over the run's own
    :raises BadInput: naming what the files do not say
    """
    trained = read_values(settings_folder / "args.yml").get("env_kwargs") or {}
    found = {**(hyperparams.get("env_kwargs") or {}), **trained, **given}
    for name, value in found.items():
        if isinstance(value, Unreadable):
            raise BadInput(
                f"{settings_folder}: the run's env_kwargs have a Python object as {name}, {value.text}, which is not made "
                f"from a file: pass --env-kwargs {name}:VALUE."
            )
    return found


def check_wrappers(hyperparams: dict[str, Any]) -> None:
    """See that the wrappers which a file names are known ones; others are code that the file chooses.

    :param hyperparams: of a run that is not trusted
    :raises BadInput: naming the first that is not
    """
    if hyperparams.get("vec_env_wrapper"):
        raise BadInput(f"--untrusted: the run's settings name a vec_env_wrapper, {hyperparams['vec_env_wrapper']}.")
    wrappers = hyperparams.get("env_wrapper") or []
    for wrapper in wrappers if isinstance(wrappers, list) else [wrappers]:
        name = next(iter(wrapper)) if isinstance(wrapper, dict) and len(wrapper) == 1 else wrapper
        module, _, last = str(name).rpartition(".")
        found = getattr(importlib.import_module(module), last, None) if module in WRAPPERS else None
        if not (isinstance(found, type) and issubclass(found, gym.Wrapper)):
            raise BadInput(
                f"--untrusted: the run's settings name the wrapper {name}; known ones are of {', '.join(WRAPPERS)}."
            )
