"""Groupings: who is compared with whom, by numbers worked out, and on both paths from env to weights."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from sb_grpo import GRPO, SeededResetWrapper
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.extras.grouping import (
    ByFunction,
    ByQuantile,
    BySeed,
    ByTask,
    Clusters,
    Hierarchical,
    episode_features,
    lengths,
    n_episode_features,
    to_one_scale,
    undiscounted_returns,
)
from sb_grpo.maths.estimators import outcome, process, step
from sb_grpo.maths.returns import episode_returns
from sb_grpo.types import AdvantageOptions, select_episodes
from tests.helpers import ProbeEnv, make_rollout

SMALL = dict(n_steps=64, batch_size=32, n_epochs=2, group_size=2, seed=0)
TASKS = ["small", "large", "huge"]


def weights(model):
    return th.cat([p.detach().flatten() for p in model.policy.parameters()])


def random_rollout(n_episodes=24, n_groups=4, seed=0):
    rng = np.random.default_rng(seed)
    rewards = [rng.normal(size=rng.integers(1, 9)).tolist() for _ in range(n_episodes)]
    return make_rollout(rewards, [*range(n_groups), *rng.integers(0, n_groups, n_episodes - n_groups).tolist()])


class TaskEnv(ProbeEnv):
    """The task is drawn in reset and pays 1, 100 or 10,000 for the action that equals the bit; ``where`` it is told varies."""

    def __init__(self, where="info", n=3, name=int, length=4):
        super().__init__("observation", length)
        self.where, self.n, self.name = where, n, name
        parts = {"bit": spaces.Box(-1, 1, (2,), np.float32)}
        if where == "one_hot":
            parts["which"] = spaces.Box(0, 1, (3,), np.float32)
        elif where == "integer":
            parts["which"] = spaces.Discrete(3)
        if where in ("one_hot", "integer"):
            self.observation_space = spaces.Dict(parts)

    def _with_task(self, obs):
        if self.where == "one_hot":
            return {"bit": obs, "which": np.eye(3, dtype=np.float32)[self.task]}
        return {"bit": obs, "which": self.task} if self.where == "integer" else obs

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self.task = int(self.np_random.integers(self.n))
        return self._with_task(obs), info

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        info = {**info, "task": self.name(self.task)} if self.where == "info" else info
        return self._with_task(obs), 100.0**self.task * reward, terminated, truncated, info


def see(model):
    """The rollouts that a model's estimator gets, from the next learn() on."""
    seen = []
    grouper = model.grouper
    original = type(grouper).labels

    def labels(rollout):
        found = original(grouper, rollout)
        seen.append((rollout, found))
        return found

    grouper.labels = labels
    return seen


# ---------------------------------------------------------------- the numbers


@pytest.mark.parametrize("estimator", [outcome, process, step])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "median"])
@pytest.mark.parametrize("normalize", ["group", "batch", "none"])
def test_no_estimator_minds_the_order_of_the_groups(estimator, baseline, normalize):
    """Same groups under other numbers, in any order: the same advantages."""
    rollout = random_rollout()
    options = AdvantageOptions(normalize=normalize)
    order = th.tensor([2, 0, 3, 1])
    assert (rollout.group.diff() < 0).any()
    renumbered = rollout._replace(group=order[rollout.group])
    th.testing.assert_close(estimator(renumbered, options, baseline), estimator(rollout, options, baseline))


def test_by_task_every_scale_counts_alike():
    """Tasks that pay 1 and 3, and 1000 and 3000: z-scores -1 and 1 for both; over the rollout the small one would vanish."""
    rollout = make_rollout([[1.0], [1000.0], [3.0], [3000.0]], [0, 0, 1, 1])._replace(task=th.tensor([0, 2, 0, 2]))
    grouping = ByTask(("a", "b", "c"))
    labels = grouping.labels(rollout)
    regrouped = grouping.regroup(rollout, labels)
    assert labels.tolist() == [0, 2, 0, 2] and regrouped.group.tolist() == [0, 1, 0, 1]
    assert regrouped.n_groups == 2  # task b has no episode here, and leaves no empty group
    th.testing.assert_close(outcome(regrouped, AdvantageOptions()), th.tensor([-1.0, -1.0, 1.0, 1.0]))
    globally = outcome(rollout._replace(group=th.zeros(4, dtype=th.int64), n_groups=1), AdvantageOptions())
    assert (globally[0] - globally[2]).abs() < 2e-3


