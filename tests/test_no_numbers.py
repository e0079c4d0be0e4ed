"""A policy that says NaN: nobody acts on it, and the message names what made it, not the env and not its rewards."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import CallbackList, ConvertCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from sb_grpo import GRPO
from sb_grpo.callbacks import RecoveryCallback
from sb_grpo.envs import make_tensor_env
from sb_grpo.types import Breakdown
from tests.helpers import SpaceEnv

SMALL = dict(n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
BOX = spaces.Box(-1, 1, (3,), np.float32)


def ruin(model, value=np.nan):
    with th.no_grad():
        model.policy.action_net.weight[0, 0] = value


class Ruin:
    """Ruins the weights when so many steps have been taken, once."""

    def __init__(self, at):
        self.at = at

    def __call__(self, local_values, _):
        model = local_values["self"]
        if model.num_timesteps >= self.at:
            self.at = np.inf
            ruin(model)
        return True


class Log(BaseFeaturesExtractor):
    def __init__(self, space):
        super().__init__(space, space.shape[0])

    def forward(self, obs):
        return th.log(obs - 10)


@pytest.mark.parametrize("action_space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), BOX])
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_predict_chooses_nothing(action_space, deterministic, value):
    """The largest of some NaN is still the number of an action."""
    model = GRPO("MlpPolicy", SpaceEnv(BOX, action_space), **SMALL)
    obs = np.full(3, 0.5, np.float32)
    model.predict(obs, deterministic=deterministic)
    ruin(model, value)
    with pytest.raises(
        ValueError, match=r"No action can be chosen.*parameter action_net\.weight of the policy holds NaN or inf"
    ):
        model.predict(obs, deterministic=deterministic)
    with pytest.raises(ValueError, match=r"action_net\.weight"):
        evaluate_policy(model, SpaceEnv(BOX, action_space), 1, deterministic, warn=False)


def test_predict_says_where_weights_are_not_to_blame():
    model = GRPO("MlpPolicy", "CartPole-v1", **SMALL)
    with pytest.raises(ValueError, match="its weights are finite, so its features extractor or its network makes them"):
        model.predict(np.full(4, np.inf, np.float32))


@pytest.mark.parametrize("advantage", ["state", "outcome"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_training_stops_before_the_env_is_acted_on(env_id, advantage):
    model = GRPO("MlpPolicy", gym.make(env_id, max_episode_steps=20), advantage=advantage, **SMALL)
    with pytest.raises(
        Breakdown, match=r"At vector step 41 since.*outputs are not finite: parameter action_net\.weight"
    ) as said:
        model.learn(640, Ruin(40))
    assert model.num_timesteps == 40 and "reward" not in str(said.value)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_training_on_a_simulator_stops_before_its_update(env_id):
    model = GRPO("MlpPolicy", make_tensor_env(env_id, 4), **SMALL)
    with pytest.raises(Breakdown, match=r"At step 1 of this rollout .*parameter action_net\.weight") as said:
        model.learn(640, Ruin(260))
    assert model.num_timesteps == 384 and "simulator" not in str(said.value)


@pytest.mark.parametrize("make", [gym.make, lambda name: make_tensor_env(name, 1)])
def test_weights_that_were_ruined_after_the_last_step_are_named(make):
    model = GRPO("MlpPolicy", make("CartPole-v1"), **SMALL)
    with pytest.raises(Breakdown, match=r"Before this update .*parameter action_net\.weight") as said:
        model.learn(64, Ruin(model.rollout_buffer.buffer_size))
    assert "learning_rate" not in str(said.value)


def test_a_network_that_makes_nan_is_named():
    kwargs = dict(features_extractor_class=Log)
    with pytest.raises(Breakdown, match=r"At vector step 1 .*its weights are finite, so its features extractor"):
        GRPO("MlpPolicy", "Pendulum-v1", policy_kwargs=kwargs, **SMALL).learn(64)


def test_a_training_recovers_from_ruined_weights():
    recovery = RecoveryCallback(verbose=0)
    model = GRPO("MlpPolicy", "CartPole-v1", **SMALL)
    model.learn(256, CallbackList([recovery, ConvertCallback(Ruin(70))]))
    assert recovery.n == 1 and "action_net.weight" in recovery.reasons[0] and model.num_timesteps >= 256
    assert bool(model.policy.action_net.weight.isfinite().all())
