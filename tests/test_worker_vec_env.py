"""Envs in processes and Ray actors: the same episodes as in this process, whoever dies on the way."""

import contextlib
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from sb_grpo import GRPO, SeededResetWrapper
from sb_grpo.envs import ProcessVecEnv, RayVecEnv
from sb_grpo.envs.env_batch import EPISODE_LOST
from sb_grpo.tasks.memory.t_maze import TMaze
from tests.helpers import Fragile, free_port, wait_for

needs_ray = pytest.mark.skipif(
    not __import__("importlib.util", fromlist=["find_spec"]).find_spec("ray"), reason="needs Ray: pip install 'sb_grpo[scale]'"
)


def make(kind: str, env_fns: list, **options: Any) -> Any:
    if kind == "ray":
        return RayVecEnv(env_fns, n_actors=2, cpus_per_actor=0.5, **options)
    return ProcessVecEnv(env_fns, n_workers=2, **options)


KINDS = ["processes", pytest.param("ray", marks=[needs_ray, pytest.mark.slow])]


@pytest.fixture(params=KINDS)
def kind(request) -> Iterator[str]:
    if request.param == "ray":
        import ray

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local", num_cpus=2, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False,
            logging_level="ERROR",
        )  # fmt: skip
        yield request.param
        ray.shutdown()
    else:
        yield request.param


