"""Advantages, loss and gradient against TRL's own GRPOTrainer, on the same batch and the same tiny language model.

TRL computes everything itself: advantages from rewards, masks, reference log-probabilities, the loss. It is given the answers
(``rollout_func``) and the log-probabilities of the policy that drew them.
"""

from __future__ import annotations

import math
import warnings
from importlib.metadata import version
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from sb_grpo import GRPO, AdvantageOptions, Rollout
from sb_grpo.policies import ActorPolicy
from sb_grpo.types import Minibatch
from tests.helpers import make_rollout

pytestmark = pytest.mark.slow

PAD, END, VOCABULARY, LONGEST, G = 0, 1, 16, 4, 4
#: Two questions and four answers to each. Two answers have no end token: they were truncated.
PROMPTS = [[3, 4, 5], [6, 7, 8]]
ANSWERS = [[8, 9, 1], [10, 1], [11, 12, 13, 1], [4, 5, 6, 7], [9, 1], [3, 3, 4, 3], [5, 1], [6, 7, 1]]
#: Two rewards of each answer. They are large, because TRL adds 1e-4 to standard deviations.
REWARDS = [[50.0, 3.0], [-20.0, 90.0], [70.0, -40.0], [0.0, 10.0], [-60.0, 20.0], [90.0, 80.0], [10.0, -50.0], [35.0, 0.0]]
WEIGHTS = {"right": 1.0, "short": 0.5}
#: TRL's advantages in units of ours: it divides by sample standard deviations, of a group of 4 and of a batch of 8.
OF_GROUP, OF_BATCH = math.sqrt(3 / 4), math.sqrt(7 / 8)
N_ROWS = sum(map(len, ANSWERS))
N_KEPT = sum(answer[-1] == END for answer in ANSWERS)


class LastLogits(BaseFeaturesExtractor):
    """Scores of the next token. An observation is the number of tokens so far, then the tokens, padded on the right."""

    def __init__(self, observation_space: spaces.Space) -> None:
        from transformers import Qwen2Config, Qwen2ForCausalLM

        super().__init__(observation_space, VOCABULARY)
        config = Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.3, pad_token_id=PAD, eos_token_id=END,
        )  # fmt: skip
        self.lm = Qwen2ForCausalLM(config)

    def forward(self, obs: th.Tensor) -> th.Tensor:
        obs = obs.long()
        logits: th.Tensor = self.lm(input_ids=obs[:, 1:]).logits
        return logits[th.arange(len(obs)), obs[:, 0] - 1]


class TokenPolicy(ActorPolicy):
    """A language model whose scores are those of the actions."""

    def _build_action_head(self, latent_dim: int) -> None:
        super()._build_action_head(latent_dim)
        self.action_net = nn.Identity()


class Tokens(gym.Env):
    """Spaces of the questions. Its steps are not taken: the rollout is TRL's batch."""

    observation_space = spaces.Box(0, VOCABULARY, (1 + len(PROMPTS[0]) + LONGEST,), np.float32)
    action_space = spaces.Discrete(VOCABULARY)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}


