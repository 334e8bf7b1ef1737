"""The first signal asks, the second one ends: whatever else has asked before."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from cluster_helpers import heard

from async_dqn.system import signals

CHILD = """
    import os, signal, sys, time
    from async_dqn.system import signals
    signal.alarm(60)  # one that hears nothing ends, and with it the wait for what it says
    stop = signals.install()

    def telling(handle):
        def handle_and_tell(number, frame):
            handle(number, frame)
            os.write(1, b"heard\\n")
        return handle_and_tell

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signals.ASK, signals.DIED):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, telling(signal.getsignal(number)))
    if "asked" in sys.argv:
        stop.set()  # as when a parameter server asks all workers to end
    print("ready", flush=True)
    sys.stdin.read()  # until no other signal comes
    while not stop.is_set() or "patient" in sys.argv:
        time.sleep(0.01)
    print("saved", flush=True)
"""

CHILDREN: list[subprocess.Popen] = []


@pytest.fixture(autouse=True)
def children():
    with heard():
        yield
    while CHILDREN:  # one that a test failed to end
        with CHILDREN.pop() as child:
            child.kill()


def start(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(CHILD), *arguments]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    CHILDREN.append(child)
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    return child


def send(child: subprocess.Popen, number: int) -> bool:
    """Whether it handles the signal and lives; returns once it has done either."""
    os.kill(child.pid, number)
    assert child.stdout is not None
    return child.stdout.readline() == b"heard\n"


def end(child: subprocess.Popen) -> tuple[int, str]:
    """Exit code and output, now that no other signal comes."""
    output, _ = child.communicate(timeout=30)
    return child.returncode, output.decode()


def run(*arguments: str, numbers: list[int]) -> tuple[int, str]:
    child = start(*arguments)
    lives = [send(child, number) for number in numbers]
    code, output = end(child)
    assert lives == [True] * (len(numbers) - 1) + [code == 0]  # none but the last ends it at once
    return code, output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("asked", [[], ["asked"]])
def test_the_first_signal_lets_it_end_well(number, asked):
    assert run(*asked, numbers=[number]) == (0, "saved\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_until_then_a_signal_interrupts_unless_it_is_ignored(number):
    with contextlib.ExitStack() as stack:
        for one in (signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, one, signal.signal(one, signal.SIG_DFL))
        signals.interrupt()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.signal(number, signal.SIG_IGN)  # as nohup does
        signals.interrupt()
        signal.raise_signal(number)


def test_the_second_signal_ends_it_at_once():
    assert run("patient", numbers=[signal.SIGINT, signal.SIGTERM]) == (130, "")


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([signal.SIGHUP, signal.SIGTERM], (0, "saved\n")),  # systemd sends both
        ([signal.SIGHUP, signal.SIGTERM, signal.SIGTERM], (130, "")),
        ([signals.ASK], (0, "saved\n")),
        ([signal.SIGTERM, signals.ASK], (0, "saved\n")),  # to a whole tree of processes, then from the launcher
        ([signals.ASK, signal.SIGTERM], (0, "saved\n")),  # likewise, where the launcher was quicker
        ([signals.ASK, signal.SIGTERM, signal.SIGTERM], (130, "")),
        ([signal.SIGTERM, signals.ASK, signal.SIGINT], (130, "")),
        ([signals.DIED, signals.DIED], (0, "saved\n")),  # of a launcher of several threads
        ([signals.ASK, signals.DIED], (130, "")),  # of a launcher that asked, and ended at once after a second signal
        ([signal.SIGTERM, signals.ASK, signals.DIED], (130, "")),
        ([signals.DIED, signal.SIGTERM], (0, "saved\n")),  # a batch system ends what a launcher that was killed left
        ([signals.DIED, signal.SIGTERM, signal.SIGINT], (130, "")),
    ],
)
def test_a_launcher_that_passes_on_what_everyone_has_heard_is_no_second_signal(numbers, expected):
    patient = ["patient"] if expected[0] else []
    assert run(*patient, numbers=numbers) == expected


def test_signals_that_have_come_together_count_as_if_the_launcher_s_were_the_last():
    child = start()
    os.kill(child.pid, signal.SIGSTOP)
    for number in (signals.ASK, signal.SIGTERM):
        os.kill(child.pid, number)
    os.kill(child.pid, signal.SIGCONT)
    assert end(child) == (0, "heard\nheard\nsaved\n")


def test_nohup_is_respected():
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child = start()
    finally:
        signal.signal(signal.SIGHUP, hangup)
    os.kill(child.pid, signal.SIGHUP)
    assert send(child, signal.SIGTERM)
    assert end(child) == (0, "saved\n")  # and one signal was heard, not two
