"""Packing: every collected step comes out exactly once, in its episode, in order."""

import pickle
import sys
from copy import deepcopy

import numpy as np
import pytest
import torch as th
from gymnasium import Env, spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.extra_fields import FieldSpec
from sb_grpo.envs import make_tensor_env
from tests.helpers import ProbeEnv

OBS = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def fill(buffer, steps, lengths, episode_ids):
    """Run episodes of the given lengths on the buffer's envs; the observation of a step is 1000 * episode + t."""
    state = buffer.__dict__.setdefault("filled", dict(episode_id=[None] * buffer.n_envs, t=[0] * buffer.n_envs))
    for _ in range(steps):
        for env_index in range(buffer.n_envs):
            if state["episode_id"][env_index] is None:
                state["episode_id"][env_index], state["t"][env_index] = next(episode_ids), 0
        episode_id, t = np.array(state["episode_id"]), np.array(state["t"])
        is_last = t + 1 == np.array([lengths[i] for i in episode_id])
        ends = np.where(is_last & (episode_id % 5 == 0), 2, is_last).astype(np.int8)
        obs = th.tensor(1000.0 * episode_id + t).float().unsqueeze(1)
        for env_index in np.flatnonzero(ends == 2):
            buffer.add_final_observation(
                int(episode_id[env_index]), np.array([1000.0 * episode_id[env_index] + t[env_index] + 1])
            )
        buffer.add(obs, th.tensor(t % 3), th.zeros(len(t)), t.astype(np.float32), episode_id, t, ends)
        for env_index in range(buffer.n_envs):
            state["t"][env_index] += 1
            if ends[env_index]:
                state["episode_id"][env_index] = None


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("whole_groups", [True, False])
def test_every_step_comes_out_once_and_in_order(n_envs, whole_groups):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 12, size=1000)
    buffer = GroupRolloutBuffer(4, OBS, spaces.Discrete(3), device="cpu", n_envs=n_envs)
    episode_ids, group_size, seen, taken = iter(range(1000)), 3, [], 0
    for _ in range(6):
        buffer.reset()
        fill(buffer, 25, lengths, episode_ids)
        taken += 25 * n_envs
        rollout = buffer.pack(buffer.new_rows()[0][:, 0], group_size, whole_groups)
        obs = rollout.observations[:, 0].long()
        th.testing.assert_close(obs % 1000, rollout.t)
        th.testing.assert_close(rollout.log_probs.long(), obs)  # each step keeps its own log-probability
        th.testing.assert_close(rollout.rewards.long(), rollout.t)
        episode_id = obs // 1000
        th.testing.assert_close(th.unique_consecutive(rollout.episode), th.arange(len(rollout.group)))
        for e in range(len(rollout.group)):
            rows = (rollout.episode == e).nonzero()[:, 0]
            assert len(episode_id[rows].unique()) == 1 and (rollout.t[rows].diff() == 1).all()
            length = lengths[int(episode_id[rows[0]])]
            ended = int(rollout.t[rows[-1]]) + 1 == length
            assert bool(rollout.terminated[e] | rollout.truncated[e]) == ended
            truncated = ended and int(episode_id[rows[0]]) % 5 == 0
            assert bool(rollout.truncated[e]) == truncated
            if truncated:
                assert int(rollout.final_observations[e, 0]) == 1000 * int(episode_id[rows[0]]) + length
            if whole_groups:
                assert ended and int(rollout.t[rows[0]]) == 0
        if whole_groups:
            assert (th.bincount(rollout.group) == group_size).all()
        seen += obs.tolist()
    assert len(seen) == len(set(seen)) and len(seen) + buffer.n_kept == taken
    if not whole_groups:
        assert buffer.n_kept == 0
    else:
        waiting = buffer.n_kept
        assert buffer.drop_kept() == waiting and buffer.n_kept == 0


def test_no_complete_group_gives_no_rollout_and_keeps_the_steps():
    buffer = GroupRolloutBuffer(2, OBS, spaces.Discrete(3), device="cpu", n_envs=2)
    buffer.reset()
    fill(buffer, 5, [100] * 10, iter(range(10)))
    assert buffer.pack(th.zeros(10), 2, True) is None and buffer.n_kept == 10


