"""Groups where resets cannot be seeded env by env, and the checker that finds what breaks them."""

import re

import pytest
import torch as th

from sb_grpo import GRPO
from sb_grpo.collect.simulators import StateGroups, StreamGroups, SynchronousGroups
from sb_grpo.envs import check_tensor_env
from sb_grpo.envs.native import CartPole, Pendulum
from sb_grpo.envs.random import group_seeds
from sb_grpo.envs.tensor_env import TensorStep, TensorVecEnv, map_snapshot

CPU = th.device("cpu")


class Unseeded(CartPole):
    """Resets single envs, to a state that no seed decides; can copy states. Isaac Lab and ManiSkill3 are of this kind."""

    grouping = "state"

    def reset_envs(self, mask, seeds):
        super().reset_envs(mask, th.randint(2**31, (self.num_envs,)))


class OnlyTogether:
    """Can only restart all envs."""

    grouping = "synchronous"

    def reset_all(self, seeds):
        self.wake()
        super().reset_envs(th.ones(self.num_envs, dtype=th.bool), seeds)

    def reset_envs(self, mask, seeds):
        raise AssertionError("must not be asked")

    def step_tensor(self, actions):
        return self.hold_ended(super().step_tensor(actions))


class Together(OnlyTogether, CartPole):
    pass


def ended(n, *env_indices):
    return th.isin(th.arange(n), th.tensor(env_indices, dtype=th.int64))


def test_members_get_their_leaders_state_within_a_step_and_across_steps():
    env = Unseeded(7)
    groups = StateGroups(7, 3, 0, first_group=2, device=CPU)
    groups.started_all(env)
    assert groups.episode_id.tolist() == [6, 7, 8, 9, 10, 11, 12]
    assert (env.state[:3] == env.state[0]).all() and (env.state[3:6] == env.state[3]).all()
    leader_of_4 = env.state[6].clone()
    for _ in range(3):
        env.step_tensor(th.randint(2, (7,)))
    running = env.state[[0, 6]].clone()
    groups.step(env, ended(7, 1, 2, 3, 4, 5))
    # Episodes 13 and 14 belong to the group begun before the steps, 15 to 17 to a group begun now.
    assert groups.episode_id.tolist() == [6, 13, 14, 15, 16, 17, 12] and groups.t.tolist() == [1, 0, 0, 0, 0, 0, 1]
    assert (env.state[1] == leader_of_4).all() and (env.state[2] == leader_of_4).all()
    assert (env.state[3:6] == env.state[3]).all() and (env.state[3] != leader_of_4).any()
    assert (env.state[[0, 6]] == running).all() and env.elapsed.tolist() == [3, 0, 0, 0, 0, 0, 3]
    groups.step(env, ended(7))
    groups.step(env, ended(7, 0))
    assert groups.episode_id[0] == 18 and groups.next_group == 7  # a leader alone, its members later
    lone = env.state[0].clone()
    groups.step(env, ended(7, 6))
    assert (env.state[6] == lone).all()


def test_streams_keep_their_envs():
    env = CartPole(6)
    groups = StreamGroups(6, 3, 0, first_group=4, device=CPU)
    groups.started_all(env)
    groups.step(env, ended(6, 1))
    groups.step(env, ended(6, 1, 4))
    assert groups.episode_id.tolist() == [12, 25, 14, 15, 22, 17] and groups.next_group == 10


def test_a_member_that_is_too_far_ahead_of_its_stream_idles():
    env = Resting(6)
    groups = StreamGroups(6, 3, 0, first_group=0, device=CPU)
    groups.max_lead = 1
    groups.started_all(env)
    groups.step(env, ended(6, 0))
    groups.step(env, ended(6, 0, 1, 4))
    assert groups.episode_id.tolist() == [-1, 7, 2, 3, 10, 5] and groups.t.tolist()[1:] == [0, 2, 2, 0, 2]
    groups.step(env, ended(6, 5))
    assert groups.episode_id[0] == -1 and groups.next_group == 6  # episode 12 is env 0's, though it waits
    started = env.resets_of.clone()
    groups.step(env, ended(6, 2))
    assert groups.episode_id.tolist() == [12, 7, 8, 3, 10, 11] and groups.t[0] == 0
    assert (env.resets_of - started).tolist() == [1, 0, 1, 0, 0, 0]


