"""Watch a trained agent in a window, a video or GIF, or only by its returns.

``python -m zoo.enjoy --env CartPole-v1`` shows the newest run in ``logs/grpo`` that holds a model; ``--record cartpole.gif``
writes a picture instead and needs no display; ``--no-render`` prints returns only. A run folder of ``zoo.train`` or rl_zoo3.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import rl_zoo3
from huggingface_sb3 import EnvironmentName
from PIL import Image
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv
from tqdm import tqdm

from sb_grpo import files
from sb_grpo.collect.masks import masks_of, source_of

from .common.command_line import (
    BadInput,
    Parser,
    Settings,
    add_gym_packages,
    add_torch,
    add_untrusted,
    check_at_least,
    check_seed,
    did_you_mean,
    how_many,
    known_env,
    run,
    use_threads,
)
from .common.folders import check_place
from .training.checkpoints import read_facts
from .training.experiment import register
from .training.saved import Saved, check_untrusted

SHORTEST = 2  # hundredths of a second that browsers keep to


class GifWriter:
    """GIF writer that drops frames if there are too many; each is shown until the next one's time, so errors do not add up.

    :param path: of the file, written by :meth:`close`
    :param fps: frames per second of the env
    """

    def __init__(self, path: Path, fps: float) -> None:
        self.path = path
        self.fps = fps
        self.n_frames = 0
        self.shown: list[tuple[int, Image.Image]] = []  #: hundredths of a second, picture

    def append_data(self, picture: np.ndarray) -> None:
        moment = self._moment()
        self.n_frames += 1
        if not self.shown or moment - self.shown[-1][0] >= SHORTEST:
            self.shown.append((moment, Image.fromarray(picture)))

    def close(self) -> None:
        if not self.shown:
            return
        moments, pictures = zip(*self.shown, strict=True)
        end = max(self._moment(), moments[-1] + SHORTEST)
        durations = [10 * int(step) for step in np.diff([*moments, end])]
        pictures[0].save(self.path, save_all=True, append_images=pictures[1:], duration=durations, loop=0)

    def _moment(self) -> int:
        return round(100 * self.n_frames / self.fps)


VIDEOS = (".gif", ".mp4")


def make_parser() -> Parser:
    parser = Parser("zoo.enjoy", __doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1", help="env id")
    add("--algo", default="grpo", choices=list(rl_zoo3.ALGOS), help="algorithm")
    add("-f", "--folder", default="logs", help="root of all logs")
    add("--exp-id", type=int, default=0, help="number of the run (0: newest that holds a model, -1: FOLDER/ALGO itself)")
    add("--load-best", action="store_true", help="the best model instead of the last")
    add("--load-checkpoint", type=int, metavar="STEPS", help="the checkpoint of so many steps")
    add("--load-last-checkpoint", action="store_true", help="the checkpoint of most steps")
    add_untrusted(parser)
    add("-n", "--n-timesteps", type=int, default=1000, help="steps to run")
    add("--n-episodes", type=int, help="episodes to run, in place of steps")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--deterministic", action="store_true", help="the likeliest action (default, but not for Atari, MiniGrid)"
    )
    kind.add_argument("--stochastic", action="store_true", help="draw actions")
    add("--no-render", action="store_true", help="no window")
    add("--record", type=Path, metavar="FILE", help="write a .gif or .mp4 in place of a window; needs no display")
    add("--seed", type=int, default=0, help="of the env")
    add("--env-kwargs", nargs="+", action=Settings, default={}, help="arguments of the env")
    add_gym_packages(parser)
    add("--reward-log", default="", help="folder for a monitor file of the episodes")
    add_torch(parser)
    add("--verbose", type=int, default=1, help="0: only the mean; 1: every episode")
    add("-P", "--progress", action="store_true", help="progress bar")
    return parser


def check(args: Namespace) -> None:
    """Check the options before anything is loaded.

    :raises BadInput: for options that cannot work
    """
    args.env, args.gym_packages = known_env(args.env, args.gym_packages)
    check_untrusted(args.algo, not args.untrusted)
    check_at_least(args, n_timesteps=1, n_episodes=1)
    check_seed(args.seed)
    if args.record is not None:
        if args.record.suffix not in VIDEOS:
            raise BadInput(f"--record {args.record}: the name must end in {' or '.join(VIDEOS)}.")
        check_place("--record", args.record)
        if importlib.util.find_spec("imageio_ffmpeg" if args.record.suffix == ".mp4" else "imageio") is None:
            raise BadInput("--record needs imageio: pip install -e '.[video]'.")
        if sys.platform == "linux" and not _has_display():
            os.environ["SDL_VIDEODRIVER"] = "dummy"  # otherwise pygame looks for a display and complains,
            os.environ.setdefault("MUJOCO_GL", "egl")  # and MuJoCo asks GLFW for one
    elif not args.no_render and sys.platform == "linux" and not _has_display():
        raise BadInput("there is no display for a window: use --record FILE.gif, or --no-render.")


def _has_display() -> bool:
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))


def find_run(folder: Path, algo: str, env_name: str, exp_id: int) -> Path:
    """Folder of the run to load: the numbered one, or the newest with a model.

    :raises BadInput: if there is none
    """
    root = folder / algo
    if exp_id == -1:
        return root
    runs = []
    for path in root.glob(f"{env_name}_*"):
        number = re.fullmatch(r"(\d+)(_.+)?", path.name.removeprefix(f"{env_name}_"))
        if number and any(path.glob("*.zip")):
            runs.append((int(number[1]), path.stat().st_mtime, path))
    if not runs:
        others = {path.name.rsplit("_", 1)[0] for path in root.glob("*_[0-9]*") if any(path.glob("*.zip"))}
        raise BadInput(f"{root}: no model of a run of {env_name}.{did_you_mean(env_name, others)} Train one with zoo.train.")
    chosen = [found for found in runs if exp_id in (0, found[0])]
    if not chosen:
        there = ", ".join(str(number) for number in sorted({number for number, _, _ in runs}))
        raise BadInput(f"--exp-id {exp_id}: {root} has no model of that run of {env_name}; there are {there}.")
    return max(chosen)[2]


def find_model(folder: Path, env_name: str, args: Namespace) -> Path:
    """Find the requested model file.

    :raises BadInput: if it is missing, naming the existing ones
    """
    named = [path for path in folder.glob("rl_model_*_steps.zip") if path.stem.split("_")[-2].isdecimal()]
    checkpoints = sorted(named, key=lambda path: int(path.stem.split("_")[-2]))
    model = folder / f"{env_name}.zip"
    if args.load_best:
        model = folder / "best_model.zip"
    elif args.load_checkpoint is not None:
        model = folder / f"rl_model_{args.load_checkpoint}_steps.zip"
    elif args.load_last_checkpoint:
        model = checkpoints[-1] if checkpoints else folder / "rl_model_*_steps.zip"
    if not model.exists():
        there = sorted(path.name for path in folder.glob("*.zip"))
        raise BadInput(f"{folder}: no {model.name}; there are {there}.")
    return model


class Writer(Protocol):
    """Interface of imageio's writers."""

    def append_data(self, picture: np.ndarray, /) -> None: ...

    def close(self) -> None: ...


