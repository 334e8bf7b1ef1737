"""What is known of the processor, and what follows from it."""

import platform
from pathlib import Path

import pytest

from async_dqn.system import processor


def test_the_processor_is_what_the_system_says_of_the_first_core(monkeypatch):
    cores = ["processor\t: 0\nmodel name\t: Fast (R) 3\nflags\t\t: fma avx2", "processor\t: 1\nmodel name\t: Slow"]
    monkeypatch.setattr(Path, "read_text", lambda path: "\n\n".join(cores))
    assert processor.info() == {"processor": "0", "model name": "Fast (R) 3", "flags": "fma avx2"}
    assert processor.name() == "Fast (R) 3"


def test_without_its_file_the_processor_is_the_machine_s_kind(monkeypatch):
    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert processor.info() == {}
    assert processor.name() == platform.machine()


def test_processors_of_the_same_name_are_told_apart(monkeypatch):
    text = "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: Fast\nstepping\t: 1\nflags\t: avx2 fma"
    monkeypatch.setattr(Path, "read_text", lambda path: text)
    assert processor.model() == "family 25, model 17, stepping 1"
    assert processor.flags() == ["avx2", "fma"]


@pytest.mark.parametrize(
    ("flags", "on_gpu", "dtype"),
    [
        (["avx2", "avx512f"], False, "float32"),
        (["avx512f", "avx512_bf16"], False, "bfloat16"),
        (["amx_bf16", "amx_tile"], False, "bfloat16"),
        (["avx512_bf16", "amx_bf16"], True, "float32"),
        ([], False, "float32"),
    ],
)
def test_bfloat16_is_best_where_the_processor_has_instructions_for_it(flags, on_gpu, dtype):
    assert processor.best_dtype(flags, on_gpu=on_gpu) == dtype
