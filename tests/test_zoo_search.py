"""What a search must not do: judge too early, lose its start, forget its options, take NaN for a result, lose its journal."""

from __future__ import annotations

import json
import traceback

import optuna
import pytest
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from tests.test_zoo_tune import ROOT, TINY, trials_of, tune_here
from zoo.common.command_line import parse_grid
from zoo.tuning.objective import Objective, ReportCallback
from zoo.tuning.search_space import ENTRY, GRPO_SPACE, SPACES, grpo_start, widened
from zoo.tuning.study import PRUNERS, SURPLUS, counted, failure, give_back_surplus, mend, open_storage

FEW = [*TINY, "--no-optim-plots"]


@pytest.fixture
def own_envs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    return ["--env", "Paying-v0", "--gym-packages", "zoo_envs", "--study-name", "paying"]


def entry(env_id: str) -> dict:
    return yaml.safe_load((ROOT / "zoo/hyperparams/grpo.yml").read_text())[env_id]


# ---------------------------------------------------------------- judging


def test_the_median_pruner_lets_the_first_evaluation_pass():
    study = optuna.create_study(direction="maximize", pruner=PRUNERS["median"](1, 4))
    for values in ([5.0, 5.0], [1.0, 1.0]):
        trial = study.ask()
        pruned = []
        for step, value in enumerate(values, 1):
            trial.report(value, step)
            pruned.append(trial.should_prune())
        study.tell(trial, values[-1])
    assert pruned == [False, True]


def test_nothing_is_evaluated_before_the_first_update():
    objective = Objective("grpo", "CartPole-v1", entry("CartPole-v1"), {}, 256, 1, 8, 1, 0)
    _, model = objective.build({**objective.base, "n_steps": 64, "n_envs": 2, "n_epochs": 1}, 0)
    seen: list[tuple[int, int]] = []
    model.learn(256, callback=ReportCallback(256, 8, lambda number: seen.append((number, model.num_timesteps))))
    assert seen == [(5, 160), (6, 192), (7, 224)]  # a rollout is 128 steps; the one at the end is the objective's


# ---------------------------------------------------------------- the first trial


@pytest.mark.parametrize(
    ("env_id", "changes"),
    [
        ("Swimmer-v5", {"one_minus_gamma": FloatDistribution(1e-4, 0.1, log=True)}),
        ("MountainCarContinuous-v0", {"log2_rollout": IntDistribution(9, 13)}),
    ],
)
def test_the_space_is_widened_to_hold_the_entry(env_id, changes):
    base = entry(env_id)
    model = Objective("grpo", env_id, base, {}, 1000, 1, 1, 1, 0).build(base, 0)[1]
    space, start, messages = widened(grpo_start(model, base))
    for name, wider in changes.items():
        assert space[name] == wider and any(line.startswith(f"{name} widened to ") for line in messages)
    assert all(space[name]._contains(space[name].to_internal_repr(value)) for name, value in start.items())


def test_widening_by_kind():
    start = {"group_size": 64, "clip_range": 0.57, "net": ENTRY, "learning_rate": 0.0, "n_groups": None, "log2_batch_size": 4}
    space, kept, message = widened(start)
    assert space["group_size"] == CategoricalDistribution((1, 2, 4, 8, 16, 32, 64)) and ENTRY in space["net"].choices
    assert space["clip_range"] == FloatDistribution(0.1, 0.6, step=0.05) and kept["clip_range"] == 0.55  # the nearest
    assert space["log2_batch_size"] == IntDistribution(4, 9) and "n_groups" not in kept
    assert "learning_rate" not in kept and "learning_rate 0.0 is none that can be searched" in str(message)
    assert widened({"group_size": 8})[0] == GRPO_SPACE


def test_the_first_trial_is_the_entry_as_it_stands(tmp_path, capsys):
    own = {**entry("CartPole-v1"), "clip_range": 0.23, "gamma": 0.9999, "policy_kwargs": {"net_arch": [24]}, "batch_size": 48}
    own["policy_kwargs"] = "dict(net_arch=[24], activation_fn=nn.ReLU)"
    (tmp_path / "own.yml").write_text(yaml.safe_dump({"CartPole-v1": own}))
    arguments = [*FEW, "-conf", str(tmp_path / "own.yml"), "--study-name", "own", "--n-trials", "2"]
    assert tune_here(tmp_path, *arguments) == 0
    assert "The first trial is the entry as it stands. " in capsys.readouterr().out
    first, second = trials_of(str(tmp_path / "tune" / "own" / "journal.log"), "own")
    expected = {**own, "n_steps": 32, "n_timesteps": 256}
    assert first.user_attrs["settings"] == expected and first.params["net"] == ENTRY
    assert "nn.ReLU" in second.user_attrs["settings"]["policy_kwargs"]


