"""Learning curves from zoo folders, benchmark result files and TensorBoard event files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..benchmarking.results import RANDOM, env_folder, find_results, read_all
from ..common.command_line import BadInput, did_you_mean, one_line
from ..comparing import statistics
from ..comparing import zoo_runs as runs

EVALUATION = "evaluation"
TRAINING = "training"
GRID = 100  # points of the mean over runs that were measured at different steps
WINDOW = 0.1  # of a run's episodes: the running mean of training returns


@dataclass(frozen=True, eq=False)
class Curve:
    """Curve of one run.

    :param panel: subject of the curve: an env, or env and tag
    :param label: algorithm
    :param kind: ``"evaluation"`` or ``"training"``
    :param steps: ``[C]`` env steps
    :param values: ``[C]``
    :param samples: ``[E, C]`` samples behind the values, which are means; None: unknown
    :param source: folder or file that it was read from
    """

    panel: str
    label: str
    kind: str
    steps: np.ndarray
    values: np.ndarray
    samples: np.ndarray | None = None
    source: Path | None = None


@dataclass(frozen=True, eq=False)
class Mean:
    """The mean curve of some runs with its interval.

    :param low: NaN if it cannot be computed
    :param of: population of the interval, for the legend
    """

    label: str
    kind: str
    steps: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    of: str
    measured: bool = True  #: measured at these steps; False: interpolated, or a running mean


@contextmanager
def left_out(what: str, broken: list[str]) -> Iterator[None]:
    """Skip damaged files, which a killed process or a full disk leaves.

    :param what: description of the files
    :param broken: gets a line about them
    """
    try:
        yield
    except Exception as error:  # NumPy, pandas, zipfile and zlib raise many types
        broken.append(f"{what}: {type(error).__name__}: {one_line(error) or 'not in its form'}")


def from_folder(folder: Path, y: str = runs.RETURN, trusted: bool = True) -> tuple[list[Curve], list[str]]:
    """Read all curves below a folder; a run and its continuations are one curve.

    :param folder: a zoo run, a folder of runs, or results of ``zoo.benchmark``
    :param y: of an episode: a key of :data:`zoo.comparing.zoo_runs.COLUMNS`; result files have returns only
    :param trusted: False: runs that leave their folders, or name code, are broken
    :return: curves, and a line per broken file
    :raises BadInput: if there are none
    """
    if not folder.exists():
        raise BadInput(f"{folder} does not exist")
    found, broken = read_all(find_results([folder]))
    curves = [
        Curve(run.env, run.label, EVALUATION, run.checkpoint_steps, run.curve, run.checkpoint_returns.T, run.path)
        for run in found
        if run.algo != RANDOM and y == runs.RETURN
    ]
    kept = {run.path.with_suffix("").resolve(): run for run in found}  # folders of --keep-models beside their result files
    chains = runs.chains(folder, trusted)
    for chain in _readable(chains, broken, trusted):
        result = next((kept[above] for above in chain[-1].parents if above in kept), None)
        env, label = (runs.env_of(chain[-1]), chain[-1].parent.name) if result is None else (result.env, result.label)
        with left_out(f"evaluations.npz of {chain[-1]}", broken):
            steps, values, samples = runs.evaluations(chain, y, trusted)
            if len(steps):
                curves.append(Curve(env, label, EVALUATION, steps, values, samples, chain[-1]))
        with left_out(f"*.monitor.csv of {chain[-1]}", broken):
            steps, values = runs.training(chain, y, WINDOW, trusted)
            if len(steps):
                curves.append(Curve(env, label, TRAINING, steps, values, source=chain[-1]))
    if not curves and broken:
        raise BadInput(f"no file in {folder} can be read; the first: {broken[0]}")
    if not curves and chains and y != runs.RETURN:
        raise BadInput(f"--y {y}: no run in {folder} has kept it.")
    if not curves:
        raise BadInput(f"{folder} holds no evaluations.npz, no monitor.csv and no result file of zoo.benchmark")
    return curves, broken


def _readable(chains: Sequence[Sequence[Path]], broken: list[str], trusted: bool) -> list[Sequence[Path]]:
    """Select chains with readable settings."""
    found = []
    for chain in chains:
        with left_out(f"settings of {chain[-1]}", broken):
            runs.check_settings(chain, trusted)
            found.append(chain)
    return found


def from_tensorboard(folder: Path, tag: str) -> list[Curve]:
    """Read curves of one tag in TensorBoard event files; a run and its continuations are one curve.

    :param folder: with event files somewhere below
    :param tag: such as ``rollout/ep_rew_mean``
    :raises BadInput: if no file has the tag
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # takes a second to import

    curves = []
    tags = set()
    for run_folder in sorted({file.parent for file in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(run_folder), size_guidance={"scalars": 0})
        events.Reload()
        tags |= set(events.Tags()["scalars"])
        if tag in events.Tags()["scalars"]:
            points = events.Scalars(tag)
            steps, values = (np.array([getattr(p, name) for p in points], dtype=float) for name in ("step", "value"))
            label = re.sub(r"(_continued)?_\d+$", "", run_folder.name)
            panel = f"{run_folder.resolve().parent.name}: {tag}"
            kind = EVALUATION if tag.startswith("eval/") else TRAINING
            curves.append(Curve(panel, label, kind, steps, values, source=run_folder))
    if not tags:
        raise BadInput(f"{folder} holds no TensorBoard scalars")
    if not curves:
        raise BadInput(
            f"no event file in {folder} has the tag {tag!r}.{did_you_mean(tag, tags)} (tags: {', '.join(sorted(tags))})"
        )
    return _continued(curves)


def _continued(curves: list[Curve]) -> list[Curve]:
    """Join curves of event files: ``NAME_continued_N`` replaces ``NAME`` from its first step on."""
    by_name = {str(curve.source): curve for curve in curves}
    went_on = set()
    for path in sorted(by_name, key=lambda path: path.count("_continued_")):
        name, _, _ = path.rpartition("_continued_")
        if name in by_name:
            before = by_name[name]
            curve = by_name[path]
            kept = before.steps < curve.steps[0]
            steps = np.append(before.steps[kept], curve.steps)
            values = np.append(before.values[kept], curve.values)
            by_name[path] = replace(curve, label=before.label, steps=steps, values=values)
            went_on.add(name)
    return [curve for path, curve in by_name.items() if path not in went_on]


def labelled(curves: Sequence[Curve], by: str) -> list[Curve]:
    """Label curves by the names of their lines.

    :param curves: of runs
    :param by: ``"run"``: each its own; ``"setting"``: runs of one algorithm and equal settings are averaged; ``"env"``: all
        runs of an algorithm on an env
    """
    if by == "run":
        names = [c.source.stem if c.source else "" for c in curves]
        own = [name if name.startswith(c.label) else f"{c.label} {name}" for name, c in zip(names, curves, strict=True)]
        return [replace(c, label=name) for c, name in zip(curves, own, strict=True)]
    if by == "env":
        return list(curves)
    differences = runs.differences({c.source: (c.panel, c.label) for c in curves if c.source is not None})
    return [replace(c, label=f"{c.label} {differences[c.source] if c.source else ''}".strip()) for c in curves]


def in_common_panels(curves: Sequence[Curve]) -> list[Curve]:
    """Put ids such as ``ALE/Pong-v5``, which differ from their folder names, in one panel with their folders."""
    names: dict[str, str] = {}
    for curve in curves:
        key = env_folder(curve.panel)
        names[key] = max(names.get(key, ""), curve.panel, key=lambda name: ("/" in name, name))
    return [replace(curve, panel=names[env_folder(curve.panel)]) for curve in curves]


def average(curves: Sequence[Curve]) -> list[Mean]:
    """Mean curves per label and kind, in the order of their first runs.

    :param curves: of one panel
    """
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        groups.setdefault((curve.label, curve.kind), []).append(curve)
    return [_mean(label, kind, group) for (label, kind), group in groups.items()]


def _mean(label: str, kind: str, group: Sequence[Curve]) -> Mean:
    first = group[0]
    if len(group) == 1:
        samples = first.samples
        of = "one run, its episodes"
        steps = first.steps
        matrix = first.values[None]
    else:
        group = _as_far_as_all_go(group)
        steps = group[0].steps if _same_steps(group) else np.linspace(*_common_range(group), GRID)
        samples = matrix = np.array([np.interp(steps, curve.steps, curve.values) for curve in group])
        of = f"{len(group)} runs"
    low = high = np.full(len(steps), np.nan)
    if samples is not None and len(samples) > 1:
        low, high = statistics.curve_interval([samples], statistics.mean, resamples=1000)
    measured = kind == EVALUATION and (len(group) == 1 or _same_steps(group))
    return Mean(label, kind, steps, matrix.mean(axis=0), low, high, of if np.isfinite(low).any() else "one run", measured)


def _same_steps(group: Iterable[Curve]) -> bool:
    steps = [curve.steps for curve in group]
    return all(np.array_equal(steps[0], other) for other in steps)


def _common_range(group: Sequence[Curve]) -> tuple[float, float]:
    return max(curve.steps[0] for curve in group), min(curve.steps[-1] for curve in group)


def _as_far_as_all_go(group: Sequence[Curve]) -> list[Curve]:
    """Cut curves to the steps that all of them reach; report a loss of more than a tenth."""
    late = max(group, key=lambda curve: curve.steps[0])
    early = min(group, key=lambda curve: curve.steps[-1])
    start, end = _common_range(group)
    longest = max(curve.steps[-1] for curve in group)
    what = f"{group[0].panel}: {group[0].label}, {group[0].kind}"
    if end < start or (end == start and not _same_steps(group)):
        raise BadInput(
            f"{what}: no steps in common, as {late.source} begins at {start:,.0f} and {early.source} ends at {end:,.0f}. "
            "Give the folders of runs that belong together, or --by run."
        )
    if end < 0.9 * longest:
        print(
            f"zoo.plot: {what}: drawn up to step {end:,.0f} of {longest:,.0f}, where {early.source} ends. "
            "To see more give the folders of longer runs.",
            file=sys.stderr,
        )
    return [_between(curve, start, end) for curve in group]


def _between(curve: Curve, start: float, end: float) -> Curve:
    """Cut a curve to a range of steps, with interpolated values at both ends."""
    inside = (curve.steps > start) & (curve.steps < end)
    steps = np.unique([start, *curve.steps[inside], end])
    return replace(curve, steps=steps, values=np.interp(steps, curve.steps, curve.values), samples=None)
