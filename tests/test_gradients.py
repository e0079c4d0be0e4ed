"""PCGrad by worked-out vectors, and the gradient of a minibatch with and without it."""

import math

import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from sb_grpo import GRPO
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.learn.gradients import PlainGradient, SurgicalGradient, conflict_rate, project_conflicts
from sb_grpo.types import Minibatch
from tests.test_grouping import weights

IN_ORDER = th.tensor([[0, 1], [0, 1]])


def test_two_vectors_in_conflict():
    """(1, 0) and (-1, 1): each loses what points against the other: (1/2, 1/2) and (0, 1)."""
    gradients = th.tensor([[1.0, 0.0], [-1.0, 1.0]])
    expected = th.tensor([[0.5, 0.5], [0.0, 1.0]])
    th.testing.assert_close(project_conflicts(gradients, IN_ORDER), expected)
    assert float(conflict_rate(gradients)) == 1.0
    th.testing.assert_close(project_conflicts(1000.0 * gradients, IN_ORDER), 1000.0 * expected)


def test_vectors_that_agree_are_left_alone():
    gradients = th.tensor([[1.0, 0.2], [0.5, 3.0]])
    assert (project_conflicts(gradients, IN_ORDER) == gradients).all() and float(conflict_rate(gradients)) == 0.0


def test_vectors_that_are_opposite_cancel_and_zeros_stay():
    opposite = th.tensor([[2.0, 0.0], [-1.0, 0.0]])
    assert (project_conflicts(opposite, IN_ORDER) == 0).all()
    zero = th.tensor([[0.0, 0.0], [-1.0, 1.0]])
    assert (project_conflicts(zero, IN_ORDER) == zero).all()


def test_the_order_matters_and_projects_on_the_original_vectors():
    """(1, 0) against (-1, 1) and (-1, -2), in either order."""
    gradients = th.tensor([[1.0, 0.0], [-1.0, 1.0], [-1.0, -2.0]])
    first = project_conflicts(gradients, th.tensor([[1, 2, 0]] * 3))[0]
    second = project_conflicts(gradients, th.tensor([[2, 1, 0]] * 3))[0]
    # (1, 0) -> (1/2, 1/2) -> + 3/10 (-1, -2) = (0.2, -0.1)
    # (1, 0) -> + 1/5 (-1, -2) = (0.8, -0.4) -> + 3/5 (-1, 1) = (0.2, 0.2)
    th.testing.assert_close(first, th.tensor([0.2, -0.1]))
    th.testing.assert_close(second, th.tensor([0.2, 0.2]))
    assert float(conflict_rate(gradients)) == 1.0
    assert math.isclose(float(conflict_rate(-gradients[[0, 1, 1]])), 2 / 3, rel_tol=1e-6)


def test_as_the_algorithm_in_plain_loops():
    generator = th.Generator().manual_seed(0)
    gradients = th.randn(5, 3, generator=generator, dtype=th.float64)
    order = th.stack([th.randperm(5, generator=generator) for _ in range(5)])
    expected = gradients.clone()
    for i in range(5):
        for j in order[i].tolist():
            dot = expected[i] @ gradients[j]
            if j != i and dot < 0:
                expected[i] -= dot / (gradients[j] @ gradients[j]) * gradients[j]
    th.testing.assert_close(project_conflicts(gradients, order), expected)


def linear_problem(targets, angle=None):
    """A linear model and a row per target; the loss pulls its output of every row towards the target."""
    rows = len(targets)
    layer = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(layer.weight)
    minibatch = Minibatch(
        th.tensor([[1.0, float(i % 2)] if angle is None else [math.cos(i * angle), math.sin(i * angle)] for i in range(rows)]),
        th.zeros(rows),
        th.zeros(rows),
        th.tensor(targets),
        th.ones(rows),
        th.arange(rows),
    )

    def loss(part):
        return (-part.advantages * layer(part.observations).squeeze(1)).mean()

    return layer, minibatch, loss


