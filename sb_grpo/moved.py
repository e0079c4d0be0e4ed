"""Names that are no arguments here: those of version 0.1, also in zips that hold them, and those of PPO's neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sb_grpo.rules import shown

#: What arguments of version 0.1 are now: argument, and key in it where it is a dict.
MOVED: dict[str, tuple[str, str | None]] = {
    "baseline_kwargs": ("advantage_kwargs", None),
    "baseline": ("advantage_kwargs", "baseline"),
    "ended_members": ("advantage_kwargs", "ended_members"),
    "surrogate": ("loss", None),
    "clip_range_high": ("loss_kwargs", "clip_range_high"),
    "ratio_cap": ("loss_kwargs", "ratio_cap"),
    "aggregation": ("loss_kwargs", "aggregation"),
    "importance_level": ("loss_kwargs", "importance_level"),
    "ref_sync_interval": ("loss_kwargs", "ref_sync_interval"),
    "tasks": ("multitask", "tasks"),
    "task_key": ("multitask", "task_key"),
    "grouping": ("multitask", "grouping"),
    "grouping_kwargs": ("multitask", "grouping_kwargs"),
    "group_weights": ("multitask", "weights"),
    "group_weights_kwargs": ("multitask", "weights_kwargs"),
    "gradient_surgery": ("multitask", "surgery"),
    "objectives": ("rewards", "objectives"),
    "objective_normalization": ("rewards", "normalization"),
    "reward_scaling": ("rewards", "scaling"),
    "reward_clip": ("rewards", "clip"),
    "exploration_bonus": ("rewards", "bonus"),
    "micro_batch_size": ("update_kwargs", "micro_batch_size"),
    "autocast": ("update_kwargs", "autocast"),
    "shared_noise": ("group_kwargs", "shared_noise"),
    "restart": ("group_kwargs", "restart"),
}


_OF_A_CRITIC = "a setting of PPO's critic, and here there is no critic. Leave it out."
_OF_TRPO = "a setting of TRPO's step, and here steps are PPO's. Leave it out; target_kl=0.01 bounds an update."
_OF_A2C = (
    "a setting of A2C's optimiser. Leave it out, or pass policy_kwargs=dict(optimizer_class=torch.optim.RMSprop, "
    "optimizer_kwargs=dict(alpha=0.99, eps=1e-5))."
)
#: Arguments of PPO, A2C and TRPO that have no counterpart: what each of them is, and what to do.
OF_OTHERS = {
    **dict.fromkeys(("vf_coef", "clip_range_vf", "n_critic_updates"), _OF_A_CRITIC),
    **dict.fromkeys(("cg_max_steps", "cg_damping", "sub_sampling_factor"), _OF_TRPO),
    **dict.fromkeys(("line_search_shrinking_factor", "line_search_max_iter"), _OF_TRPO),
    **dict.fromkeys(("use_rms_prop", "rms_prop_eps"), _OF_A2C),
}


def check_names(given: Mapping[str, Any]) -> None:
    """Check that no argument has the name that it had in version 0.1, or is one that only PPO's neighbours have.

    :raises ValueError: with the new place
    :raises TypeError: as for every unknown argument, with what to do
    """
    for name in given:
        if name in OF_OTHERS:
            raise TypeError(
                f"GRPO got an unexpected keyword argument {name!r}: {name}={shown(given[name])} is {OF_OTHERS[name]}"
            )
        if name in MOVED:
            argument, key = MOVED[name]
            now = argument if key is None else f"{argument}=dict({key}=...)"
            raise ValueError(
                f"{name} is {now} now: GRPO's arguments have moved since version 0.1 (docs/names.md has them all)."
            )


def modern(saved: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of version 0.1 in their new places.

    :param saved: attributes by name, as a zip holds them
    :param defaults: what version 0.1 had where nobody said anything; such values are left out
    """
    now = {name: value for name, value in saved.items() if name not in MOVED}
    for name in MOVED.keys() & saved.keys():
        value, (argument, key) = saved[name], MOVED[name]
        if (value is None and key is not None) or (name in defaults and value == defaults[name]):
            continue
        if value is None:
            now.setdefault(argument, None)
        elif key is None and argument == "advantage_kwargs":
            now[argument] = {**value, **(now.get(argument) or {})}
        elif key is None:
            now[argument] = value
        else:
            now[argument] = {**(now.get(argument) or {}), key: value}
    return now


#: Defaults of version 0.1 that are not None.
DEFAULTS_0_1: dict[str, Any] = {
    "baseline": "mean", "ended_members": "zero", "surrogate": "clip", "aggregation": "step", "importance_level": "step",
    "task_key": "task", "grouping": "seed", "gradient_surgery": False, "objective_normalization": "sum",
    "reward_scaling": "none", "reward_clip": 10.0, "autocast": False, "shared_noise": True, "restart": "reset",
}  # fmt: skip
