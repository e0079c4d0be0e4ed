"""Bad input: a ValueError that names value, rule and remedy, before the first step. Bad numbers from an env or a policy: an
error where they appear, and nothing that learns is spoilt."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import make_dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticPolicy as PPOPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb_grpo import GRPO, CountBonus, GroupRolloutBuffer, MlpPolicy, RNDBonus, State
from sb_grpo.callbacks import HealthCallback, HealthWarning, RecoveryCallback
from sb_grpo.config import OPTIONS, RANGES, READ_ONCE, UpdateOptions, integer
from sb_grpo.envs import make_tensor_env
from sb_grpo.learn.last_good import rollback_on_error
from sb_grpo.maths.normalizer import RunningNormalizer
from sb_grpo.metrics import as_shown
from sb_grpo.types import Breakdown
from sb_grpo.validation import NEVER_CALLED
from tests.helpers import BrokenEnv, ProbeEnv, SpaceEnv


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        (dict(group_size=0), "group_size=0 .* at least 1"),
        (dict(group_size=1, normalize_advantage="group"), "group_size=1 .*normalize_advantage='batch'"),
        (dict(group_size=1, advantage="outcome", normalize_advantage="none"), "no other members.*baseline='global'"),
        (dict(advantage="outcomes"), "advantage='outcomes' is unknown.*'state'"),
        (dict(advantage="outcome", advantage_kwargs=dict(baseline="modus")), "baseline='modus' is unknown.*median"),
        (dict(normalize_advantage="std"), "normalize_advantage='std' is unknown.*'group'"),
        (dict(group_size=2.5), "group_size=2.5 must be an integer"),
        (dict(n_groups=1.5), "n_groups=1.5 must be an integer, .*, or None"),
        (dict(gamma="x"), "gamma='x' must be a number"),
        (dict(ent_coef=None), "ent_coef=None must be a number"),
        (dict(ent_coef=float("nan")), "ent_coef=nan"),
        (dict(kl_coef=float("nan")), "kl_coef=nan"),
        (dict(clip_range=float("nan")), "clip_range=nan"),
        (dict(clip_range=None), "clip_range=None must be a number in .* or a function"),
        (dict(learning_rate="linear"), "learning_rate='linear' must be a number in .* or a function"),
        (dict(learning_rate=-1.0), "learning_rate=-1.0"),
        (dict(policy=PPOPolicy), "ActorCriticPolicy has a critic"),
        (dict(policy="MultiInputPolicy"), "MultiInputPolicy is for Dict observations"),
        (dict(loss="ppo"), "loss='ppo' is unknown"),
        (dict(loss_kwargs=dict(aggregation="token")), "aggregation='token' is unknown"),
        (dict(loss_kwargs=dict(importance_level="sequence")), "importance_level='sequence' is unknown"),
        (dict(rewards=dict(scaling="log")), "rewards: scaling='log' is unknown"),
        (dict(advantage="step", advantage_kwargs=dict(ended_members="keep")), "ended_members='keep' is unknown"),
        (dict(n_steps=128, n_groups=2), "pass one of them, and None for the other"),
        (dict(n_groups=0), "n_groups=0"),
        (dict(ent_coef=-0.1), "ent_coef=-0.1"),
        (dict(kl_coef=-1.0), "kl_coef=-1.0"),
        (dict(clip_range=-0.2), "clip_range=-0.2"),
        (dict(loss_kwargs=dict(clip_range_high=-0.2)), "clip_range_high=-0.2"),
        (dict(loss_kwargs=dict(ratio_cap=0.0)), "ratio_cap=0.0 must be a positive number"),
        (dict(target_kl=0.0), "target_kl=0.0 must be a positive number"),
        (dict(max_grad_norm=0.0), "max_grad_norm=0.0 must be a positive number"),
        (dict(rewards=dict(clip=-1.0)), "rewards: clip=-1.0"),
        (dict(gamma=1.1), "gamma=1.1 must be a number in .0, 1.*; 0.995 is usual"),
        (dict(gae_lambda=-0.1), "gae_lambda=-0.1 must be a number in .0, 1."),
        (dict(n_epochs=0), "n_epochs=0"),
        (dict(update_kwargs=dict(micro_batch_size=128)), "micro_batch_size=128 is larger than batch_size=64"),
        (dict(update_kwargs=dict(micro_batch_size=8), loss_kwargs=dict(importance_level="episode")), "lower batch_size"),
        (dict(loss_kwargs=dict(ref_sync_interval=0)), "ref_sync_interval=0"),
        (dict(loss_kwargs=dict(ref_sync_interval=2)), "no effect with kl_coef=0"),
        (dict(loss_kwargs=dict(ratio_cap=3.0), loss="cispo"), "unknown key 'ratio_cap'.*loss='cispo' takes"),
        (dict(loss_kwargs=dict(clip_range_high=0.3), loss="sapo"), "clip_range_high=0.3 has no effect .*temperature_pos"),
        (dict(loss_kwargs=dict(temperature_neg=0.0), loss="sapo"), "temperature_neg=0.0 must be a number in .0.001, 1000"),
        (dict(loss_kwargs=dict(kl_correction=True)), "kl_correction=True has no effect with kl_coef=0"),
        (dict(loss_kwargs=dict(advantage_clip=0.0)), "advantage_clip=0.0 must be a positive number"),
        (dict(update_kwargs=dict(micro_batch_size=8), loss_kwargs=dict(importance_level="turn")), "'turn' needs whole: lower"),
        (dict(loss_kwargs=dict(ratio_cap=1.1)), "ratio_cap=1.1 must be larger than .* 1.2"),
        (dict(advantage_kwargs=dict(memory=0.5), advantage="step"), "unknown key 'memory'.*='step' takes .'baseline', 'ended"),
        (dict(advantage_kwargs=dict(window=2)), "unknown key 'window'.*advantage='state' takes .'anchor'"),
    ],
    ids=lambda x: "-".join(f"{k}={v}" for k, v in x.items()) if isinstance(x, dict) else "",
)
def test_arguments(kwargs, says):
    with pytest.raises(ValueError, match=says):
        GRPO(**{"policy": "MlpPolicy", "env": "CartPole-v1", **kwargs})


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (5, "env=5 is a int: GRPO takes a gymnasium.Env, an SB3 VecEnv or, in its constructor, an env id"),
        (None, "env=None"),
        ("vector", "instead of gymnasium.make_vec.*GymnasiumVectorEnv"),
    ],
)
def test_things_that_are_no_env(env, says):
    with pytest.raises(ValueError, match=says):
        GRPO("MlpPolicy", gym.make_vec("CartPole-v1", 2) if env == "vector" else env)


def test_ids_are_for_the_constructor(tmp_path):
    """As PPO's; the env is asked for where a model has to be given one."""
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=8, device="cpu").learn(8)
    model.save(tmp_path / "m")
    model.save_run(tmp_path / "run")
    for give in (partial(GRPO.load, tmp_path / "m"), partial(GRPO.load_run, tmp_path / "run"), model.set_env):
        with pytest.raises(ValueError, match=r"env='CartPole-v1' is an env id: only .* must be given the env.*gymnasium.make"):
            give(env="CartPole-v1")


