"""Collection from tensor envs: same episodes, same estimators, no host wait in the step loop."""

from copy import deepcopy

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback, EvalCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import GRPO
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.collect.groups import TensorGroups
from sb_grpo.envs import check_tensor_env
from sb_grpo.envs.gymnasium_vector import GymnasiumVectorEnv
from sb_grpo.envs.native import CartPole, make_tensor_env
from sb_grpo.envs.random import group_seeds
from tests.helpers import SpaceEnv

SMALL = dict(n_steps=64, batch_size=64, n_epochs=2, group_size=2, seed=0, device="cpu")


def capture(seen):
    """An advantage function that keeps the rollouts it is given."""

    def advantage(rollout, options):
        seen.append(rollout)
        return rollout.rewards - rollout.rewards.mean() + 0.1 * th.randn_like(rollout.rewards)

    return advantage


def test_episodes_go_to_free_envs_in_order():
    env = make_tensor_env("CartPole-v1", 5)
    groups = TensorGroups(5, 2, 7, first_group=3, device=th.device("cpu"))
    groups.started_all(env)
    assert groups.episode_id.tolist() == [6, 7, 8, 9, 10] and groups.next_group == 6
    th.testing.assert_close(env.state, env.initial_state(group_seeds(7, th.tensor([3, 3, 4, 4, 5]))))
    env.step_tensor(th.zeros(5, dtype=th.int64))
    groups.step(env, th.tensor([False, True, False, True, False]))
    assert groups.episode_id.tolist() == [6, 11, 8, 12, 10] and groups.t.tolist() == [1, 0, 1, 0, 1]
    th.testing.assert_close(env.state[[1, 3]], env.initial_state(group_seeds(7, th.tensor([5, 6]))))


@pytest.mark.parametrize("n_envs", [1, 3, 16])
def test_groups_are_whole_start_equal_and_nothing_is_lost(n_envs):
    seen = []
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", n_envs), advantage=capture(seen), **{**SMALL, "group_size": 3})
    model.learn(3000)
    for rollout in seen:
        assert (th.bincount(rollout.group) == 3).all() and (rollout.terminated | rollout.truncated).all()
        starts = rollout.t == 0
        assert int(starts.sum()) == len(rollout.group)
        first, group = rollout.observations[starts], rollout.group
        for g in range(rollout.n_groups):
            assert (first[group == g] == first[group == g][0]).all()
    trained = sum(len(r.rewards) for r in seen)
    assert trained + model.rollout_buffer.n_kept == model.num_timesteps and model.groups.start_mismatches == 0


def test_512_groups_of_8_at_once():
    seen = []
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 4096), advantage=capture(seen), n_steps=64, group_size=8,
                 batch_size=8192, n_epochs=1, seed=0, device="cpu")  # fmt: skip
    model.learn(4096 * 64)
    assert seen[0].n_groups > 512 and (th.bincount(seen[0].group) == 8).all()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("advantage", ["outcome", "step", "state"])
def test_every_estimator_trains_and_reloads(env_id, advantage, tmp_path):
    env = make_tensor_env(env_id, 16)
    model = GRPO("MlpPolicy", env, advantage=advantage, **SMALL).learn(8000)
    assert model._n_gradient_steps > 0 and len(model.ep_info_buffer) > 0
    lengths = [info["l"] for info in model.ep_info_buffer]
    assert set(lengths) == {200} if env_id == "Pendulum-v1" else max(lengths) <= 500
    model.save(tmp_path / "m")
    GRPO.load(tmp_path / "m", env=make_tensor_env(env_id, 4), device="cpu").learn(500)


def test_gsde_members_differ():
    seen = []
    env = make_tensor_env("Pendulum-v1", 8)
    GRPO("MlpPolicy", env, use_sde=True, advantage=capture(seen), **{**SMALL, "group_size": 4, "n_steps": 200}).learn(1600)
    ends = th.cat([seen[0].episode.diff() != 0, th.tensor([True])])
    assert len(seen[0].final_observations.unique(dim=0)) == int(ends.sum())


def test_episode_statistics_and_eval_callback(tmp_path):
    env = make_tensor_env("CartPole-v1", 8)
    callback = EvalCallback(
        make_tensor_env("CartPole-v1", 4), n_eval_episodes=4, eval_freq=64, log_path=str(tmp_path), verbose=0
    )
    model = GRPO("MlpPolicy", env, **SMALL).learn(2000, callback=callback)
    assert all(info["r"] == info["l"] for info in model.ep_info_buffer)
    assert len(np.load(tmp_path / "evaluations.npz")["results"]) >= 3
    model.learn(1000, reset_num_timesteps=False)


