"""Differences of PPO from this package: SB3's PPO with one or several parts changed to this package's.

usage: python -m scripts.studies.ppo_changes run --changes scale     one line of JSON per run; --env, --seeds: which
       python -m scripts.studies.ppo_changes report                  a table

With all changes PPO is GRPO with a critic instead of its baseline (scripts.studies.critic_probe).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo.collect.groups import HostGroups
from sb_grpo.envs.ownership import ownership_of
from scripts.studies.common import records
from scripts.studies.common.runs import DATA, evaluate_normalized, probe_parser, run_probe
from zoo.common.provenance import commit, versions

FOLDER = DATA / "ppo_changes"
STEPS = 500_000
EPISODES = 50
N_ENVS = 8
GROUP_SIZE = 8
CHANGES = {
    "starts": "groups of 8 episodes start alike",
    "clipping": "gradients of actor and critic are clipped apart",
    "scale": "rewards times 0.02, not by VecNormalize's moving scale",
}
FIXED_SCALE = 0.02
MAX_NORM = 0.5
#: SB3's logged values of an update.
KEPT = ("std", "clip_fraction", "approx_kl", "explained_variance")


class Grouped(BaseCallback):
    """Hands every env the seed of its next episode, as GRPO does."""

    def __init__(self, groups: HostGroups) -> None:
        super().__init__()
        self.groups = groups

    def _on_training_start(self) -> None:
        self.groups.started_all(self.training_env)
        ownership_of(self.training_env).actor = self.groups  # PPO's steps are to consume the seeds

    def _on_step(self) -> bool:
        ended = self.locals["dones"].nonzero()[0].tolist()
        self.groups.step(self.training_env, self.groups.starts(self.training_env, ended))
        return True


class Updates(BaseCallback):
    """Keep the logged values of each update."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, list[float]] = {name: [] for name in KEPT}

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        for name, values in self.kept.items():
            if f"train/{name}" in self.logger.name_to_value:
                values.append(round(float(self.logger.name_to_value[f"train/{name}"]), 5))


def clip_apart(model: PPO) -> None:
    """From now on actor and critic have a norm each."""
    model.max_grad_norm = float("inf")
    critic = [p for name, p in model.policy.named_parameters() if "value" in name]
    actor = [p for name, p in model.policy.named_parameters() if "value" not in name]

    def clip(*_: Any) -> None:
        for part in (actor, critic):
            th.nn.utils.clip_grad_norm_(part, MAX_NORM)

    model.policy.optimizer.register_step_pre_hook(clip)


def build(env_id: str, changes: Collection[str], seed: int) -> tuple[PPO, list[BaseCallback]]:
    """SB3's PPO with its defaults, 8 envs and VecNormalize, as in the study, but for the changes.

    :param changes: of ``CHANGES``
    :return: the model, and callbacks that must go with it
    """

    def wrap(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        if "scale" in changes:
            env = gym.wrappers.TransformReward(env, lambda reward: FIXED_SCALE * float(reward))
        return env

    env = VecNormalize(make_vec_env(env_id, N_ENVS, seed=seed, wrapper_class=wrap), norm_reward="scale" not in changes)
    model = PPO("MlpPolicy", env, n_steps=2048 // N_ENVS, max_grad_norm=MAX_NORM, seed=seed, device="cpu")
    if "clipping" in changes:
        clip_apart(model)
    if "starts" not in changes:
        return model, []
    groups = HostGroups(N_ENVS, GROUP_SIZE, seed)
    groups.queue_all(env)
    return model, [Grouped(groups)]


def path(env_id: str, changes: Collection[str]) -> Path:
    return FOLDER / f"{env_id}_{'+'.join(sorted(changes)) or 'none'}.jsonl"


def run(env_id: str, changes: Collection[str], seed: int) -> None:
    """Train, and evaluate the last weights."""
    model, callbacks = build(env_id, changes, seed)
    updates = Updates()
    model.learn(STEPS, callback=[*callbacks, updates], log_interval=STEPS)
    returns = evaluate_normalized(model, env_id, EPISODES)
    content = {"env": env_id, "changes": sorted(changes), "seed": seed, "env_steps": model.num_timesteps}
    content |= {"final_returns": returns, "updates": updates.kept, "commit": commit(), "versions": versions()}
    records.put(path(env_id, changes), content)
    print(env_id, sorted(changes), seed, round(float(np.mean(returns))), flush=True)


def report() -> None:
    """Print returns of every run, and medians of logged values in the last fifth of the training (mean of runs)."""
    runs = records.read_folder(FOLDER)
    print(f"| task | changed in PPO | return of each run | late {', '.join(KEPT)} |\n" + "|---" * 4 + "|")
    for env_id, changes in sorted({(r["env"], tuple(r["changes"])) for r in runs}):
        mine = [r for r in runs if (r["env"], tuple(r["changes"])) == (env_id, changes)]
        returns = ", ".join(f"{np.mean(r['final_returns']):,.0f}" for r in mine)
        late = [np.mean([np.median(np.array_split(r["updates"][name], 5)[-1]) for r in mine]) for name in KEPT]
        print(f"| {env_id} | {', '.join(changes) or 'nothing'} | {returns} | {', '.join(f'{x:.3f}' for x in late)} |")


def main() -> None:
    parser = probe_parser(__doc__, range(100, 105))
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in CHANGES.items())
    parser.add_argument(
        "--changes", nargs="*", choices=list(CHANGES), default=[], help=f"{meanings}. Default: none, plain PPO"
    )
    run_probe(parser, "changes", path, run, report)


if __name__ == "__main__":
    main()
