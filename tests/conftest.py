"""Quiet TensorFlow on the CPU, in this process and in those that tests start; and a limit to the time of all tests."""

import gc
import os
import random
import sys
import time

import hypothesis
import pytest

hypothesis.settings.register_profile("busy", deadline=None)  # a machine may pause in any example
hypothesis.settings.load_profile("busy")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # set before TensorFlow is imported
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


@pytest.fixture(autouse=True)
def _environment():
    """No test leaves variables to the processes of the next one."""
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    for name in (before.keys() | after.keys()) - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif after.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture(autouse=True)
def _forks():
    """What a test has forked ends with it, if it fails too: it may go round and round."""
    yield
    if helpers := sys.modules.get("cluster_helpers"):
        helpers.end_forks()


@pytest.fixture
def no_garbage():
    """What earlier tests left, with descriptors and mappings of its own, goes before a test or after it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def pytest_addoption(parser):
    parser.addoption("--until", type=float, help="seconds since 1970 after which no test begins any more")


def pytest_collection_modifyitems(config, items):
    """Where the time may not do for all, each day another file comes first."""
    until = config.getoption("--until")
    if until:
        files = sorted({item.path for item in items})
        random.Random(until // 86_400).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))


def pytest_runtest_setup(item):
    until = item.config.getoption("--until")
    if until and time.time() > until:
        pytest.skip("left out: the --minutes are over")
