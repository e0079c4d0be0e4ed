"""Given the same policy, starts and actions, GRPO's rollout and its GAE are those of SB3's PPO: row for row."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnvWrapper, VecFrameStack, VecNormalize

from sb_grpo import GRPO, MlpPolicy, SeededResetWrapper
from sb_grpo.collect.groups import HostGroups
from sb_grpo.envs import make_tensor_env
from sb_grpo.envs.ownership import ownership_of
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
        self.actions, self.episode_ids = [], []

    def _on_step(self) -> bool:
        self.actions.append(th.as_tensor(self.locals["actions"]).clone())
        self.episode_ids.append(self.model.groups.episode_id.copy())
        return True


class Grouped(BaseCallback):
    """Hands every env of PPO the seed of its next episode, as GRPO does."""

    def __init__(self, groups: HostGroups) -> None:
        super().__init__()
        self.groups = groups

    def _on_training_start(self) -> None:
        self.groups.started_all(self.training_env)
        ownership_of(self.training_env).actor = self.groups  # PPO's steps are to consume the seeds

    def _on_step(self) -> bool:
        ended = self.locals["dones"].nonzero()[0].tolist()
        self.groups.step(self.training_env, self.groups.starts(self.training_env, ended))
        return True


def of_grpo(env_id: str) -> SimpleNamespace:
    """What GRPO collects with a policy that does not learn."""
    env = vec_env(env_id)
    model = GRPO("MlpPolicy", env, n_steps=N_STEPS, learning_rate=0.0, group_size=GROUP_SIZE, seed=SEED, device="cpu")
    rollouts, prepare = [], model.compute_advantages

    def look(rollout):
        rollouts.append(rollout)
        return prepare(rollout)

    model.compute_advantages = look
    notes = Actions()
    model.learn(N_ROLLOUTS * N_STEPS * N_ENVS, callback=notes)
    return SimpleNamespace(rollouts=rollouts, actions=notes.actions, episode_ids=notes.episode_ids, model=model, env=env)


def of_ppo(env_id: str, ours: SimpleNamespace) -> SimpleNamespace:
    """What PPO's collector makes of the same policy, starts and actions, with a critic of random weights."""
    env = vec_env(env_id)
    model = PPO("MlpPolicy", env, n_steps=N_STEPS, batch_size=N_STEPS * N_ENVS, gamma=GAMMA, gae_lambda=LAMBDA, device="cpu")
    weights = ours.model.policy.state_dict()
    named = {f"mlp_extractor.{name}" if name.startswith("policy_net") else name: value for name, value in weights.items()}
    model.policy.load_state_dict(named, strict=False)
    groups = HostGroups(N_ENVS, GROUP_SIZE, SEED)  # PPO's envs get the seeds that GRPO's had
    groups.queue_all(env)

    given, buffers = iter(ours.actions), []

    def forward(obs):
        actions = next(given)
        values, log_prob, _ = model.policy.evaluate_actions(obs, actions)
        return actions, values, log_prob

    def train():
        names = ("observations", "actions", "rewards", "log_probs", "values", "advantages")
        buffers.append({name: th.as_tensor(getattr(model.rollout_buffer, name).copy()) for name in names})

    model.policy.forward, model.train = forward, train
    model.learn(N_ROLLOUTS * N_STEPS * N_ENVS, callback=Grouped(groups))
    return SimpleNamespace(buffers=buffers, critic=model.policy.predict_values, env=env)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_rollout_is_that_of_ppo(env_id):
    ours = of_grpo(env_id)
    theirs = of_ppo(env_id, ours)
    for k, (rollout, buffer) in enumerate(zip(ours.rollouts, theirs.buffers, strict=True)):
        episode_ids = np.array(ours.episode_ids[k * N_STEPS : (k + 1) * N_STEPS]).flatten()
        order = th.as_tensor(np.argsort(episode_ids, kind="stable"))  # by episode, and by time within
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


