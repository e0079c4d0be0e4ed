"""The gradient of a minibatch: plain, or with conflicts between tasks taken out (PCGrad); and its clipping."""

from __future__ import annotations

from collections.abc import Callable

import torch as th
from torch import nn

from sb_grpo.learn.minibatches import portions
from sb_grpo.maths.precision import autocasting
from sb_grpo.types import Minibatch

#: From a minibatch to its loss, the mean over its rows.
LossFunction = Callable[[Minibatch], th.Tensor]


class PlainGradient:
    """Backpropagation of the loss, in parts that fit into memory.

    :param micro_batch_size: rows per part; None: all at once
    :param autocast: compute the loss in bfloat16
    """

    def __init__(self, micro_batch_size: int | None = None, autocast: bool = False) -> None:
        self.micro_batch_size = micro_batch_size
        self.autocast = autocast

    def start_update(self, tasks: th.Tensor | None) -> None:
        """An update begins.

        :param tasks: ``[E]`` task of each episode of the rollout
        """

    def metrics(self) -> dict[str, float]:
        """Metrics of the update that has ended, by logger key."""
        return {}

    def __call__(self, loss: LossFunction, minibatch: Minibatch, parameters: list[nn.Parameter]) -> None:
        """Put the gradient of the loss into ``.grad``.

        :param loss: of rows, as their mean
        :param minibatch: B rows
        :param parameters: of the policy
        """
        rows = len(minibatch.advantages)
        size = self.micro_batch_size or max(rows, 1)  # one of several learners may have no rows
        for parameter in parameters:  # as optimizer.zero_grad(), without its bookkeeping
            parameter.grad = None
        for start, end in portions(minibatch, size):
            whole = end - start == rows
            part = minibatch if whole else minibatch.map(lambda x: x[start:end])  # noqa: B023
            with autocasting(minibatch.advantages.device, self.autocast):
                value = loss(part)
            if not whole:
                value = value * ((end - start) / rows)
            value.backward()  # type: ignore[no-untyped-call]


def project_conflicts(gradients: th.Tensor, order: th.Tensor) -> th.Tensor:
    """Remove from each gradient the part that points against another one (PCGrad, arXiv 2001.06782, algorithm 1).

    g_i <- g_i - (g_i . g_j / |g_j|^2) g_j for every j, in a random order, where g_i . g_j < 0; the g_j are the original ones.

    :param gradients: ``[T, P]`` one gradient per task
    :param order: ``[T, T]`` int64: row i is the order in which task i meets the others (itself included: nothing happens)
    :return: ``[T, P]``
    """
    sizes = gradients.square().sum(1).clamp(min=th.finfo(gradients.dtype).tiny)
    projected = gradients.clone()
    tasks = th.arange(len(gradients), device=gradients.device)
    for others in order.unbind(1):  # every task meets its next one at once
        other = gradients[others]
        dot = (projected * other).sum(1)
        share = th.where((dot < 0) & (others != tasks), dot / sizes[others], th.zeros_like(dot))
        projected = projected - share.unsqueeze(1) * other
    return projected


def conflict_rate(gradients: th.Tensor) -> th.Tensor:
    """Share of the pairs of gradients that point against each other.

    :param gradients: ``[T, P]``, T >= 2
    :return: scalar in [0, 1]
    """
    n = len(gradients)
    pairs = th.triu_indices(n, n, offset=1, device=gradients.device)
    products = gradients @ gradients.T
    return (products[pairs[0], pairs[1]] < 0).float().mean()


class SurgicalGradient(PlainGradient):
    """One gradient per task, conflicts projected away, then summed. Without conflicts it is the plain gradient.

    :param generator: of the order in which tasks meet; None: torch's own, which the model seeds
    :param micro_batch_size: rows per backward pass of a task
    :param autocast: compute the loss in bfloat16
    """

    def __init__(
        self, micro_batch_size: int | None = None, autocast: bool = False, generator: th.Generator | None = None
    ) -> None:
        super().__init__(micro_batch_size, autocast)
        self.generator = generator
        self._tasks: th.Tensor | None = None
        self._rates: list[th.Tensor] = []

    def start_update(self, tasks: th.Tensor | None) -> None:
        self._tasks = tasks
        self._rates = []

    def metrics(self) -> dict[str, float]:
        return {"train/conflict_rate": float(th.stack(self._rates).mean())} if self._rates else {}

    def __call__(self, loss: LossFunction, minibatch: Minibatch, parameters: list[nn.Parameter]) -> None:
        assert self._tasks is not None
        task = self._tasks[minibatch.episode]
        rows = len(task)
        gradients = []
        for label in th.unique(task).tolist():
            own = (task == label).nonzero().squeeze(1)
            part = minibatch.map(lambda x: x.index_select(0, own))  # noqa: B023
            super().__call__(loss, part, parameters)
            # The parts' losses are means over their own rows: weighted like this they add up to the minibatch's.
            flat = [th.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            gradients.append(th.cat([g.flatten() for g in flat]) * (len(own) / rows))
        if len(gradients) > 1:
            matrix = th.stack(gradients)
            n = len(matrix)
            order = th.stack([th.randperm(n, generator=self.generator) for _ in range(n)]).to(matrix.device)
            self._rates.append(conflict_rate(matrix))
            total = project_conflicts(matrix, order).sum(0)
        else:
            total = gradients[0]
        for parameter, part_of in zip(parameters, th.split(total, [p.numel() for p in parameters]), strict=True):
            parameter.grad = part_of.view_as(parameter).clone()


def clip_gradients(parameters: list[nn.Parameter], max_norm: float) -> th.Tensor:
    """Scale all gradients so that their joint norm is at most ``max_norm``; never makes the host wait.

    :return: ``[P]`` norm of each parameter's gradient before clipping (0 where there is none)
    """
    grads = [th.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    norms = th.stack(th._foreach_norm(grads))
    th._foreach_mul_(grads, gradient_scale(norms, max_norm))
    return norms


def gradient_scale(norms: th.Tensor, max_norm: float | th.Tensor) -> th.Tensor:
    """Factor of the gradients that makes their joint norm at most ``max_norm``.

    :param norms: ``[P]`` norm of each gradient
    """
    scale: th.Tensor = (max_norm / (norms.norm() + 1e-6)).clamp(max=1.0)
    return scale
