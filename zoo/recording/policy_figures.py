"""Values, scores, ratios after an update and conflicts between tasks, computed on recorded steps."""

from __future__ import annotations

import copy

import torch as th

from sb_grpo import GRPO, AdvantageOptions, Rollout
from sb_grpo.baselines.state import StateBaseline
from sb_grpo.learn.gradients import clip_gradients
from sb_grpo.learn.losses import Clipped
from sb_grpo.maths.estimators import centre_and_scale
from sb_grpo.maths.returns import gae
from sb_grpo.policies import ActorPolicy
from sb_grpo.types import TensorOrDict, map_obs

from ..recording.document import Number, rounded
from ..recording.episodes import chunks

#: Rows of a minibatch, passes, and the learning rate of the update whose ratios are recorded.
BATCH = 64
EPOCHS = 4
RATE = 3e-4
CLIP = 0.2
MAX_NORM = 0.5


@th.no_grad()
def values(model: GRPO, rollout: Rollout) -> tuple[th.Tensor, th.Tensor]:
    """The state baseline of the past at each step, ``[M]``, and after each episode's last step, ``[E]``.

    :param model: trained with ``advantage="state"``
    """
    assert rollout.task is not None and model.estimator is not None
    baseline = model.estimator
    single = isinstance(baseline, StateBaseline)
    parts = [baseline] if single else list(baseline)

    def of(observations: TensorOrDict, task: th.Tensor) -> th.Tensor:
        features = model.policy.features(observations)
        by_part = th.stack([part.predict(features)[:, 1] for part in parts], dim=1)
        return by_part[:, 0] if single else by_part.gather(1, task.unsqueeze(1)).squeeze(1)

    return of(rollout.observations, rollout.task[rollout.episode]), of(rollout.final_observations, rollout.task)


def advantages(rollout: Rollout, of_steps: th.Tensor, after: th.Tensor, options: AdvantageOptions) -> th.Tensor:
    """State-conditioned advantages, ``[M]``, under given values."""
    own = gae(rollout, of_steps, after, options.gamma, options.gae_lambda)
    return centre_and_scale(own, own + of_steps, rollout, options)


def scores(policy: ActorPolicy, rollout: Rollout) -> th.Tensor:
    """Gradient of each action's log-probability by the outputs of the policy network (logits or means), ``[M, n_outputs]``."""
    outputs: list[th.Tensor] = []
    handle = policy.action_net.register_forward_hook(lambda module, given, output: outputs.append(output))
    log_prob = policy.log_prob(rollout.observations, rollout.actions)
    handle.remove()
    return th.autograd.grad(log_prob.sum(), outputs[0])[0]


def ratios_after_update(policy: ActorPolicy, rollout: Rollout, advantage: th.Tensor, seed: int) -> th.Tensor:
    """pi_new / pi_old of each row, ``[M]``, once a copy of the policy has been updated with this rollout (clipped surrogate).

    :param seed: of the minibatches
    """
    new = copy.deepcopy(policy)
    generator = th.Generator().manual_seed(seed)
    parameters = list(new.parameters())
    optimizer = th.optim.Adam(parameters, lr=RATE, eps=1e-5)
    with th.no_grad():
        old = policy.log_prob(rollout.observations, rollout.actions)
    for _ in range(EPOCHS):
        for rows in chunks(len(advantage), BATCH, generator):
            observations = map_obs(lambda part: part[rows], rollout.observations)  # noqa: B023
            log_prob = new.log_prob(observations, rollout.actions[rows])
            ratio = (log_prob - old[rows]).exp()
            loss = Clipped().surrogate(log_prob, ratio, advantage[rows], (CLIP, CLIP)).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            clip_gradients(parameters, MAX_NORM)
            optimizer.step()
    with th.no_grad():
        return (new.log_prob(rollout.observations, rollout.actions) - old).exp()


def conflicts(policy: ActorPolicy, rollout: Rollout, advantage: th.Tensor, label: th.Tensor, n: int) -> list[list[float]]:
    """Cosines between the policy gradients of n labels, over all parameters.

    :param label: ``[E]`` int64 in [0, n)
    :return: ``[n, n]``; 0 where a label has no gradient
    """
    parameters = [p for p in policy.parameters() if p.requires_grad]
    log_prob = policy.log_prob(rollout.observations, rollout.actions)
    gradients = []
    for one in range(n):
        loss = -(log_prob * advantage * (label[rollout.episode] == one)).sum()
        parts = th.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        gradients.append(th.cat([part.flatten() for part in parts]))
    matrix = th.nn.functional.normalize(th.stack(gradients), dim=1)
    return [[float(x) for x in row] for row in matrix @ matrix.T]


def weighting(model: GRPO) -> dict[str, list[Number]] | None:
    """Averages of the group weights over the training, by task, or None."""
    followed = getattr(model, "group_weighting", None)
    if followed is None or followed.n_labels == 0 or model.options.multitask.grouping not in ("task", "hierarchical"):
        return None
    names = ("fast", "slow", "spread")
    return {name: rounded(getattr(followed, name)) for name in names} | {"seen": followed.seen.int().tolist()}