def test_dict_observations_pack_key_by_key():
    space = spaces.Dict({"a": OBS, "b": spaces.Box(0, 255, (2, 2), np.uint8)})
    buffer = GroupRolloutBuffer(4, space, spaces.Box(-1, 1, (2,)), device="cpu", n_envs=1)
    buffer.reset()
    for t in range(3):
        obs = {"a": th.full((1, 1), float(t)), "b": th.full((1, 2, 2), t, dtype=th.uint8)}
        buffer.add(obs, th.zeros(1, 2), th.zeros(1), np.zeros(1), np.zeros(1), np.array([t]), np.array([2 if t == 2 else 0]))
    buffer.add_final_observation(0, {"a": np.array([3.0]), "b": np.full((2, 2), 3)})
    for whole_groups in (False,):
        rollout = buffer.pack(th.zeros(3), 2, whole_groups)
        assert rollout.observations["b"].dtype == th.uint8 and rollout.observations["a"][:, 0].tolist() == [0, 1, 2]
        assert rollout.final_observations["b"].unique().tolist() == [3] and rollout.final_observations["a"].tolist() == [[3.0]]


def test_get_samples_points_to_pack():
    buffer = GroupRolloutBuffer(2, OBS, spaces.Discrete(3), device="cpu")
    buffer.reset()
    fill(buffer, 2, [9], iter([0]))
    with pytest.raises(NotImplementedError, match="pack"):
        buffer.sample(1)


@pytest.mark.parametrize("whole_groups", [True, False])
def test_extra_fields_stay_with_their_steps(whole_groups):
    """Task = episode modulo 3, objectives = (episode, t), return so far = t: also where rows wait for their group."""
    lengths, group_size, n_envs, seen = [3, 7, 2, 5, 4, 9, 1, 6] * 20, 2, 2, 0
    buffer = GroupRolloutBuffer(2, OBS, spaces.Discrete(3), device="cpu", n_envs=n_envs)
    forms = (("task", (), th.int64, True), ("objectives", (2,), th.float32, False), ("episode_return", (), th.float32, True))
    buffer.add_fields([FieldSpec(*form, host=None, tensor=None) for form in forms])
    episode_ids = iter(range(1000))
    episode_id, t = np.array([next(episode_ids) for _ in range(n_envs)]), np.zeros(n_envs, dtype=np.int64)
    for _ in range(6):
        buffer.reset()
        for _ in range(11):
            ends = np.array([int(t[s] + 1 == lengths[episode_id[s]]) for s in range(n_envs)], dtype=np.int8)
            extra = {"task": episode_id % 3, "objectives": np.stack([episode_id, t], 1), "episode_return": t}
            buffer.add(
                th.zeros(n_envs, 1),
                th.zeros(n_envs),
                th.zeros(n_envs),
                np.zeros(n_envs),
                episode_id.copy(),
                t.copy(),
                ends,
                extra,
            )
            for env_index in range(n_envs):
                t[env_index] = 0 if ends[env_index] else t[env_index] + 1
                episode_id[env_index] = next(episode_ids) if ends[env_index] else episode_id[env_index]
        rollout = buffer.pack(th.zeros(11 * n_envs), group_size, whole_groups)
        episode_id_of_row = rollout.objectives[:, 0].long()
        th.testing.assert_close(rollout.objectives[:, 1].long(), rollout.t)
        for e in range(len(rollout.group)):
            rows = rollout.episode == e
            assert len(episode_id_of_row[rows].unique()) == 1 and int(rollout.task[e]) == int(episode_id_of_row[rows][0]) % 3
            assert float(rollout.episode_return[e]) == float(rollout.t[rows].max())
        seen += len(episode_id_of_row)
    assert seen + buffer.n_kept == 6 * 11 * n_envs


