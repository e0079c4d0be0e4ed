"""Several learners are one: real processes under torchrun against a single one with the same envs in all.

Gradients are compared after updates whose only minibatch is the whole rollout, so that no shuffling comes in between; actions
are the same because every rank draws the random numbers of all envs (``tests.rank_jobs.OfAll``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch as th
from stable_baselines3.common.callbacks import CallbackList, CheckpointCallback, EveryNTimesteps
from stable_baselines3.common.running_mean_std import RunningMeanStd

from sb_grpo import GRPO, distributed, distributed_training
from sb_grpo.callbacks import HealthCallback
from sb_grpo.distributed import World
from tests.helpers import wait_for
from zoo.training.checkpoints import Checkpoints

ROOT = Path(__file__).parent.parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--monitor-interval", "3", "--nproc-per-node")


def run(n: int, *command: str) -> subprocess.CompletedProcess[str]:
    """A module in N processes of one thread each."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    start = [*TORCHRUN, str(n), "-m"] if n > 1 else [sys.executable, "-m"]
    return subprocess.run([*start, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)


def found(n: int, job: str, out: Path) -> dict[str, th.Tensor]:
    """What rank 0 of N learners has found."""
    done = run(n, "tests.rank_jobs", job, str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, th.Tensor] = th.load(out / f"{job}{n}.pt")
    return result


def deviation(one: th.Tensor, other: th.Tensor) -> float:
    """Largest difference in units of 1 + abs; nan equals nan."""
    assert one.shape == other.shape
    one, other = one.double().nan_to_num(1e9), other.double().nan_to_num(1e9)
    return float(((one - other).abs() / (1.0 + one.abs())).max()) if one.numel() else 0.0


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, th.Tensor]]:
    """What a single learner finds."""
    folder = tmp_path_factory.mktemp("alone")
    return {job: found(1, job, folder) for job in ("baselines", "update")}


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
def test_state_baseline_is_exact(n, alone, tmp_path):
    """Weights, metric, moments, pairs and advantages after 6 rollouts, in double precision: nothing hides in rounding."""
    one, all_of_them = alone["baselines"], found(n, "baselines", tmp_path)
    assert one.keys() == all_of_them.keys() and len(one) > 50
    assert {name: d for name in one if (d := deviation(one[name], all_of_them[name])) > 1e-5} == {}


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
def test_update_is_that_of_one_learner(n, alone, tmp_path):
    """Groups, policy weights, figures and results of three rollouts and their updates; in float32 the ridge leaves single
    weights of the baseline loose, so there its statistics are compared, and its values by way of the policy that they made."""
    one, all_of_them = alone["update"], found(n, "update", tmp_path)
    assert one.keys() == all_of_them.keys()
    loose = {f"{k}.baseline.weights" for k in range(3)}
    assert {name: d for name in one if (d := deviation(one[name], all_of_them[name])) > 1e-5 and name not in loose} == {}
    assert max(deviation(one[name], all_of_them[name]) for name in loose) < 0.1
    assert one["0.groups"].tolist() == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
def test_ranks_with_unequal_rollouts_stay_one_model(n, tmp_path):
    """The job compares weights, statistics, steps and figures of all ranks; here: that there was something to compare."""
    result = found(n, "uneven", tmp_path)
    assert len(set(result["rows"].tolist())) > 1
    assert abs(float(result["seen"]) - (float(result["steps"]) + 8)) < 0.01  # VecNormalize: every step and 8 resets


def test_a_rank_without_signal_learns_along(tmp_path):
    """With every aggregation; the job compares the weights of all ranks. Without any signal no step is taken."""
    steps = {name: int(n) for name, n in found(2, "silent", tmp_path).items()}
    assert all(bool(n) == name.startswith("Pays.") for name, n in steps.items()) and len(steps) == 6


@pytest.mark.slow
def test_two_learners_solve_cartpole(tmp_path):
    result = found(2, "cartpole", tmp_path)
    assert result["return"] > 475 and 80_000 <= result["steps"] <= 82_000


