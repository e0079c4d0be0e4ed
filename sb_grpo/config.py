"""Settings of a model: rules for one value, the option dataclasses, and the one table of types and ranges.

The table :data:`RANGES` holds a rule for every argument of the constructor and for every key of the dicts among them. The
constructor, loading, changes by hand and the classes that take such settings themselves all check by it. Rules between
arguments are in :mod:`sb_grpo.validation`.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple, TypeGuard, TypeVar, cast

import numpy as np
import torch as th
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import get_device
from torch import nn

from sb_grpo.types import Kwargs, Rollout, Settings

T = TypeVar("T")

# ---------------------------------------------------------------- rules for one value


class Rule(NamedTuple):
    """Condition that a value must meet."""

    text: str  #: follows the value in the message
    fine: Callable[[object], bool]
    scheduled: bool = False  #: a function of the remaining progress will do too, if its values are fine
    changeable: bool = False  #: may be changed by hand or by a callback, so is checked before every update
    read_once: bool = False  #: read when the model is built: a later change would have no effect, but be shown and saved


def changeable(rule: Rule) -> Rule:
    """The rule, of an argument that is checked before every update."""
    return rule._replace(changeable=True)


def read_once(rule: Rule) -> Rule:
    """The rule, of an argument that is read only when the model is built."""
    return rule._replace(read_once=True)


def integer(low: int, high: int, usual: str = "", none: bool = False, scheduled: bool = False) -> Rule:
    """A whole number.

    :param low: smallest
    :param high: largest: beyond it there is no sense, or no memory
    :param usual: the remedy that the message ends with
    :param none: None will do too
    """

    def fine(x: object) -> bool:
        return (none and x is None) or (is_number(x) and isinstance(x, int | np.integer) and bool(low <= x <= high))

    return Rule(_in_words(f"an integer, at least {low} and at most {high}", usual, none, scheduled), fine, scheduled)


def number(
    low: float,
    high: float,
    usual: str = "",
    above: bool = False,
    below: bool = False,
    none: bool = False,
    scheduled: bool = False,
) -> Rule:
    """A number; infinity only where ``high`` is.

    :param above: ``low`` itself will not do
    :param below: ``high`` itself will not do
    """

    def fine(x: object) -> bool:
        if not is_number(x):
            return none and x is None
        if isinstance(x, int) and x.bit_length() > 1000:  # no float can be that
            return False
        return bool((low < x if above else low <= x) and (x < high if below else x <= high))

    if above and low == 0:
        kind = "a positive number" + ("" if math.isinf(high) else f" up to {high:g}")
    else:
        kind = f"a number in [{low:g}, {high:g}{')' if below else ']'}"
    return Rule(_in_words(kind, usual, none, scheduled), fine, scheduled)


def _in_words(kind: str, usual: str, none: bool, scheduled: bool) -> str:
    function = " or a function of the remaining progress (1 to 0) to such numbers" if scheduled else ""
    return "must be " + kind + function + (", or None" if none else "") + (f"; {usual}" if usual else "")


def one_of(*choices: object) -> Rule:
    """One of some names, flags or None."""
    return Rule(f"is unknown; use one of {list(choices)}", lambda x: any(isinstance(x, type(c)) and x == c for c in choices))


def instance_of(text: str, *kinds: type, none: bool = False) -> Rule:
    """An object of some classes."""
    return Rule(f"must be {text}{', or None' if none else ''}", lambda x: isinstance(x, kinds) or (none and x is None))


def or_function(rule: Rule, function: str, n_arguments: int) -> Rule:
    """The rule; a function will do too.

    :param function: its name in the message
    :param n_arguments: that it takes
    """
    return Rule(f"{rule.text}, or {function}", lambda x: is_function(x, n_arguments) or rule.fine(x))


def is_number(x: object) -> TypeGuard[int | float | np.integer | np.floating]:
    """Python's and NumPy's numbers. Flags are none, nor are fractions, decimals and tensors, which do not go with floats."""
    return isinstance(x, int | float | np.integer | np.floating) and not isinstance(x, bool)


def is_function(x: object, n_arguments: int, kwargs: Mapping[str, object] | None = None) -> bool:
    """Whether something can be called with so many arguments, and these by name. Classes are none: they make objects."""
    if not callable(x) or isinstance(x, type):
        return False
    try:
        inspect.signature(x).bind(*[None] * n_arguments, **(kwargs or {}))
    except TypeError:
        return False
    except ValueError:  # a function in C that does not say what it takes
        pass
    return True


def has_text_keys(x: object) -> TypeGuard[Mapping[str, object]]:
    """Whether something is a dict whose keys are names."""
    return isinstance(x, Mapping) and all(isinstance(key, str) for key in x)


ANYTHING = Rule("", lambda x: True)  #: checked where it is read
FLAG = Rule("must be True or False", lambda x: isinstance(x, bool | np.bool_))
SETTINGS = Rule("must be a dict of keyword arguments by name, or None", lambda x: x is None or has_text_keys(x))

# ---------------------------------------------------------------- values as they are given, and in messages


def to_python(value: Any) -> Any:
    """Numbers and flags of NumPy and PyTorch as Python's: theirs overflow in the arithmetic of seeds, and are no JSON."""
    kind = type(value)  # asked first, as an env may answer to any name
    return value.item() if hasattr(kind, "ndim") and hasattr(kind, "item") and value.ndim == 0 else value


