"""Files that are replaced whole, whatever happens meanwhile."""

import os

import pytest
from file_helpers import dead_process, names

from async_dqn.base import files


def test_a_write_that_fails_leaves_the_old_content_and_no_other_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write_atomically(path, b"old")

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_writing_a_file_removes_what_a_dead_process_left_of_the_same(tmp_path):
    dead = dead_process()
    for name in (f".summary.json.{dead}.tmp", f".summaryxjson.{dead}.tmp"):
        (tmp_path / name).touch()
    files.write_atomically(tmp_path / "summary.json", b"{}")
    assert names(tmp_path) == [f".summaryxjson.{dead}.tmp", "summary.json"]


def test_a_reader_beside_a_writer_sees_the_old_or_the_new(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write_atomically(path, b"old")
    seen = []
    replace = os.replace

    def look(*arguments):
        seen.append(path.read_bytes())
        replace(*arguments)
        seen.append(path.read_bytes())

    monkeypatch.setattr(os, "replace", look)
    files.write_atomically(path, b"new")
    assert seen == [b"old", b"new"]
