"""Recovery: after a breakdown, restore the last healthy weights and retry with a lower learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from sb_grpo import distributed
from sb_grpo.callbacks.health import WatchingCallback
from sb_grpo.callbacks.health_rules import RULES, Rule
from sb_grpo.grpo import GRPO
from sb_grpo.learn.last_good import Snapshot
from sb_grpo.normalization import put_running_state, running_state
from sb_grpo.save_util import OPTIONAL_MODULES
from sb_grpo.types import Breakdown, State

#: Signs of too large steps, and of a single huge reward in the baseline.
RUNAWAY = ("kl", "grad_norm", "noise_growth", "reward_outlier")
#: A policy that has stopped exploring: a breakdown unless returns have grown, as they do when a task is solved.
COLLAPSE = ("entropy", "noise_collapse")
#: Rules that smaller steps can restore.
RECOVERY_RULES: tuple[Rule, ...] = (
    *(rule for rule in RULES if rule.name in RUNAWAY),
    *(replace(rule, excused_by="group/baseline") for rule in RULES if rule.name in COLLAPSE),
)


class RecoveryCallback(WatchingCallback):
    """Restore the last healthy weights, multiply the learning rate by ``factor``, and retry, up to ``max_retries`` times.

    A training breaks down if GRPO meets a value that is not finite or far too large (:class:`Breakdown`), or if one of the
    ``rules`` is broken. The state at the beginning of a rollout is healthy if no rule is broken then. All learnt state is
    restored: policy and optimiser, baseline with its moments, normalisers, clusters, group weights, bonus, VecNormalize's
    statistics. The envs begin new groups. Env steps stay counted, so schedules continue. ``model.lr_scale`` multiplies the
    learning rate or its schedule; it is saved with the model.

    Logged: ``recovery/n`` and ``recovery/lr_scale``.

    :param max_retries: number of retries, at least 1
    :param factor: factor of the learning rate at each retry, in (0, 1)
    :param rules: like those of a :class:`HealthCallback`, which may be used too; an empty list: errors alone
    :param verbose: 1 prints the reason of each retry
    :raises ValueError: for values out of range; at the start of a training for models other than GRPO, and for several
        learners
    :raises Breakdown: after ``max_retries``, with the reason; the model then has its last healthy weights
    """

    def __init__(
        self, max_retries: int = 3, factor: float = 0.5, rules: Sequence[Rule] = RECOVERY_RULES, verbose: int = 1
    ) -> None:
        super().__init__(rules, verbose)
        if max_retries < 1:
            raise ValueError(f"max_retries={max_retries} must be at least 1; leave the callback out for none.")
        if not 0.0 < factor < 1.0:
            raise ValueError(f"factor={factor} must lie in (0, 1): the learning rate is multiplied with it; 0.5 is usual.")
        self.max_retries = max_retries
        self.factor = factor
        self.n = 0  #: retries in this training
        self.reasons: list[str] = []  #: reason of each retry

    def _init_callback(self) -> None:
        if not isinstance(self.model, GRPO):
            raise ValueError(
                f"RecoveryCallback goes back to what GRPO has learnt, but the model is a {type(self.model).__name__}: leave "
                "it out, or train with sb_grpo.GRPO."
            )
        if distributed.world().size > 1:
            raise ValueError(
                f"RecoveryCallback goes back in one process, but there are {distributed.world().size} learners: leave it out, "
                "or start the script without torchrun."
            )

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self.n = 0
        self.reasons = []
        self._keep()

    def _on_rollout_start(self) -> None:
        self._judge()
        if not any(watch.broken or watch.streak for watch in self._watches):
            self._keep()
        self.logger.record("recovery/n", self.n)
        self.logger.record("recovery/lr_scale", cast(GRPO, self.model).lr_scale)

    def _on_training_end(self) -> None:
        try:
            self._judge()  # of the last update
        except Breakdown as error:
            self._go_back(error)
            self._say(f"At the end: {error}")

    def state_dict(self) -> State:
        """Number and reasons of the retries, and the state of every rule."""
        return {"n": self.n, "reasons": self.reasons, "watches": self._fared()}

    def load_state_dict(self, state: State) -> None:
        """Restore the state; the current weights count as healthy."""
        self.n = state["n"]
        self.reasons = list(state["reasons"])
        self._go_on(state["watches"])
        self._keep()

    def _judge(self) -> None:
        """Check the logged values of the last rollout and update, unless already done.

        :raises Breakdown: if a rule is broken
        """
        for watch, value in self._looks() or ():
            if value is not None:
                raise Breakdown(f"The rule {watch.rule.name} is broken: {watch.rule.advice.format(value=value)}")

    def _keep(self) -> None:
        """Keep the current state as healthy."""
        model = cast(GRPO, self.model)
        normalize = model.get_vec_normalize_env()
        self._healthy = Snapshot([model.policy, *(getattr(model, name) for name in OPTIONAL_MODULES)])
        self._statistics = None if normalize is None else running_state(normalize)
        self._healthy_at = self.num_timesteps
        self._healthy_watches = [replace(watch) for watch in self._watches]

    def _go_back(self, error: Breakdown) -> None:
        model = cast(GRPO, self.model)
        self._seen = model.last_metrics
        self._watches = [replace(watch) for watch in self._healthy_watches]
        self._healthy.put_back()
        normalize = model.get_vec_normalize_env()
        if normalize is not None and self._statistics is not None:
            put_running_state(normalize, self._statistics)
        self.reasons.append(str(error))
        if model.env is not None:
            model.rollout_buffer.reset()  # never learn from the rollout that broke down
            model.restart_groups()

    def recover(self, error: Breakdown) -> None:
        """Go back to the last healthy weights, with a lower learning rate. The training loop calls this and tries again.

        :raises Breakdown: after ``max_retries``
        """
        model = cast(GRPO, self.model)
        self._go_back(error)
        if self.n >= self.max_retries:
            raise Breakdown(
                f"The training has broken down {self.n + 1} times, and max_retries is {self.max_retries}; the last time: "
                f"{error} {self._where}, the last healthy one, and can be saved. Its learning rate was {model.lr_scale:g} of "
                "what was given: mend what the reason names, or give a lower learning_rate."
            ) from error
        self.n += 1
        model.scale_learning_rate(self.factor)
        self._say(f"{self.n} of {self.max_retries}, at step {self.num_timesteps:,}: {error}")

    def _say(self, what: str) -> None:
        if self.verbose > 0:
            scale = cast(GRPO, self.model).lr_scale
            print(f"Recovery: {what} {self._where} (learning rate: {scale:g} of what was given).")

    @property
    def _where(self) -> str:
        return f"The model is back at what it was at step {self._healthy_at:,}"
