"""The docs site: it builds without a warning, and what its pages link to outside of the pages gets pages of its own.

The explorer in a real browser: its numbers are Python's, its controls do what they say, nothing leaves the page.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from selenium.webdriver.support.select import Select

from tests.browser import WIDTHS, browser, complaints, faults, requests, resize, served, wait_until
from tests.explorer_reference import advantages, fifty_settings, impact, read_recording
from zoo.common.command_line import BadInput

pytest.importorskip("mkdocs", reason="the docs site needs the extra docs: pip install 'sb_grpo[docs]'")

from scripts.site.formulas import with_mathml
from scripts.site.hooks import relinked, text_of
from scripts.site.sensitivity import surfaces

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DATA = DOCS / "explorer" / "data"
RECORDINGS = ("cartpole", "lunarlander", "loadbalancing", "tasks")
VIEWS = ("groups", "advantages", "tasks", "sensitivity", "walkthrough")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; every warning (broken link, anchor, page outside of the navigation) fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Address of the built site."""
    with served(site) as found:
        yield found


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as running:
        yield running


def go(driver: Any, address: str, view: str = "groups", recording: str = "cartpole", width: int = 1280) -> None:
    """Open a view of a recording anew."""
    resize(driver, width)
    driver.get("about:blank")
    complaints(driver), requests(driver)
    driver.get(f"{address}/explorer/#view={view}&recording={recording}")
    wait_until(driver, "window.explorer?.ready")


def choose(driver: Any, name: str, value: str) -> None:
    """Use a control as a reader does: a choice of a select, a radio button, a value of a slider, a tick."""
    script = """
    const [name, value] = arguments;
    const all = [...document.querySelectorAll(`[name="${name}"]`)].filter((e) => e.offsetParent !== null);
    const input = all.find((e) => e.type !== "radio" || e.value === value);
    if (!input) return false;
    if (input.type === "radio" || input.type === "checkbox") input.click();
    else {
      input.value = value;
      input.dispatchEvent(new Event("input", { bubbles: true }));
      input.dispatchEvent(new Event("change", { bubbles: true }));
    }
    return input.type === "radio" || input.type === "checkbox" || input.value === value;
    """
    assert driver.execute_script(script, name, value), f"no control {name} with {value}"


def numbers(driver: Any) -> list[float]:
    found: list[float] = driver.execute_script("return window.explorer.advantages({})")
    return found


# ---------------------------------------------------------------- the pages


def test_pages_are_there(site: Path) -> None:
    for page in ("", "papers/", "api/", "changelog/", "explorer/", "files/zoo/hyperparams/grpo.yml/"):
        assert (site / page / "index.html").is_file(), page
    assert "importance_ratio" in (site / "api" / "index.html").read_text()
    colab = r'href="https://colab\.research\.google\.com/github/[^"]+/blob/main/docs/notebooks/\w+\.ipynb"'
    assert len(re.findall(colab, (site / "notebooks" / "index.html").read_text())) == 4


def pages_of_the_site() -> list[Path]:
    return [file for file in sorted(DOCS.rglob("*.md")) if not {"_site", "examples"} & {*file.relative_to(DOCS).parts}]


