"""Files of a study: the best settings as YAML, a table of all trials, five plots as HTML and PNG."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import yaml
from matplotlib.ticker import LogLocator, NullFormatter
from optuna.importance import get_param_importances
from optuna.study import Study
from optuna.trial import TrialState
from optuna.visualization import matplotlib as drawn
from optuna.visualization import (
    plot_contour,
    plot_optimization_history,
    plot_parallel_coordinate,
    plot_param_importances,
    plot_slice,
)
from plotly.offline import get_plotlyjs

from sb_grpo import files
from sb_grpo.types import Kwargs

from ..common.command_line import call, how_many
from ..common.provenance import without_passwords
from ..tuning.study import failure

#: So many completed trials are too few for a landscape.
FEW = 6
#: Parameters that slice and parallel-coordinate plots, and contour plots, show: the most important ones.
SHOWN = 6
SHOWN_IN_CONTOUR = 3
VALUE = "mean return at the end"
SIZES = {"slice": (20.0, 4.5), "parallel_coordinate": (16.0, 5.0), "contour": (13.0, 10.0)}


def write_report(study: Study, storage: str, folder: Path, plots: bool = True) -> bool:
    """Write everything and print where it is.

    :return: whether any trial has completed
    """
    files.write(folder / "trials.csv", study.trials_dataframe().to_csv(index=False))
    by_state = {state: study.get_trials(deepcopy=False, states=(state,)) for state in TrialState}
    completed = by_state[TrialState.COMPLETE]
    crashed = [t for t in by_state[TrialState.FAIL] if failure(t)]
    counts = ", ".join(f"{len(trials)} {state.name.lower()}" for state, trials in by_state.items() if trials)
    print(f"\nStudy {study.study_name}: {counts}")
    if crashed:
        reasons = sorted({str(failure(t)) for t in crashed})
        where = "(tracebacks: user attribute 'traceback' in trials.csv)"
        print(f"{how_many(len(crashed), 'trial')} FAILED: {'; '.join(reasons[:3])} {where}")
    print(f"Trials:    {folder / 'trials.csv'}")
    if completed:
        path = files.write(folder / "best.yml", best_as_yaml(study))
        print(f"Best:      trial {study.best_trial.number}, {VALUE} {study.best_value:.1f}")
        print(f"Train it:  {call('train')} {shlex.join([*study.user_attrs['train_options'], '--conf-file', str(path)])}")
    if plots and len(completed) > 1:
        with warnings.catch_warnings():  # of few trials per parameter, and of plots that may change
            warnings.simplefilter("ignore")
            draw(study, folder)
        print(f"Plots:     {folder}/*.html, *.png")
    elif plots:
        print("Plots:     none, they need two completed trials")
    print(f"Dashboard: optuna-dashboard {without_passwords(storage)}")
    return bool(completed)


def best_as_yaml(study: Study) -> str:
    """The best trial's settings as an entry that ``zoo.train --conf-file`` reads, and where they come from."""
    best = study.best_trial
    about = study.user_attrs
    settings = {name: value for name, value in best.user_attrs["settings"].items() if value is not None}
    return (
        f"# Trial {best.number} of {len(study.trials)} in study {study.study_name}: {VALUE} {best.value:.1f} over "
        f"{how_many(about['eval_episodes'], 'episode')},\n"
        f"# {how_many(about['n_seeds'], 'training')} (seeds {best.user_attrs['training_seeds']}). Tuned by:\n"
        f"# {about['command']}\n" + yaml.safe_dump({about["env"]: settings}, sort_keys=True)
    )


def draw(study: Study, folder: Path) -> None:
    """Importance, history, slice, parallel coordinate and contour: Plotly as HTML, Matplotlib as PNG (without a browser).

    Six or fewer completed trials get no contour: a landscape between so few points would be an invention.
    """
    importance = list(get_param_importances(study))
    shown = importance[:SHOWN]
    contour = importance[:SHOWN_IN_CONTOUR]
    figures: dict[str, tuple[Callable, Callable, Kwargs]] = {
        "importance": (plot_param_importances, drawn.plot_param_importances, {}),
        "history": (plot_optimization_history, drawn.plot_optimization_history, {"target_name": VALUE}),
        "slice": (plot_slice, drawn.plot_slice, {"params": shown, "target_name": VALUE}),
        "parallel_coordinate": (
            plot_parallel_coordinate, drawn.plot_parallel_coordinate, {"params": shown, "target_name": VALUE},
        ),
    }  # fmt: skip
    if len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))) > FEW:
        figures["contour"] = (plot_contour, drawn.plot_contour, {"params": contour, "target_name": VALUE})
    files.write(folder / "plotly.min.js", get_plotlyjs())
    for name, (as_html, as_png, options) in figures.items():
        files.write(folder / f"{name}.html", as_html(study, **options).to_html(include_plotlyjs="directory"))
        as_png(study, **options)
        figure = plt.gcf()
        figure.set_size_inches(SIZES.get(name, (8.0, 5.0)))
        for axes in figure.axes:
            left, right = axes.get_xlim()
            if axes.get_xscale() == "log" and right / left < 100:  # where Matplotlib's labels would lie on each other
                axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
                axes.xaxis.set_major_formatter("{x:g}")
                axes.xaxis.set_minor_formatter(NullFormatter())
        with files.replacing(folder / f"{name}.png") as unfinished:
            figure.savefig(unfinished, dpi=80, bbox_inches="tight")
        plt.close(figure)
