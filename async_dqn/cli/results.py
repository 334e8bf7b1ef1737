"""Commands that show, hand on, compare and measure what training brings."""

from pathlib import Path

from absl import flags

from async_dqn.agents import table
from async_dqn.base.errors import UserError
from async_dqn.cli import from_flags
from async_dqn.cli.arguments import PROGRESS, TEXT, Call, Command, Number, Option, Whole
from async_dqn.run.directory import default_folder, default_logdir
from async_dqn.run.progress import Progress
from async_dqn.settings.config import DTYPES
from async_dqn.system import devices, signals
from async_dqn.tools import pretrained


def _evaluate(call: Call) -> int:
    values = call.values
    if values.pretrained is not None and values.logdir is not None:
        raise UserError(f"--pretrained={values.pretrained}: leave it or --logdir={values.logdir} out")
    run = from_flags.existing_run(values) if values.pretrained is None else pretrained.find(values.pretrained)
    if values.video is not None and not values.video.endswith((".gif", ".mp4")):
        raise UserError(f"--video={values.video}: must end in .gif or .mp4")
    if values.overlay != "none" and values.video is None and not values.human:
        raise UserError(f"--overlay={values.overlay}: needs --video=FILE or --human to be seen")
    config = run.read_config()
    devices.hide_gpus(None)
    from async_dqn.tools import evaluate

    watch = evaluate.Watch(values.video, values.video_seconds, values.human, values.overlay)
    keeps = values.pretrained is None
    play = evaluate.Play(values.greedy, values.eval_epsilon)
    return evaluate.run_evaluate(
        config,
        run,
        games=values.games,
        seed=values.seed,
        watch=watch,
        play=play,
        keeps=keeps,
        checkpoint=values.checkpoint,
        max_steps=values.max_steps,
    )


def _export(call: Call) -> int:
    values = call.values
    run = from_flags.existing_run(values)
    config = run.read_config()
    devices.hide_gpus(None)
    from async_dqn.tools import export

    output = values.output or str(run.path / "export")
    return export.run_export(config, run, format=values.format, output=output, checkpoint=values.checkpoint)


def _bench(call: Call) -> int:
    values = call.values
    from async_dqn.tools.bench.command import Bench, parse_sections, run_bench
    from async_dqn.tools.bench.work import Plan

    repetitions, seconds = (1, 8.0) if values.quick else (5, 30.0)
    names = ("compute_dtype", "replay_capacity", "warmup_steps")
    overrides = {name: values[name].value for name in names if values[name].value is not None}
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
        output=Path(values.output or default_folder("bench")),
        peer=values.peer,
        soak_minutes=values.soak_minutes,
    )
    return run_bench(bench)


def _plot(call: Call) -> int:
    values = call.values
    from async_dqn.tools.report import plot

    return plot.run_plot(call.operands, x=values.x, smooth=values.smooth, output=values.output)


def _compare(call: Call) -> int:
    values = call.values
    if values.quick and values.env is not None:
        raise UserError(f"--quick: is on CartPole-v1; leave it or --env={values.env} out")
    if values.num_workers is not None:
        raise UserError(f"--num_workers={values.num_workers}: compare takes --worker_counts, such as 2 or 1,2,4")
    if values.resume:
        raise UserError("--resume: leave it out; the same command with its --logdir=FOLDER goes on where it was left")
    if values.study is not None:
        return _study(call)
    quick = {"env": "CartPole-v1", "total_steps": 200_000, "stop_at_return": 195.0} if values.quick else {}
    from async_dqn.run import preflight
    from async_dqn.tools.report.compare import Comparison, check_counts, run_compare, with_clusters

    counts = check_counts(values.worker_counts)
    configs = {number: from_flags.config(values, {"num_workers": number}, quick) for number in counts}
    config = configs[min(counts)]  # presets have other settings for more workers
    from_flags.check_distributed(config)
    folder = Path(values.logdir or default_logdir(config.env, "compare"))
    kinds = with_clusters(from_flags.unshared(values, quick), configs)
    seeds, games = (2 if values.seeds is None else values.seeds), (30 if values.games is None else values.games)
    by_workers = table.set_by_workers(values.agent, values.preset, quick | from_flags.explicit_settings(values))
    comparison = Comparison(
        config,
        folder.absolute(),
        kinds,
        num_seeds=seeds,
        games=games,
        by_workers=by_workers,
        verbose=values.verbose,
    )
    spec = preflight.resolve(config)
    for kind in kinds:
        preflight.check_memory(kind.config, spec, range(kind.config.num_workers))
    return run_compare(comparison, signals.install(), Progress(plain=values.progress == "plain"))


