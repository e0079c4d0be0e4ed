"""What of a saved model fits into one that was built with other arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

#: What is built anew after loading.
NOT_SAVED = (
    "slots", "_prepared", "captured", "columns", "grouper", "group_weighting", "gradient", "_objective_weights", "bonus",
    "last_figures", "last_update", "estimator", "options", "_loop_callback",
)  # fmt: skip
#: Modules that a model may have beside its policy; their tensors are saved with it.
OPTIONAL_MODULES = ("estimator", "ref_policy", "grouper", "group_weighting", "bonus")
#: What version 0.1 called some of them.
FORMER_NAMES = {"state_baseline": "estimator"}
#: Part of a state baseline that may come and go: a model saved with it can be loaded without, and the other way round.
PAIRING = "pairing."


def fitting(saved: dict[str, Any] | None, built: dict[str, Any]) -> dict[str, Any] | None:
    """A saved state as far as it fits into what was built; None where it does not: other entries, or of other shapes."""

    def form(state: dict[str, Any]) -> dict[str, Any]:
        return {name: getattr(entry, "shape", None) for name, entry in state.items() if PAIRING not in name}

    if saved is None or form(saved) != form(built):
        return None
    return {name: saved.get(name, entry) for name, entry in built.items()}


def with_fitting_modules(saved: Mapping[str, Any], modules: Mapping[str, Any]) -> dict[str, Any]:
    """Saved states, those of optional modules replaced where they do not fit: what they lack stays as built, except a
    missing reference policy, which becomes the saved policy.

    :param saved: state by name, ``"policy"`` among them
    :param modules: optional modules by name; what is no module has no state
    """
    states = {FORMER_NAMES.get(name, name): state for name, state in saved.items()}
    for name, module in modules.items():
        if not isinstance(module, nn.Module):
            states.pop(name, None)
            continue
        state = fitting(states.get(name), module.state_dict())
        if state is None:
            state = states["policy"] if name == "ref_policy" else module.state_dict()
        states[name] = state
    return states


@contextmanager
def saying_what_moved(path: Any) -> Iterator[None]:
    """A saved object whose class has moved since is named, with the way to load all the same.

    :param path: of the zip, for the message
    :raises ValueError: in the place of pickle's complaint
    """
    try:
        yield
    except (ModuleNotFoundError, AttributeError) as error:
        module = getattr(error, "name", None) or ""
        if not isinstance(error, ModuleNotFoundError) or not module.startswith("sb_grpo"):
            raise
        raise ValueError(
            f"{path} was saved by sb_grpo 0.1: it holds an object of {module}, which has moved (CHANGELOG.md). Make "
            "that object anew and pass it as custom_objects={argument: object}, for example GRPO.load(path, "
            "custom_objects={'exploration_bonus': RNDBonus()}); weights and all else are loaded from the file."
        ) from error
