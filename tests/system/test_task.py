"""Tasks: small Python programs that end, freeze and are killed."""

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cluster_helpers import processes_naming, wait_until

from async_dqn.system import task as task_module
from async_dqn.system.task import Task, kill, supervise

SOON = 30.0  # seconds in which anything must have happened, on a busy machine
PYTHON = [sys.executable, "-I", "-S", "-c"]
FOREVER = "import time\nwhile True: time.sleep(0.02)"


class Clock:
    """Seconds that pass when told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def make_task(tmp_path):
    """Makes tasks of Python programs, and ends what is left of them, whether or not the code under test would."""
    made = []

    def make(program: str | Callable[[int], str], **how) -> Task:
        def command(restarts: int) -> list[str]:
            return [*PYTHON, program if isinstance(program, str) else program(restarts)]

        said: list[str] = []
        task = Task("task 7", command, **({"max_restarts": 3, "lease": 20.0, "say": said.append} | how))
        made.append((task, said))
        return task

    make.said = lambda: made[-1][1]
    yield make
    pids = [task.pid for task, _ in made if task.pid]
    kill([task for task, _ in made])
    for process in [*processes_naming(tmp_path), *filter(psutil.pid_exists, pids)]:
        with contextlib.suppress(psutil.Error):
            psutil.Process(getattr(process, "pid", process)).kill()


def until_ended(task: Task) -> None:
    """Polls until the process of the task has ended."""

    def ended() -> bool:
        task.poll()
        return not task.is_running

    wait_until(ended, SOON, f"{task.name} has ended")


def freeze(task: Task) -> None:
    os.kill(task.pid, signal.SIGSTOP)
    wait_until(lambda: task.is_frozen, SOON, "stopped")


def thaw(task: Task) -> None:
    os.kill(task.pid, signal.SIGCONT)
    wait_until(lambda: not task.is_frozen, SOON, "goes on")


def test_a_task_is_started_again_after_longer_and_longer_times(make_task):
    clock = Clock()
    task = make_task("raise SystemExit(3)", max_restarts=7, clock=clock)
    task.start()
    for restarts, delay in enumerate([1, 2, 4, 8, 16, 30, 30]):
        until_ended(task)
        assert (task.code, task.restarts, task.is_over) == (3, restarts, False)
        assert make_task.said()[-1] == f"task 7: exit code 3; restart {restarts + 1} of 7 in {delay} s"
        clock.now += delay - 0.01
        task.poll()
        assert not task.is_running
        clock.now += 0.01
        task.poll()
        assert task.is_running
    until_ended(task)
    assert (task.is_over, task.has_failed, task.code, task.restarts) == (True, True, 3, 7)
    assert make_task.said()[-1] == "task 7: exit code 3; given up after 7 restarts"
    assert len(make_task.said()) == 8
    clock.now += 1_000
    task.poll()
    assert not task.is_running


@pytest.mark.parametrize(("code", "failed"), [(0, False), (2, True), (130, False)])
def test_some_exit_codes_are_final(make_task, code, failed):
    task = make_task(f"raise SystemExit({code})")
    task.start()
    until_ended(task)
    assert (task.is_over, task.has_failed, task.code) == (True, failed, code)
    assert (task.was_refused, task.was_interrupted) == (code == 2, code == 130)
    assert make_task.said() == []


def test_arguments_that_were_good_before_are_not_bad_later(make_task):
    """Memory, or a port, that was free at first may be taken when a process comes back."""
    clock = Clock()
    task = make_task("raise SystemExit(2 if {0} else 1)".format, clock=clock, max_restarts=2)
    task.start()
    while not task.is_over:
        until_ended(task)
        clock.now += 30
        task.poll()
    assert (task.code, task.restarts, task.has_failed, task.was_refused) == (2, 2, True, False)


def test_the_command_knows_how_often_it_was_started(make_task, tmp_path):
    clock, log = Clock(), tmp_path / "log"
    program = "print({0}, flush=True); raise SystemExit(0 if {0} == 2 else 9)"
    task = make_task(program.format, clock=clock, log=log)
    task.start()
    while not task.is_over:
        clock.now += 30
        task.poll()
        if task.is_running:
            until_ended(task)
    assert log.read_text().split() == ["0", "1", "2"]  # added to, over restarts
    assert (task.code, task.restarts, task.has_failed) == (0, 2, False)
    assert f"(see {log})" in make_task.said()[0]


def test_last_words_are_an_error_or_the_last_line(make_task, tmp_path):
    log = tmp_path / "log"
    task = make_task("", log=log)
    assert task.last_line() == "it said nothing"
    for text, expected in [
        ("a\n\nb\n", "b"),
        ("worker 0 failed: no port\nwatch it play\n", "worker 0 failed: no port"),
        ("async-dqn: first\nasync-dqn: bad\nb\n", "async-dqn: bad"),
    ]:
        log.write_text(text)
        assert task.last_line() == expected


def test_last_words_are_those_of_the_last_process(make_task, tmp_path):
    log = tmp_path / "log"
    log.write_text("async-dqn: of an earlier run\n")
    program = "print('async-dqn: first', flush=True); raise SystemExit(1)"
    killed = "import os; print('joined', flush=True); os.kill(os.getpid(), 9)"
    clock = Clock()
    task = make_task(lambda restarts: killed if restarts else program, clock=clock, log=log, max_restarts=1)
    task.start()
    assert task.last_line() != "async-dqn: of an earlier run"
    until_ended(task)
    assert task.last_line() == "async-dqn: first"
    clock.now += 30
    task.poll()
    until_ended(task)
    assert task.last_line() == "killed by SIGKILL"


def test_a_task_that_cannot_be_started_is_tried_again(make_task):
    clock = Clock()
    task = Task(
        "task 8", lambda restarts: ["/no/such/program"], max_restarts=1, lease=1, say=(said := []).append, clock=clock
    )
    task.start()
    assert not task.is_running and not task.is_over
    clock.now += 1
    task.poll()
    assert task.is_over and task.has_failed
    assert "task 8: could not be started" in said[0] and "/no/such/program" in said[0]
    assert len(said) == 2


def test_a_frozen_task_is_killed_once_its_lease_has_run_out(make_task):
    clock = Clock()
    task = make_task(FOREVER, lease=2.0, clock=clock)
    task.start()
    freeze(task)
    for _ in range(2):
        clock.now += 1.0
        task.poll()
        assert task.is_frozen
    clock.now += 0.1
    task.poll()
    until_ended(task)
    assert task.code == -signal.SIGKILL
    assert make_task.said() == ["task 7: frozen for 2 s, so killed; restart 1 of 3 in 1 s"]
    clock.now += 1.0
    task.poll()
    assert task.is_running and not task.is_frozen
    os.kill(task.pid, signal.SIGKILL)
    until_ended(task)
    assert "killed by SIGKILL" in make_task.said()[-1]


def test_a_task_that_is_frozen_for_a_while_only_goes_on(make_task):
    clock = Clock()
    task = make_task(FOREVER, lease=2.0, clock=clock)
    task.start()
    # The last: nobody has looked, as when the launcher itself was stopped, and its processes with it.
    for seconds in (1.0, 1.0, 1.0, 1_000.0):
        freeze(task)
        clock.now += seconds
        task.poll()
        thaw(task)
        clock.now += 1.0
        task.poll()
    assert task.is_running and make_task.said() == []


def test_a_stopped_task_can_be_asked_to_end_and_stays_down(make_task, tmp_path):
    ready = tmp_path / "ready"
    program = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
    task = make_task(f"{program}open({str(ready)!r}, 'w').close()\n{FOREVER}")
    task.start()
    wait_until(ready.exists, SOON, "ready")
    freeze(task)
    task.terminate()
    until_ended(task)
    assert (task.code, task.is_over, task.has_failed) == (1, True, False)
    assert make_task.said() == []


def test_a_task_that_waits_for_its_restart_can_be_kept_down(make_task):
    clock = Clock()
    task = make_task("raise SystemExit(1)", clock=clock)
    task.start()
    until_ended(task)
    assert not task.is_over
    task.terminate()
    clock.now += 100
    task.poll()
    assert task.is_over and not task.is_running and task.code == 1


def test_a_task_is_killed_with_its_children(make_task, tmp_path):
    child = f"import subprocess, sys\nsubprocess.Popen([*sys.orig_argv[:-1], {FOREVER!r}, {str(tmp_path)!r}])\n"
    task = make_task(child + FOREVER)
    task.start()
    wait_until(lambda: len(processes_naming(tmp_path)) == 2, SOON, "it and its child are up")
    kill([task])
    assert task.code == -signal.SIGKILL
    wait_until(lambda: len(processes_naming(tmp_path)) == 0, SOON, "the child has ended too")


LAUNCHER = f"""
import os, sys, time
from async_dqn.system.private_network import PrivateNetwork
from async_dqn.system.task import Task
folder, private = sys.argv[1:]
enter = lambda: None
if private == "private":
    network = PrivateNetwork.create(folder)
    if isinstance(network, str):
        sys.exit(network)
    enter = network.enter