def test_a_name_of_trpos_or_a2cs_step_is_unknown_with_a_remedy():
    for name, says in (
        ("cg_max_steps", "a setting of TRPO's step, .* Leave it out; target_kl"),
        ("sub_sampling_factor", "a setting of TRPO's step"),
        ("use_rms_prop", "a setting of A2C's optimiser.*optimizer_class=torch.optim.RMSprop"),
    ):
        with pytest.raises(TypeError, match=rf"GRPO got an unexpected keyword argument '{name}': {name}=3 is {says}"):
            GRPO("MlpPolicy", "CartPole-v1", **{name: 3})


def test_what_the_constructor_cannot_take_is_said_with_its_name():
    with pytest.raises(TypeError, match=r"^GRPO got .* argument 'ent_coeff'; did you mean 'ent_coef'\?$"):
        GRPO("MlpPolicy", "CartPole-v1", ent_coeff=0.1)
    with pytest.raises(TypeError, match=r"^GRPO got an unexpected keyword argument 'zzz'\.$"):
        GRPO("MlpPolicy", "CartPole-v1", zzz=0.1)
    with pytest.raises(TypeError, match=r"^GRPO.__init__\(\) missing 1 required positional argument: 'env'"):
        GRPO("MlpPolicy")
    with pytest.raises(TypeError, match=r"^GRPO.__init__\(\) got multiple values for argument 'env'"):
        GRPO("MlpPolicy", "CartPole-v1", env="CartPole-v1")


@pytest.mark.parametrize("name", ["vf_coef", "clip_range_vf"])
def test_arguments_of_a_critic_are_unknown_with_a_remedy(name, tmp_path):
    GRPO("MlpPolicy", "CartPole-v1", device="cpu").save(tmp_path / "m")
    for make in (partial(GRPO, "MlpPolicy", "CartPole-v1"), partial(GRPO.load, tmp_path / "m")):
        with pytest.raises(TypeError, match=rf"unexpected keyword argument '{name}': {name}=0.5 .* no critic. Leave it out"):
            make(**{name: 0.5})

    class WithCritic(GRPO):
        """Who names it himself has a use for it."""

        def __init__(self, *args, **kwargs):
            self.given = kwargs.pop(name)
            super().__init__(*args, **kwargs)

    assert WithCritic("MlpPolicy", "CartPole-v1", **{name: 0.5}).given == 0.5


def test_parameters_of_ppo_in_a_dict_are_told_from_ours():
    model = GRPO("MlpPolicy", "CartPole-v1", device="cpu")
    before = {name: p.clone() for name, p in model.policy.state_dict().items()}
    ppos = PPO("MlpPolicy", "CartPole-v1", device="cpu").get_parameters()
    for given in (ppos, dict(reversed(ppos.items()))):
        with pytest.raises(ValueError, match=r"value_net.* a policy with a critic, as PPO's, .*load_actor\(model.policy"):
            model.set_parameters(given)
    th.testing.assert_close(model.policy.state_dict(), before, rtol=0, atol=0)


def test_parameters_that_are_missing_or_do_not_fit_are_named():
    model = GRPO("MlpPolicy", "CartPole-v1", device="cpu")
    own = model.get_parameters()
    with pytest.raises(ValueError, match=r"no parameters of 'policy.optimizer', .*exact_match=False"):
        model.set_parameters({"policy": own["policy"]})
    model.set_parameters({"policy": own["policy"]}, exact_match=False)
    with pytest.raises(ValueError, match=r"no parameters of 'estimator', .*exact_match=False"):
        model.set_parameters({name: state for name, state in own.items() if name != "estimator"})
    with pytest.raises(ValueError, match="parameters of 'ref_policy', which this model does not have: leave them out"):
        model.set_parameters({**own, "ref_policy": own["policy"]})
    other = GRPO("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs=dict(net_arch=[8])).get_parameters()
    for exact in (True, False):
        with pytest.raises(ValueError, match=r"do not fit the model: .*size mismatch.* same spaces and policy_kwargs"):
            model.set_parameters(other, exact_match=exact)


def everything(model: GRPO) -> dict[str, th.Tensor]:
    """Copies of all tensors of ``get_parameters()``, moments included."""
    flat: dict[str, th.Tensor] = {}

    def take(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            [take(f"{name}.{key}", part) for key, part in value.items()]
        elif isinstance(value, th.Tensor):
            flat[name] = value.detach().clone()

    take("", model.get_parameters())
    return flat


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", ["estimator", "ref_policy", "policy.optimizer", "bonus", "no_such_module", "kl_coef"])
def test_parameters_that_are_refused_change_nothing(name, exact):
    """What does not fit comes last, when all else has been loaded: of another size, no dict, or unknown."""
    kwargs = dict(n_steps=64, n_epochs=1, device="cpu", kl_coef=0.1, rewards=dict(bonus=RNDBonus()))
    model, other = (GRPO("MlpPolicy", "CartPole-v1", seed=seed, **kwargs).learn(64) for seed in (0, 1))
    others, before = other.get_parameters(), everything(model)
    wrong: list[Any] = [3, None, [1]]
    if name == "policy.optimizer":
        moments = {k: {**v, "exp_avg": th.zeros(3)} for k, v in others[name]["state"].items()}
        wrong += [{}, {**others[name], "state": moments}]
    elif name in others:
        wrong.append({key: th.zeros(5, 5, 5) for key in others[name]})
        if exact:
            wrong += [{}, {"no_such_name": th.zeros(2)}, {**others[name], "no_such_name": th.zeros(2)}]
    for state in wrong:
        with pytest.raises(ValueError, match=r"do not fit the model|which this model does not have"):
            model.set_parameters({**{key: x for key, x in others.items() if key != name}, name: state}, exact)
        now = everything(model)
        assert now.keys() == before.keys() and all(th.equal(now[key], before[key]) for key in before)
    model.set_parameters(others)
    assert all(th.equal(x, everything(other)[key]) for key, x in everything(model).items())


@pytest.mark.parametrize("beside", [(), ("policy",)])
def test_a_part_of_a_module_is_taken_and_the_others_are_left_alone(beside):
    """The reference policy that nobody named among them."""
    kwargs = dict(n_steps=64, device="cpu", kl_coef=0.1)
    model, other = (GRPO("MlpPolicy", "CartPole-v1", seed=seed, **kwargs) for seed in (0, 1))
    whole, before = other.get_parameters(), everything(model)
    ridge = whole["estimator"]["ridge"] + 1
    model.set_parameters({**{name: whole[name] for name in beside}, "estimator": {"ridge": ridge}}, exact_match=False)
    now = everything(model)
    moved = {name for name in before if not th.equal(now[name], before[name])}
    assert th.equal(now[".estimator.ridge"], ridge) and ".estimator.ridge" in moved
    assert all(name.startswith((".estimator.ridge", *(f".{part}." for part in beside))) for name in moved)
    assert len(moved) > len(beside)


def test_a_file_without_a_reference_leaves_one_that_was_named(tmp_path):
    kwargs = dict(n_steps=64, device="cpu")
    saved, teacher = (GRPO("MlpPolicy", "CartPole-v1", seed=seed, **kwargs) for seed in (0, 1))
    saved.save(tmp_path / "model")
    for loss_kwargs, expected in ((None, saved), (dict(ref_policy=teacher), teacher)):
        model = GRPO("MlpPolicy", "CartPole-v1", seed=2, kl_coef=0.1, loss_kwargs=loss_kwargs, **kwargs)
        model.set_parameters(tmp_path / "model")
        found, wanted = model.ref_policy.state_dict(), expected.policy.state_dict()
        assert all(th.equal(found[name], wanted[name]) for name in wanted)


def test_a_policy_that_is_frozen_as_a_whole_is_named():
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=32, device="cpu")
    model.policy.requires_grad_(False)
    with pytest.raises(ValueError, match=r"requires_grad=False for every parameter of the policy.* leave some of them"):
        model.learn(32)
    model.policy.action_net.requires_grad_(True)
    model.learn(32)


@pytest.mark.parametrize(
    "value", [None, "1000", -1, -0.5, math.nan, -math.inf, True, [64], {}, 10**400, 1j, th.zeros(2)], ids=repr
)
def test_a_number_of_steps_that_is_none_is_refused_before_anything_moves(value):
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=32, device="cpu")
    with pytest.raises(ValueError, match=r"total_timesteps=.* must be a number in \[0, inf\]; pass the number of env steps"):
        model.learn(value)
    assert model.num_timesteps == 0 and model.groups is None


