"""Solve several ridge regressions at once from their Gram matrices."""

from __future__ import annotations

import torch as th

from sb_grpo.types import Breakdown

#: Terms added in turn to the diagonal of a Gram matrix without a Cholesky factor, in units of its mean diagonal.
JITTER = (1e-5, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def factorise(systems: th.Tensor, ridges: th.Tensor) -> th.Tensor:
    """Compute Cholesky factors of Gram matrices, each with its ridge; the constant, column 0, is not shrunk.

    :param systems: ``[n, size, size]`` float64; modified in place
    :param ridges: ``[n]``
    :return: ``[n, size, size]``
    :raises Breakdown: for systems that are not finite
    """
    factor: th.Tensor
    diagonal = systems.diagonal(dim1=1, dim2=2)[:, 1:]
    diagonal += ridges.unsqueeze(1)
    for jitter in JITTER:  # the weakest ridge may drown in the rounding errors of the float32 Gram matrices
        factor, failed = th.linalg.cholesky_ex(systems)
        if not bool(failed.any()):
            return factor
        diagonal += jitter * diagonal.mean()
    raise Breakdown("The state baseline's regression cannot be solved: its features or returns are not finite.")


class AnchoredRidge:
    """Weights w that minimise ``|y - Phi w|^2 + ridge |w - anchor * before|^2``; the constant, column 0, is not shrunk.

    Gram matrices and right sides may include earlier data. Factorised once, solved for any number of right sides.

    :param grams: ``[n, size, size]`` float64, one per system; modified in place
    :param ridges: ``[n]`` float64
    :param before: ``[size]`` or ``[size, columns]`` weights that the ridge pulls towards
    :param anchor: share of ``before``
    :raises Breakdown: for systems that are not finite
    """

    def __init__(self, grams: th.Tensor, ridges: th.Tensor, before: th.Tensor, anchor: float) -> None:
        self.factor = factorise(grams, ridges)
        pull = anchor * (ridges.view(-1, 1, 1) * before.double().view(len(before), -1))
        pull[:, 0] = 0.0
        self.pull = pull

    def solve(self, right: th.Tensor, which: slice = slice(None)) -> th.Tensor:
        """Weights for right sides ``Phi^T y``.

        :param right: ``[size]`` of all systems, ``[n, size]`` of each, or ``[size, columns]`` of a single system
        :param which: of the systems; default: all
        :return: ``[size, n]``, or ``[size, columns]``, float64
        """
        factor = self.factor[which]
        pull = self.pull[which]
        sides = right.double()
        sides = sides.unsqueeze(-1) if pull.shape[2] == 1 else sides
        solution = th.cholesky_solve(sides + pull, factor)
        return solution.squeeze(2).T if pull.shape[2] == 1 else solution[0]
