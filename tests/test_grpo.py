"""GRPO as an SB3 citizen: everything that a user of PPO tries, and what it logs."""

import re
import subprocess
import sys
import warnings
from collections import UserDict, UserList
from pathlib import Path
from types import MappingProxyType

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import KVWriter, Logger, configure
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnvWrapper, VecFrameStack, VecNormalize
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sb_grpo import GRPO, Clipped, MlpPolicy, SeededResetWrapper
from sb_grpo.baselines.estimators import Step
from sb_grpo.envs import make_tensor_env
from sb_grpo.logged_keys import meaning
from sb_grpo.maths.estimators import outcome
from sb_grpo.maths.returns import episode_returns
from tests.helpers import ProbeEnv

SMALL = dict(n_steps=64, batch_size=32, n_epochs=2, group_size=2, seed=0)


class Recorder(KVWriter):
    """Keeps every dump of the logger."""

    def __init__(self):
        self.dumps = []

    def write(self, key_values, key_excluded, step=0):
        self.dumps.append(dict(key_values))

    def close(self):
        pass


def record(model):
    recorder = Recorder()
    model.set_logger(Logger(None, [recorder]))
    return recorder.dumps


def weights(model):
    return th.cat([p.detach().flatten() for p in model.policy.parameters()])


def test_the_three_lines_of_the_readme():
    model = GRPO("MlpPolicy", "CartPole-v1").learn(2_100)
    assert model.num_timesteps == 4096 and model.n_envs == 1
    assert evaluate_policy(model, model.get_env(), 2)[0] > 5


@pytest.mark.parametrize("n_envs", [1, 3, 16, 4096])
def test_the_default_rollout_is_about_2048_steps_whatever_n_envs_is(n_envs):
    n_steps = GRPO("MlpPolicy", make_tensor_env("CartPole-v1", n_envs)).n_steps
    assert n_steps is not None and (2048 <= n_steps * n_envs < 2048 + n_envs or n_steps == 1)


@pytest.mark.parametrize("advantage", ["outcome", "process", "step", "state"])
@pytest.mark.parametrize("n_groups", [None, 3])
def test_every_estimator_learns_something(advantage, n_groups):
    env = make_vec_env("Pendulum-v1", 3, env_kwargs=dict(g=5.0))
    kwargs = dict(SMALL, n_steps=None if n_groups else 64, n_groups=n_groups)
    model = GRPO("MlpPolicy", env, advantage=advantage, **kwargs)
    before, dumps = weights(model), record(model)
    model.learn(1500)
    assert (weights(model) != before).any() and th.isfinite(weights(model)).all()
    if n_groups:
        assert all(d["group/n_groups"] >= n_groups for d in dumps)


@pytest.mark.parametrize(
    "options",
    [
        dict(loss="cispo", loss_kwargs=dict(clip_range_high=0.3)),
        dict(loss="sapo", loss_kwargs=dict(temperature_neg=2.0, advantage_clip=1.0, mask_truncated=True)),
        dict(loss_kwargs=dict(ratio_cap=3.0, aggregation="episode")),
        dict(loss_kwargs=dict(aggregation="constant"), advantage_kwargs=dict(baseline="median"), advantage="step"),
        dict(loss_kwargs=dict(importance_level="episode", aggregation="episode"), advantage="outcome"),
        dict(kl_coef=0.1, loss_kwargs=dict(ref_sync_interval=2, kl_correction=True), ent_coef=0.01),
        dict(target_kl=1e-5, n_epochs=5),
        dict(rewards=dict(scaling="tanh", clip=0.5), update_kwargs=dict(autocast=True)),
        dict(update_kwargs=dict(micro_batch_size=7), normalize_advantage="batch"),
        dict(group_size=1, normalize_advantage="batch", advantage_kwargs=dict(baseline="global"), advantage="outcome"),
        dict(learning_rate=lambda p: 1e-3 * p, clip_range=lambda p: 0.2 * p),
        dict(advantage=lambda rollout, options: outcome(rollout, options) * 2.0),
        dict(policy_kwargs=dict(net_arch=[8, 8], optimizer_class=th.optim.SGD)),
    ],
    ids=lambda o: "-".join(o),
)
def test_options_train_and_survive_save_and_load(options, tmp_path):
    env = make_vec_env("CartPole-v1", 4)
    model = GRPO("MlpPolicy", env, **{**SMALL, **options}).learn(600)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=env)
    th.testing.assert_close(weights(model), weights(loaded))
    loaded.learn(300, reset_num_timesteps=False)
    assert loaded.num_timesteps > model.num_timesteps


