"""What a study searches: one function per algorithm that draws settings its model accepts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from rl_zoo3.hyperparams_opt import HYPERPARAMS_SAMPLER
from stable_baselines3.common.utils import FloatSchedule

from sb_grpo import GRPO

NETS = {"tiny": [64], "small": [64, 64], "medium": [256, 256]}
SCHEDULES = {"constant": "{}", "linear": "lin_{}", "cosine": "cos_{}"}
#: Names are those of the constructor; where a logarithm, a complement or a distance is searched, the name says so.
#: The smallest rollout is as large as the largest minibatch, so that no minibatch is larger than its rollout.
GRPO_SPACE: dict[str, BaseDistribution] = {
    "advantage": CategoricalDistribution(("state", "step", "outcome", "process")),
    "group_size": CategoricalDistribution((4, 8, 16, 32)),
    "n_groups": CategoricalDistribution((1, 2, 4, 8)),
    "log2_rollout": IntDistribution(9, 12),
    "log2_batch_size": IntDistribution(5, 9),
    "n_epochs": CategoricalDistribution((2, 5, 10, 20)),
    "normalize_advantage": CategoricalDistribution(("group", "batch", "none")),
    "learning_rate": FloatDistribution(1e-4, 5e-3, log=True),
    "schedule": CategoricalDistribution(tuple(SCHEDULES)),
    "one_minus_gamma": FloatDistribution(1e-3, 0.1, log=True),
    "one_minus_lambda": FloatDistribution(5e-3, 0.2, log=True),
    "ent_coef": FloatDistribution(1e-6, 0.03, log=True),
    "clip_range": FloatDistribution(0.1, 0.4, step=0.05),
    "clip_range_extra": FloatDistribution(0.0, 0.2, step=0.05),
    "net": CategoricalDistribution(tuple(NETS)),
}


def rounded(value: float) -> float:
    """Three digits: what is trained is what the YAML says, and it can be read."""
    return float(f"{value:.3g}")


def suggest(trial: optuna.Trial, name: str) -> Any:
    """A value of the space's distribution of that name."""
    among = GRPO_SPACE[name]
    if isinstance(among, CategoricalDistribution):
        return trial.suggest_categorical(name, among.choices)
    if isinstance(among, IntDistribution):
        return trial.suggest_int(name, among.low, among.high)
    assert isinstance(among, FloatDistribution)
    return rounded(trial.suggest_float(name, among.low, among.high, log=among.log, step=among.step))


def grpo_space(trial: optuna.Trial, base: dict[str, Any], fixed: dict[str, Any]) -> dict[str, Any]:
    """Settings of GRPO for one trial.

    :param trial: draws the numbers
    :param base: the env's entry, ``fixed`` in it
    :param fixed: settings that are not searched
    :return: the searched settings
    """
    drawn: dict[str, Any] = {}

    def search(name: str, draw: Callable[[], Any] | None = None) -> Any:
        if name not in fixed:
            drawn[name] = draw() if draw is not None else suggest(trial, name)
        return fixed.get(name, drawn.get(name))

    advantage = search("advantage")
    for name in ("group_size", "normalize_advantage", "n_epochs", "ent_coef"):
        search(name)
    search("learning_rate", lambda: _learning_rate(trial))
    search("gamma", lambda: rounded(1.0 - suggest(trial, "one_minus_gamma")))
    rows = fixed["n_steps"] * base.get("n_envs", 1) if fixed.get("n_steps") else math.inf
    search("batch_size", lambda: min(2 ** suggest(trial, "log2_batch_size"), rows))
    low = search("clip_range")
    if isinstance(low, float):  # a schedule has no fixed distance to it
        search("loss_kwargs", lambda: _with_clip_range_high(trial, base, low))
    if advantage == "state":
        search("gae_lambda", lambda: rounded(1.0 - suggest(trial, "one_minus_lambda")))
    elif base.get("advantage_kwargs"):
        drawn["advantage_kwargs"] = None  # they belong to "state", and are refused elsewhere
    if not fixed.keys() & {"n_steps", "n_groups"}:
        drawn.update(_rollout(trial, advantage, base.get("n_envs", 1), fixed.get("batch_size", 1)))
    if "policy_kwargs" not in fixed:
        drawn["policy_kwargs"] = with_net(base.get("policy_kwargs"), suggest(trial, "net"))
    return drawn