# ---------------------------------------------------------------- continuing


def test_a_study_is_not_continued_on_another_env_or_entry(tmp_path, capsys, own_envs):
    first = [*FEW, *own_envs, "--n-trials", "1"]
    assert tune_here(tmp_path, *first, "--env-kwargs", "pays:1.0") == 0
    assert tune_here(tmp_path, *first, "--env-kwargs", "pays:2.0") == 2
    assert "was begun with env_kwargs={'pays': 1.0}, not {'pays': 2.0}" in capsys.readouterr().err
    assert tune_here(tmp_path, *first, "--env-kwargs", "pays:1.0", "--eval-env-kwargs", "pays:2.0") == 2
    (tmp_path / "other.yml").write_text(yaml.safe_dump({"default": {**entry("default"), "kl_coef": 0.1}}))
    assert tune_here(tmp_path, *first, "--env-kwargs", "pays:1.0", "-conf", str(tmp_path / "other.yml")) == 2
    assert "was begun with entry={}, not {'kl_coef': 0.1}" in capsys.readouterr().err
    assert tune_here(tmp_path, *first, "--env-kwargs", "pays:1.0") == 0


@pytest.mark.slow
def test_the_line_that_trains_the_best_has_all_options_of_the_search(tmp_path, capsys, own_envs):
    options = ["--env-kwargs", "pays:1.5", "--eval-env-kwargs", "pays:-2.0", "--vec-env", "subproc", "--device", "cpu"]
    assert tune_here(tmp_path, *FEW, *own_envs, *options, "--n-trials", "1") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Train it:")]
    for part in ("--gym-packages zoo_envs", "--env-kwargs pays:1.5", "--eval-env-kwargs pays:-2.0", "--vec-env subproc",
                 "--device cpu", "best.yml"):  # fmt: skip
        assert part in line


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_journal_that_was_cut_inside_its_last_line_goes_on(cut, tmp_path, capsys):
    path = tmp_path / "study.log"
    study = optuna.create_study(storage=open_storage(str(path)), study_name="s")
    for i in range(3):
        study.add_trial(optuna.trial.create_trial(value=float(i), user_attrs={"text": "x" * 300}))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    for extra in range(2):  # the second opening is the one that used to fail
        study = optuna.load_study(study_name="s", storage=open_storage(str(path)))
        study.add_trial(optuna.trial.create_trial(value=9.0))
        assert [t.value for t in study.trials][:2] == [0.0, 1.0] and len(study.trials) == extra + (4 if cut == 1 else 3)
    assert all(json.loads(line) for line in path.read_text().splitlines())
    assert ("was cut inside its last line" in capsys.readouterr().out) == (cut > 1)  # 1: only the end of the line was lost


def test_mending_leaves_good_journals_alone(tmp_path):
    path = tmp_path / "study.log"
    assert mend(path) == 0 and not path.exists()
    for content in (b"", b'{"op_code":0}\n'):
        path.write_bytes(content)
        assert mend(path) == 0 and path.read_bytes() == content
    path.write_bytes(b'{"op_c')
    assert mend(path) == 6 and path.read_bytes() == b"" and [p.name for p in tmp_path.iterdir()] == ["study.log"]


# ---------------------------------------------------------------- evaluating


def test_an_evaluation_that_is_not_a_number_is_a_failure_with_its_reason(tmp_path, capsys, own_envs):
    assert tune_here(tmp_path, *FEW, *own_envs, "--n-trials", "1", "--eval-env-kwargs", "pays:float('nan')") == 1
    (trial,) = trials_of(str(tmp_path / "tune" / "paying" / "journal.log"), "paying")
    assert trial.state == TrialState.FAIL and "the mean return is nan" in str(failure(trial))
    assert "1 trial FAILED: ValueError: evaluation 2 of 2 with seed" in capsys.readouterr().out


def test_a_failure_is_the_first_line_of_its_message():
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("found invalid values:\ntensor([[nan]])") from None
    except ValueError:
        text = traceback.format_exc()
    assert failure(create_trial(state=TrialState.FAIL, user_attrs={"traceback": text})) == "ValueError: found invalid values:"
    assert failure(create_trial(state=TrialState.FAIL)) is None


@pytest.mark.slow
def test_evaluation_workers_are_started_once_per_study(tmp_path, own_envs):
    made = tmp_path / "made"
    options = ["--eval-env-kwargs", f"made:{str(made)!r}", "--vec-env", "subproc", "--hyperparams", "n_steps:32", "n_envs:2"]
    more = ["-n", "256", "--n-seeds", "2", "--n-evaluations", "2", "--eval-episodes", "2", "--no-optim-plots"]
    assert tune_here(tmp_path, *more, *own_envs, *options, "--n-trials", "2", "--pruner", "none") == 0
    assert made.read_text().count("made") == 2  # workers; with 2 trials of 2 trainings of 2 evaluations