def test_micro_batches_give_the_gradient_of_the_whole_minibatch():
    results = []
    for micro in (None, 5):
        model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), update_kwargs=dict(micro_batch_size=micro), **SMALL)
        model.learn(256)
        results.append(weights(model))
    th.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


def test_target_kl_stops_the_update_early():
    steps = []
    for target_kl in (None, 1e-6):
        model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), target_kl=target_kl, **SMALL).learn(128)
        steps.append(model._n_gradient_steps)
    assert steps[1] < steps[0]


def test_the_reference_policy_holds_the_policy_back():
    distances = []
    for kl_coef in (0.0, 100.0):
        model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), kl_coef=kl_coef, **SMALL)
        start = weights(model)
        model.learn(1000)
        distances.append(float((weights(model) - start).norm()))
    assert distances[1] < 0.8 * distances[0]


def test_load_with_another_env_count_group_size_and_a_new_reference(tmp_path):
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 4), **{**SMALL, "group_size": 3}).learn(300)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=make_vec_env("CartPole-v1", 2), kl_coef=0.5)
    assert loaded.group_size == 3 and loaded.n_envs == 2 and loaded._next_group == model._next_group
    th.testing.assert_close(loaded.ref_policy.state_dict(), model.policy.state_dict())
    th.testing.assert_close(loaded.estimator.state_dict(), model.estimator.state_dict())
    loaded.learn(300)
    loaded.save(tmp_path / "with_reference")
    again = GRPO.load(tmp_path / "with_reference", env=make_vec_env("CartPole-v1", 2))
    th.testing.assert_close(again.ref_policy.state_dict(), loaded.ref_policy.state_dict())
    assert GRPO.load(tmp_path / "with_reference", advantage="step", kl_coef=0.0).estimator == Step()
    watched = GRPO.load(tmp_path / "model", env=make_vec_env("CartPole-v1", 1), batch_size=128)
    evaluate_policy(watched, watched.get_env(), 1)  # one env is enough to watch a policy that several have trained
    with pytest.warns(UserWarning, match="too few for one minibatch"):
        watched.learn(64)
    assert watched.num_timesteps == 64


@pytest.mark.parametrize("trusted", [True, False])
def test_what_follows_from_a_custom_object_is_found_anew(trusted, tmp_path):
    """As from a further argument of load(): "batch" followed from "state", which is not there any more."""
    GRPO("MlpPolicy", "CartPole-v1", **SMALL).save(tmp_path / "model")
    fresh = GRPO("MlpPolicy", "CartPole-v1", advantage="outcome", **SMALL)
    for given in (dict(custom_objects=dict(advantage="outcome")), dict(advantage="outcome")):
        loaded = GRPO.load(tmp_path / "model", trusted=trusted, **given)
        assert loaded.advantage == "outcome" and loaded.normalize_advantage == fresh.normalize_advantage == "group"
    kept = GRPO.load(tmp_path / "model", trusted=trusted, custom_objects=dict(learning_rate=1e-4))
    assert kept.normalize_advantage == "batch"


@pytest.mark.parametrize("trusted", [True, False])
def test_n_steps_is_the_number_that_its_default_stands_for(trusted, tmp_path):
    """As PPO's, which callbacks of others compute with; one that nobody has set follows the number of envs."""
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 3), batch_size=512, n_epochs=1, device="cpu")
    assert model.n_steps == model.steps_per_env == 683 and model.settings["n_steps"] == 683
    model.learn(1).save(tmp_path / "model")
    assert model.num_timesteps == 3 * 683

    def load(n_envs: int, **given: object) -> int | None:
        return GRPO.load(tmp_path / "model", make_vec_env("CartPole-v1", n_envs), trusted=trusted, **given).n_steps

    assert [load(3), load(4), load(4, n_steps=683), load(4, n_steps=None), load(4, n_groups=2)] == [683, 512, 683, 512, None]
    model.n_groups = 2
    assert model.learn(1).n_steps is None
    GRPO("MlpPolicy", make_vec_env("CartPole-v1", 3), n_steps=683, batch_size=512, device="cpu").save(tmp_path / "model")
    assert load(4) == 683


