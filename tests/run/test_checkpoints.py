"""Checkpoints: what comes back, what a fault does, how many are kept."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from file_helpers import dead_process, names
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.base import files
from async_dqn.run import checkpoints

ARRAYS: dict[str, np.ndarray] = {
    "store/q/online": np.arange(5, dtype=np.float32),
    "store/counter/env_steps": np.int64(2**40),
    "slot/q/m": np.zeros((2, 0), np.float64),
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


def test_round_trip(tmp_path):
    path = save(tmp_path / "made" / "on demand", 1_000, marker=3.0)
    assert names(path.parent) == ["000000001000.json", "000000001000.npz"]
    checkpoint = checkpoints.load(path.parent, 1_000)
    assert checkpoint.number == 1_000
    assert checkpoint.values == VALUES
    assert checkpoint.arrays.keys() == ARRAYS.keys() | {"marker"}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(checkpoint.arrays[name], array)
        assert checkpoint.arrays[name].dtype == array.dtype
        assert checkpoint.arrays[name].shape == array.shape


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


def put(path, make):
    """Puts something else in place of a file."""
    path.unlink()
    make()


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
        (".json", describe(sha256=None), "checksum does not match"),
        (".json", describe(format=True), "format True"),
        (".json", describe(format="9" * 1000), "format '999"),
        (".json", describe(number=10), "saved as number 10"),
        (".json", describe(number="x\ny"), "saved as number 'x"),
        (".json", describe(values=[]), '"values" are []'),
        (".json", describe(values={"wall_seconds": float("nan")}), "NaN"),
        (".json", describe(values={"wall_seconds": float("-inf")}), "-Infinity"),
        (".json", lambda path: path.write_text('{"format": 1, "values": {"x": 1e999}}'), ""),
        (".json", lambda path: path.write_text("[" * 100_000), ""),
        (".json", lambda path: path.write_text('{"format":' * 100_000), ""),
        (".json", lambda path: path.write_text("9" * 10_000), ""),
        (".json", lambda path: path.write_bytes(b"\0" * 1000), ""),
        (".json", lambda path: os.truncate(path, 2**26 + 1), "larger than 67,108,864 bytes"),
        (".json", lambda path: put(path, path.mkdir), "Is a directory"),
        (".npz", lambda path: put(path, path.mkdir), "Is a directory"),
        (".json", lambda path: put(path, lambda: os.mkfifo(path)), "not a regular file"),
        (".npz", lambda path: put(path, lambda: os.mkfifo(path)), "not a regular file"),
        (".json", lambda path: put(path, lambda: path.symlink_to("nowhere")), "No such file"),
        (".npz", lambda path: put(path, lambda: path.symlink_to("nowhere")), "No such file"),
        (".json", lambda path: put(path, lambda: path.symlink_to(path.name)), "symbolic link"),
        (".json", lambda path: put(path, lambda: path.symlink_to("/dev/zero")), "not a regular file"),
        (".npz", lambda path: put(path, lambda: path.symlink_to("/dev/zero")), "not a regular file"),
        (".json", Path.unlink, "No such file"),
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
    assert faults[0].isprintable()
    assert len(faults[0]) < 600


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


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_flipped_bit_in_the_arrays_is_recognised(two_saved, data):
    content = bytearray((two_saved / "000000000020.npz").read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    newest, faults = load_newest_with(two_saved, "000000000020.npz", bytes(content))
    assert (newest.number, len(faults)) == (10, 1)


@settings(deadline=None, max_examples=40)
@given(suffix=st.sampled_from([".npz", ".json"]), share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_anywhere_is_recognised(two_saved, suffix, share):
    content = (two_saved / f"000000000020{suffix}").read_bytes()
    newest, faults = load_newest_with(two_saved, f"000000000020{suffix}", content[: int(share * len(content))])
    assert (newest.number, len(faults)) == (10, 1)


@settings(deadline=None, max_examples=40)
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


def forge(directory, packed):
    """A checkpoint 20 with these arrays, whose checksum is right."""
    path = save(directory, 20)
    described = json.loads(path.read_text())
    values = json.dumps(described["values"], sort_keys=True).encode()
    path.write_text(json.dumps(described | {"sha256": hashlib.sha256(packed + values).hexdigest()}))
    path.with_suffix(".npz").write_bytes(packed)


def savez(save=np.savez, **arrays):
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def zipped(*members, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def header(shape, descr="<f8", content=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": descr})
    return file.getvalue() + content


class Harmful:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (savez(x=np.array([Harmful()], dtype=object)), "allow_pickle=False"),
        (zipped(("x.npy", b"cos\nmkdir\n(S'harm'\ntR.")), "magic"),
        (b"no zip at all", "not a zip file"),
        (b"", "not a zip file"),
        (savez(np.savez_compressed, x=np.zeros(2**20)), "claim to be larger than the file"),
        (savez(np.savez_compressed, x=np.arange(3)), "'x.npy', which save does not write"),
        (zipped(("notes.txt", b"hello")), "'notes.txt', which save does not write"),
        (zipped(("x.npy", header((10**14,)))), ""),
        (zipped(("x.npy", header((2**40, 2**40)))), ""),
        (zipped(("x.npy", header((10**30,)))), ""),
        (zipped(("x.npy", header((-1, -4), content=bytes(32)))), ""),
        (zipped(("x.npy", header((2,), "<f8", bytes(8)))), "expected 16 bytes got 8"),
        (zipped(("x.npy", header((1,), "|O", bytes(8)))), "allow_pickle=False"),
        (zipped(("x.npy", b"\x93NUMPY\x01\0\xff\xff" + b"(" * 65535)), ""),
        (zipped(("x.npy", b"\x93NUMPY\x09\0\x10\0" + b" " * 16)), ""),
        (zipped(("x.npy", b"")), ""),
    ],
)
def test_harmful_arrays_are_refused_although_their_checksum_is_right(tmp_path, monkeypatch, packed, words):
    monkeypatch.chdir(tmp_path)
    save(tmp_path, 10, marker=10)
    forge(tmp_path, packed)
    newest, faults = load_newest(tmp_path)
    assert newest.number == 10
    assert words in faults[0]
    assert not (tmp_path / "harm").exists()


def test_a_name_twice_is_refused(tmp_path):
    packed = zipped(("x.npy", header((), content=bytes(8))), ("y.npy", header((), content=bytes(8))))
    forge(tmp_path, packed.replace(b"y.npy", b"x.npy"))
    with pytest.raises(ValueError, match="'x.npy', which save does not write"):
        checkpoints.load(tmp_path, 20)


def test_a_zip_that_claims_more_than_the_file_has_is_refused(tmp_path):
    forge(tmp_path, zipped(*((f"{index}.npy", header((), content=bytes(8))) for index in range(3))))
    content = bytearray((tmp_path / "000000000020.npz").read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (2**30).to_bytes(4, "little")  # the size once unpacked
    forge(tmp_path, bytes(content))
    with pytest.raises(ValueError, match="claim to be larger than the file"):
        checkpoints.load(tmp_path, 20)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_json_has_not_is_refused_before_anything_is_written(tmp_path, value):
    with pytest.raises((ValueError, TypeError)):
        checkpoints.save(tmp_path / "new", 10, ARRAYS, {"x": value}, keep=3)
    with pytest.raises(ValueError, match="'x' holds objects"):
        checkpoints.save(tmp_path / "new", 10, {"x": np.array([value], dtype=object)}, {}, keep=3)
    assert names(tmp_path) == []


def test_all_kinds_of_arrays_come_back_and_numpy_reads_them(tmp_path):
    arrays = {
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "every second": np.arange(2_000_000)[::2],  # more than one buffer
        "records": np.array([(1, 2.5)], dtype=[("count", "<i4"), ("mean", "<f8")]),
        "text": np.array(["a", "\u00e9"]),
        "swapped": np.arange(3, dtype=">i4"),
    }
    path = checkpoints.save(tmp_path, 10, arrays, {}, keep=1)
    loaded = checkpoints.load(tmp_path, 10).arrays
    assert loaded.keys() == arrays.keys()
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as read:
        for name, array in arrays.items():
            assert loaded[name].dtype == read[name].dtype == array.dtype
            np.testing.assert_array_equal(loaded[name], array)
            np.testing.assert_array_equal(read[name], array)


def test_what_np_savez_wrote_is_read(tmp_path):
    forge(tmp_path, savez(**ARRAYS))
    assert checkpoints.load(tmp_path, 20).arrays.keys() == ARRAYS.keys()


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    for name in ("notes.json", "best.npz", "README"):
        (tmp_path / name).write_text("{}")
    for number in (10, 20, 30):
        save(tmp_path, number, keep=1)
    assert names(tmp_path) == ["000000000030.json", "000000000030.npz", "README", "best.npz", "notes.json"]
    assert load_newest(tmp_path)[0].number == 30


def test_names_that_only_look_like_numbers_are_no_checkpoints(tmp_path):
    for stem in ("\u00b2", "\u0661" * 12, "5", "0000000000005", "-00000000005", "000000000005 ", "1" * 200):
        for suffix in (".json", ".npz"):
            (tmp_path / f"{stem}{suffix}").touch()
    assert checkpoints.numbers(tmp_path) == [int("1" * 200)]
    newest, faults = checkpoints.load_newest(tmp_path)
    assert (newest, len(faults)) == (None, 1)
    save(tmp_path, 10)
    assert load_newest(tmp_path)[0].number == 10


def test_arrays_alone_are_a_fault_but_no_checkpoint(tmp_path):
    save(tmp_path, 10)
    save(tmp_path, 20).unlink()
    assert checkpoints.numbers(tmp_path) == [10]
    newest, faults = load_newest(tmp_path)
    assert (newest.number, len(faults)) == (10, 1)
    assert "000000000020.json cannot be used: " in faults[0]


def test_one_that_has_taken_the_place_of_those_listed_is_found(tmp_path, monkeypatch):
    save(tmp_path, 10, keep=1)
    load = checkpoints.load

    def replaced(directory, number):
        monkeypatch.setattr(checkpoints, "load", load)
        save(tmp_path, 20, keep=1)  # a run that goes on, between a look at the folder and one at the file
        return load(directory, number)

    monkeypatch.setattr(checkpoints, "load", replaced)
    assert load_newest(tmp_path)[0].number == 20


def test_a_folder_that_cannot_be_listed_is_a_fault(tmp_path, monkeypatch):
    def fail(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", fail)
    assert checkpoints.load_newest(tmp_path) == (None, [f"checkpoints {tmp_path} cannot be listed: Permission denied"])


def test_broken_ones_do_not_take_the_place_of_good_ones(tmp_path):
    for number in (10, 20, 30, 40):
        save(tmp_path, number, keep=9)
    (tmp_path / "000000000030.npz").unlink()
    (tmp_path / "000000000040.json").unlink()
    save(tmp_path, 50, keep=3)
    assert checkpoints.numbers(tmp_path) == [10, 20, 50]
    assert len(names(tmp_path)) == 6


def test_later_numbers_go_once_a_resumed_run_has_saved(tmp_path):
    save(tmp_path, 10)
    empty(save(tmp_path, 30))
    save(tmp_path, 20)
    assert checkpoints.numbers(tmp_path) == [10, 20]


def test_what_cannot_be_removed_does_not_fail_the_save(tmp_path):
    for suffix in (".json", ".npz"):
        (tmp_path / f"000000000010{suffix}").mkdir()
    save(tmp_path, 20, keep=1)
    assert load_newest(tmp_path)[0].number == 20


def test_only_temporary_files_of_dead_processes_are_removed(tmp_path):
    dead, alive = dead_process(), os.getppid()
    left = [
        f".000000000010.json.{alive}.tmp",
        f".000000000010.npz.{dead}.tmp.old",
        f".notes.json.{dead}.tmp",
        f"000000000010.npz.{dead}.tmp",
        ".000000000010.npz.tmp",
    ]
    for name in (*left, f".000000000010.json.{dead}.tmp", f".000000000010.npz.{dead}.tmp"):
        (tmp_path / name).touch()
    (tmp_path / f".000000000030.npz.{os.getpid()}.tmp").touch()  # of one that had this process's number before
    path = save(tmp_path, 20)
    assert names(tmp_path) == sorted([*left, path.name, path.with_suffix(".npz").name])


@pytest.mark.parametrize("suffix", [".json", ".npz"])
@pytest.mark.parametrize("number", [20, 10], ids=["another number", "the same number"])
def test_one_that_does_not_read_back_is_a_failed_save(tmp_path, monkeypatch, suffix, number):
    save(tmp_path, 5, marker=5, keep=2)
    save(tmp_path, 10, marker=10, keep=2)
    sync = os.fsync

    def spoil(descriptor):
        sync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if f"{suffix}." in path.name:
            with open(path, "r+b") as file:
                file.seek(100)
                file.write(b"\xff")

    monkeypatch.setattr(os, "fsync", spoil)
    before = names(tmp_path)
    with pytest.raises(OSError, match="does not read back as it was written"):
        save(tmp_path, number, marker=99, keep=1)
    assert names(tmp_path) == before
    newest, faults = load_newest(tmp_path)
    assert (newest.number, float(newest.arrays["marker"]), faults) == (10, 10.0, [])


def test_file_system_that_cannot_sync_folders_will_do(tmp_path, monkeypatch):
    sync = os.fsync
    codes = iter([22, 22, 5])  # EINVAL: it cannot; EIO: it failed

    def refuse(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(next(codes), "refused")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    save(tmp_path, 10)
    files.write_atomically(tmp_path / "file", b"")
    with pytest.raises(OSError, match="Errno 5"):
        save(tmp_path, 20, keep=1)
    assert 10 in checkpoints.numbers(tmp_path)  # what is not known to last takes nothing's place


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


_PRELUDE = """
import errno, os, resource, sys
from pathlib import Path
import numpy as np
from async_dqn.run import checkpoints
directory = Path(sys.argv[1])

