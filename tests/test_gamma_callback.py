"""A discount that moves while training: its values, and that the updates use them."""

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, ConvertCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.callbacks import GammaCallback


class Seen(BaseCallback):
    """Discount and logged value at the end of every rollout."""

    def __init__(self):
        super().__init__()
        self.gammas, self.logged = [], []

    def _on_rollout_end(self):
        self.gammas.append(self.model.moving_gamma)
        self.logged.append(self.logger.name_to_value["train/gamma"])

    def _on_step(self):
        return True


def small(**options):
    env = make_vec_env("CartPole-v1", n_envs=4, seed=0)
    options = {"gamma": 0.99, **options}
    return GRPO("MlpPolicy", env, n_steps=16, group_size=2, n_epochs=1, seed=0, device="cpu", **options)


def test_the_horizon_changes_by_the_same_factor_in_equal_parts():
    callback = GammaCallback(0.99, share=0.5)
    horizons = [1 / (1 - callback.gamma(x, 0.999)) for x in (0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)]
    np.testing.assert_allclose(horizons, [100 * 10**x for x in (0, 0.25, 0.5, 0.75, 1, 1, 1)], rtol=1e-9)


def test_it_falls_as_well():
    callback = GammaCallback(0.99, share=1.0)
    np.testing.assert_allclose([callback.gamma(x, 0.9) for x in (0, 0.5, 1)], [0.99, 1 - np.sqrt(0.001), 0.9])


def test_it_moves_before_every_rollout_and_is_logged():
    callback, seen = GammaCallback(0.9), Seen()
    model = small().learn(64 * 8, callback=[callback, seen])
    np.testing.assert_allclose(seen.gammas, [callback.gamma(i / 8, 0.99) for i in range(8)])
    assert seen.gammas[0] == pytest.approx(0.9) and seen.gammas[4:] == pytest.approx([0.99] * 4)
    assert seen.logged == seen.gammas and model.gamma == 0.99


def test_a_second_training_begins_anew_and_a_continued_one_goes_on():
    model, callback, seen = small(), GammaCallback(0.9), Seen()
    model.learn(64 * 4, callback=[callback, seen])
    model.learn(64 * 4, callback=[callback, seen])
    np.testing.assert_allclose(seen.gammas[4:], seen.gammas[:4])
    model.learn(64 * 4, callback=[callback, seen], reset_num_timesteps=False)  # 4 of 8 rollouts done: the rise is over
    np.testing.assert_allclose(seen.gammas[8:], 0.99)


def test_a_training_saved_on_the_way_still_knows_where_it_goes(tmp_path):
    callback, seen = GammaCallback(0.9, share=1.0), Seen()
    small().learn(64 * 4, callback=callback).save(tmp_path / "model.zip")  # it ends at 0.9 + 3/4 of the way
    model = GRPO.load(tmp_path / "model.zip", make_vec_env("CartPole-v1", n_envs=4, seed=0), device="cpu")
    model.learn(64 * 4, callback=[callback, seen], reset_num_timesteps=False)
    np.testing.assert_allclose(seen.gammas, [callback.gamma(i / 8, 0.99) for i in range(4, 8)])


@pytest.mark.parametrize("advantage", ["state", "step"])
def test_the_updates_use_it_until_a_training_without_it(advantage):
    def weights(gamma, start=None):
        model = small(gamma=gamma, advantage=advantage)
        model.learn(64 * 6, callback=None if start is None else GammaCallback(start))
        first = th.nn.utils.parameters_to_vector(model.policy.parameters())
        model.learn(64)
        assert model.moving_gamma is None
        return first

    constant = weights(0.9)
    assert th.equal(constant, weights(0.9, start=0.9))
    assert not th.equal(constant, weights(0.9, start=0.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": -0.1}, r"start=-0.1 must lie in \[0, 1\)"),
        ({"start": 1.0}, r"start=1.0 must lie in \[0, 1\)"),
        ({"start": float("nan")}, r"start=nan must lie in \[0, 1\)"),
        ({"start": 0.9, "share": 0.0}, r"share=0.0 must lie in \(0, 1\]"),
    ],
)
def test_bad_values_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        GammaCallback(**arguments)


def test_ppos_advantages_follow_it_and_its_gamma_comes_back():
    class Used(BaseCallback):
        def _on_rollout_end(self):
            discounts.append((self.model.gamma, self.model.rollout_buffer.gamma))

        def _on_step(self):
            return True

    discounts: list[tuple[float, float]] = []
    callback = GammaCallback(0.9)
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, n_epochs=1, gamma=0.99, seed=0, device="cpu")
    model.learn(64 * 4, callback=[callback, Used()])
    expected = [callback.gamma(i / 4, 0.99) for i in range(4)]
    np.testing.assert_allclose(discounts, [(gamma, gamma) for gamma in expected])
    model.learn(64, callback=GammaCallback(0.5, share=1.0))  # ends on the way
    assert model.gamma == 0.99


def test_models_without_a_place_to_go_are_refused():
    with pytest.raises(ValueError, match="the model is a DQN, which learns from steps of all times"):
        DQN("MlpPolicy", "CartPole-v1", device="cpu").learn(64, callback=GammaCallback(0.9))
    with pytest.raises(ValueError, match="is out of reach for GammaCallback"):
        small(gamma=1.0).learn(64, callback=GammaCallback(0.9))


def test_ppo_gets_its_discount_back_wherever_its_training_has_ended(tmp_path):
    def ppo():
        return PPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), gamma=0.999, n_steps=32, batch_size=32, device="cpu")

    model, callback = ppo(), GammaCallback(0.5)
    model.learn(10_000, [callback, StopTrainingOnMaxEpisodes(4), CheckpointCallback(32, tmp_path)])
    assert model.num_timesteps < 2_000 and model.gamma == model.rollout_buffer.gamma == 0.999

    loaded = PPO.load(tmp_path / "rl_model_64_steps.zip", env=make_vec_env("CartPole-v1", 2))
    assert loaded.gamma < 0.999  # that of its rollout
    loaded.learn(64, again := GammaCallback(0.5))
    assert again.end == loaded.gamma == 0.999

    failed = ppo()
    with pytest.raises(KeyboardInterrupt):
        failed.learn(10_000, [callback, ConvertCallback(interrupted)])
    failed.learn(64, again := GammaCallback(0.5))
    assert again.end == 0.999
    failed.gamma = 0.9  # by hand: this is where it is to end now
    failed.learn(64, again := GammaCallback(0.5))
    assert again.end == 0.9


def interrupted(known, _):
    if known["self"].num_timesteps > 200:
        raise KeyboardInterrupt
    return True
