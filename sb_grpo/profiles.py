"""Boldness of a policy step, from careful to daring: named sets of arguments that do not depend on the env.

Chosen by reasoning and tried on CartPole-v1 only (docs/zoo.md): not tuned.
"""

from __future__ import annotations

from sb_grpo.maths.schedules import named
from sb_grpo.types import Kwargs, Settings

#: Name -> arguments. Schedules are named as in the zoo's YAML files.
PROFILES: dict[str, Kwargs] = {
    # Small steps, stopped early, pulled back to a recent policy: when training collapses, or rewards are noisy.
    "conservative": {
        "learning_rate": "cos_1e-4_0.1",
        "clip_range": 0.1,
        "n_epochs": 5,
        "target_kl": 0.01,
        "kl_coef": 0.01,
        "loss_kwargs": {"ref_sync_interval": 10},
        "group_size": 16,
    },
    # The constructor's step sizes, with a schedule: a good first try.
    "balanced": {"learning_rate": "cos_3e-4_0.05", "clip_range": 0.2, "n_epochs": 10},
    # Large steps, room to raise rare actions (clip-higher), paid exploration: when samples are dear and rewards clean.
    "aggressive": {
        "learning_rate": "lin_1e-3",
        "clip_range": 0.2,
        "loss_kwargs": {"clip_range_high": 0.28},
        "n_epochs": 15,
        "ent_coef": 0.001,
    },
}


def arguments_of(name: str, changes: Settings) -> Kwargs:
    """Arguments of a profile.

    :param name: of the profile
    :param changes: go over the profile's; ``loss_kwargs`` key by key
    :raises ValueError: for a name that there is not
    """
    if name not in PROFILES:
        raise ValueError(f"profile {name!r} is unknown; there are {', '.join(PROFILES)}.")
    profile = PROFILES[name]
    made = {**profile, "learning_rate": named(profile["learning_rate"]), **changes}
    inside = {**profile.get("loss_kwargs", {}), **(changes.get("loss_kwargs") or {})}
    return {**made, "loss_kwargs": inside} if inside else made
