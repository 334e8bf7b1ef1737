"""Measurements in processes of their own: real ones, that run small functions."""

import os

import psutil
import pytest
from cluster_helpers import processes_naming, wait_until

from async_dqn.agents import table
from async_dqn.base.errors import RunError
from async_dqn.tools.bench import child

pytestmark = pytest.mark.cluster

FUNCTIONS = """
import os, subprocess, sys, time

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

def never(config, text):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", text], stdout=subprocess.DEVNULL)
    time.sleep(600)

def meet(config):
    open(f"{os.getpid()}.here", "w").close()
    while len(os.listdir()) < 2:
        time.sleep(0.01)
    return {"met": 1}
"""


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """Where the functions above can be imported from, in children."""
    (tmp_path / "functions_of_test.py").write_text(FUNCTIONS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def measure(name, num_processes=1, num_threads=1, **arguments):
    config = table.make_config("dqn", "cartpole", {"env": "CartPole-v1", "seed": 7, "stop_at_return": float("inf")})
    return child.measure(f"functions_of_test:{name}", config, num_processes, num_threads, arguments)


def test_settings_and_arguments_go_in_and_numbers_come_out(functions):
    (values,) = measure("echo", num_threads=3, size=2.5)
    assert values.pop("pid") != os.getpid()
    assert values == {"seed": 7, "threads": 3, "size": 2.5}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raising", "exit code 1: ValueError: two lines"),
        ("dying", "exit code 7: last words"),
        ("missing", "AttributeError: .*'missing'"),
    ],
)
def test_each_failure_is_one_line_and_leaves_no_process(functions, name, words):
    before = psutil.Process().children()
    with pytest.raises(RunError, match=words) as caught:
        measure(name)
    assert "\n" not in str(caught.value)
    assert psutil.Process().children() == before


def test_one_that_takes_too_long_is_ended_with_what_it_started(functions, tmp_path, monkeypatch):
    monkeypatch.setattr(child, "_DEADLINE", 15.0)
    with pytest.raises(RunError, match="15 s"):
        measure("never", text=str(tmp_path))
    wait_until(lambda: not processes_naming(tmp_path), 10, "everything ended")


def test_those_that_measure_together_run_at_the_same_time_in_one_folder(functions):
    assert measure("meet", num_processes=2) == [{"met": 1}] * 2
