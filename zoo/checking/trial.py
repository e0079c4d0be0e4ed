"""Last check: a training of a few seconds with the settings of ``zoo.train``."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.preprocessing import is_image_space

from sb_grpo.callbacks import HealthCallback, HealthWarning
from sb_grpo.envs.alignment import Play
from sb_grpo.types import Action, Obs

from ..common.command_line import one_line
from .findings import BROKEN, FINE, LOOK, Finding

#: Rules of the health check whose breach indicates a broken env, not bad settings.
OF_THE_ENV = ("start_mismatch",)
#: Standard errors by which the last tenth of the episodes must be above the first to count as a rise.
_Z = 2.0


class Deadline(BaseCallback):
    """Ends a training in time, and keeps the returns of its episodes.

    :param seconds: from the start of the training
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.returns: list[float] = []
        self.started = self.took = 0.0

    def _on_training_start(self) -> None:
        self.started = time.perf_counter()

    def _on_step(self) -> bool:
        self.returns += [float(info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info]
        self.took = time.perf_counter() - self.started
        return self.took < self.seconds


def fitting_policy(space: spaces.Space) -> str:
    """Name of the policy for an observation space."""
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if isinstance(space, spaces.Box) and is_image_space(space) else "MlpPolicy"


def check_training(model: BaseAlgorithm, seconds: float) -> list[Finding]:
    """Train, and check the result.

    :param model: a new GRPO model
    :param seconds: to train
    """
    deadline = Deadline(seconds)
    health = HealthCallback(verbose=0)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model.learn(10**9, callback=[deadline, health])
    except Exception as error:  # any error of the env or the settings
        return [Finding(BROKEN, "training", f"{type(error).__name__}: {one_line(error)}")]
    steps = model.num_timesteps
    if model._n_updates == 0:
        says = f"not one rollout in {deadline.took:.0f} s ({steps:,} steps)"
        return [Finding(LOOK, "training", says, "more --seconds, a smaller n_steps, or a faster env")]
    done = f"{deadline.took:.0f} s, {steps:,} steps, {steps / deadline.took:,.0f} steps/s"
    advice = [str(w.message).partition(": ") for w in said if issubclass(w.category, HealthWarning)]
    advice = [one for one in advice if one[0] in health.broken]
    unhealthy = [Finding(BROKEN if rule in OF_THE_ENV else LOOK, "health", rule, text) for rule, _, text in advice]
    return [_progress(deadline.returns, done), *unhealthy]


def _progress(returns: Sequence[float], done: str) -> Finding:
    n = len(returns) // 10
    if n < 2:
        return Finding(FINE, "training", f"runs ({done}); too few episodes to see a trend")
    first = np.array(returns[:n])
    last = np.array(returns[-n:])
    says = f"mean return {first.mean():.4g} at first, {last.mean():.4g} at last ({done})"
    if last.mean() - first.mean() > _Z * np.hypot(first.std(ddof=1), last.std(ddof=1)) / np.sqrt(n):
        return Finding(FINE, "training", f"learns: {says}")
    return Finding(FINE, "training", f"runs, no rise yet, which proves nothing after so short a time: {says}")


def acting(models: Sequence[BaseAlgorithm]) -> Play | None:
    """Function from an observation of the env to an action of a trained policy, with its noise.

    :param models: the model trained on the env, possibly with VecNormalize; may be empty
    :return: None without a policy, or if it needs more than the env's own observation (stacked frames, a memory)
    """
    if not models:
        return None
    model = models[0]
    normalized = model.get_vec_normalize_env()
    env = model.get_env()
    stacked = env is None or env.observation_space != env.get_attr("observation_space")[0]
    if stacked or getattr(model.policy, "memory", None) is not None:
        return None

    def act(obs: Obs) -> Action:
        seen = obs if normalized is None else normalized.normalize_obs(obs)
        return model.predict(seen, deterministic=False)[0]

    return act
