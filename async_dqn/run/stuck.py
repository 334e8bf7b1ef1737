"""What is saved where the environments do not come back although the run is to end."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from async_dqn.base import types
from async_dqn.envs.vector_env import VectorEnv

_PATIENCE = 3.0  # seconds for a step that is under way when the run is to end
_LOOK_PERIOD = 0.1


class Gate:
    """Environments that training can be shut out of while it waits for them. What else it asks of them goes through."""

    def __init__(self, env: VectorEnv):
        self._env = env
        self.num_envs = env.num_envs
        self._lock = threading.Lock()
        self._is_waited_for = False

    def send(self, actions: np.ndarray) -> None:
        """As of the environments."""
        self._env.send(actions)

    def receive(self) -> types.StepResult:
        """As of the environments; never returns once `shut` has given true."""
        self._is_waited_for = True
        try:
            return self._env.receive()
        finally:
            with self._lock:
                self._is_waited_for = False

    def shut(self) -> bool:
        """Whether somebody waits for the environments, who will from now on do so for ever."""
        self._lock.acquire()
        if self._is_waited_for:
            return True
        self._lock.release()
        return False


@contextmanager
def rescued(gate: Gate, should_stop: Callable[[], bool], rescue: Callable[[], Any]) -> Iterator[None]:
    """Meanwhile, calls `rescue` in a thread of its own where the environments hold up the end of a run.

    Args:
      rescue: saves what there is and ends the process.
    """
    is_over = threading.Event()

    def watch() -> None:
        asked_at = None
        while not is_over.wait(_LOOK_PERIOD):
            if asked_at is None and should_stop():
                asked_at = time.monotonic()
            if asked_at is not None and time.monotonic() - asked_at > _PATIENCE and gate.shut():
                rescue()
                return

    threading.Thread(target=watch, name="rescue", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