def test_without_conflict_surgery_gives_the_plain_gradient():
    grads = []
    for rule in (PlainGradient(), PlainGradient(2), SurgicalGradient(), SurgicalGradient(1)):
        layer, minibatch, loss = linear_problem([1.0, 2.0, 0.5, 1.0, 3.0])
        rule.start_update(th.tensor([0, 1, 0, 2, 2]))
        rule(loss, minibatch, [layer.weight])
        grads.append(layer.weight.grad.clone())
    for grad in grads[1:]:
        th.testing.assert_close(grad, grads[0])
    assert rule.metrics() == {"train/conflict_rate": 0.0} and PlainGradient().metrics() == {}


def test_with_conflict_no_task_is_stepped_against():
    layer, minibatch, loss = linear_problem([1.0, -3.0])
    rule = SurgicalGradient()
    rule.start_update(th.tensor([1, 0]))
    rule(loss, minibatch, [layer.weight])
    # gradients: task 1 -(1/2)(1, 0), task 0 (3/2)(1, 1); projected: (1/4)(-1, 1) and (0, 3/2)
    th.testing.assert_close(layer.weight.grad, th.tensor([[-0.25, 1.75]]))
    assert rule.metrics() == {"train/conflict_rate": 1.0}


def test_one_task_in_a_minibatch_has_no_conflicts():
    layer, minibatch, loss = linear_problem([1.0, 2.0])
    rule = SurgicalGradient()
    rule.start_update(th.tensor([1, 1]))
    rule(loss, minibatch, [layer.weight])
    assert rule.metrics() == {} and (layer.weight.grad != 0).any()


def test_the_generator_makes_it_reproducible():
    found = []
    for seed in (0, 0, 1):
        rule = SurgicalGradient(generator=th.Generator().manual_seed(seed))
        layer, minibatch, loss = linear_problem([1.0, -3.0, 2.0, -1.0, 4.0, -2.0], angle=1.0)
        rule.start_update(th.arange(6))
        for _ in range(3):
            rule(loss, minibatch, [layer.weight])
        found.append(layer.weight.grad.clone())
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any()


@pytest.mark.parametrize("path", ["host", "device"])
def test_surgery_trains_and_logs_its_conflicts(path, tmp_path):
    env = make_tensor_env("CartPoleTasks-v0", 4) if path == "device" else make_vec_env("CartPoleTasks-v0", 4, seed=0)
    kwargs = dict(n_steps=64, batch_size=64, n_epochs=2, group_size=2, seed=0, device="cpu")
    model = GRPO("MlpPolicy", env, multitask=dict(tasks=4, grouping="task", surgery=True), **kwargs)
    before, rates = weights(model), []
    original = model.gradient.metrics
    model.gradient.metrics = lambda: rates.append(original()) or original()
    model.learn(1_000)
    assert (weights(model) != before).any() and th.isfinite(weights(model)).all()
    assert any(0 < rate.get("train/conflict_rate", 0) <= 1 for rate in rates)
    model.save(tmp_path / "m")
    loaded = GRPO.load(tmp_path / "m", env=env, device="cpu")
    assert isinstance(loaded.gradient, SurgicalGradient)
    loaded.learn(300, reset_num_timesteps=False)


def test_compiled_execution_says_that_surgery_stays_eager():
    env = make_tensor_env("CartPoleTasks-v0", 4)
    with pytest.warns(UserWarning, match="the update runs eagerly, because surgery=True computes one gradient per task"):
        GRPO("MlpPolicy", env, multitask=dict(tasks=4, surgery=True), compile=True, device="cpu")


@pytest.mark.parametrize("tasks", [None, 1])
def test_surgery_needs_tasks(tasks):
    with pytest.raises(ValueError, match=f"surgery=True settles conflicts between tasks, but tasks={tasks}"):
        GRPO("MlpPolicy", "CartPole-v1", multitask=dict(surgery=True, tasks=tasks))