def from_config(arguments: Mapping[str, object]) -> Kwargs:
    """Arguments by name; numbers are Python's, and settings the dicts and lists that they stand for: a library of
    configurations (Hydra's OmegaConf, ml_collections) holds them in containers of its own."""
    dicts = {name for name in arguments if name.endswith("_kwargs") or name in OPTIONS}
    return {name: to_python(_unpacked(x, type(x)) if name in dicts else x) for name, x in arguments.items()}


def _unpacked(value: object, outermost: type) -> object:
    if isinstance(value, MutableMapping) or (hasattr(outermost, "keys") and type(value) is outermost):
        parts: Any = value  # ** asks less of it than a Mapping has
        return {name: _unpacked(parts[name], outermost) for name in parts.keys()}
    return [_unpacked(part, outermost) for part in value] if isinstance(value, MutableSequence) else value


@cache
def constructor_of(kind: type) -> dict[str, inspect.Parameter]:
    """Arguments of a class by name; where its constructor hands on further arguments, its parents' too."""
    found: dict[str, inspect.Parameter] = {}
    for parent in kind.__mro__:
        if "__init__" not in vars(parent):
            continue
        own = list(inspect.signature(vars(parent)["__init__"]).parameters.values())[1:]
        found = {p.name: p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)} | found
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            break
    return found


def shown(value: object) -> str:
    """A value in a message: never long, whatever it is."""
    return _REPR.repr(value)


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:  # Python itself refuses to write the longest ones
        return repr(x) if x.bit_length() < 100 else f"an integer of {x.bit_length()} bits"


_REPR = _Short()
_REPR.maxstring = _REPR.maxother = 120
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 12


def meant(name: object, known: Collection[str]) -> str:
    """The end of a sentence about an unknown name: the question that has the nearest one, or a full stop."""
    near = difflib.get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else "."


# ---------------------------------------------------------------- checks of single values


def check_values(where: str, values: Mapping[str, object], rules: Mapping[str, Rule]) -> None:
    """Check values by name, one by one; those without a rule are passed over.

    :param where: the argument that they are keys of, for the message; "" where they are arguments themselves
    :param values: by name
    :param rules: of each name
    :raises ValueError: for the first that breaks its rule
    """
    for name, value in values.items():
        if name not in rules:
            continue
        rule = rules[name]
        label = f"{where}: {name}" if where else name
        if rule.scheduled and callable(value):
            at_progress(label, rule, value, 1.0)
        elif not rule.fine(value):
            raise ValueError(f"{label}={shown(value)} {rule.text}.{_of_yaml(value) if rule.scheduled else ''}")


