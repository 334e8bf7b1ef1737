"""What the tests of evaluate and export share."""

from async_dqn.agents.table import make_config
from async_dqn.nn.module import initial_parameters
from async_dqn.run import build, checkpoints
from async_dqn.run.directory import RunDirectory


def saved_run(folder, env, preset, agent="dqn", **settings):
    """A run directory with the untrained networks of the preset: its agent, parameters and itself."""
    config = make_config(agent, preset, {"env": env} | settings)
    built = build.make_agent(config)
    online = initial_parameters(built.modules, config.seed)
    run = RunDirectory(folder / "run")
    run.create()
    save(run, online)
    run.write_config(built.config, run.next_id(resume=False))
    return built, online, run


def save(run, online, number=123, *, is_best=False):
    """A checkpoint of these parameters alone."""
    arrays = {f"store/{name}/online": one for name, one in online.items()}
    checkpoints.save(run.best if is_best else run.checkpoints, number, arrays, {"mean_return_100": 9.0}, keep=1)
