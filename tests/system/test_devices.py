"""Which GPU and how many threads a process gets; no card is needed for it."""

import ast
import os
import stat
import subprocess
import sys

import pytest

from async_dqn.base.errors import UserError
from async_dqn.settings.config import Config
from async_dqn.system import devices


@pytest.mark.parametrize(
    ("gpus", "visible", "cards"),
    [
        ("auto", [], [None, None, None]),
        ("none", ["0", "1"], [None, None, None]),
        ("auto", ["0"], ["0", "0", "0"]),
        ("auto", ["0", "1"], ["0", "1", "0"]),
        ("auto", ["4", "7"], ["4", "7", "4"]),
        ("1", ["4", "7"], ["7", "7", "7"]),
        ("1,0", ["4", "7"], ["7", "4", "7"]),
        ("0,0,1", ["GPU-a", "GPU-b"], ["GPU-a", "GPU-a", "GPU-b"]),
        ("0, 1", ["0", "1"], ["0", "1", "0"]),
    ],
)
def test_workers_are_dealt_out_over_the_cards(gpus, visible, cards):
    assert [devices.gpu_of_worker(gpus, worker, visible) for worker in range(3)] == cards


@pytest.mark.parametrize(("gpus", "visible"), [("2", ["0", "1"]), ("0,2", ["0", "1"]), ("0", [])])
@pytest.mark.parametrize("worker", [0, 1])
def test_a_card_that_is_not_there_is_refused_whichever_worker_it_would_be_for(gpus, visible, worker):
    with pytest.raises(UserError, match=f"--gpus={gpus}: {len(visible)} GPUs may be used here"):
        devices.gpu_of_worker(gpus, worker, visible)


@pytest.mark.parametrize(
    ("chosen", "cards"),
    [("0,1", ["0", "1"]), (" 2 , 3 ", ["2", "3"]), ("GPU-a", ["GPU-a"]), ("", []), ("-1", [])],
)
def test_cuda_visible_devices_says_which_cards_there_are(chosen, cards, monkeypatch):
    monkeypatch.setattr(devices, "_nvidia_smi", lambda *arguments: pytest.fail("it need not be asked"))
    assert devices.visible_gpus({"CUDA_VISIBLE_DEVICES": chosen}) == cards


@pytest.mark.parametrize(
    ("script", "cards"),
    [("echo 0; echo 1", ["0", "1"]), ("echo broken; exit 9", []), (None, [])],
    ids=["two cards", "driver broken", "no driver"],
)
def test_otherwise_the_driver_is_asked(script, cards, tmp_path, monkeypatch):
    if script is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices.visible_gpus({}) == cards


def test_a_host_is_not_asked_for_cards_that_nobody_wants(monkeypatch):
    monkeypatch.setattr(devices, "_nvidia_smi", lambda *arguments: pytest.fail("it need not be asked"))
    assert devices.card_of_worker("none", 3) is None


def test_a_driver_that_hangs_is_named(monkeypatch):
    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices.shutil, "which", lambda name: name)
    monkeypatch.setattr(devices.subprocess, "run", hang)
    with pytest.raises(UserError, match="^nvidia-smi does not answer; mend the driver, or give --gpus=none$"):
        devices.card_of_worker("auto", 0)


@pytest.mark.parametrize(("card", "value"), [(None, "-1"), ("0", "0"), ("GPU-a", "GPU-a")])
def test_all_cards_but_one_are_hidden(card, value):
    environ = {"CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/"}
    devices.hide_gpus(card, environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": value, "HOME": "/"}
    assert devices.visible_gpus(environ) == ([] if card is None else [card])


@pytest.mark.parametrize("given", [{}, {"TF_ENABLE_ONEDNN_OPTS": "0"}])
@pytest.mark.parametrize("is_small", [False, True])
def test_onednn_computes_convolutions_unless_the_user_says_otherwise(is_small, given):
    environ = dict(given)
    devices.choose_kernels(is_small=is_small, environ=environ)
    assert environ == (given if given or is_small else {"TF_ENABLE_ONEDNN_OPTS": "1"})


@pytest.mark.parametrize(
    ("threads", "num_here", "cores", "expected"),
    [
        (0, 1, 8.0, 8),
        (0, 2, 8.0, 4),
        (0, 3, 8.0, 2),
        (0, 16, 8.0, 1),
        (5, 16, 8.0, 5),
        (5, 1, 2.0, 5),
        (0, 1, 2.5, 2),  # by a control group, as the next one
        (0, 1, 0.5, 1),
    ],
)
def test_there_are_threads_for_a_share_of_the_cores(threads, num_here, cores, expected, monkeypatch):
    monkeypatch.setattr(devices.processor, "usable_cores", lambda: cores)
    assert devices.threads_of_worker(threads, num_here) == expected


@pytest.mark.parametrize("given", [{}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}])
def test_cards_have_the_numbers_of_nvidia_smi_unless_the_user_says_otherwise(given):
    environ = dict(given)
    devices.hide_gpus("1", environ)
    assert environ == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **given, "CUDA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize(
    ("num_here", "cores", "expected"),
    [
        (1, [0, 1], [[0, 1]]),
        (2, [0, 1], [[0], [1]]),
        (2, [3, 5, 8, 9], [[3, 5], [8, 9]]),  # of a process that was kept to these itself
        (4, [0, 1], [[0], [1], [0], [1]]),
        (3, [0, 1], [[0, 1]] * 3),  # one would have a core for itself and learn twice as much
        (2, [0, 1, 2], [[0, 1, 2]] * 2),
    ],
)
def test_workers_keep_to_cores_of_their_own_where_they_come_out_even(num_here, cores, expected):
    assert [list(devices.cores_of_worker(place, num_here, cores)) for place in range(num_here)] == expected


