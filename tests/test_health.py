"""Health checks: for every rule a training that breaks it and one that does not; said once, with patience."""

import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from sb_grpo import GRPO, CountBonus
from sb_grpo.callbacks import RULES, STRICT_RULES, HealthCallback, HealthWarning, Rule
from sb_grpo.callbacks.health import Watch
from tests.helpers import ProbeEnv
from tests.test_grpo import record, weights
from tests.test_simulator_groups import Together

SMALL = dict(n_steps=64, batch_size=64, n_epochs=4, group_size=4, learning_rate=3e-3, seed=0, device="cpu")


class Target(gym.Env):
    """One step: the action should be 0.3; the observation says nothing about it, but a part of the reward.

    ``turns``: which part, changes every 64 episodes, so that what was learnt about it is always wrong; and returns are far
    below 0, so that chance does not let them grow by half.
    """

    unseeded = np.random.default_rng(0)  # one for all envs, so that their starts differ

    def __init__(self, scale: float = 1.0, seeded: bool = True, turns: bool = False) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.scale, self.seeded, self.turns, self.n = scale, seeded, turns, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        rng = self.np_random if self.seeded else self.unseeded
        self.obs = rng.uniform(-1, 1, 3).astype(np.float32)
        return self.obs, {}

    def step(self, action):
        turn = self.n // 64 % 6 if self.turns else 0
        part = float(self.obs[turn % 3]) * (1 if turn < 3 else -1)
        self.n += 1
        reward = -self.scale * float(action[0] - 0.3) ** 2 + 10.0 * part - 20.0 * self.turns
        return self.obs, reward, True, False, {}


class Outlier(gym.Wrapper):
    """CartPole with one large reward at step 100."""

    def __init__(self, size):
        super().__init__(gym.make("CartPole-v1"))
        self.size, self.n = size, 0

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        self.n += 1
        return (obs, self.size if self.n == 100 else reward, *rest)


def target(**kwargs):
    return make_vec_env(lambda: Target(**kwargs), 4)


def probe(kind):
    return make_vec_env(lambda: ProbeEnv(kind), 4)


PENDULUM = "Pendulum-v1"
WILD = dict(learning_rate=0.02, clip_range=5.0)  # steps far too large, and no clip that would hold them
FAST = dict(learning_rate=3e-2)
OUTCOME = dict(advantage="outcome")
RAW = dict(normalize_advantage="none")
PAST = dict(advantage_kwargs=dict(folds=1))  # cross-fitting would see the turn in the other episodes of the rollout
#: By rule: what breaks it, and what does not: env, settings, rollouts.
CASES = {
    "start_mismatch": ((lambda: target(seeded=False), {}, 2), (target, {}, 2)),
    "few_groups": ((target, dict(group_size=64), 4), (target, dict(group_size=1), 4)),
    "dead_groups": ((lambda: probe("constant"), OUTCOME, 4), (lambda: probe("action"), OUTCOME, 4)),
    "advantage_spread": ((lambda: target(scale=1e3), RAW, 4), (lambda: target(scale=1e3), {}, 4)),
    "grad_norm": ((lambda: target(scale=1e3), RAW, 4), (lambda: target(scale=1e3), {}, 4)),
    "reward_outlier": (
        (lambda: make_vec_env(lambda: Outlier(1e9), 2), {}, 4),
        (lambda: make_vec_env(lambda: Outlier(1e3), 2), {}, 4),
    ),
    "entropy": ((lambda: probe("action"), FAST, 12), (lambda: probe("action"), dict(FAST, ent_coef=0.5), 12)),
    "noise_collapse": ((target, FAST, 30), (target, {}, 30)),
    "noise_growth": ((target, dict(FAST, ent_coef=10.0), 10), (target, FAST, 10)),
    "kl": ((lambda: make_vec_env(PENDULUM, 4), WILD, 10), (lambda: make_vec_env(PENDULUM, 4), {}, 10)),
    "useful_fraction": ((lambda: Together(64), dict(OUTCOME, n_steps=100), 4), (lambda: Together(4), OUTCOME, 4)),
    "explained_variance": ((lambda: target(turns=True), PAST, 8), (target, {}, 8)),
}


def train(make_env, settings, n_rollouts, callback=None):
    callback = callback or HealthCallback(verbose=0)
    model = GRPO("MlpPolicy", make_env(), **{**SMALL, **settings})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.learn(n_rollouts * model.steps_per_env * model.n_envs, callback=callback)
    warned = [str(w.message).split(":")[0] for w in caught if issubclass(w.category, HealthWarning)]
    return warned, callback, model


#: Thirty rollouts.
LONG = "noise_collapse"


