"""The docs site builds without a warning, and what its pages link to outside of the pages gets pages of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mkdocs", reason="the docs site needs the extra docs: pip install 'sb_grpo[docs]'")

from scripts.site.hooks import relinked, text_of
from scripts.site.sensitivity import surfaces

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; every warning (broken link, anchor, page outside of the navigation) fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_pages_are_there(site: Path) -> None:
    for page in ("", "papers/", "api/", "changelog/", "explorer/", "files/zoo/hyperparams/grpo.yml/"):
        assert (site / page / "index.html").is_file(), page
    assert "clipped_surrogate" in (site / "api" / "index.html").read_text()


def test_docstrings_link_to_what_they_name(site: Path) -> None:
    api = (site / "api" / "index.html").read_text()
    assert re.search(r":(class|func|meth|mod|attr|data):<code>", api) is None
    for name in ("GRPO.learn", "GRPO.collect", "GRPO.save", "Multitask", "State", "baselines.settings.StateSettings"):
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
