"""`bench`: what the flags allow, the order of measurements, failures and interruptions."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from cluster_helpers import heard, processes_naming, wait_until

from async_dqn.base.errors import RunError, UserError
from async_dqn.cli import main as command_line
from async_dqn.run.progress import Progress
from async_dqn.tools import machine
from async_dqn.tools.bench import command, peer, programs, soak, tables
from async_dqn.tools.bench.command import Bench
from async_dqn.tools.bench.work import Case, Plan, config

CARTPOLE = {
    "env": "CartPole-v1",
    "network": "mlp",
    "envs_per_worker": 4,
    "clip_rewards": False,
    "warmup_steps": 500,
    "log_period": 0.5,
}


@pytest.fixture(autouse=True)
def calm(monkeypatch):
    """The machine counts as quiet, and handlers of signals are put back."""
    monkeypatch.setattr(machine, "busy", lambda: [])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Measured:
    """Cases that note when they were measured."""

    def __init__(self, *names):
        self.order = []
        self.cases = [Case("parts", name, lambda name=name: self.measure(name)) for name in names]

    def measure(self, name):
        self.order.append(name)
        return {"ms": float(len(self.order))}


def fail():
    raise RunError("no\nport")


def interrupt(*arguments):
    raise KeyboardInterrupt


def bench(tmp_path, **options):
    return Bench(**({"plan": Plan(), "sections": ("parts",), "repetitions": 1, "output": tmp_path / "out"} | options))


def run(tmp_path, **options):
    """Exit code, what was said and what was written."""
    stream = io.StringIO()
    code = command.run_bench(bench(tmp_path, **options), Progress(stream, plain_period=0.0))
    path = tmp_path / "out" / "bench.json"
    return code, stream.getvalue(), json.loads(path.read_text()) if path.exists() else None


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--sections=program"], "programs, parts, limit, scale, sharing"),
        (["--sections=sharing", "--work=a2c"], "--sections=sharing: is for DQN, and --work=a2c is not"),
        (["--sections=parts,,limit"], "''"),
        (["--sections=none"], "--soak_minutes"),
        (["--peer=dopamine"], "none|sb3"),
        (["--work=chess"], "nature|a2c|pong-fast|boxing"),
        (["--repetitions=0"], "1 to 1000"),
        (["--repetitions=1.5"], "whole number"),
        (["--seconds=0"], "1 to 86400"),
        (["--soak_minutes=nan"], "0 to 100000"),
        (["--num_ps=0"], "at least 1"),
        (["--replay_capacity=5"], "at least"),
        (["--replay_capacity=5000", "--work=a2c"], "dqn"),
        (["--warmup_steps=0"], "at least 1"),
        (["--num_workers=0"], "at least 1"),
        (["--peer=sb3", "--sections=parts"], "programs"),
        (["--peer=sb3", "--work=pong-fast"], "--work=nature or --work=a2c"),
        (["--output=full"], "already holds files"),
        (["--output=full/file"], "another folder"),
        (["--output=full/file/new"], "another folder"),
        (["--output=" + "a" * 300], "another folder"),
        (["--logdir=x"], "--help"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_input_is_refused_with_one_line(capsys, monkeypatch, tmp_path, arguments, word):
    monkeypatch.setattr(command_line, "quiet_stderr", contextlib.nullcontext)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert command_line.main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1, err
    assert arguments[0].strip("-").partition("=")[0] in err and word in err, err
    assert os.listdir() == ["full"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (5, 30.0, ("programs", "parts", "limit"), {})),
        (["--quick"], (1, 8.0, ("programs", "parts", "limit"), {})),
        (["--quick", "--repetitions=2", "--seconds=5"], (2, 5.0, ("programs", "parts", "limit"), {})),
        (["--sections=scale, parts,scale"], (5, 30.0, ("scale", "parts"), {})),
        (["--sections=none", "--soak_minutes=3"], (5, 30.0, (), {})),
        (["--compute_dtype=bfloat16"], (5, 30.0, ("programs", "parts", "limit"), {"compute_dtype": "bfloat16"})),
        (["--peer=sb3"], (5, 30.0, ("programs", "parts", "limit"), {"gpus": "none"})),
    ],
)
def test_flags_become_a_bench(monkeypatch, tmp_path, arguments, expected):
    seen = []
    monkeypatch.setattr(command_line, "quiet_stderr", contextlib.nullcontext)
    monkeypatch.setattr(command, "run_bench", lambda bench: seen.append(bench) or 0)
    monkeypatch.chdir(tmp_path)
    assert command_line.main(["bench", "--num_ps=2", "--num_workers=3", *arguments]) == 0
    (made,) = seen
    assert (made.repetitions, made.plan.seconds, made.sections, made.plan.overrides) == expected
    assert (made.plan.num_ps, made.plan.num_workers, made.plan.work) == (2, 3, "nature")
    assert made.output.parent == Path("runs") and os.listdir() == []


def test_replay_and_warm_up_are_set_for_all_programs(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(command_line, "quiet_stderr", contextlib.nullcontext)
    monkeypatch.setattr(command, "run_bench", lambda bench: seen.append(bench) or 0)
    assert command_line.main(["bench", "--replay_capacity=20_000", "--warmup_steps=700"]) == 0
    plan = seen[0].plan
    assert (config(plan).replay_capacity, config(plan).warmup_steps) == (20_000, 700)
    (case, *_) = peer.cases(Path("/p"), plan)
    assert list(case.measure.args[0].command(tmp_path))[-2:] == ["20000", "700"]


def test_what_other_programs_take_meanwhile_is_measured_where_ratios_are_made(monkeypatch):
    monkeypatch.setattr(machine.Others, "share", lambda self: 0.25)
    cases = [Case(section, "a", lambda: {"ms": 1.0}) for section in ("programs", "parts", "limit")]
    results = list(command.measure_in_turn(cases, 1, lambda line: None))
    assert [one.get("others") for one in results] == [0.25, None, 0.25]


def test_cases_are_measured_in_turn():
    measured = Measured("a", "b", "c")
    results = list(command.measure_in_turn(measured.cases, 2, lambda line: None))
    assert measured.order == ["a", "b", "c", "a", "b", "c"]
    assert [(one["name"], one["repetition"]) for one in results] == [(name, n) for n in (0, 1) for name in "abc"]
    assert [one["values"]["ms"] for one in results] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert all(one["section"] == "parts" and one["seconds"] >= 0 for one in results)


def test_a_case_that_fails_does_not_keep_the_others():
    cases = [Case("parts", "bad", fail), *Measured("good").cases]
    results = list(command.measure_in_turn(cases, 2, lambda line: None))
    assert [one.get("error") for one in results] == ["no port", None, "no port", None]
    assert "values" not in results[0]


def test_progress_tells_what_is_measured_and_how_long_it_takes(monkeypatch):
    lines, times = [], iter([0.0, 0.0, 60.0, 60.0, 150.0])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(times))
    list(command.measure_in_turn(Measured("a").cases, 2, lines.append))
    assert [line.partition(" | ")[2] for line in lines] == ["0:00 gone, - left", "1:00 gone, 1:00 left"]
    assert lines[1].startswith("2 of 2: parts: a")


def test_the_report_is_written_and_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "make_cases", lambda *given: Measured("acting").cases)
    code, said, data = run(tmp_path, repetitions=3)
    assert code == 0
    assert [one["values"] for one in data["results"]] == [{"ms": 1.0}, {"ms": 2.0}, {"ms": 3.0}]
    assert data["plan"]["measurements"] == 3 and data["plan"]["settings"]["network"] == "nature"
    text = (tmp_path / "out" / "bench.md").read_text()
    assert text == tables.report(data) and text in said
    assert "| acting | 2 [1 - 3] |" in text


def test_a_failed_case_is_told_and_gives_exit_code_1(monkeypatch, tmp_path):
    cases = [Case("programs", "baseline", fail), *Measured("acting").cases]
    monkeypatch.setattr(command, "make_cases", lambda *given: cases)
    code, said, data = run(tmp_path)
    assert code == 1 and "baseline: no port" in said
    assert data["results"][1]["values"] == {"ms": 1.0}


def test_what_was_measured_before_an_interruption_is_kept(monkeypatch, tmp_path):
    cases = [*Measured("acting").cases, Case("parts", "long", interrupt)]
    monkeypatch.setattr(command, "make_cases", lambda *given: cases)
    code, _, data = run(tmp_path, repetitions=2)
    assert code == 130
    assert data["interrupted"] and [one["name"] for one in data["results"]] == ["acting"]


def test_a_busy_machine_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "busy", lambda: ["load average 3.0"])
    monkeypatch.setattr(command, "make_cases", lambda *given: Measured("acting").cases)
    _, said, data = run(tmp_path)
    assert data["busy"] == ["load average 3.0"] and "load average 3.0" in said.splitlines()[0]


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "make_cases", lambda *given: pytest.fail("it went on"))
    with pytest.raises(UserError, match="--output=/proc/async-dqn"):
        run(tmp_path, output=Path("/proc/async-dqn"))


def test_a_peer_is_measured_in_turn_with_our_programs(monkeypatch, tmp_path):
    monkeypatch.setattr(peer, "ensure_environment", lambda cache, say: Path("/p"))
    origin = {}
    asked = bench(tmp_path, sections=("limit", "programs"), peer="sb3")
    made = command.make_cases(asked, lambda line: None, origin)
    names = [case.name for case in made if case.section == "programs"]
    assert names[:2] == ["baseline", "fast_dqn"]
    assert [peer.TITLES["nature"] in name for name in names] == [False, False, False, False, True, True]
    assert made[0].section == "limit" and origin == {"peers": {peer.TITLES["nature"]: peer.VERSIONS}}


@pytest.mark.parametrize(
    ("outcome", "code", "kept"),
    [(lambda: {"verdict": "steady"}, 0, {"verdict": "steady"}), (fail, 1, {"error": "no port"})],
)
def test_a_soak_comes_last(monkeypatch, tmp_path, outcome, code, kept):
    measured, asked = Measured("acting"), []
    monkeypatch.setattr(soak, "run", lambda plan, *given: asked.append((given[:2], list(measured.order))) or outcome())
    monkeypatch.setattr(command, "make_cases", lambda *given: measured.cases)
    got, _, data = run(tmp_path, soak_minutes=2.5)
    assert asked == [((2.5, tmp_path / "out"), ["acting"])]
    assert (got, data["soak"]) == (code, kept)


# Runs a bench whose second case starts a program that does not end by itself.
INTERRUPTIBLE = """
    import async_dqn.__main__  # which puts off the import of TensorFlow
    import sys
    from pathlib import Path
    from async_dqn.tools.bench import command, programs
    from async_dqn.tools.bench.work import Case, Plan

    folder = Path(sys.argv[1])
    SLEEPS = "import time; print(flush=True); time.sleep(600)"
    program = programs.Program(lambda own: [sys.executable, "-c", SLEEPS, str(folder)], lambda own: [])
    long = Case("parts", "long", lambda: programs.measure(program, 5.0))
    cases = [Case("parts", "acting", lambda: {"ms": 1.0}), long]
    command.make_cases = lambda *given: cases
    sys.exit(command.run_bench(command.Bench(Plan(), ("parts",), 1, folder / "out")))
