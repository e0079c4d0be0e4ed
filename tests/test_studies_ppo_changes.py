"""The changes that turn SB3's PPO into GRPO with a critic do what they are called."""

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecNormalize

from scripts.studies.ppo_changes import CHANGES, MAX_NORM, build

STEPS = 2048


def norms_after_a_step(model):
    """Of actor's and critic's gradients, which were too long before SB3's clipping and the optimiser's step."""
    for p in model.policy.parameters():
        p.grad = th.full_like(p, 3.0)
    th.nn.utils.clip_grad_norm_(model.policy.parameters(), model.max_grad_norm)
    model.policy.optimizer.step()
    named = dict(model.policy.named_parameters())
    parts = ([p.grad for name, p in named.items() if ("value" in name) == critic] for critic in (False, True))
    return [float(th.nn.utils.get_total_norm(grads)) for grads in parts]


def test_all_changes_together():
    model, callbacks = build("Pendulum-v1", set(CHANGES), seed=0)
    model.learn(2 * STEPS, callback=callbacks)
    slots = callbacks[0].slots
    assert slots.start_mismatches == 0
    assert slots.next_group > 2  # a second and a third group have begun, and were compared
    assert slots.in_step_with(model.get_env())
    np.testing.assert_allclose(norms_after_a_step(model), MAX_NORM, rtol=1e-3)  # each at its own limit
    env = model.get_vec_normalize_env()
    assert isinstance(env, VecNormalize)
    assert not env.norm_reward
    rewards = env.get_original_reward()
    assert -16.3 * 0.02 < rewards.min() < 0  # Pendulum's worst reward is -16.27


def test_no_change_is_the_study():
    model, callbacks = build("Pendulum-v1", set(), seed=0)
    assert callbacks == []
    assert (model.n_steps, model.n_envs, model.max_grad_norm) == (256, 8, MAX_NORM)
    assert model.get_vec_normalize_env().norm_reward
    np.testing.assert_allclose(np.hypot(*norms_after_a_step(model)), MAX_NORM, rtol=1e-3)  # one limit for both
