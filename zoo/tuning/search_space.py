"""Search spaces: one function per algorithm that draws valid settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from rl_zoo3.hyperparams_opt import HYPERPARAMS_SAMPLER
from stable_baselines3.common.utils import FloatSchedule

from sb_grpo import GRPO

from ..common.command_line import Grid
from ..common.literals import parse, to_text
from ..common.plain_files import Hyperparams

#: Function from a trial, the env's entry and the fixed settings to drawn settings.
Draw = Callable[[optuna.Trial, Hyperparams, Hyperparams], Hyperparams]
#: Function from the name of a distribution to a drawn value.
DrawFrom = Callable[[str], Any]

NETS = {"tiny": [64], "small": [64, 64], "medium": [256, 256]}
ENTRY = "entry"  #: the net of the env's entry, where it is none of these
SCHEDULES = {"constant": "{}", "linear": "lin_{}", "cosine": "cos_{}"}
#: Names are those of the constructor; where a logarithm, a complement or a distance is searched, the name says so.
#: The smallest rollout is as large as the largest minibatch, so that no minibatch is larger than its rollout.
GRPO_SPACE: dict[str, BaseDistribution] = {
    "advantage": CategoricalDistribution(("state", "step", "outcome", "process")),
    "group_size": CategoricalDistribution((1, 2, 4, 8, 16, 32)),  # 1 becomes 2 where members are compared or paired
    "paired": CategoricalDistribution((False, True)),
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
    """Round to three digits, so that the YAML holds exactly the trained settings in readable form."""
    return float(f"{value:.3g}")


def suggest(trial: optuna.Trial, space: dict[str, BaseDistribution], name: str) -> Any:
    """A value of the space's distribution of that name."""
    among = space[name]
    if isinstance(among, CategoricalDistribution):
        return trial.suggest_categorical(name, among.choices)
    if isinstance(among, IntDistribution):
        return trial.suggest_int(name, among.low, among.high)
    assert isinstance(among, FloatDistribution)
    return rounded(trial.suggest_float(name, among.low, among.high, log=among.log, step=among.step))


def grpo_space(
    trial: optuna.Trial,
    base: Hyperparams,
    fixed: Hyperparams,
    space: dict[str, BaseDistribution] = GRPO_SPACE,
) -> Hyperparams:
    """Settings of GRPO for one trial.

    :param trial: draws the numbers
    :param base: the env's entry, ``fixed`` in it
    :param fixed: settings that are not searched
    :param space: distributions by name
    :return: the searched settings
    """
    drawn: Hyperparams = {}
    n_envs = _whole(base, "n_envs")
    draw_from = partial(suggest, trial, space)

    def search(name: str, draw: Callable[[], object] | None = None) -> Any:
        if name not in fixed:
            drawn[name] = draw() if draw is not None else draw_from(name)
        return fixed.get(name, drawn.get(name))

    advantage = search("advantage")
    for name in ("normalize_advantage", "n_epochs", "ent_coef"):
        search(name)
    paired = False
    if advantage == "state":
        before = read_kwargs(base.get("advantage_kwargs"))
        kwargs = search("advantage_kwargs", lambda: {**before, "paired": draw_from("paired")})
        paired = (kwargs or {}).get("paired", False) is not False
    elif base.get("advantage_kwargs"):
        drawn["advantage_kwargs"] = None  # they belong to "state", and are refused elsewhere
    normalize = fixed.get("normalize_advantage", drawn.get("normalize_advantage"))
    fewest = 2 if paired or advantage != "state" or normalize == "group" else 1
    search("group_size", lambda: max(draw_from("group_size"), fewest))
    search("learning_rate", lambda: _learning_rate(draw_from))
    search("gamma", lambda: rounded(1.0 - draw_from("one_minus_gamma")))
    rows = _whole(fixed, "n_steps") * n_envs if fixed.get("n_steps") else math.inf
    search("batch_size", lambda: min(2 ** draw_from("log2_batch_size"), rows))
    low = search("clip_range")
    if isinstance(low, float):  # a schedule has no fixed distance to it
        of_loss = read_kwargs(base.get("loss_kwargs"))
        search("loss_kwargs", lambda: {**of_loss, "clip_range_high": rounded(low + draw_from("clip_range_extra"))})
    if advantage == "state":
        search("gae_lambda", lambda: rounded(1.0 - draw_from("one_minus_lambda")))
    if not fixed.keys() & {"n_steps", "n_groups"}:
        drawn.update(_rollout(draw_from, advantage, n_envs, _whole(fixed, "batch_size")))
    if "policy_kwargs" not in fixed:
        drawn["policy_kwargs"] = with_net(base.get("policy_kwargs"), draw_from("net"))
    return drawn


