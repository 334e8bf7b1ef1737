"""Commands that train, and `doctor`, which says beforehand whether they can."""

import contextlib
import os
import shlex
import sys
from pathlib import Path

from absl import flags

from async_dqn.agents.table import find
from async_dqn.base.errors import UserError
from async_dqn.base.files import json_object
from async_dqn.cli import from_flags
from async_dqn.cli.arguments import PROGRESS, SPEC, TEXT, Call, Command, Whole
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress, end_line
from async_dqn.settings.config import ALONE, Config, refuse_sharing
from async_dqn.system import devices, signals


def _refuse_preset(values: flags.FlagValues) -> None:
    """Of a run that is gone on with, whose settings are known."""
    if values.resume and values["preset"].present:
        raise UserError(f"--preset={values.preset}: with --resume the run has its settings; leave it out")


def _baseline(call: Call) -> int:
    values = call.values
    _refuse_preset(values)
    explicit = from_flags.explicit_settings(values)
    refuse_sharing(explicit, find(values.agent).Config.unshared(), "baseline")
    config = from_flags.config(values, ALONE)
    run = from_flags.run_directory(values, config)
    devices.hide_gpus(devices.card_of_worker(config.gpus, 0))
    from async_dqn.roles import baseline
    from async_dqn.run import build, preflight

    agent = build.make_agent(config)
    memory = preflight.check_memory(config, agent.spec, [0])
    run.create()
    Progress().say(f"run directory: {run.path}\n{memory}")
    plain = values.progress == "plain"
    with run.claimed(Progress().say):
        code = baseline.run_baseline(
            agent, run, resume=values.resume, plain=plain, should_stop=signals.install(), leave=os._exit
        )
    _say_how_it_ended(run)
    _say_how_to_watch(run)
    return code


def _local(call: Call) -> int:
    values = call.values
    _refuse_preset(values)
    config = from_flags.config(values, {})
    from_flags.check_distributed(config)
    if config.store == "shared_memory" and values.private_network == "always":
        raise UserError("--private_network=always: --store=shared_memory has no ports to protect; leave it out")
    run = from_flags.run_directory(values, config)
    devices.card_of_worker(config.gpus, 0)  # says so here where there is no such card
    from async_dqn.roles import local
    from async_dqn.run import build, preflight

    agent, shared, queue = build.make_agent(config), None, None
    if config.store == "shared_memory":  # whose memory is not available any more when experience is looked at
        shared = build.make_shared_store(agent, build.create_shared_memory(agent))
        queue = build.create_shared_queue(config)
    memory = preflight.check_memory(config, agent.spec, range(config.num_workers), build.server_bytes(agent))
    Progress().say(memory)
    run.create()
    settings = [f"--{name}={value}" for name, value in config.to_dict().items()] + ["--verbose"] * values.verbose
    with run.claimed(Progress().say) as inherited:
        code = local.run_local(
            config,
            run,
            [*settings, *([] if queue is None else [f"--experience={queue}"])],
            resume=values.resume,
            max_restarts=values.max_restarts,
            private_network=values.private_network,
            plain=values.progress == "plain",
            should_stop=signals.install(),
            inherited=[*inherited, *([] if queue is None else [queue])],
            memory=shared,
        )
    _say_how_to_watch(run)
    return code


def _supervise(job: str, index: int, config: Config, run: RunDirectory | None, call: Call) -> int:
    """Runs this same command in a process of its own, which is started again when it fails or freezes.

    Args:
      run: where it writes; None: nowhere.
    """
    from async_dqn.system.program import own_command
    from async_dqn.system.task import Task, supervise

    chief_run = run if (job, index) == ("worker", 0) else None
    verdict = chief_run.new_exit_reason() if chief_run else lambda: ""
    fixed = ["--max_restarts=0", *([f"--logdir={run.path}"] if run else [])]

    def command(restarts: int) -> list[str]:
        resume = ["--resume"] if chief_run and restarts and chief_run.config.exists() else []
        return own_command(*call.arguments, *fixed, *resume)

    task = Task(
        f"{job} {index}",
        command,
        max_restarts=call.values.max_restarts,
        lease=config.lease,
        say=Progress().say,
        ask=signals.ASK,
        is_final=lambda: verdict().startswith("failed") or (job == "ps" and task.code == 1),  # its last word
    )
    return supervise(task, signals.install())


def _shared_worker(call: Call) -> int:
    """A worker that `local --store=shared_memory` has started."""
    values = call.values
    config = from_flags.config(values, {})
    index = values.task_index
    if index is None or not 0 <= index < config.num_workers:
        raise UserError(f"--task_index={index}: must be 0 to {config.num_workers - 1}")
    run = from_flags.folder(values, config)
    if index == 0:
        run.check(resume=values.resume)
    devices.hide_gpus(devices.card_of_worker(config.gpus, index))
    should_stop = signals.install()
    from async_dqn.run import build
    from async_dqn.run.recovery import WorkerRun

    agent = build.make_agent(config, index)
    store = build.make_shared_store(agent, values.memory, should_stop.is_set)
    queue = build.make_shared_queue(agent, store, values.experience)
    run.create()
    progress = Progress(name=f"worker {index}")
    num_threads = devices.take_share(agent.config, index, config.num_workers, progress.say)
    whole = WorkerRun(agent, run, store, progress, should_stop, queue, leave=os._exit)
    return whole.run(resume=values.resume, num_threads=num_threads)


