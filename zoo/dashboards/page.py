"""One self-contained HTML file: data, style, scripts and the plotting library."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import plotly

from sb_grpo import files

from ..common.folders import check_place
from ..common.plain_files import to_json
from ..dashboards.runs import PageData, read_runs

ASSETS = Path(__file__).parent / "assets"
#: Plotly's own build for browsers, from its Python package: pages need no network.
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
#: In the order of their imports.
MODULES = ("dom.js", "charts.js", "dashboard.js")


def write_page(place: Path, out: Path, tensorboard: Path | None, trusted: bool = True) -> int:
    """Write the page of a run or of the runs below a folder, and print its path.

    :param place: folder
    :param out: the file
    :param tensorboard: folder of TensorBoard's files; None: from the run's command line
    :param trusted: see :func:`~zoo.dashboards.runs.read_runs`
    :return: exit code
    """
    check_place("--out", out)
    data = read_runs(place, tensorboard, out.parent, trusted)
    files.write(out, page(data, title_of(place)))
    print(f"{out}: {len(data['runs'])} run{'s' * (len(data['runs']) > 1)}; open it in a browser")
    return 0


def title_of(place: Path) -> str:
    """Title of the page."""
    return f"{place.resolve().name} - sb_grpo"


def page(data: PageData, title: str, live: bool = False) -> str:
    """Make the page of some runs.

    :param data: of :func:`~zoo.dashboards.runs.read_runs`
    :param title: of the page
    :param live: the page polls its server for newer data every few seconds
    """
    text = (ASSETS / "dashboard.html").read_text()
    parts = {
        "TITLE": html.escape(title),
        "STYLE": (ASSETS / "page.css").read_text(),
        "PLOTLY": PLOTLY.read_text(),
        "DATA": as_script(data),
        "LIVE": json.dumps(live),
        "SCRIPT": one_script(),
    }
    return re.sub(r"@@([A-Z]+)@@", lambda match: parts[match[1]], text)


def as_script(data: PageData) -> str:
    """Write JSON that is safe within a script: it contains no tag or comment of HTML."""
    return to_json(data, separators=(",", ":")).replace("<", "\\u003c")


def one_script() -> str:
    """Join the modules to one script without their imports, for a self-contained page."""
    text = "\n".join((ASSETS / name).read_text() for name in MODULES)
    return re.sub(r"^export ", "", re.sub(r"^import .*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
