"""Files of a model: its zip, with the statistics that its weights have learnt with; reading it without pickle; its export.

Functions with a parameter ``model`` are the bodies of GRPO's methods.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.save_util import json_to_data, load_from_zip_file
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn
from torch.optim import Optimizer

from sb_grpo import files, normalization
from sb_grpo.collect.masks import APART
from sb_grpo.config import constructor_of, from_config
from sb_grpo.envs.instance_env import InstanceEnv
from sb_grpo.export import export_policy
from sb_grpo.learn.last_good import Snapshot
from sb_grpo.maths import schedules  # noqa: F401  # their plain form: models of the zoo have them
from sb_grpo.plain import NotPlain, from_plain, to_plain
from sb_grpo.types import File, Kwargs, Settings, State
from sb_grpo.validation import check_names, check_places

#: Attributes that are built anew after loading.
NOT_SAVED = (
    "groups", "_training_batch", "compiled", "extra_fields", "grouper", "group_weighting", "gradient", "_objective_weights",
    "bonus", "last_metrics", "last_update", "estimator", "options", "extra_inputs", "_warned_of_masks",
    "_warned_of_few_starts", "_own_loop", "_rows_checked", "shared_statistics", "_statistics", "_advantage_replay",
    "_in_rollout", "_callback_in_use", "_iteration", "_runs_due", "_to_resume", "_as_read",
)  # fmt: skip
#: Modules that a model may have beside its policy; their tensors are saved with it.
OPTIONAL_MODULES = ("estimator", "ref_policy", "grouper", "group_weighting", "bonus")
#: State that a training begins anew, or that the model derives from arguments: not needed from a file that is not trusted.
MADE_ANEW = (
    "_last_obs", "_last_episode_starts", "_last_original_obs", "ep_info_buffer", "ep_success_buffer", "lr_schedule",
    "action_noise", "tensorboard_log",
)  # fmt: skip
#: Arguments that no file decides: ``env="module:Id"`` would be imported.
NOT_FROM_FILES = ("env", "device")
#: Attributes that a model saves beside its constructor's arguments.
STATE = (
    "policy_class", "observation_space", "action_space", "n_envs", "vf_coef", "num_timesteps", "start_time",
    "interruptions", "curriculum_level", "moving_gamma", "lr_scale", "ref_policy", "_given_reference", "_total_timesteps",
    "_num_timesteps_at_start", "_episode_num", "_current_progress_remaining", "_stats_window_size", "_n_updates",
    "_base_seed", "_next_group", "_n_rollouts", "_n_gradient_steps", "_steps_trained", "_steps_dropped", "_time_limit",
    "_restart_groups", "_derived", "mask_source",
)  # fmt: skip
#: Entries of the zip beside SB3's: what SB3 pickles, as JSON, and the statistics that the weights have learnt with.
PLAIN = "plain.json"
STATISTICS = "vecnormalize.npz"
#: Part of a state baseline that may come and go: a model saved with it can be loaded without, and the other way round.
PAIRING = "pairing."


#: An attribute that only one of SB3's and sb3-contrib's algorithms has: who has written a zip without saying so.
SIGNS = {
    "cg_max_steps": "TRPO", "clip_range_vf": "PPO", "exploration_fraction": "DQN", "target_policy_noise": "TD3",
    "quantile_huber": "QR-DQN", "top_quantiles_to_drop_per_net": "TQC", "target_entropy": "SAC", "alive_bonus_offset": "ARS",
}  # fmt: skip


# ---------------------------------------------------------------- bodies of GRPO's methods


def save_model(model: Any, save: Callable[..., None], path: File, *args: object, **kwargs: object) -> None:
    """Write the zip of a model, whole or not at all.

    :param save: SB3's method
    :param path: ``.zip`` is added where it has no ending; or a file that is open for writing
    """
    file = io.BytesIO()
    own = model.rollout_buffer_class
    model.rollout_buffer_class = own or OnlyForGRPO
    try:
        save(file, *args, **kwargs)
        normalized = model._vec_normalize_env
        statistics = model._statistics if normalized is None else normalization.statistics_to_bytes(normalized)
        write_model(path, file.getvalue(), vars(model), statistics)
    finally:
        model.rollout_buffer_class = own


def export_model(model: Any, path: str | Path) -> Path:
    """Write the policy of a model with all that stands before and after it as one file."""
    normalized = model.get_vec_normalize_env()
    if normalized is None and model._statistics is not None:
        normalized = normalization.alone(model._statistics, model.observation_space, model.action_space)
    return export_policy(model.policy, path, normalized, model.mask_source in APART)


def arguments_of_load(
    cls: type, path: File, env: object, custom_objects: Kwargs | None, trusted: bool, kwargs: Kwargs
) -> tuple[File, Kwargs | None, Kwargs]:
    """Return file, custom objects and further arguments for SB3's ``load``.

    :param cls: class of the model
    :param kwargs: further arguments of the model
    :raises ValueError: for a file of another algorithm, and for objects that only unpickling restores
    """
    check_names(kwargs)
    check_places({name: value for name, value in kwargs.items() if name not in constructor_of(cls)})
    check_is_grpo(path, attributes_in(path))
    kwargs = from_config(kwargs)
    source = path
    replaced = {*kwargs, *(custom_objects or {})}
    if not trusted:
        own = custom_objects or {}
        source, objects = without_pickle(path, constructor_of(cls), {**own, **kwargs}, env)
        custom_objects = {**own, **objects}
    custom_objects = with_spaces_of(env, path, custom_objects)
    if replaced:
        kwargs["_replaced"] = replaced
    kwargs["_of_file"] = True
    kwargs["_statistics"] = entry_of(path, STATISTICS)
    return source, custom_objects, kwargs


def with_spaces_of(env: object, path: File, custom_objects: Kwargs | None) -> Kwargs | None:
    """Custom objects of a load, with the env's spaces in place of the saved ones where the policy is for any size."""
    if not isinstance(env, InstanceEnv):
        return custom_objects
    given = custom_objects or {}
    kind = given.get("policy_class")
    if kind is None:
        kind = json_to_data(json.dumps({"policy_class": attributes_in(path).get("policy_class")})).get("policy_class")
    if not getattr(kind, "size_free", False):
        return custom_objects
    return {**given, "observation_space": env.observation_space, "action_space": env.action_space}


