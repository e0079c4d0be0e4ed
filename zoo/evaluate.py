"""Compare saved models on common reset seeds and variants of the env, with paired statistics.

``python -m zoo.evaluate logs/grpo/CartPole-v1_1 logs/ppo/CartPole-v1_1 --env-kwargs-grid sutton_barto_reward=True,False``
takes run folders of zoo.train, folders of them, and models' zips. Tests are over episodes, so they are about these models; for
algorithms the training seed is the unit: ``zoo.compare`` on the same folders, or on the records that this command writes.
"""

from __future__ import annotations

import sys
import textwrap
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pandas as pd
import torch as th
from matplotlib.figure import Figure

from sb_grpo import files
from sb_grpo.evaluation import FIRST_SEED

from .common.command_line import BadInput, Parser, add_untrusted, default_threads, how_many, known_env, parse_grid, run
from .common.episodes import close
from .common.folders import check_place
from .comparing import figures
from .comparing.tables import to_markdown
from .evaluating import records, tables
from .evaluating.models import Contestant, find, say_left_out
from .evaluating.playing import Played, play_all, variants_of
from .training.experiment import register

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
    add("--gym-packages", nargs="+", default=[], help="packages to import that register envs")
    add("--env-kwargs-grid", nargs="+", default=[], metavar="NAME=V,V", help="variants of the env: all combinations")
    add("--episodes", type=int, default=100, help="per model and variant")
    add("--first-seed", type=int, default=FIRST_SEED, help="reset seeds count on from here; no training starts there")
    add("--stochastic", action="store_true", help="draw actions (default for Atari and MiniGrid, as in rl_zoo3)")
    add("--n-envs", type=int, default=8, help="envs side by side; changes the time that it takes only")
    add_untrusted(parser)
    add("--device", default="auto", help="of torch")
    add("--num-threads", type=int, default=default_threads(), help="threads of torch; -1: its own choice")
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
    made = {name: table for name, of in tables.ALL.items() if len(table := of(models, played))}
    for name, table in made.items():
        files.write(out / "tables" / f"{name}.csv", table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    figures.save(draw(made["summary"]), out / "figures" / "returns")
    records.write(models, played, out / "results")
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

    :param summary: ``tables.summary``
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


def body(arguments: Sequence[str]) -> int:
    """Execute the command.

    :param arguments: command line
    :return: 0
    """
    args = make_parser().parse_args(arguments)
    check_place("--out", args.out, is_folder=True)
    for name, least in (("episodes", 2), ("n_envs", 1), ("first_seed", 0)):
        if getattr(args, name) < least:
            raise BadInput(f"--{name.replace('_', '-')} {getattr(args, name)} must be at least {least}.")
    register()
    if args.env is not None:
        args.env, args.gym_packages = known_env(args.env, args.gym_packages)
    if args.num_threads > 0:
        th.set_num_threads(args.num_threads)
    models = find(args.models, args.load_best, args.algo, args.env, trusted=not args.untrusted)
    models = loadable(models, args.device) if len(models) > 1 else models
    played = evaluate(models, args)
    for note in played.notes:
        print(note)
    for _, row in tables.summary(models, played).iterrows():
        interval = f"[{row['mean_low']:.4g}, {row['mean_high']:.4g}]"
        over = how_many(row["episodes"], "episode")
        print(f"{row['env']}  {row['model']}: mean return {row['mean']:.4g} {interval} over {over}")
    print(f"Report: {write(models, played, args.out)}")
    return 0


def main(arguments: Sequence[str]) -> int:
    """``python -m zoo.evaluate``."""
    return run("zoo.evaluate", body, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
