"""The machine, with memory, disk, cores, limits and a nvidia-smi made up."""

import resource
from types import SimpleNamespace

import pytest
from doctor_helpers import CARTPOLE, HERE, PPO, only

from async_dqn.agents.table import make_config
from async_dqn.run.directory import RunDirectory
from async_dqn.settings.config import Config
from async_dqn.tools.doctor import machine
from async_dqn.tools.doctor.cluster import Here


def dqn(**settings):
    return make_config("dqn", "cartpole", {"env": "CartPole-v1"} | settings)


@pytest.mark.parametrize(
    ("config", "available", "status"),
    [
        (CARTPOLE, 0.0001, "failure"),
        (CARTPOLE, 1, "warning"),  # 4 processes want 0.7 each
        (CARTPOLE, 4, "ok"),
        (dqn(replay_capacity=10**12), 4, "failure"),
        (dqn(env="no-such-v0"), 4, "ok"),
        (PPO, 0.0001, "warning"),  # it has no replay
        (PPO, 4, "ok"),
    ],
)
def test_memory_for_replay_and_processes(config, available, status, monkeypatch):
    monkeypatch.setattr(machine, "memory", SimpleNamespace(available_bytes=lambda: int(available * 1e9)))
    assert only(machine.check_memory(config, HERE)).status == status


def disk(path, config=CARTPOLE, resume=False):
    return only(machine.check_disk(config, RunDirectory(path), HERE, resume=resume))


def test_a_run_directory_that_cannot_be_is_a_failure_and_none_is_made(tmp_path):
    (tmp_path / "file").touch()
    assert disk(tmp_path / "a/b/c").status == "ok"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert disk(tmp_path / "file/run").status == disk(tmp_path / "file").status == "failure"
    assert disk(tmp_path / "run", resume=True).status == "failure"


@pytest.mark.parametrize(
    ("free", "config", "status"),
    [
        (0.1, CARTPOLE, "warning"),
        (1.2, CARTPOLE, "warning"),  # 0.5 for replay
        (1.2, dqn(checkpoint_replay=False), "ok"),
        (1.2, PPO, "ok"),
        (1.6, CARTPOLE, "ok"),
    ],
)
def test_free_space_is_held_against_checkpoints_and_replay(tmp_path, free, config, status, monkeypatch):
    monkeypatch.setattr(machine, "experience_gigabytes", lambda config, here: 0.5)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=free * 1e9))
    assert disk(tmp_path / "run", config).status == status


@pytest.mark.parametrize(
    ("threads", "cores", "load", "status"),
    [(0, 2, 0, "ok"), (0, 1.5, 0, "warning"), (2, 4, 0, "ok"), (2, 3, 0, "warning"), (0, 2, 1.5, "warning")],
)
def test_cores(threads, cores, load, status):
    assert only(machine.check_cores(Config(threads=threads), HERE, cores, load)).status == status


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
    result = only(machine.check_files(Config(num_workers=workers), Here(1, (0,), 2), limits))
    assert result.status == status
    assert f"ulimit -n {64 + 8 * workers}" in result.remedy


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Puts a nvidia-smi of two cards with 80 and 40 GiB, half of it free, on an otherwise empty PATH."""

    def install(script):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    install(
        'case "$1" in\n'
        "  *=index) echo 0; echo 1 ;;\n"
        '  *) echo "0, GPU-aa, NVIDIA H1, 81920, 40960"; echo "1, GPU-bb, NVIDIA A1, 40960, 20480" ;;\n'
        "esac"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return install


def gpus(seen=2, num_workers=2, **settings):
    config = Config(num_workers=num_workers, **settings)
    return list(machine.check_gpus(config, Here(1, tuple(range(num_workers)), 0), seen))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"num_workers": 1}, [("ok", "H1")]),
        ({"num_workers": 3}, [("ok", "2 workers"), ("ok", "1 worker")]),
        ({"gpus": "1"}, [("ok", "NVIDIA A1, 21.5 of 42.9 GB free, 2 workers")]),
        ({"gpus": "none"}, [("ok", "CPU")]),
        ({"gpus": "2"}, [("failure", "--gpus=2: 2 GPUs may be used here")]),
        ({"gpus": "0", "gpu_memory_growth": False}, [("failure", "1 of it each")]),
        ({"gpus": "0", "gpu_memory_fraction": 0.4, "num_workers": 3}, [("failure", "0.4 of it each")]),
        ({"gpus": "0", "gpu_memory_fraction": 0.25}, [("ok", "0.25 of it each")]),
        ({"gpus": "0", "gpu_memory_fraction": 0.5}, [("warning", "0.5 of it each")]),  # half of the card is taken
    ],
)
def test_workers_share_cards(nvidia_smi, settings, expected):
    results = gpus(**settings)
    assert [result.status for result in results] == [status for status, _ in expected]
    assert all(text in result.found for result, (_, text) in zip(results, expected, strict=True))


def test_the_share_that_is_advised_is_of_what_is_free(nvidia_smi):
    assert "--gpu_memory_fraction=0.25 or less" in only(gpus(gpus="0", gpu_memory_fraction=0.5)).remedy


def test_cards_that_tensorflow_does_not_see_are_told(nvidia_smi, monkeypatch):
    first, *_ = gpus(seen=0)
    assert (first.status, "0 of 2" in first.found) == ("warning", True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb")
    assert "NVIDIA A1" in only(gpus(seen=1)).found
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert only(gpus(seen=0)).status == "ok"


@pytest.mark.parametrize(("setting", "status"), [("auto", "warning"), ("0", "failure")])
def test_a_broken_driver_is_told_in_its_own_words(nvidia_smi, setting, status):
    nvidia_smi('echo "NVIDIA-SMI has failed"; exit 9')
    result = only(gpus(seen=0, gpus=setting))
    assert result.status == status and "NVIDIA-SMI has failed" in result.found


@pytest.mark.parametrize(("setting", "status"), [("auto", "ok"), ("0", "failure")])
def test_no_gpu_is_all_right_unless_one_is_asked_for(monkeypatch, tmp_path, setting, status):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert only(gpus(seen=0, gpus=setting)).status == status