def prompt_of(i: int) -> list[int]:
    return PROMPTS[i // G]


def our_model(**options: Any) -> GRPO:
    """A model of ours whose reference policy, if there is one, has weights of its own."""
    rewards = {"objectives": WEIGHTS, "normalization": options.pop("normalization", "sum")}
    settings = dict(advantage="outcome", gamma=1.0, group_size=G, n_groups=2, rewards=rewards, seed=0, device="cpu")
    policy_kwargs = dict(features_extractor_class=LastLogits, net_arch=[], ortho_init=False)
    env = gym.wrappers.TimeLimit(Tokens(), LONGEST)
    model = GRPO(TokenPolicy, env, **settings, policy_kwargs=policy_kwargs, **options)
    if model.ref_policy is not None:
        generator = th.Generator().manual_seed(1)
        with th.no_grad():
            for parameter in model.ref_policy.parameters():
                parameter.add_(0.1 * th.randn(parameter.shape, generator=generator))
    return model


def our_rollout(old_log_probs: th.Tensor, rewards: list[list[float]] = REWARDS, **columns: Any) -> Rollout:
    """The batch as a rollout: an episode per answer, its rewards at its last token."""
    observations, objectives = [], []
    for i, answer in enumerate(ANSWERS):
        for t in range(len(answer)):
            seen = [*prompt_of(i), *answer[:t]]
            observations.append([len(seen), *seen, *[PAD] * (len(PROMPTS[0]) + LONGEST - len(seen))])
            objectives.append(rewards[i] if t == len(answer) - 1 else [0.0, 0.0])
    truncated = th.tensor([answer[-1] != END for answer in ANSWERS])
    return make_rollout(
        [[0.0] * len(answer) for answer in ANSWERS],
        [i // G for i in range(len(ANSWERS))],
        observations=th.tensor(observations, dtype=th.float32),
        actions=th.tensor([token for answer in ANSWERS for token in answer]),
        log_probs=old_log_probs,
        objectives=th.tensor(objectives),
        truncated=truncated,
        terminated=~truncated,
        final_observations=th.zeros(len(ANSWERS), *Tokens.observation_space.shape),
        **columns,
    )


def our_batch(model: GRPO, rollout: Rollout) -> Minibatch:
    """Rows with their advantages and weights, as one minibatch."""
    options = AdvantageOptions(model.gamma, model.gae_lambda, model.normalize_advantage)
    return model._compute_advantages(rollout, options)[0].batch


@pytest.fixture(scope="module")
def make_trainer(tmp_path_factory):
    """Function from a model of ours and options of GRPOConfig to TRL's trainer of the same weights."""
    pytest.importorskip("trl", reason="the extra [text] is not installed")
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    print(", ".join(f"{name} {version(name)}" for name in ("trl", "transformers", "torch")))
    words = Tokenizer(models.WordLevel({str(i): i for i in range(VOCABULARY)}, unk_token="2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token=str(PAD), eos_token=str(END), padding_side="left")
    folder = tmp_path_factory.mktemp("lm")

    def answers(prompts, trainer):
        return {"prompt_ids": [prompt_of(i) for i in range(len(prompts))], "completion_ids": ANSWERS, "logprobs": None}

    def make(model: GRPO, rewards: list[list[float]], **options: Any):
        lm = model.policy.features_extractor.lm
        lm.save_pretrained(folder)  # TRL loads its reference model from there
        lm.config._name_or_path = str(folder)
        args = GRPOConfig(
            output_dir=str(folder), bf16=False, use_cpu=True, report_to=[], per_device_train_batch_size=len(ANSWERS),
            num_generations=G, max_completion_length=LONGEST, num_iterations=2, gradient_checkpointing=False,
            reward_weights=list(WEIGHTS.values()), **options,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=lm,
            reward_funcs=[lambda completions, k=k, **_: [reward[k] for reward in rewards] for k in range(2)],
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [" ".join(map(str, prompt)) for prompt in PROMPTS]}),
            processing_class=tokenizer,
            rollout_func=answers,
        )
        trainer.current_gradient_accumulation_steps = 1
        if trainer.ref_model is not None:
            trainer.ref_model.load_state_dict(model.ref_policy.features_extractor.lm.state_dict())
        return trainer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield make


def loss_and_gradient(loss: th.Tensor, model: GRPO) -> tuple[float, th.Tensor]:
    parameters = list(model.policy.parameters())
    return loss.item(), th.cat([g.flatten() for g in th.autograd.grad(loss, parameters)])


def both(make_trainer, trl: dict[str, Any], ours: dict[str, Any], scale: float, rewards=REWARDS):
    """Compute advantages, loss and gradient twice.

    :param scale: TRL's advantages in units of ours: KL and entropy get their weights in these units
    :return: ``(advantages [rows], loss, gradient)`` of TRL, and ours
    """
    ours = {**ours, **{name: ours[name] / scale for name in ("kl_coef", "ent_coef") if name in ours}}
    model = our_model(**ours)
    trainer = make_trainer(model, rewards, **trl)
    lm = trainer.model.train()
    inputs = trainer._generate_and_score_completions([{"prompt": ""} for _ in ANSWERS])
    answered = th.arange(LONGEST) < th.tensor([[len(answer)] for answer in ANSWERS])
    # The policy that drew the answers was another one: ratios from 0.4 to 2.5.
    noise = 0.4 * th.randn(answered.shape, generator=th.Generator().manual_seed(2))
    inputs["old_per_token_logps"] = inputs["old_per_token_logps"] + noise
    theirs = loss_and_gradient(trainer._compute_loss(lm, inputs), model)

    batch = our_batch(model, our_rollout(inputs["old_per_token_logps"][answered], rewards))
    loss, gradient = loss_and_gradient(model.objective()(batch, model._clip_ranges()), model)
    row_advantages = inputs["advantages"][batch.episode]
    return (row_advantages, *theirs), (scale * batch.advantages, scale * loss, scale * gradient)


def close(theirs: tuple, ours: tuple, factor: float = 1.0) -> None:
    """Check that all three are equal to 1e-5, relative to the largest.

    :param factor: of our loss, where the two divide by different numbers of rows
    """
    for name, wanted, found in zip(("advantages", "loss", "gradient"), theirs, ours, strict=True):
        wanted = th.as_tensor(wanted)
        found = th.as_tensor(found) * (1.0 if name == "advantages" else factor)
        assert wanted.abs().max() > 1e-3, name
        error = float((wanted - found).abs().max() / wanted.abs().max().clamp(min=1.0))
        assert error < 1e-5, f"{name}: {error:.1e} between TRL {version('trl')} and ours"


EPISODE = dict(aggregation="episode")
#: Name -> options of TRL, options of ours.
LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": (dict(loss_type="grpo"), dict(loss_kwargs=EPISODE)),
    "bnpo": (dict(loss_type="bnpo"), {}),
    "dr_grpo": (dict(loss_type="dr_grpo"), dict(loss_kwargs=dict(aggregation="constant"))),
    "dapo": (dict(loss_type="dapo", epsilon_high=0.28), dict(loss_kwargs=dict(clip_range_high=0.28))),
    "cispo": (
        dict(loss_type="cispo", epsilon_high=1.5),  # the largest ratio, and there is no smallest
        dict(loss="cispo", clip_range=1.0, loss_kwargs=dict(clip_range_high=0.5)),
    ),
    "sapo": (
        dict(loss_type="sapo", sapo_temperature_pos=1.0, sapo_temperature_neg=1.3),
        dict(loss="sapo", loss_kwargs=dict(temperature_neg=1.3, **EPISODE)),
    ),
    "delta": (dict(loss_type="grpo", delta=1.4), dict(loss_kwargs=dict(ratio_cap=1.4, **EPISODE))),
    "gspo": (
        dict(loss_type="grpo", importance_sampling_level="sequence", epsilon=0.1),
        dict(loss_kwargs=dict(importance_level="episode", **EPISODE), clip_range=0.1),
    ),
    "sapo of sequences": (
        dict(loss_type="sapo", importance_sampling_level="sequence"),
        dict(loss="sapo", loss_kwargs=dict(importance_level="episode", **EPISODE)),
    ),
    "kl": (
        dict(loss_type="grpo", beta=0.3, use_bias_correction_kl=False),
        dict(loss_kwargs=EPISODE, kl_coef=0.3),
    ),
    "corrected kl": (
        dict(loss_type="dapo", beta=0.3),
        dict(loss_kwargs=dict(kl_correction=True), kl_coef=0.3),
    ),
    "corrected kl of sequences": (
        dict(loss_type="grpo", beta=0.3, importance_sampling_level="sequence"),
        dict(loss_kwargs=dict(importance_level="episode", kl_correction=True, **EPISODE), kl_coef=0.3),
    ),
    "corrected kl, capped": (
        dict(loss_type="bnpo", beta=0.3, delta=1.4),
        dict(loss_kwargs=dict(ratio_cap=1.4, kl_correction=True), kl_coef=0.3),
    ),
    "entropy": (dict(loss_type="dapo", entropy_coef=0.05), dict(ent_coef=0.05)),
}
SCALES = {"group": OF_GROUP, "batch": OF_BATCH, "none": 1.0}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(make_trainer, name):
    trl, ours = LOSSES[name]
    close(*both(make_trainer, trl, ours, OF_GROUP))


@pytest.mark.parametrize("scaling", SCALES)
@pytest.mark.parametrize("name", ["grpo", "dapo", "sapo"])
def test_scales_of_rewards(make_trainer, name, scaling):
    trl, ours = LOSSES[name]
    trl = {**trl, "scale_rewards": scaling}
    close(*both(make_trainer, trl, {**ours, "normalize_advantage": scaling}, SCALES[scaling]))


def test_luspo_is_a_sequence_ratio_times_the_mean_length(make_trainer):
    theirs, ours = both(
        make_trainer,
        dict(loss_type="luspo", importance_sampling_level="sequence"),
        dict(loss_kwargs=dict(importance_level="episode")),
        OF_GROUP,
    )
    close(theirs, ours, N_ROWS / len(ANSWERS))


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "corrected kl"])
def test_truncated_answers_are_masked(make_trainer, name):
    """Their rewards count in the group. TRL divides by all answers where it averages over answers, ours by those left."""
    trl, ours = LOSSES[name]
    masked = {**ours, "loss_kwargs": {**ours.get("loss_kwargs", {}), "mask_truncated": True}}
    factor = N_KEPT / len(ANSWERS) if trl["loss_type"] in ("grpo", "dr_grpo") else 1.0
    close(*both(make_trainer, {**trl, "mask_truncated_completions": True}, masked, OF_GROUP), factor)


