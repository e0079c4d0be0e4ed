"""Tasks with action masks: GRPO with them and without, and sb3-contrib's MaskablePPO, all with the same settings.

usage: python -m scripts.studies.masks [--report] [--seeds 0 1 ...]   train missing runs; write the tables into the page

The game of 2048 is another package's: see ``scripts/studies/common/package_tasks.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_maskable
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import scripts.studies.common.package_tasks  # noqa: F401  # registers the board
from sb_grpo import GRPO
from scripts.studies.common.compared import better, finals, markdown, middle, write
from scripts.studies.common.runs import EVAL_SEED, Variant, main, results

SOLVED = 7.5  #: of Taxi-v4
SETTINGS: dict[str, Any] = dict(
    learning_rate=1e-3, n_steps=128, batch_size=256, n_epochs=5, gamma=0.99, ent_coef=0.01, device="cpu"
)
ALGORITHMS = {"masked": "GRPO, masks", "unmasked": "GRPO without masks", "maskable-ppo": "MaskablePPO"}


def masker(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """``env.action_masks()``, as MaskablePPO wants it."""
    return ActionMasker(env, lambda e: e.unwrapped.action_mask(e.unwrapped.s).astype(bool))  # type: ignore[attr-defined]


class WithoutMask(gym.Wrapper[Any, Any, Any, Any]):
    """The env without the mask in its infos."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return obs, {key: value for key, value in info.items() if key != "action_mask"}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {key: value for key, value in info.items() if key != "action_mask"}


class Task(NamedTuple):
    """Task, number of steps, and further arguments of ``make_vec_env`` by algorithm."""

    env_id: str
    steps: int
    envs: dict[str, dict[str, Any]]


TAXI: dict[str, dict[str, Any]] = {"unmasked": dict(wrapper_class=WithoutMask), "maskable-ppo": dict(wrapper_class=masker)}
#: By the first part of a variant's label.
TASKS = {
    "": Task("Taxi-v4", 300_000, TAXI),
    "Board2048-v0_": Task("Board2048-v0", 100_000, {"unmasked": dict(env_kwargs=dict(masks=False))}),
}


def _variant(prefix: str, name: str) -> Variant:
    task = TASKS[prefix]
    algorithm, judge = (MaskablePPO, evaluate_maskable) if name == "maskable-ppo" else (GRPO, evaluate_policy)

    def make(seed: int) -> Any:
        return algorithm(
            "MlpPolicy", make_vec_env(task.env_id, 16, seed=seed, **task.envs.get(name, {})), seed=seed, **SETTINGS
        )

    def evaluate(model: Any, env: Any, n: int, **kwargs: Any) -> Any:
        return judge(model, make_vec_env(task.env_id, 1, seed=EVAL_SEED, **task.envs.get(name, {})), n, **kwargs)

    return Variant(f"{prefix}{name}", ALGORITHMS[name], task.steps, make, task.env_id, evaluate=evaluate)


VARIANTS = [_variant(prefix, name) for prefix in TASKS for name in ALGORITHMS]


def steps_to(run: dict[str, Any]) -> float:
    """Env steps until the last 100 training episodes return ``SOLVED`` on average; infinite where they never do."""
    return float(next((steps for steps, value in run["curve"] if value >= SOLVED), np.inf))


def played(runs: Sequence[dict[str, Any]]) -> np.ndarray:
    """``[runs]``: the mean return of each run's last 100 training episodes, whose actions are drawn."""
    return np.array([run["curve"][-1][1] for run in runs])


def taxi() -> str:
    """Seeds that reach the goal, steps to it (median and worst seed), final return."""
    found = results("masks", VARIANTS)
    rows = []
    masked = found.get("masked", [])
    for name, setting in ALGORITHMS.items():
        runs = found.get(name, [])
        if runs:
            steps = np.array([steps_to(run) for run in runs])
            shown = [f"{x:,.0f}" if np.isfinite(x) else "never" for x in (np.median(steps), steps.max())]
            reach = f"{int(np.isfinite(steps).sum())}"
            sooner = "" if name == "masked" else better(-np.array([steps_to(run) for run in masked]), -steps)
            rows.append([setting, f"{len(runs)}", reach, *shown, sooner, middle(finals(runs))])
    heads = ["policy", "seeds", f"reach {SOLVED}", "median steps to it", "worst", "P(masks sooner) [95 %]", "final IQM [95 %]"]
    return markdown(heads, rows)


def board() -> str:
    """Returns of training, whose moves are drawn, and of the most likely moves of the last weights."""
    found = results("masks", VARIANTS)
    rows = []
    masked = found.get("Board2048-v0_masked", [])
    for name, setting in ALGORITHMS.items():
        runs = found.get(f"Board2048-v0_{name}", [])
        if runs:
            cells = []
            for of in (played, finals):
                cells += [middle(of(runs)), "" if name == "masked" else better(of(masked), of(runs))]
            rows.append([setting, f"{len(runs)}", *cells])
    p = "P(masks better) [95 %]"
    return markdown(["policy", "seeds", "last 100 training games, IQM [95 %]", p, "most likely moves, IQM [95 %]", p], rows)


def table() -> str:
    """Both."""
    return f"{taxi()}\n\n{board()}"


def draw() -> None:
    """No picture: the tables go into the page."""
    write("taxi", taxi())
    write("board", board())


if __name__ == "__main__":
    main("masks", __doc__, VARIANTS, table, draw)
