"""The architecture as a test: imports run downwards, and functions take values in place of the model.

    types < maths < envs, policies < baselines < collect, learn, extras < algorithm < callbacks < tasks < package

Every list of exceptions below says what is still crooked. It may only shrink: what it does not name fails, and so does a name
that is no longer needed.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "sb_grpo"

#: Layers from low to high; those in one line stand beside each other and may not import each other in a circle.
ORDER = (
    ("types",),
    ("maths",),
    ("envs", "policies"),
    ("baselines",),
    ("collect", "learn", "extras"),
    ("algorithm",),  # grpo.py, and what it alone needs: rules between arguments, figures for the logger
    ("callbacks",),
    ("tasks",),  # envs to train on: they use the library, and nothing below knows them
    ("package",),  # sb_grpo/__init__.py: the names that users import
)

#: Module -> layer. A package stands for all that is in it, unless a longer name says otherwise.
LAYERS = {
    "": "package",
    "types": "types",
    "config": "types",
    "distributed": "types",
    "files": "types",
    "plain": "types",
    "state": "types",
    "normalization": "types",
    "maths": "maths",
    "envs": "envs",
    "policies": "policies",
    "baselines": "baselines",
    "collect": "collect",
    "learn": "learn",
    "extras": "extras",
    "advantages": "algorithm",
    "callback_states": "algorithm",
    "checkpoint": "algorithm",
    "evaluation": "algorithm",
    "export": "algorithm",
    "metrics": "algorithm",
    "grpo": "algorithm",
    "distributed_training": "algorithm",
    "logged_keys": "algorithm",
    "on_policy": "algorithm",
    "profiles": "algorithm",
    "save_util": "algorithm",
    "validation": "algorithm",
    "callbacks": "callbacks",
    "tasks": "tasks",
}

#: Imports that run upwards: (from, to).
UPWARD: set[tuple[str, str]] = set()
#: Modules that import each other in a circle, imports for annotations included.
CIRCLE: set[str] = set()
#: Pairs of layers in one line that import each other.
BESIDE: set[tuple[str, str]] = set()
#: Functions that take the model.
TAKES_MODEL: set[str] = set()
#: Private members of other objects of ours: (function, expression).
PRIVATE: set[tuple[str, str]] = set()
#: Modules whose functions are the bodies of the model's methods that write and read files: they take the model, private
#: members included.
FILES = ("checkpoint", "save_util")
#: Where a torch module keeps those who listen to its calls.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: Private members of libraries that offer no other way, and that may stay.
OF_LIBRARIES = {
    ("callbacks.gamma.GammaCallback._on_rollout_start", "model._total_timesteps"),
    ("learn.compiled.CompiledFunctions.gradient_step", "th._dynamo"),
    ("learn.compiled.Graph.__init__", "th._inductor"),
    ("envs.brax.make_brax_env", "envs._envs"),
    ("on_policy.GroupOnPolicyAlgorithm._wrap_env", "OnPolicyAlgorithm._wrap_env"),
    ("policies.heads.StateDependentNoiseHead.distribution", "dist._latent_sde"),
    ("learn.gradients.clip_gradients", "th._foreach_mul_"),
    *(("policies.actor.hooked", f"layer.{name}") for name in HOOKS),
    ("learn.gradients.clip_gradients", "th._foreach_norm"),
    ("tasks.solving._fitted", "policy._get_constructor_parameters"),
    ("policies.weights.versions", "tensor._version"),
}

#: Public in spite of the underscore: a NamedTuple's methods.
NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_make", "_field_defaults"}


def module_name(path: Path) -> str:
    """Name within sb_grpo; the empty one is the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources() -> dict[str, ast.Module]:
    return {module_name(path): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def layer(module: str) -> str:
    """By the longest name in the table that the module is, or is in."""
    parts = module.split(".")
    names = [".".join(parts[:k]) for k in range(len(parts), 0, -1)]
    known = next((name for name in names if name in LAYERS), None)
    assert known is not None, f"sb_grpo.{module} has no layer yet: add it to LAYERS"
    return LAYERS[known]


def rank(module: str) -> int:
    return next(k for k, beside in enumerate(ORDER) if layer(module) in beside)


def imported(tree: ast.AST, module: str, modules: Iterable[str], is_package: bool) -> Iterator[str]:
    """Modules of sb_grpo that a module names in its imports, wherever they stand: at the top, under ``TYPE_CHECKING``, in
    functions. ``from sb_grpo.envs import native`` names ``envs.native``.

    :param modules: all there are
    :param is_package: of a relative import the first dot is then the module itself
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (inner(alias.name) for alias in node.names if is_ours(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = ["sb_grpo", *module.split(".")] if module else ["sb_grpo"]
                up = here[: len(here) - node.level + is_package]
                base = ".".join([*up, base] if base else up)
            if is_ours(base):
                for alias in node.names:
                    whole = inner(f"{base}.{alias.name}")
                    yield whole if whole in modules else inner(base)


def is_ours(name: str) -> bool:
    return name == "sb_grpo" or name.startswith("sb_grpo.")


def inner(name: str) -> str:
    return name.removeprefix("sb_grpo").removeprefix(".")


@cache
def edges() -> frozenset[tuple[str, str]]:
    """(from, to) of every import within sb_grpo."""
    found = set()
    for module, tree in sources().items():
        is_package = (ROOT / Path(*module.split(".")) / "__init__.py").exists() if module else True
        found |= {(module, target) for target in imported(tree, module, sources(), is_package) if target != module}
    return frozenset(found)


def in_circles(pairs: Iterable[tuple[str, str]]) -> set[str]:
    """Nodes from which the edges lead back to themselves."""
    after: dict[str, set[str]] = {}
    for start, end in pairs:
        after.setdefault(start, set()).add(end)

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(after.get(start, ()))
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(after.get(node, ()))
        return seen

    return {node for node in after if node in reachable(node)}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    """Every function with its qualified name, methods and inner functions included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            name = f"{prefix}.{node.name}"
            if isinstance(node, Function):
                yield name, node
            yield from functions(node, name)
        else:
            yield from functions(node, prefix)


def takes_model(function: Function) -> bool:
    """A parameter is called ``model``, or its annotation names GRPO, also within a union or as a string."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return any(a is not None and (a.arg == "model" or names_grpo(a.annotation)) for a in every)


def names_grpo(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(
        (isinstance(node, ast.Name) and node.id == "GRPO")
        or (isinstance(node, ast.Attribute) and node.attr == "GRPO")
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and "GRPO" in node.value)
        for node in ast.walk(annotation)
    )


def private_uses(tree: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """(function, expression) where a member ``_x`` of something other than ``self``, ``cls`` or ``super()`` is touched."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}.{node.name}" if isinstance(node, Function | ast.ClassDef) else prefix
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value):
            yield name, ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and is_ours(node.module or ""):
            yield from ((name, f"from {node.module} import {a.name}") for a in node.names if is_private(a.name))
        yield from private_uses(node, name)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def is_own(value: ast.expr) -> bool:
    is_super = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"
    return is_super or (isinstance(value, ast.Name) and value.id in ("self", "cls"))


