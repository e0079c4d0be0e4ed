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
#: The variants in plain words, for the picture.
SHOWN = ("rewards summed, 1 : 1", "rewards summed, 1 : 0.2", "each normalised, 1 : 1", "each normalised, 1 : 0.2")


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
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 2.8), sharey=True, layout="constrained")
    for row, name in enumerate(VARIANTS):
        runs = variant_files.runs_of(FILE, name)
        length, speed = (np.array([r[key] for r in runs]) for key in ("length", "speed"))
        print(f"| {name} | {len(runs)} | {length.mean():.0f} ± {length.std():.0f} | {speed.mean():.2f} ± {speed.std():.2f} |")
        for axis, values in zip(axes, (length, speed), strict=True):
            axis.plot(values, np.full(len(values), row), "o", color=f"C{row}", alpha=0.6)
            axis.plot(values.mean(), row, "|", color="black", markersize=16)
    axes[0].set(xlabel="steps balanced (of 500; more is better)", xlim=(0, 515))
    axes[0].set_yticks(range(len(VARIANTS)), SHOWN)
    axes[0].set_ylim(len(VARIANTS) - 0.5, -0.5)
    axes[1].set(xlabel="speed of the cart, RMS (less is better)", xlim=(0, None))
    for axis in axes:
        axis.grid(axis="x", alpha=0.3)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    variant_files.main(__doc__, FILE, VARIANTS, COMMON, STEPS, run, report)