def _study(call: Call) -> int:
    """`compare --study=NAME`: its runs have their own settings, but for a few that a user may give."""
    values = call.values
    from async_dqn.run import preflight
    from async_dqn.tools.report.compare import Comparison, run_compare
    from async_dqn.tools.report.studies import CARTPOLE, PRESETS, STUDIES, kinds

    if values.study not in STUDIES:
        raise UserError(f"--study={values.study}: must be one of {', '.join(STUDIES)}")
    if values["preset"].present:
        raise UserError(f"--preset={values.preset}: a study sets it itself; leave it or --study={values.study} out")
    given = from_flags.explicit_settings(values)
    if not values["agent"].present:
        del given["agent"]
    for name in [*given, *(name for name in ("worker_counts", "games") if values[name].present)]:
        if name not in _OF_STUDIES:
            raise UserError(f"--{name}: a study sets it itself; leave it or --study={values.study} out")
    env = given.setdefault("env", CARTPOLE)
    if env not in STUDIES[values.study]:
        raise UserError(f"--env={env}: --study={values.study} is trained on {' or '.join(STUDIES[values.study])}")
    comparison = Comparison(
        table.make_config("dqn", PRESETS[env], {"seed": 0} | given),
        Path(values.logdir or default_logdir(env, values.study)).absolute(),
        kinds(values.study, env, quick=values.quick, given=given),
        num_seeds=(1 if values.quick else 2) if values.seeds is None else values.seeds,
        games=0,
        study=values.study,
        verbose=values.verbose,
    )
    preflight.resolve(comparison.config)
    return run_compare(comparison, signals.install(), Progress(plain=values.progress == "plain"))


def _status(call: Call) -> int:
    from async_dqn.tools.report import status

    return status.run_status(call.operands)


def _agents(call: Call) -> int:
    del call
    from async_dqn.tools import agents

    print(agents.listing())
    return 0


def _games(call: Call) -> int:
    del call
    from async_dqn.envs import registry

    for name, spec in registry.atari_games():
        print(f"{name:18} {spec.num_actions:2} actions", flush=True)  # one by one, as all of them take seconds
    print("or any gymnasium id, such as CartPole-v1")
    return 0