def packed_by(model):
    """A list that gets the log-probabilities of every rollout, step by step."""
    packed, pack = [], model.rollout_buffer.pack
    model.rollout_buffer.pack = lambda log_probs, *args: packed.append(log_probs) or pack(log_probs, *args)
    return packed


class Narrower(BaseCallback):
    """Changes the policy's weights at some step, by one of the ways in which that is done; notes log-probabilities."""

    def __init__(self, way: str, when: int) -> None:
        super().__init__()
        self.way, self.when, self.log_stds, self.scored = way, when, [], []

    def _on_step(self) -> bool:
        policy, n = self.model.policy, self.locals["n_steps"] + 1
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
        elif self.way == "noise":  # on all weights, in a way that no version tells of
            for weight in policy.parameters():
                weight.data.add_(0.1 * th.randn_like(weight))
        elif self.way == "replaced":
            policy.log_std = th.nn.Parameter(policy.log_std.detach() - 0.5)
            policy.action_net = th.nn.Linear(policy.action_net.in_features, policy.action_net.out_features)
        elif self.way == "buffer":
            policy.temperature.mul_(0.5)
        else:
            policy.load_state_dict({name: 0.5 * value for name, value in policy.state_dict().items()})


class Tempered(MlpPolicy):
    """Divides what the head sees by a buffer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register_buffer("temperature", th.ones(()))

    def _scores(self, features, obs):
        return super()._scores(features, obs) / self.temperature


@pytest.mark.parametrize("way", ["data", "assigned", "loaded", "noise", "replaced", "buffer"])
@pytest.mark.parametrize("when", [1, 7, 31])
def test_old_log_probabilities_are_those_of_the_policy_that_acted(way, when):
    """A callback changes the weights after a step, after the next one, and at the end: PPO's log-probs are of before."""
    model = GRPO(Tempered, make_vec_env("Pendulum-v1", 4), n_steps=32, learning_rate=0.0, group_size=2, seed=0, device="cpu")
    packed = packed_by(model)
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


def seeing_through(extractor, **kwargs):
    """A model with a features extractor of one's own."""
    policy_kwargs = dict(features_extractor_class=extractor, features_extractor_kwargs=kwargs)
    settings = dict(n_steps=32, group_size=2, advantage="step", policy_kwargs=policy_kwargs)
    return GRPO("MlpPolicy", make_vec_env("Pendulum-v1", 4), seed=0, device="cpu", **settings)


class Standardizing(BaseFeaturesExtractor):
    """Keeps statistics of what it sees while it acts, in place or as new tensors."""

    def __init__(self, space, in_place):
        super().__init__(space, 3)
        self.in_place = in_place
        self.register_buffer("mean", th.zeros(3))
        self.register_buffer("seen", th.zeros(()))

    def forward(self, obs):
        if not self.training:
            mean = 0.9 * self.mean + 0.1 * obs.mean(0)
            if self.in_place:
                self.mean.copy_(mean)
            else:
                self.mean = mean
            self.seen += len(obs)
        return obs - self.mean


@pytest.mark.parametrize("in_place", [True, False])
def test_statistics_that_the_policy_keeps_while_it_acts_are_those_of_each_step(in_place):
    model = seeing_through(Standardizing, in_place=in_place)
    scored, act = [], model.policy.sample

    def act_and_score(obs, noise):
        before = {name: buffer.clone() for name, buffer in model.policy.named_buffers()}
        actions, log_probs, memory = act(obs, noise)
        after = {name: buffer.clone() for name, buffer in model.policy.named_buffers()}
        model.policy.load_state_dict({**model.policy.state_dict(), **before})
        scored.append(model.policy.log_prob(obs.clone(), actions))
        model.policy.load_state_dict({**model.policy.state_dict(), **after})
        return actions, log_probs, memory

    model.policy.sample = act_and_score
    packed = packed_by(model)
    model.collect()
    th.testing.assert_close(packed[0], th.cat(scored), atol=1e-5, rtol=1e-5)
    assert model.policy.features_extractor.seen == len(packed[0])  # to score what was done is not to see it again