def all_functions() -> Iterator[tuple[str, str, Function]]:
    for module, tree in sources().items():
        yield from ((module, name, function) for name, function in functions(tree, module))


# ---------------------------------------------------------------- the rules


def test_imports_run_downwards() -> None:
    assert {(a, b) for a, b in edges() if rank(b) > rank(a)} == UPWARD


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert in_circles(edges()) == CIRCLE


def test_layers_beside_each_other_are_in_no_circle() -> None:
    sideways = {(layer(a), layer(b)) for a, b in edges() if rank(a) == rank(b) and layer(a) != layer(b)}
    circle = in_circles(sideways)
    assert {(a, b) for a, b in sideways if a in circle and b in circle} == BESIDE


def test_functions_take_values_and_not_the_model() -> None:
    found = {name for module, name, function in all_functions() if not knows_the_model(module) and takes_model(function)}
    assert found == TAKES_MODEL


def knows_the_model(module: str) -> bool:
    return module in ("grpo", "on_policy", "tasks.solving", *FILES) or module.split(".")[0] == "callbacks"


def test_private_members_are_left_to_their_owner() -> None:
    uses = {(module, *use) for module, tree in sources().items() for use in private_uses(tree, module)}
    of_model = {use for use in uses if use[0] in FILES and use[2].startswith(("model._", "cls._"))}
    assert {use[1:] for use in uses - of_model} == PRIVATE | OF_LIBRARIES


def test_every_name_in_the_table_of_layers_is_a_layer() -> None:
    assert set(LAYERS.values()) == {name for beside in ORDER for name in beside}


# ---------------------------------------------------------------- the rules themselves, on made-up code


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from sb_grpo.maths.losses import Clip", {"maths.losses"}),
        ("from sb_grpo import metrics, GRPO", {"metrics", ""}),
        ("import sb_grpo.envs.native as n, numpy", {"envs.native"}),
        ("from . import native\nfrom ..maths.losses import Clip", {"envs.native", "maths.losses"}),
        ("if TYPE_CHECKING:\n    from sb_grpo.grpo import GRPO", {"grpo"}),
        ("def f():\n    from sb_grpo.grpo import GRPO", {"grpo"}),
        ("import sb_grpo_other, torch.sb_grpo", set()),
    ],
)
def test_imports_are_found_wherever_they_stand(code: str, expected: set[str]) -> None:
    modules = {"", "maths", "maths.losses", "metrics", "grpo", "envs", "envs.native", "envs.random"}
    assert set(imported(ast.parse(code), "envs.random", modules, False)) == expected


def test_circles_are_found() -> None:
    assert in_circles([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")]) == {"a", "b", "c"}
    assert in_circles([("a", "b"), ("a", "c"), ("b", "c")]) == set()


def test_functions_are_read_as_meant() -> None:
    code = '''
class A:
    def f(self, policy, x: "GRPO | None"):
        """Two
        lines."""
        def g(model): return model._a + self._b
        return super()._c + x._replace()._d
'''
    tree = ast.parse(code)
    found = dict(functions(tree, "m"))
    assert list(found) == ["m.A.f", "m.A.f.g"]
    assert takes_model(found["m.A.f"]) and takes_model(found["m.A.f.g"])
    assert set(private_uses(tree, "m")) == {("m.A.f.g", "model._a"), ("m.A.f", "x._replace()._d")}


def test_the_tree_stays_small() -> None:
    """Raw records pile up: one file of JSON lines per study and label (scripts.studies.merge) is enough."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    assert 300 < len(listed.stdout.splitlines()) < 800
