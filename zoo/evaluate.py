"""Compare saved models on common reset seeds and variants of the env, with paired statistics.

``python -m zoo.evaluate logs/grpo/CartPole-v1_1 logs/ppo/CartPole-v1_1 --env-kwargs-grid sutton_barto_reward=True,False``
takes run folders of zoo.train, folders of them, and models' zips. Tests are over episodes, so they are about these models; for
algorithms the training seed is the unit: ``zoo.compare`` on the same folders, or on the records that this command writes.
"""

from __future__ import annotations

import json
import sys
import textwrap
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pandas as pd
import rl_zoo3
import torch as th
from matplotlib.figure import Figure
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo import files
from sb_grpo.collect.given_starts import GivenStart
from sb_grpo.collect.seeded_episodes import Episodes, Policy, actor, frozen_statistics, held, play
from sb_grpo.envs.installing import install_seeded_reset
from sb_grpo.evaluation import FIRST_SEED
from sb_grpo.save_util import read_entry

from .benchmarking.results import EVALUATED, LINES, Point, Record
from .common.command_line import (
    BadInput,
    Grid,
    Parser,
    add_gym_packages,
    add_torch,
    add_untrusted,
    check_at_least,
    how_many,
    known_env,
    one_line,
    parse_grid,
    read_or_note,
    run,
    use_threads,
)
from .common.episodes import RandomPolicy, close
from .common.folders import check_place
from .comparing import figures, statistics
from .comparing.tables import to_markdown
from .training.card import Metrics
from .training.experiment import register
from .training.run_files import is_run_folder, read_run_files, settings_folder_of
from .training.saved import Saved, check_untrusted

#: Used keys of ``metrics.json``.
NUMBERS = ("planned_steps", "env_steps", "gradient_steps", "wall_time_s")


@dataclass(frozen=True)
class Contestant:
    """Saved model with a name.

    :param saved: the model and its settings
    :param label: of the algorithm, or from the user; models of one label differ by their seeds
    :param name: unique name
    :param seed: of its training
    :param folder: of its run
    """

    saved: Saved
    label: str
    name: str
    seed: int
    folder: Path

    @cached_property
    def broken(self) -> list[str]:
        """Lines about damaged files of the run that have been read."""
        return []

    @cached_property
    def metrics(self) -> Metrics:
        """``metrics.json`` of the run; empty if it cannot be read, for example after a kill."""
        return read_or_note(self.folder / "metrics.json", _read_metrics, self.broken) or Metrics()

    @cached_property
    def curve(self) -> tuple[np.ndarray, np.ndarray] | None:
        """``[C]`` steps and ``[C, E]`` returns of the evaluations during training; None if they cannot be read."""
        return read_or_note(self.folder / "evaluations.npz", _read_evaluations, self.broken)


def _read_metrics(path: Path) -> Metrics:
    metrics: Metrics = json.loads(path.read_text())
    if not isinstance(metrics, dict):
        raise ValueError("it must be a JSON object")
    for name in NUMBERS:
        value = metrics.get(name)
        if value is not None and not (isinstance(value, int | float) and 0 <= value < np.inf):
            raise ValueError(f"{name}={value!r:.80} is no number from 0 on")
    return metrics


