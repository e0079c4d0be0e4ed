"""The results page on small result files with known numbers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from scripts.studies.results.bar import DISCOUNTS, with_bar
from scripts.studies.results.page import main
from tests.test_zoo_compare import write_runs
from zoo.benchmarking.specs import read_variants
from zoo.comparing.comparison import compare_runs, load

ROOT = Path(__file__).parents[1]


@pytest.fixture
def study(tmp_path):
    """PPO's better setting differs between the two tasks; GRPO wins one and loses the other."""
    folder = tmp_path / "docs" / "data" / "study"
    write_runs(folder, "CartPole-v1", "ppo-tuned", [300, 310, 320, 330], wall=4.0)
    write_runs(folder, "CartPole-v1", "ppo-defaults", [100, 110, 120, 130], wall=4.0)
    write_runs(folder, "CartPole-v1", "grpo-state", [480, 490, 500, 500], algo="grpo", wall=2.0, settings={"gamma": 0.98})
    write_runs(folder, "CartPole-v1", "random", [20, 20], algo="random")
    write_runs(folder, "Acrobot-v1", "ppo-tuned", [-300, -310, -305, -300], wall=9.0)
    write_runs(folder, "Acrobot-v1", "ppo-defaults", [-80, -81, -82, -83], wall=8.0)
    write_runs(folder, "Acrobot-v1", "grpo-state", [-90, -91, -92, -93], algo="grpo", wall=1.0)
    write_runs(folder, "Acrobot-v1", "grpo-defaults", [-85], algo="grpo", wall=1.0)
    write_runs(folder, "Acrobot-v1", "random", [-500], algo="random")
    return folder


def make(study, *options, with_pictures=False):
    out = study.parents[1] / "results.md"
    assert main([str(study), "--out", str(out), *options, *([] if with_pictures else ["--text-alone"])]) == 0
    return out.read_text() + out.with_name("results_runs.md").read_text()


def line_of(page, start, after=""):
    return next(line for line in page[page.index(after) :].splitlines() if line.startswith(start))


def rows_of(page, heading):
    section = page[page.rindex(heading) :].split("\n## ")[0]
    return [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]


def runs_of_origins(page):
    return sum(int(row[0].removeprefix("| ")) for row in rows_of(page, "## Where the runs come from"))


def test_the_bar_is_the_better_setting_of_ppo_on_each_task(study):
    runs, chosen = with_bar(load([study])[0])
    assert chosen == {"Acrobot-v1": "ppo-defaults", "CartPole-v1": "ppo-tuned"}
    bar = compare_runs(runs, baseline="ppo")
    assert bar.scores("Acrobot-v1", "ppo").tolist() == [-80, -81, -82, -83]
    assert bar.scores("CartPole-v1", "ppo").tolist() == [300, 310, 320, 330]


def test_an_entry_that_changes_nothing_of_the_defaults_is_shown_as_them(study):
    defaults = {
        "n_envs": 8,
        "n_steps": None,
        "gamma": 0.995,
        "normalize": {"on": True, "norm_obs": True, "norm_reward": False},
    }
    # The same in other words: VecNormalize's gamma is of rewards only.
    entry = defaults | {"n_steps": 256, "normalize": {**defaults["normalize"], "gamma": 0.99}}
    write_runs(study, "Acrobot-v1", "grpo-defaults", [-85], algo="grpo", settings=defaults)
    write_runs(study, "CartPole-v1", "grpo-state", [480, 490, 500, 500], algo="grpo", settings=entry)
    cartpole = line_of(make(study), "| CartPole-v1", "## Task by task").split(" | ")
    assert cartpole[5] == cartpole[3] and cartpole[5].startswith("495.0 [")
    acrobot = line_of(make(study), "| Acrobot-v1", "## Task by task").split(" | ")
    assert acrobot[5] == "-85.0 (1 seed)"  # its own runs, not the entry's
    for change in ({"gamma": 0.99}, {"n_steps": 128}, {"normalize": {"on": True, "norm_obs": True, "norm_reward": True}}):
        write_runs(study, "CartPole-v1", "grpo-state", [480, 490, 500, 500], algo="grpo", settings=entry | change)
        assert line_of(make(study), "| CartPole-v1", "## Task by task").split(" | ")[5] == "not run"


def test_other_numbers_of_seeds_at_the_same_score_are_equal(study):
    write_runs(study, "CartPole-v1", "ppo-tuned", [500] * 5, wall=4.0)
    write_runs(study, "CartPole-v1", "grpo-state", [500] * 4, algo="grpo", wall=2.0)
    page = make(study)
    assert line_of(page, "| CartPole-v1", "## Task by task").split(" | ")[4] == "equal"
    assert "steps until 475, median over seeds: grpo-state 1,000, ppo-tuned 1,000, ppo-defaults not reached." in page