def set_parameters(
    model: Any,
    set_parameters: Callable[..., None],
    load_path_or_dict: str | State,
    exact_match: bool,
    device: th.device | str,
) -> None:
    """Replace the weights of a model; a refused call changes nothing.

    :param set_parameters: SB3's method
    :raises ValueError: for parameters that are missing, do not fit, or are of a policy with a critic
    """
    of_file = vars(model).pop("_of_file", False)  # SB3's load() passes on a dict, too
    if not isinstance(load_path_or_dict, dict):
        check_is_grpo(load_path_or_dict, attributes_in(load_path_or_dict))
        load_path_or_dict = load_from_zip_file(load_path_or_dict, load_data=False, device=device)[1]
        of_file = True
    modules = {name: getattr(model, name) for name in OPTIONAL_MODULES}
    if of_file and "policy" in load_path_or_dict:
        load_path_or_dict = with_fitting_modules(load_path_or_dict, modules, model._given_reference)
    if exact_match:
        check_parameters(load_path_or_dict, model._get_torch_save_params()[0], model.policy.state_dict())
    with all_or_nothing([model.policy, *modules.values()]):
        set_parameters(load_path_or_dict, exact_match, device)
        check_moments(model.policy.optimizer)


# ---------------------------------------------------------------- the zip


