"""Whole programs: small scripts that stand in for them, and made-up rows."""

import math
import sys
import textwrap

import pytest
from cluster_helpers import processes_naming, wait_until

from async_dqn.base.errors import RunError
from async_dqn.cli import from_flags, main
from async_dqn.cli.arguments import parse
from async_dqn.tools.bench import peer, processes, programs
from async_dqn.tools.bench.programs import Program, Sample
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
STUBBORN = """\
    import signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(sys.argv[1], flush=True)
    time.sleep(600)
"""


@pytest.fixture
def script(tmp_path):
    """Makes a program out of a script, which gets its folder as its last argument."""

    def make(text, *arguments):
        path = tmp_path / "stand_in.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return Program(
            command=lambda folder: [sys.executable, str(path), *map(str, arguments), str(folder)],
            rows=lambda folder: peer.read_rows(folder / programs.LOG),
        )

    return make


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m async_dqn local --num_ps=1", "launcher"),
        ("python -m async_dqn baseline", "baseline"),
        ("python -m async_dqn worker --task_index=1 --env=pong", "worker 1"),
        ("python -m async_dqn ps --env=pong --task_index=0", "ps 0"),
        ("python -I /x/sb3.py nature 8", "sb3"),
        ("sleep 5", "another"),
        ("python -m async_dqn", "another"),
    ],
)
def test_a_process_is_named_by_its_command_line(command, expected):
    assert processes.role(command.split()) == expected


@pytest.mark.parametrize("job", ["baseline", "local"])
def test_our_programs_are_started_with_the_work_s_settings(tmp_path, job):
    settings = config(Plan(num_ps=2, num_workers=3, overrides={"seed": 5}))
    command = list(programs.ours(job, settings).command(tmp_path))
    assert command[1:3] == ["-m", "async_dqn"]
    parsed, call = parse(command[3:], main.COMMANDS)
    assert parsed is main.COMMANDS[job] and from_flags.config(call.values, {}) == settings
    assert call.values.logdir == str(tmp_path / "run")


def test_a_run_directory_is_read(tmp_path):
    program = programs.ours("local", config(Plan()))
    assert program.rows(tmp_path) == []
    for name, text in {
        "metrics.csv": "wall_seconds,loss,cores\n0.5,,0 1\n1.0,0.25,\n1.5,0.",
        "worker-0/metrics.csv": "wall_seconds,env_steps\n1,100\n2,200\n",
        "worker-1/metrics.csv": "wall_seconds,env_steps\n",
    }.items():
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    rows = program.rows(tmp_path)
    assert [row["wall_seconds"] for row in rows] == [0.5, 1.0]
    assert math.isnan(rows[0]["loss"]) and math.isnan(rows[0]["cores"]) and rows[1]["loss"] == 0.25
    workers = program.workers(tmp_path)
    assert workers["worker 0"][-1] == {"wall_seconds": 2.0, "env_steps": 200.0} and workers["worker 1"] == []


def test_values_of_a_window():
    names = ("wall_seconds", "env_steps", "minibatches", "updates", "staleness_mean")
    cells = [(10, 1_000, 250, 60, 9), (20, 3_000, 750, 160, 2), (30, 5_000, 1_250, 460, 4)]
    rows = [dict(zip(names, map(float, row), strict=True)) for row in cells]
    begin = {"wall_seconds": 5.0, "seconds_acting": 1.0, "seconds_other": 4.0, "loss": 1.0}
    end = {"wall_seconds": 25.0, "seconds_acting": 6.0, "seconds_other": 19.0, "loss": 0.5}
    late = {"worker 0": [end], "worker 1": [end]}
    pids = {"ps 0": 7, "worker 0": 8}
    before = Sample(100.0, pids, {"ps 0": 1.0, "worker 0": 10.0}, {}, {"worker 0": [begin], "worker 1": []})
    after = Sample(125.0, pids, {"ps 0": 6.0, "worker 0": 30.0}, {"ps 0": 300.0, "worker 0": 700.0}, late)
    assert programs.values(rows, before, after) == pytest.approx(
        {
            "agent steps/s": 4_000 / 20,
            "minibatches/s": 1_000 / 20,
            "updates/s": 400 / 20,
            "staleness": (2 + 4) / 2,
            "cores used": 5 / 25 + 20 / 25,
            "CPU s/1000 steps": 1_000 * (25 / 25) / 200,
            "CPU s/1000 steps: ps 0": 1_000 * (5 / 25) / 200,
            "CPU s/1000 steps: worker 0": 1_000 * (20 / 25) / 200,
            "resident MB": 300 + 700,
            "resident MB: ps 0": 300,
            "resident MB: worker 0": 700,
            "acting %: worker 0": 100 * 5 / 20,
            "other %: worker 0": 100 * 15 / 20,
        }
    )


