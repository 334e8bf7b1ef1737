"""Tests of measurements in processes of their own: real ones, that run small functions."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from cluster_helpers import START, wait_until

from async_dqn.base.errors import RunError
from async_dqn.settings.config import Config
from async_dqn.tools.bench.child import Child, measure, measure_together

FUNCTIONS = """
import os, sys, time

def echo(config, **arguments):
    import tensorflow as tf
    print("noise on standard output")
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return {"seed": config.seed, "threads": threads, "pid": os.getpid(), **arguments}

def raising(config):
    raise ValueError("two\\nlines")

def dying(config):
    print("last words", file=sys.stderr, flush=True)
    os._exit(7)

def nan(config):
    return {"ms": float("nan")}

def never(config, path):
    open(path, "w").write(str(os.getpid()))
    time.sleep(600)

def clock(config, wait_for_start):
    return {"begin": wait_for_start()}
"""


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """Where the functions above can be imported from, in children."""
    (tmp_path / "functions_of_test.py").write_text(FUNCTIONS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.cluster
def test_settings_and_arguments_go_in_and_numbers_come_out(functions):
    config = Config(seed=7, stop_at_return=float("inf"))
    values = measure("functions_of_test:echo", config, num_threads=3, size=2.5)
    assert values.pop("pid") != os.getpid()
    assert values == {"seed": 7, "threads": 3, "size": 2.5}


@pytest.mark.cluster
def test_each_failure_is_one_line_and_leaves_no_process(functions):
    expected = {
        "raising": "raising: ValueError: two lines",
        "dying": "dying: its process ended with exit code 7: last words",
        "nan": "nan: ms is nan",
        "missing": "missing: AttributeError: module 'functions_of_test' has no attribute 'missing'",
    }
    with contextlib.ExitStack() as stack:
        children = {name: stack.enter_context(Child(f"functions_of_test:{name}", Config())) for name in expected}
        for name, child in children.items():
            with pytest.raises(RunError) as caught:
                child.result(START)
            assert str(caught.value) == expected[name]
    assert not psutil.Process().children()


@pytest.mark.cluster
def test_one_that_takes_too_long_is_ended(functions):
    path = functions / "pid"
    with Child("functions_of_test:never", Config(), path=str(path)) as child:
        pid = int(wait_until(lambda: path.exists() and path.read_text(), START, "the child at work"))
        with pytest.raises(RunError, match="^never: no answer within 0 s$"):
            child.result(0.1)
        assert running(pid)
    assert not running(pid)


@pytest.mark.cluster
def test_those_that_measure_together_begin_at_the_same_time(functions):
    results = measure_together("functions_of_test:clock", Config(), 3, num_threads=1)
    assert len(results) == 3
    assert len({result["begin"] for result in results}) == 1, "one window for all of them"


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_child_ends_with_its_parent(functions, number):
    path = functions / "pid"
    program = (
        "import signal\n"
        "from async_dqn.tools.bench.child import measure\n"
        "from async_dqn.settings.config import Config\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # it is ignored in a background job
        f"measure('functions_of_test:never', Config(), path={json.dumps(str(path))})"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, start_new_session=True) as parent:
        pid = int(wait_until(lambda: path.exists() and path.read_text(), START, "the child at work"))
        parent.send_signal(number)
        parent.communicate(timeout=START)
    wait_until(lambda: not running(pid), 10, "the child ended")