class OnlyForGRPO(BaseBuffer):
    """Stands in a zip where no ``rollout_buffer_class`` is set: SB3's algorithms build it, and name the mistake."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise ValueError(
            "This zip was written by sb_grpo's GRPO, whose policy has no critic: load it with sb_grpo.GRPO.load(path)."
        )

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> NoReturn:
        raise NotImplementedError


def check_is_grpo(path: File, data: Settings) -> None:
    """Check that a zip is not one of SB3's other algorithms.

    :param path: of the zip, for the message
    :param data: its attributes by name, pickled or not
    :raises ValueError: naming who wrote it
    """
    if "group_size" in data or "_base_seed" in data:
        return
    writer = next((name for sign, name in SIGNS.items() if sign in data), "A2C" if "vf_coef" in data else None)
    if writer is not None:
        raise ValueError(
            f"{path} was written by {writer}, whose networks have a critic, not by GRPO: load it with {writer}.load(path), or "
            "train a GRPO of its own (from its actor: docs/fine_tuning.md)."
        )


def fitting(saved: State | None, built: State) -> State | None:
    """A saved state as far as it fits into the built module; None where it does not: other entries, or of other shapes."""

    def form(state: State) -> State:
        return {name: getattr(entry, "shape", None) for name, entry in state.items() if PAIRING not in name}

    if saved is None or form(saved) != form(built):
        return None
    return {name: saved.get(name, entry) for name, entry in built.items()}


def with_fitting_modules(saved: Settings, modules: Settings, given_reference: bool) -> State:
    """Replace saved states of optional modules that do not fit: such a module stays as it is, except a reference policy that
    nobody named, which becomes the saved policy.

    :param saved: state by name, ``"policy"`` among them
    :param modules: optional modules by name; other objects have no state
    :param given_reference: the reference policy was named
    """
    states = dict(saved)
    for name, module in modules.items():
        if not isinstance(module, nn.Module):
            states.pop(name, None)
            continue
        state = fitting(states.get(name), module.state_dict())
        if state is None:
            state = states["policy"] if name == "ref_policy" and not given_reference else module.state_dict()
        states[name] = state
    return states


def check_parameters(given: Settings, needed: Iterable[str], own: Settings) -> None:
    """Check that parameters are all there, and those of an actor, before any of them is loaded.

    :param given: states by name; optional ones are there already where a policy is
    :param needed: names of the model's
    :param own: state of its policy
    :raises ValueError: naming those that are missing, or their owner
    """
    theirs = given.get("policy")
    critic = [name for name in theirs if "value_net" in name and name not in own] if isinstance(theirs, Mapping) else []
    if critic:
        raise ValueError(
            f"These parameters hold {critic[0]}: they are of a policy with a critic, as PPO's, not of GRPO's. Use "
            "sb_grpo.policies.load_actor(model.policy, ...), which takes the actor of a PPO or A2C model, or of its zip."
        )
    missing = [name for name in needed if name not in given]
    if missing:
        raise ValueError(
            f"There are no parameters of {missing[0]!r}, but exact_match=True needs all that get_parameters() gives: add "
            "them, or pass exact_match=False to replace only what is given."
        )
    unknown = [name for name in given if name not in needed]
    if unknown:
        raise ValueError(
            f"There are parameters of {unknown[0]!r}, which this model does not have: leave them out, or build the model with "
            "the arguments of the other one."
        )


@contextmanager
def all_or_nothing(modules: Sequence[object]) -> Iterator[None]:
    """Leave modules as they were where parameters do not fit, and say so in one line with a remedy.

    :param modules: that parameters go into; other objects are left aside
    :raises ValueError: in the place of an error of SB3, torch or an optimiser
    """
    before = Snapshot(modules)
    try:
        yield
    except BaseException as error:
        before.put_back()
        of_torch = isinstance(error, RuntimeError) and "loading state_dict" not in str(error)  # memory, devices
        if of_torch or not isinstance(error, RuntimeError | ValueError | TypeError | AttributeError | KeyError):
            raise
        raise ValueError(
            f"These parameters do not fit the model: {' '.join(str(error).split())} Give both models the same spaces and "
            "policy_kwargs, or load the other one with GRPO.load(path)."
        ) from error


def check_moments(optimizer: Optimizer) -> None:
    """Check that an optimiser's state has the shapes of its parameters, which torch leaves to its next step.

    :raises ValueError: naming a moment that does not
    """
    for parameter, state in optimizer.state.items():
        for name, moment in state.items():
            if isinstance(moment, th.Tensor) and moment.dim() > 0 and moment.shape != parameter.shape:
                raise ValueError(f"{name} of the optimizer is {tuple(moment.shape)} for weights {tuple(parameter.shape)}.")


def with_entries(content: bytes, entries: Mapping[str, bytes]) -> bytes:
    """A zip with further entries.

    :param content: of the zip
    :param entries: content by name
    """
    file = io.BytesIO(content)
    with zipfile.ZipFile(file, "a") as archive:
        for name, entry in entries.items():
            archive.writestr(name, entry)
    return file.getvalue()


def attributes_in(path: File) -> Kwargs:
    """Entries of a zip other than tensors, by name; nothing is unpickled. Empty where there is no file, as SB3 says that.

    :raises ValueError: if it is no zip
    """
    attributes: Kwargs = json.loads(entry_of(path, "data") or b"{}")
    return attributes


def lr_schedule_in(path: File, custom_objects: Kwargs | None) -> Any:
    """The schedule of the learning rate as it was, also where it was changed by hand: a model that is loaded makes it anew
    of its arguments. None where it cannot be read; whatever the file holds for it is unpickled."""
    written = json.dumps({"lr_schedule": attributes_in(path).get("lr_schedule")})
    return json_to_data(written, custom_objects).get("lr_schedule")


def entry_of(path: Any, name: str) -> bytes | None:
    """One entry of a zip that SB3 can load: a path without its ending, or an open file, which stays where it is.

    :raises ValueError: if it is no zip
    """
    if hasattr(path, "read"):
        start = path.tell()
        path.seek(0)  # as SB3 does: the file may just have been written
        content = read_entry(io.BytesIO(path.read()), name)
        path.seek(start)
        return content
    found = next((p for p in (Path(path), Path(f"{path}.zip")) if p.is_file()), None)
    return None if found is None else read_entry(found, name)


def read_entry(path: File, name: str) -> bytes | None:
    """One entry of a zip; None where it has none.

    :param path: of the zip, or an open file
    :raises ValueError: if it is no zip
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(name) if name in archive.namelist() else None
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is broken, or no zip: {error}") from error