def test_hierarchical_is_same_seed_first_and_one_scale_per_task_after():
    """Seed groups (1, 3) and (10, 14) of task 0, (100, 300) of task 1; centred -1, 1, -2, 2 and -100, 100."""
    rewards = [[1.0], [3.0], [10.0], [14.0], [100.0], [300.0]]
    rollout = make_rollout(rewards, [0, 0, 1, 1, 2, 2])._replace(task=th.tensor([0, 0, 0, 0, 1, 1]))
    grouping = Hierarchical(("a", "b"))
    labels = grouping.labels(rollout)
    assert grouping.regroup(rollout, labels) is rollout
    centred = outcome(rollout, AdvantageOptions(normalize="none"))
    th.testing.assert_close(centred, th.tensor([-1.0, 1.0, -2.0, 2.0, -100.0, 100.0]))
    size = 2.5**0.5  # root mean square of 1, 1, 2, 2
    expected = th.tensor([-1 / size, 1 / size, -2 / size, 2 / size, -1.0, 1.0])
    th.testing.assert_close(grouping.rescale(centred, labels[rollout.episode]), expected)


def test_one_scale_leaves_rows_without_signal_alone():
    got = to_one_scale(th.tensor([0.0, 0.0, 3.0, -3.0]), th.tensor([0, 0, 1, 1]), 3)
    assert got.tolist() == [0.0, 0.0, 1.0, -1.0]


def test_difficulty_and_length_cut_at_quantiles():
    rollout = make_rollout([[4.0], [1.0, 1.0], [0.0, 0.5, 0.5], [1.0] * 4], [0, 0, 0, 0])
    assert ByQuantile(undiscounted_returns, 2).labels(rollout).tolist() == [1, 0, 0, 1]
    assert ByQuantile(lengths).labels(rollout).tolist() == [0, 1, 2, 3]
    same = make_rollout([[1.0]] * 5, [0] * 5)
    assert ByQuantile(undiscounted_returns).labels(same).tolist() == [0] * 5
    with pytest.raises(ValueError, match="n_quantiles=1 must be an integer, at least 2"):
        ByQuantile(lengths, 1)


def test_the_default_grouping_touches_nothing():
    rollout = random_rollout()
    grouping = BySeed()
    assert grouping.regroup(rollout, grouping.labels(rollout)) is rollout


def test_selected_episodes_are_a_rollout_of_their_own():
    rollout = random_rollout()._replace(task=th.arange(24) % 3)
    part, rows = select_episodes(rollout, rollout.task == 1)
    assert part.task.tolist() == [1] * 8 and part.episode.unique().tolist() == list(range(8))
    th.testing.assert_close(part.rewards, rollout.rewards[rows])
    th.testing.assert_close(episode_returns(part, 0.9), episode_returns(rollout, 0.9)[rollout.task == 1])
    assert part.group.max() + 1 == part.n_groups


@pytest.mark.parametrize(
    "episodes", [th.tensor([0, 3]), th.arange(24), th.ones(5, dtype=th.bool), th.zeros(24, dtype=th.bool)]
)
def test_episodes_are_selected_by_flags(episodes):
    with pytest.raises(
        ValueError, match=r"must be torch.bool of shape \(24,\) with a True in it, one flag per episode: of numbers"
    ):
        select_episodes(random_rollout(), episodes)


def test_a_function_is_told_what_is_wrong_with_its_labels():
    rollout = make_rollout([[1.0]] * 3, [0, 0, 1])

    def declared(labels, n_labels=None):
        def fn(rollout):
            return labels

        if n_labels:
            fn.n_labels = n_labels
        return ByFunction(fn)

    assert declared(th.tensor([7, 0, 7])).labels(rollout).tolist() == [7, 0, 7]
    assert declared(th.tensor([1, 0, 1]), 2).names == ("label_0", "label_1")
    for labels, n, says in (
        ([0, 1, 2], None, "returned list; it must return one label per episode: a torch int64 tensor .3,"),
        (th.zeros(3), None, "returned torch.float32"),
        (th.zeros(2, dtype=th.int64), None, "one label per episode"),
        (th.tensor([-1, 0, 1]), None, "labels from -1 to 1; they must be at least 0"),
        (th.tensor([0, 1, 2]), 2, "and at most n_labels - 1 = 1"),
    ):
        with pytest.raises(ValueError, match=says):
            declared(labels, n).labels(rollout)


