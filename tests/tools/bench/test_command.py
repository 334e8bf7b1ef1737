"""Tests of `bench`: what the flags allow, the order of measurements, failures and interruptions."""

import contextlib
import io
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from cluster_helpers import processes_naming, wait_until

from async_dqn import __main__ as command_line
from async_dqn.base.errors import RunError, UserError
from async_dqn.run.progress import Progress
from async_dqn.tools.bench import command, machine, tables
from async_dqn.tools.bench.case import Case
from async_dqn.tools.bench.command import Bench, Stage
from async_dqn.tools.bench.work import WORKS, Plan

CARTPOLE = {
    "env": "CartPole-v1",
    "network": "mlp",
    "envs_per_worker": 4,
    "clip_rewards": False,
    "warmup_steps": 500,
    "total_steps": 10**9,
}


@pytest.fixture
def quiet(monkeypatch):
    """The machine counts as quiet, without a look at it."""
    monkeypatch.setattr(machine, "look", lambda: [])


class Measured:
    """Cases that note when they were measured."""

    def __init__(self, *names):
        self.order = []
        self.cases = [Case("parts", name, lambda name=name: self.measure(name)) for name in names]

    def measure(self, name):
        self.order.append(name)
        return {"ms": float(len(self.order))}


def stage(stream=None):
    return Stage(Progress(stream or io.StringIO(), plain_period=0.0))


def bench(tmp_path, **options):
    return Bench(**({"plan": Plan(), "sections": ("parts",), "repetitions": 1, "output": tmp_path / "out"} | options))


def use(monkeypatch, *cases):
    monkeypatch.setattr(command, "make_cases", lambda bench, say, origin: list(cases))


def run(tmp_path, **options):
    """Exit code, what was said and what was written."""
    stream = io.StringIO()
    code = command.run_bench(bench(tmp_path, **options), Progress(stream, plain_period=0.0))
    path = tmp_path / "out" / "bench.json"
    return code, stream.getvalue(), json.loads(path.read_text()) if path.exists() else None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--sections=program"],
            ["--sections=program", "'program' is none of programs, parts, limit, scale, learning"],
        ),
        (["--sections="], ["--sections=", "none of programs"]),
        (["--sections=parts,,limit"], ["--sections=parts,,limit", "'' is none of"]),
        (["--sections=none"], ["--sections=none", "--soak_minutes"]),
        (["--peer=dopamine"], ["--peer=dopamine", "none|sb3"]),
        (["--work=chess"], ["--work=chess", "nature|pong-fast|boxing"]),
        (["--repetitions=0"], ["--repetitions=0", "1 to 1000"]),
        (["--repetitions=1.5"], ["--repetitions=1.5", "whole number"]),
        (["--seconds=0"], ["--seconds=0", "at least 1"]),
        (["--seconds=soon"], ["--seconds=soon", "must be a number"]),
        (["--soak_minutes=-1"], ["--soak_minutes=-1", "at least 0"]),
        (["--soak_minutes=nan"], ["--soak_minutes=nan", "at least 0"]),
        (["--num_ps=0"], ["--num_ps=0", "at least 1"]),
        (["--num_workers=0"], ["--num_workers=0", "at least 1"]),
        (["--peer_python=python"], ["--peer_python=python", "--peer"]),
        (["--peer=sb3", "--sections=parts"], ["--peer=sb3", "programs"]),
        (["--peer=sb3", "--work=pong-fast"], ["--peer=sb3", "--work=nature", "pong-fast"]),
        (["--output=full"], ["--output=full", "already holds files"]),
        (["--output=full/file"], ["--output=full/file", "not a folder", "no folder"]),
        (["--output=full/file/new"], ["--output=full/file/new"]),
        (["--output=" + "a" * 300], ["--output=aaa", "another folder"]),
        (["--logdir=x"], ["'logdir'", "async-dqn bench --help"]),
        (["--env=pong"], ["env", "--help"]),
    ],
    ids=lambda value: " ".join(value)[:40] if value[0].startswith("--") else "",
)
def test_bad_input_is_refused_with_one_line(capsys, monkeypatch, tmp_path, arguments, words):
    monkeypatch.setattr(command_line, "quiet_stderr", contextlib.nullcontext)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert command_line.main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1, err
    assert any(word in err for word in words[1:] or words) and words[0] in err, err
    assert os.listdir() == ["full"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (5, 30.0, ("programs", "parts", "limit"), False)),
        (["--quick"], (1, 8.0, ("programs", "parts", "limit"), True)),
        (["--quick", "--repetitions=2", "--seconds=5"], (2, 5.0, ("programs", "parts", "limit"), True)),
        (["--sections=scale, parts,scale"], (5, 30.0, ("scale", "parts"), False)),
        (["--sections=none", "--soak_minutes=3"], (5, 30.0, (), False)),
    ],
)
def test_flags_become_a_bench(monkeypatch, tmp_path, arguments, expected):
    seen = []
    monkeypatch.setattr(command_line, "quiet_stderr", contextlib.nullcontext)
    monkeypatch.setattr(command, "run_bench", lambda bench: seen.append(bench) or 0)
    monkeypatch.chdir(tmp_path)
    assert command_line.main(["bench", "--num_ps=2", "--num_workers=3", "--work=pong-fast", *arguments]) == 0
    (made,) = seen
    assert (made.repetitions, made.plan.seconds, made.sections, made.plan.is_quick) == expected
    assert (made.plan.num_ps, made.plan.num_workers, made.plan.work) == (2, 3, "pong-fast")
    assert made.plan.overrides == {}
    assert made.output.parent == Path("runs") and made.output.name.startswith("bench-")
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--compute_dtype=bfloat16"], {"compute_dtype": "bfloat16"}),
        (["--peer=sb3"], {"gpus": "none"}),
        (["--peer=sb3", "--compute_dtype=float32"], {"gpus": "none", "compute_dtype": "float32"}),
    ],
)
def test_flags_replace_settings_of_the_work(monkeypatch, tmp_path, arguments, expected):
    seen = []
    monkeypatch.setattr(command_line, "quiet_stderr", contextlib.nullcontext)
    monkeypatch.setattr(command, "run_bench", lambda bench: seen.append(bench.plan.overrides) or 0)
    monkeypatch.chdir(tmp_path)
    assert command_line.main(["bench", *arguments]) == 0
    assert seen == [expected]


