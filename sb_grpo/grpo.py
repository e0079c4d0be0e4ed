"""GRPO for control: collect groups, turn them into advantages, take clipped policy-gradient steps. No critic."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo import figures as log
from sb_grpo.arguments import check_advantages, check_arguments, check_early_reset, check_env, check_rollout_size
from sb_grpo.baselines.estimation import Baselines, estimate, make_state_baseline, weighted_rewards
from sb_grpo.baselines.state import StateBaseline
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.columns import HostColumns, column_shapes
from sb_grpo.collect.device_buffer import TensorRolloutBuffer
from sb_grpo.collect.device_loop import collect_tensors, start_mismatches
from sb_grpo.collect.host_loop import check_finite, collect, unspoilt
from sb_grpo.collect.interruption import give_up, warn_of_interruption
from sb_grpo.collect.simulators import make_slots
from sb_grpo.collect.slots import GroupSlots, TensorSlots
from sb_grpo.envs.installing import install_seeded_reset, time_limit
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.extras.exploration import Bonus, BonusSettings, make_bonus, with_bonus
from sb_grpo.extras.group_weights import GroupWeights, weights_by_label
from sb_grpo.extras.grouping import make_grouping
from sb_grpo.learn.captured import Captured
from sb_grpo.learn.gradients import PlainGradient, SurgicalGradient, clip_gradients
from sb_grpo.learn.last_good import LastGood
from sb_grpo.learn.minibatches import minibatches
from sb_grpo.maths.chunks import in_chunks
from sb_grpo.maths.discount import discount_for
from sb_grpo.maths.estimators import AdvantageEstimator, shape_rewards
from sb_grpo.maths.losses import Clip, cispo_surrogate, clipped_surrogate, importance_ratio, kl_k3, step_weights
from sb_grpo.maths.segments import segment_mean
from sb_grpo.policies import ActorCnnPolicy, ActorMultiInputPolicy, ActorPolicy
from sb_grpo.rules import steps_per_env
from sb_grpo.saving import NOT_SAVED, OPTIONAL_MODULES, saying_what_moved, with_fitting_modules, without_pickle, write_model
from sb_grpo.types import AdvantageOptions, Minibatch, Rollout, map_obs

SelfGRPO = TypeVar("SelfGRPO", bound="GRPO")


class GRPO(OnPolicyAlgorithm):
    """Group Relative Policy Optimization for control.

    Paper: DeepSeekMath (https://arxiv.org/abs/2402.03300), section 4; PPO's clipped surrogate
    (https://arxiv.org/abs/1707.06347) without its critic. A group is the set of episodes that share a reset seed.

    :param policy: ``"MlpPolicy"``, ``"CnnPolicy"``, ``"MultiInputPolicy"`` or an :class:`ActorPolicy` subclass
    :param env: env, env id or VecEnv (a SubprocVecEnv must be built with ``wrapper_class=SeededResetWrapper``)
    :param learning_rate: a float or a function of the remaining progress (1 to 0)
    :param n_steps: env steps per env and rollout; None: 2048 in total over all envs. Whole-episode estimators go on
        until at least one group is complete
    :param batch_size: steps per minibatch, met as closely as the rollout's size allows
    :param n_epochs: times each rollout is used
    :param gamma: discount factor. None: 0.995 (PPO's usual 0.99 was worse over the study's tasks, docs/studies/settings.md);
        with ``"state"`` less where the env cuts its episodes before 200 steps (:func:`~sb_grpo.maths.discount.discount_for`)
    :param gae_lambda: lambda of the lambda-return (``advantage="state"`` only)
    :param clip_range: ratios below 1 - clip_range earn nothing more; a float or a schedule
    :param group_size: members per group (G)
    :param n_groups: complete groups per rollout, in place of ``n_steps``; with it ``"state"`` waits for whole episodes
    :param advantage: ``"outcome"`` and ``"process"`` (DeepSeekMath), ``"step"`` (time-aligned group baseline),
        ``"state"`` (state-conditioned group baseline, fitted in closed form), or a function of
        (:class:`Rollout`, :class:`AdvantageOptions`) that returns one number per step
    :param baseline: what the first three subtract: ``"mean"``, ``"leave_one_out"``, ``"median"`` of the group, ``"global"``
    :param normalize_advantage: divide by the spread of the ``"group"``, of the ``"batch"`` (rollout), or ``"none"``;
        True and False mean ``"group"`` and ``"none"``. None: ``"batch"`` for ``"state"`` with same-seed groups, which its
        rollouts cut into unequal parts; ``"group"`` for all else, as in DeepSeekMath
    :param tasks: number or names of the tasks that the env reports, as an id or name in ``info["task"]``;
        needed to group by task, and enough to log returns per task
    :param task_key: key of the task in the infos, or in a Dict observation (an integer or one-hot)
    :param grouping: who is compared with whom: ``"seed"``, ``"task"``, ``"hierarchical"`` (same seed, then tasks on one
        scale), ``"difficulty"`` (quantiles of the return), ``"length"``, ``"auto"`` (k-means), or a function from a rollout
        to one label per episode
    :param grouping_kwargs: of :class:`~sb_grpo.extras.grouping.ByQuantile` (``n_quantiles``) or
        :class:`~sb_grpo.extras.grouping.Clusters` (``n_clusters``, ``window``)
    :param group_weights: share of each group in the loss: None (as many rows as it has), ``"balanced"``, ``"performance"``,
        ``"adaptive"``, or a function of (:class:`Rollout`, labels) that returns one share per group
    :param group_weights_kwargs: of :class:`~sb_grpo.extras.group_weights.GroupWeights`
    :param gradient_surgery: one gradient per task, conflicts between them projected away (PCGrad)
    :param objectives: weights by name of the rewards in ``info["rewards"]``, whose sum takes the place of the env's reward
    :param objective_normalization: ``"sum"``: add the rewards up, then estimate; ``"each"``: estimate and normalise every
        objective by itself, then add up (GDPO)
    :param ended_members: ``"step"``: members that have ended count as return 0 (``"zero"``) or not at all (``"drop"``)
    :param clip_range_high: upper clip (DAPO); None: as ``clip_range``
    :param ratio_cap: bound of the ratio where the advantage is negative too (two-sided clip); None: off
    :param surrogate: ``"clip"`` (PPO) or ``"cispo"``
    :param aggregation: of the loss: ``"step"``, ``"episode"`` (DeepSeekMath) or ``"constant"`` (Dr. GRPO)
    :param importance_level: ratio per ``"step"`` or per ``"episode"`` (GSPO; minibatches then hold whole episodes)
    :param ent_coef: weight of the entropy bonus
    :param kl_coef: weight of the k3 KL to the reference policy; 0: no reference policy exists
    :param ref_sync_interval: rollouts after which the reference policy becomes the current one; None: never
    :param target_kl: stop the update when the approximate KL exceeds 1.5 times this; None: never
    :param max_grad_norm: joint norm that gradients are clipped to
    :param reward_scaling: ``"none"``, ``"clip"`` or ``"tanh"``: bound step rewards by ``reward_clip``
    :param reward_clip: the bound
    :param exploration_bonus: :class:`CountBonus`, :class:`RNDBonus` or a function of a :class:`Rollout` that returns one
        number per step: added to the (scaled) rewards before advantages are computed; returns are logged without it
    :param micro_batch_size: rows in memory at once; gradients accumulate to ``batch_size``. None: the whole minibatch
    :param autocast: run the networks in bfloat16 during the update
    :param compile: capture the step loop (tensor envs) and the gradient step as graphs: True (``torch.compile``) or
        ``"reduce-overhead"`` (with CUDA graphs). Compiling takes 10 to 40 s; what cannot be captured is named and stays eager
    :param shared_noise: False: members share the start state but not the noise that ``step`` draws
    :param restart: where groups start: ``"reset"``, or ``"branch"`` (experimental; tensor envs that can copy states): half of
        them in a state that the policy is visiting. Episode statistics then count branched episodes from there on
    :param baseline_kwargs: keyword arguments of :class:`StateBaseline`
    :param use_sde: state-dependent exploration (Box actions)
    :param sde_sample_freq: new exploration noise every so many steps; -1: once per rollout
    :param rollout_buffer_class: a :class:`GroupRolloutBuffer` subclass
    :param rollout_buffer_kwargs: its further keyword arguments
    :param stats_window_size: episodes that ``rollout/ep_rew_mean`` averages over
    :param tensorboard_log: folder for TensorBoard
    :param policy_kwargs: keyword arguments of the policy
    :param verbose: 0 silent, 1 tables, 2 debug
    :param seed: of weights, actions and groups; None: random
    :param device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    :param _init_setup_model: build the networks at once
    :raises ValueError: for arguments out of range or at odds with each other or the env
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": ActorPolicy,
        "CnnPolicy": ActorCnnPolicy,
        "MultiInputPolicy": ActorMultiInputPolicy,
    }
    policy: ActorPolicy  # type: ignore[assignment]
    rollout_buffer: GroupRolloutBuffer  # type: ignore[assignment]
    n_steps: int | None  # type: ignore[assignment]
    normalize_advantage: str

    def __init__(
        self,
        policy: str | type[ActorPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int | None = None,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float | None = None,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule = 0.2,
        group_size: int = 8,
        n_groups: int | None = None,
        advantage: str | AdvantageEstimator = "state",
        baseline: str = "mean",
        normalize_advantage: str | bool | None = None,
        tasks: int | Sequence[str] | None = None,
        task_key: str = "task",
        grouping: str | Callable[[Rollout], th.Tensor] = "seed",
        grouping_kwargs: dict[str, Any] | None = None,
        group_weights: str | Callable[[Rollout, th.Tensor], th.Tensor] | None = None,
        group_weights_kwargs: dict[str, Any] | None = None,
        gradient_surgery: bool = False,
        objectives: dict[str, float] | None = None,
        objective_normalization: str = "sum",
        ended_members: str = "zero",
        clip_range_high: float | Schedule | None = None,
        ratio_cap: float | None = None,
        surrogate: str = "clip",
        aggregation: str = "step",
        importance_level: str = "step",
        ent_coef: float = 0.0,
        kl_coef: float = 0.0,
        ref_sync_interval: int | None = None,
        target_kl: float | None = None,
        max_grad_norm: float = 0.5,
        reward_scaling: str = "none",
        reward_clip: float = 10.0,
        exploration_bonus: BonusSettings | Bonus | None = None,
        micro_batch_size: int | None = None,
        autocast: bool = False,
        compile: bool | str = False,
        shared_noise: bool = True,
        restart: str = "reset",
        baseline_kwargs: dict[str, Any] | None = None,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[GroupRolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(
            policy,  # type: ignore[arg-type]
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,  # type: ignore[arg-type]
            gamma=gamma,  # type: ignore[arg-type]  # None until the env is known
            gae_lambda=gae_lambda,
            ent_coef=ent_coef,
            vf_coef=0.0,  # the base class asks for it; there is no value function
            max_grad_norm=max_grad_norm,
            use_sde=use_sde,
            sde_sample_freq=sde_sample_freq,
            rollout_buffer_class=rollout_buffer_class,  # type: ignore[arg-type]
            rollout_buffer_kwargs=rollout_buffer_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            device=device,
            seed=seed,
            _init_setup_model=False,
        )
        self.batch_size, self.n_epochs = batch_size, n_epochs
        self.clip_range, self.clip_range_high, self.ratio_cap = clip_range, clip_range_high, ratio_cap
        self.group_size, self.n_groups = group_size, n_groups
        self.shared_noise, self.restart = shared_noise, restart
        self.advantage, self.baseline, self.ended_members = advantage, baseline, ended_members
        self.tasks, self.task_key, self.grouping, self.grouping_kwargs = tasks, task_key, grouping, grouping_kwargs
        self.group_weights, self.group_weights_kwargs = group_weights, group_weights_kwargs
        self.gradient_surgery, self.objectives = gradient_surgery, objectives
        self.objective_normalization = objective_normalization
        self.normalize_advantage = normalize_advantage  # type: ignore[assignment]  # a name as soon as the model is set up
        self.baseline_kwargs = baseline_kwargs
        self.surrogate, self.aggregation, self.importance_level = surrogate, aggregation, importance_level
        self.kl_coef, self.ref_sync_interval, self.target_kl = kl_coef, ref_sync_interval, target_kl
        self.reward_scaling, self.reward_clip = reward_scaling, reward_clip
        self.exploration_bonus = exploration_bonus
        self.micro_batch_size, self.autocast, self.compile = micro_batch_size, autocast, compile

        self.state_baseline: StateBaseline | Baselines | None = None
        self.group_weighting: GroupWeights | None = None
        self.ref_policy: ActorPolicy | None = None
        self.bonus: Bonus | None = None
        self._base_seed: int | None = None
        self._next_group = 0
        self._n_rollouts = self._n_gradient_steps = self._steps_trained = self._steps_dropped = 0
        self.interruptions = 0  #: times that somebody else has taken the training env in mid-rollout
        self.slots: GroupSlots | TensorSlots | None = None
        self._time_limit: int | None = None
        self._batch: Minibatch | None = None
        #: What the last rollout and the update after it logged, by key.
        self.last_figures: dict[str, float] = {}
        #: Where a :class:`CurriculumCallback` stands; here, so that it is saved with the model.
        self.curriculum_level: int | None = None
        self.moving_gamma: float | None = None  #: what a GammaCallback has put in gamma's place
        self._restart_groups = False
        self._task: th.Tensor | None = None
        if _init_setup_model:
            self._setup_model()
            check_rollout_size(self)

    # ---------------------------------------------------------------- set-up

    @property
    def steps_per_env(self) -> int:
        """Steps per env that a rollout aims at."""
        return steps_per_env(self.n_steps, self.n_envs)

    @property
    def whole_episodes(self) -> bool:
        """Rollouts end when groups are complete; otherwise episodes are cut and carried over."""
        return self.advantage != "state" or self.n_groups is not None

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        check_env(env)
        if isinstance(env, TensorVecEnv):
            return env
        venv = OnPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)
        install_seeded_reset(venv)
        return venv

    def _setup_model(self) -> None:
        if self.gamma is None:
            # Only values make returns go on beyond an episode's end, and only "state" has values.
            self.gamma = discount_for(time_limit(self.env) if self.env is not None and self.advantage == "state" else None)
        if self.normalize_advantage is None:
            self.normalize_advantage = "batch" if self.advantage == "state" and self.grouping == "seed" else "group"
        elif isinstance(self.normalize_advantage, bool):  # PPO's way to say it
            self.normalize_advantage = "group" if self.normalize_advantage else "none"
        check_arguments(self)
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        if self.seed is not None:
            self._base_seed = self.seed
        elif self._base_seed is None:
            self._base_seed = int(np.random.randint(2**31))
        self._clip_range_schedule = FloatSchedule(self.clip_range)
        self._clip_range_high_schedule = FloatSchedule(
            self.clip_range if self.clip_range_high is None else self.clip_range_high
        )
        self._make_buffer()
        self.policy = self._make_policy()
        self._setup_groups()
        if self.kl_coef > 0:
            self._sync_reference()
        self.bonus = make_bonus(self)
        self.captured = Captured(self)

    def _make_buffer(self) -> None:
        on_device = isinstance(self.env, TensorVecEnv)
        buffer_class: Any = self.rollout_buffer_class or (TensorRolloutBuffer if on_device else GroupRolloutBuffer)
        self.rollout_buffer = buffer_class(
            self.steps_per_env,
            self.observation_space,
            self.action_space,
            device=self.device,
            n_envs=self.n_envs,
            **self.rollout_buffer_kwargs,
        )
        self.rollout_buffer.add_columns(column_shapes(self))

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """As SB3's. The env may be of another kind (host, tensor); what collects its rollouts is then built for it.

        :raises ValueError: if the arguments of the model do not go with the env; the model then keeps the one it has
        """
        former = self.env, self._vec_normalize_env, self._last_obs
        super().set_env(env, force_reset)
        try:
            check_arguments(self)
        except ValueError:
            self.env, self._vec_normalize_env, self._last_obs = former
            raise
        if isinstance(self.env, TensorVecEnv) != isinstance(self.rollout_buffer, TensorRolloutBuffer):
            self._steps_dropped += self.rollout_buffer.drop_kept()
            self._make_buffer()
        self.captured = Captured(self)

    def _setup_groups(self) -> None:
        """What compares, weighs and reconciles the groups."""
        assert self._base_seed is not None
        self.grouper = make_grouping(
            self.grouping, self.grouping_kwargs or {}, self.tasks, self.observation_space, self._base_seed
        )
        if isinstance(self.grouper, th.nn.Module):
            self.grouper.to(self.device)
        if self.advantage == "state":
            self.state_baseline = make_state_baseline(self, self.grouper).to(self.device)
        if self.group_weights is not None:
            kwargs = self.group_weights_kwargs or {}
            self.group_weighting = GroupWeights(self.group_weights, len(self.grouper.names), **kwargs).to(self.device)
        self._objective_weights: th.Tensor | None = None
        if self.objectives is not None:
            self._objective_weights = th.tensor(list(self.objectives.values()), dtype=th.float32, device=self.device)
        self.gradient = (SurgicalGradient if self.gradient_surgery else PlainGradient)(self.micro_batch_size)

    def _sync_reference(self) -> None:
        """The reference policy becomes a frozen copy of the policy (gSDE's distribution object cannot be deep-copied)."""
        if self.ref_policy is None:
            self.ref_policy = self._make_policy()
            self.ref_policy.requires_grad_(False)
            self.ref_policy.set_training_mode(False)
            del self.ref_policy.optimizer
        self.ref_policy.load_state_dict(self.policy.state_dict())

    def _make_policy(self) -> ActorPolicy:
        policy_class: Any = self.policy_class
        policy: ActorPolicy = policy_class(
            self.observation_space, self.action_space, self.lr_schedule, use_sde=self.use_sde, **self.policy_kwargs
        ).to(self.device)
        return policy

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "GRPO",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        if self.env is None:
            raise ValueError("There is no env to learn from: pass one to GRPO.load(..., env=...), or call set_env(env).")
        check_rollout_size(self)
        self.moving_gamma = None
        in_step = self.slots is not None and self.slots.in_step_with(self.env)
        if not in_step:  # a loaded model, another env, or somebody else has reset this one
            self._last_obs = None
        restart = reset_num_timesteps or self._last_obs is None
        if restart:
            if self.slots is not None:
                check_early_reset(self.env, can_continue=self._last_obs is not None)
            if reset_num_timesteps:
                self._steps_trained = self._steps_dropped = 0
            self._queue_new_groups()
            self._time_limit = time_limit(self.env)
        result = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        if restart:
            self._groups_started()
        if self.tensorboard_log is not None:
            log.record_hparams(self)
        return result

    def _queue_new_groups(self) -> None:
        """The next reset of the env begins groups that no episode has met; what waited for the old ones is dropped."""
        assert self.env is not None
        self._steps_dropped += self.rollout_buffer.drop_kept()
        self._new_slots().queue_all(self.env)
        self.columns = HostColumns(self)

    def _new_slots(self) -> GroupSlots | TensorSlots:
        """Slots whose jobs belong to groups that no episode has met."""
        if self.slots is not None:
            self._next_group = self.slots.next_group
        assert self._base_seed is not None and self.env is not None
        self.slots = make_slots(
            self.env, self.group_size, self._base_seed, self._next_group, self.device, shared_noise=self.shared_noise,
            branch=self.restart == "branch", whole_episodes=self.whole_episodes,
        )  # fmt: skip
        return self.slots

    def _groups_started(self) -> None:
        """The env was reset, and ``_last_obs`` is what it said."""
        assert self.env is not None and self.slots is not None
        self.slots.started_all(self.env, self.raw_last_obs)
        check_finite(self.env, "observation", self.raw_last_obs, step=0)

    @property
    def raw_last_obs(self) -> Any:
        """The env's last observation before any normalisation, ``[n_envs, ...]`` array or dict of arrays."""
        return self._last_obs if self._vec_normalize_env is None else self._vec_normalize_env.old_obs

    def restart_groups(self) -> None:
        """Before the next rollout, reset every env and begin new groups: for callbacks that change the envs.

        Steps of groups that were not complete are thrown away and counted in ``rollout/useful_fraction``.
        """
        self._restart_groups = True

    def start_new_groups(self) -> None:
        """Reset every env and begin new groups; what waited for the old ones is dropped."""
        assert self.slots is not None
        self._steps_dropped += self.rollout_buffer.drop_kept()
        mismatches = self.slots.start_mismatches
        self._new_slots().start_mismatches = mismatches
        self.start_slots()
        self._restart_groups = False

    def start_over(self) -> GroupSlots | TensorSlots:
        """Begin every slot's episode again, as somebody else has reset or stepped the envs.

        :return: the slots from here on
        """
        self.interruptions += 1
        if self.interruptions == 1:
            warn_of_interruption(self.whole_episodes, self.num_timesteps)
        if isinstance(self.slots, GroupSlots):
            self._steps_dropped += give_up(self.slots, self.rollout_buffer, self._last_obs, self.whole_episodes)
            self.start_slots()
            return self.slots
        if self.whole_episodes:  # slots of tensor envs cannot run a job again
            self._steps_dropped += self.rollout_buffer.drop_jobs(self.rollout_buffer.unfinished_jobs(self.group_size))
        self.start_new_groups()
        assert self.slots is not None
        return self.slots

    def start_slots(self) -> None:
        """Reset every env; each slot begins the next of the jobs."""
        assert self.env is not None and self.slots is not None
        check_early_reset(self.env, can_continue=False)
        self.slots.queue_all(self.env)
        self._last_obs = self.env.reset()  # type: ignore[assignment]
        self._last_episode_starts = np.ones(self.n_envs, dtype=bool)
        self._groups_started()

    # ---------------------------------------------------------------- collect

    def collect_rollouts(  # type: ignore[override]
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: GroupRolloutBuffer, n_rollout_steps: int | None
    ) -> bool:
        """Collect one rollout and compute its advantages.

        :param env: training env
        :param callback: called after every vector step
        :param rollout_buffer: to fill
        :param n_rollout_steps: ignored; ``steps_per_env`` and ``n_groups`` decide
        :return: False when a callback asked to stop
        :raises ValueError: for NaN or inf from the env
        """
        self.policy.set_training_mode(False)
        if self._restart_groups:
            self.start_new_groups()
        if self.policy.normalize_obs and rollout_buffer.pos > 0:
            # Between rollouts only: within one, old and new log-probabilities must see the same observations.
            self.policy.obs_normalizer.update(self.policy.flat_observations(rollout_buffer.seen_observations()))
            if self.ref_policy is not None:  # what moves the KL is the policy, not its view of the observations
                self.ref_policy.obs_normalizer.load_state_dict(self.policy.obs_normalizer.state_dict())
        rollout_buffer.reset()
        if self.use_sde:
            self.policy.reset_noise(env.num_envs)
        completed = False
        try:
            if isinstance(env, TensorVecEnv):
                assert isinstance(rollout_buffer, TensorRolloutBuffer)
                completed = collect_tensors(self, env, callback, rollout_buffer)
            else:
                with unspoilt(self._vec_normalize_env):
                    completed = collect(self, env, callback, rollout_buffer)
        finally:
            if not completed:  # the episodes lost their beginnings: the next learn() starts new groups
                self._steps_dropped += rollout_buffer.pos * env.num_envs + rollout_buffer.drop_kept()
                self._last_obs = None
        if not completed:
            return False
        self._n_rollouts += 1
        if isinstance(rollout_buffer, TensorRolloutBuffer):
            log_probs = rollout_buffer.new_log_probs
        else:
            with self.autocasting():
                log_probs = in_chunks(self.policy.log_prob, *rollout_buffer.new_rows())
        rollout = rollout_buffer.pack(log_probs, self.group_size, self.whole_episodes)
        assert rollout is not None, "a rollout ends with a complete group"
        self._steps_dropped += rollout_buffer.n_idle
        if isinstance(self.slots, TensorSlots):
            self.slots.start_mismatches += start_mismatches(rollout)
        self._batch = self._prepare(rollout)
        return True

    def _prepare(self, rollout: Rollout) -> Minibatch:
        """Advantages and row weights of a rollout; rows without signal are left out."""
        rollout = weighted_rewards(rollout, self._objective_weights)
        rollout = rollout._replace(rewards=shape_rewards(rollout.rewards, self.reward_scaling, self.reward_clip))
        labels = self.grouper.labels(rollout)
        rollout = self.grouper.regroup(rollout, labels)
        gamma = self.gamma if self.moving_gamma is None else self.moving_gamma
        options = AdvantageOptions(gamma, self.gae_lambda, self.baseline, self.normalize_advantage, self.ended_members)
        advantages, explained, figures = estimate(self, with_bonus(self, rollout), options, self._objective_weights)
        check_advantages(self.advantage, advantages, rollout)
        row_label = labels[rollout.episode]
        advantages = self.grouper.rescale(advantages, row_label)
        row_group = rollout.group[rollout.episode]
        has_signal = segment_mean((advantages != 0).float(), row_group, rollout.n_groups) > 0
        self._steps_trained += len(advantages)
        self._task = rollout.task
        log.record_rollout(self, rollout, advantages, has_signal, explained, figures)
        batch = Minibatch(
            observations=rollout.observations,
            actions=rollout.actions,
            old_log_probs=rollout.log_probs,
            advantages=advantages,
            weights=th.ones_like(advantages),
            episode=rollout.episode,
        )
        if not bool(has_signal.all()):
            keep = has_signal[row_group].nonzero().squeeze(1)
            batch = Minibatch(*(map_obs(lambda x: x.index_select(0, keep), column) for column in batch))
        horizon = self._time_limit or rollout.max_length if self.whole_episodes else self.steps_per_env
        weights = step_weights(batch.episode, self.aggregation, horizon)
        if self.group_weighting is not None:
            row_label = labels[batch.episode]
            shares, by_label = weights_by_label(self.group_weighting, rollout, labels, row_label)
            log.record_weights(self, shares, by_label, row_label)
            weights = weights * by_label
        return batch._replace(weights=weights)

    # ---------------------------------------------------------------- train

    def train(self) -> None:
        """Update the policy with the last rollout: ``n_epochs`` passes of minibatches.

        :raises ValueError: for a gradient that is not finite; the weights are then what they were before
        """
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        if self.kl_coef > 0 and self.ref_sync_interval and self._n_rollouts % self.ref_sync_interval == 0:
            self._sync_reference()
        batch, self._batch = self._batch, None
        if batch is None or len(batch.advantages) == 0:  # no group had a spread: nothing to learn from
            return
        clip = (
            self._clip_range_schedule(self._current_progress_remaining),
            self._clip_range_high_schedule(self._current_progress_remaining),
        )
        last_good, norms, stopped = LastGood(self.policy), [], False
        self.gradient.start_update(self._task)
        take_step = self.captured.gradient_step(self, clip, list(last_good.parameters))
        for epoch in range(self.n_epochs):
            epoch_norms = []
            for minibatch in minibatches(batch, self.batch_size, self.importance_level == "episode"):
                if self.target_kl is not None and self._exceeds_target_kl(minibatch):
                    stopped = True
                    break
                epoch_norms.append(take_step(minibatch))
            if epoch_norms:
                last_good.check(epoch_norms, epoch)
            norms += epoch_norms
            self._n_updates += 1
            if stopped:
                break
        self._n_gradient_steps += len(norms)
        log.record_update(self, batch, clip, norms)

    def _gradient_step(self, minibatch: Minibatch, clip: Clip, parameters: list[th.nn.Parameter]) -> th.Tensor:
        def loss(part: Minibatch) -> th.Tensor:
            with self.autocasting():
                return self._loss(part, clip)

        self.gradient(loss, minibatch, parameters)
        norms = clip_gradients(parameters, self.max_grad_norm)
        self.policy.optimizer.step()
        return norms

    def _loss(self, minibatch: Minibatch, clip: Clip, weighted: bool = False) -> th.Tensor:
        """Surrogate + kl_coef * KL(policy || reference) - ent_coef * entropy, aggregated by the rows' weights.

        :param weighted: look at the weights even where the settings make them all 1
        """
        if self.ent_coef == 0.0:
            log_prob, entropy = self.policy.log_prob(minibatch.observations, minibatch.actions), None
        else:
            log_prob, entropy = self.policy.evaluate_actions(minibatch.observations, minibatch.actions)
        per_step = self.surrogate_loss(log_prob, minibatch, clip)
        if self.ref_policy is not None:
            with th.no_grad():
                ref_log_prob = self.ref_policy.log_prob(minibatch.observations, minibatch.actions)
            per_step = per_step + self.kl_coef * kl_k3(log_prob, ref_log_prob)
        if entropy is not None:
            per_step = per_step - self.ent_coef * entropy
        unweighted = self.group_weights is None and not weighted
        all_equal = unweighted and self.aggregation == "step" and self.importance_level == "step"
        return per_step.mean() if all_equal else (minibatch.weights * per_step).mean()

    def surrogate_loss(self, log_prob: th.Tensor, minibatch: Minibatch, clip: Clip) -> th.Tensor:
        """The surrogate of each row, without KL and entropy.

        :param log_prob: ``[B]`` under the policy as it is now
        :param minibatch: the rows
        :param clip: lower and upper clip range
        :return: ``[B]``
        """
        ratio = importance_ratio(log_prob - minibatch.old_log_probs, self.importance_level, minibatch.episode)
        if self.surrogate == "cispo":
            return cispo_surrogate(log_prob, ratio, minibatch.advantages, *clip)
        return clipped_surrogate(ratio, minibatch.advantages, *clip, self.ratio_cap)

    @th.no_grad()
    def _exceeds_target_kl(self, minibatch: Minibatch) -> bool:
        assert self.target_kl is not None
        with self.autocasting():
            log_prob = self.policy.log_prob(minibatch.observations, minibatch.actions)
        return kl_k3(minibatch.old_log_probs, log_prob).mean().item() > 1.5 * self.target_kl

    def autocasting(self) -> th.autocast:
        """The context of every forward pass that makes log-probabilities: ratios compare like with like."""
        return th.autocast(self.device.type, dtype=th.bfloat16, enabled=self.autocast)

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        # A rollout may overshoot; schedules must not fall below their end.
        super()._update_current_progress_remaining(min(num_timesteps, total_timesteps), total_timesteps)

    def learn(
        self: SelfGRPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "GRPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfGRPO:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)

    # ---------------------------------------------------------------- save and load

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *NOT_SAVED]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, tensors = super()._get_torch_save_params()
        optional = [name for name in OPTIONAL_MODULES if isinstance(getattr(self, name), th.nn.Module)]
        return [*state_dicts, *optional], tensors

    def save(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """As SB3's, whole or not at all, with VecNormalize's statistics in the zip; a model saved in mid-rollout goes on with
        groups that it has not used."""
        if self.slots is not None:
            self._next_group = self.slots.next_group
        file = io.BytesIO()
        super().save(file, *args, **kwargs)
        write_model(path, file.getvalue(), vars(self), self._vec_normalize_env)

    @classmethod
    def load(  # type: ignore[override]
        cls: type[SelfGRPO],
        path: Any,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        *args: Any,
        trusted: bool = True,
        **kwargs: Any,
    ) -> SelfGRPO:
        """As SB3's.

        :param trusted: False: nothing in the file is unpickled, so that none of it can run; what has no plain form is named,
            and taken from ``custom_objects`` or the further arguments (docs/security.md)
        :raises ValueError: for what cannot be had without unpickling, and for objects whose class has moved
        """
        source = path
        if not trusted:
            given = {**(custom_objects or {}), **kwargs}
            source, custom_objects = without_pickle(path, inspect.signature(cls).parameters, given, env)
        with saying_what_moved(path):
            return super().load(source, env, device, custom_objects, *args, **kwargs)  # type: ignore[no-any-return]

    def set_parameters(
        self, load_path_or_dict: str | dict[str, Any], exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        """As SB3's; a saved model may be loaded with another ``advantage``, ``kl_coef`` or ``grouping``: what it lacks stays
        as built, except a missing reference policy, which becomes the loaded policy."""
        if not isinstance(load_path_or_dict, dict):
            load_path_or_dict = load_from_zip_file(load_path_or_dict, load_data=False, device=device)[1]
        if "policy" in load_path_or_dict:
            modules = {name: getattr(self, name) for name in OPTIONAL_MODULES}
            load_path_or_dict = with_fitting_modules(load_path_or_dict, modules)
        super().set_parameters(load_path_or_dict, exact_match, device)
