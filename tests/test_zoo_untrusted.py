"""Runs of strangers: with ``--untrusted`` no command runs, imports or writes what a file of theirs asks for."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from sb_grpo.save_util import with_entries
from tests.test_zoo_resume import stopped_after
from zoo import compare, dashboard, enjoy, evaluate, export, plot, push, report
from zoo import train as training
from zoo.common.command_line import BadInput, run
from zoo.common.plain_files import read_mapping
from zoo.training.resuming import RunSaves
from zoo.training.run_files import read_values

EVIL = "planted_module"
SOURCE = """
import gymnasium
from stable_baselines3.common.callbacks import BaseCallback
open("RAN", "w")
class W(gymnasium.Wrapper): pass
class C(BaseCallback):
    def _on_step(self): return True
"""
#: A value of every kind that some reader could look up, evaluate or write to.
PAYLOADS = {
    "class": f"{EVIL}.W",
    "classes": [{f"{EVIL}.C": {}}],
    "module": [EVIL],
    "id": f"{EVIL}:CartPole-v1",
    "text": f"__import__('{EVIL}')",
    "text in text": repr(f"__import__('{EVIL}')"),
    "place": "OUTSIDE",
    "video": {"gymnasium.wrappers.RecordVideo": {"video_folder": "OUTSIDE"}},
    "mapping": {"env_id": f"{EVIL}:X-v0"},
}
#: Those that each setting gets, as far as it can be anything.
SETTINGS = (
    "env_wrapper", "vec_env_wrapper", "callback", "policy", "policy_kwargs", "monitor_kwargs", "normalize", "env_kwargs",
    "replay_buffer_class", "replay_buffer_kwargs", "rollout_buffer_class", "learning_rate", "n_envs", "frame_stack", "seed",
)  # fmt: skip


class Planted:
    """Runs when it is unpickled."""

    def __reduce__(self):
        return __import__, (EVIL,)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A run that was stopped, with all that a run leaves."""
    folder = tmp_path_factory.mktemp("stranger")
    options = ["--env", "CartPole-v1", "-n", "128", "--seed", "0", "--verbose", "0", "--save-freq", "32"]
    options += ["--eval-freq", "64", "--n-eval-envs", "1", "--eval-episodes", "1", "-params", "n_envs:2", "n_steps:16"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [])
        patch.setattr(RunSaves, "_on_step", stopped_after(60))
        assert run("zoo.train", training.main, [*options, "n_epochs:1", "-f", str(folder)]) == 0
    (made,) = folder.glob("grpo/*")
    assert (made / "CartPole-v1" / "run.zip").exists()
    return made


