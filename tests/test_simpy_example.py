"""docs/examples/simpy_clinic.py: hours by hand, common random numbers, and a training."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3.common.env_checker import check_env as sb3_check
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.envs import noise_alignment

pytest.importorskip("simpy")
ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs/examples/simpy_clinic.py"


@pytest.fixture
def clinic():
    spec = importlib.util.spec_from_file_location("simpy_clinic", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def episode(env, actions):
    return [env.step(action)[1] for action in actions]


def test_hours_by_hand(clinic, monkeypatch):
    monkeypatch.setattr(clinic, "N_PATIENTS", 2)
    env = clinic.Clinic()
    for actions, hours in [
        ((0, 0), [1.0, 1.0 + 2.0]),  # 0 to 2; the second one comes at 1, waits until 2 and leaves at 3
        ((0, 1), [1.0, 1.0 + 2.0]),  # 0 to 2; the slow doctor begins at 1 and ends at 3
        ((1, 0), [1.0, 3.0 + 1.0]),  # 0 to 4; 1 to 2
        ((1, 1), [1.0, 3.0 + 5.0]),  # 0 to 4; 1 to 6
    ]:
        env.reset(seed=0)
        env.gaps, env.work = np.array([9.0, 1.0, 50.0]), np.array([2.0, 1.0, 1.0])
        assert episode(env, actions) == pytest.approx([-h for h in hours])
        assert env.present == [0, 0] and env.clock.now == 51.0


def test_patients_are_the_same_whatever_is_decided(clinic):
    one, two = clinic.Clinic(), clinic.Clinic()
    one.reset(seed=1), two.reset(seed=1)
    a, b = episode(one, [0] * 150), episode(two, [1] * 150)
    assert a != b and (one.gaps == two.gaps).all() and (one.work == two.work).all()
    one.reset(), two.reset()  # and so are the next episode's
    assert (one.gaps == two.gaps).all() and a != episode(one, [0] * 150)
    assert np.corrcoef(one.gaps, one.work)[0, 1] ** 2 < 0.1  # a stream of its own for each purpose


def test_luck_is_in_step_and_grpo_trains(clinic):
    sb3_check(clinic.Clinic())
    found = noise_alignment(clinic.Clinic, n_seeds=30, n_steps=150)
    assert found.verdict == "in step" and found.common_share > 0.5 and found.replays
    model = GRPO("MlpPolicy", make_vec_env(clinic.Clinic, 4), n_steps=150, batch_size=150, n_epochs=1, group_size=4, seed=0)
    model.learn(1200)
    assert model.slots.start_mismatches == 0 and model._n_gradient_steps > 0


@pytest.mark.slow
def test_the_example_runs_as_written():
    run = subprocess.run(
        [sys.executable, EXAMPLE], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    before, after = (float(mean) for mean in re.findall(r"float64\((-[\d.]+)\), ", run.stdout))
    assert run.stdout.startswith("In step") and after > -600 > before
