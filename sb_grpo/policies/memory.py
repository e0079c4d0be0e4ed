"""Recurrent layers (LSTM or GRU) between features and policy network; the state is part of the observation.

The policy network sees only the outputs of the recurrent layers. If it also saw the features, it would settle for a policy
without memory before the memory has learnt (docs/studies/masks_and_memory.md).

Every step is stored with the state before it. So each step can be evaluated alone (old log-probabilities, features of the
baseline), and a sequence can begin anywhere; gradients stop at its beginning (truncated back-propagation through time from
stored states, as in R2D2, Kapturowski et al., 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch as th
from torch import nn

from sb_grpo.config import check_settings

KINDS: dict[str, tuple[type[nn.LSTM] | type[nn.GRU], int]] = {"lstm": (nn.LSTM, 2), "gru": (nn.GRU, 1)}


#: Longest initial time scale of units, in steps.
SPAN = 100.0


class Memory(nn.Module):
    """Layers of LSTM or GRU cells; a state is one row of numbers, zeros when an episode begins.

    :param kind: ``"lstm"`` or ``"gru"``
    :param n_inputs: features of a step
    :param size: units per layer
    :param n_layers: layers
    :param span: longest initial time scale of every other unit, in steps; the others forget half at every step
    :param with_features: also output the features
    :raises ValueError: for another kind, and for sizes below 1
    """

    def __init__(
        self, kind: str, n_inputs: int, size: int, n_layers: int, span: float = SPAN, with_features: bool = False
    ) -> None:
        super().__init__()
        settings = {"memory": kind, "memory_size": size, "n_layers": n_layers, "memory_span": span}
        check_settings("policy_kwargs", settings)
        net, n_parts = KINDS[kind]
        self.net = net(n_inputs, int(size), int(n_layers))
        self.form = (n_parts, int(n_layers), int(size))
        self.n_state = n_parts * int(n_layers) * int(size)
        self.with_features = with_features
        self.n_outputs = int(size) + n_inputs * with_features
        self._keep_long(float(span))

    @th.no_grad()
    def _keep_long(self, span: float) -> None:
        """Chrono initialisation (Tallec and Ollivier, 2018, https://arxiv.org/abs/1804.11188) of every other unit.

        Such a unit keeps its value for up to ``span`` steps, and changes as slowly. The other units have the usual bias of 0,
        which forgets half at every step, so that short dependencies are learnt early.
        """
        size = self.form[2]
        for layer in range(self.form[1]):
            bias, other = (getattr(self.net, f"{name}_l{layer}") for name in ("bias_ih", "bias_hh"))
            keep = th.empty(size).uniform_(1.0, span).log_()
            keep[::2] = 0.0
            bias[size : 2 * size] = keep  # the forget gate, or a GRU's update gate
            other[size : 2 * size] = 0.0
            if self.form[0] == 2:
                bias[:size] = -keep  # the input gate
                other[:size] = 0.0

    def forward(
        self, x: th.Tensor, state: th.Tensor | None, sequence: th.Tensor | None = None
    ) -> tuple[th.Tensor, th.Tensor | None]:
        """Compute the outputs of the recurrent layers, preceded by the features if ``with_features``.

        :param x: ``[batch, n_inputs]``
        :param state: ``[batch, n_state]`` before each step; None: zeros
        :param sequence: of :meth:`run`; None: every row is a sequence of its own
        :return: ``[batch, n_outputs]``, and the state after each step if ``sequence`` is None
        """
        if th.is_autocast_enabled(x.device.type):  # bfloat16 would round the state at each of many steps
            with th.autocast(x.device.type, enabled=False):
                return self(x.float(), state, sequence)  # type: ignore[no-any-return]
        if state is None:
            state = x.new_zeros((len(x), self.n_state))
        out, after = self.step(x, state) if sequence is None else (self.run(x, state, sequence), None)
        return th.cat([x, out], dim=-1) if self.with_features else out, after

    def before(self, state: th.Tensor | None, begins: th.Tensor) -> th.Tensor:
        """Recurrent state before a step: zeros when an episode begins.

        :param state: ``[batch, n_state]`` after the previous step, or None
        :param begins: ``[batch]`` bool
        :return: ``[batch, n_state]``
        """
        if state is None:
            return th.zeros((len(begins), self.n_state), device=begins.device)
        return state.masked_fill(begins.unsqueeze(1), 0.0)

    def step(self, x: th.Tensor, state: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Advance every row by one step.

        :param x: ``[batch, n_inputs]``
        :param state: ``[batch, n_state]`` before the step
        :return: ``[batch, size]``, and ``[batch, n_state]`` after it
        """
        n_parts, n_layers, size = self.form
        before = th.split(state, size, dim=-1)
        hidden = list[th.Tensor]()
        cells = list[th.Tensor]()
        for layer, weights in enumerate(self.net.all_weights):
            if n_parts == 2:
                x, cell = th.lstm_cell(x, (before[layer], before[n_layers + layer]), *weights)
                cells.append(cell)
            else:
                x = th.gru_cell(x, before[layer], *weights)
            hidden.append(x)
        return x, th.cat([*hidden, *cells], dim=-1)

    def run(self, x: th.Tensor, state: th.Tensor, sequence: th.Tensor) -> th.Tensor:
        """Run sequences of steps, each from the state of its first row.

        :param x: ``[batch, n_inputs]``, rows of a sequence adjacent and in order
        :param state: ``[batch, n_state]``
        :param sequence: ``[batch]`` number of each row's sequence
        :return: ``[batch, size]``
        """
        if len(x) == 0:  # one of several learners may have no rows
            return self.step(x, state)[0]
        _, number, lengths = th.unique_consecutive(sequence, return_inverse=True, return_counts=True)
        first = lengths.cumsum(0) - lengths
        place = th.arange(len(x), device=x.device) - first[number]
        padded = x.new_zeros((int(lengths.max()), len(lengths), x.shape[1])).index_put((place, number), x)
        start = state[first].view(-1, *self.form).permute(1, 2, 0, 3).contiguous()
        out, _ = self.net(padded, (start[0], start[1]) if self.form[0] == 2 else start[0])
        return out[place, number]  # type: ignore[no-any-return]

    def to_parts(self, state: th.Tensor) -> tuple[np.ndarray, ...]:
        """Split a state into the form of sb3-contrib's RecurrentPPO: ``[n_layers, batch, size]`` per part."""
        return tuple(state.view(-1, *self.form).permute(1, 2, 0, 3).cpu().numpy())

    def from_parts(self, parts: np.ndarray | Sequence[np.ndarray] | None, n: int, device: th.device) -> th.Tensor | None:
        """Join the parts to ``[n, n_state]``; None without parts.

        :raises ValueError: for parts of another form
        """
        if parts is None:
            return None
        n_parts, n_layers, size = self.form
        found = [np.asarray(part) for part in parts] if isinstance(parts, tuple | list) else [np.asarray(parts)]
        if len(found) != n_parts or any(part.shape != (n_layers, n, size) for part in found):
            raise ValueError(
                f"state has the parts {[part.shape for part in found]}, but this policy's has {n_parts} of "
                f"{(n_layers, n, size)}: pass what predict() returned for the same number of envs, or None."
            )
        return th.as_tensor(np.stack(found), dtype=th.float32, device=device).permute(2, 0, 1, 3).flatten(1)
