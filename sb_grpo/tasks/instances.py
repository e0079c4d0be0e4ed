"""Instances of scheduling and routing problems: job lists, cities and customers, from files or from package data.

Formats: the job shops of OR-Library and Taillard, CSV job lists, TSPLIB's ``EUC_2D`` and CVRPLIB, CSV lists of cities.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Jobs:
    """Job shop: every job visits machines in a fixed order. Jobs with fewer operations than others are padded with zeros.

    :param name: of the instance
    :param machine: ``[n_jobs, n_operations]`` int64 from 0, the machine of every operation
    :param duration: ``[n_jobs, n_operations]`` float64, expected durations in the user's unit of time
    :param n_ops: ``[n_jobs]`` int64, operations of every job
    :param release: ``[n_jobs]`` time at which the job arrives
    :param weight: ``[n_jobs]`` cost of one unit of time that the job spends in the system
    :param job_names: of the jobs
    :param machine_names: of the machines
    :param optimum: proven makespan; None: unknown
    """

    name: str
    machine: np.ndarray
    duration: np.ndarray
    n_ops: np.ndarray
    release: np.ndarray
    weight: np.ndarray
    job_names: tuple[str, ...]
    machine_names: tuple[str, ...]
    optimum: float | None = None


@dataclass(frozen=True)
class Cities:
    """Points in the plane for a tour, or a depot (row 0) and its customers.

    :param name: of the instance
    :param xy: ``[n, 2]`` float64
    :param demand: ``[n]`` expected demands, 0 for the depot; None: a tour
    :param capacity: of the vehicle; None: a tour
    :param optimum: proven length; None: unknown
    :param rounded: distances are rounded to whole numbers, as TSPLIB's ``EUC_2D`` prescribes
    """

    name: str
    xy: np.ndarray
    demand: np.ndarray | None = None
    capacity: float | None = None
    optimum: float | None = None
    rounded: bool = False

    def distances(self) -> np.ndarray:
        """``[n, n]`` distances."""
        between: np.ndarray = np.hypot(*(self.xy[:, None] - self.xy[None]).transpose(2, 0, 1))
        return np.floor(between + 0.5) if self.rounded else between


@dataclass(frozen=True)
class Items:
    """Items for a knapsack.

    :param name: of the instance
    :param value: ``[n]``
    :param size: ``[n]`` expected sizes
    :param capacity: of the knapsack
    """

    name: str
    value: np.ndarray
    size: np.ndarray
    capacity: float


def make_jobs(
    name: str,
    jobs: Sequence[Sequence[tuple[int, float]]],
    release: Sequence[float] | None = None,
    weight: Sequence[float] | None = None,
    job_names: Sequence[str] | None = None,
    machine_names: Sequence[str] | None = None,
    optimum: float | None = None,
) -> Jobs:
    """Make a job shop of lists.

    :param name: of the instance
    :param jobs: (machine, duration) of every operation of every job, in order
    :param release: arrival times; None: 0
    :param weight: of the jobs; None: 1
    :param job_names: None: numbers
    :param machine_names: None: numbers
    :param optimum: proven makespan
    :raises ValueError: for no jobs, a job without operations, a duration that is not positive, or a machine below 0
    """
    if not jobs or not all(jobs):
        raise ValueError(f"{name}: {len(jobs)} jobs, the shortest with no operation. Every instance needs a job, and every "
                         "job an operation: leave empty jobs out.")  # fmt: skip
    longest = max(map(len, jobs))
    n_machines = 1 + max(machine for job in jobs for machine, _ in job)
    found = np.zeros((2, len(jobs), longest))
    for number, job in enumerate(jobs):
        for step, (machine, duration) in enumerate(job):
            if machine < 0 or not 0 < duration < np.inf:
                raise ValueError(
                    f"{name}: job {number}, operation {step}: machine {machine}, duration {duration}. Machines count from 0, "
                    "and durations are positive and finite."
                )
            found[:, number, step] = machine, duration
    n = len(jobs)
    arrays = [np.asarray([0.0] * n if release is None else release, dtype=np.float64)]
    arrays.append(np.asarray([1.0] * n if weight is None else weight, dtype=np.float64))
    for what, values in zip(("release", "weight"), arrays, strict=True):
        if values.shape != (n,) or not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError(f"{name}: {what}={values.tolist()} must be {n} finite numbers of at least 0, one per job.")
    return Jobs(
        name,
        found[0].astype(np.int64),
        found[1],
        np.array([len(job) for job in jobs]),
        arrays[0],
        arrays[1],
        tuple(job_names or map(str, range(n))),
        tuple(machine_names or map(str, range(n_machines))),
        optimum,
    )


# ------------------------------------------------------------ files


def read_jobs(path: str | Path) -> Jobs:
    """Read a job shop: a CSV job list, OR-Library's format, or Taillard's with ``Times`` and ``Machines``.

    A CSV has the columns ``job``, ``machine``, ``duration``, and optionally ``release`` and ``weight`` of the job; its rows
    are the operations of each job in order.

    :param path: of the file
    :raises ValueError: naming the line and the rule that it breaks
    """
    path = Path(path)
    if path.suffix == ".csv":
        return _jobs_of_csv(path)
    lines, optimum = _lines(path)
    if any(text.lower().startswith("times") for _, text in lines):
        return _jobs_of_taillard(path, lines, optimum)
    if not lines:
        raise _bad(path, 1, "the file is empty; the first line holds the numbers of jobs and machines")
    size = _numbers(path, *lines[0])
    if len(size) != 2 or min(size) < 1 or size != [int(x) for x in size]:
        raise _bad(path, lines[0][0], "the first line holds the numbers of jobs and machines, both whole and at least 1")
    n_jobs = int(size[0])
    n_machines = int(size[1])
    if len(lines) != n_jobs + 1:
        raise _bad(path, lines[-1][0], f"{n_jobs} jobs need {n_jobs} lines behind the first, not {len(lines) - 1}")
    jobs = []
    for line, text in lines[1:]:
        row = _numbers(path, line, text)
        if len(row) != 2 * n_machines:
            raise _bad(path, line, f"{n_machines} pairs of machine and duration make {2 * n_machines} numbers, not {len(row)}")
        jobs.append(_operations(path, line, row[::2], row[1::2], n_machines, 0))
    return make_jobs(path.stem, jobs, machine_names=[*map(str, range(n_machines))], optimum=optimum)


def _jobs_of_taillard(path: Path, lines: list[tuple[int, str]], optimum: float | None) -> Jobs:
    places = {text.lower(): i for i, (_, text) in enumerate(lines) if re.fullmatch(r"(times|machines)", text.lower())}
    if set(places) != {"times", "machines"} or places["machines"] < places["times"]:
        raise _bad(path, lines[-1][0], "Taillard's format has a line 'Times' and later a line 'Machines'")
    times = lines[places["times"] + 1 : places["machines"]]
    machines = lines[places["machines"] + 1 :]
    if len(times) != len(machines) or not times:
        raise _bad(path, lines[-1][0], f"{len(times)} lines of times need as many lines of machines, not {len(machines)}")
    n_machines = len(times[0][1].split())
    jobs = []
    for (line, text), (line_of_machines, text_of_machines) in zip(times, machines, strict=True):
        duration = _numbers(path, line, text)
        machine = _numbers(path, line_of_machines, text_of_machines)
        for where, row in ((line, duration), (line_of_machines, machine)):
            if len(row) != n_machines:
                raise _bad(path, where, f"{n_machines} machines need as many numbers, not {len(row)}")
        jobs.append(_operations(path, line_of_machines, machine, duration, n_machines, 1))
    return make_jobs(path.stem, jobs, machine_names=[str(i + 1) for i in range(n_machines)], optimum=optimum)


def _operations(
    path: Path, line: int, machines: Sequence[float], durations: Sequence[float], n_machines: int, first: int
) -> list[tuple[int, float]]:
    for machine in machines:
        if machine != int(machine) or not first <= machine < first + n_machines:
            raise _bad(path, line, f"machine {machine:g} is outside {first} to {first + n_machines - 1}")
    if min(durations) < 0:
        raise _bad(path, line, f"duration {min(durations):g} is below 0")
    # Some public instances skip a machine by a duration of 0.
    return [(int(m) - first, d) for m, d in zip(machines, durations, strict=True) if d > 0]


def _jobs_of_csv(path: Path) -> Jobs:
    jobs: dict[str, list[tuple[int, float]]] = {}
    machines: dict[str, int] = {}
    further: dict[str, dict[str, float]] = {"release": {}, "weight": {}}
    for line, row in _csv(path, ("job", "machine", "duration"), ("release", "weight")):
        duration = _number(path, line, "duration", row["duration"])
        if duration <= 0:
            raise _bad(path, line, f"duration {duration:g} must be above 0")
        machine = machines.setdefault(row["machine"], len(machines))
        jobs.setdefault(row["job"], []).append((machine, duration))
        for name, known in further.items():
            if row.get(name):
                value = _number(path, line, name, row[name])
                if value < 0:
                    raise _bad(path, line, f"{name} {value:g} must be at least 0")
                if known.setdefault(row["job"], value) != value:
                    raise _bad(path, line, f"job {row['job']} has the {name} {known[row['job']]:g} in an earlier row")
    return make_jobs(
        path.stem,
        [*jobs.values()],
        [further["release"].get(job, 0.0) for job in jobs],
        [further["weight"].get(job, 1.0) for job in jobs],
        [*jobs],
        [*machines],
    )


def read_cities(path: str | Path) -> Cities:
    """Read cities or customers: TSPLIB and CVRPLIB with ``EUC_2D`` distances, or a CSV with the columns ``x`` and ``y``.

    A CSV with a column ``demand`` and the vehicle's ``capacity`` in every row (or the first) is a vehicle-routing instance;
    its first row is the depot.

    :param path: of the file
    :raises ValueError: naming the line and the rule that it breaks
    """
    path = Path(path)
    return _cities_of_csv(path) if path.suffix == ".csv" else _cities_of_tsplib(path)


def _cities_of_csv(path: Path) -> Cities:
    xy = []
    demand = []
    capacity = None
    for line, row in _csv(path, ("x", "y"), ("name", "demand", "capacity")):
        xy.append([_number(path, line, axis, row[axis]) for axis in "xy"])
        if row.get("capacity") and capacity is None:
            capacity = _number(path, line, "capacity", row["capacity"])
        if "demand" in row:
            demand.append(_number(path, line, "demand", row["demand"] or "0"))
    if bool(demand) != (capacity is not None):
        raise _bad(path, 1, "demands need a column 'capacity', and a capacity a column 'demand'")
    return _checked_cities(path, Cities(path.stem, np.array(xy), np.array(demand) if demand else None, capacity))


def _cities_of_tsplib(path: Path) -> Cities:
    lines, optimum = _lines(path)
    header, sections = _sections(path, lines)
    last = lines[-1][0] if lines else 1
    if header.get("EDGE_WEIGHT_TYPE") is None or not sections.get("NODE_COORD_SECTION"):
        raise _bad(path, last, "the file needs EDGE_WEIGHT_TYPE: EUC_2D and a NODE_COORD_SECTION")
    place = {}
    for line, row in sections["NODE_COORD_SECTION"]:
        if len(row) != 3:
            raise _bad(path, line, f"a node has a number and two coordinates, not {len(row)} numbers")
        place[row[0]] = row[1:]
    xy = np.array([*place.values()])
    if header.get("DIMENSION", str(len(xy))) != str(len(xy)):
        raise _bad(path, last, f"DIMENSION is {header['DIMENSION']}, but there are {len(xy)} nodes")
    name = header.get("NAME", path.stem)
    if "DEMAND_SECTION" not in sections:
        return _checked_cities(path, Cities(name, xy, optimum=optimum, rounded=True))
    demand = {}
    for line, row in sections["DEMAND_SECTION"]:
        if len(row) != 2 or row[0] not in place:
            raise _bad(path, line, "a demand is the number of a node and a number")
        demand[row[0]] = row[1]
    if len(demand) < len(place):
        raise _bad(path, last, f"{len(place) - len(demand)} nodes have no demand")
    depots = [row[0] for _, row in sections.get("DEPOT_SECTION", []) if row[0] >= 0]
    if depots and depots != [next(iter(place))]:
        raise _bad(path, last, f"the depots {depots} must be the first node alone")
    capacity = _number(path, last, "CAPACITY", header.get("CAPACITY", "nothing"))
    found_demand = np.array([demand[number] for number in place])
    return _checked_cities(path, Cities(name, xy, found_demand, capacity, optimum, rounded=True))


def _sections(path: Path, lines: list[tuple[int, str]]) -> tuple[dict[str, str], dict[str, list[tuple[int, list[float]]]]]:
    """Keys and sections of a TSPLIB file."""
    header: dict[str, str] = {}
    sections: dict[str, list[tuple[int, list[float]]]] = {}
    section = ""
    for line, text in lines:
        key, colon, value = (part.strip() for part in text.partition(":"))
        if key == "EOF":
            break
        if key.endswith("_SECTION"):
            section = key
            sections[section] = []
        elif section:
            sections[section].append((line, _numbers(path, line, text)))
        elif not colon:
            raise _bad(path, line, f"{text!r} is neither 'KEY: value' nor a section")
        else:
            header[key] = value
            if key == "EDGE_WEIGHT_TYPE" and value != "EUC_2D":
                raise _bad(path, line, f"EDGE_WEIGHT_TYPE {value} is not read, only EUC_2D")
    return header, sections


def _checked_cities(path: Path, cities: Cities) -> Cities:
    if len(cities.xy) < 2:
        raise ValueError(f"{path}: {len(cities.xy)} place(s). A tour needs at least 2.")
    if cities.demand is not None:
        assert cities.capacity is not None
        if cities.demand[0] != 0 or (cities.demand[1:] <= 0).any() or cities.demand.max() > cities.capacity:
            raise ValueError(
                f"{path}: the instance is infeasible: the depot's demand is {cities.demand[0]:g}, those of the customers are "
                f"{cities.demand[1:].min():g} to {cities.demand.max():g}, the capacity {cities.capacity:g}. The depot demands "
                "0, and every customer more than 0 and at most the capacity: split larger customers."
            )
    return cities


def _lines(path: Path) -> tuple[list[tuple[int, str]], float | None]:
    """Numbered lines without blank ones and comments, and the optimum that a comment gives."""
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file ({error}). Give a job shop, TSPLIB or CSV file.") from error
    found = re.search(r"^(?:#|COMMENT).*?(?:optimum|optimal value):?\s+(\d+(?:\.\d+)?)", text, re.MULTILINE | re.IGNORECASE)
    numbered = [(i, line.strip()) for i, line in enumerate(text.splitlines(), 1)]
    return [(i, line) for i, line in numbered if line and not line.startswith("#")], float(found[1]) if found else None


def _csv(path: Path, wanted: Sequence[str], optional: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Numbered rows of a CSV file with a header."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        columns = [name.strip() for name in reader.fieldnames or []]
        reader.fieldnames = columns
        missing = [name for name in wanted if name not in columns]
        if missing:
            raise _bad(path, 1, f"the columns are {columns}; {missing} are missing ({', '.join([*wanted, *optional])})")
        rows = []
        for row in reader:
            if None in row or any(row[name] in (None, "") for name in wanted):
                raise _bad(path, reader.line_num, f"{len(columns)} columns need as many values, none of {list(wanted)} empty")
            rows.append((reader.line_num, {name: (value or "").strip() for name, value in row.items()}))
    if not rows:
        raise _bad(path, 1, "there are no rows behind the header")
    return rows


def _numbers(path: Path, line: int, text: str) -> list[float]:
    return [_number(path, line, "entry", word) for word in text.split()]


def _number(path: Path, line: int, name: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise _bad(path, line, f"{name} {word!r} is no number") from None
    if not np.isfinite(value):
        raise _bad(path, line, f"{name} {word!r} is not finite")
    return value


def _bad(path: Path, line: int, rule: str) -> ValueError:
    return ValueError(f"{path}, line {line}: {rule}. Correct the line.")


#: Public instances that come with the package, by name.
PUBLIC: dict[str, Callable[[], Jobs | Cities]] = {
    "ft06": lambda: read_jobs(DATA / "ft06.txt"),
    "ft10": lambda: read_jobs(DATA / "ft10.txt"),
    "berlin52": lambda: read_cities(DATA / "berlin52.tsp"),
}


def public(name: str) -> Jobs | Cities:
    """Load a public instance that comes with the package.

    :param name: one of :data:`PUBLIC`
    :raises ValueError: for another name
    """
    if name not in PUBLIC:
        raise ValueError(f"There is no public instance {name!r}: there are {', '.join(PUBLIC)}.")
    return PUBLIC[name]()
