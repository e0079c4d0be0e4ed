"""Tables and learning curves of the examples, from their raw files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import EngFormatter

from scripts.studies.common.runs import IMG
from zoo.comparing import figures

#: Name of a row or a curve, and its runs.
Rows = Sequence[tuple[str, Sequence[dict[str, Any]]]]


def table(rows: Rows, extra: Mapping[str, Callable[[dict[str, Any]], str]] | None = None) -> str:
    """Markdown; returns of the seeds in their order.

    :param extra: further columns: function from a run to text
    """
    extra = extra or {}
    heads = ["setting", "seeds that met the goal", "first goal after (median)", "mean return, last weights, by seed", *extra]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for setting, runs in rows:
        firsts = [r["first_goal"] for r in runs if r["first_goal"] is not None]
        first = f"{int(np.median(firsts)):,} steps" if firsts else "-"
        returns = ", ".join(f"{np.mean(r['final_returns']):.0f}" for r in runs)
        more = [", ".join(write(r) for r in runs) for write in extra.values()]
        lines.append("| " + " | ".join([setting, f"{len(firsts)} of {len(runs)}", first, returns, *more]) + " |")
    return "\n".join(lines)


def put_between(text: str, name: str, filling: str) -> str:
    """A page with other lines between its marks ``<!-- name -->`` and ``<!-- end of name -->``."""
    before, rest = text.split(f"<!-- {name} -->")
    _, after = rest.split(f"<!-- end of {name} -->")
    return f"{before}<!-- {name} -->\n{filling}\n<!-- end of {name} -->{after}"


def draw(name: str, rows: Rows, title: str) -> None:
    """docs/img/<name>.png: mean and range over the seeds of the training returns."""
    rows = [(setting.replace("`", ""), runs) for setting, runs in rows]
    style = figures.styles([setting for setting, _ in rows])
    figure, axes = plt.subplots(figsize=(7.5, 4.0), layout="constrained")
    for setting, runs in rows:
        steps, returns = on_one_grid([r["curve"] for r in runs])
        figures.band(axes, steps, returns.mean(0), returns.min(0), returns.max(0), setting, style[setting])
    axes.set(xlabel="env steps", ylabel="training return, last 100 episodes", title=title)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(fontsize=8)
    IMG.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMG / f"{name}.png", dpi=80)
    plt.close(figure)


def on_one_grid(curves: Sequence[Sequence[Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Curves of several seeds at common steps.

    :param curves: per seed, pairs of step and value
    :return: ``[K]`` steps, ``[seeds, K]`` values
    """
    start = max(c[0][0] for c in curves)
    end = min(c[-1][0] for c in curves)
    steps = np.linspace(start, end, 60)
    return steps, np.array([np.interp(steps, *np.array(c).T) for c in curves])
