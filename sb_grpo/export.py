"""The policy as one file that runs without this library: from the env's raw observations to the actions that it takes.

``.onnx`` runs in onnxruntime, ``.pt2`` in plain PyTorch (``torch.export.load(path).module()``). Inside: the observations'
normalisation, the network, the mode of the action distribution, and what ``predict`` does to an action afterwards.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from sb_grpo.policies import ActorPolicy

SUFFIXES = (".onnx", ".pt2")
OBSERVATION, ACTION = "observation", "action"
TOLERANCE = 1e-5


class Standardised(nn.Module):
    """An observation as VecNormalize hands it on, its statistics frozen; in double precision, as NumPy does it.

    :param statistics: mean and variance, of the observation's shape
    :param epsilon: added to the variance
    :param clip: bound of the result
    """

    mean: th.Tensor
    std: th.Tensor

    def __init__(self, statistics: RunningMeanStd, epsilon: float, clip: float) -> None:
        super().__init__()
        self.register_buffer("mean", th.as_tensor(statistics.mean, dtype=th.float64))
        self.register_buffer("std", th.as_tensor(np.sqrt(statistics.var + epsilon), dtype=th.float64))
        self.clip = clip

    def forward(self, obs: th.Tensor) -> th.Tensor:
        return ((obs.double() - self.mean) / self.std).clamp(-self.clip, self.clip).float()


class Deployed(nn.Module):
    """What ``predict(observation, deterministic=True)`` computes, with VecNormalize's part before it.

    :param policy: in evaluation mode
    :param statistics: None: the policy sees observations as they are
    """

    def __init__(self, policy: ActorPolicy, statistics: VecNormalize | None) -> None:
        super().__init__()
        self.policy = policy
        space = policy.observation_space
        self.keys = list(space.spaces) if isinstance(space, spaces.Dict) else None
        self.standardised = nn.ModuleDict(_standardised(space, statistics) if statistics is not None else {})
        box = policy.action_space
        self.shape = box.shape or ()
        self.bounded = isinstance(box, spaces.Box)
        if isinstance(box, spaces.Box):
            self.register_buffer("low", th.as_tensor(box.low, dtype=th.float32))
            self.register_buffer("high", th.as_tensor(box.high, dtype=th.float32))

    def forward(self, *observations: th.Tensor) -> th.Tensor:
        """Actions.

        :param observations: ``[batch, ...]``, one tensor, or one per key of a Dict space in its order
        :return: ``[batch, ...]``, as the action space has them
        """
        names = [OBSERVATION] if self.keys is None else self.keys
        seen = {
            name: self.standardised[name](obs) if name in self.standardised else obs
            for name, obs in zip(names, observations, strict=True)
        }
        actions = self.policy.act(seen[OBSERVATION] if self.keys is None else seen, deterministic=True)
        actions = actions.reshape(-1, *self.shape)
        if not self.bounded:
            return actions.long()
        low, high = self.get_buffer("low"), self.get_buffer("high")
        if self.policy.squash_output:
            return low + 0.5 * (actions + 1.0) * (high - low)
        return th.minimum(th.maximum(actions, low), high)


def _standardised(space: spaces.Space, statistics: VecNormalize) -> dict[str, Standardised]:
    """One per observation that VecNormalize normalises.

    :raises ValueError: where its statistics are of another shape than what the policy sees
    """
    if not statistics.norm_obs:
        return {}
    found = statistics.obs_rms if isinstance(statistics.obs_rms, dict) else {OBSERVATION: statistics.obs_rms}
    parts = space.spaces if isinstance(space, spaces.Dict) else {OBSERVATION: space}
    for name, moments in found.items():
        if name not in parts or moments.mean.shape != parts[name].shape:
            seen = parts[name].shape if name in parts else "nothing"
            raise ValueError(
                f"VecNormalize has statistics of {name} with shape {moments.mean.shape}, but the policy sees {seen}: another "
                "wrapper stands between them, such as VecFrameStack. Put VecNormalize outermost, or export without it "
                "(vec_normalize=None) and normalise before stacking."
            )
    return {name: Standardised(moments, statistics.epsilon, statistics.clip_obs) for name, moments in found.items()}


def deployed(policy: ActorPolicy, vec_normalize: VecNormalize | None) -> Deployed:
    """A copy on the CPU that no further training changes.

    :param policy: to copy
    :param vec_normalize: normalises its observations
    """
    buffer = io.BytesIO()
    policy.save(buffer)  # type: ignore[arg-type]  # a deep copy fails with gSDE
    buffer.seek(0)
    copied = type(policy).load(buffer, device="cpu")  # type: ignore[arg-type]
    copied.set_training_mode(False)
    return Deployed(copied, vec_normalize).eval()


def samples(space: spaces.Space, n: int, seed: int = 0) -> list[np.ndarray]:
    """Observations of a space, uniform where it is bounded: one array ``[n, ...]``, or one per key of a Dict.

    :param space: of the observations
    :param n: how many
    :param seed: of the draw
    """
    parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]
    arrays = []
    for i, part in enumerate(parts):
        part.seed(seed + i)
        arrays.append(np.stack([np.asarray(part.sample()) for _ in range(n)]))
    return arrays


def export_policy(policy: ActorPolicy, path: str | Path, vec_normalize: VecNormalize | None = None) -> Path:
    """Write the policy as one file.

    :param policy: trained
    :param path: ends in ``.onnx`` (needs ``pip install "sb_grpo[onnx]"``) or ``.pt2``
    :param vec_normalize: wrapper whose statistics the policy's observations are normalised by
    :return: the path
    :raises ValueError: for another ending, or statistics that do not fit
    :raises ImportError: naming the extra
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: the name must end in {' or '.join(SUFFIXES)}.")
    if path.suffix == ".onnx" and (find_spec("onnx") is None or find_spec("onnxscript") is None):
        raise ImportError("Export to ONNX needs onnx and onnxscript: pip install 'sb_grpo[onnx]'.")
    module = deployed(policy, vec_normalize)
    example = tuple(th.as_tensor(x) for x in samples(policy.observation_space, 2))
    # A batch of 2, because 1 would be taken for a constant.
    shapes = (tuple({0: th.export.Dim("batch")} for _ in example),)
    about = json.dumps(description(policy, vec_normalize))
    path.parent.mkdir(parents=True, exist_ok=True)
    with _quietly(), th.no_grad():
        program = th.export.export(module, example, dynamic_shapes=shapes)
        if path.suffix == ".pt2":
            th.export.save(program, path, extra_files={"about.json": about})
            return path
        names = module.keys or [OBSERVATION]
        onnx = th.onnx.export(program, input_names=names, output_names=[ACTION], dynamo=True, verbose=False)
        assert onnx is not None
        onnx.model.metadata_props["sb_grpo"] = about
        onnx.save(path, external_data=False)
    return path


