"""Benchmarks run for real, in processes of their own, on tiny settings: killed, resumed, interrupted, compared."""

import contextlib
import inspect
import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from sb_grpo import GRPO
from sb_grpo.config import steps_per_env
from tests.helpers import heed_ctrl_c, run_command, wait_for
from zoo import benchmark, compare, workflow
from zoo.benchmark import make_specs
from zoo.benchmarking import worker
from zoo.benchmarking.results import read_content, read_run
from zoo.benchmarking.specs import Spec, Variant, read_variants, settings_for
from zoo.benchmarking.worker import evaluate, evaluation_seed
from zoo.common.command_line import BadInput
from zoo.common.command_line import run as call
from zoo.common.episodes import RandomPolicy
from zoo.common.folders import alone_in

ROOT = Path(__file__).parents[1]
TINY = {
    "ppo-tiny": {"algo": "ppo", "conf_file": "sb3-defaults",
                 "hyperparams": {"n_envs": 2, "n_steps": 64, "batch_size": 32, "n_epochs": 2, "normalize": True}},
    "grpo-tiny": {"algo": "grpo", "conf_file": "defaults", "hyperparams": {"n_envs": 2, "n_steps": 64, "n_epochs": 2}},
}  # fmt: skip
RUNS = [f"CartPole-v1/{label}/seed_{seed}.json" for label in TINY for seed in (0, 1)]


def command(folder, *more, steps="384"):
    variants = folder.parent / "variants.yml"
    variants.write_text(yaml.safe_dump(TINY))
    tiny = ["--evaluations", "3", "--eval-episodes", "2", "--final-episodes", "4", "--jobs", "1"]
    arguments = ["--envs", "CartPole-v1", "--variants", str(variants), "--seeds", "0-1", "--steps", steps, *tiny]
    return [sys.executable, "-m", "zoo.benchmark", *arguments, "--out", str(folder), *more]


def start(folder, **options):
    pipe = subprocess.PIPE
    return subprocess.Popen(command(folder, **options), cwd=ROOT, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed_ctrl_c)


def children(pid):
    """Processes whose parent this is."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in table.splitlines() if int(line.split()[1]) == pid]


def is_alive(pid):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return state.strip() not in ("", "Z", "Z+")


def files(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and file.name != ".lock")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A benchmark that was killed after its first result, without a chance to tidy up."""
    folder = tmp_path_factory.mktemp("benchmark") / "results"
    process = start(folder)
    wait_for(lambda: any(folder.rglob("seed_*.json")))
    wait_for(lambda: len(children(process.pid)) > 0 and len(list(folder.rglob("seed_*.run"))) > 0)
    workers = children(process.pid)
    process.kill()
    process.communicate()
    return folder, workers, {name: (folder / name).read_bytes() for name in files(folder) if name.endswith(".json")}