def test_the_age_of_steps_is_the_number_of_updates_they_waited_for():
    """One env, groups of 2 episodes of 5 steps, rollouts of 7 steps at least: until a group is complete."""
    model = GRPO("MlpPolicy", ProbeEnv("action", length=5), advantage="outcome", group_size=2, n_steps=7, device="cpu")
    ages = []

    class Note(BaseCallback):
        def _on_rollout_start(self):
            ages.append(self.model.rollout_buffer.age.tolist())

        def _on_step(self):
            return True

    model.learn(70, Note())
    ages.append(model.rollout_buffer.age.tolist())
    assert ages[1] == [0] * 10  # 10 steps: one group, nothing is left
    assert model.last_metrics["rollout/age"] == 0.0 and model.last_metrics["rollout/age_max"] == 0
    env = make_vec_env(lambda: ProbeEnv("action", length=5), 3)
    several = GRPO("MlpPolicy", env, advantage="outcome", group_size=2, n_steps=7, device="cpu").learn(21)
    # Envs take episodes 0 to 2, then 3 to 5: after 7 steps group 0 is complete (episodes 0 and 1); groups 1 and 2 wait with 11
    # steps.
    assert several.rollout_buffer.n_kept == 11 and several.rollout_buffer.age.tolist() == [0] * 10
    several.learn(21, reset_num_timesteps=False)
    age = several.rollout_buffer.age
    assert int(age.max()) == 1 and int((age == 1).sum()) == 11
    assert several.last_metrics["rollout/age"] == pytest.approx(11 / len(age))


@pytest.mark.parametrize("first", [th.int64, th.uint8])
def test_floats_that_come_after_integers_are_kept_as_they_are(first):
    """Some envs begin with integers; and a VecNormalize may be put around an env of integers between two rollouts."""
    buffer = GroupRolloutBuffer(4, OBS, spaces.Discrete(3), n_envs=2)
    episode_id, t, ends = np.array([0, 1]), np.zeros(2, np.int64), np.zeros(2, np.int8)

    def add(obs):
        buffer.add(obs, th.zeros(2, dtype=th.int64), th.zeros(2), np.zeros(2, np.float32), episode_id, t, ends)

    add(th.tensor([[3], [4]], dtype=first))
    add(th.tensor([[0.25], [-0.75]]))
    add(th.tensor([[5], [6]], dtype=first))
    assert buffer.new_rows()[0].flatten().tolist() == [3.0, 4.0, 0.25, -0.75, 5.0, 6.0]
    buffer.reset()
    add(th.tensor([[0.5], [1.5]]))
    assert buffer.new_rows()[0].flatten().tolist() == [0.5, 1.5]


# Callbacks read, and write, the rollout buffer as they do PPO's

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
SPACES = {
    "box": (BOX, spaces.Box(-2.0, 2.0, (2,), np.float32)),
    "discrete": (spaces.Discrete(5), spaces.Discrete(3)),
    "multi": (spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([2, 3])),
    "bits": (spaces.MultiBinary(4), spaces.MultiBinary(2)),
    "image": (spaces.Box(0, 255, (36, 36, 3), np.uint8), spaces.Discrete(2)),
    "dict": (spaces.Dict({"a": BOX, "b": spaces.Discrete(3)}), spaces.Discrete(2)),
}


class ThreeSteps(Env):
    def __init__(self, obs, action):
        self.observation_space, self.action_space = obs, action

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), float(self.t), self.t == 3, False, {}


class Reader(BaseCallback):
    """Takes down what stands in the buffer when a rollout has ended; an update shapes Dicts of PPO anew in place."""

    names = ("observations", "actions", "rewards", "log_probs", "episode_starts")

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        self.seen = {name: getattr(buffer, name) for name in self.names}
        self.forms = forms(self.seen)
        self.room = buffer.full, buffer.pos, buffer.size(), buffer.buffer_size


def forms(seen):
    def form(array):
        if isinstance(array, dict):
            return {key: form(part) for key, part in array.items()}
        return type(array), array.shape, array.dtype

    return {name: form(array) for name, array in seen.items()}


@pytest.mark.parametrize("kind", SPACES)
def test_arrays_have_the_form_of_ppos(kind):
    seen = {}
    for algorithm in (PPO, GRPO):
        policy = "MultiInputPolicy" if kind == "dict" else "MlpPolicy"
        reader = Reader()
        algorithm(policy, ThreeSteps(*SPACES[kind]), n_steps=12, batch_size=12, device="cpu", seed=0).learn(12, reader)
        seen[algorithm] = reader
    assert seen[GRPO].forms == seen[PPO].forms
    assert seen[GRPO].room == seen[PPO].room == (True, 12, 12, 12)
    assert seen[GRPO].seen["rewards"][:, 0].tolist() == [1, 2, 3] * 4
    assert np.mean(seen[GRPO].seen["rewards"]) == 2.0  # NumPy's functions take it
    assert np.array_equal(seen[GRPO].seen["episode_starts"], seen[PPO].seen["episode_starts"])