# ---------------------------------------------------------------- clusters


def two_kinds(rng, n, swapped=False):
    """Short episodes with small rewards and long ones with large rewards, in turn."""
    rewards = []
    for i in range(n):
        large = (i % 2 == 1) != swapped
        rewards.append(rng.normal(5.0 if large else 0.0, 0.1, size=20 if large else 3).tolist())
    return make_rollout(rewards, list(range(n)))


def test_clusters_are_found_and_keep_their_numbers():
    pytest.importorskip("sklearn")
    rng, clusters = np.random.default_rng(0), Clusters(4, seed=0, n_clusters=2, window=50)
    first = clusters.labels(two_kinds(rng, 10))
    assert len(set(first[::2].tolist())) == len(set(first[1::2].tolist())) == 1 and first[0] != first[1]
    for _ in range(8):  # the window (50) overflows, the other kind comes first: the numbers stay
        labels = clusters.labels(two_kinds(rng, 10, swapped=True))
        assert (labels[1::2] == first[0]).all() and (labels[::2] == first[1]).all()


def test_clusters_are_reproducible_and_saved(tmp_path):
    pytest.importorskip("sklearn")

    def follow(clusters, rng):
        return th.stack([clusters.labels(random_rollout(seed=int(rng.integers(1000)))) for _ in range(5)])

    one, two = Clusters(4, seed=3), Clusters(4, seed=3)
    th.testing.assert_close(follow(one, np.random.default_rng(1)), follow(two, np.random.default_rng(1)))
    other = Clusters(4, seed=3)
    other.load_state_dict(one.state_dict())
    th.testing.assert_close(follow(one, np.random.default_rng(2)), follow(other, np.random.default_rng(2)))


def test_too_few_episodes_for_the_clusters_are_one_group():
    pytest.importorskip("sklearn")
    clusters = Clusters(4, seed=0, n_clusters=4)
    assert clusters.labels(random_rollout(3, 1)).tolist() == [0, 0, 0]
    assert len(clusters.labels(random_rollout(3, 1)).unique()) > 1  # six are remembered now


def test_features_of_an_episode():
    obs = th.tensor([[0.0, 1.0], [2.0, 1.0], [5.0, 5.0]])
    rollout = make_rollout([[1.0, 3.0], [7.0]], [0, 0], observations=obs)
    space = spaces.Box(-1, 1, (2,))
    assert n_episode_features(space) == 8 and n_episode_features(spaces.Discrete(3)) == 4
    assert n_episode_features(spaces.Box(0, 255, (3, 64, 64), np.uint8)) == n_episode_features(spaces.Box(-1, 1, (65,))) == 4
    expected = [[4.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.0], [7.0, 1.0, 7.0, 0.0, 5.0, 0.0, 5.0, 0.0]]
    assert episode_features(rollout, 8).tolist() == expected


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    monkeypatch.setitem(__import__("sys").modules, "sklearn.cluster", None)
    with pytest.raises(ValueError, match=r"needs scikit-learn.*pip install 'sb_grpo\[grouping\]'"):
        GRPO("MlpPolicy", "CartPole-v1", multitask=dict(grouping="auto"))


# ---------------------------------------------------------------- from the env to the weights


@pytest.mark.parametrize(
    ("env", "tasks"),
    [
        (lambda: TaskEnv(), dict(tasks=3)),
        (lambda: TaskEnv(name=lambda i: TASKS[i]), dict(tasks=TASKS)),
        (lambda: TaskEnv(name=np.int64), dict(tasks=TASKS)),
        (lambda: TaskEnv("one_hot"), dict(tasks=3, task_key="which")),
        (lambda: TaskEnv("integer"), dict(tasks=3, task_key="which")),
    ],
    ids=["number", "name", "numpy", "one_hot", "integer"],
)
@pytest.mark.parametrize("advantage", ["outcome", "state"])
@pytest.mark.parametrize("normalize", [False, True])
def test_tasks_arrive_from_infos_and_observations(env, tasks, advantage, normalize):
    policy = "MlpPolicy" if "task_key" not in tasks else "MultiInputPolicy"
    venv = DummyVecEnv([env] * 3)
    venv = VecNormalize(venv, norm_obs_keys=None) if normalize and policy == "MlpPolicy" else venv
    model = GRPO(policy, venv, multitask=dict(grouping="task", **tasks), advantage=advantage, **SMALL)
    seen = see(model)
    model.learn(500)
    for rollout, labels in seen:
        assert set(labels.tolist()) <= {0, 1, 2}
        paid = rollout.rewards > 0
        th.testing.assert_close(rollout.rewards[paid], 100.0 ** labels[rollout.episode][paid].float())
    assert th.isfinite(weights(model)).all() and model.groups.start_mismatches == 0


