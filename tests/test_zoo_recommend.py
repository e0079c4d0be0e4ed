"""``zoo.recommend``: the model of a study against known answers, robust choices, surfaces, and the command itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import pytest
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import create_trial

from zoo import recommend
from zoo.common.command_line import run
from zoo.recommend import Candidate, Encoding, Surrogate

SPACE = {
    "lr": FloatDistribution(1e-4, 1e-2, log=True),
    "n": IntDistribution(0, 10),
    "size": CategoricalDistribution((8, 4, 16)),
    "kind": CategoricalDistribution(("a", "b")),
}
PARAMS = {"lr": 1e-3, "n": 5, "size": 8, "kind": "b"}


def trial(params, values, space=SPACE):
    return create_trial(
        params=params, distributions=space, value=float(np.mean(values)), user_attrs={"values": values, "settings": params}
    )


def test_parameters_become_points_of_a_cube():
    """Numbers by their place in the range, choices that are numbers by their order, others by a column each."""
    point = Encoding(SPACE)(PARAMS)
    assert point == pytest.approx([0.5, 0.5, 0.5, 0.0, np.sqrt(0.5)])
    assert Encoding(SPACE)({**PARAMS, "lr": 1e-2, "n": 0, "size": 16, "kind": "a"}) == pytest.approx(
        [1, 0, 1, np.sqrt(0.5), 0]
    )


def test_neighbours_differ_in_one_ordered_parameter():
    found = Encoding(SPACE).neighbours(PARAMS)
    assert [(k, round(v, 5)) for p in found for k, v in p.items() if v != PARAMS[k]] == [
        ("lr", round(1e-3 * 10**-0.2, 5)), ("lr", round(1e-3 * 10**0.2, 5)), ("n", 4.0), ("n", 6.0), ("size", 4), ("size", 16)
    ]  # fmt: skip
    edge = Encoding(SPACE).neighbours({**PARAMS, "lr": 1e-4, "n": 10, "size": 4})
    assert len(edge) == 3  # one inwards each


def test_the_process_learns_a_known_surface_and_knows_where_it_knows():
    rng = np.random.default_rng(0)
    space = {"x": FloatDistribution(0.0, 1.0), "y": FloatDistribution(0.0, 1.0)}
    points = [{"x": x, "y": y} for x, y in rng.uniform(0.0, 0.7, (40, 2))]
    values = np.array([100 * np.sin(3 * p["x"]) + 0.0 * p["y"] for p in points])
    model = Surrogate(Encoding(space), points, values, np.full(40, 1e-4))
    mean, deviation = model.predict([{"x": 0.35, "y": 0.35}, {"x": 1.0, "y": 1.0}])
    assert mean[0] == pytest.approx(100 * np.sin(1.05), abs=2.0) and deviation[1] > 3 * deviation[0]
    lengths = model.process.kernel_.k1.k2.length_scale
    assert lengths[1] > 2 * lengths[0]  # y does nothing


def test_a_lucky_peak_is_not_the_first_candidate():
    """A plateau of 90 for x above one half; one trial below it was lucky with 100, and its neighbours have 20."""
    space = {"x": FloatDistribution(0.0, 1.0)}
    plateau = [trial({"x": x}, [90.0, 91.0], space) for x in np.linspace(0.6, 1.0, 9)]
    valley = [trial({"x": x}, [20.0, 21.0], space) for x in np.linspace(0.0, 0.5, 11)]
    lucky = trial({"x": 0.27}, [100.0, 100.5], space)
    trials = [*plateau, *valley, lucky]
    for number, one in enumerate(trials):
        one.number = number
    first, second, *_ = recommend.candidates(trials, recommend.fit(trials), 3)
    assert first.trial.params["x"] > 0.65 and first.worst_neighbour > 60
    assert second.trial is lucky and second.worst_neighbour < 50  # the best mean has its turn


def test_the_recommended_one_is_the_robust_among_the_good_ones():
    def candidate(number, worst, fresh):
        one = trial(PARAMS, [1.0])
        one.number = number
        return Candidate(one, 0.0, 0.0, worst, fresh)

    best, close, far = candidate(0, 10, (100, 110, 90)), candidate(1, 50, (96, 97, 98)), candidate(2, 99, (10, 11, 12))
    assert recommend.standard_error(best.fresh) == pytest.approx(10 / np.sqrt(3))
    assert recommend.recommended([best, close, far]) is close
    alone = candidate(3, 0, (200,))  # nobody knows its error
    assert recommend.recommended([best, alone, close]) is alone and np.isnan(recommend.standard_error(alone.fresh))
    assert recommend.mean_and_error(best.fresh) == "100.0 +- 5.8" and recommend.mean_and_error(alone.fresh) == "200.0"


def test_a_grid_gives_measured_cells():
    space = {
        "a": CategoricalDistribution((1, 2)),
        "b": CategoricalDistribution((0, 5)),
        "c": CategoricalDistribution(("x", "y")),
    }
    trials = [trial({"a": a, "b": b, "c": c}, [a + b, a + b + 2], space) for a in (1, 2) for b in (0, 5) for c in "xy"]
    cells = recommend.measured(trials, ("a", "b"))
    assert cells["mean"].tolist() == [2, 7, 3, 8] and cells["trainings"].tolist() == [4] * 4
    assert cells["uncertainty"].tolist() == pytest.approx([np.std([0, 2, 0, 2], ddof=1) / 2] * 4)
    once = [trial({"a": a, "b": b, "c": "x"}, [a + b], space) for a in (1, 2) for b in (0, 5)]
    cells = recommend.measured(once, ("a", "b"))
    assert cells["uncertainty"].isna().all()
    uncertainty = recommend.draw_surface(cells, ("a", "b"), recommend.fit(once), once, "").axes[1]
    assert uncertainty.get_title() == "its uncertainty is unknown: one training per cell"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of zoo.tune, as a grid."""
    from zoo import tune

    folder = tmp_path_factory.mktemp("logs")
    tiny = ["-n", "128", "--n-seeds", "2", "--n-evaluations", "1", "--eval-episodes", "2", "--hyperparams", "n_steps:16"]
    grid = ["--grid", "learning_rate=3e-4,1e-3", "n_epochs=1,2", "--study-name", "small", "--no-optim-plots"]
    assert run("zoo.tune", tune.main, ["-f", str(folder), *tiny, *grid]) == 0
    return folder


