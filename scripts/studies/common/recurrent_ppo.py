"""RecurrentPPO's policy with one call of the LSTM per sequence instead of one per step.

sb3-contrib loops over the steps if an episode starts anywhere. In an update this is always at the first step, so clearing the
state there gives the same network (``tests/test_studies.py``) in a fraction of the time. Only studies of returns
use it; the speed on docs/studies/masks_and_memory.md is that of the unchanged package.
"""

from __future__ import annotations

import torch as th
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from torch import nn


class WholeSequences(RecurrentActorCriticPolicy):
    """``"MlpLstmPolicy"`` without the loop."""

    @staticmethod
    def _process_sequence(
        features: th.Tensor, lstm_states: tuple[th.Tensor, th.Tensor], episode_starts: th.Tensor, lstm: nn.LSTM
    ) -> tuple[th.Tensor, th.Tensor]:
        starts = episode_starts.reshape(lstm_states[0].shape[1], -1)  # a row per sequence
        if not bool(starts[:, 1:].any()):
            kept = 1.0 - starts[:, :1]
            lstm_states = (lstm_states[0] * kept, lstm_states[1] * kept)
            episode_starts = th.zeros_like(episode_starts)
        return RecurrentActorCriticPolicy._process_sequence(features, lstm_states, episode_starts, lstm)
