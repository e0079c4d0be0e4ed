"""Make a VecEnv of host envs take the seeds of its resets from a trainer, or name the remedy."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper

from sb_grpo.envs.listening import listener_of
from sb_grpo.envs.ownership import EnvOwnership, Infos, Observations, ownership_of
from sb_grpo.envs.seeded_reset import Seat, SeededEnv, observation_digest
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.envs.time_limits import OF_TIME_LIMIT, limit_among, smallest
from sb_grpo.types import map_obs


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
    _check_one_env_each(venv)
    held = isinstance(listener_of(base), EnvOwnership)
    if isinstance(base, DummyVecEnv):
        ownership = ownership_of(base) if held else EnvOwnership(base, ours=True, near=True)
        steps = ("step", "step_async", "step_wait", "reset")
        plain = all(getattr(type(base), name) is getattr(DummyVecEnv, name) for name in steps)
        kind = Seat if plain else SeededEnv  # a step_wait() of the user's may ask the envs for anything
        ownership.sit(base.envs, [ownership.seat_of(env) or kind(env) for env in base.envs])
        base.buf_infos = Infos(base.buf_infos)
        base.buf_obs = Observations(base.buf_obs)
    elif not held:
        _ownership_at_a_distance(base)


def check_no_pool(*envs: object) -> None:
    """See that none of these is a pool of EnvPool, whose envs reset themselves without seeds.

    :raises ValueError: naming the adapter that there is
    """
    for env in envs:
        if any(base.__module__.startswith("envpool.") for base in type(env).__mro__):
            raise ValueError(
                f"{type(env).__name__} is a pool of EnvPool, whose envs reset themselves and take no seeds for it. Pass "
                "sb_grpo.envs.envpool.EnvPoolEnv(task_id, num_envs), which makes the pool (docs/own_env.md)."
            )


def _check_one_env_each(venv: VecEnv) -> None:
    """See that no wrapper changes the number of envs: the seed of an env's next reset goes to the env of that number.

    :raises ValueError: naming a wrapper that shows fewer or more
    """
    for wrapper in wrappers_of(venv):
        if wrapper.num_envs != wrapper.venv.num_envs:
            raise ValueError(
                f"{type(wrapper).__name__} shows {wrapper.num_envs} slots of {wrapper.venv.num_envs} envs: GRPO seeds the "
                "resets env by env, so every env must be one slot. Let one env (a gymnasium.Env) play for one learner, or "
                "write a VecEnv of your own, not a VecEnvWrapper, that takes seeds env by env (docs/own_env.md)."
            )


def _ownership_at_a_distance(base: VecEnv) -> EnvOwnership:
    """Own envs that only ``env_method`` reaches.

    :raises ValueError: if they do not take seeds
    """
    if isinstance(base, SubprocVecEnv) and not base.has_attr("set_next_seed"):
        raise ValueError(
            f"GRPO must choose the seed of every reset, but the envs inside {type(base).__name__} cannot be reached. "
            "Build them for it: make_vec_env(env_id, n_envs=8, vec_env_cls=SubprocVecEnv, "
            "wrapper_class=sb_grpo.SeededResetWrapper)"
        )
    if isinstance(base, SubprocVecEnv):
        return EnvOwnership(base, ours=base.has_attr("seeded_reset_facts"))
    says_yes_to_all = _answers(base, "no_such_method")
    for noise in ([None], []):
        seed = int(np.random.randint(2**31))  # will be overwritten
        if _answers(base, "set_next_seed", seed, *noise) and (not says_yes_to_all or _obeys(base, seed, *noise)):
            ours = not says_yes_to_all and _answers(base, "seeded_reset_facts")
            return EnvOwnership(base, ours, takes_noise=bool(noise))
    check_no_pool(*getattr(base, "__dict__", {}).values())
    raise ValueError(
        f"GRPO must choose the seed of every reset, but {type(base).__name__} has no way to say it. Either let "
        "env_method('set_next_seed', seed, noise_seed, indices=[env]) set the seed of an env's next reset, whether step() or "
        "reset() makes it (docs/own_env.md); or, if it steps all envs at once on one device, write it as a "
        "sb_grpo.envs.tensor_env.TensorVecEnv; or, if it stands around a gymnasium.vector.VectorEnv, pass "
        "sb_grpo.envs.gymnasium_vector.GymnasiumVectorEnv(vector_env) in its place. If its envs are agents of one env, as "
        "SuperSuit's are: docs/own_env.md, Several agents."
    )


def _answers(base: VecEnv, method: str, *args: object) -> bool:
    """Whether the VecEnv knows a method of its envs by this name, with these arguments.

    :raises Exception: of the VecEnv's own, which says nothing of the name
    """
    try:
        base.env_method(method, *args, indices=[0])
    except (AttributeError, NotImplementedError, KeyError, ValueError, TypeError, AssertionError) as error:
        text = str(error)
        if isinstance(error, NotImplementedError) or not text or method in text or "env_method" in text:
            return False
        raise
    return True


def _obeys(base: VecEnv, *seeds: object) -> bool:
    """Whether equal seeds give equal starts: a VecEnv that answers to any name at all may know none."""
    starts = []
    for _ in range(2):
        base.env_method("set_next_seed", *seeds, indices=[0])
        starts.append(observation_digest(map_obs(lambda obs: obs[0], base.reset())))
    return starts[0] == starts[1]


def facts(env: VecEnv) -> tuple[str | None, int | None]:
    """Id and time limit of the first env; None where unknown.

    :param env: any stack of VecEnvWrappers
    """
    base = env.unwrapped
    if isinstance(base, TensorVecEnv):
        return base.env_id or None, base.max_episode_steps
    ownership = ownership_of(env)
    if ownership.ours:
        env_id, limit = ownership.facts()
        # Wrappers around the seeded resets, where those were not the last that a process put on.
        outside = None if ownership.near or not env.has_attr(OF_TIME_LIMIT) else env.get_attr(OF_TIME_LIMIT, indices=[0])[0]
        return env_id, smallest([limit, outside])
    spec = getattr(base, "spec", None)
    return getattr(spec, "id", None), limit_among([base], spec)


def time_limit(env: VecEnv) -> int | None:
    """Steps after which an env ends every episode; None if nobody says. The first env is asked."""
    return facts(env)[1]


def wrappers_of(env: VecEnv) -> list[VecEnvWrapper]:
    """The wrappers around a VecEnv, from the outside in."""
    found: list[VecEnvWrapper] = []
    while isinstance(env, VecEnvWrapper):
        found.append(env)
        env = env.venv
    return found
