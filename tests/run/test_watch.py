"""What the terminal of a local run shows of its files."""

import errno
import io
import json
import types

import pytest

from async_dqn.agents.table import make_config
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.run.watch import Watch

HEADER = "entropy,env_steps,steps_per_second,updates_per_second,mean_return_100,episodes,wall_seconds"


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path)
    run.metrics.write_text(f"{HEADER}\n1.5,100,10,1,,0,10\n")
    (tmp_path / "worker-0").mkdir()
    return run


def make_watch(run, stream, plain):
    def task(name):
        log = run.path / f"{name}.log"
        log.write_text(f"{name}: lost before\n")
        return types.SimpleNamespace(name=name, log=log, code=0, restarts=1, is_running=False, is_over=True)

    servers, workers = [task("ps 0")], [task("worker 0"), task("worker 1")]
    for each in (*servers, *workers):
        each.has_failed, each.last_line = each.name == "worker 1", lambda: "no port"
    progress = Progress(stream, 0.0, plain=plain)
    config = make_config("dqn", "cartpole", {"total_steps": 1_000, "stop_at_return": 20.0})
    return Watch(run, servers, workers, progress, config)


def test_new_lines_and_the_newest_row_are_shown_by_the_files_own_header(run):
    stream = io.StringIO()
    watch = make_watch(run, stream, plain=True)
    watch.look()
    assert stream.getvalue() == ""  # what was there before
    with open(run.metrics, "a") as file:
        file.write("1.25,200,10,1,,0,20\n0.75,30")
    (run.path / "ps 0.log").open("a").write("ps 0: serving\nps 0: worker 1 counts as lost\n")
    (run.path / "worker 1.log").open("a").write("worker 1: joined\nnoise\nworker 1: half a li")
    watch.look()
    watch.look()
    said = stream.getvalue().splitlines()
    assert said[:2] == ["ps 0: worker 1 counts as lost", "worker 1: joined"] and len(said) == 3
    assert said[2].startswith("200/1,000 steps (20%)") and "entropy 1.25" in said[2] and "of 20" in said[2]


def test_on_a_terminal_a_table_of_the_workers_is_below(run):
    stream = io.StringIO()
    stream.isatty = lambda: True
    watch = make_watch(run, stream, plain=False)
    (run.path / "worker-0" / "metrics.csv").write_text("env_steps,steps_per_second\n123,45\n")
    with open(run.metrics, "a") as file:
        file.write("1.25,200,10,1,,0,20\n")
    watch.look()
    _, _, first, second = stream.getvalue().split("\n")
    assert first.split()[:4] == ["worker", "0", "ended", "(0)"] and "123" in first
    assert second.split()[:2] == ["worker", "1"]


@pytest.mark.parametrize("has_summary", [True, False])
def test_the_report_tells_of_every_process_and_of_the_run(run, has_summary):
    stream = io.StringIO()
    summary = dict(exit_reason="finished", env_steps=1000, minibatches=9, episodes=3, wall_seconds=5, mean_return_100=1)
    run.summary.write_text(json.dumps(summary))
    make_watch(run, stream, plain=True).report(has_summary=has_summary)
    out = stream.getvalue()
    assert "ps 0: exit code 0 after 1 restart\n" in out
    assert f"worker 1 failed: no port (see {run.path / 'worker 1.log'})\n" in out
    assert ("finished: 1,000 agent steps" in out, "no summary was written" in out) == (has_summary, not has_summary)


def test_files_that_are_out_of_reach_for_a_moment_do_not_end_the_run(run, monkeypatch):
    stream = io.StringIO()
    watch = make_watch(run, stream, plain=True)
    with open(run.metrics, "a") as file:
        file.write("1.25,200,10,1,,0,20\n")
    (run.path / "ps 0.log").write_text("worker 1 counts as lost\n")

    def fail(*arguments, **options):
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", fail)
        patch.setattr("os.path.getsize", fail)
        watch.look()
        make_watch(run, io.StringIO(), plain=True)  # one that begins then
    assert stream.getvalue() == ""
    watch.look()
    assert "200/1,000" in stream.getvalue()


@pytest.mark.parametrize("row", ["1.25,,10,1,,0,20", "x,y,z,,,,"])
def test_a_damaged_row_does_not_end_the_run(run, row):
    stream = io.StringIO()
    watch = make_watch(run, stream, plain=True)
    for line in (row, "1.25,200,10,1,,0,20"):
        with open(run.metrics, "a") as file:
            file.write(f"{line}\n")
        watch.look()
    assert "200/1,000" in stream.getvalue().splitlines()[-1]
