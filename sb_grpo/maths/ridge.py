"""Ridge regressions from their Gram matrices, several at once."""

from __future__ import annotations

import torch as th

from sb_grpo.types import Breakdown

#: What is added to a Gram matrix that has no Cholesky factor, in units of its mean diagonal, until it has one.
JITTER = (1e-5, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def factorise(systems: th.Tensor, ridges: th.Tensor) -> th.Tensor:
    """Cholesky factors of Gram matrices with a ridge each; the constant, column 0, is not shrunk.

    :param systems: ``[n, size, size]`` float64; changed
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


def solve_each(factor: th.Tensor, right: th.Tensor) -> th.Tensor:
    """Solutions of systems with a right side each.

    :param factor: ``[n, size, size]`` from :func:`factorise`
    :param right: ``[n, size]``
    :return: ``[size, n]``
    """
    return th.cholesky_solve(right.unsqueeze(2), factor).squeeze(2).T
