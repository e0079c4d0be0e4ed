"""GRPO for control: collect groups, turn them into advantages, take clipped policy-gradient steps. No critic."""

from __future__ import annotations

from functools import partial

import torch as th
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb_grpo import distributed
from sb_grpo import metrics as log
from sb_grpo.advantages import TrainingBatch, check_rewards, estimate_advantages, total_rewards
from sb_grpo.collect.buffer import GroupRolloutBuffer
from sb_grpo.config import CHANGEABLE, RANGES, Multitask, Rewards, at_progress, check_each, to_python
from sb_grpo.extras.exploration import bonus_of
from sb_grpo.extras.group_weights import weights_by_label
from sb_grpo.learn.gradients import clip_gradients
from sb_grpo.learn.last_good import LastGood, rollback_on_error
from sb_grpo.learn.losses import Loss, Objective
from sb_grpo.learn.minibatches import minibatches, sequence_numbers
from sb_grpo.maths.losses import Clip, step_weights
from sb_grpo.maths.per_step import per_step
from sb_grpo.maths.segments import segment_mean
from sb_grpo.on_policy import GroupOnPolicyAlgorithm
from sb_grpo.policies import ActorPolicy, EncodingPolicy
from sb_grpo.policies.weights import check_apart
from sb_grpo.types import AdvantageOptions, Kwargs, Minibatch, Rollout, Settings
from sb_grpo.validation import check_log_folder, checking_arguments


