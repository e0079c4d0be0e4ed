"""CausalIntervention-v0: experiments on an unknown causal system, to maximise its target and to find the target's parents."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb_grpo.tasks.causal.actions import make_actions
from sb_grpo.tasks.causal.effects import Effects
from sb_grpo.tasks.causal.graphs import STRUCTURES, TARGET, check_graph, check_structures, draw_graph
from sb_grpo.tasks.causal.posterior import EdgePosterior
from sb_grpo.tasks.causal.rewards import Potentials, check_weights
from sb_grpo.tasks.causal.scm import FEATURES, N_FEATURES, draw_model
from sb_grpo.types import Action, Info, Kwargs

if TYPE_CHECKING:
    import networkx as nx

MAX_VARIABLES = 10
#: Values and noise up to this bound cannot overflow float64 in products along ten variables.
LARGEST = 1e6
#: Bound of every entry of an observation.
OBS_LIMIT = 10.0


class CausalInterventionEnv(gym.Env[np.ndarray, Action]):
    """Env whose episodes are new, hidden structural causal models; each step is one experiment.

    A step sets a variable to a value, draws ``n_samples`` samples of all variables, and updates the posterior over the graph
    and the estimated effects of interventions on the target, variable 0. An episode has ``budget`` steps.

    ``reset(seed=...)`` determines graph, mechanisms, first data, and the noise of every step; the number of draws does not
    depend on the action. Members of a group share all of it.

    The observation, ``[D (D + 2) + 2 (D - 1) B + 1]`` float32 in [-10, 10] for at most D variables and B values, is split by
    :meth:`parts`. The reward is the weighted sum of the increments of four potentials (``sb_grpo.tasks.causal.rewards``), each
    in [0, 1]. ``info`` has unweighted components in ``"rewards"``, potentials in ``"potentials"``, ``"intervention"``
    (variable or None, value), ``"recommendation"`` (the same, for the best intervention by the data so far) and ``"target"``,
    the mean of the target in this step.

    :param structures: families of an episode's graph: ``"chain"``, ``"fork"``, ``"star"``, ``"collider"``, ``"random"``, or
        several of them
    :param n_variables: 2 to 10, or the smallest and the largest number, drawn for each episode
    :param mechanism: ``"linear"`` or ``"nonlinear"``
    :param graph: replaces ``structures`` and ``n_variables``: a ``networkx.DiGraph`` or (cause, effect) pairs over 0 to d - 1,
        where 0 is the target; mechanisms are still drawn
    :param budget: experiments per episode
    :param n_observations: samples without intervention at the start
    :param n_samples: samples per experiment
    :param max_value: largest absolute value of interventions, same unit as the variables
    :param n_values: number of evenly spaced values, at least 2
    :param noise: largest standard deviation of a variable's own noise
    :param max_parents: largest number of parents, in the graphs and in the posterior
    :param actions: ``"discrete"``, ``"multi_discrete"`` or ``"box"`` (``sb_grpo.tasks.causal.actions``)
    :param reward_weights: changes to the default weights ``{"optimization": 1.0, "structure": 0.5, "parent": 0.3,
        "exploration": 0.1}``
    :raises ValueError: for arguments out of range
    """

    metadata: Kwargs = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        structures: str | Iterable[str] = tuple(STRUCTURES),
        n_variables: int | tuple[int, int] = 5,
        mechanism: str = "linear",
        graph: nx.DiGraph | Iterable[tuple[int, int]] | None = None,
        budget: int = 10,
        n_observations: int = 10,
        n_samples: int = 1,
        max_value: float = 2.0,
        n_values: int = 5,
        noise: float = 1.0,
        max_parents: int = 3,
        actions: str = "discrete",
        reward_weights: Mapping[str, float] | None = None,
    ) -> None:
        check_integers(1, budget=budget, n_samples=n_samples, max_parents=max_parents)
        check_integers(0, n_observations=n_observations)
        check_integers(2, n_values=n_values)
        check_positive(max_value=max_value, noise=noise)
        if mechanism not in FEATURES:
            raise ValueError(f"mechanism={mechanism!r}: choose {', '.join(map(repr, FEATURES))}.")
        self.structures = check_structures(structures)
        self.mechanism = mechanism
        self.graph = None if graph is None else check_graph(graph, max_parents)
        self.n_variables = check_sizes(n_variables if self.graph is None else self.graph.number_of_nodes())
        self.budget = budget
        self.n_observations = n_observations
        self.n_samples = n_samples
        self.noise = noise
        self.max_parents = max_parents
        self.grid = np.linspace(-max_value, max_value, n_values)
        self.weights = check_weights(reward_weights)
        most = self.n_variables[1]
        self.action_space, self._decode = make_actions(actions, most, self.grid)
        table = (most - 1, n_values)
        shapes: dict[str, int | tuple[int, int]] = {"present": most, "tried": most, "edges": (most, most)}
        shapes |= {"effects": table, "deviations": table, "left": 1}
        ends = np.cumsum([np.prod(shape) for shape in shapes.values()]).tolist()
        self._layout = {
            name: (start, stop, shapes[name]) for name, start, stop in zip(shapes, [0, *ends[:-1]], ends, strict=True)
        }
        self._size = ends[-1]
        self.observation_space = spaces.Box(-OBS_LIMIT, OBS_LIMIT, (self._size,), np.float32)
        self._n_max = n_observations + budget * n_samples

    def parts(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        """Split an observation of D variables and B values by name; entries of absent variables are 0.

        ``present``, ``tried`` ``[D]``: 1 if the variable exists; share of the budget spent on it. ``edges`` ``[D, D]``:
        posterior probability of i -> j. ``effects``, ``deviations`` ``[D - 1, B]``: mean and standard deviation of the
        estimated effect on the target of setting variable i + 1 to the b-th value, in standard deviations of the target.
        ``left`` ``[1]``: share of the budget left.

        :param obs: ``[size]``
        """
        return {name: obs[start:stop].reshape(shape) for name, (start, stop, shape) in self._layout.items()}

    def reset(self, *, seed: int | None = None, options: Kwargs | None = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        rng = self.np_random
        structure = self.structures[rng.integers(len(self.structures))] if self.graph is None else "given"
        low, high = self.n_variables
        self.d = int(rng.integers(low, high + 1))
        graph = self.graph if self.graph is not None else draw_graph(structure, self.d, self.max_parents, rng)
        self.model = draw_model(graph, self.mechanism, self.noise, rng)
        self._score = Potentials(self.model.adjacency(), TARGET)
        self._rate_interventions()
        self.steps = 0
        self.tries = np.zeros(self.d, dtype=np.int64)
        self.posterior = EdgePosterior(self.d, self.max_parents, N_FEATURES[self.mechanism], self._n_max)
        data = self.model.intervene(rng.standard_normal((self.n_observations, self.d)))
        self._learn(data, None, 0.0)
        self.effects = Effects(self.d, self.grid, self.mechanism, data[:, TARGET], self.noise, self._n_max)
        self._judge()
        return self._observation(), {"structure": structure, "potentials": dict(self._potentials)}

    def step(self, action: Action) -> tuple[np.ndarray, float, bool, bool, Info]:
        if self.steps >= self.budget:
            raise ValueError(f"the budget of {self.budget} experiments is spent: call reset() before the next step().")
        variable, value = self._decode(action)
        if variable is not None and variable >= self.d:
            variable = None
        data = self.model.intervene(self.np_random.standard_normal((self.n_samples, self.d)), variable, value)
        self._learn(data, variable, value)
        self.steps += 1
        before = self._potentials
        self._judge()
        rewards = {name: after - before[name] for name, after in self._potentials.items()}
        info = {
            "rewards": rewards,
            "potentials": dict(self._potentials),
            "intervention": (variable, value if variable is not None else None),
            "recommendation": self._recommendation,
            "target": float(data[:, TARGET].mean()),
        }
        reward = sum(self.weights[name] * part for name, part in rewards.items())
        return self._observation(), reward, self.steps >= self.budget, False, info

    def _rate_interventions(self) -> None:
        """Rate every intervention and observing: 0 for the lowest mean of the target, 1 for the highest."""
        variables = np.append(np.repeat(np.arange(1, self.d), len(self.grid)), -1)
        values = np.append(np.tile(self.grid, self.d - 1), 0.0)
        means = self.model.means(TARGET, variables, values)
        spread = means.max() - means.min()
        self._quality = (means - means.min()) / spread if spread > 0 else np.ones_like(means)

    def _learn(self, data: np.ndarray, variable: int | None, value: float) -> None:
        features = FEATURES[self.mechanism](data)
        for x, phi in zip(data, features, strict=True):
            self.posterior.update(x, phi, variable)
            if variable is not None:
                self.effects.update(variable, value, float(x[TARGET]))
        if variable is not None:
            self.tries[variable] += 1

    def _judge(self) -> None:
        """Update posterior, estimates, recommendation and potentials from the data."""
        self._edges = self.posterior.edges()
        self._means, self._deviations = self.effects.estimates()
        best = int(self._means.argmax())
        if self._means.ravel()[best] > 0:
            variable, value = divmod(best, len(self.grid))
            self._recommendation: tuple[int | None, float | None] = (variable + 1, float(self.grid[value]))
        else:
            best = -1
            self._recommendation = (None, None)
        quality = float(self._quality[best])
        self._potentials = self._score(quality, self._edges, int(np.count_nonzero(self.tries)))

    def _observation(self) -> np.ndarray:
        obs: np.ndarray = np.zeros(self._size, dtype=np.float32)
        part = self.parts(obs)  # views
        d = self.d
        part["present"][:d] = 1.0
        part["tried"][:d] = self.tries / self.budget
        part["edges"][:d, :d] = self._edges
        part["effects"][: d - 1] = self._means.clip(-OBS_LIMIT, OBS_LIMIT)
        part["deviations"][: d - 1] = self._deviations.clip(-OBS_LIMIT, OBS_LIMIT)
        part["left"][0] = 1.0 - self.steps / self.budget
        return obs


def check_integers(least: int, **values: object) -> None:
    """Check integers.

    :raises ValueError: for a value that is not an integer or less than ``least``
    """
    for name, value in values.items():
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name}={value!r} must be an integer of at least {least}.")


def check_positive(**values: object) -> None:
    """Check positive numbers.

    :raises ValueError: for a value that is not a positive number or exceeds ``LARGEST``
    """
    for name, value in values.items():
        if not isinstance(value, numbers.Real) or not 0 < float(value) <= LARGEST:
            raise ValueError(f"{name}={value!r} must be a positive number of at most {LARGEST:g}: choose a smaller unit.")


def check_sizes(n_variables: Any) -> tuple[int, int]:
    """Smallest and largest number of variables.

    :raises ValueError: if they are not integers from 2 to 10 in ascending order
    """
    sizes = (n_variables, n_variables) if isinstance(n_variables, numbers.Integral) else tuple(n_variables)
    if len(sizes) != 2 or not all(isinstance(n, numbers.Integral) for n in sizes) or sizes[0] > sizes[1]:
        raise ValueError(f"n_variables={n_variables!r} must be an integer, or the smallest and the largest number.")
    if sizes[0] < 2 or sizes[1] > MAX_VARIABLES:
        raise ValueError(
            f"n_variables={n_variables!r} must lie between 2 and {MAX_VARIABLES}: the posterior's work doubles with each."
        )
    return int(sizes[0]), int(sizes[1])
