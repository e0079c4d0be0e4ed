"""Agreement of one rollout's gradient with the expected gradient, for state baselines and PPO's critic.

usage: python -m scripts.studies.gradient_agreement run --env Walker2d-v5     one line of JSON per env and seed
       python -m scripts.studies.gradient_agreement report                    the table of docs/studies/critic.md

This measure varies less between seeds than final returns. A training with the constructor's defaults and gamma 0.99
(Swimmer-v5: PPO's tuned settings with its long discount), whose advantages come from a critic trained as in PPO, is stopped at
a few rollouts, and its policy plays more rollouts unchanged. Every estimator is fitted to all rollouts of the training. Its
score is the cosine between the policy gradient of one rollout and the mean gradient of the others under a reference:
lambda-returns (0.97) with a critic fitted for long to the half of the rollouts without the scored one.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from sb_grpo import GRPO
from sb_grpo.baselines.state import StateBaseline
from sb_grpo.maths.returns import gae
from sb_grpo.policies import ActorPolicy
from sb_grpo.types import AdvantageOptions, Estimate, Features, Rollout
from scripts.studies.common import records
from scripts.studies.common.runs import DATA
from scripts.studies.critic_probe import Critic
from zoo.common.provenance import commit, versions

FILE = DATA / "gradient_agreement.jsonl"
#: By env, where it is not (8, dict(gamma=0.99)): envs, and constructor arguments.
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "Swimmer-v5": (4, dict(n_steps=1024, batch_size=256, gamma=0.9999, gae_lambda=0.98, learning_rate=6e-4))
}
#: The fits that are judged, by name: arguments of the state baseline.
FITS: dict[str, dict[str, Any]] = {
    "state": {},
    "state, folds=1": {"folds": 1},
    "state, follow_level": {"follow_level": True},
    "state, follow_level, scale=2, sweeps=1": {"follow_level": True, "scale": 2.0, "sweeps": 1},
}
SHARES = (0.06, 0.2, 0.4, 0.6, 0.8, 1.0)  #: of the training, after which the policy is frozen
FROZEN = 16
LAMBDA = 0.97

#: From a rollout, features and final features to ``[M]`` advantages.
Estimator = Callable[[Rollout, AdvantageOptions, th.Tensor, th.Tensor], th.Tensor]
Frozen = list[tuple[Rollout, th.Tensor, th.Tensor]]


class CriticAdvantages:
    """GAE under a critic that is fitted afterwards."""

    def __init__(self, dim: int) -> None:
        self.critic = Critic(dim)

    def __call__(self, rollout: Rollout, options: AdvantageOptions, x: th.Tensor, x_final: th.Tensor) -> th.Tensor:
        values = self.critic(x)
        raw = gae(rollout, values, self.critic(x_final), options.gamma, options.gae_lambda)
        self.critic.fit(x, raw + values)
        return raw


class StateAdvantages:
    """The state baseline's."""

    def __init__(self, dim: int, **kwargs: Any) -> None:
        self.baseline = StateBaseline(dim, **kwargs)

    def __call__(self, rollout: Rollout, options: AdvantageOptions, x: th.Tensor, x_final: th.Tensor) -> th.Tensor:
        return self.baseline.advantages(rollout, options, x, x_final)[0]


def gradient(policy: ActorPolicy, rollout: Rollout, advantages: th.Tensor) -> th.Tensor:
    """``[P]`` of the mean log-probability times standardised advantage."""
    policy.zero_grad()
    weights = (advantages - advantages.mean()) / advantages.std()
    (policy.log_prob(rollout.observations, rollout.actions) * weights).mean().backward()  # type: ignore[no-untyped-call]
    return th.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


def reference(critic: Critic, policy: ActorPolicy, frozen: Frozen, gamma: float) -> th.Tensor:
    """``[N, P]`` gradients of the rollouts, each with values fitted to the half that it is not in."""
    gradients = [th.empty(0)] * len(frozen)
    for half in (0, 1):
        judge = copy.deepcopy(critic)
        others = [part for i, part in enumerate(frozen) if i % 2 != half]
        for _ in range(2):
            targets = [gae(r, judge(x), judge(x_final), gamma, LAMBDA) + judge(x) for r, x, x_final in others]
            judge.fit(th.cat([x for _, x, _ in others]), th.cat(targets))
        for i in range(half, len(frozen), 2):
            rollout, x, x_final = frozen[i]
            gradients[i] = gradient(policy, rollout, gae(rollout, judge(x), judge(x_final), gamma, LAMBDA))
    return th.stack(gradients)


