"""Raw results of studies: files of single runs become lines of one, and stay what they were."""

import json

from scripts.studies import merge
from scripts.studies.common import records
from tests.test_zoo_compare import write_runs
from zoo.comparing.comparison import load


def contents(folder):
    return {file: json.loads(file.read_text()) for file in folder.rglob("seed_*.json")}


def test_merged_files_are_lines_by_env_and_seed(tmp_path, capsys):
    write_runs(tmp_path, "CartPole-v1", "gamma-0.9", range(100, 112))  # so that seed 10 comes after 9, and labels hold dots
    write_runs(tmp_path, "Acrobot-v1", "gamma-0.9", [-100])
    write_runs(tmp_path, "CartPole-v1", "random", [20], algo="random")
    before, runs = contents(tmp_path), load([tmp_path])[0]
    assert merge.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "14 files merged into 2\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["gamma-0.9.jsonl", "random.jsonl"]
    files = [tmp_path / "CartPole-v1" / "gamma-0.9" / f"seed_{seed}.json" for seed in range(12)]
    files.insert(0, tmp_path / "Acrobot-v1" / "gamma-0.9" / "seed_0.json")
    assert records.read(tmp_path / "gamma-0.9.jsonl") == [before[file] for file in files]
    assert [(run.file, run.score) for run in load([tmp_path])[0]] == [(run.path, run.score) for run in runs]


def test_more_runs_join_the_lines_and_another_run_of_a_seed_is_refused(tmp_path, capsys):
    write_runs(tmp_path, "CartPole-v1", "ppo", [100, 110])
    merge.main([str(tmp_path)])
    write_runs(tmp_path, "CartPole-v1", "ppo", [110, 120], first_seed=1)
    assert merge.main([str(tmp_path)]) == 0
    lines = tmp_path / "ppo.jsonl"
    assert [record["final_returns"] for record in records.read(lines)] == [[90, 110], [100, 120], [110, 130]]
    write_runs(tmp_path, "CartPole-v1", "ppo", [300], first_seed=2)
    before = lines.read_bytes()
    assert merge.main([str(tmp_path)]) == 2
    assert "seed_2.json: " in capsys.readouterr().err and lines.read_bytes() == before and contents(tmp_path)


def test_a_record_takes_the_place_of_the_one_with_its_seed(tmp_path):
    file = tmp_path / "study" / "a.jsonl"
    assert records.read(file) == [] and records.seeds(file) == set()
    for record in ({"seed": 11, "x": 1.5}, {"seed": 2, "x": 2}, {"seed": 11, "x": float("inf")}):
        records.put(file, record)
    assert records.read(file) == [{"seed": 2, "x": 2}, {"seed": 11, "x": float("inf")}]
    assert records.seeds(file) == {2, 11}
