"""Action masks: the same distribution as MaskablePPO's, from every source, and never an action that is not valid."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import make_masked_proba_distribution
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecExtractDictObs, VecNormalize

from sb_grpo import GRPO, SeededResetWrapper, evaluate_paired
from sb_grpo.policies.heads import make_discrete_head
from sb_grpo.policies.masks import allows, checked, choices_of, drawn, put_masks
from sb_grpo.tasks.memory.t_maze import TensorTMaze10

SPACES = [spaces.Discrete(4), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)]
NAMES = ["discrete", "multi_discrete", "multi_binary"]


class Moody(gym.Env[Any, Any]):
    """Draws anew which actions are valid after every step, and counts those that are not; the reward is their sum."""

    def __init__(self, space: spaces.Space = SPACES[0], source: str = "method", steps: int = 20) -> None:
        self.action_space, self.source, self.steps = space, source, steps
        self.sizes = choices_of(space)
        seen = spaces.Box(-1.0, 1.0, (3,))
        self.observation_space = seen
        if source == "observation":
            self.observation_space = spaces.Dict({"seen": seen, "action_mask": spaces.MultiBinary(sum(self.sizes))})
        if source == "method":
            self.action_masks = self._masks
        self.invalid = 0

    def _masks(self) -> np.ndarray:
        return self.mask

    def _look(self) -> tuple[Any, dict[str, Any]]:
        parts = []
        for size in self.sizes:
            part = self.np_random.random(size) < 0.4
            part[self.np_random.integers(size)] = True
            parts.append(part)
        self.mask = np.concatenate(parts)
        obs = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        seen = {"seen": obs, "action_mask": self.mask.astype(np.int8)} if self.source == "observation" else obs
        return seen, {"action_mask": self.mask.astype(np.int8)} if self.source == "info" else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._look()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen, start = np.atleast_1d(action), 0
        for choice, size in zip(chosen, self.sizes, strict=True):
            self.invalid += not self.mask[start + int(choice)]
            start += size
        self.t += 1
        obs, info = self._look()
        return obs, float(chosen.sum()), self.t >= self.steps, False, info


def policy_of(source: str) -> str:
    return "MultiInputPolicy" if source == "observation" else "MlpPolicy"


def invalid_in(venv: Any) -> int:
    return sum(venv.get_attr("invalid"))


@pytest.mark.parametrize("space", SPACES, ids=NAMES)
def test_the_distribution_is_maskable_ppos(space: spaces.Space) -> None:
    """Log-probabilities, entropies and their gradients, for 200 random masks."""
    rng, head = np.random.default_rng(0), make_discrete_head(space)
    ours = th.randn(200, 3 if isinstance(space, spaces.MultiBinary) else sum(choices_of(space)), requires_grad=True)
    masks = rng.random((200, sum(choices_of(space)))) < 0.5
    for part in np.split(np.arange(masks.shape[1]), np.cumsum(choices_of(space))[:-1]):
        masks[np.arange(200), rng.choice(part, 200)] = True
    out = put_masks(ours, th.from_numpy(masks))
    actions = head.sample(out, head.noise(out))
    theirs = make_masked_proba_distribution(space)
    # MaskablePPO has two logits per bit, we have their difference.
    logits = th.stack([th.zeros_like(ours), ours], dim=2).flatten(1) if isinstance(space, spaces.MultiBinary) else ours
    theirs.proba_distribution(logits)
    theirs.apply_masking(masks)
    entropy = head.entropy(out)
    assert entropy is not None
    th.testing.assert_close(head.log_prob(out, actions), theirs.log_prob(actions))
    th.testing.assert_close(entropy, theirs.entropy())
    for a, b in ((head.log_prob(out, actions), theirs.log_prob(actions)), (entropy, theirs.entropy())):
        (one,), (other,) = (th.autograd.grad(x.sum(), ours, retain_graph=True) for x in (a, b))
        th.testing.assert_close(one, other)
    assert head.log_prob(out, actions).isfinite().all()


@pytest.mark.parametrize("space", SPACES, ids=NAMES)
@pytest.mark.parametrize("source", ["method", "info", "observation"])
def test_no_invalid_action_is_sent_from_any_source(source: str, space: spaces.Space) -> None:
    venv, judged = (make_vec_env(lambda: Moody(space, source), n) for n in (4, 2))
    model = GRPO(policy_of(source), venv, n_steps=64, seed=0, ent_coef=0.01, kl_coef=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(768, EvalCallback(judged, eval_freq=50, verbose=0, warn=False))
        evaluate_policy(model, model.get_env(), 6, warn=False)
        evaluate_policy(model, judged, 6, deterministic=False, warn=False)
        alone = Moody(space, source)
        evaluate_policy(model, alone, 3, warn=False)
        evaluate_paired(model, model, judged, 4)
    assert model.mask_source == source
    assert (invalid_in(venv), invalid_in(judged), alone.invalid) == (0, 0, 0)


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.parametrize("by_number", [False, True], ids=["steps", "groups"])
@pytest.mark.parametrize("source", ["method", "info", "observation"])
def test_episodes_that_a_time_limit_cuts_keep_their_last_masks(source: str, by_number: bool, memory: str | None) -> None:
    """So do those that the rollout cuts, and those that somebody else's reset ends."""
    venv = make_vec_env(lambda: gym.wrappers.TimeLimit(Moody(SPACES[0], source), 7), 4)
    size: dict[str, Any] = {"n_groups": 2} if by_number else {"n_steps": 40}
    kwargs = {} if memory is None else {"memory": memory, "memory_size": 4}
    model = GRPO(policy_of(source), venv, group_size=2, batch_size=32, seed=0, policy_kwargs=kwargs, **size)
    rollout = model.collect()
    assert rollout.truncated.any()
    final = rollout.final_observations
    if source == "observation":
        assert isinstance(final, dict)
        cut = final["action_mask"][rollout.truncated]
        assert cut.any(dim=1).all() and final["seen"][rollout.truncated].any(dim=1).all()
    venv.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.update(model.collect())
    assert invalid_in(venv) == 0


