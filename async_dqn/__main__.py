"""The command line: sub-commands and flags become a `Config` and one role."""

import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from async_dqn import devices, pretrained
from async_dqn.cluster.spec import ClusterSpec, check_port, wait_until_reachable
from async_dqn.config import DTYPES, PRESETS, Config, make_config
from async_dqn.errors import RunError, UserError, one_line
from async_dqn.progress import Progress
from async_dqn.quiet import quiet_stderr
from async_dqn.run_directory import RunDirectory, default_logdir


class _Whole(flags.ArgumentParser):
    """Whole numbers, also written 1_000 or 1e6."""

    syntactic_help = "a whole number"

    def parse(self, argument: Any) -> int:
        try:
            return int(argument)
        except ValueError:
            pass
        try:
            number = float(argument)
        except ValueError:
            number = float("nan")
        if not number.is_integer():
            raise ValueError("must be a whole number")
        return int(number)


class _Number(flags.ArgumentParser):
    """Numbers; inf is one."""

    syntactic_help = "a number"

    def parse(self, argument: Any) -> float:
        try:
            return float(argument)
        except ValueError:
            raise ValueError("must be a number") from None


class _TrueOrFalse(flags.BooleanParser):
    """What absl takes as a boolean, with a line for people on anything else."""

    def parse(self, argument: Any) -> bool:
        try:
            return super().parse(argument)
        except ValueError:
            raise ValueError("must be true or false") from None


def _define_boolean(values: flags.FlagValues, name: str, default: bool | None, text: str) -> None:
    flags.DEFINE_boolean(name, default, text, flag_values=values)
    values[name].parser = _TrueOrFalse()


def _define(values: flags.FlagValues, command: "Command") -> None:
    serializer: flags.ArgumentSerializer = flags.ArgumentSerializer()
    for field in dataclasses.fields(Config) if command.trains else ():
        choices = field.metadata["choices"]
        text = f"{field.metadata['help']}{' One of: ' + ', '.join(choices) + '.' if choices else ''} [{field.default}]"
        if field.type is bool:
            _define_boolean(values, field.name, None, text)
        elif field.type is str:
            flags.DEFINE_string(field.name, None, text, flag_values=values)
        else:
            number: flags.ArgumentParser = _Whole() if field.type is int else _Number()
            flags.DEFINE(number, field.name, None, text, values, serializer)
    if command.trains:
        text = f"Settings to start from: auto (by --env), {', '.join(PRESETS)}. Single flags override it."
        flags.DEFINE_string("preset", "auto", text, flag_values=values)
        _define_boolean(values, "resume", False, "Go on with the run in --logdir.")
    if command.logdir:
        flags.DEFINE_string("logdir", None, command.logdir, flag_values=values)
    _define_boolean(values, "verbose", False, "Show TensorFlow's own messages and full tracebacks.")
    if command.joins_cluster:
        flags.DEFINE_string("cluster_spec", None, _SPEC, flag_values=values)
        flags.DEFINE(_Whole(), "task_index", None, "Which of them this process is.", values, serializer)
    for name, parser, default, text in command.options:
        if isinstance(parser, flags.BooleanParser):
            _define_boolean(values, name, default, text)
        else:
            flags.DEFINE(parser, name, default, text, values, serializer)


class Call(NamedTuple):
    """What was asked for on the command line.

    Attributes:
      values: the flags.
      operands: what is no flag.
      arguments: the whole command line, as it was given.
    """

    values: flags.FlagValues
    operands: Sequence[str]
    arguments: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Command:
    """A sub-command: what it does, which flags it takes, and the function that gives its exit code.

    Attributes:
      logdir: what --logdir is for, as its help says it; empty: there is no such flag.
      operands: what it takes beside flags, as its usage says it; empty: nothing.
      draws: whether it makes pictures.
    """

    help: str
    run: Callable[[Call], int]
    logdir: str = ""
    trains: bool = False
    joins_cluster: bool = False
    options: Sequence[tuple[str, flags.ArgumentParser, Any, str]] = ()
    operands: str = ""
    draws: bool = False