def grpo(env: Any, **more: Any) -> GRPO:
    settings = {"group_size": 2, "n_steps": 24, "batch_size": 24, "n_epochs": 2, "seed": 3, "device": "cpu", **more}
    return GRPO("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, **settings)


def weights(model: GRPO) -> th.Tensor:
    return th.cat([p.detach().flatten() for p in model.policy.parameters()])


def test_a_model_learns_the_same_wherever_its_envs_are(kind):
    """Seeds, masks, time limits and what VecNormalize sees: weights are equal in every bit."""
    fns = [lambda: Monitor(gym.wrappers.TimeLimit(Fragile(), 5))] * 5
    models = []
    for venv in (DummyVecEnv([lambda f=f: SeededResetWrapper(f()) for f in fns]), make(kind, fns)):
        model = grpo(VecNormalize(venv), advantage="state").learn(600)
        assert model.groups.start_mismatches == 0 and model._time_limit == 5
        assert model.logger.name_to_value.get("rollout/useful_fraction", 1.0) == 1.0
        models.append(model)
        venv.close()
    assert th.equal(weights(models[0]), weights(models[1]))
    assert [e["r"] for e in models[0].ep_info_buffer] == [e["r"] for e in models[1].ep_info_buffer]


@pytest.mark.parametrize("kind_of_memory", ["lstm", "gru"])
def test_masks_and_memories_are_the_same_wherever_the_envs_are(kind, kind_of_memory):
    """A T-maze that says which moves lead anywhere, and a policy that remembers: weights are equal in every bit."""
    fns = [lambda: Monitor(gym.wrappers.TimeLimit(TMaze(4, masks=True), 16))] * 4
    models = []
    for venv in (DummyVecEnv([lambda f=f: SeededResetWrapper(f()) for f in fns]), make(kind, fns)):
        model = GRPO(
            "MlpPolicy", venv, group_size=2, n_steps=24, batch_size=24, n_epochs=2, seed=3, device="cpu",
            policy_kwargs=dict(memory=kind_of_memory, memory_size=8, net_arch=[8]), update_kwargs=dict(sequence_length=8),
        ).learn(384)  # fmt: skip
        assert model.mask_source is not None and model.groups.start_mismatches == 0
        models.append(model)
        venv.close()
    assert th.equal(weights(models[0]), weights(models[1]))


def test_the_interface_of_sb3(kind):
    """Attributes, methods, wrappers and exceptions of single envs, whichever worker they are in."""
    env = make(kind, [lambda: Monitor(Fragile())] * 5)
    env.seed(7)
    obs = env.reset()
    there = DummyVecEnv([lambda: Monitor(Fragile())] * 5)
    there.seed(7)
    assert np.array_equal(obs, there.reset()) and obs.shape == (5, 2)
    env.set_attr("level", 3, indices=[1, 4])
    assert env.get_attr("level", indices=[4, 0, 1]) == [3, 0, 3] and env.has_attr("level") and not env.has_attr("nothing")
    assert env.env_is_wrapped(Monitor) == [True] * 5 and env.env_is_wrapped(gym.wrappers.TimeLimit, indices=2) == [False]
    env.step(np.array([0, 1, 0, 1, 0]))
    assert [m.tolist() for m in env.env_method("action_masks", indices=[3, 0])] == [[True, False]] * 2
    with pytest.raises(ZeroDivisionError, match="of the env"):
        env.env_method("fail", indices=[2])
    with pytest.raises(AttributeError):
        env.env_method("no_such_method")
    for _ in range(5):
        obs, rewards, dones, infos = env.step(np.ones(5, dtype=int))
    assert dones.all() and (obs[:, 1] == 0).all() and all(i["terminal_observation"][1] == 6 for i in infos)
    assert not any(i["TimeLimit.truncated"] for i in infos) and rewards.dtype == np.float32
    env.close()
    env.close()


def test_a_worker_that_dies_is_replaced_and_its_episodes_end(kind):
    """The others go on; the new envs have the attributes of the old, and start from the seeds that were queued."""
    env = make(kind, [Fragile] * 5, restart_workers=True)
    env.reset()
    env.set_attr("level", 2)
    env.env_method("set_next_seed", 11, None, indices=[0])
    before = env.step(np.zeros(5, dtype=int))[0]
    env.env_method("doom", indices=[1])
    with pytest.warns(UserWarning, match=r"with envs 0 to 2 \(of 5\) died: .*Another takes its place"):
        obs, rewards, dones, infos = env.step(np.ones(5, dtype=int))
    assert dones.tolist() == [True, True, True, False, False] and rewards[:3].tolist() == [0, 0, 0] and rewards[3] > 0.5
    assert [i.get(EPISODE_LOST, False) for i in infos] == dones.tolist() and infos[0]["TimeLimit.truncated"]
    assert np.array_equal(infos[2]["terminal_observation"], before[2]) and obs[:, 1].tolist() == [0, 0, 0, 2, 2]
    alone = Fragile()
    assert np.array_equal(obs[0], alone.reset(seed=11)[0])
    assert env.step(np.ones(5, dtype=int))[3][1]["level"] == 2
    assert (env.n_restarts, env.n_lost) == (1, 3)
    env.close()


def test_a_worker_that_hangs_is_replaced_and_its_episodes_are_lost(kind):
    """In a training: it is killed after the timeout, and the rest is as for any worker that died."""
    env = make(kind, [Fragile] * 4, restart_workers=True, timeout=3.0)
    model = grpo(env, advantage="outcome")

    def look(local: dict, _: dict) -> bool:
        if model.num_timesteps == 4 * 9:
            env.env_method("hang", indices=[3])
        return True

    says = r"with envs 2 to 3 \(of 4\) died: step\(\) had not returned after timeout=3 s, so it was killed. Another takes"
    start = time.monotonic()
    with pytest.warns(UserWarning, match=says):
        model.learn(200, callback=look)
    assert time.monotonic() - start < (60 if kind == "ray" else 20)
    assert (env.n_restarts, env.n_lost, model.last_metrics["rollout/episodes_lost"]) == (1, 2, 2)
    assert 0 < model._steps_dropped <= 2 * 6 and model.groups.start_mismatches == 0
    env.close()


def test_without_leave_to_replace_it_a_hanging_worker_is_named_and_nothing_waits_for_it(kind):
    """The next call says that it is dead, and close() is over at once."""
    env = make(kind, [Fragile] * 5, restart_workers=False, timeout=2.0)
    env.reset()
    env.env_method("hang", indices=[4])
    with pytest.raises(RuntimeError, match=r"with envs 3 to 4 \(of 5\) died: step\(\) had not returned after timeout=2 s"):
        env.step(np.zeros(5, dtype=int))
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"with envs 3 to 4 \(of 5\) died: "):
        env.get_attr("level")
    env.close()
    assert time.monotonic() - start < (15 if kind == "ray" else 1.5)


@pytest.mark.parametrize("timeout", [0, -1.0, math.nan, math.inf, "5", True])
def test_a_timeout_is_a_positive_number(timeout):
    with pytest.raises(ValueError, match=r"timeout=.* must be a positive number up to 1e\+06, or None; .*None waits"):
        ProcessVecEnv([Fragile], timeout=timeout)


class SlowToStart(Fragile):
    def __init__(self) -> None:
        super().__init__()
        time.sleep(1.5)


def test_the_making_of_the_envs_may_take_longer_than_a_call():
    env = ProcessVecEnv([SlowToStart], restart_workers=True, timeout=1.0)
    assert env.reset().shape == (1, 2) and env.n_restarts == 0
    env.close()