"""


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_in_order(tmp_path, number):
    script = tmp_path / "bench.py"
    script.write_text(textwrap.dedent(INTERRUPTIBLE))
    with heard(), subprocess.Popen([sys.executable, script, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        try:
            kept = tmp_path / "out" / "bench.json"  # of the case before
            wait_until(lambda: kept.exists() and len(processes_naming(tmp_path)) == 2, 120, "the program runs")
            process.send_signal(number)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert processes_naming(tmp_path) == []
    assert json.loads((tmp_path / "out" / "bench.json").read_text())["interrupted"]


@pytest.mark.cluster
def test_real_programs_are_measured_from_start_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_SECONDS_BEFORE", 0.5)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = Plan(is_quick=True, seconds=3.0, overrides=CARTPOLE)
    code, said, data = run(tmp_path, plan=plan, sections=("programs",))
    assert code == 0, said
    baseline, fast_dqn, local, shared = (one["values"] for one in data["results"])
    for values in (baseline, fast_dqn, local, shared):
        assert values["agent steps/s"] == pytest.approx(4 * values["minibatches/s"], rel=0.2)
        assert values["updates/s"] > 0 and values["cores used"] > 0
        assert values["start-up seconds"] > 0 and values["seconds to end"] > 0
    assert {f"resident MB: {name}" for name in ("launcher", "ps 0", "worker 0", "worker 1")} <= local.keys()
    assert {f"resident MB: {name}" for name in ("launcher", "worker 0", "worker 1")} == {
        what for what in shared if what.startswith("resident MB: ")
    }
    assert baseline["resident MB"] == baseline["resident MB: baseline"] > 100
    for values, worker in ((baseline, "baseline"), (local, "worker 0"), (local, "worker 1")):
        shares = [share for what, share in values.items() if what.endswith(f" %: {worker}")]
        assert len(shares) > 3 and sum(shares) == pytest.approx(100, abs=2)
    assert processes_naming(tmp_path) == []
