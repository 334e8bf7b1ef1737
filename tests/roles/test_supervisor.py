"""Tests of supervision: single tasks, and whole local runs, with small Python programs in place of TensorFlow's."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cluster_helpers import processes_naming, wait_until

from async_dqn.base.errors import RunError
from async_dqn.roles import local, supervisor
from async_dqn.roles.supervisor import Task, supervise
from async_dqn.run.directory import RunDirectory

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
    supervisor.kill([task for task, _ in made])
    for process in [*processes_naming(tmp_path), *filter(psutil.pid_exists, pids)]:
        with contextlib.suppress(psutil.Error):
            psutil.Process(getattr(process, "pid", process)).kill()


def until_ended(task: Task) -> None:
    """Polls until the process of the task has ended."""

    def ended() -> bool:
        task.poll()
        return not task.is_running

    wait_until(ended, SOON, f"{task.name} has ended")


class Beating:
    """A program that shows that it lives."""

    def __init__(self, folder: Path):
        self._file = folder / "beat"
        self.program = f"import time\nwhile True: open({str(self._file)!r}, 'w').close(); time.sleep(0.02)"

    def wait(self) -> None:
        """Until it has shown it twice, so that at least one beat began after the call."""
        for _ in range(2):
            self._file.unlink(missing_ok=True)
            wait_until(self._file.exists, SOON, "the program lives")


def until_frozen(task: Task) -> None:
    """Stops the process of the task."""
    os.kill(task.pid, signal.SIGSTOP)
    wait_until(lambda: task.is_frozen, SOON, "stopped")


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


def test_a_killed_task_is_started_again(make_task):
    task = make_task(FOREVER, max_restarts=1)
    task.start()
    os.kill(task.pid, signal.SIGKILL)
    until_ended(task)
    assert task.code == -signal.SIGKILL
    assert make_task.said() == ["task 7: killed by SIGKILL; restart 1 of 1 in 1 s"]


def test_no_restarts_may_be_allowed(make_task):
    task = make_task("raise SystemExit(1)", max_restarts=0)
    task.start()
    until_ended(task)
    assert task.is_over and task.has_failed
    assert make_task.said() == ["task 7: exit code 1; given up after 0 restarts"]


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "it said nothing"),
        ("a\n\nb\n", "b"),
        ("worker 0 failed: no port\nwatch it play\n", "worker 0 failed: no port"),
        ("async-dqn: first\nasync-dqn: bad\nb\n", "async-dqn: bad"),
    ],
)
def test_last_words(make_task, tmp_path, text, expected):
    log = tmp_path / "log"
    task = make_task("", log=log)
    assert task.last_words() == "it said nothing"
    log.write_text(text)
    assert task.last_words() == expected


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
    until_frozen(task)
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
    clock.now += 1.0
    task.poll()
    os.kill(task.pid, signal.SIGKILL)
    until_ended(task)
    assert "killed by SIGKILL" in make_task.said()[-1]


def test_a_task_that_is_frozen_for_a_while_only_goes_on(make_task, tmp_path):
    clock, beating = Clock(), Beating(tmp_path)
    task = make_task(beating.program, lease=2.0, clock=clock)
    task.start()
    for _ in range(3):
        until_frozen(task)
        clock.now += 1.0
        task.poll()
        os.kill(task.pid, signal.SIGCONT)
        beating.wait()
        clock.now += 1.0
        task.poll()
    assert task.is_running and make_task.said() == []


def test_time_in_which_nobody_looked_counts_little(make_task, tmp_path):
    """As when the launcher itself was stopped, and its processes with it."""
    clock, beating = Clock(), Beating(tmp_path)
    task = make_task(beating.program, lease=2.0, clock=clock)
    task.start()
    until_frozen(task)
    clock.now += 1_000.0
    task.poll()
    os.kill(task.pid, signal.SIGCONT)
    beating.wait()
    task.poll()
    assert task.is_running and make_task.said() == []


def test_a_stopped_task_can_be_asked_to_end_and_stays_down(make_task, tmp_path):
    ready = tmp_path / "ready"
    program = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
    task = make_task(f"{program}open({str(ready)!r}, 'w').close()\n{FOREVER}")
    task.start()
    wait_until(ready.exists, SOON, "ready")
    until_frozen(task)
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
    supervisor.kill([task])
    assert task.code == -signal.SIGKILL
    wait_until(lambda: len(processes_naming(tmp_path)) == 0, SOON, "the child has ended too")


LAUNCHER = f"""
import os, sys, time
from async_dqn.system.private_network import PrivateNetwork
from async_dqn.roles.supervisor import Task
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
    drop = functools.partial(supervisor._LIBC.prctl, 24, 21, 0, 0, 0)  # CAP_SYS_ADMIN out of the bounding set
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
    prepare = functools.partial(supervisor._prepare, lambda: None, os.getpid() + 1)  # as if this were the next parent
    assert subprocess.Popen([*PYTHON, FOREVER], preexec_fn=prepare).wait(SOON) == 1


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (2, 2), (130, 130), (9, 1)])
def test_one_task_alone_gives_its_exit_code(make_task, code, expected):
    task = make_task(f"raise SystemExit({code})", max_restarts=0)
    assert supervise(task, threading.Event()) == expected


