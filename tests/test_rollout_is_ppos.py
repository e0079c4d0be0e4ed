"""Given the same policy, starts and actions, GRPO's rollout and its GAE are those of SB3's PPO: row for row."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import GRPO, SeededResetWrapper
from sb_grpo.collect.slots import GroupSlots
from sb_grpo.envs.hold import hold_of
from sb_grpo.maths.returns import gae

SEED, N_ENVS, N_STEPS, N_ROLLOUTS, GROUP_SIZE = 3, 4, 50, 3, 8
GAMMA, LAMBDA = 0.97, 0.9


def vec_env(env_id: str) -> VecNormalize:
    """Episodes of at most 17 steps: rollouts of 50 cut some, the limit ends some, and poles fall."""
    kwargs = dict(wrapper_class=SeededResetWrapper, env_kwargs=dict(max_episode_steps=17))
    return VecNormalize(make_vec_env(env_id, N_ENVS, **kwargs), norm_reward=False)


class Actions(BaseCallback):
    """Notes the actions of a GRPO training, and whose they were."""

    def _on_training_start(self) -> None:
        self.actions, self.jobs = [], []

    def _on_step(self) -> bool:
        self.actions.append(th.as_tensor(self.locals["actions"]).clone())
        self.jobs.append(self.model.slots.job.copy())
        return True


class Grouped(BaseCallback):
    """Hands every slot of PPO the seed of its next episode, as GRPO does."""

    def __init__(self, slots: GroupSlots) -> None:
        super().__init__()
        self.slots = slots

    def _on_training_start(self) -> None:
        self.slots.started_all(self.training_env)
        hold_of(self.training_env).actor = self.slots  # PPO's steps are to consume the seeds

    def _on_step(self) -> bool:
        ended = self.locals["dones"].nonzero()[0].tolist()
        self.slots.step(self.training_env, self.slots.starts(self.training_env, ended))
        return True


def of_grpo(env_id: str) -> SimpleNamespace:
    """What GRPO collects with a policy that does not learn."""
    env = vec_env(env_id)
    model = GRPO("MlpPolicy", env, n_steps=N_STEPS, learning_rate=0.0, group_size=GROUP_SIZE, seed=SEED, device="cpu")
    rollouts, prepare = [], model._prepare

    def look(rollout):
        rollouts.append(rollout)
        return prepare(rollout)

    model._prepare = look
    notes = Actions()
    model.learn(N_ROLLOUTS * N_STEPS * N_ENVS, callback=notes)
    return SimpleNamespace(rollouts=rollouts, actions=notes.actions, jobs=notes.jobs, model=model, env=env)


def of_ppo(env_id: str, ours: SimpleNamespace) -> SimpleNamespace:
    """What PPO's collector makes of the same policy, starts and actions, with a critic of random weights."""
    env = vec_env(env_id)
    model = PPO("MlpPolicy", env, n_steps=N_STEPS, batch_size=N_STEPS * N_ENVS, gamma=GAMMA, gae_lambda=LAMBDA, device="cpu")
    weights = ours.model.policy.state_dict()
    named = {f"mlp_extractor.{name}" if name.startswith("policy_net") else name: value for name, value in weights.items()}
    model.policy.load_state_dict(named, strict=False)
    slots = GroupSlots(N_ENVS, GROUP_SIZE, SEED)  # PPO's envs get the seeds that GRPO's had
    slots.queue_all(env)

    given, buffers = iter(ours.actions), []

    def forward(obs):
        actions = next(given)
        values, log_prob, _ = model.policy.evaluate_actions(obs, actions)
        return actions, values, log_prob

    def train():
        names = ("observations", "actions", "rewards", "log_probs", "values", "advantages")
        buffers.append({name: th.as_tensor(getattr(model.rollout_buffer, name).copy()) for name in names})

    model.policy.forward, model.train = forward, train
    model.learn(N_ROLLOUTS * N_STEPS * N_ENVS, callback=Grouped(slots))
    return SimpleNamespace(buffers=buffers, critic=model.policy.predict_values, env=env)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_rollout_is_that_of_ppo(env_id):
    ours = of_grpo(env_id)
    theirs = of_ppo(env_id, ours)
    for k, (rollout, buffer) in enumerate(zip(ours.rollouts, theirs.buffers, strict=True)):
        jobs = np.array(ours.jobs[k * N_STEPS : (k + 1) * N_STEPS]).flatten()
        order = th.as_tensor(np.argsort(jobs, kind="stable"))  # by episode, and by time within
        rows = {name: column.flatten(0, 1)[order].squeeze() for name, column in buffer.items()}
        th.testing.assert_close(rollout.observations, rows["observations"], rtol=0, atol=0)
        assert bool((rollout.actions.squeeze() == rows["actions"]).all())
        th.testing.assert_close(rollout.log_probs, rows["log_probs"], rtol=1e-4, atol=1e-5)
        with th.no_grad():
            values, final_values = (
                theirs.critic(obs).squeeze(1) for obs in (rollout.observations, rollout.final_observations)
            )
        th.testing.assert_close(gae(rollout, values, final_values, GAMMA, LAMBDA), rows["advantages"], rtol=1e-4, atol=1e-4)
        assert bool(rollout.truncated.any())  # some episodes ended by the limit,
        assert not bool((rollout.truncated | rollout.terminated).all())  # and the rollout cut some
    statistics = (ours.env.obs_rms, theirs.env.obs_rms)
    np.testing.assert_array_equal(*(s.mean for s in statistics))
    np.testing.assert_array_equal(*(s.var for s in statistics))
    assert statistics[0].count == statistics[1].count


