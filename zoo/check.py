"""Check an env before training: report faults, doubtful points and remedies.

``python -m zoo.check --env MyEnv-v0 --gym-packages my_package`` plays episodes under random actions, in groups that share a
reset seed, and then trains for 20 seconds with the settings of zoo.train. Exit code 1 if something is broken.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common import env_checker
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.preprocessing import is_image_space

from sb_grpo.callbacks import HealthCallback, HealthWarning
from sb_grpo.envs.alignment import REMEDIES, Play, noise_alignment
from sb_grpo.envs.random import group_seed
from sb_grpo.envs.seeded_reset import observation_digest
from sb_grpo.envs.time_limits import limit_of
from sb_grpo.envs.valid_actions import ValidActions
from sb_grpo.types import Action, Obs
from sb_grpo.validation import check_env

from .common.command_line import (
    BadInput,
    Parser,
    Settings,
    add_gym_packages,
    add_torch,
    check_seed,
    known_env,
    one_line,
    run,
    use_threads,
)
from .common.plain_files import HYPERPARAMS, Hyperparams, read_sections
from .training.experiment import register
from .training.settings import check_settings, entry_name
from .tuning.objective import TrialRun

BROKEN = "BROKEN"
LOOK = "look"
FINE = "fine"


class Finding(NamedTuple):
    """One line of the report."""

    level: str  #: :data:`BROKEN`: repair before training; :data:`LOOK`: may be intended; :data:`FINE`
    check: str  #: subject of the check
    says: str  #: result
    advice: str = ""  #: remedy, or empty

    def line(self) -> str:
        """Format the finding for the report."""
        return f"{self.level:<7} {self.check:<14} {self.says}" + (f"\n{'':>23}-> {self.advice}" if self.advice else "")


#: Largest numbers of members and groups; fewer if the env is slow.
MEMBERS = 8
GROUPS = 16
#: Episodes are cut after this number of steps.
LONGEST = 5000


class Step(NamedTuple):
    """Result of one action."""

    observation: str  #: digest
    reward: float
    terminated: bool
    truncated: bool


@dataclass
class Episode:
    """One episode of the checks."""

    seed: int  #: of its reset
    start: str  #: digest of the first observation
    actions: list[object] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    problem: str = ""  #: description of the first invalid observation or reward
    largest: float = 0.0  #: size of the largest number in an observation; images and dicts aside

    @property
    def rewards(self) -> list[float]:
        """Reward of each step."""
        return [step.reward for step in self.steps]

    @property
    def ended(self) -> bool:
        """Whether the env has ended the episode."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)


def play(env: gym.Env, seed: int, actions: Iterable[object], longest: int = LONGEST) -> Episode:
    """Play one episode.

    :param seed: of its reset
    :param actions: the episode ends after the last one
    :param longest: largest number of steps
    """
    obs, _ = env.reset(seed=seed)
    episode = Episode(seed, observation_digest(obs), problem=observation_problem(env.observation_space, obs, "reset()"))
    for action in islice(actions, longest):
        obs, reward, terminated, truncated, _ = env.step(action)
        episode.actions.append(action)
        episode.steps.append(Step(observation_digest(obs), float(reward), bool(terminated), bool(truncated)))
        if isinstance(obs, np.ndarray) and obs.dtype != np.uint8 and obs.size:
            episode.largest = max(episode.largest, float(np.abs(obs).max()))
        when = f"step {len(episode.steps)}"
        episode.problem = episode.problem or observation_problem(env.observation_space, obs, when)
        if not np.isfinite(episode.steps[-1].reward):
            episode.problem = episode.problem or f"the reward of {when} is {float(reward)}"
        if episode.ended:
            break
    return episode


def random_actions(env: gym.Env) -> Iterator[object]:
    """Draw uniform actions without end."""
    while True:
        yield env.action_space.sample()


