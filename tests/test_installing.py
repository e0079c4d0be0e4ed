"""What users install: sdist and wheel, built here, installed outside of the checkout, and used from there."""

from __future__ import annotations

import ast
import configparser
import email
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import readme_renderer.markdown
import torch
import yaml
from packaging.specifiers import SpecifierSet

from sb_grpo import GRPO
from zoo.__main__ import COMMANDS, main
from zoo.common.command_line import default_threads

ROOT = Path(__file__).parents[1]
VERSION = (ROOT / "sb_grpo" / "version.txt").read_text().strip()


def do(command: list[str | Path], cwd: Path = ROOT, **variables: str) -> str:
    """Run a command that must succeed.

    :return: its standard output
    """
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, env={**clean, **variables}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---------------------------------------------------------------- in the checkout


def test_the_zoo_imports_itself_by_relative_names_only():
    """It is ``zoo`` here and ``sb_grpo_zoo`` in the wheel."""
    for path in (ROOT / "zoo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            assert not [name for name in named if name.split(".")[0] == "zoo"], path


def test_every_command_is_a_module_and_every_module_a_command():
    plain = {"__init__", "__main__", "plugin"}
    assert set(COMMANDS) == {path.stem for path in (ROOT / "zoo").glob("*.py")} - plain


def test_the_command_of_commands(capsys):
    assert main(["--help"]) == 0 and all(f"  {name} " in capsys.readouterr().out for name in list(COMMANDS)[:1])
    assert main([]) == 2 and main(["--version"]) == 0
    assert main(["trian"]) == 2 and "no command 'trian'. Did you mean train?" in capsys.readouterr().err
    assert main(["compare", "nowhere"]) == 2 and capsys.readouterr().err.startswith("zoo.compare: ")


def test_version_stands_in_the_citation():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == VERSION and f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version = {{{VERSION}}}" in (ROOT / "CITATION.bib").read_text()
    assert {"cff-version", "message", "title", "authors", "license"} <= set(cited)


def test_what_pypi_shows_has_no_relative_link_and_one_address(tmp_path):
    """Build the wheel's metadata and render the description as PyPI does: pictures and links lead somewhere."""
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "sb_grpo").mkdir()
    (tmp_path / "zoo").mkdir()
    (tmp_path / "sb_grpo" / "version.txt").write_text(VERSION)
    do([sys.executable, "setup.py", "-q", "egg_info"], tmp_path)
    metadata = email.message_from_string((tmp_path / "sb_grpo.egg-info" / "PKG-INFO").read_text())
    html = readme_renderer.markdown.render(metadata.get_payload())
    targets = re.findall(r'(?:href|src|srcset)="([^"]+)"', html)
    home = metadata["Home-page"]
    assert len(targets) > 20 and [target for target in targets if not target.startswith(("https://", "#"))] == []
    for target in targets:
        if target.startswith(home):
            assert (ROOT / re.sub(r"^/(blob|raw)/main/|#.*", "", target.removeprefix(home))).exists(), target
    assert len([url for url in metadata.get_all("Project-URL") if url.split(", ")[1].startswith(home)]) == 3
    assert "Typing :: Typed" in metadata.get_all("Classifier") and metadata["Author"] == "sb_grpo maintainers"


def test_the_address_stands_in_one_place():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    found = do(["git", "grep", "-lF", config["metadata"]["url"].split("//")[1]])
    assert found.split() == ["setup.cfg"]


def torch_bound() -> SpecifierSet:
    """Versions of torch that the package allows."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    (bound,) = re.findall(r"^torch(.*)$", config["options"]["install_requires"], re.MULTILINE)
    return SpecifierSet(bound)


def test_every_torch_2_since_the_oldest_is_allowed():
    (tested,) = re.findall(r"^torch==(.*)$", (ROOT / "scripts" / "constraints.txt").read_text(), re.MULTILINE)
    assert tested in torch_bound() and torch.__version__.split("+")[0] in torch_bound()
    assert "2.99" in torch_bound() and "3.0" not in torch_bound() and "2.7.1" not in torch_bound()


@pytest.mark.slow
def test_the_newest_torch_that_pip_finds_is_allowed():
    """By the version number alone: a build is over a gigabyte. Fails when torch 3 is out: try it, then raise the bound."""
    found = subprocess.run([sys.executable, "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip("pip finds no index")
    assert found.stdout.split("(")[1].split(")")[0] in torch_bound()


def test_one_thread_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert default_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert default_threads() == -1  # torch has read it


def test_training_imports_nothing_slow_that_rl_zoo3_does_not():
    code = "import sys, {0}; print(*sys.modules)"
    ours, theirs = (set(do([sys.executable, "-c", code.format(m)]).split()) for m in ("zoo.train", "rl_zoo3.train"))
    extra = {name.split(".")[0] for name in ours - theirs}
    assert extra & {"scipy", "sqlalchemy", "plotly", "pandas", "psutil", "sklearn", "networkx", "jax", "wandb"} == set()


# ---------------------------------------------------------------- out of it


def oldest() -> str:
    """The least versions that setup.cfg allows, as pip's constraints; torch as tested, as older builds are for CUDA."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    requested = config["options"]["install_requires"] + config["options.extras_require"]["zoo"]
    (torch,) = re.findall("^torch==.*$", (ROOT / "scripts" / "constraints.txt").read_text(), re.MULTILINE)
    bounds = re.findall(r"^([\w-]+)>=([\d.]+)", requested, re.MULTILINE)
    return "\n".join([torch, *(f"{name}=={version}" for name, version in bounds if name != "torch")])