def agreement(gradients: th.Tensor, expected: th.Tensor) -> float:
    """Mean cosine of each gradient with the mean of the others under the reference."""
    others = (expected.sum(0) - expected) / (len(expected) - 1)
    return float(th.cosine_similarity(gradients, others, dim=1).mean())


class Study(nn.Module):
    """The model's estimator: the critic drives, the others are fitted beside it."""

    uses_values = True
    whole_episodes = False

    def __init__(self, model: GRPO, stops: list[int]) -> None:
        super().__init__()
        dim = model.policy.features_dim
        self.model = [model]
        self.stops = stops
        self.fitted = 0
        self.scores = list[dict[str, float]]()
        self.critic = CriticAdvantages(dim)
        self.estimators: dict[str, Estimator] = {"critic": self.critic}
        self.estimators |= {name: StateAdvantages(dim, **kwargs) for name, kwargs in FITS.items()}
        self.frozen: Frozen | None = None

    def estimate(self, rollout: Rollout, options: AdvantageOptions, features: Features | None, objective: int = 0) -> Estimate:
        """Advantages by the critic; while the policy is frozen nothing is fitted."""
        assert features is not None
        x, x_final = features
        if self.frozen is not None:
            self.frozen.append((rollout, x, x_final))
            return Estimate(th.zeros_like(rollout.rewards), float("nan"))
        self.fitted += 1
        with th.enable_grad():
            made = {name: estimate(rollout, options, x, x_final) for name, estimate in self.estimators.items()}
        return Estimate((made["critic"] - made["critic"].mean()) / made["critic"].std(), float("nan"))

    def after_update(self) -> None:
        """Freeze after the rollouts of ``stops``; thaw and judge when enough are there."""
        model = self.model[0]
        if self.frozen is None:
            self.frozen = [] if self.fitted in self.stops else None
        elif len(self.frozen) == FROZEN:
            options = AdvantageOptions(gamma=model.gamma, gae_lambda=model.gae_lambda, normalize="batch")
            policy = model.policy
            made = {
                name: [gradient(policy, r, copy.deepcopy(estimate)(r, options, x, x_final)) for r, x, x_final in self.frozen]
                for name, estimate in self.estimators.items()
            }
            expected = reference(self.critic.critic, policy, self.frozen, model.gamma)
            scores = {name: agreement(th.stack(gradients), expected) for name, gradients in made.items()}
            self.scores.append({"rollout": self.fitted, "reference": agreement(expected, expected), **scores})
            print({k: round(v, 3) for k, v in self.scores[-1].items()}, flush=True)
            self.frozen = None


def run(env_id: str, seed: int, steps: int) -> None:
    """One training, stopped at ``SHARES`` of it."""
    n_envs, kwargs = SETTINGS.get(env_id, (8, dict(gamma=0.99)))
    env = VecNormalize(make_vec_env(env_id, n_envs, seed=seed), norm_reward=False)
    model = GRPO("MlpPolicy", env, seed=seed, device="cpu", **kwargs)
    size = model.steps_per_env * model.n_envs
    study = Study(model, sorted({max(1, round(share * steps / size)) for share in SHARES}))
    model.estimator = study  # type: ignore[assignment]
    train = model.train

    def train_unless_frozen() -> None:
        if study.frozen is None:
            train()
        study.after_update()

    model.train = train_unless_frozen  # type: ignore[method-assign]
    model.learn((study.stops[-1] + FROZEN * len(study.stops)) * size)
    content = {"env": env_id, "seed": seed, "steps": steps, "scores": study.scores, "commit": commit(), "versions": versions()}
    records.put(FILE, content, "env", "seed")


def report() -> None:
    """Agreement at each stop, and the mean over the stops relative to the critic's."""
    print("| task, seed | advantages from | agreement at each stop | mean, critic = 1 |\n|---|---|---|---|")
    for found in records.read(FILE):
        names = [name for name in found["scores"][0] if name not in ("rollout", "reference")]
        mean = {name: np.mean([stop[name] for stop in found["scores"]]) for name in names}
        for name in names:
            stops = ", ".join(f"{stop[name]:.2f}" for stop in found["scores"])
            print(f"| {found['env']}, {found['seed']} | {name} | {stops} | {mean[name] / mean['critic']:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("--env", default="Walker2d-v5")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--steps", type=int, default=500_000)
    args = parser.parse_args()
    th.set_num_threads(1)
    if args.what == "report":
        report()
    else:
        run(args.env, args.seed, args.steps)


if __name__ == "__main__":
    main()
