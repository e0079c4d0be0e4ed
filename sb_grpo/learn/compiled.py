"""Compiled execution: step loop, gradient step and baseline as compiled graphs, the same arithmetic as the eager path.

The graphs trace the eager path's own code; there is no second implementation, except that gradient, clipping and
Adam's step are written out as one function, because autograd's backward and an optimiser object cannot be traced together.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch as th
from torch import nn

from sb_grpo.baselines.state import StateBaseline
from sb_grpo.collect.buffer import Rows
from sb_grpo.collect.device_loop import env_steps
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.learn.gradients import gradient_scale
from sb_grpo.learn.losses import Objective
from sb_grpo.maths.chunks import chunk_rows
from sb_grpo.maths.losses import Clip
from sb_grpo.types import Kwargs, Minibatch

if TYPE_CHECKING:
    from sb_grpo.collect.groups import TensorGroups
    from sb_grpo.policies.actor import ActorPolicy

#: Env steps in one graph. More of them compile longer and run hardly faster.
MAX_STEPS = 8


#: On the CPU tanh by way of exp, four times as fast and exact to 2e-7 (torch 2.7 and newer).
FAST_TANH = "cpp.use_decompose_tanh"


class Graph:
    """A function that is compiled when it is first called; where that fails it warns once and declines from then on.

    :param fn: function of tensors (and of objects that hold tensors)
    :param what: its name in the warning
    """

    def __init__(self, fn: Callable[..., Any], what: str) -> None:
        from torch._dynamo.exc import TorchDynamoException

        self.fn = fn
        self.what = what
        self.errors = TorchDynamoException
        # Compiled code is kept per code object, a few variants each: with one of its own, models do not crowd each other out.
        own = types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__)
        options: Kwargs = {}
        if FAST_TANH in th._inductor.list_options():
            options[FAST_TANH] = True
        if hasattr(th.compiler, "skip_guard_on_all_nn_modules_unsafe"):
            # A policy's layers stay what they are; its tensors are inputs of the graph, and those are checked at every call.
            options["guard_filter_fn"] = th.compiler.skip_guard_on_all_nn_modules_unsafe
        self.compiled: Callable[..., Any] | None = th.compile(own, fullgraph=True, dynamic=False, options=options)

    def __reduce__(self) -> tuple[object, ...]:
        """A copy, pickled ones too, compiles for itself: compiled code cannot be pickled."""
        return Graph, (self.fn, self.what)

    def __call__(self, *args: Any) -> Any:
        """Call the function; None, and nothing done, where it cannot be compiled."""
        if self.compiled is not None:
            try:
                return self.compiled(*args)
            except self.errors as error:
                first_line = str(error).strip().splitlines()[0]
                warn(f"the {self.what} could not be compiled and runs eagerly ({type(error).__name__}: {first_line})")
                self.compiled = None
        return None


def warn(message: str) -> None:
    """Warn of a part that stays eager."""
    warnings.warn(f"compile: {message}.", UserWarning, stacklevel=2)


def rollout_obstacle(env: object, use_sde: bool, asks_for_starts: bool = False) -> str | None:
    """Why the step loop cannot be compiled; None where it can.

    :param use_sde: gSDE
    :param asks_for_starts: a function of the user's gives every group its start
    """
    if not isinstance(env, TensorVecEnv):
        return "its envs are not tensor envs"
    if not env.capturable:
        return f"{type(env).__name__} is not made of tensor functions (capturable=False)"
    if env.grouping != "seeds":
        return f"envs wait for the device to start groups where {type(env).__name__}.grouping={env.grouping!r}"
    if asks_for_starts:
        return "starts= is a function, which is called on the host (a sequence is compiled)"
    return "gSDE keeps its noise in an object (use_sde=True)" if use_sde else None


def update_obstacle(
    optimizer: th.optim.Optimizer,
    device: th.device,
    importance_level: str,
    micro_batch_size: int | None,
    surgery: bool,
    use_sde: bool,
    has_memory: bool,
    n_ranks: int = 1,
) -> str | None:
    """Why the gradient step cannot be compiled; None where it can."""
    group = optimizer.param_groups[0]
    if type(optimizer) is not th.optim.Adam or group["amsgrad"] or group["maximize"] or group["weight_decay"] != 0:
        return f"{type(optimizer).__name__} with these options is not plain Adam"
    if len(optimizer.param_groups) > 1 or not (group["fused"] or device.type == "cpu"):
        return "Adam has several parameter groups or lacks fused=True"
    if importance_level != "step":
        return f"importance_level={importance_level!r} makes minibatches of unequal size"
    if micro_batch_size is not None:
        return f"micro_batch_size={micro_batch_size} splits minibatches"
    if n_ranks > 1:
        return "several learners add up their gradients"
    if has_memory:
        return "a policy with a memory, or of token histories, has minibatches of unequal size"
    if surgery:
        return "surgery=True computes one gradient per task"
    return "gSDE's distribution is an object (use_sde=True)" if use_sde else None


class CompiledPredict:
    """``StateBaseline.predict``, in one graph for full chunks of rows (another number of rows would be another graph).

    An object and no closure: a copied model's baseline must not predict with the weights of the one it was copied from.
    """

    def __init__(self, graph: Graph, baseline: StateBaseline) -> None:
        self.graph = graph
        self.baseline = baseline

    def __call__(self, x: th.Tensor) -> th.Tensor:
        result = self.graph(self.baseline, x) if len(x) == chunk_rows(x) else None
        return self.baseline.predict(x) if result is None else result.clone()


class CompiledFunctions:
    """Hands out the hot functions of a training: compiled where that was requested and can be had, eager otherwise.

    :param wanted: the argument ``compile``
    :param rollout_obstacle: of :func:`rollout_obstacle`
    :param update_obstacle: of :func:`update_obstacle`
    """

    def __init__(self, wanted: bool, rollout_obstacle: str | None, update_obstacle: str | None) -> None:
        self._steps: Graph | None = None
        self._update: Graph | None = None
        self._predict: Graph | None = None
        self._objective: Objective | None = None
        if not wanted:
            return
        self._predict = Graph(predict, "baseline")
        if rollout_obstacle is None:
            self._steps = Graph(env_steps, "rollout")
        else:
            warn(f"the rollout runs eagerly, because {rollout_obstacle}")
        if update_obstacle is None:
            self._update = Graph(update, "update")
        else:
            warn(f"the update runs eagerly, because {update_obstacle}")

    def env_steps(self, steps_per_env: int) -> tuple[Callable[..., dict[str, th.Tensor]], int]:
        """The function that takes env steps (:func:`env_steps`), and how many it takes per call.

        :param steps_per_env: of a rollout
        """
        if self._steps is None or self._steps.compiled is None:
            return env_steps, 1
        return self._run_steps, max(k for k in range(1, MAX_STEPS + 1) if steps_per_env % k == 0)

    def _run_steps(self, policy: ActorPolicy, env: TensorVecEnv, groups: TensorGroups, *args: Any) -> Rows:
        assert self._steps is not None
        columns = self._steps(policy, env, groups, *args)
        return env_steps(policy, env, groups, *args) if columns is None else columns

    def predict(self, baseline: StateBaseline) -> Callable[[th.Tensor], th.Tensor] | None:
        """``StateBaseline.predict`` in one graph; None where nothing is compiled."""
        return None if self._predict is None else CompiledPredict(self._predict, baseline)

    def gradient_step(
        self,
        objective: Objective,
        parameters: list[nn.Parameter],
        clip: Clip,
        batch_size: int,
        max_grad_norm: float,
    ) -> Callable[[Minibatch], th.Tensor | None] | None:
        """Return a gradient step in one graph, for the minibatches of one update; None where there is none.

        :param objective: loss to minimise
        :param parameters: of its policy
        :return: from a minibatch to ``[P]`` gradient norms, or None, and nothing done, where the graph cannot be compiled
        """
        if self._update is None or self._update.compiled is None:
            return None
        if self._objective is None or self._objective.settings != objective.settings:
            if self._objective is not None:  # its numbers are part of the graph
                self._update = Graph(update, "update")
            self._objective = objective.looking_at_weights()
        graph = self._update
        loss = self._objective
        group = objective.policy.optimizer.param_groups[0]
        moments = adam_moments(objective.policy.optimizer, parameters)
        for tensor in (*parameters, *(x for column in moments for x in column)):
            th._dynamo.mark_static_address(tensor, guard=False)
        scalars = th.tensor([*clip, group["lr"], max_grad_norm], device=objective.policy.device)

        def compiled(minibatch: Minibatch) -> th.Tensor | None:
            padded = pad(minibatch, -(-batch_size // 4))
            with th.no_grad(), objective.autocasting():
                norms = graph(loss, parameters, moments, padded, scalars, group["betas"], group["eps"])
            return None if norms is None else norms.clone()

        return compiled


def adam_moments(optimizer: th.optim.Optimizer, parameters: list[nn.Parameter]) -> tuple[list[th.Tensor], ...]:
    """The optimiser's own state, made if it has not stepped yet: changed in place, it is saved and loaded as ever.

    :return: first moments, second moments, step counts, one tensor per parameter each
    """
    for p in parameters:
        if p not in optimizer.state:
            zeros = {key: th.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")}
            optimizer.state[p] = {"step": th.zeros((), device=p.device), **zeros}
    return tuple([optimizer.state[p][key] for p in parameters] for key in ("exp_avg", "exp_avg_sq", "step"))


def pad(minibatch: Minibatch, granule: int) -> Minibatch:
    """Fill a minibatch up to a multiple of rows with copies of its last row that weigh nothing: few shapes, few graphs.

    :param minibatch: B rows
    :param granule: rows
    :return: S >= B rows; the mean of weight * loss over them is that over the B rows
    """
    rows = len(minibatch.advantages)
    if minibatch.instances is not None:  # whole instances, filled up already
        return minibatch
    size = -(-rows // granule) * granule
    if size == rows:
        return minibatch
    index = th.arange(size, device=minibatch.advantages.device)
    filled = minibatch.map(lambda x: x.index_select(0, index.clamp(max=rows - 1)))
    return filled._replace(weights=filled.weights * (index < rows) * (size / rows))


def predict(baseline: StateBaseline, x: th.Tensor) -> th.Tensor:
    """Predict as ``StateBaseline.predict``, with weights in the layout that MKL multiplies four times as fast."""
    return th.nn.functional.linear(baseline.phi(x), baseline.weights.T.contiguous())


def column_major(weight: th.Tensor) -> th.Tensor:
    """The same values, with the columns of a matrix in one piece where they are longer than its rows.

    By the layout of a weight autograd chooses between two products for its gradient, and with few inputs to a layer MKL takes
    six times as long for the one that row-major weights get.
    """
    return weight.T.contiguous().T if weight.dim() == 2 and weight.shape[0] > weight.shape[1] else weight


def update(
    loss: Objective,
    parameters: list[th.Tensor],
    moments: tuple[list[th.Tensor], list[th.Tensor], list[th.Tensor]],
    minibatch: Minibatch,
    scalars: th.Tensor,
    betas: tuple[float, float],
    eps: float,
) -> th.Tensor:
    """Gradient, clipping by the joint norm, and one step of Adam (arXiv 1412.6980, algorithm 1), in place.

    :param scalars: ``[4]`` lower clip, upper clip, learning rate, largest norm: tensors, so that schedules do not recompile
    :return: ``[P]`` norm of each parameter's gradient before clipping
    """
    clip_low, clip_high, learning_rate, max_norm = scalars.unbind(0)

    def loss_of(values: list[th.Tensor]) -> th.Tensor:
        named = dict(zip(loss.names, values, strict=True))
        result: th.Tensor = th.func.functional_call(loss, named, (minibatch, (clip_low, clip_high)))
        return result

    grads = th.func.grad(loss_of)([column_major(p) for p in parameters])
    norms = th.stack([g.norm() for g in grads])
    factor = gradient_scale(norms, max_norm)
    first, second, steps = moments
    for p, m, v, step, g in zip(parameters, first, second, steps, grads, strict=True):
        g = g * factor
        step.add_(1.0)
        m.lerp_(g, 1.0 - betas[0])
        v.mul_(betas[1]).addcmul_(g, g, value=1.0 - betas[1])
        size = learning_rate / (1.0 - betas[0] ** step)
        p.sub_(size * m / ((v / (1.0 - betas[1] ** step)).sqrt() + eps))
    return norms
