"""The program `async-dqn`."""

from async_dqn.base.defer import defer

defer("tensorflow")  # before anything imports it: commands that need none of it start at once

from async_dqn.cli.main import run  # noqa: E402

if __name__ == "__main__":
    run()
