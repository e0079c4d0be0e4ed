"""Where something new comes in: an estimator, a loss, a column, a loop of one's own, another group size."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from sb_grpo import GRPO, AdvantageOptions, Clipped, Estimate, Features, Loss, Rollout, Step, UpdateResult
from sb_grpo.callbacks import CurriculumCallback, GammaCallback, RecoveryCallback
from sb_grpo.collect import extra_fields
from sb_grpo.collect.extra_fields import FieldSettings, FieldSpec, HostStep
from sb_grpo.envs import make_tensor_env
from sb_grpo.maths.estimators import centre_and_scale
from sb_grpo.maths.returns import gae

SMALL: dict[str, Any] = dict(n_steps=64, batch_size=64, n_epochs=2, group_size=2, seed=0, device="cpu")


# ---------------------------------------------------------------- an estimator with values of its own


class Critic(nn.Module):
    """What a critic network would be here: one class."""

    uses_values, whole_episodes = True, False

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer = th.optim.Adam(self.net.parameters(), lr=0.01)

    def estimate(self, rollout: Rollout, options: AdvantageOptions, features: Features | None, objective: int = 0) -> Estimate:
        assert features is not None
        with th.no_grad():
            values, final = (self.net(x).squeeze(1) for x in features)
        advantages = gae(rollout, values, final, options.gamma, options.gae_lambda)
        targets = advantages + values
        for _ in range(5):
            self.optimizer.zero_grad()
            (self.net(features.steps).squeeze(1) - targets).square().mean().backward()
            self.optimizer.step()
        return Estimate(centre_and_scale(advantages, targets, rollout, options), None, {"train/critic_loss": 0.5})


class WithCritic:
    """Settings; ``build`` knows the size of the features."""

    uses_values, whole_episodes = True, False

    def build(self, features_dim: int, n_tasks: int, n_objectives: int) -> Critic:
        return Critic(features_dim)


@pytest.mark.parametrize("env", ["host", "tensor"])
def test_a_critic_is_one_class(env: str, tmp_path: Path) -> None:
    venv = make_vec_env("CartPole-v1", 2, seed=0) if env == "host" else make_tensor_env("CartPole-v1", 2)
    model = GRPO("MlpPolicy", venv, advantage=WithCritic(), **SMALL)
    before = [p.clone() for p in model.estimator.parameters()]
    model.learn(512)
    assert model.normalize_advantage == "batch" and not model.whole_episodes
    assert any(not p.equal(q) for p, q in zip(model.estimator.parameters(), before, strict=True))
    assert model.last_metrics["train/critic_loss"] == 0.5
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=venv, device="cpu")
    th.testing.assert_close(loaded.estimator.state_dict(), model.estimator.state_dict())


def test_an_estimator_says_what_it_needs() -> None:
    class Silent:
        def estimate(self, *args: Any) -> Estimate:
            raise NotImplementedError

    with pytest.raises(ValueError, match="must say what it needs: it has no attribute uses_values"):
        GRPO("MlpPolicy", "CartPole-v1", advantage=Silent(), **SMALL)
    with pytest.raises(ValueError, match="is a class: pass an object, Step"):
        GRPO("MlpPolicy", "CartPole-v1", advantage=Step, **SMALL)
    with pytest.raises(ValueError, match="which has its own settings, takes none"):
        GRPO("MlpPolicy", "CartPole-v1", advantage=Step(), advantage_kwargs=dict(baseline="mean"), **SMALL)


def test_names_and_objects_are_the_same_estimators() -> None:
    def weights(**kwargs: Any) -> th.Tensor:
        model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), **kwargs, **SMALL).learn(256)
        return th.cat([p.detach().flatten() for p in model.policy.parameters()])

    by_name = weights(advantage="step", advantage_kwargs=dict(ended_members="drop"), loss_kwargs=dict(ratio_cap=2.0))
    by_object = weights(advantage=Step(ended_members="drop"), loss=Clipped(ratio_cap=2.0))
    assert by_name.equal(by_object)


def test_a_function_has_keyword_arguments() -> None:
    seen = []

    def doubled(rollout: Rollout, options: AdvantageOptions, factor: float) -> th.Tensor:
        seen.append(factor)
        return factor * th.randn(len(rollout.rewards))

    GRPO("MlpPolicy", "CartPole-v1", advantage=doubled, advantage_kwargs=dict(factor=2.0), **SMALL).learn(64)
    assert set(seen) == {2.0}


# ---------------------------------------------------------------- a loss


class Reinforce(Loss):
    """No ratio at all."""

    def surrogate(self, log_prob: th.Tensor, ratio: th.Tensor, advantages: th.Tensor, clip: Any) -> th.Tensor:
        return -log_prob * advantages


def test_a_loss_is_one_class() -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", loss=Reinforce(aggregation="episode"), **SMALL).learn(128)
    assert model.last_update is not None and model.last_update.n_gradient_steps > 0


# ---------------------------------------------------------------- a column


@pytest.mark.parametrize("env", ["host", "tensor"])
def test_a_column_is_one_entry_of_the_schema(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cart's position before (host) or after (tensor) the step, read back from the rollout and from minibatches."""

    def position(wanted: FieldSettings) -> FieldSpec:
        def host(step: HostStep) -> np.ndarray:
            return step.raw_obs[:, :1]

        return FieldSpec("position", (1,), th.float32, False, host, lambda env, returns: env.observations[:, :1])

    monkeypatch.setattr(extra_fields, "SCHEMA", [*extra_fields.SCHEMA, position])
    venv = make_vec_env("CartPole-v1", 2, seed=0) if env == "host" else make_tensor_env("CartPole-v1", 2)
    seen: list[Any] = []

    class Watching(Clipped):
        def surrogate(self, log_prob: th.Tensor, ratio: th.Tensor, advantages: th.Tensor, clip: Any) -> th.Tensor:
            return super().surrogate(log_prob, ratio, advantages, clip)

    model = GRPO("MlpPolicy", venv, loss=Watching(), **SMALL)
    gradient = model.gradient

    def looking(loss: Any, minibatch: Any, parameters: Any) -> None:
        seen.append(minibatch)
        type(gradient).__call__(gradient, loss, minibatch, parameters)

    monkeypatch.setattr(model, "gradient", looking, raising=False)
    looking.start_update, looking.metrics = gradient.start_update, gradient.metrics  # type: ignore[attr-defined]
    rollout = model.collect()
    assert rollout is not None
    column = 0 if env == "host" else slice(None)
    if env == "host":
        assert rollout.extra["position"][:, 0].equal(rollout.observations[:, column])  # type: ignore[call-overload,index]
    else:  # what the env shows after the step is what the next step of the episode begins with
        same = rollout.episode[1:] == rollout.episode[:-1]
        assert rollout.extra["position"][:-1, 0][same].equal(rollout.observations[1:, 0][same])  # type: ignore[call-overload,index]
    model.update(rollout)
    assert len(seen) == 4
    for minibatch in seen:
        rows = [int((rollout.observations == obs).all(1).nonzero()[0]) for obs in minibatch.observations[:5]]  # type: ignore[union-attr]
        assert minibatch.extra["position"][:5].equal(rollout.extra["position"][rows])


