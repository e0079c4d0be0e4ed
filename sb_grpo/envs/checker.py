"""check_tensor_env: test whether a TensorVecEnv meets the requirements of groups. Run it once on a new env."""

from __future__ import annotations

import warnings

import numpy as np
import torch as th

from sb_grpo.envs.tensor_env import GROUPINGS, TensorStep, TensorVecEnv, map_snapshot
from sb_grpo.policies.masks import drawn
from sb_grpo.types import action_row

_SEED = 20_000


def check_tensor_env(env: TensorVecEnv, n_steps: int = 20, noisy: bool = False) -> None:
    """Check a TensorVecEnv, like SB3's ``check_env``. The env is reset and stepped.

    Checks shapes, dtypes, devices and NaN; that equal seeds give bitwise equal initial states, in different envs and
    repeatedly; that envs outside a reset's mask do not change; that envs with equal initial states and actions stay equal,
    hidden state included; that a restored snapshot continues as the original. Warns if different seeds give equal initial
    states, or if ``grouping`` cannot make them equal.

    :param env: at least 2 envs
    :param n_steps: steps to take after each reset
    :param noisy: ``step`` intentionally draws noise per env: do not compare steps after equal initial states
    :raises ValueError: naming env, step and remedy
    """
    if env.num_envs < 2:
        raise ValueError(f"num_envs={env.num_envs}: groups can only be checked with 2 envs or more.")
    if env.grouping not in GROUPINGS:
        raise ValueError(f"grouping={env.grouping!r} is unknown; use one of {list(GROUPINGS)}.")
    _check_starts(env)
    alike = _start_alike(env)
    for number in range(n_steps):
        step = env.step_tensor(_actions(env, equal=True))
        _check_step(env, step, number)
        if alike and not noisy:
            _check_equal(step, number)
        if env.grouping != "synchronous":
            done = step.terminated | step.truncated
            env.reset_envs(done, _seeds(env, equal=True))
            alike = alike and not (env.grouping == "state" and bool(done.any()))
    if env.grouping in ("seeds", "state", "instances"):
        _check_mask(env)
    if env.grouping == "state" or type(env).snapshot is not TensorVecEnv.snapshot:
        _check_snapshot(env, 0 if noisy else n_steps)
    env.reset_all(_seeds(env, equal=True))


def _seeds(env: TensorVecEnv, equal: bool) -> th.Tensor:
    numbers = th.arange(env.num_envs, device=env.device)
    return th.zeros_like(numbers) + _SEED if equal else numbers + _SEED


def _actions(env: TensorVecEnv, equal: bool) -> th.Tensor:
    """Random valid actions on the env's device, equal in every env or not."""
    masks = [None] * env.num_envs if env.action_masks is None else env.action_masks.cpu().numpy()
    chosen = [drawn(env.action_space, mask) for mask in masks[: 1 if equal else None]] * (env.num_envs if equal else 1)
    return th.as_tensor(np.array(chosen), dtype=action_row(env.action_space)[1], device=env.device)


def _differing(a: th.Tensor, b: th.Tensor) -> int | None:
    """First row in which two tensors differ."""
    rows = (a != b).reshape(len(a), -1).any(dim=1).nonzero()
    return int(rows[0]) if len(rows) else None


def _check_tensor(env: TensorVecEnv, name: str, value: th.Tensor, shape: tuple[int, ...], dtype: th.dtype, when: str) -> None:
    if not isinstance(value, th.Tensor):
        raise ValueError(f"{name} {when} is a {type(value).__name__}, not a torch tensor.")
    if value.shape != shape or value.dtype != dtype:
        raise ValueError(f"{name} {when} has shape {tuple(value.shape)} and {value.dtype}; it should be {shape} and {dtype}.")
    if value.device.type != env.device.type:
        raise ValueError(f"{name} {when} is on {value.device}, the env on {env.device}: keep everything on one device.")
    bad = (~th.isfinite(value)).reshape(len(value), -1).any(dim=1).nonzero()
    if len(bad):
        raise ValueError(f"{name} of env {int(bad[0])} {when} is not finite: {value[bad[0]].tolist()}. Fix the simulator.")


def _check_observations(env: TensorVecEnv, value: th.Tensor, when: str) -> None:
    space = env.observation_space
    dtype = th.from_numpy(np.zeros(1, dtype=space.dtype)).dtype
    _check_tensor(env, "observations", value, (env.num_envs, *(space.shape or ())), dtype, when)