def test_saved_size_is_smaller_than_ppos(tmp_path):
    sizes = []
    for cls in (GRPO, PPO):
        cls("MlpPolicy", make_vec_env("Hopper-v5", 2), n_steps=64, batch_size=64, n_epochs=1).learn(128).save(tmp_path / "m")
        sizes.append((tmp_path / "m.zip").stat().st_size)
    assert sizes[0] < 0.85 * sizes[1]


def test_set_env_and_continued_learning():
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), **SMALL).learn(128)
    first_groups = model._next_group
    model.learn(128, reset_num_timesteps=False)
    assert model.num_timesteps == 256 and model._next_group >= first_groups
    model.set_env(make_vec_env("CartPole-v1", 2))
    model.learn(128, reset_num_timesteps=False)
    assert model.num_timesteps == 384 and model.groups.start_mismatches == 0


@pytest.mark.parametrize("advantage", ["state", "outcome"])
def test_eval_callback_with_vec_normalize_on_both_sides(advantage, tmp_path):
    env = VecNormalize(make_vec_env("CartPole-v1", 4, seed=0))
    eval_env = VecNormalize(make_vec_env("CartPole-v1", 2), training=False, norm_reward=False)
    callback = EvalCallback(eval_env, eval_freq=50, n_eval_episodes=2, log_path=str(tmp_path), verbose=0)
    checkpoints = CheckpointCallback(100, str(tmp_path), save_vecnormalize=True)
    model = GRPO("MlpPolicy", env, advantage=advantage, **SMALL).learn(1200, callback=[callback, checkpoints])
    assert len(np.load(tmp_path / "evaluations.npz")["results"]) >= 4 and list(tmp_path.glob("rl_model_*_steps.zip"))
    assert eval_env.obs_rms.count > 500  # statistics were synchronised from the training env
    assert model.groups.start_mismatches == 0


def test_rewards_are_the_raw_ones_under_vec_normalize():
    seen = []

    def spy(rollout, options):
        seen.append(rollout.rewards)
        return outcome(rollout, options)

    env = VecNormalize(make_vec_env("CartPole-v1", 2))
    GRPO("MlpPolicy", env, advantage=spy, **SMALL).learn(300)
    assert all((rewards == 1.0).all() for rewards in seen)


def test_frame_stack_and_subproc_train():
    env = make_vec_env("CartPole-v1", 2, vec_env_cls=SubprocVecEnv, wrapper_class=SeededResetWrapper, seed=0)
    model = GRPO("MlpPolicy", VecFrameStack(env, 3), **SMALL).learn(300)
    assert model.groups.start_mismatches == 0
    env.close()


def test_useful_fraction_on_cartpole_with_8_envs_and_groups_of_8():
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 8, seed=0), advantage="step", n_epochs=1, seed=0)
    dumps = record(model)
    model.learn(30_000)
    assert min(d["rollout/useful_fraction"] for d in dumps) > 0.95
    waiting = model.rollout_buffer.n_kept
    assert model._steps_trained + waiting == model.num_timesteps and model._steps_dropped == 0
    model.learn(2_048)  # a new learn() resets the envs: what still waited is thrown away and counted
    assert model._steps_dropped == waiting


def test_a_callback_that_stops_in_mid_rollout_leaves_a_usable_model():
    class StopOnce(BaseCallback):
        def _on_step(self):
            return self.n_calls != 100

    for advantage in ("state", "step"):
        model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), advantage=advantage, **SMALL)
        model.learn(1000, callback=StopOnce())
        assert model.num_timesteps == 200 and model._steps_dropped > 0
        model.learn(300, reset_num_timesteps=False)
        assert model.groups.start_mismatches == 0
    stop = StopTrainingOnMaxEpisodes(3)
    assert GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), **SMALL).learn(10_000, callback=stop).num_timesteps < 1000