# ---------------------------------------------------------------- a loop of one's own


class Difficulty(gym.Wrapper):
    level = None

    def set_difficulty(self, value: float) -> None:
        self.level = value


def test_a_loop_of_ones_own_is_learn() -> None:
    def weights(model: GRPO) -> th.Tensor:
        return th.cat([p.detach().flatten() for p in model.policy.parameters()])

    ours = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), **SMALL)
    for _ in range(3):
        rollout = ours.collect()
        assert rollout is not None
        result = ours.update(rollout)
        assert isinstance(result, UpdateResult) and result is ours.last_update
    learnt = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), **SMALL).learn(384)
    assert weights(ours).equal(weights(learnt)) and ours.num_timesteps == learnt.num_timesteps == 384
    assert result.n_epochs == 2 and result.n_gradient_steps == 4 and 0 <= result.approx_kl < 1
    assert result.mean_reward == 1.0 and abs(result.mean_advantage) < 1e-5 and abs(result.advantage_std - 1) < 1e-4


class Calls(BaseCallback):
    def __init__(self) -> None:
        super().__init__()
        self.begun, self.steps = 0, 0

    def _on_training_start(self) -> None:
        self.begun += 1

    def _on_step(self) -> bool:
        self.steps += 1
        return self.steps != 100  # asks to stop once


