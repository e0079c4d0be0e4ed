"""Analyse a study of zoo.tune: sensitivity of the return to its parameters, and a robust recommended setting.

``python -m zoo.recommend --study-name grpo_CartPole-v1_20000`` draws the surface over the two most important parameters,
selects trials with good neighbours, trains them again with fresh seeds, and writes ``recommended.yml``.
"""

from __future__ import annotations

import shlex
import sys
import warnings
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import get_param_importances
from optuna.search_space import intersection_search_space
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from sb_grpo import files

from .common.command_line import (
    BadInput,
    Parser,
    add_gym_packages,
    add_torch,
    call,
    check_at_least,
    did_you_mean,
    how_many,
    known_env,
    run,
    use_threads,
)
from .comparing import figures
from .comparing.statistics import Array
from .training.experiment import register
from .tuning.objective import Objective
from .tuning.study import check_source, derived_seed, load_study

#: Parameters of a trial, as Optuna has them.
Params = Mapping[str, Any]
#: Share of a numeric parameter's range by which a neighbour differs.
STEP = 0.1
#: Added to the variance of every trial, so that equal settings leave the matrix invertible.
_JITTER = 1e-6


def is_ordered(among: BaseDistribution) -> bool:
    """Numbers, or choices that are numbers."""
    if isinstance(among, CategoricalDistribution):
        return all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in among.choices)
    return True


class Encoding:
    """Parameters as points of a unit cube; choices that are no numbers get a column each.

    :param space: distributions by name, as :func:`optuna.search_space.intersection_search_space` gives them
    """

    def __init__(self, space: Mapping[str, BaseDistribution]) -> None:
        self.space = dict(space)

    @staticmethod
    def _choices(among: BaseDistribution) -> list[Any]:
        assert isinstance(among, CategoricalDistribution)
        return sorted(among.choices) if is_ordered(among) else list(among.choices)  # type: ignore[type-var]

    def __call__(self, params: Params) -> Array:
        """``[D]`` of one setting."""
        return np.concatenate([self.column(among, params[name]) for name, among in self.space.items()])

    def column(self, among: BaseDistribution, value: Any) -> Array:
        """Columns of one parameter."""
        if isinstance(among, CategoricalDistribution):
            choices = self._choices(among)
            place = choices.index(value)
            return (
                np.array([place / max(len(choices) - 1, 1)]) if is_ordered(among) else np.eye(len(choices))[place] / np.sqrt(2)
            )
        assert isinstance(among, FloatDistribution | IntDistribution)
        low, high, at = (np.log(x) if among.log else float(x) for x in (among.low, among.high, value))
        return np.array([(at - low) / (high - low) if high > low else 0.0])

    def values(self, name: str, n: int = 25) -> list[Any]:
        """Values of a parameter to draw it over: its choices, or so many numbers."""
        among = self.space[name]
        if isinstance(among, CategoricalDistribution):
            return self._choices(among)
        assert isinstance(among, FloatDistribution | IntDistribution)
        return [self._number(among, share) for share in np.linspace(0.0, 1.0, n)]

    @staticmethod
    def _number(among: FloatDistribution | IntDistribution, share: float) -> float:
        low, high = (np.log(x) if among.log else float(x) for x in (among.low, among.high))
        value = low + share * (high - low)
        return float(np.exp(value) if among.log else value)

    def neighbours(self, params: Params) -> list[Params]:
        """Settings that differ in one ordered parameter by a tenth of its range, or by one choice.

        :param params: of a trial
        """
        found: list[Params] = []
        for name, among in self.space.items():
            if isinstance(among, CategoricalDistribution):
                choices = self._choices(among)
                place = self._choices(among).index(params[name])
                beside = choices[max(place - 1, 0) : place] + choices[place + 1 : place + 2] if is_ordered(among) else []
            else:
                assert isinstance(among, FloatDistribution | IntDistribution)
                at = float(self.column(among, params[name])[0])
                beside = [self._number(among, share) for share in (at - STEP, at + STEP) if -1e-9 <= share <= 1 + 1e-9]
            found += [{**params, name: value} for value in beside]
        return found