def play_groups(env: gym.Env, seconds: float, seed: int = 0) -> list[list[Episode]]:
    """Groups of episodes: members share the reset seed, not the actions.

    :param seconds: no group is begun after this time, except the first two
    :param seed: of resets and actions
    """
    env.action_space.seed(seed)
    groups: list[list[Episode]] = []
    start = time.perf_counter()
    while len(groups) < GROUPS and (len(groups) < 2 or time.perf_counter() - start < seconds):
        number = group_seed(seed, len(groups))
        groups.append([play(env, number, random_actions(env)) for _ in range(MEMBERS)])
    return groups


def observation_problem(space: spaces.Space, obs: object, when: str) -> str:
    """Describe the fault of an observation in a few words; empty if there is none.

    :param space: declared by the env
    :param when: time of the observation
    """
    if isinstance(space, spaces.Dict) and isinstance(obs, dict):
        parts = [observation_problem(part, obs.get(name), f"{when}, {name!r}") for name, part in space.spaces.items()]
        return next(filter(None, parts), "")
    if not isinstance(space, spaces.Box) or not isinstance(obs, np.ndarray):
        return "" if space.contains(obs) else f"the observation of {when}, {obs!r:.80}, is not in {space}"
    if obs.shape != space.shape or not np.can_cast(obs.dtype, space.dtype):
        return f"the observation of {when} has shape {obs.shape} and {obs.dtype}, the space {space.shape} and {space.dtype}"
    if not np.isfinite(obs).all():
        return f"the observation of {when} holds {obs[~np.isfinite(obs)][0]}"
    out = np.flatnonzero((obs < space.low) | (obs > space.high))
    if len(out):
        place = out[0]
        value, low, high = (part.flat[place] for part in (obs, space.low, space.high))
        digits = 17 if f"{value:.6g}" in (f"{low:.6g}", f"{high:.6g}") else 6  # six digits may not show the excess
        bounds = f"[{low:.{digits}g}, {high:.{digits}g}]"
        return f"the observation of {when} has {value:.{digits}g} in place {place}, outside {bounds}"
    return ""


#: Larger rewards, or rewards that are all below the inverse, are reported.
LARGE = 1e3
#: Larger observations should be normalised.
WIDE = 100.0
#: Steps per second below which the env dominates the training time.
SLOW = 1000.0
#: Fewer seeds may have episodes of one length by chance.
SEEDS = 4
#: Pairs of episodes, and steps of each, for the measurement of alignment, if there is time.
PAIRS = 100
PAIR_STEPS = 200
#: Verdicts of :func:`noise_alignment` by level; others are fine.
ALIGNMENT = {"ignores its seed": BROKEN, "out of step": LOOK, "falls out of step": LOOK}


def check_spaces(env: gym.Env) -> list[Finding]:
    """Check the interface and the spaces with SB3's ``check_env``, and whether GRPO supports the spaces."""
    if env.has_wrapper_attr("compute_reward"):  # of a goal env; SB3 asks the outermost wrapper, which passes nothing on
        vars(env)["compute_reward"] = env.get_wrapper_attr("compute_reward")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            env_checker.check_env(env, skip_render_check=True)
        except Exception as error:  # of the env, or an assertion about it
            return [Finding(BROKEN, "spaces", one_line(error) or type(error).__name__, "follow Gymnasium's interface")]
    try:
        check_env(env)
    except ValueError as error:
        what, _, remedy = str(error).partition(". ")
        return [Finding(BROKEN, "spaces", what, remedy)]
    known = [one_line(w.message) for w in caught if "env_checker" in w.filename]
    if known:
        return [Finding(LOOK, "spaces", text) for text in dict.fromkeys(known)]
    return [Finding(FINE, "spaces", f"{_short(env.observation_space)} -> {_short(env.action_space)}")]


