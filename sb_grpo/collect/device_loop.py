"""Collection from tensor envs: episodes, resets, sampling and storage on one device; the step loop never waits for it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch as th
from gymnasium import spaces

from sb_grpo import distributed
from sb_grpo.collect.buffer import Rows
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.collect.extra_fields import FieldSpec
from sb_grpo.collect.groups import TensorGroups
from sb_grpo.collect.plan import Limits, Plan, check_endless, check_hopeless, too_large
from sb_grpo.collect.simulators import InstanceGroups
from sb_grpo.envs.instance_env import InstanceEnv
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.maths.precision import autocasting
from sb_grpo.policies import ActorPolicy
from sb_grpo.policies.encoding import EncodingPolicy
from sb_grpo.policies.extra_inputs import CODE, MASK, MEMORY, env_part, extra_input, with_extra_inputs
from sb_grpo.policies.masks import choices_of
from sb_grpo.policies.numbers import no_numbers
from sb_grpo.types import Breakdown, Info, Obs, TensorOrDict, map_obs


def env_actions(policy: ActorPolicy) -> Callable[[th.Tensor], th.Tensor]:
    """The map from sampled actions to the env's own bounds: unsquashed or clipped where the space is a Box."""
    space = policy.action_space
    if not isinstance(space, spaces.Box):
        return lambda actions: actions
    low, high = (th.as_tensor(bound, device=policy.device).flatten() for bound in (space.low, space.high))
    if policy.squash_output:
        return lambda actions: low + 0.5 * (actions + 1.0) * (high - low)
    return lambda actions: actions.clamp(low, high)


#: Columns that a step shows to callbacks.
HANDED_OUT = ("observations", "actions", "next_observations")


def observe(policy: ActorPolicy, env: TensorVecEnv, groups: TensorGroups) -> Obs:
    """Observations as the policy sees them: with the env's masks, and the policy's memory of the running episodes."""
    parts = {} if env.action_masks is None else {MASK: env.action_masks}
    if policy.memory is not None:
        parts[MEMORY] = policy.memory.before(groups.memory, groups.t == 0)
    if isinstance(groups, InstanceGroups) and groups.code is not None:
        assert isinstance(env, InstanceEnv)
        return with_extra_inputs(env.seen_states, parts)
    return with_extra_inputs(env.observations, parts)


def env_step(
    policy: ActorPolicy,
    env: TensorVecEnv,
    groups: TensorGroups,
    extra_fields: Sequence[FieldSpec],
    to_env: Callable[[th.Tensor], th.Tensor],
    noise: th.Tensor,
) -> Rows:
    """Act, step every env, and start the next ones where episodes ended: tensor arithmetic without a look at any value.

    :param extra_fields: further fields of a step
    :param to_env: of :func:`env_actions`
    :param noise: ``[n_envs, n]`` of :meth:`ActorPolicy.noise`
    :return: columns of the step that the buffer stores, ``[n_envs, ...]`` each
    """
    obs = observe(policy, env, groups)
    codes = {} if not isinstance(groups, InstanceGroups) or groups.code is None else {CODE: groups.code}
    actions, log_probs, memory = policy.sample(with_extra_inputs(obs, codes), noise)
    step = env.step_tensor(to_env(actions))
    groups.episode_return = groups.episode_return + step.rewards
    columns = {
        "observations": obs,
        "actions": actions,
        "log_probs": log_probs,
        "rewards": step.rewards,
        "episode_ids": groups.episode_id,
        "t": groups.t,
        "ends": (step.terminated + 2 * step.truncated).to(th.int8),
        "next_observations": with_extra_inputs(step.observations, {} if memory is None else {MEMORY: memory}),
        "finished_return": groups.episode_return,
    }
    groups.memory = memory
    for field in extra_fields:
        values = field.tensor(env, groups.episode_return)
        assert values is not None
        columns[field.name] = values
    groups.step(env, step.terminated | step.truncated)
    return columns


def env_steps(
    policy: ActorPolicy,
    env: TensorVecEnv,
    groups: TensorGroups,
    extra_fields: Sequence[FieldSpec],
    to_env: Callable[[th.Tensor], th.Tensor],
    noise: th.Tensor,
) -> Rows:
    """Take as many env steps as there is noise for.

    :param noise: ``[k, n_envs, n]``
    :return: columns of :func:`env_step`, ``[k, n_envs, ...]``
    """
    steps = [env_step(policy, env, groups, extra_fields, to_env, step_noise) for step_noise in noise.unbind(0)]
    return {name: map_obs(lambda *x: th.stack(x), *(columns[name] for columns in steps)) for name in steps[0]}


#: Takes env steps (:func:`env_steps`, or the same in one graph), and how many per call.
Stepper = tuple[Callable[..., Rows], int]


