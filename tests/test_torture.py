"""The sections of ``scripts/torture.py`` in their short form, as in ``python -m scripts.torture --short``."""

import pytest

from scripts.torture import SECTIONS, broken, saves


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_what_must_survive_does(section):
    assert [figure for figure in section(True) if figure.count > figure.allowed or figure.of == 0] == []


def test_half_a_file_is_found(tmp_path):
    """The section would notice."""
    (tmp_path / "a.zip").write_bytes(b"PK\3\4 half of a zip")
    (tmp_path / "b.npz").write_bytes(b"")
    (tmp_path / "c.json").write_text("0 1\n0 1\n0")
    assert [line.split(":")[0] for line in broken(tmp_path)] == ["a.zip", "b.npz", "c.json"]
    assert saves is SECTIONS["saves"]