def test_groups_without_a_spread_differ_by_the_share_of_their_rows(make_trainer):
    """TRL's mean counts their tokens, whose advantages are 0; ours leaves them out."""
    rewards = [*REWARDS[:G], *[[5.0, 5.0]] * G]
    theirs, ours = both(make_trainer, *LOSSES["dapo"], OF_GROUP, rewards)
    close(theirs, ours, sum(len(answer) for answer in ANSWERS[:G]) / N_ROWS)


def test_each_reward_normalised_and_then_summed(make_trainer):
    """GDPO's second scale is one number per batch: the spread over answers in TRL, over steps here."""
    trl = dict(loss_type="grpo", multi_objective_aggregation="normalize_then_sum")
    theirs, ours = both(make_trainer, trl, dict(loss_kwargs=EPISODE, normalization="each"), 1.0)
    scale = float(theirs[0].norm() / ours[0].norm())
    close(theirs, tuple(scale * x for x in ours))
    per_step = float(theirs[0].square().mean().sqrt())  # ours have a root mean square of 1 over the steps
    assert scale == pytest.approx(per_step, rel=1e-5) and 0.8 < scale < 1.2


def test_ratios_per_turn_are_trls_ratios_of_turns_as_sequences(make_trainer):
    """Answers of two turns of two tokens: TRL gets each turn as a completion whose prompt is all that came before it."""
    two_turns = [answer for answer in ANSWERS if len(answer) == LONGEST]
    assert len(two_turns) > 2
    model = our_model(loss_kwargs=dict(importance_level="turn"), clip_range=0.1)
    trainer = make_trainer(model, REWARDS, loss_type="bnpo", importance_sampling_level="sequence", epsilon=0.1)
    generator = th.Generator().manual_seed(3)
    old = th.randn(N_ROWS, generator=generator) - 2.5
    turns = th.tensor([t // 2 for answer in ANSWERS for t in range(len(answer))])
    batch = our_batch(model, our_rollout(old, extra={"turn": turns}))
    ours = loss_and_gradient(model.objective()(batch, model._clip_ranges()), model)

    width = len(PROMPTS[0]) + 2
    columns: dict[str, list[list[float]]] = {name: [] for name in ("prompt", "prompt_mask", "turn", "turn_mask", "old")}
    advantages, row = [], 0
    for i, answer in enumerate(ANSWERS):
        for start in range(0, len(answer), 2):
            turn, before = answer[start : start + 2], [*prompt_of(i), *answer[:start]]
            padding, behind = width - len(before), 2 - len(turn)
            columns["prompt"].append([PAD] * padding + before)
            columns["prompt_mask"].append([0] * padding + [1] * len(before))
            columns["turn"].append(turn + [PAD] * behind)
            columns["turn_mask"].append([1] * len(turn) + [0] * behind)
            columns["old"].append(old[row : row + len(turn)].tolist() + [0.0] * behind)
            advantages.append(batch.advantages[row])
            row += len(turn)
    inputs = {
        "prompt_ids": th.tensor(columns["prompt"]),
        "prompt_mask": th.tensor(columns["prompt_mask"]),
        "completion_ids": th.tensor(columns["turn"]),
        "completion_mask": th.tensor(columns["turn_mask"]),
        "old_per_token_logps": th.tensor(columns["old"]),
        "advantages": th.stack(advantages),
    }
    theirs = loss_and_gradient(trainer._compute_loss(trainer.model.train(), inputs), model)
    close((batch.advantages, *theirs), (batch.advantages, *ours))