class Surrogate:
    """Fitted Gaussian process.

    :param encoding: of the parameters
    :param params: ``[n]`` settings of the trials
    :param values: ``[n]`` objective, means over seeds
    :param noise: ``[n]`` variance of those means
    """

    def __init__(self, encoding: Encoding, params: Sequence[Params], values: Array, noise: Array) -> None:
        self.encoding = encoding
        self.x = np.array([encoding(p) for p in params])
        self.mean = float(np.mean(values))
        self.scale = float(np.std(values)) or 1.0
        lengths = np.full(self.x.shape[1], 0.5)
        kernel = ConstantKernel(1.0, (0.05, 20.0)) * Matern(lengths, (0.05, 20.0), nu=2.5) + WhiteKernel(0.01, (1e-6, 4.0))
        self.process = GaussianProcessRegressor(
            kernel, alpha=np.asarray(noise) / self.scale**2 + _JITTER, n_restarts_optimizer=4, random_state=0
        )
        with warnings.catch_warnings():  # a parameter that does nothing has the longest length scale there is
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.process.fit(self.x, (np.asarray(values) - self.mean) / self.scale)

    def predict(self, params: Sequence[Params]) -> tuple[Array, Array]:
        """Expected value of settings over seeds, and how uncertain that is.

        :return: ``[m]`` means and standard deviations
        """
        points = np.array([self.encoding(p) for p in params])
        mean, deviation = self.process.predict(points, return_std=True)
        noise = self.process.kernel_.k2.noise_level  # of one more trial, not of the expected value
        return self.mean + self.scale * mean, self.scale * np.sqrt(np.maximum(deviation**2 - noise, 0.0))


# ---------------------------------------------------------------- candidates

#: Fewer completed trials say nothing about neighbours.
FEWEST = 4


@dataclass(frozen=True)
class Candidate:
    """A trial that may be recommended.

    :param trial: of the study
    :param mean: over the study's seeds
    :param expected: the surrogate's expectation, with the noise shrunk
    :param worst_neighbour: lowest expectation of it and its neighbours
    :param fresh: means of trainings with seeds that the study has not used; empty: not trained again
    """

    trial: FrozenTrial
    mean: float
    expected: float
    worst_neighbour: float
    fresh: tuple[float, ...] = ()

    @property
    def fresh_mean(self) -> float:
        """Mean over the fresh seeds."""
        return float(np.mean(self.fresh))


def completed(study: Study) -> list[FrozenTrial]:
    """Trials with a value for each of their seeds."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [trial for trial in trials if trial.user_attrs.get("values") and trial.user_attrs.get("settings")]


def fit(trials: Sequence[FrozenTrial]) -> Surrogate:
    """The surrogate of a study.

    The variance of a trial's mean is the variance between seeds, pooled over trials, by the number of its seeds.

    :param trials: completed
    """
    space = {name: among for name, among in intersection_search_space(list(trials)).items() if not among.single()}
    values = [np.array(trial.user_attrs["values"]) for trial in trials]
    several = [v.var(ddof=1) for v in values if len(v) > 1]
    between = float(np.mean(several)) if several else 0.0
    noise = np.array([between / len(v) for v in values])
    return Surrogate(Encoding(space), [trial.params for trial in trials], np.array([v.mean() for v in values]), noise)


def candidates(trials: Sequence[FrozenTrial], surrogate: Surrogate, n: int) -> list[Candidate]:
    """The best by their worst neighbour, the best by their mean over seeds, in turn, until there are enough.

    :param trials: completed
    :param n: how many
    """
    found = []
    for trial in trials:
        around, _ = surrogate.predict([trial.params, *surrogate.encoding.neighbours(trial.params)])
        mean = float(np.mean(trial.user_attrs["values"]))
        found.append(Candidate(trial, mean, float(around[0]), float(around.min())))
    by_neighbour = sorted(found, key=lambda c: -c.worst_neighbour)
    by_mean = sorted(found, key=lambda c: -c.mean)
    in_turn = [c for pair in zip(by_neighbour, by_mean, strict=True) for c in pair]
    return list({c.trial.number: c for c in in_turn}.values())[:n]


def recommended(again: Sequence[Candidate]) -> Candidate:
    """Recommend the candidate with the best worst neighbour, among those within a standard error of the best fresh mean.

    :param again: candidates that were trained again
    """
    best = max(again, key=lambda c: c.fresh_mean)
    error = np.nan_to_num(standard_error(best.fresh))
    return max((c for c in again if c.fresh_mean >= best.fresh_mean - error), key=lambda c: c.worst_neighbour)


def standard_error(values: Sequence[float] | Array) -> float:
    """Standard error of a mean; NaN for a single value."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def mean_and_error(values: Sequence[float] | Array) -> str:
    """A mean and its standard error, where there is one."""
    error = standard_error(values)
    return f"{np.mean(values):.1f} +- {error:.1f}" if np.isfinite(error) else f"{np.mean(values):.1f}"


