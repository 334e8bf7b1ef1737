"""The machine, with memory, disk, cores, limits and times made up."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from doctor_helpers import CARTPOLE, HERE, only

from async_dqn.run import build, preflight
from async_dqn.settings.config import Config, make_config
from async_dqn.tools.doctor import machine
from async_dqn.tools.doctor.hosts import Here


@pytest.fixture(scope="module")
def problem():
    return build.make_problem(CARTPOLE)


@pytest.mark.parametrize(
    ("available", "status"), [(0.0001e9, "failure"), (1e9, "warning"), (4e9, "ok")], ids=["none", "some", "enough"]
)
def test_memory_for_replay_and_processes(problem, available, status, monkeypatch):
    monkeypatch.setattr(preflight, "available_bytes", lambda: int(available))
    result = only(machine.check_memory(CARTPOLE, HERE, problem))
    assert result.status == status
    if status != "failure":
        assert "with 4 processes about 2.8 GB" in result.found  # 4 * 0.7


def test_a_replay_that_is_too_big_is_told_with_what_would_fit(problem):
    config = make_config("cartpole", {"env": "CartPole-v1", "replay_capacity": 10**13})
    result = only(machine.check_memory(config, HERE, problem))
    assert result.status == "failure"
    assert "--replay_capacity=10000000000000 needs" in result.found
    assert "would fit" in result.found


def test_memory_is_not_guessed_without_a_network():
    assert only(machine.check_memory(CARTPOLE, HERE, None)).status == "warning"


@pytest.mark.parametrize(
    ("optimizer", "slots"), [("adam", 2), ("rmsprop", 2), ("centered_rmsprop", 3)], ids=lambda value: str(value)
)
def test_checkpoints_are_counted_with_targets_and_slots(problem, optimizer, slots):
    config = make_config("cartpole", {"env": "CartPole-v1", "optimizer": optimizer, "keep_checkpoints": 5})
    size = problem.layout.num_parameters
    assert machine.checkpoint_gigabytes(config, problem) == pytest.approx(
        (5 + 1) * (2 + slots) * 4 * size / 1e9, rel=1e-3
    )


def disk(path, problem=None, *, config=CARTPOLE, resume=False):
    return only(machine.check_disk(config, path, HERE, problem, resume=resume))


def test_a_folder_that_does_not_exist_is_looked_for_above_and_not_made(tmp_path, problem):
    path = tmp_path / "a/b/c"
    assert disk(path, problem).status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_a_failure(tmp_path):
    (tmp_path / "file").touch()
    assert disk(tmp_path / "file/run").status == disk(tmp_path / "file").status == "failure"


def test_a_folder_that_cannot_be_written_to_is_a_failure():
    assert disk(Path("/proc/run")).status == "failure"  # nobody can, root included


def test_a_disk_that_does_not_flush_is_a_failure(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fail)
    result = disk(tmp_path)
    assert (result.status, "Invalid argument" in result.found) == ("failure", True)


@pytest.mark.parametrize(("holds_run", "resume", "status"), [(1, 0, "failure"), (1, 1, "ok"), (0, 1, "failure")])
def test_a_run_is_neither_overwritten_nor_resumed_from_nothing(holds_run, resume, status, tmp_path):
    if holds_run:
        (tmp_path / "config.json").touch()
    assert disk(tmp_path, resume=bool(resume)).status == status


@pytest.mark.parametrize(
    ("free", "checkpoint_replay", "status"),
    [(0.0, True, "failure"), (0.001, True, "warning"), (0.001, False, "ok"), (1.0, True, "ok")],
)
def test_free_space_is_held_against_checkpoints_and_replay(
    tmp_path, problem, free, checkpoint_replay, status, monkeypatch
):
    config = make_config("cartpole", {"env": "CartPole-v1", "checkpoint_replay": checkpoint_replay})
    monkeypatch.setattr(machine, "checkpoint_gigabytes", lambda config, problem: 0.0005)
    monkeypatch.setattr(machine, "replay_gigabytes", lambda config, here, problem: 0.5)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=free * 1e9))
    assert disk(tmp_path, problem, config=config).status == status


@pytest.mark.parametrize(
    ("threads", "cores", "status"), [(0, 2, "ok"), (0, 1.5, "warning"), (2, 4, "ok"), (2, 3, "warning")]
)
def test_cores(threads, cores, status):
    assert only(machine.check_cores(Config(threads=threads), HERE, cores)).status == status


def test_cores_of_a_control_group_count(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert machine.usable_cores() == 8
    for text, cores in [("max 100000", 8), ("150000 100000", 1.5), ("900000 100000", 8)]:
        (tmp_path / "cpu.max").write_text(f"{text}\n")
        assert machine.usable_cores() == cores


@pytest.mark.parametrize(("load", "status"), [(0.5, "ok"), (1.4, "ok"), (1.5, "warning")])
def test_load(load, status):
    assert only(machine.check_load(load, 2)).status == status


@pytest.mark.parametrize(
    ("workers", "limits", "status"),
    [
        (2, (1024, 4096), "ok"),
        (200, (1024, 4096), "warning"),  # 64 + 8 * 200 wanted, 24 + 4 * 200 needed
        (512, (1024, 1024), "failure"),
        (2, (resource.RLIM_INFINITY, resource.RLIM_INFINITY), "ok"),
    ],
)
def test_open_files_of_a_ps(workers, limits, status):
    config = Config(num_workers=workers)
    result = only(machine.check_files(config, Here(1, (0,), 2), limits))
    assert result.status == status
    assert result.remedy.startswith(f"ulimit -n {64 + 8 * workers}" if status != "ok" else "")
    assert ("administrator" in result.remedy) == (limits == (1024, 1024))


def test_a_low_limit_is_seen_by_a_process_that_has_it():
    program = (
        "import resource; from async_dqn.settings.config import Config;"
        "from async_dqn.tools.doctor import hosts, machine;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (18, 18));"
        "limits = resource.getrlimit(resource.RLIMIT_NOFILE);"
        "print(next(iter(machine.check_files(Config(), hosts.Here(1, (0, 1), 4), limits))).status)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert output.stdout == "failure\n"


@pytest.mark.parametrize(
    ("limits", "status"), [({}, "ok"), ({"a": 1000}, "ok"), ({"a": 1000, "b": 100}, "warning"), ({"a": -5}, "warning")]
)
def test_processes_and_threads(limits, status):
    result = only(machine.check_processes(HERE, limits, cores=2))
    assert result.status == status
    assert f"about {4 * (100 + 4 * 2)}" in result.found


def test_the_limits_of_user_and_control_group_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # somebody who runs nothing
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (500, 600))
    assert machine.process_limits() == {"ulimit -u": 500}
    (tmp_path / "pids.max").write_text("300\n")
    (tmp_path / "pids.current").write_text("100\n")
    assert sorted(machine.process_limits().values()) == [300 - 100, 500]
    monkeypatch.setattr(os, "getuid", lambda: 0)
    (tmp_path / "pids.max").write_text("max\n")
    assert machine.process_limits() == {}


@pytest.mark.parametrize(("now", "status"), [(0, "warning"), (1735689599, "warning"), (1735689600, "ok")])
def test_a_clock_before_2025_is_wrong(now, status):
    assert only(machine.check_clock(now)).status == status


@pytest.mark.parametrize(
    ("settings", "flags", "num_gpus", "status", "words"),
    [
        ({}, "avx2 amx_bf16", 0, "ok", "--compute_dtype=bfloat16"),
        ({}, "avx2 amx_bf16", None, "ok", "--compute_dtype=bfloat16"),
        ({}, "avx2 avx512_bf16", 0, "ok", "float32"),
        ({}, "AMD avx512_bf16", 0, "ok", "--compute_dtype=bfloat16"),
        ({}, "AMD avx2", 0, "ok", "float32"),
        ({}, "avx2 amx_bf16", 2, "ok", "float32"),
        ({"gpus": "none"}, "avx2 amx_bf16", 2, "ok", "--compute_dtype=bfloat16"),
        ({"compute_dtype": "bfloat16"}, "avx2 amx_bf16", 0, "ok", "bfloat16"),
        ({"compute_dtype": "bfloat16"}, "avx2 avx512_bf16", 0, "warning", "slower"),
        ({"compute_dtype": "bfloat16"}, "AMD avx512_bf16", 0, "ok", "bfloat16"),
        ({"compute_dtype": "bfloat16"}, "", 0, "warning", "slower"),
        ({"compute_dtype": "bfloat16"}, "", 1, "ok", "bfloat16"),
    ],
)
def test_a_type_is_judged_by_what_the_processor_has(settings, flags, num_gpus, status, words):
    cpu = {"flags": flags, "vendor_id": "AuthenticAMD" if "AMD" in flags else "GenuineIntel"}
    result = only(machine.check_dtype(make_config("pong-fast", {"env": "pong"} | settings), cpu, num_gpus))
    assert result.status == status
    assert words in result.found
    assert ("--compute_dtype" in result.found) is (words.startswith("--"))


def test_a_small_network_gains_nothing_by_another_type():
    assert only(machine.check_dtype(CARTPOLE, {"flags": "amx_bf16"}, 0)).found == "float32"
