"""Makes a VecEnv of host envs take the seeds of its resets from a trainer, or says what would."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from sb_grpo.envs.hold import Hold, hold_of
from sb_grpo.envs.seeded_reset import seeded_reset_of
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.envs.time_limits import own_limit


def install_seeded_reset(venv: VecEnv) -> None:
    """Make sure that every env of a VecEnv takes seeds, and that one trainer at a time gives them. Safe to call twice.

    Nothing is put around the envs or the VecEnv: one more VecEnvWrapper would break ``sync_envs_normalization``, and with it
    EvalCallback under VecNormalize. Envs in other processes cannot be reached and must have been built for it.

    :param venv: any stack of VecEnvWrappers
    :raises ValueError: if the envs live elsewhere and take no seeds
    """
    base = venv.unwrapped
    if isinstance(base, TensorVecEnv):
        raise ValueError(
            f"{type(venv).__name__} moves every step of a {type(base).__name__} through NumPy: pass the TensorVecEnv itself."
        )
    held = isinstance(getattr(vars(base).get("reset"), "__self__", None), Hold)
    if isinstance(base, DummyVecEnv):
        seeded = [seeded_reset_of(env) for env in base.envs]
        hold = hold_of(base) if held else Hold(base, ours=True)
        for one in seeded:
            one.watch(hold)
    elif not held:
        Hold(base, ours=_takes_seeds(base))


def _takes_seeds(base: VecEnv) -> bool:
    """Look for ``set_next_seed`` in envs that cannot be reached.

    :return: they have this package's resets
    :raises ValueError: if they do not take seeds
    """
    if isinstance(base, SubprocVecEnv):
        if base.has_attr("set_next_seed"):
            return True
        raise ValueError(
            f"GRPO must choose the seed of every reset, but the envs inside {type(base).__name__} cannot be reached. "
            "Build them for it: make_vec_env(env_id, n_envs=8, vec_env_cls=SubprocVecEnv, "
            "wrapper_class=sb_grpo.SeededResetWrapper)"
        )
    # The seed will be overwritten. A VecEnv that answers to any name at all knows none.
    if _answers(base, "set_next_seed", int(np.random.randint(2**31)), None) and not _answers(base, "no_such_method"):
        return _answers(base, "seeded_reset_facts")
    raise ValueError(
        f"GRPO must choose the seed of every reset, but {type(base).__name__} has no way to say it. Either let "
        "env_method('set_next_seed', seed, noise_seed, indices=[slot]) set the seed of a slot's next reset, whether step() or "
        "reset() makes it (docs/own_env.md); or, if it steps all slots at once on one device, write it as a "
        "sb_grpo.envs.tensor_env.TensorVecEnv; or, if it stands around a gymnasium.vector.VectorEnv, pass "
        "sb_grpo.envs.gymnasium_vector.GymnasiumVectorEnv(vector_env) in its place."
    )


def _answers(base: VecEnv, method: str, *args: Any) -> bool:
    try:
        return base.env_method(method, *args, indices=[0]) is not None
    except (AttributeError, NotImplementedError, KeyError, ValueError, TypeError, AssertionError):
        return False


def facts(env: VecEnv) -> tuple[str | None, int | None]:
    """Id and time limit of the first env; None where unknown.

    :param env: any stack of VecEnvWrappers
    """
    base = env.unwrapped
    if isinstance(base, TensorVecEnv):
        return base.env_id or None, base.max_episode_steps
    if hold_of(env).ours:
        found: tuple[str | None, int | None] = env.env_method("seeded_reset_facts", indices=[0])[0]
        return found
    spec = getattr(base, "spec", None)
    return getattr(spec, "id", None), own_limit(base) or getattr(spec, "max_episode_steps", None)


def time_limit(env: VecEnv) -> int | None:
    """Steps after which an env ends every episode; None if nobody says. The first env is asked."""
    return facts(env)[1]
