"""Specs of a benchmark's runs: complete settings from names and variants of algorithms, checked before the start."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import rl_zoo3

from ..benchmarking.results import RANDOM, env_folder, seed_file
from ..common.command_line import BadInput, Grid, did_you_mean
from ..common.plain_files import HYPERPARAMS, Hyperparams, read_sections
from ..training.experiment import register
from ..training.settings import check_settings, entry_name

CONSTRUCTOR_DEFAULTS = ("defaults", "sb3-defaults")
VARIANT_KEYS = ("algo", "conf_file", "hyperparams")
ZOO_KEYS = ("n_envs", "n_timesteps", "normalize", "frame_stack", "env_wrapper", "vec_env_wrapper", "monitor_kwargs",
            "env_kwargs", "callback", "noise_type", "noise_std")  # fmt: skip
NOT_GIVEN = "not given"
LABEL = re.compile(r"[A-Za-z0-9][\w.+=-]*")


@dataclass(frozen=True)
class Variant:
    """Algorithm with the source of its settings and changes to them."""

    label: str
    algo: str
    conf_file: str
    hyperparams: Hyperparams


@dataclass(frozen=True, eq=False)
class Spec:
    """Complete specification of a run: equal specs give equal results on the same machine."""

    env: str
    label: str
    algo: str
    seed: int
    steps: int
    evaluations: int
    eval_episodes: int
    final_episodes: int
    hyperparams: Hyperparams
    source: str

    def folder(self, out: Path) -> Path:
        """Folder of this run's files."""
        return out / env_folder(self.env) / self.label

    def file(self, out: Path) -> Path:
        """The result file."""
        return self.folder(out) / seed_file(self.seed)

    def difference(self, other: Mapping[str, object]) -> str:
        """Describe the differing fields of a result file's spec; empty if it is this run. ``source`` may differ.

        :param other: as read from the file
        """
        here, there = (_flat(spec) for spec in (json.loads(json.dumps(asdict(self))), other))
        names = [name for name in {**here, **there} if here.get(name, NOT_GIVEN) != there.get(name, NOT_GIVEN)]
        return ", ".join(f"{name} {there.get(name, NOT_GIVEN)} there and {here.get(name, NOT_GIVEN)} here" for name in names)


@dataclass(frozen=True)
class RunOptions:
    """Options that all runs of a benchmark have in common.

    :param out: output folder
    :param command: command line of the benchmark, for the result files
    :param keep: keep each run's folder
    :param device: of torch
    :param gym_packages: to import, because they register envs
    """

    out: str
    command: str
    keep: bool
    device: str
    gym_packages: list[str]


def _flat(spec: Mapping[str, object]) -> dict[str, object]:
    """Fields of a spec, with hyperparameters as separate fields."""
    fields = {name: value for name, value in spec.items() if name not in ("source", "hyperparams")}
    hyperparams = spec.get("hyperparams", {})
    return {**fields, **hyperparams} if isinstance(hyperparams, dict) else {**fields, "hyperparams": hyperparams}


def known_algos() -> list[str]:
    """Names that ``--algos`` takes."""
    register()
    return sorted([*rl_zoo3.ALGOS, RANDOM])


def read_variants(path: Path | None, names: Sequence[str]) -> list[Variant]:
    """The variants to run: the named ones, or all of the file.

    :param path: YAML that maps labels to ``{algo, conf_file, hyperparams}``; None: only plain algorithms
    :param names: labels of the file or names of algorithms; empty: every label of the file
    """
    table = {}
    if path is not None:
        table = {label: _variant(path, label, entry) for label, entry in read_sections(path, "my-label: {algo: ppo}").items()}
    known = known_algos()
    for name in names:
        if name not in table and name not in known:
            raise BadInput(
                f"unknown algorithm {name!r}.{did_you_mean(name, [*table, *known])} (known: {', '.join([*table, *known])})"
            )
    return [table.get(name) or Variant(name, name, "", {}) for name in dict.fromkeys(names)] or list(table.values())