class Narrower(BaseCallback):
    """Changes the policy's weights at some step, by one of the ways in which that is done; notes log-probabilities."""

    def __init__(self, way: str, when: int) -> None:
        super().__init__()
        self.way, self.when, self.log_stds, self.scored = way, when, [], []

    def _on_step(self) -> bool:
        policy, n = self.model.policy, self.locals["n_steps"]
        obs, actions = th.as_tensor(self.locals["obs_tensor"]), th.as_tensor(self.locals["actions"])
        with th.no_grad():
            self.scored.append(policy.log_prob(obs.clone(), actions))
            if n in (self.when, self.when + 1):
                self.change(policy)
        return True

    def _on_rollout_end(self) -> None:
        with th.no_grad():
            self.change(self.model.policy)

    def change(self, policy) -> None:
        if self.way == "data":
            policy.log_std.data -= 0.5
        elif self.way == "assigned":
            policy.log_std.data = policy.log_std.data - 0.5
        else:
            policy.load_state_dict({name: 0.5 * value for name, value in policy.state_dict().items()})


@pytest.mark.parametrize("way", ["data", "assigned", "loaded"])
@pytest.mark.parametrize("when", [1, 7, 31])
def test_old_log_probabilities_are_those_of_the_policy_that_acted(way, when):
    """A callback changes the weights after a step, after the next one, and at the end: PPO's log-probs are of before."""
    model = GRPO(
        "MlpPolicy", make_vec_env("Pendulum-v1", 4), n_steps=32, learning_rate=0.0, group_size=2, seed=0, device="cpu"
    )
    packed, pack = [], model.rollout_buffer.pack
    model.rollout_buffer.pack = lambda log_probs, *args: packed.append(log_probs) or pack(log_probs, *args)
    callback = Narrower(way, when)
    model.learn(128, callback=callback)
    th.testing.assert_close(packed[0], th.cat(callback.scored), atol=1e-5, rtol=1e-5)


class Shaping(BaseCallback):
    """Adds 5 to every reward."""

    def _on_step(self) -> bool:
        self.locals["rewards"] += 5.0
        return True


@pytest.mark.parametrize("wrapped", [lambda env: env, lambda env: VecNormalize(env, norm_reward=False)])
def test_rewards_that_a_callback_changes_are_learnt_from(wrapped):
    model = GRPO("MlpPolicy", wrapped(make_vec_env("CartPole-v1", 4)), n_steps=8, group_size=2, seed=0, device="cpu")
    model.learn(32, callback=Shaping())
    assert bool((model.rollout_buffer.rewards[:8] == 6.0).all())


def test_rewards_that_a_callback_changes_where_they_would_be_lost_are_refused():
    model = GRPO("MlpPolicy", VecNormalize(make_vec_env("CartPole-v1", 4)), n_steps=8, group_size=2, seed=0, device="cpu")
    with pytest.raises(ValueError, match=r"A callback has changed rewards.*norm_reward=False"):
        model.learn(32, callback=Shaping())