@pytest.mark.slow
def test_learning_curves_over_ranks_are_those_of_one(tmp_path):
    """Four seeds each: no mean of the two may lie further from the other's than three standard errors of their difference,
    or a twentieth of the range that is learnt, and both learn."""
    one, two = found(1, "curves", tmp_path), found(2, "curves", tmp_path)
    for env_id, learnt in (("CartPole-v1", 450.0), ("Pendulum-v1", 700.0)):
        a, b = one[env_id], two[env_id]
        error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
        apart = (a.mean(0) - b.mean(0)).abs()
        assert (apart <= (3.0 * error).clamp(min=learnt / 20)).all(), (env_id, a, b)
        assert min(a[:, 2].mean() - a[:, 0].mean(), b[:, 2].mean() - b[:, 0].mean()) > 0, (env_id, a, b)


@pytest.mark.slow
def test_masks_and_memories_have_several_learners(tmp_path):
    """The job compares the weights of all ranks; here: as many steps and gradient steps as one learner takes."""
    one, two = found(1, "masked_memories", tmp_path), found(2, "masked_memories", tmp_path)
    assert {kind: row.tolist()[0] for kind, row in two.items()} == {kind: row.tolist()[0] for kind, row in one.items()}
    assert all(row[1] > 0 for row in two.values())


@pytest.mark.slow
def test_a_curriculum_has_one_level_for_all_learners(tmp_path):
    """The job compares levels and successes of all ranks, also where a callback stops one of them in mid-rollout."""
    assert all(row[1] > 0 for row in found(2, "curriculum", tmp_path).values())


@pytest.mark.slow
def test_rank_that_dies_ends_all_and_another_number_goes_on(tmp_path):
    done = run(2, "tests.rank_jobs", "dies", str(tmp_path))
    assert done.returncode != 0 and done.stderr.count("Rank 0 of 2 stops, because another rank has ended") == 1
    assert "Traceback" not in done.stderr.split("Rank 0 of 2")[0]
    assert {path.name for path in tmp_path.glob("*.zip")} == {f"model_{k * 512}_steps.zip" for k in (1, 2, 3)}
    newest = GRPO.load(tmp_path / "model_1536_steps.zip")
    one, three = (found(n, "resumes", tmp_path) for n in (1, 4))
    for resumed in (one, three):
        assert th.equal(resumed["loaded"], th.cat([p.detach().flatten() for p in newest.policy.parameters()]))
        assert resumed["steps"] == 2 * 512 and resumed["groups"].min() >= resumed["first"]
    assert th.equal(one["groups"], three["groups"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        ("differs", "learning_rate is 0.001 on rank 0 and 0.002 on rank 1: all learners must be given the same settings."),
        ("odd_groups", "n_groups=5 is no multiple of the 2 learners, each of which collects its share: use n_groups=6"),
        ("by_task", "multitask: grouping='length' compares or learns over all episodes, which 2 learners do not share"),
    ],
)
def test_bad_input_of_several_learners(job, sentence, tmp_path):
    done = run(2, "tests.rank_jobs", job, str(tmp_path))
    assert done.returncode != 0 and f"rank 0: {sentence}" in done.stderr


@pytest.mark.slow
def test_zoo_train_with_two_learners(tmp_path):
    """One run folder with models and figures, and one that cannot be: exit code 2 and nothing begun."""
    command = (
        "zoo.train",
        "--env",
        "CartPole-v1",
        "--log-folder",
        str(tmp_path),
        "--eval-freq",
        "1000",
        "--save-freq",
        "1000",
    )
    done = run(2, *command, "-n", "2048", "--hyperparams", "n_envs:4", "n_steps:128")
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (tmp_path / "grpo").iterdir()
    assert {"CartPole-v1.zip", "best_model.zip", "metrics.json", "evaluations.npz"} <= {path.name for path in folder.iterdir()}
    assert GRPO.load(folder / "CartPole-v1.zip").num_timesteps == 2048
    assert done.stdout.count("Mean return over 20 episodes") == 1
    done = run(2, *command[:3], "--log-folder", str(tmp_path / "none"), "--hyperparams", "n_envs:3")
    assert "zoo.train: n_envs=3 cannot be shared out evenly to 2 learners: use --hyperparams n_envs:4" in done.stderr
    assert "exitcode  : 2" in done.stderr and not (tmp_path / "none").exists()


