"""Actor-only policies: no critic anywhere, every space that PPO takes, saved and loaded alone."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO

from sb_grpo import GRPO, MlpPolicy
from sb_grpo.policies.heads import CategoricalHead, make_discrete_head
from tests.helpers import SpaceEnv

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
CASES = {
    "MlpPolicy": spaces.Box(-1.0, 1.0, (8,), np.float32),
    "CnnPolicy": IMAGE,
    "MultiInputPolicy": spaces.Dict({"image": IMAGE, "vector": spaces.Box(-1.0, 1.0, (3,), np.float32)}),
}


def count(module: th.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("alias", CASES)
def test_the_critic_is_what_is_missing(alias):
    """Same actor as PPO's, weight for weight in number; everything PPO has on top is its critic."""
    env = SpaceEnv(CASES[alias], spaces.Discrete(3))
    ours, theirs = GRPO(alias, env, device="cpu").policy, PPO(alias, env, device="cpu").policy
    critic = count(theirs.value_net) + count(theirs.mlp_extractor.value_net)
    assert count(ours) == count(theirs) - critic and critic > 0
    assert not [name for name, _ in ours.named_modules() if "value" in name or "critic" in name or "vf" in name]
    assert len(ours.optimizer.param_groups) == 1
    assert {id(p) for p in ours.optimizer.param_groups[0]["params"]} == {id(p) for p in ours.parameters()}


@pytest.mark.parametrize(
    "observation_space",
    [
        spaces.Discrete(5),
        spaces.MultiDiscrete([3, 2]),
        spaces.MultiBinary(4),
        spaces.Box(-1.0, 1.0, (2, 3), np.float64),
        spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1.0, 1.0, (2,), np.float32)}),
        IMAGE,
    ],
    ids=lambda s: type(s).__name__ + str(s.shape),
)
@pytest.mark.parametrize("advantage", ["state", "step"])
def test_observation_spaces_train(observation_space, advantage):
    alias = "MultiInputPolicy" if isinstance(observation_space, spaces.Dict) else "MlpPolicy"
    alias = "CnnPolicy" if observation_space is IMAGE else alias
    env = SpaceEnv(observation_space, spaces.Discrete(2))
    model = GRPO(alias, env, n_steps=32, batch_size=16, n_epochs=1, group_size=2, advantage=advantage, seed=0)
    before = [p.clone() for p in model.policy.parameters()]
    model.learn(64)
    assert any((a != b).any() for a, b in zip(before, model.policy.parameters(), strict=True))
    model.predict(model.get_env().reset())


@pytest.mark.parametrize(
    "action_space",
    [
        spaces.Discrete(3),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(2),
        spaces.Box(-1.0, 2.0, (2,), np.float32),
        spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    ],
    ids=str,
)
def test_action_spaces_train_save_and_load(action_space, tmp_path):
    env = SpaceEnv(CASES["MlpPolicy"], action_space)
    model = GRPO("MlpPolicy", env, n_steps=32, batch_size=16, n_epochs=2, group_size=2, seed=0, ent_coef=0.01).learn(96)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=env)
    obs = env.reset(seed=0)[0]
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    assert action_space.contains(model.predict(obs)[0])


@pytest.mark.parametrize("squash", [False, True])
def test_gsde_trains_and_reloads(squash, tmp_path):
    model = GRPO("MlpPolicy", "Pendulum-v1", n_steps=64, batch_size=32, n_epochs=1, use_sde=True, sde_sample_freq=4,
                 policy_kwargs=dict(squash_output=squash, log_std_init=-1.0), seed=0)  # fmt: skip
    model.learn(128)
    model.save(tmp_path / "m")
    assert GRPO.load(tmp_path / "m", env=gym.make("Pendulum-v1")).learn(64).use_sde


def test_a_policy_saved_alone_loads_alone(tmp_path):
    model = GRPO("MlpPolicy", "CartPole-v1", policy_kwargs=dict(net_arch=dict(pi=[16]), activation_fn=th.nn.ReLU))
    model.policy.save(tmp_path / "p")
    loaded = MlpPolicy.load(tmp_path / "p")
    assert loaded.net_arch == [16] and loaded.activation_fn is th.nn.ReLU
    obs = th.randn(5, 4)
    th.testing.assert_close(loaded.act(obs, True), model.policy.act(obs, True))


def test_squashing_without_gsde_is_refused():
    with pytest.raises(ValueError, match="use_sde=True"):
        GRPO("MlpPolicy", "Pendulum-v1", policy_kwargs=dict(squash_output=True))


def test_autocast_log_probs_are_float32():
    policy = GRPO("MlpPolicy", "CartPole-v1").policy
    with th.autocast("cpu", dtype=th.bfloat16):
        assert policy.log_prob(th.zeros(3, 4), th.zeros(3, dtype=th.int64)).dtype == th.float32


def test_hooks_of_the_layers_are_called():
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=8)
    seen = []
    for layer in (model.policy.policy_net, model.policy.policy_net[1], model.policy.action_net):
        layer.register_forward_hook(lambda module, args, out: seen.append(type(module).__name__))
    model.policy.policy_net[0].register_forward_pre_hook(lambda module, args: (th.zeros_like(args[0]),))
    out = [model.policy.get_distribution(th.full((1, 4), x)).distribution.logits for x in (0.0, 5.0)]
    assert seen == 2 * ["Tanh", "Layers", "Linear"]
    th.testing.assert_close(out[0], out[1], rtol=0, atol=0)


# Our tensor formulas against SB3's distribution objects

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