def _of_yaml(value: object) -> str:
    """A sentence on a schedule that is written as in the zoo's files."""
    if not isinstance(value, str):
        return ""
    start = value.removeprefix("lin_") if value.startswith("lin_") else "3e-4"
    return (
        " A string is for the YAML files of the zoo: pass a number, or LinearSchedule("
        f"{start}, 0.0, 1.0) of stable_baselines3.common.utils."
    )


def at_progress(label: str, rule: Rule, schedule: object, progress: float) -> float:
    """Value at some progress of a number or a function of the progress.

    :param label: its name in the message
    :param progress: that remains, 1 to 0
    :raises ValueError: if that breaks the rule: a learning rate below 0 would unlearn without a word
    """
    if not callable(schedule):
        check_values("", {label: schedule}, {label: rule._replace(scheduled=False)})
        return cast(float, schedule)
    try:
        value = to_python(schedule(progress))
    except Exception as error:
        raise ValueError(f"{label}={shown(schedule)} failed at progress {progress:g} ({error!r}): it {rule.text}.") from error
    if value is None or not rule.fine(value):
        raise ValueError(f"{label}={shown(schedule)} returned {shown(value)} at progress {progress:g}: it {rule.text}.")
    return cast(float, value)


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Check that a value is one of those there are.

    :param name: its name in the message
    :raises ValueError: if it is none of them
    """
    check_values("", {name: value}, {name: one_of(*choices)})


def check_keys(where: str, given: Collection[str], known: Collection[str], of: str) -> None:
    """Check the keys of a dict of settings.

    :param where: the argument that they were given in
    :param known: all that there are
    :param of: the object that takes them, for the message
    :raises ValueError: for the first unknown one, with the nearest name
    """
    for key in given:
        if key not in known:
            takes = f"takes {sorted(known)}" if known else "takes none"
            raise ValueError(f"{where} has an unknown key {key!r}{meant(key, known)} {of} {takes}.")


# ---------------------------------------------------------------- options: the dicts among the arguments


@dataclass(frozen=True)
class GroupOptions:
    """Start of the members of a group, and which groups count (``group_kwargs=``)."""

    #: False: members share the start state but not the noise that ``step`` draws.
    shared_noise: bool = True
    #: Starts of the groups: a sequence, or a function of a group's number (0, 1, ...) that returns one. A start is a reset
    #: seed (an integer from 0 to 2^31 - 1), or a dict with keys among ``"seed"`` (left out: another one for every group),
    #: ``"options"`` (of ``reset``; host envs) and ``"state"`` (a row of ``state``; subclasses of ``FunctionalTensorEnv``). All
    #: members of a group get the same, also where the VecEnv resets by itself. None: a reset seed of its own for every group.
    starts: Sequence[object] | Callable[[int], object] | None = None
    #: Order in which a sequence is used: ``"cycle"`` (as it is, again and again), ``"shuffle"`` (each start once per turn, in
    #: another order every time) or ``"random"`` (drawn with replacement).
    starts_order: str = "cycle"
    #: True: put the member's number (0 to ``group_size`` - 1) into its reset options, as ``"member"``. Members may then start
    #: differently, and their starts are not compared. Host envs only.
    tell_member: bool = False
    #: Collect on until ``n_groups`` complete groups have a spread of (discounted) returns (DAPO, arXiv 2503.14476, eq. 11), or
    #: :data:`~sb_grpo.collect.plan.MOST_REFILLS` times ``n_groups`` groups are complete. The update gets them all, and every
    #: step counts as a timestep.
    refill: bool = False


@dataclass(frozen=True)
class UpdateOptions:
    """Memory and precision of an update (``update_kwargs=``)."""

    #: Rows in memory at once; gradients accumulate to ``batch_size``. None: the whole minibatch. Of a policy with a memory a
    #: part is cut between two sequences of ``sequence_length`` steps, never within one.
    micro_batch_size: int | None = None
    #: Run the networks in bfloat16.
    autocast: bool = False
    #: Policy with a memory: steps through which gradients go back. None: ``micro_batch_size`` where that is set, else
    #: ``batch_size``.
    sequence_length: int | None = None


@dataclass(frozen=True)
class Multitask:
    """Tasks, the episodes that are compared with each other, and the weight of each group (``multitask=``)."""

    #: Number or names of the tasks that the env reports, as an id or name in ``info["task"]``; needed to group by task, and
    #: enough to log returns per task.
    tasks: int | Sequence[str] | None = None
    #: Key of the task in the infos, or in a Dict observation (an integer or one-hot).
    task_key: str = "task"
    #: Episodes that are compared with each other: ``"seed"``, ``"task"``, ``"hierarchical"`` (same seed, then tasks on one
    #: scale), ``"difficulty"`` (quantiles of the return), ``"length"``, ``"auto"`` (k-means), or a function from a rollout to
    #: one label per episode.
    grouping: str | Callable[[Rollout], th.Tensor] = "seed"
    #: Arguments of :class:`~sb_grpo.extras.grouping.ByQuantile` (``n_quantiles``) or
    #: :class:`~sb_grpo.extras.grouping.Clusters` (``n_clusters``, ``window``).
    grouping_kwargs: Mapping[str, int] | None = None
    #: Share of each group in the loss: None (as many rows as it has), ``"balanced"``, ``"performance"``, ``"adaptive"``, or
    #: a function of (:class:`Rollout`, labels) that returns one share per group.
    weights: str | Callable[[Rollout, th.Tensor], th.Tensor] | None = None
    #: Arguments of :class:`~sb_grpo.extras.group_weights.GroupWeights`.
    weights_kwargs: Settings | None = None
    #: One gradient per task, conflicts between them projected away (PCGrad).
    surgery: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the declared tasks; their places are the task ids."""
        if self.tasks is None:
            return ()
        return tuple(self.tasks) if isinstance(self.tasks, Sequence) else tuple(f"task_{i}" for i in range(self.tasks))


