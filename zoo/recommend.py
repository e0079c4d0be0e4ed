"""Analyse a study of zoo.tune: sensitivity of the return to its parameters, and a robust recommended setting.

``python -m zoo.recommend --study-name grpo_CartPole-v1_20000`` draws the surface over the two most important parameters,
selects trials with good neighbours, trains them again with fresh seeds, and writes ``recommended.yml``.
"""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch as th
import yaml
from optuna.importance import get_param_importances
from optuna.study import Study
from optuna.trial import FrozenTrial

from sb_grpo import files

from .common.command_line import BadInput, Parser, call, default_threads, did_you_mean, how_many, known_env, run
from .common.episodes import close
from .common.plain_files import Hyperparams
from .comparing import figures
from .training.experiment import register
from .tuning import robust, surface
from .tuning.objective import Objective, ReportCallback
from .tuning.robust import Candidate
from .tuning.study import check_source, derived_seed, load_study
from .tuning.surrogate import Surrogate

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
    add("--gym-packages", nargs="+", default=[], help="packages to import that register envs")
    add("--device", default="auto", help="of torch")
    add("--num-threads", type=int, default=default_threads(), help="threads of torch; -1: its own choice")
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
        table = surface.measured(trials, (x, y)) if grid else surface.modelled(surrogate, at, (x, y))
        of = f"Gaussian process; other parameters as in trial {at.number}"
        of = "mean over all trainings of the grid; blank: none has come to its end" if grid else of
        path = folder / f"surface_{x}_{y}"
        files.write(path.with_suffix(".csv"), table.to_csv(index=False, float_format="%.6g"))
        drawn += figures.save(surface.draw(table, (x, y), surrogate, trials, of), path)
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
            values.append(_train(objective, candidate.trial.user_attrs["settings"], seed))
        again.append(replace(candidate, fresh=tuple(values)))
        print(f"trial {candidate.trial.number}: {candidate.mean:.1f} in the study, {robust.said(values)} with fresh seeds")
    objective.evaluation_envs.close()
    return again


def _train(objective: Objective, settings: Hyperparams, seed: int) -> float:
    """Train once as in the study, and return the objective at the end."""
    run_, model = objective.build(settings, seed)
    env = model.get_env()
    assert env is not None
    try:
        model.learn(
            objective.n_timesteps, callback=[*run_.callbacks, ReportCallback(objective.n_timesteps, 1, lambda n: None)]
        )
        return float(np.mean(objective.evaluation_envs.returns(run_, model, objective.eval_episodes)))
    finally:
        close(env)


def report(study: Study, again: Sequence[Candidate], chosen: Candidate, folder: Path) -> None:
    """Write ``recommended.yml`` and ``recommendation.md``."""
    lines = [
        "| trial | mean in the study | expected | worst neighbour | fresh seeds: mean | standard error |",
        "|---" * 6 + "|",
    ]
    for c in again:
        cells = [c.mean, c.expected, c.worst_neighbour, c.fresh_mean, robust.standard_error(c.fresh)]
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
    fresh = f"{robust.said(chosen.fresh)} over {how_many(len(chosen.fresh), 'fresh seed')}"
    head = f"# Trial {chosen.trial.number} of study {study.study_name}: {fresh} ({chosen.mean:.1f} in the study)\n"
    path = files.write(folder / "recommended.yml", head + yaml.safe_dump({study.user_attrs["env"]: settings}, sort_keys=True))
    print(f"Recommended: trial {chosen.trial.number}, {fresh}")
    print(f"Train it:    {call('train')} {shlex.join([*study.user_attrs['train_options'], '--conf-file', str(path)])}")


def body(arguments: Sequence[str]) -> int:
    """Execute the command.

    :param arguments: command line
    :return: 0
    """
    args = make_parser().parse_args(arguments)
    if args.candidates < 1 or args.fresh_seeds < 0:
        raise BadInput("--candidates must be at least 1, --fresh-seeds at least 0.")
    folder = Path(args.log_folder, "tune", args.study_name)
    storage = args.storage or str(folder / "journal.log")
    check_source(folder, storage)
    study = load_study(storage, args.study_name)
    trials = robust.completed(study)
    if len(trials) < robust.FEWEST:
        raise BadInput(f"{args.study_name} has {len(trials)} completed trial(s); {robust.FEWEST} are the fewest to fit.")
    register()
    known_env(study.user_attrs["env"], args.gym_packages)
    if args.num_threads > 0:
        th.set_num_threads(args.num_threads)
    surrogate = robust.fit(trials)
    found = robust.candidates(trials, surrogate, args.candidates)
    for path in draw_surfaces(study, trials, surrogate, found[0].trial, args.surface, folder):
        print(f"Surface:     {path}")
    if args.fresh_seeds > 0:
        again = train_again(study, found, args.fresh_seeds, args)
        report(study, again, robust.recommended(again), folder)
    return 0


def main(arguments: Sequence[str]) -> int:
    """``python -m zoo.recommend``."""
    return run("zoo.recommend", body, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
