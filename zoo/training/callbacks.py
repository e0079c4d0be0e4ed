"""What a run of the zoo logs beyond rl_zoo3: its settings, for TensorBoard's HParams tab."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam

#: Scalars that the HParams tab shows beside the settings.
METRICS = ("eval/mean_reward", "rollout/ep_rew_mean")


class HParamsCallback(BaseCallback):
    """Write the settings of a run to TensorBoard's HParams tab when training starts.

    :param settings: of the run; what TensorBoard cannot show as it is becomes text
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in settings.items()}

    def _on_training_start(self) -> None:
        hparam = HParam(self.settings, {name: 0.0 for name in METRICS})
        self.logger.record("hparams", hparam, exclude=("stdout", "log", "json", "csv"))

    def _on_step(self) -> bool:
        return True