def test_a_reward_that_comes_late_is_written_into_the_buffer():
    class Late(BaseCallback):
        def _on_step(self) -> bool:
            buffer = self.model.rollout_buffer
            if buffer.pos:
                buffer.rewards[buffer.pos - 1, 0] = 7.0
            return True

    model = GRPO("MlpPolicy", ThreeSteps(*SPACES["box"]), n_steps=6, batch_size=6, device="cpu")
    rollout = model.collect(Late())
    assert sorted(rollout.rewards.tolist()) == [3.0] + 5 * [7.0]


@pytest.mark.parametrize("name", ["values", "returns", "advantages", "get"])
def test_what_a_critic_would_be_needed_for_is_named(name):
    model = GRPO("MlpPolicy", "CartPole-v1")
    assert not hasattr(model.rollout_buffer, name)
    with pytest.raises(AttributeError, match=f"has no {name}: there is no critic.*It has observations, actions, rewards"):
        getattr(model.rollout_buffer, name)


def test_whole_episodes_and_tensor_envs():
    reader = Reader()
    GRPO("MlpPolicy", ThreeSteps(*SPACES["box"]), n_steps=4, group_size=2, advantage="outcome").learn(4, reader)
    assert reader.seen["rewards"][:, 0].tolist() == [1, 2, 3] * 2 and reader.room[1:3] == (6, 6)
    env = make_tensor_env("CartPole-v1", 3, device="cpu")
    GRPO("MlpPolicy", env, n_steps=5, batch_size=15, device="cpu").learn(15, reader)
    assert reader.seen["observations"].shape == (5, 3, 4) and reader.seen["actions"].shape == (5, 3, 1)
    assert reader.seen["rewards"].tolist() == [[1.0] * 3] * 5 and reader.room == (True, 5, 5, 5)


@pytest.mark.parametrize("copied", [deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))], ids=["copy", "pickle"])
def test_a_copy_of_a_buffer_writes_to_its_own_extra_fields(copied):
    buffer = GroupRolloutBuffer(4, OBS, spaces.Discrete(3), device="cpu", n_envs=2)
    buffer.reset()
    fill(buffer, 2, [4] * 10, iter(range(10)))
    other = copied(buffer)
    other.add(th.full((2, 1), 7.0), th.ones(2), th.ones(2), *[np.ones(2)] * 4)
    assert other.steps["observations"][2].tolist() == [[7.0], [7.0]] and other.steps["rewards"][2].tolist() == [1.0, 1.0]
    assert buffer.pos == 2 and not buffer.steps["observations"][2].any() and not buffer.steps["rewards"][2].any()


def test_the_observations_of_a_vec_env_are_copied_as_arrays():
    env = make_vec_env("CartPole-v1", 2)
    GRPO("MlpPolicy", env, n_steps=64, device="cpu")
    first = env.reset()
    kept = first.copy()
    env.step(np.zeros(2, dtype=int))
    np.testing.assert_array_equal(first, kept)  # what a step returned stays as it was
    made = deepcopy(env.buf_obs)
    assert list(made) == [None] and made[None] is not env.buf_obs[None]
    np.testing.assert_array_equal(made[None], env.buf_obs[None])


class FilesOfStep(BaseCallback):
    """Files of sb_grpo that each vector step enters."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def _on_step(self):
        files = set()
        self.steps.append(files)
        sys.setprofile(lambda frame, event, _: files.add(frame.f_code.co_filename) if event == "call" else None)
        return True

    def _on_rollout_end(self):
        sys.setprofile(None)


def test_a_host_step_passes_nine_files_at_most():
    callback = FilesOfStep()
    GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), n_steps=64, n_epochs=1, seed=0, device="cpu").learn(128, callback)
    ours = [{file.split("/sb_grpo/")[1] for file in files if "/sb_grpo/" in file} for files in callback.steps[1:-1]]
    assert len(min(ours, key=len) | {"on_policy.py"}) <= 9  # the loop itself; no episode ends in the quietest step