@pytest.mark.parametrize(("value", "steps"), [(0, 0), (33.5, 64), (np.int64(64), 64), (th.tensor(32), 32), (math.inf, 40)])
def test_a_number_of_steps_may_be_of_any_kind(value, steps):
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=32, device="cpu")
    model.learn(value, callback=lambda *_: model.num_timesteps < 40 or value != math.inf)
    assert model.num_timesteps == steps


@pytest.mark.parametrize("value", [0, -1, 0.5, True, "1"])
def test_log_interval(value):
    """0 divided by zero after the first rollout."""
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=32, device="cpu")
    with pytest.raises(ValueError, match=rf"log_interval={value!r} must be an integer, at least 1 .*or None"):
        model.learn(32, log_interval=value)
    assert model.num_timesteps == 0
    model.learn(32, log_interval=None)


def test_learning_without_an_env_names_set_env(tmp_path):
    GRPO("MlpPolicy", "CartPole-v1").save(tmp_path / "m")
    with pytest.raises(ValueError, match="set_env"):
        GRPO.load(tmp_path / "m").learn(100)


@pytest.mark.parametrize("result", [1.0, np.zeros(3), th.zeros(3, 1)], ids=["float", "numpy", "shape"])
def test_an_advantage_function_that_returns_something_else(result):
    model = GRPO("MlpPolicy", "CartPole-v1", advantage=lambda rollout, options: result, n_steps=64)
    with pytest.raises(ValueError, match="must return a torch tensor with one number per step"):
        model.learn(100)


def test_nan_in_the_very_first_observation():
    class BornBroken(ProbeEnv):
        def reset(self, *, seed=None, options=None):
            obs, info = super().reset(seed=seed)
            return obs * np.nan, info

    with pytest.raises(ValueError, match=r"observation of env 0 .* at vector step 0"):
        GRPO("MlpPolicy", BornBroken("action"), n_steps=64).learn(64)


def test_ppos_booleans_are_understood():
    assert GRPO("MlpPolicy", "CartPole-v1", normalize_advantage=True).normalize_advantage == "group"
    assert GRPO("MlpPolicy", "CartPole-v1", advantage="outcome").normalize_advantage == "group"  # DeepSeekMath's
    assert GRPO("MlpPolicy", "CartPole-v1").normalize_advantage == "batch"  # rollouts of "state" hold parts of groups
    assert GRPO("MlpPolicy", "CartPole-v1", normalize_advantage=False).normalize_advantage == "none"


@pytest.mark.parametrize(
    ("observation_space", "action_space", "says"),
    [
        (spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}), spaces.Discrete(2), "observation space Dict.*one level"),
        (spaces.Tuple([spaces.Discrete(2)]), spaces.Discrete(2), "observation space Tuple"),
        (spaces.Discrete(2), spaces.Tuple([spaces.Discrete(2)]), "action space Tuple.*MultiBinary"),
        (spaces.Discrete(2), spaces.Box(-np.inf, np.inf, (1,)), "action space Box.*finite"),
    ],
    ids=["nested", "tuple", "action-tuple", "unbounded"],
)
def test_unsupported_spaces(observation_space, action_space, says):
    with pytest.raises(ValueError, match=says):
        GRPO("MultiInputPolicy", SpaceEnv(observation_space, action_space))


def test_mlp_policy_on_dict_observations_names_multi_input():
    with pytest.raises(ValueError, match="MultiInputPolicy"):
        GRPO("MlpPolicy", SpaceEnv(spaces.Dict({"a": spaces.Discrete(2)}), spaces.Discrete(2)))


class Endless(ProbeEnv):
    def __init__(self):
        super().__init__("action", length=10**9)


@pytest.mark.parametrize("advantage", ["outcome", *(pytest.param(x, marks=pytest.mark.slow) for x in ("process", "step"))])
def test_whole_episodes_on_an_endless_env(advantage):
    model = GRPO("MlpPolicy", Endless(), advantage=advantage)
    weights = [p.detach().clone() for p in model.policy.parameters()]
    with pytest.raises(ValueError, match=r"max_episode_steps=1000.*advantage='state'"):
        model.learn(20_000)
    assert all((a == b).all() for a, b in zip(weights, model.policy.parameters(), strict=True))


def test_state_trains_on_an_endless_env():
    GRPO("MlpPolicy", Endless(), n_steps=128, n_epochs=1).learn(256)


def test_strict_monitor_matters_only_for_a_reset_in_mid_episode():
    env = Monitor(gym.make("CartPole-v1"), allow_early_resets=False)
    model = GRPO("MlpPolicy", env, n_steps=70, n_epochs=1, seed=0).learn(70)
    with pytest.raises(ValueError, match="reset_num_timesteps=False"):
        model.learn(70)
    model.learn(70, reset_num_timesteps=False)


