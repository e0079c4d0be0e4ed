"""What a model is built of: buffer, policy, estimator, grouping, weights, captured execution; and how its policy acts."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo import learners, ranks, saving
from sb_grpo.collect.beside import Beside, spaces_beside
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.masks import APART, UNTOLD, masks_of_the_evaluated
from sb_grpo.collect.rollouts import buffer_class
from sb_grpo.config import as_read, check_as_read, default_group_size, members_at, steps_per_env
from sb_grpo.envs.installing import install_seeded_reset, time_limit
from sb_grpo.envs.random import mix
from sb_grpo.envs.tensor_env import is_tensor_env
from sb_grpo.extras.exploration import Place, make_bonus
from sb_grpo.extras.group_weights import GroupWeights
from sb_grpo.extras.grouping import make_grouping
from sb_grpo.learn.captured import Captured, rollout_obstacle, update_obstacle
from sb_grpo.learn.gradients import PlainGradient, SurgicalGradient
from sb_grpo.learn.losses import Loss
from sb_grpo.maths.discount import discount_for
from sb_grpo.maths.schedules import scaled
from sb_grpo.policies import ActorCnnPolicy, ActorMultiInputPolicy, ActorPolicy, RoutedPolicy, load_actor
from sb_grpo.policies.beside import space_with, space_without
from sb_grpo.policies.weights import made_apart
from sb_grpo.profiles import arguments_of
from sb_grpo.slotted import SlottedAlgorithm
from sb_grpo.validation import Options, check_env, check_policy_name, give_warnings, obstacle_to_pairs, validate

SelfGrouped = TypeVar("SelfGrouped", bound="GroupedAlgorithm")
#: Defaults that follow from other arguments: of a loaded model they are found anew where one of those is replaced.
FOLLOWS_FROM = {
    "gamma": {"advantage"},
    "normalize_advantage": {"advantage", "multitask"},
    "group_size": {"advantage", "advantage_kwargs", "normalize_advantage", "multitask", "group_kwargs", "n_envs", "n_steps"},
    "n_steps": {"n_envs", "n_groups"},
}


class GroupedAlgorithm(SlottedAlgorithm):
    """The part of :class:`~sb_grpo.grpo.GRPO` that is not the algorithm: set-up, and acting."""

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": ActorPolicy,
        "CnnPolicy": ActorCnnPolicy,
        "MultiInputPolicy": ActorMultiInputPolicy,
        "RoutedPolicy": RoutedPolicy,
    }
    loss: str | Loss
    loss_kwargs: dict[str, Any] | None
    #: Arguments that are read when the model is set up and not again, as they were then.
    _as_read: dict[str, Any] | None = None

    @classmethod
    def from_profile(cls: type[SelfGrouped], name: str, policy: Any, env: GymEnv | str, **kwargs: Any) -> SelfGrouped:
        """A new model whose steps are as bold as a profile says.

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
        if self.rollout_buffer_class is saving.OnlyForGRPO:  # type: ignore[comparison-overlap]
            self.rollout_buffer_class = None
        self.options, self._as_read = Options.read(self.__dict__), None
        self._derive()
        config = self._config()
        validate(config)
        validate(replace(config, group_size=members_at(self.group_size, 0.0)))  # where a schedule leads
        give_warnings(config)
        learners.check_equal(self.settings)
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        if self._base_seed is None:
            self._base_seed = ranks.gathered(int(np.random.randint(2**31)))[0]
        self.clip_range = FloatSchedule(self.clip_range)
        self.policy = self._make_policy(self.policy_kwargs)
        self._maybe_recommend_cpu()
        self._find_masks()
        self._make_buffer()
        self._setup_groups()
        in_file = self._given_reference and self.kl_coef > 0  # of what is being loaded
        if self.kl_coef > 0:
            self._sync_reference()
        self._given_reference = in_file
        self._use_given_reference()
        place = Place(space_without(self.observation_space), self.get_vec_normalize_env() is not None, self.gamma, self.device)
        self.bonus = make_bonus(self.options.rewards.bonus, place)
        self._capture()
        self._begin_together()
        self._as_read = as_read(self.__dict__)

    def _maybe_recommend_cpu(self, mlp_class_name: str = ActorPolicy.__name__) -> None:
        """As SB3's: steps of host envs wait for a small network. Tensor envs and memories are another matter."""
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

    def _begin_together(self) -> None:
        """Several learners: one set of weights, and random numbers of each one's own."""
        rank, n = ranks.place()
        if n == 1:
            return
        for module in (self.policy, self.estimator, self.ref_policy):
            if isinstance(module, th.nn.Module):
                ranks.broadcast(module.state_dict().values())
        base_seed = self._base_seed
        assert base_seed is not None
        self.set_random_seed(mix(base_seed, rank, 3) >> 33)
        self._base_seed = base_seed  # groups are those of all

    def _derive(self) -> None:
        """Find the defaults that follow from other arguments.

        :raises ValueError: if something was changed by hand that is read only once
        """
        self._check_as_read()
        replaced = self.__dict__.pop("_replaced", set())  # by GRPO.load(..., name=value)
        self._derived = {name: value for name, value in self._derived.items() if name not in replaced}
        changed = {*replaced, "n_envs"}  # whatever their number was before
        for name, value in self._derived.items():
            if FOLLOWS_FROM[name] & changed and getattr(self, name) == value:
                setattr(self, name, None)
        if self.n_steps is None and self.n_groups is None and hasattr(self, "n_envs"):  # an env was given, here or before
            self.n_steps = self._derived["n_steps"] = self.steps_per_env
        uses_values = self.options.estimator.uses_values
        if self.gamma is None:  # only values make returns go on beyond an episode's end
            self.gamma = discount_for(time_limit(self.env) if self.env is not None and uses_values else None)
            self._derived["gamma"] = self.gamma
        if self.normalize_advantage is None:
            cut = not self.options.estimator.whole_episodes and self.options.multitask.grouping == "seed"
            self.normalize_advantage = "batch" if cut else "group"
            self._derived["normalize_advantage"] = self.normalize_advantage
        elif isinstance(self.normalize_advantage, bool):  # PPO's way to say it
            self.normalize_advantage = "group" if self.normalize_advantage else "none"
        if self.group_size is None:
            compares = self.normalize_advantage == "group" or self.options.multitask.grouping != "seed"
            n_envs = getattr(self, "n_envs", 1) * ranks.place().n
            limit = time_limit(self.env) if self.env is not None else None
            obstacle = self._obstacle_to_pairs()
            self.group_size = default_group_size(
                self.options.estimator, compares, obstacle, n_envs, steps_per_env(self.n_steps, n_envs), limit
            )
            self._derived["group_size"] = self.group_size

    def _obstacle_to_pairs(self) -> str | None:
        """The reason why members of a group of two or more cannot be paired; None: they can."""
        if not self.options.groups.shared_noise:
            return "shared_noise=False gives every member luck of its own"
        return obstacle_to_pairs(2, self.options.multitask.grouping, self.env)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        self._check_as_read()
        return super()._setup_learn(*args, **kwargs)

    def _check_as_read(self) -> None:
        if self._as_read is not None:
            check_as_read(self._as_read, self.__dict__)

    def _make_buffer(self) -> None:
        kind: Any = self.rollout_buffer_class or buffer_class(self.env)
        self.rollout_buffer = kind(
            self.steps_per_env,
            space_with(self.observation_space, spaces_beside(self.policy, self.mask_source)),
            self.action_space,
            device=self.device,
            n_envs=self.n_envs,
            **self.rollout_buffer_kwargs,
        )
        if self.gamma is not None:  # type: ignore[redundant-expr]
            self.rollout_buffer.discount(self.gamma, self.gae_lambda)
        self.beside = Beside(self.mask_source)
        self._make_columns()
        self.rollout_buffer.add_columns(self.columns)

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """As SB3's. The env may be of another kind (host, tensor); what collects its rollouts is then built for it.

        :raises ValueError: if the arguments of the model do not go with the env; the model then keeps the one it has
        """
        former = self.env, self._vec_normalize_env, self._last_obs
        super().set_env(env, force_reset)
        try:
            config = self._config()
            validate(config)
            give_warnings(config)
            changed = self._find_masks()
        except ValueError:
            self.env, self._vec_normalize_env, self._last_obs = former
            raise
        other_kind = is_tensor_env(former[0]) != is_tensor_env(self.env)
        if changed or other_kind or not isinstance(self.rollout_buffer, buffer_class(self.env)):
            self._steps_dropped += self.rollout_buffer.drop_kept()
            self._make_buffer()
        self._capture()

    def _setup_groups(self) -> None:
        """What compares, weighs and reconciles the groups."""
        assert self._base_seed is not None
        multitask, rewards = self.options.multitask, self.options.rewards
        self.grouper = make_grouping(multitask, self.observation_space, self._base_seed)
        if isinstance(self.grouper, th.nn.Module):
            self.grouper.to(self.device)
        n_tasks = len(self.grouper.names) if self.grouper.by_task else 1
        n_objectives = len(rewards.objectives or {}) if rewards.normalization == "each" else 1
        estimator = self.options.estimator
        if getattr(estimator, "paired", False) is None:
            largest = max(members_at(self.group_size, progress) for progress in (1.0, 0.0))
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
        self.gradient = (SurgicalGradient if multitask.surgery else PlainGradient)(self.options.update.micro_batch_size)

    def _capture(self) -> None:
        """Captured execution, as far as it can be had with this env and these arguments."""
        options = self.options
        self.shared_statistics = learners.SharedStatistics(self._vec_normalize_env)
        self.captured = Captured(
            self.compile,
            rollout_obstacle(self.env, self.use_sde),
            update_obstacle(
                self.policy.optimizer, self.device, options.loss.importance_level, options.update.micro_batch_size,
                options.multitask.surgery, self.use_sde, self.policy.memory is not None, ranks.place().n,
            ),
        )  # fmt: skip
        if hasattr(self.estimator, "fast_predict"):
            self.estimator.fast_predict = self.captured.predict(self.estimator)

    @property
    def _lacks_reference(self) -> bool:
        """There is none, or it is what the policy was before ``load_actor`` gave it other weights to start from."""
        started_elsewhere = self.policy.newly_loaded and self._n_gradient_steps == 0 and not self._given_reference
        return self.ref_policy is None or started_elsewhere

    def _sync_reference(self) -> None:
        """Make the reference policy a frozen copy of the policy. It is built anew, as gSDE's distribution cannot be copied."""
        if self.ref_policy is None:
            self.ref_policy = made_apart(self.policy, self._make_policy, self.policy_kwargs)
            self.ref_policy.requires_grad_(False)
            self.ref_policy.set_training_mode(False)
            del self.ref_policy.optimizer
        self.ref_policy.load_state_dict(self.policy.state_dict())
        self._given_reference = self.policy.newly_loaded = False

    def _use_given_reference(self) -> None:
        """The reference policy gets the weights that ``loss_kwargs`` names; what was given is not kept in the model."""
        given = self.options.loss.ref_policy
        if given is None or self.ref_policy is None:
            return
        load_actor(self.ref_policy, given)
        self._given_reference = True
        if isinstance(self.loss, Loss):
            self.loss = replace(self.loss, ref_policy=None)
        else:
            self.loss_kwargs = {name: value for name, value in (self.loss_kwargs or {}).items() if name != "ref_policy"}

    def _normalize_anew(self, rollout_buffer: GroupRolloutBuffer) -> None:
        """Normalise by the last rollout too; between rollouts only, so that old and new log-probabilities see the same."""
        seen = rollout_buffer.seen_observations() if self.policy.normalize_obs else None
        if seen is None:
            return
        self.policy.obs_normalizer.update(self.policy.flat_observations(seen))
        if self.ref_policy is not None and not self._given_reference:  # the policy moves the KL, not its view of observations
            self.ref_policy.obs_normalizer.load_state_dict(self.policy.obs_normalizer.state_dict())

    def _make_policy(self, kwargs: dict[str, Any]) -> ActorPolicy:
        policy_class: Any = self.policy_class
        policy: ActorPolicy = policy_class(
            self.observation_space, self.action_space, self.lr_schedule, use_sde=self.use_sde, **kwargs
        ).to(self.device)
        return policy

    def predict(  # type: ignore[override]
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Actions for observations, as SB3's, with sb3-contrib's ``action_masks`` and its ``state`` of a recurrent policy.

        :param action_masks: ``[n_envs, m]`` valid actions, where the observation does not hold them. ``evaluate_policy`` and
            what is built on it need not pass them: the env that it plays is asked
        """
        if action_masks is None and self.mask_source in APART:
            action_masks = masks_of_the_evaluated()
            if action_masks is None and not self._warned_of_masks:
                self._warned_of_masks = True
                warnings.warn(UNTOLD.format(source=self.mask_source), UserWarning, stacklevel=2)
        masks = () if action_masks is None else (action_masks,)  # SB3's signature has none
        return self.policy.predict(observation, state, episode_start, deterministic, *masks)
