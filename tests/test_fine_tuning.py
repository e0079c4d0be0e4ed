"""Starting from a policy that is there already, and the KL to it: weights of PPO's actor, and ``ref_policy``."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from sb_grpo import GRPO, Clipped
from sb_grpo.policies import load_actor
from sb_grpo.policies.weights import shared_tensor
from tests.helpers import ProbeEnv, SpaceEnv

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
DICT = spaces.Dict({"a": BOX, "b": spaces.Discrete(3)})
OTHER_NET = dict(policy_kwargs=dict(net_arch=dict(pi=[8], vf=[4]), activation_fn=nn.ReLU))
SMALL: dict[str, Any] = dict(n_steps=16, batch_size=16, n_epochs=1, seed=0)


def moved(model: Any) -> Any:
    """The same model with weights that no initialisation gives."""
    with th.no_grad():
        for p in model.policy.parameters():
            p.add_(0.3 * th.randn(p.shape, generator=th.Generator().manual_seed(p.numel())))
    return model


@pytest.mark.parametrize(
    ("policy", "observations", "actions", "kwargs"),
    [
        ("MlpPolicy", BOX, spaces.Discrete(4), {}),
        ("MlpPolicy", BOX, spaces.Box(-2.0, 2.0, (2,), np.float32), {}),
        ("MlpPolicy", BOX, spaces.Box(-2.0, 2.0, (2,), np.float32), dict(use_sde=True)),
        ("MlpPolicy", BOX, spaces.MultiDiscrete([2, 3]), {}),
        ("MlpPolicy", BOX, spaces.MultiBinary(3), OTHER_NET),
        ("CnnPolicy", IMAGE, spaces.Discrete(4), {}),
        ("CnnPolicy", IMAGE, spaces.Discrete(4), dict(policy_kwargs=dict(share_features_extractor=False))),
        ("MultiInputPolicy", DICT, spaces.Discrete(4), {}),
    ],
    ids=["discrete", "box", "gsde", "multi_discrete", "multi_binary", "images", "images_apart", "dict"],
)
@pytest.mark.filterwarnings("ignore:share_features_extractor")
def test_the_actor_of_ppo_acts_the_same(policy, observations, actions, kwargs, tmp_path):
    """Deterministic actions of 200 observations, from the object and from its zip, to the last bit."""
    env = SpaceEnv(observations, actions)
    ppo = moved(PPO(policy, env, n_steps=16, batch_size=16, **kwargs))
    ppo.save(tmp_path / "ppo")
    env.observation_space.seed(7)
    seen = [env.observation_space.sample() for _ in range(200)]
    expected = [ppo.predict(obs, deterministic=True)[0] for obs in seen]
    for source in (ppo, ppo.policy, tmp_path / "ppo.zip", str(tmp_path / "ppo")):
        grpo = GRPO(policy, env, **SMALL, **kwargs)
        load_actor(grpo.policy, source)
        assert all(np.array_equal(grpo.predict(obs, deterministic=True)[0], a) for obs, a in zip(seen, expected, strict=True))


def test_a_loaded_actor_gives_the_log_probabilities_of_ppo():
    env = SpaceEnv(BOX, spaces.Box(-2.0, 2.0, (2,), np.float32))
    ppo, grpo = moved(A2C("MlpPolicy", env)), GRPO("MlpPolicy", env, **SMALL)
    load_actor(grpo.policy, ppo)
    obs, actions = th.randn(50, 3), th.randn(50, 2)
    _, expected, _ = ppo.policy.evaluate_actions(obs, actions)
    assert th.allclose(grpo.policy.log_prob(obs, actions), expected, atol=1e-6)


def test_weights_of_a_grpo_zip_are_read_without_its_pickles(tmp_path):
    env = ProbeEnv("action")
    first = moved(GRPO("MlpPolicy", env, **SMALL, policy_kwargs=dict(normalize_obs=True)))
    first.save(tmp_path / "first.zip")
    second = GRPO("MlpPolicy", env, **SMALL, policy_kwargs=dict(normalize_obs=True))
    load_actor(second.policy, tmp_path / "first.zip")
    for name, value in first.policy.state_dict().items():
        assert th.equal(second.policy.state_dict()[name], value)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        (dict(policy_kwargs=dict(net_arch=[32])), r"policy_net.0.weight is \(64, 2\) in it and \(32, 2\) here"),
        (dict(policy_kwargs=dict(activation_fn=nn.ReLU)), r"activation_fn=torch.nn.Tanh"),
        (dict(policy_kwargs=dict(normalize_obs=True)), r"Give both normalize_obs, or neither"),
        (dict(env=ProbeEnv("action", action_space=spaces.Discrete(3))), r"action_net.weight is \(2, 64\) in it"),
    ],
)
def test_what_does_not_fit_is_named(kwargs, says):
    ppo = PPO("MlpPolicy", ProbeEnv("action"), n_steps=16, batch_size=16)
    grpo = GRPO("MlpPolicy", **{"env": ProbeEnv("action"), **SMALL, **kwargs})
    with pytest.raises(ValueError, match=says):
        load_actor(grpo.policy, ppo)


def test_what_is_no_policy_is_refused(tmp_path):
    grpo = GRPO("MlpPolicy", ProbeEnv("action"), **SMALL)
    (tmp_path / "broken.zip").write_bytes(b"no zip")
    for source, says in (
        (3, "is no policy"),
        (tmp_path / "nowhere.zip", "cannot read"),
        (tmp_path / "broken.zip", "broken.zip"),
    ):
        with pytest.raises(ValueError, match=says):
            load_actor(grpo.policy, source)


def same(policy: Any, other: Any) -> bool:
    return all(th.equal(a, b) for a, b in zip(policy.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("how", ["dict", "object", "file"])
def test_the_reference_is_the_given_policy_and_stays_it(how, tmp_path):
    env = ProbeEnv("action")
    given = moved(GRPO("MlpPolicy", env, **SMALL))
    given.save(tmp_path / "given.zip")
    source = tmp_path / "given.zip" if how == "file" else given
    loss = dict(loss=Clipped(ref_policy=source)) if how == "object" else dict(loss_kwargs=dict(ref_policy=source))
    model = GRPO("MlpPolicy", env, **SMALL, kl_coef=0.5, **loss)
    assert same(model.ref_policy, given.policy) and not same(model.policy, given.policy)
    model.learn(64)
    assert same(model.ref_policy, given.policy)
    model.save(tmp_path / "model.zip")
    loaded = GRPO.load(tmp_path / "model.zip", trusted=how == "object")  # what was given is no part of the file
    assert same(loaded.ref_policy, given.policy)


def test_a_loaded_model_takes_a_new_reference(tmp_path):
    env = ProbeEnv("action")
    given, model = moved(GRPO("MlpPolicy", env, **SMALL)), GRPO("MlpPolicy", env, **SMALL, kl_coef=0.5)
    model.learn(16).save(tmp_path / "model.zip")
    loaded = GRPO.load(tmp_path / "model.zip", env, loss_kwargs=dict(ref_policy=given))
    assert same(loaded.ref_policy, given.policy) and same(loaded.policy, model.policy)


@pytest.mark.parametrize("given", [False, True])
def test_the_reference_is_the_policy_as_it_is_before_the_first_update(given: bool):
    """Also where its weights come after the constructor, but not in place of a reference that was given or set by hand."""
    env = ProbeEnv("action")
    start, teacher = moved(GRPO("MlpPolicy", env, **SMALL)), GRPO("MlpPolicy", env, **{**SMALL, "seed": 9})
    model = GRPO("MlpPolicy", env, **SMALL, kl_coef=0.5, loss_kwargs=dict(ref_policy=teacher) if given else None)
    load_actor(model.policy, start)
    model.learn(64)
    assert same(model.ref_policy, (teacher if given else start).policy) and not same(model.policy, start.policy)
    load_actor(model.policy, teacher)  # in mid-training it goes on from other weights, and is held to the same policy
    model.learn(16)
    assert same(model.ref_policy, (teacher if given else start).policy)
    other = GRPO("MlpPolicy", env, **SMALL, kl_coef=0.5)
    other.set_parameters(model.get_parameters())
    assert same(other.learn(16).ref_policy, model.ref_policy)


class Pretrained(BaseFeaturesExtractor):
    """In front of the policy network stands one that somebody else has made."""

    held: Any = None

    def __init__(self, space: spaces.Box, backbone: nn.Module | None = None) -> None:
        super().__init__(space, 8)
        self.backbone = backbone or self.held

    def forward(self, obs: th.Tensor) -> th.Tensor:
        return self.backbone(obs)


class Uncopied(nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no copies")


def pretrained(way: str, backbone: nn.Module) -> dict[str, Any]:
    """Arguments of a policy with a network, handed over by name, or held by the class of the extractor."""
    kwargs = dict(features_extractor_kwargs=dict(backbone=backbone)) if way == "argument" else {}
    kind = type("Holding", (Pretrained,), {"held": None if kwargs else backbone})
    return dict(features_extractor_class=kind, net_arch=[8], **kwargs)


def backbone() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh())


@pytest.mark.parametrize("way", ["argument", "class"])
@pytest.mark.parametrize("when", ["built", "by hand", "copied", "loaded"])
def test_a_network_that_was_handed_over_learns_beside_its_reference(way: str, when: str, tmp_path: Path):
    """The reference has a copy of it from before the first update, wherever the model comes from."""
    net = backbone()
    env, settings = DummyVecEnv([lambda: ProbeEnv("action")] * 2), {**SMALL, "policy_kwargs": pretrained(way, net)}
    model = GRPO("MlpPolicy", env, **settings, kl_coef=0.0 if when in ("by hand", "loaded") else 0.1)
    assert model.policy.features_extractor.backbone is net
    if when == "copied":
        model = copy.deepcopy(model)
    elif when == "loaded":
        model.save(tmp_path / "model")
        model = GRPO.load(tmp_path / "model", env, custom_objects={"policy_kwargs": settings["policy_kwargs"]}, kl_coef=0.1)
    model.kl_coef = 0.1
    before = model.policy.features_extractor.backbone[0].weight.detach().clone()
    model.learn(64)
    own, reference = (policy.features_extractor.backbone for policy in (model.policy, model.ref_policy))
    assert shared_tensor(model.policy, model.ref_policy) is None
    assert not th.equal(own[0].weight, before) and th.equal(reference[0].weight, before)
    assert all(p.requires_grad for p in own.parameters()) and not any(p.requires_grad for p in reference.parameters())


@pytest.mark.parametrize("way", ["argument", "class"])
def test_naming_a_reference_leaves_the_policys_own_network_alone(way: str):
    env, nets = ProbeEnv("action"), (backbone(), backbone())
    teacher, kwargs = (dict(pretrained(way, net), ortho_init=False) for net in nets)
    given, before = GRPO("MlpPolicy", env, **SMALL, policy_kwargs=teacher), nets[1][0].weight.detach().clone()
    model = GRPO("MlpPolicy", env, **SMALL, policy_kwargs=kwargs, kl_coef=0.1, loss_kwargs=dict(ref_policy=given))
    assert th.equal(nets[1][0].weight, before) and same(model.ref_policy, given.policy)


def test_two_policies_with_one_network_are_refused():
    """One that cannot be copied before the training, one that was put there by hand before the next update."""
    env, expected = ProbeEnv("action"), "belongs to the reference policy of kl_coef, too.* Pass the network in policy_kwargs"
    with pytest.raises(ValueError, match=f"features_extractor.backbone.weight of the policy {expected}"):
        GRPO("MlpPolicy", env, **SMALL, policy_kwargs=pretrained("argument", Uncopied(2, 8)), kl_coef=0.1)
    model = GRPO("MlpPolicy", env, **SMALL, kl_coef=0.1)
    model.ref_policy = model.policy
    with pytest.raises(ValueError, match=expected):
        model.learn(16)


@pytest.mark.parametrize("sync", [None, 3])
def test_a_given_reference_keeps_its_own_view_of_observations(sync: int | None, tmp_path: Path):
    """The statistics that a teacher has learnt with are part of it; what was the policy itself shares the policy's."""
    env, settings = ProbeEnv("action"), dict(SMALL, policy_kwargs=dict(normalize_obs=True), kl_coef=0.5)
    given = GRPO("MlpPolicy", env, **settings).learn(64)
    loss = dict(ref_policy=given, ref_sync_interval=sync)
    model = GRPO("MlpPolicy", env, loss_kwargs=loss, **settings)
    for _ in range(2):
        model.update(model.collect())
    assert same(model.ref_policy, given.policy)
    model.save(tmp_path / "model.zip")
    loaded = GRPO.load(tmp_path / "model.zip", env)
    for _ in range(2):
        loaded.update(loaded.collect())
    own = loaded.policy.obs_normalizer.count == loaded.ref_policy.obs_normalizer.count
    assert own if sync else same(loaded.ref_policy, given.policy)


