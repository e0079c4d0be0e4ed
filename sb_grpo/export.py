"""The policy as one file that runs without this library: from the env's raw observations to the actions that it takes.

``.onnx`` runs in onnxruntime, ``.pt2`` in plain PyTorch (``torch.export.load(path).module()``). Inside: the observations'
normalisation, the network, the mode of the action distribution, and the steps of ``predict`` after it. Masks that
observations do not hold are a further input; a memory is an input (zeros where an episode begins) and an output.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
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

from sb_grpo.normalization import OtherObservations
from sb_grpo.policies import ActorPolicy
from sb_grpo.policies.extra_inputs import MASK, MEMORY, with_extra_inputs
from sb_grpo.policies.masks import choices_of
from sb_grpo.types import Kwargs, Obs

SUFFIXES = (".onnx", ".pt2")
OBSERVATION = "observation"
ACTION = "action"
MEMORY_AFTER = "policy_memory_after"
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
    """Module that computes ``predict(observation, deterministic=True)``, with VecNormalize's part before it.

    :param policy: in evaluation mode
    :param statistics: None: the policy sees observations as they are
    :param masked: the policy wants masks that observations do not hold
    """

    def __init__(self, policy: ActorPolicy, statistics: VecNormalize | None, masked: bool) -> None:
        super().__init__()
        self.policy = policy
        space = policy.observation_space
        self.inputs = list(inputs_of(policy, masked))
        self.standardised = nn.ModuleDict(_standardised(space, statistics) if statistics is not None else {})
        box = policy.action_space
        self.shape = box.shape or ()
        self.bounded = isinstance(box, spaces.Box)
        if isinstance(box, spaces.Box):
            self.register_buffer("low", th.as_tensor(box.low, dtype=th.float32))
            self.register_buffer("high", th.as_tensor(box.high, dtype=th.float32))

    def forward(self, *observations: th.Tensor) -> th.Tensor | tuple[th.Tensor, th.Tensor]:
        """Actions.

        :param observations: ``[batch, ...]``, one tensor for each of :func:`inputs_of`
        :return: ``[batch, ...]``, as the action space has them; and the memory after the step, where there is one
        """
        seen: Any = {
            name: self.standardised[name](obs) if name in self.standardised else obs
            for name, obs in zip(self.inputs, observations, strict=True)
        }
        if OBSERVATION in seen and not isinstance(self.policy.observation_space, spaces.Dict):
            seen = with_extra_inputs(seen.pop(OBSERVATION), seen)
        actions, memory = self.policy.act_and_remember(seen, deterministic=True)
        actions = self._in_bounds(actions.reshape(-1, *self.shape))
        return actions if memory is None else (actions, memory)

    def _in_bounds(self, actions: th.Tensor) -> th.Tensor:
        if not self.bounded:
            return actions.long()
        low = self.get_buffer("low")
        high = self.get_buffer("high")
        if self.policy.squash_output:
            return low + 0.5 * (actions + 1.0) * (high - low)
        return th.minimum(th.maximum(actions, low), high)


def _standardised(space: spaces.Space, statistics: VecNormalize) -> dict[str, Standardised]:
    """One per observation that VecNormalize normalises.

    :raises OtherObservations: where its statistics are of another shape than the policy's observations
    """
    if not statistics.norm_obs:
        return {}
    found = statistics.obs_rms if isinstance(statistics.obs_rms, dict) else {OBSERVATION: statistics.obs_rms}
    parts = space.spaces if isinstance(space, spaces.Dict) else {OBSERVATION: space}
    for name, moments in found.items():
        if name not in parts or moments.mean.shape != parts[name].shape:
            seen = parts[name].shape if name in parts else "nothing"
            raise OtherObservations(
                f"VecNormalize has statistics of {name} with shape {moments.mean.shape}, but the policy sees {seen}: another "
                "wrapper stands between them, such as VecFrameStack. Put VecNormalize outermost, or export without it "
                "(vec_normalize=None) and normalise before stacking."
            )
    return {name: Standardised(moments, statistics.epsilon, statistics.clip_obs) for name, moments in found.items()}


def inputs_of(policy: ActorPolicy, masked: bool) -> dict[str, spaces.Space]:
    """Inputs of the exported policy, by name: the observation or its parts, then masks and memory where it wants them.

    :param masked: the policy wants masks that observations do not hold
    """
    space = policy.observation_space
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {OBSERVATION: space}
    if masked:
        parts[MASK] = spaces.MultiBinary(sum(choices_of(policy.action_space)))
    if policy.memory is not None:
        parts[MEMORY] = spaces.Box(-1.0, 1.0, (policy.memory.n_state,))
    return parts


def deployed(policy: ActorPolicy, vec_normalize: VecNormalize | None, masked: bool = False) -> Deployed:
    """A copy on the CPU that no further training changes.

    :param policy: to copy
    :param vec_normalize: normalises its observations
    :param masked: of :func:`inputs_of`
    """
    buffer = io.BytesIO()
    policy.save(buffer)  # type: ignore[arg-type]  # a deep copy fails with gSDE
    buffer.seek(0)
    copied = type(policy).load(buffer, device="cpu")  # type: ignore[arg-type]
    copied.set_training_mode(False)
    return Deployed(copied, vec_normalize, masked).eval()


def samples(policy: ActorPolicy, n: int, masked: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of :func:`inputs_of`, uniform where their spaces are bounded, ``[n, ...]`` each; masks allow something.

    :param n: how many
    :param seed: of the draw
    """
    arrays = {}
    for i, (name, part) in enumerate(inputs_of(policy, masked).items()):
        part.seed(seed + i)
        arrays[name] = np.stack([np.asarray(part.sample()) for _ in range(n)])
    if MASK in arrays:
        choices = choices_of(policy.action_space)
        arrays[MASK][:, np.cumsum(choices) - choices] = 1
    return arrays