@pytest.mark.parametrize("advantage", ["state", "step"])
@pytest.mark.parametrize("disturb", ["interrupt", "reset", "evaluate", "load"])
def test_learning_goes_on_with_whole_episodes_after(disturb, advantage, tmp_path):
    """Whatever happened between two calls of learn(), no episode is trained on without its beginning."""
    first_steps = []

    def spy(rollout, options):
        starts = th.cat([rollout.episode.new_ones(1, dtype=th.bool), rollout.episode.diff() != 0])
        first_steps.extend(rollout.t[starts].tolist())
        return outcome(rollout, options)

    class Interrupt(BaseCallback):
        def _on_step(self):
            if self.n_calls == 50:
                raise KeyboardInterrupt
            return True

    env = make_vec_env("Pendulum-v1", 2, seed=0)
    model = GRPO("MlpPolicy", env, advantage=spy if advantage == "step" else "state", **SMALL)
    if disturb == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            model.learn(1000, callback=Interrupt())
    else:
        model.learn(500)
    if disturb == "reset":
        model.get_env().reset()
        model.get_env().step(np.zeros((2, 1)))
    elif disturb == "evaluate":
        evaluate_policy(model, model.get_env(), 2)
    elif disturb == "load":
        model.save(tmp_path / "m")
        model = GRPO.load(tmp_path / "m", env=env, force_reset=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This rollout shows")  # of few starts: by two envs
        model.learn(900, reset_num_timesteps=False)
    assert set(first_steps) <= {0} and model.groups.start_mismatches == 0
    assert all(info["l"] == 200 for info in list(model.ep_info_buffer)[-2:])


@pytest.mark.parametrize("n_envs", [1, 2])
def test_gsde_members_are_not_copies_of_each_other(n_envs):
    returns = []

    def spy(rollout, options):
        returns.append(episode_returns(rollout, 1.0))
        return outcome(rollout, options)

    env = make_vec_env("Pendulum-v1", n_envs)
    GRPO("MlpPolicy", env, use_sde=True, advantage=spy, group_size=4, n_groups=1, n_epochs=1, seed=0).learn(1600)
    assert all(len(r.unique()) == len(r) for r in returns)


def test_kl_with_gsde_and_autocast():
    model = GRPO(
        "MlpPolicy",
        "Pendulum-v1",
        use_sde=True,
        kl_coef=0.1,
        loss_kwargs=dict(ref_sync_interval=1),
        update_kwargs=dict(autocast=True),
        **SMALL,
    ).learn(200)
    assert not model.ref_policy.training


def test_autocast_ratios_start_at_one():
    policy_kwargs = dict(log_std_init=-3.0)
    model = GRPO("MlpPolicy", "Pendulum-v1", update_kwargs=dict(autocast=True), policy_kwargs=policy_kwargs, **SMALL)
    _, callback = model._setup_learn(100)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, None)
    batch = model._training_batch.batch
    with model.autocasting():
        ratio = (model.policy.log_prob(batch.observations, batch.actions) - batch.old_log_probs).exp()
    th.testing.assert_close(ratio, th.ones_like(ratio))


def test_integer_observations_under_vec_normalize_are_not_truncated():
    class Counter(ProbeEnv):
        def __init__(self):
            super().__init__("action")
            self.observation_space = spaces.Box(-10, 10, (2,), np.int32)

        def _obs(self):
            self.bit = 0
            return self.np_random.integers(-10, 10, 2).astype(np.int32)

    env = VecNormalize(DummyVecEnv([Counter] * 2))
    model = GRPO("MlpPolicy", env, **SMALL).learn(128)
    obs = model.rollout_buffer.observations
    assert obs.dtype == np.float32 and (obs != obs.round()).any()


def test_schedules_never_fall_below_their_end():
    seen = []
    GRPO("MlpPolicy", "CartPole-v1", learning_rate=lambda p: seen.append(p) or 1e-3 * p, **SMALL).learn(100)
    assert min(seen) == 0.0


def test_a_new_seed_at_load_means_new_groups(tmp_path):
    model = GRPO("MlpPolicy", "CartPole-v1", **SMALL)
    model.save(tmp_path / "m")
    assert GRPO.load(tmp_path / "m", seed=77)._base_seed == 77


class Spy(BaseCallback):
    """What a callback gets to see."""

    def __init__(self):
        super().__init__()
        self.events, self.keys, self.steps = [], set(), []

    def _on_rollout_start(self):
        self.events.append("start")

    def _on_step(self):
        self.keys = set(self.locals)
        self.steps.append((self.num_timesteps, self.locals["rewards"].shape, self.locals["dones"].shape))
        return True

    def _on_rollout_end(self):
        self.events.append("end")