def test_the_page_says_who_is_above_and_names_what_did_not_run(study):
    page = make(study, with_pictures=True)
    assert page == make(study)  # the same without drawing anew
    cartpole = line_of(page, "| CartPole-v1", "## Task by task").split(" | ")
    assert cartpole[2] == "315.0 [300.0, 330.0] (4 seeds), tuned" and cartpole[4] == "**above, interval too**"
    assert cartpole[5] == "not run" and cartpole[3].startswith("495.0 [")
    acrobot = line_of(page, "| Acrobot-v1", "## Task by task").split(" | ")
    assert acrobot[4] == "**below, interval too**" and acrobot[5] == "-85.0 (1 seed)"
    assert acrobot[6].startswith("below, too few seeds")
    assert "above, interval too on 1 (CartPole-v1); below, interval too on 1 (Acrobot-v1)." in page
    for name in ("learning_curves", "performance_profile"):
        assert (study.parents[1] / "img" / "results" / f"{name}.png").stat().st_size > 1000


def test_a_task_with_more_seeds_is_shown_by_the_protocols_ten_too(study):
    assert "## The protocol's seeds alone" not in make(study)
    write_runs(study, "CartPole-v1", "ppo-tuned", [300] * 10 + [500] * 10, wall=4.0)
    write_runs(study, "CartPole-v1", "ppo-defaults", [400] * 10, wall=4.0)
    write_runs(study, "CartPole-v1", "grpo-state", [450] * 20, algo="grpo", wall=2.0, settings={"gamma": 0.98})
    page = make(study)
    assert line_of(page, "| CartPole-v1", "## Task by task").split(" | ")[2].endswith("(20 seeds), tuned")
    (row,) = rows_of(page, "## The protocol's seeds alone")  # PPO's other setting is the better one of these ten
    assert row[0] == "| CartPole-v1" and row[2] == "400.0 [400.0, 400.0], defaults"
    assert row[3] == "450.0 [450.0, 450.0]" and row[4] == "**above, interval too**" and row[5] == "not run"


def test_more_seeds_without_ppo_beside_them_leave_the_page_as_it_is(study):
    shutil.rmtree(study / "Acrobot-v1")
    write_runs(study, "Acrobot-v1", "grpo-state", [-90] * 12, algo="grpo")
    page = make(study)
    assert "## The protocol's seeds alone" not in page
    assert line_of(page, "| CartPole-v1", "## Task by task").split(" | ")[4] == "**above, interval too**"


def test_aggregates_are_over_the_tasks_that_both_ran(study):
    page = make(study)
    tuned = line_of(page, "| grpo-state", "## Over all tasks").split(" | ")
    scores = [(s - 20) / 295 for s in (480, 490, 500, 500)] + [(s + 500) / 418.5 for s in (-90, -91, -92, -93)]
    bars = [(s - 20) / 295 for s in (300, 310, 320, 330)] + [(s + 500) / 418.5 for s in (-80, -81, -82, -83)]
    mine, bar = (np.mean(sorted(s)[2:-2]) for s in (scores, bars))
    assert tuned[1].startswith(f"{mine:.2f} [") and tuned[2].startswith(f"{bar:.2f} [")
    assert tuned[3].startswith(f"{mine - bar:+.2f} [")
    assert tuned[4].startswith("0.500 [")  # always better on one, never on the other
    assert tuned[5].startswith(f"{np.sqrt(2 * 8):.2f} [") and tuned[-1] == "2 |"
    assert f"- **Over all tasks**: aggregate IQM {tuned[1]}, the bar's own on these tasks {tuned[2]}" in page
    assert line_of(page, "| grpo-defaults", "## Over all tasks").endswith("| 1 |")
    # A setting of PPO is the bar on one task, as good as itself, and always worse on the other.
    assert line_of(page, "| ppo-tuned", "## Over all tasks").split(" | ")[4].startswith("0.250 [")


