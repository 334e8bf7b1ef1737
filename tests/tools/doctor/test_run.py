"""All checks on this machine, for a run here and for a cluster."""

import io
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from doctor_helpers import CARTPOLE

from async_dqn.cluster.spec import ClusterSpec
from async_dqn.run.directory import RunDirectory
from async_dqn.tools.doctor import software
from async_dqn.tools.doctor.run import run_doctor


def test_every_line_of_a_whole_run_is_well_formed(tmp_path):
    output = io.StringIO()
    code = run_doctor(CARTPOLE, None, RunDirectory(tmp_path / "run"), deadline=120, output=output)
    *lines, summary = output.getvalue().splitlines()
    things = ["Python", "packages", "TensorFlow", "GPU", "environment", "memory", "disk", "cores", "dtype", "load"]
    things += ["open files", "processes", "clock", "ports", "private network"]
    assert [line[9 : 9 + len("private network")].strip() for line in lines] == things
    assert all(line.startswith(("ok ", "warning ", "failure ")) for line in lines)
    assert all((" -> " in line) != line.startswith("ok ") for line in lines)
    assert re.fullmatch(r"\d+ ok, \d+ warnings?, 0 failures", summary), output.getvalue()
    assert code == 0
    assert not (tmp_path / "run").exists()


def test_a_package_that_cannot_be_imported_is_named_beside_all_else(tmp_path):
    (tmp_path / "gymnasium.py").write_text("raise ImportError('no gymnasium today')")
    command = [sys.executable, "-m", "async_dqn", "doctor", f"--logdir={tmp_path / 'run'}"]
    path = f"{tmp_path}{os.pathsep}{Path(__file__).parents[3]}"
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 1
    lines = {line[9:24].strip(): line for line in done.stdout.splitlines()}
    assert lines["environment"].startswith("failure") and "no gymnasium today" in lines["environment"]
    assert lines["memory"].startswith("warning") and lines["cores"] and lines["clock"]
    assert "error of the check itself" not in done.stdout


def test_a_cluster_with_an_unknown_host_fails_in_time(tmp_path, free_port, monkeypatch):
    def getaddrinfo(host, *arguments, **options):
        if host == "host-x":
            raise socket.gaierror(-2, "Name or service not known")
        if host == "host-y":
            never.wait()
        return real(host, *arguments, **options)

    never, real = threading.Event(), socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(software, "_PROBE", "raise ImportError('none')")
    monkeypatch.setattr(software.probe_tensorflow, "__defaults__", (software._PROBE,))
    output = io.StringIO()
    started = time.monotonic()
    spec = ClusterSpec((f"127.0.0.1:{free_port}",), ("host-x:2222", "host-y:2222"))
    code = run_doctor(CARTPOLE, spec, RunDirectory(tmp_path / "run"), deadline=6, output=output)
    never.set()
    assert time.monotonic() - started < 10
    assert code == 1
    lines = {line[9:20].strip(): line for line in output.getvalue().splitlines()[:-1]}
    assert lines["ps 0"].startswith("ok")
    for task in ("worker 0", "worker 1"):
        assert lines[task].startswith("failure")
        assert "does not resolve" in lines[task]
    assert lines["TensorFlow"].startswith("failure")
    assert lines["memory"].startswith("warning")
    assert lines["disk"].startswith("ok")
    assert lines["cluster"].startswith("warning")  # 127.0.0.1 beside other hosts