class StepResult(NamedTuple):
    """One step of every env. Callbacks find these names in their locals, as in SB3."""

    n_steps: int  #: of this rollout, per env, before this one
    obs_tensor: TensorOrDict  #: before the step
    actions: th.Tensor  #: as sampled
    clipped_actions: th.Tensor  #: as the env got them
    new_obs: TensorOrDict
    rewards: th.Tensor
    dones: th.Tensor
    infos: list[Info]
    ahead: int  #: steps per env that have been taken beyond this one


def steps_of(found: Rows, n_steps: int, run: int, infos: list[Info]) -> Iterator[StepResult]:
    """The steps of a run, one after another.

    :param found: columns of :func:`env_steps`
    :param n_steps: per env before the run
    :param run: steps per env in it
    :param infos: of every step
    """
    for i in range(run):
        obs, actions, after = (map_obs(lambda x: x[i], found[name]) for name in HANDED_OUT)  # noqa: B023
        rewards, dones = found["rewards"][i], found["ends"][i] > 0
        yield StepResult(n_steps + i, obs, actions, actions, after, rewards, dones, infos, run - 1 - i)


class CompleteGroups:
    """Counts the groups of which every member has ended, as steps are taken, where a rollout is to have a number of them.

    Waits for the device at every step.

    :param buffer: with the rows of earlier steps
    :param plan: of the rollout
    """

    def __init__(self, buffer: TensorRolloutBuffer, plan: Plan) -> None:
        self.buffer = buffer
        self.plan = plan
        self.n = 0
        self.wanted = plan.least_groups
        self.ended: Counter[int] = Counter()
        if plan.n_groups is not None:
            self._count(*buffer.waiting_columns("episode_ids", "ends"))

    def _count(self, episode_ids: th.Tensor, ends: th.Tensor) -> None:
        for group in (episode_ids[ends > 0] // self.plan.group_size).tolist():
            self.ended[group] += 1
            self.n += self.ended[group] == self.plan.group_size

    def are_enough(self, found: Rows) -> bool:
        """Count the ends of a run of steps; return whether the rollout has its number of groups."""
        if self.plan.n_groups is None:
            return False
        self._count(found["episode_ids"], found["ends"])
        if self.n >= self.wanted:
            self.wanted = self.plan.wanted_groups(self.n, self.buffer)
        return self.n >= self.wanted


def encode(policy: ActorPolicy, env: TensorVecEnv, groups: TensorGroups) -> None:
    """Encode the instances that the next step needs and that have not been encoded, where the policy encodes."""
    if isinstance(policy, EncodingPolicy):
        assert isinstance(groups, InstanceGroups) and isinstance(env, InstanceEnv)
        groups.encode(policy, env)


def collect_tensors(
    env: TensorVecEnv,
    actor: Callable[[], ActorPolicy],
    buffer: TensorRolloutBuffer,
    extra_fields: Sequence[FieldSpec],
    plan: Plan,
    groups: TensorGroups,
    stepper: Stepper,
    autocast: bool,
    task_names: Sequence[str],
    episodes: deque[Info] | None,
    start_over: Callable[[], TensorGroups],
    on_step: Callable[[StepResult], bool],
) -> bool:
    """Fill the buffer with ``steps_per_env`` steps per env; whole-episode estimators go on until enough groups are complete.

    :param actor: returns the policy as it is now: callbacks may put another into its place
    :param autocast: run the policy in bfloat16
    :param task_names: of the declared tasks
    :param episodes: SB3's statistics, which get the episodes that ended
    :param start_over: begins new groups in every env, as somebody else has taken the envs
    :param on_step: is told of every step, of those of a compiled run after the whole of it; False stops the collection
    :return: False when ``on_step`` asked to stop
    :raises ValueError: for NaN or inf from the env, steps without a valid action, and tasks that nobody declared
    """
    take_steps, run = stepper
    policy = actor()
    to_env = env_actions(policy)
    interruptions = 0
    infos: list[Info] = [{} for _ in range(env.num_envs)]
    counter = CompleteGroups(buffer, plan)
    while True:
        noise = actor().noise(plan.steps_per_env, env.num_envs)
        for n_steps in range(0, plan.steps_per_env, run):
            if actor() is not policy:
                policy = actor()
                to_env = env_actions(policy)
            if not groups.in_step_with(env):
                groups = start_over()
                interruptions += 1
                counter = CompleteGroups(buffer, plan)
            if plan.draws_noise(n_steps):
                policy.reset_noise(env.num_envs)
            with th.no_grad(), autocasting(policy.device, autocast):
                encode(policy, env, groups)
                found = take_steps(policy, env, groups, extra_fields, to_env, noise[n_steps : n_steps + run])
            buffer.add_steps(run, found)
            dones = found["ends"] > 0
            if plan.use_sde:
                policy.renew_noise(dones[0])
            if not all(on_step(step) for step in steps_of(found, n_steps, run, infos)):
                return False
            if counter.are_enough(found):
                break
        complete = buffer.complete_groups(plan.group_size) if plan.whole_episodes else 0
        if complete >= plan.wanted_groups(complete, buffer):
            break
        check_hopeless(interruptions, buffer.pos, complete)
        check_endless(groups.t, plan)
    check_finite(buffer, plan.limits, policy)
    check_masks(buffer)
    check_tasks(buffer, tuple(task_names))
    record_episodes(episodes, buffer, plan.group_size)
    return True


def check_finite(buffer: TensorRolloutBuffer, limits: Limits, policy: ActorPolicy) -> None:
    """Look for NaN, inf and numbers beyond all measure in the simulator's results, once per rollout.

    :param policy: that acted: where its own outputs were no numbers, the simulator is not at fault
    :raises Breakdown: naming env, step and tensor
    """
    steps = buffer.steps
    acted = steps["log_probs"][: buffer.pos].isfinite().all(dim=1)
    columns = {
        "observation": (env_part(steps["next_observations" if buffer.keeps_next else "observations"]), limits.observation),
        "reward": (steps["rewards"].unsqueeze(2), limits.reward),
    }
    if "objectives" in buffer.extra:
        columns["reward by objective"] = buffer.extra["objectives"], limits.reward
    for what, (values, largest) in columns.items():
        if not values.is_floating_point():
            continue
        rows = values[: buffer.pos].flatten(2)
        bad = ~(rows.isfinite() & (rows.abs() <= largest)).all(dim=2)
        if bool(bad.any()):
            step, env_index = bad.nonzero()[0].tolist()
            if not bool(acted[: step + 1].all()):
                break
            wrong = f"{too_large(largest)}," if bool(values[step, env_index].isfinite().all()) else "is not finite"
            raise Breakdown(
                f"{what} of env {env_index} {wrong} at step {step} of this rollout: {values[step, env_index].tolist()}. The "
                "policy has not been updated with it; the simulator has diverged: check its time step and its actions' bounds."
            )
    if not bool(acted.all()):
        raise Breakdown(f"At step {int(acted.int().argmin())} of this rollout {no_numbers(policy)}")


def check_masks(buffer: TensorRolloutBuffer) -> None:
    """Look for steps in which no action was valid, once per rollout.

    :raises ValueError: naming env and step
    """
    masks = extra_input(buffer.steps["observations"], MASK)
    if masks is None:
        return
    for number, part in enumerate(masks[: buffer.pos].bool().split(choices_of(buffer.action_space), dim=2)):
        dead = ~part.any(dim=2) & (buffer.steps["episode_ids"][: buffer.pos] >= 0)
        if bool(dead.any()):
            step, env_index = dead.nonzero()[0].tolist()
            raise ValueError(
                f"action_masks of env {env_index} at step {step} of this rollout allow no action for choice {number}. Allow "
                "at least one at every step, or end the episode where nothing can be done."
            )


def check_tasks(buffer: TensorRolloutBuffer, names: tuple[str, ...]) -> None:
    """Look for tasks that nobody declared, once per rollout.

    :param names: of the declared ones
    :raises ValueError: naming env, step and task
    """
    if "task" not in buffer.extra:
        return
    tasks = buffer.extra["task"][: buffer.pos]
    bad = (tasks < 0) | (tasks >= len(names))
    if bool(bad.any()):
        step, env_index = bad.nonzero()[0].tolist()
        raise ValueError(
            f"Task {int(tasks[step, env_index])} of env {env_index} at step {step} of this rollout is not declared: there are "
            f"{len(names)}, {list(names)} (ids 0 to {len(names) - 1}). Declare all of them with tasks=, as a number or a list "
            "of names."
        )


def record_episodes(ep_info_buffer: deque[Info] | None, buffer: TensorRolloutBuffer, group_size: int) -> None:
    """Hand return, length and group of the episodes that ended to SB3's statistics, in one transfer."""
    assert ep_info_buffer is not None and ep_info_buffer.maxlen is not None
    steps = buffer.steps
    ended = (steps["ends"][: buffer.pos] > 0).nonzero()[-ep_info_buffer.maxlen :].unbind(1)
    returns = steps["finished_return"][ended].tolist()
    lengths = (steps["t"][ended] + 1).tolist()
    groups = distributed.global_group(steps["episode_ids"][ended] // group_size).tolist()
    ep_info_buffer.extend({"r": r, "l": n, "group": group} for r, n, group in zip(returns, lengths, groups, strict=True))
