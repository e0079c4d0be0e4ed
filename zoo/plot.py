"""Pictures of training runs: learning curves with shaded intervals, from zoo folders, benchmark results and TensorBoard.

``python -m zoo.plot logs/grpo/CartPole-v1_1``, or ``python -m zoo.plot --tensorboard logs/tensorboard --tag train/approx_kl``
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from stable_baselines3.common.monitor import load_results

from sb_grpo import files

from .benchmarking.results import RANDOM, env_folder, find_results, read_all
from .common.command_line import BadInput, Parser, add_untrusted, check_has_runs, did_you_mean, how_many, one_line, run
from .common.folders import check_place
from .comparing import figures, statistics
from .training.checkpoints import read_facts
from .training.run_files import read_run_files, read_values, settings_folder_of

RETURN = "return"
#: Quantity of an episode -> column of monitor files, array of evaluations.npz.
COLUMNS = {RETURN: ("r", "results"), "length": ("l", "ep_lengths"), "success": ("is_success", "successes")}


def _options(folder: Path, name: str = "args.yml") -> dict[str, object]:
    file = next(iter(folder.glob(f"*/{name}")), None)
    try:
        return {} if file is None else read_values(file)
    except BadInput:  # check_settings names it
        return {}


def check_settings(chain: Sequence[Path], trusted: bool) -> None:
    """Check that the runs' settings can be read.

    :raises BadInput: naming the first file that cannot be read
    """
    for folder in chain:
        read_run_files(settings_folder_of(folder), trusted)


def env_of(folder: Path) -> str:
    """Env of a run, from its options or its folder's name."""
    return str(_options(folder).get("env") or re.sub(r"_\d+(_[0-9a-f-]{36})?$", "", folder.name))


def went_on_from(folder: Path) -> Path | None:
    """Model that a run of ``--continue`` began with; None for other runs, and if it is missing.

    A run stores the path as given, which may be relative to another working directory; the folders may have been moved
    together.
    """
    options = _options(folder)
    if not options.get("continue_run"):
        return None
    model = Path(str(options.get("trained_agent") or ""))
    beside = Path(model.parent.name, model.name)
    places = [*(above / model for above in folder.resolve().parents), model, folder.resolve().parent / beside]
    return next((place.resolve() for place in places if place.is_file()), None)


def find_chains(folder: Path, trusted: bool = True) -> list[list[Path]]:
    """Find run folders at or below a folder, each after its predecessors, which are not listed separately.

    :param folder: of a run, or of runs
    :param trusted: False: without predecessors, because their paths may lead anywhere
    """
    found = {file.parent.resolve() for pattern in ("evaluations.npz", "*monitor.csv") for file in folder.rglob(pattern)}
    made = []
    for last in sorted(found):
        chain = [last]
        while trusted and (model := went_on_from(chain[0])) is not None and model.parent not in chain:
            chain.insert(0, model.parent)
        made.append(chain)
    begun = {part for chain in made for part in chain[:-1]}
    return [chain for chain in made if chain[-1] not in begun]


def first_steps(chain: Sequence[Path], trusted: bool = True) -> list[int]:
    """Env steps at the beginning of each run in a chain."""
    if not trusted:
        return [0] * len(chain)
    facts = [read_facts(model) if (model := went_on_from(run)) else None for run in chain]
    return [int(known["env_steps"]) if known else 0 for known in facts]


