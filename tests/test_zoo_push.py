"""``zoo.push`` up to the network: what is uploaded, with a client that keeps it, and huggingface_hub's own checks of it."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from zoo import push
from zoo.common.command_line import run
from zoo.training.run_files import write_values


class Kept:
    """A client that notes what it is asked for."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, dict]] = []
        self.error = error

    def create_repo(self, repo_id, **options):
        self.calls.append(("create_repo", {"repo_id": repo_id, **options}))
        if self.error is not None:
            raise self.error

    def upload_folder(self, **options):
        self.calls.append(("upload_folder", options))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a run leaves."""
    run_folder = tmp_path / "grpo" / "CartPole-v1_1"
    settings = run_folder / "CartPole-v1"
    settings.mkdir(parents=True)
    write_values(settings / "config.yml", {"n_steps": 32})
    write_values(settings / "args.yml", {"env": "CartPole-v1", "log_folder": "/home/me/logs"})
    (settings / "command.txt").write_text("python -m zoo.train")
    metrics = {
        "algo": "grpo",
        "env": "CartPole-v1",
        "seed": 0,
        "env_steps": 9,
        "planned_steps": 9,
        "final_returns": [1.0, 2.0],
    }
    metrics |= {"mean_return": 1.5, "std_return": 0.5, "versions": {"torch": "2"}}
    (run_folder / "metrics.json").write_text(json.dumps(metrics))
    for name in ("CartPole-v1.zip", "best_model.zip", "rl_model_5_steps.zip", "0.monitor.csv", "replay_buffer.pkl"):
        (run_folder / name).write_bytes(b"x")
    return run_folder


def push_here(client, *arguments) -> int:
    return run("zoo.push", lambda given: push.main(given, client), list(map(str, arguments)))


def test_models_settings_and_card_go_out_and_nothing_private(folder, capsys):
    client = Kept()
    assert push_here(client, folder, "--repo-id", "me/grpo-cartpole") == 0
    output = capsys.readouterr().out
    assert output.splitlines()[:-1] == [
        "CartPole-v1/config.yml",
        "CartPole-v1.zip",
        "README.md",
        "best_model.zip",
        "metrics.json",
    ]
    (made, how), (sent, what) = client.calls
    assert (made, how) == ("create_repo", {"repo_id": "me/grpo-cartpole", "private": False, "exist_ok": True})
    assert sent == "upload_folder" and what["folder_path"] == str(folder) and what["ignore_patterns"] == ["rl_model_*"]
    assert "Mean return over 2 episodes" in (folder / "README.md").read_text()


def test_the_library_chooses_the_same_files_by_the_same_patterns(folder):
    """huggingface_hub's own filter, and the arguments that its client really has."""
    hub = pytest.importorskip("huggingface_hub")
    for options in ((False, False), (True, True)):
        allowed, ignored = push.patterns(*options)
        (folder / "README.md").write_text("x")
        names = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()]
        theirs = list(hub.utils.filter_repo_objects(names, allow_patterns=allowed, ignore_patterns=ignored or None))
        assert theirs == [str(file) for file in push.files_of(folder, allowed, ignored)]
    for name in ("create_repo", "upload_folder"):
        wanted = set(inspect.signature(getattr(push.Client, name)).parameters)
        assert wanted <= set(inspect.signature(getattr(hub.HfApi, name)).parameters)


def test_more_goes_out_where_it_is_asked_for(folder, capsys):
    assert push_here(Kept(), folder, "--repo-id", "me/x", "--checkpoints", "--with-command") == 0
    assert {"rl_model_5_steps.zip", "CartPole-v1/args.yml", "CartPole-v1/command.txt"} <= set(
        capsys.readouterr().out.splitlines()
    )


def test_without_a_network_it_is_one_line(folder, capsys):
    """The library's own client, at an address where nobody listens."""
    hub = pytest.importorskip("huggingface_hub")
    assert push_here(hub.HfApi(endpoint="http://127.0.0.1:9", token="hf_x"), folder, "--repo-id", "me/x") == 2
    error = capsys.readouterr().err
    assert error.startswith("zoo.push: the Hub cannot be reached for me/x: ") and error.count("\n") == 1


def test_a_dry_run_calls_nobody(folder, capsys):
    client = Kept()
    assert push_here(client, folder, "--repo-id", "me/x", "--dry-run") == 0
    assert client.calls == [] and "Would be uploaded to https://huggingface.co/me/x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (["--repo-id", "me"], None, "must be USER/NAME"),
        (["--repo-id", "me/x"], OSError("401 Client Error"), "the Hub refused me/x: 401 Client Error (hf auth login"),
        (["--repo-id", "me/x", "NOWHERE"], None, "is no folder of a finished run"),
    ],
)
def test_what_cannot_go_out_is_one_line(folder, arguments, error, says, capsys):
    place = "nowhere" if "NOWHERE" in arguments else folder
    assert push_here(Kept(error), place, *(a for a in arguments if a != "NOWHERE")) == 2
    written = capsys.readouterr().err
    assert says in written and written.count("\n") == 1
