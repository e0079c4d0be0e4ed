"""Training run: its folder, callbacks, training and results."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import rl_zoo3
import rl_zoo3.train
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, ProgressBarCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import HParam, configure
from stable_baselines3.common.vec_env import VecEnv, sync_envs_normalization

from sb_grpo import GRPO, distributed, files
from sb_grpo.callbacks import RULES, STRICT_RULES, HealthCallback, RecoveryCallback
from sb_grpo.metrics import NOT_PRINTED, as_shown
from sb_grpo.types import Kwargs

from ..common.command_line import BadInput, drawn, drop_dead_outputs, how_many, one_line
from ..common.episodes import Counting, close
from ..common.folders import alone_in, make_folder, new_folder
from ..common.plain_files import HYPERPARAMS, Hyperparams, to_json
from ..common.provenance import command, commit, versions
from ..common.tracking import artifact_name, define_metrics, keeper
from .card import Metrics, write_card
from .checkpoints import LAST_STATISTICS, BestModel, Checkpoints, Evaluations, Keep, facts, read_facts, save
from .resuming import FILE as RUN_FILE
from .resuming import RunSaves, set_monitors_aside
from .run_files import write_values
from .setup import Setup, is_bad_input

#: Scalars that the HParams tab shows beside the settings.
METRICS = ("eval/mean_reward", "rollout/ep_rew_mean")


class HParamsCallback(BaseCallback):
    """Write the settings of a run to TensorBoard's HParams tab when training starts: all arguments of a GRPO model among them.

    :param settings: of the run
    """

    def __init__(self, settings: Hyperparams) -> None:
        super().__init__()
        self.settings = settings

    def _on_training_start(self) -> None:
        settings = as_shown({**getattr(self.model, "settings", {}), **self.settings})
        hparam = HParam(settings, {name: 0.0 for name in METRICS})
        self.logger.record("hparams", hparam, exclude=NOT_PRINTED)

    def _on_step(self) -> bool:
        return True


def end_all(callbacks: Iterable[BaseCallback]) -> None:
    """End bars and reports after an error, which SB3 does not, and which none of them may hide.

    :param callbacks: of the training; those that it has not begun have nothing to end
    """
    for callback in callbacks:
        if not callback.locals:
            continue
        try:
            callback.on_training_end()
        except Exception as error:  # users' own callbacks may raise anything
            print(f"{type(callback).__name__} could not end: {type(error).__name__}: {one_line(error)}", file=sys.stderr)


FINAL_EPISODES = 20
#: Rules of ``--health``.
HEALTH = {"default": RULES, "strict": STRICT_RULES}


def register() -> None:
    """Make rl_zoo3 know ``--algo grpo`` and use :class:`Experiment`."""
    rl_zoo3.ALGOS["grpo"] = GRPO
    rl_zoo3.train.ExperimentManager = Experiment  # type: ignore[attr-defined]


class Experiment(Setup):
    """An rl_zoo3 run that ends with an evaluation, a learning curve and ``metrics.json`` in its folder."""

    wall_time = 0.0
    gradient_steps: int | None = None  #: of this run; a model that goes on training has taken others before
    health: HealthCallback | None = None
    run_saves: RunSaves | None = None
    _came_to_its_end = False
    _alone: contextlib.ExitStack | None = None  #: while the run goes on, no other process has its folder
    _own_folder: Path | None = None  #: the run's, once it has made one
    _above: tuple[Path, ...] = ()  #: further folders that were not there before

    def setup_experiment(self) -> tuple[BaseAlgorithm, Hyperparams] | None:
        """rl_zoo3's, with everything that a user can have asked for wrongly as :class:`BadInput`; a crash stays a crash."""
        try:
            return super().setup_experiment()
        except BaseException as error:
            self._take_back()
            if isinstance(error, BadInput) or not is_bad_input(error):
                raise
            message = str(error)
            if "You must use `MultiInputPolicy`" in message:  # SB3's words for Dict observations
                message += f": add --hyperparams policy:MultiInputPolicy, or give {self.env_name.gym_id} an entry with it."
            raise BadInput(message) from error

    def let_go(self) -> None:
        """The run is over: its folder is free."""
        if self._alone is not None:
            self._alone.close()

    def _keep_to_itself(self, refusal: str) -> None:
        self._alone = contextlib.ExitStack()
        self._alone.enter_context(alone_in(Path(self.params_path), refusal))

    def _take_back(self) -> None:
        """Leave nothing of a run that does not begin: it would take up a number, and be counted among the runs."""
        self.let_go()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)  # report only why the run does not begin
        for folder in reversed(self._above):
            with contextlib.suppress(OSError):  # another run has moved in
                folder.rmdir()

    def create_log_folder(self) -> None:
        """A run folder that no other training has, also if one starts at the same moment; that of the run that goes on."""
        if self.resumed is not None:
            self.save_path = str(self.resumed)
            self.params_path = f"{self.resumed}/{self.env_name}"
            self._keep_to_itself(f"--resume {self.resumed}: this run is going on in another process. Stop that one first.")
            set_monitors_aside(self.resumed, Path(self.trained_agent), str(self.device))
            return
        self._above = make_folder("--log-folder", Path(self.log_path))
        if self.tensorboard_log:
            self._above += make_folder("--tensorboard-log", Path(self.tensorboard_log))
        suffix = Path(self.save_path).name.removeprefix(f"{self.env_name}_").lstrip("0123456789")  # of --uuid
        self._own_folder = new_folder(Path(self.log_path), self.env_name, suffix)
        self.save_path = str(self._own_folder)
        self.params_path = f"{self.save_path}/{self.env_name}"
        Path(self.params_path).mkdir()
        self._keep_to_itself(f"{self.save_path}: another process is writing to it.")

    def create_callbacks(self) -> None:
        """Create rl_zoo3's callbacks with complete checkpoints; frequencies count the steps of all envs together."""
        folder = Path(self.save_path)
        settings = self.settings
        if self.show_progress:
            self.callbacks.append(ProgressBarCallback())
        if self.save_freq > 0:
            keep = self._keeper("checkpoint")
            self.callbacks.append(Checkpoints(max(self.save_freq // self.n_envs, 1), folder, settings, keep))
        if self.eval_freq > 0:
            evaluations = Evaluations(
                self.create_envs(self.n_eval_envs, eval_env=True), folder,
                best=BestModel(folder, settings, self._keeper("best")),
                n_eval_episodes=self.n_eval_episodes, eval_freq=max(self.eval_freq // self.n_envs, 1),
                deterministic=self.deterministic_eval,
            )  # fmt: skip
            self.callbacks.append(evaluations)
        if self.tensorboard_log is not None:
            self.callbacks.append(HParamsCallback({"algo": self.algo, "seed": self.seed, **settings}))
        if getattr(self.args, "track", False):
            import wandb  # an extra
            from wandb.integration.sb3 import WandbCallback

            self.callbacks.append(WandbCallback())
            assert wandb.run is not None
            define_metrics(wandb.run)
        if getattr(self.args, "health", None):
            self.health = HealthCallback(HEALTH[self.args.health])
            self.callbacks.append(self.health)
        if getattr(self.args, "recover", 0):
            self.callbacks.append(RecoveryCallback(self.args.recover))

        if self.algo == "grpo" and distributed.announced().size == 1 and hasattr(self.args, "resume"):
            every = max(self.save_freq // self.n_envs, 1) if self.save_freq > 0 else 0
            self.run_saves = RunSaves(every, folder, Path(self.params_path) / RUN_FILE)
            self.callbacks.append(self.run_saves)

    def _keeper(self, alias: str) -> Keep | None:
        """Function that makes an artifact of a model; None without ``--track``."""
        if not getattr(self.args, "track", False):
            return None
        import wandb  # an extra

        assert wandb.run is not None
        return keeper(wandb.run, artifact_name(self.algo, self.env_name, f"seed-{self.seed}"), alias)

    @property
    def tensorboard_name(self) -> str:
        """Name of this run in TensorBoard, without its number; a continued run is named after the previous one."""
        known = read_facts(Path(self.trained_agent)) if self.going_on else None
        before = None if known is None else known.get("tensorboard")
        return f"{before}_continued" if before else self.algo.upper()

    def _save_config(self, saved_hyperparams: Hyperparams) -> None:
        """Settings, options and command, as plain values."""
        if self.resumed is not None:
            print(f"Log path: {self.save_path}")
            return
        folder = Path(self.params_path)
        write_values(folder / "config.yml", saved_hyperparams)
        write_values(folder / "args.yml", dict(sorted(vars(self.args).items())))
        files.write(folder / "command.txt", command() + "\n")
        print(f"Log path: {self.save_path}")

    def learn(self, model: BaseAlgorithm) -> None:
        """Train. Ctrl-C ends the training normally; after an error the model is saved before the error is raised."""
        start = time.perf_counter()
        before = getattr(model, "_n_gradient_steps", None)
        before = 0 if self.resumed is not None else before  # the run's own are all of them
        saves = self.run_saves
        try:
            self._learn(model)
            self._came_to_its_end = True
        except KeyboardInterrupt:
            print("Interrupted.")
            if saves is not None:
                saves.stopped()
        except (Exception, distributed.RankLost):
            drop_dead_outputs()
            ended = f"The training ended in an error after {model.num_timesteps:,} steps; the model"
            try:
                save(model, self.model_path, facts(model, self.settings))
                print(f"{ended} is {self.model_path}")
            except OSError as error:  # a full disk may be the cause
                print(f"{ended} cannot be saved: {error.strerror}")
            if saves is not None:
                saves.stopped()
            raise
        finally:
            close(model.env)
        self.wall_time = time.perf_counter() - start + (0.0 if saves is None else saves.seconds_before)
        self.gradient_steps = None if before is None else model._n_gradient_steps - before  # type: ignore[attr-defined]

    def _learn(self, model: BaseAlgorithm) -> None:
        if self.algo == "ars":  # rl_zoo3 gives it processes of its own
            super().learn(model)
            return
        # The file of a run names a folder, which one that is not trusted may not choose.
        if self.tensorboard_log is not None and (self.resumed is None or not self.trusted):
            folder = new_folder(Path(self.tensorboard_log), self.tensorboard_name)
            model.set_logger(configure(str(folder), ["stdout", "tensorboard"] if model.verbose else ["tensorboard"]))
        options: Kwargs = {}
        if self.log_interval != -1:
            options["log_interval"] = self.log_interval if self.log_interval >= 0 else None
        steps = self.n_timesteps
        if self.going_on:  # SB3 adds the steps that the model has taken, and schedules go by the sum
            options["reset_num_timesteps"] = False
            steps = steps - model.num_timesteps
        try:
            if self.resumed is not None:
                assert isinstance(model, GRPO)
                model.resume(self.callbacks, **options)
            else:
                model.learn(steps, callback=self.callbacks or None, **options)
        except BaseException:
            end_all(self.callbacks)
            raise

    @property
    def model_path(self) -> Path:
        """Path of the last model."""
        return Path(self.save_path) / f"{self.env_name}.zip"

    def evaluate(self, model: BaseAlgorithm, n_episodes: int = FINAL_EPISODES) -> list[float]:
        """Returns of fresh episodes, deterministic unless rl_zoo3 says otherwise (Atari, MiniGrid).

        :param model: trained model, its VecNormalize statistics included
        :param n_episodes: episodes, spread over as many envs as training used
        :return: one raw return per episode
        """
        env = self.evaluation_env(n_episodes)
        try:
            return self.returns_in(env, model, n_episodes)
        finally:
            close(env)

    def evaluation_env(self, n_episodes: int) -> VecEnv:
        """Make the env for an evaluation: as many envs as in training, at most one per episode."""
        return self.create_envs(min(self.n_envs, n_episodes), eval_env=True, no_log=True)

    def returns_in(self, env: VecEnv, model: BaseAlgorithm, n_episodes: int) -> list[float]:
        """:meth:`evaluate` in an existing env, which is kept: the same initial states every time."""
        # A VecEnv seeds its envs with consecutive numbers: hashed, so that the runs of neighbouring seeds do not share starts.
        env.seed(int(np.random.SeedSequence([self.seed, 1]).generate_state(1)[0]) >> 1)
        sync(model, env)
        returns, _ = evaluate_policy(
            model, env, n_episodes, deterministic=self.deterministic_eval, return_episode_rewards=True, callback=Counting()
        )
        return [float(r) for r in returns]  # type: ignore[union-attr]

    def save_model(self, model: BaseAlgorithm) -> None:
        """The last model, with all that belongs to it; only then is there no need to go on from the run's state."""
        print(f"Saving to {self.save_path}")
        try:
            self._write(model)
        except OSError:
            if self.run_saves is not None and self.run_saves.path.exists():
                print(f"The model could not be saved. Its run can go on: --resume {self.save_path}", file=sys.stderr)
            raise
        if self.run_saves is not None and self._came_to_its_end:
            self.run_saves.finished()

    def _write(self, model: BaseAlgorithm) -> None:
        save(model, self.model_path, facts(model, self.settings))
        vec_normalize = model.get_vec_normalize_env()
        if vec_normalize is not None:  # for rl_zoo3's commands
            with files.replacing(Path(self.params_path) / LAST_STATISTICS) as unfinished:
                vec_normalize.save(str(unfinished))
        if self.save_replay_buffer and hasattr(model, "save_replay_buffer"):
            with files.replacing(Path(self.save_path) / "replay_buffer.pkl") as unfinished:
                model.save_replay_buffer(unfinished)

    def save_trained_model(self, model: BaseAlgorithm) -> None:
        """Save the last model, its returns in fresh episodes, and its provenance."""
        self.save_model(model)
        returns = self.evaluate(model)
        folder = Path(self.save_path)
        metrics: Metrics = {
            "algo": self.algo,
            "env": self.env_name.gym_id,
            "seed": self.seed,
            "env_steps": model.num_timesteps,
            "planned_steps": self.n_timesteps,
            "gradient_steps": self.gradient_steps,
            "wall_time_s": round(self.wall_time, 2),
            "final_returns": returns,
            # Without a path of this machine: the file is uploaded by zoo.push.
            "settings": {
                k: v for k, v in as_shown(getattr(model, "settings", self.settings)).items() if k != "tensorboard_log"
            },
            "mean_return": float(np.mean(returns)),
            "std_return": float(np.std(returns)),
            "commit": commit(),
            "versions": versions(),
        }
        files.write(folder / "metrics.json", to_json(metrics, indent=2) + "\n")
        from ..plot import plot_learning_curve  # with SciPy

        title = f"{self.algo.upper()} on {self.env_name.gym_id}"
        picture = drawn("learning curve", lambda: plot_learning_curve(folder, title))
        if model.num_timesteps < self.n_timesteps:  # Ctrl-C, or a callback
            print(f"\nStopped after {model.num_timesteps:,} of {self.n_timesteps:,} steps; what follows is about that model.")
        spread = f"{metrics['mean_return']:.1f} +- {metrics['std_return']:.1f}"
        print(f"\nMean return over {how_many(len(returns), 'episode')}: {spread}")
        print(f"Model:          {self.model_path}")
        if self.tensorboard_log:
            print(f"TensorBoard:    tensorboard --logdir {self.tensorboard_log}")
        if picture is not None:
            print(f"Learning curve: {picture}")
        print(f"Metrics:        {folder / 'metrics.json'}")
        print(f"Model card:     {write_card(folder)}")


def sync(model: BaseAlgorithm, env: VecEnv) -> None:
    """Give evaluation envs the training's observation statistics."""
    training_env = model.get_env()
    assert training_env is not None
    sync_envs_normalization(training_env, env)


def build(
    env_id: str,
    seed: int,
    log_folder: str,
    algo: str = "grpo",
    n_timesteps: int = -1,
    config: str | None = None,
    device: str = "auto",
    **hyperparams: object,
) -> Experiment:
    """A run from Python.

    :param env_id: registered env id
    :param seed: of the run
    :param log_folder: where its folder goes
    :param algo: any algorithm that rl_zoo3 knows
    :param n_timesteps: in place of the file's
    :param config: the file; None: ``zoo/hyperparams/grpo.yml``, or rl_zoo3's of the algorithm
    :param device: as SB3's
    :param hyperparams: in place of the file's
    :return: the experiment; ``setup_experiment()`` gives the model
    """
    register()
    return Experiment(
        Namespace(env=env_id, seed=seed, algo=algo),
        algo,
        env_id,
        log_folder,
        n_timesteps=n_timesteps,
        eval_freq=-1,
        hyperparams=hyperparams,
        seed=seed,
        log_interval=-2,
        verbose=0,
        config=config or (str(HYPERPARAMS) if algo == "grpo" else None),
        device=device,
    )