def save(number, marker, size=1000, keep=1):
    arrays = {"marker": np.array(marker), "x": np.random.default_rng(0).random(size, np.float32)}
    checkpoints.save(directory, number, arrays, {"note": "y" * 20_000}, keep=keep)
"""

# Kills a process at its n-th call to the system, for every n until it lives.
_CRASHES = """
import shutil
save(20, 1)
original = directory
calls = {name: getattr(os, name) for name in ("replace", "fsync", "unlink", "open")}
write = checkpoints._Hashing.write

def crash_at(count):
    def counted(function):
        def call(*args, **kwargs):
            nonlocal count
            count -= 1
            if count < 0:
                os._exit(7)
            return function(*args, **kwargs)
        return call
    for name, function in calls.items():
        setattr(os, name, counted(function))
    checkpoints._Hashing.write = counted(write)

for count in range(200):
    directory = Path(f"{original}-{count}")
    shutil.copytree(original, directory)
    child = os.fork()
    if not child:
        crash_at(count)
        save(int(sys.argv[2]), 2)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 7), code
    if not code:
        break
print(count)
"""

# Saves that fail for want of space and some that do not, in turn.
_FULL = """
from async_dqn.run import checkpoints
save(10, 10)
outcomes = set()
for index, size in enumerate(range(1_000, 260_000, 9_000)):
    number = int(sys.argv[2]) or 20 + index
    before, (newest, _) = sorted(os.listdir(directory)), checkpoints.load_newest(directory)
    try:
        save(number, index, size)
    except OSError as error:
        assert error.errno == getattr(errno, sys.argv[3]), error
        assert sorted(os.listdir(directory)) == before
        again, faults = checkpoints.load_newest(directory)
        assert (again.number, again.arrays["marker"], faults) == (newest.number, newest.arrays["marker"], [])
        outcomes.add("failed")
    else:
        assert checkpoints.load_newest(directory)[0].arrays["marker"] == index
        assert len(os.listdir(directory)) == 2
        outcomes.add("saved")