def swept(variants: Sequence[Variant], grid: Grid) -> list[Variant]:
    """Combine every variant with every combination of a grid's settings, with labels that name the combination.

    :param variants: to repeat
    :param grid: values by name; empty: the variants as they are
    :raises BadInput: for a name or type that an algorithm does not accept, or for equal labels
    """
    made = []
    for variant in variants:
        if grid and variant.algo == RANDOM:
            raise BadInput(f"--sweep: {variant.label} has no settings; run it on its own, into the same --out.")
        for values in product(*grid.values()):
            changes = dict(zip(grid, values, strict=True))
            plain = {"policy": "MlpPolicy", "n_timesteps": 1.0}
            if changes:
                check_settings(variant.algo, {**plain, **changes}, lambda name: "--sweep")
            parts = [variant.label, *(f"{name}={re.sub(r'[^A-Za-z0-9_.+=-]+', '_', str(x))}" for name, x in changes.items())]
            made.append(replace(variant, label="-".join(parts), hyperparams={**variant.hyperparams, **changes}))
    if len({variant.label for variant in made}) < len(made):
        raise BadInput("--sweep: two combinations have the same label; write them as entries of --variants.")
    return made


def settings_for(variant: Variant, env_id: str) -> tuple[Hyperparams, str]:
    """Settings of a variant on an env, in rl_zoo3's format, and where they come from.

    :param variant: the variant
    :param env_id: registered id
    :return: settings; ``file: entry``
    :raises BadInput: for a name or type that the algorithm does not accept
    """
    if variant.algo == RANDOM:
        return {}, "none"
    if variant.conf_file in CONSTRUCTOR_DEFAULTS:
        entry: Hyperparams = {"policy": "MlpPolicy"}
        source = "constructor's defaults"
    else:
        path = Path(variant.conf_file) if variant.conf_file else _default_conf(variant.algo)
        table = read_sections(path)
        name = entry_name(table, env_id, path)
        entry = table[name]
        source = f"{path.name}: {name}"
    settings: Hyperparams = {"policy": "MlpPolicy", **entry, **variant.hyperparams}
    for name, changes in variant.hyperparams.items():
        before = entry.get(name)
        if isinstance(before, dict) and isinstance(changes, dict):
            settings[name] = before | changes  # the entry's other keys stay
    settings.pop("n_timesteps", None)  # the budget is the benchmark's
    where = {name: source if name not in variant.hyperparams else f"variant {variant.label}" for name in settings}
    check_settings(variant.algo, {"n_timesteps": 1.0, **settings}, lambda name: where.get(name, source))
    return settings, source


def _default_conf(algo: str) -> Path:
    return HYPERPARAMS if algo == "grpo" else Path(rl_zoo3.__file__).parent / "hyperparams" / f"{algo}.yml"


def _variant(path: Path, label: str, entry: Hyperparams) -> Variant:
    if not LABEL.fullmatch(str(label)):
        raise BadInput(f"{path}: label {label!r} cannot name a folder; use letters, digits and . _ + = -")
    for key in entry:
        if key not in VARIANT_KEYS:
            raise BadInput(f"{path}: {label}: unknown key {key!r}.{did_you_mean(key, VARIANT_KEYS)}")
    algo = entry.get("algo")
    conf_file = entry.get("conf_file", "")
    hyperparams = entry.get("hyperparams", {})
    if not isinstance(algo, str) or algo not in known_algos():
        raise BadInput(f"{path}: {label}: unknown algorithm {algo!r} (known: {', '.join(known_algos())})")
    if not isinstance(hyperparams, dict):
        raise BadInput(f"{path}: {label}: hyperparams must be a mapping, not {hyperparams!r}")
    if not isinstance(conf_file, str):
        raise BadInput(f"{path}: {label}: conf_file={conf_file!r} must be the path of a YAML file, or sb3-defaults")
    known = [*ZOO_KEYS, *(inspect.signature(rl_zoo3.ALGOS[algo].__init__).parameters if algo != RANDOM else [])]
    for key in hyperparams:
        if key not in known:
            raise BadInput(f"{path}: {label}: unknown hyperparameter {key!r} of {algo}.{did_you_mean(key, known)}")
    return Variant(label, algo, conf_file, {key: _number(x) for key, x in hyperparams.items()})


def _number(value: object) -> object:
    """Convert text such as ``1e-3``, which YAML 1.1 does not read as a number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
