"""Loss terms against worked-out values, gradients and the papers' equations."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch as th

from sb_grpo import GRPO, AdvantageOptions
from sb_grpo.baselines.estimators import OfFunction
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.learn.losses import Cispo, Clipped, Objective, Sapo
from sb_grpo.maths import losses
from sb_grpo.maths.estimators import outcome
from tests.helpers import ProbeEnv, TurnEnv, make_rollout


def test_clipped_surrogate_value_and_gradient_by_hand():
    #            inside  above, A>0  above, A<0  below, A>0  below, A<0
    log_ratio = th.tensor([0.1, 0.5, 0.5, -0.5, -0.5], requires_grad=True)
    advantages = th.tensor([2.0, 1.0, -1.0, 1.0, -1.0])
    loss = Clipped().surrogate(log_ratio, log_ratio.exp(), advantages, (0.2, 0.3))
    ratio = [math.exp(x) for x in (0.1, 0.5, 0.5, -0.5, -0.5)]
    th.testing.assert_close(loss, th.tensor([-2 * ratio[0], -1.3, ratio[2], -ratio[3], 0.8]))
    loss.sum().backward()
    # d(-r A)/d log r = -r A where the unclipped branch is the smaller, 0 where the clip holds.
    th.testing.assert_close(log_ratio.grad, th.tensor([-2 * ratio[0], 0.0, ratio[2], -ratio[3], 0.0]))


def test_ratio_cap_bounds_the_negative_side():
    ratio, advantages = th.tensor([10.0, 10.0, 2.0]), th.tensor([-1.0, 1.0, -1.0])
    loss = Clipped(ratio_cap=4.0).surrogate(ratio.log(), ratio, advantages, (0.2, 0.2))
    th.testing.assert_close(loss, th.tensor([4.0, -1.2, 2.0]))


def test_cispo_keeps_the_gradient_of_clipped_rows():
    log_prob = th.tensor([-1.0, -1.0], requires_grad=True)
    ratio = th.tensor([5.0, 0.5])
    Cispo().surrogate(log_prob, ratio, th.tensor([1.0, -2.0]), (0.2, 0.3)).sum().backward()
    th.testing.assert_close(log_prob.grad, th.tensor([-1.3, 1.6]))


def test_sapo_is_a_gate_that_fades_on_both_sides():
    """At ratio 1 the gradient of the ratio, as without a clip; elsewhere 4 s (1 - s) of it, with s = sigmoid(tau (r - 1))."""
    log_ratio = th.tensor([0.0, 0.0, math.log(3.0), math.log(3.0), math.log(0.5)], requires_grad=True)
    advantages = th.tensor([2.0, -1.0, 1.0, -1.0, 1.0])
    loss = Sapo(temperature_pos=1.0, temperature_neg=2.0).surrogate(log_ratio, log_ratio.exp(), advantages, (0.2, 0.2))
    s = [1 / (1 + math.exp(-x)) for x in (2.0, 4.0, -0.5)]  # tau (r - 1) of the last three rows
    th.testing.assert_close(loss, th.tensor([-2 * 4 / 2, 2 / 2, -4 * s[0], 2 * s[1], -4 * s[2]]))
    loss.sum().backward()
    gate = [4 * x * (1 - x) for x in s]
    th.testing.assert_close(log_ratio.grad, th.tensor([-2.0, 1.0, -3 * gate[0], 3 * gate[1], -0.5 * gate[2]]))


def test_the_corrected_kl_has_the_gradient_of_the_kl():
    """Mean over all actions of p (ratio * k3) at ratio 1: d/dtheta KL(p || q) exactly; k3 alone has another gradient."""
    logits, q = th.tensor([0.3, -0.2, 0.5], requires_grad=True), th.tensor([0.3, 0.3, 0.4])
    log_p = logits.log_softmax(0)
    exact = th.autograd.grad((log_p.exp() * (log_p - q.log())).sum(), logits, retain_graph=True)[0]
    ratio = (log_p - log_p.detach()).exp()
    for loss, same in ((Clipped(kl_correction=True), True), (Clipped(), False)):
        estimate = (log_p.detach().exp() * loss.kl(log_p, ratio, q.log())).sum()
        gradient = th.autograd.grad(estimate, logits, retain_graph=True)[0]
        assert th.allclose(gradient, exact, atol=1e-6) == same


def test_kl_k3_is_non_negative_and_unbiased():
    generator = th.Generator().manual_seed(0)
    p, q = th.tensor([0.2, 0.5, 0.3]), th.tensor([0.3, 0.3, 0.4])
    actions = th.multinomial(p, 200_000, replacement=True, generator=generator)
    k3 = losses.kl_k3(p.log()[actions], q.log()[actions])
    assert (k3 >= 0).all()
    assert abs(float(k3.mean()) - float((p * (p / q).log()).sum())) < 1e-3


def test_step_weights_of_the_three_aggregations():
    episode = th.tensor([0, 0, 0, 1])
    loss = th.tensor([1.0, 2.0, 3.0, 10.0])
    assert float((losses.step_weights(episode, "step", 5) * loss).mean()) == 4.0
    assert float((losses.step_weights(episode, "episode", 5) * loss).mean()) == pytest.approx((2 + 10) / 2)
    assert float((losses.step_weights(episode, "constant", 5) * loss).mean()) == pytest.approx((6 / 5 + 10 / 5) / 2)
    for aggregation in ("step", "episode", "constant"):  # no group has a signal
        assert losses.step_weights(episode[:0], aggregation, 5).shape == (0,)


def test_episode_ratio_is_the_geometric_mean():
    log_ratio = th.tensor([0.1, 0.3, -0.4], requires_grad=True)
    ratio = losses.importance_ratio(log_ratio, "episode", th.tensor([4, 4, 7]))
    th.testing.assert_close(ratio, th.tensor([0.2, 0.2, -0.4]).exp())
    ratio[:2].sum().backward()
    th.testing.assert_close(log_ratio.grad, th.tensor([math.exp(0.2), math.exp(0.2), 0.0]))
    th.testing.assert_close(losses.importance_ratio(log_ratio, "step", th.zeros(3)), log_ratio.exp())


def test_turn_ratio_is_the_geometric_mean_over_a_turn():
    log_ratio, episode = th.tensor([0.1, 0.3, -0.4, 0.2, 0.6]), th.tensor([0, 0, 0, 1, 1])
    ratio = losses.importance_ratio(log_ratio, "turn", episode, th.tensor([0, 0, 1, 1, 1]))  # 1 goes on in another episode
    th.testing.assert_close(ratio, th.tensor([0.2, 0.2, -0.4, 0.4, 0.4]).exp())
    for turn, level in (([0, 1, 2, 0, 1], "step"), ([0, 0, 0, 5, 5], "episode")):
        ratio = losses.importance_ratio(log_ratio, "turn", episode, th.tensor(turn))
        th.testing.assert_close(ratio, losses.importance_ratio(log_ratio, level, episode))
    with pytest.raises(ValueError, match=r"'turn' needs the turn of every step.* rollout._replace"):
        losses.importance_ratio(log_ratio, "turn", episode)


def test_turns_come_from_the_infos_and_stay_in_one_minibatch():
    """The env numbers its turns 0, 0, 1, 1; every minibatch holds whole episodes, with the number beside each row."""
    settings = dict(advantage="outcome", n_groups=4, group_size=2, batch_size=8, n_epochs=1, seed=0, device="cpu")
    model = GRPO("MlpPolicy", TurnEnv("observation"), loss_kwargs=dict(importance_level="turn"), **settings)
    rollout = model.collect()
    assert rollout.extra["turn"].tolist() == [0, 0, 1, 1] * 8
    seen = []
    forward = Objective.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objective, "forward", lambda self, part, clip: seen.append(part) or forward(self, part, clip))
        model.update(rollout)
    assert len(seen) > 1 and all(part.extra["turn"].tolist() == [0, 0, 1, 1] * (len(part.weights) // 4) for part in seen)
    with pytest.raises(ValueError, match=r"info\['turn'\] of env 0 is None. Report it as an integer"):
        GRPO("MlpPolicy", ProbeEnv("action"), loss_kwargs=dict(importance_level="turn"), **settings).learn(32)
    with pytest.raises(ValueError, match=r"importance_level='turn' reads info.*is a tensor env"):
        GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 4), loss_kwargs=dict(importance_level="turn"))


def test_truncated_episodes_are_left_out_and_still_count_in_their_group():
    """CartPole cut after 12 steps: the rows of the cut episodes go, the advantages of the others stay."""
    env = gym.make("CartPole-v1", max_episode_steps=12)
    model = GRPO("MlpPolicy", env, advantage="outcome", n_groups=4, group_size=4, seed=0, device="cpu")
    rollout = model.collect()
    batch = model._training_batch.batch
    model.options = model.options._replace(loss=Clipped(mask_truncated=True))
    masked = model.compute_advantages(rollout, again=True).batch
    ended = ~rollout.truncated[batch.episode]
    assert 0 < int(ended.sum()) < len(ended)
    assert (masked.episode == batch.episode[ended]).all() and (masked.advantages == batch.advantages[ended]).all()


def test_advantages_are_clipped_on_both_sides():
    model = GRPO("MlpPolicy", ProbeEnv("action"), advantage="outcome", n_groups=8, group_size=4, seed=0, device="cpu",
                 loss_kwargs=dict(advantage_clip=0.5))  # fmt: skip
    rollout = model.collect()
    free = model.estimator.estimate(rollout, AdvantageOptions(model.gamma)).advantages
    clipped = model.compute_advantages(rollout, again=True).estimate.advantages
    assert free.abs().max() > 1 and (clipped == free.clamp(-0.5, 0.5)).all()


def test_outcome_loss_equals_equation_3_of_deepseekmath():
    """One group, episode aggregation, gamma 1: the objective of the paper, written out term by term."""
    eps, beta = 0.2, 0.04
    rewards = [[0.0, 1.0], [2.0], [0.5, 0.5, 2.0]]
    log_new, log_old, log_ref = (th.randn(6, generator=th.Generator().manual_seed(i)) * 0.3 - 1 for i in range(3))
    returns = [sum(r) for r in rewards]
    mean = sum(returns) / 3
    std = math.sqrt(sum((r - mean) ** 2 for r in returns) / 3)
    objective, k = 0.0, 0
    for reward, total in zip(rewards, returns, strict=True):
        advantage, episode_sum = (total - mean) / std, 0.0
        for _ in reward:
            ratio = math.exp(log_new[k] - log_old[k])
            d = float(log_ref[k] - log_new[k])
            kl = math.exp(d) - d - 1
            episode_sum += min(ratio * advantage, min(max(ratio, 1 - eps), 1 + eps) * advantage) - beta * kl
            k += 1
        objective += episode_sum / len(reward) / 3

    rollout = make_rollout(rewards, [0, 0, 0])
    advantages = outcome(rollout, AdvantageOptions(gamma=1.0))
    surrogate = Clipped().surrogate(log_new, (log_new - log_old).exp(), advantages, (eps, eps))
    per_step = surrogate + beta * losses.kl_k3(log_new, log_ref)
    ours = (losses.step_weights(rollout.episode, "episode", 3) * per_step).mean()
    assert float(ours) == pytest.approx(-objective, rel=1e-5)


def test_the_models_own_loss_equals_equation_3_with_default_aggregation():
    """One collected group through GRPO itself; episodes of one length, where the mean over steps is the paper's."""
    model = GRPO("MlpPolicy", ProbeEnv("observation"), advantage="outcome", n_groups=1, group_size=5, gamma=1.0, kl_coef=0.04)
    rewards = []
    model.estimator = OfFunction(lambda rollout, options: rewards.append(rollout.rewards) or outcome(rollout, options))
    _, callback = model._setup_learn(100)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, None)
    batch = model._training_batch.batch
    with th.no_grad():
        for i, parameter in enumerate(model.policy.parameters()):
            parameter.add_(0.3 * th.randn(parameter.shape, generator=th.Generator().manual_seed(i)))
        log_new = model.policy.log_prob(batch.observations, batch.actions)
        log_ref = model.ref_policy.log_prob(batch.observations, batch.actions)
    returns = rewards[0].reshape(5, 4).sum(1).numpy()
    objective = 0.0
    for i in range(5):
        advantage = (returns[i] - returns.mean()) / returns.std()
        for t in range(4):
            k = 4 * i + t
            ratio, d = math.exp(log_new[k] - batch.old_log_probs[k]), float(log_ref[k] - log_new[k])
            objective += (min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage) - 0.04 * (math.exp(d) - d - 1)) / 4 / 5
    assert float(model.objective()(batch, (0.2, 0.2)).detach()) == pytest.approx(-objective, rel=1e-4)
