"""Compiled execution: the same numbers as the eager path, or a warning that says why there is no graph."""

import re
import warnings
from functools import partial

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from sb_grpo import GRPO, RNDBonus
from sb_grpo.collect.device_loop import env_steps
from sb_grpo.collect.groups import TensorGroups
from sb_grpo.envs import random
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.learn.compiled import Graph, adam_moments, pad, update
from sb_grpo.learn.gradients import clip_gradients
from sb_grpo.maths.chunks import CHUNK, in_chunks
from sb_grpo.types import Minibatch
from tests.helpers import ProbeEnv, TurnEnv
from tests.test_objectives import TensorGoals

SMALL = dict(n_steps=4, batch_size=16, n_epochs=2, group_size=2, seed=0, device="cpu")


def weights(model):
    return th.cat([p.detach().flatten() for p in model.policy.parameters()])


def minibatch_of(model, rows):
    generator = th.Generator().manual_seed(1)
    obs = th.randn(rows, *model.observation_space.shape, generator=generator)
    with th.no_grad():
        actions, log_probs, _ = model.policy.sample(obs, model.policy.noise(rows))
    advantages, weight = th.randn(2, rows, generator=generator).unbind(0)
    return Minibatch(obs, actions, log_probs + 0.3 * advantages, advantages, weight.abs(), th.arange(rows))


OPTIONS = [
    {},
    dict(ent_coef=0.1, loss_kwargs=dict(aggregation="episode")),
    dict(kl_coef=0.3, loss_kwargs=dict(ratio_cap=1.5, clip_range_high=0.3), clip_range=0.1),
    dict(loss="cispo", max_grad_norm=0.01),
    dict(loss="sapo", kl_coef=0.3, loss_kwargs=dict(temperature_neg=2.0, kl_correction=True)),
    dict(policy_kwargs=dict(net_arch=[8], normalize_obs=True, optimizer_kwargs=dict(betas=(0.5, 0.9), eps=1e-3))),
]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("options", OPTIONS)
def test_the_update_written_out_is_the_eager_update(env_id, options):
    def trained(step):
        model = GRPO("MlpPolicy", make_tensor_env(env_id, 4), **SMALL, **options)
        minibatch = minibatch_of(model, 24)
        if model.ref_policy is not None:
            with th.no_grad():
                model.ref_policy.action_net.bias.add_(0.5)
        parameters = list(model.policy.parameters())
        norms = [step(model, minibatch, (0.1, 0.3), parameters) for _ in range(4)]
        return weights(model), th.stack(norms), model.policy.optimizer.state_dict()

    def eagerly(model, minibatch, clip, parameters):
        model.gradient(partial(model.objective(), clip=clip), minibatch, parameters)
        norms = clip_gradients(parameters, model.max_grad_norm)
        model.policy.optimizer.step()
        return norms

    def written_out(model, minibatch, clip, parameters):
        group = model.policy.optimizer.param_groups[0]
        moments = adam_moments(model.policy.optimizer, parameters)
        scalars = th.tensor([*clip, group["lr"], model.max_grad_norm])
        if model.options.loss.aggregation == "step":
            minibatch = minibatch._replace(weights=th.ones_like(minibatch.weights))
        with th.no_grad():
            loss = model.objective().looking_at_weights()
            return update(loss, parameters, moments, pad(minibatch, 16), scalars, group["betas"], group["eps"])

    (eager, eager_norms, eager_state), (ours, norms, state) = trained(eagerly), trained(written_out)
    th.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-6)
    th.testing.assert_close(norms, eager_norms, rtol=1e-4, atol=1e-6)
    for key in ("step", "exp_avg", "exp_avg_sq"):
        th.testing.assert_close(state["state"][0][key], eager_state["state"][0][key], rtol=1e-4, atol=1e-7)


def test_the_hash_of_graphs_is_the_hash():
    words = th.randint(-(2**63), 2**63 - 1, (3, 1000), generator=th.Generator().manual_seed(0))
    words[:, 0] = -(2**63)
    ours = random._rounds([*words, -3], th.tensor(0), random._plus, random._times)
    assert (ours == random.mix_tensor(*words, -3)).all()