@pytest.mark.slow
def test_no_invalid_action_in_a_hundred_thousand_steps() -> None:
    venv = make_vec_env(lambda: Moody(SPACES[1], "method"), 8)
    GRPO("MlpPolicy", venv, n_steps=512, batch_size=1024, n_epochs=1, seed=0).learn(100_000)
    assert invalid_in(venv) == 0


def test_without_masks_the_same_env_sees_invalid_actions() -> None:
    venv = make_vec_env(lambda: Moody(source="none"), 4)
    GRPO("MlpPolicy", venv, n_steps=64, seed=0).learn(256)
    assert invalid_in(venv) > 100


def test_the_outermost_method_counts() -> None:
    """MaskablePPO's ``use_masking=False`` is a wrapper that allows everything."""
    venv = make_vec_env(lambda: ActionMasker(Moody(), lambda env: np.ones(4, bool)), 4)
    assert GRPO("MlpPolicy", venv, n_steps=64, seed=0).learn(256).mask_source == "method"
    assert invalid_in(venv) > 100


def test_masks_reach_through_processes_and_wrappers() -> None:
    made = make_vec_env(Moody, 2, vec_env_cls=SubprocVecEnv, wrapper_class=SeededResetWrapper)
    venv = VecNormalize(made, norm_reward=False)
    model = GRPO("MlpPolicy", venv, n_steps=32, seed=0).learn(128)
    assert model.mask_source == "method" and invalid_in(venv) == 0
    venv.close()


def test_taxi_is_masked_as_it_comes() -> None:
    model = GRPO("MlpPolicy", make_vec_env("Taxi-v4", 4), n_steps=64, seed=0).learn(256)
    assert model.mask_source == "info"
    env = gym.make("Taxi-v4")
    obs, info = env.reset(seed=0)
    chosen = {int(model.predict(obs, action_masks=info["action_mask"])[0]) for _ in range(100)}
    assert chosen == set(np.flatnonzero(info["action_mask"]))


