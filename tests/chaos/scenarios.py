"""All scenarios: which fault comes when, how the run has to end, and what else has to hold."""

import contextlib
import functools
import itertools
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from cluster_helpers import Command

from async_dqn.run import checkpoints
from chaos import invariants, mounts
from chaos.rounds import LEASE, Hang, Round, Settings

Condition = Callable[[], object]
When = Callable[[Round], Condition]
What = Callable[[Round], None]
Check = Callable[[Round], list[str]]

_ENDED_WITHIN = 10.0  # seconds from a signal to the end of everything
_AT_ONCE = 3.0  # the same, after the second signal
_ANOTHER = 3  # workers, so that one is left that acts when worker 1 is lost, also with --replay=global


@dataclass(frozen=True)
class Fault:
    """`what` happens up to `delay` seconds after `when`, which is looked for every `period` seconds."""

    when: When
    what: What
    delay: float = 0.5
    period: float = 0.02


@dataclass(frozen=True)
class Scenario:
    """What happens in a round and what is promised.

    Args:
      name, kind: its own, and the line of the table that it counts for.
      faults: in this order.
      code: the exit code of `local`, or of a cluster started by hand: of those that `codes` does not name.
      between: after the end, before the run is resumed.
      resumes: whether the run is resumed; to its end, then.
      resumed_code: the exit code of that.
      checks: of what is there in the end, beside the invariants.
      is_finished: whether the run meets its budget, and says so in its summary.
      by_hand: flags of commands that are started one by one, instead of `local`.
      setup: before anything is started.
      needs_mounts: it takes a mount namespace.
      needs_servers: a parameter server has a part in it; one has wherever commands are started by hand.
    """

    name: str
    kind: str
    faults: Sequence[Fault] = ()
    code: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    between: What | None = None
    resumes: bool = False
    resumed_code: int = 0
    checks: Sequence[Check] = ()
    is_finished: bool = True
    by_hand: Sequence[str] | None = None
    setup: What | None = None
    needs_mounts: bool = False
    flags: Sequence[str] = ()
    needs_servers: bool = False
    num_ps: int = 1
    num_workers: int = 2
    length: float = 1.0


def make_round(scenario: Scenario, seed: str, settings: Settings, folder: Path) -> Round:
    """A round as this scenario needs it."""
    return Round(
        f"{scenario.name}/{seed}",
        settings,
        folder,
        num_ps=scenario.num_ps,
        num_workers=scenario.num_workers,
        length=scenario.length,
        needs_servers=scenario.needs_servers or scenario.by_hand is not None,
    )


def play(scenario: Scenario, round_: Round) -> list[str]:
    """Plays one round; gives what did not hold. Raises Hang."""
    round_.extra += scenario.flags
    if scenario.setup:
        scenario.setup(round_)
    plan = [(fault, fault.when(round_), round_.rng.uniform(0, fault.delay)) for fault in scenario.faults]
    by_hand = scenario.by_hand is not None
    command = round_.start_by_hand(*(scenario.by_hand or ())) if by_hand else round_.start()
    found = []
    for fault, condition, delay in plan:
        if not round_.wait_for(condition, command, fault.period):
            found.append("the run was over before the fault")
            break
        round_.pause(delay)
        fault.what(round_)
    found += _codes_by_hand(scenario, round_) if by_hand else _code(round_, command, scenario.code)
    found += round_.wait_until_nothing_is_left()
    if scenario.between:
        scenario.between(round_)
    if scenario.resumes:
        found += _code(round_, round_.start("--resume"), scenario.resumed_code)
        found += round_.wait_until_nothing_is_left()
    found += invariants.odd_lines(round_)
    found += invariants.unreadable(round_)
    if scenario.is_finished:
        found += invariants.finished(round_)
    for check in scenario.checks:
        found += check(round_)
    return found


def _code(round_: Round, command: Command, wanted: int) -> list[str]:
    code = round_.wait(command)
    return [] if code == wanted else [f"{command.name}: exit code {code}, not {wanted}"]


def _codes_by_hand(scenario: Scenario, round_: Round) -> list[str]:
    found = []
    for task, command in round_.by_hand.items():
        found += _code(round_, command, scenario.codes.get(task, scenario.code))
    return found


# When.


def steps(low: float, high: float) -> When:
    """Once a share of the budget is spent that is drawn from this range, and all workers have taken part."""

    def when(round_: Round) -> Condition:
        threshold = int(round_.rng.uniform(low, high) * round_.total)
        files = [round_.run.worker(index) / "metrics.csv" for index in range(round_.num_workers)]
        return lambda: round_.env_steps() >= threshold and all(file.exists() for file in files)

    return when