def check_observations(episodes: Sequence[Episode]) -> list[Finding]:
    """Check that all observations are finite and in their space."""
    problems = [episode.problem for episode in episodes if episode.problem]
    largest = max(episode.largest for episode in episodes)
    if not problems and largest > WIDE:
        advice = "normalize:True (VecNormalize), or policy_kwargs=dict(normalize_obs=True)"
        return [Finding(LOOK, "observations", f"numbers up to {largest:.4g}, where networks expect about 1", advice)]
    if not problems:
        n = sum(len(episode.steps) for episode in episodes)
        return [Finding(FINE, "observations", f"{n:,} in their space, they and their rewards finite")]
    advice = "mend what the env returns, or the space that it declares"
    return [Finding(BROKEN, "observations", f"{problems[0]} ({len(problems)} of {len(episodes)} episodes)", advice)]


def check_seeds(groups: Sequence[Sequence[Episode]]) -> list[Finding]:
    """Check that equal seeds give equal initial states, and different seeds different ones."""
    unequal = sum(len({episode.start for episode in group}) > 1 for group in groups)
    if unequal:
        says = f"in {unequal} of {len(groups)} groups members started from different observations although their seed is one"
        return [
            Finding(BROKEN, "seeded resets", says, "call super().reset(seed=seed) first, and draw from self.np_random alone")
        ]
    if len({group[0].start for group in groups}) == 1:
        advice = "if that is not meant, draw the start from self.np_random; the policy will know no other start"
        return [Finding(LOOK, "seeded resets", f"{len(groups)} seeds gave the same start", advice)]
    return [
        Finding(FINE, "seeded resets", f"equal starts in {len(groups)} groups of {len(groups[0])}, different ones between")
    ]


def check_determinism(env: gym.Env, other: gym.Env, groups: Sequence[Sequence[Episode]]) -> list[Finding]:
    """Check that equal seeds and actions give equal episodes, in this env and in another instance.

    :param other: a fresh instance
    :param groups: that were played in ``env``
    """
    for where, instance in (("in the same env", env), ("in a new instance of it", other)):
        for group in groups:
            again = play(instance, group[0].seed, group[0].actions)
            step = _first_difference(group[0], again)
            if step is not None:
                says = f"seed and actions were equal, but {where} the episodes differ from {step} on"
                advice = "draw all luck from self.np_random, set everything back in reset(), share no state between instances"
                return [Finding(BROKEN, "determinism", says, advice)]
    return [Finding(FINE, "determinism", f"{len(groups)} episodes came out the same, also in a new instance")]


def check_alignment(
    make: Callable[[], gym.Env],
    steps_per_second: float,
    seconds: float,
    policy: Play | None = None,
) -> list[Finding]:
    """Check whether members of a group meet the same noise at the same step.

    :param steps_per_second: of the env
    :param seconds: time limit
    :param policy: a trained one, from an observation to an action: random actions may hide the shared noise
    """
    pairs = int(np.clip(seconds * steps_per_second / (2 * PAIR_STEPS), 5, PAIRS))
    found = noise_alignment(make, n_seeds=pairs, n_steps=PAIR_STEPS, policy=policy)
    if not found.seeds_matter:
        return [Finding(FINE, "luck", f"deterministic: {REMEDIES['deterministic']}")]
    verdict = found.verdict.partition(" by ")[0]
    level = ALIGNMENT.get(verdict, FINE)
    who = "random actions" if policy is None else "the policy trained above"
    measured, _, remedy = found.sentence.rpartition("; ")
    advice = REMEDIES[verdict] if level != FINE else ""
    return [Finding(level, "luck", f"{measured}; {remedy} ({pairs} pairs, {who})" if not advice else measured, advice)]


