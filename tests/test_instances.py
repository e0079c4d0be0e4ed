"""Problem instances: tensor envs whose groups share one, and policies that encode it once."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb_grpo import GRPO
from sb_grpo.baselines.estimation import features_of
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.given_starts import GivenStarts
from sb_grpo.envs import HostInstance, InstanceEnv, check_tensor_env, make_tensor_env
from sb_grpo.envs.random import group_seeds, uniform
from sb_grpo.extras.exploration import CountBonus
from sb_grpo.learn.minibatches import minibatches, some_instances
from sb_grpo.policies import EncodingPolicy, SetPolicy
from sb_grpo.policies.extra_inputs import with_instances
from sb_grpo.policies.observations import InstanceSpace
from sb_grpo.tasks.routing import TSP, nearest_neighbour
from sb_grpo.types import map_obs

SMALL = {"width": 16, "n_layers": 1, "n_heads": 2}


class Packing(InstanceEnv):
    """Pack items into a sack of size 1.5; sizes show only when an item is packed, and the first that does not fit ends it."""

    hidden = ("size",)
    per_item = 1

    def __init__(self, num_envs, n=5, **kwargs):
        self.n = n
        super().__init__(num_envs, max_episode_steps=n, **kwargs)

    def instance(self, seeds):
        value, size = uniform(seeds, 2 * self.n).chunk(2, dim=1)
        return {"value": value, "size": size}

    def initial_state(self, instance, member):
        return th.zeros(len(instance["value"]), len(member), 1 + self.n, device=member.device)

    def transition(self, instance, state, actions):
        load = state[..., :1] + instance["size"].gather(1, actions).unsqueeze(2)
        packed = state[..., 1:].scatter(2, actions.unsqueeze(2), 1.0)
        fits = load.squeeze(2) <= 1.5
        reward = instance["value"].gather(1, actions) * fits
        return th.cat([load, packed], dim=2), reward, ~fits | packed.all(dim=2)

    def valid(self, instance, state):
        return state[..., 1:] == 0


def tsp_model(policy="SetPolicy", n=6, n_envs=32, **kwargs):
    settings = dict(
        group_size=8, n_groups=n_envs // 8, advantage="outcome", batch_size=80, n_epochs=2, seed=3, policy_kwargs=SMALL
    )
    return GRPO(policy, TSP(n_envs, n), **{**settings, **kwargs})


def packing_model(**kwargs):
    settings = dict(group_size=4, n_groups=6, advantage="outcome", batch_size=32, n_epochs=1, seed=1, policy_kwargs=SMALL)
    return GRPO("SetPolicy", Packing(16), **{**settings, **kwargs})


# ---------------------------------------------------------------- envs


@pytest.mark.parametrize("make", [lambda: TSP(4, 5), lambda: Packing(4)])
def test_envs_pass_the_check(make):
    check_tensor_env(make())


def test_the_tour_around_a_square_has_length_4():
    square = th.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]])
    env = TSP(2, cities=square)
    env.reset_all(th.tensor([0, 0]))
    total = th.zeros(2)
    for action in ([1, 2], [2, 1], [3, 3]):
        assert env.action_masks[0, action[0]] and not env.action_masks[0, 0]
        step = env.step_tensor(th.tensor(action))
        total += step.rewards
    assert step.terminated.all()
    assert total.tolist() == pytest.approx([-4.0, -2.0 - 2.0 * 2.0**0.5])
    assert nearest_neighbour(square).tolist() == [4.0]


def test_member_k_starts_in_city_k_where_asked():
    env = TSP(8, 5, multi_start=True)
    env.arrange(4)
    env.reset_all(th.tensor([7, 7, 7, 7, 9, 9, 9, 9]))
    assert env.seen_states[:, 0].tolist() == [0, 1, 2, 3] * 2
    assert env.visible_instances.shape == (2, 5, 2)
    model = GRPO("SetPolicy", env, group_size=4, n_groups=2, advantage="outcome", batch_size=32, policy_kwargs=SMALL)
    model.learn(32)
    assert model.last_metrics["group/start_mismatch"] == 0


def test_the_host_version_plays_the_same_episode():
    tensor, host = Packing(1), HostInstance(Packing(1))
    tensor.reset_all(th.tensor([11]))
    obs, _ = host.reset(seed=11)
    for action in (2, 0, 1):
        np.testing.assert_array_equal(obs, tensor.observations[0].numpy())
        np.testing.assert_array_equal(host.action_masks(), tensor.action_masks[0].numpy())
        step = tensor.step_tensor(th.tensor([action]))
        obs, reward, terminated, truncated, _ = host.step(action)
        assert (reward, terminated, truncated) == (step.rewards.item(), step.terminated.item(), step.truncated.item())
    assert isinstance(host.observation_space, InstanceSpace)
    assert obs.shape == (5 + 6,)  # the hidden sizes are left out


def test_maskable_ppo_runs_on_both_versions():
    contrib = pytest.importorskip("sb3_contrib")
    for env in (HostInstance(Packing(1)), TSP(4, 5)):
        contrib.MaskablePPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1).learn(32)


def test_envs_of_a_training_must_be_reset_before_somebody_else_steps_them():
    model = tsp_model()
    model.learn(160)
    with pytest.raises(ValueError, match="call reset"):
        model.env.step(np.zeros(32, dtype=np.int64))
    assert model.env.reset().shape == (32, 6 * 2 + 8)


# ---------------------------------------------------------------- acting


class Counting(SetPolicy):
    """Notes how many instances each call encodes, and how many states each call scores."""

    def encode(self, instance):
        self.__dict__.setdefault("encoded", []).append(len(instance["value"] if isinstance(instance, dict) else instance))
        return super().encode(instance)

    def scores(self, code, state):
        self.__dict__.setdefault("scored", []).append(tuple(state.shape[:2]))
        return super().scores(code, state)


def test_acting_encodes_once_per_group_and_set_of_weights():
    model = tsp_model(Counting)
    for _ in range(2):
        model.policy.encoded = []
        model.policy.scored = []
        rollout = model.collect()
        assert model.policy.encoded == [4]
        assert model.policy.scored == [(4, 8)] * 5
        model.policy.encoded = []
        model.policy.scored = []
        model.update(rollout)
        # 160 rows in minibatches of 80 are 2 of 2 whole groups each, in 2 epochs; then one look for the figures.
        assert model.policy.encoded == [2, 2, 2, 2, 4]
        assert model.policy.scored == [(2, 40)] * 4 + [(4, 40)]


def test_groups_that_end_earlier_are_encoded_alone():
    model = packing_model(policy_kwargs=SMALL, n_groups=9)
    model.policy.__class__ = Counting
    model.policy.encoded = []
    model.collect()
    assert model.policy.encoded[0] == 4
    assert max(model.policy.encoded[1:]) < 4
    n_started = int(model.groups._round.view(4, 4)[:, 0].sum()) + 4
    uncoded = int(model.groups._uncoded.sum())
    assert sum(model.policy.encoded) == n_started - uncoded


def test_a_change_of_weights_encodes_anew():
    model = tsp_model(Counting)
    model.collect()
    model.groups.encode(model.policy, model.env)
    model.policy.encoded = []
    model.groups.encode(model.policy, model.env)
    assert model.policy.encoded == []
    with th.no_grad():
        model.policy.embed.weight.mul_(1.5)
    model.groups.encode(model.policy, model.env)
    assert model.policy.encoded == [4]


def test_predict_encodes_once_as_long_as_the_instances_stay():
    model = tsp_model(Counting)
    env = TSP(4, 6)
    obs = env.reset()
    model.policy.encoded = []
    for _ in range(3):
        actions, _ = model.predict(obs, action_masks=env.env_method("action_masks"))
        obs, *_ = env.step(actions)
    assert model.policy.encoded == [4]


def test_n_groups_is_exact_on_tensor_envs():
    rollout = tsp_model(n_groups=4).collect()
    assert (rollout.n_groups, len(rollout.t)) == (4, 4 * 8 * 5)
    model = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 8), group_size=4, n_groups=3, n_steps=None, seed=0)
    rollout = model.collect()
    ends = rollout.terminated.view(-1, 4)
    assert rollout.n_groups == 3 and ends.all()
    assert model.rollout_buffer.pos < 256  # not looked at only every 2,048 steps


# ---------------------------------------------------------------- rollout and update


@pytest.mark.parametrize("make", [tsp_model, packing_model])
def test_the_rollout_holds_an_instance_once_per_group(make):
    model = make()
    rollout = model.collect()
    instance = rollout.instances if isinstance(rollout.instances, th.Tensor) else rollout.instances["value"]
    assert len(instance) == rollout.n_groups
    assert th.equal(rollout.instance, rollout.group)
    given = model.env.instance(group_seeds(model.groups.seed_word, rollout.seed_group))
    each = given if isinstance(given, th.Tensor) else given["value"]
    assert th.equal(instance[rollout.instance], each)
    assert not isinstance(rollout.instances, dict) or set(rollout.instances) == {"value"}


@pytest.mark.parametrize("make", [tsp_model, packing_model])
def test_log_probabilities_of_acting_are_those_of_the_update(make):
    model = make()
    model.collect()
    batch = model._training_batch.batch
    whole = some_instances(batch, 10**9)
    there = whole.episode >= 0
    log_prob = model.policy.log_prob(with_instances(whole.observations, whole.instances), whole.actions)
    assert there.sum() == len(batch.advantages)
    th.testing.assert_close(log_prob[there], whole.old_log_probs[there], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [tsp_model, packing_model])
def test_the_gradient_is_that_of_a_loop_over_rows(make):
    model = make(ent_coef=0.01, batch_size=1_000_000)
    model.collect()
    batch = model._training_batch.batch
    parameters = list(model.policy.parameters())
    loss = 0.0
    for row in range(len(batch.advantages)):
        own = map_obs(lambda x: x[batch.instance[row]].unsqueeze(0), batch.instances)  # noqa: B023
        obs = with_instances(map_obs(lambda x: x[row].unsqueeze(0), batch.observations), own)  # noqa: B023
        log_prob, entropy = model.policy.log_prob_and_entropy(obs, batch.actions[row].unsqueeze(0))
        ratio = (log_prob - batch.old_log_probs[row]).exp()
        loss = loss - (ratio * batch.advantages[row] + 0.01 * entropy).sum() / len(batch.advantages)
    expected = th.autograd.grad(loss, parameters)
    objective = model.objective()
    found = [th.zeros_like(p) for p in parameters]
    parts = list(minibatches(batch, len(batch.advantages) // 2))
    assert len(parts) == 2
    for part in parts:
        model.gradient(lambda b: objective(b, (0.2, 0.2)), part, parameters)
        found = [total + p.grad / 2 for total, p in zip(found, parameters, strict=True)]
    for a, b in zip(found, expected, strict=True):
        th.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_given_starts_are_the_instances_of_their_groups():
    model = tsp_model(group_kwargs={"starts": [5, 77]})
    rollout = model.collect()
    given = TSP(1, 6).instance(th.tensor([5, 77]))
    for cities in rollout.instances:
        assert (cities == given).all(dim=(1, 2)).any()
    first = rollout.observations[""][rollout.t == 0]
    assert len(first) == len(rollout.group)
    whole = some_instances(model._training_batch.batch, 10**9)
    log_prob = model.policy.log_prob(with_instances(whole.observations, whole.instances), whole.actions)
    th.testing.assert_close(log_prob, whole.old_log_probs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", ["shuffle", "function"])
def test_given_starts_keep_their_order_where_groups_are_of_unequal_length(order):
    """Envs of short groups are far ahead of the others; idle ones ask for no start."""
    requested = []

    def start_of(group):
        requested.append(group)
        return group % 7

    starts = dict(starts=start_of) if order == "function" else dict(starts=[3, 4, 5], starts_order="shuffle")
    model = packing_model(group_kwargs=starts, n_groups=60)
    wanted = GivenStarts(model.options.groups, model._base_seed, model.env)
    for _ in range(3):
        rollout = model.collect()
        groups = rollout.seed_group.unique_consecutive().tolist()
        n_queried = len(requested)
        seeds = th.tensor([group % 7 if order == "function" else wanted.number(group) + 3 for group in groups])
        assert th.equal(rollout.instances["value"], Packing(1).instance(seeds)["value"])
        assert n_queried == len(set(requested)) and min(requested, default=0) == 0


def test_groups_keep_their_instances_when_somebody_takes_the_envs_in_mid_rollout():
    model = packing_model(group_kwargs={"starts": [1, 2, 3]}, n_groups=12)
    steps = []

    def take_once(variables, _):
        steps.append(1)
        if len(steps) == 13:
            variables["self"].env.reset()
        return True

    rollout = model.collect(take_once)
    assert model.interruptions == 1
    expected = Packing(1).instance(rollout.seed_group.unique_consecutive() % 3 + 1)["value"]
    assert th.equal(rollout.instances["value"], expected)


def test_a_minibatch_holds_whole_groups_and_every_row_once():
    model = packing_model()
    model.collect()
    batch = model._training_batch.batch
    seen = []
    for part in minibatches(batch, 20):
        there = part.episode >= 0
        seen += part.episode[there].tolist()
        b = len(part.instances["value"])
        assert (part.instance.view(b, -1) == part.instance.view(b, -1)[:, :1]).all()
        assert not part.weights[~there].any()
    assert sorted(seen) == sorted(batch.episode.tolist())


def test_a_rollout_of_512_envs_of_tsp_50_takes_less_than_6_mb():
    model = GRPO(
        "SetPolicy", TSP(512, 50), group_size=8, n_groups=64, advantage="outcome", batch_size=4096,
        policy_kwargs={"width": 4, "n_layers": 1, "n_heads": 1}, seed=0,
    )  # fmt: skip
    rollout = model.collect()
    assert len(rollout.t) == 512 * 49
    columns = [x for c in model.rollout_buffer.steps.values() for x in (c.values() if isinstance(c, dict) else [c])]
    assert sum(x.numel() * x.element_size() for x in columns) < 6e6
    assert "next_observations" not in model.rollout_buffer.steps


# ---------------------------------------------------------------- SetPolicy


def test_padding_changes_nothing():
    space = InstanceSpace({"items": (6, 3), "padding": (6,)}, 1 + 1 + 6, pointers=1, per_item=1)
    th.manual_seed(0)
    policy = SetPolicy(space, spaces.Discrete(6), lambda _: 1e-3, **SMALL)
    items = th.randn(2, 6, 3)
    padding = th.tensor([[0, 0, 0, 0, 1, 1]] * 2).float()
    state = th.cat([th.tensor([[[1.0], [3.0]]] * 2), th.randn(2, 2, 1), th.randint(0, 2, (2, 2, 6)).float()], dim=2)
    short = th.cat([state[..., :2], state[..., 2:6]], dim=2)
    padded = policy.scores(policy.encode({"items": items, "padding": padding}), state)[..., :4]
    alone = policy.scores(policy.encode({"items": items[:, :4], "padding": padding[:, :4]}), short)
    th.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-5)
    items[:, 4:] = 99.0
    other = policy.scores(policy.encode({"items": items, "padding": padding}), state)[..., :4]
    th.testing.assert_close(padded, other, rtol=1e-4, atol=1e-5)


def test_the_order_of_the_items_changes_nothing():
    model = tsp_model()
    cities = th.rand(3, 6, 2)
    order = th.tensor([0, 3, 1, 5, 2, 4])
    visited = th.tensor([1.0, 0, 1, 0, 0, 1]).expand(3, 2, 6)
    state = th.cat([th.zeros(3, 2, 1), th.full((3, 2, 1), 2.0), visited], dim=2)
    moved = th.cat([th.zeros(3, 2, 1), th.full((3, 2, 1), 4.0), visited[..., order]], dim=2)
    scores = model.policy.scores(model.policy.encode(cities), state)
    other = model.policy.scores(model.policy.encode(cities[:, order]), moved)
    th.testing.assert_close(other, scores[..., order], rtol=1e-4, atol=1e-5)


def test_a_model_is_loaded_with_its_own_and_with_another_size(tmp_path):
    model = tsp_model()
    model.learn(320)
    model.save(tmp_path / "tsp")
    obs = TSP(3, 6).reset()
    for trusted in (True, False):
        same = GRPO.load(tmp_path / "tsp", TSP(32, 6), trusted=trusted)
        np.testing.assert_array_equal(
            same.predict(obs, deterministic=True, action_masks=np.ones((3, 6)))[0],
            model.predict(obs, deterministic=True, action_masks=np.ones((3, 6)))[0],
        )
        larger = GRPO.load(tmp_path / "tsp", TSP(32, 9), trusted=trusted)
        assert th.equal(larger.policy.embed.weight, model.policy.embed.weight)
        larger.learn(256)
        evaluate_policy(larger, TSP(4, 9), 4)


def test_a_resumed_run_goes_on_as_the_run_itself(tmp_path):
    model = packing_model()
    for _ in range(2):
        model.update(model.collect())
    model.save_run(tmp_path / "run")
    rollouts = [model.collect()]
    model.update(rollouts[0])
    resumed = GRPO.load_run(tmp_path / "run", Packing(16))  # random numbers go on, too
    rollouts.append(resumed.collect())
    resumed.update(rollouts[1])
    assert th.equal(rollouts[0].actions, rollouts[1].actions)
    assert th.equal(rollouts[0].instances["value"], rollouts[1].instances["value"])
    for a, b in zip(model.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert th.equal(a, b)


def test_equal_seeds_give_equal_weights_and_options_of_the_loss_work():
    options = dict(
        kl_coef=0.1, ent_coef=0.01, target_kl=1.0, advantage="step",
        loss_kwargs={"importance_level": "episode", "aggregation": "episode"},
    )  # fmt: skip
    models = [packing_model(**options).learn(200) for _ in range(2)]
    assert models[0].last_update.approx_kl >= 0
    for a, b in zip(models[0].policy.parameters(), models[1].policy.parameters(), strict=True):
        assert th.equal(a, b) and a.isfinite().all()


@pytest.mark.parametrize("options", [{}, {"n_groups": None, "n_steps": 3}])
def test_the_state_baseline_gets_the_features_of_every_step(options):
    model = packing_model(advantage="state", advantage_kwargs={"paired": True}, **options)
    for _ in range(2):
        rollout = model.collect()
        features = features_of(model.policy, rollout)
        assert features.steps.shape == (len(rollout.t), 16) and features.final.shape == (len(rollout.group), 16)
        row = len(rollout.t) - 1
        own = map_obs(lambda x: x[rollout.instance[-1]].unsqueeze(0), rollout.instances)  # noqa: B023
        obs = with_instances(map_obs(lambda x: x[row].unsqueeze(0), rollout.observations), own)  # noqa: B023
        th.testing.assert_close(features.steps[row], model.policy.features(obs)[0], rtol=1e-4, atol=1e-5)
        model.update(rollout)
    assert np.isfinite(model.last_metrics["train/explained_variance"])


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"update_kwargs": {"micro_batch_size": 8}}, "lower batch_size"),
        ({"rewards": {"bonus": CountBonus()}}, "leave the bonus out"),
        ({"group_size": 5}, "num_envs=20"),
    ],
)
def test_arguments_that_do_not_go_with_whole_groups_are_refused(arguments, remedy):
    with pytest.raises(ValueError, match=remedy):
        packing_model(**arguments)


def test_bad_envs_and_policies_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match="InstanceEnv"):
        GRPO("SetPolicy", "CartPole-v1", advantage="outcome")
    with pytest.raises(ValueError, match="at least 3"):
        TSP(2, 2)

    class Flat(Packing):
        def valid(self, instance, state):
            return (state[..., 1:] == 0).flatten(0, 1)

    with pytest.raises(ValueError, match=r"valid\(\) of Flat"):
        Flat(2)

    class Blind(SetPolicy):
        state_features = EncodingPolicy.state_features

    with pytest.raises(ValueError, match=r"override state_features"):
        tsp_model(Blind, advantage="state")

    class Narrow(SetPolicy):
        def scores(self, code, state):
            return super().scores(code, state)[..., :-1]

    with pytest.raises(ValueError, match=r"scores\(\) of Narrow"):
        tsp_model(Narrow).collect()


class DictPacking(gym.Wrapper):
    """A host env whose observation is a Dict with a static part."""

    def __init__(self):
        super().__init__(HostInstance(Packing(1)))
        self.observation_space = spaces.Dict(
            {"load": spaces.Box(0, 9, (1,)), "packed": spaces.Box(0, 1, (5,)), "value": spaces.Box(0, 1, (5,))}
        )

    def _parts(self, obs):
        return {"value": obs[:5], "load": obs[5:6], "packed": obs[6:]}

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return self._parts(obs), info

    def step(self, action):
        obs, *rest = self.env.step(action)
        return self._parts(obs), *rest

    def action_masks(self):
        return self.env.action_masks()


@pytest.mark.parametrize("advantage", ["outcome", "state"])
def test_host_envs_with_a_static_part_are_encoded_once_per_minibatch(advantage):
    kwargs = {**SMALL, "static_keys": ["value"], "per_item": 1}
    policies = {}
    for make, policy_kwargs in ((DictPacking, kwargs), (lambda: HostInstance(Packing(1)), SMALL)):
        model = GRPO(
            Counting, make_vec_env(make, 2, seed=0), group_size=2, n_groups=4, advantage=advantage, batch_size=1_000,
            n_epochs=1, seed=2, policy_kwargs=policy_kwargs, device="cpu",
        )  # fmt: skip
        rollout = model.collect()
        assert rollout.n_groups >= 4 and len(rollout.instances["value"]) == rollout.n_groups
        assert rollout.observations[""].shape == (len(rollout.t), 6)
        model.policy.encoded = []
        model.update(rollout)
        n_learnt = int(model._training_batch.batch.instance.unique().numel())
        assert model.policy.encoded == [n_learnt, n_learnt]
        policies[make] = model.policy
    for a, b in zip(*(policy.parameters() for policy in policies.values()), strict=True):
        assert th.equal(a, b)  # the same episodes, read in two ways


class WithMap(DictPacking):
    """A further static part of 1,000 numbers."""

    def __init__(self, drifts=False):
        super().__init__()
        self.drifts = drifts
        self.observation_space = spaces.Dict({**self.observation_space.spaces, "map": spaces.Box(0, 9, (1_000,))})

    def _parts(self, obs):
        map_of_load = obs[5] * self.drifts + np.linspace(obs[0], obs[1], 1_000, dtype=np.float32)
        return {**super()._parts(obs), "map": map_of_load}


class EveryStep(GroupRolloutBuffer):
    """A buffer that holds static keys at every step."""

    def keep_once(self, keys):
        pass


def map_model(advantage="outcome", drifts=False, **options):
    kwargs = {**SMALL, "static_keys": ["value", "map"], "per_item": 1}
    return GRPO(
        "SetPolicy", make_vec_env(lambda: WithMap(drifts), 3, seed=0), group_size=4, advantage=advantage, batch_size=20,
        n_epochs=1, seed=2, policy_kwargs=kwargs, device="cpu", **options,
    )  # fmt: skip


@pytest.mark.parametrize("advantage", ["outcome", "state"])
def test_a_rollout_of_host_envs_holds_static_keys_once_per_episode(advantage):
    """7 steps per env are no multiple of an episode or a group, so both go on in the next rollout."""
    models = [map_model(advantage, n_steps=7, rollout_buffer_class=kind).learn(105) for kind in (None, EveryStep)]
    for a, b in zip(*(model.policy.parameters() for model in models), strict=True):
        assert th.equal(a, b)

    once, every = (model.rollout_buffer for model in models)
    state_bytes = 4 * (1 + 5 + 5)  # load, packed, mask
    steps = once.buffer_size * once.n_envs

    def bytes_per_step(buffer):
        return sum(column.nbytes for column in buffer.steps["observations"].values()) / steps

    assert bytes_per_step(once) <= state_bytes and bytes_per_step(every) - bytes_per_step(once) == 4 * (5 + 1_000)
    episode_ids = once.steps["episode_ids"][: once.pos].unique().tolist()
    assert sorted(once._static) == episode_ids
    assert all(parts["map"].untyped_storage().nbytes() == 4_000 for parts in once._static.values())


def test_waiting_episodes_of_a_saved_model_keep_their_static_keys(tmp_path):
    model = map_model(n_steps=7).learn(42)
    assert model.rollout_buffer.n_kept > 0
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=make_vec_env(WithMap, 3, seed=0))
    assert loaded.collect().instances["map"].shape[1:] == (1_000,)


def test_a_static_key_that_changes_is_refused_before_the_update():
    with pytest.raises(ValueError, match="'map' of env 0 changes within an episode"):
        map_model(drifts=True).learn(42)


@pytest.mark.slow
def test_grpo_learns_tours_that_are_shorter_than_the_nearest_neighbours():
    """Random tours of 10 cities have a length of 5.2, nearest neighbours 3.16, the best ones 2.87."""
    model = GRPO(
        "SetPolicy", TSP(128, 10), group_size=8, n_groups=16, advantage="outcome", learning_rate=1e-3, batch_size=576,
        n_epochs=3, seed=0, device="cpu",
    ).learn(60_000)  # fmt: skip
    mean, _ = evaluate_policy(model, TSP(64, 10), 256)
    assert -mean < 3.10
