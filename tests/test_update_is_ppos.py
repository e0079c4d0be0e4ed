"""Given the same steps and advantages, GRPO's update is that of SB3's PPO without its critic: the same weights come out."""

from types import SimpleNamespace

import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.logger import configure

from sb_grpo import GRPO

N_STEPS = 256


def collected(env_id: str, **kwargs) -> tuple[GRPO, SimpleNamespace]:
    """A model with a rollout that it has not trained on, and what PPO needs of it."""
    model = GRPO("MlpPolicy", env_id, n_steps=N_STEPS, seed=0, device="cpu", **kwargs)
    seen = SimpleNamespace()
    train = model.train

    def look():
        seen.batch = model._training_batch.batch
        seen.weights = {name: value.clone() for name, value in model.policy.state_dict().items()}
        train()

    model.train = look
    model.learn(N_STEPS)
    return model, seen


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_an_update_is_that_of_ppo(env_id):
    """One minibatch of all rows, so that shuffling plays no part; three epochs, of which the later ones clip ratios."""
    kwargs = dict(batch_size=N_STEPS, n_epochs=3, learning_rate=0.02, clip_range=0.1, max_grad_norm=0.3)
    ours, seen = collected(env_id, **kwargs)
    alone = dict(vf_coef=0.0, normalize_advantage=False)  # ours are normalised already
    theirs = PPO("MlpPolicy", env_id, n_steps=N_STEPS, device="cpu", **alone, **kwargs)
    theirs.set_logger(configure(None, []))
    of_ppo = {name: f"mlp_extractor.{name}" if name.startswith("policy_net") else name for name in seen.weights}
    theirs.policy.load_state_dict({of_ppo[name]: value for name, value in seen.weights.items()}, strict=False)

    buffer = theirs.rollout_buffer
    buffer.reset()
    for name, values in (
        ("observations", seen.batch.observations),
        ("actions", seen.batch.actions),
        ("log_probs", seen.batch.old_log_probs),
        ("advantages", seen.batch.advantages),
    ):
        column = getattr(buffer, name)
        column[:] = values.numpy().reshape(column.shape)
    buffer.full = True
    theirs.train()

    after, moved = theirs.policy.state_dict(), []
    for name, value in ours.policy.state_dict().items():
        th.testing.assert_close(value, after[of_ppo[name]], rtol=1e-4, atol=1e-5)
        moved.append(float((value - seen.weights[name]).abs().max()))
    assert min(moved) > 1e-3  # not equal because nothing happened