def test_callbacks_of_a_loop_of_ones_own_begin_once_and_stay(tmp_path: Path) -> None:
    first, second = Calls(), Calls()
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), **SMALL, tensorboard_log=str(tmp_path))
    begun = []
    for callback in ([first], [first], None, second):  # asked to stop in the second rollout, it begins anew with the third
        rollout = model.collect(callback)
        begun.append((first.begun, second.begun, rollout is None))
        if rollout is not None:
            model.update(rollout)
            model.dump_logs()
    assert begun == [(1, 0, False), (1, 0, True), (2, 0, False), (2, 1, False)]
    assert (first.steps, second.steps) == (100 + 64, 64)
    assert len(list(tmp_path.glob("*/events*"))) == 2


def test_our_callbacks_take_part_in_a_loop_of_ones_own() -> None:
    env = make_vec_env("CartPole-v1", 2, wrapper_class=Difficulty)
    model = GRPO("MlpPolicy", env, **SMALL)
    callbacks = [CurriculumCallback([0.25, 0.5], success=10.0), RecoveryCallback(), GammaCallback(start=0.9)]
    for _ in range(2):
        model.update(model.collect(callbacks))
        assert model.moving_gamma == pytest.approx(0.9)
    assert set(env.get_attr("level")) <= {0.25, 0.5}


def test_a_rollout_may_be_used_again_and_changed() -> None:
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), **SMALL)
    rollout = model.collect()
    assert rollout is not None
    first, second = model.update(rollout), model.update(rollout)
    assert second.approx_kl > first.approx_kl  # farther from the policy that collected
    third = model.update(rollout._replace(rewards=2.0 * rollout.rewards))
    assert third.mean_reward == 2.0


def explained(model: GRPO) -> float:
    return model.last_metrics["train/explained_variance"]


@pytest.mark.parametrize("paired", [False, True])
def test_a_rollout_is_judged_again_by_what_was_known_before_it(paired: bool) -> None:
    """A baseline that has seen the rollout explains its luck too, and a member would be its own peer."""
    kwargs = dict(SMALL, learning_rate=1e-9, advantage_kwargs=dict(paired=paired, least_rows=1))
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 1, seed=0), **kwargs)
    for _ in range(3):
        model.update(model.collect())
    first = model.collect()
    known, steps = [explained(model)], model.last_metrics
    model.update(first._replace(rewards=first.rewards.clone()))
    model.update(first._replace(rewards=first.rewards.clone()))
    again = {k: v for k, v in model.last_metrics.items() if k.startswith(("group/", "rollout/"))}
    assert again == pytest.approx({k: steps[k] for k in again}, nan_ok=True)
    known += [explained(model)]
    second = model.collect()
    after = {name: value.clone() for name, value in model.estimator.state_dict().items()}
    model.update(first)  # an older one
    known += [explained(model)]
    assert known == pytest.approx(known[:1] * 3)
    assert all(value.equal(after[name]) for name, value in model.estimator.state_dict().items())
    model.update(second._replace(rewards=3.0 * second.rewards))
    assert not all(value.equal(after[name]) for name, value in model.estimator.state_dict().items())


@pytest.mark.parametrize(
    "given",
    [lambda r: r.double(), lambda r: r.long(), lambda r: r.numpy(), lambda r: r.numpy().astype(int), lambda r: r.tolist()],
)
def test_rewards_of_another_type_are_rewards(given: Any) -> None:
    results = []
    for change in (lambda r: r, given):
        model = GRPO("MlpPolicy", "CartPole-v1", n_steps=128, n_epochs=1, seed=0, device="cpu")
        rollout = model.collect()
        assert rollout is not None
        results.append(model.update(rollout._replace(rewards=change(2.0 * rollout.rewards))))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r._replace(rewards=r.rewards[:-1]), r"rollout.rewards has shape \(127,\), but this rollout's is \(128,\)"),
        (lambda r: r._replace(rewards=r.rewards[:, None]), r"rollout.rewards has shape \(128, 1\)"),
        (lambda r: r._replace(log_probs=r.log_probs.clone().requires_grad_()), r"pass log_probs.detach\(\)"),
        (lambda r: r._replace(actions=r.actions + 5), "which is no action of Discrete"),
        (lambda r: r._replace(observations=r.observations[1:]), "rollout.observations has shape"),
        (lambda r: r._replace(terminated=r.terminated[1:]), "rollout.terminated has shape"),
        (lambda r: r._replace(rewards=["much"] * 128), "no array of numbers"),
        (lambda r: r._replace(rewards=r.rewards * float("nan")), "included, is not finite: nan. The policy"),
        (lambda r: r._replace(rewards=r.rewards * 1e30), r"statistics in float32 break down: 1e\+30. The policy"),
        (lambda r: None, "collect\\(\\) returns None when its callback has asked to stop"),
    ],
)
def test_a_rollout_that_does_not_fit_is_refused(change: Any, says: str) -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=128, n_epochs=1, seed=0, device="cpu")
    rollout = model.collect()
    before = [p.clone() for p in model.policy.parameters()]
    with pytest.raises(ValueError, match=says):
        model.update(change(rollout))
    assert all(map(th.equal, before, model.policy.parameters()))


