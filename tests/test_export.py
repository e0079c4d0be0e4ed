"""Exported policies act as ``predict(deterministic=True)`` does: every space and policy, 1,000 observations, both formats."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from sb_grpo import GRPO
from sb_grpo.export import TOLERANCE, check_exported, export_policy, run_exported, samples

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)
MIXED = spaces.Dict({"vector": VECTOR, "image": IMAGE, "which": spaces.Discrete(4), "bits": spaces.MultiBinary(2)})
TORQUE = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))


class Spaces(gym.Env):
    """Any spaces; random observations, nothing to learn."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), float(self.np_random.random()), False, bool(self.np_random.random() < 0.2), {}


def make_model(
    obs: spaces.Space, act: spaces.Space, policy: str = "MlpPolicy", normalize: Any = None, **kwargs: Any
) -> tuple[GRPO, VecNormalize | None]:
    """A model after one rollout, its action layer made large enough for actions to differ and to meet their bounds."""
    env: Any = DummyVecEnv([lambda: Spaces(obs, act)] * 2)
    if normalize is not None:
        env = VecNormalize(env, **normalize)
    model = GRPO(policy, env, n_steps=16, batch_size=32, n_epochs=1, group_size=2, seed=1, **kwargs)
    model.learn(32)
    with th.no_grad():
        model.policy.action_net.weight.normal_(std=0.5, generator=th.Generator().manual_seed(0))
    return model, env if normalize is not None else None


SDE = {"use_sde": True}
LSTM = {"memory": "lstm", "memory_size": 8, "n_layers": 2}
CASES: dict[str, dict[str, Any]] = {
    "discrete": {"obs": VECTOR, "act": spaces.Discrete(5)},
    "box, clipped": {"obs": VECTOR, "act": TORQUE},
    "box, squashed": {"obs": VECTOR, "act": TORQUE, **SDE, "policy_kwargs": {"squash_output": True}},
    "vec_normalize": {"obs": VECTOR, "act": TORQUE, "normalize": {"clip_obs": 1.5}},
    "dict": {"obs": MIXED, "act": spaces.Discrete(3), "policy": "MultiInputPolicy"},
    "memory, normalised": {"obs": VECTOR, "act": TORQUE, "policy_kwargs": LSTM, "normalize": {}},
}
SLOW: dict[str, dict[str, Any]] = {
    "multi discrete": {"obs": VECTOR, "act": spaces.MultiDiscrete([3, 2, 4])},
    "multi binary": {"obs": VECTOR, "act": spaces.MultiBinary(4)},
    "box, gSDE": {"obs": VECTOR, "act": TORQUE, **SDE},
    "box of two axes": {"obs": VECTOR, "act": spaces.Box(-1, 1, (2, 2), np.float32)},
    "normalize_obs": {"obs": VECTOR, "act": TORQUE, "policy_kwargs": {"normalize_obs": True}},
    "image": {"obs": IMAGE, "act": spaces.Discrete(6), "policy": "CnnPolicy"},
    "image, flattened": {"obs": IMAGE, "act": spaces.Discrete(6)},
    "discrete observations": {"obs": spaces.Discrete(7), "act": spaces.Discrete(3)},
    "multi discrete observations": {"obs": spaces.MultiDiscrete([3, 4]), "act": TORQUE},
    "multi binary observations": {"obs": spaces.MultiBinary(5), "act": spaces.Discrete(3)},
    "double precision": {"obs": spaces.Box(-10, 10, (2,), np.float64), "act": TORQUE},
    "dict, vector normalised": {
        "obs": MIXED, "act": TORQUE, "policy": "MultiInputPolicy", "normalize": {"norm_obs_keys": ["vector"]}
    },
    "vec_normalize of rewards": {"obs": VECTOR, "act": TORQUE, "normalize": {"norm_obs": False}},
    "memory of a dict": {
        "obs": MIXED, "act": TORQUE, "policy": "MultiInputPolicy", "policy_kwargs": {"memory": "gru", "memory_size": 8}
    },
    "another net": {"obs": VECTOR, "act": TORQUE, "policy_kwargs": {"net_arch": [32], "activation_fn": th.nn.ELU}},
}  # fmt: skip


def hold_against_predict(case: dict[str, Any], path: Any) -> None:
    model, statistics = make_model(**case)
    assert model.export(path) == path
    assert check_exported(path, model.policy, statistics, n=1000) <= TOLERANCE
    drawn = list(samples(model.policy, 50).values())
    together = run_exported(path, drawn)[0]
    one_by_one = np.concatenate([run_exported(path, [x[i : i + 1] for x in drawn])[0] for i in range(3)])
    assert np.abs(together[:3] - one_by_one).max() <= TOLERANCE  # any batch size, one included
    assert len(np.unique(together, axis=0)) > 1  # or equality would say little
    assert all(model.action_space.contains(action) for action in together.astype(model.action_space.dtype))


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_exported_policy_acts_as_predict(case, suffix, tmp_path):
    hold_against_predict(case, tmp_path / f"policy{suffix}")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize("case", SLOW.values(), ids=SLOW)
