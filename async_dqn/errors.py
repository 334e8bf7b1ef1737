"""Errors whose message is all that a user needs to see."""


class UserError(Exception):
    """Bad input: ends the command with this one line and exit code 2.

    The message names the thing, the value given and what is allowed.
    """


class RunError(Exception):
    """A run that cannot go on: ends the command with this one line and exit code 1."""
