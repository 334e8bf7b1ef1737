"""A copy in the chief's memory of what the parameter servers hold: a server that dies costs what was done since."""

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from async_dqn.base.background import Background
from async_dqn.base.errors import Outage, RunError
from async_dqn.cluster.remote_store import RemoteParameterStore
from async_dqn.store.base import saved_counters

_PERIOD, _LONGEST_PERIOD = 1.0, 5.0  # seconds between two copies
_SHARE = 0.01  # of the time, at most, goes into copying while the period is not the longest
_WHOLE_PERIOD = 5.0  # seconds after which the next copy is one with targets and slots as well
_TRIES = 5


class Copy(NamedTuple):
    """All of one moment, but for targets and slots."""

    state: dict[str, np.ndarray]  # as of `ParameterStore.state`
    values: dict[str, Any]  # the chief's own, of just before
    at: float  # by the monotonic clock
    whole_at: float  # the same for targets and slots

    def ages(self, at: float) -> str:
        """How old it is at a time of the monotonic clock, for the terminal."""
        return f"{at - self.at:.1f} s old, optimizer and targets {at - self.whole_at:.1f} s"


class Standby:
    """Copies beside the training, and keeps the newest.

    Args:
      store: the parameter servers.
      values: gives what the chief itself has to know of the moment; called by `tick`.
      say: takes a line on a copy that cannot be used.
    """

    def __init__(self, store: RemoteParameterStore, values: Callable[[], dict[str, Any]], say: Callable[[str], None]):
        self._store, self._values, self._say = store, values, say
        self._newest: Copy | None = None
        self._lock = threading.Lock()
        self._background = Background("standby")
        self._copying: concurrent.futures.Future | None = None
        self._next = 0.0

    def tick(self) -> None:
        """Begins a copy where one is due."""
        if time.monotonic() >= self._next and (self._copying is None or self._copying.done()):
            self._next = time.monotonic() + _PERIOD
            self._copying = self._background.submit(self._copy, self._values())

    def keep(self, state: Mapping[str, np.ndarray], values: dict[str, Any]) -> None:
        """Takes what was read for a checkpoint."""
        now = time.monotonic()
        self._take(Copy(dict(state), values, now, now))

    def settle(self, deadline: float) -> None:
        """Returns once no copy is under way, after `deadline` seconds at most."""
        if self._copying is not None:
            concurrent.futures.wait([self._copying], timeout=deadline)

    def newest(self) -> Copy | None:
        """The newest copy that can be restored; None: there is none."""
        if self._newest and not all(np.isfinite(array).all() for array in self._newest.state.values()):
            self._say("warning: the copy of the parameters in worker 0 is not finite, so it is not restored")
            self._newest = None
        return self._newest

    def close(self, deadline: float) -> None:
        """Ends the thread. Returns once no copy is under way, after `deadline` seconds at most."""
        self._background.close()
        self.settle(deadline)

    def _copy(self, values: dict[str, Any]) -> None:
        begin = time.monotonic()
        with contextlib.suppress(Outage, RunError):  # whoever trains will notice
            last = self._newest
            whole = last is None or begin - last.whole_at > _WHOLE_PERIOD
            for _ in range(_TRIES):
                at = time.monotonic()
                state = self._store.copy(whole=whole)
                if state is None:
                    continue
                if whole or last is None:
                    self._take(Copy(state, values, at, at))
                    break
                if saved_counters(state).target_refreshes == saved_counters(last.state).target_refreshes:
                    self._take(Copy(last.state | state, values, at, last.whole_at))
                    break
                whole = True  # targets are others by now
            else:  # others are at work all the time, so they are held up for a moment
                at = time.monotonic()
                self._take(Copy(self._store.state(), values, at, at))
        now = time.monotonic()
        self._next = now + min(max(_PERIOD, (now - begin) / _SHARE), _LONGEST_PERIOD)

    def _take(self, copy: Copy) -> None:
        with self._lock:
            if self._newest is None or copy.at >= self._newest.at:
                self._newest = copy