def test_somebody_elses_reset_starts_new_groups():
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 4), **SMALL).learn(512)
    group = model._next_group
    evaluate_policy(model, model.get_env(), 2)
    model.learn(512, reset_num_timesteps=False)
    assert model._next_group > group and model.groups.start_mismatches == 0


def test_a_callback_can_stop():
    class Stop(BaseCallback):
        def _on_step(self):
            return self.n_calls < 100

    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 4), **SMALL).learn(5000, callback=Stop())
    assert model.num_timesteps == 400
    model.learn(600, reset_num_timesteps=False)


def test_same_seed_same_weights():
    def weights():
        model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 8), **SMALL).learn(3000)
        return th.cat([p.detach().flatten() for p in model.policy.parameters()])

    assert (weights() == weights()).all()


WAITING = ("item", "cpu", "tolist", "numpy", "nonzero", "__bool__", "__int__", "__float__")


def test_the_step_loop_never_waits_for_the_device(monkeypatch):
    """Between the first and the last step of a rollout nothing asks a tensor for its value."""
    inside, calls = [False], []

    class Window(BaseCallback):
        def _on_rollout_start(self):
            inside[0] = True

        def _on_step(self):
            if self.n_calls % 64 == 0:
                inside[0] = False
            return True

    for name in WAITING:
        original = getattr(th.Tensor, name)

        def watched(self, *args, _name=name, _original=original, **kwargs):
            if inside[0]:
                calls.append(_name)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(th.Tensor, name, watched)
    GRPO("MlpPolicy", make_tensor_env("Pendulum-v1", 4), **SMALL).learn(512, callback=Window())
    assert not calls


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs CUDA")
def test_the_step_loop_never_waits_on_cuda():
    class Window(BaseCallback):
        def _on_rollout_start(self):
            th.cuda.set_sync_debug_mode("error")

        def _on_step(self):
            if self.n_calls % 64 == 0:
                th.cuda.set_sync_debug_mode("default")
            return True

    env = make_tensor_env("CartPole-v1", 64, device="cuda")
    GRPO("MlpPolicy", env, **{**SMALL, "device": "cuda"}).learn(64 * 64 * 3, callback=Window())


def test_bad_input_is_named():
    class Diverging(CartPole):
        def transition(self, state, actions):
            after, reward, terminated = super().transition(state, actions)
            return (
                after.masked_fill((self.elapsed == 3).unsqueeze(1) & (th.arange(4) == 2).unsqueeze(1), th.nan),
                reward,
                terminated,
            )

    model = GRPO("MlpPolicy", Diverging(4), **SMALL)
    with pytest.raises(ValueError, match="observation of env 2 is not finite at step 3 of this rollout"):
        model.learn(1000)
    with pytest.raises(ValueError, match="pass the TensorVecEnv itself"):
        GRPO("MlpPolicy", VecNormalize(make_tensor_env("CartPole-v1", 2)))
    elsewhere = make_tensor_env("CartPole-v1", 2)
    elsewhere.device = th.device("meta")
    with pytest.raises(ValueError, match=r"device='meta'.*device='cpu'.*GRPO\(..., device='meta'\)"):
        GRPO("MlpPolicy", elsewhere, device="cpu")


class FirstRatios(GRPO):
    """Looks at each rollout's importance ratios before the first gradient step: they must be 1."""

    def compute_advantages(self, rollout):
        with th.no_grad():
            now = self.policy.log_prob(rollout.observations, rollout.actions)
        self.ratios = (now - rollout.log_probs).exp()
        return super().compute_advantages(rollout)


@pytest.mark.parametrize("kinds", [("tensor", "host"), ("host", "tensor")])
def test_set_env_to_another_kind_of_env(kinds):
    envs = {"tensor": make_tensor_env("Pendulum-v1", 4), "host": make_vec_env("Pendulum-v1", 4, seed=0)}
    model = FirstRatios("MlpPolicy", envs[kinds[0]], **SMALL).learn(512)
    model.set_env(envs[kinds[1]])
    model.learn(512, reset_num_timesteps=False)
    assert model.num_timesteps == 1024 and model.groups.start_mismatches == 0
    th.testing.assert_close(model.ratios, th.ones_like(model.ratios), rtol=1e-4, atol=0.0)


