"""Callbacks of a run: its settings for TensorBoard's HParams tab, and the end of all of them after an error."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam

from sb_grpo.figures import NOT_PRINTED, as_shown

from ..common.command_line import one_line
from ..common.plain_files import Hyperparams

#: Scalars that the HParams tab shows beside the settings.
METRICS = ("eval/mean_reward", "rollout/ep_rew_mean")


class HParamsCallback(BaseCallback):
    """Write the settings of a run to TensorBoard's HParams tab when training starts: all arguments of a GRPO model among them.

    :param settings: of the run
    """

    def __init__(self, settings: Hyperparams) -> None:
        super().__init__()
        self.settings = settings

    def _on_training_start(self) -> None:
        settings = as_shown({**getattr(self.model, "settings", {}), **self.settings})
        hparam = HParam(settings, {name: 0.0 for name in METRICS})
        self.logger.record("hparams", hparam, exclude=NOT_PRINTED)

    def _on_step(self) -> bool:
        return True


def end_all(callbacks: Iterable[BaseCallback]) -> None:
    """End bars and reports after an error, which SB3 does not, and which none of them may hide.

    :param callbacks: of the training; those that it has not begun have nothing to end
    """
    for callback in callbacks:
        if not callback.locals:
            continue
        try:
            callback.on_training_end()
        except Exception as error:  # users' own callbacks may raise anything
            print(f"{type(callback).__name__} could not end: {type(error).__name__}: {one_line(error)}", file=sys.stderr)
