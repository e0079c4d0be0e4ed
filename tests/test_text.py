"""Text envs and language models as policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from sb_grpo import GRPO
from sb_grpo.callbacks import CurriculumCallback
from sb_grpo.tasks.text.tokens import END, Bytes, Characters, demonstrate, imitate

transformers = pytest.importorskip("transformers")
pytest.importorskip("reasoning_gym")
pytest.importorskip("peft")

from sb_grpo.policies.causal_lm import EMPTY, CausalLMPolicy, make_lm, whole_histories  # noqa: E402
from sb_grpo.tasks.text.questions import TASKS  # noqa: E402
from sb_grpo.tasks.text.scenarios import FAMILIES  # noqa: E402

TINY: dict[str, Any] = dict(
    model_type="llama",
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    tie_word_embeddings=True,
)
GPT2: dict[str, Any] = dict(model_type="gpt2", n_embd=32, n_layer=2, n_head=2)
SETTINGS: dict[str, Any] = dict(advantage="outcome", group_size=2, n_groups=2, n_epochs=1, batch_size=64, gamma=1.0, seed=0)


def scenario_env(n_envs: int = 4) -> Any:
    return make_vec_env("TextScenario-v0", n_envs, seed=0, env_kwargs=dict(max_tokens=4, max_turns=2))


def sums_env(n_envs: int = 4, **kwargs: Any) -> Any:
    return make_vec_env("ReasoningGym-v0", n_envs, seed=0, env_kwargs=dict(dataset="chain_sum", context=14, **kwargs))


def model_of(env: Any, lm: Any = TINY, **kwargs: Any) -> GRPO:
    policy_kwargs = {"lm": lm, **kwargs.pop("policy_kwargs", {})}
    return GRPO(CausalLMPolicy, env, policy_kwargs=policy_kwargs, device="cpu", **{**SETTINGS, **kwargs})


# ---------------------------------------------------------------- the policy


def test_histories_that_begin_others_are_found() -> None:
    e = EMPTY
    rows = th.tensor([[3, 1, e], [3, e, e], [3, 1, 2], [5, e, e], [3, 2, e], [3, 1, e], [0, 0, 0]])
    whole, of = whole_histories(rows)
    assert whole.tolist() == [[0, 0, 0], [3, 1, 2], [3, 2, e], [5, e, e]]
    assert of[[0, 2, 3, 4, 5, 6]].tolist() == [1, 1, 3, 2, 1, 0]
    assert int(of[1]) in (1, 2)  # both begin with [3]
    for row, whole_row in zip(rows, whole[of], strict=True):
        assert row[row != e].equal(whole_row[: int((row != e).sum())])


@pytest.mark.parametrize("lm", [TINY, GPT2], ids=["llama", "gpt2"])
def test_one_pass_and_the_cache_give_what_every_history_gives_by_itself(lm: dict[str, Any]) -> None:
    """Lines of the partner, episodes that begin at different steps, a shuffled batch, and gradients."""
    env = scenario_env(6)
    policy = model_of(env, lm).policy
    with th.no_grad():
        for p in policy.parameters():
            p.mul_(3.0)  # outputs that differ
    obs = env.reset()
    seen, acted, cached = [], [], []
    for step in range(24):
        with th.no_grad():
            actions, log_probs, _ = policy.sample(th.as_tensor(obs), policy.noise(6))
        if step % 5 == 2:
            actions[step % 6] = END  # the partner answers, or the episode ends
            log_probs = policy.log_prob(th.as_tensor(obs), actions).detach()
        seen.append(th.as_tensor(obs))
        acted.append(actions)
        cached.append(log_probs)
        obs, *_ = env.step(actions.numpy())
    order = th.randperm(24 * 6)
    tokens = th.cat(seen)[order]
    actions = th.cat(acted)[order]
    together = policy.log_prob(tokens, actions)
    cut = [row[row != EMPTY].unsqueeze(0) for row in tokens]
    alone = th.cat([policy.log_prob(row, action.unsqueeze(0)) for row, action in zip(cut, actions, strict=True)])
    assert together.std() > 0.1
    th.testing.assert_close(together, alone, atol=2e-5, rtol=1e-5)
    th.testing.assert_close(th.cat(cached)[order], alone.detach(), atol=2e-5, rtol=1e-5)
    weight = th.randn(144)
    gradients = [th.autograd.grad((weight * x).sum(), list(policy.parameters())) for x in (together, alone)]
    for one, other in zip(*gradients, strict=True):
        th.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)


def test_the_cache_forgets_what_other_weights_made() -> None:
    env = sums_env()
    policy = model_of(env).policy
    obs = th.as_tensor(env.reset())
    noise = policy.noise(4)
    with th.no_grad():
        before = policy.sample(obs, noise)[1]
        for p in policy.parameters():
            p.mul_(2.0)
        actions, after, _ = policy.sample(obs, noise)
        th.testing.assert_close(after, policy.log_prob(obs, actions), atol=1e-5, rtol=1e-5)
    assert not th.allclose(before, after)


def test_first_ratios_are_one_and_checkpoints_change_no_gradient() -> None:
    weights = []
    for checkpoints in (False, True):
        policy_kwargs = dict(gradient_checkpointing=checkpoints)
        model = model_of(sums_env(), policy_kwargs=policy_kwargs, advantage_kwargs=dict(baseline="global"))
        rollout = model.collect()
        assert rollout is not None
        rewards = th.linspace(-1, 1, len(rollout.rewards))  # a random model scores 0
        model.update(rollout._replace(rewards=rewards))
        fresh = model_of(sums_env()).policy.log_prob(rollout.observations, rollout.actions)
        th.testing.assert_close(rollout.log_probs, fresh.detach())
        weights.append(th.cat([p.detach().flatten() for p in model.policy.parameters()]))
    th.testing.assert_close(*weights, atol=1e-6, rtol=1e-4)


def test_save_load_resume_and_predict(tmp_path: Path) -> None:
    env = sums_env()
    model = model_of(env, advantage="state", group_size=1, n_groups=None, n_steps=16).learn(128)
    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=env, device="cpu")
    obs = env.reset()
    assert (loaded.predict(obs, deterministic=True)[0] == model.predict(obs, deterministic=True)[0]).all()
    policy = CausalLMPolicy.load((model.policy.save(tmp_path / "policy"), tmp_path / "policy")[1])
    assert (policy.predict(obs, deterministic=True)[0] == model.predict(obs, deterministic=True)[0]).all()
    model.save_run(tmp_path / "run")
    again = GRPO.load_run(tmp_path / "run", sums_env(), device="cpu")
    th.testing.assert_close(dict(again.policy.state_dict()), dict(model.policy.state_dict()))


def folder_of_a_model(tmp_path: Path, n_tokens: int) -> Path:
    make_lm(TINY, n_tokens, 64).save_pretrained(tmp_path / "lm")
    return tmp_path / "lm"


def test_adapters_learn_alone_and_the_reference_is_the_model_without_them(tmp_path: Path) -> None:
    env = sums_env()
    folder = folder_of_a_model(tmp_path, int(env.action_space.n))
    model = model_of(
        env,
        str(folder),
        policy_kwargs=dict(lora=dict(r=2)),
        kl_coef=0.1,
        advantage_kwargs=dict(baseline="global"),
        learning_rate=0.1,
    )
    policy = model.policy
    base = {name: p.clone() for name, p in policy.named_parameters() if not p.requires_grad}
    assert base and set(policy.state_dict()) == {name for name, p in policy.named_parameters() if p.requires_grad}
    obs = th.as_tensor(env.reset())
    actions = th.zeros(4, dtype=th.int64)
    before = policy.log_prob(obs, actions).detach()
    rollout = model.collect()
    assert rollout is not None
    for _ in range(3):
        model.update(rollout._replace(rewards=th.linspace(-1, 1, len(rollout.rewards))))
    assert model.last_update is not None and model.last_update.kl_penalty > 0
    after = policy.log_prob(obs, actions).detach()
    assert not th.allclose(before, after, atol=1e-3)
    with th.no_grad():
        th.testing.assert_close(model.ref_policy.log_prob(obs, actions), before)  # type: ignore[union-attr]
    th.testing.assert_close(policy.log_prob(obs, actions).detach(), after)
    assert all(p.equal(base[name]) for name, p in policy.named_parameters() if name in base)
    assert all(p.requires_grad for name, p in policy.named_parameters() if "lora_" in name)
    assert not isinstance(model.ref_policy, nn.Module)

    model.save(tmp_path / "model")
    loaded = GRPO.load(tmp_path / "model", env=env, device="cpu")
    th.testing.assert_close(loaded.policy.log_prob(obs, actions).detach(), after)
    for refused in (dict(ref_sync_interval=2), dict(ref_policy=model)):
        with pytest.raises(ValueError, match=f"{next(iter(refused))}=.* cannot change the reference policy"):
            model_of(env, str(folder), policy_kwargs=dict(lora=dict(r=2)), kl_coef=0.1, loss_kwargs=refused)


def test_half_of_the_bits_and_a_module_of_ones_own() -> None:
    env = sums_env()
    lm = make_lm(TINY, int(env.action_space.n), 14)
    model = model_of(env, lm, policy_kwargs=dict(bf16=True), kl_coef=0.1)
    assert {p.dtype for p in model.policy.parameters()} == {th.bfloat16}
    rollout = model.collect()
    assert rollout is not None and rollout.log_probs.dtype == th.float32
    assert model.ref_policy is not None and model.ref_policy.lm is not lm  # type: ignore[attr-defined]


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    env = sums_env(1)
    n = int(env.action_space.n)
    for lm, message in (
        ({**TINY, "vocab_size": 50}, f"knows 50 tokens, but the env's tokenizer has {n}"),
        ({**TINY, "max_position_embeddings": 8}, "reads 8 tokens, but the env's histories have up to 14"),
        ("no/folder", "is no folder: pass the path of a saved model; nothing is downloaded"),
        ({"model_type": "lama"}, "model_type='lama' is unknown to transformers"),
        (transformers.ViTConfig(), "ViTConfig has no model with a language head"),
        (transformers.LlamaModel(transformers.LlamaConfig(**{**TINY, "vocab_size": n})), "LlamaModel has no language head"),
        (3, "lm=3 is no language model"),
    ):
        with pytest.raises(ValueError, match=message):
            model_of(env, lm)
    with pytest.raises(ValueError, match="does not fit the model"):
        model_of(env, policy_kwargs=dict(lora=dict(rank=2)))
    with pytest.raises(ValueError, match="reads token histories, not Box"):
        GRPO(CausalLMPolicy, "CartPole-v1")
    box = spaces.Box(-1, 9, (4,), np.int32)
    with pytest.raises(ValueError, match="tokens up to 9, but there are 12 actions"):
        CausalLMPolicy(box, spaces.Discrete(12), lambda _: 1e-3)
    with pytest.raises(ValueError, match="the action space is MultiDiscrete"):
        CausalLMPolicy(box, spaces.MultiDiscrete([10, 10]), lambda _: 1e-3)


def test_a_mask_beside_the_history_and_an_empty_history() -> None:
    space = spaces.Dict({"tokens": spaces.Box(-1, 9, (4,), np.int32), "action_mask": spaces.MultiBinary(10)})
    policy = CausalLMPolicy(space, spaces.Discrete(10), lambda _: 1e-3, lm=TINY)
    mask = np.zeros((3, 10), dtype=np.int8)
    mask[:, 4] = 1
    tokens = np.array([[1, 2, -1, -1], [3, -1, -1, -1], [1, -1, -1, -1]], dtype=np.int32)
    assert policy.predict({"tokens": tokens, "action_mask": mask})[0].tolist() == [4, 4, 4]
    with pytest.raises(ValueError, match="A token history is empty"):
        policy.predict({"tokens": np.full((3, 4), -1, dtype=np.int32), "action_mask": mask})


# ---------------------------------------------------------------- envs


@pytest.mark.parametrize("tokenizer", [Characters(), Bytes()])
def test_tokenizers(tokenizer: Any) -> None:
    text = "a+b =\n~é"
    tokens = tokenizer.encode(text)
    assert tokenizer.decode([*tokens, END]) == text and END not in tokens and max(tokens) < tokenizer.size
    if isinstance(tokenizer, Characters):
        with pytest.raises(ValueError, match="'€' is not in Latin-1"):
            tokenizer.encode("5 €")


@pytest.mark.parametrize("dataset", TASKS)
def test_the_seed_is_the_question_and_the_expert_is_right(dataset: str) -> None:
    env = gym.make("ReasoningGym-v0", dataset=dataset, masks=True)
    prompts = set()
    for seed in range(5):
        first, _ = env.reset(seed=seed)
        second, _ = env.reset(seed=seed)
        assert (first == second).all()
        prompts.add(first.tobytes())
        done = False
        while not done:
            action = env.unwrapped.expert()  # type: ignore[attr-defined]
            assert env.unwrapped.action_masks()[action]  # type: ignore[attr-defined]
            _, reward, done, truncated, info = env.step(action)
            assert not truncated and (reward == 1.0) == done == info.get("is_success", False)
    assert len(prompts) > 1


def test_an_answer_without_an_end_is_cut_and_earns_nothing() -> None:
    env = gym.make("ReasoningGym-v0", max_tokens=2)
    env.reset(seed=0)
    digit = Characters().encode("7")[0]
    assert env.step(digit)[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, info = env.step(digit)
    assert (reward, terminated, truncated, info["is_success"]) == (0.0, False, True, False)
    assert Characters().decode(env.unwrapped.history).endswith("=77")  # type: ignore[attr-defined]


def test_gymnasiums_checks_and_reasoning_gyms_own_text() -> None:
    check_env(gym.make("ReasoningGym-v0").unwrapped, skip_render_check=True)
    check_env(gym.make("TextScenario-v0").unwrapped, skip_render_check=True)
    env = gym.make("ReasoningGym-v0", dataset="gcd", prompt="full", tokens="byte", render_mode="ansi")
    env.reset(seed=1)
    assert "Greatest Common Divisor" in env.render()  # type: ignore[operator]


def test_a_curriculum_makes_longer_questions() -> None:
    env = make_vec_env("ReasoningGym-v0", 2, seed=0)
    model = model_of(env)
    curriculum = CurriculumCallback([0.0, 1.0], success=0.0, window=4, promote_above=0.0)  # every episode counts
    model.learn(64, callback=curriculum)
    assert curriculum.level == 1
    env.reset()
    data = env.envs[0].unwrapped._data  # type: ignore[attr-defined]
    assert data.config.max_terms == 6 and data.config.max_digits == 4


def test_unknown_questions_and_scenarios() -> None:
    for kwargs, message in (
        (dict(dataset="chain_sums"), "dataset='chain_sums' is unknown to reasoning-gym"),
        (dict(dataset="gcd"), "has no short prompt and no masks here: pass prompt='full'"),
        (dict(difficulty=2.0), "difficulty=2.0 must lie in"),
        (dict(settings=dict(min_terms=9)), "do not suit 'chain_sum' at difficulty=0.0"),
        (dict(tokens="words"), "tokens='words' is no tokenizer"),
        (dict(prompt="long"), "prompt='long' is unknown"),
    ):
        with pytest.raises(ValueError, match=message):
            gym.make("ReasoningGym-v0", **kwargs)
    with pytest.raises(ValueError, match="has 4 tokens, but context=11 holds 1 to 3 beside 8 that may follow"):
        gym.make("ReasoningGym-v0", context=11).reset(seed=0)
    for kwargs, message in (
        (dict(families=["poem"]), "must be a list of one or more of"),
        (dict(max_turns=1), "max_turns=1 must be at least 2"),
        (dict(weights=dict(style=1.0)), r"weights has \['style'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            gym.make("TextScenario-v0", **kwargs)


def speak(env: Any, line: str) -> tuple[float, bool, dict[str, Any]]:
    total = 0.0
    for token in [*Characters().encode(line), END]:
        _, reward, over, _, info = env.step(token)
        total += reward
    return total, over, info


def test_a_clarification_is_asked_for_before_it_is_answered() -> None:
    env = gym.make("TextScenario-v0", families=["clarification"], max_tokens=10, render_mode="ansi")
    env.reset(seed=0)
    scenario = env.unwrapped.scenario  # type: ignore[attr-defined]
    reward, over, info = speak(env, scenario.answer)  # a right guess counts for nothing
    n = len(scenario.answer) + 1
    assert not over and info["turn"] == 0 and info["rewards"] == {"solved": 0, "facts": 0, "format": 0, "brevity": -n / 10}
    assert reward == pytest.approx(-0.1 * n / 10)
    assert speak(env, "number?")[2]["turn"] == 1
    assert env.render().endswith(f"number?\n{scenario.hidden}:")  # type: ignore[operator, union-attr]
    reward, over, info = speak(env, scenario.answer)
    assert over and info["is_success"] and info["turn"] == 2 and reward == pytest.approx(1.0 - 0.1 * n / 10)


def test_sums_and_facts_are_judged_by_rule() -> None:
    env = gym.make("TextScenario-v0", families=["arithmetic"])
    env.reset(seed=3)
    first, second = map(int, env.unwrapped.scenario.facts.values())  # type: ignore[attr-defined]
    assert speak(env, f"{first}+{second}={first + second + 1}")[2]["rewards"]["facts"] == -1
    assert speak(env, "hello")[2]["rewards"] == {"solved": 0, "facts": 0, "format": -1, "brevity": -0.5}
    assert speak(env, f"{second}+{first}={first + second}")[2]["is_success"]
    env = gym.make("TextScenario-v0", families=["lookup"])
    env.reset(seed=3)
    scenario = env.unwrapped.scenario  # type: ignore[attr-defined]
    other = next(f"{name} {value}" for name, value in scenario.facts.items() if f"{name} {value}" != scenario.answer)
    assert speak(env, other)[2]["rewards"]["facts"] == 0 and speak(env, "ann 99")[2]["rewards"]["facts"] == -1
    assert speak(env, scenario.answer)[1]


def test_scenarios_train_by_objectives_tasks_turns_and_masks() -> None:
    rewards = dict(objectives={"solved": 1.0, "format": 0.2}, normalization="each")
    multitask = dict(tasks=list(FAMILIES))
    loss_kwargs = dict(importance_level="turn")
    model = model_of(scenario_env(), rewards=rewards, multitask=multitask, loss_kwargs=loss_kwargs).learn(64)
    assert model.last_metrics["objective/format"] < 0
    masked = sums_env(masks=True)
    model = model_of(masked)
    rollout = model.collect()
    allowed = {END, *Characters().encode("-0123456789")}
    assert rollout is not None and set(rollout.actions.tolist()) <= allowed


# ---------------------------------------------------------------- a training


class FewQuestions(gym.Wrapper):
    """Eight questions, whatever the seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=None if seed is None else seed % 8, options=options)


def test_grpo_improves_on_its_supervised_start() -> None:
    """Demonstrations of other sums give the form and some sense of the answers, rewards give those of eight questions."""
    kwargs: dict[str, Any] = dict(dataset="chain_sum", settings=dict(max_digits=1), context=12, max_tokens=6)
    env = make_vec_env("ReasoningGym-v0", 64, seed=0, env_kwargs=kwargs, wrapper_class=FewQuestions)
    lm = dict(TINY, hidden_size=64, intermediate_size=176, num_attention_heads=4)
    model = model_of(env, lm, group_size=8, n_groups=16, batch_size=256, n_epochs=4, learning_rate=5e-4)
    shown = demonstrate(gym.make("ReasoningGym-v0", **kwargs), 300, seed=10**6)
    losses = imitate(model.policy, shown, 150, batch_size=32, learning_rate=3e-3)
    assert losses[-1] < 0.3 * losses[0]

    def share_of_right_answers() -> float:
        rollout = model.collect()
        assert rollout is not None
        return float(rollout.rewards.sum()) / len(rollout.group)

    before = share_of_right_answers()
    model.learn(4_000)
    after = share_of_right_answers()
    assert before < 0.45 and after > 0.65, (before, after)