def export_policy(
    policy: ActorPolicy, path: str | Path, vec_normalize: VecNormalize | None = None, masked: bool = False
) -> Path:
    """Write the policy as one file.

    :param policy: trained
    :param path: ends in ``.onnx`` (needs ``pip install "sb_grpo[onnx]"``) or ``.pt2``
    :param vec_normalize: wrapper whose statistics the policy's observations are normalised by
    :param masked: the policy wants masks that observations do not hold
    :return: the path
    :raises ValueError: for another ending, or statistics that do not fit
    :raises ImportError: naming the extra
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: the name must end in {' or '.join(SUFFIXES)}.")
    if path.suffix == ".onnx" and (find_spec("onnx") is None or find_spec("onnxscript") is None):
        raise ImportError("Export to ONNX needs onnx and onnxscript: pip install 'sb_grpo[onnx]'.")
    module = deployed(policy, vec_normalize, masked)
    example = tuple(th.as_tensor(x) for x in samples(policy, 2, masked).values())
    # A batch of 2, because 1 would be taken for a constant.
    shapes = (tuple({0: th.export.Dim("batch")} for _ in example),)
    about = json.dumps(description(policy, vec_normalize))
    path.parent.mkdir(parents=True, exist_ok=True)
    with _quietly(), th.no_grad():
        program = th.export.export(module, example, dynamic_shapes=shapes)
        if path.suffix == ".pt2":
            th.export.save(program, path, extra_files={"about.json": about})
            return path
        outputs = [ACTION] if policy.memory is None else [ACTION, MEMORY_AFTER]
        onnx = th.onnx.export(program, input_names=module.inputs, output_names=outputs, dynamo=True, verbose=False)
        assert onnx is not None
        onnx.model.metadata_props["sb_grpo"] = about
        onnx.save(path, external_data=False)
    return path


def description(policy: ActorPolicy, vec_normalize: VecNormalize | None) -> Kwargs:
    """Metadata of the file: spaces, normalisation, version."""
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


def run_exported(path: str | Path, observations: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Outputs of an exported policy.

    :param path: of :func:`export_policy`
    :param observations: one array ``[batch, ...]`` for each of :func:`inputs_of`
    :return: actions ``[batch, ...]``; after them the memory, where it has one
    """
    if Path(path).suffix == ".onnx":
        import onnxruntime  # an extra

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]
        return [np.asarray(output) for output in session.run(None, dict(zip(names, observations, strict=True)))]
    with th.no_grad():
        found = th.export.load(path).module()(*(th.as_tensor(x) for x in observations))
    return [np.asarray(output) for output in (found if isinstance(found, tuple) else (found,))]


def check_exported(
    path: str | Path, policy: ActorPolicy, vec_normalize: VecNormalize | None = None, n: int = 1000, masked: bool = False
) -> float:
    """Hold an exported policy against ``predict(deterministic=True)`` on sampled observations.

    :param path: of :func:`export_policy`
    :param policy: that was exported
    :param vec_normalize: as for :func:`export_policy`
    :param n: observations
    :return: the largest difference of an action, or of the memory after it
    """
    drawn = samples(policy, n, masked)
    space = policy.observation_space
    parts = {key: drawn[key] for key in (space.spaces if isinstance(space, spaces.Dict) else (OBSERVATION,))}
    obs: Obs = parts if isinstance(space, spaces.Dict) else parts[OBSERVATION]
    if vec_normalize is not None:
        obs = vec_normalize.normalize_obs(obs)
    memory = policy.memory
    before = None if memory is None else memory.to_parts(th.as_tensor(drawn[MEMORY]))
    expected, after = policy.predict(obs, before, None, True, drawn[MASK] if masked else None)
    known = [expected]
    if memory is not None:
        remembered = memory.from_parts(after, n, th.device("cpu"))
        assert remembered is not None
        known.append(remembered.numpy())
    found = run_exported(path, list(drawn.values()))
    return max(float(np.abs(a.astype(np.float64) - b).max()) for a, b in zip(found, known, strict=True))