def _worker(call: Call) -> int:
    values = call.values
    if values.memory is not None:
        return _shared_worker(call)
    refuse_sharing(from_flags.explicit_settings(values), {"store": "ps"}, "worker")
    spec, index = from_flags.cluster_task(values, "worker")
    config = from_flags.config(values, from_flags.decided_by(spec, values))
    from_flags.check_distributed(config)
    if index == 0:
        run = from_flags.run_directory(values, config, may_rejoin=spec)
    else:
        run = from_flags.folder(values, config)
        run.check_path()
        if values.resume and not run.config.exists():
            raise UserError(
                f"--resume: --logdir={run.path} holds no config.json here, so worker {index} does not know the run's "
                "settings; leave --resume to worker 0, and give the same settings as there"
            )
    card = devices.card_of_worker(config.gpus, index)
    if values.max_restarts:
        return _supervise("worker", index, config, run, call)
    devices.hide_gpus(card)
    should_stop = signals.install()
    from async_dqn.roles import worker
    from async_dqn.run import build, preflight

    agent = build.make_agent(config, index)
    memory = preflight.check_memory(config, agent.spec, [index])
    run.create()
    Progress().say(f"run directory {run.path}; {memory}")
    has_ended = run.new_exit_reason()
    claim: contextlib.AbstractContextManager = contextlib.nullcontext()
    if index == 0:
        claim = run.claimed(Progress().say, is_part=True, patience=config.lease, should_stop=should_stop.is_set)
    with claim:
        code = worker.run_worker(agent, run, spec, resume=values.resume, should_stop=should_stop)
    if index == 0 and has_ended():
        _say_how_it_ended(run)
    return code


def _ps(call: Call) -> int:
    values = call.values
    refuse_sharing(from_flags.explicit_settings(values), {"store": "ps"}, "ps")
    spec, index = from_flags.cluster_task(values, "ps")
    config = from_flags.config(values, from_flags.decided_by(spec, values))
    from_flags.check_distributed(config)
    run = RunDirectory(values.logdir) if values.logdir is not None else None
    if run:
        run.check_path()
    if values.max_restarts:
        return _supervise("ps", index, config, run, call)
    devices.hide_gpus(None)
    should_stop = signals.install()
    from async_dqn.roles import ps

    if run:
        run.create()
    return ps.run_ps(config, spec, index, run, should_stop=should_stop)


def _doctor(call: Call) -> int:
    values = call.values
    try:
        spec, *_ = from_flags.cluster(values)
    except UserError as error:
        if values.cluster_spec is not None:
            raise
        Progress().say(f"warning  {error}; so this is about a cluster on this machine")
        spec = None
    forced = from_flags.decided_by(spec, values) if spec else {}
    try:
        config = from_flags.config(values, forced)
    except ImportError:  # of what knows the environments, which is for a check to tell
        values["preset"].value = next(iter(find(values.agent).presets))
        config = from_flags.config(values, forced)
    from async_dqn.tools.doctor.run import run_doctor

    run = from_flags.folder(values, config)
    return run_doctor(config, spec, run, resume=values.resume)


def _say_how_it_ended(run: RunDirectory) -> None:
    summary = json_object(run.summary)
    if summary is not None:
        Progress().say(end_line(summary))


def _say_how_to_watch(run: RunDirectory) -> None:
    """Says what shows the agent and its curves, where the run has come to have any."""
    from async_dqn.run import checkpoints

    with contextlib.suppress(OSError):  # the folder was removed
        if checkpoints.numbers(run.checkpoints):
            beside = (Path(sys.executable).with_name(name) for name in ("async-dqn", "tensorboard"))
            program, board = (shlex.quote(str(one) if one.exists() else one.name) for one in beside)
            logdir = f"--logdir={shlex.quote(str(run.path))}"
            Progress().say(f"watch it play:  {program} evaluate {logdir} --video=play.gif")
            Progress().say(f"see its curves: {board} {logdir}")


_RUN_DIRECTORY = "The run directory [runs/ENV-AGENT-TIME]."
_RESTARTS = "Start {} again at most this many times when it fails or freezes."
COMMANDS = {
    "local": Command(
        "Train on a cluster of processes on this machine.",
        _local,
        logdir=_RUN_DIRECTORY,
        trains=True,
        options=(
            ("max_restarts", Whole(0, 1_000), 3, _RESTARTS.format("each process")),
            (
                "private_network",
                flags.EnumParser(["auto", "always", "never"]),
                "auto",
                "Run in a network namespace, so that only this run's processes reach its ports: auto (where possible), "
                "always, never.",
            ),
            PROGRESS,
        ),
    ),
    "baseline": Command(
        "Train in a single process.",
        _baseline,
        logdir=_RUN_DIRECTORY,
        trains=True,
        options=(PROGRESS,),
    ),
    "worker": Command(
        "Run one worker of a cluster.",
        _worker,
        logdir=_RUN_DIRECTORY,
        trains=True,
        joins_cluster=True,
        options=(
            ("max_restarts", Whole(0, 1_000), 0, _RESTARTS.format("it")),
            ("memory", Whole(), None, "Internal: `local --store=shared_memory` sets it."),
            ("experience", Whole(), None, "Internal: `local --store=shared_memory` sets it."),
        ),
    ),
    "ps": Command(
        "Run one parameter server of a cluster.",
        _ps,
        logdir="The run directory, for metrics of its own [none].",
        trains=True,
        joins_cluster=True,
        options=(("max_restarts", Whole(0, 1_000), 0, _RESTARTS.format("it")),),
    ),
    "doctor": Command(
        "Check whether this machine, or this host of a cluster, can run what is asked of it.",
        _doctor,
        logdir=_RUN_DIRECTORY,
        trains=True,
        options=(("cluster_spec", TEXT, None, SPEC),),
    ),
}