def test_all_threads_of_a_process_keep_to_its_cores():
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("there is one core")
    program = (
        "import os, threading; from async_dqn.system import devices; ended = threading.Event()\n"
        "threading.Thread(target=ended.wait, daemon=True).start()\n"
        f"devices.keep_to_cores(1, {len(cores)})\n"
        "threading.Thread(target=ended.wait, daemon=True).start()\n"
        "print([sorted(os.sched_getaffinity(int(t))) for t in os.listdir('/proc/self/task')])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    threads = ast.literal_eval(found.stdout)
    assert len(threads) >= 3
    assert all(of_one == [cores[1]] for of_one in threads)


@pytest.mark.parametrize(
    ("fraction", "growth", "expected"),
    [(0.0, True, (0.0, True)), (0.0, False, (0.0, False)), (0.5, True, (0.5, False))],
)
def test_a_fixed_share_of_memory_excludes_growth(fraction, growth, expected):
    options = devices.gpu_options(Config(gpu_memory_fraction=fraction, gpu_memory_growth=growth))
    assert (options.per_process_gpu_memory_fraction, options.allow_growth) == expected


@pytest.mark.parametrize("said", [[], ["[N/A]"]])
def test_a_share_of_memory_that_is_not_known_is_refused(said, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(devices, "_nvidia_smi", lambda *arguments: said)
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: ["GPU:0"])
    for kind in ("intra", "inter"):  # which cannot be set again
        monkeypatch.setattr(f"tensorflow.config.threading.set_{kind}_op_parallelism_threads", lambda number: None)
    with pytest.raises(UserError, match=r"--gpu_memory_fraction=0.5: nvidia-smi does not say how much memory"):
        devices.configure_eager(Config(gpu_memory_fraction=0.5), 1)


@pytest.mark.parametrize(
    ("cuda", "gpus", "outcome"), [("-1", "auto", ""), ("0", "auto", "warning"), ("0", "0", "error")]
)
def test_a_card_that_tensorflow_does_not_see_is_said(cuda, gpus, outcome, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", cuda)
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: [])
    said = []
    if outcome == "error":
        with pytest.raises(UserError, match="--gpus=0: TensorFlow sees no GPU.*; or give none"):
            devices.check_gpu(Config(gpus=gpus), said.append)
    else:
        devices.check_gpu(Config(gpus=gpus), said.append)
    assert [line.partition(":")[0] for line in said] == ["warning"] * (outcome == "warning")


def test_a_card_that_tensorflow_sees_needs_no_word(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: ["GPU:0"])
    devices.check_gpu(Config(gpus="0"), pytest.fail)


@pytest.mark.parametrize("setting", ["auto", "float32", "bfloat16"])
@pytest.mark.parametrize("flags", [["avx2"], ["avx2", "avx512_bf16"]])
def test_what_is_computed_in_is_left_to_the_processor_with_auto_alone_and_said(monkeypatch, setting, flags):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setattr(devices.processor, "flags", lambda: flags)
    made_for = "bfloat16" if "avx512_bf16" in flags else "float32"
    assert devices.decided(Config(), is_small=True) == Config(compute_dtype="float32")
    config = devices.decided(Config(compute_dtype=setting), is_small=False)
    assert config == Config(compute_dtype=made_for if setting == "auto" else setting)
    said = []
    devices.say_dtype(config, said.append)
    assert said[0].startswith(f"computing in {config.compute_dtype}")
    assert ("float32 is faster here" in said[0]) == (setting == "bfloat16" and made_for == "float32")