@dataclass(frozen=True)
class Rewards:
    """Reward of a step (``rewards=``)."""

    #: Weights by name of the rewards in ``info["rewards"]``, whose sum takes the place of the env's reward.
    objectives: Mapping[str, float] | None = None
    #: ``"sum"``: add the objectives up, then estimate; ``"each"``: estimate and normalise every objective by itself, then add
    #: up (GDPO).
    normalization: str = "sum"
    #: ``"none"``, ``"clip"`` or ``"tanh"``: bound step rewards by ``clip``.
    scaling: str = "none"
    #: The bound.
    clip: float = 10.0
    #: :class:`CountBonus`, :class:`RNDBonus` or a function of a :class:`Rollout` that returns one number per step: added to
    #: the (scaled) rewards before advantages are computed; returns are logged without it.
    bonus: object = None


#: Dicts among the arguments that a class of options describes.
OPTIONS: dict[str, type] = {
    "group_kwargs": GroupOptions, "update_kwargs": UpdateOptions, "multitask": Multitask, "rewards": Rewards,
}  # fmt: skip


def read_options(argument: str, given: object) -> Any:
    """Options from the value of an argument: an object of their class, a dict of its fields, or None.

    :param argument: of :data:`OPTIONS`
    :return: an object of the class of that argument
    :raises ValueError: for anything else, and for unknown keys
    """
    kind = OPTIONS[argument]
    if isinstance(given, kind):
        return given
    names = [field.name for field in fields(kind)]
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"{argument}={shown(given)} must be a dict with keys among {names}, a {kind.__name__}, or None.")
    return read_settings(argument, kind, given, f"{argument}=")