def _explicit(values: flags.FlagValues) -> dict[str, Any]:
    """The settings that were given on the command line."""
    names = [field.name for field in dataclasses.fields(Config)]
    return {name: values[name].value for name in names if values[name].value is not None}


def _auto_preset(env: str) -> str:
    from async_dqn import environments

    spec = environments.resolve(env, "classic" if env else "none")
    if not spec.is_atari:
        return "cartpole"
    return "pong-fast" if spec.id == "ALE/Pong-v5" else "atari-fast"


def _make_config(values: flags.FlagValues, forced: dict[str, Any], defaults: dict[str, Any] | None = None) -> Config:
    """Preset, then flags, then what the command itself decides; a resumed run starts from its own settings.

    Args:
      defaults: settings of the command's own that take the place of those of the preset.
    """
    explicit = (defaults or {}) | _explicit(values) | forced
    if values.resume:
        if values.logdir is None:
            raise UserError("--resume needs --logdir=FOLDER of the run to go on with")
        run = RunDirectory(values.logdir)
        if run.config.exists():
            return dataclasses.replace(run.read_config(), **explicit)
    preset = values.preset
    if preset == "auto":
        preset = _auto_preset(explicit.get("env", Config.env))
    return make_config(preset, explicit)


def _run_directory(values: flags.FlagValues, config: Config, may_rejoin: ClusterSpec | None = None) -> RunDirectory:
    """The run directory, checked. A chief that comes back may rejoin the live cluster of a run without --resume."""
    run = RunDirectory(values.logdir or default_logdir(config.env, config.agent))
    is_live = may_rejoin is not None and not wait_until_reachable(may_rejoin.ps, 0.0, lambda: False)
    run.check(resume=values.resume or (is_live and run.run_id() is not None))
    return run


def _cluster(values: flags.FlagValues) -> tuple[ClusterSpec | None, str | None, int | None]:
    """The cluster that --cluster_spec or TF_CONFIG names, with the job and the index that the latter gives."""
    if values.cluster_spec is not None:
        return ClusterSpec.load(values.cluster_spec), None, None
    if "TF_CONFIG" in os.environ:
        return ClusterSpec.from_tf_config(os.environ["TF_CONFIG"])
    return None, None, None


def _cluster_task(values: flags.FlagValues, job: str) -> tuple[ClusterSpec, int]:
    """The cluster and this process's place in it, from --cluster_spec or TF_CONFIG."""
    spec, named_job, named_index = _cluster(values)
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


def _baseline(call: Call) -> int:
    values = call.values
    config = _make_config(values, {"num_workers": 1, "num_ps": 1})
    run = _run_directory(values, config)
    devices.hide_gpus(devices.card_of_worker(config.gpus, 0))
    from async_dqn.roles import assemble, baseline, preflight

    problem = assemble.make_problem(config)
    memory = preflight.check_replay_memory(config, problem.spec, 1)
    run.create()
    Progress().say(f"run directory: {run.path}\n{memory}")
    plain = values.progress == "plain"
    with run.claimed(Progress().say):
        code = baseline.run_baseline(config, problem, run, resume=values.resume, plain=plain, should_stop=_signals())
    Progress().say(_how_to_watch(run))
    return code


def _local(call: Call) -> int:
    values = call.values
    config = _make_config(values, {})
    _check_max_restarts(values)
    run = _run_directory(values, config)
    devices.card_of_worker(config.gpus, 0)  # says so here where there is no such card
    from async_dqn.roles import local, preflight

    spec, _ = preflight.resolve(config)
    Progress().say(preflight.check_replay_memory(config, spec, config.num_workers))
    run.create()
    with run.claimed(Progress().say) as inherited:
        code = local.run_local(
            config,
            run,
            [f"--{name}={value}" for name, value in config.to_dict().items()],
            resume=values.resume,
            max_restarts=values.max_restarts,
            private_network=values.private_network,
            plain=values.progress == "plain",
            should_stop=_signals(),
            inherited=inherited,
        )
    Progress().say(_how_to_watch(run))
    return code


def _check_max_restarts(values: flags.FlagValues) -> None:
    if not 0 <= values.max_restarts <= 1_000:
        raise UserError(f"--max_restarts={values.max_restarts}: must be 0 to 1000")


