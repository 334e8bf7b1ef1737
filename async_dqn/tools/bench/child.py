"""A measurement in a process of its own: TensorFlow's threads can be set once in a process, and nothing is shared.

Parent and child talk over one socket, the child's standard input, a line of JSON at a time. It is the child's lifeline
as well: where the parent ends, however it does, so does the child.
"""

import contextlib
import functools
import importlib
import json
import math
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from async_dqn.base.errors import RunError, UserError, one_line
from async_dqn.settings.config import Config
from async_dqn.system import devices

_DEADLINE = 300.0  # seconds for one measurement, TensorFlow's import on a busy machine included
_HEAD_START = 0.3  # seconds between the word to start and the begin of a common window


class Child:
    """One process, which calls one function and hands back what it gives. To be used in a `with`, which ends it.

    The function is called with the settings and `arguments`, and gives {what, with its unit: value}.

    Args:
      function: "module:name"; the module is imported in the child only.
      num_threads: that TensorFlow computes with.
      worker: whose GPU it takes, where there are any.
      waits: it has an argument `wait_for_start` too: a function that waits for `start`, and gives when to begin.
      enter: called in the new process before anything else, as PrivateNetwork.enter.
    """

    def __init__(
        self,
        function: str,
        config: Config,
        *,
        num_threads: int = 1,
        worker: int = 0,
        waits: bool = False,
        enter: Callable[[], None] | None = None,
        **arguments: Any,
    ):
        self._name = function.rpartition(":")[2]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "async_dqn.tools.bench.child"],
                stdin=theirs.fileno(),
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ},
                start_new_session=True,  # a Ctrl-C is for the parent, which ends its children
                preexec_fn=enter,
            )
        self._lines = self._channel.makefile("r", encoding="utf-8")
        self._send(
            {
                "function": function,
                "config": config.to_dict(),
                "num_threads": num_threads,
                "worker": worker,
                "waits": waits,
                "arguments": arguments,
            }
        )

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *reason: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._lines.close()
        self._channel.close()
        self._log.close()

    def wait_until_ready(self, deadline: float = _DEADLINE) -> None:
        """Until it waits for the start."""
        self._receive("ready", deadline)

    def start(self, begin: float) -> None:
        """Has it begin at a time of `time.monotonic`, which all processes of a machine share."""
        self._send(begin)

    def result(self, deadline: float = _DEADLINE) -> dict[str, float]:
        """What the function gave. Raises RunError where it failed, took too long, or gave what is not a number."""
        values = self._receive("result", deadline)
        for what, value in values.items():
            if not math.isfinite(value):
                raise RunError(f"{self._name}: {what} is {value}")
        return values

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended; `_receive` says why
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _receive(self, kind: str, deadline: float) -> Any:
        self._channel.settimeout(deadline)
        try:
            line = self._lines.readline()
        except TimeoutError:
            raise RunError(f"{self._name}: no answer within {deadline:.0f} s") from None
        except OSError:
            line = ""
        if not line:
            code = self._process.wait()
            raise RunError(f"{self._name}: its process ended with exit code {code}: {self._last_words()}")
        message = json.loads(line)
        if kind not in message:
            raise RunError(f"{self._name}: {message.get('error', f'an answer that is not {kind}')}")
        return message[kind]

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return one_line(next((line for line in reversed(lines) if line.strip()), "no output"))


def measure(function: str, config: Config, **options: Any) -> dict[str, float]:
    """Has one child measure; all `options` are `Child`'s."""
    with Child(function, config, **options) as child:
        return child.result()


def measure_together(
    function: str, config: Config, num_children: int, *, num_threads: int, **arguments: Any
) -> list[dict[str, float]]:
    """Has several children measure at the same time, each in the same window and on cores of its own, like workers."""
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(
                Child(
                    function,
                    config,
                    num_threads=num_threads,
                    worker=worker,
                    waits=True,
                    enter=functools.partial(devices.keep_to_cores, worker, num_children),
                    **arguments,
                )
            )
            for worker in range(num_children)
        ]
        for child in children:
            child.wait_until_ready()
        begin = time.monotonic() + _HEAD_START
        for child in children:
            child.start(begin)
        return [child.result() for child in children]


class _Parent:
    """The child's end of the socket."""

    def __init__(self, channel: socket.socket):
        self._channel = channel
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="lifeline", daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError), self._channel.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                self._messages.put(json.loads(line))
        os._exit(1)

    def hear(self) -> Any:
        """The next message."""
        return self._messages.get()

    def tell(self, **message: Any) -> None:
        """Sends a message."""
        self._channel.sendall(json.dumps(message).encode() + b"\n")

    def wait_for_start(self) -> float:
        """Says that all is ready, waits for the word, and gives when to begin, by `time.monotonic`."""
        self.tell(ready=True)
        return self.hear()


@contextlib.contextmanager
def _errors_told(parent: _Parent) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, RunError | UserError) else f"{type(error).__name__}: "
        parent.tell(error=one_line(f"{kind}{error}"))


def _call(request: Mapping[str, Any], parent: _Parent) -> dict[str, float]:
    config = Config.from_dict(request["config"])
    devices.hide_gpus(devices.card_of_worker(config.gpus, request["worker"]))
    devices.configure_eager(config, request["num_threads"])
    module, _, name = request["function"].partition(":")
    arguments = request["arguments"] | ({"wait_for_start": parent.wait_for_start} if request["waits"] else {})
    return getattr(importlib.import_module(module), name)(config, **arguments)


def main() -> None:
    """The child: hears what to measure, and tells what it found."""
    parent = _Parent(socket.socket(fileno=os.dup(0)))
    with _errors_told(parent):
        parent.tell(result=_call(parent.hear(), parent))
    os._exit(0)  # TensorFlow's server can be ended in no other way


if __name__ == "__main__":
    main()
