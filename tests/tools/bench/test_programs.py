"""Tests of bench.programs, with small scripts that stand in for programs and made-up run directories."""

import sys
import textwrap

import pytest
from cluster_helpers import processes_naming, wait_until

from async_dqn import __main__ as command_line
from async_dqn.base.errors import RunError
from async_dqn.cli import from_flags
from async_dqn.cli.arguments import parse
from async_dqn.tools.bench import processes, programs
from async_dqn.tools.bench.programs import Program
from async_dqn.tools.bench.window import read_json_rows
from async_dqn.tools.bench.work import Plan, config

# Says that it makes 50 minibatches and 200 steps a second, of a clock that runs fast, until SIGTERM.
LEARNS = """\
    import json, os, signal, subprocess, sys, time

    def end(number, frame):
        os._exit(int(sys.argv[1]))

    signal.signal(signal.SIGTERM, end)
    second = 0
    while True:
        row = {"wall_seconds": second, "env_steps": 200 * second, "minibatches": 50 * second, "updates": 25 * second}
        print(json.dumps(row), flush=True)
        second += 1
        time.sleep(0.02)
"""


@pytest.fixture
def script(tmp_path):
    """Makes a program out of a script, which gets its folder as its last argument."""

    def make(text, *arguments):
        path = tmp_path / "stand_in.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return Program(
            command=lambda folder: [sys.executable, str(path), *map(str, arguments), str(folder)],
            rows=lambda folder: read_json_rows(folder / programs.LOG),
        )

    return make


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m async_dqn local --num_ps=1", "launcher"),
        ("python -m async_dqn baseline", "baseline"),
        ("python -m async_dqn worker --task_index=1 --env=pong", "worker 1"),
        ("python -m async_dqn ps --env=pong --task_index=0", "ps 0"),
        ("python -I /x/sb3_dqn.py --envs=8", "sb3_dqn"),
        ("sleep 5", "another"),
        ("", "another"),
        ("python -m async_dqn", "another"),
    ],
)
def test_a_process_is_named_by_its_command_line(command, expected):
    assert processes.role(command.split()) == expected


def test_our_programs_are_started_with_the_work_s_settings(tmp_path):
    plan = Plan(num_ps=2, num_workers=3, overrides={"seed": 5})
    baseline, local = programs.cases(plan)
    assert (baseline.section, baseline.name) == ("programs", "baseline")
    assert local.name == "local, 2 ps + 3 workers"
    for job in ("baseline", "local"):
        program = programs._ours(config(plan), job, {"worker 0": 0})
        command = list(program.command(tmp_path))
        assert command[:3] == [sys.executable, "-m", "async_dqn"]
        parsed = parse(command[3:], command_line.COMMANDS)
        assert not isinstance(parsed, str)
        assert from_flags.config(parsed[1].values, {}) == config(plan)
        assert parsed[1].values.logdir == str(tmp_path / "run")


def test_a_run_directory_is_read(tmp_path):
    settings = config(Plan(), replay_capacity=4_000)
    program = programs._ours(settings, "local", {"worker 0": 0, "worker 1": 1})
    assert program.rows(tmp_path) == [] and program.workers(tmp_path) == {}
    for name, text in {
        "metrics.csv": "wall_seconds,minibatches\n1,2\n",
        "worker-0/metrics.csv": "wall_seconds,env_steps\n1,100\n2,200\n",
        "worker-1/metrics.csv": "wall_seconds,env_steps\n",
    }.items():
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert program.rows(tmp_path) == [{"wall_seconds": 1.0, "minibatches": 2.0}]
    assert program.workers(tmp_path) == {"worker 0": {"wall_seconds": 2.0, "env_steps": 200.0}}
    assert program.replay_mb({"env_steps": 200.0}) == 200 * 84 * 84 / 1e6
    assert program.replay_mb({"env_steps": 1e9}) == 4_000 // 2 * 84 * 84 / 1e6


def test_a_program_is_measured_and_ended(script, tmp_path):
    said = []
    found = programs.measure(script(LEARNS, 130), 10.0, said.append)
    assert (found["agent steps/s"], found["minibatches/s"], found["updates/s"]) == (200.0, 50.0, 25.0)
    assert found["start-up seconds"] > 0 and found["seconds to end"] > 0
    assert found["resident MB"] == found["resident MB: stand_in"] > 1
    assert found["cores used"] >= 0
    assert said == ["starting up", "learns; the window opens soon", "measuring for 10 s", "ending it"]
    assert processes_naming(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (LEARNS, [0], "ended with exit code 0 when interrupted; 130 is right"),
        ("print('async-dqn: no such thing'); print('bye'); raise SystemExit(3)", [], "exit code 3: .*no such thing"),
        ("raise SystemExit(0)", [], "ended by itself with exit code 0: it said nothing"),
    ],
)
def test_a_program_that_does_not_do_what_it_should(script, tmp_path, text, arguments, message):
    with pytest.raises(RunError, match=message):
        programs.measure(script(text, *arguments), 5.0)
    assert processes_naming(tmp_path) == []


def test_a_program_that_cannot_be_started(tmp_path):
    program = Program(command=lambda folder: [str(tmp_path / "missing")], rows=lambda folder: [])
    with pytest.raises(RunError, match="ended by itself"):
        programs.measure(program, 5.0)


def test_a_program_that_never_learns_is_given_up(script, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_START_DEADLINE", 1.0)
    with pytest.raises(RunError, match="given up before learning began, 1 s after its start"):
        programs.measure(script("import time; time.sleep(600)"), 5.0)
    assert processes_naming(tmp_path) == []


def test_a_program_that_stops_learning_is_given_up(script, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_PATIENCE", 0.5)
    stops = LEARNS.replace("second += 1", "second += second < 8")
    with pytest.raises(RunError, match="given up before the window was over"):
        programs.measure(script(stops, 130), 1.5)
    assert processes_naming(tmp_path) == []


STUBBORN = """\
    import signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(sys.argv[1], flush=True)
    time.sleep(600)
"""


def test_a_process_that_outlives_its_launcher_is_a_failure_and_ended(script, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_END_DEADLINE", 1.0)
    (tmp_path / "stubborn.py").write_text(textwrap.dedent(STUBBORN))
    leaves = LEARNS.replace(
        "second = 0\n",
        f"second = 0\n    subprocess.Popen([sys.executable, {str(tmp_path / 'stubborn.py')!r}, sys.argv[2]],"
        " start_new_session=True, stdout=subprocess.PIPE).stdout.readline()\n",
    )
    with pytest.raises(RunError, match="1 process still ran 1 s after the signal"):
        programs.measure(script(leaves, 130), 5.0)
    wait_until(lambda: processes_naming(tmp_path) == [], 10, "everything ended")


@pytest.mark.parametrize("moment", ["starting up", "measuring for 5 s", "ending it"])
def test_an_interrupt_ends_the_program(script, tmp_path, moment):
    def say(line):
        if line == moment:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        programs.measure(script(LEARNS, 130), 5.0, say)
    assert processes_naming(tmp_path) == []


def test_a_process_lost_within_the_window_is_a_failure(script, tmp_path):
    word = tmp_path / "kill it"
    loses = LEARNS.replace("second = 0\n", "second = 0\n    child = subprocess.Popen(['sleep', '600'])\n")
    loses = loses.replace("second += 1", f"second += 1\n        os.path.exists({str(word)!r}) and child.kill()")

    def say(line):
        if line.startswith("measuring"):
            word.touch()

    with pytest.raises(RunError, match="a process of it ended within the window"):
        programs.measure(script(loses, 130), 50.0, say)