def _supervise(job: str, index: int, config: Config, run: RunDirectory | None, call: Call) -> int:
    """Runs this same command in a process of its own, which is started again when it fails or freezes.

    Args:
      run: where it writes; None: nowhere.
    """
    from async_dqn.roles import signals
    from async_dqn.roles.supervisor import Task, supervise

    chief_run = run if (job, index) == ("worker", 0) else None
    verdict = chief_run.new_exit_reason() if chief_run else lambda: ""
    fixed = ["--max_restarts=0", *([f"--logdir={run.path}"] if run else [])]

    def command(restarts: int) -> list[str]:
        resume = ["--resume"] if chief_run and restarts and chief_run.config.exists() else []
        return [sys.executable, "-m", "async_dqn", *call.arguments, *fixed, *resume]

    task = Task(
        f"{job} {index}",
        command,
        max_restarts=call.values.max_restarts,
        lease=config.lease,
        say=Progress().say,
        ask=signals.ASK,
        is_final=lambda: verdict().startswith("failed") or (job == "ps" and task.code == 1),  # its last word
    )
    return supervise(task, _signals())


def _worker(call: Call) -> int:
    values = call.values
    spec, index = _cluster_task(values, "worker")
    config = _make_config(values, {"num_ps": spec.num_ps, "num_workers": spec.num_workers})
    _check_max_restarts(values)
    if index == 0:
        run = _run_directory(values, config, may_rejoin=spec)
    else:
        run = RunDirectory(values.logdir or default_logdir(config.env, config.agent))
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
    should_stop = _signals()
    from async_dqn.roles import assemble, preflight, worker

    problem = assemble.make_problem(config)
    memory = preflight.check_replay_memory(config, problem.spec, 1)
    run.create()
    Progress().say(f"run directory {run.path}; {memory}")
    return worker.run_worker(config, problem, run, spec, index, resume=values.resume, should_stop=should_stop)


def _ps(call: Call) -> int:
    values = call.values
    spec, index = _cluster_task(values, "ps")
    config = _make_config(values, {"num_ps": spec.num_ps, "num_workers": spec.num_workers})
    _check_max_restarts(values)
    run = RunDirectory(values.logdir) if values.logdir is not None else None
    if run:
        run.check_path()
    if values.max_restarts:
        return _supervise("ps", index, config, run, call)
    devices.hide_gpus(None)
    should_stop = _signals()
    from async_dqn.roles import ps

    if run:
        run.create()
    return ps.run_ps(config, spec, index, run, should_stop=should_stop)


def _doctor(call: Call) -> int:
    values = call.values
    try:
        spec, *_ = _cluster(values)
    except UserError as error:
        if values.cluster_spec is not None:
            raise
        Progress().say(f"warning  {error}; so this is about a cluster on this machine")
        spec = None
    forced = {"num_ps": spec.num_ps, "num_workers": spec.num_workers} if spec else {}
    config = _make_config(values, forced)
    from async_dqn.doctor.run import run_doctor

    run = RunDirectory(values.logdir or default_logdir(config.env, config.agent))
    return run_doctor(config, spec, run, resume=values.resume)


def _existing_run(values: flags.FlagValues) -> RunDirectory:
    if values.logdir is None:
        raise UserError("--logdir=FOLDER is needed: the run directory of a training run")
    return RunDirectory(values.logdir)


def _evaluate(call: Call) -> int:
    values = call.values
    if values.pretrained is not None and values.logdir is not None:
        raise UserError(f"--pretrained={values.pretrained}: leave it or --logdir={values.logdir} out")
    run = _existing_run(values) if values.pretrained is None else pretrained.find(values.pretrained)
    if values.games < 1:
        raise UserError(f"--games={values.games}: must be at least 1")
    if values.video is not None and not values.video.endswith((".gif", ".mp4")):
        raise UserError(f"--video={values.video}: must end in .gif or .mp4")
    if not values.video_seconds > 0:
        raise UserError(f"--video_seconds={values.video_seconds}: must be more than 0")
    if values.overlay == "q" and values.video is None and not values.human:
        raise UserError("--overlay=q: needs --video=FILE or --human to be seen")
    config = run.read_config()
    devices.hide_gpus(None)
    from async_dqn.roles import evaluate

    watch = evaluate.Watch(values.video, values.video_seconds, values.human, values.overlay == "q")
    keeps = values.pretrained is None
    return evaluate.run_evaluate(config, run, games=values.games, seed=values.seed, watch=watch, keeps=keeps)