def test_buffers_that_a_network_makes_when_it_is_first_used():
    class Lazy(BaseFeaturesExtractor):
        def __init__(self, space):
            super().__init__(space, 3)

        def forward(self, obs):
            if "shift" not in dict(self.named_buffers()):
                self.register_buffer("shift", th.ones(3), persistent=False)
            return obs + self.shift

    kwargs = dict(features_extractor_class=Lazy)
    model = GRPO("MlpPolicy", make_vec_env("Pendulum-v1", 4), n_steps=32, policy_kwargs=kwargs, device="cpu")
    packed = packed_by(model)
    callback = Narrower("noise", 7)
    model.learn(128, callback)
    th.testing.assert_close(packed[0], th.cat(callback.scored), atol=1e-5, rtol=1e-5)


class Swap(BaseCallback):
    """Puts a policy that always takes action 0 in the model's place, and notes what is done from then on."""

    def __init__(self, where):
        super().__init__()
        self.where, self.taken = where, []

    def _on_rollout_start(self):
        if self.where == "rollout":
            self.swap()

    def _on_step(self):
        self.taken.append(th.as_tensor(self.locals["actions"]).flatten())
        if self.where == "step" and self.n_calls == 1:
            self.swap()
        return True

    def swap(self):
        other = type(self.model.policy)(self.model.observation_space, self.model.action_space, lambda _: 1e-3)
        with th.no_grad():
            other.action_net.bias.copy_(th.tensor([100.0, 0.0]))
        self.model.policy = other


@pytest.mark.parametrize("where", ["rollout", "step"])
@pytest.mark.parametrize("algorithm", [PPO, GRPO])
def test_a_policy_that_a_callback_puts_in_place_acts_from_then_on(algorithm, where):
    model = algorithm("MlpPolicy", make_vec_env("CartPole-v1", 4), n_steps=32, seed=0, device="cpu")
    callback = Swap(where)
    packed = packed_by(model) if algorithm is GRPO else []
    model.learn(128, callback)
    assert int(th.cat(callback.taken[where == "step" :]).sum()) == 0
    for log_probs in packed:
        assert float(log_probs[4 * (where == "step") :].abs().max()) < 1e-6


def test_a_policy_of_a_tensor_env_may_be_replaced_too():
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 8), n_steps=16, seed=0, device="cpu")
    callback = Swap("step")
    model.learn(128, callback)
    assert int(th.cat(callback.taken[1:]).sum()) == 0


class Unsteady(BaseFeaturesExtractor):
    """Keeps a mean of what it has seen where no state_dict shows it, or draws noise."""

    def __init__(self, space, noisy):
        super().__init__(space, 3)
        self.noisy, self.seen = noisy, th.zeros(3)

    def forward(self, obs):
        if self.noisy:
            return obs + th.randn_like(obs)
        self.seen = 0.9 * self.seen + 0.1 * obs.mean(0)
        return 3.0 * (obs - self.seen)


@pytest.mark.parametrize("noisy", [False, True])
def test_log_probabilities_of_a_network_that_is_never_twice_the_same(noisy):
    model = seeing_through(Unsteady, noisy=noisy)
    acted, sample = [], model.policy.sample

    def sample_and_note(*args):
        found = sample(*args)
        acted.append(found[1])
        return found

    model.policy.sample = sample_and_note
    packed = packed_by(model)
    model.collect()
    th.testing.assert_close(packed[0], th.cat(acted), rtol=0, atol=0)


