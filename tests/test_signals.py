"""The first signal asks, the second one ends: whatever else has asked before."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

CHILD = """
    import os, signal, sys, time
    from async_dqn.roles import signals
    stop = signals.install()
    if "asked" in sys.argv:
        stop.set()  # as when a parameter server asks all workers to end
    print("ready", flush=True)
    while not stop.is_set() or "patient" in sys.argv:
        time.sleep(0.01)
    time.sleep(0.2)
    print("saved", flush=True)
"""


def run(*arguments: str, signals: list[int]) -> tuple[int, str]:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), *arguments], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    for number in signals:
        os.kill(child.pid, number)
    output, _ = child.communicate(timeout=30)
    return child.returncode, output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("asked", [[], ["asked"]])
def test_the_first_signal_lets_it_end_well(number, asked):
    assert run(*asked, signals=[number]) == (0, "saved\n")


def test_the_second_signal_ends_it_at_once():
    assert run("patient", signals=[signal.SIGINT, signal.SIGTERM]) == (130, "")
