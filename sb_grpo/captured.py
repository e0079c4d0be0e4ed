"""Captured execution: step loop, gradient step and baseline as compiled graphs, the same arithmetic as the eager path.

What is captured is the eager path's own code, traced; there is no second implementation, except that gradient, clipping and
Adam's step are written out as one function, because autograd's backward and an optimiser object cannot be traced together.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch as th
from torch import nn

from sb_grpo.baseline import StateBaseline
from sb_grpo.device_sampler import env_steps
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.losses import Clip
from sb_grpo.types import Minibatch, map_obs
from sb_grpo.update import chunk_rows, gradient_scale

if TYPE_CHECKING:
    from sb_grpo.grpo import GRPO

#: Env steps in one graph. More of them compile longer and run hardly faster.
MAX_STEPS = 8


#: On the CPU tanh by way of exp, four times as fast and exact to 2e-7 (torch 2.7 and newer).
FAST_TANH = "cpp.use_decompose_tanh"


class Graph:
    """A function that is compiled when it is first called; where that fails it warns once and declines from then on.

    :param fn: function of tensors (and of objects that hold tensors)
    :param mode: True, or ``"reduce-overhead"`` for CUDA graphs
    :param what: its name in the warning
    """

    def __init__(self, fn: Callable[..., Any], mode: bool | str, what: str) -> None:
        from torch._dynamo.exc import TorchDynamoException

        self.what, self.errors = what, TorchDynamoException
        # Compiled code is kept per code object, a few variants each: with one of its own, models do not crowd each other out.
        own = types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__)
        options: dict[str, Any] = {"triton.cudagraphs": mode == "reduce-overhead"}
        if FAST_TANH in th._inductor.list_options():
            options[FAST_TANH] = True
        if th.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            from sb_grpo.onednn import OneDnnProducts

            options["post_grad_custom_post_pass"] = OneDnnProducts()
        if hasattr(th.compiler, "skip_guard_on_all_nn_modules_unsafe"):
            # A policy's layers stay what they are; its tensors are inputs of the graph, and those are checked at every call.
            options["guard_filter_fn"] = th.compiler.skip_guard_on_all_nn_modules_unsafe
        self.compiled: Callable[..., Any] | None = th.compile(own, fullgraph=True, dynamic=False, options=options)

    def __call__(self, *args: Any) -> Any:
        """What the function returns; None, and nothing done, where it cannot be compiled."""
        if self.compiled is not None:
            try:
                th.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                return self.compiled(*args)
            except self.errors as error:
                first_line = str(error).strip().splitlines()[0]
                warn(f"the {self.what} could not be captured and runs eagerly ({type(error).__name__}: {first_line})")
                self.compiled = None
        return None


def warn(message: str) -> None:
    """One way to say what ``compile`` cannot do."""
    warnings.warn(f"compile: {message}.", UserWarning, stacklevel=2)


class Captured:
    """Hands a model its hot functions: captured where it asked for that and it can be had, eager otherwise.

    :param model: with its policy and optimiser built
    """

    def __init__(self, model: GRPO) -> None:
        self.mode = model.compile
        self._steps: Graph | None = None
        self._update: Graph | None = None
        self._predict: Graph | None = None
        if not self.mode:
            return
        self._predict = Graph(predict, self.mode, "baseline")
        obstacle = self._rollout_obstacle(model)
        if obstacle is None:
            self._steps = Graph(env_steps, self.mode, "rollout")
        else:
            warn(f"the rollout runs eagerly, because {obstacle}")
        obstacle = self._update_obstacle(model)
        if obstacle is None:
            self._update = Graph(update, self.mode, "update")
            self._loss = Loss(model)
        else:
            warn(f"the update runs eagerly, because {obstacle}")

    @staticmethod
    def _rollout_obstacle(model: GRPO) -> str | None:
        if not isinstance(model.env, TensorVecEnv):
            return "its envs are not tensor envs"
        if not model.env.capturable:
            return f"{type(model.env).__name__} is not made of tensor functions (capturable=False)"
        if model.env.grouping != "seeds":
            return (
                f"slots wait for the device to start groups where {type(model.env).__name__}.grouping={model.env.grouping!r}"
            )
        if model.restart == "branch":
            return "slots wait for the device to copy states (restart='branch')"
        return "gSDE keeps its noise in an object (use_sde=True)" if model.use_sde else None

    @staticmethod
    def _update_obstacle(model: GRPO) -> str | None:
        optimizer = model.policy.optimizer
        group = optimizer.param_groups[0]
        if type(optimizer) is not th.optim.Adam or group["amsgrad"] or group["maximize"] or group["weight_decay"] != 0:
            return f"{type(optimizer).__name__} with these options is not plain Adam"
        if len(optimizer.param_groups) > 1 or not (group["fused"] or model.device.type == "cpu"):
            return "Adam has several parameter groups or lacks fused=True"
        if model.importance_level == "episode":
            return "importance_level='episode' makes minibatches of unequal size"
        if model.micro_batch_size is not None:
            return f"micro_batch_size={model.micro_batch_size} splits minibatches"
        if model.gradient_surgery:
            return "gradient_surgery=True computes one gradient per task"
        return "gSDE's distribution is an object (use_sde=True)" if model.use_sde else None

    def env_steps(self, model: GRPO) -> tuple[Callable[..., dict[str, th.Tensor]], int]:
        """The function that takes env steps (:func:`env_steps`), and how many it takes per call."""
        if self._steps is None or self._steps.compiled is None:
            return env_steps, 1
        return self._run_steps, max(k for k in range(1, MAX_STEPS + 1) if model.steps_per_env % k == 0)

    def _run_steps(self, policy: Any, env: TensorVecEnv, slots: Any, *args: Any) -> Any:
        assert self._steps is not None
        columns = self._steps(policy, env, slots, *args)
        if columns is None:
            return env_steps(policy, env, slots, *args)
        if self.mode == "reduce-overhead":  # what a CUDA graph returns lives until its next replay only
            for holder in (env, slots):
                vars(holder).update({k: v.clone() for k, v in vars(holder).items() if isinstance(v, th.Tensor)})
        return columns

    def predict(self, baseline: StateBaseline) -> Callable[[th.Tensor], th.Tensor]:
        """``StateBaseline.predict``, in one graph for full chunks of rows (another number of rows would be another graph)."""

        def captured(x: th.Tensor) -> th.Tensor:
            result = self._predict(baseline, x) if self._predict is not None and len(x) == chunk_rows(x) else None
            return baseline.predict(x) if result is None else result.clone()

        return captured

    def gradient_step(self, model: GRPO, clip: Clip, parameters: list[nn.Parameter]) -> Callable[[Minibatch], th.Tensor]:
        """``GRPO._gradient_step`` for the minibatches of one update, in one graph where there is one."""

        def eager(minibatch: Minibatch) -> th.Tensor:
            return model._gradient_step(minibatch, clip, parameters)

        if self._update is None or self._update.compiled is None:
            return eager
        graph, group = self._update, model.policy.optimizer.param_groups[0]
        moments = adam_moments(model.policy.optimizer, parameters)
        for tensor in (*parameters, *(x for column in moments for x in column)):
            th._dynamo.mark_static_address(tensor, guard=False)
        scalars = th.tensor([*clip, group["lr"], model.max_grad_norm], device=model.device)

        def captured(minibatch: Minibatch) -> th.Tensor:
            padded = pad(minibatch, -(-model.batch_size // 4))
            with th.no_grad(), model.autocasting():
                norms = graph(self._loss, parameters, moments, padded, scalars, group["betas"], group["eps"])
            return eager(minibatch) if norms is None else norms.clone()

        return captured


class Loss(nn.Module):
    """The model's loss as a module, so that its parameters can be an argument.

    :param model: with its policy built
    """

    def __init__(self, model: GRPO) -> None:
        super().__init__()
        self.policy, self._loss = model.policy, model._loss
        self.names = [f"policy.{name}" for name, p in model.policy.named_parameters() if p.requires_grad]

    def forward(self, minibatch: Minibatch, clip: Clip) -> th.Tensor:
        loss: th.Tensor = self._loss(minibatch, clip, weighted=True)
        return loss


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
    :return: S >= B rows; the mean of weight * loss over them is what it was over the B rows
    """
    rows = len(minibatch.advantages)
    size = -(-rows // granule) * granule
    if size == rows:
        return minibatch
    index = th.arange(size, device=minibatch.advantages.device)
    filled = Minibatch(*(map_obs(lambda x: x.index_select(0, index.clamp(max=rows - 1)), column) for column in minibatch))
    return filled._replace(weights=filled.weights * (index < rows) * (size / rows))


def predict(baseline: StateBaseline, x: th.Tensor) -> th.Tensor:
    """As ``StateBaseline.predict``; the layout of the weights is what MKL multiplies four times as fast."""
    return th.nn.functional.linear(baseline.phi(x), baseline.weights.T.contiguous())


def column_major(weight: th.Tensor) -> th.Tensor:
    """The same values, with the columns of a matrix in one piece where they are longer than its rows.

    By the layout of a weight autograd chooses between two products for its gradient, and with few inputs to a layer MKL takes
    six times as long for the one that row-major weights get.
    """
    return weight.T.contiguous().T if weight.dim() == 2 and weight.shape[0] > weight.shape[1] else weight


def update(
    loss: Loss,
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