def test_every_other_space_and_policy(case, suffix, tmp_path):
    hold_against_predict(case, tmp_path / f"policy{suffix}")


def test_bounds_are_met_exactly_and_the_file_says_what_it_is(tmp_path):
    import onnx

    model, _ = make_model(VECTOR, TORQUE)
    path = model.export(tmp_path / "deep" / "policy.onnx")
    far = np.full((1, 3), 1e6, np.float32)
    action = run_exported(path, [far])[0]
    assert np.isin(action, [-2.0, 2.0, 0.0, 5.0]).all() and model.action_space.contains(action[0])
    about = json.loads({entry.key: entry.value for entry in onnx.load(path).metadata_props}["sb_grpo"])
    assert about["action_space"] == str(TORQUE) and about["vec_normalize"] is False
    assert [p.name for p in path.parent.iterdir()] == ["policy.onnx"]  # one file


def test_exporting_leaves_the_model_as_it_was(tmp_path):
    model, _ = make_model(VECTOR, TORQUE, **SDE)
    before = {name: x.clone() for name, x in model.policy.state_dict().items()}
    model.policy.set_training_mode(True)
    model.export(tmp_path / "policy.pt2")
    assert model.policy.training and all(th.equal(x, before[name]) for name, x in model.policy.state_dict().items())


@pytest.mark.parametrize("act", [TORQUE, spaces.Discrete(3)], ids=["box", "discrete"])
def test_the_ways_of_sb3s_guide_work_too(act, tmp_path):
    """A module that calls the policy, traced and written as ONNX; of its three results the first is what acts."""
    model, _ = make_model(VECTOR, act)

    class Wrapped(th.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = model.policy

        def forward(self, observation: th.Tensor) -> Any:
            return self.policy(observation, deterministic=True)

    obs = th.randn(1, 3)
    traced = th.jit.trace(Wrapped().eval(), obs)
    th.onnx.export(Wrapped(), (obs,), str(tmp_path / "policy.onnx"), opset_version=17, input_names=["input"], dynamo=False)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    for seen in th.randn(20, 1, 3):
        with th.no_grad():
            expected = model.policy._predict(seen, deterministic=True)
        th.testing.assert_close(traced(seen)[0], expected)
        np.testing.assert_allclose(session.run(None, {"input": seen.numpy()})[0], expected.numpy(), atol=1e-5)


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    model, _ = make_model(VECTOR, TORQUE)
    with pytest.raises(ValueError, match=r"must end in \.onnx or \.pt2"):
        model.export(tmp_path / "policy.h5")
    stacked = VecFrameStack(VecNormalize(DummyVecEnv([lambda: Spaces(VECTOR, TORQUE)])), 4)
    below = GRPO("MlpPolicy", stacked, n_steps=16, batch_size=16)
    with pytest.raises(ValueError, match=r"shape \(3,\), but the policy sees \(12,\).*VecFrameStack"):
        below.export(tmp_path / "policy.pt2")
    assert export_policy(below.policy, tmp_path / "policy.pt2").exists()
    monkeypatch.setattr("sb_grpo.export.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'sb_grpo\[onnx\]'"):
        model.export(tmp_path / "policy.onnx")


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize(
    "space", [spaces.Discrete(4), pytest.param(spaces.MultiBinary(3), marks=pytest.mark.slow)], ids=["discrete", "bits"]
)
def test_masks_and_memory_are_inputs(space, suffix, tmp_path):
    class Masked(Spaces):
        def action_masks(self) -> np.ndarray:
            return np.ones(4 if isinstance(space, spaces.Discrete) else 6, dtype=bool)

    env = DummyVecEnv([lambda: Masked(VECTOR, space)] * 2)
    model = GRPO("MlpPolicy", env, n_steps=16, seed=1, policy_kwargs={"memory": "gru", "memory_size": 8}).learn(32)
    path = model.export(tmp_path / f"policy{suffix}")
    assert check_exported(path, model.policy, masked=True) <= TOLERANCE
    drawn = samples(model.policy, 50, masked=True)
    assert list(drawn) == ["observation", "action_mask", "policy_memory"]
    drawn["action_mask"][:] = np.eye(4)[2] if isinstance(space, spaces.Discrete) else [1, 0, 0, 1, 1, 0]
    actions, memory = run_exported(path, list(drawn.values()))
    expected = 2 if isinstance(space, spaces.Discrete) else [0, 1, 0]
    assert (actions == expected).all() and memory.shape == (50, 8)


def test_a_model_that_was_loaded_without_an_env_exports_what_it_was_saved_with(tmp_path):
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]))
    model = GRPO("MlpPolicy", env, n_steps=64, seed=0, device="cpu").learn(256)
    model.save(tmp_path / "model")
    obs = np.array([[-0.9, 0.43, 6.0]], np.float32)
    exported = GRPO.load(tmp_path / "model").export(tmp_path / "loaded.pt2")
    expected, _ = model.predict(env.normalize_obs(obs), deterministic=True)
    np.testing.assert_allclose(run_exported(exported, [obs])[0], expected, atol=1e-5)
