"""Groups in the slots of a model's env: begun, begun anew, given up; and the state that goes with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback

from sb_grpo import figures as log
from sb_grpo import learners, ranks
from sb_grpo.collect.beside import Beside
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.columns import Wanted, make_columns
from sb_grpo.collect.host_loop import check_finite
from sb_grpo.collect.interruption import give_up, warn_of_interruption
from sb_grpo.collect.masks import source_of
from sb_grpo.collect.plan import LARGEST_OBSERVATION, LARGEST_REWARD, Limits, Plan
from sb_grpo.collect.simulators import make_slots
from sb_grpo.collect.slots import GroupSlots, Slots
from sb_grpo.config import RANGES, at_progress, constructor_of, members_at, steps_per_env
from sb_grpo.envs.hold import reset_is_over, resetting
from sb_grpo.envs.installing import time_limit
from sb_grpo.extras.exploration import Bonus
from sb_grpo.extras.group_weights import GroupWeights
from sb_grpo.learn.last_good import Rescue
from sb_grpo.maths.precision import autocasting
from sb_grpo.policies import ActorPolicy
from sb_grpo.preparing import Prepared
from sb_grpo.types import Rollout, UpdateResult
from sb_grpo.validation import Config, Options, check_early_reset, check_rollout_size, validate, warn_of_few_starts


class SlottedAlgorithm(OnPolicyAlgorithm):
    """The part of :class:`~sb_grpo.grpo.GRPO` that runs groups in the slots of its env."""

    policy: ActorPolicy  # type: ignore[assignment]
    beside: Beside
    rollout_buffer: GroupRolloutBuffer  # type: ignore[assignment]
    shared_statistics: learners.SharedStatistics
    n_steps: int | None  # type: ignore[assignment]
    normalize_advantage: str
    group_size: Any
    options: Options
    batch_size: int
    n_epochs: int
    clip_range: Any
    kl_coef: float
    target_kl: float | None
    compile: bool
    n_groups: int | None
    advantage: Any

    def _make_buffer(self) -> None:
        raise NotImplementedError

    def _begin(self) -> None:
        """What a model has before it is set up."""
        self.estimator: Any = None
        self.group_weighting: GroupWeights | None = None
        self.ref_policy: ActorPolicy | None = None
        self._given_reference = False  #: ``ref_policy`` was given, and is none that this policy has been
        self.bonus: Bonus | None = None
        self._base_seed: int | None = None
        self._next_group = 0
        self._n_rollouts = self._n_gradient_steps = self._steps_trained = self._steps_dropped = 0
        self.interruptions = 0  #: times that somebody else has taken the training env in mid-rollout
        self.slots: Slots | None = None
        #: Where action masks come from (sb_grpo.collect.masks); None: there are none.
        self.mask_source: str | None = None
        self._warned_of_masks = self._warned_of_few_starts = False
        self._time_limit: int | None = None
        self._prepared: tuple[Rollout, Prepared] | None = None
        self._derived: dict[str, Any] = {}  # defaults that followed from other arguments
        #: What the last rollout and the update after it logged, by key.
        self.last_figures: dict[str, float] = {}
        self.last_update: UpdateResult | None = None
        #: Where a :class:`CurriculumCallback` stands; here, so that it is saved with the model.
        self.curriculum_level: int | None = None
        self.moving_gamma: float | None = None  #: what a GammaCallback has put in gamma's place
        self.lr_scale = 1.0  #: what a RecoveryCallback has multiplied the learning rate, or its schedule, with
        self.rescue: Rescue | None = None  #: of a RecoveryCallback, while it watches a training
        self._restart_groups = False
        self._rows_checked: tuple[int, int] | None = None
        self._own_loop: tuple[MaybeCallback, BaseCallback] | None = None  #: callbacks of collect(), as given and as called

    @property
    def steps_per_env(self) -> int:
        """Steps per env that a rollout aims at."""
        return steps_per_env(self.n_steps, self.n_envs * ranks.place().n)

    @property
    def _sequence_length(self) -> int | None:
        """Steps through which gradients go back; None without a memory."""
        if self.policy.memory is None:
            return None
        update = self.options.update
        return update.sequence_length or update.micro_batch_size or self.batch_size

    @property
    def whole_episodes(self) -> bool:
        """Rollouts end when groups are complete; otherwise episodes are cut and carried over."""
        return self.options.estimator.whole_episodes or self.n_groups is not None

    @property
    def settings(self) -> dict[str, Any]:
        """Every argument of the constructor by name, as it is now."""
        names = [name for name in constructor_of(type(self)) if name not in ("policy", "env", "_init_setup_model")]
        settings = {name: getattr(self, name, getattr(self, f"_{name}", None)) for name in names}
        return {"policy": self.policy_class.__name__, "n_envs": getattr(self, "n_envs", None), **settings}

    def _config(self) -> Config:
        """The values that the rules between arguments look at."""
        own: dict[str, Any] = {name: getattr(self, name, None) for name in Config.__dataclass_fields__}
        own["group_size"] = self.members
        if self.env is not None:
            own["n_envs"] = self.n_envs * ranks.place().n
        return Config(**own)

    def _make_columns(self) -> None:
        multitask, rewards = self.options.multitask, self.options.rewards
        self.columns = make_columns(Wanted(multitask, rewards, self.observation_space, self.n_envs))

    def check_rollout_size(self) -> None:
        """Say once where a rollout does not fill a minibatch."""
        rows = self.steps_per_env * self.n_envs * ranks.place().n, self.batch_size
        if rows != self._rows_checked:
            check_rollout_size(self._config())
            self._rows_checked = rows

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
        if "options" not in vars(self):  # _init_setup_model=False
            self._setup_model()
        self.check_rollout_size()
        self.moving_gamma = self.rescue = None
        in_step = self.slots is not None and self.slots.in_step_with(self.env)
        if not in_step:  # a loaded model, another env, or somebody else has reset this one
            self._last_obs = None
        restart = reset_num_timesteps or self._last_obs is None
        if restart and self.slots is not None:
            check_early_reset(self.env, can_continue=self._last_obs is not None)
        if reset_num_timesteps:
            self._steps_trained = self._steps_dropped = 0
        if ranks.place().rank > 0:  # rank 0 speaks for all
            self.verbose, self.tensorboard_log, self._custom_logger = 0, None, False
        if restart:
            self._steps_dropped += self.rollout_buffer.drop_kept()
            self._new_slots()
            self._make_columns()
        with self._beginning() if restart else nullcontext():
            result = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        if restart:
            self._time_limit = time_limit(self.env)
        if self.tensorboard_log is not None:
            log.record_settings(self.logger, self.settings, self.num_timesteps)
        return result

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        reset_is_over(self.env)  # which SB3 has just made; what callbacks do is their own
        return super()._init_callback(learners.own_callbacks(callback), progress_bar and ranks.place().rank == 0)

    def _update_info_buffer(self, infos: list[dict[str, Any]], dones: np.ndarray | None = None) -> None:
        """Collect episode statistics as SB3 does, with each episode's group, so that different starts can be counted."""
        if dones is not None and dones.any() and isinstance(self.slots, GroupSlots):
            groups = ranks.dealt(self.slots.job // self.slots.group_size).tolist()
            infos = [
                {**info, "episode": {**info["episode"], "group": group}} if "episode" in info else info
                for info, group in zip(infos, groups, strict=True)
            ]
        super()._update_info_buffer(infos, dones)

    def _note_few_starts(self, rollout: Rollout) -> None:
        """Warn once where a rollout shows few different starts."""
        if not self._warned_of_few_starts:
            self._warned_of_few_starts = warn_of_few_starts(self._config(), rollout, self.steps_per_env)

    def _share_what_was_seen(self, steps_before: int, episodes_before: list[dict[str, Any]]) -> None:
        """A rollout has ended, or was given up by all: number of steps, running statistics and episodes of all learners.

        :param steps_before: that all had taken when it began
        :param episodes_before: that all knew then
        """
        n = ranks.place().n
        if n == 1:
            return
        self.shared_statistics.merge()
        assert self.ep_info_buffer is not None
        steps = (self.num_timesteps - steps_before) // n
        self.ep_info_buffer, steps = learners.seen_by_all(episodes_before, self.ep_info_buffer, steps)
        self.num_timesteps = steps_before + steps

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """Around a reset of the env that begins each slot's next job; where it fails, the next ``learn()`` begins others."""
        assert self.env is not None and self.slots is not None
        try:
            with resetting(self.env):
                self.slots.queue_all(self.env)
                yield
                self._groups_started()
        except BaseException:
            self._last_obs = None
            raise

    def _find_masks(self) -> bool:
        """Ask the env where its masks come from; True if that is another place than was known."""
        if self.env is None:  # what a saved model knows of the env that it was trained on
            return False
        known, self.mask_source = self.mask_source, source_of(self.env)
        return known != self.mask_source

    def _new_slots(self) -> Slots:
        """Slots whose jobs belong to groups that no episode has met."""
        if self.slots is not None:
            self._next_group = ranks.first_undealt(self.slots.next_group)
        assert self._base_seed is not None and self.env is not None
        self.slots = make_slots(
            self.env, self.members, self._base_seed, ranks.own_from(self._next_group), self.device,
            shared_noise=self.options.groups.shared_noise, whole_episodes=self.whole_episodes,
        )  # fmt: skip
        return self.slots

    def _groups_started(self) -> None:
        """The env was reset, and ``_last_obs`` is what it said."""
        assert self.env is not None and self.slots is not None
        if self._find_masks():  # the infos of resets have told of them
            self._steps_dropped += self.rollout_buffer.drop_kept()
            self._make_buffer()
        self.beside.see(self.env)
        self.slots.started_all(self.env, self.raw_last_obs)
        check_finite(self.env, "observation", self.raw_last_obs, 0, self._limits.observation)

    @property
    def members(self) -> int:
        """Members per group, by the schedule as it stands where ``group_size`` is one."""
        return members_at(self.group_size, self._current_progress_remaining)

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
        if self.members != self.slots.group_size:
            validate(self._config())
        self._steps_dropped += self.rollout_buffer.drop_kept()
        mismatches = self.slots.start_mismatches
        self._new_slots().start_mismatches = mismatches
        self.start_slots()
        self._restart_groups = False

    def _start_over(self) -> tuple[Slots, Any]:
        """Begin every slot's episode again, as somebody else has reset or stepped the envs.

        :return: slots and observations from here on
        """
        assert self.slots is not None
        self.interruptions += 1
        if self.interruptions == 1:
            warn_of_interruption(self.whole_episodes, self.num_timesteps)
        dropped, can_go_on = give_up(self.slots, self.rollout_buffer, self.beside, self._last_obs, self.whole_episodes)
        self._steps_dropped += dropped
        if can_go_on:
            self.start_slots()
        else:
            self.start_new_groups()
        return self.slots, self._last_obs

    def start_slots(self) -> None:
        """Reset every env; each slot begins the next of the jobs."""
        assert self.env is not None
        check_early_reset(self.env, can_continue=False)
        with self._beginning():
            self._last_obs = self.env.reset()  # type: ignore[assignment]
            self._last_episode_starts = np.ones(self.n_envs, dtype=bool)

    def _plan(self) -> Plan:
        """How far the next rollout goes."""
        by_number = self.n_groups is not None and not self.options.estimator.whole_episodes
        reason = f"n_groups={self.n_groups}" if by_number else f"advantage={self.advantage!r}"
        way_out = "set n_steps instead of n_groups" if by_number else "use advantage='state'"
        n_groups = None if self.n_groups is None else self.n_groups // ranks.place().n
        return Plan(
            self.members, n_groups, self.steps_per_env, self.whole_episodes, self._time_limit, reason, way_out,
            self.use_sde, self.sde_sample_freq, self.num_timesteps // self.n_envs, self._limits,
        )  # fmt: skip

    @property
    def _limits(self) -> Limits:
        """What the env may report at most: where nothing keeps statistics of it, anything that is finite."""
        unbounded, normalized = self.options.rewards.scaling == "none", self._vec_normalize_env
        reward = LARGEST_REWARD if unbounded or self.group_weighting is not None else Limits().reward
        keeps_observations = (
            self.options.estimator.uses_values
            or self.policy.normalize_obs
            or isinstance(self.bonus, th.nn.Module)
            or self.options.multitask.grouping == "auto"
            or (normalized is not None and normalized.norm_obs)
        )
        return Limits(reward, LARGEST_OBSERVATION if keeps_observations else Limits().observation)

    def _horizon(self, rollout: Rollout) -> int:
        """Steps of the longest episode possible."""
        return self._time_limit or rollout.max_length if self.whole_episodes else self.steps_per_env

    def set_random_seed(self, seed: int | None = None) -> None:
        """As SB3's; groups that begin from here on are those of the seed."""
        super().set_random_seed(seed)
        self._base_seed = self._base_seed if seed is None else seed

    def _update_learning_rate(self, optimizers: Any) -> None:
        progress = self._current_progress_remaining
        at_progress("learning_rate", RANGES[""]["learning_rate"], self.lr_schedule, progress)
        super()._update_learning_rate(optimizers)

    def _log(self, figures: log.Figures) -> None:
        """Log figures, and keep them for who looks at the rollout later; the logger forgets them when it dumps."""
        log.record(self.logger, figures)
        self.last_figures.update(figures)

    def autocasting(self) -> AbstractContextManager[object]:
        """The context of every forward pass that makes log-probabilities: ratios compare like with like."""
        return autocasting(self.device, self.options.update.autocast)