def test_one_task_alone_is_looked_at_while_it_runs(make_task):
    looks = []
    task = make_task("import time; time.sleep(1)")
    assert supervise(task, threading.Event(), lambda: looks.append(task.is_running)) == 0
    assert looks[0] and len(looks) > 1


def test_one_task_alone_is_started_again(make_task):
    task = make_task(lambda restarts: f"raise SystemExit({0 if restarts else 1})")
    assert supervise(task, threading.Event()) == 0
    assert (task.restarts, len(make_task.said())) == (1, 1)


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
    assert supervise(task, should_stop) == (0 if code == 0 else 130)
    thread.join()
    assert make_task.said() == []


# What the processes of a local run do here. Each writes what happens to it into files in the run directory.
PRELUDE = """
import os, signal, sys, time
NAME = sys.argv[1]
FOLDER = next(part for part in sys.argv if part.startswith("--logdir=")).removeprefix("--logdir=")
def tell(what):
    with open(os.path.join(FOLDER, what), "a") as file:
        file.write(NAME + chr(10))
def exists(what):
    return os.path.exists(os.path.join(FOLDER, what))
def stop(*_):
    tell("asked to end")
    time.sleep(SLOW)
    sys.exit(130)
SLOW = 0.0
signal.signal(signal.SIGRTMIN, stop)
tell("up")
"""
UNTIL_OVER = "while not exists('over'): time.sleep(0.01)\nprint(NAME, 'is through')\n"
WAIT_FOR_ALL = "while len(open(FOLDER + '/up').readlines()) < 4: time.sleep(0.01)\n"
SLOWLY = UNTIL_OVER + "time.sleep(1)"  # longer than a poll takes
TELL_NETWORK = "NAME += chr(10) + os.readlink('/proc/self/ns/net')\ntell('network')\n"
FAIL = "print('the reason')\nraise SystemExit(1)\n"


class LocalRun:
    """A local run in a thread of this process, its programs by the names of tasks."""

    def __init__(self, folder: Path, num_ps: int, num_workers: int, programs: dict[str, str], **how):
        self.run = RunDirectory(folder / "run")
        self.should_stop = threading.Event()
        self.code: int | None = None
        config = types.SimpleNamespace(
            num_ps=num_ps, num_workers=num_workers, total_steps=10, lease=how.pop("lease", 20.0)
        )
        how = {"resume": False, "max_restarts": 3, "private_network": "auto", "plain": False} | how

        def program(job: str, index: int) -> list[str]:
            name = f"{job} {index}"
            return [*PYTHON, PRELUDE + programs.get(name, UNTIL_OVER), name]

        def run() -> None:
            self.code = local.run_local(
                config, self.run, ["--flag=1"], should_stop=self.should_stop, program=program, **how
            )

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def told(self, what: str) -> list[str]:
        """The tasks that have told this, in order."""
        path = self.run.path / what
        return path.read_text().splitlines() if path.exists() else []

    def wait_until_up(self, number: int) -> None:
        """Until so many processes have been started."""
        wait_until(lambda: len(self.told("up")) >= number, SOON, f"{number} processes up")

    def tell_over(self) -> None:
        """Has every process end that waits for it."""
        (self.run.path / "over").touch()

    def pid(self, name: str) -> int:
        """Of a task's process."""
        return next(one.pid for one in processes_naming(self.run.path) if name in one.cmdline())

    def wait(self) -> int | None:
        """The exit code of the run; nothing is left of it."""
        self._thread.join(SOON)
        assert not self._thread.is_alive(), "still runs"
        assert processes_naming(self.run.path) == []
        return self.code


@pytest.fixture
def start(tmp_path):
    """Starts local runs, and ends what is left of them."""
    runs = []

    def start(*arguments, **how) -> LocalRun:
        runs.append(LocalRun(tmp_path, *arguments, **how))
        return runs[-1]

    yield start
    for one in runs:
        one.should_stop.set()
        one._thread.join(SOON)