@pytest.fixture(scope="module")
def finished(killed):
    """The same, gone on with by the same command."""
    folder, _, before = killed
    done = run_command("zoo.benchmark", *command(folder)[3:], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder, before, done.stdout


def test_a_killed_benchmark_leaves_no_process(killed):
    _, workers, before = killed
    assert len(workers) == 1 and 1 <= len(before) < len(RUNS)
    wait_for(lambda: not any(is_alive(pid) for pid in workers), seconds=10)


def test_it_goes_on_where_it_was_killed(finished):
    folder, before, output = finished
    assert files(folder) == sorted(RUNS)  # none lost, none doubled, nothing left behind
    assert f"4 runs, {len(before)} done before, {4 - len(before)} to do" in output
    assert all((folder / name).read_bytes() == text for name, text in before.items())
    assert "│ CartPole-v1 │ 2/2       │ 2/2      │" in output


@pytest.mark.parametrize(("label", "gradient_steps"), [("ppo-tiny", 3 * 2 * 4), ("grpo-tiny", 3 * 2 * 2)])
def test_a_result_file_says_everything(label, gradient_steps, finished):
    """384 steps are 3 rollouts of 2 x 64; 2 epochs of 4 minibatches of 32, or 2 of 64."""
    file = finished[0] / "CartPole-v1" / label / "seed_1.json"
    run, content = read_run(file), read_content(file)
    assert (run.env, run.label, run.seed, run.steps, run.env_steps) == ("CartPole-v1", label, 1, 384, 384)
    assert run.gradient_steps == gradient_steps and run.n_updates == 6
    assert run.checkpoint_steps.tolist() == [0, 128, 256, 384] and run.checkpoint_returns.shape == (4, 2)
    assert len(run.final_returns) == 4 and run.train_wall_s > 0 and content["eval_wall_s"] > 0
    assert (np.diff(run.checkpoint_wall_s) > 0).all() and run.checkpoint_wall_s[-1] == run.train_wall_s
    assert run.parameters == (9155 if label == "ppo-tiny" else 4610)
    settings = content["settings"]
    assert settings["gamma"] == (0.99 if label == "ppo-tiny" else 0.995)
    assert settings["n_steps"] == 64 and settings["learning_rate"] == 3e-4
    assert settings["n_envs"] == 2 and settings["normalize"]["on"] == (label == "ppo-tiny")
    assert settings["torch_threads"] == 1 and content["versions"]["torch"] and content["machine"]["cores"]
    physics = {name for name in ("mujoco", "Box2D") if find_spec(name)}  # may be missing: they come with an extra
    assert physics <= set(content["versions"])


@pytest.mark.slow
def test_a_broken_file_is_named_and_run_again(finished, tmp_path, capsys):
    """The repeated run gives the same returns, the others are not touched."""
    folder = tmp_path / "results"
    shutil.copytree(finished[0], folder)
    broken = folder / RUNS[0]
    whole = read_run(broken)
    broken.write_text(broken.read_text()[:200])
    intact = {name: (folder / name).stat().st_mtime_ns for name in RUNS[1:]}
    assert call("zoo.benchmark", benchmark.main, command(folder)[3:]) == 0
    assert f"broken result file, run again: {broken}: not readable as JSON" in capsys.readouterr().out
    assert {name: (folder / name).stat().st_mtime_ns for name in RUNS[1:]} == intact
    again = read_run(broken)
    assert np.array_equal(again.final_returns, whole.final_returns)
    assert np.array_equal(again.checkpoint_returns, whole.checkpoint_returns)


def test_a_line_of_the_labels_file_is_a_run_that_is_done(finished, tmp_path, capsys):
    """Only what no line holds is run; a broken line is named, and a run with other settings is never taken for done."""
    folder = tmp_path / "results"
    shutil.copytree(finished[0], folder)
    for label in TINY:
        label_folder = folder / "CartPole-v1" / label
        runs = [json.dumps(read_content(label_folder / f"seed_{seed}.json")) + "\n" for seed in (0, 1)]
        (folder / f"{label}.jsonl").write_text("".join(runs[:1] if label == "ppo-tiny" else runs))
        shutil.rmtree(label_folder)
    lines = folder / "ppo-tiny.jsonl"
    lines.write_text(lines.read_text() + runs[1][:50])
    before = {file: file.read_bytes() for file in folder.rglob("*.jsonl")}
    assert call("zoo.benchmark", benchmark.main, command(folder)[3:]) == 0
    out = capsys.readouterr().out
    assert "4 runs, 3 done before, 1 to do" in out and f"broken result file, run again: {lines}:2: not readable" in out
    assert files(folder) == ["CartPole-v1/ppo-tiny/seed_1.json", "grpo-tiny.jsonl", "ppo-tiny.jsonl"]
    assert {file: file.read_bytes() for file in before} == before
    assert call("zoo.benchmark", benchmark.main, command(folder, steps="512")[3:]) == 2
    error = capsys.readouterr().err
    assert f"{folder}/grpo-tiny.jsonl:1 holds a run with other settings (steps 384 there" in error


def test_ctrl_c_ends_the_workers_and_tidies_up(tmp_path):
    folder = tmp_path / "results"
    process = start(folder, steps="1000000")
    wait_for(lambda: any(folder.rglob("0.monitor.csv")))  # training has begun
    workers = children(process.pid)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "goes on from here" in error and "Traceback" not in error
    assert len(workers) == 1 and not is_alive(workers[0])
    assert files(folder) == []


def test_the_runs_are_compared(finished, tmp_path):
    """Two algorithms, two seeds, from end to end."""
    out = tmp_path / "report"
    arguments = [str(finished[0]), "--baseline", "ppo-tiny", "--out", str(out)]
    assert call("zoo.compare", compare.main, arguments) == 0
    summary = pd.read_csv(out / "tables" / "summary.csv")
    for label in TINY:
        scores = [read_run(finished[0] / f"CartPole-v1/{label}/seed_{seed}.json").score for seed in (0, 1)]
        mean = summary.loc[summary["algorithm"] == label, "mean"].item()
        assert mean == pytest.approx(np.mean(scores), rel=1e-5)
    report = (out / "report.md").read_text()
    assert "# grpo-tiny against ppo-tiny" in report and "4 runs on 1 task(s); baseline: ppo-tiny." in report
    assert (out / "figures" / "learning_curves.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_workflow_does_it_all(tmp_path):
    """With the random policy as lower reference, and models kept for zoo.enjoy."""
    arguments = command(tmp_path / "study", "--algos", "grpo-tiny", "random", "--keep-models")[3:]
    assert call("zoo.workflow", workflow.main, ["--n-runs", "1", *(x for x in arguments if x not in ("--seeds", "0-1"))]) == 0
    assert {"report.md", "tables", "figures"} == {file.name for file in (tmp_path / "study" / "report").iterdir()}
    assert (tmp_path / "study/report/figures/curves.png").exists()
    results = tmp_path / "study" / "results" / "CartPole-v1"
    assert (results / "grpo-tiny/seed_0/grpo/CartPole-v1_1/CartPole-v1.zip").exists()
    assert read_run(results / "random/seed_0.json").score < 60


@pytest.mark.slow
def test_settings_that_a_model_refuses_fail_alone(tmp_path, capsys):
    variants = {"bad": {"algo": "grpo", "hyperparams": {"group_size": 0}}}
    (tmp_path / "bad.yml").write_text(yaml.safe_dump(variants))
    more = ["--variants", str(tmp_path / "bad.yml"), "--algos", "bad", "random", "--seeds", "0"]
    assert call("zoo.benchmark", benchmark.main, command(tmp_path / "results", *more)[3:]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "bad seed 0 failed with code 2: group_size=0 must be an integer" in error
    assert files(tmp_path / "results") == ["CartPole-v1/bad/seed_0.failed.log", "CartPole-v1/random/seed_0.json"]


# ---------------------------------------------------------------- without subprocesses


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--envs", "CartPol-v1"], "did you mean cartpole-v1"),
        (["--algos", "grppo"], "did you mean grpo"),
        (["--algos", "nonsense"], "known: a2c, ars"),
        (["--algos", "nonsense", "--variants", "one.yml"], "known: a, a2c, ars"),
        (["--seeds", "3-1"], "is not a list of seeds"),
        (["--steps", "many"], "is no number"),
        (["--steps", "inf"], "is no number"),
        (["--steps", "10"], "too few for 20 evaluations"),
        (["--steps", "Acrobot-v1:100"], "not in --envs"),
        (["--evaluations", "0"], "at least 1"),
        (["--variants", "missing.yml"], "cannot read"),
        (["--variants", "list.yml"], "must be a mapping, with lines such as"),
        (["--variants", "broken.yml"], "is not yaml"),
        (["--variants", "key.yml"], "unknown key 'hyperparam'. did you mean hyperparams"),
        (["--variants", "name.yml"], "unknown hyperparameter 'gama' of ppo. did you mean gamma"),
        (["--variants", "type.yml"], "hyperparams must be a mapping"),
        (["--variants", "algo.yml"], "unknown algorithm 'pppo'"),
        (["--variants", "label.yml"], "cannot name a folder"),
        (["--variants", "value.yml"], "variant a: n_steps='many' is str, but must be an integer."),
        (["--variants", "conf.yml"], "conf_file=5 must be the path of a yaml file, or sb3-defaults"),
        (["--gym-packages", "no_such_package"], "no_such_package"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(more, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    texts = {
        "list": "[a]",
        "one": "a: {algo: ppo}",
        "broken": "a: {",
        "key": "a: {algo: ppo, hyperparam: {}}",
        "name": "a: {algo: ppo, hyperparams: {gama: 1}}",
        "type": "a: {algo: ppo, hyperparams: 3}",
        "algo": "a: {algo: pppo}",
        "label": "a/b: {algo: ppo}",
        "value": "a: {algo: ppo, hyperparams: {n_steps: many}}",
        "conf": "a: {algo: ppo, conf_file: 5}",
    }
    for name, text in texts.items():
        Path(f"{name}.yml").write_text(text)
    Path("none.yml").write_text("{}")
    needed = ["--envs", "CartPole-v1", "--steps", "100", "--seeds", "0", "--out", "results", "--variants", "none.yml"]
    assert call("zoo.benchmark", benchmark.main, [*needed, *more]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and says in error.lower(), error
    assert not Path("results").exists()


FLOW = ["--envs", "CartPole-v1", "--algos", "ppo", "random", "--steps", "100"]


@pytest.mark.parametrize(
    ("more", "seeds"),
    [([], [0, 1, 2]), (["--n-runs", "2"], [0, 1]), (["--seeds", "7"], [7]), (["--seeds=5-6"], [5, 6]), (["--see", "4"], [4])],
    ids=["nothing", "n-runs", "seeds", "with-an-equals-sign", "abbreviated"],
)
def test_the_workflow_runs_the_seeds_that_were_asked_for(more, seeds, tmp_path):
    request, baseline, report = workflow.read([*FLOW, "--out", str(tmp_path), *more, "--baseline", "ppo"])
    assert [spec.seed for spec in request.specs if spec.label == "ppo"] == seeds
    assert (request.out, baseline, report) == (tmp_path / "results", "ppo", tmp_path / "report")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--baseline", "pppo"], "--baseline pppo: it has no runs. Did you mean ppo? (there will be: ppo)"),
        (["--baseline", "random"], "--baseline random: it has no runs."),
        (["--algos", "random"], "only runs of the random policy: nothing to compare. Name an algorithm"),
        (["--outt", "x"], "unrecognized arguments: --outt x"),
        (["--steps"], "argument --steps: expected at least one argument"),
        (["--n-runs", "0"], "--n-runs 0 must be at least 1"),
        (["--n-runs", "2", "--seeds=0"], "--n-runs N means --seeds 0 to N-1: give one of the two"),
        (["--seeds", "5-1"], "is not a list of seeds"),
    ],
)
def test_what_the_workflow_cannot_report_on_is_refused_before_it_trains(more, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):  # argparse
        assert call("zoo.workflow", workflow.main, [*FLOW, *more]) == 2
    error = capsys.readouterr().err
    assert says in error and error.startswith("zoo.workflow: ") and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_baseline_may_stand_in_the_folder_already(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "results")
    assert workflow.read([*FLOW, "--out", str(tmp_path), "--baseline", "grpo-tiny"])[1] == "grpo-tiny"


def test_a_result_with_other_settings_is_not_taken_for_done(finished, tmp_path, capsys):
    arguments = command(finished[0], "--final-episodes", "5")[3:]
    assert call("zoo.benchmark", benchmark.main, arguments) == 2
    error = capsys.readouterr().err
    assert "holds a run with other settings (final_episodes 4 there and 5 here)" in error and error.count("\n") == 1


def test_the_difference_of_two_runs_names_every_setting():
    spec = Spec("CartPole-v1", "grpo", "grpo", 0, 1000, 2, 2, 4, {"gamma": 0.99, "n_envs": 8}, "grpo.yml")
    there = {**asdict(spec), "source": "another.yml"}
    assert spec.difference(there) == ""
    there.update(steps=2000, hyperparams={"gamma": 0.9, "n_steps": 64, "n_envs": 8})
    difference = "steps 2000 there and 1000 here, gamma 0.9 there and 0.99 here, n_steps 64 there and not given here"
    assert spec.difference(there) == difference


def test_two_benchmarks_do_not_share_a_folder(tmp_path, capsys):
    (tmp_path / "results").mkdir()
    with alone_in(tmp_path / "results", "refused"):
        assert call("zoo.benchmark", benchmark.main, command(tmp_path / "results")[3:]) == 2
    assert "another benchmark is writing to" in capsys.readouterr().err


def test_budgets_and_seeds():
    assert benchmark.parse_seeds("0-2,7,1") == [0, 1, 2, 7]
    assert benchmark.parse_steps(["5e4"], ["A-v0", "m:B-v1"]) == {"A-v0": 50_000, "m:B-v1": 50_000}
    assert benchmark.parse_steps(["10", "m:B-v1:20"], ["A-v0", "m:B-v1"]) == {"A-v0": 10, "m:B-v1": 20}


def test_where_settings_come_from(tmp_path):
    """rl_zoo3 has settings for Hopper-v4 only; a file's text 1e-3 is a number."""
    settings, source = settings_for(Variant("ppo", "ppo", "", {}), "Hopper-v5")
    assert source == "ppo.yml: Hopper-v4" and settings["n_steps"] == 512 and "n_timesteps" not in settings
    assert settings_for(Variant("ppo", "ppo", "sb3-defaults", {}), "Hopper-v5")[0] == {"policy": "MlpPolicy"}
    assert settings_for(Variant("grpo", "grpo", "", {}), "CartPole-v1")[1] == "grpo.yml: CartPole-v1"
    (tmp_path / "v.yml").write_text("a: {algo: ppo, hyperparams: {learning_rate: 1e-3, policy: CnnPolicy}}")
    (variant,) = read_variants(tmp_path / "v.yml", [])
    assert variant.hyperparams == {"learning_rate": 0.001, "policy": "CnnPolicy"}


def test_a_changed_key_of_a_mapping_leaves_the_entrys_other_keys(tmp_path):
    """The lander's entry has a memory; a variant that only takes the pairs away must not take that too. null takes it all."""
    lines = [
        f"{x}: {{algo: grpo, hyperparams: {{advantage_kwargs: {y}}}}}" for x, y in (("a", "{paired: false}"), ("b", "null"))
    ]
    (tmp_path / "v.yml").write_text("\n".join(lines))
    changed, dropped = read_variants(tmp_path / "v.yml", [])
    assert settings_for(changed, "WindyLunarLander-v3")[0]["advantage_kwargs"] == {"memory": 0.5, "paired": False}
    assert settings_for(changed, "CartPole-v1")[0]["advantage_kwargs"] == {"paired": False}
    assert settings_for(dropped, "WindyLunarLander-v3")[0]["advantage_kwargs"] is None


def test_pairs_as_the_default_are_the_studys_settings_with_pairs():
    control = {v.label: v for v in read_variants(ROOT / "zoo" / "variants" / "critic_free.yml", [])}
    paired = {v.label: v for v in read_variants(ROOT / "zoo" / "variants" / "paired_default.yml", [])}
    for env in ("CartPole-v1", "LunarLander-v3", "Swimmer-v5", "Walker2d-v5"):
        for with_pairs, without in (("entry-paired", "grpo-state"), ("defaults-paired", "grpo-defaults")):
            ours, theirs = settings_for(paired[with_pairs], env)[0], settings_for(control[without], env)[0]
            kwargs = theirs.get("advantage_kwargs", {}) | {"paired": True}
            expected = {"advantage": "state"} | theirs | {"advantage_kwargs": kwargs}
            assert {"advantage": "state"} | ours == expected, (env, with_pairs)


def test_the_studys_variants_have_settings_everywhere():
    envs = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0", "LunarLander-v3",
            "LunarLanderContinuous-v3", "Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Swimmer-v5"]  # fmt: skip
    variants = read_variants(ROOT / "zoo" / "variants" / "critic_free.yml", [])
    assert len(variants) == 16
    for variant in variants:
        for env in envs:
            settings, source = settings_for(variant, env)
            assert settings["policy"] == "MlpPolicy"
            # rl_zoo3's "default" is no setting that anybody tuned: only GRPO's own may stand in for a missing entry.
            assert variant.algo == "grpo" or not source.endswith("default"), (variant.label, env)


def test_the_control_has_the_settings_of_grpos_entries():
    """PPO with what was found for GRPO: equal key by key, but for what only one of the two has."""
    control, entry = read_variants(ROOT / "zoo" / "variants" / "critic_free.yml", ["ppo-grpo-settings", "grpo-state"])
    envs = yaml.safe_load((ROOT / "zoo" / "hyperparams" / "ppo_control.yml").read_text())
    assert len(envs) == 20  # ten tasks of the study, ten input-driven ones
    for env in envs:
        ppo, grpo = settings_for(control, env)[0], settings_for(entry, env)[0]
        for key in ("advantage", "advantage_kwargs", "normalize_advantage", "group_size"):
            grpo.pop(key, None)
        normalize = grpo.pop("normalize", None)
        assert ppo.pop("normalize", None) == (True if normalize else None)
        assert normalize in (None, "{'norm_obs': True, 'norm_reward': False}")
        grpo["n_steps"] = steps_per_env(grpo.get("n_steps"), grpo["n_envs"])
        grpo.setdefault("gamma", 0.995)
        assert ppo == grpo, env
    defaults = [inspect.signature(algo.__init__).parameters for algo in (GRPO, PPO)]
    left_out = [
        "learning_rate",
        "batch_size",
        "n_epochs",
        "gae_lambda",
        "clip_range",
        "ent_coef",
        "max_grad_norm",
        "target_kl",
    ]
    for key in left_out:
        assert defaults[0][key].default == defaults[1][key].default, key


def test_every_ablation_differs_from_the_reference_and_builds_a_model(tmp_path):
    variants = {v.label: v for v in read_variants(ROOT / "zoo" / "variants" / "ablations.yml", [])}
    reference = variants["defaults"].hyperparams
    for label, variant in variants.items():
        assert label == "defaults" or variant.hyperparams != reference, label
        env = "Pendulum-v1" if variant.hyperparams.get("use_sde") else "CartPole-v1"  # gSDE is for continuous actions
        spec = Spec(env, label, variant.algo, 0, 1000, 1, 1, 1, *settings_for(variant, env))
        model, _ = worker.make_experiment(spec, tmp_path, "cpu").setup_experiment()
        assert type(model) is {"grpo": GRPO, "ppo": PPO}[variant.algo], label
        model.env.close()


class Recorder(RandomPolicy):
    """Remembers the first observations, and ends episodes at different times than another one would."""

    def predict(self, observations, *args, **kwargs):
        if not hasattr(self, "first"):
            self.first = observations.copy()
        return super().predict(observations, *args, **kwargs)


def test_evaluation_starts_depend_on_the_seed_alone():
    env = make_vec_env("CartPole-v1", 3)
    firsts = []
    for run_seed, evaluation, actions in [(0, 1, 5), (0, 1, 6), (0, 2, 5), (1, 1, 5)]:
        policy = Recorder(env.action_space, actions)
        returns = evaluate(policy, env, evaluation_seed(run_seed, evaluation), deterministic=True)
        assert len(returns) == 3
        firsts.append(policy.first)
    assert np.array_equal(firsts[0], firsts[1])  # whatever the policy did before
    assert not np.array_equal(firsts[0], firsts[2]) and not np.array_equal(firsts[0], firsts[3])


def test_evaluation_seeds_are_never_those_of_training():
    seeds = [evaluation_seed(seed, evaluation) for seed in range(200) for evaluation in range(50)]
    assert min(seeds) >= 2**31 and max(seeds) < 2**32 - 1000  # SB3 trains on small numbers, GRPO on 31 bits
    assert len(set(seeds)) == len(seeds)


def test_the_returns_stand_in_the_order_of_the_starts():
    """Env 1's episode ends long before env 0's; its return still comes second."""
    env = make_vec_env("CartPole-v1", 2)

    class Balance:
        def predict(self, observations, *args, **kwargs):
            lean = (observations[:, 2] + 0.5 * observations[:, 3] > 0).astype(int)
            return np.array([lean[0], 1]), None

    first, second = evaluate(Balance(), env, 2**31, deterministic=True)
    assert first > 100 > 20 > second


@pytest.mark.parametrize("algo", ["ppo", "grpo", "dqn"])
def test_evaluations_do_not_change_the_training(algo, tmp_path):
    """One checkpoint or six: the same final weights, so the same final returns, after as many gradient steps."""
    small = {"n_envs": 2, "n_steps": 64} if algo != "dqn" else {"learning_starts": 50, "train_freq": 16}
    outcomes = []
    for evaluations in (1, 6):
        out = tmp_path / str(evaluations)
        spec = Spec("CartPole-v1", algo, algo, 3, 384, evaluations, 2, 3, {"policy": "MlpPolicy", **small}, "test")
        scratch = spec.file(out).with_suffix(".run")
        scratch.mkdir(parents=True)
        options = {"out": str(out), "folder": str(scratch), "keep": False, "device": "cpu", "gym_packages": [], "command": ""}
        assert worker.main([json.dumps(asdict(spec)), json.dumps(options)]) == 0
        run = read_run(spec.file(out))
        outcomes.append((run.final_returns.tolist(), run.gradient_steps, run.env_steps))
    assert outcomes[0] == outcomes[1] and outcomes[0][1] > 0


def test_result_files_are_json_of_one_key_per_line(finished):
    text = (finished[0] / RUNS[0]).read_text()
    assert json.loads(text)["spec"]["label"] == "ppo-tiny" and 15 < text.count("\n") < 25


def test_a_sweep_makes_labelled_variants_of_the_product(tmp_path, capsys):
    base = ["--envs", "CartPole-v1", "--steps", "100", "--out", str(tmp_path), "--seeds", "0"]
    sweep = ["--algos", "grpo", "ppo", "--sweep", "learning_rate=3e-4,1e-3", "n_steps=32,64"]
    specs = make_specs([*base, *sweep])[0]
    assert len(specs) == 8 and len({spec.label for spec in specs}) == 8
    (one,) = [spec for spec in specs if spec.label == "ppo-learning_rate=0.001-n_steps=64"]
    assert one.algo == "ppo" and one.hyperparams["learning_rate"] == 1e-3 and one.hyperparams["n_steps"] == 64
    assert {spec.label for spec in make_specs([*base, "--sweep", "gamma=0.9,1"])[0]} == {"grpo-gamma=0.9", "grpo-gamma=1"}
    for wrong, says in (("gama=0.9,1", "no hyperparameter 'gama'. Did you mean gamma?"), ("gamma=x", "must be a number")):
        with pytest.raises(BadInput, match=re.escape(says)):
            make_specs([*base, "--algos", "grpo", "--sweep", wrong])
    with pytest.raises(BadInput, match="random has no settings"):
        make_specs([*base, "--algos", "random", "--sweep", "gamma=0.9,0.99"])