def _learning_rate(draw_from: DrawFrom) -> float | str:
    peak = draw_from("learning_rate")
    schedule = draw_from("schedule")
    return float(peak) if schedule == "constant" else SCHEDULES[schedule].format(peak)


def _rollout(draw_from: DrawFrom, advantage: object, n_envs: int, at_least: int) -> dict[str, int | None]:
    """The rollout's size: steps where episodes can be cut, groups where they must be complete. One excludes the other."""
    if advantage == "state":
        return {"n_steps": math.ceil(max(2 ** draw_from("log2_rollout"), at_least) / n_envs), "n_groups": None}
    return {"n_steps": None, "n_groups": draw_from("n_groups")}


def with_net(policy_kwargs: object, net: str) -> object:
    """The entry's policy arguments with another net; where they are text, text again."""
    if net == ENTRY:
        return policy_kwargs or {}
    if isinstance(policy_kwargs, str):
        return to_text({**read_kwargs(policy_kwargs), "net_arch": NETS[net]})
    return {**read_kwargs(policy_kwargs), "net_arch": list(NETS[net])}


def rl_zoo3_space(trial: optuna.Trial, base: Hyperparams, fixed: Hyperparams, algo: str) -> Hyperparams:
    """rl_zoo3's own space of an algorithm, its values as a YAML can hold them.

    :param trial: draws the numbers
    :param base: the env's entry, ``fixed`` in it
    :param fixed: settings that are not searched
    :param algo: that rl_zoo3 has a space for
    """
    her = {
        "using_her_replay_buffer": "replay_buffer_class" in base,
        "her_kwargs": read_kwargs(base.get("replay_buffer_kwargs")),
    }
    drawn = HYPERPARAMS_SAMPLER[algo](trial, 1, _whole(base, "n_envs"), her)
    if "noise_type" in trial.params:  # rl_zoo3 makes an object of them
        drawn = {name: value for name, value in drawn.items() if name != "action_noise"}
        drawn |= {"noise_type": trial.params["noise_type"], "noise_std": trial.params["noise_std"]}
        if drawn["noise_type"] is None:
            drawn = {name: value for name, value in drawn.items() if not name.startswith("noise_")}
    if "policy_kwargs" in drawn:  # as text: a YAML cannot hold the class of the activation
        drawn["policy_kwargs"] = to_text({**read_kwargs(base.get("policy_kwargs")), **drawn["policy_kwargs"]})
    return {k: rounded(v) if isinstance(v, float) else v for k, v in drawn.items() if k not in fixed}


def read_kwargs(value: object) -> dict[str, object]:
    """Arguments that a YAML writes as a mapping, as text, or not at all.

    :raises ValueError: for anything else
    """
    found = parse(value) if isinstance(value, str) else value or {}
    if not isinstance(found, dict):
        raise ValueError(f"{value!r} must be a mapping of arguments, such as {{net_arch: [64]}}")
    return found


def _whole(settings: Hyperparams, name: str) -> int:
    """A checked setting; 1 if it is not given."""
    value = settings.get(name, 1)
    assert isinstance(value, int)
    return value


def grid_space(trial: optuna.Trial, base: Hyperparams, fixed: Hyperparams, grid: Grid) -> Hyperparams:
    """A point of a grid; everything else is the entry's.

    :param trial: of a study with a grid sampler
    :param grid: values by name of a setting
    """
    return {name: trial.suggest_categorical(name, values) for name, values in grid.items()}


