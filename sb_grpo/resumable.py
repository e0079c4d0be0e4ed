"""Exact resume: a run is saved between two rollouts with all that decides what comes next, and goes on bit by bit.

A run's file is a model's zip with one more entry: tensors, numbers and text, which are read without unpickling anything.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any, TypeVar

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.vec_env import VecEnv

from sb_grpo import figures as log
from sb_grpo import ranks
from sb_grpo.callback_states import put_states, states_of
from sb_grpo.collect.interruption import give_up
from sb_grpo.collect.masks import check_same_masks, source_of
from sb_grpo.collect.slots import GroupSlots
from sb_grpo.config import check_values, integer, number, plain
from sb_grpo.envs.tensor_env import TensorVecEnv
from sb_grpo.learn.known import Known
from sb_grpo.normalization import put_running_state, running_state
from sb_grpo.run_files import RUN, check_facts, facts_of, logged, put_logged, read_run, run_to_bytes
from sb_grpo.saving import lr_schedule_in, with_entries, write_zip
from sb_grpo.state import attributes, put_attributes, put_random_state, put_state, random_state, state_of
from sb_grpo.stored import StoredAlgorithm

SelfResumable = TypeVar("SelfResumable", bound="ResumableAlgorithm")

#: What the zip of a model leaves out, or pickles, and a run needs.
ATTRIBUTES = (
    "ep_info_buffer", "ep_success_buffer", "last_figures", "_last_obs", "_last_episode_starts", "_warned_of_masks",
    "_rows_checked", "_total_timesteps", "_time_limit", "_base_seed", "start_time", "mask_source",
)  # fmt: skip
#: What learns beside the policy.
LEARNERS = ("estimator", "grouper", "group_weighting", "bonus")

#: What belongs to a running ``learn()``, as it is where none runs.
OF_A_LOOP = {"_callback_in_use": None, "_own_loop": None, "rescue": None}
OF_LEARN = {
    "total_timesteps": number(0, float("inf"), "pass the number of env steps, 100_000 for a first try"),
    #: Rollouts from one table to the next; None: none is logged.
    "log_interval": integer(1, 1_000_000_000, "1 is usual", none=True),
}


class ResumableAlgorithm(StoredAlgorithm):
    """The part of :class:`~sb_grpo.grpo.GRPO` that saves runs and goes on with them, and the loop of ``learn``."""

    def _begin(self) -> None:
        super()._begin()
        self._in_rollout = False  #: or not learnt from yet
        self._known = Known()  #: before the rollouts of a loop of one's own
        self._callback_in_use: BaseCallback | None = None
        self._iteration = 0  #: rollouts since learn() began, by which log_interval goes
        self._runs_due: list[Any] = []  #: files of save_run() that wait for the end of the rollout and its update
        self._to_resume: dict[str, Any] | None = None  #: what the loop of a loaded run has not taken up yet

    def _learners(self) -> list[Any]:
        return [getattr(self, name) for name in LEARNERS]

    def _enter_rollout(self, callback: BaseCallback) -> None:
        """From here on until the rollout has been learnt from there is nothing whole to save."""
        self._in_rollout, self._callback_in_use, self._runs_due = True, callback, []

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy or a pickle: all but what belongs to a running ``learn()``. Callbacks hold modules and other models.

        A copy that is made in mid-rollout begins new groups, as a loaded model does.
        """
        state = {**vars(self), **OF_A_LOOP}
        return {**state, "_in_rollout": False, "_runs_due": [], "_last_obs": None} if self._in_rollout else state

    # ---------------------------------------------------------------- save

    def save_run(self, path: Any) -> None:
        """Save the model with all that decides how its training goes on (docs/saving.md).

        A run is saved between two rollouts: asked for before a rollout has been learnt from, as by callbacks, the file is
        written as soon as it has. A file of a run is a model's zip too.

        :param path: ``.zip`` is added where it has no ending; or a file that is open for writing
        :raises ValueError: before the first rollout, with several learners, and for state that has no plain form
        """
        if ranks.place().n > 1:
            raise ValueError("save_run() saves the run of one learner: with several use save(), which all can be loaded from.")
        if self.slots is None:
            raise ValueError("Nothing has been collected yet, so there is no run to save: use save(), or call learn() before.")
        if self._in_rollout:
            self._runs_due.append(path)
        else:
            self._write_run(path)

    def _write_due_runs(self) -> None:
        """A rollout has been learnt from."""
        for path in self._leave_rollout():
            self._write_run(path)

    def _leave_rollout(self) -> list[Any]:
        """The files that have waited for its end."""
        self._in_rollout = False
        due, self._runs_due = self._runs_due, []
        return due

    def _give_up_due_runs(self) -> None:
        """Something has broken off before a rollout was learnt from."""
        for path in self._leave_rollout():
            warnings.warn(
                f"save_run({path!r}) has written nothing: the rollout that it waited for was not learnt from. Call it again, "
                "or use save().",
                UserWarning,
                stacklevel=3,
            )

    def _write_run(self, path: Any) -> None:
        content = run_to_bytes(self._run_state())
        zipped = io.BytesIO()
        self.save(zipped)
        write_zip(path, with_entries(zipped.getvalue(), {RUN: content}))

    def _run_state(self) -> dict[str, Any]:
        """Everything that neither the arguments nor the zip of the model hold."""
        assert self.env is not None and self.slots is not None
        normalized = self._vec_normalize_env
        return {
            "facts": facts_of(self.env, self.observation_space, self.action_space, self.device)._asdict(),
            "own": attributes(self, ATTRIBUTES),
            "learners": {name: state_of(getattr(self, name)) for name in LEARNERS},
            "buffer": self.rollout_buffer.state_dict(with_seen=self.policy.normalize_obs),
            "slots": self.slots.state_dict(),
            "simulator": simulator_of(self.env),
            "normalized": None if normalized is None else running_state(normalized),
            "action_space": self.action_space.np_random.bit_generator.state,
            "loop": self._loop_state() if self._to_resume is None else self._to_resume["loop"],
        }

    def _loop_state(self) -> dict[str, Any]:
        """What the loop of ``learn`` takes up when all else is in its place."""
        return {
            "iteration": self._iteration,
            "restart_groups": self._restart_groups,
            "callbacks": states_of(self._callback_in_use),
            "logged": logged(self._logger) if hasattr(self, "_logger") else None,
            "folder": None if self.tensorboard_log is None or not (it := self.logger.dir) else str(Path(it).absolute()),
            "random": random_state(),
        }

    # ---------------------------------------------------------------- load

    @classmethod
    def load_run(
        cls: type[SelfResumable],
        path: Any,
        env: GymEnv,
        device: Any = "auto",
        custom_objects: dict[str, Any] | None = None,
        trusted: bool = True,
        **kwargs: Any,
    ) -> SelfResumable:
        """A model that goes on where :meth:`save_run` was called; :meth:`resume` takes it to the end.

        :param path: of the file
        :param env: built as the run's was, VecNormalize included, whose statistics come from the file
        :param device: of the same kind as the run's
        :param custom_objects: as :meth:`load`'s
        :param trusted: as :meth:`load`'s; the state of the run itself is never pickled
        :param kwargs: ``verbose`` and ``tensorboard_log`` in the place of the run's
        :raises ValueError: for what is no run, is broken, or does not go with the env
        """
        others = set(kwargs) - {"verbose", "tensorboard_log"}
        if others:
            raise ValueError(
                f"load_run() goes on with the run's own arguments, so it takes no {sorted(others)[0]}: use "
                "GRPO.load(path, env, ...), which takes others and begins new groups."
            )
        if ranks.announced().n > 1:
            raise ValueError("load_run() goes on with one learner: start the script without torchrun, or use GRPO.load().")
        state = read_run(path, device)
        wrapped = cls._wrap_env(env)
        check_facts(path, state["facts"], wrapped)
        model = cls.load(path, wrapped, state["facts"]["device"], custom_objects, trusted=trusted, **kwargs)
        if trusted and "learning_rate" not in (custom_objects or {}):
            model.lr_schedule = lr_schedule_in(path, custom_objects) or model.lr_schedule
        try:
            model.take_over(state)
        except (KeyError, AttributeError, TypeError, RuntimeError) as error:
            raise ValueError(
                f"The state of the run in {path} does not fit its model ({type(error).__name__}: {error}): it was written by "
                "another version of sb_grpo; use GRPO.load(path, env), which needs the model alone."
            ) from error
        return model

    def take_over(self, state: dict[str, Any]) -> None:
        """All of a run but what its loop takes up."""
        assert self.env is not None
        found, run = self.mask_source, state["own"]["mask_source"]
        check_same_masks(run, run if run == "info" else found)  # those in infos are found when the env has been reset
        put_attributes(self, ATTRIBUTES, state["own"])
        for name in LEARNERS:
            put_state(getattr(self, name), state["learners"][name])
        if self.mask_source != found:
            self._make_buffer()
        self.rollout_buffer.load_state_dict(state["buffer"])
        self.action_space.np_random.bit_generator.state = state["action_space"]
        if state["simulator"] is not None:
            self.env.load_state_dict(state["simulator"])  # type: ignore[attr-defined]
        self._new_slots().load_state_dict(state["slots"], self.env)
        if isinstance(self.env, TensorVecEnv) and state["simulator"] is None and not state["loop"]["restart_groups"]:
            self._last_obs = None  # learn() begins new groups
        self._put_statistics(state["normalized"])
        self._to_resume = state

    def _put_statistics(self, normalized: dict[str, Any] | None) -> None:
        if self._vec_normalize_env is not None and normalized is not None:
            put_running_state(self._vec_normalize_env, normalized)

    # ---------------------------------------------------------------- go on

    def resume(
        self: SelfResumable,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "GRPO",
        progress_bar: bool = False,
    ) -> SelfResumable:
        """Go on with a loaded run up to the number of steps that it was to have, with its schedules, in its TensorBoard run.

        :param callback: callbacks of the same kinds as the run's, in the same order; they go on too
        :param log_interval: as :meth:`learn`'s
        :param tb_log_name: as :meth:`learn`'s, should the run's folder be gone
        :param progress_bar: as :meth:`learn`'s
        :raises ValueError: without a run that has been loaded, and for callbacks that are missing
        """
        if self._to_resume is None:
            raise ValueError("There is no run to resume: load one with GRPO.load_run(path, env), or call learn().")
        steps = max(self._to_resume["own"]["_total_timesteps"] - self.num_timesteps, 0)
        custom, folder = self._custom_logger, self._to_resume["loop"]["folder"]
        if not custom and self.tensorboard_log is not None and folder is not None and Path(folder).is_dir():
            self.set_logger(configure(folder, ["stdout", "tensorboard"] if self.verbose else ["tensorboard"]))
        try:
            return self.learn(steps, callback, log_interval, tb_log_name, False, progress_bar)
        finally:
            self._custom_logger = custom

    def learn(
        self: SelfResumable,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "GRPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfResumable:
        """As SB3's; a run that was loaded goes on where it stood, unless ``reset_num_timesteps``.

        :raises ValueError: for ``total_timesteps`` or a ``log_interval`` that is no number, or out of range
        """
        total_timesteps = plain(total_timesteps)
        check_values("", {"total_timesteps": total_timesteps, "log_interval": log_interval}, OF_LEARN)
        if reset_num_timesteps:
            self._to_resume = None
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        callback.on_training_start({**locals(), "iteration": 0}, globals())
        self._take_up_loop(callback)
        assert self.env is not None
        try:
            while self.num_timesteps < total_timesteps:
                if not self.collect_rollouts(self.env, callback, self.rollout_buffer, n_rollout_steps=self.n_steps):  # type: ignore[arg-type]
                    break
                self._iteration += 1
                self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
                if log_interval is not None and self._iteration % log_interval == 0:
                    self.dump_logs(self._iteration)
                self.train()
                self._write_due_runs()  # a train() of one's own may have left that out
            self._write_due_runs()  # a callback has asked for one, and to stop
        except BaseException:
            self._give_up_due_runs()
            raise
        callback.on_training_end()
        return self

    def _enter_own_loop(self, callback: MaybeCallback) -> BaseCallback:
        """What :meth:`learn` does before its first rollout, before one of a loop of one's own.

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
        self._take_up_loop(in_use)
        self._own_loop = wanted, in_use
        return in_use

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        # A rollout may overshoot; schedules must not fall below their end.
        super()._update_current_progress_remaining(min(num_timesteps, total_timesteps), total_timesteps)

    def dump_logs(self, iteration: int = 0) -> None:
        """As SB3's, with the advantages for TensorBoard."""
        if self._prepared is not None:
            log.show(self.logger, "group/advantages", self._prepared[1].estimate.advantages, self.num_timesteps)
        super().dump_logs(iteration)

    def _take_up_loop(self, callback: BaseCallback) -> None:
        """What the loop of a loaded run knew. Random numbers come last, as setting up draws some."""
        state, self._iteration = self._to_resume, 0
        if state is None:
            return
        loop = state["loop"]
        put_states(callback, loop["callbacks"])
        self._iteration, self._restart_groups = loop["iteration"], loop["restart_groups"]
        if self._last_obs is not None and isinstance(self.slots, GroupSlots):
            self._begin_episodes_again(self.slots, state["normalized"])
        put_logged(self.logger, loop["logged"])
        put_random_state(loop["random"])
        self._to_resume = None

    def _begin_episodes_again(self, slots: GroupSlots, normalized: dict[str, Any] | None) -> None:
        """Host envs have lost their episodes: those that had only started start again, others end where they were.

        :param normalized: statistics that have seen the starts already
        """
        assert self.env is not None
        if slots.at_starts or self._restart_groups:
            slots.begin_again(self.env)
            check_same_masks(self.mask_source, source_of(self.env))
            self.beside.see(self.env)
            self._put_statistics(normalized)
            return
        self.interruptions += 1
        self._steps_dropped += give_up(slots, self.rollout_buffer, self.beside, self._last_obs, self.whole_episodes)[0]
        self.start_slots()


def simulator_of(env: VecEnv) -> dict[str, Any] | None:
    """The state of an env that can be copied; None where it cannot."""
    try:
        return env.state_dict() if isinstance(env, TensorVecEnv) else None
    except NotImplementedError:
        return None