@pytest.mark.parametrize("algorithm", [PPO, GRPO])
def test_a_network_may_keep_what_it_computes_first_or_take_gradients_as_it_acts(algorithm):
    class Table(BaseFeaturesExtractor):
        def __init__(self, space):
            super().__init__(space, 3)
            self.table = None

        def forward(self, obs):
            if self.table is None:
                self.table = th.linspace(0.5, 1.5, 3) * obs.new_ones(3)
            with th.enable_grad():
                x = obs.detach().requires_grad_()
                slope = th.autograd.grad(x.square().sum(), x)[0]
            return obs * self.table + slope

    kwargs = dict(features_extractor_class=Table)
    assert algorithm("MlpPolicy", make_vec_env("Pendulum-v1", 2), n_steps=32, policy_kwargs=kwargs, device="cpu").learn(64)


@pytest.mark.parametrize("algorithm", [PPO, GRPO])
def test_the_number_of_a_step_is_its_place_in_the_buffer(algorithm):
    class Places(BaseCallback):
        def _on_training_start(self):
            self.found = []

        def _on_step(self):
            self.found.append((self.locals["n_steps"], self.model.rollout_buffer.pos))
            return True

    places = Places()
    algorithm("MlpPolicy", make_vec_env("CartPole-v1", 2), n_steps=5, batch_size=10, device="cpu").learn(20, places)
    assert places.found == 2 * [(n, n) for n in range(5)]


def test_a_callback_may_take_gradients_of_what_the_policy_sees():
    class Entropy(BaseCallback):
        def _on_step(self):
            entropy = self.model.policy.get_distribution(self.locals["obs_tensor"]).entropy().mean()
            return bool(th.autograd.grad(entropy, self.model.policy.log_std)[0].isfinite().all())

    for memory in ({}, dict(memory="gru")):
        assert GRPO("MlpPolicy", "Pendulum-v1", n_steps=32, policy_kwargs=memory, device="cpu").learn(64, Entropy())


def test_whole_numbers_that_say_that_an_episode_is_done():
    class Numbers(VecEnvWrapper):
        def reset(self):
            return self.venv.reset()

        def step_wait(self):
            obs, rewards, dones, infos = self.venv.step_wait()
            return obs, rewards, dones.astype(int), infos

    model = GRPO("MlpPolicy", Numbers(make_vec_env("Pendulum-v1", 2)), n_steps=256, use_sde=True, device="cpu").learn(512)
    assert len(model.ep_info_buffer) == 2


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda env: env,
        lambda env: VecNormalize(env, norm_reward=False),
        lambda env: VecNormalize(env, norm_obs=False),
        lambda env: VecFrameStack(VecNormalize(env), 1),
    ],
)
def test_the_rewards_are_raw_below_any_vec_normalize(wrapped):
    env = wrapped(VecNormalize(make_vec_env("Pendulum-v1", 2), norm_obs=False))
    rewards = GRPO("MlpPolicy", env, n_steps=64, seed=0, device="cpu").collect().rewards
    plain = GRPO("MlpPolicy", make_vec_env("Pendulum-v1", 2), n_steps=64, seed=0, device="cpu").collect().rewards
    assert -8.0 < float(plain.mean()) < -2.0
    assert float(rewards.mean()) == pytest.approx(float(plain.mean()), abs=2.0)


@pytest.mark.parametrize("form", [list, th.as_tensor, partial(np.expand_dims, axis=0)], ids=["lists", "tensors", "a row"])
@pytest.mark.parametrize("rewards_too", [False, True])
def test_a_wrapper_may_give_rewards_and_last_observations_in_another_form(form, rewards_too):
    class Other(VecEnvWrapper):
        def reset(self):
            return self.venv.reset()

        def step_wait(self):
            obs, rewards, dones, infos = self.venv.step_wait()
            for info in infos:
                if "terminal_observation" in info:
                    info["terminal_observation"] = form(info["terminal_observation"])
            if rewards_too and not isinstance(form, partial):
                rewards, dones = form(rewards), form(dones)
            return obs, rewards, dones, infos

    def trained(wrapper):
        env = make_vec_env("Pendulum-v1", 2, env_kwargs=dict(max_episode_steps=20), seed=0)
        model = GRPO("MlpPolicy", wrapper(env), n_steps=64, batch_size=64, n_epochs=2, seed=0, device="cpu")
        model.learn(256)
        return th.cat([p.detach().flatten() for p in model.policy.parameters()])

    assert trained(Other).equal(trained(lambda env: env))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("advantage", ["state", "outcome"])