def test_where_a_critic_wins(study):
    """The tuned entry and the defaults, each against the best of whatever has a critic; other tasks too."""
    write_runs(study, "Acrobot-v1", "trpo", [-70, -70.5, -71], algo="trpo")
    folder = study.parent / "untuned"
    write_runs(folder, "Ant-v5", "ppo-defaults", [100, 100], wall=8.0)
    write_runs(folder, "Ant-v5", "grpo-defaults", [50, 60], algo="grpo", wall=2.0)
    rows = rows_of(make(study, "--untuned", str(folder)), "## Where a critic wins")
    cells = [(row[0].removeprefix("| "), row[1], row[2].split(" ")[0], row[3], row[4].split(" ")[0]) for row in rows]
    assert cells == [
        ("Acrobot-v1", "grpo-state", "-91.5", "trpo", "-70.5"),
        ("Acrobot-v1", "grpo-defaults", "-85.0", "trpo", "-70.5"),
        ("Ant-v5", "grpo-defaults", "55.0", "ppo-defaults", "100.0"),
    ]
    assert [row[5] for row in rows] == ["**below, interval too** |", "below, too few seeds |", "below, too few seeds |"]


def test_the_same_settings_with_a_critic_and_without(study):
    assert "## The same settings" not in make(study)
    write_runs(study, "CartPole-v1", "ppo-grpo-settings", [490, 490, 480, 480], wall=4.0)
    page = make(study)
    (row,) = rows_of(page, "## The same settings")
    assert row[1].startswith("485.0 [") and row[2].startswith("495.0 [") and row[3] == "above, not distinguishable |"
    # On the bar's scale, where 20 is 0 and 315 is 1: 495 less 485 is 0.03. Of 16 pairs ten are won and four are ties.
    assert "less PPO's +0.03 [" in page and "P(improvement) 0.75 [" in page
    assert (
        line_of(page, "| CartPole-v1", "## Task by task").split(" | ")[2] == "315.0 [300.0, 330.0] (4 seeds), tuned"
    )  # the bar stays


def test_the_same_files_give_the_same_bytes(study):
    pictures, texts = study.parents[1] / "img" / "results", []
    for _ in range(2):
        texts.append((make(study, with_pictures=True), {file.name: file.read_bytes() for file in pictures.iterdir()}))
    assert texts[0] == texts[1] and len(texts[0][1]) == 8  # four pictures, as PNG and SVG


def test_ablations_are_tables_with_what_was_asked_and_found(study):
    folder = study.parent / "ablations"
    write_runs(folder / "size", "CartPole-v1", "two", [100, 110, 120])
    write_runs(folder / "size", "CartPole-v1", "eight", [200, 210, 220])
    texts = {"title": "Group size", "section": "Guidance", "question": "Which size?", "finding": "Eight is better."}
    entry = json.dumps({**texts, "labels": ["two", "eight"]})
    (folder / "ablations.yml").write_text(f"size: {entry}\nlater: {entry}\n")
    page = make(study, "--ablations", str(folder), with_pictures=True)
    section = page[page.index("## Guidance") :]
    assert section.count("### Group size") == 1  # what has no runs yet is not shown
    assert "Which size? Env steps: CartPole-v1 1,000; seeds 0 to 2." in section and "Eight is better." in section
    assert section.index("| two | 110.0 [") < section.index("| eight | 210.0 [")
    assert "![ablation size](img/results/ablation_size.png)" in section
    drawn = (study.parents[1] / "img" / "results" / "ablation_size.svg").read_text()
    assert all(f"<!-- {word} -->" in drawn for word in ("two", "eight", "end", "on the way", "CartPole-v1"))


def test_ablations_tell_the_end_from_the_way(study):
    folder = study.parent / "ablations"
    write_runs(folder / "size", "CartPole-v1", "two", [100, 110, 120, 130])
    texts = {"title": "Group size", "section": "Guidance", "question": "Which?", "finding": "None."}
    (folder / "ablations.yml").write_text(f"size: {json.dumps(texts)}\n")
    row = line_of(make(study, "--ablations", str(folder)), "| two", "## Guidance").split(" | ")
    assert row[1].startswith("115.0 [")
    means = [run.curve[1:].mean() for run in load([folder / "size"])[0]]  # the checkpoint at step 0 is of the untrained policy
    assert row[2].startswith(f"{np.mean(sorted(means)[1:-1]):.1f} [")


def test_every_run_is_counted_once_where_it_comes_from(study):
    folder = study.parent / "ablations"
    write_runs(folder / "size", "CartPole-v1", "two", [100, 110, 120])
    texts = {"title": "Group size", "section": "Guidance", "question": "Which?", "finding": "None."}
    (folder / "ablations.yml").write_text(f"size: {json.dumps(texts)}\n")
    page = make(study, "--ablations", str(folder))
    assert runs_of_origins(page) == 31  # 28 of the study, also those that are the bar, and 3
    section = page[page.rindex("## Where the runs come from") :]
    assert section.count("Versions: ") == 1 and "| versions |" not in section


