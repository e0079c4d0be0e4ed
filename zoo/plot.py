"""Pictures of a training run."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from stable_baselines3.common.monitor import load_results

TRAINING, EVALUATION = "#0072B2", "#D55E00"  # Okabe-Ito: told apart by colour-blind readers


def plot_learning_curve(folder: Path, title: str) -> Path:
    """Draw the returns of a run: every training episode, their running mean, and the evaluations.

    :param folder: folder of an rl_zoo3 run, with ``*.monitor.csv`` and perhaps ``evaluations.npz``
    :param title: title of the picture
    :return: path of the PNG
    """
    episodes = load_results(str(folder))
    steps, returns = episodes["l"].cumsum().to_numpy(), episodes["r"].to_numpy()
    window = max(1, min(100, len(returns) // 10))
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(steps, returns, ".", markersize=2, alpha=0.3, color=TRAINING)
    if len(returns) > 0:
        smooth = np.convolve(returns, np.ones(window) / window, mode="valid")
        axes.plot(steps[window - 1 :], smooth, color=TRAINING, label=f"training, mean of {window} episodes")
    evaluations = folder / "evaluations.npz"
    if evaluations.exists():
        data = np.load(evaluations)
        mean, std = data["results"].mean(axis=1), data["results"].std(axis=1)
        axes.errorbar(data["timesteps"], mean, std, fmt="o-", markersize=4, capsize=3, color=EVALUATION,
                      label=f"deterministic evaluation, mean and std of {data['results'].shape[1]} episodes")  # fmt: skip
    axes.set(title=title, xlabel="environment steps", ylabel="return of an episode")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    path = folder / "learning_curve.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
