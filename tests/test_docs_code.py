"""The Python in the docs runs: what a newcomer tries first with every test run (shortened), all of it with the slow ones.

The notebooks run from start to end in a kernel of their own, and what they assert holds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
#: Pages whose code needs more than the libraries that they name.
NEEDS = {"causal.md": "networkx", "simpy.md": "simpy", "input_driven.md": "simpy", "words.md": "transformers"}


def blocks(page: Path) -> list[str]:
    return [textwrap.dedent(match[2]) for match in BLOCK.finditer(page.read_text())]


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if blocks(page)]


def shortened(code: str) -> str:
    """The same code with trainings of one rollout."""
    return re.sub(r"\.learn\(([\d_]+|STEPS)", ".learn(1", code)


def run(page: Path, code: str, folder: Path, seconds: float) -> None:
    """Run a page's code as a script of its own."""
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    script = folder / "page.py"
    script.write_text("import torch as th\n\nth.set_num_threads(1)\n" + code)
    path = os.pathsep.join([str(ROOT), str(ROOT / "docs" / "examples")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, script], cwd=folder, env=env, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{page.relative_to(ROOT)}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_the_docs_have_code() -> None:
    assert len(PAGES) > 15 and sum(len(blocks(page)) for page in PAGES) > 35


@pytest.mark.parametrize("name", [pytest.param("papers.md", marks=pytest.mark.slow), "quickstart.md"])
def test_settings_of_the_papers_and_first_steps_run(name: str, tmp_path: Path) -> None:
    page = ROOT / "docs" / name
    run(page, "\n".join(map(shortened, blocks(page))), tmp_path, 120.0)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs_as_written(page: Path, tmp_path: Path) -> None:
    run(page, "\n".join(blocks(page)), tmp_path, 1200.0)


def notebook(path: Path) -> Any:
    return pytest.importorskip("nbformat", reason="pip install -e '.[tests]'").read(path, as_version=4)


def test_the_notebooks_are_there_with_their_outputs() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own_env", "paired_groups", "quickstart", "tuning"]
    for path in NOTEBOOKS:
        cells = [cell for cell in notebook(path).cells if cell.cell_type == "code"]
        outputs = [output for cell in cells for output in cell.outputs]
        assert outputs and all(output.output_type != "error" for output in outputs), path.name
        assert all(cell.execution_count == number for number, cell in enumerate(cells, 1)), f"{path.name} was not run in order"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs(path: Path) -> None:
    content = notebook(path)
    from nbclient import NotebookClient

    NotebookClient(content, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}).execute()
