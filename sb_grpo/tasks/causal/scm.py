"""Structural causal models: each variable is a function of its parents plus noise, and any variable can be set.

x_j = bias_j + sum over parents i of coefficients[i, :, j] . features(x_i) + noise_j (Pearl, Causality, 2nd ed. 2009, section
1.4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np

#: Features per mechanism: the contribution of a cause is a linear combination of them.
FEATURES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda x: x[..., None],
    # Bounded, with extremes that depend on the pair of coefficients.
    "nonlinear": lambda x: np.stack([np.tanh(x), np.sin(2.0 * x)], axis=-1),
}
N_FEATURES = {"linear": 1, "nonlinear": 2}

#: Fixed antithetic noise for means of nonlinear mechanisms, so that means depend only on the model.
_HALF = np.random.default_rng(0).standard_normal((64, 10))
MEAN_NOISE = np.concatenate([_HALF, -_HALF])


@dataclass(frozen=True)
class CausalModel:
    """A structural causal model over d variables.

    :param graph: acyclic, nodes 0 to d - 1
    :param mechanism: ``"linear"`` or ``"nonlinear"``
    :param coefficients: ``[d, n_features, d]``: cause, feature, effect; 0 without an edge
    :param bias: ``[d]``
    :param noise_scale: ``[d]`` standard deviation of the noise, same unit as the variables
    """

    graph: nx.DiGraph
    mechanism: str
    coefficients: np.ndarray
    bias: np.ndarray
    noise_scale: np.ndarray

    def __post_init__(self) -> None:
        if not nx.is_directed_acyclic_graph(self.graph):
            raise ValueError("the graph of a CausalModel has a cycle, but causes come before effects: remove an edge of it.")
        for name in ("coefficients", "bias", "noise_scale"):
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} of a CausalModel must be finite, but is {getattr(self, name)}.")

    @cached_property
    def order(self) -> list[int]:
        """The variables, causes first."""
        return list(nx.topological_sort(self.graph))

    @property
    def d(self) -> int:
        """Number of variables."""
        return len(self.bias)

    def adjacency(self) -> np.ndarray:
        """``[d, d]`` bool, entry (i, j): i -> j."""
        edges: np.ndarray = np.any(self.coefficients != 0.0, axis=1)
        return edges

    def run(self, noise: np.ndarray, fixed: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Compute all variables, some of which are set.

        :param noise: ``[n, d]`` standard normal
        :param fixed: ``[n, d]`` bool: variables that are set
        :param values: ``[n, d]`` values of these
        :return: ``[n, d]``
        """
        features = FEATURES[self.mechanism]
        x: np.ndarray = self.bias + noise * self.noise_scale
        for j in self.order:
            x[:, j] = np.where(fixed[:, j], values[:, j], x[:, j])
            x += features(x[:, j]) @ self.coefficients[j]
        return x

    def intervene(self, noise: np.ndarray, variable: int | None = None, value: float = 0.0) -> np.ndarray:
        """Sample under do(variable = value); None: without intervention.

        :param noise: ``[n, d]`` standard normal
        :return: ``[n, d]``
        :raises ValueError: for an unknown variable or a value that is not finite
        """
        fixed = np.zeros(noise.shape, dtype=bool)
        if variable is not None:
            if not 0 <= variable < self.d:
                raise ValueError(f"intervention on variable {variable}, but there are 0 to {self.d - 1}: choose one of them.")
            if not np.isfinite(value):
                raise ValueError(f"intervention with value {value} on variable {variable}: choose a finite value.")
            fixed[:, variable] = True
        return self.run(noise, fixed, np.full(noise.shape, value))

    def means(self, target: int, variables: np.ndarray, values: np.ndarray) -> np.ndarray:
        """E[x_target | do(variable = value)] for many interventions.

        Exact for linear mechanisms; otherwise a mean over 128 fixed antithetic draws of the noise, the same for all
        interventions.

        :param target: variable
        :param variables: ``[k]`` int; -1: no intervention
        :param values: ``[k]``
        :return: ``[k]``
        """
        draws = np.zeros((1, self.d)) if self.mechanism == "linear" else MEAN_NOISE[:, : self.d]
        k = len(variables)
        n = len(draws)
        fixed = np.zeros((k, n, self.d), dtype=bool)
        fixed[np.arange(k), :, variables] = True
        fixed[variables < 0] = False
        set_to = np.broadcast_to(values[:, None, None], fixed.shape)
        x = self.run(np.tile(draws, (k, 1)), fixed.reshape(k * n, -1), set_to.reshape(k * n, -1))
        means: np.ndarray = x[:, target].reshape(k, n).mean(1)
        return means


def draw_model(graph: nx.DiGraph, mechanism: str, noise: float, rng: np.random.Generator) -> CausalModel:
    """Draw mechanisms for a graph.

    Coefficients have size 0.5 to 1.5 and either sign, biases are within 0.5, noise scales within half of ``noise`` to
    ``noise``.

    :param graph: acyclic, nodes 0 to d - 1
    :param mechanism: ``"linear"`` or ``"nonlinear"``
    :param noise: largest standard deviation of a variable's own noise
    :param rng: generator
    """
    d = graph.number_of_nodes()
    size = rng.uniform(0.5, 1.5, (d, N_FEATURES[mechanism], d)) * rng.choice([-1.0, 1.0], (d, N_FEATURES[mechanism], d))
    edge = nx.to_numpy_array(graph, nodelist=range(d)) > 0
    bias = rng.uniform(-0.5, 0.5, d)
    scale = noise * rng.uniform(0.5, 1.0, d)
    return CausalModel(graph, mechanism, size * edge[:, None, :], bias, scale)
