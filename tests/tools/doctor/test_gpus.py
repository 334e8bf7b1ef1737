"""GPUs and their shares, as a made-up nvidia-smi tells them."""

import math

import pytest
from doctor_helpers import HERE, only

from async_dqn.settings.config import Config
from async_dqn.tools.doctor import gpus
from async_dqn.tools.doctor.checks import Result
from async_dqn.tools.doctor.gpus import Card
from async_dqn.tools.doctor.hosts import Here


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


def test_nvidia_smi_is_read(nvidia_smi):
    gib = 2**30 / 1e9
    first, second = gpus.nvidia_cards()
    assert first == Card("0", "GPU-aa", "NVIDIA H1", pytest.approx(80 * gib), pytest.approx(40 * gib))
    assert second.uuid == "GPU-bb"
    nvidia_smi('echo "0, GPU-aa, NVIDIA GB10, [N/A], [N/A]"')
    assert math.isnan(only(gpus.nvidia_cards()).total)


@pytest.mark.parametrize(
    ("settings", "num_workers", "expected"),
    [
        ({}, 1, [("ok", "GPU 0", "1 worker, memory as needed")]),
        ({}, 3, [("ok", "GPU 0", "2 workers, memory as needed"), ("ok", "GPU 1", "1 worker, memory as needed")]),
        ({"gpus": "1"}, 2, [("ok", "GPU 1", "NVIDIA A1, 21.5 of 42.9 GB free, 2 workers")]),
        ({"gpus": "none"}, 2, [("ok", "GPU", "CPU")]),
        ({"gpus": "2"}, 2, [("failure", "GPU", "--gpus=2: this host has 2 GPUs")]),
        ({"gpus": "0", "gpu_memory_growth": False}, 2, [("warning", "GPU 0", "the first takes all")]),
        ({"gpus": "0", "gpu_memory_growth": False}, 1, [("ok", "GPU 0", "1 worker, all of it")]),
        ({"gpus": "0", "gpu_memory_fraction": 0.4}, 3, [("failure", "GPU 0", "3 workers with")]),
        ({"gpus": "0", "gpu_memory_fraction": 0.25}, 2, [("ok", "GPU 0", "2 workers, 0.25 of it each")]),
        ({"gpus": "0", "gpu_memory_fraction": 0.5}, 2, [("warning", "GPU 0", "but 2 workers take 85.9 GB")]),
    ],
)
def test_workers_share_cards(nvidia_smi, settings, num_workers, expected):
    config = Config(num_workers=num_workers, **settings)
    results = list(gpus.check_gpus(config, Here(1, tuple(range(num_workers)), 0), seen=2))
    assert [(result.status, result.thing) for result in results] == [line[:2] for line in expected]
    for result, (_, _, text) in zip(results, expected, strict=True):
        assert text in result.found


def test_a_share_that_fits_is_proposed(nvidia_smi):
    config = Config(num_workers=3, gpus="0", gpu_memory_fraction=0.4)
    result = only(gpus.check_gpus(config, Here(1, (0, 1, 2), 4), seen=2))
    assert result.remedy == "--gpu_memory_fraction=0.33 or less"


def test_cards_that_tensorflow_does_not_see_are_told(nvidia_smi):
    results = list(gpus.check_gpus(Config(), HERE, seen=0))
    assert (results[0].status, results[0].found) == ("warning", "TensorFlow sees 0 of 2")
    assert "[gpu]" in results[0].remedy


def test_cuda_visible_devices_is_respected(nvidia_smi, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb")
    assert "NVIDIA A1" in only(gpus.check_gpus(Config(), HERE, seen=1)).found
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert only(gpus.check_gpus(Config(), HERE, seen=0)).found == "none visible: workers compute on the CPU"


def test_no_gpu_is_all_right_unless_one_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert only(gpus.check_gpus(Config(), HERE, seen=0)) == Result("ok", "GPU", "no GPU: workers compute on the CPU")
    assert only(gpus.check_gpus(Config(gpus="0"), HERE, seen=0)).status == "failure"


def test_a_broken_driver_is_told_in_its_own_words(nvidia_smi):
    nvidia_smi('echo "NVIDIA-SMI has failed"; exit 9')
    result = only(gpus.check_gpus(Config(), HERE, seen=0))
    assert (result.status, result.found) == ("warning", "nvidia-smi fails: NVIDIA-SMI has failed")
    assert only(gpus.check_gpus(Config(gpus="0"), HERE, seen=0)).status == "failure"
