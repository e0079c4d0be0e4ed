"""One torch thread per process: with more, small networks on a busy machine run 8 to 60 times slower."""

import importlib
import multiprocessing
import pkgutil

import pytest
import torch as th

import sb_grpo

th.set_num_threads(1)
#: Imported once for all envs and commands in processes of their own (tests.helpers.run_command): what takes each seconds.
HEAVY = ["zoo.training.experiment", "rl_zoo3.train", "zoo.plot", "pandas", "scipy.stats", "sb_grpo.envs.preloaded"]
multiprocessing.set_forkserver_preload(["__main__", *HEAVY])

#: Files whose subject is not sb_grpo, and files that run next to no line of it that the others do not (0.1 % of the lines in
#: all). To count the lines that they run would make them half as slow again, and these are most of a run's time.
NOT_MEASURED = (
    "test_zoo", "test_studies", "test_docs", "test_learning", "test_guards", "test_groups",
    "test_exploration", "test_rollout_is_ppos", "test_discount",
)  # fmt: skip
#: Files whose tests of many cases run the same lines of sb_grpo in each: the first case is counted (0.3 % of the lines less).
FIRST_CASE_MEASURED = (
    "test_training_env", "test_grpo", "test_export", "test_health", "test_device_path", "test_alignment", "test_beginnings",
    "test_recovery",
)  # fmt: skip


def pytest_collection_modifyitems(config, items):
    if config.getoption("cov_source", None):
        # Now, while lines are counted: a test that is not measured may be the first to import a module.
        for module in pkgutil.walk_packages(sb_grpo.__path__, "sb_grpo."):
            importlib.import_module(module.name)
    seen = set()
    for item in items:
        name, file = item.nodeid.partition("[")[0], item.path.stem
        if file.startswith(NOT_MEASURED) or (file in FIRST_CASE_MEASURED and name in seen):
            item.add_marker(pytest.mark.no_cover)
        if item.get_closest_marker("slow") is None:
            seen.add(name)