def test_the_flags_allow_what_there_is():
    options = {name: parser for name, parser, *_ in command_line.COMMANDS["bench"].options}
    assert tuple(options["work"].enum_values) == tuple(WORKS)
    assert tuple(options["peer"].enum_values) == command.PEERS
    defaults = {name: default for name, _, default, _ in command_line.COMMANDS["bench"].options}
    assert set(command.parse_sections(defaults["sections"])) <= set(command.SECTIONS)


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    bench(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(UserError, match=f"--output={tmp_path / 'out'}: {tmp_path} is no folder"):
        bench(tmp_path)


def test_cases_are_measured_in_turn():
    measured = Measured("a", "b", "c")
    results = list(command.measure_in_turn(measured.cases, 2, stage()))
    assert measured.order == ["a", "b", "c", "a", "b", "c"]
    assert [(one["name"], one["repetition"]) for one in results] == [(name, n) for n in (0, 1) for name in "abc"]
    assert [one["values"]["ms"] for one in results] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert all(one["section"] == "parts" and one["seconds"] >= 0 and one["others"] >= 0 for one in results)


def test_a_case_that_fails_does_not_keep_the_others():
    def fail():
        raise RunError("no\nport")

    measured = Measured("good")
    results = list(command.measure_in_turn([Case("parts", "bad", fail), *measured.cases], 2, stage()))
    assert [one.get("error") for one in results] == ["no port", None, "no port", None]
    assert "values" not in results[0]


def test_what_is_no_number_is_left_out():
    case = Case("parts", "a", lambda: {"ms": 1, "bad": math.nan, "worse": math.inf})
    (result,) = command.measure_in_turn([case], 1, stage())
    assert result["values"] == {"ms": 1.0}


def test_progress_tells_what_is_measured_and_how_long_it_takes():
    stream = io.StringIO()
    times = iter([0.0, 0.0, 0.0, 60.0, 60.0, 60.0, 150.0])
    shown = stage(stream)
    case = Case("programs", "baseline", lambda: shown.say("starting up") or {})
    list(command.measure_in_turn([case], 2, shown, lambda: next(times)))
    assert stream.getvalue().splitlines() == [
        "1 of 2: programs: baseline | 0:00 gone, - left",
        "1 of 2: programs: baseline | 0:00 gone, - left | starting up",
        "2 of 2: programs: baseline | 1:00 gone, 1:00 left",
        "2 of 2: programs: baseline | 1:00 gone, 1:00 left | starting up",
    ]


def test_time_left_goes_by_what_each_case_took():
    a, b, c = Measured("a", "b", "c").cases
    assert command.seconds_left({}, [a, b]) == math.inf
    assert command.seconds_left({a: [10.0, 20.0], b: [3.0]}, [a, b, c]) == 15 + 3 + (10 + 20 + 3) / 3
    assert command.seconds_left({a: [10.0]}, []) == 0


@pytest.mark.usefixtures("quiet")
def test_the_report_is_written_and_shown(monkeypatch, tmp_path):
    use(monkeypatch, *Measured("acting").cases)
    code, said, data = run(tmp_path, repetitions=3)
    assert code == 0
    assert [one["values"] for one in data["results"]] == [{"ms": 1.0}, {"ms": 2.0}, {"ms": 3.0}]
    assert (data["plan"]["measurements"], data["plan"]["work"], data["plan"]["settings"]["network"]) == (
        3,
        "nature",
        "nature",
    )
    assert data["origin"]["cores"] >= 1 and data["origin"]["versions"]["python"]
    text = (tmp_path / "out" / "bench.md").read_text()
    assert text == tables.report(data)
    assert "| acting | 2.00 [1.00 - 3.00] |" in text and text in said


@pytest.mark.usefixtures("quiet")
def test_a_failed_case_is_told_and_gives_exit_code_1(monkeypatch, tmp_path):
    def fail():
        raise RunError("no port")

    use(monkeypatch, Case("programs", "baseline", fail), *Measured("acting").cases)
    code, said, data = run(tmp_path)
    assert code == 1
    assert "failed: programs: baseline: no port" in said
    assert "- **failed** (1 of 1): baseline: no port" in said
    assert data["results"][1]["values"] == {"ms": 1.0}


@pytest.mark.usefixtures("quiet")
def test_what_was_measured_before_an_interruption_is_kept(monkeypatch, tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    use(monkeypatch, *Measured("acting").cases, Case("parts", "long", interrupt))
    before = signal.getsignal(signal.SIGINT)
    code, said, data = run(tmp_path, repetitions=2)
    assert code == 130
    assert data["interrupted"] and [one["name"] for one in data["results"]] == ["acting"]
    assert "interrupted after 1 of 4 measurements" in said
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("quiet")
def test_nothing_is_written_where_nothing_was_measured(monkeypatch, tmp_path):
    def interrupt(bench, say, origin):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "make_cases", interrupt)
    code, _, data = run(tmp_path)
    assert (code, data) == (130, None)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("quiet")
def test_a_peer_that_cannot_be_set_up_ends_the_command(monkeypatch, tmp_path):
    def fail(bench, say, origin):
        raise RunError("no network")

    monkeypatch.setattr(command, "make_cases", fail)
    with pytest.raises(RunError, match="no network"):
        run(tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("quiet")
def test_processes_left_over_are_ended(monkeypatch, tmp_path):
    def leave():
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path)], start_new_session=True)
        return {}

    use(monkeypatch, Case("parts", "acting", leave))
    assert run(tmp_path)[0] == 0
    assert processes_naming(tmp_path) == []