def writer(path: Path, fps: float) -> Writer:
    """Open a writer of a video or GIF."""
    if path.suffix == ".gif":
        return GifWriter(path, fps)
    import imageio.v2 as imageio  # an extra

    return imageio.get_writer(path, mode="I", fps=fps, macro_block_size=2)


class Recorder:
    """Writes the env's frames to a video; does nothing without a file."""

    def __init__(self, env: VecEnv, path: Path | None) -> None:
        self.env = env
        self.writer: Writer | None = None
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.unfinished = path.with_name(f".{path.stem}.part{path.suffix}")
        metadata = env.unwrapped.get_attr("metadata", indices=[0])[0]  # a VecEnv's own have no render_fps
        self.writer = writer(self.unfinished, metadata.get("render_fps", 30))

    def frame(self) -> None:
        if self.writer is None:
            return
        try:
            picture = self.env.render()
        except Exception as error:  # each renderer has its own
            raise BadInput(f"cannot draw the env: {error}") from error
        if picture is None:
            raise BadInput("cannot draw the env: it returned no picture for render_mode='rgb_array'.")
        self.writer.append_data(picture)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            files.move(self.unfinished, self.path)


def play(model: BaseAlgorithm, env: VecEnv, deterministic: bool, args: Namespace) -> list[tuple[float, int]]:
    """Run the agent.

    :return: return and length of every episode that ended
    """
    episodes: list[tuple[float, int]] = []
    recorder = Recorder(env, args.record)
    obs = env.reset()
    state = None
    starts = np.ones(env.num_envs, dtype=bool)
    infos = None
    source = source_of(env) if getattr(model, "mask_source", None) else None
    bar = tqdm(total=args.n_episodes or args.n_timesteps, disable=not args.progress)
    steps = 0
    try:
        recorder.frame()
        while len(episodes) < args.n_episodes if args.n_episodes else steps < args.n_timesteps:
            masks = masks_of(env, source, infos, starts)
            further = {} if masks is None else {"action_masks": masks}
            actions, state = model.predict(obs, state, starts, deterministic, **further)  # type: ignore[arg-type]
            obs, _, starts, infos = env.step(actions)
            steps += 1
            recorder.frame()
            if "episode" in infos[0]:  # from Monitor: raw rewards of whole games, not of lives
                episodes.append((float(infos[0]["episode"]["r"]), int(infos[0]["episode"]["l"])))
                if args.verbose > 0:
                    tqdm.write(f"Episode {len(episodes)}: return {episodes[-1][0]:.2f}, length {episodes[-1][1]}")
            bar.update(int("episode" in infos[0]) if args.n_episodes else 1)
    except KeyboardInterrupt:
        print("Interrupted.")
    finally:
        bar.close()
        recorder.close()
    return episodes