def test_a_run_that_names_fewer_versions_than_others_does_not_contradict_them(study):
    """MuJoCo's and Box2D's came to be recorded when runs existed already."""

    def record(path, **versions):
        content = json.loads(path.read_text())
        content["versions"] = {"torch": "2.13.0", **versions}
        path.write_text(json.dumps(content))

    for path in study.glob("*/*/*.json"):
        record(path)
    runs = sorted((study / "CartPole-v1" / "ppo-tuned").iterdir())
    for path in runs[:3]:
        record(path, mujoco="4.0.0")
    section = make(study).split("## Where the runs come from")[-1]
    assert "Versions: torch 2.13.0, mujoco 4.0.0 (named by 3 of 28 runs). What a run does not name" in section
    assert "| versions |" not in section
    record(runs[3], mujoco="3.2.0")
    section = make(study).split("## Where the runs come from")[-1]
    assert "Versions: " not in section and "| versions |" in section and "torch 2.13.0, mujoco 3.2.0" in section


def test_ablations_can_share_a_folder_whose_runs_count_once(study):
    folder = study.parent / "ablations"
    for label, returns in (("two", [100, 110, 120]), ("eight", [200, 210, 220]), ("lambda-1", [300, 310, 320])):
        write_runs(folder / "settings", "CartPole-v1", label, returns)
    write_runs(folder / "settings", "Acrobot-v1", "two", [-100, -110, -120])
    write_runs(folder / "settings", "Acrobot-v1", "lambda-1", [-90] * 4)
    texts = {"section": "Guidance", "question": "Which?", "finding": "None.", "folder": "settings"}
    groups = {**texts, "title": "Groups", "labels": ["two", "eight"], "envs": ["CartPole-v1"]}
    lambdas = {**texts, "title": "Lambda", "labels": ["two", "lambda-1"]}
    entries = json.dumps({"groups": groups, "lambda": lambdas})
    (folder / "ablations.yml").write_text(entries)
    page = make(study, "--ablations", str(folder))
    groups_text, lambda_text = page[page.index("### Groups") :].split("### Lambda")
    assert "| two | 110.0 [" in groups_text and "Acrobot-v1" not in groups_text and "lambda-1" not in groups_text
    assert "Env steps: CartPole-v1 1,000; seeds 0 to 2." in groups_text
    assert "Env steps: Acrobot-v1 1,000, CartPole-v1 1,000; seeds 0 to 3." in lambda_text and "| eight" not in lambda_text
    assert runs_of_origins(page) == 28 + 16


def test_runs_made_in_turn_on_one_machine_tell_the_speed(study):
    assert "## Training time on one machine" not in make(study)
    folder = study.parent / "timings"
    write_runs(folder, "CartPole-v1", "ppo-tuned", [300, 310], wall=6.0)
    write_runs(folder, "CartPole-v1", "grpo-state", [480, 490], algo="grpo", wall=2.0)
    write_runs(folder, "Acrobot-v1", "ppo-defaults", [-80, -81], wall=12.0)
    write_runs(folder, "Acrobot-v1", "grpo-state", [-90, -91], algo="grpo", wall=1.0)
    page = make(study, "--timings", str(folder), with_pictures=True)
    assert (study.parents[1] / "img" / "results" / "training_time.png").stat().st_size > 1000
    rows = rows_of(page, "## Training time on one machine")
    assert rows[0][:5] == ["| Acrobot-v1", "1,000", "defaults", "12.0", "1.0"] and rows[0][6] == "12.00 [12.00, 12.00]"
    assert rows[1][:5] == ["| CartPole-v1", "1,000", "tuned", "6.0", "2.0"] and rows[1][6] == "3.00 [3.00, 3.00]"
    assert rows[2][0] == "| all, geometric mean" and rows[2][6] == "6.00 [6.00, 6.00]"
    assert rows[0][5] == "40 / 40" and "6.00 times (3.0 to 12.0 by task) less than the bar's" in page
    assert "less than PPO's with the same settings" not in page  # without the control
    write_runs(folder, "CartPole-v1", "ppo-grpo-settings", [300, 310], wall=5.0)
    for file in (folder / "CartPole-v1" / "ppo-tuned").iterdir():
        file.write_text(file.read_text().replace('"gradient_steps": 40', '"gradient_steps": 20'))
    page = make(study, "--timings", str(folder))
    bar, control = page[page.index("## Training time on one machine") :].split("With the same settings")[:2]
    assert line_of(bar, "| CartPole-v1").split(" | ")[5] == "20 / 40" and "| Acrobot-v1" not in control.split("## ")[0]
    assert line_of(control, "| CartPole-v1").split(" | ")[2:7] == [
        "GRPO's settings",
        "5.0",
        "2.0",
        "40 / 40",
        "2.50 [2.50, 2.50]",
    ]
    assert "2.50 times (2.5 to 2.5 by task) less than PPO's with the same settings" in page
    assert runs_of_origins(page) == 28 + 10


