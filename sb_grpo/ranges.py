"""What every argument must be, one by one: the table that the constructor, loading and changes by hand go by.

Rules between arguments are in ``arguments`` and ``group_arguments``. Upper ends keep out what no training means: a size that
fills the memory before anything is said, a factor that overflows float32.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch as th
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import get_device
from torch import nn

from sb_grpo.rules import (
    FLAG,
    SETTINGS,
    Rule,
    a,
    check_values,
    has_text_keys,
    integer,
    is_function,
    is_number,
    number,
    one_of,
    or_function,
    plain,
)

AGGREGATIONS = ("step", "episode", "constant")
LEVELS = ("step", "episode")
GROUPINGS = ("seed", "task", "hierarchical", "difficulty", "length", "auto")
GROUP_WEIGHTS = ("balanced", "performance", "adaptive")
BASELINES = ("mean", "leave_one_out", "median", "global")
ENDED_MEMBERS = ("zero", "drop")
MOST_TASKS = 1000
#: Seeds of NumPy's legacy generator, which SB3 seeds too.
SEED = integer(0, 2**32 - 1)


def _is_device(x: Any) -> bool:
    """A device that a tensor can be made on; CUDA stands for the CPU where there is none, as in SB3."""
    if not isinstance(x, str | th.device):
        return False
    try:
        device = get_device(x)
        return device.type != "meta" and th.empty(1, device=device).numel() == 1
    except (RuntimeError, AssertionError, NotImplementedError):
        return False


def _is_sample_freq(x: Any) -> bool:
    return x is not None and integer(-1, 1_000_000_000).fine(x) and bool(x != 0)


def _are_tasks(x: Any) -> bool:
    if is_number(x):
        return integer(1, MOST_TASKS).fine(x)
    named = isinstance(x, Sequence) and not isinstance(x, str | bytes)
    return x is None or (
        named and 0 < len(x) <= MOST_TASKS and all(isinstance(name, str) for name in x) and len(set(x)) == len(x)
    )


def _are_ranges(x: Any) -> bool:
    """Pairs of numbers, the second above the first."""

    def is_pair(pair: Any) -> bool:
        listed = isinstance(pair, list | tuple) and len(pair) == 2 and all(is_number(n) for n in pair)
        return listed and -1e9 <= pair[0] < pair[1] <= 1e9

    return x is None or (isinstance(x, list | tuple) and all(is_pair(pair) for pair in x))


def _are_weights(x: Any) -> bool:
    weight = number(-1e6, 1e6)
    return x is None or (has_text_keys(x) and len(x) > 0 and all(weight.fine(n) for n in x.values()))


def _is_activation(x: Any) -> bool:
    try:
        return isinstance(x(), nn.Module)
    except Exception:  # whatever it says, it makes no module without arguments
        return False


def _is_bonus(x: Any) -> bool:
    return x is None or (not isinstance(x, type) and (hasattr(x, "build") or is_function(x, 1)))


#: Argument -> key -> rule; the arguments themselves under "".
RANGES: dict[str, dict[str, Rule]] = {
    "": {
        "policy": a("the name of a policy or a subclass of sb_grpo.policies.ActorPolicy", str, type),
        "learning_rate": number(0, 1, "3e-4 is usual", scheduled=True),
        "n_steps": integer(1, 1_000_000, "2048 over all envs is usual", none=True),
        "batch_size": integer(1, 10_000_000, "64 is usual"),
        "n_epochs": integer(1, 10_000, "10 is usual"),
        "gamma": number(0, 1, "0.995 is usual", none=True),
        "gae_lambda": number(0, 1, "0.95 is usual"),
        "clip_range": number(0, 1e6, "0.2 is usual", scheduled=True),
        "normalize_advantage": one_of("group", "batch", "none", True, False, None),
        "ent_coef": number(0, 1e6, "0 to 0.01 is usual"),
        "max_grad_norm": Rule(
            "must be a positive number up to 1e+06, or infinity: gradients are not clipped; 0.5 is usual",
            lambda x: number(0, 1e6, above=True).fine(x) or (isinstance(x, float) and x == float("inf")),
        ),
        "use_sde": FLAG,
        "sde_sample_freq": Rule("must be an integer from 1 on, or -1: once per rollout", _is_sample_freq),
        "rollout_buffer_class": a("a subclass of GroupRolloutBuffer", type, none=True),
        "rollout_buffer_kwargs": SETTINGS,
        "target_kl": number(0, 1e6, "0.02 is usual", above=True, none=True),
        "stats_window_size": integer(1, 1_000_000, "100 is usual"),
        "tensorboard_log": a("the path of a folder", str, os.PathLike, none=True),
        "policy_kwargs": SETTINGS,
        "verbose": Rule("must be an integer from 0 on; 1 shows tables", lambda x: isinstance(plain(x), int) and x >= 0),
        "seed": integer(0, 2**32 - 1, none=True),
        "device": Rule("must be a device that there is: 'auto', 'cpu', 'cuda', ...", _is_device),
        "_init_setup_model": FLAG,
        "group_size": integer(1, 100_000, "None (derived), or 1 to 8, is usual", none=True, scheduled=True),
        "n_groups": integer(1, 100_000, none=True),
        "kl_coef": number(0, 1e6, "0 to 0.1 is usual"),
        "compile": FLAG,
        "advantage_kwargs": SETTINGS,
        "loss_kwargs": SETTINGS,
    },
    "group_kwargs": {"shared_noise": FLAG},
    "update_kwargs": {
        "micro_batch_size": integer(1, 10_000_000, none=True),
        "autocast": FLAG,
        "sequence_length": integer(1, 1_000_000, none=True),
    },
    "loss_kwargs": {
        "clip_range_high": number(0, 1e6, "0.28 is usual", none=True, scheduled=True),
        "aggregation": one_of(*AGGREGATIONS),
        "importance_level": one_of(*LEVELS),
        "ref_sync_interval": integer(1, 1_000_000_000, none=True),
        "ratio_cap": number(0, 1e6, "3 to 10 is usual", above=True, none=True),
    },
    "advantage_kwargs": {
        "baseline": one_of(*BASELINES),
        "ended_members": one_of(*ENDED_MEMBERS),
        "n_features": integer(1, 4096, "128 to 512 is usual", none=True),
        "scale": number(1e-6, 1e6, "1 is usual"),
        "horizons": FLAG,
        "memory": number(0, 1, "0.25 is usual", below=True),
        "follow_level": FLAG,
        "anchor": number(0, 1, "0.9 is usual"),
        "sweeps": integer(1, 1000, "4 is usual"),
        "seed": SEED,
        "fit_rows": integer(1, 10_000_000, "4096 is usual"),
        "least_rows": integer(1, 10_000_000, "256 is usual"),
        "folds": integer(1, 1000, "4 is usual"),
        "paired": Rule(
            "must be True (the share of luck is fitted), False, a number in [0, 1] in place of the fitted share, or None",
            lambda x: x is None or FLAG.fine(x) or number(0, 1).fine(x),
        ),
    },
    "multitask": {
        "tasks": Rule(f"must be a number of tasks, a list of names (1 to {MOST_TASKS}, each once), or None", _are_tasks),
        "task_key": Rule("must be a name: the key of the task in the infos", lambda x: isinstance(x, str) and x != ""),
        "grouping": or_function(one_of(*GROUPINGS), "a function of a Rollout", 1),
        "grouping_kwargs": SETTINGS,
        "weights": or_function(one_of(*GROUP_WEIGHTS, None), "a function of (Rollout, labels)", 2),
        "weights_kwargs": SETTINGS,
        "surgery": FLAG,
    },
    "multitask: grouping_kwargs": {
        "n_quantiles": integer(2, 1000, "4 is usual"),
        "n_clusters": integer(2, 1000, "4 is usual"),
        "window": integer(2, 1_000_000, "1000 is usual"),
    },
    "multitask: weights_kwargs": {
        "temperature": number(1e-6, 1e6, "0.5 is usual"),
        "ranges": Rule("must be a list of pairs (low, high) of numbers, high above low, or None", _are_ranges),
        "floor": number(0, 1, "0.3 is usual", above=True),
        "max_weight": number(1, 1e6, "10 is usual"),
    },
    "rewards": {
        "objectives": Rule("must be a dict of weights by name, each a finite number, as {'speed': 1.0}", _are_weights),
        "normalization": one_of("sum", "each"),
        "scaling": one_of("none", "clip", "tanh"),
        "clip": number(0, 1e6, "10 is usual", above=True),
        "bonus": Rule(
            "is no bonus: pass CountBonus(), RNDBonus(), a function of a Rollout that returns one number per step, or None",
            _is_bonus,
        ),
    },
    "CountBonus": {"scale": number(0, 1e6, above=True), "bits": integer(1, 62, "32 is usual"), "seed": SEED},
    "RNDBonus": {
        "scale": number(0, 1e6, above=True),
        "hidden": integer(1, 4096, "64 is usual"),
        "outputs": integer(1, 4096, "32 is usual"),
        "learning_rate": number(0, 1, "1e-4 is usual", above=True),
        "n_epochs": integer(1, 10_000),
        "batch_size": integer(1, 10_000_000),
    },
    "policy_kwargs": {
        "activation_fn": Rule("must be a class of torch.nn whose objects need no arguments, as nn.Tanh", _is_activation),
        "ortho_init": FLAG,
        "log_std_init": number(-20, 10, "-2 to 0 is usual"),
        "full_std": FLAG,
        "use_expln": FLAG,
        "squash_output": FLAG,
        "features_extractor_class": Rule(
            "must be a subclass of stable_baselines3.common.torch_layers.BaseFeaturesExtractor",
            lambda x: isinstance(x, type) and issubclass(x, BaseFeaturesExtractor),
        ),
        "features_extractor_kwargs": SETTINGS,
        "normalize_images": FLAG,
        "normalize_obs": FLAG,
        "memory": one_of("lstm", "gru", None),
        "memory_size": integer(1, 4096, "64 is usual"),
        "n_layers": integer(1, 16),
        "memory_span": number(1.0, 1e6, "100 is usual"),
        "n_tasks": integer(2, MOST_TASKS),
        "n_modules": integer(1, 64, "4 is usual"),
        "share_features_extractor": Rule("must be True, False or None", lambda x: x is None or FLAG.fine(x)),
        "optimizer_class": Rule(
            "must be a subclass of torch.optim.Optimizer",
            lambda x: callable(x) and (not isinstance(x, type) or issubclass(x, th.optim.Optimizer)),
        ),
        "optimizer_kwargs": SETTINGS,
    },
}  # fmt: skip
#: What may be changed by hand or by a callback, so is looked at before every update.
CHANGEABLE = (
    "batch_size", "n_epochs", "gamma", "gae_lambda", "ent_coef", "max_grad_norm", "target_kl", "kl_coef",
    "normalize_advantage",
)  # fmt: skip
#: Dicts among the arguments.
NESTED = ("group_kwargs", "update_kwargs", "loss_kwargs", "advantage_kwargs", "multitask", "rewards", "policy_kwargs")


def check_single(given: Mapping[str, Any]) -> None:
    """Check every argument by itself, and every key of those that are dicts.

    :param given: by name
    :raises ValueError: for the first that breaks its rule
    """
    check_values("", given, RANGES[""])
    for where in NESTED:
        named = where[: -len("_kwargs")]  # settings of an object or function of the user's own are its own matter
        if named not in ("advantage", "loss") or isinstance(given.get(named), str):
            check_settings(where, given.get(where))


def check_fields(where: str, settings: Any) -> None:
    """Check the fields of a dataclass of settings, its numbers then being Python's.

    :param where: the argument that it stands for
    :raises ValueError: for the first that breaks its rule
    """
    vars(settings).update({name: plain(value) for name, value in vars(settings).items()})
    check_settings(where, settings)


def check_settings(where: str, settings: Any) -> None:
    """Check the values of a dict of settings, or the attributes of an object that stands for one.

    :param where: the argument that it is
    :raises ValueError: for the first that breaks its rule
    """
    values = settings if isinstance(settings, Mapping) else getattr(settings, "__dict__", {})
    check_values(where, values, RANGES[where])
    if where == "multitask":
        for name in ("grouping_kwargs", "weights_kwargs"):
            check_settings(f"multitask: {name}", values.get(name))