def test_a_busy_machine_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "look", lambda: ["load average 3.0 when it began"])
    use(monkeypatch, *Measured("acting").cases)
    _, said, data = run(tmp_path)
    assert data["busy"] == ["load average 3.0 when it began"]
    assert said.startswith("warning: the machine is busy")
    assert "the machine was busy: load average 3.0" in (tmp_path / "out" / "bench.md").read_text()


def test_cases_come_from_sections_and_peers_in_turn_with_ours(monkeypatch, tmp_path):
    from async_dqn.tools.bench import peer

    monkeypatch.setattr(peer, "versions", lambda one, python: {"python": str(python)})
    origin = {}
    made = command.make_cases(
        bench(tmp_path, sections=("limit", "programs"), peer="sb3", peer_python="/p"), lambda line: None, origin
    )
    names = [case.name for case in made if case.section == "programs"]
    assert names == [
        "baseline",
        "local, 1 ps + 2 workers",
        "Stable-Baselines3 DQN, 8 environments",
        "Stable-Baselines3 DQN, 1 environment",
    ]
    assert made[0].section == "limit" and {case.section for case in made} == {"limit", "programs"}
    assert origin == {"peers": {"Stable-Baselines3 DQN": {"python": "/p"}}}
    assert len(set(made)) == len({(case.section, case.name) for case in made}) == len(made)