def started(task: str) -> When:
    """Once the process is there; with a delay it is anywhere before training."""
    return lambda round_: lambda: round_.process(task)


def saving(low: float, high: float) -> When:
    """While a checkpoint is being written."""

    def when(round_: Round) -> Condition:
        is_time = steps(low, high)(round_)
        late = [False]

        def condition() -> bool:
            late[0] = late[0] or bool(is_time())
            return late[0] and any(round_.run.checkpoints.glob(".*.tmp"))

        return condition

    return when


def spent() -> When:
    """Once the budget is spent: the run is about to end."""
    return lambda round_: lambda: max(round_.env_steps(), round_.summary().get("env_steps", 0)) >= round_.total


TRAINING = steps(0.1, 0.7)


# What.


def kill(*tasks: str, number: int = signal.SIGKILL) -> What:
    """SIGKILL, or SIGSTOP for good, all at the same time."""

    def what(round_: Round) -> None:
        round_.send(number, *tasks)
        round_.mark_fault()

    return what


def freeze(task: str, low: float, high: float) -> What:
    """SIGSTOP, and SIGCONT some seconds later."""

    def what(round_: Round) -> None:
        seconds = round_.rng.uniform(low, high)
        process = round_.process(task)
        if process is None:
            round_.notes.append(f"{task} had ended before SIGSTOP")
            return
        process.suspend()
        round_.mark_fault()
        round_.pause(seconds)
        with contextlib.suppress(psutil.NoSuchProcess):  # it was killed, and another may have its number
            process.resume()

    return what


def end_by_signal(task: str, *, twice: bool = False) -> What:
    """SIGINT or SIGTERM to a task or to "local"; everything has to be gone soon after."""

    def what(round_: Round) -> None:
        number = round_.rng.choice((signal.SIGINT, signal.SIGTERM))
        assert round_.local
        begin = time.monotonic()
        if task == "local":
            round_.local.process.send_signal(number)
        else:
            round_.send(number, task)
        if twice:
            round_.pause(round_.rng.uniform(0.05, 0.3))
            if round_.local.is_running():
                round_.local.process.send_signal(number)
            _wait_for_end(round_, round_.local, _AT_ONCE, begin)
        _wait_for_end(round_, round_.local, _ENDED_WITHIN, begin)
        left = round_.wait_until_nothing_is_left(max(0.0, begin + _ENDED_WITHIN - time.monotonic()))
        if left:
            raise Hang(f"{_ENDED_WITHIN:.0f} s after {signal.Signals(number).name} to {task}: {'; '.join(left)}")

    return what


def _wait_for_end(round_: Round, local: Command, seconds: float, begin: float) -> None:
    while local.is_running():
        if time.monotonic() - begin > seconds:
            raise Hang(f"local still runs {seconds:.0f} s after the signal")
        round_.pause(0.05)


def kill_launcher(round_: Round) -> None:
    """SIGKILL to local; its children have to end by themselves."""
    assert round_.local
    round_.local.process.kill()
    left = round_.wait_until_nothing_is_left(_ENDED_WITHIN)
    if left:
        raise Hang(f"{_ENDED_WITHIN:.0f} s after the end of the launcher: {'; '.join(left)}")


def cut(task: str, low: float, high: float, *, silently: bool) -> What:
    """All connections of one task, for some seconds."""

    def what(round_: Round) -> None:
        round_.mark_fault()
        for proxy in round_.links[task]:
            (proxy.swallow if silently else proxy.refuse)()
        round_.pause(round_.rng.uniform(low, high))
        for proxy in round_.links[task]:
            proxy.heal()

    return what


def jump_clock(round_: Round) -> None:
    """A day forward, later two back."""
    clock = Path(round_.environ["CHAOS_CLOCK"])
    for days in round_.rng.sample((1, -1), 2):
        clock.write_text(str(days * 86_400))
        round_.pause(round_.rng.uniform(1, 3))


