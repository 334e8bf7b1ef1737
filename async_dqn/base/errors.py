"""Errors whose message is all that a user needs to see, and the one that a run can recover from."""


class UserError(Exception):
    """Bad input: ends the command with this one line and exit code 2.

    The message names the thing, the value given and what is allowed.
    """


class RunError(Exception):
    """A run that cannot go on: ends the command with this one line and exit code 1."""


class NoAnswer(RunError):
    """Parameter servers that listen, but have not answered for too long."""


class RunFailed(RunError):
    """An error that the whole run must end with, as starting this process again would not help."""


class Outage(Exception):
    """A parameter server is out of reach or has lost what it held. It may come back: see `run.recovery`."""


class Silence(Outage):
    """A parameter server that listens but does not answer, in a process that has no time to wait."""


def import_fault(error: BaseException, module: str) -> str:
    """Why a module, the user's own perhaps, cannot be imported, in one line."""
    is_missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
    return one_line(error) + "; is its folder on PYTHONPATH?" * is_missing


def one_line(what: object, limit: int = 300) -> str:
    """`str(what)` with blanks for line ends, all else that does not print escaped, and bounded."""
    text = " ".join(str(what)[: 4 * limit].split()) or type(what).__name__
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