@pytest.mark.parametrize("section", command.SECTIONS)
def test_every_section_has_cases_of_its_own_name(section, tmp_path):
    quick = Plan(is_quick=True, overrides=CARTPOLE | {"replay_capacity": 2_000})
    made = command.make_cases(bench(tmp_path, plan=quick, sections=(section,)), lambda line: None, {})
    assert made and {case.section for case in made} == {section}
    assert len({case.name for case in made}) == len(made)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("found", "code", "kept"),
    [
        ({"verdict": "steady", "growth": [{"slope": math.nan}]}, 0, {"verdict": "steady", "growth": [{"slope": None}]}),
        (RunError("too short"), 1, {"error": "too short"}),
    ],
)
def test_a_soak_comes_last(monkeypatch, tmp_path, found, code, kept):
    from async_dqn.tools.bench import soak

    measured = Measured("acting")

    def run_soak(plan, minutes, output):
        assert measured.order == ["acting"]
        assert (minutes, output) == (2.5, tmp_path / "out")
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(soak, "run", run_soak)
    use(monkeypatch, *measured.cases)
    got, said, data = run(tmp_path, soak_minutes=2.5)
    assert got == code
    assert data["soak"] == kept
    assert "## Soak" in said and str(next(iter(kept.values()))) in said


# Runs a bench whose one case starts a process that does not end by itself, and waits.
INTERRUPTIBLE = """
    import subprocess, sys, time
    from pathlib import Path
    from async_dqn.tools.bench import command, machine
    from async_dqn.tools.bench.case import Case
    from async_dqn.tools.bench.work import Plan

    folder = Path(sys.argv[1])
    STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"

    def wait():
        process = subprocess.Popen(
            [sys.executable, "-c", STUBBORN, str(folder)], start_new_session=True, stdout=subprocess.PIPE
        )
        process.stdout.readline()
        print("waiting", flush=True)
        time.sleep(600)

    machine.look = lambda: []
    command._END_DEADLINE = float(sys.argv[2])
    command.make_cases = lambda bench, say, origin: [
        Case("parts", "acting", lambda: {"ms": 1.0}), Case("parts", "long", wait)
    ]
    plan = Plan()
    sys.exit(command.run_bench(command.Bench(plan, ("parts",), 1, folder / "out")))
"""


@pytest.fixture
def interruptible(tmp_path):
    """Starts it, and gives it once it waits."""
    started = []

    def start(deadline):
        script = tmp_path / "bench.py"
        script.write_text(textwrap.dedent(INTERRUPTIBLE))
        command = [sys.executable, str(script), str(tmp_path), str(deadline)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
        while started[-1].stdout.readline() != "waiting\n":
            assert started[-1].poll() is None
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
    for left in processes_naming(tmp_path):
        left.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_in_order(interruptible, tmp_path, number):
    process = interruptible(0.2)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert processes_naming(tmp_path) == []
    assert "interrupted after 1 of 2 measurements" in out
    assert json.loads((tmp_path / "out" / "bench.json").read_text())["interrupted"]


def test_a_second_signal_ends_everything_at_once(interruptible, tmp_path):
    process = interruptible(600.0)
    process.send_signal(signal.SIGINT)
    assert any("interrupted; ending what still runs" in line for line in process.stdout)  # up to that line
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - begin < 60
    wait_until(lambda: processes_naming(tmp_path) == [], 10, "everything ended")


@pytest.mark.cluster
@pytest.mark.usefixtures("quiet")
def test_real_programs_are_measured_from_start_to_end(tmp_path):
    plan = Plan(is_quick=True, seconds=3.0, overrides=CARTPOLE)
    code, said, data = run(tmp_path, plan=plan, sections=("programs",))
    assert code == 0, said
    baseline, local = (one["values"] for one in data["results"])
    for values in (baseline, local):
        assert values["agent steps/s"] == pytest.approx(4 * values["minibatches/s"], rel=0.2)
        assert values["updates/s"] > 0 and values["cores used"] > 0
        assert values["start-up seconds"] > 0 and values["seconds to end"] > 0
    assert baseline["staleness"] == 0 and local["staleness"] >= 0
    processes = ("launcher", "ps 0", "worker 0", "worker 1")
    assert {f"resident MB: {name}" for name in processes} <= local.keys()
    assert baseline["resident MB"] == baseline["resident MB: baseline"] > 100
    for values, worker in ((baseline, "baseline"), (local, "worker 0"), (local, "worker 1")):
        shares = [share for what, share in values.items() if what.endswith(f" %: {worker}")]
        assert len(shares) > 3 and sum(shares) == pytest.approx(100, abs=2)
    assert "Ratios" in said and "Where the time of each worker's cycle goes" in said
    assert processes_naming("async-dqn-bench-") == []


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(command, "make_cases", lambda *arguments: pytest.fail("it went on"))
    bench = command.Bench(Plan(), sections=("limit",), repetitions=1, output=Path("/proc/async-dqn"))
    with pytest.raises(UserError, match="--output=/proc/async-dqn: .*give another folder"):
        command.run_bench(bench)