def read_settings(argument: str, kind: type[T], given: Mapping[str, object] | None, of: str) -> T:
    """An object of a dataclass from a dict of its fields.

    :param argument: that the dict was given as
    :param of: the object that takes the keys, for the message
    :raises ValueError: for unknown keys
    """
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    check_keys(argument, given or {}, names, of)
    return kind(**{name: to_python(value) for name, value in (given or {}).items()})


@dataclass(frozen=True)
class StateSettings:
    """Settings of a :class:`~sb_grpo.baselines.state.StateBaseline` (``advantage_kwargs=`` with ``advantage="state"``).

    :param n_features: number of random Fourier features; by default 32 per input, between 128 and 512
    :param scale: length scale of the kernel, in standard deviations per input
    :param horizons: fit on the predictions of :class:`~sb_grpo.baselines.horizons.Horizons` instead of the policy's features:
        a second layer
    :param memory: weight of earlier rollouts relative to the newest, per rollout of age; in [0, 1)
    :param follow_level: shift the targets of earlier rollouts by the mean difference between the newest targets and the
        predictions of the previous weights. If rewards do not end and ``gamma`` is near 1, values rise for a long time, and
        old targets would bend the fit between old and new states
    :param anchor: share of the previous weights that the ridge pulls towards; in [0, 1]
    :param sweeps: fits per rollout; from the second on, lambda-returns bootstrap from the newest fit (fitted value iteration).
        Rollouts of more than ``fit_rows`` steps are fitted once
    :param seed: of the random projection; the same in every run, so there is nothing to save
    :param fit_rows: longer rollouts are fitted on this number of steps, evenly spaced over the episodes
    :param least_rows: shorter rollouts are collected until they have this number of steps together, then fitted as one. Until
        then they use the previous fit, at first 0. A fit to a few steps that bootstrap from each other diverges. With n tasks
        the number is divided by n
    :param folds: parts of a rollout's episodes; the values of one part come from a fit to the others and the past
        (cross-fitting: Chernozhukov et al., 2018, section 3). 1: from the past alone. Rollouts of more than ``fit_rows`` steps
        also use the past alone
    :param paired: subtract from each residual the noise shared with the other members of its same-seed group at the same step
        (:class:`~sb_grpo.baselines.paired.Pairing`): True with a fitted coefficient, or a fixed coefficient in [0, 1]. None:
        True if groups have two members or more that share their noise
    """

    n_features: int | None = None
    scale: float = 1.0
    horizons: bool = False
    memory: float = 0.25
    follow_level: bool = False
    anchor: float = 0.9
    sweeps: int = 4
    seed: int = 0
    fit_rows: int = 4096
    least_rows: int = 256
    folds: int = 4
    paired: bool | float | None = None

    def __post_init__(self) -> None:
        check_fields("advantage_kwargs", self)


# ---------------------------------------------------------------- the table of types and ranges

AGGREGATIONS = ("step", "episode", "constant")
LEVELS = ("step", "turn", "episode")
GROUPINGS = ("seed", "task", "hierarchical", "difficulty", "length", "auto")
GROUP_WEIGHTS = ("balanced", "performance", "adaptive")
STARTS_ORDERS = ("cycle", "shuffle", "random")
BASELINES = ("mean", "leave_one_out", "median", "global")
ENDED_MEMBERS = ("zero", "drop")
MOST_TASKS = 1000
#: Seeds of NumPy's legacy generator, which SB3 seeds too.
SEED = integer(0, 2**32 - 1)
MAX_GRAD_NORM = Rule(
    "must be a positive number up to 1e+06, or infinity: gradients are not clipped; 0.5 is usual",
    lambda x: number(0, 1e6, above=True).fine(x) or (isinstance(x, float) and x == float("inf")),
)


def _is_device(x: object) -> bool:
    """A device that a tensor can be made on; CUDA stands for the CPU where there is none, as in SB3."""
    if not isinstance(x, str | th.device):
        return False
    try:
        device = get_device(x)
        return device.type != "meta" and th.empty(1, device=device).numel() == 1
    except (RuntimeError, AssertionError, NotImplementedError):
        return False


