"""Train a variant with one seed, and keep its results as JSON."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import GRPO
from scripts.studies.common import records
from zoo.common.provenance import commit, versions

DOCS = Path(__file__).parents[3] / "docs"
DATA = DOCS / "studies" / "data"
IMG = DOCS / "img"
ANEW = "; the others are there (--again: all)"
EVAL_SEED = 10_000
EVAL_EPISODES = 20


class Variant(NamedTuple):
    """One row of a table."""

    label: str
    setting: str  #: its difference from the others, for the table
    steps: int
    make: Callable[[int], Any]  #: from a seed
    eval_env: str
    callbacks: Callable[[], list[BaseCallback]] = list
    evaluate: Callable[..., Any] = evaluate_policy


class Progress(BaseCallback):
    """Training returns after each rollout, and when the env first said that an episode is over before its time limit."""

    def __init__(self) -> None:
        super().__init__()
        self.first_goal: int | None = None
        self.goals = self.episodes = 0
        self.curve: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        for env_index in np.flatnonzero(self.locals["dones"]).tolist():
            reached = not self.locals["infos"][env_index].get("TimeLimit.truncated", False)
            self.episodes = self.episodes + 1
            self.goals = self.goals + reached
            if reached and self.first_goal is None:
                self.first_goal = self.num_timesteps
        return True

    def _on_rollout_end(self) -> None:
        if self.model.ep_info_buffer:
            self.curve.append((self.num_timesteps, float(np.mean([info["r"] for info in self.model.ep_info_buffer]))))


def train(variant: Variant, seed: int) -> dict[str, Any]:
    """Train, then evaluate the last weights, actions at their mode, over episodes that all runs share."""
    th.set_num_threads(1)
    model = variant.make(seed)
    progress = Progress()
    start = time.perf_counter()
    callbacks = variant.callbacks()
    model.learn(variant.steps, callback=[progress, *callbacks])
    seconds = time.perf_counter() - start
    env = make_vec_env(variant.eval_env, 1, seed=EVAL_SEED)
    returns, _ = variant.evaluate(model, env, EVAL_EPISODES, return_episode_rewards=True)
    return {
        "variant": variant.label,
        "setting": variant.setting,
        "seed": seed,
        "env_steps": model.num_timesteps,
        "gradient_steps": gradient_steps(model),
        "wall_time_s": round(seconds, 2),
        "first_goal": progress.first_goal,
        "goals": progress.goals,
        "episodes": progress.episodes,
        "curve": progress.curve,
        "final_returns": returns,
        "commit": commit(),
        "versions": versions(),
        **{key: value for callback in callbacks for key, value in getattr(callback, "kept", dict)().items()},
    }


def gradient_steps(model: Any) -> int:
    """Taken in a training; of SB3's algorithms, which count epochs, those times the minibatches of one."""
    if isinstance(model, GRPO):
        return model._n_gradient_steps
    return model._n_updates * -(-model.n_steps * model.n_envs // model.batch_size)  # type: ignore[no-any-return]


def evaluate_normalized(model: OnPolicyAlgorithm, env_id: str, episodes: int) -> list[float]:
    """Returns of the last weights, actions at their mode, under the observation statistics of the training.

    :param model: trained on a VecNormalize
    """
    trained_on = model.get_vec_normalize_env()
    assert trained_on is not None
    env = VecNormalize(make_vec_env(env_id, 1, seed=EVAL_SEED), norm_reward=False, training=False)
    env.obs_rms = trained_on.obs_rms
    returns, _ = evaluate_policy(model, env, episodes, return_episode_rewards=True)
    assert isinstance(returns, list)
    return returns


def run(part: str, variants: Sequence[Variant], seeds: Sequence[int], again: bool = False) -> None:
    """Train every variant with every seed; runs on disk are kept.

    :param part: folder under docs/studies/data
    :param again: also repeat runs on disk
    """
    wanted = [(variant, seed) for seed in seeds for variant in variants]
    done = {v.label: set() if again else {run["seed"] for run in runs_of(part, v)} for v in variants}
    missing = [(variant, seed) for variant, seed in wanted if seed not in done[variant.label]]
    print(f"{DATA / part}: {len(missing)} of {len(wanted)} runs to do{ANEW if len(missing) < len(wanted) else ''}", flush=True)
    for variant, seed in missing:
        result = train(variant, seed)
        records.put(file(part, variant), result, "variant", "seed")
        mean = np.mean(result["final_returns"])
        print(f"{part} {variant.label} seed {seed}: {mean:.1f} after {result['env_steps']} steps", flush=True)


def probe_parser(doc: str | None, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """Make the parser of a study that trains one setting on one env: ``run`` with a few seeds, or ``report``.

    :param doc: of the module
    :param seeds: the default ones
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--env", default="Walker2d-v5")
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
    return parser


def run_probe(
    parser: argparse.ArgumentParser,
    setting: str,
    path: Callable[[str, Any], Path],
    run: Callable[[str, Any, int], None],
    report: Callable[[], None],
) -> None:
    """Execute the command line; runs on disk are kept.

    :param parser: of :func:`probe_parser`, with an argument for the setting
    :param setting: the name of that argument
    :param path: of the file of an env and a setting
    :param run: trains it with a seed and writes the result there
    :param report: prints the results
    """
    args = parser.parse_args()
    th.set_num_threads(1)
    if args.what == "report":
        report()
        return
    chosen = getattr(args, setting)
    done = records.seeds(path(args.env, chosen))
    missing = [seed for seed in args.seeds if seed not in done]
    print(f"{len(missing)} of {len(args.seeds)} runs to do; what is on disk is left as it is", flush=True)
    for seed in missing:
        run(args.env, chosen, seed)


def main(part: str, doc: str | None, variants: Sequence[Variant], table: Callable[[], str], draw: Callable[[], None]) -> None:
    """Execute a study of variants: train missing runs, print the table, draw the picture.

    :param part: folder under docs/studies/data
    :param doc: of the module
    :param variants: rows of the table
    :param table: makes it
    :param draw: draws the picture
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="default: 0 to 4")
    parser.add_argument("--only", nargs="+", choices=[v.label for v in variants], help="variants to train; default: all")
    parser.add_argument("--again", action="store_true", help="train also what is there")
    parser.add_argument("--report", action="store_true", help="only table and picture")
    args = parser.parse_args()
    if not args.report:
        run(part, [v for v in variants if args.only is None or v.label in args.only], args.seeds, args.again)
    print(table())
    draw()


def file(part: str, variant: Variant) -> Path:
    """File with the runs of a variant, shared with the other variants on its env."""
    return DATA / part / f"{variant.eval_env}.jsonl"


def runs_of(part: str, variant: Variant) -> list[dict[str, Any]]:
    """Raw results of a variant, seeds in order."""
    return [run for run in records.read(file(part, variant)) if run["variant"] == variant.label]


def results(part: str, variants: Sequence[Variant]) -> dict[str, list[dict[str, Any]]]:
    """Raw results of the variants that have run, seeds in order."""
    found = {v.label: runs_of(part, v) for v in variants}
    return {label: runs for label, runs in found.items() if runs}