def test_callbacks_see_what_they_see_under_ppo():
    """Our loop is a second copy of SB3's: this catches drift between the two."""
    seen = {}
    for cls, kwargs in ((GRPO, SMALL), (PPO, dict(n_steps=64, batch_size=32, n_epochs=2, seed=0))):
        spy = Spy()
        model = cls("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=0), **kwargs).learn(256, callback=spy)
        seen[cls] = spy
        assert len(model.ep_info_buffer) > 0
    assert seen[GRPO].events == seen[PPO].events and seen[GRPO].steps == seen[PPO].steps
    critic_only = {"values", "log_probs", "value", "terminal_obs", "terminal_value"}
    left_over = {"idx", "done"}  # of the loop over envs for the critic
    assert seen[PPO].keys - seen[GRPO].keys <= critic_only | left_over


def test_success_rate_is_logged():
    class Success(ProbeEnv):
        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, {**info, "is_success": True} if terminated else info

    model = GRPO("MlpPolicy", Success("action"), **SMALL)
    dumps = record(model)
    model.learn(64)
    assert dumps[0]["rollout/success_rate"] == 1.0


@pytest.mark.parametrize("success", [np.array([1.0]), np.array([True, False]), np.True_], ids=["array", "of agents", "flag"])
def test_metrics_of_episodes_are_taken_as_sb3_takes_them(success):
    """Whatever NumPy can average is a success rate; what it cannot is nobody's business where nothing is logged."""

    class Success(ProbeEnv):
        def step(self, action):
            obs, reward, terminated, truncated, _ = super().step(action)
            return obs, reward, terminated, truncated, {"is_success": success, "episode": {"r": np.array([2.0]), "l": 1}}

    model = GRPO("MlpPolicy", DummyVecEnv([lambda: Success("action")]), **SMALL)
    dumps = record(model)
    model.learn(64)
    assert dumps[0]["rollout/success_rate"] == np.mean(success) and dumps[0]["rollout/ep_rew_mean"] == 2.0


EXPECTED_KEYS = """
rollout/ep_rew_mean rollout/ep_len_mean rollout/useful_fraction rollout/pending_steps rollout/n_steps time/fps
group/n_groups group/frac_zero_std group/start_mismatch group/baseline group/return_std group/reward_mean group/reward_std
group/advantage_mean group/advantage_std train/explained_variance train/policy_gradient_loss train/entropy_loss train/kl_loss
train/loss train/mean_entropy train/approx_kl train/clip_fraction train/clip_fraction_low train/clip_fraction_high
train/grad_norm train/std train/clip_range train/learning_rate train/n_gradient_steps""".split()


def test_tensorboard_gets_scalars_histogram_and_hyperparameters(tmp_path):
    model = GRPO("MlpPolicy", "Pendulum-v1", tensorboard_log=str(tmp_path), **{**SMALL, "n_steps": 200}).learn(600)
    events = EventAccumulator(str(tmp_path / "GRPO_1")).Reload()
    scalars = events.Tags()["scalars"]
    assert set(EXPECTED_KEYS) <= set(scalars)
    assert all(np.isfinite(e.value) for key in EXPECTED_KEYS for e in events.Scalars(key))
    assert "group/advantages" in events.Tags()["histograms"]
    assert "_hparams_/experiment" in events.summary_metadata or "_hparams_/experiment" in events.Tags().get("tensors", [])
    assert events.Scalars("train/n_gradient_steps")[-1].value == model._n_gradient_steps - 12
    glossary = (Path(__file__).parents[1] / "docs/logger.md").read_text()
    assert all(f"`{key}`" in glossary for key in [*scalars, "group/advantages"] if not key.startswith("_hparams_"))


def test_tensorboard_shows_the_meaning_of_each_key_as_the_page_does(tmp_path):
    table = {}
    for line in (Path(__file__).parents[1] / "docs/logger.md").read_text().splitlines():
        if line.startswith("| `"):
            keys, text = line.strip("| ").split(" | ")
            for key in keys.replace("`", "").split(", "):
                table[key] = re.sub(r" \(\[[^]]*\]\([^)]*\)\)", "", text)
    del table["group/advantages"]  # a histogram
    assert {key: meaning(key) for key in table} == table
    model = GRPO("MlpPolicy", "Pendulum-v1", tensorboard_log=str(tmp_path), **SMALL).learn(130)
    model.learn(130, reset_num_timesteps=False)  # a second writer, into the same folder
    events = EventAccumulator(str(tmp_path / "GRPO_1")).Reload()
    for key in EXPECTED_KEYS:
        assert events.summary_metadata[key].summary_description == meaning(key)
        assert len({e.step for e in events.Scalars(key)}) == len(events.Scalars(key))  # none is written twice


def test_verbose_tables_hold_scalars_only(capsys):
    GRPO("MlpPolicy", "CartPole-v1", verbose=1, **SMALL).learn(130)
    out = capsys.readouterr().out
    assert "useful_fraction" in out and "tensor" not in out and "HParam" not in out


def test_progress_bar_and_custom_logger(tmp_path):
    model = GRPO("MlpPolicy", "CartPole-v1", **SMALL)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(130, progress_bar=True)
    assert "group/n_groups" in (tmp_path / "progress.csv").read_text()


SCRIPT = """
import torch as th; th.set_num_threads(1)
from stable_baselines3.common.env_util import make_vec_env
from sb_grpo import GRPO
env = make_vec_env({env!r}, 3, seed=1)
model = GRPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=2, seed=1, advantage={advantage!r})
model.learn(600)
print(sum(float(p.detach().double().abs().sum()) for p in model.policy.parameters()).hex())
"""


@pytest.mark.parametrize(
    ("env", "advantage"), [("CartPole-v1", "step"), pytest.param("Pendulum-v1", "state", marks=pytest.mark.slow)]
)
def test_same_seed_same_weights_here_and_in_another_process(env, advantage, capsys):
    results = []
    for _ in range(2):
        exec(SCRIPT.format(env=env, advantage=advantage), {})
        results.append(capsys.readouterr().out.strip())
    code = SCRIPT.format(env=env, advantage=advantage)
    results.append(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    assert len(set(results)) == 1


def test_seed_none_draws_a_seed_and_a_gym_env_works():
    model = GRPO("MlpPolicy", gym.make("CartPole-v1"), n_steps=64, n_epochs=1).learn(64)
    assert model.seed is None and model._base_seed is not None


def test_a_diverging_update_stops_and_gives_the_weights_back():
    class Diverging(Clipped):
        def surrogate(self, log_prob, ratio, advantages, clip):
            return super().surrogate(log_prob, ratio, advantages, clip) * 3e38 * 10.0

    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), loss=Diverging(), **SMALL)
    before = weights(model)
    with pytest.raises(ValueError, match=r"The gradient of .* was not finite in gradient step"):
        model.learn(10_000, reset_num_timesteps=False)
    assert th.equal(weights(model), before)


