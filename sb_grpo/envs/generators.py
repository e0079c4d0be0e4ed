"""The random generators of envs whose resets nobody seeds, such as those of evaluations: read, and set to where they were."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.state import attributes

#: What SB3 has been told for the next resets.
TOLD = ("_seeds", "_options")


def generators_of(env: VecEnv) -> dict[str, Any] | None:
    """Where the ``np_random`` of every env stands; of a tensor env its whole state; None where neither can be had."""
    base = env.unwrapped
    try:
        if isinstance(base, TensorVecEnv):
            return base.state_dict()
        states = [generator.bit_generator.state for generator in env.get_attr("np_random")]
        return {"np_random": states, "told": attributes(base, TOLD)}
    except (AttributeError, NotImplementedError):
        return None


def put_generators(env: VecEnv, state: dict[str, Any] | None) -> None:
    """Let the next resets draw what they would have drawn then.

    :param state: of :func:`generators_of`
    """
    base = env.unwrapped
    if state is None:
        return
    if isinstance(base, TensorVecEnv):
        base.load_state_dict(state)
        return
    vars(base).update(state["told"])
    for slot, (generator, known) in enumerate(zip(env.get_attr("np_random"), state["np_random"], strict=True)):
        generator.bit_generator.state = known
        env.set_attr("np_random", generator, indices=[slot])  # in another process it was a copy
