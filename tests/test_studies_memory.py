"""The competitor of the study of memory learns as sb3-contrib's own does."""

import pytest
import torch as th
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env

import sb_grpo.envs.memory  # noqa: F401  # registers the T-maze
from scripts.studies.common.recurrent_ppo import WholeSequences


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
