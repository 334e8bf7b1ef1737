"""A process that is watched, and started again when it fails or freezes."""

import contextlib
import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from async_dqn.base.errors import one_line
from async_dqn.system.signals import DIED, end_with_parent

POLL_PERIOD = 0.2  # seconds between two polls by whoever owns a task
INTERRUPTED = 130  # the exit code of a process that a user has ended
_BAD_ARGUMENTS = 2
_FINAL = (0, INTERRUPTED)
_LONGEST_BACKOFF = 30.0  # seconds
_LONGEST_STEP = 1.0  # seconds of being frozen counted at a time: the launcher itself may have been stopped for longer
_PATIENCE = 60.0  # seconds that a process supervised alone may take to end well


class Task:
    """One process, in a session of its own, that is started again when it fails or freezes.

    Exit codes 0, 130 (interrupted by the user) and, the first time, 2 (bad arguments: they would be bad again) are
    final. Start and poll it in the main thread: on Linux the process gets `signals.DIED` when the thread that
    started it ends, however it does.

    Args:
      name: what messages call it, as "worker 1".
      command: the command line, from the number of restarts so far.
      max_restarts: how often it may be started again.
      lease: seconds it may be frozen (stopped by a signal or a debugger) before it is killed and started again.
      say: takes one line on every restart.
      log: where its output is added to; None: to this process's own.
      ask: the signal that asks it to end.
      inherited: descriptors of this process that it keeps open.
      enter: called in the new process before anything else, as PrivateNetwork.enter.
      is_final: asked when it has failed: whether to start it again would not help.
      is_done: asked when it has failed: whether its work is done all the same, so that its code counts as 0.
      clock: seconds.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        *,
        max_restarts: int,
        lease: float,
        say: Callable[[str], None],
        log: Path | None = None,
        ask: int = signal.SIGTERM,
        inherited: Sequence[int] = (),
        enter: Callable[[], None] = lambda: None,
        is_final: Callable[[], bool] = lambda: False,
        is_done: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.name, self.log = name, log
        self.code: int | None = None  # that it ended with last
        self.restarts = 0
        self.has_failed = False  # it ended badly by itself, and is not started again
        self._command = command
        self._max_restarts, self._lease = max_restarts, lease
        self._inherited = inherited
        self._say, self._ask, self._enter, self._clock = say, ask, enter, clock
        self._is_final, self._is_done = is_final, is_done
        self._process: subprocess.Popen | None = None
        self._log_begin = 0  # bytes that its log held before this process
        self._start_at: float | None = None
        self._polled_at = clock()
        self._frozen_for = 0.0
        self._told_to_end = False

    @property
    def pid(self) -> int | None:
        """Of the process that runs."""
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        """Whether a process has not been seen to end."""
        return self._process is not None

    @property
    def is_over(self) -> bool:
        """Whether nothing runs, nor will."""
        return self._process is None and self._start_at is None

    @property
    def is_frozen(self) -> bool:
        """Whether the process is stopped."""
        with contextlib.suppress(psutil.Error):
            stopped = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
            return self._process is not None and psutil.Process(self._process.pid).status() in stopped
        return False

    @property
    def was_refused(self) -> bool:
        """Whether it ended because of bad arguments."""
        return self.is_over and self.code == _BAD_ARGUMENTS and not self.restarts

    @property
    def was_interrupted(self) -> bool:
        """Whether it ended because somebody asked it to."""
        return self.is_over and self.code == INTERRUPTED

    def last_line(self) -> str:
        """Why it ended: the line of this process's log that says most of that, or else the signal that killed it."""
        log = self.log.read_bytes() if self.log and self.log.exists() else b""
        text = log[self._log_begin :].decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if line.startswith("async-dqn: ") or " failed" in line]
        killed = [_describe(self.code)] if self.code is not None and self.code < 0 else []
        return one_line((telling or killed or lines or ["it said nothing"])[-1], 200)

    def start(self) -> None:
        """Starts the process."""
        self._start_at = None
        self._polled_at, self._frozen_for = self._clock(), 0.0
        prepare = functools.partial(_prepare, self._enter, os.getpid())
        try:
            with contextlib.ExitStack() as stack:
                output = stack.enter_context(open(self.log, "ab")) if self.log else None
                self._log_begin = output.tell() if output else 0
                self._process = subprocess.Popen(
                    self._command(self.restarts),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT if output else None,
                    start_new_session=True,  # Ctrl-C reaches the launcher alone, which passes it on in order
                    pass_fds=self._inherited,
                    preexec_fn=prepare,
                )
        except (OSError, subprocess.SubprocessError) as error:
            self._ended(1, f"could not be started ({error})")

    def poll(self) -> None:
        """Sees whether it has ended or is frozen, and starts it again when it is time. Never waits."""
        now = self._clock()
        elapsed, self._polled_at = min(now - self._polled_at, _LONGEST_STEP), now
        if self._process is None:
            if self._start_at is not None and now >= self._start_at:
                self.restarts += 1
                self.start()
            return
        code = self._process.poll()
        if code is not None:
            self._process = None
            thawed = self._frozen_for <= self._lease
            self._ended(code, _describe(code) if thawed else f"frozen for {self._lease:g} s, so killed")
            return
        if self._frozen_for <= self._lease:
            self._frozen_for = self._frozen_for + elapsed if self.is_frozen else 0.0
        if self._frozen_for > self._lease:
            self._signal(signal.SIGKILL)

    def stay_down(self) -> None:
        """From now on it is not started again."""
        self._told_to_end = True
        self._start_at = None

    def terminate(self) -> None:
        """Asks it to end well, for good. A stopped process would not hear it, so it is woken."""
        self.stay_down()
        self._signal(self._ask)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it at once, for good, with its own children."""
        self.stay_down()
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)

    def _ended(self, code: int, how: str) -> None:
        self.code = code
        is_refused = code == _BAD_ARGUMENTS and not self.restarts  # later they were good, and something else is not
        if self._told_to_end or code in _FINAL:
            return
        if is_refused:
            self.has_failed = True
            return
        if self._is_done():
            self.code, next_step = 0, "its work was done"
        elif self._is_final():
            self.has_failed, next_step = True, "to start it again would not help"
        elif self.restarts >= self._max_restarts:
            plural = "" if self.restarts == 1 else "s"
            self.has_failed, next_step = True, f"given up after {self.restarts} restart{plural}"
        else:
            delay = min(_LONGEST_BACKOFF, 2.0**self.restarts)
            self._start_at = self._clock() + delay
            next_step = f"restart {self.restarts + 1} of {self._max_restarts} in {delay:g} s"
        reason = f": {self.last_line()}" if self.log and code == 1 else ""
        where = f" (see {self.log})" if self.log else ""
        self._say(f"{self.name}: {how}{reason}{where}; {next_step}")


def wait(tasks: Sequence[Task], seconds: float, hurry: Callable[[], bool] = lambda: False) -> None:
    """Waits until no task runs but those that are frozen, at most so long, and no longer once there is a hurry."""
    deadline = time.monotonic() + seconds
    while True:
        for task in tasks:
            task.poll()
        if hurry() or time.monotonic() > deadline or all(not task.is_running or task.is_frozen for task in tasks):
            return
        time.sleep(POLL_PERIOD / 4)


def kill(tasks: Sequence[Task]) -> None:
    """Ends at once what still runs, and waits until it has."""
    for task in tasks:
        task.kill()
    deadline = time.monotonic() + _PATIENCE
    while any(task.is_running for task in tasks) and time.monotonic() < deadline:
        for task in tasks:
            task.poll()
        time.sleep(0.01)


def supervise(task: Task, should_stop: threading.Event, look: Callable[[], None] = lambda: None) -> int:
    """Runs one task to its end, restarts included. Gives its exit code, with 1 for whatever is not 0, 2 or 130.

    Args:
      look: called again and again meanwhile.
    """
    task.start()
    try:
        while not task.is_over and not should_stop.is_set():
            time.sleep(POLL_PERIOD)  # not should_stop.wait: a signal handler that sets what is waited for may deadlock
            task.poll()
            look()
        task.terminate()
        wait([task], _PATIENCE)
    finally:
        kill([task])
    if task.code in _FINAL or task.was_refused:
        return task.code or 0
    return INTERRUPTED if should_stop.is_set() and task.code != 1 else 1  # 1: it could not save, say


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _prepare(enter: Callable[[], None], parent: int) -> None:
    """In the new process, before its program."""
    enter()  # first: a change of user namespace may clear what follows
    end_with_parent(parent, DIED)