command = [sys.executable, "-I", "-S", "-c", {FOREVER!r}, folder]
task = Task("task", lambda restarts: command, max_restarts=3, lease=9, say=print, enter=enter)
task.start()
print(task.pid, flush=True)
while True:
    task.poll()
    time.sleep(0.05)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
@pytest.mark.parametrize("network", ["open", "private", "private without privileges"])
def test_a_killed_launcher_takes_its_tasks_along(tmp_path, network):
    drop = functools.partial(ctypes.CDLL(None).prctl, 24, 21, 0, 0, 0)  # CAP_SYS_ADMIN out of the bounding set
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, tmp_path, network.split()[0]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        preexec_fn=drop if "without" in network else None,
    )
    try:
        line = launcher.stdout.readline()
        if not line:
            pytest.skip(launcher.stderr.read())
        task = psutil.Process(int(line))
        assert task.is_running() and os.getsid(task.pid) == task.pid
    finally:
        launcher.kill()
        launcher.communicate()
    wait_until(lambda: not processes_naming(tmp_path), SOON, "the task has ended")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_launcher_that_died_before_its_task_could_ask_to_be_told():
    prepare = functools.partial(task_module._prepare, lambda: None, os.getpid() + 1)  # as if this were the next parent
    assert subprocess.Popen([*PYTHON, FOREVER], preexec_fn=prepare).wait(SOON) == 1


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (2, 2), (130, 130), (9, 1)])
def test_one_task_alone_gives_its_exit_code(make_task, code, expected):
    task = make_task(f"raise SystemExit({code})", max_restarts=0)
    assert supervise(task, threading.Event()) == expected


def test_one_task_alone_is_started_again_and_looked_at_meanwhile(make_task):
    looks = []
    task = make_task(lambda restarts: f"import time; time.sleep(0.5); raise SystemExit({0 if restarts else 1})")
    assert supervise(task, threading.Event(), lambda: looks.append(task.is_running)) == 0
    assert (task.restarts, len(make_task.said())) == (1, 1)
    assert True in looks


@pytest.mark.parametrize("code", [0, 1, 130])
def test_one_task_alone_is_asked_to_end(make_task, tmp_path, code):
    should_stop, ready = threading.Event(), tmp_path / "ready"
    program = f"import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))\n"
    task = make_task(f"{program}open({str(ready)!r}, 'w').close()\n{FOREVER}")

    def stop() -> None:
        wait_until(ready.exists, SOON, "ready")
        should_stop.set()

    thread = threading.Thread(target=stop)
    thread.start()
    assert supervise(task, should_stop) == code
    thread.join()
    assert make_task.said() == []