# ---------------------------------------------------------------- grids and other algorithms


def test_a_grid_is_searched_once_and_ends(tmp_path):
    grid = ["--grid", "learning_rate=1e-3,3e-4", "group_size=2,4", "--study-name", "grid"]
    assert tune_here(tmp_path, *FEW, *grid, "--n-trials", "9") == 0
    trials = trials_of(str(tmp_path / "tune" / "grid" / "journal.log"), "grid")
    points = {(t.params["learning_rate"], t.params["group_size"]) for t in trials}
    assert len(trials) == 4 and points == {(a, b) for a in (1e-3, 3e-4) for b in (2, 4)}
    assert all(t.user_attrs["settings"]["gae_lambda"] == entry("CartPole-v1")["gae_lambda"] for t in trials)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sampler", "grid"], "--sampler grid and --grid NAME=VALUE,VALUE need each other"),
        (["--sampler", "tpe", "--grid", "gamma=0.9,0.99"], "--sampler grid and --grid NAME=VALUE,VALUE need each other"),
        (["--grid", "gama=0.9,0.99"], "--grid: grpo has no hyperparameter 'gama'. Did you mean gamma?"),
        (["--grid", "gamma=high"], "gamma='high' is str, but must be a number"),
        (["--grid", "n_steps=32,64"], "--grid searches n_steps, which --hyperparams fixes"),
        (["--grid", "gamma"], "must be name=value,value,..."),
        (["--grid", "gamma=0.9,0.9"], "has a value twice"),
        (["--grid", "gamma=0.9", "gamma=0.99"], "--grid names gamma twice"),
    ],
)
def test_bad_grids_are_one_line_and_exit_code_2(arguments, says, tmp_path, capsys):
    assert tune_here(tmp_path, *FEW, *arguments) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_values_of_a_grid():
    assert parse_grid("--grid", ["net=[64],[64,64]", "advantage=state,step", "x=1,2.5,None,auto"]) == {
        "net": [[64], [64, 64]], "advantage": ["state", "step"], "x": [1, 2.5, None, "auto"]
    }  # fmt: skip


@pytest.mark.parametrize("algo", sorted(set(SPACES) - {"grpo"}))
def test_every_space_of_rl_zoo3_gives_settings_that_a_yaml_can_hold(algo):
    base = {"policy_kwargs": "dict(log_std_init=-2)", "n_envs": 2}
    for seed in range(5):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
        drawn = SPACES[algo](study.ask(), base, {"gamma": 0.9})
        assert yaml.safe_load(yaml.safe_dump(drawn)) == drawn and json.loads(json.dumps(drawn)) == drawn
        assert "gamma" not in drawn and ("policy_kwargs" not in drawn or "'log_std_init': -2" in drawn["policy_kwargs"])


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "env_id"), [("a2c", "CartPole-v1"), ("dqn", "CartPole-v1"), ("td3", "Pendulum-v1")])
def test_other_algorithms_are_searched(algo, env_id, tmp_path):
    few = [
        "-n",
        "300",
        "--n-seeds",
        "1",
        "--n-evaluations",
        "2",
        "--eval-episodes",
        "2",
        "--n-trials",
        "2",
        "--no-optim-plots",
    ]
    assert tune_here(tmp_path, "--algo", algo, "--env", env_id, *few) == 0
    assert (tmp_path / "tune" / f"{algo}_{env_id}_300" / "best.yml").exists()


def test_of_two_trials_that_begin_at_once_the_one_too_many_is_given_back():
    """Both processes have seen that there is room for one more; one that was tried again does not take the place of two."""
    study = optuna.create_study()
    for _ in range(2):
        study.tell(study.ask(), 1.0)
    lost = study.ask()
    study.tell(lost, state=TrialState.FAIL)
    study.enqueue_trial({}, user_attrs={"retry_of": lost.number})
    one, again, other = study.ask(), study.ask(), study.ask()
    assert [t.number for t in (one, again, other)] == [3, 4, 5] and counted(study) == 5
    for trial in (one, again):
        give_back_surplus(trial, 4)
    give_back_surplus(other, None)
    study.optimize(lambda trial: give_back_surplus(trial, 5) or 0.0, n_trials=3)
    assert [SURPLUS in t.user_attrs for t in study.get_trials()] == [False] * 6 + [True] and counted(study) == 5