@pytest.mark.parametrize("rule", [pytest.param(r, id=r.name, marks=[pytest.mark.slow] * (r.name == LONG)) for r in RULES])
def test_every_rule_has_a_run_that_breaks_it_and_one_that_does_not(rule):
    bad, good = CASES[rule.name]
    warned, callback, _ = train(*bad)
    assert warned.count(rule.name) == 1, callback.report()
    assert f"{rule.name} (from step" in callback.report()
    warned, callback, _ = train(*good)
    assert rule.name not in warned, callback.report()
    watch = next(w for w in callback._watches if w.rule is rule)
    assert watch.n >= 2  # it was looked at


def test_a_rule_is_said_once_and_only_when_it_lasts():
    """Patience 3: two bad rollouts are forgiven; the third breaks it, three good ones mend it, and nothing is said twice."""
    watch = Watch(Rule("r", "x", "too large: {value}", "", high=1.0, patience=3))
    warned, broken = [], []
    for x in [2, 2, 0, 2, 2, 3, 0, 2, 0, 0, 0, 2, 2, 2]:
        value = watch.look({"x": x})
        if value is not None:
            warned.append(value)
            watch.reported_at = 0
        broken.append(int(watch.broken))
    assert warned == [3] and broken == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1]
    assert (watch.n, watch.n_bad, watch.low, watch.high) == (14, 9, 0, 3)


def test_bounds():
    rule = Rule("r", "x", "", "", low=0.1, high=3.0, relative=True, unless="y")
    assert [rule.is_bad(v, first=2.0) for v in (0.1, 0.3, 5.9, 6.1, float("nan"))] == [True, False, False, True, False]
    assert np.isnan(rule.value({"z": 1.0})) and np.isnan(rule.value({"x": 1.0, "y": 1.0})) and rule.value({"x": 1}) == 1.0
    watch = Watch(rule)
    for x in (-1.0, 0.0, 4.0, 2.0):
        watch.look({"x": x})
    assert watch.first == 4.0  # the first positive value is the unit


@pytest.mark.parametrize(
    ("name", "key", "bad", "good"),
    [("dead_groups", "group/frac_zero_std", 1.0, 0.0), ("explained_variance", "train/explained_variance", -3.0, 0.9)],
)
def test_returns_that_have_grown_excuse_members_that_earn_the_same(name, key, bad, good):
    """Solved CartPole: 500 for every member, nothing to explain. MountainCar before the flag: -200 for every member."""
    rule = next(rule for rule in RULES if rule.name == name)
    cases = (([20, 100] + [500] * 6, False), ([-200] * 8, True), ([-200] + [-150] * 7, True))
    for returns, broken in cases:
        watch = Watch(rule)
        for r in returns:
            watch.look({key: bad if r in (500, -200, -150) else good, "group/baseline": r})
        assert watch.broken == broken


def test_it_is_logged_and_reported(capsys):
    model = GRPO("MlpPolicy", probe("constant"), **SMALL, advantage="outcome", n_groups=None)
    dumps = record(model)
    with pytest.warns(HealthWarning, match=r"dead_groups: In 100% of the groups .* raise group_size .*\(step 768\)"):
        model.learn(64 * 4 * 5, callback=HealthCallback())
    # What rollout k showed is judged before rollout k + 1 and logged with it.
    assert [d.get("health/dead_groups") for d in dumps] == [None, 0.0, 0.0, 1.0, 1.0]
    assert [d.get("health/n_broken") for d in dumps] == [None, 0, 0, 1, 1]
    assert all("health/kl" not in d for d in dumps)  # there was no update to look at
    out = capsys.readouterr().out
    assert "Health after 1280 steps: 1 of 12 rules broken" in out
    assert "dead_groups          BROKEN   group/frac_zero_std 1 to 1, bad in 5 of 5 rollouts" in out
    assert "kl                   -        train/approx_kl was not logged" in out


def test_it_changes_nothing_and_can_be_used_again():
    off = GRPO("MlpPolicy", probe("action"), **SMALL).learn(1024)
    callback = HealthCallback(verbose=0)
    on = GRPO("MlpPolicy", probe("action"), **SMALL).learn(1024, callback=callback)
    assert (weights(off) == weights(on)).all()
    on.learn(512, callback=callback, reset_num_timesteps=False)
    assert next(w for w in callback._watches if w.rule.name == "kl").n == 2  # the second training's own


