"""CUDA on paper (tests/fake_cuda.py): no mix of devices, the CPU's results, and nobody waits for the device in a step loop."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from sb_grpo import GRPO
from sb_grpo.collect.device_loop import env_actions, env_steps
from sb_grpo.collect.groups import TensorGroups
from sb_grpo.envs.functional import FunctionalTensorEnv
from sb_grpo.envs.native import NATIVE, CartPole, make_tensor_env
from sb_grpo.envs.tensor_env import TensorStep, TensorVecEnv
from sb_grpo.extras.exploration import CountBonus, RNDBonus
from sb_grpo.policies import ActorPolicy
from sb_grpo.tasks import input_driven, memory
from sb_grpo.tasks.memory.t_maze import TensorTMaze10, TMaze
from sb_grpo.tasks.multi_task_tensor import NATIVE_TASKS
from tests.fake_cuda import CUDA, OnPaper, cuda_on_paper, guarded
from tests.helpers import ProbeEnv, SpaceEnv

ENV_IDS = sorted({*NATIVE, *NATIVE_TASKS, *input_driven.TENSOR_VERSIONS, *memory.TENSOR_VERSIONS})
SMALL: dict[str, Any] = dict(n_steps=16, batch_size=64, n_epochs=2, group_size=2, seed=0)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.fixture
def paper() -> Iterator[OnPaper]:
    with cuda_on_paper() as mode:
        yield mode


class Choosing(FunctionalTensorEnv):
    """Episodes of 5 steps with any actions, two tasks, two objectives, and masks where actions can have them."""

    objective_names = ("a", "b")

    def __init__(self, n: int, device: str, space: spaces.Space, masks: int = 0) -> None:
        self.n_masks = masks
        super().__init__(n, BOX, space, 5, device)

    def initial_state(self, seeds: th.Tensor) -> th.Tensor:
        return th.stack([(seeds % 7) / 7.0, (seeds % 5) / 5.0], dim=1)

    def transition(self, state: th.Tensor, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        pushed = actions.float().flatten(1).mean(1) if actions.dim() > 1 else actions.float()
        after = th.stack([state[:, 1], (state[:, 0] + pushed).sin()], dim=1)
        self.objectives = th.stack([after[:, 1], -pushed], dim=1)
        return after, after[:, 1], after[:, 1] > 0.98

    @property
    def tasks(self) -> th.Tensor:
        return th.arange(self.num_envs, device=self.device) % 2

    @property
    def action_masks(self) -> th.Tensor | None:
        odd = (th.arange(self.n_masks, device=self.device) % 2 == 1).unsqueeze(0)
        return odd | (self.state[:, :1] > 0.5) if self.n_masks else None


class Unseeded(CartPole):
    grouping = "state"


class Streams(CartPole):
    grouping = "streams"


class Together(CartPole):
    """Can only restart all envs."""

    grouping = "synchronous"

    def reset_all(self, seeds: th.Tensor) -> None:
        self.wake()
        super().reset_all(seeds)

    def step_tensor(self, actions: th.Tensor) -> TensorStep:
        return self.hold_ended(super().step_tensor(actions))


def test_what_cuda_refuses_is_refused(paper: OnPaper) -> None:
    x = th.zeros(3, device="cuda")
    assert (str(x.device), x.is_cuda, (x + 1).device, x.cpu().device, x[1:].device) == (
        "cuda:0",
        True,
        CUDA,
        th.device("cpu"),
        CUDA,
    )
    with pytest.raises(RuntimeError, match="same device"):
        x + th.zeros(3)
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\) first"):
        x.numpy()
    with pytest.raises(RuntimeError, match="for generator"):
        th.rand(3, device="cuda", generator=th.Generator()) + x
    assert not paper.queried and not paper.sent
    assert (x.sum().item(), len(x.nonzero())) == (0.0, 0) and paper.queried == {"outside": 2}
    assert th.ones(3).to("cuda").is_cuda and th.tensor([1.0], device="cuda").is_cuda and paper.sent == {"outside": 2}


def test_gradients_and_optimisers_stay_on_the_device(paper: OnPaper) -> None:
    net = th.nn.Linear(3, 2).to("cuda")
    optimizer = th.optim.Adam(net.parameters(), fused=True)
    net(th.ones(4, 3, device="cuda")).sum().backward()
    optimizer.step()
    state = optimizer.state[net.weight]
    assert {net.weight.device, net.weight.grad.device, state["step"].device, state["exp_avg"].device} == {CUDA}
    with pytest.raises(RuntimeError, match="same device"):
        net(th.ones(4, 3))


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_every_native_env_stays_on_its_device(env_id: str, paper: OnPaper) -> None:
    """Resets, steps, copies of states and masks, and the values are those of the CPU."""
    envs = [make_tensor_env(env_id, 6, device=device) for device in ("cuda", "cpu")]
    for k in range(3):
        parts = []
        for env in envs:
            seeds, mask = th.arange(6, device=env.device), th.arange(6, device=env.device) % 2 == 0
            if k == 0:
                env.reset_all(seeds)
            env.action_space.seed(k)
            actions = th.as_tensor(np.stack([env.action_space.sample() for _ in range(6)]), device=env.device)
            step = env.step_tensor(actions)
            env.reset_envs(mask, seeds + k)
            env_indices = th.tensor([1, 3], device=env.device)
            env.restore(env_indices.flip(0), env.snapshot(env_indices))
            parts.append([*step, env.observations, env.state, env.tasks, env.action_masks])
        for on_gpu, on_cpu in zip(*parts, strict=True):
            assert on_cpu is None or (
                on_gpu.device == CUDA and on_cpu.device.type == "cpu" and bool((on_gpu.cpu() == on_cpu).all())
            )


@pytest.mark.parametrize("backend", [None, pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_the_step_loop_is_one_graph_ahead_of_time(backend: str | None) -> None:
    """Traced by make_fx, and by Dynamo and AOTAutograd without a break, of fake CUDA tensors alone; no node is on the CPU."""
    with guarded(), FakeTensorMode(), th.device(CUDA), th.no_grad():
        env = make_tensor_env("CartPole-v1", 8, device="cuda:0")
        policy = ActorPolicy(env.observation_space, env.action_space, lambda _: 1e-3)
        groups = TensorGroups(8, 2, 7, 0, CUDA)
        groups.started_all(env)
        given = policy, env, groups, (), env_actions(policy), policy.noise(4, 8)
        if backend is None:
            graph = make_fx(lambda noise: env_steps(*given[:-1], noise))(given[-1])
            found = [node.meta["val"] for node in graph.graph.nodes if isinstance(node.meta.get("val"), th.Tensor)]
            assert len(found) > 100
        else:
            found = [*th.compile(env_steps, fullgraph=True, dynamic=False, backend=backend)(*given).values()]
        assert {x.device for x in found if x.dim() > 0} == {CUDA}


def native(env_id: str, n: int = 8, **kwargs: Any) -> Callable[[str], TensorVecEnv]:
    return lambda device: make_tensor_env(env_id, n, device=device, **kwargs)


def choosing(space: spaces.Space, masks: int = 0) -> Callable[[str], TensorVecEnv]:
    return lambda device: Choosing(8, device, space, masks)


def host(make: Any, **kwargs: Any) -> Callable[[str], Any]:
    return lambda device: make_vec_env(make, 4, seed=0, **kwargs)


BITS, CHOICES, MOVES = spaces.MultiBinary(3), spaces.MultiDiscrete([2, 3]), spaces.Discrete(4)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
PARTS = spaces.Dict({"a": BOX, "b": spaces.Discrete(3)})
TASKS = dict(tasks=["even", "odd"])
BY_EPISODE = dict(importance_level="episode")
STATE = dict(horizons=True, paired=True, follow_level=True)
PENDULUM, CART = native("Pendulum-v1"), native("CartPole-v1")
#: Envs by device, and arguments: every head, grouping, estimator, loss and extra.
TRAININGS: dict[str, tuple[Callable[[str], Any], dict[str, Any]]] = {
    "discrete": (CART, {}),
    "gaussian": (PENDULUM, dict(ent_coef=0.01, kl_coef=0.1, target_kl=0.5)),
    "bits": (choosing(BITS), dict(ent_coef=0.01)),
    "choices": (choosing(CHOICES), dict(ent_coef=0.01)),
    "gsde": (PENDULUM, dict(use_sde=True, sde_sample_freq=4)),
    "gsde squashed": (PENDULUM, dict(use_sde=True, policy_kwargs=dict(squash_output=True))),
    "lstm": (CART, dict(policy_kwargs=dict(memory="lstm"), update_kwargs=dict(sequence_length=4))),
    "gru": (PENDULUM, dict(policy_kwargs=dict(memory="gru", n_layers=2), update_kwargs=dict(sequence_length=4))),
    "masks": (lambda device: TensorTMaze10(8, device, masks=True), {}),
    "masked bits": (choosing(BITS, 6), {}),
    "masked choices": (choosing(CHOICES, 5), dict(policy_kwargs=dict(memory="gru"))),
    "normalised": (PENDULUM, dict(policy_kwargs=dict(normalize_obs=True))),
    "groups by state": (lambda device: Unseeded(8, device), {}),
    "groups by stream": (lambda device: Streams(8, device), dict(advantage="outcome")),
    "groups together": (lambda device: Together(8, device), dict(advantage="outcome")),
    "outcome": (choosing(MOVES), dict(advantage="outcome", n_groups=8, n_steps=None, loss_kwargs=dict(aggregation="episode"))),
    "process": (CART, dict(advantage="process", normalize_advantage="batch")),
    "step": (CART, dict(advantage="step")),
    "step, global": (CART, dict(advantage="step", advantage_kwargs=dict(baseline="global"))),
    "rollouts that wait": (CART, dict(advantage_kwargs=dict(least_rows=100))),
    "state, all of it": (PENDULUM, dict(advantage_kwargs=STATE)),
    "cispo by episode": (
        choosing(MOVES),
        dict(loss="cispo", loss_kwargs=dict(importance_level="episode"), n_groups=8, n_steps=None),
    ),
    "small portions": (PENDULUM, dict(update_kwargs=dict(micro_batch_size=16))),
    "tasks": (choosing(MOVES), dict(multitask=dict(**TASKS, grouping="hierarchical", weights="balanced", surgery=True))),
    "clusters": (choosing(MOVES), dict(multitask=dict(grouping="auto", weights="adaptive"))),
    "quantiles": (choosing(MOVES), dict(multitask=dict(grouping="difficulty"))),
    "objectives": (choosing(MOVES), dict(rewards=dict(objectives=dict(a=1.0, b=0.5), normalization="each"))),
    "counts": (CART, dict(rewards=dict(bonus=CountBonus()))),
    "novelty": (CART, dict(rewards=dict(bonus=RNDBonus(), scaling="tanh"))),
    "host": (host("CartPole-v1"), {}),
    "host, whole groups": (host("CartPole-v1"), dict(advantage="outcome")),
    "host gsde": (host("Pendulum-v1"), dict(use_sde=True)),
    "host lstm": (host("CartPole-v1"), dict(policy_kwargs=dict(memory="lstm"))),
    "host masks": (host(lambda: TMaze(masks=True)), {}),
    "host images": (host(lambda: SpaceEnv(IMAGE, MOVES)), dict(policy="CnnPolicy")),
    "host dict": (host(lambda: SpaceEnv(PARTS, BITS)), dict(policy="MultiInputPolicy")),
    "host bonus": (host(lambda: ProbeEnv("action")), dict(rewards=dict(bonus=RNDBonus()))),
}


#: By default these run; the others are slow.
USUAL = ("discrete", "host dict")
#: Who asks the device for values once per rollout or update, whatever the training.
ONCE = frozenset(
    """
    baselines.estimation.check_features baselines.state.StateBaseline._best_ridge baselines.state.StateBaseline._residuals
    baselines.state.StateBaseline._cross_fitted.<locals>.<listcomp> maths.ridge.factorise distributed.means.<locals>.<listcomp>
    distributed.variances.<locals>.<listcomp>
    collect.buffer.GroupRolloutBuffer._as_rollout collect.buffer.GroupRolloutBuffer.pack collect.device_loop.check_finite
    collect.device_loop.record_episodes collect.groups.TensorGroups.note_starts metrics.of_rollout metrics.of_update
    grpo.GRPO.compute_advantages grpo.GRPO._compute_advantages learn.last_good.LastGood.check learn.last_good._is_finite
    maths.per_step.per_step maths.returns.episode_returns advantages.check_rewards
    """.split()
)
#: As often, where needed: host envs, whole episodes, masks, objectives and tasks, paired residuals, bonuses, a learnt std.
OPTIONAL = frozenset(
    """
    collect.buffer.GroupRolloutBuffer._whole_groups collect.plan.check_endless collect.device_loop.check_masks
    collect.device_loop.check_tasks collect.extra_fields.check_one_task maths.losses.step_weights maths.estimators.scale
    maths.estimators.step baselines.estimation.Baselines.estimate baselines.horizons.Horizons.learn
    baselines.paired.Pairing._coefficients baselines.paired.Pairing._forget.<locals>.<genexpr>
    baselines.paired.Pairing._note baselines.paired.Pairing._mean_of_others baselines.paired.level_of_others
    extras.group_weights.GroupWeights.observe extras.group_weights.GroupWeights.progress
    extras.group_weights.row_weights extras.grouping.Clusters.labels extras.grouping.Grouping.regroup
    metrics.of_parts metrics.of_weights metrics.of_bonus.<locals>.<dictcomp> learn.gradients.SurgicalGradient.metrics
    types.select_episodes grpo.GRPO.train collect.host_steps.log_probs_of_actor
    """.split()
)
#: In every epoch or minibatch: a memory's sequences, ratios of whole episodes, one gradient per task, the KL stop.
PER_MINIBATCH = frozenset(
    """
    learn.minibatches.minibatches learn.minibatches.sequence_numbers policies.memory.Memory.run maths.losses.importance_ratio
    learn.gradients.SurgicalGradient.__call__ learn.losses.Objective.approximate_kl
    """.split()
)
#: In the step loop: where resets cannot be seeded env by env, it has to be seen who has ended (:func:`rollout_obstacle`).
COPIES = {"collect.simulators.StateGroups._restart", "collect.simulators.StateGroups._start"}
#: Sent once per rollout, before its first step: the bounds of Box actions.
SENT_BEFORE = {"collect.device_loop.env_actions.<locals>.<genexpr>"}
#: A rollout of a number of groups ends with the step that completes the last one, so every step is looked at.
COUNTED = {"collect.device_loop.CompleteGroups._count"}
IN_THE_LOOP = {
    "outcome": COUNTED,
    "cispo by episode": COUNTED,
    "groups by state": COPIES,
    "groups together": {"collect.simulators.SynchronousGroups._restart"},
}


#: At every step of host envs, which wait for their actions anyway: whether what these are made of are numbers.
WITH_ACTIONS = {"collect.host_steps.check_outputs"}


class InLoop(BaseCallback):
    """Who asks for values, or sends some, between the beginning of a rollout and its last step.

    :param paper: keeps the books
    """

    def __init__(self, paper: OnPaper) -> None:
        super().__init__()
        self.paper, self.known, self.found = paper, Counter[str](), Counter[str]()

    def _on_rollout_start(self) -> None:
        self.known = self.paper.queried + self.paper.sent

    def _on_step(self) -> bool:
        if self.model.rollout_buffer.pos <= SMALL["n_steps"]:  # whole episodes: it has looked whether to go on
            self.found += self.paper.queried + self.paper.sent - self.known
        self.known = self.paper.queried + self.paper.sent
        return True


def train(device: str, name: str, callback: BaseCallback | None = None) -> tuple[GRPO, list[float]]:
    """Three rollouts and updates, and the weights after them."""
    make, changes = TRAININGS[name]
    arguments = {**SMALL, **changes}
    if "advantage" not in changes:  # a fit to every rollout
        arguments["advantage_kwargs"] = dict(least_rows=1, paired=False) | changes.get("advantage_kwargs", {})
    env = make(device)
    model = GRPO(arguments.pop("policy", "MlpPolicy"), env, device=device, **arguments)
    model.learn(3 * SMALL["n_steps"] * env.num_envs, callback)
    return model, th.cat([p.detach().flatten() for p in model.policy.parameters()]).tolist()


def test_a_small_network_on_host_envs_is_told_of_the_cpu_as_ppos_is() -> None:
    def words(make: Callable[[], Any]) -> list[str]:
        with warnings.catch_warnings(record=True) as caught, cuda_on_paper():
            warnings.simplefilter("always")
            make()
        return [str(w.message) for w in caught if "on the GPU" in str(w.message)]

    (text,) = words(lambda: GRPO("MlpPolicy", "CartPole-v1", device="cuda"))
    assert text.startswith("You are trying to run GRPO on the GPU") and "`device='cpu'`" in text
    assert not words(lambda: GRPO("MlpPolicy", make_tensor_env("CartPole-v1", 4, device="cuda"), device="cuda"))
    assert not words(lambda: GRPO("MlpPolicy", "CartPole-v1", policy_kwargs=dict(memory="gru"), device="cuda"))
    assert not words(lambda: GRPO("MlpPolicy", "CartPole-v1", device="cpu"))


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in USUAL else pytest.mark.slow) for n in TRAININGS])
def test_trainings_stay_on_the_device_and_are_the_cpus(name: str) -> None:
    """No mix of devices, what learns is on the device, the weights are the CPU's, only who is known here asks for values."""
    with cuda_on_paper() as paper:
        in_loop = InLoop(paper)
        model, weights = train("cuda", name, in_loop)
        queried = set(paper.queried) - {"outside"}
        trainable_parts = [model.policy, model.ref_policy, model.estimator, model.bonus, model.group_weighting]
        modules = [module for module in trainable_parts if isinstance(module, th.nn.Module)]
        assert {x.device for module in modules for x in (*module.parameters(), *module.buffers())} == {CUDA}
        evaluate_policy(model, model.get_env(), 1, deterministic=False, warn=False)
    waits = IN_THE_LOOP.get(name, set())
    assert name.startswith("host") or set(in_loop.found) - SENT_BEFORE == waits
    waits = waits | (WITH_ACTIONS if name.startswith("host") else set())
    assert queried - ONCE - OPTIONAL - PER_MINIBATCH == waits and (name != "discrete" or queried == ONCE)
    _, expected = train("cpu", name)
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
