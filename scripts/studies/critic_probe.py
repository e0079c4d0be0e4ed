"""Effect of a critic: GRPO with PPO's value network instead of the state baseline, everything else unchanged.

usage: python -m scripts.studies.critic_probe run --driver critic     one line of JSON per run; --env, --seeds: which
       python -m scripts.studies.critic_probe report                  the table of docs/studies/critic.md

The critic and a few state baselines are fitted on every rollout. The share of the variance of the discounted rewards to go
that they leave unexplained is measured one rollout ahead. One of them gives the advantages; ``--driver state`` is unchanged
GRPO.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from scipy.stats import bootstrap
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from sb_grpo import GRPO
from sb_grpo.baselines.state import StateBaseline
from sb_grpo.maths.estimators import centre_and_scale
from sb_grpo.maths.returns import explained_variance, gae
from sb_grpo.types import AdvantageOptions, Estimate, Features, Rollout
from scripts.studies.common import records
from scripts.studies.common.runs import DATA, evaluate_normalized, probe_parser, run_probe
from zoo.common.provenance import commit, versions

FOLDER = DATA / "critic_probe"
STEPS = 500_000
EPISODES = 50
#: Baseline of the advantages, and its discount.
DRIVERS = {
    "critic": ("critic", 0.99),
    "state": ("state", 0.99),
    "critic, gamma=0.995": ("critic", 0.995),
    "state, gamma=0.995": ("state", 0.995),
}
#: The baselines that look on, by name: their arguments. The first is the one that drives.
BASELINES: dict[str, dict[str, Any]] = {"state": {}}


class Critic(nn.Module):
    """PPO's: 64 x 64 tanh units, Adam with 3e-4, ten epochs of minibatches of 64, targets divided by their running size."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        layers = [nn.Linear(dim, 64), nn.Linear(64, 64), nn.Linear(64, 1)]
        for layer, gain in zip(layers, (2**0.5, 2**0.5, 1.0), strict=True):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
        self.net = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
        self.optimizer = th.optim.Adam(self.net.parameters(), lr=3e-4, eps=1e-5)
        self.squares: list[float] = []

    @property
    def size(self) -> float:
        return float(np.sqrt(np.mean(self.squares))) if self.squares else 1.0

    @th.no_grad()
    def forward(self, x: th.Tensor) -> th.Tensor:
        """``[M]`` values of ``[M, dim]`` states."""
        values: th.Tensor = self.net(x).squeeze(1) * self.size
        return values

    def fit(self, x: th.Tensor, target: th.Tensor) -> None:
        """Ten epochs."""
        self.squares.append(float(target.var()))
        target = target / self.size
        for _ in range(10):
            for rows in th.split(th.randperm(len(x)), 64):
                self.optimizer.zero_grad()
                loss = 0.5 * (self.net(x[rows]).squeeze(1) - target[rows]).square().mean()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
                self.optimizer.step()


class Probe(nn.Module):
    """Stands where the model has its baseline: one of them decides, the others look on."""

    uses_values = True
    whole_episodes = False

    def __init__(self, dim: int, driver: str) -> None:
        super().__init__()
        self.critic = Critic(dim)
        self.driver = driver
        self.baselines = {name: StateBaseline(dim, **kwargs) for name, kwargs in BASELINES.items()}
        self.unexplained: dict[str, list[float]] = {name: [] for name in ("critic", *BASELINES)}

    def estimate(self, rollout: Rollout, options: AdvantageOptions, seen: Features | None, objective: int = 0) -> Estimate:
        """Advantages by the driver; the others are fitted beside it."""
        assert seen is not None
        features, final_features = seen
        values = self.critic(features)
        final_values = self.critic(final_features)
        to_go = gae(rollout, values, final_values, options.gamma, 1.0) + values
        guesses = {"critic": values} | {name: b.predict(features)[:, 1] for name, b in self.baselines.items()}
        for name, guess in guesses.items():
            self.unexplained[name].append(1.0 - explained_variance(guess, to_go))
        found = [b.advantages(rollout, options, features, final_features) for b in self.baselines.values()]
        raw = gae(rollout, values, final_values, options.gamma, options.gae_lambda)
        target = raw + values
        self.critic.fit(features, target)
        if self.driver == "state":
            return Estimate(*found[0])
        return Estimate(centre_and_scale(raw, target, rollout, options), explained_variance(values, target))


def path(env_id: str, driver: str) -> Path:
    return FOLDER / f"{env_id}_{driver.replace(', ', '_')}.jsonl"


def run(env_id: str, driver: str, seed: int) -> None:
    """Train with the constructor's defaults but for the discount, and 8 envs, and evaluate the last weights."""
    maker, gamma = DRIVERS[driver]
    env = VecNormalize(make_vec_env(env_id, 8, seed=seed), norm_reward=False)
    model = GRPO("MlpPolicy", env, gamma=gamma, seed=seed, device="cpu")
    model.estimator = probe = Probe(model.policy.features_dim, maker)
    start = time.process_time()
    model.learn(STEPS)
    seconds = time.process_time() - start
    returns = evaluate_normalized(model, env_id, EPISODES)
    content = {
        "env": env_id,
        "driver": driver,
        "seed": seed,
        "env_steps": model.num_timesteps,
        "train_cpu_s": round(seconds, 1),
    }
    content |= {"final_returns": returns, "unexplained": probe.unexplained, "commit": commit(), "versions": versions()}
    records.put(path(env_id, driver), content)
    print(env_id, driver, seed, round(float(np.mean(returns))), flush=True)


def report() -> None:
    """Returns per driver with their interval; unexplained shares by fifth of training (median of rollouts, mean of runs)."""
    runs = records.read_folder(FOLDER)
    print("| task | advantages from | seeds | return, mean [95 %] |\n" + "|---" * 4 + "|")
    for env_id, driver in sorted({(r["env"], r["driver"]) for r in runs}):
        returns = np.array([np.mean(r["final_returns"]) for r in runs if (r["env"], r["driver"]) == (env_id, driver)])
        interval = "one run"
        if len(returns) > 1:
            low, high = bootstrap((returns,), np.mean, n_resamples=9999, method="percentile", rng=0).confidence_interval
            interval = f"{low:,.0f}, {high:,.0f}"
        print(f"| {env_id} | {driver} | {len(returns)} | {returns.mean():,.0f} [{interval}] |")
    print("\n| task | advantages from | seeds | predictor | unexplained |\n" + "|---" * 5 + "|")
    cells = sorted(
        {(r["env"], r["driver"], tuple(r["unexplained"])) for r in runs}
    )  # compare only estimators on the same runs
    for env_id, driver, names in cells:
        mine = [r for r in runs if (r["env"], r["driver"], tuple(r["unexplained"])) == (env_id, driver, names)]
        for name in names:
            fifths = [[np.median(part) for part in np.array_split(r["unexplained"][name][1:], 5)] for r in mine]
            shares = ", ".join(f"{share:.2f}" for share in np.mean(fifths, 0))
            print(f"| {env_id} | {driver} | {len(mine)} | {name} | {shares} |")


def main() -> None:
    parser = probe_parser(__doc__, range(100, 108))
    parser.add_argument("--driver", choices=list(DRIVERS), default="critic")
    run_probe(parser, "driver", path, run, report)


if __name__ == "__main__":
    main()
