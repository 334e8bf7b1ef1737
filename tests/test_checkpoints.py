"""Checkpoints: what comes back, what a fault does, how many are kept."""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn import checkpoints

ARRAYS: dict[str, np.ndarray] = {
    "store/online": np.arange(5, dtype=np.float32),
    "store/counters": np.array([2**40, -1], np.int64),
    "agent/m": np.zeros((2, 0), np.float64),
    "scalar": np.array(7),
}
VALUES = {"wall_seconds": 1.5, "rng": {"state": 2**127}, "returns": [1.0, -21.0], "best": None}


def save(directory, number, *, keep=3, marker=0.0):
    return checkpoints.save(directory, number, ARRAYS | {"marker": np.array(marker)}, VALUES, keep=keep)


def load_newest(directory):
    """The newest whole checkpoint, which there is, and the faults of those passed over."""
    newest, faults = checkpoints.load_newest(directory)
    assert newest is not None
    return newest, faults


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_round_trip(tmp_path):
    path = save(tmp_path / "made" / "on demand", 1_000, marker=3.0)
    checkpoint = checkpoints.load(path.parent, 1_000)
    assert checkpoint.number == 1_000
    assert checkpoint.values == VALUES
    assert checkpoint.arrays.keys() == ARRAYS.keys() | {"marker"}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(checkpoint.arrays[name], array)
        assert checkpoint.arrays[name].dtype == array.dtype
        assert checkpoint.arrays[name].shape == array.shape


def test_only_the_two_files_are_left(tmp_path):
    path = save(tmp_path, 1_000)
    assert path == tmp_path / "000000001000.json"
    assert names(tmp_path) == ["000000001000.json", "000000001000.npz"]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path, keep):
    saved = [5, 90, 1_000, 20_000]  # in order as numbers, not as plain text
    for count, number in enumerate(saved, start=1):
        save(tmp_path, number, keep=keep)
        assert checkpoints.numbers(tmp_path) == saved[:count][-keep:]
        assert len(names(tmp_path)) == 2 * min(count, keep)


def test_saving_again_under_the_same_number_replaces(tmp_path):
    save(tmp_path, 10, marker=1.0)
    save(tmp_path, 10, marker=2.0)
    newest, faults = load_newest(tmp_path)
    assert (float(newest.arrays["marker"]), faults) == (2.0, [])


def test_the_newest_whole_one_is_loaded(tmp_path):
    for number in (10, 20, 30):
        save(tmp_path, number, marker=number)
    newest, faults = load_newest(tmp_path)
    assert (newest.number, float(newest.arrays["marker"]), faults) == (30, 30.0, [])


@pytest.mark.parametrize("exists", [False, True])
def test_without_any_there_is_none(tmp_path, exists):
    directory = tmp_path / "checkpoints"
    if exists:
        directory.mkdir()
    assert checkpoints.load_newest(directory) == (None, [])


def empty(path):
    path.write_bytes(b"")


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def extend(path):
    path.write_bytes(path.read_bytes() + b"{")


def describe(**changes):
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("suffix", "fault", "words"),
    [
        (".npz", Path.unlink, "No such file"),
        (".npz", empty, "checksum does not match"),
        (".npz", truncate, "checksum does not match"),
        (".npz", extend, "checksum does not match"),
        (".json", empty, ""),
        (".json", truncate, ""),
        (".json", extend, ""),
        (".json", lambda path: path.write_text("[]"), ""),
        (".json", lambda path: path.write_bytes(b"\xff\xfe"), ""),
        (".json", lambda path: path.write_text("{}"), "format"),
        (".json", describe(format=99), f"format 99, this version reads {checkpoints.FORMAT}"),
        (".json", describe(sha256="0" * 64), "checksum does not match"),
    ],
)
def test_a_fault_is_named_and_the_one_before_is_used(tmp_path, suffix, fault, words):
    save(tmp_path, 10, marker=10)
    fault(save(tmp_path, 20, marker=20).with_suffix(suffix))
    newest, faults = load_newest(tmp_path)
    assert (newest.number, float(newest.arrays["marker"])) == (10, 10.0)
    assert len(faults) == 1
    assert f"checkpoint {tmp_path / '000000000020.json'} cannot be used: " in faults[0]
    assert words in faults[0]