def _is_sample_freq(x: object) -> bool:
    return integer(-1, 1_000_000_000).fine(x) and bool(x != 0)


def _are_tasks(x: object) -> bool:
    if is_number(x):
        return integer(1, MOST_TASKS).fine(x)
    if x is None or not isinstance(x, Sequence) or isinstance(x, str | bytes):
        return x is None
    return 0 < len(x) <= MOST_TASKS and all(isinstance(name, str) for name in x) and len(set(x)) == len(x)


def _are_ranges(x: object) -> bool:
    """Pairs of numbers, the second above the first."""

    def is_pair(pair: object) -> bool:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(is_number(n) for n in pair):
            return False
        return bool(-1e9 <= pair[0] < pair[1] <= 1e9)

    return x is None or (isinstance(x, list | tuple) and all(is_pair(pair) for pair in x))


def _are_starts(x: object) -> bool:
    """Whether a value may hold starts; each of them is checked with the env."""
    if x is None or is_function(x, 1):
        return True
    is_sequence = hasattr(x, "__len__") and hasattr(x, "__getitem__")
    return is_sequence and not isinstance(x, str | bytes | Mapping | type) and len(x) > 0  # type: ignore[arg-type]


def _are_weights(x: object) -> bool:
    weight = number(-1e6, 1e6)
    return x is None or (has_text_keys(x) and len(x) > 0 and all(weight.fine(n) for n in x.values()))


def _is_activation(x: object) -> bool:
    try:
        return callable(x) and isinstance(x(), nn.Module)
    except Exception:  # whatever it says, it makes no module without arguments
        return False


def _is_bonus(x: object) -> bool:
    return x is None or (not isinstance(x, type) and (hasattr(x, "build") or is_function(x, 1)))


