"""Families of causal graphs: directed acyclic graphs over variables 0 to d - 1; variable 0 is the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import networkx as nx
import numpy as np

TARGET = 0

#: Function from the number of variables, the largest number of parents and a generator to edges in a causal order.
Edges = list[tuple[int, int]]


def chain(d: int, max_parents: int, rng: np.random.Generator) -> Edges:
    """0 -> 1 -> ... -> d - 1."""
    return [(i, i + 1) for i in range(d - 1)]


def fork(d: int, max_parents: int, rng: np.random.Generator) -> Edges:
    """One common cause of all others."""
    return [(0, i) for i in range(1, d)]


def star(d: int, max_parents: int, rng: np.random.Generator) -> Edges:
    """Many causes of one centre; beyond ``max_parents`` the variables are its effects."""
    centre = min(max_parents, d - 1)
    return [(i, centre) for i in range(centre)] + [(centre, i) for i in range(centre + 1, d)]


def collider(d: int, max_parents: int, rng: np.random.Generator) -> Edges:
    """0 -> 1 <- 2 -> 3 <- 4 ...: every other variable is a common effect of its neighbours."""
    return [edge for i in range(1, d, 2) for edge in ((i - 1, i), (i + 1, i)) if max(edge) < d]


def random(d: int, max_parents: int, rng: np.random.Generator) -> Edges:
    """Sparse: every variable but the first has one or two parents (at most ``max_parents``) among those before it."""
    edges: Edges = []
    for j in range(1, d):
        n = min(int(rng.integers(1, 3)), j, max_parents)
        edges += [(int(i), j) for i in rng.choice(j, size=n, replace=False)]
    return edges


STRUCTURES: dict[str, Callable[[int, int, np.random.Generator], Edges]] = {
    "chain": chain,
    "fork": fork,
    "star": star,
    "collider": collider,
    "random": random,
}


def check_structures(names: Iterable[str]) -> tuple[str, ...]:
    """Check names of families, and return them as a tuple.

    :raises ValueError: for no name, or an unknown one
    """
    chosen = (names,) if isinstance(names, str) else tuple(names)
    unknown = [name for name in chosen if name not in STRUCTURES]
    if unknown or not chosen:
        raise ValueError(f"structures={chosen!r}: choose one or more of {', '.join(STRUCTURES)}, or pass a graph.")
    return chosen


def check_graph(graph: nx.DiGraph | Iterable[tuple[int, int]], max_parents: int) -> nx.DiGraph:
    """Check a graph for the env.

    :param graph: ``networkx.DiGraph`` or iterable of (cause, effect) pairs over 0 to d - 1
    :param max_parents: most parents of one variable
    :return: the graph
    :raises ValueError: for other nodes, a cycle, a variable with too many parents, or a target without parents
    """
    graph = graph if isinstance(graph, nx.DiGraph) else nx.DiGraph(list(graph))
    d = graph.number_of_nodes()
    if d < 2 or set(graph) != set(range(d)):
        raise ValueError(f"graph has the nodes {sorted(graph, key=str)}, but must have 0 to d - 1, d >= 2: relabel them.")
    if not nx.is_directed_acyclic_graph(graph):
        cycle = " -> ".join(str(i) for i, _ in nx.find_cycle(graph))
        raise ValueError(f"graph has a cycle ({cycle} -> ...), but causes come before effects: remove one of these edges.")
    widest = max(graph, key=graph.in_degree)
    if graph.in_degree(widest) > max_parents:
        raise ValueError(
            f"variable {widest} of graph has {graph.in_degree(widest)} parents, more than max_parents={max_parents}: raise it."
        )
    if graph.in_degree(TARGET) == 0:
        raise ValueError("variable 0 of graph is the target and has no parents: give it one, so that there is a task.")
    return graph


def draw_graph(structure: str, d: int, max_parents: int, rng: np.random.Generator) -> nx.DiGraph:
    """Draw a graph of a family with shuffled, uninformative labels; its target has at least one parent.

    :param structure: one of ``STRUCTURES``
    :param d: variables
    :param max_parents: most parents of one variable
    :param rng: generator
    """
    edges = STRUCTURES[structure](d, max_parents, rng)
    label = rng.permutation(d)
    effects = sorted({j for _, j in edges})
    target = effects[rng.integers(len(effects))]
    other = int(np.flatnonzero(label == TARGET)[0])
    label[other] = label[target]
    label[target] = TARGET
    graph = nx.DiGraph()
    graph.add_nodes_from(range(d))
    graph.add_edges_from((int(label[i]), int(label[j])) for i, j in edges)
    return graph
