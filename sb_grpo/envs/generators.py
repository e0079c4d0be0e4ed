"""Save and restore the random generators of envs without seeded resets, such as evaluation envs."""

from __future__ import annotations

from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.state import attributes
from sb_grpo.types import State

#: SB3's seeds and options for the next resets.
NEXT_RESETS = ("_seeds", "_options")


def generators_of(env: VecEnv) -> State | None:
    """State of every env's ``np_random``, or of the whole tensor env; None if unavailable."""
    base = env.unwrapped
    try:
        if isinstance(base, TensorVecEnv):
            return base.state_dict()
        states = [generator.bit_generator.state for generator in env.get_attr("np_random")]
        return {"np_random": states, "next_resets": attributes(base, NEXT_RESETS)}
    except (AttributeError, NotImplementedError):
        return None


def put_generators(env: VecEnv, state: State | None) -> None:
    """Restore the generators, so that the next resets draw the same numbers.

    :param state: of :func:`generators_of`
    """
    base = env.unwrapped
    if state is None:
        return
    if isinstance(base, TensorVecEnv):
        base.load_state_dict(state)
        return
    vars(base).update(state["next_resets"])
    for env_index, (generator, known) in enumerate(zip(env.get_attr("np_random"), state["np_random"], strict=True)):
        generator.bit_generator.state = known
        env.set_attr("np_random", generator, indices=[env_index])  # get_attr returned a copy if it is in another process
