"""What the tests of evaluate and export share."""

from async_dqn.run import build, checkpoints
from async_dqn.run.directory import RunDirectory
from async_dqn.settings.config import make_config


def saved_run(folder, env, preset):
    """A run directory with the untrained network of the preset: its settings, problem, parameters and itself."""
    config = make_config(preset, {"env": env})
    problem = build.make_problem(config)
    online = build.initial_parameters(config, problem)
    run = RunDirectory(folder / "run")
    run.create()
    checkpoints.save(run.checkpoints, 123, {"store/online": online}, {}, keep=1)
    return config, problem, online, run