class Resting(CartPole):
    """Counts the resets of each env."""

    def reset_envs(self, mask, seeds):
        self.resets_of = getattr(self, "resets_of", 0) + mask.long()
        super().reset_envs(mask, seeds)


def test_synchronous_envs_idle_until_all_have_ended():
    env = Together(4)
    groups = SynchronousGroups(4, 2, 5, first_group=1, device=CPU)
    groups.started_all(env)
    th.testing.assert_close(env.state, env.initial_state(group_seeds(5, th.tensor([1, 1, 2, 2]))))
    env.state[0, 0], env.state[2, 0] = 3.0, 3.0  # off the track
    step = env.step_tensor(th.ones(4, dtype=th.int64))
    assert step.terminated.tolist() == [True, False, True, False] and step.rewards.tolist() == [1.0] * 4
    groups.step(env, step.terminated)
    assert groups.episode_id.tolist() == [-1, 3, -1, 5] and groups.next_group == 3
    env.state[1, 0] = env.state[3, 0] = 3.0
    again = env.step_tensor(th.ones(4, dtype=th.int64))
    assert again.terminated.tolist() == [False, True, False, True] and again.rewards.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert (again.observations[[0, 2]] == step.observations[[0, 2]]).all()  # held
    groups.step(env, again.terminated)
    assert groups.episode_id.tolist() == [6, 7, 8, 9] and groups.t.tolist() == [0] * 4 and not env.idle.any()
    assert (env.state[0] == env.state[1]).all() and groups.next_group == 5


@pytest.mark.parametrize("advantage", ["outcome", "step", "state"])
@pytest.mark.parametrize("env_class", [Unseeded, Together])
def test_training_accounts_for_every_step(env_class, advantage, tmp_path):
    model = GRPO("MlpPolicy", env_class(8), advantage=advantage, n_steps=64, batch_size=64, n_epochs=1, group_size=4, seed=0,
                 device="cpu", policy_kwargs=dict(normalize_obs=True)).learn(3000)  # fmt: skip
    assert model.groups.start_mismatches == 0 and model._n_gradient_steps > 0
    assert model._steps_trained + model._steps_dropped + model.rollout_buffer.n_kept == model.num_timesteps
    assert (model._steps_dropped > 0) == (env_class is Together)
    # Idle observations stay out of the running statistics, up to the rollout that is normalised with them.
    seen = int(model.policy.obs_normalizer.count)
    assert seen < model.num_timesteps - model._steps_dropped / 2 if env_class is Together else seen <= model.num_timesteps
    assert all(info["r"] == info["l"] for info in model.ep_info_buffer)
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", env=env_class(4), device="cpu").learn(500)
    assert loaded._next_group >= model._next_group and loaded.groups.start_mismatches == 0


def test_fixed_horizon_wastes_nothing():
    class TogetherPendulum(OnlyTogether, Pendulum):
        pass

    model = GRPO("MlpPolicy", TogetherPendulum(8), advantage="step", n_steps=200, group_size=4, device="cpu").learn(3200)
    assert model._steps_dropped == 0 and model._steps_trained == 3200


def test_map_snapshot_keeps_the_form():
    env = CartPole(3)
    snapshot = {"env": env.snapshot(th.tensor([0, 1])), "rest": (th.zeros(2), th.ones(2, 2))}
    first = map_snapshot(lambda leaf: leaf[:1], snapshot)
    assert type(first["env"]) is type(snapshot["env"]) and len(first["rest"][1]) == 1
    assert len(map_snapshot(lambda a, b: th.cat([a, b]), snapshot, snapshot)["env"].state) == 4


# ---------------------------------------------------------------- the checker


class IndexDependent(CartPole):
    def initial_state(self, seeds):
        return super().initial_state(seeds) + th.arange(len(seeds)).unsqueeze(1) * 1e-6


class NewEachTime(CartPole):
    def initial_state(self, seeds):
        return super().initial_state(seeds + th.randint(1000, ()))


class HiddenState(CartPole):
    """Acts on something that no reset touches and no observation shows."""

    def transition(self, state, actions):
        after, rewards, terminated = super().transition(state, actions)
        return after + th.arange(len(after)).unsqueeze(1) * 1e-3, rewards, terminated


