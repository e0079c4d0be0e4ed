"""Rules of what a policy is given, and between its memory or routing and the other arguments."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from sb_grpo.rules import FLAG, Rule, check_choice, check_keys, check_values, is_number, number, plain

#: Settings that only a policy with a memory looks at.
OF_MEMORY = ("memory_size", "n_layers", "memory_span")
#: What sb3-contrib's recurrent policies call their settings, and what to do about them here.
OF_RECURRENT_PPO = {
    "lstm_hidden_size": "use memory_size",
    "n_lstm_layers": "use n_layers",
    "shared_lstm": "there is no critic to share it with, leave it out",
    "enable_critic_lstm": "there is no critic, leave it out",
    "lstm_kwargs": "memory_size, n_layers and memory_span are what can be set, leave it out",
}


#: What SB3's algorithms or predict() call on a policy and a training does not; what it calls instead, and what this does.
NEVER_CALLED = {
    "forward": ("sample", "acts in training"),
    "act_and_remember": ("sample", "acts in training"),
    "_predict": ("sample", "acts in training"),
    "get_distribution": ("_scores", "the distribution is made of"),
    "evaluate_actions": ("_scores", "log-probabilities and entropies are made of"),
    "_get_action_dist_from_latent": ("_scores", "the distribution is made of"),
    "_build": ("_build_action_head", "makes the layers"),
    "_build_mlp_extractor": ("_build_action_head", "makes the layers: put a network of your own into self.policy_net"),
}


def warn_of_overrides(policy_class: type[Any], ours: type[Any]) -> None:
    """Say of what a user's policy class brings that it is not used, unless what is used in its place is there too.

    :param ours: the class that it comes from, at the latest
    """
    above = policy_class.__mro__[: policy_class.__mro__.index(ours)]
    brought = {name for cls in above if not cls.__module__.startswith("sb_grpo.") for name in vars(cls)}
    for name, (used, does) in NEVER_CALLED.items():
        if name in brought and used not in brought:
            warnings.warn(
                f"policy={policy_class.__name__} has a {name}() of its own, which training does not call. What counts is "
                f"{used}(), which {does}: override that, or pass features_extractor_class or net_arch in policy_kwargs.",
                UserWarning,
                stacklevel=2,
            )


def check_policy_name(name: str, known: Collection[str]) -> None:
    """Check that a policy has a name that there is.

    :param known: names there are
    :raises ValueError: if it is none of them; for sb3-contrib's recurrent policies with what to use in their place
    """
    plain = name.replace("Lstm", "")
    if name != plain and plain in known:
        raise ValueError(f"policy={name!r}: here a memory is a setting. Use {plain!r}, policy_kwargs=dict(memory='lstm').")
    check_choice("policy", name, known)


#: What a model hands to a policy itself.
FROM_THE_MODEL = ("observation_space", "action_space", "lr_schedule", "use_sde")


def check_policy_kwargs(policy_class: Any, policy_kwargs: Mapping[str, Any]) -> None:
    """Check that the policy, its features extractor and its optimiser take what they are given by name.

    Classes that take any name are asked nothing.

    :raises ValueError: for the first name that is unknown, or set elsewhere, with the nearest one or the place
    """
    check_constructor_keys("policy_kwargs", policy_class, policy_kwargs, FROM_THE_MODEL)
    parts = inspect.signature(policy_class.__init__).parameters
    for part, from_the_policy in (("features_extractor", ["observation_space"]), ("optimizer", ["params", "lr"])):
        kind = policy_kwargs.get(f"{part}_class") or getattr(parts.get(f"{part}_class"), "default", None)
        kwargs = policy_kwargs.get(f"{part}_kwargs") or {}
        if part == "optimizer" and "lr" in kwargs:
            raise ValueError(
                f"policy_kwargs: optimizer_kwargs has lr={kwargs['lr']!r}, which is the model's learning_rate: pass it there."
            )
        if isinstance(kind, type):
            check_constructor_keys(f"policy_kwargs: {part}_kwargs", kind, kwargs, from_the_policy)
            if kind.__module__.startswith("torch.optim"):
                check_values(f"policy_kwargs: {part}_kwargs", kwargs, _rules_of(kind))


def check_constructor_keys(where: str, kind: type, kwargs: Collection[str], taken: Collection[str]) -> None:
    """Check the keys of a dict that a class is built with. A class that takes any name is asked nothing.

    :param where: the argument that the dict is, for the message
    :param taken: names that are handed over in another way
    :raises ValueError: for the first unknown one, with the nearest name
    """
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = [p.name for p in list(parameters)[1:] if p.kind is not p.VAR_POSITIONAL and p.name not in taken]
        check_keys(where, kwargs, names, kind.__name__)


def _rules_of(kind: type) -> dict[str, Rule]:
    """What the settings of an optimiser of torch must be: of the kind of their defaults."""
    rules: dict[str, Rule] = {}
    factor = number(-1e6, 1e6)
    for name, parameter in inspect.signature(kind).parameters.items():
        usual = parameter.default
        if isinstance(usual, bool):
            rules[name] = FLAG
        elif is_number(usual):
            rules[name] = factor._replace(text=f"{factor.text}; {usual} is usual")
        elif isinstance(usual, tuple) and all(is_number(part) for part in usual):
            rules[name] = Rule(f"must be {len(usual)} numbers, as {usual}", partial(_are_factors, len(usual)))
    return rules


def _are_factors(n: int, value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == n and all(number(-1e6, 1e6).fine(plain(part)) for part in value)


def check_memory(
    policy_class: Any,
    policy_kwargs: Mapping[str, Any],
    sequence_length: Any,
    steps_per_env: int | None,
    time_limit: int | None,
) -> None:
    """Check what belongs to a policy that remembers.

    :param sequence_length: of ``update_kwargs``
    :param steps_per_env: of a rollout; None: rollouts hold whole episodes
    :param time_limit: steps of the longest episode; None: unknown
    :raises ValueError: for a policy class without a memory, for settings that need one or are RecurrentPPO's, and for
        lengths that no rollout has
    """
    has_memory = policy_kwargs.get("memory") is not None
    parameters = inspect.signature(policy_class.__init__).parameters
    for key, remedy in OF_RECURRENT_PPO.items():
        if key in policy_kwargs and key not in parameters:
            raise ValueError(f"policy_kwargs: {key}={policy_kwargs[key]!r} is a setting of RecurrentPPO: {remedy}.")
    if has_memory:
        if not any(p.name == "memory" or p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise ValueError(
                f"policy_kwargs: memory={policy_kwargs['memory']!r}, but {policy_class.__name__}.__init__ takes no memory: "
                "hand **kwargs on to sb_grpo.policies.ActorPolicy, or use 'MlpPolicy', 'CnnPolicy' or 'MultiInputPolicy'."
            )
    elif "memory" in parameters and (alone := [key for key in OF_MEMORY if key in policy_kwargs]):
        raise ValueError(
            f"policy_kwargs: {alone[0]}={policy_kwargs[alone[0]]!r} has no effect without a memory: add memory='lstm' or "
            "'gru', or leave it out."
        )
    if sequence_length is None:
        return
    if not has_memory:
        raise ValueError(
            f"update_kwargs: sequence_length={sequence_length!r} has no effect without a memory: pass "
            "policy_kwargs=dict(memory='gru'), or leave it out."
        )
    longest = min((steps for steps in (steps_per_env, time_limit) if steps is not None), default=None)
    if longest is not None and sequence_length > longest:
        raise ValueError(
            f"update_kwargs: sequence_length={sequence_length} is longer than any stretch of a rollout, which has at most "
            f"{longest} steps of an episode. Lower it, or leave it out."
        )


def check_routing(policy_kwargs: Mapping[str, Any], tasks: Sequence[str]) -> None:
    """Check what belongs to a policy that routes by tasks.

    :param tasks: names of the declared ones
    :raises ValueError: where it routes by another number of them
    """
    n_tasks = policy_kwargs.get("n_tasks")
    if n_tasks is not None and tasks and n_tasks != len(tasks):
        raise ValueError(
            f"policy_kwargs: n_tasks={n_tasks}, but multitask: tasks declares {len(tasks)}: pass n_tasks={len(tasks)}."
        )
