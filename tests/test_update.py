"""Minibatches, gradient clipping, and the way back from a bad gradient."""

from types import SimpleNamespace

import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.logger import configure

from sb_grpo import GRPO
from sb_grpo.learn.gradients import clip_gradients
from sb_grpo.learn.last_good import LastGood
from sb_grpo.learn.minibatches import minibatches
from sb_grpo.maths.losses import step_weights
from sb_grpo.types import Minibatch


def make_batch(lengths):
    n = sum(lengths)
    rows = th.arange(n).float()
    episode = th.repeat_interleave(th.arange(len(lengths)), th.tensor(lengths))
    return Minibatch({"a": rows.unsqueeze(1)}, rows, rows, rows, rows, episode)


@pytest.mark.parametrize("n", [1, 63, 64, 100, 1000])
def test_every_row_once_per_epoch_in_nearly_equal_parts(n):
    parts = list(minibatches(make_batch([n]), 64))
    assert sorted(th.cat([p.advantages for p in parts]).tolist()) == list(range(n))
    sizes = [len(p.advantages) for p in parts]
    assert max(sizes) - min(sizes) <= 1 and len(sizes) == max(1, round(n / 64))
    for part in parts:
        th.testing.assert_close(part.observations["a"][:, 0], part.advantages)


def test_whole_episodes_stay_together():
    th.manual_seed(0)
    lengths = [5, 30, 2, 2, 2, 40, 1, 9]
    batch = make_batch(lengths)
    parts = list(minibatches(batch, 16, together=batch.episode))
    assert sorted(th.cat([p.advantages for p in parts]).tolist()) == list(range(sum(lengths))) and len(parts) > 2
    for part in parts:
        for e in part.episode.unique():
            assert int((part.episode == e).sum()) == lengths[int(e)]
        assert (part.episode.diff() != 0).sum() + 1 == len(part.episode.unique())


def test_episodes_longer_than_a_minibatch_make_one_each():
    batch = make_batch([100, 3, 100, 100])
    parts = list(minibatches(batch, 16, together=batch.episode))
    assert sorted(len(p.advantages) for p in parts)[-3:] >= [100, 100, 100] and sum(len(p.advantages) for p in parts) == 303


@pytest.mark.parametrize("aggregation", ["step", "episode", "constant"])
def test_unequal_minibatches_average_to_the_loss_of_the_whole(aggregation):
    """4 episodes of 5 and 4 of 60 steps: the mean over minibatches of the weighted mean is the weighted mean over all."""
    lengths = [5, 60, 5, 60, 5, 60, 5, 60]
    batch = make_batch(lengths)
    batch = batch._replace(weights=step_weights(batch.episode, aggregation, 100))
    parts = list(minibatches(batch, 64, together=batch.episode))
    mean = sum((p.weights * p.advantages).mean() for p in parts) / len(parts)
    th.testing.assert_close(mean, (batch.weights * batch.advantages).mean())


def test_epochs_are_shuffled_differently():
    batch = make_batch([50])
    first, second = (th.cat([p.advantages for p in minibatches(batch, 10)]) for _ in range(2))
    assert (first != second).any()


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_clip_gradients_equals_torchs(scale):
    def net():
        th.manual_seed(0)
        module = th.nn.Linear(3, 2)
        (scale * module(th.ones(4, 3))).sum().backward()
        return module

    ours, theirs = net(), net()
    norms = clip_gradients(list(ours.parameters()), 0.5)
    th.testing.assert_close(norms.norm(), th.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        th.testing.assert_close(a.grad, b.grad)


def test_a_bad_gradient_is_named_and_the_weights_come_back():
    policy = GRPO("MlpPolicy", "CartPole-v1", seed=0).policy
    names = [name for name, _ in policy.named_parameters()]
    good = LastGood(policy)
    before = [p.detach().clone() for p in policy.parameters()]
    norms = []
    for factor in (1.0, float("nan"), 1.0):
        policy.optimizer.zero_grad()
        (policy.log_prob(th.ones(2, 4), th.tensor([0, 1])).sum() * 3 + factor * policy.action_net.bias.sum()).backward()
        norms.append(clip_gradients(list(policy.parameters()), 0.5))
        policy.optimizer.step()
    with pytest.raises(ValueError, match=f"{names[-1]} was not finite in gradient step 1 of epoch 3"):
        good.check(norms, 3)
    for a, b in zip(before, policy.parameters(), strict=True):
        th.testing.assert_close(a, b.detach())
    assert not policy.optimizer.state_dict()["state"]
    good.check(norms[:1], 0)


def test_what_is_frozen_on_the_way_stays_as_it_is():
    """Also weights of others in the optimiser, whatever gradients they have: PPO clears them all."""
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0, device="cpu").learn(128)
    other = th.nn.Linear(4, 2)
    model.policy.optimizer.add_param_group(dict(params=list(other.parameters())))
    other(th.ones(4)).sum().backward()
    model.policy.policy_net.requires_grad_(False)
    frozen = [*model.policy.policy_net.parameters(), *other.parameters()]
    before, head = [p.detach().clone() for p in frozen], model.policy.action_net.weight.detach().clone()
    model.learn(128, reset_num_timesteps=False)
    assert all(p.equal(q) for p, q in zip(frozen, before, strict=True))
    assert not model.policy.action_net.weight.equal(head)


# Given the same steps and advantages, GRPO's update is that of SB3's PPO without its critic: the same weights come out

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