def test_the_navigation_is_short_and_the_first_page_leads_to_all_others() -> None:
    shown = {DOCS / name for name in re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)}
    assert 20 <= len(shown) <= 25
    found: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in found and page.suffix == ".md" and page.is_file():
            found.add(page)
            waiting += [(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)", page.read_text())]
    assert {*pages_of_the_site()} - found == set()


def test_formulas_are_mathml(site: Path) -> None:
    page = (site / "algorithm" / "index.html").read_text()
    assert page.count("<math") > 20 and "arithmatex" not in page
    with_formula = 'a <span class="arithmatex">\\(x &lt; 1\\)</span> b'
    assert "<mi>x</mi><mo>&#x0003C;</mo><mn>1</mn>" in with_mathml(with_formula)


def test_the_search_finds_the_pages_of_newcomers(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert [entry for entry in entries if entry["location"].startswith(("studies/", "changelog/"))] == []
    for words, page in (("custom environment", "own_env/"), ("vf_coef", "coming_from_ppo/")):
        best = max((entry for entry in entries if words in (entry["title"] + entry["text"]).lower()), key=weight_of(words))
        assert best["location"].startswith(page), words


def weight_of(words: str) -> Any:
    """Order of search results, roughly: the boost of the page, and whether the title has the words."""
    return lambda entry: (words in entry["title"].lower(), entry.get("boost", 1))


def test_docstrings_link_to_what_they_name(site: Path) -> None:
    api = (site / "api" / "index.html").read_text()
    assert re.search(r":(class|func|meth|mod|attr|data):<code>", api) is None
    for name in ("GRPO.learn", "GRPO.collect", "GRPO.save", "Multitask", "State", "config.StateSettings"):
        assert f'id="sb_grpo.{name}"' in api, name
    assert 'href="#sb_grpo.Multitask"' in api


def test_pictures_can_be_seen_in_full_size(site: Path) -> None:
    page = (site / "studies" / "paired" / "index.html").read_text()
    assert re.search(r'<a class="picture" href="([^"]+)"><img [^>]*src="\1"', page)


def test_the_site_asks_nobody_else_for_anything(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text and 'rel="stylesheet" href="http' not in text, page


def test_pictures_say_what_they_show() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert "![](" not in page.read_text(), page


def test_links_out_of_the_pages_lead_to_pages_of_their_own() -> None:
    def to_page(target: str) -> str:
        return f"<{target}>"

    text = "[a](../zoo/hyperparams/grpo.yml) [b](grouping.md#top) [c](studies/data/core) [d](https://e.f) [g](gone.md)"
    assert relinked(text, "", to_page) == (
        "[a](<zoo/hyperparams/grpo.yml>) [b](grouping.md#top) [c](<docs/studies/data/core>) [d](https://e.f) [g](gone.md)"
    )
    assert "CartPole-v1.jsonl" in text_of("docs/studies/data/core")
    assert "def discount_for" in text_of("sb_grpo/maths/discount.py")


def test_the_studies_of_the_sensitivity_view() -> None:
    study: dict[str, Any]
    study, other = surfaces()["studies"]
    assert len(other["values"]) == 60 and max(other["values"]) == pytest.approx(-126.7, abs=0.05)
    by_name = {parameter["name"]: parameter for parameter in study["parameters"]}
    assert len(study["values"]) == 18 and {len(p["values"]) for p in study["parameters"]} == {18}
    assert by_name["learning_rate"]["log"] and not by_name["clip_range"]["log"]
    assert by_name["learning_rate"]["values"][0] == 3e-4 and study["values"][0] == 464.4


# ---------------------------------------------------------------- in a browser


@pytest.mark.parametrize(
    "recording", [RECORDINGS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in RECORDINGS[1:])]
)
def test_fifty_settings_give_pythons_numbers(driver: Any, address: str, recording: str) -> None:
    document = read_recording(DATA / f"{recording}.json")
    settings = fifty_settings(len(document["tasks"]), seed=len(recording))
    for one in settings:
        if one["labels"] is not None:  # any labels, as clusters would give them
            one["labels"] = [(7 * e) % 3 for e in range(len(document["episodes"]["length"]))]
    go(driver, address, recording=recording)
    script = "return arguments[0].map((s) => [window.explorer.advantages(s), ...window.explorer.impact(s)])"
    for one, in_page in zip(settings, driver.execute_script(script, settings), strict=True):
        expected = advantages(document, one)
        for ours, theirs in zip([expected, *impact(document, one, expected)], in_page, strict=True):
            size = max(1.0, float(ours.abs().max()))
            assert float((th.tensor(theirs, dtype=th.float64) - ours).abs().max()) < 1e-6 * size, one
    assert sum(float(advantages(document, one).abs().max()) > 0 for one in settings) > 35


@pytest.mark.slow
def test_the_controls_change_the_numbers_as_they_say(driver: Any, address: str) -> None:
    go(driver, address, "advantages", "tasks")
    document = read_recording(DATA / "tasks.json")
    now = {**fifty_settings(0, 0)[0], "estimator": "state", "grouping": "seed", "labels": None, "n": 4, "paired": False,
           "baseline": "mean", "normalize": "group", "ended": "zero", "gamma": 0.99, "lambda": 0.95, "weights": "none",
           "temperature": 0.5, "floor": 0.3}  # fmt: skip
    changes = [("normalize", "batch"), ("paired", True), ("lambda", 0.5), ("gamma", 0.9), ("grouping", "task"),
               ("weights", "adaptive"), ("floor", 0.1), ("weights", "performance"), ("temperature", 0.2),
               ("grouping", "hierarchical"), ("estimator", "step"), ("ended", "drop"), ("baseline", "leave_one_out"),
               ("grouping", "difficulty"), ("n", 3), ("estimator", "outcome"), ("normalize", "none")]  # fmt: skip
    for name, value in changes:
        choose(driver, name, str(value))
        now = {**now, name: value}
        if now["estimator"] != "state":
            now["paired"] = False
        expected = advantages(document, now)
        assert float((th.tensor(numbers(driver), dtype=th.float64) - expected).abs().max()) < 1e-6, (name, value)
        shares = driver.execute_script("return window.explorer.impact({})[2]")
        assert shares == pytest.approx(impact(document, now, expected)[2].tolist(), abs=1e-6), (name, value)
    assert complaints(driver) == []


@pytest.mark.slow
def test_every_page_of_the_site(driver: Any, address: str) -> None:
    names = [str(file.relative_to(DOCS).with_suffix("")) for file in pages_of_the_site()]
    pages = ["/" + re.sub(r"(^|/)(index|README)$", r"\1", name) for name in names]
    assert len(pages) > 60
    wrong = {}
    complaints(driver), requests(driver)
    for page in pages:
        driver.get("about:blank")  # it takes the new size at once
        resize(driver, WIDTHS[0])
        driver.get(f"{address}{page}{'' if page.endswith('/') else '/'}")
        assert "Error response" not in driver.title, page
        for width in WIDTHS:
            resize(driver, width)
            found = faults(driver) + complaints(driver)
            if found:
                wrong[page, width] = found
    assert wrong == {}
    assert {url for url in requests(driver) if not url.startswith(address)} == set()


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("recording", RECORDINGS)
def test_every_view_of_every_recording(driver: Any, address: str, recording: str, width: int) -> None:
    go(driver, address, VIEWS[0], recording, width)
    for view in VIEWS if recording == RECORDINGS[0] else VIEWS[:3]:  # the last two do not depend on it
        driver.find_element("id", f"tab-{view}").click()
        wait_until(driver, f"document.querySelector('#view-{view}:not(.hidden) svg')")
        assert faults(driver) == [], view
    assert complaints(driver) == []
    assert {url for url in requests(driver) if not url.startswith(address)} == set()


#: View, control, what to choose, and what must change.
CONTROLS = [
    ("groups", "grouping", "difficulty", "#paths"),
    ("groups", "n", "3", "#sizes"),
    ("groups", "grouping", "length", "#forming"),
    ("groups", "grouping", "auto", "#radar"),
    ("groups", "n", "5", "#forming"),
    ("groups", "feature mean reward", "", "#forming-note"),
    ("groups", "weights", "balanced", "#radar"),
    ("groups", "weights", "performance", "#radar"),
    ("groups", "temperature", "0.1", "#radar"),
    ("groups", "x", "length", "#forming"),
    ("groups", "y", "mean reward", "#forming"),
    ("groups", "time", "20", ".stage"),
    ("groups", "label", "1", ".stage"),
    ("advantages", "estimator", "outcome", "#before"),
    ("advantages", "baseline", "median", "#formula"),
    ("advantages", "weights", "balanced", "#impact"),
    ("advantages", "episode", "3", "#formula"),
    ("advantages", "step", "7", "#formula"),
    ("advantages", "gamma", "0.9", "#after"),
    ("advantages", "normalize", "batch", "#boxes"),
    ("sensitivity", "across", "n_epochs", "#surface"),
    ("sensitivity", "up", "ent_coef", "#surface"),
    ("sensitivity", "width", "0.3", "#surface"),
    ("sensitivity", "scale", "rank", "#alone"),
    ("sensitivity", "study", "1", "#surface"),
]


@pytest.mark.slow
def test_every_control_changes_what_it_should(driver: Any, address: str) -> None:
    def picture(part: str) -> str:
        found: str = driver.execute_script("return document.querySelector(arguments[0]).innerHTML", part)
        return found

    now = ""
    for view, name, value, part in CONTROLS:
        if view != now:
            go(driver, address, view, "lunarlander")  # where return and length are two things
            wait_until(
                driver, f"document.querySelector('{part}')?.innerHTML.length > 100 || document.querySelector('#surface svg')"
            )
            now = view
        before = picture(part)
        choose(driver, name, value)
        if name.startswith("feature"):
            assert driver.execute_script("return window.explorer.app.settings.features.length") == 3
        else:
            wait_until(driver, f"document.querySelector('{part}').innerHTML !== {json.dumps(before)}")
    assert complaints(driver) == []


@pytest.mark.slow
def test_the_surface_and_what_a_parameter_says_are_pythons(driver: Any, address: str) -> None:
    """Kernel regression over the trials in units of the searched range; alone: each trial told from the others."""
    go(driver, address, "sensitivity")
    wait_until(driver, "document.querySelector('#alone svg')")
    script = "const p = document.querySelector(arguments[0]).data[0]; return [p.x, p.y, p.z ?? null]"
    study, width = surfaces()["studies"][0], 0.15
    values = np.array(study["values"])
    unit = {}
    for parameter in study["parameters"]:
        raw = np.log10(parameter["values"]) if parameter["log"] else np.array(parameter["values"])
        unit[parameter["name"]] = (raw - raw.min()) / np.ptp(raw)
    across, _, found = driver.execute_script(script, "#surface")
    at = np.linspace(0, 1, len(across))
    x, y = unit["learning_rate"], unit["one_minus_gamma"]
    near = np.exp(-((at[None, :, None] - x) ** 2 + (at[:, None, None] - y) ** 2) / (2 * width**2))
    np.testing.assert_allclose(found, near @ values / near.sum(2), rtol=1e-6)
    shares, names, _ = driver.execute_script(script, "#alone")
    for name, share in zip(names, shares, strict=True):
        u = unit[name]
        weights = np.exp(-((u[:, None] - u) ** 2) / (2 * width**2)) * (1 - np.eye(len(u)))
        others = (values.sum() - values) / (len(values) - 1)
        reported = weights @ values / weights.sum(1)
        assert share == pytest.approx(
            max(1 - np.mean((values - reported) ** 2) / np.mean((values - others) ** 2), 0), abs=1e-6
        ), name


@pytest.mark.slow
def test_a_click_on_the_map_shows_the_formula_with_its_numbers(driver: Any, address: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    go(driver, address, "advantages")
    wait_until(driver, "document.querySelector('#heat .nsewdrag')")
    before = driver.find_element(By.ID, "formula").text
    cell = driver.find_element(By.CSS_SELECTOR, "#heat .nsewdrag")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", cell)
    left = 40 - cell.rect["width"] / 2  # no episode has ended there
    ActionChains(driver).move_to_element_with_offset(cell, left, 0).click().perform()
    wait_until(driver, f"document.querySelector('#formula').textContent !== {json.dumps(before)}")
    text = driver.find_element(By.ID, "formula").text
    row = int(driver.find_element(By.ID, "formula").get_attribute("data-row"))
    last = float(text.splitlines()[-1].split("= ")[-1].split("   ")[0])
    assert last == pytest.approx(numbers(driver)[row], rel=2e-3)


@pytest.mark.slow
def test_play_moves_and_clusters_form(driver: Any, address: str) -> None:
    go(driver, address, "groups")
    driver.find_element("name", "play").click()
    wait_until(driver, "Number(document.querySelector('[name=time]').value) > 42")
    choose(driver, "grouping", "auto")
    driver.find_element("name", "form").click()
    wait_until(driver, "document.querySelector('#forming-note').textContent.includes('Iteration 2')")


@pytest.mark.slow
def test_the_keyboard_reaches_the_views(driver: Any, address: str) -> None:
    from selenium.webdriver.common.keys import Keys

    go(driver, address)
    driver.execute_script("document.querySelector('#tab-groups').focus()")
    for view in (*VIEWS[1:], VIEWS[0]):
        driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        assert driver.switch_to.active_element.get_attribute("id") == f"tab-{view}"
        assert driver.execute_script(f"return document.querySelector('#view-{view}').offsetParent !== null")


@pytest.mark.slow
def test_the_chosen_tab_is_in_sight_on_a_phone(driver: Any, address: str) -> None:
    for view in VIEWS:
        go(driver, address, view, width=390)
        place = "return ((r) => [r.left, r.right])(document.querySelector(arguments[0]).getBoundingClientRect())"
        (left, right), (first, last) = (driver.execute_script(place, name) for name in (f"#tab-{view}", "[role=tablist]"))
        assert first - 1 <= left < right <= last + 1, view


@pytest.mark.slow
def test_the_walkthrough_follows_the_reader(driver: Any, address: str) -> None:
    go(driver, address, "walkthrough")
    sizes = []
    for _ in range(7):
        driver.find_element("name", "next").click()
        wait_until(driver, "!document.querySelector('.walk .now') || true")
        sizes.append(driver.execute_script("return document.querySelector('.walk .stage text:nth-of-type(2)').textContent"))
    assert len(set(sizes)) >= 6
    assert driver.execute_script("return document.querySelector('.walk .picture svg').dataset.step") == "7"


@pytest.mark.slow
def test_dark_colours(driver: Any, address: str) -> None:
    go(driver, address, "advantages")
    driver.execute_script("document.querySelector('[data-md-component=palette] label:not([hidden])').click()")
    wait_until(driver, "document.body.dataset.mdColorScheme === 'slate'")
    assert faults(driver) == []
    driver.execute_script("localStorage.clear()")


def broken_files() -> dict[str, str]:
    whole = (DATA / "tasks.json").read_text()
    document = json.loads(whole)
    cut = {**document, "steps": {**document["steps"], "reward": document["steps"]["reward"][:10]}}
    return {
        "is cut or no JSON": whole[:5000],
        "has version 2": json.dumps({**document, "version": 2}),
        "not a recording": json.dumps({"some": "thing"}),
        "10 rewards for": json.dumps(cut),
        "lacks something": json.dumps({**document, "episodes": {}}),
    }


@pytest.mark.slow
def test_a_broken_file_becomes_a_sentence(driver: Any, address: str, tmp_path: Path) -> None:
    go(driver, address)
    for number, (sentence, text) in enumerate(broken_files().items()):
        file = tmp_path / f"rollout{number}.json"
        file.write_text(text)
        driver.find_element("name", "file").send_keys(str(file))
        wait_until(driver, f"document.querySelector('#alert').textContent.includes({json.dumps(sentence)})")
        assert driver.find_element("id", "alert").is_displayed()
        assert driver.execute_script("return document.querySelector('#paths svg') !== null")  # what was there stays
    assert complaints(driver) == []


@pytest.mark.slow
def test_after_a_file_of_ones_own_any_recording_can_be_chosen_again(driver: Any, address: str, tmp_path: Path) -> None:
    go(driver, address)
    name = "return document.querySelector('[name=recording]').value"
    first = driver.execute_script(name)
    file = tmp_path / "rollout.json"
    file.write_text((DATA / "lunarlander.json").read_text())
    driver.find_element("name", "file").send_keys(str(file))
    wait_until(driver, "document.querySelector('[name=recording]').value === ''")
    Select(driver.find_element("name", "recording")).select_by_value(first)
    wait_until(driver, f"({name.removeprefix('return ')}) === {json.dumps(first)}")
    assert complaints(driver) == []


@pytest.mark.slow
def test_every_field_that_is_missing_or_odd_is_named(driver: Any, address: str) -> None:
    """What parses can be drawn: all else is a sentence."""
    go(driver, address)
    script = """
    const [text, done] = arguments;
    (async () => {
      const { BadRecording, parse } = await import(new URL("recording.js", location.href));
      const passed = [];
      const walk = (whole, at, path) => Object.keys(at).forEach((key) => {
        const kept = at[key];
        for (const odd of [undefined, null, [], {}, "x", -1, [null, "x"]]) {
          at[key] = odd;
          try { parse(JSON.stringify(whole), "f"); passed.push([...path, key].join(".")); }
          catch (error) { if (!(error instanceof BadRecording)) passed.push(`${key}: ${error}`); }
        }
        at[key] = kept;
        if (kept && typeof kept === "object" && !Array.isArray(kept)) walk(whole, kept, [...path, key]);
      });
      const whole = JSON.parse(text);
      walk(whole, whole, []);
      done([...new Set(passed)].filter((name) => !name.startsWith("history.columns.")));
    })();
    """
    document = json.loads((DATA / "tasks.json").read_text())
    document["history"]["columns"] = {"task/balance": document["history"]["columns"]["task/balance"]}
    passed = set(driver.execute_async_script(script, json.dumps(document)))
    by_number = {f"settings.{name}" for name in ("seed", "train_steps", "group_size", "gamma", "gae_lambda", "clip_range")}
    assert passed <= {"env", "sb_grpo", "settings", "weighting", "conflicts", "history.columns"} | by_number, passed
    assert complaints(driver) == []


def test_reading_in_python_refuses_the_same_files(tmp_path: Path) -> None:
    for text in [*broken_files().values()][:4]:
        file = tmp_path / "rollout.json"
        file.write_text(text)
        with pytest.raises(BadInput, match="record"):
            read_recording(file)
