"""The random generators of envs whose resets nobody seeds, such as those of evaluations: read, and set to where they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stable_baselines3.common.vec_env import VecEnv

from sb_grpo.envs.tensor_env import TensorVecEnv


def generators_of(env: VecEnv) -> list[dict[str, Any]] | dict[str, Any] | None:
    """Where the ``np_random`` of every env stands; of a tensor env its whole state; None where neither can be had."""
    try:
        base = env.unwrapped
        return base.state_dict() if isinstance(base, TensorVecEnv) else [g.bit_generator.state for g in _generators(env)]
    except (AttributeError, NotImplementedError):
        return None


def put_generators(env: VecEnv, state: Any) -> None:
    """Let the next resets draw what they would have drawn then.

    :param state: of :func:`generators_of`
    """
    base = env.unwrapped
    if state is None:
        return
    if isinstance(base, TensorVecEnv):
        base.load_state_dict(state)
        return
    for slot, (generator, known) in enumerate(zip(_generators(env), state, strict=True)):
        generator.bit_generator.state = known
        env.set_attr("np_random", generator, indices=[slot])  # in another process it was a copy


def _generators(env: VecEnv) -> Sequence[Any]:
    return env.get_attr("np_random")