#: Argument -> key -> rule; the arguments themselves under "". Upper ends keep out what no training means: a size that fills
#: the memory before anything is said, a factor that overflows float32.
RANGES: dict[str, dict[str, Rule]] = {
    "": {
        "policy": instance_of("the name of a policy or a subclass of sb_grpo.policies.ActorPolicy", str, type),
        "env": ANYTHING,
        "learning_rate": number(0, 1, "3e-4 is usual", scheduled=True),
        "n_steps": integer(1, 1_000_000, "2048 over all envs is usual", none=True),
        "batch_size": changeable(integer(1, 10_000_000, "64 is usual")),
        "n_epochs": changeable(integer(1, 10_000, "10 is usual")),
        "gamma": changeable(number(0, 1, "0.995 is usual", none=True)),
        "gae_lambda": changeable(number(0, 1, "0.95 is usual")),
        "clip_range": number(0, 1e6, "0.2 is usual", scheduled=True),
        "normalize_advantage": changeable(one_of("group", "batch", "none", True, False, None)),
        "ent_coef": changeable(number(0, 1e6, "0 to 0.01 is usual")),
        "max_grad_norm": changeable(MAX_GRAD_NORM),
        "use_sde": FLAG,
        "sde_sample_freq": Rule("must be an integer from 1 on, or -1: once per rollout", _is_sample_freq),
        "rollout_buffer_class": instance_of("a subclass of GroupRolloutBuffer", type, none=True),
        "rollout_buffer_kwargs": SETTINGS,
        "target_kl": changeable(number(0, 1e6, "0.02 is usual", above=True, none=True)),
        "stats_window_size": integer(1, 1_000_000, "100 is usual"),
        "tensorboard_log": instance_of("the path of a folder", str, os.PathLike, none=True),
        "policy_kwargs": SETTINGS,
        "verbose": Rule("must be an integer from 0 on; 1 shows tables", lambda x: isinstance(x, int) and x >= 0),
        "seed": integer(0, 2**32 - 1, none=True),
        "device": Rule("must be a device that there is: 'auto', 'cpu', 'cuda', ...", _is_device),
        "_init_setup_model": FLAG,
        "group_size": integer(1, 100_000, "None (derived), or 1 to 8, is usual", none=True, scheduled=True),
        "n_groups": integer(1, 100_000, none=True),
        "group_kwargs": read_once(ANYTHING),
        "advantage": read_once(ANYTHING),
        "advantage_kwargs": read_once(SETTINGS),
        "loss": read_once(ANYTHING),
        "loss_kwargs": read_once(SETTINGS),
        "kl_coef": changeable(number(0, 1e6, "0 to 0.1 is usual")),
        "multitask": read_once(ANYTHING),
        "rewards": read_once(ANYTHING),
        "update_kwargs": read_once(ANYTHING),
        "compile": read_once(FLAG),
    },
    "group_kwargs": {
        "shared_noise": FLAG,
        "starts": Rule(
            "must be a sequence of at least one start (a reset seed, or a dict with keys among 'seed', 'options', 'state'), a "
            "function of a group's number that returns one, or None",
            _are_starts,
        ),
        "starts_order": one_of(*STARTS_ORDERS),
        "tell_member": FLAG,
        "refill": FLAG,
    },
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
        "mask_truncated": FLAG,
        "advantage_clip": number(0, 1e6, "5 is usual", above=True, none=True),
        "kl_correction": FLAG,
        "ratio_cap": number(0, 1e6, "3 to 10 is usual", above=True, none=True),
        "temperature_pos": number(1e-3, 1e3, "1 is usual"),
        "temperature_neg": number(1e-3, 1e3, "1.05 is usual"),
    },
    "advantage_kwargs": {
        "baseline": one_of(*BASELINES),
        "ended_members": one_of(*ENDED_MEMBERS),
        "anchor_weight": number(0, 1e6, "1 is usual"),
        "anchor_key": Rule(
            "must be a function of a Rollout that returns one row of numbers per step, or None",
            lambda x: x is None or is_function(x, 1),
        ),
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
CHANGEABLE = tuple(name for name, rule in RANGES[""].items() if rule.changeable)
READ_ONCE = tuple(name for name, rule in RANGES[""].items() if rule.read_once)


def check_each(arguments: Mapping[str, object]) -> None:
    """Check every argument by itself, and every key of those that are dicts or objects that stand for one.

    :param arguments: all or some of the constructor's, by name
    :raises ValueError: for the first that breaks its rule
    """
    check_values("", arguments, RANGES[""])
    check_settings("policy_kwargs", arguments.get("policy_kwargs"))
    options = {where: arguments.get(where) for where in OPTIONS}
    if isinstance(arguments.get("advantage"), str):  # settings of an object or function of the user's own are its own matter
        options["advantage_kwargs"] = arguments.get("advantage_kwargs")
    is_name = isinstance(arguments.get("loss"), str)
    options["loss_kwargs"] = arguments.get("loss_kwargs" if is_name else "loss")
    for where, settings in options.items():
        numbers = {key: to_python(value) for key, value in settings.items()} if isinstance(settings, Mapping) else settings
        check_settings(where, numbers)


def check_fields(where: str, settings: object) -> None:
    """Check the fields of a dataclass of settings, its numbers then being Python's.

    :param where: the argument that it stands for
    :raises ValueError: for the first that breaks its rule
    """
    vars(settings).update({name: to_python(value) for name, value in vars(settings).items()})
    check_settings(where, settings)


def check_settings(where: str, settings: object) -> None:
    """Check the values of a dict of settings, or the attributes of an object that stands for one.

    :param where: the argument that it is
    :raises ValueError: for the first that breaks its rule
    """
    values = settings if isinstance(settings, Mapping) else getattr(settings, "__dict__", {})
    check_values(where, values, RANGES[where])
    if where == "multitask":
        for name in ("grouping_kwargs", "weights_kwargs"):
            check_settings(f"multitask: {name}", values.get(name))


# ---------------------------------------------------------------- arguments that are read only once


def as_read(arguments: Mapping[str, object]) -> dict[str, object]:
    """The arguments of :data:`READ_ONCE` as they are now; dicts as copies."""
    now = {name: arguments[name] for name in READ_ONCE}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in now.items()}