@pytest.mark.parametrize("where", ["reward", "observation"])
@pytest.mark.parametrize("normalize", [False, True])
def test_nan_from_the_env_is_located_and_nothing_is_lost(where, normalize, tmp_path):
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = DummyVecEnv([lambda: ProbeEnv("action"), lambda: BrokenEnv(where)])
    if normalize:
        env = VecNormalize(env)
    model = GRPO("MlpPolicy", env, n_steps=64, n_epochs=1, group_size=2, seed=0)
    with pytest.raises(ValueError, match=f"{where} of env 1 .of 2. is not finite at vector step 71 "):
        model.learn(1000)
    assert all(np.isfinite(p.detach().numpy()).all() for p in model.policy.parameters()) and model._n_updates == 1
    if normalize:
        assert np.isfinite(env.obs_rms.var).all() and np.isfinite(env.ret_rms.var) and np.isfinite(env.returns).all()
    model.save(tmp_path / "last_good")
    assert GRPO.load(tmp_path / "last_good").predict(np.zeros(2, dtype=np.float32))


def test_nan_in_one_key_of_a_dict_observation_is_named():
    class BrokenDict(SpaceEnv):
        def step(self, action):
            obs, *rest = super().step(action)
            return ({**obs, "b": obs["b"] * np.nan}, *rest)

    env = BrokenDict(spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,), np.float32)}), spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"observation\['b'\] of env 0"):
        GRPO("MultiInputPolicy", env, n_steps=64).learn(64)


def test_large_but_finite_values_pass():
    class Huge(ProbeEnv):
        def step(self, action):
            _, reward, *rest = super().step(action)
            return (np.full(2, 3e38, dtype=np.float32), reward, *rest)

    GRPO("MlpPolicy", Huge("action"), n_steps=64, n_epochs=1, advantage="step", group_size=2).learn(64)


def test_advantages_that_are_not_finite_are_located():
    env = make_vec_env("CartPole-v1", 2)
    model = GRPO("MlpPolicy", env, advantage=lambda rollout, options: rollout.rewards / 0.0, n_steps=64)
    with pytest.raises(ValueError, match=r"advantage .* of step 0 of an episode in group 0"):
        model.learn(100)


def test_a_rollout_that_does_not_fill_a_minibatch_is_one(recwarn):
    with pytest.warns(UserWarning, match="n_steps=32 x n_envs=1 gives 32 steps, too few for one minibatch of batch_size=64"):
        model = GRPO("MlpPolicy", "CartPole-v1", n_steps=32, n_epochs=2)
    recwarn.clear()
    model.learn(64)
    assert model.last_update.n_gradient_steps == 2
    assert [w for w in recwarn if "too few" in str(w.message)] == []  # said once


class Cards(gym.Env):
    """Counts from 2; with ``parts`` in a Dict beside a MultiDiscrete that counts from 5 and 0."""

    action_space = spaces.Discrete(2)

    def __init__(self, parts: bool = False) -> None:
        one = spaces.Discrete(19, start=2)
        two = spaces.MultiDiscrete([3, 4], start=[5, 0])
        self.observation_space = spaces.Dict(one=one, two=two) if parts else one

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), float(action), self.t == 10, False, {}


@pytest.mark.parametrize("parts", [False, True])
def test_observations_that_count_from_another_number(parts):
    policy = "MultiInputPolicy" if parts else "MlpPolicy"
    model = GRPO(policy, Cards(parts), n_steps=128, rewards=dict(bonus=CountBonus())).learn(256)
    low = {"one": np.array([2]), "two": np.array([[5, 0]])} if parts else np.array([2])
    features = model.policy.features(model.policy.obs_to_tensor(low)[0])
    assert features.sum() == (3 if parts else 1) and features[0, 0] == 1  # one-hot, at the first place
    model.predict(low)


def test_forms_of_net_arch():
    with pytest.warns(UserWarning, match="form before version 1.8"):
        old = GRPO("MlpPolicy", "CartPole-v1", policy_kwargs=dict(net_arch=[dict(pi=[8, 4], vf=[16])]))
    assert old.policy.net_arch == [8, 4]
    with pytest.warns(UserWarning, match="there is no critic to share it with"):
        GRPO("MlpPolicy", "CartPole-v1", policy_kwargs=dict(share_features_extractor=False))
    for wrong in ([0], [8, -1], ["8"], 64):
        with pytest.raises(ValueError, match=r"net_arch=.* must be a list of layer sizes from 1 on"):
            GRPO("MlpPolicy", "CartPole-v1", policy_kwargs=dict(net_arch=wrong))


def test_numpy_numbers_and_flags_are_numbers_and_flags():
    numbers = dict(
        seed=np.int64(5), learning_rate=np.float32(1e-3), n_steps=np.int32(64), use_sde=np.False_, gamma=np.float64(0.9)
    )
    model = GRPO("MlpPolicy", "CartPole-v1", **numbers).learn(64)
    assert type(model.seed) is int and type(model.gamma) is float and model.use_sde is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_range", FloatSchedule(0.01)),
        ("clip_range", 0.01),
        ("ent_coef", 0.5),
        ("n_epochs", 1),
        ("lr_schedule", lambda _: 1e-2),
        ("target_kl", 1e-6),
        ("kl_coef", 5.0),
        ("max_grad_norm", 1e-3),
        ("batch_size", 16),
        ("gamma", 0.5),
        ("gae_lambda", 0.1),
    ],
)
def test_what_is_changed_between_updates_counts(name, value):
    """By a callback or by hand, as with SB3's PPO: the update before the change is the same, the one after it is not."""

    class Change(BaseCallback):
        def _on_rollout_start(self):
            after.append(th.cat([p.detach().flatten().clone() for p in self.model.policy.parameters()]))
            if self.change and len(after) == 2:
                setattr(self.model, name, value)

        def _on_step(self):
            return True

    found = []
    for change in (False, True):
        after, callback = [], Change()
        callback.change = change
        model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), n_steps=64, batch_size=64, seed=0, device="cpu")
        model.learn(3 * 128, callback)
        after.append(th.cat([p.detach().flatten() for p in model.policy.parameters()]))
        found.append(after)
    plain, changed = found
    assert plain[1].equal(changed[1]) and not plain[-1].equal(changed[-1])


