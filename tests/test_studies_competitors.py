"""What the studies hold GRPO against is what it is called.

The changes that turn SB3's PPO into GRPO with a critic do what their names say; the study of memory's RecurrentPPO learns as
sb3-contrib's own does.
"""

import numpy as np
import pytest
import torch as th
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import sb_grpo.tasks.memory  # noqa: F401  # registers the T-maze
from scripts.studies.common.recurrent_ppo import WholeSequences
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


@pytest.mark.parametrize("starts", [[[0, 0, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 1]]])
def test_a_sequence_in_one_call_is_the_same_network(starts: list[list[int]]) -> None:
    """Outputs, states after it and gradients; with no start, starts at the first step, and one in the middle."""
    th.manual_seed(0)
    lstm, features = th.nn.LSTM(5, 4), th.randn(6, 5, requires_grad=True)
    states, begins = (th.randn(1, 2, 4), th.randn(1, 2, 4)), th.tensor(starts, dtype=th.float32).flatten()
    found = []
    for policy in (WholeSequences, WholeSequences.__base__):
        output, after = policy._process_sequence(features, states, begins, lstm)  # type: ignore[union-attr]
        gradient = th.autograd.grad(output.square().sum(), [features, *lstm.parameters()])
        found.append([output, *after, *gradient])
    for one, other in zip(*found, strict=True):
        th.testing.assert_close(one, other)


def test_a_training_with_it_is_the_same_training() -> None:
    weights = []
    for policy in (WholeSequences, "MlpLstmPolicy"):
        model = RecurrentPPO(policy, make_vec_env("TMaze10-v0", 4, seed=0), n_steps=32, batch_size=32, n_epochs=2, seed=0)
        weights.append(model.learn(256).policy.state_dict())
    for name, weight in weights[0].items():
        th.testing.assert_close(weight, weights[1][name], rtol=1e-3, atol=1e-5)