class WholeReset(CartPole):
    def reset_envs(self, mask, seeds):
        super().reset_envs(th.ones_like(mask) if mask.any() else mask, seeds)


class ResetOnEmptyMask(CartPole):
    def reset_envs(self, mask, seeds):
        super().reset_envs(mask if mask.any() else ~mask, seeds)


class ForgetfulSnapshot(CartPole):
    def restore(self, env_indices, snapshot):
        super().restore(env_indices, snapshot._replace(state=snapshot.state.round(decimals=2)))


class Distorted(CartPole):
    """Spoils one column of a step."""

    spoil = staticmethod(lambda step: step)

    def step_tensor(self, actions):
        return self.spoil(super().step_tensor(actions))


def distorted(spoil):
    return type("Distorted", (Distorted,), {"spoil": staticmethod(spoil)})


@pytest.mark.parametrize(
    ("env_class", "says"),
    [
        (IndexDependent, "first observation of env 1 differs from that of env 0, reset with one seed"),
        (NewEachTime, "start of env 0 differs between two resets with the same seed.*grouping = 'state'"),
        (HiddenState, "observations of env 1 differs from env 0's after step 0.*noisy=True"),
        (WholeReset, "reset_envs of env 0 changed env 1"),
        (ResetOnEmptyMask, "empty mask"),
        (ForgetfulSnapshot, "observations of env 1 differs from env 0's"),
        (distorted(lambda s: s._replace(rewards=s.rewards.double())), "rewards after step 0 has shape .* it should be"),
        (distorted(lambda s: s._replace(truncated=s.truncated[:2])), "truncated after step 0 has shape"),
        (distorted(lambda s: s._replace(rewards=s.rewards.numpy())), "rewards after step 0 is a ndarray"),
        (distorted(lambda s: s._replace(rewards=s.rewards / 0.0)), "rewards of env 0 after step 0 is not finite"),
        (distorted(lambda s: s._replace(terminated=s.terminated | True, truncated=s.truncated | True)), "Env 0 .* both"),
        (distorted(lambda s: s._replace(observations=s.observations.to("meta"))), "is on meta, the env on cpu"),
        (type("Odd", (CartPole,), {"grouping": "pairs"}), "grouping='pairs' is unknown"),
    ],
)
def test_the_checker_finds_it(env_class, says):
    with pytest.raises(ValueError, match=says):
        check_tensor_env(env_class(4))


def test_the_checker_warns_of_what_is_allowed():
    class Fixed(CartPole):
        def initial_state(self, seeds):
            return super().initial_state(th.zeros_like(seeds))

    with pytest.warns(UserWarning, match="Different seeds give equal first observations in Fixed"):
        check_tensor_env(Fixed(4))

    class Differing(Together):
        def reset_all(self, seeds):
            super().reset_all(seeds + th.arange(len(seeds)))

    with pytest.warns(UserWarning, match="synchronous Differing start in different states"):
        check_tensor_env(Differing(4))
    check_tensor_env(HiddenState(4), noisy=True)
    for env in (Unseeded(4), Together(4), Pendulum(4)):
        check_tensor_env(env)
    with pytest.raises(ValueError, match="num_envs=1: groups"):
        check_tensor_env(CartPole(1))


def test_an_unknown_grouping_is_refused_before_training():
    with pytest.raises(ValueError, match=re.escape("grouping='pairs' is unknown; use one of ['seeds',")):
        GRPO("MlpPolicy", type("Odd", (CartPole,), {"grouping": "pairs"})(4), device="cpu")


def test_envs_that_wait_for_the_device_are_not_compiled():
    with pytest.warns(UserWarning, match="rollout runs eagerly, because envs wait .*Unseeded.grouping='state'"):
        GRPO("MlpPolicy", Unseeded(8), device="cpu", compile=True)


def test_an_env_that_cannot_copy_states_says_so():
    class NoCopies(Unseeded):
        snapshot = TensorVecEnv.snapshot

    with pytest.raises(NotImplementedError, match="NoCopies cannot copy the state of envs"):
        GRPO("MlpPolicy", NoCopies(8), device="cpu").learn(8)
    assert isinstance(NoCopies(2).step_tensor(th.zeros(2, dtype=th.int64)), TensorStep)
