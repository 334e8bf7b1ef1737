"""How fast it is, and where the time goes: `async-dqn bench`."""
