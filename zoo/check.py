"""Check an env before training: report faults, doubtful points and remedies.

``python -m zoo.check --env MyEnv-v0 --gym-packages my_package`` plays episodes under random actions, in groups that share a
reset seed, and then trains for 20 seconds with the settings of zoo.train. Exit code 1 if something is broken.
"""

from __future__ import annotations

import contextlib
import io
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from sb_grpo.envs.alignment import Play
from sb_grpo.envs.valid_actions import ValidActions

from .checking import probes
from .checking.episodes import Episode, play_groups
from .checking.findings import BROKEN, LOOK, Finding
from .checking.trial import acting, check_training, fitting_policy
from .common.command_line import BadInput, Parser, Settings, check_seed, default_threads, known_env, one_line, run
from .common.plain_files import HYPERPARAMS, Hyperparams, read_sections
from .training.experiment import register
from .training.settings import check_settings, entry_name
from .tuning.objective import TrialRun


def make_parser() -> Parser:
    parser = Parser("zoo.check", __doc__)
    add = parser.add_argument
    add("--env", required=True, help="env id, or package:env_id")
    add("--env-kwargs", nargs="+", action=Settings, default={}, help="arguments of the env")
    add("--gym-packages", nargs="+", default=[], help="packages to import that register envs")
    add("-conf", "--conf-file", default=str(HYPERPARAMS), help="YAML with the settings of the training")
    add("-params", "--hyperparams", nargs="+", action=Settings, default={}, help="settings of the training: name:value")
    add("--seconds", type=float, default=20.0, help="of the training; 0: none. The other checks take about as long")
    add("--seed", type=int, default=0, help="of the training")
    add("--device", default="auto", help="of torch")
    add("--num-threads", type=int, default=default_threads(), help="threads of torch; -1: its own choice")
    return parser


class Subject(NamedTuple):
    """Env to check, as in training."""

    make: Callable[[], gym.Env]  #: a new instance, with the wrappers of its settings
    entry: Hyperparams  #: its settings
    name: str  #: of the entry in the file
    args: Namespace

    def model(self, env: gym.Env) -> BaseAlgorithm:
        """A new model with the settings of the env.

        :param env: with the wrappers, for its spaces
        """
        fits = {} if "policy" in self.args.hyperparams else {"policy": fitting_policy(env.observation_space)}
        entry = {**self.entry, **(fits if self.name == "default" else {})}
        made = _run(self.args, entry).setup_experiment()
        assert made is not None
        return made[0]


def _run(args: Namespace, settings: Hyperparams) -> TrialRun:
    return TrialRun(
        Namespace(), "grpo", args.env, "", eval_freq=-1, hyperparams=dict(settings), env_kwargs=dict(args.env_kwargs),
        seed=args.seed, verbose=0, device=args.device, log_interval=-2,
    )  # fmt: skip


def subject(args: Namespace) -> Subject:
    """Read the env and settings to check.

    :raises BadInput: for invalid settings
    """
    register()
    sections = read_sections(args.conf_file)
    name = entry_name(sections, args.env, args.conf_file)
    entry = {**sections[name], **args.hyperparams}
    check_settings("grpo", entry, lambda name: "--hyperparams" if name in args.hyperparams else args.conf_file)
    try:
        run = _run(args, entry)
        wrapper = run._preprocess_hyperparams(run.read_hyperparameters()[0])[1]
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        raise BadInput(str(error)) from error

    def make() -> gym.Env:
        env = gym.make(args.env, **run.env_kwargs)
        return wrapper(env) if wrapper else env

    return Subject(make, entry, name, args)


def guarded(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """Run a check; an error of the env becomes a finding.

    :param name: of the check
    """
    try:
        return check()
    except Exception as error:  # the env is the user's code
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = "" if trace is None else f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
        return [Finding(BROKEN, name, f"{type(error).__name__}: {one_line(error)}{where}")]


def check(it: Subject, seconds: float, say: Callable[[Finding], object]) -> list[Finding]:
    """All checks, one after another.

    :param seconds: of the training; the other checks take about as long together, and a little if it is 0
    :param say: called with each finding at once
    """
    found: list[Finding] = []
    envs: list[ValidActions] = []
    groups: list[list[Episode]] = []
    speed = 0.0

    def made() -> list[Finding]:
        envs.extend([ValidActions(it.make()), ValidActions(it.make())])
        return []

    def played() -> list[Finding]:
        nonlocal speed
        env.reset(seed=0)
        speed = probes.measure_speed(env, min(1.0, seconds / 10 + 0.1))
        groups.extend(play_groups(env, seconds / 4))
        return probes.check_speed(speed)

    def note(name: str, one: Callable[[], list[Finding]]) -> bool:
        new = guarded(name, one)
        for finding in new:
            say(finding)
        found.extend(new)
        return all(finding.level != BROKEN for finding in new)

    if not note("making it", made):
        return found
    env, other = envs
    sound = note("spaces", lambda: probes.check_spaces(env))
    if not note("episodes", played):
        return found
    episodes = [episode for group in groups for episode in group]
    sound &= note("observations", lambda: probes.check_observations(episodes))
    seeded = note("seeded resets", lambda: probes.check_seeds(groups))
    if seeded:  # without seeds there are no groups
        note("determinism", lambda: probes.check_determinism(env, other, groups))
    note("reward", lambda: probes.check_rewards(episodes))
    sound &= note("time limit", lambda: probes.check_time_limit(env, episodes))
    note("group spread", lambda: probes.check_spread(groups))
    models: list[BaseAlgorithm] = []
    note("training", lambda: _trained(it, env, seconds if sound else 0.0, models))
    if seeded:  # after the training, because random actions may hide the shared noise
        note("luck", lambda: probes.check_alignment(it.make, speed, seconds / 4, _policy(env, models)))
    for one in envs:
        one.close()
    return found


def _trained(it: Subject, env: gym.Env, seconds: float, models: list[BaseAlgorithm]) -> list[Finding]:
    """Train, append the model to ``models``, and return findings; none with 0 seconds."""
    if seconds == 0:
        return []
    models.append(_silently(lambda: it.model(env)))
    return check_training(models[0], seconds)


def _policy(env: ValidActions, models: list[BaseAlgorithm]) -> Play | None:
    """Trained policy to measure the noise with; None for random valid actions."""
    return None if env.is_masked else acting(models)


def _silently(make: Callable[[], BaseAlgorithm]) -> BaseAlgorithm:
    """Make a model without rl_zoo3's print of the settings, which ignores ``verbose``."""
    with contextlib.redirect_stdout(io.StringIO()):
        return make()


def body(arguments: Sequence[str]) -> int:
    """Execute the command.

    :param arguments: command line
    :return: 1 if something is broken
    """
    args = make_parser().parse_args(arguments)
    check_seed(args.seed)
    if args.seconds < 0:
        raise BadInput(f"--seconds {args.seconds}: 0, or more.")
    args.env, args.gym_packages = known_env(args.env, args.gym_packages)
    if args.num_threads > 0:
        th.set_num_threads(args.num_threads)
    it = subject(args)
    print(f"{args.env}, with the settings of {Path(args.conf_file).name}: {it.name}")
    found = check(it, args.seconds, lambda finding: print(finding.line(), flush=True))
    broken, look = (sum(finding.level == level for finding in found) for level in (BROKEN, LOOK))
    print(f"{broken} broken, {look} to look at")
    return int(broken > 0)


def main(arguments: Sequence[str]) -> int:
    """``python -m zoo.check``."""
    return run("zoo.check", body, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
