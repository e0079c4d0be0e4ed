"""Export a trained agent's policy to one file that runs without this library, and compare it with the agent.

``python -m zoo.export logs/grpo/CartPole-v1_1 --out policy.onnx`` takes a run folder of ``zoo.train``,
or a model's ``.zip``. VecNormalize's statistics of the model are included in the file.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo import GRPO
from sb_grpo.collect.masks import APART
from sb_grpo.export import SUFFIXES, TOLERANCE, check_exported, export_policy
from sb_grpo.normalization import OtherObservations, alone
from sb_grpo.policies import ActorPolicy
from sb_grpo.save_util import STATISTICS as WITHIN
from sb_grpo.save_util import read_entry

from .common.command_line import BadInput, Parser, add_untrusted, run
from .common.folders import check_place
from .training.run_files import read_run_files, settings_folder_of

STATISTICS = "vecnormalize.pkl"
OBSERVATIONS = 1000
#: Remedy if the policy's observations do not match its statistics.
OTHERS = (
    "VecNormalize below another wrapper, such as that of frame_stack, has statistics of single frames, which cannot go into "
    "the file: train with normalize:False or without frame_stack."
)


def make_parser() -> Parser:
    parser = Parser("zoo.export", __doc__)
    add = parser.add_argument
    add("model", type=Path, help="run folder, or a model's .zip")
    add("--load-best", action="store_true", help="of a run folder: the best model instead of the last")
    add("--out", type=Path, default=Path("policy.onnx"), metavar="FILE", help=f"ends in {' or '.join(SUFFIXES)}")
    add_untrusted(parser)
    add("--vec-normalize", type=Path, metavar="FILE", help="VecNormalize's statistics, where they are not beside the model")
    return parser


def find_model(folder: Path, best: bool) -> tuple[Path, Path | None]:
    """Find the model of a run folder and its statistics.

    :param best: the model with the best evaluation
    :raises BadInput: if the folder has no model
    """
    settings = [path.parent for path in folder.glob("*/config.yml")]
    if len(settings) != 1:
        raise BadInput(f"{folder} is no run folder: it holds {len(settings)} folders with a config.yml, not one.")
    model = folder / ("best_model.zip" if best else f"{settings[0].name}.zip")
    if not model.exists():
        raise BadInput(f"{folder} holds no {model.name}; there are {sorted(path.name for path in folder.glob('*.zip'))}.")
    places = [settings[0] / "best" / STATISTICS] * best + [settings[0] / STATISTICS]
    return model, next((path for path in places if path.exists()), None)


def statistics_within(model: Path, policy: ActorPolicy) -> VecNormalize | None:
    """Read the statistics in a model's zip, or None.

    :raises BadInput: if they are broken
    """
    try:
        content = read_entry(model, WITHIN)
        return None if content is None else alone(content, policy.observation_space, policy.action_space)
    except OtherObservations as error:
        raise BadInput(f"{model}: {error} {OTHERS}") from error
    except ValueError as error:
        raise BadInput(f"cannot read the statistics in {model}: {error}") from error


def read_statistics(path: Path) -> VecNormalize:
    """Read VecNormalize's statistics. The file is a pickle of SB3, which can run code: it must be your own.

    :raises BadInput: if it is not VecNormalize
    """
    try:
        found = pickle.loads(path.read_bytes())
    except Exception as error:  # unpickling raises any type
        raise BadInput(f"cannot read {path}: {error}") from error
    if not isinstance(found, VecNormalize):
        raise BadInput(f"{path} holds a {type(found).__name__}, not a VecNormalize.")
    return found


def main(arguments: Sequence[str]) -> int:
    """Execute the command.

    :param arguments: command line
    :return: 1 if the file's actions differ from the agent's
    """
    args = make_parser().parse_args(arguments)
    check_place("--out", args.out)
    path, beside = find_model(args.model, args.load_best) if args.model.is_dir() else (args.model, None)
    if not path.exists():
        raise BadInput(f"{path}: there is no such file.")
    if args.untrusted:
        read_run_files(settings_folder_of(path.parent), trusted=False)
    if args.untrusted and args.vec_normalize is not None:
        raise BadInput(f"--untrusted: {args.vec_normalize} is pickled: those in the model's zip are arrays.")
    given = read_statistics(args.vec_normalize) if args.vec_normalize is not None else None
    try:
        model = GRPO.load(path, device="cpu", trusted=not args.untrusted)
    except Exception as error:  # a broken zip, another algorithm's model, missing classes
        raise BadInput(f"cannot load {path} as a GRPO model: {error}") from error
    policy = model.policy
    masked = model.mask_source in APART
    within = statistics_within(path, policy)
    if args.untrusted and within is None and beside is not None:
        raise BadInput(f"--untrusted: the statistics of {path} are pickled, in {beside}.")
    statistics_path = args.vec_normalize or (path if within is not None else beside)
    statistics = given or within or (read_statistics(beside) if beside is not None else None)
    try:
        export_policy(policy, args.out, statistics, masked)
    except OtherObservations as error:
        raise BadInput(f"{error} {OTHERS}") from error
    except (ValueError, ImportError) as error:
        raise BadInput(str(error)) from error
    print(f"Policy: {args.out} ({args.out.stat().st_size / 1024:.0f} KiB), from {path}")
    print(f"Inside: normalisation of {statistics_path or 'the policy alone'}, network, action as the env takes it")
    difference = check_exported(args.out, policy, statistics, OBSERVATIONS, masked)
    print(f"Largest difference to predict(deterministic=True) over {OBSERVATIONS:,} sampled observations: {difference:.1e}")
    return int(difference > TOLERANCE)


if __name__ == "__main__":
    sys.exit(run("zoo.export", main, sys.argv[1:]))
