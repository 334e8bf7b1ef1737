"""Whole local runs, with small Python programs in place of TensorFlow's."""

import os
import signal
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from cluster_helpers import processes_naming, wait_until

from async_dqn.base.errors import RunError
from async_dqn.roles import local
from async_dqn.run import supervise
from async_dqn.run.directory import RunDirectory

SOON = 30.0  # seconds in which anything must have happened, on a busy machine
PYTHON = [sys.executable, "-I", "-S", "-c"]

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
# As a worker that has made steps.
TRAIN = """
folder = os.path.join(FOLDER, NAME.replace(" ", "-"))
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, "metrics.csv"), "w") as file:
    file.write("wall_seconds,env_steps" + chr(10) + str(time.time()) + ",9" + chr(10))
"""
WAIT_FOR_TWO = "while len(open(FOLDER + '/up').readlines()) < 2: time.sleep(0.01)\n"
FAIL = "print('the reason')\nraise SystemExit(1)\n"


class LocalRun:
    """A local run in a thread of this process, its programs by the names of tasks."""

    def __init__(self, folder: Path, num_ps: int, num_workers: int, programs: dict[str, str], **how):
        self.run = RunDirectory(folder / "run")
        self.should_stop = threading.Event()
        self.code: int | None = None
        config = types.SimpleNamespace(
            agent="dqn",
            env="CartPole-v1",
            num_ps=num_ps,
            num_workers=num_workers,
            total_steps=10,
            stop_at_return=18.0,
            lease=how.pop("lease", 20.0),
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
    chief = (
        TRAIN
        + """
if "--resume" not in sys.argv:
    tell("config.json")
    print("the reason")
    raise SystemExit(1)
while open(FOLDER + "/up").read().count("worker 1") < 2: time.sleep(0.01)
tell("over")
"""
    )
    again = "if not exists('first'): tell('first'); raise SystemExit(9)\nif '--resume' in sys.argv: tell('wrong')\n"
    run = start(1, 2, {"worker 0": chief, "worker 1": again + UNTIL_OVER, "ps 0": UNTIL_OVER})
    assert run.wait() == 0
    out = capsys.readouterr().out
    assert "worker 0: exit code 1: the reason (see " in out and "; restart 1 of 3 in 1 s\n" in out
    assert "worker 0: exit code 0 after 1 restart\n" in out
    assert "ps 0: exit code 0\n" in out
    assert sorted(run.told("up")) == ["ps 0", "worker 0", "worker 0", "worker 1", "worker 1"]
    assert run.told("wrong") == []


def test_an_error_before_the_first_steps_is_not_tried_again_and_its_reason_comes_first(start, capsys):
    chief = "print('async-dqn: FileNotFoundError: no such level file')\nraise SystemExit(1)"
    run = start(1, 2, {"worker 0": chief, "worker 1": chief})
    assert run.wait() == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "worker" in line and "starting" not in line]
    assert "exit code 1: async-dqn: FileNotFoundError: no such level file" in lines[0]
    assert lines[0].endswith("to start it again would not help")
    assert run.told("up").count("worker 0") == 1


def test_on_a_full_disk_nothing_is_started_again(start, capsys, monkeypatch):
    monkeypatch.setattr(local, "_is_full", lambda folder: True)
    run = start(1, 1, {"worker 0": TRAIN + WAIT_FOR_TWO + "raise SystemExit(9)"})
    assert run.wait() == 1
    assert "worker 0: exit code 9 (see " in capsys.readouterr().out


def test_a_folder_that_can_be_written_is_not_full(tmp_path):
    assert not local._is_full(tmp_path)
    assert local._is_full(tmp_path / "none")


def test_a_chief_that_is_killed_before_it_began_begins_again(start):
    chief = (
        "if not exists('first'): tell('first'); os.kill(os.getpid(), 9)\nsys.exit(3 if '--resume' in sys.argv else 0)"
    )
    run = start(1, 1, {"worker 0": chief}, max_restarts=1)
    wait_until(lambda: run.told("up").count("worker 0") == 2, SOON, "started again")
    run.tell_over()
    assert run.wait() == 0


def test_every_process_of_a_resumed_run_is_told_so(start):
    program = "tell('over' if '--resume' in sys.argv else 'no')"
    run = start(1, 2, dict.fromkeys(["ps 0", "worker 0", "worker 1"], program), resume=True)
    assert run.wait() == 0
    assert run.told("no") == []


