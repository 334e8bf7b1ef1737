"""The program `async-dqn`."""

from async_dqn.base.defer import defer

# Before anything imports it: commands that need none of it start at once. Keras, which it brings along, would load
# matplotlib: time and memory for nothing.
defer("tensorflow", without=["matplotlib"])

from async_dqn.cli.main import run  # noqa: E402

if __name__ == "__main__":
    run()