def _known_of(path: Path) -> str:
    """Describe a checkpoint in a few words."""
    try:
        known = read_facts(path)
    except ValueError as error:
        raise BadInput(f"cannot load {path}: {error}") from error
    return "" if known is None else f" (saved after {known['env_steps']:,} steps)"


def restored(saved: Saved, args: Namespace) -> tuple[VecEnv, BaseAlgorithm]:
    """Make the env as in training, with the requested rendering, and load the model."""
    kwargs = dict(args.env_kwargs)
    if args.record is not None:
        kwargs["render_mode"] = "rgb_array"
    elif not args.no_render:
        kwargs = {"render_mode": "human", **kwargs}
    try:
        env = saved.make_env(kwargs, seed=args.seed, monitor_dir=args.reward_log or None)
    except BadInput as error:
        raise BadInput(
            f"{error}{'' if args.no_render else ' (Should it be one that cannot be drawn: --no-render.)'}"
        ) from error
    return env, saved.load(env, args.device)


def main(arguments: Sequence[str]) -> int:
    """Load, run, report.

    :param arguments: command line without the program's name
    :return: exit code
    """
    register()
    args = make_parser().parse_args(arguments)
    check(args)
    env_name = EnvironmentName(args.env)
    folder = find_run(Path(args.folder), args.algo, env_name, args.exp_id)
    path = find_model(folder, env_name, args)
    saved = Saved(args.algo, path, folder / env_name, args.env, trusted=not args.untrusted)
    _ = saved.run  # report refused files before one is opened
    print(f"Loading {path}{_known_of(path)}")
    set_random_seed(args.seed)
    use_threads(args)
    env, model = restored(saved, args)
    deterministic = args.deterministic or not (args.stochastic or saved.draws_actions)
    episodes = play(model, env, deterministic, args)
    env.close()
    if episodes:
        returns, lengths = np.array(episodes).T
        spread = f"{returns.mean():.2f} +- {returns.std():.2f}"
        print(f"{how_many(len(episodes), 'episode')}: mean return {spread}, mean length {lengths.mean():.1f}")
    else:
        print(f"No episode ended within {args.n_timesteps} steps; -n or --n-episodes lengthen the run.")
    if args.record is not None:
        print(f"Video: {args.record}")
    return 0


if __name__ == "__main__":
    sys.exit(run("zoo.enjoy", main, sys.argv[1:]))