def _export(call: Call) -> int:
    values = call.values
    run = _existing_run(values)
    config = run.read_config()
    devices.hide_gpus(None)
    from async_dqn.roles import export

    return export.run_export(config, run, format=values.format, output=values.output or str(run.path / "export"))


def _bench(call: Call) -> int:
    values = call.values
    from async_dqn.bench.command import Bench, default_output, parse_sections, run_bench
    from async_dqn.bench.work import Plan

    repetitions, seconds = (1, 8.0) if values.quick else (5, 30.0)
    overrides = {} if values.compute_dtype is None else {"compute_dtype": values.compute_dtype}
    plan = Plan(
        work=values.work,
        is_quick=values.quick,
        seconds=seconds if values.seconds is None else values.seconds,
        num_ps=values.num_ps,
        num_workers=values.num_workers,
        overrides=overrides if values.peer == "none" else overrides | {"gpus": "none"},  # peers compute on the CPU
    )
    bench = Bench(
        plan,
        sections=parse_sections(values.sections),
        repetitions=repetitions if values.repetitions is None else values.repetitions,
        output=default_output() if values.output is None else Path(values.output),
        peer=values.peer,
        peer_python=values.peer_python,
        soak_minutes=values.soak_minutes,
    )
    return run_bench(bench)


def _plot(call: Call) -> int:
    values = call.values
    from async_dqn.report import plot

    return plot.run_plot(call.operands, x=values.x, smooth=values.smooth, output=values.output)


def _compare(call: Call) -> int:
    values = call.values
    if values.quick and values.env is not None:
        raise UserError(f"--quick: is on CartPole-v1; leave it or --env={values.env} out")
    if values.num_workers is not None:
        raise UserError(f"--num_workers={values.num_workers}: compare takes --worker_counts, such as 2 or 1,2,4")
    if values.resume:
        raise UserError("--resume: leave it out; the same command with its --logdir=FOLDER goes on where it was left")
    quick = {"env": "CartPole-v1", "total_steps": 60_000, "stop_at_return": 195.0} if values.quick else {}
    config = _make_config(values, {}, quick)
    from async_dqn.report.compare import Comparison, run_compare
    from async_dqn.report.experiment import check_counts
    from async_dqn.roles import preflight

    counts = check_counts(values.worker_counts)
    name = default_logdir(config.env, "compare")
    comparison = Comparison(
        config,
        Path(values.logdir or name).absolute(),
        worker_counts=counts,
        num_seeds=values.seeds,
        games=values.games,
    )
    spec, _ = preflight.resolve(config)
    for trial in comparison.trials():
        preflight.check_replay_memory(trial.config, spec, trial.config.num_workers)
    return run_compare(comparison, _signals(), Progress(plain=values.progress == "plain"))


def _status(call: Call) -> int:
    from async_dqn.report import status

    return status.run_status(call.operands)


def _signals() -> threading.Event:
    from async_dqn.roles import signals

    return signals.install()


def _how_to_watch(run: RunDirectory) -> str:
    scripts = Path(sys.executable).parent
    return (
        f"watch it play:  {scripts / 'async-dqn'} evaluate --logdir={run.path} --video=play.gif\n"
        f"see its curves: {scripts / 'tensorboard'} --logdir={run.path}"
    )