def fill_disk(round_: Round) -> None:
    """Until nothing more can be written."""
    round_.mark_fault()
    block = bytes(1 << 16)
    with open(round_.run.path / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(block)
        except OSError:
            pass


def fill_disk_for_a_while(round_: Round) -> None:
    """The same, and room again some seconds later."""
    fill_disk(round_)
    round_.pause(round_.rng.uniform(2, 6))
    (round_.run.path / "filler").unlink()


def stop_disk(round_: Round) -> None:
    """The disk stands still for some seconds: whoever writes to it waits."""
    round_.mark_fault()
    with mounts.standing_still(round_.run.path):
        round_.pause(round_.rng.uniform(2, LEASE - 2))


def forbid_checkpoints(round_: Round) -> None:
    """Nothing can be written to checkpoints/ any more."""
    round_.mount(mounts.read_only(round_.run.checkpoints))


def replace_checkpoints(round_: Round) -> None:
    """A file stands in place of checkpoints/."""
    round_.run.checkpoints.rename(round_.folder / "checkpoints")
    round_.run.checkpoints.write_text("a file\n")


def spoil(*patterns: str) -> What:
    """Spoils the newest file of each pattern, in a worker's folder of any worker."""

    def what(round_: Round) -> None:
        for pattern in patterns:
            files = sorted(round_.run.path.glob(pattern), key=lambda path: path.stat().st_mtime_ns)
            if files:
                round_.spoil(files[-1])
            else:
                round_.notes.append(f"no {pattern} to spoil")

    return what


# Before.


def on_small_disk(round_: Round) -> None:
    """The run directory has a small disk to itself."""
    round_.mount(mounts.small_disk(round_.run.path, round_.settings.disk_bytes))


def on_journaled_disk(round_: Round) -> None:
    """The run directory has a disk to itself that can be made to stand still."""
    round_.mount(mounts.journaled_disk(round_.run.path, round_.folder / "disk.img", 10 * round_.settings.disk_bytes))


def with_own_clock(round_: Round) -> None:
    """All processes of the run take the time from a clock that can be set."""
    clock = round_.folder / "clock"
    clock.write_text("0")
    here = Path(__file__).parent
    round_.environ |= {"CHAOS_CLOCK": str(clock), "PYTHONPATH": f"{here / 'clock'}:{here.parents[1]}"}


# What has to hold.


def says(text: str) -> Check:
    """It stands in what the run's processes wrote."""
    return lambda round_: [] if text in round_.output() else [f"nobody says {text!r}"]


def restarted(*workers: int) -> Check:
    """Of these, as many were counted as have come back."""

    def check(round_: Round) -> list[str]:
        summary = round_.summary()
        states = summary["workers"]
        back = sum(worker == 0 or states[worker]["state"] == "done" for worker in workers)
        count = summary["worker_restarts"]
        if any("had ended before" in note for note in round_.notes):
            return []
        return [] if count >= back else [f"worker_restarts is {count}, though {back} came back"]

    return check


def recovered(round_: Round) -> list[str]:
    """The loss of a ps is in the summary, and cost no more than a checkpoint interval."""
    count = round_.summary().get("ps_recoveries")
    return ([] if count else [f"ps_recoveries is {count}"]) + invariants.steps_lost(round_)


def not_recovered(round_: Round) -> list[str]:
    """No ps was lost, so nothing was."""
    summary = round_.summary()
    return [f"{name} is {summary[name]}, not 0" for name in ("ps_recoveries", "steps_lost") if summary[name]]


def interrupted_at_end(round_: Round) -> list[str]:
    """Nothing was lost by a stop in order, however it was asked for."""
    lost = round_.summary().get("steps_lost")
    return [] if lost == 0 else [f"steps_lost is {lost} after a stop in order"]


def lost_worker(round_: Round) -> list[str]:
    """Worker 1 did not come back, and the run has done without."""
    state = round_.summary()["workers"][1]["state"]
    return [] if state == "lost" else [f"worker 1 is {state}, not lost"]


def has_checkpoint(round_: Round) -> list[str]:
    """There is one to go on from; that all can be read and are finite is an invariant."""
    return [] if checkpoints.numbers(round_.run.checkpoints) else ["there is no checkpoint"]


def one_line(code: int) -> Check:
    """The command that ended last said why in one line."""

    def check(round_: Round) -> list[str]:
        lines = round_.commands.started[-1].err.splitlines()
        good = len(lines) == 1 and lines[0].startswith("async-dqn: ")
        return [] if good else [f"exit code {code} comes with {lines}"]

    return check


def _kills() -> list[Scenario]:
    def scenario(name: str, kind: str, when: When, *tasks: str, delay: float = 0.5) -> Scenario:
        workers = [int(task.split()[1]) for task in tasks if task.startswith("worker")]
        servers = [int(task.split()[1]) for task in tasks if task.startswith("ps")]
        is_during = name.endswith(("training", "checkpoint"))
        checks: list[Check] = [recovered] if servers and is_during else [invariants.steps_lost]
        if workers and not servers:
            checks = [not_recovered, *([restarted(*workers)] if is_during else [])]
        return Scenario(
            f"kill-{name}",
            f"kill -9 of {kind}",
            [Fault(when, kill(*tasks), delay, 0.02 if delay else 0.001)],  # a checkpoint is written in milliseconds
            checks=checks,
            needs_servers=bool(servers),
            num_ps=max([0, *servers]) + 1,
            num_workers=max([1, *workers]) + 1,
        )

    chief, worker, ps, two = "worker 0, the chief", "another worker", "a ps", "two at once"
    return [
        scenario("chief-training", chief, TRAINING, "worker 0"),
        scenario("worker-training", worker, TRAINING, "worker 1"),
        scenario("ps-0-training", ps, TRAINING, "ps 0"),
        scenario("ps-1-training", ps, TRAINING, "ps 1"),
        scenario("chief-checkpoint", chief, saving(0.1, 0.5), "worker 0", delay=0),
        scenario("ps-0-checkpoint", ps, saving(0.1, 0.5), "ps 0", delay=0),
        scenario("chief-start", chief, started("worker 0"), "worker 0", delay=10),
        scenario("worker-start", worker, started("worker 1"), "worker 1", delay=10),
        scenario("ps-0-start", ps, started("ps 0"), "ps 0", delay=10),
        scenario("chief-end", chief, spent(), "worker 0", delay=0.3),
        scenario("worker-end", worker, spent(), "worker 1", delay=0.3),
        scenario("ps-0-end", ps, spent(), "ps 0", delay=0.3),
        scenario("chief-and-ps-training", two, TRAINING, "worker 0", "ps 0"),
        scenario("two-workers-training", two, TRAINING, "worker 0", "worker 1"),
        scenario("two-ps-training", two, TRAINING, "ps 0", "ps 1"),
        Scenario(
            "kill-ps-twice",
            "kill -9 of a ps",
            [Fault(TRAINING, kill("ps 0")), Fault(started("ps 0"), kill("ps 0"), 12)],
            checks=[recovered],
            needs_servers=True,
        ),
    ]


def _freezes() -> list[Scenario]:
    long, short = (LEASE + 2, LEASE + 4), (1.0, LEASE - 2)
    found = []
    for task, num_ps in (("worker 0", 1), ("worker 1", 1), ("ps 0", 1), ("ps 1", 2)):
        name = task.replace(" ", "-")
        goes_on = task == "worker 1"  # without it, so what the others do during a lease has to be left of the budget
        lost: list[Check] = [recovered] if task.startswith("ps") else [not_recovered, restarted(int(task[-1]))]
        found += [
            Scenario(
                f"freeze-{name}-long",
                "freeze, longer than the lease",
                [Fault(steps(0.05, 0.15) if goes_on else steps(0.1, 0.4), freeze(task, 2 * LEASE, 2 * LEASE))],
                checks=[*lost, says(f"{task}: frozen for {LEASE:g} s, so killed")],
                needs_servers=task.startswith("ps"),
                num_ps=num_ps,
                length=6.0 if goes_on else 1.0,
            ),
            Scenario(
                f"freeze-{name}-short",
                "freeze, within the lease",
                [Fault(TRAINING, freeze(task, *short))],
                checks=[invariants.unharmed],
                needs_servers=task.startswith("ps"),
                num_ps=num_ps,
            ),
        ]
    return [
        *found,
        Scenario(
            "freeze-worker-1-for-good",
            "freeze, longer than the lease",
            [Fault(steps(0.1, 0.3), kill("worker 1", number=signal.SIGSTOP))],
            checks=[not_recovered, lost_worker],
            flags=["--max_restarts=0"],
            num_workers=_ANOTHER,
            length=1.5,
        ),
        Scenario(
            "freeze-worker-1-thawed",
            "freeze, longer than the lease",
            [Fault(steps(0.1, 0.3), freeze("worker 1", *long))],
            by_hand=[],
            codes={"worker 1": 1},
            checks=[not_recovered, says("the run has gone on without it")],
            num_workers=_ANOTHER,
            length=2.5,
        ),
    ]


def _signals() -> list[Scenario]:
    def scenario(name: str, task: str, *checks: Check, **options: bool) -> Scenario:
        fault = Fault(TRAINING, end_by_signal(task, **options))
        needs = task.startswith("ps")
        return Scenario(f"signal-{name}", signals, [fault], code=130, resumes=True, checks=checks, needs_servers=needs)

    signals = "SIGINT, SIGTERM"
    at_start = [Fault(started("worker 0"), end_by_signal("local"), 12)]
    launcher = [Fault(TRAINING, kill_launcher)]
    return [
        scenario("local", "local", interrupted_at_end),
        scenario("chief", "worker 0", interrupted_at_end),
        scenario("worker", "worker 1", interrupted_at_end),
        scenario("ps", "ps 0", interrupted_at_end),
        scenario("local-twice", "local", twice=True),
        Scenario("signal-local-start", signals, at_start, code=130, is_finished=False),
        Scenario(
            "kill-launcher",
            "kill -9 of the launcher",
            launcher,
            code=-signal.SIGKILL,
            resumes=True,
            checks=[invariants.steps_lost],
        ),
    ]


def _disks() -> list[Scenario]:
    scenario = functools.partial(Scenario, kind="disk", needs_mounts=True)
    soon, could_not = steps(0.1, 0.4), [says("could not save")]
    full, for_a_while = [Fault(TRAINING, fill_disk)], [Fault(soon, fill_disk_for_a_while)]
    unwritable, not_there = [Fault(soon, forbid_checkpoints)], [Fault(soon, replace_checkpoints)]
    stopped = [Fault(soon, stop_disk)]
    no_room = [says("No space left")]
    unsaved = functools.partial(scenario, code=1, is_finished=False)  # the run's end cannot be saved
    return [
        unsaved("disk-full", faults=full, setup=on_small_disk, checks=no_room),
        scenario("disk-full-for-a-while", faults=for_a_while, setup=on_small_disk, checks=[not_recovered]),
        scenario("disk-stands-still", faults=stopped, setup=on_journaled_disk, checks=[invariants.unharmed]),
        unsaved("checkpoints-read-only", faults=unwritable, checks=could_not),
        unsaved("checkpoints-a-file", faults=not_there, checks=could_not, needs_mounts=False),
    ]


def _corruptions() -> list[Scenario]:
    def scenario(name: str, between: What, warning: str = "", **more: Any) -> Scenario:
        interrupted = [Fault(steps(0.4, 0.6), end_by_signal("local"))]
        checks = [says(warning)] if warning else []
        more = {"checks": checks} | more
        return Scenario(
            f"corrupt-{name}", "corrupted files", interrupted, code=130, between=between, resumes=True, **more
        )

    return [
        scenario("checkpoint-arrays", spoil("checkpoints/*.npz"), "cannot be used"),
        scenario("checkpoint-json", spoil("checkpoints/*.json"), "cannot be used"),
        scenario("snapshot", spoil("worker-*/snapshots/*.npz"), "cannot be used"),
        scenario("replay", spoil("worker-*/replay/*.segment"), "warning: "),
        scenario("tables", spoil("metrics.csv", "episodes.csv", "worker-1/*.csv")),
        scenario("config", _cut_config, resumed_code=2, is_finished=False, checks=[one_line(2)]),
    ]


def _cut_config(round_: Round) -> None:
    content = round_.run.config.read_bytes()
    round_.run.config.write_bytes(content[: round_.rng.randrange(len(content) - 2)])


def _networks() -> list[Scenario]:
    short, long = (1.0, LEASE - 3), (LEASE + 3, LEASE + 6)

    def scenario(name: str, task: str, seconds: tuple[float, float], *checks: Check, **more: Any) -> Scenario:
        fault = Fault(steps(0.1, 0.3), cut(task, *seconds, silently="swallowed" in name))
        return Scenario(f"network-{name}", "network cut", [fault], checks=checks, **{"by_hand": []} | more)

    without_it: dict[str, Any] = {"codes": {"worker 1": 1}, "num_workers": _ANOTHER, "length": 2.5}
    lost = (not_recovered, says("the run has gone on without it"))
    return [
        scenario("refused-short", "worker 1", short, not_recovered),
        scenario("swallowed-short", "worker 1", short, invariants.unharmed),
        scenario("refused-long", "worker 1", long, *lost, **without_it),
        scenario("swallowed-long", "worker 1", long, *lost, **without_it),
        scenario("ps-refused-short", "ps 0", short, not_recovered),
        scenario("ps-swallowed-long", "ps 0", long, by_hand=["--max_restarts=3"]),
    ]


def _others() -> list[Scenario]:
    return [
        Scenario(
            "not-finite",
            "NaN",
            code=1,
            flags=["--learning_rate=1e30"],
            is_finished=False,
            checks=[says("not finite"), has_checkpoint],
        ),
        Scenario(
            "clock-jumps",
            "wall clock jumps",
            [Fault(TRAINING, jump_clock)],
            setup=with_own_clock,
            checks=[invariants.unharmed],
        ),
    ]


_GROUPS = (_kills(), _freezes(), _signals(), _disks(), _corruptions(), _networks(), _others())
# One of each group in turn, so that a dozen rounds are of many kinds.
SCENARIOS = [scenario for turn in itertools.zip_longest(*_GROUPS) for scenario in turn if scenario]
