"""docs/names.md: every name on its right-hand side exists, and every name of those it is about is on its left."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import sb_grpo
import sb_grpo.callbacks
from sb_grpo import GRPO, Anchor, Clipped, GroupOptions, Multitask, Outcome, Rewards, Sapo, State, Step, UpdateOptions
from sb_grpo.policies import ActorPolicy
from sb_grpo.profiles import PROFILES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "names.md").read_text()
LOGGED = (ROOT / "docs" / "logger.md").read_text()
ARGUMENTS = set(inspect.signature(GRPO.__init__).parameters)
#: Dict among the arguments -> keys that it may have.
KEYS = {
    "loss_kwargs": {f.name for kind in (Clipped, Sapo) for f in fields(kind)},
    "advantage_kwargs": {f.name for kind in (State, Step, Anchor, Outcome) for f in fields(kind)},
    "rewards": {f.name for f in fields(Rewards)},
    "multitask": {f.name for f in fields(Multitask)},
    "group_kwargs": {f.name for f in fields(GroupOptions)},
    "update_kwargs": {f.name for f in fields(UpdateOptions)},
    "policy_kwargs": set(inspect.signature(ActorPolicy.__init__).parameters),
}
#: Names of the five documents that the library was made from.
ELSEWHERE = """
    GRPOConfig group_size clip_ratio entropy_coeff kl_penalty_coeff max_grad_norm learning_rate num_iterations scale_rewards
    GRPOUpdate policy_loss entropy_loss kl_penalty total_loss grad_norm group_baseline mean_reward reward_std mean_advantage
    advantage_std mean_entropy approx_kl SampleReuseManager create_grpo_trainer collect_grpo_batch optimizer_init opt_state
    collect_grpo_batch_with_reuse create_sample_reuse_manager reward_scaling reward_clip_value apply_reward_scaling
    compute_advantages enhanced_grpo_training_loop curriculum_enhanced_grpo grpo_with_exploration compute_bonuses chunk_size
    memory_efficient_grpo_update debug_grpo_update old_log_probs update_step
    ValueHead ValueFunction create_value_function compute_grpo_advantages baseline_type gae_lambda gamma compute_gae
    _compute_group_policy_loss _update_policy compute_grpo_loss compute_enhanced_grpo_loss training_step generate_trajectories
    TrainingConfig num_episodes per_device_train_batch_size gradient_accumulation_steps num_generations beta
    use_reference_model advantage_normalization bf16 warmup_ratio lr_scheduler_type reward_clip value_clip entropy_coef
    from_profile CONSERVATIVE BALANCED AGGRESSIVE MultiTurnGRPOTrainer gradient_checkpointing train_with_trl_grpo
    group_strategy n_groups group_weight_method GroupingStrategy GroupAdvantageNormalizer GroupWeightCalculator
    group_trajectories GRPOvsPPOAnalyzer run_comparison compute_group_advantages_vectorized AdaptiveGrouper history_window
    train_full_scale_grpo.py compare_grpo_models.py run_grpo_workflow.py validate_policy_training.py hidden_size num_layers
    n_episodes episode_length reward_weights multirun model_paths n-runs enable-wandb
    GRPOTrainer clip_param train_step ref_log_probs num_prompts log_probs train_with_grpo num_epochs
""".split()


def rows() -> Iterator[tuple[str, str, str]]:
    """Left, right and remark of each row of the tables of names."""
    for line in PAGE.split("## Where the arguments")[0].splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0] not in ("elsewhere", "---"):
            yield cells[0], cells[1], cells[2]


RIGHT = sorted({name for _, right, _ in rows() for name in re.findall(r"`([^`]+)`", right)})


def exists(name: str) -> bool:
    """Whether what the page calls by a name is there."""
    argument, colon, key = name.partition(": ")
    if colon:
        return key in KEYS[argument]
    if name.startswith("zoo."):
        command, *options = name.split()
        source = (ROOT / f"{command.replace('.', '/')}.py").read_text()
        return all(option in source or option in rl_zoo3_options() for option in options)
    if "/" in name:
        return name in LOGGED
    if name.startswith("sb_grpo."):
        module, _, last = name.rpartition(".")
        return hasattr(importlib.import_module(module), last)
    name = name.partition("(")[0]
    if name.startswith(("model.", "GRPO.")):
        return has(name.partition(".")[2].split("."))
    return name in ARGUMENTS or hasattr(sb_grpo, name) or hasattr(sb_grpo.callbacks, name)


def rl_zoo3_options() -> str:
    import rl_zoo3.train

    return inspect.getsource(rl_zoo3.train)


def has(path: list[str]) -> bool:
    it: Any = GRPO("MlpPolicy", "CartPole-v1")
    for part in path:
        if not hasattr(it, part):
            return False
        it = getattr(it, part)
    return True


@pytest.mark.parametrize("name", RIGHT)
def test_a_name_on_the_right_exists(name):
    assert exists(name)


def test_every_right_hand_side_has_a_name_or_says_that_there_is_none():
    assert len(RIGHT) > 45
    assert [left for left, right, remark in rows() if not (("`" in right) or (right == "-" and remark))] == []


def test_every_name_elsewhere_has_a_row():
    left = " ".join(left for left, _, _ in rows())
    assert [name for name in ELSEWHERE if not re.search(rf"(?<![A-Za-z_]){re.escape(name)}(?![A-Za-z_])", left)] == []


def test_every_option_of_trls_config_is_named():
    """Options that are GRPO's own; the file is parsed, because importing it takes seconds."""
    trl = importlib.util.find_spec("trl")
    if trl is None:
        pytest.skip("the extra [text] is not installed")
    tree = ast.parse((Path(trl.origin).parent / "trainer" / "grpo_config.py").read_text())
    config = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "GRPOConfig")
    options = [node.target.id for node in config.body if isinstance(node, ast.AnnAssign)]
    assert len(options) > 70 and "use_bias_correction_kl" in options
    left = {name for left, _, _ in rows() for name in re.findall(r"`(\w+)[=`]", left)}
    assert [name for name in options if name not in left] == []


def test_false_friends_are_marked():
    marked = " ".join(left for left, _, remark in rows() if "alse friend" in remark)
    assert all(name in marked for name in ("n_groups", "kl_penalty_coeff", "scale_rewards", "chunk_size"))


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_builds_a_model_that_trains_saves_and_loads(name, tmp_path):
    model = GRPO.from_profile(name, "MlpPolicy", "CartPole-v1", n_steps=32, n_epochs=1, seed=0).learn(32)
    assert model.n_epochs == 1 and model.clip_range(1.0) == PROFILES[name]["clip_range"]
    assert float(model.lr_schedule(0.5)) < float(PROFILES[name]["learning_rate"].split("_")[1]) and model.lr_schedule(0.0) == 0
    model.save(tmp_path / "model.zip")
    loaded = GRPO.load(tmp_path / "model.zip", trusted=False)
    assert loaded.lr_schedule(0.5) == model.lr_schedule(0.5)


def test_arguments_go_over_a_profiles_key_by_key():
    model = GRPO.from_profile("conservative", "MlpPolicy", "CartPole-v1", loss_kwargs=dict(clip_range_high=0.3), kl_coef=0.5)
    assert model.loss_kwargs == {"ref_sync_interval": 10, "clip_range_high": 0.3} and model.kl_coef == 0.5
    assert PROFILES["conservative"]["loss_kwargs"] == {"ref_sync_interval": 10}
    with pytest.raises(ValueError, match=r"profile 'bold' is unknown; there are conservative, balanced, aggressive"):
        GRPO.from_profile("bold", "MlpPolicy", "CartPole-v1")
