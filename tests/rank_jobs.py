"""What the learners of tests/test_distributed.py run, each in a process of its own: ``python -m tests.rank_jobs JOB OUT``.

The same job in a process without torchrun is the single learner that they are compared with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import GRPO, distributed
from sb_grpo.baselines.state import StateBaseline
from sb_grpo.callbacks import CurriculumCallback
from sb_grpo.envs.native import make_tensor_env
from sb_grpo.maths.estimators import to_one_scale
from sb_grpo.policies import ActorPolicy
from sb_grpo.tasks.goal_car import TensorGoalCar
from sb_grpo.tasks.memory.t_maze import TensorTMaze10, TMaze
from sb_grpo.types import AdvantageOptions, Rollout, select_episodes
from tests.helpers import ProbeEnv

N_ENVS, GROUP = 16, 4  #: of all learners together
OPTIONS = AdvantageOptions(0.97, 0.9, "batch")
#: Every part of the baseline that adds up over rows or episodes, in one of them at least.
BASELINES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "level": dict(follow_level=True, n_features=64),
    "two_layers": dict(horizons=True, n_features=64),
    "paired": dict(paired=True, n_features=64),
    "few_rows": dict(fit_rows=150, n_features=64),
    "no_folds": dict(folds=1, n_features=64),
    "waiting": dict(least_rows=1000, n_features=64, paired=True),
}


class OfAll(ActorPolicy):
    """Draws the random numbers of all envs on every rank and takes those of its own groups: actions as with one learner."""

    drawn: th.Generator | None = None

    def noise(self, *batch: int) -> th.Tensor:
        if self.drawn is None:
            self.drawn = th.Generator().manual_seed(1)
        rank, n = distributed.world()
        steps, n_envs = batch
        noise = th.randn(steps, n_envs * n // GROUP, GROUP, self.n_outputs, generator=self.drawn)
        return noise[:, rank::n].reshape(steps, n_envs, self.n_outputs)


def synthetic(seed: int, n_groups: int = 12) -> Rollout:
    """Episodes of unequal length, some of them cut, in double precision."""
    rng = th.Generator().manual_seed(seed)
    group = th.arange(n_groups).repeat_interleave(GROUP - (th.arange(n_groups) % 5 == 0).long())  # some have a member less
    lengths = th.randint(3, 14, (len(group),), generator=rng)
    n = int(lengths.sum())
    episode = th.arange(len(lengths)).repeat_interleave(lengths)
    observations = th.randn(n, 3, generator=rng).double() + seed / 5
    noise = th.randn(n_groups, 14, generator=rng).double()
    t = th.arange(n) - (lengths.cumsum(0) - lengths)[episode]
    rewards = observations.sin().sum(1) + noise[group[episode], t] + th.randn(n, generator=rng).double() / 3
    terminated = th.rand(len(lengths), generator=rng) < 0.5
    final = th.randn(len(lengths), 3, generator=rng).double().masked_fill(terminated.unsqueeze(1), 0.0)
    return Rollout(
        observations, th.zeros(n), th.zeros(n), rewards, t, episode, group, terminated, ~terminated, final, n_groups, 14,
        seed_group=group + 8 * seed,  # some go on from the rollout before
    )  # fmt: skip


def baselines() -> dict[str, th.Tensor]:
    """Weights and advantages after 6 rollouts, of which each rank sees the groups that are dealt to it."""
    distributed.join("cpu")
    rank, n = distributed.world()
    th.set_default_dtype(th.float64)
    found = {}
    for name, settings in BASELINES.items():
        baseline = StateBaseline(3, **settings)
        for seed in range(6):
            whole = synthetic(seed)
            part, rows = select_episodes(whole, whole.group % n == rank)
            advantages, explained = baseline.advantages(part, OPTIONS, part.observations, part.final_observations)
            of_all = th.zeros(len(whole.rewards)).index_add_(0, rows, advantages)
        found[f"{name}.advantages"] = distributed.total(of_all)
        found[f"{name}.explained"] = th.tensor(explained)
        found |= {f"{name}.{key}": value for key, value in baseline.state_dict().items()}
        found |= {f"{name}.{key}": th.tensor(value) for key, value in baseline.metrics.items()}
    found["one_scale"] = to_one_scale(distributed.total(th.ones(4)), th.zeros(4, dtype=th.int64), 1)
    return found


def tensor_model(**changes: Any) -> GRPO:
    """GRPO on 16 pendulums, shared out to the learners."""
    settings: dict[str, Any] = dict(n_steps=32, batch_size=512, n_epochs=4, learning_rate=1e-3, group_size=GROUP)
    settings |= dict(seed=0, device="cpu")
    if "advantage" not in changes:
        settings["advantage_kwargs"] = dict(paired=False)
    env = make_tensor_env("Pendulum-v1", N_ENVS // distributed.announced().size)
    return GRPO(OfAll, env, **{**settings, **changes})


def update() -> dict[str, th.Tensor]:
    """The first update, its minibatch being the whole rollout; the baseline after the first fit and after three."""
    model = tensor_model()
    found: dict[str, Any] = {}
    for k in range(3):
        rollout = model.collect()
        assert rollout is not None
        found[f"{k}.groups"] = th.cat(distributed.gathered(rollout.seed_group.unique())).sort().values
        found[f"{k}.baseline"] = model.estimator.state_dict()
        model.update(rollout)
        found[f"{k}.policy"] = model.policy.state_dict()
        found[f"{k}.figures"] = {key: th.tensor(float(value)) for key, value in model.last_metrics.items()}
        found[f"{k}.result"] = {key: th.tensor(float(value)) for key, value in vars(model.last_update).items()}
        found = {key: {k: v.clone() for k, v in x.items()} if isinstance(x, dict) else x for key, x in found.items()}
    flat = {f"{key}.{k}": v for key, x in found.items() if isinstance(x, dict) for k, v in x.items()}
    flat["steps"] = th.tensor(model.num_timesteps)
    return {**flat, **{key: x for key, x in found.items() if not isinstance(x, dict)}}


def uneven() -> dict[str, th.Tensor]:
    """Whole episodes of CartPole, so that every rank has another number of rows; VecNormalize; a KL stop; minibatches."""
    env: Any = make_vec_env("CartPole-v1", 8 // distributed.announced().size)
    model = GRPO(
        "MlpPolicy", VecNormalize(env), n_groups=4, group_size=GROUP, batch_size=64, n_epochs=3, seed=1, device="cpu",
        target_kl=0.02, loss_kwargs=dict(aggregation="episode"), policy_kwargs=dict(net_arch=[16]),
    )  # fmt: skip
    model.learn(1500)
    statistics = model.get_vec_normalize_env().obs_rms
    state = [*model.policy.state_dict().values(), *model.estimator.state_dict().values()]
    own = (
        [float(x.double().sum()) for x in state], statistics.mean.tolist(), float(statistics.count), model.num_timesteps,
        model._n_gradient_steps, model.last_update, [e["r"] for e in model.ep_info_buffer],
    )  # fmt: skip
    everyone = distributed.gathered(own)
    assert all(repr(other) == repr(everyone[0]) for other in everyone), everyone
    rows = distributed.gathered(model._steps_trained)
    return {"rows": th.tensor(rows), "steps": th.tensor(model.num_timesteps), "seen": th.tensor(float(statistics.count))}


def cartpole() -> dict[str, th.Tensor]:
    """A short training to what counts as solved in tests/test_learning.py, over the learners together."""
    env = make_tensor_env("CartPole-v1", 32 // distributed.announced().size)
    model = GRPO("MlpPolicy", env, n_steps=32, batch_size=256, n_epochs=10, learning_rate=1e-3, seed=0, device="cpu")
    model.learn(80_000)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    return {"return": th.tensor(float(np.mean(returns))), "steps": th.tensor(model.num_timesteps)}


def curves() -> dict[str, th.Tensor]:
    """Mean return of the last 100 episodes after a third of a training, two thirds and all of it: ``[seeds, 3]`` by env."""
    found = {}
    for env_id, n_envs, steps, settings in (
        ("CartPole-v1", 32, 10_240, dict(n_steps=32, learning_rate=1e-3)),
        ("Pendulum-v1", 32, 25_600, dict(n_steps=50, learning_rate=2e-3, gamma=0.95)),
    ):
        rows = []
        for seed in range(4):
            env = make_tensor_env(env_id, n_envs // distributed.announced().size)
            model = GRPO("MlpPolicy", env, batch_size=256, seed=seed, device="cpu", **settings)
            row = []
            for _ in range(3):
                model.learn(steps, reset_num_timesteps=False)
                row.append(float(np.mean([episode["r"] for episode in model.ep_info_buffer])))
            rows.append(row)
        found[env_id] = th.tensor(rows)
    return found


def masked_memories() -> dict[str, th.Tensor]:
    """Masks and memories on tensor and host envs, in minibatches of sequences; every rank ends with the same weights."""
    n, found = distributed.announced().size, {}
    for kind in ("tensor", "host"):
        env: Any = (
            TensorTMaze10(16 // n, masks=True) if kind == "tensor" else make_vec_env(lambda: TMaze(4, masks=True), 8 // n)
        )
        model = GRPO(
            "MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=2, group_size=2, seed=0, device="cpu",
            policy_kwargs=dict(memory="lstm", memory_size=8, net_arch=[16]), update_kwargs=dict(sequence_length=8),
        )  # fmt: skip
        model.learn(2048)
        state = [*model.policy.state_dict().values(), *model.estimator.state_dict().values()]
        everyone = distributed.gathered([float(x.double().sum()) for x in state])
        assert all(other == everyone[0] for other in everyone), everyone
        assert model.mask_source is not None and model.groups.start_mismatches == 0
        found[kind] = th.tensor([model.num_timesteps, model._n_gradient_steps])
    return found


class Pays(ProbeEnv):
    """Pays for action 1 on the last rank; elsewhere, and everywhere where ``silent``, each step the same."""

    silent = False

    def __init__(self) -> None:
        super().__init__(
            "constant" if self.silent or distributed.announced().rank + 1 < distributed.announced().size else "action"
        )


class PaysNothing(Pays):
    silent = True


def silent() -> dict[str, th.Tensor]:
    """Rollouts of which one rank, or none, has rows with a signal; every rank ends with the same weights."""
    found = {}
    for env in (Pays, PaysNothing):
        for aggregation, more in (
            ("step", dict(policy_kwargs=dict(memory="gru", net_arch=[8]))),
            ("episode", dict(update_kwargs=dict(micro_batch_size=4))),
            ("constant", dict(ent_coef=0.01)),
        ):
            model = GRPO(
                "MlpPolicy", make_vec_env(env, 4), group_size=2, n_steps=8, advantage="outcome", n_epochs=2, seed=0,
                device="cpu", loss_kwargs=dict(aggregation=aggregation), **more,
            ).learn(128)  # fmt: skip
            sums = [float(x.double().sum()) for x in model.policy.state_dict().values()]
            everyone = distributed.gathered(sums)
            assert all(other == everyone[0] for other in everyone), everyone
            found[f"{env.__name__}.{aggregation}"] = th.tensor(model._n_gradient_steps)
    return found


class Stops(BaseCallback):
    """The last rank has enough in the middle of its fourth rollout."""

    def _on_step(self) -> bool:
        return not (distributed.world().rank == distributed.world().size - 1 and self.n_calls == 3 * 64 + 5)


def curriculum() -> dict[str, th.Tensor]:
    """Levels, on every step of the way, and how many successes they were judged by."""
    n, found = distributed.announced().size, {}
    for kind in ("tensor", "host"):
        env: Any = TensorGoalCar(N_ENVS // n) if kind == "tensor" else make_vec_env("MountainCarGoal-v0", N_ENVS // n)
        callback = CurriculumCallback([0.0, 0.05, 0.1], "terminated", window=2, promote_above=0.5, demote_below=0.2)
        model = GRPO("MlpPolicy", env, n_steps=64, batch_size=1024, n_epochs=1, group_size=GROUP, seed=0, device="cpu")
        model.learn(8 * 64 * N_ENVS, [callback, Stops()] if kind == "host" and n > 1 else callback)
        model.learn(2 * 64 * N_ENVS, callback, reset_num_timesteps=False)  # all have as many steps to go
        own = callback.moves, list(callback._successes.by_start.items()), callback.level, model.num_timesteps
        everyone = distributed.gathered(own)
        assert all(other == everyone[0] for other in everyone) and callback.moves, everyone
        found[kind] = th.tensor([callback.level, len(callback.moves)])
    return found


class Dies(BaseCallback):
    """The last rank ends without a word in its third rollout."""

    def _on_rollout_end(self) -> None:
        rank, n = distributed.world()
        if self.num_timesteps >= 3 * N_ENVS * 32 and rank == n - 1:
            os._exit(7)

    def _on_step(self) -> bool:
        return True


def dies(folder: Path) -> None:
    """Checkpoints after every rollout, until a rank dies."""
    model = tensor_model()
    model.learn(100_000, [CheckpointCallback(32, str(folder), "model"), Dies()])


def resumes(folder: Path) -> dict[str, th.Tensor]:
    """Goes on from the checkpoint that lies there."""
    path = max(folder.glob("model_*_steps.zip"), key=lambda p: int(p.stem.split("_")[1]))
    model = GRPO.load(path, make_tensor_env("Pendulum-v1", N_ENVS // distributed.announced().size), device="cpu")
    before, first = model.num_timesteps, model._next_group
    weights = th.cat([p.detach().flatten() for p in model.policy.parameters()])
    met: list[th.Tensor] = []
    for _ in range(2):
        rollout = model.collect()
        met.append(rollout.seed_group)
        model.update(rollout)
    model.save(folder / "resumed.zip")
    groups = th.cat(distributed.gathered(th.cat(met).unique()))
    assert len(groups) == len(groups.unique())
    return {
        "loaded": weights, "steps": th.tensor(model.num_timesteps - before), "first": th.tensor(first),
        "groups": groups.sort().values,
    }  # fmt: skip


def differs() -> None:
    """Every rank has another learning rate."""
    tensor_model(learning_rate=1e-3 * (1 + distributed.announced().rank))


def odd_groups() -> None:
    tensor_model(n_steps=None, n_groups=5)


def by_task() -> None:
    tensor_model(multitask=dict(grouping="length"))


JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job
    for job in (
        baselines,
        update,
        uneven,
        cartpole,
        curves,
        masked_memories,
        silent,
        curriculum,
        dies,
        resumes,
        differs,
        odd_groups,
        by_task,
    )
}


def main(name: str, out: str) -> int:
    th.set_num_threads(1)
    job = JOBS[name]
    try:
        found = job(Path(out)) if name in ("dies", "resumes") else job()
    except ValueError as error:
        print(f"rank {distributed.announced().rank}: {error}", file=sys.stderr)
        return 2
    if distributed.world().rank == 0 and found is not None:
        th.save(found, Path(out, f"{name}{distributed.world().size}.pt"))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