@pytest.mark.parametrize("pids", [{"ps 0": 7}, {"ps 0": 7, "worker 0": 9}], ids=["gone", "started again"])
def test_a_process_lost_within_the_window_is_a_failure(pids):
    rows = [{"wall_seconds": float(wall), "env_steps": wall, "minibatches": 0, "updates": 0} for wall in (0, 10)]
    cpu = dict.fromkeys(pids, 2.0)
    before = Sample(0.0, {"ps 0": 7, "worker 0": 8}, {"ps 0": 1.0, "worker 0": 1.0}, {}, {})
    with pytest.raises(RunError, match="^worker 0 ended"):
        programs.values(rows, before, Sample(10.0, pids, cpu, cpu, {}))


def test_a_program_is_measured_and_ended(script, tmp_path):
    found = programs.measure(script(LEARNS, 130), 10.0)
    assert (found["agent steps/s"], found["minibatches/s"], found["updates/s"]) == (200.0, 50.0, 25.0)
    assert found["start-up seconds"] > 0 and found["seconds to end"] > 0
    assert found["resident MB"] == found["resident MB: stand_in"] > 1
    assert processes_naming(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (LEARNS, [0], "exit code 0 .*130"),
        ("print('async-dqn: no such thing'); print('bye'); raise SystemExit(3)", [], "exit code 3: .*no such thing"),
        ("raise SystemExit(0)", [], "exit code 0"),
    ],
)
def test_a_program_that_does_not_do_what_it_should(script, tmp_path, text, arguments, message):
    with pytest.raises(RunError, match=message):
        programs.measure(script(text, *arguments), 5.0)
    assert processes_naming(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "deadline", "what"),
    [
        ("import time; time.sleep(600)", "_DEADLINE", "updates"),
        (LEARNS.replace("second += 1", "second += second < 8"), "_PATIENCE", "wall_seconds"),
    ],
    ids=["never learns", "stops learning"],
)
def test_a_program_that_stands_still_is_given_up(script, tmp_path, monkeypatch, text, deadline, what):
    monkeypatch.setattr(programs, deadline, 2.0)
    with pytest.raises(RunError, match=what):
        programs.measure(script(text, 130), 1.5)
    assert processes_naming(tmp_path) == []


def test_a_process_that_outlives_its_launcher_is_a_failure_and_ended(script, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_END_DEADLINE", 1.0)
    (tmp_path / "stubborn.py").write_text(textwrap.dedent(STUBBORN))
    leaves = LEARNS.replace(
        "second = 0\n",
        f"second = 0\n    subprocess.Popen([sys.executable, {str(tmp_path / 'stubborn.py')!r}, sys.argv[2]],"
        " start_new_session=True, stdout=subprocess.PIPE).stdout.readline()\n",
    )
    with pytest.raises(RunError, match="stubborn"):
        programs.measure(script(leaves, 130), 5.0)
    wait_until(lambda: processes_naming(tmp_path) == [], 10, "everything ended")