@pytest.mark.slow
def test_compiled_starts_are_the_eager_starts():
    """Episodes are handed out and started inside the graph, step after step: the hash of their numbers must wrap there too."""

    def starts(env, groups, done):
        seen = []
        for ended in done.unbind(0):
            groups.step(env, ended)
            seen.append(env.state)
        return th.stack(seen)

    def at_start():
        env, groups = make_tensor_env("CartPoleTasks-v0", 4), TensorGroups(4, 2, 0, 0, th.device("cpu"))
        groups.started_all(env)
        return env, groups

    done = th.rand(3, 4, generator=th.Generator().manual_seed(0)) < 0.5
    ours = th.compile(starts, fullgraph=True, dynamic=False)(*at_start(), done)
    assert (ours == starts(*at_start(), done)).all()


def test_the_compiled_baseline_is_the_baseline():
    """Full chunks of rows go through the graph, the rest does not; both say the same."""
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 4), compile=True, **SMALL)
    baseline, x = model.estimator, th.randn(CHUNK + 100, 4)
    baseline.phi.normalizer.update(x)
    baseline.weights.normal_()
    with th.no_grad():
        ours, eager = in_chunks(model.compiled.predict(baseline), x), in_chunks(baseline.predict, x)
    assert model.compiled._predict.compiled
    th.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


def test_padding_weighs_nothing():
    rows = Minibatch(th.randn(5, 2), th.arange(5), *th.randn(2, 5).unbind(0), th.rand(5), th.arange(5))
    padded = pad(rows, 4)
    assert len(padded.advantages) == 8 and padded.weights[5:].eq(0).all()
    th.testing.assert_close((padded.weights * padded.advantages).mean(), (rows.weights * rows.advantages).mean())
    assert pad(rows, 5) is rows


@pytest.mark.parametrize("env_id", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
def test_compiled_training_equals_eager_training(env_id, tmp_path):
    """The first rollout and the weights after one update; later ones drift apart by rounding, as they must."""

    def trained(mode):
        seen = []

        def advantage(rollout, options):
            seen.append(rollout)
            return rollout.rewards + rollout.actions.flatten() - rollout.observations[:, 0]

        model = GRPO("MlpPolicy", make_tensor_env(env_id, 4), advantage=advantage, compile=mode, **SMALL)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="compile: ")
            model.learn(64)
        return model, seen[0]

    (eager, eager_rollout), (ours, rollout) = trained(False), trained(True)
    assert ours.compiled._steps.compiled and ours.compiled._update.compiled and ours.num_timesteps == eager.num_timesteps
    for name in ("t", "episode", "group", "terminated", "truncated"):
        assert (getattr(rollout, name) == getattr(eager_rollout, name)).all()
    for name in ("observations", "actions", "log_probs", "rewards", "final_observations"):
        th.testing.assert_close(getattr(rollout, name), getattr(eager_rollout, name), rtol=1e-4, atol=1e-5)
    th.testing.assert_close(weights(ours), weights(eager), rtol=1e-3, atol=1e-5)
    ours.save(tmp_path / "model")
    again = GRPO.load(tmp_path / "model", env=make_tensor_env(env_id, 4), device="cpu")
    assert again.compile is True and (weights(again) == weights(ours)).all()
    loaded, saved = again.policy.optimizer.state_dict()["state"], ours.policy.optimizer.state_dict()["state"]
    assert loaded[0]["step"] == saved[0]["step"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "options"),
    [
        (
            lambda: make_tensor_env("CartPoleTasks-v0", 4),
            dict(multitask=dict(tasks=4, grouping="hierarchical", weights="balanced")),
        ),
        (lambda: make_tensor_env("CartPole-v1", 4), dict(rewards=dict(bonus=RNDBonus()))),
        (lambda: TensorGoals(4), dict(rewards=dict(objectives={"win": 2.0, "cost": 0.5}, normalization="each"))),
    ],
)
def test_what_plugs_into_the_core_is_compiled_too(env, options):
    """Several rollouts with episodes that end in them."""

    def trained(mode):
        options_here = {**SMALL, **options, "n_steps": 32, "batch_size": 64, "compile": mode}
        return GRPO("MlpPolicy", env(), **options_here).learn(256)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="compile: ")
        ours = trained(True)
    assert ours.compiled._steps.compiled and ours.compiled._update.compiled
    assert ours.last_metrics["group/start_mismatch"] == 0
    th.testing.assert_close(weights(ours), weights(trained(False)), rtol=1e-3, atol=1e-5)


