"""Base of GRPO: set-up, collection of rollouts in groups, ``learn``, loops of one's own, files. Stands in the place of SB3's
``OnPolicyAlgorithm``, whose order and names it keeps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule, obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo import checkpoint, distributed, distributed_training, save_util
from sb_grpo import metrics as log
from sb_grpo.advantages import TrainingBatch
from sb_grpo.callback_states import recover, teller
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.collect.device_loop import StepResult, collect_tensors
from sb_grpo.collect.extra_fields import FieldSettings, HostStep, make_extra_fields, read_host
from sb_grpo.collect.groups import Groups, HostGroups, TensorGroups
from sb_grpo.collect.host_steps import (
    ExtraInputs,
    check_callback_rewards,
    check_finite,
    check_outputs,
    check_reward_wrappers,
    extra_input_spaces,
    give_up,
    log_probs_of_actor,
    note_ends,
    scaling_rewards,
    warn_of_interruption,
)
from sb_grpo.collect.masks import APART, MASKS_UNKNOWN, masks_of_the_evaluated, source_of
from sb_grpo.collect.plan import LARGEST_OBSERVATION, LARGEST_REWARD, Limits, Plan, check_endless, check_hopeless
from sb_grpo.collect.simulators import InstanceGroups, make_groups
from sb_grpo.config import (
    RANGES,
    Multitask,
    Rewards,
    as_read,
    at_progress,
    check_as_read,
    check_values,
    constructor_of,
    default_group_size,
    group_size_at,
    integer,
    number,
    shown,
    steps_per_env,
    to_python,
)
from sb_grpo.envs.env_batch import EPISODE_LOST
from sb_grpo.envs.installing import install_seeded_reset, time_limit
from sb_grpo.envs.instance_env import InstanceEnv
from sb_grpo.envs.ownership import reset_is_over, resetting
from sb_grpo.envs.process_vec_env import naming_the_dead
from sb_grpo.envs.random import mix
from sb_grpo.envs.tensor_env import TensorVecEnv, is_tensor_env
from sb_grpo.extras.exploration import Bonus, Place, make_bonus
from sb_grpo.extras.group_weights import GroupWeights
from sb_grpo.extras.grouping import make_grouping
from sb_grpo.learn.advantage_replay import AdvantageReplay
from sb_grpo.learn.compiled import CompiledFunctions, rollout_obstacle, update_obstacle
from sb_grpo.learn.gradients import PlainGradient, SurgicalGradient
from sb_grpo.learn.last_good import Snapshot
from sb_grpo.learn.losses import Loss
from sb_grpo.logged_keys import describe_keys
from sb_grpo.maths.discount import discount_for
from sb_grpo.maths.precision import autocasting
from sb_grpo.maths.schedules import scaled
from sb_grpo.normalization import put_running_state, running_state, take_up
from sb_grpo.policies import (
    ActorCnnPolicy,
    ActorMultiInputPolicy,
    ActorPolicy,
    CausalLMPolicy,
    EncodingPolicy,
    RoutedPolicy,
    SetPolicy,
    load_actor,
)
from sb_grpo.policies.extra_inputs import space_with, space_without
from sb_grpo.policies.weights import made_apart
from sb_grpo.profiles import arguments_of
from sb_grpo.state import copied
from sb_grpo.types import NOTHING, Breakdown, File, Info, Kwargs, Obs, Rollout, Settings, State, UpdateResult, map_obs
from sb_grpo.validation import (
    Config,
    Options,
    check_early_reset,
    check_env,
    check_log_folder,
    check_policy_name,
    check_rollout_size,
    give_warnings,
    obstacle_to_pairs,
    validate,
    warn_of_few_starts,
)

SelfGroupOnPolicy = TypeVar("SelfGroupOnPolicy", bound="GroupOnPolicyAlgorithm")

#: Defaults that follow from other arguments: of a loaded model they are found anew where one of those is replaced.
FOLLOWS_FROM: dict[str, set[str]] = {
    "gamma": {"advantage"},
    "normalize_advantage": {"advantage", "multitask"},
    "group_size": {"advantage", "advantage_kwargs", "normalize_advantage", "multitask", "group_kwargs", "other_n_envs"},
    "n_steps": {"n_envs", "n_groups"},
    "n_envs": set(),
}
OF_LEARN = {
    "total_timesteps": number(0, float("inf"), "pass the number of env steps, 100_000 for a first try"),
    #: Rollouts from one table to the next; None: none is logged.
    "log_interval": integer(1, 1_000_000_000, "1 is usual", none=True),
}


class GroupOnPolicyAlgorithm(OnPolicyAlgorithm):
    """Base of on-policy algorithms that compare the episodes of a group, which share a reset seed.

    Subclasses implement :meth:`compute_advantages` and :meth:`train`. The arguments are those of
    :class:`~sb_grpo.grpo.GRPO` that decide which rollouts are collected, and those of SB3's ``OnPolicyAlgorithm`` by name.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": ActorPolicy,
        "CnnPolicy": ActorCnnPolicy,
        "MultiInputPolicy": ActorMultiInputPolicy,
        "RoutedPolicy": RoutedPolicy,
        "CausalLMPolicy": CausalLMPolicy,
        "SetPolicy": SetPolicy,
    }
    policy: ActorPolicy  # type: ignore[assignment]
    rollout_buffer: GroupRolloutBuffer  # type: ignore[assignment]
    n_steps: int | None  # type: ignore[assignment]
    options: Options
    extra_inputs: ExtraInputs
    shared_statistics: distributed_training.SharedStatistics
    # Set by GRPO's constructor:
    batch_size: int
    n_epochs: int
    clip_range: float | Schedule
    target_kl: float | None
    kl_coef: float
    normalize_advantage: str
    loss: str | Loss
    loss_kwargs: Kwargs | None
    #: Arguments that are read when the model is set up and not again, with their values then.
    _as_read: Kwargs | None = None

    def __init__(
        self,
        policy: str | type[ActorPolicy],
        env: GymEnv | str,
        use_sde: bool,
        group_size: int | Schedule | None,
        n_groups: int | None,
        group_kwargs: Kwargs | None,
        advantage: object,
        advantage_kwargs: Kwargs | None,
        multitask: Multitask | Settings | None,
        rewards: Rewards | Settings | None,
        update_kwargs: Kwargs | None,
        compile: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            policy,  # type: ignore[arg-type]
            env,
            vf_coef=0.0,  # the base class asks for it; there is no value function
            use_sde=False,  # set below: the base class would complain of it without its name
            _init_setup_model=False,
            **kwargs,
        )
        self.use_sde = use_sde
        self.group_size = group_size
        self.n_groups = n_groups
        self.group_kwargs = group_kwargs
        self.advantage = advantage
        self.advantage_kwargs = advantage_kwargs
        self.multitask = multitask
        self.rewards = rewards
        self.update_kwargs = update_kwargs
        self.compile = compile

        self.estimator: Any = None
        self.group_weighting: GroupWeights | None = None
        self.bonus: Bonus | None = None
        self.ref_policy: ActorPolicy | None = None
        self._given_reference = False  #: ``ref_policy`` was given, and is none that this policy has been
        self._derived: Kwargs = {}  #: defaults that followed from other arguments
        self._base_seed: int | None = None
        self._next_group = 0
        self.groups: Groups | None = None
        self._restart_groups = False
        self._time_limit: int | None = None
        #: Source of action masks (sb_grpo.collect.masks); None: there are none.
        self.mask_source: str | None = None
        self._warned_of_masks = False
        self._warned_of_few_starts = False
        self._rows_checked: tuple[int, int] | None = None

        self._n_rollouts = 0
        self._n_gradient_steps = 0
        self._steps_trained = 0
        self._steps_dropped = 0
        self.interruptions = 0  #: times that somebody else has taken the training env in mid-rollout
        self._training_batch: TrainingBatch | None = None  #: of the last rollout, until it has been learnt from
        #: Metrics of the last rollout and the update after it, by key.
        self.last_metrics: dict[str, float] = {}
        self.last_update: UpdateResult | None = None

        # Callbacks keep these here, so that they are saved with the model.
        self.curriculum_level: int | None = None  #: of a CurriculumCallback
        self.moving_gamma: float | None = None  #: that a GammaCallback has put in gamma's place
        self.lr_scale = 1.0  #: factor of the learning rate, or its schedule, by a RecoveryCallback

        self._iteration = 0  #: rollouts since learn() began, by which log_interval goes
        self._callback_in_use: BaseCallback | None = None
        self._own_loop: tuple[MaybeCallback, BaseCallback] | None = None  #: callbacks of collect(), as given and as called
        self._advantage_replay = AdvantageReplay()  #: before the rollouts of a loop of one's own
        self._in_rollout = False  #: or not learnt from yet
        self._runs_due: list[File] = []  #: files of save_run() that wait for the end of the rollout and its update
        self._to_resume: State | None = None  #: state of a loaded run that the loop has not taken up yet
        #: Statistics of the VecNormalize that the weights have learnt under, as long as the model has no env.
        self._statistics: bytes | None = None

    @classmethod
    def from_profile(
        cls: type[SelfGroupOnPolicy], name: str, policy: str | type[ActorPolicy], env: GymEnv | str, **kwargs: Any
    ) -> SelfGroupOnPolicy:
        """Build a model whose steps are as bold as a profile says.

        :param name: ``"conservative"``, ``"balanced"`` or ``"aggressive"``: :data:`sb_grpo.profiles.PROFILES`
        :param policy: as the constructor's
        :param env: as the constructor's
        :param kwargs: further arguments; they go over the profile's
        :raises ValueError: for an unknown name, and as the constructor
        """
        return cls(policy, env, **arguments_of(name, kwargs))

    # ---------------------------------------------------------------- set-up

    def _get_policy_from_name(self, policy_name: str) -> type[BasePolicy]:
        check_policy_name(policy_name, self.policy_aliases)
        return super()._get_policy_from_name(policy_name)

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        check_env(env)
        if is_tensor_env(env):
            return env  # type: ignore[return-value]
        venv = OnPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)
        install_seeded_reset(venv)
        return venv

    def _setup_model(self) -> None:
        if self.rollout_buffer_class is save_util.OnlyForGRPO:  # type: ignore[comparison-overlap]
            self.rollout_buffer_class = None
        self.options = Options.read(self.__dict__)
        self._as_read = None
        self._derive()
        config = self._config()
        validate(config)
        validate(replace(config, group_size=group_size_at(self.group_size, 0.0)))  # where a schedule leads
        give_warnings(config)
        distributed_training.check_equal(self.settings)
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        if self._base_seed is None:
            self._base_seed = distributed.gathered(int(np.random.randint(2**31)))[0]
        self.clip_range = FloatSchedule(self.clip_range)

        self.policy = self._make_policy(self.policy_kwargs)
        self._maybe_recommend_cpu()

        self._find_masks()
        self._make_buffer()
        self._setup_groups()
        self._setup_reference()
        place = Place(space_without(self.observation_space), self.get_vec_normalize_env() is not None, self.gamma, self.device)
        self.bonus = make_bonus(self.options.rewards.bonus, place)
        self._capture()
        self._begin_together()
        self._as_read = as_read(self.__dict__)
        self._take_up_statistics()

    def _make_policy(self, kwargs: Kwargs) -> ActorPolicy:
        policy_class: Any = self.policy_class
        policy: ActorPolicy = policy_class(
            self.observation_space, self.action_space, self.lr_schedule, use_sde=self.use_sde, **kwargs
        ).to(self.device)
        return policy

    def _maybe_recommend_cpu(self, mlp_class_name: str = ActorPolicy.__name__) -> None:
        """Recommend the CPU for host envs, as SB3 does: their steps wait for a small network."""
        if self.env is not None and not is_tensor_env(self.env) and self.policy.memory is None:
            super()._maybe_recommend_cpu(mlp_class_name)

    def _setup_lr_schedule(self) -> None:
        super()._setup_lr_schedule()
        if self.lr_scale != 1.0:
            self.lr_schedule = partial(scaled, schedule=self.lr_schedule, factor=self.lr_scale)

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate, or its whole schedule, from here on; it stays so when the model is saved."""
        self.lr_scale *= factor
        self.lr_schedule = partial(scaled, schedule=self.lr_schedule, factor=factor)

    def _make_buffer(self) -> None:
        kind: Any = self.rollout_buffer_class or self._buffer_class
        seen = self.policy.seen_space if is_tensor_env(self.env) else self.observation_space
        self.rollout_buffer = kind(
            self.steps_per_env,
            space_with(seen, extra_input_spaces(self.policy, self.mask_source)),
            self.action_space,
            device=self.device,
            n_envs=self.n_envs,
            **self.rollout_buffer_kwargs,
        )
        no_values = isinstance(self.policy, EncodingPolicy) and not self.options.estimator.uses_values
        if no_values and isinstance(self.rollout_buffer, TensorRolloutBuffer):
            self.rollout_buffer.without_next()
        if isinstance(self.policy, EncodingPolicy) and self.policy.static_keys and not is_tensor_env(self.env):
            self.rollout_buffer.keep_once(self.policy.static_keys)
        if self.gamma is not None:  # type: ignore[redundant-expr]
            self.rollout_buffer.discount(self.gamma, self.gae_lambda)
        self.extra_inputs = ExtraInputs(self.mask_source)
        self._make_extra_fields()
        self.rollout_buffer.add_fields(self.extra_fields)

    @property
    def _buffer_class(self) -> type[GroupRolloutBuffer]:
        return TensorRolloutBuffer if is_tensor_env(self.env) else GroupRolloutBuffer

    def _make_extra_fields(self) -> None:
        options = self.options
        turns = options.loss.importance_level == "turn"
        seeds = isinstance(self.policy, EncodingPolicy) and isinstance(self.env, InstanceEnv)
        wanted = FieldSettings(options.multitask, options.rewards, self.observation_space, self.n_envs, turns, seeds)
        self.extra_fields = make_extra_fields(wanted)

    def _setup_groups(self) -> None:
        """Build the parts that compare, weigh and reconcile the groups."""
        assert self._base_seed is not None
        multitask = self.options.multitask
        rewards = self.options.rewards
        self.grouper = make_grouping(multitask, self.observation_space, self._base_seed)
        if isinstance(self.grouper, th.nn.Module):
            self.grouper.to(self.device)
        n_tasks = len(self.grouper.names) if self.grouper.by_task else 1
        n_objectives = len(rewards.objectives or {}) if rewards.normalization == "each" else 1
        estimator = self.options.estimator
        if getattr(estimator, "paired", False) is None:
            largest = max(group_size_at(self.group_size, progress) for progress in (1.0, 0.0))
            estimator = replace(estimator, paired=largest > 1 and self._obstacle_to_pairs() is None)
        build = getattr(estimator, "build", None)
        self.estimator = estimator if build is None else build(self.policy.features_dim, n_tasks, n_objectives)
        if isinstance(self.estimator, th.nn.Module):
            self.estimator.to(self.device)
        if multitask.weights is not None:
            kwargs = multitask.weights_kwargs or {}
            self.group_weighting = GroupWeights(multitask.weights, len(self.grouper.names), **kwargs).to(self.device)
        self._objective_weights: th.Tensor | None = None
        if rewards.objectives is not None:
            self._objective_weights = th.tensor(list(rewards.objectives.values()), dtype=th.float32, device=self.device)
        gradient_class = SurgicalGradient if multitask.surgery else PlainGradient
        self.gradient = gradient_class(self.options.update.micro_batch_size, self.options.update.autocast)

    def _capture(self) -> None:
        """Set up compiled execution, as far as it can be had with this env and these arguments."""
        options = self.options
        self.shared_statistics = distributed_training.SharedStatistics(self._vec_normalize_env)
        self.compiled = CompiledFunctions(
            self.compile,
            rollout_obstacle(self.env, self.use_sde, callable(options.groups.starts)),
            update_obstacle(
                self.policy.optimizer, self.device, options.loss.importance_level, options.update.micro_batch_size,
                options.multitask.surgery, self.use_sde,
                self.policy.memory is not None or self.policy.episodes_together, distributed.world().size,
            ),
        )  # fmt: skip
        if hasattr(self.estimator, "fast_predict"):
            self.estimator.fast_predict = self.compiled.predict(self.estimator)

    def _begin_together(self) -> None:
        """Give several learners one set of weights, and random numbers of each one's own."""
        rank, n = distributed.world()
        if n == 1:
            return
        for module in (self.policy, self.estimator, self.ref_policy):
            if isinstance(module, th.nn.Module):
                distributed.broadcast(module.state_dict().values())
        base_seed = self._base_seed
        assert base_seed is not None
        self.set_random_seed(mix(base_seed, rank, 3) >> 33)
        self._base_seed = base_seed  # groups are those of all

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed all random numbers, as SB3's; groups that begin from here on are those of the seed."""
        super().set_random_seed(seed)
        self._base_seed = self._base_seed if seed is None else seed

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Replace the env, as SB3's. It may be of another kind (host, tensor); the buffer is then built for it.

        :raises ValueError: if the arguments of the model do not go with the env; the model then keeps the one it has
        """
        former_env = self.env
        former_normalize = self._vec_normalize_env
        former_obs = self._last_obs
        super().set_env(env, force_reset)
        try:
            config = self._config()
            validate(config)
            give_warnings(config)
            changed = self._find_masks()
        except ValueError:
            self.env = former_env
            self._vec_normalize_env = former_normalize
            self._last_obs = former_obs
            raise
        other_kind = is_tensor_env(former_env) != is_tensor_env(self.env)
        if changed or other_kind or not isinstance(self.rollout_buffer, self._buffer_class):
            self._steps_dropped += self.rollout_buffer.drop_kept()
            self._make_buffer()
        self._capture()
        self._take_up_statistics()

    def _take_up_statistics(self) -> None:
        """Put the observation statistics of the model's file into its env, as soon as there is one."""
        if self._statistics is None or self.env is None:
            return
        trouble = take_up(self._statistics, self._vec_normalize_env)
        self._statistics = None
        if trouble is not None:
            warnings.warn(trouble, UserWarning, stacklevel=3)

    def _find_masks(self) -> bool:
        """Ask the env where its masks come from; True if that is another place than was known."""
        if self.env is None:  # a saved model knows the source of the env that it was trained on
            return False
        known = self.mask_source
        self.mask_source = source_of(self.env)
        return known != self.mask_source

    # ---------------------------------------------------------------- arguments

    @property
    def settings(self) -> Kwargs:
        """Every argument of the constructor by name, as it is now."""
        names = [name for name in constructor_of(type(self)) if name not in ("policy", "env", "_init_setup_model")]
        settings = {name: getattr(self, name, getattr(self, f"_{name}", None)) for name in names}
        return {"policy": self.policy_class.__name__, "n_envs": getattr(self, "n_envs", None), **settings}

    @property
    def steps_per_env(self) -> int:
        """Steps per env that a rollout aims at."""
        return steps_per_env(self.n_steps, self.n_envs * distributed.world().size)

    @property
    def current_group_size(self) -> int:
        """Members per group, by the schedule as it stands where ``group_size`` is one."""
        return group_size_at(self.group_size, self._current_progress_remaining)

    @property
    def whole_episodes(self) -> bool:
        """Rollouts end when groups are complete; otherwise episodes are cut and carried over."""
        return self.options.estimator.whole_episodes or self.n_groups is not None

    @property
    def _sequence_length(self) -> int | None:
        """Steps through which gradients go back; None without a memory."""
        if self.policy.memory is None:
            return None
        update = self.options.update
        return update.sequence_length or update.micro_batch_size or self.batch_size

    def _config(self) -> Config:
        """Collect the values that the rules between arguments look at."""
        own: Kwargs = {name: getattr(self, name, None) for name in Config.__dataclass_fields__}
        own["group_size"] = self.current_group_size
        if self.env is not None:
            own["n_envs"] = self.n_envs * distributed.world().size
        return Config(**own)

    def _derive(self) -> None:
        """Find the defaults that follow from other arguments.

        :raises ValueError: if something was changed by hand that is read only once
        """
        self._check_as_read()
        replaced = self.__dict__.pop("_replaced", set())  # by GRPO.load(..., name=value)
        self._derived = {name: value for name, value in self._derived.items() if name not in replaced}
        n_envs = getattr(self, "n_envs", None)  # none before an env was given
        changed = {*replaced, "n_envs"}  # whatever their number was before
        if n_envs != self._derived.get("n_envs"):
            changed.add("other_n_envs")
            self._derived["n_envs"] = n_envs
        for name, value in self._derived.items():
            if FOLLOWS_FROM[name] & changed and getattr(self, name) == value:
                setattr(self, name, None)
        limit = None
        if self.env is not None and (self.gamma is None or self.group_size is None):
            limit = time_limit(self.env)
        if self.n_steps is None and self.n_groups is None and n_envs is not None:
            self.n_steps = self._derived["n_steps"] = self.steps_per_env
        if self.gamma is None:  # only values make returns go on beyond an episode's end
            self.gamma = discount_for(limit if self.options.estimator.uses_values else None)
            self._derived["gamma"] = self.gamma
        if self.normalize_advantage is None:
            cut = not self.options.estimator.whole_episodes and self.options.multitask.grouping == "seed"
            self.normalize_advantage = "batch" if cut else "group"
            self._derived["normalize_advantage"] = self.normalize_advantage
        elif isinstance(self.normalize_advantage, bool):  # PPO's way to say it
            self.normalize_advantage = "group" if self.normalize_advantage else "none"
        if self.group_size is None:
            compares = self.normalize_advantage == "group" or self.options.multitask.grouping != "seed"
            of_all = (n_envs or 1) * distributed.world().size
            obstacle = self._obstacle_to_pairs()
            self.group_size = default_group_size(
                self.options.estimator, compares, obstacle, of_all, steps_per_env(self.n_steps, of_all), limit
            )
            self._derived["group_size"] = self.group_size

    def _obstacle_to_pairs(self) -> str | None:
        """Return the reason why members of a group of two or more cannot be paired; None: they can."""
        if not self.options.groups.shared_noise:
            return "shared_noise=False gives every member luck of its own"
        return obstacle_to_pairs(2, self.options.multitask.grouping, self.env)

    def _check_as_read(self) -> None:
        if self._as_read is not None:
            check_as_read(self._as_read, self.__dict__)

    def check_rollout_size(self) -> None:
        """Warn once where a rollout does not fill a minibatch."""
        rows = self.steps_per_env * self.n_envs * distributed.world().size, self.batch_size
        if rows != self._rows_checked:
            check_rollout_size(self._config())
            self._rows_checked = rows

    # ---------------------------------------------------------------- reference policy

    def _setup_reference(self) -> None:
        in_file = self._given_reference and self.kl_coef > 0  # of the model that is being loaded
        if self.kl_coef > 0:
            self._sync_reference()
        self._given_reference = in_file
        self._use_given_reference()

    @property
    def _lacks_reference(self) -> bool:
        """There is none, or it is the policy as it was before ``load_actor`` gave it other weights to start from."""
        started_elsewhere = self.policy.newly_loaded and self._n_gradient_steps == 0 and not self._given_reference
        return self.ref_policy is None or started_elsewhere

    def _sync_reference(self) -> None:
        """Make the reference policy a frozen copy of the policy. It is built anew, as gSDE's distribution cannot be copied."""
        base = self.policy.frozen_base()
        if base is not None:
            loss = self.options.loss
            for name, given in {"ref_sync_interval": loss.ref_sync_interval, "ref_policy": loss.ref_policy}.items():
                if given is not None:
                    raise ValueError(
                        f"loss_kwargs: {name}={shown(given)} cannot change the reference policy, which is the model without "
                        "adapters: leave it out, or train without lora."
                    )
            self.ref_policy = base
            self.policy.newly_loaded = False
            return
        if self.ref_policy is None:
            self.ref_policy = made_apart(self.policy, self._make_policy, self.policy_kwargs)
            self.ref_policy.requires_grad_(False)
            self.ref_policy.set_training_mode(False)
            del self.ref_policy.optimizer
        self.ref_policy.load_state_dict(self.policy.state_dict())
        self._given_reference = False
        self.policy.newly_loaded = False

    def _use_given_reference(self) -> None:
        """Load the weights that ``loss_kwargs`` names into the reference policy; the argument is not kept in the model."""
        given = self.options.loss.ref_policy
        if given is None or self.ref_policy is None:
            return
        load_actor(self.ref_policy, given)
        self._given_reference = True
        if isinstance(self.loss, Loss):
            self.loss = replace(self.loss, ref_policy=None)
        else:
            self.loss_kwargs = {name: value for name, value in (self.loss_kwargs or {}).items() if name != "ref_policy"}

    # ---------------------------------------------------------------- collect

    def collect_rollouts(  # type: ignore[override]  # noqa: C901, PLR0915 - one piece, as in SB3
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: GroupRolloutBuffer, n_rollout_steps: int | None
    ) -> bool:
        """Collect one rollout and compute its advantages.

        Stops after ``steps_per_env`` steps per env, or, for whole-episode estimators, when enough groups are complete.

        :param env: training env
        :param callback: called after every vector step
        :param rollout_buffer: to fill
        :param n_rollout_steps: ignored; ``steps_per_env`` and ``n_groups`` decide
        :return: False when a callback asked to stop
        :raises ValueError: for NaN or inf from the env
        """
        self._begin_rollout(env, callback, rollout_buffer)
        assert self._last_obs is not None, "No previous observation was provided"
        steps_before = self.num_timesteps
        episodes_before = list(self.ep_info_buffer or ())
        n_rollout_steps = self.steps_per_env
        n_ranks = distributed.world().size
        on_host = not is_tensor_env(env)
        plan = self._plan()
        least_steps = plan.least_steps
        least_groups = plan.least_groups
        scaling = scaling_rewards(env)  # rewards are taken from below VecNormalize
        vec_normalize = self._vec_normalize_env
        continue_training = True
        n_steps = 0
        n_complete = 0
        n_interruptions = 0

        with self._dropped_on_error(env, rollout_buffer):
            callback.on_rollout_start()
            if not on_host:
                continue_training = self._collect_on_device(env, callback, rollout_buffer, plan)

            while on_host and (n_steps < least_steps or n_complete < least_groups):
                assert isinstance(self.groups, HostGroups)
                if not self.groups.in_step_with(env):  # somebody else has reset or stepped the envs
                    self._start_over()
                    n_interruptions += 1
                groups = self.groups
                policy = self.policy
                step = plan.steps_before + n_steps + 1
                if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
                    # Sample a new noise matrix
                    policy.reset_noise(env.num_envs)

                with th.no_grad():
                    obs_tensor = obs_as_tensor(self._last_obs, self.device)
                    obs_tensor = self.extra_inputs.observe(obs_tensor, policy, groups.t, step - 1)
                    action_tensor, log_probs, memory = policy.sample(obs_tensor, policy.noise(env.num_envs))
                check_outputs(policy, log_probs, step)
                self.extra_inputs.remember(memory)
                actions = action_tensor.cpu().numpy()
                clipped_actions = policy.in_bounds(actions)

                raw_obs_before = self._last_obs if vec_normalize is None else vec_normalize.old_obs
                new_obs, rewards, dones, infos = groups.step_envs(env, clipped_actions)
                raw_obs = new_obs if vec_normalize is None else vec_normalize.old_obs
                raw_rewards = scaling[0].old_reward if scaling else rewards
                check_finite(env, "reward", raw_rewards, step, plan.limits.reward)
                check_finite(env, "observation", raw_obs, step, plan.limits.observation)
                if scaling:
                    check_reward_wrappers(env, scaling, rewards)
                    rewards_of_env = rewards.copy()
                ended = dones.nonzero()[0].tolist()
                starts = groups.starts(env, ended, raw_obs) if ended else {}  # before any callback, which may reset the envs
                self.extra_inputs.see(env, infos, dones, step)

                self.num_timesteps += env.num_envs * n_ranks
                # Give access to local variables
                callback.update_locals(locals())
                if not callback.on_step():
                    continue_training = False
                    break

                self._update_info_buffer(self._with_groups(infos) if ended else infos, dones)
                n_steps += 1
                if scaling:
                    check_callback_rewards(rewards_of_env, rewards)
                ends = note_ends(rollout_buffer, groups.episode_id, ended, infos, self.extra_inputs)
                extra = NOTHING
                if self.extra_fields:
                    extra = read_host(self.extra_fields, HostStep(raw_obs_before, infos, raw_rewards, groups.t))
                rollout_buffer.add(obs_tensor, action_tensor, log_probs, raw_rewards, groups.episode_id, groups.t, ends, extra)
                lost = [env_index for env_index in ended if EPISODE_LOST in infos[env_index]] if ended else []
                if lost:
                    rollout_buffer.n_lost += rollout_buffer.drop_episodes(th.as_tensor(groups.episode_id[lost]))
                completed = groups.step(env, starts, lost)
                n_complete += completed
                if completed:
                    least_groups = plan.wanted_groups(n_complete, rollout_buffer)
                if self.use_sde and ended:
                    policy.renew_noise(th.as_tensor(dones, device=self.device).bool())
                self._last_obs = new_obs
                self._last_episode_starts = dones
                if plan.whole_episodes:
                    check_endless(groups.t, plan)
                    check_hopeless(n_interruptions, n_steps, n_complete)

            continue_training = distributed.every(continue_training)  # callbacks of all learners may meet in on_rollout_end()
            if continue_training:
                if on_host and not plan.whole_episodes:
                    self._note_cut_episodes(rollout_buffer)
                with self.autocasting():
                    old_log_probs = log_probs_of_actor(self.policy, rollout_buffer, self.options.update.autocast)
                callback.update_locals({"n_steps": rollout_buffer.pos})
                callback.on_rollout_end()

        if not continue_training:
            self._drop_rollout(rollout_buffer)
        self._share_what_was_seen(steps_before, episodes_before)
        if not continue_training:
            return False
        rollout = self._pack(rollout_buffer, old_log_probs)
        self._training_batch = self.compute_advantages(rollout)._replace(collected=rollout)
        return True

    def compute_advantages(self, rollout: Rollout, again: bool = False) -> TrainingBatch:
        """Compute advantages and row weights of a rollout. Implemented by individual algorithms.

        :param again: the rollout has been counted before
        """
        raise NotImplementedError

    def _begin_rollout(self, env: VecEnv, callback: BaseCallback, rollout_buffer: GroupRolloutBuffer) -> None:
        """Begin new groups where that is due, and empty the buffer.

        From here on until the rollout has been learnt from, the state of the run is incomplete and cannot be saved.
        """
        assert self.groups is not None
        self._in_rollout = True
        self._callback_in_use = callback
        self._runs_due = []
        self.policy.set_training_mode(False)
        if self._restart_groups or self.current_group_size != self.groups.group_size:
            self.start_new_groups()
        self._update_normalizer(rollout_buffer)
        rollout_buffer.reset()
        if isinstance(self.groups, InstanceGroups):
            self.groups.forget_code()  # of the weights before the last update
        if self.use_sde:
            self.policy.reset_noise(env.num_envs)

    def _update_normalizer(self, rollout_buffer: GroupRolloutBuffer) -> None:
        """Normalise by the last rollout too; between rollouts only, so that old and new log-probabilities see the same."""
        seen = rollout_buffer.seen_observations() if self.policy.normalize_obs else None
        if seen is None:
            return
        self.policy.obs_normalizer.update(self.policy.flat_observations(seen))
        if self.ref_policy is not None and not self._given_reference:  # the policy moves the KL, not its view of observations
            self.ref_policy.obs_normalizer.load_state_dict(self.policy.obs_normalizer.state_dict())

    def _collect_on_device(self, env: VecEnv, callback: BaseCallback, rollout_buffer: GroupRolloutBuffer, plan: Plan) -> bool:
        """Take the steps of a tensor env; the callback sees each of them with the locals of the host loop.

        :return: False when a callback asked to stop
        """
        assert isinstance(env, TensorVecEnv) and isinstance(rollout_buffer, TensorRolloutBuffer)
        assert isinstance(self.groups, TensorGroups)
        n_ranks = distributed.world().size
        tell = teller(callback)
        known = {"self": self, "env": env, "callback": callback, "rollout_buffer": rollout_buffer}

        def on_step(step: StepResult) -> bool:
            self.num_timesteps += env.num_envs * n_ranks
            tell({**known, "n_rollout_steps": plan.steps_per_env, **step._asdict()})
            continue_training = callback.on_step()
            if not continue_training:
                self.num_timesteps += step.ahead * env.num_envs * n_ranks
            return continue_training

        def start_over() -> TensorGroups:
            self._start_over()
            assert isinstance(self.groups, TensorGroups)
            return self.groups

        return collect_tensors(
            env,
            lambda: self.policy,
            rollout_buffer,
            self.extra_fields,
            plan,
            self.groups,
            self.compiled.env_steps(self.steps_per_env),
            self.options.update.autocast,
            self.options.multitask.names,
            self.ep_info_buffer,
            start_over,
            on_step,
        )

    @contextmanager
    def _dropped_on_error(self, env: VecEnv, rollout_buffer: GroupRolloutBuffer) -> Iterator[None]:
        """Drop the rollout where something fails.

        VecNormalize's running statistics are put back after a ValueError: once they have seen a NaN they never recover.
        """
        vec_normalize = self._vec_normalize_env
        before = None if vec_normalize is None else running_state(vec_normalize)
        try:
            with naming_the_dead(env):
                yield
        except BaseException as error:
            if isinstance(error, ValueError) and vec_normalize is not None and before is not None:
                put_running_state(vec_normalize, before)
            self._drop_rollout(rollout_buffer)
            raise

    def _drop_rollout(self, rollout_buffer: GroupRolloutBuffer) -> None:
        """Drop a rollout that was broken off. Its episodes lost their beginnings, so the next one starts new groups."""
        self._in_rollout = False
        self._steps_dropped += rollout_buffer.pos * self.n_envs + rollout_buffer.drop_kept()
        self._last_obs = None

    def _note_cut_episodes(self, rollout_buffer: GroupRolloutBuffer) -> None:
        """Store the observation after the last step of every running episode, which is cut here: its value is needed."""
        assert isinstance(self.groups, HostGroups)
        for env_index, episode_id in enumerate(self.groups.episode_id.tolist()):
            last = map_obs(lambda o: o[env_index], self._last_obs)  # noqa: B023
            rollout_buffer.add_final_observation(episode_id, self.extra_inputs.after(env_index, last))

    def _with_groups(self, infos: list[Info]) -> list[Info]:
        """Add its group to the statistics of each episode, so that different starts can be counted."""
        assert isinstance(self.groups, HostGroups)
        return [
            {**info, "episode": {**info["episode"], "group": group}} if "episode" in info else info
            for info, group in zip(infos, self.groups.group_ids.tolist(), strict=True)
        ]

    def _share_what_was_seen(self, steps_before: int, episodes_before: list[Info]) -> None:
        """Give several learners one number of steps, the running statistics and the episodes of all, at the end of a rollout.

        :param steps_before: that all had taken when it began
        :param episodes_before: that all knew then
        """
        n = distributed.world().size
        if n == 1:
            return
        self.shared_statistics.merge()
        assert self.ep_info_buffer is not None
        steps = (self.num_timesteps - steps_before) // n
        self.ep_info_buffer, steps = distributed_training.seen_by_all(episodes_before, self.ep_info_buffer, steps)
        self.num_timesteps = steps_before + steps

    def _pack(self, rollout_buffer: GroupRolloutBuffer, log_probs: th.Tensor) -> Rollout:
        """Sort the steps of the buffer into episodes and groups.

        :param log_probs: ``[time * n_envs]`` of the actions under the policy that acted
        """
        assert self.groups is not None
        self._n_rollouts += 1
        rollout = rollout_buffer.pack(log_probs, self.current_group_size, self.whole_episodes)
        assert rollout is not None, "a rollout ends with a complete group"
        self._steps_dropped += rollout_buffer.n_idle + rollout_buffer.n_lost
        self.groups.note_starts(rollout)
        max_length = int(distributed.largest(rollout.max_length)[0])
        rollout = rollout._replace(seed_group=distributed.global_group(rollout.seed_group), max_length=max_length)
        if isinstance(self.policy, EncodingPolicy):
            rollout = self._with_instances(rollout)
        if not self._warned_of_few_starts:
            self._warned_of_few_starts = warn_of_few_starts(self._config(), rollout, self.steps_per_env)
        return rollout

    def _with_instances(self, rollout: Rollout) -> Rollout:
        """Add the instance of each group: on tensor envs a function of its seed, so that alone has been kept."""
        assert isinstance(self.policy, EncodingPolicy)
        if not isinstance(self.env, InstanceEnv):
            return self.policy.split_rollout(rollout)
        assert rollout.instance is not None
        seeds = rollout.instance.new_zeros(rollout.n_groups).scatter_(0, rollout.group, rollout.instance)
        instances = self.env.visible(self.env.instance(seeds))
        return rollout._replace(instance=rollout.group, instances=instances)

    def _plan(self) -> Plan:
        """Decide how far the next rollout goes."""
        by_number = self.n_groups is not None and not self.options.estimator.whole_episodes
        return Plan(
            group_size=self.current_group_size,
            n_groups=None if self.n_groups is None else self.n_groups // distributed.world().size,
            steps_per_env=self.steps_per_env,
            whole_episodes=self.whole_episodes,
            time_limit=self._time_limit,
            whole_because=f"n_groups={self.n_groups}" if by_number else f"advantage={self.advantage!r}",
            cut_instead="set n_steps instead of n_groups" if by_number else "use advantage='state'",
            use_sde=self.use_sde,
            sde_sample_freq=self.sde_sample_freq,
            steps_before=self.num_timesteps // self.n_envs,
            limits=self._limits,
            refill=self.options.groups.refill,
            gamma=self.gamma if self.moving_gamma is None else self.moving_gamma,
        )

    @property
    def _limits(self) -> Limits:
        """Largest values that the env may report: where nothing keeps statistics of them, anything that is finite."""
        unbounded = self.options.rewards.scaling == "none"
        normalized = self._vec_normalize_env
        reward = LARGEST_REWARD if unbounded or self.group_weighting is not None else Limits().reward
        keeps_observations = (
            self.options.estimator.uses_values
            or self.policy.normalize_obs
            or isinstance(self.bonus, th.nn.Module)
            or self.options.multitask.grouping == "auto"
            or (normalized is not None and normalized.norm_obs)
        )
        return Limits(reward, LARGEST_OBSERVATION if keeps_observations else Limits().observation)

    def autocasting(self) -> AbstractContextManager[object]:
        """Return the context of every forward pass that makes log-probabilities: ratios compare like with like."""
        return autocasting(self.device, self.options.update.autocast)

    @property
    def raw_last_obs(self) -> Obs:
        """The env's last observation before any normalisation, ``[n_envs, ...]`` array or dict of arrays."""
        return self._last_obs if self._vec_normalize_env is None else self._vec_normalize_env.old_obs

    # ---------------------------------------------------------------- groups

    def restart_groups(self) -> None:
        """Before the next rollout, reset every env and begin new groups: for callbacks that change the envs.

        Steps of groups that were not complete are thrown away and counted in ``rollout/useful_fraction``.
        """
        self._restart_groups = True

    def start_new_groups(self) -> None:
        """Reset every env and begin new groups; the steps that waited for the old ones are dropped."""
        assert self.groups is not None
        if self.current_group_size != self.groups.group_size:
            validate(self._config())
        self._steps_dropped += self.rollout_buffer.drop_kept()
        former = self.groups
        groups = self._new_groups()
        groups.start_mismatches = former.start_mismatches
        groups.starts_seen = former.starts_seen
        self.start_episodes()
        self._restart_groups = False

    def _start_over(self) -> None:
        """Begin every env's episode again, as somebody else has reset or stepped the envs."""
        assert self.groups is not None
        self.interruptions += 1
        if self.interruptions == 1:
            warn_of_interruption(self.whole_episodes, self.num_timesteps)
        dropped, can_go_on = give_up(self.groups, self.rollout_buffer, self.extra_inputs, self._last_obs, self.whole_episodes)
        self._steps_dropped += dropped
        if can_go_on:
            self.start_episodes()
        else:
            self.start_new_groups()

    def start_episodes(self) -> None:
        """Reset every env; each begins its next episode."""
        assert self.env is not None
        check_early_reset(self.env, can_continue=False)
        with self._beginning():
            self._last_obs = self.env.reset()  # type: ignore[assignment]
            self._last_episode_starts = np.ones(self.n_envs, dtype=bool)

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """Around a reset of the env that begins each env's next episode; where it fails, the next ``learn()`` begins others.
        """
        assert self.env is not None and self.groups is not None
        try:
            with resetting(self.env):
                self.groups.queue_all(self.env)
                yield
                self._groups_started()
        except BaseException:
            self._last_obs = None
            raise

    def _groups_started(self) -> None:
        """Take note that the env was reset, and that ``_last_obs`` came of it."""
        assert self.env is not None and self.groups is not None
        if self._find_masks():  # the infos of resets have told of them
            self._steps_dropped += self.rollout_buffer.drop_kept()
            self._make_buffer()
        self.extra_inputs.see(self.env)
        self.groups.started_all(self.env, self.raw_last_obs)
        check_finite(self.env, "observation", self.raw_last_obs, 0, self._limits.observation)

    def _new_groups(self) -> Groups:
        """Hand out episodes of groups that no episode has met."""
        if self.groups is not None:
            self._next_group = distributed.next_global_group(self.groups.next_group)
        assert self._base_seed is not None and self.env is not None
        self.groups = make_groups(
            self.env,
            self.current_group_size,
            self._base_seed,
            distributed.first_own_group(self._next_group),
            self.device,
            options=self.options.groups,
            whole_episodes=self.whole_episodes,
        )
        return self.groups

    # ---------------------------------------------------------------- learn

    def learn(
        self: SelfGroupOnPolicy,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "GRPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfGroupOnPolicy:
        """Train, as SB3's; a run that was loaded goes on where it stood, unless ``reset_num_timesteps``.

        :raises ValueError: for ``total_timesteps`` or a ``log_interval`` that is no number, or out of range
        """
        total_timesteps = to_python(total_timesteps)
        check_values("", {"total_timesteps": total_timesteps, "log_interval": log_interval}, OF_LEARN)
        if reset_num_timesteps:
            self._to_resume = None
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        callback.on_training_start({**locals(), "iteration": 0}, globals())
        checkpoint.enter_loop(self, callback)
        assert self.env is not None

        try:
            while self.num_timesteps < total_timesteps:
                if not self._collect(callback):
                    break
                self._iteration += 1
                self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
                if log_interval is not None and self._iteration % log_interval == 0:
                    self.dump_logs(self._iteration)
                try:
                    self.train()
                except Breakdown as error:
                    recover(callback, error)
                checkpoint.write_due_runs(self)
            checkpoint.write_due_runs(self)  # a callback has asked for one, and to stop
        except BaseException:
            checkpoint.give_up_due_runs(self)
            raise
        callback.on_training_end()
        return self

    def _collect(self, callback: BaseCallback) -> bool:
        """Collect one rollout; where the training breaks down and a callback can mend that, collect another one."""
        assert self.env is not None
        while True:
            try:
                return self.collect_rollouts(self.env, callback, self.rollout_buffer, n_rollout_steps=self.n_steps)
            except Breakdown as error:
                recover(callback, error)

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "GRPO",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        self._check_as_read()
        if self.env is None:
            raise ValueError("There is no env to learn from: pass one to GRPO.load(..., env=...), or call set_env(env).")
        if "options" not in vars(self):  # _init_setup_model=False
            self._setup_model()
        self.check_rollout_size()
        self.moving_gamma = None
        # A loaded model, another env, or somebody else has reset this one.
        if self.groups is None or not self.groups.in_step_with(self.env):
            self._last_obs = None
        restart = reset_num_timesteps or self._last_obs is None
        if restart and self.groups is not None:
            check_early_reset(self.env, can_continue=self._last_obs is not None)
        if reset_num_timesteps:
            self._steps_trained = 0
            self._steps_dropped = 0
        if distributed.world().rank > 0:  # rank 0 speaks for all
            self.verbose = 0
            self.tensorboard_log = None
            self._custom_logger = False
        check_log_folder(self.tensorboard_log)
        if restart:
            self._steps_dropped += self.rollout_buffer.drop_kept()
            self._new_groups()
            self._make_extra_fields()
        with self._beginning() if restart else nullcontext():
            result = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        if restart:
            self._time_limit = time_limit(self.env)
        if self.tensorboard_log is not None:
            log.record_settings(self.logger, self.settings, self.num_timesteps)
            describe_keys(self.logger)
        return result

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        reset_is_over(self.env)  # which SB3 has just made; from here on callbacks act for themselves
        return super()._init_callback(
            distributed_training.own_callbacks(callback), progress_bar and distributed.world().rank == 0
        )

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        # A rollout may overshoot; schedules must not fall below their end.
        super()._update_current_progress_remaining(min(num_timesteps, total_timesteps), total_timesteps)

    def _update_learning_rate(self, optimizers: th.optim.Optimizer | list[th.optim.Optimizer]) -> None:
        progress = self._current_progress_remaining
        at_progress("learning_rate", RANGES[""]["learning_rate"], self.lr_schedule, progress)
        super()._update_learning_rate(optimizers)

    def _log(self, metrics: log.Metrics) -> None:
        """Log metrics, and keep them for who looks at the rollout later; the logger forgets them when it dumps."""
        log.record(self.logger, metrics)
        self.last_metrics.update(metrics)

    def dump_logs(self, iteration: int = 0) -> None:
        """Write the log, as SB3's, with the advantages for TensorBoard."""
        if self._training_batch is not None:
            log.show(self.logger, "group/advantages", self._training_batch.estimate.advantages, self.num_timesteps)
        super().dump_logs(iteration)

    # ---------------------------------------------------------------- a loop of one's own

    def collect(self, callback: MaybeCallback = None) -> Rollout | None:
        """Collect one rollout; the first call sets the model up as :meth:`learn` would.

        :param callback: called after every vector step, in this rollout and those to come; it begins once, as in :meth:`learn`
        :return: the rollout; None when the callback asked to stop
        :raises ValueError: for NaN or inf from the env
        """
        callback = self._enter_own_loop(callback)
        before = Snapshot(self._trainable_parts())
        if not self._collect(callback):
            return None
        assert self._training_batch is not None
        rollout = self._training_batch.collected
        self._advantage_replay.note(rollout, before)
        return rollout

    def update(self, rollout: Rollout) -> UpdateResult:
        """Update the policy with a rollout, as often as it is called: the advantages of the last rollout are kept.

        :param rollout: of :meth:`collect`; changed by ``_replace``, or older, it is judged by the trainable parts as before it
        :raises ValueError: for columns that do not fit, or a gradient that is not finite; the weights stay as they were
        """
        batch = self._training_batch
        if batch is None or batch.collected is not rollout:
            with self._advantage_replay.replay(rollout, self.action_space, self._trainable_parts()) as (whole, again):
                batch = self.compute_advantages(whole, again)._replace(collected=rollout)
        self._training_batch = batch
        try:
            self.train()
        finally:
            self._training_batch = batch
        checkpoint.write_due_runs(self)
        assert self.last_update is not None
        return self.last_update

    def _enter_own_loop(self, callback: MaybeCallback) -> BaseCallback:
        """Prepare a rollout of a loop of one's own, as :meth:`learn` does before its first one.

        :param callback: None: the one before
        """
        given, in_use = self._own_loop or (None, None)
        wanted = given if callback is None else callback
        if in_use is not None and self._last_obs is not None and wanted == given:
            return in_use
        if in_use is None or self._last_obs is None:
            _, in_use = self._setup_learn(0, wanted, self.num_timesteps == 0, type(self).__name__)
        else:
            in_use = self._init_callback(wanted)
        in_use.on_training_start({"self": self, "total_timesteps": self.num_timesteps, "iteration": 0}, globals())
        checkpoint.enter_loop(self, in_use)
        self._own_loop = wanted, in_use
        return in_use

    def _trainable_parts(self) -> list[object]:
        """Return the parts that learn beside the policy."""
        return [getattr(self, name) for name in checkpoint.TRAINABLE_PARTS]

    # ---------------------------------------------------------------- predict

    def predict(  # type: ignore[override]
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Choose actions, as SB3's, with sb3-contrib's ``action_masks`` and its ``state`` of a recurrent policy.

        :param action_masks: ``[n_envs, m]`` valid actions, where the observation does not hold them. ``evaluate_policy`` and
            its users need not pass them: the env that it plays is asked
        """
        if action_masks is None and self.mask_source in APART:
            action_masks = masks_of_the_evaluated()
            if action_masks is None and not self._warned_of_masks:
                self._warned_of_masks = True
                warnings.warn(MASKS_UNKNOWN.format(source=self.mask_source), UserWarning, stacklevel=2)
        masks = () if action_masks is None else (action_masks,)  # SB3's signature has none
        return self.policy.predict(observation, state, episode_start, deterministic, *masks)

    # ---------------------------------------------------------------- files (sb_grpo.save_util, sb_grpo.checkpoint)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *save_util.NOT_SAVED]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, tensors = super()._get_torch_save_params()
        optional = [name for name in save_util.OPTIONAL_MODULES if isinstance(getattr(self, name), th.nn.Module)]
        return [*state_dicts, *optional], tensors

    def __getstate__(self) -> State:
        """Return the state of a copy or a pickle, without the callbacks of a running ``learn()``.

        A copy that is made in mid-rollout begins new groups, as a loaded model does.
        """
        state = {**vars(self), "_callback_in_use": None, "_own_loop": None}
        return {**state, "_in_rollout": False, "_runs_due": [], "_last_obs": None} if self._in_rollout else state

    def save(self, path: File, *args: object, **kwargs: object) -> None:
        """Save the model as SB3's, whole or not at all, with VecNormalize's statistics in the zip.

        Of several learners rank 0 writes. A model that is saved in mid-rollout goes on with groups that it has not used.
        """
        if distributed.world().rank > 0:
            return
        if self.groups is not None:
            self._next_group = distributed.next_global_group(self.groups.next_group)
        save_util.save_model(self, super().save, path, *args, **kwargs)

    def export(self, path: str | Path) -> Path:
        """Write the policy with all that stands before and after it as one file, ``.onnx`` or ``.pt2`` (docs/export.md)."""
        return save_util.export_model(self, path)

    @classmethod
    def load(  # type: ignore[override]
        cls: type[SelfGroupOnPolicy],
        path: File,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: Kwargs | None = None,
        *args: Any,
        trusted: bool = True,
        **kwargs: Any,
    ) -> SelfGroupOnPolicy:
        """Load a model, as SB3's. Statistics in the zip go into the env's VecNormalize, if that has seen nothing yet.

        :param trusted: False: nothing in the file is unpickled, so that none of it can run; objects without a plain form are
            named, and taken from ``custom_objects`` or the further arguments (docs/security.md)
        :raises ValueError: for objects that only unpickling restores
        """
        source, custom_objects, kwargs = save_util.arguments_of_load(cls, path, env, custom_objects, trusted, kwargs)
        return super().load(source, env, device, custom_objects, *args, **kwargs)  # type: ignore[no-any-return]

    def get_parameters(self) -> dict[str, State]:
        """Return copies of the weights: :meth:`set_parameters` takes a model back to them after further training."""
        return {name: copied(state) for name, state in super().get_parameters().items()}

    def set_parameters(
        self, load_path_or_dict: str | State, exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        """Replace the weights, as SB3's does. A refused call changes nothing.

        A dict keeps to ``exact_match`` for all its modules. A file may be of a model with another ``advantage``, ``kl_coef``
        or ``grouping``: modules that it lacks stay as they are, except a reference policy that nobody named, which becomes
        the loaded policy.

        :param load_path_or_dict: of a saved model, or states by name, as :meth:`get_parameters` returns them
        :param exact_match: a dict must hold the whole state of every module; False: it may hold parts
        :param device: of tensors that are read from a file
        :raises ValueError: for parameters that are missing, do not fit, or are of a policy with a critic
        """
        save_util.set_parameters(self, super().set_parameters, load_path_or_dict, exact_match, device)
        self._use_given_reference()

    def save_run(self, path: File) -> None:
        """Save the model with all that decides how its training goes on (docs/saving.md).

        A run is saved between two rollouts: asked for before a rollout has been learnt from, as by callbacks, the file is
        written as soon as it has. A file of a run is a model's zip too.

        :param path: ``.zip`` is added where it has no ending; or a file that is open for writing
        :raises ValueError: before the first rollout, with several learners, and for state that has no plain form
        """
        checkpoint.save_run(self, path)

    @classmethod
    def load_run(
        cls: type[SelfGroupOnPolicy],
        path: File,
        env: GymEnv,
        device: th.device | str = "auto",
        custom_objects: Kwargs | None = None,
        trusted: bool = True,
        **kwargs: Any,
    ) -> SelfGroupOnPolicy:
        """Load a model that goes on where :meth:`save_run` was called; :meth:`resume` takes it to the end.

        :param path: of the file
        :param env: built as the run's was, VecNormalize included, whose statistics come from the file
        :param device: of the same kind as the run's
        :param custom_objects: as :meth:`load`'s
        :param trusted: as :meth:`load`'s; the state of the run itself is never pickled
        :param kwargs: ``verbose`` and ``tensorboard_log`` in the place of the run's
        :raises ValueError: for a file that is no run, is broken, or does not go with the env
        """
        model: SelfGroupOnPolicy = checkpoint.load_run(cls, path, env, device, custom_objects, trusted, kwargs)
        return model

    def resume(
        self: SelfGroupOnPolicy,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "GRPO",
        progress_bar: bool = False,
    ) -> SelfGroupOnPolicy:
        """Go on with a loaded run up to the number of steps that it was to have, with its schedules, in its TensorBoard run.

        :param callback: callbacks of the same kinds as the run's, in the same order; they go on too
        :param log_interval: as :meth:`learn`'s
        :param tb_log_name: as :meth:`learn`'s, should the run's folder be gone
        :param progress_bar: as :meth:`learn`'s
        :raises ValueError: without a run that has been loaded, and for callbacks that are missing
        """
        steps = checkpoint.steps_to_go(self)
        custom = self._custom_logger
        checkpoint.reopen_logger(self)
        try:
            return self.learn(steps, callback, log_interval, tb_log_name, False, progress_bar)
        finally:
            self._custom_logger = custom