def check_rewards(episodes: Sequence[Episode]) -> list[Finding]:
    """Check the size of the rewards, and whether only a few outliers are not 0."""
    rewards = np.abs(np.concatenate([episode.rewards for episode in episodes]))
    rewards = rewards[np.isfinite(rewards)]
    if len(rewards) == 0:  # already a finding on observations
        return []
    paid = rewards[rewards > 0]
    returns = [sum(episode.rewards) for episode in episodes]
    says = f"returns of random actions {min(returns):.4g} to {max(returns):.4g}, mean {np.mean(returns):.4g}"
    if len(paid) == 0:
        advice = "a reward at the goal alone is seldom met by chance: shape it, begin near the goal (docs/curriculum.md), or "
        return [Finding(LOOK, "reward", "no step of any episode paid anything", advice + "rewards=dict(bonus=...)")]
    largest = float(paid.max())
    typical = float(np.median(paid))
    if largest > LARGE:
        advice = "divide them, or rewards=dict(scaling='clip'), or normalize:True (VecNormalize)"
        return [Finding(LOOK, "reward", f"{says}; a reward has the size {largest:.3g}", advice)]
    if largest < 1.0 / LARGE:
        advice = "multiply them: GRPO's advantages are normalised, but logs, bonuses and evaluations are not"
        return [Finding(LOOK, "reward", f"{says}; no reward is larger than {largest:.3g}", advice)]
    if largest > LARGE * typical:
        advice = "rewards=dict(scaling='clip', clip=...), so that one step does not outweigh a thousand"
        return [
            Finding(LOOK, "reward", f"{says}; the largest, {largest:.3g}, is {largest / typical:,.0f} x the median", advice)
        ]
    return [Finding(FINE, "reward", f"{says}; a step pays up to {largest:.3g}")]


def check_time_limit(env: gym.Env, episodes: Sequence[Episode]) -> list[Finding]:
    """Check that episodes end, and that the time limit truncates instead of terminating them."""
    limit = limit_of(env)
    lengths = [len(episode.steps) for episode in episodes]
    ended = [episode for episode in episodes if episode.ended]
    message = f"lengths {min(lengths):,} to {max(lengths):,}, limit {limit if limit is not None else 'unknown'}"
    if not ended and limit is None:
        advice = "register it with max_episode_steps=..., or evaluations will never end"
        return [Finding(BROKEN, "time limit", f"no episode ended within {max(lengths):,} steps", advice)]
    terminated = [episode for episode in ended if episode.steps[-1].terminated]
    seeds = len({episode.seed for episode in episodes})
    if seeds >= SEEDS and len(terminated) == len(episodes) and min(lengths) == max(lengths) > 1 and limit != max(lengths):
        says = f"all {len(episodes)} episodes were terminated after exactly {max(lengths)} steps"
        advice = "if the clock ends them, return truncated=True instead: what comes after would have counted"
        return [Finding(LOOK, "time limit", says, advice)]
    return [Finding(FINE, "time limit", message)]


def check_spread(groups: Sequence[Sequence[Episode]]) -> list[Finding]:
    """Check that members of a group have different returns, which GRPO learns from, and that actions have effects."""
    if all(_same(group[0], episode) for group in groups for episode in group[1:]):
        says = "members of a group saw and earned the same whatever they did"
        return [Finding(BROKEN, "group spread", says, "use the action in step()")]
    without = float(np.mean([np.ptp([sum(episode.rewards) for episode in group]) < 1e-9 for group in groups]))
    says = f"in {without:.0%} of {len(groups)} groups all {len(groups[0])} members earn the same under random actions"
    if without > 0.5:
        advice = "group_size up, rewards=dict(bonus=...), or a curriculum (docs/curriculum.md): such groups teach nothing"
        return [Finding(LOOK, "group spread", says, advice)]
    return [Finding(FINE, "group spread", says)]


def measure_speed(env: gym.Env, seconds: float = 1.0) -> float:
    """Steps per second of one env under random actions, resets included.

    :param seconds: to measure for
    """
    n = 0
    start = time.perf_counter()
    done = True
    while time.perf_counter() - start < seconds:
        if done:
            env.reset()
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        n = n + 1
        done = terminated or truncated
    return n / (time.perf_counter() - start)


def check_speed(steps_per_second: float) -> list[Finding]:
    """Check whether the env would dominate the training time."""
    says = f"{steps_per_second:,.0f} steps/s in one env"
    if steps_per_second < SLOW:
        advice = "--vec-env subproc with as many n_envs as there are cores; or a tensor env (docs/own_env.md)"
        return [Finding(LOOK, "speed", says, advice)]
    return [Finding(FINE, "speed", says)]