def test_a_callback_stops_at_the_edge_of_a_graph_and_every_step_counts():
    calls = []

    class Stop(BaseCallback):
        def _on_step(self):
            calls.append((self.model.num_timesteps, self.locals["dones"].shape, self.locals["rewards"].shape))
            return self.n_calls < 3

    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 4), compile=True, **SMALL).learn(1000, callback=Stop())
    assert [n for n, *_ in calls] == [4, 8, 12] and {shape for _, *shapes in calls for shape in shapes} == {(4,)}
    assert model.num_timesteps == 16 == model._steps_dropped


def probes():
    return DummyVecEnv([lambda: ProbeEnv("action")] * 4)


def turns():
    return DummyVecEnv([lambda: TurnEnv("action")] * 4)


class Peeking(nn.Tanh):
    """An activation that looks at a value: no graph can hold it."""

    def forward(self, x):
        return super().forward(x) if x.sum().item() < 1e9 else x


@pytest.mark.parametrize(
    ("env", "options", "says"),
    [
        (
            probes,
            dict(loss_kwargs=dict(importance_level="episode")),
            ["envs are not tensor envs", "importance_level='episode'"],
        ),
        (turns, dict(loss_kwargs=dict(importance_level="turn")), ["envs are not tensor envs", "importance_level='turn'"]),
        (lambda: make_tensor_env("Pendulum-v1", 4), dict(use_sde=True), ["rollout runs eagerly.*use_sde", "update.*use_sde"]),
        (probes, dict(update_kwargs=dict(micro_batch_size=8)), ["envs are not tensor envs", "micro_batch_size=8"]),
        (
            probes,
            dict(policy_kwargs=dict(optimizer_class=th.optim.SGD)),
            ["envs are not tensor envs", "SGD with these options is not plain Adam"],
        ),
        (
            lambda: make_tensor_env("CartPole-v1", 4),
            dict(policy_kwargs=dict(activation_fn=Peeking)),
            ["rollout could not be compiled", "update could not be compiled"],
        ),
    ],
)
def test_what_cannot_be_compiled_is_said_once_and_runs_eagerly(env, options, says):
    def trained(mode):
        return GRPO("MlpPolicy", env(), compile=mode, **SMALL, **options).learn(160)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = trained(True)
    messages = [str(w.message) for w in caught if str(w.message).startswith("compile: ")]
    assert len(messages) == 2
    for message, pattern in zip(messages, says, strict=True):
        assert re.search(pattern, message), message
    assert (weights(model) == weights(trained(False))).all()


def test_graphs_do_not_hold_the_seed():
    """Or every seed would compile anew."""
    traced = []

    def note(graph, example_inputs):
        traced.append(graph.print_readable(print_output=False))
        return graph.forward

    for seed in (1, 2):
        model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 4), **{**SMALL, "seed": seed})
        model.learn(1)
        th.compiler.reset()
        with th.no_grad():
            steps = th.compile(env_steps, backend=note, fullgraph=True, dynamic=False)
            steps(model.policy, model.env, model.groups, (), lambda actions: actions, model.policy.noise(2, 4))
    assert len(traced) == 2 and traced[0] == traced[1]


@pytest.mark.slow
def test_models_do_not_crowd_each_other_out_of_the_graph_cache():
    def add(x, n):
        return x + n

    for n in range(12):
        assert Graph(add, "sum")(th.zeros(2), n).tolist() == [n, n]


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs CUDA")
def test_compiled_training_equals_eager_training_on_cuda():
    def trained(mode):
        env = make_tensor_env("CartPole-v1", 64, device="cuda")
        model = GRPO("MlpPolicy", env, compile=mode, **{**SMALL, "device": "cuda", "batch_size": 256}).learn(64 * 16 * 3)
        return model, np.array([info["r"] for info in model.ep_info_buffer])

    (eager, _), (ours, _) = trained(False), trained(True)
    assert ours.compiled._steps.compiled and ours.compiled._update.compiled
    th.testing.assert_close(weights(ours), weights(eager), rtol=0.05, atol=0.01)