def test_a_large_coefficient_pulls_the_policy_to_the_reference():
    """The env pays for action 1; the reference prefers action 0 by 0.9, and wins."""
    env = ProbeEnv("action")
    given = GRPO("MlpPolicy", env, **SMALL)
    with th.no_grad():
        given.policy.action_net.weight.zero_()
        given.policy.action_net.bias.copy_(th.log(th.tensor([0.9, 0.1])))
    probabilities = []
    for kl_coef in (0.0, 30.0):
        reference = dict(loss_kwargs=dict(ref_policy=given)) if kl_coef else {}
        settings = dict(n_steps=128, batch_size=64, n_epochs=5, learning_rate=3e-3, seed=0, kl_coef=kl_coef)
        model = GRPO("MlpPolicy", env, **settings, **reference)
        model.learn(1500)
        probabilities.append(model.policy.get_distribution(th.zeros(1, 2)).distribution.probs[0, 1].item())
    assert probabilities[0] > 0.9 and abs(probabilities[1] - 0.1) < 0.1


def test_a_reference_without_a_coefficient_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"ref_policy has no effect with kl_coef=0"):
        GRPO("MlpPolicy", ProbeEnv("action"), loss_kwargs=dict(ref_policy=tmp_path / "x.zip"))
    with pytest.raises(ValueError, match=r"cannot read the weights of .*x.zip"):
        GRPO("MlpPolicy", ProbeEnv("action"), kl_coef=0.1, loss_kwargs=dict(ref_policy=tmp_path / "x.zip"))


@pytest.mark.parametrize("own, theirs", [("lstm", None), (None, "lstm"), ("lstm", "gru")])
def test_another_memory_is_named_as_such(own, theirs):
    one, other = (GRPO("MlpPolicy", "CartPole-v1", policy_kwargs=dict(memory=kind), **SMALL) for kind in (own, theirs))
    expected = r"memory\.net\..* the same memory, or neither: policy_kwargs=dict\(memory=\.\.\., memory_size"
    with pytest.raises(ValueError, match=expected):
        load_actor(one.policy, other)
    load_actor(one.policy, one)
