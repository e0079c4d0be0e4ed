"""Calls to callbacks beyond SB3's: their states as plain values, their locals of a tensor env's step, recovery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    EventCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
)

from sb_grpo.envs.generators import generators_of, put_generators
from sb_grpo.state import attributes
from sb_grpo.types import Breakdown, Kwargs, State

#: Counters of every callback.
COUNTS = ("n_calls", "num_timesteps")
#: Further state of SB3's callbacks.
KNOWN: dict[type[BaseCallback], tuple[str, ...]] = {
    EvalCallback: (
        "best_mean_reward", "last_mean_reward", "evaluations_results", "evaluations_timesteps", "evaluations_length",
        "evaluations_successes",
    ),
    EveryNTimesteps: ("last_time_trigger",),
    StopTrainingOnMaxEpisodes: ("n_episodes",),
    StopTrainingOnNoModelImprovement: ("last_best_mean_reward", "no_improvement_evals"),
}  # fmt: skip


def every(callback: BaseCallback | None) -> Iterator[BaseCallback]:
    """A callback and all that it calls, always in one order; lists themselves are left out."""
    if callback is None:
        return
    if not isinstance(callback, CallbackList):
        yield callback
    for part in callback.callbacks if isinstance(callback, CallbackList) else _called_by(callback):
        yield from every(part)


def _called_by(callback: BaseCallback) -> list[BaseCallback]:
    parts = [callback.callback] if isinstance(callback, EventCallback) else []
    parts += [callback.callback_on_new_best] if isinstance(callback, EvalCallback) else []
    return [part for part in parts if part is not None]


def recover(callback: BaseCallback, error: Breakdown) -> None:
    """Let the first callback with a method ``recover`` mend a training that has broken down.

    :raises Breakdown: the error where there is none, or where it cannot
    """
    mend = next((part.recover for part in every(callback) if hasattr(part, "recover")), None)
    if mend is None:
        raise error
    mend(error)


def teller(callback: BaseCallback) -> Callable[[Kwargs], None]:
    """Return the function that puts the locals of a tensor env's step into a callback and all that it calls.

    Rewards and dones are tensors on any device. SB3's callback that counts ends with NumPy reads them there; no other one
    makes the host wait.
    """
    counting = [part for part in every(callback) if isinstance(part, StopTrainingOnMaxEpisodes)]

    def tell(known: Kwargs) -> None:
        callback.update_locals(known)
        for part in counting:
            part.locals = {**known, "dones": known["dones"].cpu().numpy()}  # callbacks share one dict

    return tell


def states_of(callback: BaseCallback | None) -> list[State]:
    """Kind, counts and knowledge of every callback."""
    return [
        {"kind": _kind(part), "counts": attributes(part, COUNTS), "known": _known(part), "envs": _envs(part)}
        for part in every(callback)
    ]


def put_states(callback: BaseCallback | None, states: Sequence[State]) -> None:
    """Give callbacks the states of others of their kinds: the first of a kind gets that of the first.

    :param states: of :func:`states_of`
    :raises ValueError: if one that knew something is not among them; those that are new know nothing yet
    """
    waiting = list(every(callback))
    there = Counter(map(_kind, waiting))
    for state in states:
        part = next((part for part in waiting if _kind(part) == state["kind"]), None)
        if part is None and (state["known"] or state["envs"]):
            name = state["kind"].rpartition(".")[2]
            raise ValueError(
                f"The run had {name} among its callbacks, but here are {dict(there) or 'none'}: pass callbacks of the same "
                "kinds to resume(callback=...), in the same order."
            )
        if part is not None:
            waiting.remove(part)
            _put(part, state)


def _put(part: BaseCallback, state: State) -> None:
    vars(part).update(state["counts"])
    if hasattr(part, "state_dict"):
        part.load_state_dict(state["known"])  # type: ignore[attr-defined]
    else:
        vars(part).update(state["known"])
    if isinstance(part, EvalCallback):
        put_generators(part.eval_env, state["envs"])


def _kind(part: BaseCallback) -> str:
    return f"{type(part).__module__}.{type(part).__qualname__}"


def _known(part: BaseCallback) -> State:
    if hasattr(part, "state_dict"):
        return dict(part.state_dict())
    return attributes(part, (name for kind, names in KNOWN.items() if isinstance(part, kind) for name in names))


def _envs(part: BaseCallback) -> State | None:
    return generators_of(part.eval_env) if isinstance(part, EvalCallback) else None