class Game(gym.Env):
    """Says after ten moves whether the game was lost, in the plainest words."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {"episode_lost": False}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), float(action), self.t == 10, False, {"episode_lost": True, "lost": True}


@pytest.mark.parametrize("vec_env", [DummyVecEnv, partial(ProcessVecEnv, n_workers=1)])
def test_a_lost_game_is_no_lost_episode(vec_env):
    env = vec_env([Game] * 2)
    model = grpo(env, advantage="outcome")
    model.learn(96, callback=lambda local, _: model.num_timesteps < 200)
    assert model.num_timesteps < 200 and model._steps_dropped == 0 and getattr(env, "n_lost", 0) == 0
    env.close()


def test_a_dead_worker_of_sb3s_own_processes_is_named():
    """Else all there is is an EOFError."""
    env = SubprocVecEnv([lambda: SeededResetWrapper(Fragile())] * 3)
    model = grpo(env)

    def look(local: dict, _: dict) -> bool:
        if model.num_timesteps == 3 * 9:
            env.env_method("doom", indices=[1])
        return True

    says = r"Worker 1 of SubprocVecEnv \(process \d+\) with env 1 \(of 3\) died: .*restart_workers"
    with pytest.raises(RuntimeError, match=says):
        model.learn(400, callback=look)
    for process in env.processes:
        process.kill()


def test_workers_are_forked_from_a_server_with_noise_of_their_own():
    """What takes seconds is imported once, and envs that draw from NumPy's global generator do not draw the same."""
    script = """
import os
import numpy as np
from stable_baselines3.common.vec_env import SubprocVecEnv
from sb_grpo.envs import ProcessVecEnv
from tests.helpers import ProbeEnv

class Luck(ProbeEnv):
    def about(self):
        from sb_grpo.envs import preloaded
        return preloaded.SERVER == os.getppid(), np.random.rand()

if __name__ == "__main__":
    for kind in (ProcessVecEnv, SubprocVecEnv):
        env = kind([lambda: Luck("constant")] * 3)
        forked, luck = zip(*env.env_method("about"))
        print(all(forked), len(set(luck)))
        env.close()
"""
    options = dict(capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1], timeout=120)
    assert subprocess.run([sys.executable, "-c", script], **options).stdout == "True 3\n" * 2


def test_threads_change_nothing():
    fns = [Fragile] * 5
    envs = [ProcessVecEnv(fns, 2, threaded=threaded) for threaded in (False, True)]
    for env in envs:
        env.seed(3)
    assert np.array_equal(*(env.reset() for env in envs))
    for _ in range(8):
        one, two = (env.step(np.ones(5, dtype=int))[:3] for env in envs)
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True)) or bool(one[2].all())
    for env in envs:
        env.close()


@pytest.mark.parametrize("advantage", ["outcome", "state"])
def test_what_a_dead_worker_was_running_is_dropped_counted_and_run_again(kind, advantage):
    """Every group is whole, every episode of it trained on once, and no step of a lost episode."""
    env = make(kind, [Fragile] * 4, restart_workers=True)
    model = grpo(env, advantage=advantage)
    seen: list[int] = []

    def look(local: dict, _: dict) -> bool:
        if model.num_timesteps in (4 * 9, 4 * 21):
            env.env_method("doom", indices=[3])
        return True

    original = model.compute_advantages

    def keep(rollout: Any) -> Any:
        first = rollout.observations[""][rollout.t == 0]  # masks stand beside it
        seen.extend(rollout.seed_group.tolist())
        if advantage == "outcome":
            assert len(first) == len(rollout.seed_group) and bool((rollout.terminated).all())
            assert sorted(rollout.group.tolist()) == sorted([*range(rollout.n_groups)] * 2)
        return original(rollout)

    model.compute_advantages = keep
    with pytest.warns(UserWarning, match="Another takes its place"):
        model.learn(400, callback=look)
    assert env.n_lost == model.last_metrics["rollout/episodes_lost"] == 4
    assert env.n_restarts == 2 and model.groups.start_mismatches == 0
    assert 0 < model._steps_dropped <= 4 * 7 and model.interruptions == 0
    if advantage == "outcome":
        assert sorted(seen) == sorted(2 * list(set(seen))) and max(seen) + 1 - len(set(seen)) <= 3
    env.close()


def test_without_leave_to_replace_it_the_worker_is_named(kind):
    env = make(kind, [Fragile] * 5, restart_workers=False)
    env.reset()
    env.env_method("doom", indices=[4])
    who = "Ray actor 1" if kind == "ray" else r"Worker 1 of ProcessVecEnv \(process \d+\)"
    why = "ActorDiedError" if kind == "ray" else "killed by signal 9"
    with pytest.raises(RuntimeError, match=rf"{who} with envs 3 to 4 \(of 5\) died: {why}.*restart_workers=True"):
        env.step(np.zeros(5, dtype=int))
    env.close()


def test_an_env_that_always_kills_its_worker_is_not_restarted_for_ever():
    env = ProcessVecEnv([Fragile], restart_workers=True, max_restarts=2)
    env.reset()
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match=r"died, after 2 others.*raise max_restarts"):
        warnings.simplefilter("ignore")
        for _ in range(9):
            env.env_method("doom")
            env.step(np.zeros(1, dtype=int))
    env.close()