@pytest.mark.parametrize(
    "name, value",
    [
        ("advantage", "outcome"),
        ("advantage_kwargs", dict(paired=True)),
        ("loss", "cispo"),
        ("loss_kwargs", dict(clip_range_high=0.3)),
        ("group_kwargs", dict(shared_noise=False)),
        ("update_kwargs", dict(micro_batch_size=8)),
        ("multitask", dict(tasks=2)),
        ("rewards", dict(scaling="tanh")),
        ("compile", True),
    ],
)
def test_what_is_read_once_cannot_be_changed_by_hand(name, value, tmp_path):
    """It would have no effect, but be in the settings and in the zip. The way that the message names has one."""
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), n_steps=64, batch_size=64, seed=0, device="cpu")
    assert name in READ_ONCE
    model.learn(128)
    before = th.cat([p.detach().flatten() for p in model.policy.parameters()]).clone()
    setattr(model, name, value)
    with pytest.raises(ValueError, match=rf"^{name}=.* was set by hand, .* built with .*GRPO.load\(path, env, {name}="):
        model.learn(128, reset_num_timesteps=False)
    assert th.cat([p.detach().flatten() for p in model.policy.parameters()]).equal(before)
    setattr(model, name, GRPO("MlpPolicy", "CartPole-v1", device="cpu").settings[name])
    model.learn(128, reset_num_timesteps=False)
    if name != "multitask":  # needs an env with tasks
        model.save(tmp_path / "model")
        assert GRPO.load(tmp_path / "model", make_vec_env("CartPole-v1", 2), **{name: value}).settings[name] == value


def test_a_change_in_place_of_what_is_read_once_is_seen_too():
    class Change(BaseCallback):
        def _on_rollout_end(self):
            self.model.rewards["scaling"] = "tanh"

        def _on_step(self):
            return True

    model = GRPO("MlpPolicy", "CartPole-v1", rewards=dict(scaling="clip"), n_steps=64, device="cpu")
    with pytest.raises(ValueError, match=r"rewards=.*'tanh'.* was set by hand, but the model was built with .*'clip'"):
        model.learn(128, Change())


@pytest.mark.parametrize("writer", [PPO, A2C, DQN], ids=lambda kind: kind.__name__)
def test_a_zip_of_another_algorithm_is_named(writer, tmp_path):
    writer("MlpPolicy", "CartPole-v1", device="cpu").save(tmp_path / "other")
    for load in (GRPO.load, partial(GRPO.load, trusted=False), GRPO("MlpPolicy", "CartPole-v1", device="cpu").set_parameters):
        with pytest.raises(
            ValueError, match=rf"other.* was written by {writer.__name__}, .* not by GRPO: load it with {writer.__name__}.load"
        ):
            load(tmp_path / "other")


@pytest.mark.parametrize(
    "kwargs", [{}, dict(n_steps=64), dict(n_steps=64, advantage="outcome")], ids=["usual", "n_steps", "outcome"]
)
def test_a_zip_of_ours_says_so_to_other_algorithms(kwargs, tmp_path):
    model = GRPO("MlpPolicy", "CartPole-v1", device="cpu", **kwargs)
    model.save(tmp_path / "ours")
    assert model.rollout_buffer_class is None
    for reader in (PPO, A2C):
        with pytest.raises(ValueError, match=r"written by sb_grpo's GRPO, .*GRPO.load\(path\)"):
            reader.load(tmp_path / "ours")
    for trusted in (True, False):
        assert GRPO.load(tmp_path / "ours", trusted=trusted).rollout_buffer_class is None


class _Scores(BaseFeaturesExtractor):
    calls = 0

    def __init__(self, space, n=4):
        super().__init__(space, n)
        self.layer = th.nn.Linear(4, n)

    def forward(self, obs):
        type(self).calls += 1
        return self.layer(obs)


class _Made(MlpPolicy):
    def make_features_extractor(self):
        return _Scores(self.observation_space, 8)


class _Extracting(MlpPolicy):
    def extract_features(self, obs, features_extractor=None):
        _Scores.calls += 1
        return super().extract_features(obs, features_extractor)


@pytest.mark.parametrize("policy", [_Made, _Extracting, MlpPolicy])
def test_a_policys_own_way_to_extract_features_is_used(policy):
    _Scores.calls = 0
    model = GRPO(policy, "CartPole-v1", n_steps=64, seed=0, device="cpu")
    if policy is MlpPolicy:
        model.policy.features_extractor = _Scores(model.observation_space)
    model.learn(64)
    assert _Scores.calls > 64


@pytest.mark.parametrize("name", NEVER_CALLED)
def test_a_method_of_a_policy_that_is_never_called_is_named(name, recwarn):
    """It may be meant for other callers, so that the policy trains; where what is called is there too nothing is said."""
    used = NEVER_CALLED[name][0]
    between = type("Between", (MlpPolicy,), {name: getattr(MlpPolicy, name, lambda self: None)})
    with pytest.warns(UserWarning, match=rf"policy=Own has a {name}\(\) of its own.*What counts is {used}\(\)"):
        GRPO(type("Own", (between,), {}), "CartPole-v1", n_steps=32, device="cpu").learn(32)
    recwarn.clear()
    GRPO(type("Both", (between,), {used: getattr(MlpPolicy, used)}), "CartPole-v1", n_steps=32, device="cpu")
    assert not [w for w in recwarn if "of its own" in str(w.message)]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_predict_makes_no_action_of_what_is_no_number(env_id):
    model = GRPO("MlpPolicy", env_id, device="cpu")
    obs = model.observation_space.sample()
    model.predict(obs)
    with pytest.raises(ValueError, match=r"predict\(\): the observation holds NaN.*the env or a wrapper"):
        model.predict(np.full_like(obs, np.nan))
    if env_id == "Pendulum-v1":
        model.policy.log_std.data.fill_(np.nan)
        with pytest.raises(ValueError, match=r"predict\(\): the action holds NaN.*the policy's weights"):
            model.predict(obs)


@pytest.mark.parametrize("tensorboard", [False, True])
def test_what_is_logged_are_numbers(tensorboard, tmp_path):
    """For a writer of the user's own and for callbacks, as PPO has it."""

    class Writer(KVWriter):
        def __init__(self):
            self.rows = []

        def write(self, key_values, key_excluded, step=0):
            self.rows.append({key: float(value) for key, value in key_values.items()})

        def close(self):
            pass

    class Reader(BaseCallback):
        def _on_step(self):
            return all(np.isfinite(float(value)) for value in self.logger.name_to_value.values())

    model, writer = GRPO("MlpPolicy", "CartPole-v1", n_steps=128, device="cpu"), Writer()
    model.set_logger(Logger(str(tmp_path), [TensorBoardOutputFormat(str(tmp_path))] if tensorboard else [writer]))
    model.learn(512, Reader(), log_interval=3 if tensorboard else 1)
    assert model.num_timesteps == 512
    assert tensorboard or len(writer.rows) == 4
    model.tensorboard_log = str(tmp_path)  # also where a model that has a folder of events is given another logger
    model.set_logger(Logger(str(tmp_path), [writer, TensorBoardOutputFormat(str(tmp_path))]))  # and beside one
    model.learn(256)


