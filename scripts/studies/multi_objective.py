"""Two rewards of very different size: summed then normalised, against normalised each and then summed (GDPO).

usage: python -m scripts.studies.multi_objective run [--seeds 5]      one line per variant: the runs of all seeds
       python -m scripts.studies.multi_objective report     the table of docs/studies/multi_objective.md and its picture

CartPole, where "balance" pays 1 per step and "still" minus 1000 times the squared speed of the cart. Falling over at once
has the best "still" and no "balance": the sum sees nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th

from sb_grpo import GRPO
from sb_grpo.envs.native import CartPole
from scripts.studies.common import variant_files
from scripts.studies.common.runs import DATA, IMG

STEPS = 16_384
EVALUATED = 64
FILE = DATA / "multi_objective.jsonl"
PICTURE = IMG / "multi_objective.png"
COMMON: dict[str, Any] = dict(
    n_steps=64, batch_size=256, n_epochs=10, learning_rate=3e-3, group_size=4, gamma=0.99, device="cpu"
)
VARIANTS: dict[str, dict[str, Any]] = {
    "sum": dict(rewards=dict(objectives={"balance": 1.0, "still": 1.0})),
    "sum, 1 : 0.2": dict(rewards=dict(objectives={"balance": 1.0, "still": 0.2})),
    "each": dict(rewards=dict(objectives={"balance": 1.0, "still": 1.0}, normalization="each")),
    "each, 1 : 0.2": dict(rewards=dict(objectives={"balance": 1.0, "still": 0.2}, normalization="each")),
}


class StillCartPole(CartPole):
    """CartPole with two rewards."""

    objective_names = ("balance", "still")

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        after, reward, terminated = super().transition(state, actions)
        self.objectives = th.stack([reward, -1000.0 * after[:, 1].square()], 1).float()
        return after, reward, terminated


def evaluate(model: GRPO) -> tuple[float, float]:
    """Mean length of deterministic episodes, and mean speed of the cart in them (root mean square)."""
    env = StillCartPole(EVALUATED)
    env.reset_all(th.arange(EVALUATED))
    running = th.ones(EVALUATED, dtype=th.bool)
    length = th.zeros(EVALUATED)
    square = th.zeros(EVALUATED)
    while bool(running.any()):
        with th.no_grad():
            step = env.step_tensor(model.policy.act(env.observations, deterministic=True))
        assert env.objectives is not None
        length += running
        square += running * env.objectives[:, 1] / -1000.0
        running &= ~(step.terminated | step.truncated)
    return float(length.mean()), float((square.sum() / length.sum()).sqrt())


def run(kwargs: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train and evaluate once."""
    model = GRPO("MlpPolicy", StillCartPole(16), seed=seed, **COMMON, **kwargs).learn(STEPS)
    length, speed = evaluate(model)
    return {"seed": seed, "length": length, "speed": speed}


def report() -> None:
    """Table and picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    print("| variant | seeds | steps balanced (of 500) | speed of the cart |\n|---|---|---|---|")
    figure, axis = plt.subplots(figsize=(4.5, 3.0))
    for name in VARIANTS:
        runs = variant_files.runs_of(FILE, name)
        length, speed = (np.array([r[key] for r in runs]) for key in ("length", "speed"))
        print(f"| {name} | {len(runs)} | {length.mean():.0f} ± {length.std():.0f} | {speed.mean():.2f} ± {speed.std():.2f} |")
        axis.plot(length, speed, "o", label=name, alpha=0.7)
    axis.set_xlabel("steps balanced")
    axis.set_ylabel("speed of the cart (RMS)")
    axis.legend(fontsize=7)
    figure.savefig(PICTURE, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    variant_files.main(__doc__, FILE, VARIANTS, COMMON, STEPS, run, report)