# ---------------------------------------------------------------- surfaces


def measured(trials: Sequence[FrozenTrial], names: tuple[str, str]) -> pd.DataFrame:
    """Mean and standard error per pair of a grid's values, over all seeds of its trials (NaN for one training).

    :param trials: of a grid, completed
    :param names: of two of its parameters
    """
    cells: dict[tuple[object, object], list[float]] = {}
    for trial in trials:
        cells.setdefault((trial.params[names[0]], trial.params[names[1]]), []).extend(trial.user_attrs["values"])
    rows = [(*cell, np.mean(v), standard_error(v), len(v)) for cell, v in cells.items()]
    return pd.DataFrame(rows, columns=[*names, "mean", "uncertainty", "trainings"]).sort_values(list(names), ignore_index=True)


def modelled(surrogate: Surrogate, at: FrozenTrial, names: tuple[str, str]) -> pd.DataFrame:
    """Expectation and standard deviation of a fitted model over two parameters; the others as in a trial.

    :param at: the trial
    :param names: of two parameters that all trials have
    """
    x, y = (surrogate.encoding.values(name) for name in names)
    points = [{**at.params, names[0]: a, names[1]: b} for a in x for b in y]
    mean, deviation = surrogate.predict(points)
    columns = {name: [p[name] for p in points] for name in names}
    return pd.DataFrame({**columns, "mean": mean, "uncertainty": deviation})


def draw_surface(
    table: pd.DataFrame, names: tuple[str, str], surrogate: Surrogate, trials: Sequence[FrozenTrial], of: str
) -> Figure:
    """Draw two panels, the mean and its uncertainty. Trials are points if the axes are numbers.

    :param table: of :func:`measured` or :func:`modelled`
    :param of: description of the other parameters
    """
    figure, both = plt.subplots(1, 2, figsize=(11.0, 4.4), layout="constrained")
    values = [list(dict.fromkeys(table[name])) for name in names]
    for axes, column, title in zip(both, ("mean", "uncertainty"), ("mean return", "its uncertainty (1 sd)"), strict=True):
        cells = table.pivot(index=names[1], columns=names[0], values=column).loc[values[1], values[0]].to_numpy()
        mesh = axes.pcolormesh(cells, cmap="viridis" if column == "mean" else "magma", shading="flat")
        if np.isfinite(cells).any():
            figure.colorbar(mesh, ax=axes)
            axes.set_title(title, fontsize=10)
        else:
            axes.set_title("its uncertainty is unknown: one training per cell", fontsize=10)
        for which, name, shown in (("x", names[0], values[0]), ("y", names[1], values[1])):
            _ticks(axes, which, name, shown)
        if cells.size <= 64:
            _numbers(axes, cells)
        elif column == "mean":
            _points(axes, names, surrogate, trials, cells.shape)
    figure.suptitle(of, fontsize=9)
    return figure