_OF_STUDIES = {
    "env", "seed", "threads", "total_steps", "stop_at_return", "gpus", "lease", "checkpoint_period", "log_period"
}  # fmt: skip
_WORK = (
    "What is learned: nature (DQN with the network of Mnih et al. 2015), a2c (A3C with the same network) or pong-fast, "
    "all on Pong; or boxing."
)
_CHECKPOINT: Option = (
    "checkpoint",
    TEXT,
    None,
    "The checkpoint to use: best (highest mean return of 100 games), newest, or the agent steps of one [best, or "
    "newest where there is none].",
)
COMMANDS = {
    "agents": Command("List the algorithms: what each is and can be trained in, its presets and its flags.", _agents),
    "games": Command(
        "List the Atari games that are installed, as --env takes them, with their numbers of actions.", _games
    ),
    "evaluate": Command(
        "Play games with a trained agent.",
        _evaluate,
        logdir="The run directory of the agent.",
        options=(
            ("games", Whole(1, 1_000_000), 30, "Games to play."),
            _CHECKPOINT,
            (
                "max_steps",
                Whole(1, 100_000_000),
                None,
                "Agent steps that a game may take [the environment's limit; else 27000].",
            ),
            ("seed", Whole(0, 2**31 - 1), 12345, "Seed of the games."),
            (
                "greedy",
                flags.BooleanParser(),
                True,
                "Take the best action, the mode of a policy; false: act as in training.",
            ),
            (
                "eval_epsilon",
                Number(0, 1),
                0.0,
                "Probability of a random action in place of the agent's own (Mnih et al. 2015: 0.05).",
            ),
            ("pretrained", TEXT, None, "An agent that ships with the package, in place of --logdir: pong."),
            ("video", TEXT, None, "Also record the first game, to this .gif or .mp4."),
            ("video_seconds", Number(0.1), 300.0, "Seconds of it at most."),
            ("human", flags.BooleanParser(), False, "Show the games in a window, one after another."),
            (
                "overlay",
                flags.EnumParser(["none", "q", "policy"]),
                "none",
                "Draw beside the game: none, q (the action values), policy (the probabilities of actions).",
            ),
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
                "saved_model: a TensorFlow SavedModel from observations (stacked, the oldest first, with zeros before "
                "an episode) to the network's outputs; agent: a small run directory that evaluate plays, in half "
                "precision.",
            ),
            _CHECKPOINT,
            ("output", TEXT, None, "Folder to write [LOGDIR/export]."),
        ),
    ),
    "compare": Command(
        "Train a single process and clusters on the same work, in turn, and report on them.",
        _compare,
        logdir="Folder of the comparison [runs/ENV-compare-TIME; with --study runs/ENV-STUDY-TIME].",
        trains=True,
        options=(
            ("quick", flags.BooleanParser(), False, "CartPole to a mean return of 195: minutes."),
            (
                "study",
                TEXT,
                None,
                "Train a study on CartPole: algorithms (each in one process), sharing (ways to share parameters and "
                "replay), workers (what more workers bring; hours), parallelism (A3C by gradients and by data), "
                "planning (Dyna-Q with more and more simulated minibatches). With --quick a part of it; with "
                "--env=LunarLander-v3 fewer kinds of sharing and workers, in which each run takes minutes.",
            ),
            ("worker_counts", TEXT, "2", "Workers of the clusters to compare, such as 2 or 1,2,4."),
            (
                "seeds",
                Whole(1, 100),
                None,
                "Runs of each kind, with --seed and those after it [2; 1 in a --quick study].",
            ),
            ("games", Whole(1, 10_000), None, "Greedy games that every trained agent plays [30]; not in a study."),
            PROGRESS,
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
        options=(
            ("x", flags.EnumParser(["steps", "time"]), "steps", "What to draw over: steps, time (wall clock)."),
            ("smooth", Whole(1, 1_000_000), 100, "Games that the running mean is over."),
            ("output", TEXT, "curves.png", "File to write: .png, .svg or .pdf."),
        ),
    ),
    "bench": Command(
        "Measure how fast this machine learns, and where the time goes.",
        _bench,
        options=(
            ("quick", flags.BooleanParser(), False, "A first look, in less than five minutes."),
            ("sections", TEXT, "programs,parts,limit", "Some of programs, parts, limit, scale, sharing; or none."),
            (
                "peer",
                flags.EnumParser(["none", "sb3"]),
                "none",
                "Also measure another program: none, sb3 (Stable-Baselines3).",
            ),
            ("repetitions", Whole(1, 1_000), None, "How often each case is measured, all in turn [5; 1 with --quick]."),
            ("seconds", Number(1, 86_400), None, "Seconds that a whole program is measured for [30; 8 with --quick]."),
            ("work", flags.EnumParser(["nature", "a2c", "pong-fast", "boxing"]), "nature", _WORK),
            ("compute_dtype", flags.EnumParser(DTYPES), None, "What our networks compute in [that of --work]."),
            ("replay_capacity", Whole(), None, "Transitions in replay, also of --peer [those of --work]."),
            ("warmup_steps", Whole(), None, "Agent steps before training, also of --peer [those of --work]."),
            ("num_ps", Whole(), 1, "Parameter servers of the cluster that is measured."),
            ("num_workers", Whole(), 2, "Its workers."),
            ("soak_minutes", Number(0, 100_000), 0.0, "Minutes of a long run at the end, watched for leaks; 0: none."),
            ("output", TEXT, None, "Folder for bench.md and bench.json [runs/bench-TIME]."),
        ),
    ),
}
