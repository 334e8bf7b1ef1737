"""Checks beside each other, and all of them on this machine, for a run here and for a cluster."""

import io
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from doctor_helpers import CARTPOLE, IN_TIME, PPO

from async_dqn.cluster.spec import ClusterSpec
from async_dqn.run.directory import RunDirectory
from async_dqn.tools.doctor import cluster, software
from async_dqn.tools.doctor.checks import Result, run_checks
from async_dqn.tools.doctor.run import run_doctor


def run(*checks, seconds=IN_TIME):
    """Exit code and lines of checks that are given as functions."""
    output = io.StringIO()
    named = [(f"check {index}", check) for index, check in enumerate(checks)]
    code = run_checks(named, time.monotonic() + seconds, output)
    return code, output.getvalue().splitlines()


def test_each_result_is_a_line_with_a_remedy_where_it_is_not_ok():
    code, lines = run(
        lambda: [Result("ok", "1 GB\n free", "none")],
        lambda: [Result("warning", "2 on 1 core", "wait"), Result("warning", "x", "y")],
    )
    assert code == 0
    assert [line.split() for line in lines[:2]] == [
        ["ok", "check", "0", "1", "GB", "free"],
        ["warning", "check", "1", "2", "on", "1", "core", "->", "wait"],
    ]
    assert lines[-1] == "ok: 1, warnings: 2, failures: 0"


@pytest.mark.parametrize("error", [RuntimeError("it broke"), TimeoutError("it broke"), SystemExit("it broke")])
def test_an_exception_in_a_check_is_its_failure_line(error):
    def check():
        yield Result("ok", "before")
        raise error

    code, lines = run(check, lambda: [Result("ok", "found")])
    assert code == 1
    assert lines[0].startswith(f"failure  check 0  {type(error).__name__}: it broke -> ")
    assert lines[-1] == "ok: 1, warnings: 0, failures: 1"


def test_a_check_that_hangs_is_given_up_and_holds_up_no_other():
    forever, started = threading.Event(), time.monotonic()
    code, lines = run(forever.wait, lambda: [Result("ok", "found")], seconds=0.2)
    forever.set()
    assert time.monotonic() - started < 5
    assert code == 0
    assert lines[0].startswith("warning") and lines[1].startswith("ok")


@pytest.mark.parametrize("config", [CARTPOLE, PPO])
def test_every_line_of_a_whole_run_is_well_formed(tmp_path, config):
    output = io.StringIO()
    code = run_doctor(config, None, RunDirectory(tmp_path / "run"), deadline=120, output=output)
    *lines, summary = output.getvalue().splitlines()
    things = ["packages", "TensorFlow", "GPU", "environment", "memory", "disk", "cores", "open files", "proxy"]
    assert [line[9 : 9 + len("private network")].strip() for line in lines] == [*things, "private network"]
    assert all((" -> " in line) != line.startswith("ok ") for line in lines)
    assert summary.endswith("failures: 0") and code == 0
    assert not (tmp_path / "run").exists()


def test_a_package_that_cannot_be_imported_is_named_beside_all_else(tmp_path):
    (tmp_path / "gymnasium.py").write_text("raise ImportError('no gymnasium today')")
    command = [sys.executable, "-m", "async_dqn", "doctor", f"--logdir={tmp_path / 'run'}"]
    path = f"{tmp_path}{os.pathsep}{Path(__file__).parents[3]}"
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 1
    lines = {line[9:24].strip(): line for line in done.stdout.splitlines()}
    assert lines["environment"].startswith("failure") and "no gymnasium today" in lines["environment"]
    assert "cores" in lines and "error of the check itself" not in done.stdout


def test_a_cluster_with_an_unknown_host_fails_in_time(tmp_path, monkeypatch):
    def getaddrinfo(host, *arguments, **options):
        if host == "host-x":
            raise socket.gaierror(-2, "Name or service not known")
        if host == "host-y":
            never.wait()
        return real(host, *arguments, **options)

    never, real = threading.Event(), socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(software, "_PROBE", "raise ImportError('none')")
    monkeypatch.setattr(cluster, "_RESERVE", 28.0)  # so that a host is given up after 2 s
    output, started = io.StringIO(), time.monotonic()
    with socket.socket() as holder:
        holder.bind(("", 0))
        port = holder.getsockname()[1]
    spec = ClusterSpec((f"127.0.0.1:{port}",), ("host-x:2222", "host-y:2222"))
    code = run_doctor(CARTPOLE, spec, RunDirectory(tmp_path / "run"), deadline=30, output=output)
    never.set()
    assert time.monotonic() - started < 10
    assert code == 1
    lines = {line[9:19].strip(): line.split()[0] for line in output.getvalue().splitlines()[:-1]}
    expected = {"ps 0": "ok", "worker 0": "failure", "worker 1": "failure", "TensorFlow": "failure", "disk": "ok"}
    assert lines | expected == lines
    assert "127.0.0.1 means a different machine" in output.getvalue()