def test_observations_of_several_choices_with_a_memory():
    env = SpaceEnv(spaces.MultiDiscrete([3, 4]), spaces.Discrete(2))
    GRPO("MlpPolicy", env, n_steps=32, policy_kwargs=dict(memory="lstm"), device="cpu").learn(64)


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        (dict(net_arc=[64]), r"unknown key 'net_arc'; did you mean 'net_arch'\? ActorPolicy takes"),
        (
            dict(optimizer_kwargs=dict(lr=1e-3)),
            r"lr=0.001, which is the model's learning_rate: pass it there",
        ),
        (
            dict(optimizer_kwargs=dict(epss=1e-3)),
            r"has an unknown key 'epss'; did you mean 'eps'\? Adam takes",
        ),
        (dict(optimizer_kwargs=dict(eps="a")), r"optimizer_kwargs: eps='a' must be a number in .*; 1e-08 is usual"),
        (dict(optimizer_kwargs=dict(betas=(0.9,))), r"optimizer_kwargs: betas=\(0.9,\) must be 2 numbers, as \(0.9, 0.999\)"),
        (dict(optimizer_kwargs=dict(eps=-1)), r"Adam does not take optimizer_kwargs=\{'eps': -1\}.*: use other settings"),
        (dict(optimizer_class=th.optim.SGD, optimizer_kwargs=dict(momentum=-1)), r"SGD does not take .*momentum value: -1"),
        (dict(features_extractor_kwargs=dict(features_dim=3)), r"unknown key 'features_dim'. FlattenExtractor takes none"),
    ],
)
def test_names_that_a_policy_or_its_parts_do_not_take_are_refused(kwargs, expected):
    with pytest.raises(ValueError, match=f"policy_kwargs.*{expected}"):
        GRPO("MlpPolicy", "CartPole-v1", policy_kwargs=kwargs)


@pytest.mark.parametrize("kwargs", [{"x": 1}, {"device": "cpu"}, {"self": 1}, {"gamma": 0.9}])
def test_names_that_a_buffer_does_not_take_are_refused(kwargs):
    name = next(iter(kwargs))
    with pytest.raises(ValueError, match=f"rollout_buffer_kwargs has an unknown key '{name}'.* GroupRolloutBuffer takes none"):
        GRPO("MlpPolicy", "CartPole-v1", rollout_buffer_kwargs=kwargs)


class OwnBuffer(GroupRolloutBuffer):
    def __init__(self, *args, own=0, **kwargs):
        super().__init__(*args, **kwargs)
        self.own = own


def test_names_that_a_buffer_takes_are_handed_over():
    kwargs = dict(rollout_buffer_class=OwnBuffer, rollout_buffer_kwargs=dict(own=3))
    assert GRPO("MlpPolicy", "CartPole-v1", **kwargs).rollout_buffer.own == 3


def test_a_folder_for_tensorboard_that_cannot_be_made_is_named_before_the_training(tmp_path):
    """By the constructor, and by learn() of a loaded model, whose folder may have been on another machine."""
    (tmp_path / "file").write_text("")
    folder, expected = (
        tmp_path / "logs",
        r"tensorboard_log=.*logs.* cannot be made .*: pass the path of a folder that can, or None",
    )
    for bad in (tmp_path / "file" / "logs", str(tmp_path / "file") + "/logs", "/proc/logs", "logs\0", "logs" * 100):
        with pytest.raises(ValueError, match=expected):
            GRPO("MlpPolicy", "CartPole-v1", tensorboard_log=bad)
    GRPO("MlpPolicy", "CartPole-v1", n_steps=32, device="cpu", tensorboard_log=str(folder)).save(tmp_path / "model")
    folder.rmdir()
    folder.write_text("")
    loaded = GRPO.load(tmp_path / "model", gym.make("CartPole-v1"))
    with pytest.raises(ValueError, match=expected):
        loaded.learn(32)
    assert loaded.num_timesteps == 0


def test_numbers_of_numpy_do_for_bonuses_and_estimators():
    three = np.int64(3)
    for rewards in (dict(bonus=CountBonus(seed=three, bits=three)), dict(bonus=RNDBonus(batch_size=three, hidden=three))):
        state = State(n_features=three, folds=three, seed=three)
        GRPO("MlpPolicy", "CartPole-v1", n_steps=32, n_epochs=1, device="cpu", rewards=rewards, advantage=state).learn(32)


def test_a_gradient_that_is_not_clipped():
    for norm in (math.inf, 1e6):
        GRPO("MlpPolicy", "CartPole-v1", n_steps=32, n_epochs=1, device="cpu", max_grad_norm=norm).learn(32)
    for norm in (10**30, 1e30, 2**64):
        with pytest.raises(ValueError, match=r"max_grad_norm=.* must be a positive number up to 1e\+06, or infinity"):
            GRPO("MlpPolicy", "CartPole-v1", max_grad_norm=norm)


def test_a_policy_that_takes_any_name_is_asked_nothing():
    class Named(MlpPolicy):
        def __init__(self, *args, **kwargs):
            self.of_its_own = kwargs.pop("of_its_own")
            super().__init__(*args, **kwargs)

    assert GRPO(Named, "CartPole-v1", policy_kwargs=dict(of_its_own=3)).policy.of_its_own == 3


def test_a_key_is_added_by_one_field_and_one_line(monkeypatch, tmp_path):
    """Range check, message, set-up, changes by hand, save, load and HParams see it without further code."""
    added = make_dataclass("UpdateOptions", [("patience", int, 3)], bases=(UpdateOptions,), frozen=True)
    monkeypatch.setitem(OPTIONS, "update_kwargs", added)
    monkeypatch.setitem(RANGES["update_kwargs"], "patience", integer(1, 10, "3 is usual"))
    kwargs = dict(n_steps=32, n_epochs=1, batch_size=32, device="cpu", tensorboard_log=str(tmp_path))
    says = r"^update_kwargs: patience=11 must be an integer, at least 1 and at most 10; 3 is usual\.$"
    with pytest.raises(ValueError, match=says):
        GRPO("MlpPolicy", "CartPole-v1", update_kwargs=dict(patience=11), **kwargs)
    with pytest.raises(
        ValueError, match=r"unknown key 'patienc'; did you mean 'patience'\? update_kwargs= takes .*'patience'"
    ):
        GRPO("MlpPolicy", "CartPole-v1", update_kwargs=dict(patienc=5), **kwargs)
    assert GRPO("MlpPolicy", "CartPole-v1", **kwargs).options.update.patience == 3
    model = GRPO("MlpPolicy", "CartPole-v1", update_kwargs=dict(patience=np.int64(5)), **kwargs).learn(32)
    assert model.options.update.patience == 5
    model.save(tmp_path / "model")
    assert GRPO.load(tmp_path / "model").options.update.patience == 5
    env = model.get_env()
    assert GRPO.load(tmp_path / "model", env, update_kwargs=dict(patience=7)).options.update.patience == 7
    with pytest.raises(ValueError, match=says):
        GRPO.load(tmp_path / "model", env, update_kwargs=dict(patience=11))
    assert "patience" in as_shown(model.settings)["update_kwargs"]  # of TensorBoard's HParams
    model.update_kwargs["patience"] = 9
    with pytest.raises(ValueError, match=r"update_kwargs=.*'patience': 9.* was set by hand"):
        model.learn(32)