@pytest.mark.slow
def test_zoo_train_saves_when_another_rank_is_killed(tmp_path):
    """Rank 0 says so and leaves the model as it is."""
    command = [*TORCHRUN, "2", "-m", "zoo.train", "--env", "CartPole-v1", "-n", "1000000", "--eval-freq", "-1"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with Path(tmp_path, "said").open("w") as log:
        training = subprocess.Popen(
            [*command, "--log-folder", str(tmp_path), "--save-freq", "2048"], cwd=ROOT, env=env, stdout=log, stderr=log
        )
        try:
            wait_for(lambda: any(tmp_path.rglob("rl_model_*_steps.zip")), seconds=200)
            processes = psutil.Process(training.pid).children()
            next(learner for learner in processes if learner.environ().get("RANK") == "1").kill()
            assert training.wait(timeout=60) != 0
        finally:
            training.kill()
    messages_of_all = Path(tmp_path, "said").read_text()
    assert messages_of_all.count("Rank 0 of 2 stops, because another rank has ended") == 1, messages_of_all[-3000:]
    (model,) = tmp_path.rglob("CartPole-v1.zip")
    assert GRPO.load(model).num_timesteps >= 2048 and f"the model is {model}" in messages_of_all


# ---------------------------------------------------------------- without processes


@pytest.fixture
def second_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_world", World(1, 3))


def test_a_single_learner_reduces_nothing():
    values = th.rand(5, 2)
    assert distributed.world() == (0, 1) and distributed.total(values) is values
    assert distributed.count(3) == 3 and distributed.largest(0.5, 2) == [0.5, 2]
    assert distributed.global_group(7) == distributed.first_own_group(7) == distributed.next_global_group(
        7
    ) == 7 and distributed.gathered("x") == ["x"]
    assert th.equal(distributed.mean(values), values.mean(0)) and distributed.every(False) is distributed.some(False) is False


def test_groups_are_dealt_like_cards(second_of_three):
    """The second of three has groups 1, 4, 7, ...; with two of them begun, 6 is the first that is free for sure."""
    assert distributed.global_group(th.arange(3)).tolist() == [1, 4, 7] and distributed.global_group(2) == 7
    assert distributed.next_global_group(2) == 6 and [distributed.first_own_group(group) for group in (5, 6, 7)] == [2, 2, 3]


@pytest.mark.parametrize("variables", [("1", "1"), ("-1", "2"), ("a", "2"), ("0", "")], ids="/".join)
def test_variables_that_cannot_be_are_refused(variables, monkeypatch):
    monkeypatch.setenv("RANK", variables[0])
    monkeypatch.setenv("WORLD_SIZE", variables[1])
    with pytest.raises(ValueError, match=r"RANK=.* and WORLD_SIZE=.* torchrun --nproc-per-node N script.py"):
        distributed.announced()


def test_rank_0_alone_writes(second_of_three, tmp_path):
    writer, watcher = CheckpointCallback(1, str(tmp_path)), HealthCallback()
    for callback in (writer, Checkpoints(1, tmp_path, {}), EveryNTimesteps(5, writer)):
        assert distributed_training.own_callbacks(callback) is None
    assert distributed_training.own_callbacks(watcher) is watcher and distributed_training.own_callbacks(None) is None
    assert (
        distributed_training.own_callbacks(CallbackList([writer, watcher]))
        == [watcher]
        == distributed_training.own_callbacks([watcher, writer])
    )


def test_statistics_as_sums():
    """1, 3 and 5, with VecNormalize's own beginning of almost nothing."""
    statistics = RunningMeanStd(epsilon=1e-12, shape=(1,))
    statistics.update(np.array([[1.0], [3.0], [5.0]]))
    assert distributed_training.sums_of(statistics).flatten().tolist() == pytest.approx([3.0, 9.0, 35.0])