def test_a_run_ends_with_the_chief(start, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").touch()
    run = start(2, 2, {"worker 1": SLOWLY, "worker 0": "if '--resume' in sys.argv: tell('wrong')\n" + UNTIL_OVER})
    run.wait_until_up(4)
    run.tell_over()
    assert run.wait() == 0
    out = capsys.readouterr().out
    assert run.told("asked to end") == run.told("wrong") == []
    for name in ("ps 0", "ps 1", "worker 0", "worker 1"):
        assert f"{name}: exit code 0\n" in out
    assert (run.run.logs / "worker-1.log").read_text() == "worker 1 is through\n"
    assert (run.run.path / "cluster.json").exists()


def test_all_processes_of_a_run_are_in_one_private_network(start, capsys):
    run = start(1, 2, dict.fromkeys(["ps 0", "worker 1"], TELL_NETWORK + UNTIL_OVER))
    wait_until(lambda: len(run.told("network")) == 4, SOON, "two have told it")
    run.tell_over()
    assert run.wait() == 0
    if "warning: no private network" in (out := capsys.readouterr().out):
        pytest.skip(out)
    assert "private network: only this run's processes can reach its ports\n" in out
    (inside,) = {line for line in run.told("network") if line.startswith("net:")}
    assert inside != os.readlink("/proc/self/ns/net")


def test_failed_processes_are_started_again_and_the_chief_goes_on_with_the_run(start, capsys):
    chief = """
if "--resume" not in sys.argv:
    tell("config.json")
    raise SystemExit(1)
tell("over")
"""
    again = "if not exists('first'): tell('first'); raise SystemExit(9)\nif '--resume' in sys.argv: tell('wrong')\n"
    run = start(1, 2, {"worker 0": chief, "worker 1": again + UNTIL_OVER, "ps 0": UNTIL_OVER})
    assert run.wait() == 0
    out = capsys.readouterr().out
    assert "worker 0: exit code 1 (see " in out and "; restart 1 of 3 in 1 s\n" in out
    assert "worker 0: exit code 0 after 1 restart\n" in out
    assert "ps 0: exit code 0\n" in out
    assert sorted(run.told("up")) == ["ps 0", "worker 0", "worker 0", "worker 1", "worker 1"]
    assert run.told("wrong") == []


def test_a_chief_that_fails_before_it_began_begins_again(start):
    chief = "if not exists('first'): tell('first'); raise SystemExit(1)\nsys.exit(3 if '--resume' in sys.argv else 0)"
    run = start(1, 1, {"worker 0": chief}, max_restarts=1)
    wait_until(lambda: run.told("up").count("worker 0") == 2, SOON, "started again")
    run.tell_over()
    assert run.wait() == 0


def test_every_process_of_a_resumed_run_is_told_so(start):
    run = start(
        1,
        2,
        dict.fromkeys(["ps 0", "worker 0", "worker 1"], "tell('over' if '--resume' in sys.argv else 'no')"),
        resume=True,
    )
    assert run.wait() == 0
    assert run.told("no") == []


def test_a_run_goes_on_without_a_worker_that_is_given_up(start, capsys):
    run = start(1, 2, {"worker 1": FAIL}, max_restarts=0)
    log = run.run.logs / "worker-1.log"
    out = ""

    def is_given_up() -> bool:
        nonlocal out
        out += capsys.readouterr().out
        return f"worker 1: exit code 1 (see {log}); given up after 0 restarts\n" in out

    wait_until(is_given_up, SOON, "given up")
    run.wait_until_up(3)
    run.tell_over()
    assert run.wait() == 0
    out += capsys.readouterr().out
    assert "worker 1: exit code 1\n" in out and f"worker 1 failed: the reason (see {log})" in out
    assert run.told("asked to end") == []


@pytest.mark.parametrize("victim", ["ps 0", "worker 0"])
def test_a_run_fails_with_its_chief_and_with_a_ps_and_ends_in_order(start, capsys, victim):
    programs = {"worker 1": "SLOW = 0.3\n" + UNTIL_OVER, victim: WAIT_FOR_ALL + FAIL}
    run = start(2, 2, programs, max_restarts=0)
    assert run.wait() == 1
    out = capsys.readouterr().out
    survivors = [name for name in ("worker 0", "worker 1", "ps 0", "ps 1") if name != victim]
    asked = run.told("asked to end")
    assert sorted(asked) == sorted(survivors)
    assert [name.split()[0] for name in asked] == [name.split()[0] for name in survivors]  # workers first
    assert f"{victim} failed: the reason" in out
    assert "worker 1: exit code 130\n" in out and "worker 1 failed" not in out


@pytest.mark.parametrize("victim", ["ps 0", "worker 0", "worker 1"])
def test_bad_arguments_end_the_run(start, capsys, victim):
    run = start(1, 2, {victim: "print('bad --flag')\nraise SystemExit(2)"})
    assert run.wait() == 2
    out = capsys.readouterr().out
    assert f"{victim}: exit code 2\n" in out and f"{victim} failed: bad --flag" in out
    assert "restart" not in out


def test_an_interrupted_run_ends_in_order(start):
    chief = "def stop(*_): tell('asked to end'); tell('over'); sys.exit(130)\nsignal.signal(signal.SIGRTMIN, stop)\n"
    deaf_to_over = "while True: time.sleep(0.01)"
    run = start(2, 2, {"worker 0": chief + UNTIL_OVER, "ps 0": SLOWLY, "ps 1": deaf_to_over})
    run.wait_until_up(4)
    run.should_stop.set()
    assert run.wait() == 130
    asked = run.told("asked to end")
    assert "worker 0" in asked and asked[-1] == "ps 1"  # the last, as it does not end by itself
    assert "ps 0" not in asked


def test_a_frozen_worker_is_killed_and_started_again(start, capsys):
    run = start(1, 2, {}, lease=0.5)
    run.wait_until_up(3)
    os.kill(run.pid("worker 1"), signal.SIGSTOP)
    run.wait_until_up(4)
    assert run.told("up")[-1] == "worker 1"
    run.tell_over()
    assert run.wait() == 0
    out = capsys.readouterr().out
    assert "worker 1: frozen for 0.5 s, so killed (see " in out
    assert "worker 1: exit code 0 after 1 restart\n" in out


def test_a_frozen_process_does_not_hold_up_the_end(start, monkeypatch):
    monkeypatch.setattr(local, "_GRACE", 1_000.0)
    run = start(1, 2, {})
    run.wait_until_up(3)
    os.kill(run.pid("worker 1"), signal.SIGSTOP)
    run.tell_over()
    assert run.wait() == 0
    assert run.told("asked to end") == ["worker 1"]


def test_a_task_that_was_interrupted_alone_ends_the_run(start, monkeypatch):
    monkeypatch.setattr(local, "_GRACE", 0.5)
    run = start(1, 3, {"worker 1": WAIT_FOR_ALL + "raise SystemExit(130)"})
    assert run.wait() == 130
    assert {"worker 0", "worker 2"} <= set(run.told("asked to end"))


@pytest.mark.parametrize("job", ["ps", "worker"])
def test_the_others_may_end_by_themselves_after_an_interruption(start, job, monkeypatch):
    monkeypatch.setattr(local, "_GRACE", 1_000.0)
    interrupted = WAIT_FOR_ALL + "tell('over')\nraise SystemExit(130)"
    run = start(2, 2, {"ps 0": SLOWLY, "worker 0": SLOWLY + "\nsys.exit(130)", f"{job} 1": interrupted})
    assert run.wait() == 130
    assert run.told("asked to end") == []


def test_processes_that_hear_no_signal_are_killed(start, capsys, monkeypatch):
    monkeypatch.setattr(local, "_END_DEADLINE", 2.0)
    deaf = "signal.signal(signal.SIGRTMIN, signal.SIG_IGN)\ntell('deaf')\nwhile True: time.sleep(0.01)"
    run = start(1, 2, dict.fromkeys(["ps 0", "worker 0", "worker 1"], deaf))
    wait_until(lambda: len(run.told("deaf")) == 3, SOON, "all up")
    run.should_stop.set()
    begin = time.monotonic()
    assert run.wait() == 130
    assert time.monotonic() - begin < 10
    assert capsys.readouterr().out.count("exit code -9\n") == 3


def test_a_private_network_is_made_as_asked(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(local.PrivateNetwork, "create", lambda folder: "unshare: not today; use a firewall")
    with local._network("auto", tmp_path, print) as enter:
        enter()
    out = capsys.readouterr().out
    assert out.startswith("warning: no private network") and out.endswith("unshare: not today; use a firewall\n")
    assert out.count("\n") == 1
    refused = pytest.raises(RunError, match="--private_network=always: unshare: not today")
    with refused, local._network("always", tmp_path, print):
        pytest.fail("it must not begin")
    with local._network("never", tmp_path, print) as enter:
        enter()
    assert capsys.readouterr().out == ""
