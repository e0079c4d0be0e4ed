"""The rollout buffer: steps come in time-major, one row per env, and go out packed by episode.

Packing turns ``[time, env_index]`` into one row per step, the steps of an episode adjacent and in order. Every estimator
works on that one form, whatever the number of envs, the group size, or where an episode was cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb_grpo.collect.extra_fields import FieldSpec, check_one_task
from sb_grpo.config import check_settings
from sb_grpo.maths.estimators import spread_and_signal
from sb_grpo.maths.segments import segment_sum
from sb_grpo.types import NOTHING, Obs, Rollout, SavedState, State, TensorOrDict, action_row, map_obs

#: Columns by name: tensors, or dicts of such.
Rows: TypeAlias = dict[str, Any]
#: Attributes of PPO's buffer that one without a critic lacks.
OF_A_CRITIC = {"values", "returns", "advantages", "get", "compute_returns_and_advantage"}


class Discounted:
    """A rollout buffer with ``gamma`` and ``gae_lambda``, which may be set."""

    gamma: float | None = None  #: the model's, until somebody sets it here
    gae_lambda: float | None = None  #: the model's, until somebody sets it here
    _of_model: tuple[float | None, float | None] = None, None

    def discount(self, gamma: float, gae_lambda: float) -> tuple[float, float]:
        """Return the discounts of the next advantages. Those set here stay, as with PPO; the others are the model's.

        :param gamma: of the model
        :param gae_lambda: of the model
        :raises ValueError: for a value set here that is no discount
        """
        if self.gamma == self._of_model[0]:
            self.gamma = gamma
        if self.gae_lambda == self._of_model[1]:
            self.gae_lambda = gae_lambda
        self._of_model = gamma, gae_lambda
        assert self.gamma is not None and self.gae_lambda is not None
        check_settings("", {"gamma": self.gamma, "gae_lambda": self.gae_lambda})
        return self.gamma, self.gae_lambda


class AsArrays:
    """A rollout buffer whose ``steps`` are read, and on the CPU written, as those of SB3's ``RolloutBuffer``.

    Only the steps that are there: ``[pos, n_envs, ...]``. Of other devices they are copies that cannot be written.
    """

    steps: Rows  #: ``[buffer_size, n_envs, ...]`` tensors (dicts of such) of which the first ``pos`` are there
    pos: int
    n_envs: int
    obs_shape: Any
    action_dim: int
    action_space: spaces.Space

    @property
    def observations(self) -> np.ndarray | dict[str, np.ndarray]:
        """``[pos, n_envs, ...]`` before each step, shaped as SB3 shapes the space."""
        taken = self._array("observations")
        if isinstance(taken, dict):
            return {key: self._shaped(part, self.obs_shape[key]) for key, part in taken.items()}
        return self._shaped(taken, self.obs_shape)

    @property
    def actions(self) -> np.ndarray:
        """``[pos, n_envs, n]`` as they were sampled, before they were clipped to the bounds, in the space's number type."""
        return self._shaped(self._array("actions").astype(self.action_space.dtype, copy=False), (self.action_dim,))

    @property
    def log_probs(self) -> np.ndarray:
        """``[pos, n_envs]`` of the actions, by the policy that took them."""
        return self._array("log_probs")  # type: ignore[no-any-return]

    @property
    def rewards(self) -> np.ndarray:
        """``[pos, n_envs]`` as the env gave them: group baselines scale on their own."""
        return self._array("rewards")  # type: ignore[no-any-return]

    @property
    def episode_starts(self) -> np.ndarray:
        """``[pos, n_envs]`` 1 where the step was the first of its episode."""
        return (self._array("t") == 0).astype(np.float32)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name in OF_A_CRITIC:
            raise AttributeError(
                f"A {type(self).__name__} has no {name}: there is no critic, and advantages are computed when all steps are "
                "there, in train(), which logs them as 'group/advantages'. It has observations, actions, rewards, log_probs "
                "and episode_starts."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _array(self, name: str) -> Obs:
        return map_obs(lambda column: _readable(column[: self.pos]), self.steps[name])

    def _shaped(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return array.reshape(self.pos, self.n_envs, *shape)


class GroupRolloutBuffer(Discounted, AsArrays, BaseBuffer):
    """Collects steps with their episode id and packs them.

    Rows of groups that are not complete at the end of a rollout are kept, with the log-probabilities of the policy that
    acted, and come out with the rollout that completes their group. Nothing is thrown away.

    :param buffer_size: expected steps per env; the buffer grows when a rollout is longer
    :param observation_space: observation space, Dict included
    :param action_space: action space
    :param device: where the packed tensors live
    :param n_envs: number of envs
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: th.device | str = "auto",
        n_envs: int = 1,
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.steps = {}
        self._rows: Rows | None = None  #: views that :meth:`add` writes to
        self.n_idle = 0  #: rows of the last rollout in which an env had no episode; they are left out
        self.age = th.zeros(0)  #: [M] of the rows that were handed out last: updates since they were collected
        self.n_lost = 0  #: rows of earlier rollouts whose episodes were lost with a worker in this one
        self._kept: Rows | None = None
        self._obs_dtypes: dict[str, th.dtype] = {}
        self.extra: dict[str, th.Tensor] = {}  #: extra fields that :meth:`add_fields` declared
        self._of_episodes: set[str] = set()
        self.static_keys: tuple[str, ...] = ()  #: keys of observations that :meth:`keep_once` named
        self._static_now: dict[str, th.Tensor] = {}  # [n_envs, ...] of them, of the episodes that run
        self._static_ids = np.full(n_envs, -1)  # whose they are
        self._seen_before: TensorOrDict | None = None  # of the run that goes on
        self._allocate(buffer_size)

    @property
    def column_device(self) -> th.device | str:
        """Device of rewards, episodes, times and ends: beside the envs that report them."""
        return "cpu"

    def _grown(
        self, old: th.Tensor | None, size: int, shape: tuple[int, ...], dtype: th.dtype, device: th.device | str
    ) -> th.Tensor:
        """Zeros for ``size`` steps per env, beginning with the steps that are there."""
        new = th.zeros((size, self.n_envs, *shape), dtype=dtype, device=device)
        if old is not None:
            new[: self.pos] = old[: self.pos]
        return new

    def _allocate(self, size: int) -> None:
        """Make room for ``size`` steps per env, keeping the steps that are there."""

        def grown_obs(space: spaces.Space, key: str, old: th.Tensor | None) -> th.Tensor:
            dtype = self._obs_dtypes.get(key) or th.from_numpy(np.zeros(1, dtype=space.dtype)).dtype
            dtype = th.float32 if dtype == th.float64 else dtype
            return self._grown(old, size, space.shape or (), dtype, self.device)

        old = self.steps.get("observations")
        if isinstance(self.observation_space, spaces.Dict):
            parts = {key: space for key, space in self.observation_space.items() if key not in self.static_keys}
            self.steps["observations"] = {key: grown_obs(space, key, old and old[key]) for key, space in parts.items()}
        else:
            self.steps["observations"] = grown_obs(self.observation_space, "", old)
        columns = {
            "actions": (*action_row(self.action_space), self.device),
            "log_probs": ((), th.float32, self.device),
            "rewards": ((), th.float32, self.column_device),
            "episode_ids": ((), th.int64, self.column_device),
            "t": ((), th.int64, self.column_device),
            "ends": ((), th.int8, self.column_device),  # 0 goes on, 1 terminated, 2 truncated
        }
        for name, form in columns.items():
            self.steps[name] = self._grown(self.steps.get(name), size, *form)
        for name, column in self.extra.items():
            self.extra[name] = self._grown(column, size, column.shape[2:], column.dtype, self.column_device)
        self.buffer_size = size
        self.full = False
        self._rows = None

    def __getstate__(self) -> State:
        """Return the state of a copy or a pickle, without views: they would be columns of their own there."""
        return {**vars(self), "_rows": None}

    def add_fields(self, fields: Sequence[FieldSpec]) -> None:
        """Make room for extra fields of every step.

        :param fields: of the schema
        """
        for field in fields:
            self.extra[field.name] = self._grown(None, self.buffer_size, field.shape, field.dtype, self.column_device)
        self._of_episodes = {field.name for field in fields if field.of_episodes}

    def keep_once(self, keys: Sequence[str]) -> None:
        """Keep some keys of Dict observations once per episode, as a rollout's ``instances``; ``observations`` lacks them.

        :param keys: of values that stay as they are during an episode
        """
        self.static_keys = tuple(keys)
        self._allocate(self.buffer_size)

    def reset(self) -> None:
        """Forget the steps of this rollout; rows kept for later stay."""
        self.pos = 0
        self.n_idle = 0
        self.n_lost = 0
        self.full = False
        self._seen_before = None
        self._final_obs: dict[int, Obs] = {}
        self._static: dict[int, dict[str, th.Tensor]] = {}
        self._static_ids = np.full(self.n_envs, -1)

    def state_dict(self, with_seen: bool = False) -> State:
        """The rows that wait for their group; ``with_seen`` the last rollout's observations too, which normalisers await."""
        return {"kept": self._kept, "seen": self.seen_observations() if with_seen else None}

    def load_state_dict(self, state: SavedState) -> None:
        """Wait with the rows of another buffer."""
        self.reset()
        self._kept = state["kept"]
        self._seen_before = state["seen"]

    def drop_kept(self) -> int:
        """Throw away the rows that wait for their group to complete, and say how many they were."""
        n = self.n_kept
        self._kept = None
        return n

    def drop_episodes(self, episode_ids: th.Tensor) -> int:
        """Throw away every row of some episodes; those of this rollout count as idle (``n_idle``).

        :param episode_ids: ``[n]`` int64 episode ids
        :return: rows dropped among those that waited for their group to complete
        """
        gone = th.isin(self.steps["episode_ids"][: self.pos], episode_ids)
        self.steps["episode_ids"][: self.pos][gone] = -1
        self.steps["ends"][: self.pos][gone] = 0
        if self._kept is None:
            return 0
        before = self.n_kept
        stays = ~th.isin(self._kept["episode_ids"], episode_ids)
        self._kept = self._take(self._kept, th.nonzero(stays).squeeze(1))
        return before - self.n_kept

    @property
    def n_kept(self) -> int:
        """Rows that wait for their group to complete."""
        return 0 if self._kept is None else len(self._kept["rewards"])

    def add(  # type: ignore[override]
        self,
        obs: TensorOrDict,
        actions: th.Tensor,
        log_probs: th.Tensor,
        rewards: np.ndarray,
        episode_ids: np.ndarray,
        t: np.ndarray,
        ends: np.ndarray,
        extra: Mapping[str, np.ndarray] = NOTHING,
    ) -> None:
        """Append one step of every env.

        :param obs: ``[n_envs, ...]`` before the step, on the buffer's device
        :param actions: ``[n_envs]`` or ``[n_envs, n]``
        :param log_probs: ``[n_envs]`` of them
        :param rewards: ``[n_envs]``
        :param episode_ids: ``[n_envs]`` int64 episode id of each env
        :param t: ``[n_envs]`` int64 step number in the episode
        :param ends: ``[n_envs]`` int8: 0 goes on, 1 terminated, 2 truncated
        :param extra: ``[n_envs, ...]`` values of the extra fields that :meth:`add_fields` declared
        :raises ValueError: if a key that :meth:`keep_once` named changes within an episode
        """
        if isinstance(obs, dict) or obs.dtype != self._obs_dtypes.get(""):
            self._match_dtypes(obs)
        if self.pos == self.buffer_size:
            self._allocate(2 * self.buffer_size)
        if self._rows is None:
            # NumPy's on the CPU take a row in a fraction of the time that torch needs.
            self._rows = {name: map_obs(_row_view, column) for name, column in self.steps.items()}
        pos = self.pos
        rows = self._rows
        if isinstance(obs, dict):
            for key, column in rows["observations"].items():
                column[pos] = _row_view(obs[key])
            if self.static_keys:
                self._add_static(obs, episode_ids)
        else:
            rows["observations"][pos] = _row_view(obs)
        rows["actions"][pos] = _row_view(actions)
        rows["log_probs"][pos] = _row_view(log_probs)
        rows["rewards"][pos] = rewards
        rows["episode_ids"][pos] = episode_ids
        rows["t"][pos] = t
        rows["ends"][pos] = ends
        for name, values in extra.items():
            self.extra[name].numpy()[pos] = values
        self.pos += 1
        self.full = self.pos == self.buffer_size

    def _add_static(self, obs: dict[str, th.Tensor], episode_ids: np.ndarray) -> None:
        """Keep the static keys of the episodes that have their first step of this rollout, and compare those of the others."""
        begins = episode_ids != self._static_ids
        for key in self.static_keys:
            before = self._static_now.get(key)
            if before is not None:
                differs = ((obs[key] != before).flatten(1).any(dim=1).cpu().numpy() & ~begins).nonzero()[0]
                if len(differs):
                    raise ValueError(
                        f"The observation's {key!r} of env {differs[0]} changes within an episode, but it is one of "
                        f"static_keys={list(self.static_keys)}, which are encoded once: name only keys that stay as they are."
                    )
        if begins.any():
            self._static_now = {key: obs[key].clone() for key in self.static_keys}
            self._static_ids = episode_ids.copy()
            for env_index in begins.nonzero()[0].tolist():
                self._static[int(episode_ids[env_index])] = {
                    key: part[env_index].clone() for key, part in self._static_now.items()
                }

    def _match_dtypes(self, obs: TensorOrDict) -> None:
        """Follow the types of observations, not the space: VecNormalize makes floats of integers."""
        if self._obs_dtypes != (comes := {key: o.dtype for key, o in (obs if isinstance(obs, dict) else {"": obs}).items()}):
            kept = {key: th.promote_types(self._obs_dtypes.get(key, dtype), dtype) for key, dtype in comes.items()}
            if kept != self._obs_dtypes:
                self._obs_dtypes = kept
                self._allocate(self.buffer_size)

    def add_final_observation(self, episode_id: int, obs: Obs) -> None:
        """Remember the observation after an episode's last step (needed where it did not terminate)."""
        self._final_obs[episode_id] = obs

    def new_rows(self) -> tuple[TensorOrDict, th.Tensor]:
        """Observations and actions of this rollout's steps, ``[time * envs, ...]`` views."""
        return self.flat("observations"), self.flat("actions")

    def flat(self, name: str) -> Obs:
        """``[time * envs, ...]`` views of a column of this rollout's steps."""
        return map_obs(lambda column: column[: self.pos].flatten(0, 1), self.steps[name])

    def seen_observations(self) -> TensorOrDict | None:
        """Observations of this rollout's steps, if any; idle envs are left out once :meth:`pack` has counted them."""
        if self.pos == 0:
            return self._seen_before
        obs, _ = self.new_rows()
        if self.n_idle == 0:
            return obs
        has_episode = (self.flat("episode_ids") >= 0).to(self.device)
        return map_obs(lambda o: o[has_episode], obs)  # type: ignore[no-any-return]

    def pack(self, log_probs: th.Tensor, group_size: int, whole_groups: bool) -> Rollout | None:
        """Sort the steps into episodes and hand them out.

        :param log_probs: ``[time * envs]`` of :meth:`new_rows` under the policy that collected them
        :param group_size: members per group
        :param whole_groups: keep back the rows of groups of which a member is still running
        :return: the rollout; None when no group is complete
        """
        obs, actions = self.new_rows()
        rows: Rows = {
            "obs": obs,
            "actions": actions,
            "log_probs": log_probs,
            **{name: self.flat(name) for name in ("rewards", "episode_ids", "t", "ends")},
            **{name: column[: self.pos].flatten(0, 1) for name, column in self.extra.items()},
            "final_obs": self._new_final_observations(),
            "static": self._static,
            "age": th.zeros_like(self.flat("episode_ids")),
        }
        has_episode = rows["episode_ids"] >= 0
        self.n_idle = len(has_episode) - int(has_episode.sum())
        if self.n_idle:
            rows = self._take(rows, th.nonzero(has_episode).squeeze(1))
        if self._kept is not None:
            self._kept["age"] += 1
            kept_final = self._kept.pop("final_obs")
            new_final = rows.pop("final_obs")
            static = {**self._kept.pop("static", {}), **rows.pop("static")}
            rows = {key: map_obs(lambda a, b: th.cat([a, b]), self._kept[key], value) for key, value in rows.items()}
            rows["final_obs"] = self._join_final_observations(kept_final, new_final)
            rows["static"] = static
        self._kept = None
        # Within an episode rows are already in time order: kept rows first, then time-major ones.
        order = th.argsort(rows["episode_ids"], stable=True)
        if whole_groups:
            whole = self._whole_groups(rows["episode_ids"], rows["ends"], group_size)
            ready = th.isin(rows["episode_ids"] // group_size, whole)
            if not ready.all():
                self._kept = self._take(rows, th.nonzero(~ready).squeeze(1))
                order = order[ready[order]]
        rows = self._take(rows, order)
        self.age = rows["age"]
        return self._as_rollout(rows, group_size) if len(order) else None

    def complete_groups(self, group_size: int) -> int:
        """Groups of which every member has ended, kept rows included."""
        episode_ids, ends = self.waiting_columns("episode_ids", "ends")
        return len(self._whole_groups(episode_ids, ends, group_size))

    def groups_with_spread(self, group_size: int, gamma: float) -> int:
        """Complete groups whose members' discounted returns differ, kept rows included.

        :param group_size: members per group
        :param gamma: discount
        """
        episode_ids, ends, t, rewards = self.waiting_columns("episode_ids", "ends", "t", "rewards")
        whole = th.isin(episode_ids // group_size, self._whole_groups(episode_ids, ends, group_size))
        if not whole.any():
            return 0
        episodes, episode = th.unique(episode_ids[whole], return_inverse=True)
        groups, group = th.unique(episodes // group_size, return_inverse=True)
        returns = segment_sum(rewards[whole] * gamma ** t[whole], episode, len(episodes))
        _, has_signal = spread_and_signal(returns, returns, group, len(groups))
        return int(has_signal.sum())

    def unfinished_episodes(self, group_size: int) -> th.Tensor:
        """Episodes of the rows here, kept ones included, of whose group not every member has ended."""
        episode_ids, ends = self.waiting_columns("episode_ids", "ends")
        whole = self._whole_groups(episode_ids, ends, group_size)
        unfinished: th.Tensor = episode_ids[~th.isin(episode_ids // group_size, whole)]
        return unfinished

    def waiting_columns(self, *names: str) -> list[th.Tensor]:
        """``[M]`` columns of every row that is here, kept ones included."""
        columns = [self.flat(name) for name in names]
        if self._kept is None:
            return columns
        return [th.cat([self._kept[name], column]) for name, column in zip(names, columns, strict=True)]

    @staticmethod
    def _whole_groups(episode_ids: th.Tensor, ends: th.Tensor, group_size: int) -> th.Tensor:
        """Numbers of the groups of which every member has ended among these rows."""
        groups, members_ended = th.unique(episode_ids[ends > 0] // group_size, return_counts=True)
        return groups[members_ended == group_size]  # type: ignore[no-any-return]

    def _new_final_observations(self) -> Obs:
        """Observations of this rollout's steps that :meth:`_final_observations` will need."""
        return self._final_obs

    def _join_final_observations(self, kept: Obs, new: Obs) -> Obs:
        return {**kept, **new}

    def _take(self, rows: Rows, index: th.Tensor) -> Rows:
        on_device = index.to(self.device)
        taken = {key: map_obs(lambda o: o.index_select(0, on_device), rows[key]) for key in ("obs", "actions", "log_probs")}
        taken.update(
            {key: rows[key].index_select(0, index) for key in ("rewards", "episode_ids", "t", "ends", "age", *self.extra)}
        )
        taken["final_obs"] = self._take_final_observations(rows["final_obs"], index, taken["episode_ids"])
        taken["static"] = _of_episode_ids(rows["static"], taken["episode_ids"])
        return taken

    def _take_final_observations(self, final_obs: Obs, index: th.Tensor, episode_ids: th.Tensor) -> Obs:
        return _of_episode_ids(final_obs, episode_ids)

    def _as_rollout(self, rows: Rows, group_size: int) -> Rollout:
        episode_ids, episode, lengths = th.unique_consecutive(rows["episode_ids"], return_inverse=True, return_counts=True)
        last = lengths.cumsum(0) - 1
        end = rows["ends"].index_select(0, last)
        groups, group = th.unique_consecutive(episode_ids // group_size, return_inverse=True)
        extra = {name: rows[name].to(self.device) for name in self.extra}
        for name in self._of_episodes:
            extra[name] = extra[name].index_select(0, last.to(self.device))
        if "task" in extra:
            check_one_task(rows["task"], extra["task"].to(rows["task"].device), episode)
        fields: Rows = {name: extra.pop(name) for name in set(extra) & set(Rollout._fields)}
        if self.static_keys:
            static = [rows["static"][episode_id] for episode_id in episode_ids.tolist()]
            fields["instance"] = th.arange(len(static), device=self.device)
            fields["instances"] = {key: th.stack([parts[key] for parts in static]) for key in self.static_keys}
        return Rollout(
            observations=rows["obs"],
            actions=rows["actions"],
            log_probs=rows["log_probs"],
            rewards=rows["rewards"].to(self.device),
            t=rows["t"].to(self.device),
            episode=episode.to(self.device),
            group=group.to(self.device),
            terminated=(end == 1).to(self.device),
            truncated=(end == 2).to(self.device),
            final_observations=self._final_observations(rows, episode_ids, last),
            n_groups=len(groups),
            max_length=int(lengths.max()),
            seed_group=(episode_ids // group_size).to(self.device),
            extra=extra,
            **fields,
        )

    def _final_observations(self, rows: Rows, episode_ids: th.Tensor, last: th.Tensor) -> TensorOrDict:
        """``[E, ...]`` observation after the last step of each episode, zeros where nobody will ask.

        :param episode_ids: ``[E]`` id of each episode
        :param last: ``[E]`` its last row
        """
        final_obs = rows["final_obs"]
        id_list = episode_ids.tolist()

        def stack(buffer: th.Tensor, key: str | None) -> th.Tensor:
            out = np.zeros((len(id_list), *buffer.shape[2:]), dtype=th.zeros(0, dtype=buffer.dtype).numpy().dtype)
            for row, episode_id in enumerate(id_list):
                found = final_obs.get(episode_id) if key is None else final_obs.get(episode_id, {}).get(key)
                if found is not None:
                    out[row] = found
            return th.from_numpy(out).to(self.device)

        seen = self.steps["observations"]
        return {key: stack(buffer, key) for key, buffer in seen.items()} if isinstance(seen, dict) else stack(seen, None)

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> NoReturn:
        raise NotImplementedError("A GroupRolloutBuffer hands out whole rollouts: use pack().")


def _of_episode_ids(of_episode: dict[int, Any], episode_ids: th.Tensor) -> dict[int, Any]:
    """Entries of some episodes alone."""
    wanted = set(episode_ids.tolist()) if of_episode else set()
    return {episode_id: value for episode_id, value in of_episode.items() if episode_id in wanted}


def _row_view(tensor: th.Tensor) -> np.ndarray | th.Tensor:
    """NumPy's view of a tensor on the CPU; another one as it is."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def _readable(column: th.Tensor) -> np.ndarray:
    array: np.ndarray = column.cpu().numpy()
    if column.device.type != "cpu":
        array.flags.writeable = False
    return array