def _check_step(env: TensorVecEnv, step: TensorStep, number: int) -> None:
    when = f"after step {number}"
    _check_observations(env, step.observations, when)
    _check_tensor(env, "rewards", step.rewards, (env.num_envs,), th.float32, when)
    _check_tensor(env, "terminated", step.terminated, (env.num_envs,), th.bool, when)
    _check_tensor(env, "truncated", step.truncated, (env.num_envs,), th.bool, when)
    both = (step.terminated & step.truncated).nonzero()
    if len(both):
        raise ValueError(f"Env {int(both[0])} {when} is both terminated and truncated: report truncated & ~terminated.")


def _check_starts(env: TensorVecEnv) -> None:
    """Check that equal seeds give equal initial states, if the env supports it, and different seeds different ones."""
    env.reset_all(_seeds(env, equal=False))
    first = env.observations.clone()
    _check_observations(env, first, "after reset_all")
    if _differing(first, first[:1].expand_as(first)) is None and env.num_envs > 1:
        warnings.warn(
            f"Different seeds give equal first observations in {type(env).__name__}: every group starts in the same state. "
            "Use the seed in reset_envs if that is not meant.",
            UserWarning,
            stacklevel=3,
        )
    if env.grouping == "state":
        return
    env.reset_all(_seeds(env, equal=False))
    env_index = _differing(env.observations, first)
    if env_index is not None:
        raise ValueError(
            f"The start of env {env_index} differs between two resets with the same seed: draw it from the seed alone (see "
            "sb_grpo.envs.random.uniform), or set grouping = 'state' and offer snapshot and restore."
        )


def _start_alike(env: TensorVecEnv) -> bool:
    """Put every env into the same initial state, by the means of its grouping.

    :return: False if impossible
    """
    env.reset_all(_seeds(env, equal=True))
    if env.grouping == "state":
        every = th.arange(env.num_envs, device=env.device)
        env.restore(every, env.snapshot(th.zeros_like(every)))
    start = env.observations
    env_index = _differing(start, start[:1].expand_as(start))
    if env_index is None:
        return True
    if env.grouping == "synchronous":
        warnings.warn(
            f"Envs of this synchronous {type(env).__name__} start in different states although their seeds are equal: groups "
            "only average over episodes. Copy the leader's state to the other envs in reset_all.",
            UserWarning,
            stacklevel=3,
        )
        return False
    cause = "restored from one snapshot" if env.grouping == "state" else "reset with one seed"
    raise ValueError(
        f"The first observation of env {env_index} differs from that of env 0, {cause}. It must not depend on the env."
    )


def _check_equal(step: TensorStep, number: int) -> None:
    for name, value in step._asdict().items():
        env_index = _differing(value, value[:1].expand_as(value))
        if env_index is not None:
            raise ValueError(
                f"{name} of env {env_index} differs from env 0's after step {number}, although start and actions were equal: "
                "part of the state is not reset with the seed, or is not in the snapshot, or step draws noise per env. Mend "
                "the reset; if the noise is meant, pass noisy=True."
            )


def _check_mask(env: TensorVecEnv) -> None:
    """Check that a reset of env 0 does not change the others."""
    env.reset_all(_seeds(env, equal=False))
    env.step_tensor(_actions(env, equal=False))
    before = env.observations.clone()
    mask = th.zeros(env.num_envs, dtype=th.bool, device=env.device)
    env.reset_envs(mask, _seeds(env, equal=True))
    if _differing(env.observations, before) is not None:
        raise ValueError("reset_envs with an empty mask changed the observations: it must do nothing.")
    mask[0] = True
    env.reset_envs(mask, _seeds(env, equal=True))
    env_index = _differing(env.observations[1:], before[1:])
    if env_index is not None:
        raise ValueError(f"reset_envs of env 0 changed env {env_index + 1}: only envs under the mask may change.")


def _check_snapshot(env: TensorVecEnv, n_steps: int) -> None:
    """Check that env 1, restored from env 0's snapshot in mid-episode, continues as env 0 does."""
    env.reset_all(_seeds(env, equal=False))
    for _ in range(3):
        env.step_tensor(_actions(env, equal=False))
    pair = th.tensor([0, 1], device=env.device)
    here = env.snapshot(pair[:1])
    map_snapshot(lambda leaf: _check_rows(leaf), here)
    env.restore(pair[1:], here)
    for number in range(n_steps):
        step = env.step_tensor(_actions(env, equal=True))
        _check_equal(TensorStep(*(value[:2] for value in step)), number)
        if bool((step.terminated | step.truncated)[:2].any()):
            break


def _check_rows(leaf: th.Tensor) -> th.Tensor:
    if leaf.dim() == 0 or len(leaf) != 1:
        raise ValueError(f"snapshot of 1 env holds a tensor of shape {tuple(leaf.shape)}: the first dimension counts envs.")
    return leaf