def test_processes_end_with_the_vec_env_and_ppo_takes_it():
    env = make_vec_env(Fragile, 3, vec_env_cls=partial(ProcessVecEnv, n_workers=2))
    pids = [p.pid for p in env.processes.values()]
    assert len(pids) == 2 and all(psutil.pid_exists(pid) for pid in pids)
    PPO("MlpPolicy", env, n_steps=16, batch_size=16, device="cpu").learn(48)
    env.close()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("n", [0, 6])
def test_more_workers_than_envs(n):
    with pytest.raises(ValueError, match=rf"{n} workers for 5 envs: choose a number from 1"):
        ProcessVecEnv([Fragile] * 5, n_workers=n)


@needs_ray
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"address": "127.0.0.1:1"}, "no Ray cluster answers at address '127.0.0.1:1'.*ray start --head"),
        ({"address": "here"}, "address 'here' of a Ray cluster is not HOST:PORT"),
        ({"cpus_per_actor": -1.0}, "cpus_per_actor=-1.0 must be a number from 0 on"),
    ],
    ids=["nobody", "no-port", "negative"],
)
def test_no_cluster(options, says):
    with pytest.raises(ValueError, match=says):
        RayVecEnv([Fragile] * 4, **options)


@pytest.mark.slow
@needs_ray
def test_a_cluster_whose_cores_are_taken_is_named(monkeypatch):
    """Said after a while, given up after another; where they are let go of in time, the envs start."""
    import ray

    from sb_grpo.envs import ray_vec_env

    @ray.remote(num_cpus=1)
    class Holder:
        pass

    ray.init(
        address="local", num_cpus=2, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR",
    )  # fmt: skip
    try:
        monkeypatch.setattr(ray_vec_env, "SILENT_S", 1.0)
        monkeypatch.setattr(ray_vec_env, "START_S", 1.0)
        holders = [Holder.remote() for _ in range(2)]
        ray.get([holder.__ray_ready__.remote() for holder in holders])
        waits = r"2 of 2 Ray actors wait for cores: of the cluster's, 0 are free, and each asks for cpus_per_actor=1\. "
        with pytest.warns(UserWarning, match=waits + "Waiting 1 s"), pytest.raises(ValueError, match=waits + "End what"):
            RayVecEnv([Fragile] * 4, n_actors=2)
        monkeypatch.setattr(ray_vec_env, "START_S", 60.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            threading.Timer(3.0, lambda: [ray.kill(holder) for holder in holders]).start()
            env = RayVecEnv([Fragile] * 4, n_actors=2)
        assert env.reset().shape == (4, 2)
        env.close()
    finally:
        ray.shutdown()


@pytest.mark.slow
@needs_ray
def test_a_cluster_without_room():
    import ray

    ray.init(address="local", num_cpus=2, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(ValueError, match=r"n_actors=4 with cpus_per_actor=1.0: the Ray cluster has cores for 2\."):
            RayVecEnv([Fragile] * 4, n_actors=4)
    finally:
        ray.shutdown()


@pytest.mark.slow
@needs_ray
def test_a_cluster_that_was_started_by_hand_and_asks_for_a_token(tmp_path):
    """By its address, and through Ray's client: steps, an env's own error, and a method of the env come back from both."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(secrets.token_hex(32))
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(tmp_path)}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(Path(__file__).parents[1])}
    port, client = free_port(), free_port()
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus", "2", "--port", str(port)]
    start += ["--ray-client-server-port", str(client), "--include-dashboard", "false", "--object-store-memory", "100000000"]
    log = (tmp_path / "said").open("w")
    head = subprocess.Popen(start, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(lambda: "--block" in (tmp_path / "said").read_text())
        assert "Token authentication is enabled" in (tmp_path / "said").read_text()
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{client}"):
            tried = subprocess.run(
                [sys.executable, "-c", THROUGH_AN_ADDRESS, address], env=env, capture_output=True, text=True, timeout=120
            )
            assert tried.stdout.split() == ["(4,", "2)", "ZeroDivisionError", "True"], tried.stderr
    finally:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()


THROUGH_AN_ADDRESS = """
import sys
import numpy as np
from sb_grpo.envs import RayVecEnv
from tests.helpers import Fragile

env = RayVecEnv([Fragile] * 4, n_actors=2, cpus_per_actor=0.5, address=sys.argv[1])
env.reset()
print(env.step(np.ones(4, dtype=int))[0].shape)
try:
    env.env_method("fail")
except ZeroDivisionError as error:
    print("ZeroDivisionError")
print(env.env_method("action_masks", indices=[3])[0][0])
env.close()
"""
