"""Callbacks read, and write, the rollout buffer as they do PPO's."""

import numpy as np
import pytest
from gymnasium import Env, spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from sb_grpo import GRPO
from sb_grpo.envs import make_tensor_env

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
SPACES = {
    "box": (BOX, spaces.Box(-2.0, 2.0, (2,), np.float32)),
    "discrete": (spaces.Discrete(5), spaces.Discrete(3)),
    "multi": (spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([2, 3])),
    "bits": (spaces.MultiBinary(4), spaces.MultiBinary(2)),
    "image": (spaces.Box(0, 255, (36, 36, 3), np.uint8), spaces.Discrete(2)),
    "dict": (spaces.Dict({"a": BOX, "b": spaces.Discrete(3)}), spaces.Discrete(2)),
}


class ThreeSteps(Env):
    def __init__(self, obs, action):
        self.observation_space, self.action_space = obs, action

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), float(self.t), self.t == 3, False, {}


class Reader(BaseCallback):
    """Takes down what stands in the buffer when a rollout has ended; an update shapes Dicts of PPO anew in place."""

    names = ("observations", "actions", "rewards", "log_probs", "episode_starts")

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        self.seen = {name: getattr(buffer, name) for name in self.names}
        self.forms = forms(self.seen)
        self.room = buffer.full, buffer.pos, buffer.size(), buffer.buffer_size


def forms(seen):
    def form(array):
        if isinstance(array, dict):
            return {key: form(part) for key, part in array.items()}
        return type(array), array.shape, array.dtype

    return {name: form(array) for name, array in seen.items()}


@pytest.mark.parametrize("kind", SPACES)
def test_arrays_have_the_form_of_ppos(kind):
    seen = {}
    for algorithm in (PPO, GRPO):
        policy = "MultiInputPolicy" if kind == "dict" else "MlpPolicy"
        reader = Reader()
        algorithm(policy, ThreeSteps(*SPACES[kind]), n_steps=12, batch_size=12, device="cpu", seed=0).learn(12, reader)
        seen[algorithm] = reader
    assert seen[GRPO].forms == seen[PPO].forms
    assert seen[GRPO].room == seen[PPO].room == (True, 12, 12, 12)
    assert seen[GRPO].seen["rewards"][:, 0].tolist() == [1, 2, 3] * 4
    assert np.mean(seen[GRPO].seen["rewards"]) == 2.0  # NumPy's functions take it
    assert np.array_equal(seen[GRPO].seen["episode_starts"], seen[PPO].seen["episode_starts"])


def test_a_reward_that_comes_late_is_written_into_the_buffer():
    class Late(BaseCallback):
        def _on_step(self) -> bool:
            buffer = self.model.rollout_buffer
            if buffer.pos:
                buffer.rewards[buffer.pos - 1, 0] = 7.0
            return True

    model = GRPO("MlpPolicy", ThreeSteps(*SPACES["box"]), n_steps=6, batch_size=6, device="cpu")
    rollout = model.collect(Late())
    assert sorted(rollout.rewards.tolist()) == [3.0] + 5 * [7.0]


@pytest.mark.parametrize("name", ["values", "returns", "advantages", "get"])
def test_what_a_critic_would_be_needed_for_is_named(name):
    model = GRPO("MlpPolicy", "CartPole-v1")
    assert not hasattr(model.rollout_buffer, name)
    with pytest.raises(AttributeError, match=f"has no {name}: there is no critic.*It has observations, actions, rewards"):
        getattr(model.rollout_buffer, name)


def test_whole_episodes_and_tensor_envs():
    reader = Reader()
    GRPO("MlpPolicy", ThreeSteps(*SPACES["box"]), n_steps=4, group_size=2, advantage="outcome").learn(4, reader)
    assert reader.seen["rewards"][:, 0].tolist() == [1, 2, 3] * 2 and reader.room[1:3] == (6, 6)
    env = make_tensor_env("CartPole-v1", 3, device="cpu")
    GRPO("MlpPolicy", env, n_steps=5, batch_size=15, device="cpu").learn(15, reader)
    assert reader.seen["observations"].shape == (5, 3, 4) and reader.seen["actions"].shape == (5, 3, 1)
    assert reader.seen["rewards"].tolist() == [[1.0] * 3] * 5 and reader.room == (True, 5, 5, 5)