def test_own_rules():
    slow = Rule("slow", "group/reward_mean", "The mean reward is {value:.1f}, below 2: wait.", "a test", low=2.0, patience=1)
    warned, callback, _ = train(lambda: probe("action"), {}, 2, HealthCallback((*RULES, slow), verbose=0))
    assert warned == ["slow"] and "below 2: wait." in callback.report()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Rule("r", "x", "", ""), "Rule 'r': low=-inf, high=inf bound nothing; set one"),
        (lambda: Rule("r", "x", "", "", low=2.0, high=1.0), "low=2.0, high=1.0 bound nothing; set one, or low < high"),
        (lambda: Rule("r", "x", "", "", high=1.0, patience=0), "Rule 'r': patience=0 must be at least 1 rollout"),
        (lambda: HealthCallback((*RULES, RULES[0])), r"rules: \['start_mismatch'\] are there twice"),
    ],
)
def test_bad_rules(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_other_algorithms_are_refused():
    with pytest.raises(ValueError, match=r"the model is a PPO: leave it out, or train with sb_grpo\.GRPO"):
        PPO("MlpPolicy", probe("action"), n_steps=64).learn(128, callback=HealthCallback())


def test_every_logged_rule_is_in_the_glossary():
    glossary = (Path(__file__).parents[1] / "docs/logger.md").read_text()
    page = (Path(__file__).parents[1] / "docs/health.md").read_text()
    assert all(f"`health/{rule.name}`" in glossary and f"| `{rule.name}` | `{rule.key}`" in page for rule in RULES)


@pytest.mark.parametrize(
    ("metrics", "broken"),
    [
        ({"group/advantage_std": 3.01}, {"advantage_spread"}),
        ({"group/episode_advantage": -0.11}, {"advantage_mean"}),
        ({"group/episode_advantage": 0.11, "train/explained_variance": 0.5}, set()),
        ({"train/mean_entropy": 0.09}, {"entropy"}),
        ({"train/mean_entropy": 3.1}, {"entropy"}),
        ({"train/approx_kl": 0.11}, {"kl"}),
        ({"train/grad_norm": 2.1}, {"grad_norm"}),
        ({"train/grad_norm": 5.1}, {"grad_norm", "grad_norm_high"}),
        ({"group/advantage_std": 2.9, "train/mean_entropy": 0.11, "train/approx_kl": 0.09, "train/grad_norm": 1.9}, set()),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "-".join(sorted(value)),
)
def test_strict_rules_judge_at_once(metrics, broken):
    found = {rule.name for rule in STRICT_RULES if rule.patience == 1 and rule.is_bad(rule.value(metrics), 1.0)}
    assert found == broken and all(rule.patience == 1 for rule in STRICT_RULES)


def test_the_verdict_is_public():
    health = HealthCallback(STRICT_RULES, verbose=0)
    assert health.ok and health.broken == ()
    model = GRPO("MlpPolicy", "CartPole-v1", learning_rate=0.5, n_steps=512, seed=0)
    with pytest.warns(HealthWarning):
        model.learn(2048, callback=health)
    assert not health.ok and "entropy" in health.broken


class Parts(gym.Wrapper):
    """Says of each step a task and the parts of its reward."""

    def __init__(self, tasks):
        super().__init__(gym.make("CartPole-v1"))
        self.tasks = tasks

    def step(self, action):
        *result, info = self.env.step(action)
        return *result, {**info, "rewards": {"x": 1.0, "y": -0.1}, "task": self.tasks[0]}


def test_every_figure_that_is_logged_can_be_judged():
    """Also those of episodes, tasks, objectives and bonuses, which are logged elsewhere, and at other times."""
    keys = [
        "rollout/ep_rew_mean", "rollout/ep_len_mean", "train/learning_rate", "rollout/bonus_mean", "objective/x", "task/a",
        "share/a",
    ]  # fmt: skip
    broken_by_any = dict(advice="{value}", why="", high=-1e9, patience=1)
    health = HealthCallback([Rule(name=key.replace("/", "_"), key=key, **broken_by_any) for key in keys], verbose=0)
    parts = dict(rewards=dict(objectives=dict(x=1, y=1), bonus=CountBonus()))
    tasks = dict(multitask=dict(tasks=["a", "b"], grouping="task", weights="balanced"))
    with pytest.warns(HealthWarning):
        GRPO("MlpPolicy", Parts(["a", "b"]), n_steps=64, batch_size=32, **parts, **tasks).learn(200, health, log_interval=100)
    assert health.broken == tuple(key.replace("/", "_") for key in keys)


def test_long_names_are_printed_whole(capsys):
    """SB3's table would cut these to the same 36 characters, and end the training."""
    tasks = [f"a-task-of-a-benchmark-with-very-long-names-{n}" for n in (1, 2)]
    rules = [Rule(name=f"{task}-is-solved", key="group/baseline", advice="", why="", high=1e9) for task in tasks]
    kwargs = dict(n_steps=64, batch_size=32, verbose=1, multitask=dict(tasks=tasks))
    env = DummyVecEnv([lambda: Parts(tasks), lambda: Parts(tasks[::-1])])
    GRPO("MlpPolicy", env, **kwargs).learn(400, HealthCallback(rules, verbose=0))
    warned = capsys.readouterr().out
    assert all(f"|    {name} " in warned for name in (*tasks, *(rule.name for rule in rules)))