@pytest.fixture(scope="module", params=["present", "oldest"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of a fresh environment with the wheel, built from the sdist.

    What it depends on comes from the present environment, or is the oldest that the wheel says it can do with.
    """
    folder = tmp_path_factory.mktemp("installed")
    do([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", ROOT])
    do([sys.executable, "-m", "twine", "check", "--strict", *(folder / "dist").iterdir()])
    do([sys.executable, "-m", "venv", folder / "env"])
    (wheel,) = (folder / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"sb_grpo_zoo/hyperparams/grpo.yml", "sb_grpo_zoo/variants/ablations.yml", "sb_grpo/py.typed"} <= names
    assert not [name for name in names if name.startswith(("zoo/", "tests/", "scripts/"))]
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        inside = {name.split("/", 1)[-1] for name in files.getnames()}
    assert {"README.md", "CHANGELOG.md", "CITATION.cff", "CITATION.bib", "LICENSE", "setup.py"} <= inside
    pip = [folder / "env" / "bin" / "python", "-m", "pip", "install", "--quiet"]
    if request.param == "present":
        (site,) = (folder / "env").glob("lib/python*/site-packages")
        # As a plain path: .pth files in there, such as this checkout's own, are not read.
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
        do([*pip, "--no-deps", "--no-index", wheel])
    else:
        (folder / "oldest.txt").write_text(oldest())
        do([*pip, "-c", folder / "oldest.txt", f"{wheel}[zoo]"])
    return folder / "env" / "bin"


@pytest.mark.slow
def test_the_wheel_trains_enjoys_and_compares_outside_of_the_checkout(installed, tmp_path):
    sb_grpo = installed / "sb-grpo"
    where = do([installed / "python", "-c", "import sb_grpo, sb_grpo_zoo as z; print(sb_grpo.__file__, z.__file__)"], tmp_path)
    assert all(str(installed.parent) in path for path in where.split())
    (tmp_path / "zoo.py").write_text("raise SystemExit('the user has a zoo of their own')")

    small = ["--hyperparams", "n_steps:64", "n_envs:2", "n_epochs:1", "learning_rate:cos_1e-3"]
    message = do([sb_grpo, "train", "--env", "CartPole-v1", "-n", "256", "--eval-freq", "-1", *small], tmp_path)
    assert "Mean return over 20 episodes" in message
    run = tmp_path / "logs" / "grpo" / "CartPole-v1_1"
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["commit"] is None and metrics["versions"]["sb_grpo"] == VERSION
    assert GRPO.load(run / "CartPole-v1.zip").num_timesteps == 256  # here, where there is no sb_grpo_zoo

    assert "3 episodes: mean return" in do([sb_grpo, "enjoy", "--no-render", "--n-episodes", "3"], tmp_path)
    study = ["--envs", "CartPole-v1", "--algos", "grpo", "random", "--seeds", "0-1", "--steps", "256", "--out", "results"]
    few = ["--evaluations", "1", "--eval-episodes", "2", "--final-episodes", "2", "--jobs", "1"]
    assert "4 runs, 0 done before, 4 to do" in do([sb_grpo, "benchmark", *study, *few], tmp_path)
    result = json.loads((tmp_path / "results" / "CartPole-v1" / "grpo" / "seed_0.json").read_text())
    assert result["command"].startswith("sb-grpo benchmark --envs CartPole-v1")
    assert "Report: report/report.md" in do([sb_grpo, "compare", "results", "--out", "report"], tmp_path)

    failed = subprocess.run([sb_grpo, "train", "--env", "CartPole-v7"], cwd=tmp_path, capture_output=True, text=True)
    assert failed.returncode == 2 and failed.stderr.startswith("sb-grpo train: env 'CartPole-v7' not found.")


@pytest.mark.slow
def test_rl_zoo3_trains_grpo_by_the_documented_line(installed, tmp_path):
    line = "import sb_grpo_zoo.plugin, rl_zoo3.train as t; t.train()"
    assert line in (ROOT / "docs" / "zoo.md").read_text()
    options = ["--algo", "grpo", "--env", "CartPole-v1", "-conf", "sb_grpo_zoo.plugin", "-n", "256", "--eval-freq", "-1"]
    do([installed / "python", "-c", line, *options, "-params", "n_steps:64", "n_envs:2"], tmp_path)
    assert list(tmp_path.glob("logs/grpo/CartPole-v1_1/CartPole-v1.zip"))


def test_build_and_twine_are_among_the_tests_extras():
    text = (ROOT / "setup.cfg").read_text()
    assert all(f"\n    {tool}\n" in text for tool in ("build", "twine")) and importlib.util.find_spec("setuptools")