def _ticks(axes: Axes, which: str, name: str, shown: Sequence[object]) -> None:
    """A few labels along an axis whose cells are numbered."""
    some = range(len(shown)) if len(shown) <= 6 else np.linspace(0, len(shown) - 1, 5).round().astype(int).tolist()
    texts = [f"{shown[i]:.3g}" if isinstance(shown[i], float) else str(shown[i]) for i in some]
    axes.set(**{f"{which}ticks": [i + 0.5 for i in some], f"{which}ticklabels": texts, f"{which}label": name})


def _numbers(axes: Axes, cells: np.ndarray) -> None:
    """Each cell's value in it, in white on a box, so that it can be read on any colour."""
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.7, "linewidth": 0}
            axes.text(column + 0.5, row + 0.5, f"{value:.3g}", ha="center", va="center", fontsize=8, bbox=box)


def _points(
    axes: Axes, names: tuple[str, str], surrogate: Surrogate, trials: Sequence[FrozenTrial], shape: tuple[int, ...]
) -> None:
    places = []
    for name, n in zip(names, (shape[1], shape[0]), strict=True):
        among = surrogate.encoding.space[name]
        if isinstance(among, CategoricalDistribution):
            choices = surrogate.encoding.values(name)
            places.append([choices.index(trial.params[name]) + 0.5 for trial in trials])
        else:
            column = surrogate.encoding.column
            places.append([0.5 + (n - 1) * float(column(among, trial.params[name])[0]) for trial in trials])
    axes.plot(*places, "o", color="white", markeredgecolor="black", markersize=4, label="trials")
    axes.legend(fontsize=8, loc="upper right")


# ---------------------------------------------------------------- command line

#: Makes the seeds of this command differ from the study's.
FRESH = 20_231


def make_parser() -> Parser:
    parser = Parser("zoo.recommend", __doc__)
    add = parser.add_argument
    add("--study-name", required=True, help="of the study")
    add("--storage", help="journal file (.log) or URL of a database; default: journal.log in the study's folder")
    add("-f", "--log-folder", default="logs", help="root of all logs")
    add("--surface", nargs=2, action="append", default=[], metavar=("X", "Y"), help="two parameters; may be given again")
    add("--candidates", type=int, default=3, help="trials to train again")
    add("--fresh-seeds", type=int, default=5, help="trainings of each; 0: none, and no recommendation")
    add_gym_packages(parser)
    add_torch(parser)
    return parser


def draw_surfaces(
    study: Study,
    trials: Sequence[FrozenTrial],
    surrogate: Surrogate,
    at: FrozenTrial,
    pairs: Sequence[Sequence[str]],
    folder: Path,
) -> list[Path]:
    """Write one picture and one table per pair of parameters.

    :param at: trial with the other parameters
    :param pairs: names; empty: the two most important ones
    :raises BadInput: for a name that not all trials have
    """
    known = surrogate.encoding.space
    for name in (name for pair in pairs for name in pair):
        if name not in known:
            raise BadInput(f"--surface {name}: not all trials have it.{did_you_mean(name, known)} ({', '.join(known)})")
    if not pairs and len(known) > 1:
        pairs = [[name for name in get_param_importances(study, params=list(known))][:2]]
    drawn = []
    for x, y in pairs:
        grid = bool(study.user_attrs.get("grid"))
        table = measured(trials, (x, y)) if grid else modelled(surrogate, at, (x, y))
        of = f"Gaussian process; other parameters as in trial {at.number}"
        of = "mean over all trainings of the grid; blank: none has come to its end" if grid else of
        path = folder / f"surface_{x}_{y}"
        files.write(path.with_suffix(".csv"), table.to_csv(index=False, float_format="%.6g"))
        drawn += figures.save(draw_surface(table, (x, y), surrogate, trials, of), path)
    return drawn


