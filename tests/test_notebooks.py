"""The notebooks run from start to end in a kernel of their own, and what they assert holds."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="pip install -e '.[tests]'")
FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_they_are_there_with_their_outputs() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own_env", "paired_groups", "quickstart", "tuning"]
    for path in NOTEBOOKS:
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        outputs = [output for cell in cells for output in cell.outputs]
        assert outputs and all(output.output_type != "error" for output in outputs), path.name
        assert all(cell.execution_count == number for number, cell in enumerate(cells, 1)), f"{path.name} was not run in order"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs(path: Path) -> None:
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}).execute()