@pytest.mark.slow
def test_per_task_normalisation_learns_the_task_that_pays_least():
    """The task that pays 1 is learnt beside one that pays 10,000."""
    fast = dict(n_steps=128, batch_size=64, n_epochs=10, learning_rate=3e-3, group_size=2, seed=0)
    model = GRPO("MlpPolicy", DummyVecEnv([SeesItsTask] * 4), multitask=dict(tasks=3, grouping="task"), **fast).learn(16_000)
    env, right = SeesItsTask(), []
    for seed in range(40):
        obs, _ = env.reset(seed=seed)
        for _ in range(4):
            if env.task == 0:
                right.append(int(model.predict(obs, deterministic=True)[0]) == env.bit)
            obs, *_ = env.step(0)
    assert len(right) > 20 and np.mean(right) > 0.95


class SeesItsTask(TaskEnv):
    """Task 0 wants the bit, the others its opposite."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(-1, 1, (5,), np.float32)

    def _with_task(self, obs):
        return np.append(obs, np.eye(3, dtype=np.float32)[self.task])

    def step(self, action):
        return super().step(action if self.task == 0 else 1 - action)


@pytest.mark.parametrize(
    "grouping", ["task", "hierarchical", "difficulty", "length", "auto", lambda r: r.t.new_zeros(len(r.group))]
)
@pytest.mark.parametrize("path", ["host", "device"])
@pytest.mark.parametrize("advantage", ["outcome", "state"])
def test_groupings_train_and_survive_save_and_load(grouping, path, advantage, tmp_path):
    if grouping == "auto":
        pytest.importorskip("sklearn")
    env = make_tensor_env("CartPoleTasks-v0", 4) if path == "device" else make_vec_env("CartPoleTasks-v0", 4, seed=0)
    model = GRPO("MlpPolicy", env, multitask=dict(tasks=4, grouping=grouping), advantage=advantage, device="cpu", **SMALL)
    before = weights(model)
    model.learn(1_200)
    assert (weights(model) != before).any() and model.groups.start_mismatches == 0
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", env=env, device="cpu")
    th.testing.assert_close(weights(model), weights(loaded))
    if grouping == "auto":
        th.testing.assert_close(loaded.grouper.state_dict(), model.grouper.state_dict())
        assert int(loaded.grouper.n_fits) > 0
    if advantage == "state":
        th.testing.assert_close(loaded.estimator.state_dict(), model.estimator.state_dict())
    loaded.learn(500, reset_num_timesteps=False)
    assert loaded.num_timesteps > model.num_timesteps


def test_state_fits_one_baseline_per_task():
    """A baseline per task predicts each task's returns; their sizes differ by a factor of 10,000."""
    model = GRPO(
        "MlpPolicy", make_vec_env("CartPoleTasks-v0", 4, seed=0), multitask=dict(tasks=4, grouping="task"), **SMALL
    ).learn(2_000)
    sizes = [float(part.weights.abs().max()) for part in model.estimator]
    assert len(sizes) == 4 and sizes[1] > 10 * sizes[0] > 100 * sizes[2]


def test_loading_with_another_grouping_starts_its_baselines_anew(tmp_path):
    env = make_vec_env("CartPoleTasks-v0", 2, seed=0)
    model = GRPO("MlpPolicy", env, multitask=dict(tasks=4, grouping="task"), **SMALL).learn(300)
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", env=env, multitask=dict(grouping="seed"), normalize_advantage="batch")
    assert not hasattr(loaded.estimator, "n_tasks") and float(loaded.estimator.weights.abs().sum()) == 0
    loaded.learn(300)