def write_model(path: File, content: bytes, attributes: Settings, statistics: bytes | None) -> None:
    """Write the zip of a model with all that belongs to its weights.

    :param path: as :func:`write_zip` takes it
    :param content: SB3's zip
    :param attributes: of the model; those that SB3 has pickled are kept as JSON too, where that is possible
    :param statistics: of the VecNormalize of its env
    """
    plain = {}
    for name in _pickled(json.loads(read_entry(io.BytesIO(content), "data") or b"{}")):
        try:
            plain[name] = to_plain(attributes[name])
        except NotPlain:
            continue  # named when it is asked for
    entries = {PLAIN: json.dumps({name: value for name, value in plain.items() if name not in MADE_ANEW}).encode()}
    if statistics is not None:
        entries[STATISTICS] = statistics
    write_zip(path, with_entries(content, entries))


def write_zip(path: File, content: bytes) -> None:
    """Write a zip, whole or not at all.

    :param path: ``.zip`` is added where it has no ending; or a file that is open for writing
    """
    if hasattr(path, "write"):
        path.write(content)
    else:
        files.write(path if Path(path).suffix else f"{path}.zip", content)


def without_pickle(
    path: File, arguments: Iterable[str], given: Settings, env: object = None
) -> tuple[io.BytesIO, Kwargs]:
    """Read from a model's zip all that needs no unpickling.

    :param path: of the zip, or an open file
    :param arguments: names of the constructor's arguments; attributes other than these and :data:`STATE` are left out
    :param given: objects by name that take the place of the file's
    :param env: that the model will have, or None; its spaces serve where the file has none
    :return: a zip of plain data and tensors, and the objects by name that belong to it, for ``custom_objects``
    :raises ValueError: naming the objects that only unpickling restores
    """
    source = _opened(path)
    data = json.loads(read_entry(source, "data") or b"{}")
    known = {name: data[name] for name in data if name in {*arguments, *STATE, *MADE_ANEW} - {*NOT_FROM_FILES}}
    if (known.get("rollout_buffer_class") or {}).get("__module__") == __name__:  # OnlyForGRPO: none was given
        known["rollout_buffer_class"] = None
    plain = json.loads(read_entry(source, PLAIN) or b"{}")
    objects: Kwargs = {}
    refused = []
    for name in [*_pickled(known), *(name for name in MADE_ANEW if name in known)]:
        try:
            objects[name] = _without_pickle(name, plain, given, env)
        except NotPlain as error:
            refused.append(f"{name} ({error})")
    if refused:
        raise ValueError(
            f"{path} is not trusted, and these are pickled: {', '.join(refused)}. Pass them, for example "
            f"GRPO.load(path, trusted=False, custom_objects={{{refused[0].split()[0]!r}: ...}}); or, should you know where "
            "the file comes from, trusted=True, which runs whatever was pickled."
        )
    tensors = {name: read_entry(source, name) or b"" for name in zipfile.ZipFile(source).namelist() if name.endswith(".pth")}
    rest = {name: None if name in objects else value for name, value in known.items()}
    return io.BytesIO(with_entries(b"", {"data": json.dumps(rest).encode(), **tensors})), objects


def _without_pickle(name: str, plain: Settings, given: Settings, env: object) -> Any:
    if name in given:
        return given[name]
    if name in MADE_ANEW:
        return None
    if name in plain:
        return from_plain(plain[name])
    if name in ("observation_space", "action_space") and isinstance(getattr(env, name, None), spaces.Space):
        return getattr(env, name)
    raise NotPlain("no plain form of it in the file")


def _opened(path: File) -> io.BytesIO:
    """All of a file, read once: the bytes that are checked are those that are used."""
    if hasattr(path, "read"):
        return io.BytesIO(path.read())
    found = Path(path)
    try:
        return io.BytesIO((found if found.exists() or found.suffix else Path(f"{path}.zip")).read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _pickled(data: Settings) -> list[str]:
    """Names of the objects that SB3 has pickled into its JSON."""
    return [name for name, value in data.items() if isinstance(value, dict) and ":serialized:" in value]
