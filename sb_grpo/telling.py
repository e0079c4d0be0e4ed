"""How callbacks are told of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnMaxEpisodes

from sb_grpo.callback_states import every


def teller(callback: BaseCallback, tensors: bool) -> Callable[[dict[str, Any]], None]:
    """What puts the locals of a step into a callback and all that it calls.

    :param tensors: rewards and dones are such, on any device. SB3's callback that counts ends with NumPy reads them there;
        nobody else makes the host wait
    """
    counting = [part for part in every(callback) if tensors and isinstance(part, StopTrainingOnMaxEpisodes)]

    def tell(known: dict[str, Any]) -> None:
        callback.update_locals(known)
        for part in counting:
            part.locals = {**known, "dones": known["dones"].cpu().numpy()}  # callbacks share one dict

    return tell
