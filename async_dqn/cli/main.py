"""The program `async-dqn`: one command, and how it ends."""

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence

from async_dqn.base.errors import RunError, UserError, one_line
from async_dqn.base.quiet import quiet_stderr
from async_dqn.cli import results, training
from async_dqn.cli.arguments import parse
from async_dqn.run.progress import Progress

COMMANDS = training.COMMANDS | results.COMMANDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 finished, 1 failed while running, 2 bad arguments, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    verbose = "--verbose" in arguments  # as far as is known before they are read
    try:
        parsed = parse(arguments, COMMANDS)
        if isinstance(parsed, str):
            print(parsed)
            return 0
        command, call = parsed
        verbose = call.values.verbose
        with contextlib.nullcontext() if verbose else quiet_stderr():
            return command.run(call)
    except (UserError, RunError) as error:
        _complain(one_line(error, 580))
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        Progress.leave()
        return 130
    except BrokenPipeError:  # whoever read the output, such as `head`, has read enough
        return 1
    except Exception as error:
        if verbose:
            Progress.leave()
            with contextlib.suppress(OSError):
                traceback.print_exc()
            return 1
        frames = traceback.extract_tb(error.__traceback__)
        last = next((one for one in reversed(frames) if "site-packages" not in one.filename), frames[-1])
        where = f"{last.filename}:{last.lineno}"
        _complain(f"{type(error).__name__} at {where}: {one_line(error, 400)} (--verbose shows all)")
        return 1


def _complain(text: str) -> None:
    Progress.leave()
    with contextlib.suppress(OSError):  # a log on a full disk, a pipe that nobody reads any more
        print(f"async-dqn: {text}", file=sys.stderr, flush=True)


def _open_streams() -> None:
    """Puts /dev/null where a standard stream is closed: else the first file that is opened would take its place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def run() -> None:
    """Runs the command line and ends the process: TensorFlow's server can be ended in no other way."""
    _open_streams()
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a log on a full disk
            stream.flush()
    os._exit(code)