@pytest.mark.slow
def test_bad_input_is_one_line(study, tmp_path, capsys):
    write_runs(tmp_path / "other", "CartPole-v1", "grpo", [480])
    assert main([str(tmp_path / "other"), "--out", str(tmp_path / "x.md")]) == 2
    assert "holds no runs of ppo-tuned or ppo-defaults" in capsys.readouterr().err
    assert main([str(study), "--ablations", str(tmp_path), "--out", str(tmp_path / "x.md")]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert main([str(study), "--timings", str(tmp_path / "other"), "--out", str(tmp_path / "x.md")]) == 2
    assert "holds no runs of ppo-tuned or ppo-defaults" in capsys.readouterr().err
    (tmp_path / "ablations.yml").write_text("- a\n")
    assert main([str(study), "--ablations", str(tmp_path), "--out", str(tmp_path / "x.md")]) == 2
    assert "must be a mapping, with lines such as 'groups: {section: Ablations, title: Groups" in capsys.readouterr().err


def test_other_tasks_compare_defaults_with_defaults(study):
    assert "## Other tasks, with the defaults" not in make(study)
    folder = study.parent / "untuned"
    write_runs(folder, "InvertedPendulum-v5", "ppo-defaults", [1000, 1000, 1000, 1000], wall=8.0)
    write_runs(folder, "InvertedPendulum-v5", "grpo-defaults", [1000, 1000, 1000, 1000], algo="grpo", wall=2.0)
    write_runs(folder, "Reacher-v5", "ppo-defaults", [-5, -5, -5, -5], wall=8.0)
    write_runs(folder, "Reacher-v5", "grpo-defaults", [-7, -7, -7, -7], algo="grpo", wall=4.0)
    write_runs(folder, "Reacher-v5", "grpo-gamma-0.995", [-8, -8, -8, -8], algo="grpo", wall=4.0)
    write_runs(folder, "Reacher-v5", "grpo-gamma-0.99", [-6, -6, -6, -6], algo="grpo", wall=4.0)
    page = make(study, "--untuned", str(folder))
    rows = rows_of(page, "## Other tasks, with the defaults")
    assert rows[0][:2] == ["| InvertedPendulum-v5", "1,000"] and rows[0][2].startswith("1,000 [")
    assert rows[0][3] == "1,000 [1,000, 1,000] (4 seeds)" and rows[0][4] == "equal"  # no range to normalise by
    assert rows[1][2].startswith("-5.0 [") and rows[1][4] == "**below, interval too**"
    assert [row[5] for row in rows] == ["-", "0.995: -8.0 [-8.0, -8.0] (4 seeds); 0.99: -6.0 [-6.0, -6.0] (4 seeds)"]
    assert [row[6] for row in rows] == ["4.00 [4.00, 4.00] |", "2.00 [2.00, 2.00] |"]
    assert runs_of_origins(page) == 28 + 24


def test_the_long_discount_is_all_that_the_variant_for_short_episodes_changes():
    (defaults,) = read_variants(ROOT / "zoo" / "variants" / "critic_free.yml", ["grpo-defaults"])
    (variant,) = read_variants(ROOT / "zoo" / "variants" / "short_episodes.yml", [])
    expected = {**defaults.hyperparams, "gamma": 0.995}
    assert DISCOUNTS[variant.label] == expected["gamma"]
    assert (variant.hyperparams, variant.conf_file) == (expected, defaults.conf_file)


def test_the_algorithm_page_repeats_the_results():
    """Each cell of its table of ten tasks is one of the study's, and so are the figures over all tasks."""
    section = (ROOT / "docs" / "algorithm.md").read_text().split("## Results")[1].split("### How to")[0]
    results = (ROOT / "docs" / "studies" / "results.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if "-v" in line]
    assert len(rows) == 10
    for task, *cells in rows:
        (row,) = [line for line in results.split("## Task by task")[1].split("## ")[0].splitlines() if f"| {task} |" in line]
        assert all(cell in row for cell in cells), task
    for figure in ("1.09 [1.07, 1.10]", "1.02 [1.01, 1.04]", "1.03 [1.01, 1.04]", "0.39 [0.33, 0.46]"):
        assert figure in section and figure in results