class Patient(GRPO):
    """Has an argument more."""

    def __init__(self, *args, patience=3, **kwargs):
        self.patience = patience
        super().__init__(*args, **kwargs)


def test_an_argument_is_added_by_the_signature_and_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(RANGES[""], "patience", integer(1, 10, "3 is usual"))
    kwargs = dict(n_steps=32, n_epochs=1, batch_size=32, device="cpu")
    says = r"^patience=0 must be an integer, at least 1 and at most 10; 3 is usual\.$"
    with pytest.raises(ValueError, match=says):
        Patient("MlpPolicy", "CartPole-v1", patience=0, **kwargs)
    model = Patient("MlpPolicy", "CartPole-v1", patience=5, **kwargs).learn(32)
    assert model.settings["patience"] == 5
    model.save(tmp_path / "model")
    assert Patient.load(tmp_path / "model").patience == 5
    with pytest.raises(ValueError, match=says):
        Patient.load(tmp_path / "model", model.get_env(), patience=0)


# ---------------------------------------------------------------- one finite but huge number from an env

SIZES = (
    pytest.param(1e20, marks=pytest.mark.slow),
    pytest.param(1e25, marks=pytest.mark.slow),
    1e30,
    pytest.param(3e38, marks=pytest.mark.slow),
)
SETTINGS: dict[str, dict[str, Any]] = {
    "state": {},
    "horizons": dict(advantage_kwargs=dict(horizons=True)),
    "paired": dict(advantage_kwargs=dict(paired=True)),
    "normalize_obs": dict(policy_kwargs=dict(normalize_obs=True), advantage="step", normalize_advantage="batch"),
    "rnd": dict(rewards=dict(bonus=RNDBonus())),
    "counts": dict(rewards=dict(bonus=CountBonus())),
    "clusters": dict(
        multitask=dict(grouping="auto", grouping_kwargs=dict(n_clusters=2, window=20)), normalize_advantage="group"
    ),
    "adaptive": dict(multitask=dict(grouping="length", weights="adaptive"), normalize_advantage="group"),
    "performance": dict(multitask=dict(grouping="length", weights="performance"), normalize_advantage="group"),
}
USUAL: dict[str, Any] = dict(n_steps=64, batch_size=64, n_epochs=1, group_size=2, seed=0, device="cpu")


class Spike(gym.Wrapper):
    """At one step, a huge number; CartPole else."""

    def __init__(self, env: gym.Env, size: float, where: str, at: int = 100) -> None:
        super().__init__(env)
        self.size, self.where, self.at, self.n = size, where, at, 0

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.n += 1
        if self.n == self.at and self.where == "reward":
            reward = self.size
        elif self.n == self.at:
            obs, terminated = obs + np.array([0, self.size, 0, 0], dtype=np.float32), False
        return obs, reward, terminated, truncated, info


def host_env(size: float, where: str) -> VecEnv:
    return make_vec_env("CartPole-v1", 2, seed=0, wrapper_class=Spike, wrapper_kwargs=dict(size=size, where=where))


def tensor_env(size: float, where: str) -> Any:
    """CartPole on the device; env 1 has the huge number at step 36 of the second rollout."""
    env = make_tensor_env("CartPole-v1", num_envs=4, device="cpu")
    original, n = env.step_tensor, [0]

    def step_tensor(actions: th.Tensor) -> Any:
        step = original(actions)
        n[0] += 1
        name = "rewards" if where == "reward" else "observations"
        values = getattr(step, name)
        if n[0] == 101:
            values = values.clone()
            values[(1,) if where == "reward" else (1, 2)] = size
        return step._replace(**{name: values})

    env.step_tensor = step_tensor
    return env


def learnt(model: GRPO) -> dict[str, Any]:
    """All that learns or is averaged, with what is no buffer."""
    parts = {name: getattr(model, name) for name in ("policy", "estimator", "grouper", "group_weighting", "bonus")}
    found: dict[str, Any] = {}
    for part, top in parts.items():
        for where, module in top.named_modules() if isinstance(top, th.nn.Module) else ():
            own = {k: v for k, v in vars(module).items() if k in ("_moments", "_met", "_waiting")}
            tensors = dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])
            found |= {f"{part}.{where}.{name}": copy.deepcopy(value) for name, value in {**own, **tensors}.items()}
    return found


def same(a: Any, b: Any) -> bool:
    if isinstance(a, th.Tensor):
        return th.equal(a, b) and bool(a.isfinite().all())
    if isinstance(a, tuple | list) or hasattr(a, "popleft"):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("where", ["reward", "observation"])
@pytest.mark.parametrize("path", ["host", "tensor"])
@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_huge_number_is_refused_where_it_appears_and_spoils_nothing(name, path, where, size, tmp_path):
    if name == "clusters":
        pytest.importorskip("sklearn")
    env = host_env(size, where) if path == "host" else tensor_env(size, where)
    model = GRPO("MlpPolicy", env, **{**USUAL, **SETTINGS[name]})
    model.learn(64 * env.num_envs)
    before = learnt(model)
    says = r"env 0 \(of 2\)" if path == "host" else "env 1"
    step = "vector step 100 " if path == "host" else "step 36 of this rollout"
    with pytest.raises(ValueError, match=rf"{where} of {says} is beyond .* at {step}"):
        model.learn(1000, reset_num_timesteps=False)
    after = learnt(model)  # the second rollout has moved nothing but the view of the observations, with the first
    changed = [key for key in before if not same(before[key], after[key])]
    assert [key for key in changed if "obs_normalizer" not in key] == []
    weights = [p.detach().clone() for p in model.policy.parameters()]
    model.learn(2 * 64 * env.num_envs, reset_num_timesteps=False)  # and goes on
    moved = max(float((a - b).abs().max()) for a, b in zip(weights, model.policy.parameters(), strict=True))
    assert 1e-6 < moved < 1.0
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", device="cpu")
    assert all(bool(p.isfinite().all()) for p in loaded.get_parameters()["policy"].values())


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_vec_normalize_is_what_it_was(where):
    env = VecNormalize(host_env(1e30, where))
    model = GRPO("MlpPolicy", env, **USUAL)
    with pytest.raises(ValueError, match=rf"{where} of env 0"):
        model.learn(1000)
    assert env.obs_rms.var.max() < 100 and env.ret_rms.var < 1e4