def test_features_of_a_rollout_that_is_judged_after_an_update_are_those_of_acting() -> None:
    class Dropping(BaseFeaturesExtractor):
        def __init__(self, space: spaces.Box) -> None:
            super().__init__(space, 4)
            self.drop = th.nn.Dropout(0.5)

        def forward(self, obs: th.Tensor) -> th.Tensor:
            return self.drop(obs)

    model = GRPO("MlpPolicy", "CartPole-v1", policy_kwargs=dict(features_extractor_class=Dropping), **SMALL)
    rollout = model.collect()
    model.update(rollout)
    known = explained(model)
    model.update(rollout._replace(rewards=rollout.rewards.clone()))
    assert explained(model) == pytest.approx(known)


def test_the_pages_loop_runs_as_it_stands() -> None:
    import re

    page = (Path(__file__).parent.parent / "docs" / "own_loop.md").read_text()
    loop = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "model.collect()" in code)
    assert len(loop.strip().splitlines()) <= 15
    found: dict[str, Any] = {}
    exec(compile(loop, "loop", "exec"), found)
    assert found["model"].num_timesteps > 0


# ---------------------------------------------------------------- group size


def test_group_size_follows_a_schedule_and_changes_by_hand() -> None:
    sizes = []
    model = GRPO(
        "MlpPolicy", make_vec_env("CartPole-v1", 4, seed=0), **{**SMALL, "group_size": lambda left: 2 if left > 0.5 else 4}
    )
    prepare = model.compute_advantages

    def look(rollout: Rollout) -> Any:
        assert rollout.seed_group is not None and model.groups is not None
        sizes.append(model.groups.group_size)
        return prepare(rollout)

    model.compute_advantages = look  # type: ignore[method-assign]
    model.learn(1024)
    assert sizes == [2, 2, 4, 4]
    model.group_size = 3
    model.learn(256, reset_num_timesteps=False)
    assert sizes[-1] == 3 and model.groups is not None and model.groups.start_mismatches == 0


# ---------------------------------------------------------------- names


def test_the_constructor_can_be_held() -> None:
    parameters = inspect.signature(GRPO).parameters
    assert len(parameters) == 36
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())


def test_unknown_keys_get_the_nearest_name() -> None:
    for kwargs, says in (
        (dict(advantage_kwargs=dict(horizon=True)), "unknown key 'horizon'; did you mean 'horizons'. advantage='state' takes"),
        (dict(loss_kwargs=dict(clip_high=0.3)), "unknown key 'clip_high'; did you mean 'clip_range_high'. loss='clip' takes"),
        (dict(multitask=dict(task=3)), "unknown key 'task'; did you mean 'tasks'. multitask= takes"),
        (dict(rewards=3), "rewards=3 must be a dict with keys among .'objectives'"),
    ):
        with pytest.raises(ValueError, match=says):
            GRPO("MlpPolicy", "CartPole-v1", **kwargs)
    with pytest.raises(TypeError, match="unexpected keyword argument 'gama'"):
        GRPO("MlpPolicy", "CartPole-v1", gama=0.9)  # type: ignore[call-arg]


def test_settings_are_all_of_them() -> None:
    model = GRPO("MlpPolicy", gym.make("CartPole-v1"), **SMALL)
    missing = set(inspect.signature(GRPO).parameters) - set(model.settings)
    assert missing == {"env", "_init_setup_model"}
    assert model.settings["group_size"] == 2 and model.settings["gamma"] == 0.995
    assert isinstance(model.observation_space, spaces.Box)