def test_every_fault_is_told_where_none_is_whole(tmp_path):
    for number in (10, 20):
        truncate(save(tmp_path, number).with_suffix(".npz"))
    newest, faults = checkpoints.load_newest(tmp_path)
    assert newest is None
    assert [f"{number:012d}.json" in fault for number, fault in zip((20, 10), faults, strict=True)] == [True, True]


@pytest.fixture(scope="module")
def two_saved():
    """A folder with checkpoints 10 and 20, for faults that are put right again."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        save(directory, 10, marker=10)
        save(directory, 20, marker=20)
        yield directory


def load_newest_with(directory, name, content):
    """The newest whole checkpoint where file `name` holds `content`."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(directory, copy, dirs_exist_ok=True)
        (Path(copy) / name).write_bytes(content)
        return load_newest(Path(copy))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_flipped_bit_in_the_arrays_is_recognised(two_saved, data):
    content = bytearray((two_saved / "000000000020.npz").read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    newest, faults = load_newest_with(two_saved, "000000000020.npz", bytes(content))
    assert (newest.number, len(faults)) == (10, 1)


@settings(deadline=None, max_examples=60)
@given(suffix=st.sampled_from([".npz", ".json"]), share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_anywhere_is_recognised(two_saved, suffix, share):
    content = (two_saved / f"000000000020{suffix}").read_bytes()
    newest, faults = load_newest_with(two_saved, f"000000000020{suffix}", content[: int(share * len(content))])
    assert (newest.number, len(faults)) == (10, 1)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_flipped_bit_in_the_json_never_raises_anything_else(two_saved, data):
    content = bytearray((two_saved / "000000000020.json").read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    newest, faults = load_newest_with(two_saved, "000000000020.json", bytes(content))
    assert (newest.number, len(faults)) in [(20, 0), (10, 1)]


def test_a_flipped_bit_in_the_plain_values_is_recognised(two_saved):
    content = (two_saved / "000000000020.json").read_bytes()
    flipped = content.replace(b'"wall_seconds": 1.5', b'"wall_seconds": 1.7')  # "5" ^ 2 == "7"
    assert flipped != content
    assert load_newest_with(two_saved, "000000000020.json", flipped)[0].number == 10


def test_arrays_of_objects_are_never_unpickled(tmp_path):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    array = np.array([Harmful()], dtype=object)
    with pytest.raises(ValueError, match="'x' holds objects"):
        checkpoints.save(tmp_path, 10, {"x": array}, {}, keep=3)
    save(tmp_path, 10)
    np.savez(tmp_path / "000000000010.npz", x=array)
    described = json.loads((tmp_path / "000000000010.json").read_text())
    content = (tmp_path / "000000000010.npz").read_bytes() + json.dumps(described["values"], sort_keys=True).encode()
    described["sha256"] = hashlib.sha256(content).hexdigest()
    (tmp_path / "000000000010.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match="cannot be used: .*allow_pickle=False"):
        checkpoints.load(tmp_path, 10)
    assert not (tmp_path / "harm").exists()


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    for name in ("notes.json", "best.npz", "README"):
        (tmp_path / name).write_text("{}")
    for number in (10, 20, 30):
        save(tmp_path, number, keep=1)
    assert names(tmp_path) == ["000000000030.json", "000000000030.npz", "README", "best.npz", "notes.json"]
    assert load_newest(tmp_path)[0].number == 30


def test_a_write_that_fails_leaves_the_old_content_and_no_other_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    checkpoints.write_atomically(path, b"old")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("fail_at", [1, 2])
def test_a_save_that_fails_leaves_those_before_it(tmp_path, monkeypatch, fail_at):
    save(tmp_path, 10, marker=10, keep=1)
    calls = []
    write = os.replace

    def fail(*arguments):
        calls.append(arguments)
        if len(calls) == fail_at:
            raise OSError(28, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 20, marker=20, keep=1)
    newest, faults = load_newest(tmp_path)
    assert (newest.number, faults) == (10, [])


def test_a_reader_beside_a_writer_sees_the_old_or_the_new(tmp_path, monkeypatch):
    path = tmp_path / "file"
    checkpoints.write_atomically(path, b"old")
    seen = []
    replace = os.replace

    def look(*arguments):
        seen.append(path.read_bytes())
        replace(*arguments)
        seen.append(path.read_bytes())

    monkeypatch.setattr(os, "replace", look)
    checkpoints.write_atomically(path, b"new")
    assert seen == [b"old", b"new"]
