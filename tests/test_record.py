"""Recordings: groups from one start each, tasks equally often, figures of the policy that can be worked out, bad input."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.logger import HumanOutputFormat
from stable_baselines3.common.vec_env import DummyVecEnv

from sb_grpo import GRPO
from sb_grpo.policies.extra_inputs import MASK, MEMORY
from tests.explorer_reference import read_recording, rollout_of
from tests.test_masks import Moody
from zoo import record
from zoo.common.command_line import BadInput
from zoo.record import VERSION, History, collect, group_seeds, main, rounded


def test_members_share_a_start_and_every_task_has_its_groups(tmp_path: Path) -> None:
    file = tmp_path / "a" / "rollout.json"
    tasks = ["--env", "CartPoleTasks-v0", "--groups", "4", "--members", "2", "--max-steps", "30", "--steps", "1"]
    assert main([*tasks, "--out", str(file)]) == 0
    document = read_recording(file)
    rollout, values, final = rollout_of(document)
    assert document["version"] == VERSION and len(document["tasks"]) == 4
    assert sorted(document["episodes"]["task"]) == [0, 0, 1, 1, 2, 2, 3, 3]
    first = rollout.observations[rollout.t == 0]  # type: ignore[index]
    assert th.equal(first[0::2], first[1::2]) and len(th.unique(first[0::2], dim=0)) == 4
    assert len(values) == len(rollout.rewards) and len(final) == 8
    assert all(cosine == pytest.approx(1.0, abs=1e-3) for cosine in (document["conflicts"]["cosines"][i][i] for i in range(4)))


def test_scores_are_gradients_of_log_probabilities() -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", seed=0)
    rollout = collect(gym.make("CartPole-v1"), model.policy, 2, 2, 10, 0)
    scores = record.score_columns(model.policy, rollout)
    with th.no_grad():
        p = model.policy.get_distribution(rollout.observations).distribution.probs  # type: ignore[attr-defined]
    assert th.allclose(scores, th.nn.functional.one_hot(rollout.actions, 2) - p, atol=1e-6)


@pytest.mark.parametrize("source", ["method", "info"])
def test_masks_are_kept_and_so_is_what_the_policy_remembers(source: str) -> None:
    """As in training: no action that is not valid, and the memory of a step is what the steps before it have left."""
    env = Moody(source=source)
    model = GRPO("MlpPolicy", DummyVecEnv([lambda: env]), seed=0, n_steps=40, policy_kwargs=dict(memory="gru"))
    th.manual_seed(0)
    rollout = collect(env, model.policy, 3, 2, 15, 0)
    assert env.invalid == 0 and len(rollout.rewards) == 3 * 2 * 15
    masks, memory = (rollout.observations[key] for key in (MASK, MEMORY))  # type: ignore[call-overload]
    assert bool(masks.gather(1, rollout.actions.unsqueeze(1)).all())
    assert bool((memory[rollout.t == 0] == 0).all()) and bool((memory[rollout.t > 0] != 0).any(dim=1).all())
    state, first = None, {key: part[:15] for key, part in rollout.observations.items()}  # type: ignore[union-attr]
    for t in range(15):
        _, state = model.policy.predict(first[""][t].numpy(), state=state, action_masks=first[MASK][t].numpy()[None])
        assert state is not None
        after = memory[t + 1] if t < 14 else rollout.final_observations[MEMORY][0]  # type: ignore[call-overload]
        assert np.allclose(state[0].ravel(), after, atol=1e-6)
    assert bool(record.ratios_after_update(model.policy, rollout, th.ones(90), 0).isfinite().all())


def test_a_policy_with_a_memory_is_recorded_from_the_command_line(tmp_path: Path) -> None:
    file, settings = tmp_path / "x.json", ["policy_kwargs:dict(memory='lstm')", "n_steps:32"]
    short = ["--groups", "2", "--members", "2", "--max-steps", "9", "--steps", "1"]
    assert main(["--env", "TMaze10-v0", "--out", str(file), *short, "--hyperparams", *settings]) == 0
    assert len(read_recording(file)["steps"]["observation"]) == gym.make("TMaze10-v0").observation_space.shape[0]  # type: ignore[index]


def test_an_update_without_signal_leaves_ratios_at_one() -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", seed=0)
    rollout = collect(gym.make("CartPole-v1"), model.policy, 2, 2, 10, 0)
    assert th.equal(
        record.ratios_after_update(model.policy, rollout, th.zeros(len(rollout.rewards)), 0), th.ones_like(rollout.rewards)
    )
    moved = record.ratios_after_update(model.policy, rollout, th.ones(len(rollout.rewards)), 0)
    assert bool((moved != 1).any())


def test_numbers_stay_short() -> None:
    assert rounded(th.tensor([1.0, 0.123456789, float("nan")]), 4) == [1, 0.1235, None]


def test_history_fills_what_was_not_logged() -> None:
    history = History()
    history.write({"task/a": 1.0, "time/fps": 3.0}, {}, 10)
    history.write({"task/b": 2.0}, {}, 20)
    assert history.steps == [10, 20] and history.columns == {"task/a": [1.0, None], "task/b": [None, 2.0]}
    assert not isinstance(history, HumanOutputFormat)


def test_bad_input_is_named(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "x.json")]
    for arguments, rule in (
        (["--env", "CartPole-v1", "--members", "1"], "--members 1 must be at least 2"),
        (["--env", "CartPole-v1", "--hyperparams", "advantage:outcome"], "has no values to record"),
        (["--env", "CartPole-v1", "--hyperparams", "group_size:0"], "group_size"),
        (["--env", "Cartpole-v1"], "CartPole-v1"),
    ):
        with pytest.raises(BadInput, match=rule):
            main([*arguments, *out])
    assert not (tmp_path / "x.json").exists()
    with pytest.raises(BadInput, match="Ask for fewer"):
        group_seeds(gym.make("CartPoleTasks-v0", task="heavy"), 4, 4)