def test_tasks_arrive_from_other_processes():
    env = make_vec_env("CartPoleTasks-v0", 2, vec_env_cls=SubprocVecEnv, wrapper_class=SeededResetWrapper, seed=0)
    model = GRPO("MlpPolicy", env, multitask=dict(tasks=4, grouping="task"), **SMALL).learn(300)
    assert model.groups.start_mismatches == 0
    env.close()


def test_groups_of_one_are_enough_where_tasks_are_the_groups():
    GRPO(
        "MlpPolicy",
        DummyVecEnv([TaskEnv] * 2),
        multitask=dict(tasks=3, grouping="task"),
        advantage="outcome",
        **{**SMALL, "group_size": 1},
    ).learn(200)


def test_same_seed_same_weights():
    pytest.importorskip("sklearn")
    found = []
    for _ in range(2):
        env = make_vec_env("CartPoleTasks-v0", 3, seed=1)
        model = GRPO("MlpPolicy", env, multitask=dict(tasks=4, grouping="auto", weights="balanced", surgery=True), **SMALL)
        found.append(weights(model.learn(600)))
    assert (found[0] == found[1]).all()


class Wrong(TaskEnv):
    def __init__(self, reported):
        super().__init__()
        self.reported = reported

    def step(self, action):
        *rest, info = super().step(action)
        info.pop("task")
        return *rest, info | self.reported(self)


@pytest.mark.parametrize(
    ("reported", "says"),
    [
        (lambda env: {}, "info of env 0 has no 'task' .*Report the task in the info of every step"),
        (
            lambda env: {"task": 3},
            "Task 3 of env 0 is not declared: there are 3, .*ids 0 to 2.*Declare all of them with tasks=",
        ),
        (lambda env: {"task": "tiny"}, "Task 'tiny' of env 0 is not declared"),
        (lambda env: {"task": [1]}, r"Task \[1\] of env 0 is not declared"),
        (lambda env: {"task": env.t % 2}, "changed its task from . to . on the way.*choose the task in reset"),
    ],
    ids=["missing", "number", "name", "list", "changes"],
)
def test_tasks_that_make_no_sense(reported, says):
    model = GRPO("MlpPolicy", DummyVecEnv([lambda: Wrong(reported)] * 2), multitask=dict(tasks=3, grouping="task"), **SMALL)
    before = weights(model)
    with pytest.raises(ValueError, match=says):
        model.learn(200)
    assert (weights(model) == before).all()


def test_an_undeclared_task_in_the_observation():
    class Half(TaskEnv):
        def _with_task(self, obs):
            return {"bit": obs, "which": np.array([0.5, 0.5, 0.0], dtype=np.float32)}

    for env, n, says in (
        (lambda: Half("one_hot"), 3, "Task .0.5, 0.5, 0.0. in observation.'which'. of env 0 is not declared"),
        (lambda: TaskEnv("integer"), 2, "is not declared: there are 2 tasks, given as an integer from 0 to 1"),
    ):
        model = GRPO(
            "MultiInputPolicy", DummyVecEnv([env] * 2), multitask=dict(tasks=n, task_key="which", grouping="task"), **SMALL
        )
        with pytest.raises(ValueError, match=says):
            model.learn(500)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        (dict(multitask=dict(grouping="kind")), "grouping='kind' is unknown; use one of .'seed', 'task'"),
        (dict(multitask=dict(grouping="task")), "grouping='task' needs to know the tasks: declare them with tasks="),
        (dict(multitask=dict(grouping="hierarchical")), "grouping='hierarchical' needs to know the tasks"),
        (dict(multitask=dict(tasks=0)), "tasks=0 must be a number of tasks, a list of names .1 to 1000"),
        (dict(multitask=dict(tasks="abc")), "tasks='abc' must be a number of tasks, a list of names"),
        (dict(multitask=dict(tasks=[1, 2])), "must be a number of tasks, a list of names"),
        (dict(multitask=dict(tasks=["a", "a"])), "1 to 1000, each once"),
        (dict(multitask=dict(task_key="level")), "task_key='level' has no effect without tasks"),
        (
            dict(multitask=dict(grouping_kwargs=dict(n_clusters=3))),
            "unknown key 'n_clusters'.*grouping='seed' takes none",
        ),
        (
            dict(multitask=dict(grouping="length", grouping_kwargs=dict(window=3))),
            "unknown key 'window'.*grouping='length' takes .'n_quantiles'.",
        ),
        (
            dict(multitask=dict(grouping="auto"), advantage="outcome", n_groups=1, group_size=3),
            "n_clusters=4 is more than the 3 episodes",
        ),
        (
            dict(multitask=dict(grouping="auto", grouping_kwargs=dict(n_clusters=5, window=4))),
            "n_clusters=5 is more than window=4",
        ),
        (
            dict(multitask=dict(grouping="auto", grouping_kwargs=dict(n_clusters=1))),
            "n_clusters=1 must be an integer, at least 2",
        ),
        (
            dict(multitask=dict(grouping="length"), normalize_advantage="batch"),
            "grouping='length' has no effect with advantage='state'",
        ),
    ],
)
def test_arguments(kwargs, says):
    if kwargs.get("multitask", {}).get("grouping") == "auto":
        pytest.importorskip("sklearn")
    with pytest.raises(ValueError, match=says):
        GRPO("MlpPolicy", "CartPole-v1", **kwargs)


