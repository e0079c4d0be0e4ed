"""Policies with a memory: one step at a time and in sequences they are the same network, and they solve what needs one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

import sb_grpo.tasks.memory  # noqa: F401  # registers the tasks
from sb_grpo import GRPO
from sb_grpo.envs import make_tensor_env
from sb_grpo.learn.minibatches import minibatches, portions, sequence_numbers
from sb_grpo.maths.losses import kl_k3
from sb_grpo.policies import ActorPolicy
from sb_grpo.policies.extra_inputs import MEMORY, SEQUENCE
from sb_grpo.policies.memory import Memory
from sb_grpo.tasks.memory.t_maze import TensorTMaze10
from sb_grpo.types import Minibatch
from tests.helpers import SpaceEnv

KINDS = ["lstm", "gru"]


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_sequences_are_the_same_network(kind: str, n_layers: int) -> None:
    """Sequences of 5, 1 and 3 steps: outputs, and the gradient that goes back through a sequence and not beyond it."""
    th.manual_seed(0)
    memory, x = Memory(kind, 4, 6, n_layers), th.randn(9, 4, requires_grad=True)
    sequence, state, outs, states = th.tensor([3, 3, 3, 3, 3, 0, 7, 7, 7]), None, [], []
    for row in range(9):
        if row in (0, 5, 6):
            state = th.randn(1, memory.n_state)
        assert state is not None
        states.append(state)
        out, state = memory.step(x[row : row + 1], state)
        outs.append(out)
    one, stored = th.cat(outs), th.cat(states).detach()
    together = memory.run(x, stored, sequence)
    th.testing.assert_close(together, one)
    th.testing.assert_close(together, memory.step(x, stored)[0])
    (gradient,) = th.autograd.grad(together[4].sum(), x)
    assert bool((gradient[:5].abs().sum(1) > 0).all()) and not gradient[5:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_units_forget_within_the_span(kind: str) -> None:
    """Of a step without input every other unit keeps 1 - 1 / T or so, T up to the span; the others half, and with a span of 1
    all of them."""
    for span, least, most in ((1.0, 0.4, 0.6), (1000.0, 0.9, 1.0)):
        th.manual_seed(0)
        memory = Memory(kind, 1, 64, 1, span)
        with th.no_grad():
            for name, weight in memory.net.named_parameters():
                if "weight" in name:
                    weight.zero_()
            _, after = memory(th.zeros(1, 1), th.ones(1, memory.n_state))
            _, before = memory(th.zeros(1, 1), th.zeros(1, memory.n_state))
        kept = (after - before)[0].view(memory.form)[-1, 0]  # an LSTM's cell, a GRU's state
        assert least < kept[1::2].median() < most
        assert bool(((kept[::2] > 0.4) & (kept[::2] < 0.6)).all())


def test_the_policy_network_sees_the_memory_alone() -> None:
    env = make_vec_env("CartPolePositions-v0", 2)
    model = GRPO("MlpPolicy", env, n_steps=16, group_size=2, policy_kwargs=dict(memory="lstm", memory_size=5))
    rows = {"": th.randn(3, 2), MEMORY: th.randn(3, 10)}
    assert model.policy.features(rows).shape == (3, 5) and model.policy.policy_net[0].in_features == 5


def test_states_travel_as_recurrent_ppo_has_them() -> None:
    memory = Memory("lstm", 2, 3, 2)
    state = th.randn(4, memory.n_state)
    parts = memory.to_parts(state)
    assert [part.shape for part in parts] == [(2, 4, 3), (2, 4, 3)]
    th.testing.assert_close(memory.from_parts(parts, 4, th.device("cpu")), state)
    _, after = memory.net(th.randn(1, 4, 2), tuple(th.as_tensor(part) for part in parts))
    assert after[0].shape == (2, 4, 3)
    with pytest.raises(ValueError, match="pass what predict"):
        memory.from_parts(parts, 5, th.device("cpu"))


def test_sequences_stay_within_episodes() -> None:
    assert sequence_numbers(th.tensor([0, 0, 0, 0, 0, 2, 2, 5]), 2).tolist() == [0, 0, 1, 1, 2, 3, 3, 4]


def test_minibatches_hold_whole_sequences_and_weigh_like_all_rows() -> None:
    n, episode = 100, th.arange(100) // 30
    rows = th.arange(n).float()
    obs = {"": rows.unsqueeze(1), MEMORY: th.zeros(n, 4)}
    batch = Minibatch(obs, rows, rows, rows, th.ones(n), episode)
    together = sequence_numbers(episode, 8)
    parts = list(minibatches(batch, 20, together))
    assert th.cat([part.actions for part in parts]).sort().values.tolist() == rows.tolist()
    for part in parts:
        assert isinstance(part.observations, dict)
        for number in part.observations[SEQUENCE].unique():
            held = part.actions[part.observations[SEQUENCE] == number]
            assert held.tolist() == rows[together == number].tolist(), "a sequence is cut or out of order"
    mean = sum((part.weights * part.advantages).mean() for part in parts) / len(parts)
    assert float(mean) == pytest.approx(float(rows.mean()))


def test_portions_hold_whole_sequences() -> None:
    rows, sequence = th.arange(13), th.tensor([0] * 4 + [7] * 4 + [2] * 2 + [3] * 2 + [5])
    batch = Minibatch({"": rows, SEQUENCE: sequence}, rows, rows, rows, rows, rows)
    assert portions(batch, 6) == [(0, 4), (4, 10), (10, 13)] and portions(batch, 4) == [(0, 4), (4, 8), (8, 12), (12, 13)]
    assert portions(batch._replace(observations=rows), 6) == [(0, 6), (6, 12), (12, 13)]
    assert portions(batch, 13) == [(0, 13)] and portions(batch.map(lambda x: x[:0]), 6) == []


@pytest.mark.parametrize("surgery", [False, True])
def test_the_gradient_is_the_same_in_portions(surgery: bool) -> None:
    """What fits into memory at once cuts no sequence: gradients go back as far as without it."""
    found = []
    for micro in (None, 8, 20):
        model = GRPO(
            "MlpPolicy", make_vec_env("CartPoleTasks-v0", 4, seed=0), n_steps=32, batch_size=32, n_epochs=2, seed=0,
            device="cpu", policy_kwargs=dict(memory="gru", memory_size=8), multitask=dict(tasks=4, surgery=surgery),
            update_kwargs=dict(sequence_length=8, micro_batch_size=micro),
        )  # fmt: skip
        model.learn(256)
        found.append(th.cat([p.detach().flatten() for p in model.policy.parameters()]))
    th.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)
    th.testing.assert_close(found[2], found[0], atol=1e-5, rtol=1e-4)
    model = GRPO("MlpPolicy", "CartPole-v1", policy_kwargs=dict(memory="gru"), update_kwargs=dict(micro_batch_size=16))
    assert model._sequence_length == 16


class _Watched(ActorPolicy):
    """Keeps the log-probabilities that its actions had when they were taken."""

    def sample(self, obs: Any, noise: Any) -> Any:
        actions, log_probs, after = super().sample(obs, noise)
        self.__dict__.setdefault("seen", []).append(self.log_prob(obs, actions))
        return actions, log_probs, after


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("advantage", ["state", "outcome"])
def test_the_rollout_has_the_log_probabilities_of_the_acting(kind: str, advantage: str) -> None:
    """Also of the steps that waited for their group, and in sequences: the memory at every stored step is the one it had."""
    kwargs = dict(memory=kind, memory_size=8)
    env = make_vec_env("CartPolePositions-v0", 4)
    model = GRPO(_Watched, env, n_steps=64, seed=0, advantage=advantage, group_size=4, policy_kwargs=kwargs)
    policy = model.policy
    for _ in range(3):
        policy.__dict__["seen"] = []
        rollout = model.collect()
        assert rollout is not None and isinstance(rollout.observations, dict)
        seen = th.cat(policy.__dict__["seen"])
        if advantage == "state":
            th.testing.assert_close(rollout.log_probs.sort().values, seen.sort().values)
        sequence = {**rollout.observations, SEQUENCE: rollout.episode}
        th.testing.assert_close(policy.log_prob(sequence, rollout.actions), rollout.log_probs, atol=1e-5, rtol=1e-5)
        starts = rollout.t == 0
        assert bool(starts.any()) and not rollout.observations[MEMORY][starts].any()
        assert bool(rollout.observations[MEMORY][~starts].any(dim=1).all())


@pytest.mark.parametrize("kind", KINDS)
def test_tensor_envs_remember_alike(kind: str) -> None:
    model = GRPO(
        "MlpPolicy", TensorTMaze10(16), n_steps=64, seed=0, device="cpu", policy_kwargs=dict(memory=kind, memory_size=8)
    )
    rollout = model.collect()
    assert rollout is not None and isinstance(rollout.observations, dict) and isinstance(rollout.final_observations, dict)
    sequence = {**rollout.observations, SEQUENCE: rollout.episode}
    th.testing.assert_close(model.policy.log_prob(sequence, rollout.actions), rollout.log_probs, atol=1e-5, rtol=1e-5)
    # What an episode ends with is what one more step would begin with.
    last = th.cat([rollout.episode.diff().nonzero().squeeze(1), th.tensor([len(rollout.t) - 1])])
    obs = {key: part[last] for key, part in rollout.observations.items()}
    th.testing.assert_close(model.policy.act_and_remember(obs)[1], rollout.final_observations[MEMORY])
    model.update(rollout)


def test_the_metrics_of_an_update_see_what_became_of_the_memory() -> None:
    """How far a policy is from the one that acted shows in whole sequences; a row by itself begins from the old memory."""
    kwargs: dict[str, Any] = dict(policy_kwargs=dict(memory="lstm", memory_size=8), learning_rate=0.1, n_epochs=1, seed=0)
    model = GRPO("MlpPolicy", make_vec_env("TMaze10-v0", 4), n_steps=64, **kwargs)
    rollout = model.collect()
    assert rollout is not None and isinstance(rollout.observations, dict)
    result = model.update(rollout)
    sequence = {**rollout.observations, SEQUENCE: rollout.episode}
    together, alone = (
        kl_k3(rollout.log_probs, model.policy.log_prob(obs, rollout.actions)).mean().item()
        for obs in (sequence, rollout.observations)
    )
    assert result.approx_kl == pytest.approx(together, rel=1e-3)
    assert together != pytest.approx(alone, rel=0.05)


def test_predict_carries_the_state_and_forgets_where_an_episode_starts() -> None:
    model = GRPO("MlpPolicy", make_vec_env("CartPolePositions-v0", 2), n_steps=32, policy_kwargs=dict(memory="lstm"), seed=0)
    obs = np.random.default_rng(0).normal(size=(2, 2)).astype(np.float32)
    _, first = model.predict(obs)
    _, second = model.predict(obs, first)
    _, forgotten = model.predict(obs, first, np.array([True, False]))
    assert first is not None and second is not None and forgotten is not None and len(first) == 2
    for part in range(2):
        np.testing.assert_allclose(forgotten[part][:, 0], first[part][:, 0], rtol=1e-5)
        np.testing.assert_allclose(forgotten[part][:, 1], second[part][:, 1], rtol=1e-5)
    assert not np.allclose(first[0], second[0])
    action, state = model.predict(obs[0])
    assert np.shape(action) == () and state is not None and state[0].shape == (1, 1, 64)


SPACES: list[tuple[str, spaces.Space, spaces.Space, dict[str, Any]]] = [
    ("MlpPolicy", spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)), {}),
    ("MlpPolicy", spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)), dict(use_sde=True, sde_sample_freq=4)),
    ("MlpPolicy", spaces.Discrete(5), spaces.MultiDiscrete([2, 3]), {}),
    ("CnnPolicy", spaces.Box(0, 255, (36, 36, 1), np.uint8), spaces.Discrete(3), {}),
    ("MultiInputPolicy", spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3)), spaces.MultiBinary(2), {}),
]


@pytest.mark.parametrize(("policy", "seen", "acted", "kwargs"), SPACES, ids=["box", "gsde", "discrete", "image", "dict"])
def test_every_policy_and_space_takes_a_memory(
    policy: str, seen: Any, acted: Any, kwargs: dict[str, Any], tmp_path: Any
) -> None:
    venv = make_vec_env(lambda: SpaceEnv(seen, acted), 2)
    memory = dict(policy_kwargs=dict(memory="gru", memory_size=8), update_kwargs=dict(sequence_length=8))
    model = GRPO(policy, venv, n_steps=32, seed=0, kl_coef=0.01, ent_coef=0.01, **memory, **kwargs).learn(128)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=venv)
    evaluate_policy(loaded, venv, 2, warn=False)
    loaded.learn(64)


def test_what_goes_with_it_goes_with_it() -> None:
    """VecNormalize, EvalCallback, whole groups, minibatches of whole episodes, and the running statistics of observations."""
    memory: dict[str, Any] = dict(policy_kwargs=dict(memory="lstm", memory_size=8), n_steps=32, seed=0)
    venv: VecEnv = VecNormalize(make_vec_env("PendulumPositions-v0", 4))
    judged = VecNormalize(make_vec_env("PendulumPositions-v0", 2), training=False)
    GRPO("MlpPolicy", venv, **memory).learn(256, EvalCallback(judged, eval_freq=32, n_eval_episodes=2, verbose=0))
    tmaze = make_vec_env("TMaze10-v0", 4)
    GRPO("MlpPolicy", tmaze, advantage="step", loss_kwargs=dict(importance_level="episode"), **memory).learn(256)
    GRPO("MlpPolicy", tmaze, update_kwargs=dict(micro_batch_size=16, autocast=True), **memory).learn(256)
    memory["policy_kwargs"] = dict(memory="gru", memory_size=8, normalize_obs=True)
    GRPO("MlpPolicy", tmaze, target_kl=0.01, **memory).learn(256)


@pytest.mark.slow
def test_a_t_maze_is_solved_with_a_memory_and_not_without() -> None:
    kwargs: dict[str, Any] = dict(
        learning_rate=1e-3, n_steps=128, batch_size=256, n_epochs=5, gamma=0.99, ent_coef=0.05, seed=0
    )
    with_memory = GRPO("MlpPolicy", make_vec_env("TMaze10-v0", 16), policy_kwargs=dict(memory="lstm"), **kwargs).learn(60_000)
    without = GRPO("MlpPolicy", make_vec_env("TMaze10-v0", 16), **kwargs).learn(60_000)
    judged = make_vec_env("TMaze10-v0", 4, seed=9)
    assert evaluate_policy(with_memory, judged, 100, warn=False)[0] >= 0.95
    assert evaluate_policy(without, judged, 100, warn=False)[0] <= 0.7


@pytest.mark.parametrize("env_id", ["TMaze10-v0", "CartPolePositions-v0", "PendulumPositions-v0"])
def test_host_and_tensor_versions_say_the_same(env_id: str) -> None:
    """From the same state and with the same actions: observations, rewards, ends."""
    tensor, host = make_tensor_env(env_id, 1), make_vec_env(env_id, 1).envs[0]  # type: ignore[attr-defined]
    host.reset(seed=0)
    tensor.reset_all(th.tensor([3]))
    inner: Any = host.unwrapped
    if env_id == "TMaze10-v0":
        inner.cue = int(tensor.state[0, 1])
    else:
        inner.state = tensor.state[0].double().numpy()
    rng = np.random.default_rng(0)
    for _ in range(30):
        action = tensor.action_space.sample() if env_id != "TMaze10-v0" else rng.integers(2) * rng.integers(3)
        step = tensor.step_tensor(th.as_tensor(np.asarray(action)).reshape(1, *np.shape(action)))
        obs, reward, terminated, _, _ = host.step(action)
        np.testing.assert_allclose(step.observations[0].numpy(), obs, atol=1e-4)
        assert float(step.rewards[0]) == pytest.approx(float(reward), abs=1e-4)
        assert bool(step.terminated[0]) == terminated
        if terminated:
            break


BAD: list[tuple[dict[str, Any], str]] = [
    (dict(policy_kwargs=dict(memory="transformer")), "memory='transformer' is unknown"),
    (dict(policy_kwargs=dict(memory="gru", memory_size=0)), "memory_size=0 must be an integer"),
    (dict(policy_kwargs=dict(memory="gru", memory_span=0.5)), "memory_span=0.5 must be"),
    (dict(policy_kwargs=dict(memory="gru", n_layers=1.5)), "n_layers=1.5 must be an integer"),
    (dict(update_kwargs=dict(sequence_length=8)), "sequence_length=8 has no effect without a memory"),
    (dict(policy_kwargs=dict(memory_size=8)), "memory_size=8 has no effect without a memory"),
    (dict(policy_kwargs=dict(memory=None, n_layers=2)), "n_layers=2 has no effect without a memory"),
    (dict(policy_kwargs=dict(memory="lstm", lstm_hidden_size=8)), "lstm_hidden_size=8 .* use memory_size"),
    (dict(policy_kwargs=dict(enable_critic_lstm=True)), "enable_critic_lstm=True .* there is no critic"),
    (dict(policy_kwargs=dict(memory="gru"), update_kwargs=dict(sequence_length=64)), "longer than any sequence"),
    (dict(policy_kwargs=dict(memory="gru"), update_kwargs=dict(sequence_length=0)), "sequence_length=0 must be"),
    (
        dict(policy_kwargs=dict(memory="gru"), update_kwargs=dict(sequence_length=16, micro_batch_size=8)),
        "micro_batch_size=8 is smaller than sequence_length=16",
    ),
]


@pytest.mark.parametrize(("kwargs", "match"), BAD, ids=[match[:20] for _, match in BAD])
def test_bad_memories_are_refused(kwargs: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        GRPO("MlpPolicy", make_vec_env("TMaze10-v0", 2), n_steps=32, **kwargs)


def test_the_name_of_a_recurrent_policy_is_answered_with_the_setting() -> None:
    with pytest.raises(ValueError, match=r"policy='MlpLstmPolicy'.*Use 'MlpPolicy', policy_kwargs=dict\(memory='lstm'\)"):
        GRPO("MlpLstmPolicy", make_vec_env("TMaze10-v0", 2))


def test_a_policy_class_that_takes_no_memory_is_named() -> None:
    class Narrow(ActorPolicy):
        def __init__(self, observation_space: Any, action_space: Any, lr_schedule: Any, use_sde: bool = False) -> None:
            super().__init__(observation_space, action_space, lr_schedule, use_sde=use_sde)

    with pytest.raises(ValueError, match=r"Narrow.__init__ takes no memory"):
        GRPO(Narrow, make_vec_env("TMaze10-v0", 2), n_steps=32, policy_kwargs=dict(memory="gru"))


@pytest.mark.parametrize("advantage", ["state", "outcome"])
def test_who_takes_the_envs_in_between_spoils_nothing(advantage: str) -> None:
    """EvalCallback on the training env, with masks and a memory: running episodes end there, with what was remembered."""
    env = make_vec_env("TMaze10-v0", 4, env_kwargs=dict(masks=True))
    model = GRPO("MlpPolicy", env, n_steps=32, seed=0, advantage=advantage, policy_kwargs=dict(memory="gru", memory_size=8))
    with pytest.warns(UserWarning, match="Something other than this model"):
        model.learn(512, EvalCallback(env, eval_freq=50, n_eval_episodes=2, verbose=0, warn=False))
    assert model.interruptions > 0 and model.mask_source == "method"


@pytest.mark.parametrize("starts", [np.array([True]), True, np.array([True, False])])
def test_episode_starts_of_another_number_of_envs_are_refused(starts: Any) -> None:
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 3), n_steps=8, device="cpu", policy_kwargs=dict(memory="gru"))
    obs = np.ones((3, 4), np.float32)
    _, state = model.predict(obs, episode_start=np.ones(3, bool))
    with pytest.raises(ValueError, match="must say of each of the 3 observations whether an episode begins"):
        model.predict(obs, state, episode_start=starts)
    model.predict(obs[0], tuple(part[:, :1] for part in state), episode_start=True)  # of one env, one flag is enough
