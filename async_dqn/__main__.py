"""The program `async-dqn`."""

import sys

from async_dqn.base.defer import defer

# Before anything imports it: commands that need none of it start at once. Keras, which it brings along, takes time and
# memory for nothing; an agent that uses `tf.keras` still finds it.
defer("tensorflow", without=["keras", "matplotlib"])


def run() -> None:
    """Runs the command line, and ends the process."""
    try:
        from async_dqn.system import signals

        signals.interrupt()  # before the imports that take their time
        from async_dqn.cli.main import run as run_command
    except KeyboardInterrupt:
        sys.exit(130)
    except ImportError as error:
        sys.exit(f"async-dqn: {error}; a package is missing: remove .venv, and any script in launch/ makes it anew")
    run_command()


if __name__ == "__main__":
    run()