def test_rollouts_without_any_spread_do_not_move_the_policy():
    model = GRPO("MlpPolicy", ProbeEnv("constant"), advantage="outcome", **SMALL)
    dumps, before = record(model), weights(model)
    model.learn(512)
    assert (weights(model) == before).all()
    assert all(d["group/frac_zero_std"] == 1.0 for d in dumps)


@pytest.mark.parametrize("aggregation", ["step", "episode", "constant"])
@pytest.mark.parametrize("more", [{}, dict(micro_batch_size=2)], ids=["whole", "in-parts"])
@pytest.mark.parametrize("env", ["host", "tensor"])
def test_rollouts_without_any_signal_go_by_with_every_aggregation(aggregation, more, env):
    """Nothing is left to weigh; MountainCar's members all return -200."""
    envs = make_vec_env(lambda: ProbeEnv("constant"), 2) if env == "host" else make_tensor_env("MountainCar-v0", 2)
    settings = dict(loss_kwargs=dict(aggregation=aggregation), update_kwargs=more)
    model = GRPO("MlpPolicy", envs, n_steps=8, group_size=2, advantage="outcome", n_epochs=1, **settings).learn(16)
    assert model._n_gradient_steps == 0 and model.last_update.n_gradient_steps == 0


def test_parameters_of_a_saved_model_go_into_one_without_a_baseline(tmp_path):
    model = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), **SMALL).learn(128)
    model.save(tmp_path / "model")
    other = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), advantage="outcome", **SMALL)
    other.set_parameters(tmp_path / "model")
    assert th.equal(weights(other), weights(model))