def test_last_observations_of_another_shape_are_named(width, advantage):
    class Forgetful(VecEnvWrapper):
        def __init__(self, venv):
            super().__init__(venv, observation_space=spaces.Box(-10, 10, (6,)))

        def reset(self):
            return np.tile(self.venv.reset(), 2)

        def step_wait(self):
            obs, rewards, dones, infos = self.venv.step_wait()
            for info in infos:
                if "terminal_observation" in info:
                    info["terminal_observation"] = info["terminal_observation"][:width]
            return np.tile(obs, 2), rewards, dones, infos

    model = GRPO("MlpPolicy", Forgetful(make_vec_env("Pendulum-v1", 2)), advantage=advantage, group_size=2, device="cpu")
    with pytest.raises(ValueError, match=rf"'terminal_observation'\] of env 0 has shape \({width},\).*\(6,\).*step_wait"):
        model.learn(2048)


@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
def test_a_discount_that_a_callback_sets_in_the_buffer_counts_as_with_ppo(name):
    """From then on, whatever the model's is; that of the model is there to be read."""

    class Lower(BaseCallback):
        def __init__(self, at: int) -> None:
            super().__init__()
            self.at, self.seen = at, []

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            self.seen.append(getattr(self.model.rollout_buffer, name))
            if len(self.seen) == self.at:
                setattr(self.model.rollout_buffer, name, 0.5)

    for kind in (PPO, GRPO):
        weights = []
        for settings, at in (({}, 2), ({}, 9), ({name: 0.5}, 1)):
            callback = Lower(at)
            model = kind(
                "MlpPolicy", "CartPole-v1", n_steps=64, n_epochs=1, seed=0, device="cpu", **{"gamma": 0.9, **settings}
            )
            model.learn(256, callback)
            weights.append(th.cat([p.detach().flatten() for p in model.policy.parameters()]))
            own = 0.9 if name == "gamma" else 0.95
            assert callback.seen == ([0.5] * 4 if settings else [own] * at + [0.5] * (4 - at) if at < 4 else [own] * 4)
        assert not th.equal(weights[0], weights[1])
    model.rollout_buffer.gamma = 1.5
    with pytest.raises(ValueError, match=r"gamma=1\.5"):
        model.learn(64)


def test_a_rollouts_end_tells_as_many_steps_as_ppos():
    class Last(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            self.said = self.locals["n_steps"], self.locals["n_rollout_steps"]

    messages = []
    for algorithm in (PPO, GRPO):
        algorithm("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, device="cpu").learn(64, last := Last())
        messages.append(last.said)
    assert messages == [(64, 64), (64, 64)]


def test_metrics_of_an_update_are_not_seen_by_a_network_that_counts():
    """As often as PPO's: every batch that acts or learns, none that is only measured."""

    class Counting(BaseFeaturesExtractor):
        def __init__(self, space):
            super().__init__(space, 4)
            self.norm = th.nn.BatchNorm1d(4)

        def forward(self, obs):
            return self.norm(obs)

    counted = []
    for algorithm in (PPO, GRPO):
        kwargs = dict(
            policy_kwargs=dict(features_extractor_class=Counting), n_steps=64, batch_size=32, n_epochs=2, device="cpu"
        )
        model = algorithm("MlpPolicy", "CartPole-v1", **kwargs).learn(128)
        counted.append(int(model.policy.features_extractor.norm.num_batches_tracked))
    assert counted == [8, 8]