def _with_clip_range_high(trial: optuna.Trial, base: dict[str, Any], low: float) -> dict[str, Any]:
    return {**(base.get("loss_kwargs") or {}), "clip_range_high": rounded(low + suggest(trial, "clip_range_extra"))}


def _learning_rate(trial: optuna.Trial) -> float | str:
    peak, schedule = suggest(trial, "learning_rate"), suggest(trial, "schedule")
    return float(peak) if schedule == "constant" else SCHEDULES[schedule].format(peak)


def _rollout(trial: optuna.Trial, advantage: Any, n_envs: int, at_least: int) -> dict[str, int | None]:
    """The rollout's size: steps where episodes can be cut, groups where they must be complete. One excludes the other."""
    if advantage == "state":
        return {"n_steps": math.ceil(max(2 ** suggest(trial, "log2_rollout"), at_least) / n_envs), "n_groups": None}
    return {"n_steps": None, "n_groups": suggest(trial, "n_groups")}


def with_net(policy_kwargs: dict[str, Any] | str | None, net: str) -> dict[str, Any] | str:
    """The entry's policy arguments with another net; where they are Python text (rl_zoo3 evaluates it), text again."""
    if isinstance(policy_kwargs, str):
        return f"{{**{policy_kwargs}, 'net_arch': {NETS[net]}}}"
    return {**(policy_kwargs or {}), "net_arch": list(NETS[net])}


def grpo_start(model: GRPO, base: dict[str, Any]) -> dict[str, Any]:
    """The entry's own settings in the terms of the space, as far as it has them: what a study tries first.

    :param model: built with ``base``
    :param base: the env's entry
    """
    kind, *numbers = str(base.get("learning_rate", model.learning_rate)).split("_")
    low, high = FloatSchedule(model.clip_range)(1.0), model.options.loss.clip_range_high
    clip_high = low if high is None else FloatSchedule(high)(1.0)
    start = {name: getattr(model, name) for name in ("advantage", "group_size", "n_groups", "n_epochs", "normalize_advantage")}
    start |= {
        "log2_rollout": round(math.log2(model.steps_per_env * model.n_envs)),
        "log2_batch_size": round(math.log2(model.batch_size)),
        "learning_rate": float(numbers[0] if numbers else kind),
        "schedule": {"lin": "linear", "cos": "cosine"}.get(kind, "constant"),
        "one_minus_gamma": rounded(1.0 - model.gamma),
        "one_minus_lambda": rounded(1.0 - model.gae_lambda),
        "ent_coef": max(model.ent_coef, 1e-6),
        "clip_range": low,
        "clip_range_extra": rounded(clip_high - low),
        "net": next((name for name, sizes in NETS.items() if sizes == model.policy.net_arch), None),
    }
    return {name: value for name, value in start.items() if _contains(GRPO_SPACE[name], value)}


def _contains(among: BaseDistribution, value: Any) -> bool:
    if isinstance(among, CategoricalDistribution):
        return value in among.choices
    assert isinstance(among, IntDistribution | FloatDistribution)
    return value is not None and among.low <= value <= among.high


def ppo_space(trial: optuna.Trial, base: dict[str, Any], fixed: dict[str, Any]) -> dict[str, Any]:
    """rl_zoo3's own space for PPO, so that both algorithms can be searched for a comparison."""
    drawn = HYPERPARAMS_SAMPLER["ppo"](trial, 0, base.get("n_envs", 1), {})
    network = drawn["policy_kwargs"]
    # As text: a YAML cannot hold the class of the activation.
    drawn["policy_kwargs"] = f"dict(net_arch={network['net_arch']}, activation_fn=nn.{network['activation_fn'].__name__})"
    return {k: rounded(v) if isinstance(v, float) else v for k, v in drawn.items() if k not in fixed}


SPACES = {"grpo": grpo_space, "ppo": ppo_space}
