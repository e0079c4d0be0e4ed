"""Recordings: groups from one start each, tasks equally often, figures of the policy that can be worked out, bad input."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest
import torch as th
from stable_baselines3.common.logger import HumanOutputFormat

from sb_grpo import GRPO
from zoo.common.command_line import BadInput
from zoo.record import main
from zoo.recording import policy_figures as figures
from zoo.recording.document import VERSION, read, rollout_of, rounded
from zoo.recording.episodes import collect, group_seeds
from zoo.recording.history import History


def test_members_share_a_start_and_every_task_has_its_groups(tmp_path: Path) -> None:
    file = tmp_path / "a" / "rollout.json"
    tasks = ["--env", "CartPoleTasks-v0", "--groups", "4", "--members", "2", "--max-steps", "30", "--steps", "1"]
    assert main([*tasks, "--out", str(file)]) == 0
    document = read(file)
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
    scores = figures.scores(model.policy, rollout)
    with th.no_grad():
        p = model.policy.get_distribution(rollout.observations).distribution.probs  # type: ignore[attr-defined]
    assert th.allclose(scores, th.nn.functional.one_hot(rollout.actions, 2) - p, atol=1e-6)


def test_an_update_without_signal_leaves_ratios_at_one() -> None:
    model = GRPO("MlpPolicy", "CartPole-v1", seed=0)
    rollout = collect(gym.make("CartPole-v1"), model.policy, 2, 2, 10, 0)
    assert th.equal(
        figures.ratios_after_update(model.policy, rollout, th.zeros(len(rollout.rewards)), 0), th.ones_like(rollout.rewards)
    )
    moved = figures.ratios_after_update(model.policy, rollout, th.ones(len(rollout.rewards)), 0)
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