print(sorted(outcomes))
"""


def run_script(script, *arguments, prefix=()):
    command = [*prefix, sys.executable, "-c", _PRELUDE + script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("number", [30, 20], ids=["another number", "the same number"])
def test_a_process_killed_at_any_moment_leaves_the_old_or_the_new(tmp_path, number):
    count = int(run_script(_CRASHES, tmp_path / "run", number))
    assert count > 15
    seen = set()
    for index in range(count + 1):
        directory = tmp_path / f"run-{index}"
        newest, faults = load_newest(directory)
        assert (newest.number, int(newest.arrays["marker"])) in [(20, 1), (number, 2)]
        assert len(faults) <= 1
        seen.add(int(newest.arrays["marker"]))
        save(directory, 40, keep=1)  # a next save leaves nothing of it behind
        assert names(directory) == ["000000000040.json", "000000000040.npz"]
    assert seen == {1, 2}


@pytest.mark.parametrize("number", [0, 10], ids=["another number", "the same number"])
def test_a_limit_on_the_size_of_files_leaves_those_before(tmp_path, number):
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))\n"
    assert run_script(limit + _FULL, tmp_path, number, "EFBIG") == "['failed', 'saved']"


@pytest.mark.parametrize("number", [0, 10], ids=["another number", "the same number"])
def test_a_full_disk_leaves_those_before(tmp_path, number):
    mount = f"mount -t tmpfs -o size=1m tmpfs '{tmp_path}' && exec \"$@\""
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    try:
        able = subprocess.run([*prefix, "true"], capture_output=True, timeout=60).returncode == 0
    except OSError:
        able = False
    if not able:
        pytest.skip("no file system can be mounted here")
    assert run_script(_FULL, tmp_path, number, "ENOSPC", prefix=prefix) == "['failed', 'saved']"