def test_a_run_goes_on_without_a_worker_that_is_given_up(start, capsys):
    run = start(1, 2, {"worker 1": FAIL.replace("1", "9")}, max_restarts=0)
    log = run.run.logs / "worker-1.log"
    out = ""

    def is_given_up() -> bool:
        nonlocal out
        out += capsys.readouterr().out
        return f"worker 1: exit code 9 (see {log}); given up after 0 restarts\n" in out

    wait_until(is_given_up, SOON, "given up")
    run.wait_until_up(3)
    run.tell_over()
    assert run.wait() == 0
    out += capsys.readouterr().out
    assert "worker 1: exit code 9\n" in out and f"worker 1 failed: the reason (see {log})" in out
    assert run.told("asked to end") == []


@pytest.mark.parametrize("victim", ["ps 0", "worker 0"])
def test_a_run_fails_with_its_chief_and_with_a_ps_and_ends_in_order(start, capsys, victim, monkeypatch):
    monkeypatch.setattr(supervise, "_PS_GRACE", 0.3)
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


@pytest.mark.parametrize("victim", ["ps 0", "worker 1"])
def test_bad_arguments_end_the_run(start, capsys, victim, monkeypatch):
    monkeypatch.setattr(supervise, "_PS_GRACE", 0.3)
    run = start(1, 2, {victim: "print('bad --flag')\nraise SystemExit(2)"})
    assert run.wait() == 2
    out = capsys.readouterr().out
    assert f"{victim}: exit code 2\n" in out and f"{victim} failed: bad --flag" in out
    assert "restart" not in out


def test_an_interrupted_run_ends_in_order(start, monkeypatch):
    monkeypatch.setattr(supervise, "_PS_GRACE", 8.0)
    monkeypatch.setattr(supervise, "END_DEADLINE", 20.0)
    chief = "def stop(*_): tell('asked to end'); tell('over'); sys.exit(130)\nsignal.signal(signal.SIGRTMIN, stop)\n"
    chief += "tell('ready')\n"
    deaf_to_over = "while True: time.sleep(0.01)"
    run = start(2, 2, {"worker 0": chief + UNTIL_OVER, "ps 0": SLOWLY, "ps 1": deaf_to_over})
    run.wait_until_up(4)
    wait_until(lambda: run.told("ready"), SOON, "the chief is ready")
    run.should_stop.set()
    assert run.wait() == 130
    asked = run.told("asked to end")
    assert "worker 0" in asked and asked[-1] == "ps 1"  # the last, as it does not end by itself
    assert "ps 0" not in asked


def test_an_interrupted_run_whose_end_could_not_be_saved_has_failed(start, monkeypatch):
    monkeypatch.setattr(supervise, "_PS_GRACE", 0.3)
    chief = "def stop(*_): sys.exit(1)\nsignal.signal(signal.SIGRTMIN, stop)\ntell('ready')\n"
    run = start(1, 2, {"worker 0": chief + UNTIL_OVER})
    wait_until(lambda: run.told("ready"), SOON, "the chief is ready")
    run.should_stop.set()
    assert run.wait() == 1


def test_a_frozen_process_does_not_hold_up_the_end(start, monkeypatch):
    monkeypatch.setattr(supervise, "GRACE", 1_000.0)
    run = start(1, 2, {})
    run.wait_until_up(3)
    os.kill(run.pid("worker 1"), signal.SIGSTOP)
    run.tell_over()
    assert run.wait() == 0
    assert run.told("asked to end") == ["worker 1"]


def test_a_task_that_was_interrupted_alone_ends_the_run(start, monkeypatch):
    monkeypatch.setattr(supervise, "GRACE", 0.5)
    monkeypatch.setattr(supervise, "_PS_GRACE", 0.3)
    run = start(1, 3, {"worker 1": WAIT_FOR_ALL + "raise SystemExit(130)"})
    assert run.wait() == 130
    assert {"worker 0", "worker 2"} <= set(run.told("asked to end"))


def test_the_others_may_end_by_themselves_after_an_interruption(start, monkeypatch):
    monkeypatch.setattr(supervise, "GRACE", 1_000.0)
    interrupted = WAIT_FOR_ALL + "tell('over')\nraise SystemExit(130)"
    run = start(2, 2, {"ps 0": SLOWLY, "worker 0": SLOWLY + "\nsys.exit(130)", "ps 1": interrupted})
    assert run.wait() == 130
    assert run.told("asked to end") == []


def test_processes_that_hear_no_signal_are_killed(start, capsys, monkeypatch):
    monkeypatch.setattr(supervise, "END_DEADLINE", 2.0)
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