@pytest.fixture
def here(stranger, tmp_path, monkeypatch):
    """A working directory with the run, from which the planted module can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.syspath_prepend(str(tmp_path))
    Path(f"{EVIL}.py").write_text(SOURCE)
    folder = Path("logs/grpo/CartPole-v1_1")

    def fresh() -> Path:
        shutil.rmtree("logs", ignore_errors=True)
        shutil.copytree(stranger, folder, symlinks=True)
        return folder

    return fresh


def commands(folder: Path):
    """Every command that reads a run, by name."""
    model, quiet = str(folder / "CartPole-v1.zip"), ["--verbose", "0", "--untrusted"]
    options = ["--env", "CartPole-v1", "--eval-freq", "-1", "-f", "new", "-tb", ""]
    out = ["--untrusted", "--out"]
    return {
        "train --resume": (training.main, ["--resume", str(folder), *quiet]),
        "train --continue": (training.main, ["-i", model, "--continue", "-n", "192", *options, *quiet]),
        "enjoy": (enjoy.main, ["--no-render", "-n", "5", "--untrusted"]),
        "evaluate": (evaluate.main, [str(folder), "--episodes", "2", *out, "e"]),
        "compare": (compare.main, [str(folder), "--episodes", "2", "--no-figures", *out, "c"]),
        "export": (export.main, [str(folder), *out, "p.pt2"]),
        "report": (report.main, [str(folder), "--untrusted"]),
        "dashboard": (dashboard.main, [str(folder), *out, "d.html"]),
        "plot": (plot.main, [str(folder), *out, "p.svg"]),
        "push": (
            lambda given: push.main(given, SimpleNamespace()),
            [str(folder), "--repo-id", "a/b", "--dry-run", "--untrusted"],
        ),
    }


NAMES = list(commands(Path()))


def check_nothing_ran(what: object) -> None:
    assert EVIL not in sys.modules and not Path("RAN").exists() and not Path("OUTSIDE").exists(), what


@pytest.mark.parametrize("name", NAMES)
def test_a_clean_run_is_read(name, here):
    folder = here()
    main, arguments = commands(folder)[name]
    assert run(f"zoo.{name.split()[0]}", main, arguments) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_field_of_a_run_runs_anything(name, here):
    """All commands, all fields of both files; over the commands a field gets all payloads. A run is refused or read, and
    nothing ends in a traceback."""
    kinds = list(PAYLOADS)
    for file in ("config.yml", "args.yml"):
        fields = SETTINGS if file == "config.yml" else sorted(read_values(here() / "CartPole-v1" / file))
        for number, field in enumerate(fields):
            kind = kinds[(number + NAMES.index(name)) % len(kinds)]
            folder = here()
            path = folder / "CartPole-v1" / file
            path.write_text(yaml.safe_dump({**read_values(path), field: PAYLOADS[kind]}))
            main, arguments = commands(folder)[name]
            assert run(f"zoo.{name.split()[0]}", main, arguments) in (0, 2), (file, field, kind)
            check_nothing_ran((file, field, kind))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("file", "field", "kind"),
    [
        ("config.yml", "env_wrapper", "class"), ("config.yml", "env_wrapper", "video"), ("config.yml", "callback", "classes"),
        ("config.yml", "vec_env_wrapper", "class"), ("config.yml", "policy", "class"),
        ("config.yml", "normalize", "text in text"), ("config.yml", "policy_kwargs", "text"), ("args.yml", "env", "id"),
        ("config.yml", "env_kwargs", "mapping"), ("args.yml", "env_kwargs", "mapping"),
    ],
)  # fmt: skip
def test_code_that_a_file_names_is_refused(name, file, field, kind, here, capsys):
    folder = here()
    path = folder / "CartPole-v1" / file
    path.write_text(yaml.safe_dump({**read_values(path), field: PAYLOADS[kind]}))
    main, arguments = commands(folder)[name]
    assert run(f"zoo.{name.split()[0]}", main, arguments) == 2
    assert "--untrusted: " in capsys.readouterr().err
    check_nothing_ran(name)


@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_pickled_are_not_unpickled(name, here):
    folder = here()
    for path in ("vecnormalize.pkl", "best/vecnormalize.pkl"):
        (folder / "CartPole-v1" / path).parent.mkdir(exist_ok=True)
        (folder / "CartPole-v1" / path).write_bytes(pickle.dumps(Planted()))
    (folder / "replay_buffer.pkl").write_bytes(pickle.dumps(Planted()))
    with zipfile.ZipFile(folder / "evaluations.npz", "w") as archive:
        archive.writestr("timesteps.npy", pickle.dumps(Planted()))
        archive.writestr("results.npy", pickle.dumps(Planted()))
    main, arguments = commands(folder)[name]
    assert run(f"zoo.{name.split()[0]}", main, arguments) in (0, 2)
    check_nothing_ran(name)


@pytest.mark.parametrize("link", ["0.monitor.csv", ".evaluations.part.npz", "CartPole-v1/.lock", "CartPole-v1/config.yml"])
@pytest.mark.parametrize("name", NAMES)
def test_links_are_refused(name, link, here, capsys):
    folder = here()
    precious = Path("precious")
    precious.write_text("precious " * 1000)
    for make in (os.symlink, os.link):
        (folder / link).unlink(missing_ok=True)
        make(precious.absolute(), folder / link)
        main, arguments = commands(folder)[name]
        assert run(f"zoo.{name.split()[0]}", main, arguments) == 2
        assert "is a link" in capsys.readouterr().err and precious.read_text() == "precious " * 1000


def test_a_resumed_run_that_is_trusted_truncates_nothing_elsewhere_either(here, capsys):
    folder = here()
    Path("precious").write_text("precious")
    (folder / "0.monitor.csv").unlink()
    (folder / "0.monitor.csv").symlink_to(Path("precious").absolute())
    assert run("zoo.train", training.main, ["--resume", str(folder), "--verbose", "0"]) == 2
    assert "0.monitor.csv is a link" in capsys.readouterr().err and Path("precious").read_text() == "precious"


def test_a_stranger_does_not_say_where_the_log_goes(here):
    folder = here()
    path = folder / "CartPole-v1" / "args.yml"
    path.write_text(yaml.safe_dump({**read_values(path), "tensorboard_log": "OUTSIDE", "log_folder": "OUTSIDE"}))
    assert run("zoo.train", training.main, ["--resume", str(folder), "--verbose", "0", "--untrusted"]) == 0
    check_nothing_ran("tensorboard_log")
    assert list(Path("logs/tensorboard/CartPole-v1").glob("*/events*"))


def test_settings_of_strangers_are_checked_too(here, capsys):
    here()
    own = {"policy": "MlpPolicy", "n_timesteps": 64, "env_wrapper": f"{EVIL}.W"}
    Path("own.yml").write_text(yaml.safe_dump({"CartPole-v1": own}))
    Path("own.py").write_text(SOURCE)
    for file, expected in (("own.yml", "env_wrapper=planted_module.W"), ("own.py", "is a program, which would run")):
        assert run("zoo.train", training.main, ["--env", "CartPole-v1", "-conf", file, "--untrusted"]) == 2
        assert expected in capsys.readouterr().err
    check_nothing_ran("own.yml")


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)),
        "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 9)),
        "a: &a [*a]\n",
        "[" * 100_000,
        "a: !!timestamp x\n",
        "a: !!int ''\n",
        "a: !!bool x\n",
        "{[1]: 2}\n",
        "a: 1\n---\nb: 2\n",
    ],
    ids=["lists", "merges", "itself", "deep", "timestamp", "integer", "truth", "key", "two documents"],
)
def test_yaml_that_no_program_should_read_is_one_line(text, tmp_path):
    path = tmp_path / "a.yml"
    path.write_text(text)
    for read in (read_values, lambda file: read_mapping(file, "a: 1")):
        with pytest.raises(BadInput) as error:
            read(path)
        assert str(path) in str(error.value) and len(str(error.value)) < 1000


def test_a_model_with_planted_objects_is_refused(here, capsys):
    folder = here()
    with zipfile.ZipFile(folder / "CartPole-v1.zip") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    entries["policy.pth"] = pickle.dumps(Planted())
    (folder / "CartPole-v1.zip").write_bytes(with_entries(b"", entries))
    for name in ("train --continue", "enjoy", "evaluate", "compare", "export"):
        main, arguments = commands(folder)[name]
        assert run(f"zoo.{name.split()[0]}", main, arguments) == 2, name
        check_nothing_ran(name)