def recommend_here(*arguments: object) -> int:
    return run("zoo.recommend", recommend.main, list(map(str, arguments)))


def test_the_command_draws_trains_again_and_recommends(logs, capsys):
    assert recommend_here("--study-name", "small", "-f", logs, "--candidates", 2, "--fresh-seeds", 2) == 0
    folder, message = logs / "tune" / "small", capsys.readouterr().out
    (table,) = folder.glob("surface_*.csv")
    assert len(pd.read_csv(table)) == 4 and table.with_suffix(".png").stat().st_size > 10_000
    settings = yaml.safe_load((folder / "recommended.yml").read_text())["CartPole-v1"]
    assert settings["n_steps"] == 16 and settings["learning_rate"] in (3e-4, 1e-3)
    assert (folder / "recommendation.md").read_text().count("\n| ") == 3 and "(recommended)" in (
        folder / "recommendation.md"
    ).read_text()
    assert message.count("with fresh seeds") == 2 and "Train it:" in message
    study = optuna.load_study(study_name="small", storage=robust_storage(logs))
    assert len(study.trials) == 4  # what was trained again is no trial


def robust_storage(logs: Path) -> optuna.storages.BaseStorage:
    from zoo.tuning.study import open_storage

    return open_storage(str(logs / "tune" / "small" / "journal.log"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--study-name", "smal"], "there is no such file"),
        (["--study-name", "smal", "--storage", "JOURNAL"], "Did you mean small"),
        (["--study-name", "small", "--surface", "learning_rat", "n_epochs"], "Did you mean learning_rate"),
        (["--study-name", "small", "--candidates", "0"], "must be at least 1"),
    ],
)
def test_bad_input_is_one_line(logs, arguments, says, capsys):
    journal = str(logs / "tune" / "small" / "journal.log")
    assert recommend_here("-f", logs, *(journal if a == "JOURNAL" else a for a in arguments)) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
