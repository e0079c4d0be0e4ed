"""One torch thread per process: with more, small networks on a busy machine run 8 to 60 times slower."""

import multiprocessing

import pytest
import torch as th

th.set_num_threads(1)
#: Imported once for all envs and commands in processes of their own (tests.helpers.run_command): what takes each seconds.
HEAVY = ["zoo.training.experiment", "rl_zoo3.train", "zoo.comparing.curves", "pandas", "scipy.stats", "sb_grpo.envs.preloaded"]
multiprocessing.set_forkserver_preload(["__main__", *HEAVY])

#: Files whose subject is not sb_grpo, and files that run next to no line of it that the others do not (0.1 % of the lines in
#: all). To count the lines that they run would make them half as slow again, and these are most of a run's time.
NOT_MEASURED = (
    "test_zoo", "test_studies", "test_explorer", "test_docs", "test_learning", "test_guards", "test_idle", "test_groups",
    "test_exploration", "test_huge_values", "test_rollout_is_ppos", "test_discount",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.stem.startswith(NOT_MEASURED):
            item.add_marker(pytest.mark.no_cover)