def test_a_model_of_tensor_envs_is_loaded_without_one_and_given_one(tmp_path):
    GRPO("MlpPolicy", make_tensor_env("Pendulum-v1", 4), **SMALL).learn(256).save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", device="cpu")
    loaded.set_env(make_tensor_env("Pendulum-v1", 4))
    assert loaded.learn(256, reset_num_timesteps=False).num_timesteps == 512


def test_set_env_refuses_what_the_constructor_refuses_and_keeps_the_env():
    model = GRPO("MlpPolicy", before := make_tensor_env("Pendulum-v1", 6), **{**SMALL, "group_size": 4}).learn(384)
    other = make_tensor_env("Pendulum-v1", 6)
    other.grouping = "synchronous"
    with pytest.raises(ValueError, match="num_envs=6 is no multiple of group_size=4"):
        model.set_env(other)
    assert model.env is before
    model.learn(384, reset_num_timesteps=False)


@pytest.mark.parametrize(
    ("make", "buffer"),
    [
        (lambda: make_tensor_env("Pendulum-v1", 4), GroupRolloutBuffer),
        (lambda: make_vec_env("Pendulum-v1", 4), TensorRolloutBuffer),
        (lambda: make_vec_env("Pendulum-v1", 4), RolloutBuffer),
    ],
)
def test_a_buffer_that_does_not_go_with_the_env_is_refused(make, buffer):
    with pytest.raises(ValueError, match=f"rollout_buffer_class={buffer.__name__} does not go with"):
        GRPO("MlpPolicy", make(), rollout_buffer_class=buffer, **SMALL)


@pytest.mark.parametrize(("grouping", "advantage"), [("seed", "state"), ("task", "state"), ("task", "outcome")])
def test_tasks_that_nobody_declared_are_named(grouping, advantage):
    multitask = dict(tasks=2, grouping=grouping)
    model = GRPO("MlpPolicy", make_tensor_env("CartPoleTasks-v0", 8), multitask=multitask, advantage=advantage, **SMALL)
    with pytest.raises(ValueError, match=r"Task [23] of env \d at step \d+ .* is not declared: there are 2"):
        model.learn(1024)


@pytest.mark.parametrize("squashed", [False, True])
def test_box_actions_with_two_axes(squashed):
    space = spaces.Box(-1.0, 1.0, (2, 2), np.float32)
    env = GymnasiumVectorEnv(SyncVectorEnv([lambda: SpaceEnv(spaces.Box(-1, 1, (3,), np.float32), space)] * 4))
    kwargs = dict(use_sde=True, policy_kwargs=dict(squash_output=True)) if squashed else {}
    model = GRPO("MlpPolicy", env, **{**SMALL, **kwargs}).learn(512)
    assert model.predict(env.reset())[0].shape == (4, 2, 2)


@pytest.mark.parametrize("advantage", ["state", "outcome"])
@pytest.mark.parametrize(
    "space", [spaces.Discrete(5), spaces.Discrete(5, start=2), spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(3)]
)
def test_observations_that_are_no_box(space, advantage):
    env = GymnasiumVectorEnv(SyncVectorEnv([lambda: SpaceEnv(deepcopy(space), spaces.Discrete(3))] * 4))
    check_tensor_env(env)
    model = GRPO("MlpPolicy", env, advantage=advantage, **SMALL).learn(512)
    assert model.predict(env.reset())[0].shape == (4,)
    assert model.groups.start_mismatches == 0


@pytest.mark.parametrize("space", [spaces.Dict(a=spaces.Discrete(2)), spaces.Tuple([spaces.Discrete(2)])])
def test_several_observations_at_once_are_refused_with_a_remedy(space):
    with pytest.raises(ValueError, match=r"observation_space=.* of a tensor env .*FlattenObservation"):
        GymnasiumVectorEnv(SyncVectorEnv([lambda: SpaceEnv(space, spaces.Discrete(3))] * 2))


def test_sb3s_callback_that_counts_ends_counts_them_here_too():
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 8, device="cpu"), n_steps=32, batch_size=64, seed=0, device="cpu")
    counting, seen = StopTrainingOnMaxEpisodes(5), []
    model.learn(100_000, [counting, ConvertCallback(lambda known, _: seen.append(known["dones"]) or True)])
    assert 40 <= counting.n_episodes < 48  # 5 per env
    assert model.num_timesteps < 100_000 and all(isinstance(dones, th.Tensor) for dones in seen)
    assert sum(int(dones.sum()) for dones in seen) == counting.n_episodes
