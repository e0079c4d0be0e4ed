"""Health checks: compare logged values with rules, and warn once with the fault and the argument to change."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from stable_baselines3.common.callbacks import BaseCallback

from sb_grpo.callbacks.health_rules import RULES, Rule
from sb_grpo.metrics import make_room
from sb_grpo.types import SavedState, State

if TYPE_CHECKING:
    from sb_grpo.grpo import GRPO


class HealthWarning(UserWarning):
    """A rule of the health check was broken; ``warnings.simplefilter("error", HealthWarning)`` stops a training there."""


@dataclass
class Watch:
    """State of one rule in one training."""

    rule: Rule
    first: float = math.nan
    first_excuse: float = math.nan
    n: int = 0
    n_bad: int = 0
    streak: int = 0  # consecutive rollouts against the present verdict
    broken: bool = False
    reported_at: int | None = None
    low: float = math.inf
    high: float = -math.inf

    def look(self, metrics: Mapping[str, float]) -> float | None:
        """Process the metrics of one rollout.

        :return: the value if the rule has just been broken for the first time
        """
        value = self.rule.value(metrics)
        if math.isnan(value):
            return None
        if not self.first > 0:
            self.first = value
        excused = self._excused(metrics)
        bad = self.rule.is_bad(value, self.first) and not excused
        self.n = self.n + 1
        self.n_bad = self.n_bad + bad
        self.low = min(self.low, value)
        self.high = max(self.high, value)
        self.streak = self.streak + 1 if bad != self.broken else 0
        if self.streak < self.rule.patience:
            return None
        self.broken = bad
        self.streak = 0
        return value if self.broken and self.reported_at is None else None

    def _excused(self, metrics: Mapping[str, float]) -> bool:
        """Whether the value of ``excused_by`` has grown; False for nan."""
        excuse = metrics.get(self.rule.excused_by, math.nan)
        if math.isnan(self.first_excuse):
            self.first_excuse = excuse
        return excuse > self.first_excuse + 0.5 * abs(self.first_excuse)

    def line(self) -> str:
        """Format one row of the report."""
        if self.n == 0:
            return f"{self.rule.name:<20} -        {self.rule.key} was not logged"
        state = "BROKEN" if self.broken else "mended" if self.reported_at is not None else "ok"
        seen = f"{self.rule.key} {self.low:.3g} to {self.high:.3g}, bad in {self.n_bad} of {self.n} rollouts"
        return f"{self.rule.name:<20} {state:<8} {seen}"

    def fared(self) -> State:
        """Fields that change during a training."""
        return {f.name: getattr(self, f.name) for f in fields(self)[1:]}

    def go_on(self, fared: SavedState) -> None:
        """Restore the fields from another watch of the rule."""
        vars(self).update(fared)


class WatchingCallback(BaseCallback):
    """Base of callbacks that compare logged values with rules after every rollout.

    :param rules: rules to watch
    """

    def __init__(self, rules: Sequence[Rule], verbose: int) -> None:
        super().__init__(verbose)
        self.rules = tuple(rules)
        self._watches = [Watch(rule) for rule in self.rules]
        self._seen: Any = None

    def _on_training_start(self) -> None:
        self._watches = [Watch(rule) for rule in self.rules]
        self._seen = cast("GRPO", self.model).last_metrics  # of an earlier training, already processed there

    def _on_step(self) -> bool:
        return True

    def _looks(self) -> list[tuple[Watch, float | None]] | None:
        """Process the last rollout and update: every watch with its value, or None if already processed."""
        metrics = cast("GRPO", self.model).last_metrics
        if metrics is self._seen:
            return None
        self._seen = metrics
        return [(watch, watch.look(metrics)) for watch in self._watches]

    def _fared(self) -> State:
        """State of every rule, by name."""
        return {watch.rule.name: watch.fared() for watch in self._watches}

    def _go_on(self, fared: SavedState) -> None:
        """Restore the state of every rule; rules without a state start fresh."""
        for watch in self._watches:
            watch.go_on(fared.get(watch.rule.name, {}))


class HealthCallback(WatchingCallback):
    """Watch a GRPO training, and warn once per broken rule.

    After every update the rules check the logged values of the rollout and the update. A rule that is broken for ``patience``
    consecutive rollouts gives one :class:`HealthWarning`, and logs ``health/<name>`` as 1 until it has held for as many;
    ``health/n_broken`` counts such rules. A report is printed when training ends, except with ``verbose=0``.

    :attr:`ok` and :attr:`broken` give the verdict at any time.

    :param rules: rules to watch; ``(*RULES, Rule(...))`` adds to the default ones; ``STRICT_RULES`` are tighter
    :param verbose: 1 prints the report
    :raises ValueError: for two rules of one name, and at the start of a training for a model other than GRPO
    """

    def __init__(self, rules: Sequence[Rule] = RULES, verbose: int = 1) -> None:
        super().__init__(rules, verbose)
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"rules: {twice} are there twice; each rule needs a name of its own.")

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the broken rules, up to the last processed rollout; after a training that is the last one."""
        return tuple(watch.rule.name for watch in self._watches if watch.broken)

    @property
    def ok(self) -> bool:
        """True if no rule is broken."""
        return not self.broken

    def _init_callback(self) -> None:
        if not hasattr(self.model, "last_metrics"):
            raise ValueError(
                f"HealthCallback watches what GRPO logs about groups, but the model is a {type(self.model).__name__}: "
                "leave it out, or train with sb_grpo.GRPO."
            )

    def _on_rollout_start(self) -> None:
        self._look()

    def _on_training_end(self) -> None:
        self._look()
        if self.verbose > 0:
            print(self.report())

    def _look(self) -> None:
        """Check the last rollout and update, unless already done."""
        looks = self._looks()
        if looks is None:
            return
        make_room(self.logger, [watch.rule.name for watch in self._watches])
        for watch, value in looks:
            if value is not None:
                watch.reported_at = self.num_timesteps
                advice = watch.rule.advice.format(value=value)
                warnings.warn(f"{watch.rule.name}: {advice} (step {self.num_timesteps})", HealthWarning, stacklevel=2)
            if watch.n > 0:
                self.logger.record(f"health/{watch.rule.name}", float(watch.broken))
        self.logger.record("health/n_broken", sum(watch.broken for watch in self._watches))

    def state_dict(self) -> State:
        """State of every rule, and whether the last rollout has been checked."""
        return {"watches": self._fared(), "judged": cast("GRPO", self.model).last_metrics is self._seen}

    def load_state_dict(self, state: State) -> None:
        """Restore the state; rules without one start fresh."""
        self._go_on(state["watches"])
        self._seen = cast("GRPO", self.model).last_metrics if state["judged"] else None

    def report(self) -> str:
        """Format the state of every rule, and the advice of those that were broken."""
        reported = [watch for watch in self._watches if watch.reported_at is not None]
        lines = [f"Health after {self.num_timesteps} steps: {len(reported)} of {len(self._watches)} rules broken"]
        lines += [f"  {watch.line()}" for watch in self._watches]
        for watch in reported:
            value = watch.low if watch.rule.low > -math.inf else watch.high
            advice = watch.rule.advice.format(value=value)
            lines.append(f"{watch.rule.name} (from step {watch.reported_at}; worst value): {advice}")
        return "\n".join(lines)