def test_predict_takes_masks_and_says_when_it_has_none() -> None:
    model = GRPO("MlpPolicy", make_vec_env(Moody, 2), n_steps=32, seed=0).learn(64)
    obs, only_two = np.zeros((50, 3), np.float32), np.tile([False, False, True, False], (50, 1))
    assert (model.predict(obs, action_masks=only_two)[0] == 2).all()
    assert model.predict(obs[0], action_masks=only_two[0])[0] == 2
    with pytest.warns(UserWarning, match="not told which actions are valid"):
        model.predict(obs)
    with pytest.raises(ValueError, match="50 of 4 entries"):
        model.predict(obs, action_masks=only_two[:3])


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.parametrize("space", SPACES, ids=NAMES)
def test_the_policy_takes_masks_as_maskable_ppos_does(space: spaces.Space, memory: str | None) -> None:
    """``get_distribution``, ``evaluate_actions`` and ``forward``, by the same keyword; the observation may hold them too."""
    policy = GRPO("MlpPolicy", Moody(space), policy_kwargs=dict(memory=memory), seed=0, device="cpu").policy
    rng, m = np.random.default_rng(0), sum(choices_of(space))
    seen, masks = th.zeros(100, 3), np.stack([np.arange(m) % 2 == 0] * 100)
    if isinstance(space, spaces.MultiDiscrete):
        masks[:, -1] = rng.random(100) < 0.5
    beside = {"": seen, "action_mask": th.as_tensor(masks)}
    distribution = policy.get_distribution(seen, action_masks=masks)
    actions, _, log_prob = policy(seen, action_masks=th.as_tensor(masks))
    for chosen in (actions, policy._predict(seen, action_masks=masks), distribution.sample()):
        assert all(allows(space, mask, action) for mask, action in zip(masks, chosen.numpy(), strict=True))
    for known in (policy.evaluate_actions(seen, actions, action_masks=masks), policy.evaluate_actions(beside, actions)):
        th.testing.assert_close(known[1], log_prob)
        th.testing.assert_close(known[2], distribution.entropy())
    th.testing.assert_close(distribution.log_prob(actions), log_prob)
    everything = np.ones_like(masks)
    th.testing.assert_close(
        policy.get_distribution(beside, action_masks=everything).entropy(), policy.get_distribution(seen).entropy()
    )
    with pytest.raises(ValueError, match="allows no action"):
        policy.get_distribution(seen, action_masks=0 * masks)


def test_the_policy_refuses_masks_of_box_actions() -> None:
    policy = GRPO("MlpPolicy", "Pendulum-v1", device="cpu").policy
    for ask in (policy, policy.get_distribution, policy._predict):
        with pytest.raises(ValueError, match="action_masks are for discrete actions"):
            ask(th.zeros(2, 3), action_masks=np.ones((2, 1)))


def test_a_saved_model_knows_where_its_masks_come_from(tmp_path: Any) -> None:
    GRPO("MlpPolicy", make_vec_env(Moody, 2), n_steps=32, seed=0).learn(64).save(tmp_path / "model")
    for trusted in (True, False):
        loaded = GRPO.load(tmp_path / "model", trusted=trusted)
        env = Moody()
        evaluate_policy(loaded, env, 3, warn=False)
        assert loaded.mask_source == "method" and env.invalid == 0


def test_the_mask_is_no_network_input() -> None:
    model = GRPO("MultiInputPolicy", make_vec_env(lambda: Moody(source="observation"), 2), n_steps=32, seed=0)
    assert model.policy.features_dim == 3


def test_tensor_envs_are_masked_by_their_property() -> None:
    env = TensorTMaze10(16, masks=True)
    model = GRPO("MlpPolicy", env, n_steps=64, seed=0, device="cpu").learn(2048)
    assert model.mask_source == "tensor"
    rollout = model.collect()
    assert rollout is not None and isinstance(rollout.observations, dict)
    valid = rollout.observations["action_mask"].gather(1, rollout.actions.unsqueeze(1))
    assert bool(valid.all()), "an invalid action was taken"
    _returns, lengths = evaluate_policy(model, env, 32, return_episode_rewards=True, warn=False)
    assert set(lengths) == {11}, "with masks every move leads somewhere"


def test_masks_teach_what_cannot_be_learnt_without() -> None:
    """One action of 200 is valid, and the env ends the episode at any other: chance is 1 in 200 per step."""

    class Narrow(gym.Env[Any, Any]):
        observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(200)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.t = 0
            return np.zeros(1, np.float32), {}

        def action_masks(self) -> np.ndarray:
            return np.arange(200) == (7 * self.t) % 200

        def step(self, action: Any) -> Any:
            right = int(action) == (7 * self.t) % 200
            self.t += 1
            return np.zeros(1, np.float32), float(right), not right or self.t == 20, False, {}

    model = GRPO("MlpPolicy", make_vec_env(Narrow, 4), n_steps=64, seed=0).learn(256)
    assert evaluate_policy(model, Narrow(), 3, warn=False)[0] == 20