def _first_difference(a: Episode, b: Episode) -> str | None:
    if a.start != b.start:
        return "their first observation"
    pairs = zip(a.steps, b.steps, strict=False)
    step = next((number for number, (one, other) in enumerate(pairs, 1) if _differ(one, other)), None)
    return None if step is None else f"step {step}"


def _differ(one: Step, other: Step) -> bool:
    """Whether values differ; NaN equals NaN, because another check reports it."""
    return one._replace(reward=0.0) != other._replace(reward=0.0) or not np.array_equal(
        one.reward, other.reward, equal_nan=True
    )


def _same(a: Episode, b: Episode) -> bool:
    return len(a.steps) == len(b.steps) and _first_difference(a, b) is None


def _short(space: spaces.Space) -> str:
    return f"{type(space).__name__}{tuple(space.shape)}" if isinstance(space, spaces.Box) else str(space)


#: Rules of the health check whose breach indicates a broken env, not bad settings.
OF_THE_ENV = ("start_mismatch",)
#: Standard errors by which the last tenth of the episodes must be above the first to count as a rise.
_Z = 2.0


class Deadline(BaseCallback):
    """Ends a training in time, and keeps the returns of its episodes.

    :param seconds: from the start of the training
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.returns: list[float] = []
        self.started = self.took = 0.0

    def _on_training_start(self) -> None:
        self.started = time.perf_counter()

    def _on_step(self) -> bool:
        self.returns += [float(info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info]
        self.took = time.perf_counter() - self.started
        return self.took < self.seconds


def fitting_policy(space: spaces.Space) -> str:
    """Name of the policy for an observation space."""
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if isinstance(space, spaces.Box) and is_image_space(space) else "MlpPolicy"


def check_training(model: BaseAlgorithm, seconds: float) -> list[Finding]:
    """Train, and check the result.

    :param model: a new GRPO model
    :param seconds: to train
    """
    deadline = Deadline(seconds)
    health = HealthCallback(verbose=0)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.learn(10**9, callback=[deadline, health])
    except Exception as error:  # any error of the env or the settings
        return [Finding(BROKEN, "training", f"{type(error).__name__}: {one_line(error)}")]
    steps = model.num_timesteps
    if model._n_updates == 0:
        says = f"not one rollout in {deadline.took:.0f} s ({steps:,} steps)"
        return [Finding(LOOK, "training", says, "more --seconds, a smaller n_steps, or a faster env")]
    done = f"{deadline.took:.0f} s, {steps:,} steps, {steps / deadline.took:,.0f} steps/s"
    advice = [str(w.message).partition(": ") for w in caught if issubclass(w.category, HealthWarning)]
    advice = [one for one in advice if one[0] in health.broken]
    unhealthy = [Finding(BROKEN if rule in OF_THE_ENV else LOOK, "health", rule, text) for rule, _, text in advice]
    return [_progress(deadline.returns, done), *unhealthy]


def _progress(returns: Sequence[float], done: str) -> Finding:
    n = len(returns) // 10
    if n < 2:
        return Finding(FINE, "training", f"runs ({done}); too few episodes to see a trend")
    first = np.array(returns[:n])
    last = np.array(returns[-n:])
    says = f"mean return {first.mean():.4g} at first, {last.mean():.4g} at last ({done})"
    if last.mean() - first.mean() > _Z * np.hypot(first.std(ddof=1), last.std(ddof=1)) / np.sqrt(n):
        return Finding(FINE, "training", f"learns: {says}")
    return Finding(FINE, "training", f"runs, no rise yet, which proves nothing after so short a time: {says}")


def acting(models: Sequence[BaseAlgorithm]) -> Play | None:
    """Function from an observation of the env to an action of a trained policy, with its noise.

    :param models: the model trained on the env, possibly with VecNormalize; may be empty
    :return: None without a policy, or if it needs more than the env's own observation (stacked frames, a memory)
    """
    if not models:
        return None
    model = models[0]
    normalized = model.get_vec_normalize_env()
    env = model.get_env()
    stacked = env is None or env.observation_space != env.get_attr("observation_space")[0]
    if stacked or getattr(model.policy, "memory", None) is not None:
        return None

    def act(obs: Obs) -> Action:
        seen = obs if normalized is None else normalized.normalize_obs(obs)
        return model.predict(seen, deterministic=False)[0]

    return act


# ---------------------------------------------------------------- command line


def make_parser() -> Parser:
    parser = Parser("zoo.check", __doc__)
    add = parser.add_argument
    add("--env", required=True, help="env id, or package:env_id")
    add("--env-kwargs", nargs="+", action=Settings, default={}, help="arguments of the env")
    add_gym_packages(parser)
    add("-conf", "--conf-file", default=str(HYPERPARAMS), help="YAML with the settings of the training")
    add("-params", "--hyperparams", nargs="+", action=Settings, default={}, help="settings of the training: name:value")
    add("--seconds", type=float, default=20.0, help="of the training; 0: none. The other checks take about as long")
    add("--seed", type=int, default=0, help="of the training")
    add_torch(parser)
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
        speed = measure_speed(env, min(1.0, seconds / 10 + 0.1))
        groups.extend(play_groups(env, seconds / 4))
        return check_speed(speed)

    def note(name: str, one: Callable[[], list[Finding]]) -> bool:
        new = guarded(name, one)
        for finding in new:
            say(finding)
        found.extend(new)
        return all(finding.level != BROKEN for finding in new)

    if not note("making it", made):
        return found
    env, other = envs
    sound = note("spaces", lambda: check_spaces(env))
    if not note("episodes", played):
        return found
    episodes = [episode for group in groups for episode in group]
    sound &= note("observations", lambda: check_observations(episodes))
    seeded = note("seeded resets", lambda: check_seeds(groups))
    if seeded:  # without seeds there are no groups
        note("determinism", lambda: check_determinism(env, other, groups))
    note("reward", lambda: check_rewards(episodes))
    sound &= note("time limit", lambda: check_time_limit(env, episodes))
    note("group spread", lambda: check_spread(groups))
    models: list[BaseAlgorithm] = []
    note("training", lambda: _trained(it, env, seconds if sound else 0.0, models))
    if seeded:  # after the training, because random actions may hide the shared noise
        policy = None if env.is_masked else acting(models)  # None: random valid actions
        note("luck", lambda: check_alignment(it.make, speed, seconds / 4, policy))
    for one in envs:
        one.close()
    return found


def _trained(it: Subject, env: gym.Env, seconds: float, models: list[BaseAlgorithm]) -> list[Finding]:
    """Train, append the model to ``models``, and return findings; none with 0 seconds."""
    if seconds == 0:
        return []
    with contextlib.redirect_stdout(io.StringIO()):  # rl_zoo3 prints the settings, whatever "verbose" says
        models.append(it.model(env))
    return check_training(models[0], seconds)


def main(arguments: Sequence[str]) -> int:
    """Execute the command.

    :param arguments: command line
    :return: 1 if something is broken
    """
    args = make_parser().parse_args(arguments)
    check_seed(args.seed)
    if args.seconds < 0:
        raise BadInput(f"--seconds {args.seconds}: 0, or more.")
    args.env, args.gym_packages = known_env(args.env, args.gym_packages)
    use_threads(args)
    it = subject(args)
    print(f"{args.env}, with the settings of {Path(args.conf_file).name}: {it.name}")
    found = check(it, args.seconds, lambda finding: print(finding.line(), flush=True))
    broken, look = (sum(finding.level == level for finding in found) for level in (BROKEN, LOOK))
    print(f"{broken} broken, {look} to look at")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(run("zoo.check", main, sys.argv[1:]))