def description(policy: ActorPolicy, vec_normalize: VecNormalize | None) -> dict[str, Any]:
    """What the file says of itself: spaces, normalisation, version."""
    return {
        "observation_space": str(policy.observation_space),
        "action_space": str(policy.action_space),
        "vec_normalize": vec_normalize is not None and vec_normalize.norm_obs,
        "sb_grpo": version("sb_grpo"),
        "torch": th.__version__,
    }


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's progress and its notes on how it was written."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def run_exported(path: str | Path, observations: list[np.ndarray]) -> np.ndarray:
    """Actions of an exported policy.

    :param path: of :func:`export_policy`
    :param observations: one array ``[batch, ...]``, or one per key of a Dict space in its order
    :return: ``[batch, ...]``
    """
    if Path(path).suffix == ".onnx":
        import onnxruntime  # an extra

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]
        return np.asarray(session.run([ACTION], dict(zip(names, observations, strict=True)))[0])
    with th.no_grad():
        actions = th.export.load(path).module()(*(th.as_tensor(x) for x in observations))
    return np.asarray(actions)


def check_exported(path: str | Path, policy: ActorPolicy, vec_normalize: VecNormalize | None = None, n: int = 1000) -> float:
    """Hold an exported policy against ``predict(deterministic=True)`` on sampled observations.

    :param path: of :func:`export_policy`
    :param policy: that was exported
    :param vec_normalize: as for :func:`export_policy`
    :param n: observations
    :return: the largest difference of an action
    """
    drawn = samples(policy.observation_space, n)
    space = policy.observation_space
    obs: Any = dict(zip(space.spaces, drawn, strict=True)) if isinstance(space, spaces.Dict) else drawn[0]
    expected, _ = policy.predict(vec_normalize.normalize_obs(obs) if vec_normalize is not None else obs, deterministic=True)
    return float(np.abs(run_exported(path, drawn).astype(np.float64) - expected).max())