def _read_evaluations(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as data:
        steps = np.asarray(data["timesteps"], dtype=np.int64)
        results = np.asarray(data["results"], dtype=np.float64)
    if steps.ndim != 1 or results.ndim != 2 or len(steps) != len(results) or not np.isfinite(results).all():
        raise ValueError(f"{steps.shape} steps and {results.shape} results, which must be finite")
    return steps, results


def run_folders(path: Path) -> list[Path]:
    """The run folders at or below a folder, in order."""
    return [path] if is_run_folder(path) else sorted({file.parent.parent for file in path.rglob("*/*/config.yml")})


def is_saved(text: str) -> bool:
    """Whether an argument without results is about saved models: ``LABEL=PATH``, a zip, or a folder that holds runs."""
    path = Path(text)
    return "=" in text if not path.exists() else path.suffix == ".zip" or bool(run_folders(path))


def find(texts: Sequence[str], best: bool, algo: str | None, env_id: str | None, trusted: bool = True) -> list[Contestant]:
    """Find the models of the command line.

    :param texts: ``[LABEL=]PATH``: a run folder, a folder of them, or a model's zip
    :param best: of a run folder, the best model instead of the last
    :param algo: of zips without a run folder
    :param env_id: instead of the runs' own
    :param trusted: False: no data of the files is unpickled
    :raises BadInput: for paths without a model, and for models that cannot be read without unpickling
    """
    found: list[Contestant] = []
    refused: list[BadInput] = []
    for text in texts:
        named = "=" in text and not Path(text).exists()
        label, place = text.split("=", 1) if named else ("", text)
        path = Path(place)
        folders = [path.parent] if path.suffix == ".zip" else run_folders(path)
        if not path.exists() or not folders:
            raise BadInput(f"{text}: there is no such {'file' if path.suffix == '.zip' else 'run folder'}.")
        for folder in folders:
            model = path if path.suffix == ".zip" else None
            try:
                found.append(_contestant(folder, model, best, algo, env_id, label, trusted))
            except BadInput as error:
                refused.append(error)
    say_left_out(found, refused)
    return _with_unique_labels(found)


def say_left_out(found: Sequence[Contestant], refused: Sequence[BadInput]) -> None:
    """Report the models that cannot be evaluated.

    :raises BadInput: the first one, if no model is left
    """
    if not found:
        raise refused[0]
    for reason in refused:
        print(f"left out: {one_line(reason)}", file=sys.stderr)


def _contestant(
    folder: Path, model: Path | None, best: bool, algo: str | None, env_id: str | None, label: str, trusted: bool
) -> Contestant:
    settings = settings_folder_of(folder)
    args = read_run_files(settings, trusted).options
    of_run = algo or args.get("algo")
    its_env = env_id or args.get("env")
    seed = args.get("seed") or 0
    path = model or folder / ("best_model.zip" if best else f"{settings.name}.zip")
    if of_run is None or its_env is None:
        raise BadInput(f"{path}: no run stands beside it, so say --algo and --env.")
    if not isinstance(of_run, str) or of_run not in rl_zoo3.ALGOS:
        raise BadInput(f"{path}: unknown algorithm {of_run!r}.")
    if not isinstance(its_env, str) or not isinstance(seed, int):
        raise BadInput(f"{settings / 'args.yml'}: env={its_env!r:.80} must be text, and seed={seed!r:.80} a whole number.")
    if not path.exists():
        raise BadInput(f"{folder} holds no {path.name}; there are {sorted(file.name for file in folder.glob('*.zip'))}.")
    try:
        read_entry(path, "data")
    except ValueError as error:
        raise BadInput(f"cannot load {path}: {error}") from error
    check_untrusted(of_run, trusted)
    name = folder.name if model is None and not best else f"{folder.name}/{path.stem}"
    return Contestant(Saved(of_run, path, settings, its_env, trusted), label or of_run, f"{of_run} {name}", seed, folder)


def _with_unique_labels(found: list[Contestant]) -> list[Contestant]:
    """Give models with equal label and seed distinct labels, because they are different variants."""
    twice = {key for key, n in Counter((one.label, one.seed) for one in found).items() if n > 1}
    labels = {one.label for one in found if (one.label, one.seed) in twice}
    made = [replace(one, label=one.name.replace(" ", "-").replace("/", "-")) if one.label in labels else one for one in found]
    again = [one for one, n in Counter(one.saved.path.resolve() for one in made).items() if n > 1]
    if again:
        raise BadInput(f"{again[0]} is given twice.")
    return made


# ---------------------------------------------------------------- episodes


class Variant(NamedTuple):
    """Variant of the env."""

    name: str  #: ``CartPole-v1``, or ``CartPole-v1[masscart=2]``
    kwargs: dict[str, object]


class Played(NamedTuple):
    """Results of an evaluation."""

    variants: list[Variant]
    seeds: list[int]
    returns: dict[tuple[str, str], np.ndarray]  #: (variant, model) -> ``[n]`` in the order of the seeds
    random: dict[str, float]  #: variant -> mean return of random actions on the same seeds
    sizes: dict[str, tuple[int, int]]  #: model -> trainable parameters, SB3's count of updates
    notes: list[str]


def variants_of(env_id: str, grid: Grid) -> list[Variant]:
    """Make a variant per combination of a grid.

    :param grid: values by name; empty: the env as in training
    """
    made = []
    for values in product(*grid.values()):
        kwargs = dict(zip(grid, values, strict=True))
        inside = ",".join(f"{name}={value}" for name, value in kwargs.items())
        made.append(Variant(f"{env_id}[{inside}]" if kwargs else env_id, kwargs))
    return made


def play_all(
    contestants: Sequence[Contestant],
    variants: Sequence[Variant],
    seeds: list[int],
    n_envs: int,
    stochastic: bool,
    device: str,
) -> Played:
    """Play all models on all variants.

    :param seeds: of the episodes, the same for all
    :param n_envs: number of parallel envs
    :param stochastic: sample actions instead of taking the most likely
    :param device: of torch
    :raises BadInput: if a model or an env cannot be built
    """
    returns: dict[tuple[str, str], np.ndarray] = {}
    random: dict[str, float] = {}
    sizes: dict[str, tuple[int, int]] = {}
    notes: list[str] = []
    for variant in variants:
        starts: dict[str, list[str]] = {}
        for one in contestants:
            env = one.saved.make_env(variant.kwargs, n_envs=min(n_envs, len(seeds)))
            if variant.name not in random:
                random[variant.name] = random_reference(env, seeds)
            model = one.saved.load(env, device)
            parameters = sum(p.numel() for p in model.policy.parameters() if p.requires_grad)
            sizes[one.name] = parameters, int(getattr(model, "_n_updates", 0))
            try:
                episodes = _episodes(env, model, seeds, not (stochastic or one.saved.draws_actions))
            except ValueError as error:
                raise BadInput(f"{one.name} on {variant.name}: {error}") from error
            finally:
                close(env)
            returns[variant.name, one.name] = episodes.returns
            starts[one.name] = episodes.starts
        first, *others = starts
        unlike = [name for name in others if starts[name] != starts[first]]
        if unlike:
            notes.append(
                f"{variant.name}: {', '.join(unlike)} saw other first observations than {first}: other wrappers, or an env "
                "that ignores its seed; in the latter case the pairs are none."
            )
    return Played(list(variants), seeds, returns, random, sizes, notes)


def random_reference(env: VecEnv, seeds: list[int]) -> float:
    """Mean return of random actions, reproducible."""
    policy = RandomPolicy(env.action_space, 0)
    return float(_episodes(env, policy, seeds, False).returns.mean())


def _episodes(env: VecEnv, policy: Policy | RandomPolicy, seeds: list[int], deterministic: bool) -> Episodes:
    install_seeded_reset(env)
    th.manual_seed(seeds[0])
    with held(env), frozen_statistics(env):
        act = actor(policy, None, deterministic)  # type: ignore[arg-type]  # RandomPolicy has predict, too
        return play(act, env, [GivenStart(seed) for seed in seeds])


# ---------------------------------------------------------------- result files


def write_records(models: Sequence[Contestant], played: Played, out: Path) -> list[Path]:
    """Write one file of lines per label. A run with a damaged file is left out if complete runs exist.

    :param out: folder
    """
    lines: dict[str, list[str]] = {}
    for one in models:
        _ = one.metrics, one.curve  # reads them, and finds damaged files
    whole = [one for one in models if not one.broken]
    for variant in played.variants:
        for one in whole or models:
            earned = [float(x) for x in played.returns[variant.name, one.name]]
            lines.setdefault(one.label, []).append(
                json.dumps(_record(one, variant.name, earned, played.sizes[one.name]), default=str)
            )
    return [files.write(out / f"{label}{LINES}", "\n".join(of) + "\n") for label, of in lines.items()]


def _record(one: Contestant, env: str, earned: list[float], size: tuple[int, int]) -> Record:
    """Make a record. Times include evaluations, if the run has them; processor times are unknown."""
    metrics = one.metrics
    curve = one.curve
    last = int(curve[0][-1]) if curve is not None and len(curve[0]) else 0
    steps = int(metrics.get("planned_steps") or metrics.get("env_steps") or last)
    wall = float(metrics.get("wall_time_s") or 0.0)
    if curve is None:
        points: list[Point] = [{"steps": steps, "env_steps": steps, "train_wall_s": wall, "returns": earned}]
    else:
        points = [
            {
                "steps": int(at),
                "env_steps": int(at),
                "train_wall_s": wall * int(at) / max(steps, 1),
                "returns": list(map(float, of)),
            }
            for at, of in zip(*curve, strict=True)
        ]
    source = f"{EVALUATED}{one.saved.path}"
    return {
        "spec": {"env": env, "label": one.label, "algo": one.saved.algo, "seed": one.seed, "steps": steps, "source": source},
        "env_steps": int(metrics.get("env_steps") or steps),
        "gradient_steps": int(metrics.get("gradient_steps") or 0),
        "n_updates": size[1],
        "parameters": size[0],
        "train_wall_s": wall,
        "train_cpu_s": 0.0,
        "checkpoints": points,
        "final_returns": earned,
        "settings": {name: str(value) for name, value in one.saved.hyperparams.items()},
        "commit": metrics.get("commit"),
        "versions": metrics.get("versions"),
    }


# ---------------------------------------------------------------- tables


def returns(models: Sequence[Contestant], played: Played) -> pd.DataFrame:
    """One line per episode, the basis of all other tables."""
    return pd.DataFrame(
        {"env": variant.name, "model": one.name, "seed": seed, "return": value}
        for variant in played.variants
        for one in models
        for seed, value in zip(played.seeds, played.returns[variant.name, one.name], strict=True)
    )


def summary(models: Sequence[Contestant], played: Played) -> pd.DataFrame:
    """Per variant of the env and model: mean with its 95 % bootstrap interval over episodes, IQM and extremes."""
    rows = []
    for variant in played.variants:
        for one in models:
            earned = played.returns[variant.name, one.name]
            low, high = statistics.interval(statistics.mean, [earned])
            row = {"env": variant.name, "model": one.name, "episodes": len(earned), "mean": earned.mean()}
            row |= {"mean_low": float(low), "mean_high": float(high), "iqm": float(statistics.iqm([earned]))}
            row |= {"std": earned.std(ddof=1), "worst": earned.min(), "best": earned.max()}
            rows.append({**row, "random": played.random[variant.name]})
    return pd.DataFrame(rows)


def paired(models: Sequence[Contestant], played: Played) -> pd.DataFrame:
    """Per variant and pair of models: difference seed by seed, paired t-test, Holm's correction over the variant's pairs."""
    rows: list[dict[str, str | float]] = []
    for variant in played.variants:
        of_variant: list[dict[str, str | float]] = []
        for a, b in combinations(models, 2):
            x, y = (played.returns[variant.name, one.name] for one in (a, b))
            test = statistics.paired(x, y)
            correlation, saved = statistics.common_noise([x], [y])
            row: dict[str, str | float] = {"env": variant.name, "model": a.name, "other": b.name, "pairs": len(x)}
            row |= {"difference": test.difference, "difference_low": test.low, "difference_high": test.high, "p": test.p}
            of_variant.append({**row, "p_wilcoxon": test.wilcoxon, "correlation": correlation, "variance_saved": saved})
        corrected = statistics.holm(np.array([row["p"] for row in of_variant]))
        rows += [{**row, "p_holm": p} for row, p in zip(of_variant, corrected, strict=True)]
    return pd.DataFrame(rows)


def stability(models: Sequence[Contestant], played: Played) -> pd.DataFrame:
    """Per model with evaluations during training: best, last, drop between them, area under the curve."""
    rows = []
    for one in models:
        if one.curve is None:
            continue
        steps, results = one.curve
        curve = results.mean(axis=1)
        row = {"model": one.name, "evaluations": len(curve), "best": curve.max(), "best_at": int(steps[curve.argmax()])}
        row |= {"last": curve[-1], "drop_from_best": statistics.drop_from_best(curve)}
        rows.append({**row, "area_under_curve": statistics.area_under_curve(curve, steps)})
    return pd.DataFrame(rows)


def normalised(models: Sequence[Contestant], played: Played) -> tuple[list[str], dict[str, np.ndarray]]:
    """Normalise mean returns: 0 is the return of random actions on the same seeds, 1 that of the best model.

    :return: variants in which the best model is better than random, and per model ``[variants]``
    """
    means = {v.name: {one.name: played.returns[v.name, one.name].mean() for one in models} for v in played.variants}
    usable = [name for name, of in means.items() if max(of.values()) > played.random[name]]
    scores = {
        one.name: np.array(
            [(means[v][one.name] - played.random[v]) / (max(means[v].values()) - played.random[v]) for v in usable]
        )
        for one in models
    }
    return usable, scores


def fairness(models: Sequence[Contestant], played: Played) -> pd.DataFrame:
    """Per model, over the variants of the env: worst and best one, worst over best, and Gini, of normalised scores."""
    usable, scores = normalised(models, played)
    if len(usable) < 2:
        return pd.DataFrame()
    return pd.DataFrame({"model": one.name, **statistics.fairness_row(usable, scores[one.name])} for one in models)


TABLES: dict[str, Callable[[Sequence[Contestant], Played], pd.DataFrame]] = {
    table.__name__: table for table in (summary, paired, stability, fairness, returns)
}


# ---------------------------------------------------------------- command line

#: Table -> its description in the report; ``returns`` is only in its CSV file.
SECTIONS = {
    "summary": "Mean return with its 95 % bootstrap interval over episodes; `random`: mean of random actions, same seeds.",
    "paired": "Difference (model minus other) seed by seed, with the paired t-test's 95 % interval, p, Holm's correction over "
    "the pairs of the same env, and Wilcoxon's p. Variance saved: what common seeds are worth. About these models alone.",
    "stability": "Evaluations during training: the best, the last, what was lost in between, the mean height of the curve.",
    "fairness": "Over the variants of the env, of scores where 0 is random and 1 the best model on that variant; a Gini "
    "coefficient of 0 means that all variants are served alike.",
}


def make_parser() -> Parser:
    parser = Parser("zoo.evaluate", __doc__)
    add = parser.add_argument
    add("models", nargs="+", metavar="[LABEL=]PATH", help="run folder, folder of run folders, or a model's .zip")
    add("--load-best", action="store_true", help="of run folders: the best model instead of the last")
    add("--algo", help="of zips that stand alone")
    add("--env", help="env id, in place of the runs' own; package:Id too")
    add_gym_packages(parser)
    add("--env-kwargs-grid", nargs="+", default=[], metavar="NAME=V,V", help="variants of the env: all combinations")
    add("--episodes", type=int, default=100, help="per model and variant")
    add("--first-seed", type=int, default=FIRST_SEED, help="reset seeds count on from here; no training starts there")
    add("--stochastic", action="store_true", help="draw actions (default for Atari and MiniGrid, as in rl_zoo3)")
    add("--n-envs", type=int, default=8, help="envs side by side; changes the time that it takes only")
    add_untrusted(parser)
    add_torch(parser)
    add("--out", type=Path, default=Path("evaluation"), metavar="FOLDER", help="report.md, tables/, figures/, results/")
    return parser


def evaluate(models: Sequence[Contestant], args: Namespace) -> Played:
    """Play all models.

    :param args: of the command line
    :raises BadInput: for models of different envs
    """
    envs = sorted({one.saved.env_id for one in models})
    if len(envs) > 1:
        raise BadInput(f"the models are of different envs, {' and '.join(envs)}: evaluate them one env at a time.")
    known_env(envs[0], args.gym_packages)
    variants = variants_of(envs[0], parse_grid("--env-kwargs-grid", args.env_kwargs_grid))
    seeds = list(range(args.first_seed, args.first_seed + args.episodes))
    return play_all(models, variants, seeds, args.n_envs, args.stochastic, args.device)


def loadable(models: Sequence[Contestant], device: str) -> list[Contestant]:
    """Select models with complete files; report the others in a line.

    :raises BadInput: if there are none
    """
    found = []
    refused = []
    for one in models:
        try:
            env = one.saved.make_env({})
            try:
                one.saved.load(env, device)
            finally:
                close(env)
            found.append(one)
        except BadInput as error:
            refused.append(error)
    say_left_out(found, refused)
    return found


def write(models: Sequence[Contestant], played: Played, out: Path) -> Path:
    """Write report, tables and figures.

    :param out: folder
    :return: path of the report
    """
    made = {name: table for name, of in TABLES.items() if len(table := of(models, played))}
    for name, table in made.items():
        files.write(out / "tables" / f"{name}.csv", table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    figures.save(draw(made["summary"]), out / "figures" / "returns")
    write_records(models, played, out / "results")
    return files.write(out / "report.md", _report(models, played, made))


def _report(models: Sequence[Contestant], played: Played, made: dict[str, pd.DataFrame]) -> str:
    lines = [f"# {how_many(len(models), 'model')} on {', '.join(variant.name for variant in played.variants)}", ""]
    n = len(played.seeds)
    first = played.seeds[0]
    last = played.seeds[-1]
    lines += [f"{how_many(n, 'episode')} each, from the reset seeds {first} to {last}.", ""]
    lines += [f"- {note}" for note in played.notes] + ([""] if played.notes else [])
    lines += [f"- {one.name}: {one.saved.path}, training seed {one.seed}, label {one.label}" for one in models]
    lines += ["", "![returns](figures/returns.png)", ""]
    for name, text in SECTIONS.items():
        if name in made:
            lines += [f"## {name.capitalize()}", "", text, "", to_markdown(made[name]), ""]
            lines += [f"[tables/{name}.csv](tables/{name}.csv)", ""]
    return "\n".join(lines)


def draw(summary: pd.DataFrame) -> Figure:
    """Mean returns as points in their intervals, one panel per variant of the env.

    :param summary: ``summary``
    """
    names = list(dict.fromkeys(summary["model"]))
    figure, grid = figures.panels(list(dict.fromkeys(summary["env"])), height=0.4 * len(names) + 1.2)
    style = figures.styles(names)
    for number, (env, axes) in enumerate(grid):
        axes.set_title("\n".join(textwrap.wrap(env.replace(",", ", ").replace("[", " ["), 32)), fontsize=9)
        rows = summary[summary["env"] == env]
        for place, (_, row) in enumerate(rows[::-1].iterrows()):
            around = [[row["mean"] - row["mean_low"]], [row["mean_high"] - row["mean"]]]
            axes.errorbar(
                [row["mean"]], [place], xerr=np.array(around), fmt="o", capsize=3, color=style[row["model"]]["color"]
            )
        axes.axvline(float(rows["random"].iloc[0]), color="grey", linestyle=":", label="random actions")
        axes.set(yticks=range(len(rows)), xlabel="return", ylim=(-0.6, len(rows) - 0.4))
        axes.set_yticklabels(list(rows["model"])[::-1] if number % figures.PER_ROW == 0 else [])
    figures.legend_below(figure, figure.axes[0])
    return figure


def main(arguments: Sequence[str]) -> int:
    """Execute the command.

    :param arguments: command line
    :return: 0
    """
    args = make_parser().parse_args(arguments)
    check_place("--out", args.out, is_folder=True)
    check_at_least(args, episodes=2, n_envs=1, first_seed=0)
    register()
    if args.env is not None:
        args.env, args.gym_packages = known_env(args.env, args.gym_packages)
    use_threads(args)
    models = find(args.models, args.load_best, args.algo, args.env, trusted=not args.untrusted)
    models = loadable(models, args.device) if len(models) > 1 else models
    played = evaluate(models, args)
    for note in played.notes:
        print(note)
    for _, row in summary(models, played).iterrows():
        interval = f"[{row['mean_low']:.4g}, {row['mean_high']:.4g}]"
        over = how_many(row["episodes"], "episode")
        print(f"{row['env']}  {row['model']}: mean return {row['mean']:.4g} {interval} over {over}")
    print(f"Report: {write(models, played, args.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(run("zoo.evaluate", main, sys.argv[1:]))