#: Algorithm -> its space.
SPACES: dict[str, Draw] = {
    "grpo": grpo_space,
    **{algo: partial(rl_zoo3_space, algo=algo) for algo in sorted(HYPERPARAMS_SAMPLER)},
}


#: User attribute of the trial whose settings are the entry's, whatever its parameters round them to.
AS_IT_STANDS = "entry"


def grpo_start(model: GRPO, base: Hyperparams) -> dict[str, object]:
    """The entry's own settings in the terms of the space.

    :param model: built with ``base``
    :param base: the env's entry
    """
    kind, *numbers = str(base.get("learning_rate", model.learning_rate)).split("_")
    low = FloatSchedule(model.clip_range)(1.0)
    high = model.options.loss.clip_range_high
    clip_high = low if high is None else FloatSchedule(high)(1.0)
    start = {name: getattr(model, name) for name in ("advantage", "group_size", "n_groups", "n_epochs", "normalize_advantage")}
    paired = getattr(model.options.estimator, "paired", None)
    return start | {
        "paired": None if paired is None else paired is not False,
        "log2_rollout": round(math.log2(model.steps_per_env * model.n_envs)),
        "log2_batch_size": round(math.log2(model.batch_size)),
        "learning_rate": float(numbers[0] if numbers else kind),
        "schedule": {"lin": "linear", "cos": "cosine"}.get(kind, "constant"),
        "one_minus_gamma": rounded(1.0 - model.gamma),
        "one_minus_lambda": rounded(1.0 - model.gae_lambda),
        "ent_coef": max(model.ent_coef, 1e-6),
        "clip_range": low,
        "clip_range_extra": rounded(clip_high - low),
        "net": next((name for name, sizes in NETS.items() if sizes == model.policy.net_arch), ENTRY),
    }


def widened(
    start: Mapping[str, object], space: dict[str, BaseDistribution] | None = None
) -> tuple[dict[str, BaseDistribution], dict[str, object], list[str]]:
    """Widen a space to contain a start, and express the start in it.

    :param start: value by name
    :param space: to widen; None: that of GRPO
    :return: the space; the start without values outside the space; one line per widened or omitted value
    """
    space = dict(GRPO_SPACE if space is None else space)
    messages = []
    kept: dict[str, object] = {}
    for name, value in start.items():
        if value is None:  # not in use
            continue
        among = space[name]
        wider = _holding(among, value)
        if wider is None:
            messages.append(f"{name} {value} is none that can be searched: the first trial alone has it")
            continue
        if wider != among:
            messages.append(f"{name} widened to {value}")
        space[name] = wider
        kept[name] = _nearest(wider, value)
    return space, kept, messages


def _holding(among: BaseDistribution, value: object) -> BaseDistribution | None:
    """The distribution, as much wider as the value asks; None where no distribution of its kind holds it."""
    if isinstance(among, CategoricalDistribution):
        if not isinstance(value, bool | int | float | str):
            return None
        return among if value in among.choices else CategoricalDistribution((*among.choices, value))
    assert isinstance(value, int | float)
    if isinstance(among, IntDistribution):
        return IntDistribution(min(among.low, int(value)), max(among.high, int(value)))
    assert isinstance(among, FloatDistribution)
    if not math.isfinite(value) or (among.log and value <= 0.0):
        return None
    low = min(among.low, value)
    high = max(among.high, value)
    if among.step is not None:  # by whole steps
        low = among.low - math.ceil(round((among.low - low) / among.step, 6)) * among.step
        high = among.high + math.ceil(round((high - among.high) / among.step, 6)) * among.step
    return FloatDistribution(rounded(low), rounded(high), log=among.log, step=among.step)


def _nearest(among: BaseDistribution, value: object) -> object:
    """The value, on the grid if there is one."""
    if isinstance(among, FloatDistribution) and among.step is not None and isinstance(value, int | float):
        return rounded(among.low + round((value - among.low) / among.step) * among.step)
    return value
