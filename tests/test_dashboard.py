"""A run's own page: what it reads from a folder, what it says of what is missing, and that it works in a browser."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from torch.utils.tensorboard import SummaryWriter

from sb_grpo import GRPO
from tests.browser import WIDTHS, browser, complaints, faults, requests, resize, wait_until
from zoo.common.command_line import BadInput
from zoo.dashboard import as_script, main, make_server
from zoo.dashboards.runs import (
    ALL_HELD,
    NO_GROUPS,
    NO_LOG,
    curve,
    from_csv,
    health_messages,
    notes,
    page_of,
    quantiles,
    read_log,
    read_runs,
    thinned,
)
from zoo.report import main as report


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a real run of GRPO, logged as CSV, and one that only has episodes."""
    folder = tmp_path_factory.mktemp("runs")
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 4, monitor_dir=str(folder / "grpo" / "one")), n_steps=64, seed=0)
    model.set_logger(configure(str(folder / "grpo" / "one"), ["csv"]))
    model.learn(1024)
    (folder / "ppo" / "two").mkdir(parents=True)
    (folder / "ppo" / "two" / "monitor.csv").write_text(
        '#{"t_start": 100.0, "env_id": "X"}\nr,l,t\n1.0,2,0.5\n3.0,4,1.5\n5.0,'
    )
    return folder


def test_numbers_of_a_real_run(runs: Path) -> None:
    run = page_of(runs / "grpo" / "one", runs, None, runs)
    assert run["log"]["group/n_groups"]["steps"][-1] == run["log"]["time/total_timesteps"]["values"][-1]
    assert run["episodes"]["n"] > 10 and run["name"] == "grpo/one" and NO_LOG not in run["notes"]
    assert f"grpo{'/'}one/progress.csv" in run["files"]
    json.loads(as_script(read_runs(runs, None)))