def test_a_wrapper_that_changes_rewards_above_vec_normalize_is_refused():
    class Thousand(VecEnvWrapper):
        def reset(self):
            return self.venv.reset()

        def step_wait(self):
            obs, rewards, dones, infos = self.venv.step_wait()
            return obs, np.full_like(rewards, 1000.0), dones, infos

    def normalized():
        return VecNormalize(make_vec_env("CartPole-v1", 2))

    GRPO("MlpPolicy", VecFrameStack(normalized(), 2), **SMALL).learn(128)
    model = GRPO("MlpPolicy", Thousand(normalized()), **SMALL)
    before = weights(model).clone()
    with pytest.raises(ValueError, match=r"between VecNormalize and the model changes rewards.*put VecNormalize around"):
        model.learn(128)
    assert th.equal(weights(model), before)

    class Generous(VecNormalize):
        def step_wait(self):
            obs, rewards, dones, infos = super().step_wait()
            return obs, rewards + 1.0, dones, infos

    with pytest.raises(ValueError, match=r"between VecNormalize and the model changes rewards"):
        GRPO("MlpPolicy", Generous(make_vec_env("CartPole-v1", 2)), **SMALL).learn(128)
    dumps = record(model := GRPO("MlpPolicy", VecNormalize(Thousand(make_vec_env("CartPole-v1", 2))), **SMALL))
    model.learn(128)
    assert dumps[-1]["group/reward_mean"] == 1000.0


class Square(BaseFeaturesExtractor):
    def __init__(self, observation_space):
        super().__init__(observation_space, 2)

    def forward(self, observations):
        return observations * 0.0 + 1e19


class Logarithm(BaseFeaturesExtractor):
    def __init__(self, observation_space):
        super().__init__(observation_space, 2)

    def forward(self, observations):
        return th.log(observations.clamp(min=0.0))


@pytest.mark.parametrize(
    ("extractor", "expected"),
    [
        # finite, its square is not
        (Square, r"Feature \d .* is 1e\+19.*, but the fit of values needs .*The policy has not been"),
        (
            Logarithm,
            "At vector step .* the policy's outputs are not finite: its weights are finite, so its features extractor",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:.*Box.*")
def test_features_that_cannot_be_standardised_are_named(extractor, expected):
    model = GRPO("MlpPolicy", ProbeEnv("action"), policy_kwargs=dict(features_extractor_class=extractor), **SMALL)
    before = weights(model).clone()
    with pytest.raises(ValueError, match=expected):
        model.learn(128)
    assert th.equal(weights(model), before)


def test_integers_of_numpy_do():
    sizes = {"group_size": np.int64(2), "n_steps": np.int32(64), "batch_size": np.int64(32), "n_epochs": np.uint8(2)}
    ours = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), seed=0, **sizes).learn(128)
    assert th.equal(weights(ours), weights(GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), **SMALL).learn(128)))
    with pytest.raises(ValueError, match="tasks"):  # two are needed; as a number they are read
        GRPO("MlpPolicy", "CartPole-v1", multitask=dict(tasks=np.int64(1), surgery=True))


class Locked:
    """A configuration of which ``**`` asks no more than this: ml_collections' has no more either."""

    def __init__(self, **settings):
        self.settings = {name: Locked(**value) if isinstance(value, dict) else value for name, value in settings.items()}

    def keys(self):
        return self.settings.keys()

    def __getitem__(self, name):
        return self.settings[name]


@pytest.mark.parametrize("kind", [UserDict, Locked, MappingProxyType], ids=lambda kind: kind.__name__)
def test_settings_may_come_from_a_library_of_configurations(kind, tmp_path):
    """OmegaConf's are no dicts and lists, but what UserDict and UserList are."""
    settings = {"policy_kwargs": dict(net_arch=UserList([8, 8])), "loss_kwargs": dict(clip_range_high=0.3),
                "advantage_kwargs": dict(paired=True), "rewards": dict(scaling="tanh")}  # fmt: skip
    given = {name: kind(value) if kind is not Locked else Locked(**value) for name, value in settings.items()}
    ours = GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), **given, **SMALL).learn(128)
    settings["policy_kwargs"] = dict(net_arch=[8, 8])
    assert th.equal(weights(ours), weights(GRPO("MlpPolicy", make_vec_env("CartPole-v1", 2), **settings, **SMALL).learn(128)))
    ours.save(tmp_path / "model")
    for trusted in (True, False):
        loaded = GRPO.load(tmp_path / "model", trusted=trusted, **given)
        assert loaded.policy.net_arch == [8, 8] and loaded.loss_kwargs == settings["loss_kwargs"]


