"""The names that users import, in one list: each stands where they look for it, and the docs import nothing else."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

import sb_grpo

ROOT = Path(__file__).parent.parent

#: Module -> names. A module without names is imported for what it registers.
PUBLIC: dict[str, set[str]] = {
    "sb_grpo": {
        "GRPO",
        "AdvantageOptions",
        "Anchor",
        "Cispo",
        "Sapo",
        "Clipped",
        "CnnPolicy",
        "CountBonus",
        "Estimate",
        "Features",
        "GroupOptions",
        "GroupRolloutBuffer",
        "Loss",
        "MlpPolicy",
        "MultiInputPolicy",
        "Multitask",
        "Outcome",
        "PairedEvaluation",
        "Process",
        "RNDBonus",
        "Rewards",
        "Rollout",
        "SeededResetWrapper",
        "State",
        "Step",
        "UpdateOptions",
        "Breakdown",
        "UpdateResult",
        "__version__",
        "evaluate_paired",
    },
    "sb_grpo.callbacks": {
        "RECOVERY_RULES",
        "RULES",
        "STRICT_RULES",
        "CurriculumCallback",
        "GammaCallback",
        "HealthCallback",
        "HealthWarning",
        "RecoveryCallback",
        "Rule",
    },
    "sb_grpo.envs": {
        "Alignment", "HostInstance", "InstanceEnv", "ProcessVecEnv", "RayVecEnv", "check_tensor_env", "make_tensor_env",
        "noise_alignment",
    },
    "sb_grpo.tasks.routing": {"TSP", "nearest_neighbour"},
    "sb_grpo.tasks.host_problem": {"ByInstance"},
    "sb_grpo.tasks.instances": {"Cities", "Items", "Jobs", "make_jobs", "public", "read_cities", "read_jobs"},
    "sb_grpo.tasks.item_policy": {"ItemPolicy"},
    "sb_grpo.tasks.scheduling": {"RULES", "DynamicJobShop", "JobShop"},
    "sb_grpo.tasks.solving": {"cp_sat", "solve"},
    "sb_grpo.tasks.uncertain": {"CVRP", "Knapsack"},
    "sb_grpo.envs.brax": {"BraxEnv", "make_brax_env", "make_playground_env"},
    "sb_grpo.tasks.causal.policy": {"InterventionPolicy"},
    "sb_grpo.envs.envpool": {"EnvPoolEnv"},
    "sb_grpo.envs.functional": {"FunctionalTensorEnv"},
    "sb_grpo.tasks.goal_car": {"TensorGoalCar"},
    "sb_grpo.envs.gymnasium_vector": {"GymnasiumVectorEnv"},
    "sb_grpo.envs.host_simulator": {"HostSimulatorEnv"},
    "sb_grpo.tasks.input_driven.references": {"REFERENCES", "episode_returns", "evaluate_reference"},
    "sb_grpo.envs.noise": {
        "EpisodeNoise",
        "NoisyTensorEnv",
        "clock",
        "exponential",
        "geometric",
        "step_noise",
        "normal",
        "pareto",
        "read_clock",
    },
    "sb_grpo.envs.native": {"make_tensor_env"},
    "sb_grpo.envs.random": {"mix", "uniform"},
    "sb_grpo.maths.estimators": {"outcome", "peer_baseline"},
    "sb_grpo.maths.returns": {"episode_returns"},
    "sb_grpo.tasks.text.tokens": {"TokenEnv", "demonstrate", "imitate"},
    "sb_grpo.policies": {
        "CausalLMPolicy",
        "CnnPolicy",
        "EncodingPolicy",
        "MlpPolicy",
        "MultiInputPolicy",
        "RoutedPolicy",
        "SetPolicy",
        "load_actor",
    },
    "sb_grpo.profiles": {"PROFILES"},
    "sb_grpo.envs.tensor_env": {"TensorStep", "TensorVecEnv", "map_snapshot"},
}
#: What some of them need beyond the package itself.
NEEDS = {"sb_grpo.envs.brax": "jax", "sb_grpo.envs.envpool": "envpool", "sb_grpo.tasks.causal.policy": "networkx"}
#: Env ids that importing sb_grpo registers.
ENV_IDS = {
    "BatteryArbitrage-v0",
    "CVRP-v0",
    "CartPolePositions-v0",
    "CartPoleTasks-v0",
    "CausalIntervention-v0",
    "DisturbedPendulum-v0",
    "DynamicJobShop-v0",
    "Inventory-v0",
    "JobShop-v0",
    "Knapsack-v0",
    "LoadBalancing-v0",
    "LunarLanderTasks-v0",
    "MotorSpeed-v0",
    "MotorTorque-v0",
    "MountainCarGoal-v0",
    "OrInventoryBacklog-v0",
    "OrInventoryLostSales-v0",
    "OrNetworkBacklog-v0",
    "OrNetworkLostSales-v0",
    "OrNewsvendor-v0",
    "PendulumPositions-v0",
    "PendulumTasks-v0",
    "QueueRouting-v0",
    "ReasoningGym-v0",
    "TMaze10-v0",
    "TMaze50-v0",
    "TextScenario-v0",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_can_be_imported(module: str) -> None:
    if module in NEEDS:
        pytest.importorskip(NEEDS[module])
    found = importlib.import_module(module)
    assert {name for name in PUBLIC[module] if not hasattr(found, name)} == set()


def test_packages_offer_what_the_list_says() -> None:
    assert set(sb_grpo.__all__) == PUBLIC["sb_grpo"] - {"__version__"}
    for module in ("sb_grpo.callbacks", "sb_grpo.envs"):
        assert set(importlib.import_module(module).__all__) == PUBLIC[module]


def test_policies_have_their_names() -> None:
    assert set(sb_grpo.GRPO.policy_aliases) == {
        "MlpPolicy",
        "CnnPolicy",
        "MultiInputPolicy",
        "RoutedPolicy",
        "CausalLMPolicy",
        "SetPolicy",
    }


def test_env_ids_are_registered() -> None:
    ours = {name for name, spec in gym.registry.items() if "sb_grpo" in str(spec.entry_point)}
    assert ours == ENV_IDS


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def python_blocks(page: Path) -> Iterator[ast.Module]:
    for block in re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
        yield ast.parse(textwrap.dedent(block))


def imports(tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """(module, name) of all that code imports from sb_grpo; None: the module itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "sb_grpo")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sb_grpo":
            yield from ((str(node.module), alias.name) for alias in node.names)


def test_the_code_in_the_docs_imports_public_names_only() -> None:
    found = {use for page in pages() for tree in python_blocks(page) for use in imports(tree)}
    assert len(found) > 20
    assert {(module, name) for module, name in found if name not in PUBLIC.get(module, set()) | {None}} == set()


def test_names_that_the_prose_of_the_docs_spells_out_are_public() -> None:
    spelt = {match for page in pages() for match in re.findall(r"`(sb_grpo(?:\.[a-z_]+)*)\.([A-Za-z_]+)", page.read_text())}
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "sb_grpo").rglob("*.py")}
    unknown = {(m, n) for m, n in spelt if n not in PUBLIC.get(m, set()) and f"{m}.{n}" not in modules}
    assert len(spelt) > 5 and unknown == set()
