"""GRPO for control: collect groups, turn them into advantages, take clipped policy-gradient steps. No critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo import figures as log
from sb_grpo import ranks
from sb_grpo.collect.acting import log_probs_of_actor
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.collect.rollouts import Source, collecting
from sb_grpo.config import CHANGEABLE, RANGES, Multitask, Rewards, at_progress, check_each, plain
from sb_grpo.envs.tensor_env import is_tensor_env
from sb_grpo.learn.last_good import Snapshot, rescued, unharmed
from sb_grpo.learn.losses import Loss, Objective
from sb_grpo.learn.updater import UpdatePlan, Updater
from sb_grpo.policies import ActorPolicy
from sb_grpo.policies.weights import check_apart
from sb_grpo.preparing import Preparation, Prepared
from sb_grpo.resumable import ResumableAlgorithm
from sb_grpo.telling import teller
from sb_grpo.types import AdvantageOptions, Rollout, UpdateResult
from sb_grpo.validation import checking_arguments


class GRPO(ResumableAlgorithm):
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
    :param normalize_advantage: divide by the spread of the ``"group"``, of the ``"batch"`` (rollout), or ``"none"``;
        True and False mean ``"group"`` and ``"none"``. None: ``"batch"`` for ``"state"`` with same-seed groups, which its
        rollouts cut into unequal parts; ``"group"`` for all else, as in DeepSeekMath
    :param ent_coef: weight of the entropy bonus
    :param max_grad_norm: joint norm that gradients are clipped to
    :param use_sde: state-dependent exploration (Box actions)
    :param sde_sample_freq: new exploration noise every so many steps; -1: once per rollout
    :param rollout_buffer_class: a :class:`GroupRolloutBuffer` subclass
    :param rollout_buffer_kwargs: its further keyword arguments
    :param target_kl: stop the update when the approximate KL exceeds 1.5 times this; None: never
    :param stats_window_size: episodes that ``rollout/ep_rew_mean`` averages over
    :param tensorboard_log: folder for TensorBoard
    :param policy_kwargs: keyword arguments of the policy
    :param verbose: 0 silent, 1 tables, 2 debug
    :param seed: of weights, actions and groups; None: random
    :param device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    :param _init_setup_model: build the networks at once
    :param group_size: members per group (G), or a function of the remaining progress (1 to 0). A change, also by hand between
        rollouts, begins new groups: the steps of unfinished ones are dropped and counted
    :param n_groups: complete groups per rollout, in place of ``n_steps``; with it ``"state"`` waits for whole episodes
    :param group_kwargs: how members start: :class:`~sb_grpo.config.GroupOptions`
    :param advantage: ``"outcome"`` and ``"process"`` (DeepSeekMath), ``"step"`` (time-aligned group baseline),
        ``"state"`` (state-conditioned group baseline, fitted in closed form), an object of
        :mod:`sb_grpo.baselines.estimators` or of one's own, or a function of (:class:`Rollout`, :class:`AdvantageOptions`)
        that returns one number per step
    :param advantage_kwargs: of the estimator: :class:`~sb_grpo.baselines.estimators.State`,
        :class:`~sb_grpo.baselines.estimators.Step`, ...
    :param loss: ``"clip"`` (PPO), ``"cispo"``, or an object of a subclass of :class:`~sb_grpo.learn.losses.Loss`
    :param loss_kwargs: of the loss: :class:`~sb_grpo.learn.losses.Clipped`
    :param kl_coef: weight of the k3 KL to the reference policy; 0: no reference policy exists
    :param multitask: tasks, grouping, weights and surgery: a dict, or :class:`~sb_grpo.config.Multitask`
    :param rewards: objectives, scaling and bonus: a dict, or :class:`~sb_grpo.config.Rewards`
    :param update_kwargs: memory and precision of an update: :class:`~sb_grpo.config.UpdateOptions`
    :param compile: capture the step loop (tensor envs) and the gradient step as graphs: ``torch.compile``.
        Compiling takes 10 to 70 s; what cannot be captured is named and stays eager
    :raises ValueError: for arguments out of range or at odds with each other or the env
    """

    @checking_arguments
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
        normalize_advantage: str | bool | None = None,
        ent_coef: float = 0.0,
        max_grad_norm: float = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[GroupRolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        group_size: int | Schedule | None = None,
        n_groups: int | None = None,
        group_kwargs: dict[str, Any] | None = None,
        advantage: Any = "state",
        advantage_kwargs: dict[str, Any] | None = None,
        loss: str | Loss = "clip",
        loss_kwargs: dict[str, Any] | None = None,
        kl_coef: float = 0.0,
        multitask: Multitask | Mapping[str, Any] | None = None,
        rewards: Rewards | Mapping[str, Any] | None = None,
        update_kwargs: dict[str, Any] | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__(
            policy,  # type: ignore[arg-type]
            env,
            learning_rate=plain(learning_rate),
            n_steps=plain(n_steps),
            gamma=plain(gamma),  # None until the env is known
            gae_lambda=plain(gae_lambda),
            ent_coef=plain(ent_coef),
            vf_coef=0.0,  # the base class asks for it; there is no value function
            max_grad_norm=plain(max_grad_norm),
            use_sde=False,  # until below, lest the base class complain of it without its name
            sde_sample_freq=plain(sde_sample_freq),
            rollout_buffer_class=rollout_buffer_class,  # type: ignore[arg-type]
            rollout_buffer_kwargs=rollout_buffer_kwargs,
            stats_window_size=plain(stats_window_size),
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=plain(verbose),
            device=ranks.join(device),
            seed=plain(seed),
            _init_setup_model=False,
        )
        self.use_sde = plain(use_sde)
        self.batch_size, self.n_epochs, self.clip_range = plain(batch_size), plain(n_epochs), plain(clip_range)
        self.normalize_advantage = plain(normalize_advantage)  # a name as soon as the model is set up
        self.target_kl, self.kl_coef, self.compile = plain(target_kl), plain(kl_coef), plain(compile)
        self.group_size, self.n_groups, self.group_kwargs = plain(group_size), plain(n_groups), group_kwargs
        self.advantage, self.advantage_kwargs, self.loss, self.loss_kwargs = advantage, advantage_kwargs, loss, loss_kwargs
        self.multitask, self.rewards, self.update_kwargs = multitask, rewards, update_kwargs
        self._begin()
        if _init_setup_model:
            self._setup_model()
            self.check_rollout_size()

    # ---------------------------------------------------------------- collect

    @rescued(again=True)
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
        assert self.slots is not None
        self._enter_rollout(callback)
        self.policy.set_training_mode(False)
        if self._restart_groups or self.members != self.slots.group_size:
            self.start_new_groups()
        self._normalize_anew(rollout_buffer)
        rollout_buffer.reset()
        if self.use_sde:
            self.policy.reset_noise(env.num_envs)
        log_probs, steps_before, episodes_before = None, self.num_timesteps, list(self.ep_info_buffer or ())
        try:
            log_probs = self._take_steps(env, callback, rollout_buffer)
        finally:
            if log_probs is None:  # the episodes lost their beginnings: the next learn() starts new groups
                self._in_rollout = False
                self._steps_dropped += rollout_buffer.pos * env.num_envs + rollout_buffer.drop_kept()
                self._last_obs = None
        self._share_what_was_seen(steps_before, episodes_before)
        if log_probs is None:
            return False
        self._n_rollouts += 1
        rollout = rollout_buffer.pack(log_probs, self.members, self.whole_episodes)
        assert rollout is not None, "a rollout ends with a complete group"
        self._steps_dropped += rollout_buffer.n_idle + rollout_buffer.n_lost
        self.slots.note_starts(rollout)
        max_length = int(ranks.largest(rollout.max_length)[0])
        rollout = rollout._replace(seed_group=ranks.dealt(rollout.seed_group), max_length=max_length)
        self._note_few_starts(rollout)
        self._prepared = rollout, self._prepare(rollout)
        return True

    def _take_steps(self, env: VecEnv, callback: BaseCallback, rollout_buffer: GroupRolloutBuffer) -> th.Tensor | None:
        """Fill the buffer, and let the callback see every step with the locals that SB3's loop has.

        :return: ``[time * slots]`` log-probabilities of the actions; None when a callback asked to stop, of any learner
        """
        assert self._last_obs is not None and self.slots is not None, "No previous observation was provided"
        callback.on_rollout_start()
        source = Source(
            env, lambda: self.policy, rollout_buffer, self.columns, self.slots, self.beside, self._last_obs,
            self._vec_normalize_env, self.captured.env_steps(self.steps_per_env), self.options.update.autocast,
            self.options.multitask.names,
        )  # fmt: skip
        known = dict[str, Any](self=self, env=env, callback=callback, rollout_buffer=rollout_buffer)
        known["n_rollout_steps"] = self.steps_per_env
        n_ranks, tell, goes_on = ranks.place().n, teller(callback, is_tensor_env(env)), True
        for step in collecting(source, self._plan(), self._start_over, self.ep_info_buffer):
            self.num_timesteps += env.num_envs * n_ranks
            tell({**known, **step._asdict()})
            goes_on = callback.on_step()
            if not goes_on:
                self.num_timesteps += step.ahead * env.num_envs * n_ranks
                break
            if not is_tensor_env(env):
                self._update_info_buffer(step.infos, step.dones)
                self._last_obs, self._last_episode_starts = step.new_obs, step.dones
        if not ranks.every(goes_on):  # before on_rollout_end(), where callbacks of all learners may meet
            return None
        with self.autocasting():
            log_probs = log_probs_of_actor(self.policy, rollout_buffer, self.options.update.autocast)
        callback.update_locals({"n_steps": rollout_buffer.pos})
        callback.on_rollout_end()
        return log_probs

    def _prepare(self, rollout: Rollout, again: bool = False) -> Prepared:
        """Advantages and row weights of a rollout; rows without signal are left out. Judged again, it counts once."""
        preparation = Preparation(
            self.advantage, self.estimator, self.grouper, self.group_weighting, self.bonus, self.options.rewards,
            self._objective_weights, self.options.loss,
        )  # fmt: skip
        self._derive()  # of what was changed by hand
        gamma = self.gamma if self.moving_gamma is None else self.moving_gamma
        discount = self.rollout_buffer.discount(gamma, self.gae_lambda)
        options = AdvantageOptions(*discount, self.normalize_advantage)
        largest, t = rollout.rewards.abs().max(0)
        at_fault = f"Its largest reward is {largest.item():g}, at step {int(rollout.t[t])} of an episode."
        with unharmed(self._learners(), at_fault):
            prepared = preparation(rollout, self.policy, options, self._horizon)
        self._steps_trained += 0 if again else len(prepared.estimate.advantages)
        assert self.slots is not None
        buffer = self.rollout_buffer
        troubles = self.interruptions, self.slots.start_mismatches, getattr(self.env, "n_lost", 0)
        counts = log.Counts(self._steps_trained, self._steps_dropped, buffer.n_kept, *troubles, buffer.age)
        self.last_figures = log.of_episodes(self.ep_info_buffer, self.ep_success_buffer)
        n_starts = self.last_figures.get("rollout/n_starts")
        if n_starts is not None:
            self.logger.record("rollout/n_starts", n_starts)
        self._log(log.of_rollout(prepared.rollout, prepared.estimate, prepared.has_signal, counts))
        parts = log.of_parts(prepared.rollout, self.options.multitask.names, list(self.options.rewards.objectives or {}))
        self._log({**parts, **prepared.figures})
        return prepared

    # ---------------------------------------------------------------- train

    @rescued(again=False)
    def train(self) -> None:
        """Update the policy with the last rollout: ``n_epochs`` passes of minibatches.

        :raises ValueError: without a new rollout, and for a gradient that is not finite; the weights are then as before
        """
        if self._prepared is None:
            raise ValueError("train() learns from a rollout once, and none has come since: call learn() or collect().")
        (_, prepared), self._prepared = self._prepared, None
        self._update(prepared)
        self._write_due_runs()

    def _update(self, prepared: Prepared) -> UpdateResult:
        check_each({name: getattr(self, name) for name in CHANGEABLE})
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        loss, batch, progress = self.options.loss, prepared.batch, self._current_progress_remaining
        due = loss.ref_sync_interval and self._n_rollouts % loss.ref_sync_interval == 0
        if self.kl_coef > 0 and (due or self._lacks_reference):
            self._sync_reference()
        if self.kl_coef > 0 and self.ref_policy is not None:
            check_apart(self.policy, self.ref_policy)
        rows_of_all = ranks.count(len(batch.advantages))
        if rows_of_all == 0:  # no group had a spread: nothing to learn from
            self.last_update = log.nothing_to_learn(self.last_figures)
            return self.last_update
        low = float(at_progress("clip_range", RANGES[""]["clip_range"], self.clip_range, progress))
        rule, high = RANGES["loss_kwargs"]["clip_range_high"], loss.clip_range_high
        clip = low, low if high is None else float(at_progress("loss_kwargs: clip_range_high", rule, high, progress))
        objective = self.objective()
        taken = self.updater(objective).run(batch, clip, rows_of_all, prepared.rollout.task)
        self._n_updates += taken.n_epochs
        self._n_gradient_steps += len(taken.norms)
        result = log.of_update(objective, batch, clip, taken, self.last_figures, self._sequence_length)
        self._log({**log.by_key(result), **self.gradient.metrics()})
        if hasattr(self.policy, "log_std"):
            self._log({"train/std": self.policy.log_std.exp().mean().item()})
        self._log({"train/clip_range": clip[0], "train/n_gradient_steps": self._n_gradient_steps})
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        rate = self.policy.optimizer.param_groups[0]["lr"]
        self.last_figures |= {"train/n_updates": self._n_updates, "train/learning_rate": rate}
        self.last_update = result
        return result

    def objective(self) -> Objective:
        """What an update minimises, by the arguments as they are now."""
        loss, update = self.options.loss, self.options.update
        weighted = self.group_weighting is not None or loss.aggregation != "step" or loss.importance_level != "step"
        weighted = weighted or self.policy.memory is not None  # minibatches of stretches are of unequal size
        reference = self.ref_policy if self.kl_coef > 0 else None
        return Objective(self.policy, reference, loss, self.ent_coef, self.kl_coef, weighted, update.autocast)

    def updater(self, objective: Objective) -> Updater:
        """What takes the gradient steps of an update."""
        plan = UpdatePlan(self.n_epochs, self.batch_size, self.max_grad_norm, self.target_kl, self._sequence_length)
        return Updater(objective, self.gradient, plan, self.captured)

    # ---------------------------------------------------------------- a loop of one's own

    def collect(self, callback: MaybeCallback = None) -> Rollout | None:
        """Collect one rollout; the first call sets up what :meth:`learn` would.

        :param callback: called after every vector step, in this rollout and those to come; it begins once, as in :meth:`learn`
        :return: the rollout; None when the callback asked to stop
        :raises ValueError: for NaN or inf from the env
        """
        callback = self._enter_own_loop(callback)
        assert self.env is not None
        before = Snapshot(self._learners())
        if not self.collect_rollouts(self.env, callback, self.rollout_buffer, None):
            return None
        assert self._prepared is not None
        self._known.note(self._prepared[0], before)
        return self._prepared[0]

    def update(self, rollout: Rollout) -> UpdateResult:
        """Update the policy with a rollout, as often as it is called: the advantages of the last rollout are kept.

        :param rollout: of :meth:`collect`; changed by ``_replace``, or older, it is judged by what was known before it
        :raises ValueError: for columns that do not fit, or a gradient that is not finite; the weights stay as they were
        """
        if self._prepared is None or self._prepared[0] is not rollout:
            with self._known.judging(rollout, self.action_space, self._learners()) as (whole, again):
                self._prepared = rollout, self._prepare(whole, again)
        result = self._update(self._prepared[1])
        self._write_due_runs()
        return result
