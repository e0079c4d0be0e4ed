"""Which entry of a settings file an env gets: its own, or the one that is nearest to it."""

from __future__ import annotations

import difflib
import importlib
import re
import runpy
from collections.abc import Collection
from pathlib import Path

from rl_zoo3.exp_manager import ExperimentManager

from ..common.command_line import BadInput
from ..common.plain_files import Hyperparams, read_sections

MINIGRID = "MiniGrid-"


def entry_name(names: Collection[str], env_id: str, path: str | Path) -> str:
    """The env's own entry, that of another version of it (rl_zoo3 has Hopper-v4, not v5), for MiniGrid the one whose id is
    spelt most alike, "atari", or "default".

    :param names: of the file's entries
    :param env_id: registered id
    :param path: of the file, for the message
    :raises BadInput: if the file has none of them
    """
    base, _, _ = env_id.rpartition("-v")
    versions = [name for name in names if base and re.fullmatch(re.escape(base) + r"-v\d+", name)]
    versions.sort(key=lambda name: int(name.rpartition("-v")[2]), reverse=True)
    relatives: list[str] = []
    if ExperimentManager.is_minigrid(env_id):
        relatives = difflib.get_close_matches(env_id, [name for name in names if name.startswith(MINIGRID)], n=1, cutoff=0.0)
    family = ["atari"] if ExperimentManager.is_atari(env_id) else []
    for name in [env_id, *versions, *relatives, *family, "default"]:
        if name in names:
            return name
    raise BadInput(f"{path} has neither an entry for {env_id} nor a default")


def read_entries(path: str) -> dict[str, Hyperparams]:
    """All entries of a settings file.

    :param path: YAML, a ``.py`` file or the name of a module; the latter two define ``hyperparams``
    :raises BadInput: if it holds none
    """
    if path.endswith((".yml", ".yaml")):
        return read_sections(path)
    try:
        found = runpy.run_path(path) if path.endswith(".py") else vars(importlib.import_module(path))
    except (ImportError, OSError) as error:
        raise BadInput(f"--conf-file {path}: {error}. Pass a .yml or .py file, or the name of a module.") from error
    if not isinstance(found.get("hyperparams"), dict):
        raise BadInput(f"{path} must define hyperparams, a dict of entries such as {{'CartPole-v1': {{...}}}}.")
    return dict(found["hyperparams"])
