"""Set-up of a run: settings, envs and a model to continue; rl_zoo3's, extended by GRPO."""

from __future__ import annotations

import contextlib
import multiprocessing
import sysconfig
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from pprint import pprint
from typing import Any

import gymnasium as gym
from huggingface_sb3 import EnvironmentName
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.utils import get_wrapper_class
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecNormalize

import sb_grpo
from sb_grpo import GRPO, SeededResetWrapper, distributed
from sb_grpo.normalization import OtherObservations
from sb_grpo.save_util import attributes_in, check_is_grpo
from sb_grpo.types import Kwargs

from ..common.command_line import BadInput, one_line
from ..common.episodes import with_monitor_outside
from ..common.literals import check_named_classes, without_texts
from ..common.plain_files import Hyperparams
from ..common.tracking import take_note
from .checkpoints import statistics_of
from .run_files import check_settings as check_untrusted_settings
from .run_files import read_run_files, settings_folder_of
from .settings import check_env_kwargs, check_normalize, check_settings, entry_name, read_entries, with_schedules

#: Packages whose code checks its arguments.
LIBRARIES = (
    *(Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")),
    Path(sb_grpo.__file__).resolve().parent,
    Path(__file__).resolve().parents[1],
)
REFUSALS = (ValueError, AssertionError, OSError, ImportError, gym.error.Error)


def naming(key: str, setting: object, where: str) -> Callable | None:
    """Make a function that applies the wrappers of a setting, and names the one that fails.

    :param key: ``env_wrapper`` or ``vec_env_wrapper``
    :param setting: in rl_zoo3's form
    :param where: place of the setting in the user's input
    :return: None without wrappers
    """
    if not setting:
        return None
    parts = [(entry, get_wrapper_class({key: entry}, key)) for entry in (setting if isinstance(setting, list) else [setting])]

    def wrap(env: gym.Env) -> gym.Env:
        for entry, part in parts:
            try:
                env = env if part is None else part(env)
            except Exception as error:
                if not _in_a_library(error):  # the user's own code has crashed
                    raise
                name = next(iter(entry)) if isinstance(entry, dict) else entry
                raise BadInput(f"{where}: {key}: {name} does not fit the env: {error}. Take it out, or change what it is "
                               "given.") from error  # fmt: skip
        return env

    return wrap


def is_bad_input(error: BaseException) -> bool:
    """Whether an error is a library's answer to wrong arguments, wrong names or missing files.

    A TypeError or AttributeError is one only where it speaks of an argument, or of a name that a module lacks.
    """
    root: BaseException = error
    while root.__cause__ is not None:  # gymnasium wraps errors of an env's constructor
        root = root.__cause__
    if not _in_a_library(root):
        return False
    message = str(error)
    if isinstance(error, TypeError):
        return "argument" in message
    if isinstance(error, AttributeError):
        return message.startswith("module ")
    return isinstance(error, REFUSALS) and bool(message)


def _in_a_library(error: BaseException) -> bool:
    """Whether it was raised there, and not in a user's own code."""
    trace = error.__traceback__
    if trace is None:
        return True
    while trace.tb_next is not None:
        trace = trace.tb_next
    name = trace.tb_frame.f_code.co_filename
    return name.startswith("<frozen") or any(Path(name).resolve().is_relative_to(folder) for folder in LIBRARIES)


class Setup(ExperimentManager):
    """An rl_zoo3 run up to its training."""

    settings: Hyperparams

    def __init__(self, args: Namespace, *given: Any, **named: Any) -> None:
        super().__init__(args, *given, **named)
        if getattr(args, "track", False):
            take_note(args)
            self.tensorboard_log = str(Path(args.tensorboard_log, self.env_name))

    def read_hyperparameters(self) -> tuple[Hyperparams, Hyperparams]:
        if self.resumed is not None or self.going_on or self.of_trial is not None:
            hyperparams, saved = self._whole_settings()
        else:
            requested = self.env_name
            try:
                self.env_name = EnvironmentName(self._entry(requested.gym_id))  # rl_zoo3 looks entries up by the env's name
                hyperparams, saved = super().read_hyperparameters()
                self._drop_kwargs_of_another_estimator(hyperparams, saved)
            finally:
                self.env_name = requested
        if not self.trusted:
            check_untrusted_settings(hyperparams)
        check_settings(self.algo, hyperparams, self._where)
        n_envs = hyperparams.get("n_envs", 1)
        assert isinstance(n_envs, int)  # checked above
        share_of_envs(n_envs)
        self.settings = saved
        read = without_texts(hyperparams, self._where)
        check_normalize(read.get("normalize"), self._where("normalize"))
        check_named_classes(read, self._where)
        return read, saved

    def _drop_kwargs_of_another_estimator(self, *settings: Hyperparams) -> None:
        """Drop the entry's ``advantage_kwargs`` where ``advantage`` is overridden: they belong to the entry's estimator."""
        given = self.custom_hyperparams or {}
        if self.algo != "grpo" or "advantage" not in given or "advantage_kwargs" in given:
            return
        entry = read_entries(self.config).get(self.env_name.gym_id) or {}
        if given["advantage"] != entry.get("advantage", "state"):
            for found in settings:
                found.pop("advantage_kwargs", None)

    def _whole_settings(self) -> tuple[Hyperparams, Hyperparams]:
        """Those of the run that goes on, or of a trial, and none of an entry, which it never had or has been edited since."""
        found = dict(sorted((self.custom_hyperparams or {}).items()))
        if "env_kwargs" in found and self.env_kwargs:
            found["env_kwargs"] = self.env_kwargs
            if self._eval_env_kwargs_args is None:
                self.eval_env_kwargs = self.env_kwargs
        of = "the run that goes on" if self.of_trial is None else f"trial {self.of_trial} of study {self.study_name}"
        print(f"Settings of {of}:")
        pprint(found)
        return dict(found), found

    def _where(self, name: str) -> str:
        """Place of a setting in the user's input."""
        return "--hyperparams" if name in (self.custom_hyperparams or {}) else self.config

    def _preprocess_hyperparams(
        self, hyperparams: Hyperparams
    ) -> tuple[Hyperparams, Callable | None, list[BaseCallback], Callable | None]:
        """rl_zoo3's, with wrappers that are named where they refuse the env, and a look at the env's arguments."""
        for option, kwargs in (
            ("--env-kwargs", self.env_kwargs),
            ("--eval-env-kwargs", self._eval_env_kwargs_args),
            (f"{self._where('env_kwargs')}: env_kwargs", hyperparams.get("env_kwargs")),
        ):
            check_env_kwargs(option, self.env_name.gym_id, kwargs if isinstance(kwargs, dict) else {})
        keys = ("env_wrapper", "vec_env_wrapper")
        inner, outer = (naming(key, hyperparams.get(key), self._where(key)) for key in keys)
        others, _, callbacks, _ = super()._preprocess_hyperparams(hyperparams)
        return others, inner, callbacks, outer

    def _entry(self, env_id: str) -> str:
        """The entry that the env gets; rl_zoo3's choice for its own algorithms, but where that cannot work."""
        entries = read_entries(self.config)
        if self.algo != "grpo" and not self.is_minigrid(env_id):
            return env_id
        name = entry_name(entries, env_id, self.config)
        if name != env_id:
            print(f"{env_id} has no entry of its own: settings of {name}")
        return name

    @staticmethod
    def _preprocess_schedules(hyperparams: Hyperparams) -> Hyperparams:
        """Make schedules of their names; rl_zoo3 takes every name for a linear one, and knows none for clip_range_high."""
        made = with_schedules(hyperparams)
        named = {k: v for k, v in made.items() if v is not hyperparams[k]}
        others = {k: v for k, v in hyperparams.items() if k not in named}
        return {**ExperimentManager._preprocess_schedules(others), **named}

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        n_envs = n_envs if eval_env else share_of_envs(n_envs)
        wrapper = self.env_wrapper
        in_processes = self.vec_env_class is SubprocVecEnv
        self.env_wrapper = with_monitor_outside(wrapper)
        if in_processes:  # imports once, in the fork server, and not in every env's process
            multiprocessing.set_forkserver_preload(["__main__", "sb_grpo.envs.preloaded", "zoo.training.experiment"])
        if in_processes and self.algo == "grpo":
            self.env_wrapper = lambda env: SeededResetWrapper(with_monitor_outside(wrapper)(env))
        try:
            return super().create_envs(n_envs, eval_env, no_log)
        except (EOFError, ConnectionError) as error:
            if not in_processes:  # the env's own words, say of a simulator that it does not reach
                raise
            raise BadInput(
                "--vec-env subproc: the process of an env ended before its env was there; what it has said stands above, and "
                "--vec-env dummy shows it without the others."
            ) from error
        finally:
            self.env_wrapper = wrapper

    def _maybe_normalize(self, env: VecEnv, eval_env: bool) -> VecEnv:
        """VecNormalize with the statistics that belong to the weights which go on training; new ones for new weights."""
        if not self.continue_training or self.resumed is not None:
            frozen = {"norm_reward": False, "training": False} if eval_env else {}
            return VecNormalize(env, **{**self.normalize_kwargs, **frozen}) if self.normalize else env
        model = Path(self.trained_agent)
        if self.algo == "grpo":
            # Before its statistics are looked for: those of others would not help.
            check_is_grpo(model, attributes_in(model))
        settings_folder = model.parent / self.env_name
        normalized = bool(read_run_files(settings_folder, self.trusted).settings.get("normalize", self.normalize))
        wrap = statistics_of(model, settings_folder, normalized, self.trusted)
        if wrap is not None:
            if not self.going_on and not (self.custom_hyperparams or {}).get("normalize", True):
                raise BadInput(
                    f"--hyperparams normalize:False: {model} was trained with VecNormalize, and its weights know nothing "
                    "else: leave normalize out, or begin without -i."
                )
            with self._of_the_same_spaces(env):
                return wrap(env, eval_env)
        if self.normalize:
            raise BadInput(f"{model} was trained without VecNormalize, but these settings normalise: add normalize:False.")
        return env

    def _load_pretrained_agent(self, hyperparams: Hyperparams, env: VecEnv) -> BaseAlgorithm:
        if self.resumed is not None:
            return GRPO.load_run(
                self.trained_agent, env, self.device, trusted=self.trusted, verbose=self.verbose,
                tensorboard_log=self.tensorboard_log,
            )  # fmt: skip
        with self._of_the_same_spaces(env):
            load = super()._load_pretrained_agent if self.trusted else self._load_untrusted
            model = load(hyperparams, env)
        if self.going_on and model.num_timesteps >= self.n_timesteps:
            raise BadInput(
                f"--continue: {self.trained_agent} has taken {model.num_timesteps:,} of {self.n_timesteps:,} steps: give a "
                "larger -n."
            )
        return model

    @contextlib.contextmanager
    def _of_the_same_spaces(self, env: VecEnv) -> Iterator[None]:
        """Name the model and both envs where the one was trained on other spaces than the other has."""
        try:
            yield
        except ValueError as error:
            if not (isinstance(error, OtherObservations) or "spaces do not match" in str(error)):  # SB3's has no class
                raise
            of_run = read_run_files(settings_folder_of(Path(self.trained_agent).parent), self.trusted)
            trained = of_run.options.get("env", "another env")
            raise BadInput(
                f"--trained-agent {self.trained_agent}: a model of {trained} cannot go on in {self.env_name.gym_id}, whose "
                f"observations are {env.observation_space} and actions {env.action_space}: {error} Give an env with the "
                "model's spaces, or begin without -i."
            ) from error

    def _load_untrusted(self, hyperparams: Hyperparams, env: VecEnv) -> BaseAlgorithm:
        kept: Kwargs = {name: value for name, value in hyperparams.items() if name not in ("policy", "policy_kwargs")}
        try:
            return GRPO.load(
                self.trained_agent, env, self.device, trusted=False, seed=self.seed, tensorboard_log=self.tensorboard_log,
                verbose=self.verbose, **kept,
            )  # fmt: skip
        except ValueError:
            raise
        except Exception as error:  # torch's reader of tensors raises any type
            raise BadInput(f"cannot load {self.trained_agent}: {one_line(error)}") from error

    @property
    def resumed(self) -> Path | None:
        """Folder of the run that goes on as if it had not been stopped."""
        return Path(self.args.resume) if getattr(self.args, "resume", None) else None

    @property
    def going_on(self) -> bool:
        """Whether steps are counted on from those of the model."""
        return bool(getattr(self.args, "continue_run", False))

    @property
    def of_trial(self) -> int | None:
        """Number of the trial of ``zoo.tune`` whose settings the run has."""
        number: int | None = getattr(self.args, "trial_id", None)
        return number

    @property
    def trusted(self) -> bool:
        """Whether the files of the run that goes on may be unpickled."""
        return not getattr(self.args, "untrusted", False)


def share_of_envs(n_envs: int) -> int:
    """Number of envs per learner.

    :raises BadInput: if the envs cannot be divided equally
    """
    n = distributed.announced().size
    if n_envs % n:
        raise BadInput(
            f"n_envs={n_envs} cannot be shared out evenly to {n} learners: use --hyperparams n_envs:{-(-n_envs // n) * n}, or "
            "another --nproc-per-node."
        )
    return n_envs // n
