"""GRPO's files: its zip, with the statistics that its weights have learnt with, and its policy for use elsewhere."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any, TypeVar

import torch as th
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv

from sb_grpo import normalization, ranks, saving
from sb_grpo.collect.masks import APART
from sb_grpo.config import constructor_of, from_config
from sb_grpo.export import export_policy
from sb_grpo.grouped import GroupedAlgorithm
from sb_grpo.state import copied
from sb_grpo.validation import check_names

SelfStored = TypeVar("SelfStored", bound="StoredAlgorithm")


class StoredAlgorithm(GroupedAlgorithm):
    """A :class:`GroupedAlgorithm` that can be saved, loaded and exported."""

    def _begin(self) -> None:
        super()._begin()
        #: Of the VecNormalize that the weights have learnt under, as long as the model has no env.
        self._statistics: bytes | None = None

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *saving.NOT_SAVED]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, tensors = super()._get_torch_save_params()
        optional = [name for name in saving.OPTIONAL_MODULES if isinstance(getattr(self, name), th.nn.Module)]
        return [*state_dicts, *optional], tensors

    def save(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """As SB3's, whole or not at all, with VecNormalize's statistics in the zip; a model saved in mid-rollout goes on with
        groups that it has not used. Of several learners rank 0 writes; elsewhere nothing happens."""
        if ranks.place().rank > 0:
            return
        if self.slots is not None:
            self._next_group = ranks.first_undealt(self.slots.next_group)
        file, own = io.BytesIO(), self.rollout_buffer_class
        self.rollout_buffer_class = own or saving.OnlyForGRPO  # type: ignore[assignment]
        try:
            super().save(file, *args, **kwargs)
            normalized, waiting = self._vec_normalize_env, self._statistics
            statistics = waiting if normalized is None else normalization.statistics_to_bytes(normalized)
            saving.write_model(path, file.getvalue(), vars(self), statistics)
        finally:
            self.rollout_buffer_class = own

    def export(self, path: str | Path) -> Path:
        """The policy with all that stands before and after it as one file, ``.onnx`` or ``.pt2`` (docs/export.md)."""
        normalized = self.get_vec_normalize_env()
        if normalized is None and self._statistics is not None:
            normalized = normalization.alone(self._statistics, self.observation_space, self.action_space)
        return export_policy(self.policy, path, normalized, self.mask_source in APART)

    @classmethod
    def load(  # type: ignore[override]
        cls: type[SelfStored],
        path: Any,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        *args: Any,
        trusted: bool = True,
        **kwargs: Any,
    ) -> SelfStored:
        """As SB3's. Statistics in the zip go into the env's VecNormalize, if that has seen nothing yet.

        :param trusted: False: nothing in the file is unpickled, so that none of it can run; what has no plain form is named,
            and taken from ``custom_objects`` or the further arguments (docs/security.md)
        :raises ValueError: for what cannot be had without unpickling
        """
        check_names(kwargs)
        saving.check_is_grpo(path, saving.attributes_in(path))
        kwargs = from_config(kwargs)
        source, replaced = path, {*kwargs, *(custom_objects or {})}
        if not trusted:
            own = custom_objects or {}
            source, objects = saving.without_pickle(path, constructor_of(cls), {**own, **kwargs}, env)
            custom_objects = {**own, **objects}
        if replaced:
            kwargs["_replaced"] = replaced
        kwargs["_of_file"] = True
        kwargs["_statistics"] = saving.entry_of(path, saving.STATISTICS)
        return super().load(source, env, device, custom_objects, *args, **kwargs)  # type: ignore[no-any-return]

    def _setup_model(self) -> None:
        super()._setup_model()
        self._take_up_statistics()

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        super().set_env(env, force_reset)
        self._take_up_statistics()

    def _take_up_statistics(self) -> None:
        """What the zip says of the scale of the observations goes into the env, as soon as there is one."""
        if self._statistics is None or self.env is None:
            return
        trouble = normalization.take_up(self._statistics, self._vec_normalize_env)
        self._statistics = None
        if trouble is not None:
            warnings.warn(trouble, UserWarning, stacklevel=3)

    def get_parameters(self) -> dict[str, dict[str, Any]]:
        """As SB3's, as copies: :meth:`set_parameters` takes a model back to them after further training."""
        return {name: copied(state) for name, state in super().get_parameters().items()}

    def set_parameters(
        self, load_path_or_dict: str | dict[str, Any], exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        """Replace the weights, as SB3's does. A refused call changes nothing.

        A dict keeps to ``exact_match`` for all its modules. A file may be of a model with another ``advantage``, ``kl_coef``
        or ``grouping``: modules that it lacks stay as they are, except a reference policy that nobody named, which becomes
        the loaded policy.

        :param load_path_or_dict: of a saved model, or states by name, as :meth:`get_parameters` returns them
        :param exact_match: a dict must hold the whole state of every module; False: it may hold parts
        :param device: of tensors that are read from a file
        :raises ValueError: for parameters that are missing, do not fit, or are of a policy with a critic
        """
        of_file = vars(self).pop("_of_file", False)  # SB3's load() passes on a dict, too
        if not isinstance(load_path_or_dict, dict):
            saving.check_is_grpo(load_path_or_dict, saving.attributes_in(load_path_or_dict))
            load_path_or_dict = load_from_zip_file(load_path_or_dict, load_data=False, device=device)[1]
            of_file = True
        modules = {name: getattr(self, name) for name in saving.OPTIONAL_MODULES}
        if of_file and "policy" in load_path_or_dict:
            load_path_or_dict = saving.with_fitting_modules(load_path_or_dict, modules, self._given_reference)
        if exact_match:
            saving.check_parameters(load_path_or_dict, self._get_torch_save_params()[0], self.policy.state_dict())
        with saving.all_or_nothing([self.policy, *modules.values()]):
            super().set_parameters(load_path_or_dict, exact_match, device)
            saving.check_moments(self.policy.optimizer)
        self._use_given_reference()