def test_a_run_with_damaged_settings_is_shown_with_a_note(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for name, text in (("one", b"n_envs: 4\n"), ("two", b"a: [\n"), ("three", b"\xff")):
        settings = tmp_path / name / "CartPole-v1"
        settings.mkdir(parents=True)
        (settings / "config.yml").write_bytes(text)
        (settings.parent / "monitor.csv").write_text('#{"t_start": 1.0}\nr,l,t\n1,2,3\n')
    shown = {run["name"]: run for _ in range(2) for run in read_runs(tmp_path, None)["runs"]}
    assert [any("config.yml cannot be read" in note for note in shown[name]["notes"]) for name in ("one", "two", "three")] == [
        False, True, True,
    ]  # fmt: skip
    error = capsys.readouterr().err
    assert error.count("\n") == 2 and "two/CartPole-v1/config.yml cannot be read, and what it says is left out: " in error
    assert report([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("monitor.csv", b'#{"t_start": 1'),
        ("evaluations.npz", b"PK"),
        ("evaluations.npz", b""),
        ("metrics.json", b'{"settings": [1]}'),
        ("metrics.json", b'{"planned_steps": "many"}'),
        ("metrics.json", b"[" * 100_000),
        ("progress.csv", b"a\xff\n"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path: Path, capsys: Any, name: str, content: bytes) -> None:
    for one in ("good", "bad"):
        (tmp_path / one).mkdir()
        (tmp_path / one / "0.monitor.csv").write_text('#{"t_start": 1.0}\nr,l,t\n1,2,3\n')
    (tmp_path / "bad" / name).write_bytes(content)
    assert report([str(tmp_path)]) == 0 and main([str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and f"bad/{name} is left out: it cannot be read" in output.err
    assert "good: " in output.out and "bad: " in output.out and "1 episode" in output.out


def test_returns_that_are_no_numbers_leave_a_page(tmp_path: Path) -> None:
    (tmp_path / "monitor.csv").write_text('#{"t_start": 1.0}\nr,l,t\n1,2,3\nnan,5,4\ninf,5,5\n')
    np.savez(tmp_path / "evaluations.npz", timesteps=[1, 2], results=[[1.0], [np.nan]])
    assert main([str(tmp_path)]) == 0 and read_runs(tmp_path, None)["runs"][0]["episodes"]["n"] == 1


def test_no_data_begins_a_tag_in_a_script() -> None:
    data = {"name": "<!--<script>", "more": ["</SCRIPT >"]}
    assert "<" not in as_script(data) and json.loads(as_script(data)) == data


def test_a_half_written_line_is_passed_over_and_missing_views_are_named(runs: Path, tmp_path: Path) -> None:
    run = page_of(runs / "ppo" / "two", runs, None, runs)
    assert run["episodes"]["mean"] == [1.0, 3.0] and run["episodes"]["steps"] == [2.0, 6.0]
    assert NO_LOG in run["notes"]
    (tmp_path / "monitor.csv").write_text('#{"t_start": 1.0}\nr,l,t\n1,2,3\n')
    (tmp_path / "progress.csv").write_text("time/total_timesteps,train/loss\n8,0.5\n16")
    assert page_of(tmp_path, tmp_path, None, tmp_path)["notes"][0] == NO_GROUPS.format(algo=tmp_path.parent.name)
    assert from_csv(tmp_path / "progress.csv")["train/loss"] == {"steps": [8.0], "values": [0.5]}


def test_a_run_of_a_million_steps_stays_small() -> None:
    episodes = np.column_stack([np.arange(20_000.0), np.full(20_000, 50.0), np.arange(20_000.0)])
    found = curve(episodes)
    assert len(found["steps"]) == 300 and found["steps"][-1] == 1e6 and found["n"] == 20_000
    assert thinned({"steps": list(range(9999)), "values": [0.0] * 9999})["steps"][-1] == 9998


def test_settings_and_steps_are_those_of_the_run_and_not_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "X").mkdir()
    (tmp_path / "monitor.csv").write_text('#{"t_start": 1.0}\nr,l,t\n1,2,3\n')
    (tmp_path / "X" / "config.yml").write_text("n_timesteps: 100.0\nlearning_rate: lin_3e-4\n")
    assert page_of(tmp_path, tmp_path, None, tmp_path)["planned"] == 100.0
    (tmp_path / "X" / "args.yml").write_text("n_timesteps: 5000\n")
    running = page_of(tmp_path, tmp_path, None, tmp_path)
    assert running["planned"] == 5000 and running["settings"] == {"learning_rate": "lin_3e-4"}
    (tmp_path / "metrics.json").write_text('{"planned_steps": 5000, "settings": {"learning_rate": "3e-4", "n_groups": null}}')
    ended = page_of(tmp_path, tmp_path, None, tmp_path)
    assert ended["planned"] == 5000 and ended["settings"] == {"learning_rate": "3e-4"}


def test_a_run_whose_rules_held_says_so_in_no_alarm() -> None:
    log = {key: {"steps": [8.0], "values": [0.0]} for key in ("group/n_groups", "health/kl", "health/n_broken")}
    assert notes("grpo", log, []) == [ALL_HELD.format(n=1)] and notes("grpo", log, ["kl, ..."]) == []


def test_quantiles_of_a_histogram() -> None:
    assert quantiles([-1.0, 0.0, 1.0, 1.7e308], [10, 40, 50, 0]) == [-1.0, 0.0, 0.0, 1.0, 1.0]


def test_bad_places_are_named(runs: Path, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    wrong = (([str(tmp_path)], "holds no run"), ([gone], "is no folder"), ([str(runs), "--tensorboard", gone], "is no folder"))
    for arguments, rule in wrong:
        for command in (main, report):
            with pytest.raises(BadInput, match=rule):
                command(arguments)
    with pytest.raises(BadInput, match="add --html"):
        report([str(runs), "--out", "page.html"])


def test_a_report_is_the_dashboards_page_or_a_few_lines(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = runs / "grpo" / "one"
    assert report([str(one), "--html"]) == 0 and main([str(one)]) == 0
    assert (one / "report.html").read_text() == (one / "dashboard.html").read_text()
    capsys.readouterr()
    assert report([str(runs)]) == 0
    lines = capsys.readouterr().out
    assert "grpo/one: grpo on" in lines and "speed" in lines and "ppo/two: ppo" in lines and NO_LOG in lines


def test_health_messages_say_when_what_and_which_argument() -> None:
    steps = [100.0, 200.0, 300.0, 400.0]
    log = {
        "train/approx_kl": {"steps": steps, "values": [0.01, 0.5, 0.3, 0.01]},
        "health/kl": {"steps": steps, "values": [0.0, 1.0, 1.0, 0.0]},
        "health/own": {"steps": steps, "values": [0.0, 0.0, 0.0, 1.0]},
        "group/start_mismatch": {"steps": steps, "values": [0.0, 0.0, 7.0, 7.0]},
    }
    mismatch, own, kl = health_messages(log)
    assert mismatch.startswith("7 episodes did not start where their group did")
    assert own.startswith("own, from step 400 to the end: ")  # what is still broken comes before what is mended
    assert kl.startswith("kl, from step 200 to 300: One update changes the policy by a KL of 0.3,") and "target_kl" in kl
    fine = {"health/kl": {"steps": steps, "values": [0.0] * 4}}
    assert health_messages(fine) == health_messages({}) == []


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.mark.slow
def test_the_page_in_a_browser(driver: Any, runs: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    assert main([str(runs)]) == 0
    for width in WIDTHS:
        resize(driver, width)
        driver.get("about:blank")
        requests(driver), complaints(driver)
        driver.get((runs / "dashboard.html").as_uri())
        wait_until(driver, "document.querySelectorAll('.plot svg').length > 5")
        for _ in range(2):
            assert faults(driver) == []
            driver.find_element("name", "theme").click()
        assert complaints(driver) == []
        assert [url for url in requests(driver) if not url.startswith((runs / "dashboard.html").as_uri())] == []
    reached = []
    for _ in range(3):  # the keyboard comes to the controls, then to the links
        driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(driver.switch_to.active_element.get_attribute("name") or driver.switch_to.active_element.tag_name)
    assert reached == ["run", "theme", "a"]
    before = driver.find_element("tag name", "h1").text
    driver.execute_script("const s = document.querySelector('[name=run]'); s.selectedIndex = 1 - s.selectedIndex;"
                          "s.dispatchEvent(new Event('change'))")  # fmt: skip
    assert driver.find_element("tag name", "h1").text != before
    choose = "s.selectedIndex = [...s].findIndex((o) => o.text === 'grpo/one'); s.dispatchEvent(new Event('change'))"
    driver.execute_script(f"const s = document.querySelector('[name=run]'); {choose}")
    # All starts matched: a word in the sentence of what never moved, and no chart of a flat line.
    wait_until(driver, "document.querySelector('#unchanged')?.textContent.includes('group/start_mismatch 0')")
    assert not driver.find_elements("id", "mismatch")


@pytest.mark.slow
def test_a_served_page_follows_the_training(driver: Any, tmp_path: Path) -> None:
    monitor = tmp_path / "monitor.csv"
    monitor.write_text('#{"t_start": 1.0}\nr,l,t\n1,2,3\n')
    server = make_server(lambda: read_runs(tmp_path, None), "run", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        assert json.loads(urllib.request.urlopen(f"{address}/data.json").read())["version"] == 1
        driver.get(address)
        wait_until(driver, "window.dashboard?.data.runs[0].episodes.n === 1")
        with monitor.open("a") as file:
            file.write("4,5,6\n")
        wait_until(driver, "document.querySelector('#returns-note').textContent.startsWith('2 training')")
    finally:
        server.shutdown()
        server.server_close()


def test_the_log_of_a_run_goes_on_with_what_was_written_after_it_was_resumed(tmp_path):
    """From where the later file begins, the earlier one's figures were written in vain; other runs' files do not count."""

    def write(folder: str, second: int, steps: range, value: float) -> None:
        writer = SummaryWriter(str(tmp_path / folder))
        for step in steps:
            writer.add_scalar("train/loss", value, step)
            writer.add_histogram("group/advantages", np.array([0.0, value]), step)
        writer.close()
        (made,) = [file for file in (tmp_path / folder).iterdir() if not file.name.endswith(".made")]
        made.rename(made.with_name(f"events.out.tfevents.{second}.host.1.made"))

    write("run_1", 1000, range(0, 50, 10), 1.0)
    write("run_1", 1900, range(30, 70, 10), 2.0)
    write("run_2", 1950, range(0, 90, 10), 3.0)
    found, advantages = read_log(tmp_path / "none", tmp_path, 1005.0, [])
    assert found["train/loss"] == {"steps": [0, 10, 20, 30, 40, 50, 60], "values": [1.0] * 3 + [2.0] * 4}
    assert advantages is not None and advantages["steps"] == [0, 10, 20, 30, 40, 50, 60]
    assert read_log(tmp_path / "none", tmp_path, 5000.0, []) == ({}, None)