def test_arguments_with_tensor_envs():
    with pytest.raises(ValueError, match="CartPole has one task only: its property tasks is None"):
        GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 2), multitask=dict(tasks=2), device="cpu")
    with pytest.raises(ValueError, match="task_key='x' has no effect with a tensor env"):
        GRPO("MlpPolicy", make_tensor_env("CartPoleTasks-v0", 2), multitask=dict(tasks=4, task_key="x"), device="cpu")


def test_returns_by_task_are_logged():
    model = GRPO("MlpPolicy", make_vec_env("CartPoleTasks-v0", 4, seed=0), multitask=dict(tasks=["a", "b", "c", "d"]), **SMALL)
    records = []
    original = model.compute_advantages
    model.compute_advantages = lambda rollout: (original(rollout), records.append(dict(model.logger.name_to_value)))[0]
    model.learn(1_000)
    logged = {key: value for record in records for key, value in record.items() if key.startswith("task/")}
    assert set(logged) == {f"task/{name}" for name in "abcd"}
    assert 5 < logged["task/a"] < 100 and 500 < logged["task/b"] < 10_000 and 0.05 < logged["task/c"] < 1.0


def test_the_gym_registry_knows_the_suites():
    assert {"CartPoleTasks-v0", "PendulumTasks-v0", "LunarLanderTasks-v0"} <= set(gym.registry)


def test_every_key_of_these_options_is_in_the_glossary():
    glossary = (Path(__file__).parents[1] / "docs/logger.md").read_text()
    keys = ["task/<name>", "objective/<name>", "share/<label>", "group/weight_min", "group/weight_max", "train/conflict_rate"]
    assert all(f"`{key}`" in glossary for key in keys)


@pytest.mark.parametrize(
    "kwargs", [dict(advantage="outcome"), dict(advantage="step"), dict(advantage_kwargs=dict(paired=True))]
)
def test_groups_that_become_one_member_are_refused_where_it_would_have_no_other_members(kwargs):
    def make(group_size):
        env = make_vec_env("CartPole-v1", 2)
        return GRPO("MlpPolicy", env, group_size=group_size, normalize_advantage="batch", n_steps=16, device="cpu", **kwargs)

    with pytest.raises(ValueError, match="group_size=1 leaves no other members in a group"):
        make(lambda progress: 4 if progress > 0.6 else 1)
    model = make(lambda progress: 1 if 0.2 < progress < 0.6 else 4)  # on the way
    with pytest.raises(ValueError, match="group_size=1 leaves no other members in a group"):
        model.learn(2000)
    model = make(4).learn(64)
    steps, model.group_size = model.num_timesteps, 1  # by hand
    with pytest.raises(ValueError, match="group_size=1 leaves no other members in a group"):
        model.learn(64, reset_num_timesteps=False)
    model.group_size = 2
    assert model.learn(64, reset_num_timesteps=False).num_timesteps > steps


def test_a_single_member_learns_by_what_the_others_get():
    """The remedy that the message names."""
    options = dict(group_size=1, normalize_advantage="batch", advantage="outcome", advantage_kwargs=dict(baseline="global"))
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 4, seed=0), n_steps=64, seed=0, device="cpu", **options).learn(512)
    assert model._n_gradient_steps > 0 and model.last_metrics["group/frac_zero_std"] == 0.0