def check_as_read(read: Mapping[str, object], arguments: Mapping[str, object]) -> None:
    """Check that nothing was changed that nobody would notice.

    :param read: of :func:`as_read`, when the model was built
    :param arguments: as they are now
    :raises ValueError: naming the one that has changed
    """
    for name, then in read.items():
        now = arguments[name]
        if not _same(then, now):
            raise ValueError(
                f"{name}={shown(now)} was set by hand, but the model was built with {shown(then)} and reads it only then, so "
                f"the change would have no effect. Build a model with it, or save this one and load it with {name}=: "
                f"GRPO.load(path, env, {name}=...)."
            )


def _same(then: object, now: object) -> bool:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        return then.keys() == now.keys() and all(_same(then[key], now[key]) for key in then)
    return then is now or (isinstance(then, str | int | float | tuple | list) and type(then) is type(now) and then == now)


# ---------------------------------------------------------------- sizes of rollouts and groups

#: Default rollout, in env steps over all envs together. PPO's 2048 *per env* starves the policy of updates.
ROLLOUT_STEPS = 2048
#: Members per group where an estimator compares them.
COMPARED = 8
#: Different starts that a rollout should show: with fewer, a mean over the rollout says more of their noise than of the
#: policy.
FEW_STARTS = 8


def steps_per_env(n_steps: int | None, n_envs: int) -> int:
    """Steps per env that ``n_steps`` stands for: None is ``ROLLOUT_STEPS`` in total."""
    return math.ceil(ROLLOUT_STEPS / n_envs) if n_steps is None else n_steps


def group_size_at(group_size: object, progress: float) -> int:
    """Members per group.

    :param group_size: their number, or a schedule of it
    :param progress: that remains, 1 to 0
    :raises ValueError: if a schedule says anything but a whole number from 1 on
    """
    rule = RANGES[""]["group_size"]
    whole = rule._replace(fine=lambda x: rule.fine(int(x) if isinstance(x, float) and x.is_integer() else x))
    return int(at_progress("group_size", whole, group_size, progress))


def default_group_size(
    estimator: object, compares: bool, obstacle: str | None, n_envs: int, steps_per_env: int, limit: int | None
) -> int:
    """Members per group where ``group_size`` is None.

    Members of a group share their start, so a group costs a rollout different starts. Where members are compared they need
    other members: 8. ``"state"`` uses a group for its pairs alone, which get as many members as leave :data:`FEW_STARTS`
    different starts in a rollout, four of them side by side: 2 on 8 envs with episodes of 200 steps, 1 (no pairs) with longer
    ones. The size divides the number of envs, so that members run side by side.

    :param estimator: an object that does not state its needs (``needs_other_members``) is taken to compare members
    :param compares: something else than the estimator compares members
    :param obstacle: the reason why members cannot be paired; None: they can
    :param n_envs: of all learners
    :param steps_per_env: of a rollout
    :param limit: steps of an episode at most; None: unknown, as the number of starts is then: no pairs unless asked for
    :return: 1 to 8
    """
    if compares or getattr(estimator, "needs_other_members", None) is not False:
        return COMPARED
    paired = getattr(estimator, "paired", False)
    if paired is False or (paired is None and obstacle is not None):
        return 1
    starts = 0.0 if limit is None else n_envs * (1.0 + steps_per_env / limit)
    fitting = max(min(int(starts / FEW_STARTS), n_envs // 4, COMPARED), 1 if paired is None else 2)
    return next((size for size in range(fitting, 1, -1) if n_envs % size == 0), fitting if fitting == 2 else 1)
