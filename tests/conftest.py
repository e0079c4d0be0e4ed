"""One torch thread per process: with more, small networks on a busy machine run 8 to 60 times slower."""

import multiprocessing

import pytest
import torch as th

th.set_num_threads(1)
#: Envs in processes of their own are forked from a server that has imported torch and SB3, which takes each of them seconds.
multiprocessing.set_forkserver_preload(["sb_grpo.envs.preloaded"])

#: Files whose subject is not sb_grpo, or whose trainings run lines that others run too. To count the lines that they run
#: would make them half as slow again, and these are most of a run's time.
NOT_MEASURED = ("test_zoo", "test_studies", "test_explorer", "test_docs", "test_learning", "test_guards", "test_idle")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.stem.startswith(NOT_MEASURED):
            item.add_marker(pytest.mark.no_cover)
