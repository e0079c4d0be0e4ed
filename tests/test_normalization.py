"""Running observation statistics against VecNormalize's and against plain means."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.running_mean_std import RunningMeanStd

from sb_grpo import GRPO
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.maths.normalizer import RunningNormalizer
from tests.helpers import SpaceEnv


def test_statistics_are_those_of_everything_seen_and_sb3s():
    th.manual_seed(0)
    ours, theirs = RunningNormalizer(3, clip=2.0), RunningMeanStd(epsilon=1e-12, shape=(3,))
    batches = [3.0 * th.randn(n, 3) + th.tensor([1.0, -5.0, 0.0]) for n in (1, 7, 100)]
    for batch in batches:
        ours.update(batch)
        theirs.update(batch.numpy())
    everything = th.cat(batches)
    th.testing.assert_close(ours.mean, everything.mean(0))
    th.testing.assert_close(ours.var, everything.var(0, unbiased=False))
    np.testing.assert_allclose(ours.var.numpy(), theirs.var, rtol=1e-4)
    standard = ours(everything)
    assert float(standard.abs().max()) == 2.0 and float(standard.mean(0).abs().max()) < 0.2


@pytest.mark.parametrize("make", [lambda: make_vec_env("Pendulum-v1", 4), lambda: make_tensor_env("Pendulum-v1", 4)])
def test_a_policy_carries_its_statistics(make, tmp_path):
    kwargs = dict(n_steps=64, batch_size=64, n_epochs=2, device="cpu", seed=0, policy_kwargs=dict(normalize_obs=True))
    model = GRPO("MlpPolicy", make(), **kwargs).learn(1024)
    normalizer = model.policy.obs_normalizer
    assert int(normalizer.count) == 1024 - 256  # the last rollout comes in before the next one
    assert abs(float(normalizer.mean[2])) > 0 and float(normalizer.var[2]) > 1  # angular velocity is not of size 1
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", env=make(), device="cpu")
    th.testing.assert_close(loaded.policy.state_dict(), model.policy.state_dict())
    obs = np.array([0.1, 0.9, 5.0], dtype=np.float32)
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    assert np.isfinite(evaluate_policy(loaded, make_vec_env("Pendulum-v1", 1), 1)[0])
    assert len(model.policy.optimizer.param_groups[0]["params"]) == len(list(model.policy.parameters()))


@pytest.mark.parametrize(
    ("policy", "space", "remedy"),
    [
        ("CnnPolicy", spaces.Box(0, 255, (36, 36, 1), np.uint8), "use VecNormalize"),
        ("MultiInputPolicy", spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,))}), "use VecNormalize"),
        ("MlpPolicy", spaces.Discrete(5), "leave it out"),  # VecNormalize refuses it too
    ],
)
def test_what_has_no_scale_of_its_own_is_refused(policy, space, remedy):
    with pytest.raises(ValueError, match=rf"normalize_obs=True is for flat observations.*: {remedy}"):
        GRPO(policy, SpaceEnv(space, spaces.Discrete(2)), policy_kwargs=dict(normalize_obs=True))
