"""Our tensor formulas against SB3's distribution objects."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb_grpo import GRPO
from sb_grpo.policies.heads import CategoricalHead, make_discrete_head
from tests.helpers import SpaceEnv

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTION_SPACES = [
    spaces.Discrete(4),
    spaces.MultiDiscrete([2, 5, 3]),
    spaces.MultiBinary(3),
    spaces.Box(-2.0, 2.0, (2,), np.float32),
]


@pytest.mark.parametrize("action_space", ACTION_SPACES, ids=str)
def test_log_prob_entropy_and_mode_equal_sb3s(action_space):
    th.manual_seed(0)
    policy = GRPO("MlpPolicy", SpaceEnv(OBS, action_space), seed=0).policy
    with th.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * th.randn_like(parameter))  # away from the uniform initial distribution
    obs = th.randn(64, 3)
    actions = policy.act(obs)
    reference = policy.get_distribution(obs)
    none, log_prob, entropy = policy.evaluate_actions(obs, actions)
    th.testing.assert_close(log_prob, reference.log_prob(actions))
    th.testing.assert_close(entropy, reference.entropy())
    th.testing.assert_close(policy.act(obs, deterministic=True).float(), reference.mode().float())
    shaped, no_values, log_prob = policy(obs)
    assert none is None and no_values.shape == (64, 1) and no_values.isnan().all()
    assert shaped.shape == (64, *action_space.shape)
    th.testing.assert_close(log_prob, policy.log_prob(obs, shaped))


@pytest.mark.parametrize("action_space", ACTION_SPACES, ids=str)
def test_samples_follow_the_distribution(action_space):
    th.manual_seed(1)
    policy = GRPO("MlpPolicy", SpaceEnv(OBS, action_space), seed=0).policy
    with th.no_grad():
        policy.action_net.bias.add_(
            th.tensor([0.5, -1.0, 0.2, 0.9, -0.4, 0.1, 0.0, 0.6, -0.3, 0.4])[: len(policy.action_net.bias)]
        )
        actions = policy.act(th.zeros(20_000, 3)).float()
        reference = policy.get_distribution(th.zeros(20_000, 3)).sample().float()
    th.testing.assert_close(actions.mean(0), reference.mean(0), atol=0.04, rtol=0.0)
    th.testing.assert_close(actions.std(0), reference.std(0), atol=0.04, rtol=0.0)


@pytest.mark.parametrize("squash", [False, True])
def test_gsde_goes_through_sb3s_distribution(squash):
    env = gym.make("Pendulum-v1")
    policy = GRPO("MlpPolicy", env, use_sde=True, policy_kwargs=dict(squash_output=squash), seed=0).policy
    policy.reset_noise(8)
    obs = th.randn(8, 3)
    actions = policy.act(obs)
    _, log_prob, entropy = policy.evaluate_actions(obs, actions)
    th.testing.assert_close(log_prob, policy.get_distribution(obs).log_prob(actions))
    if squash:
        assert actions.abs().max() <= 1.0
        th.testing.assert_close(entropy, -log_prob)


def test_reset_noise_needs_gsde():
    with pytest.raises(ValueError, match="use_sde=True"):
        GRPO("MlpPolicy", "CartPole-v1").policy.reset_noise()


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Discrete(3, start=1), "start at 0"),
        (spaces.MultiDiscrete([[2, 2], [3, 3]]), "flatten"),
        (spaces.MultiBinary([2, 2]), "flatten"),
        (spaces.Text(3), "Unsupported action space"),
    ],
    ids=str,
)
def test_unsupported_action_spaces_are_named(space, says):
    with pytest.raises(ValueError, match=says):
        make_discrete_head(space)


def test_discrete_actions_may_come_as_floats():
    head = CategoricalHead()
    out = th.tensor([[0.1, 0.7, 0.2]])
    assert th.equal(head.log_prob(out, th.tensor([1.0])), head.log_prob(out, th.tensor([1])))
