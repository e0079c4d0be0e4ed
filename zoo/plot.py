"""Pictures of training runs: learning curves with shaded intervals, from zoo folders, benchmark results and TensorBoard.

``python -m zoo.plot logs/grpo/CartPole-v1_1``, or ``python -m zoo.plot --tensorboard logs/tensorboard --tag train/approx_kl``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from stable_baselines3.common.monitor import load_results

from sb_grpo import files

from .common.command_line import BadInput, Parser, add_untrusted, check_has_runs, how_many, run
from .common.folders import check_place
from .comparing import curves as reading
from .comparing import figures
from .comparing.zoo_runs import COLUMNS, RETURN, first_steps

MARKED = 40  # points of a line; with more, markers would hide it
# Okabe-Ito: colour-blind readers can distinguish them.
TRAINING = "#0072B2"
EVALUATION = "#D55E00"


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
    axes.plot(steps, returns, ".", markersize=2, alpha=0.3, color=TRAINING)
    if len(returns) > 0:
        smooth = np.convolve(returns, np.ones(window) / window, mode="valid")
        name = f"training, mean of {window} episodes" if window > 1 else "training, each episode"
        axes.plot(steps[window - 1 :], smooth, color=TRAINING, label=name)
    evaluations = folder / "evaluations.npz"
    if evaluations.exists():
        data = np.load(evaluations)
        mean = data["results"].mean(axis=1)
        std = data["results"].std(axis=1)
        episodes = how_many(data["results"].shape[1], "episode")
        axes.errorbar(data["timesteps"], mean, std, fmt="o-", markersize=4, capsize=3, color=EVALUATION,
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


def draw(curves: Sequence[reading.Curve], y_name: str = "return of an episode") -> Figure:
    """Draw mean curves with intervals, one panel per env; training curves are dashed next to evaluations.

    Only measured points have markers.

    :param curves: of runs
    :param y_name: of the vertical axis
    """
    style = figures.styles(list(dict.fromkeys(curve.label for curve in curves)))
    kinds = dict.fromkeys(curve.kind for curve in curves)
    figure, grid = figures.panels(list(dict.fromkeys(curve.panel for curve in curves)), height=3.6)
    for panel, axes in grid:
        for mean in reading.average([curve for curve in curves if curve.panel == panel]):
            look = dict(style[mean.label])
            if not mean.measured or len(mean.steps) > MARKED:
                look["marker"] = None
            if len(kinds) > 1 and mean.kind == reading.TRAINING:
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
    kinds = ["both", reading.EVALUATION, reading.TRAINING]
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


def body(arguments: Sequence[str]) -> int:
    """Execute the command.

    :param arguments: command line
    :return: 0
    """
    args = parser().parse_args(arguments)
    check_place("--out", args.out.with_name(f"{args.out.name}.png"))
    if bool(args.folders) == bool(args.tensorboard):
        raise BadInput("nothing to draw: give folders, or --tensorboard" if not args.folders else "folders or --tensorboard")
    curves: list[reading.Curve] = []
    for folder in args.folders:
        found, broken = reading.from_folder(folder, args.y, not args.untrusted)
        for line in broken:
            print(f"zoo.plot: broken file left out: {line}", file=sys.stderr)
        curves += [curve for curve in found if args.kind in ("both", curve.kind)]
    curves = reading.in_common_panels(curves)
    check_has_runs("--envs", args.envs, {curve.panel for curve in curves})
    curves = [curve for curve in curves if curve.panel in (args.envs or [curve.panel])]
    for folder in args.tensorboard:
        curves += [curve for tag in args.tag for curve in reading.from_tensorboard(folder, tag)]
    if not curves:
        raise BadInput(f"the folders hold no {args.kind} curves")
    tags = "value" if len(args.tag) > 1 else args.tag[0]
    figure = draw(reading.labelled(curves, args.by), tags if args.tensorboard else f"{args.y} of an episode")
    for file in figures.save(figure, args.out):
        print(file)
    return 0


def main(arguments: Sequence[str]) -> int:
    """``python -m zoo.plot``."""
    return run("zoo.plot", body, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
