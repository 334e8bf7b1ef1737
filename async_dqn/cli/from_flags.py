"""From flags to what a command works on: settings, a run directory, a place in a cluster.

What is wrong with them is a UserError, which names the flag.
"""

import dataclasses
import os
from typing import Any

from absl import flags

from async_dqn.agents.table import find, for_many_workers, make_config
from async_dqn.base.errors import UserError
from async_dqn.cluster.spec import ClusterSpec, check_port, wait_until_reachable
from async_dqn.run.directory import RunDirectory, default_logdir
from async_dqn.settings.config import Config, ReplaySettings
from async_dqn.settings.environment import EnvironmentOptions


def explicit_settings(values: flags.FlagValues) -> dict[str, Any]:
    """The settings that were given on the command line."""
    names = [field.name for field in dataclasses.fields(find(values.agent).Config)]
    return {name: values[name].value for name in names if values[name].value is not None}


def config(values: flags.FlagValues, forced: dict[str, Any], defaults: dict[str, Any] | None = None) -> Config:
    """Preset, then flags, then what the command itself decides; a resumed run starts from its own settings.

    Args:
      defaults: settings of the command's own that take the place of those of the preset.
    """
    explicit = (defaults or {}) | explicit_settings(values) | forced
    if values.resume:
        if values.logdir is None:
            raise UserError("--resume needs --logdir=FOLDER of the run to go on with")
        run = RunDirectory(values.logdir)
        if os.path.exists(run.config):  # not .exists(): that raises where the name is too long
            saved = run.read_config()
            if saved.agent != values.agent:
                raise UserError(
                    f"--agent={values.agent}: --logdir={run.path} holds a run of {saved.agent}; leave the flag out"
                )
            run.check_resumable()
            _refuse_other_task(run, saved, explicit)
            base = find(saved.agent).resumed(saved, explicit.get("num_workers", saved.num_workers))
            if saved.num_learners <= 2:
                return for_many_workers(type(saved), base, explicit)
            return type(saved).combine(base, explicit)
    return make_config(values.agent, values.preset, explicit)


def _refuse_other_task(run: RunDirectory, saved: Config, explicit: dict[str, Any]) -> None:
    """Raises UserError where flags would have a run go on in another environment, or with rewards unlike those kept."""
    rewards = ("reward_scale", "clip_rewards") if isinstance(saved, ReplaySettings) else ()
    for name in ("env", "protocol", *rewards, *(field.name for field in dataclasses.fields(EnvironmentOptions))):
        before = getattr(saved, name)
        if explicit.get(name, before) != before:
            raise UserError(
                f"--{name}={explicit[name]}: --logdir={run.path} holds a run with --{name}={before}, and a run keeps "
                "that; leave the flag out, or start a new run"
            )


def unshared(values: flags.FlagValues, defaults: dict[str, Any]) -> Config:
    """The settings of the same run in one process."""
    cls = find(values.agent).Config
    return make_config(
        values.agent, values.preset, cls.without_idle(defaults | explicit_settings(values), cls.unshared())
    )


def decided_by(spec: ClusterSpec, values: flags.FlagValues) -> dict[str, Any]:
    """The settings that a cluster decides on. Refuses others."""
    decided = {"store": "ps", "num_ps": spec.num_ps, "num_workers": spec.num_workers}
    for name, value in explicit_settings(values).items():
        if decided.get(name, value) != value:
            raise UserError(f"--{name}={value}: the cluster has {decided[name]}; leave it out")
    return decided


def folder(values: flags.FlagValues, config: Config) -> RunDirectory:
    """The run directory that is asked for, or a new one; it is not checked."""
    return RunDirectory(values.logdir or default_logdir(config.env, config.agent))


def run_directory(values: flags.FlagValues, config: Config, may_rejoin: ClusterSpec | None = None) -> RunDirectory:
    """The run directory, checked. A chief that comes back may rejoin the live cluster of a run without --resume."""
    run = folder(values, config)
    is_live = may_rejoin is not None and not wait_until_reachable(may_rejoin.ps)
    run.check(resume=values.resume or (is_live and run.run_id() is not None))
    return run


def cluster(values: flags.FlagValues) -> tuple[ClusterSpec | None, str | None, int | None]:
    """The cluster that --cluster_spec or TF_CONFIG names, with the job and the index that the latter gives."""
    if values.cluster_spec is not None:
        return ClusterSpec.load(values.cluster_spec), None, None
    if "TF_CONFIG" in os.environ:
        return ClusterSpec.from_tf_config(os.environ["TF_CONFIG"])
    return None, None, None


def cluster_task(values: flags.FlagValues, job: str) -> tuple[ClusterSpec, int]:
    """The cluster and this process's place in it, from --cluster_spec or TF_CONFIG."""
    spec, named_job, named_index = cluster(values)
    if spec is None:
        raise UserError("--cluster_spec=FILE is needed, or TF_CONFIG in the environment")
    if named_job not in (None, job):
        raise UserError(f"TF_CONFIG: its task is a {named_job}, but the command is {job}")
    index = named_index if values.task_index is None else values.task_index
    if index is None:
        raise UserError(f"--task_index is needed: 0 ... {len(spec.to_dict()[job]) - 1} for {job}")
    spec.check_task(job, index)
    check_port(spec.address(job, index))
    return spec, index


def check_distributed(config: Config) -> None:
    """Refuses an agent that trains in one process."""
    if not find(config.agent).distributed:
        raise UserError(f"--agent={config.agent}: trains in one process: use the command baseline")


def existing_run(values: flags.FlagValues) -> RunDirectory:
    """The run directory of a command that trains nothing."""
    if values.logdir is None:
        raise UserError("--logdir=FOLDER is needed: the run directory of a training run")
    return RunDirectory(values.logdir)