_TEXT: flags.ArgumentParser = flags.ArgumentParser()
_SPEC = "JSON file with the addresses of all ps and workers; without it, TF_CONFIG is read."
_RUN_DIRECTORY = "The run directory [runs/ENV-AGENT-TIME]."
_RESTARTS = "Start {} again at most so often when it fails or freezes."
_PROGRESS: tuple[str, flags.ArgumentParser, Any, str] = (
    "progress",
    flags.EnumParser(["auto", "plain"]),
    "auto",
    "auto: rewritten in place where there is a terminal; plain: lines that stay, for logs.",
)
COMMANDS = {
    "local": Command(
        "Train on a cluster of processes on this machine.",
        _local,
        logdir=_RUN_DIRECTORY,
        trains=True,
        options=(
            ("max_restarts", _Whole(), 3, _RESTARTS.format("each process")),
            (
                "private_network",
                flags.EnumParser(["auto", "always", "never"]),
                "auto",
                "Run in a network namespace, so that only this run's processes reach its ports: auto (where possible), "
                "always, never.",
            ),
            _PROGRESS,
        ),
    ),
    "baseline": Command(
        "Train in a single process.",
        _baseline,
        logdir=_RUN_DIRECTORY,
        trains=True,
        options=(_PROGRESS,),
    ),
    "worker": Command(
        "Be one worker of a cluster.",
        _worker,
        logdir=_RUN_DIRECTORY,
        trains=True,
        joins_cluster=True,
        options=(("max_restarts", _Whole(), 0, _RESTARTS.format("it")),),
    ),
    "ps": Command(
        "Be one parameter server of a cluster.",
        _ps,
        logdir="The run directory, for metrics of its own [none].",
        trains=True,
        joins_cluster=True,
        options=(("max_restarts", _Whole(), 0, _RESTARTS.format("it")),),
    ),
    "doctor": Command(
        "Check whether this machine, or this host of a cluster, can run what is asked of it.",
        _doctor,
        logdir=_RUN_DIRECTORY,
        trains=True,
        options=(("cluster_spec", _TEXT, None, _SPEC),),
    ),
    "evaluate": Command(
        "Play greedy games with a trained agent.",
        _evaluate,
        logdir="The run directory of the agent.",
        options=(
            ("games", _Whole(), 30, "Games to play."),
            ("seed", _Whole(), 12345, "Seed of the games."),
            ("pretrained", _TEXT, None, "An agent that ships with the package, in place of --logdir: pong."),
            ("video", _TEXT, None, "Also record the first game, to this .gif or .mp4."),
            ("video_seconds", _Number(), 300.0, "Seconds of it at most."),
            ("human", flags.BooleanParser(), False, "Show the games in a window, one after another."),
            ("overlay", flags.EnumParser(["none", "q"]), "none", "Draw beside the game: none, q (the action values)."),
        ),
    ),
    "export": Command(
        "Write a trained agent for other programs, or as a small agent to hand on.",
        _export,
        logdir="The run directory of the agent.",
        options=(
            (
                "format",
                flags.EnumParser(["saved_model", "agent"]),
                "saved_model",
                "saved_model: observations to action values; agent: what evaluate plays, in half precision.",
            ),
            ("output", _TEXT, None, "Folder to write [LOGDIR/export]."),
        ),
    ),
    "compare": Command(
        "Train standard and asynchronous agents on the same work, in turn, and report on them.",
        _compare,
        logdir="Folder of the comparison [runs/ENV-compare-TIME].",
        trains=True,
        draws=True,
        options=(
            ("quick", flags.BooleanParser(), False, "CartPole to a mean return of 195: minutes."),
            ("worker_counts", _TEXT, "2", "Workers of the clusters to compare, such as 2 or 1,2,4."),
            ("seeds", _Whole(), 2, "Runs of each kind, with --seed and those after it."),
            ("games", _Whole(), 30, "Greedy games that every trained agent plays."),
            _PROGRESS,
        ),
    ),
    "status": Command(
        "Say where runs stand: from another terminal, or another host that sees the run directory.",
        _status,
        operands="RUN [RUN ...]",
    ),
    "plot": Command(
        "Draw the learning curves of any runs in one picture.",
        _plot,
        operands="RUN [RUN ...]",
        draws=True,
        options=(
            ("x", flags.EnumParser(["steps", "time"]), "steps", "What to draw over: steps, time (wall clock)."),
            ("smooth", _Whole(), 100, "Games that the running mean is over."),
            ("output", _TEXT, "curves.png", "File to write: .png, .svg or .pdf."),
        ),
    ),
    "bench": Command(
        "Measure how fast this machine learns, and where the time goes.",
        _bench,
        options=(
            ("quick", flags.BooleanParser(), False, "A first look, in less than five minutes."),
            ("sections", _TEXT, "programs,parts,limit", "Some of programs, parts, limit, scale, learning; or none."),
            ("peer", flags.EnumParser(["none", "sb3"]), "none", "Also measure somebody else's program: none, sb3."),
            ("peer_python", _TEXT, None, "A Python that has what --peer needs [one is made in the user's cache]."),
            ("repetitions", _Whole(), None, "How often each case is measured, all in turn [5; 1 with --quick]."),
            ("seconds", _Number(), None, "Seconds that a whole program is measured for [30; 8 with --quick]."),
            ("work", flags.EnumParser(["nature", "pong-fast", "boxing"]), "nature", "What is learned."),
            ("compute_dtype", flags.EnumParser(DTYPES), None, "What our programs' networks compute in [float32]."),
            ("num_ps", _Whole(), 1, "Parameter servers of the cluster that is measured."),
            ("num_workers", _Whole(), 2, "Its workers."),
            ("soak_minutes", _Number(), 0.0, "Minutes of a long run at the end, watched for leaks; 0: none."),
            ("output", _TEXT, None, "Folder for bench.md and bench.json [runs/bench-TIME]."),
        ),
    ),
}


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: async-dqn COMMAND [--flag=value ...]", "", *lines, "", "async-dqn COMMAND --help"])