def train_again(study: Study, found: Sequence[Candidate], n_seeds: int, args: Namespace) -> list[Candidate]:
    """Train candidates again with fresh seeds, the same for all.

    :param n_seeds: trainings of each
    """
    about = study.user_attrs
    options = {"env_kwargs": about["env_kwargs"], "eval_env_kwargs": about["eval_env_kwargs"], "device": args.device}
    objective = Objective(
        about["algo"], about["env"], about["entry"], {}, about["n_timesteps"], n_seeds, 1, about["eval_episodes"], 0, options
    )
    used = {seed for trial in study.get_trials(deepcopy=False) for seed in trial.user_attrs.get("training_seeds", [])}
    seeds = [seed for i in range(n_seeds + len(used)) if (seed := derived_seed(FRESH, i)) not in used][:n_seeds]
    again = []
    for candidate in found:
        values = []
        for seed in seeds:
            values.append(objective.train(candidate.trial.user_attrs["settings"], seed, lambda number, value: None))
        again.append(replace(candidate, fresh=tuple(values)))
        print(f"trial {candidate.trial.number}: {candidate.mean:.1f} in the study, {mean_and_error(values)} with fresh seeds")
    objective.evaluation_envs.close()
    return again


def report(study: Study, again: Sequence[Candidate], chosen: Candidate, folder: Path) -> None:
    """Write ``recommended.yml`` and ``recommendation.md``."""
    lines = [
        "| trial | mean in the study | expected | worst neighbour | fresh seeds: mean | standard error |",
        "|---" * 6 + "|",
    ]
    for c in again:
        cells = [c.mean, c.expected, c.worst_neighbour, c.fresh_mean, standard_error(c.fresh)]
        shown = " | ".join(f"{x:.1f}" if np.isfinite(x) else "unknown" for x in cells)
        mark = " (recommended)" if c is chosen else ""
        lines.append(f"| {c.trial.number}{mark} | {shown} |")
    luckiest = study.best_trial.number
    text = (
        f"# {study.study_name}\n\n{len(again)} of {len(study.trials)} trials, trained again with {len(chosen.fresh)} seeds "
        f"that the study has not used. The study's best value was trial {luckiest}'s, {study.best_value:.1f}. Recommended is, "
        "of those within a standard error of the best fresh mean, the one whose neighbours are best at their worst.\n\n"
    )
    files.write(folder / "recommendation.md", text + "\n".join(lines) + "\n")
    settings = {name: value for name, value in chosen.trial.user_attrs["settings"].items() if value is not None}
    fresh = f"{mean_and_error(chosen.fresh)} over {how_many(len(chosen.fresh), 'fresh seed')}"
    head = f"# Trial {chosen.trial.number} of study {study.study_name}: {fresh} ({chosen.mean:.1f} in the study)\n"
    path = files.write(folder / "recommended.yml", head + yaml.safe_dump({study.user_attrs["env"]: settings}, sort_keys=True))
    print(f"Recommended: trial {chosen.trial.number}, {fresh}")
    print(f"Train it:    {call('train')} {shlex.join([*study.user_attrs['train_options'], '--conf-file', str(path)])}")


def main(arguments: Sequence[str]) -> int:
    """Execute the command.

    :param arguments: command line
    :return: 0
    """
    args = make_parser().parse_args(arguments)
    check_at_least(args, candidates=1, fresh_seeds=0)
    folder = Path(args.log_folder, "tune", args.study_name)
    storage = args.storage or str(folder / "journal.log")
    check_source(folder, storage)
    study = load_study(storage, args.study_name)
    trials = completed(study)
    if len(trials) < FEWEST:
        raise BadInput(f"{args.study_name} has {len(trials)} completed trial(s); {FEWEST} are the fewest to fit.")
    register()
    known_env(study.user_attrs["env"], args.gym_packages)
    use_threads(args)
    surrogate = fit(trials)
    found = candidates(trials, surrogate, args.candidates)
    for path in draw_surfaces(study, trials, surrogate, found[0].trial, args.surface, folder):
        print(f"Surface:     {path}")
    if args.fresh_seeds > 0:
        again = train_again(study, found, args.fresh_seeds, args)
        report(study, again, recommended(again), folder)
    return 0


if __name__ == "__main__":
    sys.exit(run("zoo.recommend", main, sys.argv[1:]))