class GRPO(GroupOnPolicyAlgorithm):
    """Group Relative Policy Optimization for control.

    Paper: DeepSeekMath (https://arxiv.org/abs/2402.03300), section 4; PPO's clipped surrogate
    (https://arxiv.org/abs/1707.06347) without its critic. A group is the set of episodes that share a reset seed.

    :param policy: ``"MlpPolicy"``, ``"CnnPolicy"``, ``"MultiInputPolicy"``, ``"RoutedPolicy"`` (shared by many tasks),
        ``"SetPolicy"`` (problem instances), ``"CausalLMPolicy"`` (words), or an :class:`ActorPolicy` subclass
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
    :param group_size: members per group (G), or a function of the remaining progress (1 to 0). None derives it: 8 where an
        estimator compares members, or does not say (``needs_other_members``); with ``"state"`` small pairs that leave 8
        different starts in a rollout (2 on 8 envs with episodes of 200 steps), or 1 where there is no room
        (:func:`~sb_grpo.config.default_group_size`). A change, also by hand between rollouts, begins new groups: the
        steps of unfinished ones are dropped and counted
    :param n_groups: complete groups per rollout, in place of ``n_steps``; with it ``"state"`` waits for whole episodes
    :param group_kwargs: start of the members, and ``refill``: :class:`~sb_grpo.config.GroupOptions`; ``starts`` gives groups
        their reset seeds, reset options or states (docs/starts.md)
    :param advantage: ``"outcome"`` and ``"process"`` (DeepSeekMath), ``"step"`` (time-aligned group baseline),
        ``"anchor"`` (GiGPO: groups of recurring states), ``"state"`` (state-conditioned group baseline, fitted in closed
        form), an object of
        :mod:`sb_grpo.baselines.estimators` or of one's own, or a function of (:class:`Rollout`, :class:`AdvantageOptions`)
        that returns one number per step
    :param advantage_kwargs: of the estimator: :class:`~sb_grpo.baselines.estimators.State`,
        :class:`~sb_grpo.baselines.estimators.Step`, ...
    :param loss: ``"clip"`` (PPO), ``"cispo"``, ``"sapo"``, or an object of a subclass of :class:`~sb_grpo.learn.losses.Loss`
    :param loss_kwargs: of the loss: :class:`~sb_grpo.learn.losses.Clipped`
    :param kl_coef: weight of the k3 KL to the reference policy; 0: no reference policy exists
    :param multitask: tasks, grouping, weights and surgery: a dict, or :class:`~sb_grpo.config.Multitask`
    :param rewards: objectives, scaling and bonus: a dict, or :class:`~sb_grpo.config.Rewards`
    :param update_kwargs: memory and precision of an update: :class:`~sb_grpo.config.UpdateOptions`
    :param compile: capture the step loop (tensor envs) and the gradient step as graphs: ``torch.compile``.
        Compiling takes 10 to 70 s; parts that cannot be compiled are named and stay eager
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
        rollout_buffer_kwargs: Kwargs | None = None,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Kwargs | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        group_size: int | Schedule | None = None,
        n_groups: int | None = None,
        group_kwargs: Kwargs | None = None,
        advantage: object = "state",
        advantage_kwargs: Kwargs | None = None,
        loss: str | Loss = "clip",
        loss_kwargs: Kwargs | None = None,
        kl_coef: float = 0.0,
        multitask: Multitask | Settings | None = None,
        rewards: Rewards | Settings | None = None,
        update_kwargs: Kwargs | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate=to_python(learning_rate),
            n_steps=to_python(n_steps),
            gamma=to_python(gamma),  # None until the env is known
            gae_lambda=to_python(gae_lambda),
            ent_coef=to_python(ent_coef),
            max_grad_norm=to_python(max_grad_norm),
            use_sde=to_python(use_sde),
            sde_sample_freq=to_python(sde_sample_freq),
            rollout_buffer_class=rollout_buffer_class,
            rollout_buffer_kwargs=rollout_buffer_kwargs,
            stats_window_size=to_python(stats_window_size),
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=to_python(verbose),
            device=distributed.join(device),
            seed=to_python(seed),
            group_size=to_python(group_size),
            n_groups=to_python(n_groups),
            group_kwargs=group_kwargs,
            advantage=advantage,
            advantage_kwargs=advantage_kwargs,
            multitask=multitask,
            rewards=rewards,
            update_kwargs=update_kwargs,
            compile=to_python(compile),
        )
        self.batch_size = to_python(batch_size)
        self.n_epochs = to_python(n_epochs)
        self.clip_range = to_python(clip_range)
        self.normalize_advantage = to_python(normalize_advantage)  # a name as soon as the model is set up
        self.target_kl = to_python(target_kl)
        self.loss = loss
        self.loss_kwargs = loss_kwargs
        self.kl_coef = to_python(kl_coef)
        if _init_setup_model:
            self._setup_model()
            self.check_rollout_size()
        if distributed.world().rank == 0:  # which alone writes
            check_log_folder(tensorboard_log)

    def compute_advantages(self, rollout: Rollout, again: bool = False) -> TrainingBatch:
        """Compute advantages and row weights of a rollout; rows of groups without a spread are left out.

        :param again: the rollout has been counted before
        :raises ValueError: for advantages or bonuses that are not finite, or of the wrong shape; the parts that learn are then
            as they were before
        """
        self._derive()  # from the values changed by hand
        gamma = self.gamma if self.moving_gamma is None else self.moving_gamma
        gamma, gae_lambda = self.rollout_buffer.discount(gamma, self.gae_lambda)
        options = AdvantageOptions(gamma, gae_lambda, self.normalize_advantage)
        largest, t = rollout.rewards.abs().max(0)
        at_fault = f"Its largest reward is {largest.item():g}, at step {int(rollout.t[t])} of an episode."
        with rollback_on_error(self._trainable_parts(), at_fault):
            training_batch, metrics = self._compute_advantages(rollout, options)

        # Logs
        if not again:
            self._steps_trained += len(training_batch.estimate.advantages)
        assert self.groups is not None
        counts = log.Counts(
            trained=self._steps_trained,
            dropped=self._steps_dropped,
            pending=self.rollout_buffer.n_kept,
            interruptions=self.interruptions,
            start_mismatches=self.groups.start_mismatches,
            lost=getattr(self.env, "n_lost", 0),
            n_starts=rollout.n_groups,  # by seed, before they are compared by anything else
            age=self.rollout_buffer.age,
        )
        self.last_metrics = log.of_episodes(self.ep_info_buffer, self.ep_success_buffer)
        n_starts = self.last_metrics.get("rollout/n_starts")
        if n_starts is not None:
            self.logger.record("rollout/n_starts", n_starts)
        judged = training_batch.rollout
        self._log(log.of_rollout(judged, training_batch.estimate, training_batch.has_signal, counts))
        self._log(log.of_parts(judged, self.options.multitask.names, list(self.options.rewards.objectives or {})))
        self._log(metrics)
        return training_batch

    def _compute_advantages(self, rollout: Rollout, options: AdvantageOptions) -> tuple[TrainingBatch, log.Metrics]:
        """Return the rows to learn from, and the metrics of bonus and group weights."""
        collected = rollout
        settings = self.options.rewards
        metrics: log.Metrics = {}

        # Rewards and groups
        rollout = total_rewards(rollout, settings, self._objective_weights)
        labels = self.grouper.labels(rollout)
        rollout = self.grouper.regroup(rollout, labels)
        rewarded = rollout
        if self.bonus is not None:
            bonus = bonus_of(self.bonus, rollout, settings.bonus)
            rewarded = rollout._replace(rewards=rollout.rewards + bonus)
            metrics |= log.of_bonus(bonus, rollout)
        check_rewards(rewarded)

        # Advantages
        estimate = estimate_advantages(self.estimator, rewarded, self.policy, options, settings, self._objective_weights)
        remedy = "Check the rewards, or bound them with rewards=dict(scaling='clip')."
        source = f"advantage={self.advantage!r}"
        advantages = per_step(source, f"advantage ({self.advantage!r})", remedy, estimate.advantages, rollout)
        advantages = self.grouper.rescale(advantages, labels[rollout.episode])
        loss = self.options.loss
        if loss.advantage_clip is not None:
            advantages = advantages.clamp(-loss.advantage_clip, loss.advantage_clip)
        estimate = estimate._replace(advantages=advantages)

        # Rows: those of a group whose advantages are all zero have no gradient
        row_group = rollout.group[rollout.episode]
        has_signal = segment_mean((advantages != 0).float(), row_group, rollout.n_groups) > 0
        kept = has_signal[row_group]
        if loss.mask_truncated:
            kept = kept & ~rollout.truncated[rollout.episode]
        batch = Minibatch(
            observations=rollout.observations,
            actions=rollout.actions,
            old_log_probs=rollout.log_probs,
            advantages=advantages,
            weights=th.ones_like(advantages),
            episode=rollout.episode,
            extra=rollout.extra,
            instance=None if rollout.instance is None else rollout.instance[rollout.episode],
            instances=rollout.instances,
        )
        if not bool(kept.all()):
            keep = kept.nonzero().squeeze(1)
            batch = batch.map(lambda x: x.index_select(0, keep))

        # Weights of the rows
        horizon = self._time_limit or rollout.max_length if self.whole_episodes else self.steps_per_env
        weights = step_weights(batch.episode, loss.aggregation, horizon)
        if self.group_weighting is not None:
            row_label = labels[batch.episode]
            shares, by_label = weights_by_label(self.group_weighting, rollout, labels, row_label)
            metrics |= log.of_weights(shares, by_label, row_label, self.grouper.names)
            weights = weights * by_label
        batch = batch._replace(weights=weights)
        return TrainingBatch(collected, rollout, batch, estimate, has_signal), metrics

    def train(self) -> None:  # noqa: C901, PLR0915 - one piece, as in SB3
        """Update the policy with the last rollout: ``n_epochs`` passes of minibatches.

        :raises ValueError: without a new rollout, and for a gradient that is not finite; the weights are then as before
        """
        if self._training_batch is None:
            raise ValueError("train() learns from a rollout once, and none has come since: call learn() or collect().")
        rollout = self._training_batch.rollout
        batch = self._training_batch.batch
        self._training_batch = None
        check_each({name: getattr(self, name) for name in CHANGEABLE})
        # Switch to train mode (this affects batch norm / dropout)
        self.policy.set_training_mode(True)
        # Update optimizer learning rate
        optimizer = self.policy.optimizer
        self._update_learning_rate(optimizer)
        self._update_reference()
        n_rows = distributed.count(len(batch.advantages))  # of all learners
        if n_rows == 0:  # no group had a spread: nothing to learn from
            self.last_update = log.nothing_to_learn(self.last_metrics)
            return
        # Compute current clip range
        clip_range = self._clip_ranges()

        objective = self.objective()
        loss = partial(objective, clip=clip_range)
        last_good = LastGood(self.policy)
        parameters = list(last_good.parameters)
        optimizer.zero_grad()  # frozen weights must not follow an old gradient
        own = {id(parameter) for parameter in parameters}
        others = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
        compiled_step = self.compiled.gradient_step(objective, parameters, clip_range, self.batch_size, self.max_grad_norm)
        self.gradient.start_update(rollout.task)
        rows_together = self._rows_together(batch)

        norms: list[th.Tensor] = []
        n_epochs = 0
        continue_training = True
        # train for n_epochs epochs
        for epoch in range(self.n_epochs):
            n_epochs += 1
            epoch_norms: list[th.Tensor] = []
            # Do a complete pass on the rollout
            for minibatch in minibatches(batch, self.batch_size, rows_together, n_rows):
                if self.target_kl is not None and objective.approximate_kl(minibatch) > 1.5 * self.target_kl:
                    continue_training = False
                    break
                norm = None if compiled_step is None else compiled_step(minibatch)
                if norm is None:
                    # Optimization step: the loss is Objective.forward
                    for other in others:  # weights of somebody else that learn along
                        other.grad = None
                    self.gradient(loss, minibatch, parameters)
                    distributed.average_gradients(parameters, len(minibatch.advantages))
                    norm = clip_gradients(parameters, self.max_grad_norm)
                    optimizer.step()
                epoch_norms.append(norm)
            if epoch_norms:
                last_good.check(epoch_norms, epoch)
            norms += epoch_norms
            if not continue_training:
                break
        self._n_updates += n_epochs
        self._n_gradient_steps += len(norms)

        # Logs
        stopped_early = not continue_training
        result = log.of_update(
            objective, batch, clip_range, norms, n_epochs, stopped_early, self.last_metrics, self._sequence_length
        )
        self._log({**log.by_key(result), **self.gradient.metrics()})
        if hasattr(self.policy, "log_std"):
            self._log({"train/std": self.policy.log_std.exp().mean().item()})
        self._log({"train/clip_range": clip_range[0], "train/n_gradient_steps": self._n_gradient_steps})
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        learning_rate = optimizer.param_groups[0]["lr"]
        self.last_metrics |= {"train/n_updates": self._n_updates, "train/learning_rate": learning_rate}
        self.last_update = result

    def objective(self) -> Objective:
        """Build the loss of a minibatch from the arguments as they are now."""
        loss = self.options.loss
        weighted = self.group_weighting is not None or loss.aggregation != "step" or loss.importance_level != "step"
        # Minibatches of sequences and of episodes are of unequal size, and those of whole instances are filled up.
        weighted = weighted or self.policy.memory is not None or self.policy.episodes_together
        weighted = weighted or isinstance(self.policy, EncodingPolicy)
        reference = self.ref_policy if self.kl_coef > 0 else None
        return Objective(self.policy, reference, loss, self.ent_coef, self.kl_coef, weighted, self.options.update.autocast)

    def _update_reference(self) -> None:
        """Make the policy the new reference policy where that is due, before an update."""
        if self.kl_coef == 0:
            return
        interval = self.options.loss.ref_sync_interval
        due = interval and self._n_rollouts % interval == 0
        if due or self._lacks_reference:
            self._sync_reference()
        if isinstance(self.ref_policy, th.nn.Module):
            check_apart(self.policy, self.ref_policy)

    def _clip_ranges(self) -> Clip:
        """Return lower and upper clip range, by the schedules as they stand."""
        progress = self._current_progress_remaining
        low = float(at_progress("clip_range", RANGES[""]["clip_range"], self.clip_range, progress))
        high = self.options.loss.clip_range_high
        if high is None:
            return low, low
        rule = RANGES["loss_kwargs"]["clip_range_high"]
        return low, float(at_progress("loss_kwargs: clip_range_high", rule, high, progress))

    def _rows_together(self, batch: Minibatch) -> th.Tensor | None:
        """Number the rows that stay in one minibatch: whole episodes, or sequences of a memory; None: none do."""
        if self.policy.episodes_together or self.options.loss.importance_level != "step":
            return batch.episode
        return None if self._sequence_length is None else sequence_numbers(batch.episode, self._sequence_length)
