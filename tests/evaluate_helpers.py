"""What the tests of evaluate and export share."""

from async_dqn import checkpoints
from async_dqn.config import make_config
from async_dqn.roles import assemble
from async_dqn.run_directory import RunDirectory


def saved_run(folder, env, preset):
    """A run directory with the untrained network of the preset: its settings, problem, parameters and itself."""
    config = make_config(preset, {"env": env})
    problem = assemble.make_problem(config)
    online = assemble.initial_parameters(config, problem)
    run = RunDirectory(folder / "run")
    run.create()
    checkpoints.save(run.checkpoints, 123, {"store/online": online}, {}, keep=1)
    return config, problem, online, run