@pytest.mark.parametrize(
    ("masks", "match"),
    [
        ([[1, 0, 0]], "1 of 4 entries"),
        ([[1, 0, 0, 2]], "use booleans, or 0 and 1"),
        ([["a", "b", "c", "d"]], "use booleans, or 0 and 1"),
        ([[0, 0, 0, 0]], "env 0 allows no action"),
    ],
)
def test_bad_masks_are_named(masks: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        checked(masks, spaces.Discrete(4), 1, "of env {index}")


@pytest.mark.parametrize("space", [*SPACES, spaces.Discrete(4, start=3), spaces.MultiDiscrete([2, 3], start=[1, -1])], ids=str)
def test_random_actions_are_drawn_among_the_valid_ones(space: spaces.Space) -> None:
    """Each of them, and no other; what they are is what ``allows`` lets pass."""
    space.seed(0)
    m = sum(choices_of(space))
    every = {str(np.asarray(space.sample()).tolist()) for _ in range(300)}
    mask = np.ones(m, bool)
    mask[0] = False
    few = [drawn(space, mask) for _ in range(300)]
    assert all(space.contains(action) and allows(space, mask, action) for action in few)
    kept = {str(np.asarray(action).tolist()) for action in few}
    n_first = choices_of(space)[0]
    assert kept < every and len(kept) == len(every) * (n_first - 1) // n_first
    assert not all(allows(space, mask, space.sample()) for _ in range(300))
    assert allows(space, None, space.sample()) and space.contains(drawn(space, None))


def test_a_choice_without_an_action_is_named() -> None:
    with pytest.raises(ValueError, match=r"of env 1 allows no action for choice 1"):
        checked([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], spaces.MultiDiscrete([2, 3]), 2, "of env {index}")


@pytest.mark.parametrize("source", ["method", "info", "observation"])
def test_a_row_without_a_valid_action_stops_with_env_and_step(source: str) -> None:
    class Dead(Moody):
        def _look(self) -> Any:
            obs, info = super()._look()
            if self.t == 5:
                self.mask[:] = False
                for holder in (obs, info):
                    if isinstance(holder, dict) and "action_mask" in holder:
                        holder["action_mask"] = self.mask.astype(np.int8)
            return obs, info

    model = GRPO(policy_of(source), make_vec_env(lambda: Dead(source=source), 2), n_steps=32, seed=0)
    with pytest.raises(ValueError, match=r"env 0 at vector step \d+.* allows no action"):
        model.learn(64)


def test_an_info_that_drops_its_mask_is_named() -> None:
    class Forgetful(Moody):
        def _look(self) -> Any:
            obs, info = super()._look()
            return obs, info if self.t < 3 else {}

    model = GRPO("MlpPolicy", make_vec_env(lambda: Forgetful(source="info"), 2), n_steps=32, seed=0)
    with pytest.raises(ValueError, match=r"info of env 0 at vector step .* has no 'action_mask'"):
        model.learn(64)


def test_what_cannot_be_masked_is_refused() -> None:
    class Boxed(Moody):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(-1, 1, (2,))

    with pytest.raises(ValueError, match="masks are for Discrete"):
        GRPO("MlpPolicy", make_vec_env(Boxed, 2))
    dropping = VecExtractDictObs(DummyVecEnv([lambda: Moody(source="observation")]), "seen")
    with pytest.raises(ValueError, match="drops observation\\['action_mask'\\]"):
        GRPO("MlpPolicy", dropping)

    class AsBox(Moody):
        def __init__(self) -> None:
            super().__init__(source="observation")
            self.observation_space["action_mask"] = spaces.Box(0, 1, (4,), np.float32)  # type: ignore[index]

    with pytest.raises(ValueError, match="norm_obs_keys=\\['seen'\\]"):
        GRPO("MultiInputPolicy", VecNormalize(make_vec_env(AsBox, 2), norm_obs_keys=["seen", "action_mask"]))


def test_ppo_trains_on_the_env_afterwards_as_ever() -> None:
    venv = make_vec_env(lambda: Moody(source="info"), 2)
    GRPO("MlpPolicy", venv, n_steps=32, seed=0).learn(64)
    PPO("MlpPolicy", venv, n_steps=32, batch_size=32, n_epochs=1).learn(64)


def test_an_env_without_a_valid_action_stops_the_tensor_path() -> None:
    class Dead(TensorTMaze10):
        @property
        def action_masks(self) -> th.Tensor:
            return th.stack([self.state[:, 0] != 4] * 3, dim=1)

    with pytest.raises(ValueError, match=r"action_masks of env \d+ at step \d+ of this rollout allow no action"):
        GRPO("MlpPolicy", Dead(16), n_steps=64, seed=0, device="cpu").learn(1024)


class Duel(Moody):
    """Whoever plays it meets an opponent, which is asked inside the step about positions of its own."""

    opponent: Any = None

    def step(self, action: Any) -> Any:
        if self.opponent is not None:
            self.opponent.predict(np.zeros((7, 3), np.float32))  # another number of rows than there are envs
        return super().step(action)


@pytest.mark.parametrize("evaluated", ["another", "itself"])
def test_an_opponent_asked_inside_the_env_does_not_get_the_masks_of_the_evaluated(evaluated: str) -> None:
    opponent = GRPO("MlpPolicy", Duel(), n_steps=32, seed=0).learn(32)
    model = opponent if evaluated == "itself" else PPO("MlpPolicy", Moody(), n_steps=32, batch_size=32)
    env = Duel()
    env.opponent = opponent
    with pytest.warns(UserWarning, match="not told which actions are valid"):
        evaluate_policy(model, env, 2, warn=False)
    assert evaluated == "another" or env.invalid == 0, "the evaluated player still has its own"


def test_who_passes_predict_on_gets_the_masks_and_a_callback_does_not() -> None:
    model = GRPO("MlpPolicy", Moody(), n_steps=32, seed=0).learn(32)
    env = Moody()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate_policy(SimpleNamespace(predict=lambda obs, **kw: model.predict(obs, **kw)), env, 3, warn=False)  # type: ignore[arg-type]
    assert env.invalid == 0
    with pytest.warns(UserWarning, match="not told which actions are valid"):  # what it asks about may be the step before
        evaluate_policy(model, env, 1, callback=lambda known, _: model.predict(known["observations"]), warn=False)


@pytest.mark.parametrize("space", [SPACES[0], spaces.Box(-1, 1, (2,))], ids=["discrete", "box"])
def test_masks_in_the_infos_of_steps_alone_are_refused(space: Any) -> None:
    class Late(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            return *self.env.step(action)[:4], {"action_mask": np.ones(4, bool)}

    name = "CartPole-v1" if isinstance(space, spaces.Discrete) else "Pendulum-v1"
    model = GRPO("MlpPolicy", make_vec_env(lambda: Late(gym.make(name)), 2), n_steps=32, seed=0)
    match = "info of env 0 at vector step 1 has 'action_mask'" if name == "CartPole-v1" else "masks are for Discrete"
    with pytest.raises(ValueError, match=match):
        model.learn(64)


def test_action_masks_that_is_no_method_without_arguments_is_refused() -> None:
    class Array(Moody):
        def _look(self) -> Any:
            found = super()._look()
            self.action_masks = self.mask
            return found

    class Asking(Moody):
        def _masks(self, state: Any) -> Any:  # type: ignore[override]
            return self.mask

    class Broken(Moody):
        def _masks(self) -> Any:
            return len(3)  # type: ignore[arg-type]

    for kind, message in ((Array, "not callable"), (Asking, "missing 1 required positional argument: 'state'")):
        for vec_env, words in ((DummyVecEnv, message), (SubprocVecEnv, "its own error stands above")):
            made = make_vec_env(kind, 1, vec_env_cls=vec_env, wrapper_class=SeededResetWrapper)
            model = GRPO("MlpPolicy", made, n_steps=32, seed=0)
            with pytest.raises(ValueError, match=f"{words}.*a method without arguments that returns one mask"):
                model.learn(32)
    whole = make_vec_env(lambda: Moody(source="none"), 2)
    whole.action_masks = np.ones((2, 4), bool)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"action_masks of DummyVecEnv is a ndarray.*a method without arguments"):
        GRPO("MlpPolicy", whole, n_steps=32, seed=0)
    with pytest.raises(TypeError, match="has no len"):  # an error of the env's own stays what it is
        GRPO("MlpPolicy", Broken(), n_steps=32, seed=0).learn(32)


def test_what_gym_returns_is_no_observation() -> None:
    env = make_vec_env(lambda: Moody(source="none"), 2)
    model = GRPO("MlpPolicy", env, n_steps=32, seed=0)
    env.reset()
    for given in (Moody(source="none").reset(seed=0), env.step(np.zeros(2, int))):
        with pytest.raises(ValueError, match="predict\\(\\) was given a tuple of"):
            model.predict(given)  # type: ignore[arg-type]
    assert model.predict((0.1, 0.2, 0.3))[0].shape == ()  # type: ignore[arg-type]


def test_paired_evaluation_spares_a_policy_that_knows_no_masks() -> None:
    model, other = (kind("MlpPolicy", make_vec_env(Moody, 2), n_steps=32, seed=0) for kind in (GRPO, PPO))
    assert evaluate_paired(model, other, make_vec_env(Moody, 2), 2) is not None
