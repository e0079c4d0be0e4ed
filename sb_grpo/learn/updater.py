"""An update: epochs of minibatches over one rollout, stopped by the KL where asked, undone where a gradient is not finite."""

from __future__ import annotations

from typing import NamedTuple

import torch as th

from sb_grpo import ranks
from sb_grpo.learn.captured import Captured
from sb_grpo.learn.gradients import PlainGradient, clip_gradients
from sb_grpo.learn.last_good import LastGood
from sb_grpo.learn.losses import Objective
from sb_grpo.learn.minibatches import minibatches, stretches
from sb_grpo.maths.losses import Clip
from sb_grpo.types import Minibatch


class UpdatePlan(NamedTuple):
    """How often and in which portions a rollout is used."""

    n_epochs: int
    batch_size: int
    max_grad_norm: float
    target_kl: float | None  #: stop when the approximate KL exceeds 1.5 times this
    sequence_length: int | None = None  #: of a policy with a memory: steps through which gradients go back


class Taken(NamedTuple):
    """The gradient steps of an update."""

    norms: list[th.Tensor]  #: ``[P]`` gradient norms before clipping, one tensor per step
    n_epochs: int  #: begun
    stopped: bool  #: by the KL


class Updater:
    """Takes the gradient steps of one update.

    :param objective: what is minimised, with the policy
    :param gradient: of a minibatch: plain, or with conflicts between tasks taken out
    :param plan: how often and in which portions
    :param captured: hands out the captured step
    """

    def __init__(self, objective: Objective, gradient: PlainGradient, plan: UpdatePlan, captured: Captured) -> None:
        self.objective, self.gradient, self.plan, self.captured = objective, gradient, plan, captured

    def run(self, batch: Minibatch, clip: Clip, of_all: int, tasks: th.Tensor | None = None) -> Taken:
        """Pass over the rows ``n_epochs`` times.

        :param batch: M >= 1 rows; of several learners one may have none
        :param clip: lower and upper clip range
        :param of_all: rows of all ranks
        :param tasks: ``[E]`` task of each episode of the rollout, for gradient surgery
        :raises ValueError: for a gradient that is not finite; the weights are then what they were before
        """
        plan, norms = self.plan, list[th.Tensor]()
        last_good = LastGood(self.objective.policy)
        parameters = list(last_good.parameters)
        optimizer = self.objective.policy.optimizer
        optimizer.zero_grad()  # what has been frozen must not follow an old gradient
        own = {id(parameter) for parameter in parameters}
        others = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
        self.gradient.start_update(tasks)

        def step(minibatch: Minibatch) -> th.Tensor:
            for other in others:  # weights of somebody else that learn along
                other.grad = None
            return self.gradient_step(minibatch, clip, parameters)

        take_step = self.captured.gradient_step(step, self.objective, parameters, clip, plan.batch_size, plan.max_grad_norm)
        together = batch.episode if self.objective.loss.importance_level == "episode" else None
        if plan.sequence_length is not None and together is None:
            together = stretches(batch.episode, plan.sequence_length)
        for epoch in range(plan.n_epochs):
            epoch_norms, stopped = [], False
            for minibatch in minibatches(batch, plan.batch_size, together, of_all):
                if plan.target_kl is not None and self.objective.approximate_kl(minibatch) > 1.5 * plan.target_kl:
                    stopped = True
                    break
                epoch_norms.append(take_step(minibatch))
            if epoch_norms:
                last_good.check(epoch_norms, epoch)
            norms += epoch_norms
            if stopped:
                return Taken(norms, epoch + 1, True)
        return Taken(norms, plan.n_epochs, False)

    def gradient_step(self, minibatch: Minibatch, clip: Clip, parameters: list[th.nn.Parameter]) -> th.Tensor:
        """One step of the policy's optimiser.

        :return: ``[P]`` gradient norms before clipping
        """

        def loss(part: Minibatch) -> th.Tensor:
            with self.objective.autocasting():
                result: th.Tensor = self.objective(part, clip)
            return result

        self.gradient(loss, minibatch, parameters)
        ranks.average_gradients(parameters, len(minibatch.advantages))
        norms = clip_gradients(parameters, self.plan.max_grad_norm)
        self.objective.policy.optimizer.step()
        return norms
