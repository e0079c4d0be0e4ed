"""Checks of an env: each takes episodes and returns one or more findings."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common import env_checker

from sb_grpo.envs.alignment import REMEDIES, Play, noise_alignment
from sb_grpo.envs.time_limits import limit_of
from sb_grpo.validation import check_env

from ..common.command_line import one_line
from .episodes import Episode, Step, play
from .findings import BROKEN, FINE, LOOK, Finding

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
    with warnings.catch_warnings(record=True) as said:
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
    known = [one_line(w.message) for w in said if "env_checker" in w.filename]
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
    said = f"lengths {min(lengths):,} to {max(lengths):,}, limit {limit if limit is not None else 'unknown'}"
    if not ended and limit is None:
        advice = "register it with max_episode_steps=..., or evaluations will never end"
        return [Finding(BROKEN, "time limit", f"no episode ended within {max(lengths):,} steps", advice)]
    terminated = [episode for episode in ended if episode.steps[-1].terminated]
    seeds = len({episode.seed for episode in episodes})
    if seeds >= SEEDS and len(terminated) == len(episodes) and min(lengths) == max(lengths) > 1 and limit != max(lengths):
        says = f"all {len(episodes)} episodes were terminated after exactly {max(lengths)} steps"
        advice = "if the clock ends them, return truncated=True instead: what comes after would have counted"
        return [Finding(LOOK, "time limit", says, advice)]
    return [Finding(FINE, "time limit", said)]


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