def evaluations_of(chain: Sequence[Path], y: str, trusted: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read the evaluations of a chain, of each run up to the beginning of the next.

    :param y: key of :data:`COLUMNS`
    :return: ``[C]`` steps, ``[C]`` means, ``[E, C]`` of their episodes; empty where there are none
    """
    steps: list[np.ndarray] = []
    results: list[np.ndarray] = []
    ends = [*first_steps(chain, trusted)[1:], np.inf]
    for folder, end in zip(chain, ends, strict=True):
        if not (folder / "evaluations.npz").exists():
            continue
        with np.load(folder / "evaluations.npz") as data:
            values = data[COLUMNS[y][1]] if COLUMNS[y][1] in data else np.empty((0, 0))
            if len(values) == len(data["timesteps"]):
                steps.append(data["timesteps"][data["timesteps"] <= end])
                results.append(np.asarray(values, dtype=float)[data["timesteps"] <= end])
    if not steps:
        return np.empty(0), np.empty(0), np.empty((0, 0))
    episodes = min(r.shape[1] for r in results)
    samples = np.concatenate([r[:, :episodes] for r in results]).T
    return np.concatenate(steps), np.concatenate([r.mean(axis=1) for r in results]), samples


def training_of(chain: Sequence[Path], y: str, window: float, trusted: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Running mean over the training episodes of a chain.

    :param y: key of :data:`COLUMNS`
    :param window: share of the episodes, at most 100
    :return: ``[N]`` steps, ``[N]`` means; empty where there are none
    """
    parts = []
    starts = first_steps(chain, trusted)
    for folder, start, end in zip(chain, starts, [*starts[1:], np.inf], strict=True):
        if not any(folder.glob("*monitor.csv")):
            continue
        episodes: pd.DataFrame = load_results(str(folder))
        if COLUMNS[y][0] in episodes:
            steps = start + episodes["l"].cumsum().to_numpy()
            values = episodes[COLUMNS[y][0]].to_numpy(dtype=float)
            parts.append((steps[steps <= end], values[steps <= end]))
    if not parts or not sum(len(steps) for steps, _ in parts):
        return np.empty(0), np.empty(0)
    steps, values = (np.concatenate(side) for side in zip(*parts, strict=True))
    n = max(1, min(100, int(window * len(values))))
    return steps[n - 1 :], pd.Series(values).rolling(n).mean().to_numpy()[n - 1 :]


def describe_differences(runs: Mapping[Path, tuple[str, str]]) -> dict[Path, str]:
    """Describe the settings in which runs of one env and algorithm differ; empty text without differences.

    :param runs: folder, or result file of ``zoo.benchmark`` -> env and algorithm
    """
    groups: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for folder, key in runs.items():
        if folder.is_dir():  # result files have no settings
            groups[key].append(folder)
    messages = dict.fromkeys(runs, "")
    for folders in groups.values():
        settings = {folder: _options(folder, "config.yml") for folder in folders}
        known = {name for of in settings.values() for name in of} - {"n_timesteps"}
        varied = sorted(name for name in known if len({repr(of.get(name)) for of in settings.values()}) > 1)
        for folder, of in settings.items():
            messages[folder] = " ".join(f"{name}={of.get(name, 'default')}" for name in varied)
    return messages


# ---------------------------------------------------------------- curves

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


def from_folder(folder: Path, y: str = RETURN, trusted: bool = True) -> tuple[list[Curve], list[str]]:
    """Read all curves below a folder; a run and its continuations are one curve.

    :param folder: a zoo run, a folder of runs, or results of ``zoo.benchmark``
    :param y: of an episode: a key of :data:`zoo.plot.COLUMNS`; result files have returns only
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
        if run.algo != RANDOM and y == RETURN
    ]
    kept = {run.path.with_suffix("").resolve(): run for run in found}  # folders of --keep-models beside their result files
    chains = find_chains(folder, trusted)
    for chain in _readable(chains, broken, trusted):
        result = next((kept[above] for above in chain[-1].parents if above in kept), None)
        env, label = (env_of(chain[-1]), chain[-1].parent.name) if result is None else (result.env, result.label)
        with left_out(f"evaluations.npz of {chain[-1]}", broken):
            steps, values, samples = evaluations_of(chain, y, trusted)
            if len(steps):
                curves.append(Curve(env, label, EVALUATION, steps, values, samples, chain[-1]))
        with left_out(f"*.monitor.csv of {chain[-1]}", broken):
            steps, values = training_of(chain, y, WINDOW, trusted)
            if len(steps):
                curves.append(Curve(env, label, TRAINING, steps, values, source=chain[-1]))
    if not curves and broken:
        raise BadInput(f"no file in {folder} can be read; the first: {broken[0]}")
    if not curves and chains and y != RETURN:
        raise BadInput(f"--y {y}: no run in {folder} has kept it.")
    if not curves:
        raise BadInput(f"{folder} holds no evaluations.npz, no monitor.csv and no result file of zoo.benchmark")
    return curves, broken


def _readable(chains: Sequence[Sequence[Path]], broken: list[str], trusted: bool) -> list[Sequence[Path]]:
    """Select chains with readable settings."""
    found = []
    for chain in chains:
        with left_out(f"settings of {chain[-1]}", broken):
            check_settings(chain, trusted)
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
    differences = describe_differences({c.source: (c.panel, c.label) for c in curves if c.source is not None})
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


# ---------------------------------------------------------------- pictures

MARKED = 40  # points of a line; with more, markers would hide it
# Okabe-Ito: colour-blind readers can distinguish them.
TRAINING_COLOUR = "#0072B2"
EVALUATION_COLOUR = "#D55E00"


def plot_learning_curve(folder: Path, title: str) -> Path:
    """Draw the returns of a run: every training episode, their running mean, and the evaluations.

    Steps of a run with ``--continue`` continue those of its model.

    :param folder: folder of an rl_zoo3 run, with ``*.monitor.csv`` and optionally ``evaluations.npz``
    :param title: title of the picture
    :return: path of the PNG
    """
    episodes = load_results(str(folder))
    steps = first_steps([folder])[0] + episodes["l"].cumsum().to_numpy()
    returns = episodes["r"].to_numpy()
    window = max(1, min(100, len(returns) // 10))
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(steps, returns, ".", markersize=2, alpha=0.3, color=TRAINING_COLOUR)
    if len(returns) > 0:
        smooth = np.convolve(returns, np.ones(window) / window, mode="valid")
        name = f"training, mean of {window} episodes" if window > 1 else "training, each episode"
        axes.plot(steps[window - 1 :], smooth, color=TRAINING_COLOUR, label=name)
    evaluations = folder / "evaluations.npz"
    if evaluations.exists():
        data = np.load(evaluations)
        mean = data["results"].mean(axis=1)
        std = data["results"].std(axis=1)
        episodes = how_many(data["results"].shape[1], "episode")
        axes.errorbar(data["timesteps"], mean, std, fmt="o-", markersize=4, capsize=3, color=EVALUATION_COLOUR,
                      label=f"deterministic evaluation, mean and std of {episodes}")  # fmt: skip
    axes.set(title=title, xlabel="environment steps", ylabel="return of an episode")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:  # no episode has ended, and nothing was evaluated
        figures.legend_of_all(figure)
    path = folder / "learning_curve.png"
    with files.replacing(path) as unfinished:
        figure.savefig(unfinished, dpi=120)
    plt.close(figure)
    return path


def draw(curves: Sequence[Curve], y_name: str = "return of an episode") -> Figure:
    """Draw mean curves with intervals, one panel per env; training curves are dashed next to evaluations.

    Only measured points have markers.

    :param curves: of runs
    :param y_name: of the vertical axis
    """
    style = figures.styles(list(dict.fromkeys(curve.label for curve in curves)))
    kinds = dict.fromkeys(curve.kind for curve in curves)
    figure, grid = figures.panels(list(dict.fromkeys(curve.panel for curve in curves)), height=3.6)
    for panel, axes in grid:
        for mean in average([curve for curve in curves if curve.panel == panel]):
            look = dict(style[mean.label])
            if not mean.measured or len(mean.steps) > MARKED:
                look["marker"] = None
            if len(kinds) > 1 and mean.kind == TRAINING:
                look["linestyle"] = "--"
            name = f"{mean.label}, {mean.kind} ({mean.of})"
            figures.band(axes, mean.steps, mean.value, mean.low, mean.high, name, look, every=1)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set(xlabel="environment steps", ylabel=y_name)
    figures.legend_of_all(figure)
    return figure


def parser() -> Parser:
    """Make the parser of the command line."""
    text = (
        "Draw learning curves. Lines are means over runs, shaded areas 95 % bootstrap intervals of the mean: over runs, or "
        "over the evaluation's episodes where there is one run. Training returns are running means."
    )
    it = Parser("zoo.plot", text)
    add = it.add_argument
    kinds = ["both", EVALUATION, TRAINING]
    add("folders", nargs="*", type=Path, metavar="FOLDER", help="zoo runs, folders of runs, or results of zoo.benchmark")
    add("--envs", nargs="+", default=[], metavar="ID", help="on which envs; nothing: all")
    add("--kind", choices=kinds, default="both", help="curves to draw from folders")
    add("--y", choices=list(COLUMNS), default=RETURN, help="of an episode; success where the env reports is_success")
    by = "a line per run; per algorithm and settings, which are named where they differ; or per algorithm on an env"
    add("--by", choices=["run", "setting", "env"], default="setting", help=by)
    add("--tensorboard", nargs="+", type=Path, default=[], metavar="DIR", help="folders with TensorBoard event files")
    add("--tag", nargs="+", default=["rollout/ep_rew_mean"], help="what to draw from event files, a panel each")
    add_untrusted(it)
    add("--out", type=Path, default=Path("curves"), metavar="FILE", help="FILE.pdf, .png or .svg; else FILE.png and FILE.svg")
    return it


def main(arguments: Sequence[str]) -> int:
    """Execute the command.

    :param arguments: command line
    :return: 0
    """
    args = parser().parse_args(arguments)
    check_place("--out", args.out.with_name(f"{args.out.name}.png"))
    if bool(args.folders) == bool(args.tensorboard):
        raise BadInput("nothing to draw: give folders, or --tensorboard" if not args.folders else "folders or --tensorboard")
    curves: list[Curve] = []
    for folder in args.folders:
        found, broken = from_folder(folder, args.y, not args.untrusted)
        for line in broken:
            print(f"zoo.plot: broken file left out: {line}", file=sys.stderr)
        curves += [curve for curve in found if args.kind in ("both", curve.kind)]
    curves = in_common_panels(curves)
    check_has_runs("--envs", args.envs, {curve.panel for curve in curves})
    curves = [curve for curve in curves if curve.panel in (args.envs or [curve.panel])]
    for folder in args.tensorboard:
        curves += [curve for tag in args.tag for curve in from_tensorboard(folder, tag)]
    if not curves:
        raise BadInput(f"the folders hold no {args.kind} curves")
    tags = "value" if len(args.tag) > 1 else args.tag[0]
    figure = draw(labelled(curves, args.by), tags if args.tensorboard else f"{args.y} of an episode")
    for file in figures.save(figure, args.out):
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(run("zoo.plot", main, sys.argv[1:]))
