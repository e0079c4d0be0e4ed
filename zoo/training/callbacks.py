"""What a run of the zoo logs beyond rl_zoo3: its settings, for TensorBoard's HParams tab."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam

from sb_grpo.figures import as_shown

#: Scalars that the HParams tab shows beside the settings.
METRICS = ("eval/mean_reward", "rollout/ep_rew_mean")


class HParamsCallback(BaseCallback):
    """Write the settings of a run to TensorBoard's HParams tab when training starts: all arguments of a GRPO model among them.

    :param settings: of the run
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings

    def _on_training_start(self) -> None:
        settings = as_shown({**getattr(self.model, "settings", {}), **self.settings})
        hparam = HParam(settings, {name: 0.0 for name in METRICS})
        self.logger.record("hparams", hparam, exclude=("stdout", "log", "json", "csv"))

    def _on_step(self) -> bool:
        return True