def test_layers_of_actor_and_critic_may_come_from_a_library_of_configurations():
    net_arch = UserDict(pi=UserList([8]), vf=UserList([4]))
    assert GRPO("MlpPolicy", "CartPole-v1", policy_kwargs=UserDict(net_arch=net_arch)).policy.net_arch == [8]


def test_a_loaded_model_takes_booleans_for_its_normalisation(tmp_path):
    GRPO("MlpPolicy", "CartPole-v1").save(tmp_path / "model")
    assert GRPO.load(tmp_path / "model").normalize_advantage == "batch"
    assert GRPO.load(tmp_path / "model", normalize_advantage=True).normalize_advantage == "group"
    assert GRPO.load(tmp_path / "model", normalize_advantage=None, advantage="outcome").normalize_advantage == "group"


def test_the_reference_sees_observations_as_the_policy_does():
    """Statistics that move are no divergence: with a learning rate of 0 the KL stays 0."""
    dumps = record(
        model := GRPO("MlpPolicy", make_vec_env("Pendulum-v1", 2), policy_kwargs=dict(normalize_obs=True), kl_coef=0.1,
                      learning_rate=0.0, **SMALL)
    )  # fmt: skip
    model.learn(512)
    assert model.policy.obs_normalizer.count > 0
    assert [dump["train/kl_loss"] for dump in dumps if "train/kl_loss" in dump] == pytest.approx([0.0] * 3, abs=1e-9)


def test_advantages_are_normalised_as_is_said_by_hand():
    """PPO takes the flag between two learn() too."""
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu")
    model.learn(64)
    model.normalize_advantage = False
    model.learn(64)
    assert model.normalize_advantage == "none"
    model.normalize_advantage = "Batch"
    with pytest.raises(ValueError, match=r"normalize_advantage='Batch' is unknown"):
        model.learn(64)


def test_a_second_training_on_one_rollout_says_what_it_waits_for():
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu").learn(64)
    with pytest.raises(ValueError, match=r"none has come since: call learn\(\)"):
        model.train()


def test_a_policy_may_have_the_predict_of_sb3():
    class Plain(MlpPolicy):
        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            return super().predict(observation, state, episode_start, deterministic)

    model = GRPO(Plain, "CartPole-v1", n_steps=64, device="cpu").learn(64)
    assert evaluate_policy(model, model.get_env(), 2)[0] > 0


def test_weights_of_somebody_else_that_learn_along_have_one_minibatchs_gradient_each():
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=16, n_epochs=2, device="cpu")
    shift = th.zeros(4, requires_grad=True)
    model.policy.optimizer.add_param_group({"params": [shift]})
    model.policy.features_extractor.register_forward_pre_hook(lambda _, args: (args[0] + shift,))
    seen, step = [], model.policy.optimizer.step

    def look(*args, **kwargs):
        seen.append(
            (
                shift.grad.clone(),
                model.policy.policy_net[0].bias.grad.clone(),
                model.policy.policy_net[0].weight.detach().clone(),
            )
        )
        return step(*args, **kwargs)

    model.policy.optimizer.step = look
    model.learn(64)
    assert len(seen) == 8
    for own, of_bias, weight in seen:  # what the shift of the input gets is what the first layer hands back
        th.testing.assert_close(own / own.norm(), (of_bias @ weight) / (of_bias @ weight).norm(), rtol=1e-3, atol=1e-3)


def test_a_hook_before_flat_features_is_heard():
    model = GRPO("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu")
    obs = th.randn(5, 4)
    before = model.policy.get_distribution(obs).distribution.logits.detach().clone()
    model.policy.features_extractor.register_forward_pre_hook(lambda _, args: (0.0 * args[0],))
    after = model.policy.get_distribution(obs).distribution.logits.detach()
    assert bool((after == after[0]).all()) and not th.equal(before, after)


@pytest.mark.parametrize("verbose", [True, np.True_, 3])
def test_verbose_is_any_number_as_in_sb3(verbose):
    assert GRPO("MlpPolicy", "CartPole-v1", verbose=verbose, device="cpu").verbose == int(verbose)


def test_schedules_may_return_numbers_of_numpy_and_torch():
    for rate in (lambda p: np.array(1e-3 * p), lambda p: th.tensor(1e-3) * p):
        GRPO("MlpPolicy", "CartPole-v1", n_steps=64, learning_rate=rate, clip_range=rate, device="cpu").learn(64)