def _check_argument(argument: str, command: str) -> None:
    """Refuses what absl or a terminal would choke on, and the flags that absl has of its own."""
    flag = argument.partition("=")[0]
    if len(flag) > 100 or flag.lstrip("-") in ("flagfile", "undefok"):
        raise UserError(f"unknown flag {one_line(flag, 100)}; see async-dqn {command} --help")
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise UserError(f"argument {one_line(argument, 100)} is not UTF-8") from None


def _parse(arguments: Sequence[str]) -> tuple[Command, Call] | str:
    """The command and what is asked of it, or a text to show instead."""
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        return _usage()
    name, rest = arguments[0], list(arguments[1:])
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}; must be one of {', '.join(COMMANDS)}")
    for argument in rest:
        _check_argument(argument, name)
    values = flags.FlagValues()
    _define(values, COMMANDS[name])
    if "--help" in rest or "-h" in rest:
        usage = " ".join(["async-dqn", name, COMMANDS[name].operands]).strip()
        return f"{usage}: {COMMANDS[name].help}\n\n{values.main_module_help() or values.get_help()}"
    try:
        leftover = values([f"async-dqn {name}", *rest])[1:]
    except (flags.Error, ValueError) as error:  # absl has plain ValueErrors too, as for --nodouble=3
        raise UserError(f"{' '.join(str(error).split())}; see async-dqn {name} --help") from error
    if "logdir" in values and values.logdir == "":
        raise UserError("--logdir= is empty; give a folder, or leave the flag out")
    if leftover and not COMMANDS[name].operands:
        raise UserError(f"unexpected argument {leftover[0]!r}; flags are written --name=value")
    return COMMANDS[name], Call(values, leftover, arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 finished, 1 failed while running, 2 bad arguments, 130 interrupted."""
    verbose = False
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        parsed = _parse(arguments)
        if isinstance(parsed, str):
            print(parsed)
            return 0
        command, call = parsed
        verbose = call.values.verbose
        with contextlib.nullcontext() if verbose else quiet_stderr():
            return command.run(call)
    except (UserError, RunError) as error:
        print(f"async-dqn: {one_line(error, 580)}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the output, such as `head`, has read enough
        return 1
    except Exception as error:
        if verbose:
            raise
        place = error.__traceback__
        while place and place.tb_next:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place else "?"
        print(
            f"async-dqn: {type(error).__name__} at {where}: {one_line(error, 400)} (--verbose shows all)",
            file=sys.stderr,
            flush=True,
        )
        return 1


def run() -> None:
    """Runs the command line and ends the process: TensorFlow's server can be ended in no other way."""
    if sys.argv[1:2] not in ([name] for name, command in COMMANDS.items() if command.draws):
        # Keras, which TensorFlow brings along, loads it wherever it is installed: time and memory for nothing.
        sys.modules.setdefault("matplotlib", None)  # type: ignore[arg-type]
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a log on a full disk
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
