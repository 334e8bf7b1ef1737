"""Environments in processes of their own, which are started again when one of them crashes or hangs."""

from __future__ import annotations

import collections
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from async_dqn.base.errors import RunFailed, UserError, one_line
from async_dqn.system.signals import end_with_parent

# The run ends where more restarts than this came in so many steps.
_MOST_RESTARTS, _WINDOW = 10, 1_000
_ENDING = 2.0  # seconds from the end of a process's pipe to that of the process


class EnvironmentProcesses:
    """N environments, each in a process, that are stepped at the same time.

    A process that raises, ends or takes too long ends all games: all processes are started again, and `lost` says why.

    Attributes:
      lost: why the last step was not taken; empty: it was. Otherwise a reset of all has to come next.

    Args:
      make: makes one environment; it is pickled.
      timeout: seconds that a step or a reset may take.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], num_envs: int, timeout: float):
        self._make, self._num_envs, self._timeout = make, num_envs, timeout
        self._num_steps = 0
        self._restarts: collections.deque[int] = collections.deque(maxlen=_MOST_RESTARTS + 1)  # after so many steps
        self._fault: Exception | None = None  # met by `send`
        self._lost_in_reset = ""  # games of others than were to be reset are lost too, as the next step will say
        self.lost = ""
        self._start()

    def _start(self) -> None:
        makers = [_in_a_process(self._make)] * self._num_envs
        # Forked, they would hold what threads of TensorFlow held in that moment.
        try:
            self._environments = AsyncVectorEnv(makers, context="spawn", autoreset_mode=AutoresetMode.DISABLED)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise RunFailed(
                "environments: their processes ended as they began: the environment crashes there, or a script that "
                "calls train() with env_processes lacks `if __name__ == '__main__':` around the call"
            ) from error

    def send(self, actions: np.ndarray) -> None:
        """Begins to take one action in each environment."""
        self._fault = None
        if self._lost_in_reset:
            return
        try:
            self._environments.step_async(actions)
        except Exception as fault:  # a pipe to a process that has ended
            self._fault = fault

    def recv(self) -> Any:
        """What the actions led to, as gymnasium's vector environments give it; of no meaning where they are `lost`."""
        self._num_steps += 1
        self.lost, self._lost_in_reset = self._lost_in_reset, ""
        if not self.lost:
            try:
                if self._fault:
                    raise self._fault
                return self._environments.step_wait(self._timeout)
            except (RunFailed, UserError):  # what the environment is in the wrong about, at every start
                raise
            except Exception as fault:  # whatever an environment raises
                self.lost = self._restart(fault)
        never = np.zeros(self._num_envs, bool)
        return self._environments.observations, np.zeros(self._num_envs), never, never, {}

    def reset(self, *, seed: list[int | None], options: dict[str, Any]) -> Any:
        """Begins a game where `options["reset_mask"]` says.

        Raises:
          RunFailed: it cannot be done, however often the processes are started again.
        """
        asked, everywhere = options["reset_mask"], np.ones(self._num_envs, bool)
        mask = asked
        while True:
            try:
                self._environments.reset_async(seed=seed, options={"reset_mask": mask})
                return self._environments.reset_wait(self._timeout)
            except (RunFailed, UserError):
                raise
            except Exception as fault:
                lost, mask = self._restart(fault), everywhere
                self._lost_in_reset = "" if asked.all() else lost

    def _restart(self, fault: Exception) -> str:
        reason = self._reason(fault)
        self._restarts.append(self._num_steps)
        if len(self._restarts) > _MOST_RESTARTS and self._num_steps - self._restarts[0] < _WINDOW:
            raise RunFailed(f"environments: {reason}; that was restart {_MOST_RESTARTS + 1} in {_WINDOW:,} steps")
        self.close()
        self._start()
        return reason

    def _reason(self, fault: Exception) -> str:
        if isinstance(fault, multiprocessing.TimeoutError):
            return f"one took more than {self._timeout:g} seconds (--env_timeout)"
        if isinstance(fault, EOFError | OSError):
            ended = connection.wait([process.sentinel for process in self._environments.processes], _ENDING)
            for process in self._environments.processes:
                if process.sentinel in ended:  # which it closes on its way, a moment before it has an exit code
                    process.join(_ENDING)
            codes = [process.exitcode for process in self._environments.processes if process.exitcode]
            return f"the process of one ended{f' with exit code {codes[0]}' if codes else ''}"
        return f"{type(fault).__name__}: {one_line(fault)}"

    def close(self) -> None:
        """Ends the processes, whatever they are at."""
        for process in self._environments.processes:
            process.kill()
        for process in self._environments.processes:
            process.join()
        for pipe in self._environments.parent_pipes:
            if pipe is not None:
                pipe.close()
        self._environments.closed = True


def _in_a_process(make: Callable[[], gymnasium.Env]) -> Callable[[], gymnasium.Env]:
    def made() -> gymnasium.Env:
        parent = multiprocessing.parent_process()
        if parent is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which saves itself
            end_with_parent(parent.pid or os.getppid(), signal.SIGKILL)  # one that hangs would not notice
        return make()

    return made