def test_what_bounds_rewards_takes_any():
    """The remedy that the message names; what was learnt with it is what a reward of the bound would have taught."""
    found = []
    for size in (10.0, 1e30):
        model = GRPO("MlpPolicy", host_env(size, "reward"), rewards=dict(scaling="clip"), **USUAL).learn(384)
        found.append(th.cat([p.detach().flatten() for p in model.policy.parameters()]))
    assert th.equal(*found)


def test_bonuses_and_weights_of_objectives_are_looked_at():
    model = GRPO("MlpPolicy", "CartPole-v1", rewards=dict(bonus=lambda rollout: rollout.rewards * 1e20), **USUAL)
    with pytest.raises(ValueError, match=r"objectives and bonus included, is beyond .*: 1e\+20"):
        model.learn(64)


class Fragile(th.nn.Module):
    """Keeps a mean, a tuple of tensors, a counter, and an optimiser."""

    def __init__(self) -> None:
        super().__init__()
        self.normalizer = RunningNormalizer(1, clip=5.0)
        self.weight = th.nn.Parameter(th.ones(1))
        self.optimizer = th.optim.Adam([self.weight])
        self.memory, self.n = (th.zeros(1), th.zeros(1)), 0

    def see(self, x: float) -> None:
        self.normalizer.update(th.tensor([[x]]))
        self.weight.square().sum().backward()
        self.optimizer.step()
        self.memory, self.n = (th.full((1,), x), th.full((1,), x).square()), self.n + 1


def test_whatever_is_not_finite_is_named_and_put_back():
    module = Fragile()
    with rollback_on_error([module, None, len], "It is a test."):
        module.see(2.0)
    before = copy.deepcopy((module.state_dict(), module.memory, module.n, module.optimizer.state_dict()))
    with (
        pytest.raises(ValueError, match=r"memory of the Fragile was not finite .* It is a test\."),
        rollback_on_error([module], "It is a test."),
    ):
        module.see(1e30)  # its square is no float32
    assert str((module.state_dict(), module.memory, module.n, module.optimizer.state_dict())) == str(before)
    with pytest.raises(KeyError), rollback_on_error([module], ""):
        module.see(3.0)
        raise KeyError("of the estimator's own")
    assert module.n == 1 and float(module.normalizer.mean) == 2.0


def test_health_names_an_outlier_that_is_small_enough_to_pass():
    health = HealthCallback(verbose=0)
    with pytest.warns(HealthWarning, match=r"reward_outlier: A reward of size 1e\+09 .* rewards=dict\(scaling='clip'\)"):
        GRPO("MlpPolicy", host_env(1e9, "reward"), **USUAL).learn(384, health)


# ---------------------------------------------------------------- a policy whose outputs are NaN

SMALL = dict(n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
BOX = spaces.Box(-1, 1, (3,), np.float32)


def ruin(model, value=np.nan):
    with th.no_grad():
        model.policy.action_net.weight[0, 0] = value


class Ruin:
    """Ruins the weights when so many steps have been taken, once."""

    def __init__(self, at):
        self.at = at

    def __call__(self, local_values, _):
        model = local_values["self"]
        if model.num_timesteps >= self.at:
            self.at = np.inf
            ruin(model)
        return True


class Log(BaseFeaturesExtractor):
    def __init__(self, space):
        super().__init__(space, space.shape[0])

    def forward(self, obs):
        return th.log(obs - 10)


@pytest.mark.parametrize("action_space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), BOX])
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_predict_chooses_nothing(action_space, deterministic, value):
    """The largest of some NaN is still the number of an action."""
    model = GRPO("MlpPolicy", SpaceEnv(BOX, action_space), **SMALL)
    obs = np.full(3, 0.5, np.float32)
    model.predict(obs, deterministic=deterministic)
    ruin(model, value)
    with pytest.raises(
        ValueError, match=r"No action can be chosen.*parameter action_net\.weight of the policy holds NaN or inf"
    ):
        model.predict(obs, deterministic=deterministic)
    with pytest.raises(ValueError, match=r"action_net\.weight"):
        evaluate_policy(model, SpaceEnv(BOX, action_space), 1, deterministic, warn=False)


def test_predict_says_where_weights_are_not_to_blame():
    model = GRPO("MlpPolicy", "CartPole-v1", **SMALL)
    with pytest.raises(ValueError, match="its weights are finite, so its features extractor or its network makes them"):
        model.predict(np.full(4, np.inf, np.float32))


@pytest.mark.parametrize("advantage", ["state", "outcome"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_training_stops_before_the_env_is_acted_on(env_id, advantage):
    model = GRPO("MlpPolicy", gym.make(env_id, max_episode_steps=20), advantage=advantage, **SMALL)
    with pytest.raises(
        Breakdown, match=r"At vector step 41 since.*outputs are not finite: parameter action_net\.weight"
    ) as caught:
        model.learn(640, Ruin(40))
    assert model.num_timesteps == 40 and "reward" not in str(caught.value)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_training_on_a_simulator_stops_before_its_update(env_id):
    model = GRPO("MlpPolicy", make_tensor_env(env_id, 4), **SMALL)
    with pytest.raises(Breakdown, match=r"At step 1 of this rollout .*parameter action_net\.weight") as caught:
        model.learn(640, Ruin(260))
    assert model.num_timesteps == 384 and "simulator" not in str(caught.value)


@pytest.mark.parametrize("make", [gym.make, lambda name: make_tensor_env(name, 1)])
def test_weights_that_were_ruined_after_the_last_step_are_named(make):
    model = GRPO("MlpPolicy", make("CartPole-v1"), **SMALL)
    with pytest.raises(Breakdown, match=r"Before this update .*parameter action_net\.weight") as caught:
        model.learn(64, Ruin(model.rollout_buffer.buffer_size))
    assert "learning_rate" not in str(caught.value)


def test_a_network_that_makes_nan_is_named():
    kwargs = dict(features_extractor_class=Log)
    with pytest.raises(Breakdown, match=r"At vector step 1 .*its weights are finite, so its features extractor"):
        GRPO("MlpPolicy", "Pendulum-v1", policy_kwargs=kwargs, **SMALL).learn(64)


def test_a_training_recovers_from_ruined_weights():
    recovery = RecoveryCallback(verbose=0)
    model = GRPO("MlpPolicy", "CartPole-v1", **SMALL)
    model.learn(256, CallbackList([recovery, ConvertCallback(Ruin(70))]))
    assert recovery.n == 1 and "action_net.weight" in recovery.reasons[0] and model.num_timesteps >= 256
    assert bool(model.policy.action_net.weight.isfinite().all())
