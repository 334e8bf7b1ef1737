"""The CSV files of a run: what is written, and what is read of files that a crash or somebody else has left."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.run import csv_log
from async_dqn.run.csv_log import CsvWriter


def write_rows(path, *rows, fields=("env_steps", "loss", "note")):
    writer = CsvWriter(path, fields)
    for row in rows:
        writer.write(row)
    writer.close()
    return path.read_text().splitlines()


def test_csv_begins_with_its_fields_and_makes_its_folder(tmp_path):
    assert write_rows(tmp_path / "worker-0" / "metrics.csv") == ["env_steps,loss,note"]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (1, "1"),
        (123456789, "123456789"),
        (0.5, "0.5"),
        (1 / 3, "0.333333"),
        (1234567.0, "1.23457e+06"),
        (float("nan"), ""),
        (float("inf"), "inf"),
        (np.float64("nan"), ""),
        ("a,b", '"a,b"'),
    ],
)
def test_csv_cells(tmp_path, value, cell):
    assert write_rows(tmp_path / "m.csv", {"env_steps": 0, "loss": value, "note": "x"})[1] == f"0,{cell},x"


def test_csv_is_appended_to_and_has_one_header(tmp_path):
    path = tmp_path / "m.csv"
    write_rows(path, {"env_steps": 1, "loss": 0.5, "note": ""})
    lines = write_rows(path, {"note": "x", "loss": 0.25, "env_steps": 2})  # in any order
    assert lines == ["env_steps,loss,note", "1,0.5,", "2,0.25,x"]


def test_csv_begins_an_empty_file_with_its_header(tmp_path):
    (tmp_path / "m.csv").touch()
    assert write_rows(tmp_path / "m.csv") == ["env_steps,loss,note"]


def test_csv_rows_are_there_to_read_before_the_file_is_closed(tmp_path):
    writer = CsvWriter(tmp_path / "m.csv", ["a"])
    writer.write({"a": 1})
    assert (tmp_path / "m.csv").read_text() == "a\n1\n"
    writer.close()


def test_csv_refuses_a_field_that_it_does_not_have(tmp_path):
    with pytest.raises(ValueError, match="losss"):
        write_rows(tmp_path / "m.csv", {"losss": 1.0})


def test_csv_cuts_off_a_last_line_that_a_crash_left_half_written(tmp_path):
    (tmp_path / "m.csv").write_text("env_steps,loss,note\n1,0.5,\n2,0.2")
    lines = write_rows(tmp_path / "m.csv", {"env_steps": 3, "loss": 0.75, "note": "x"})
    assert lines == ["env_steps,loss,note", "1,0.5,", "3,0.75,x"]


def test_csv_writes_a_half_written_header_anew(tmp_path):
    (tmp_path / "m.csv").write_text("env_st")
    assert write_rows(tmp_path / "m.csv") == ["env_steps,loss,note"]
    assert [path.name for path in tmp_path.iterdir()] == ["m.csv"]


def test_csv_moves_a_file_with_other_fields_aside(tmp_path):
    for count, content in enumerate(["env_steps,loss\n1,0.5\n", "\0\0\0\n", "loss,env_steps,note\n", "\n"], start=1):
        (tmp_path / "m.csv").write_text(content + "half")
        assert write_rows(tmp_path / "m.csv", {"note": "y"}) == ["env_steps,loss,note", ",,y"]
        assert (tmp_path / f"m.{count}.csv").read_text() == content
        assert len(list(tmp_path.iterdir())) == 1 + count


def test_csv_keeps_a_row_on_one_line(tmp_path):
    note = 'a\nb\r\nc\u2028d, "e"'
    assert len(write_rows(tmp_path / "m.csv", {"note": note}, {"note": "next"})) == 3
    assert [row["note"] for row in csv_log.rows(tmp_path / "m.csv")] == ['a b c d, "e"', "next"]


def written(path, content):
    path.write_bytes(content)
    return path


def test_rows_are_those_with_all_cells(tmp_path):
    content = b'a,b\n1,2\n\n3\n4,5,6\n\0\0\0\n"7,8\n"9",10\r\n\xff,11\n12,1'
    rows = csv_log.rows(written(tmp_path / "m.csv", content))
    assert rows == [{"a": "1", "b": "2"}, {"a": "9", "b": "10"}, {"a": "\ufffd", "b": "11"}]


@pytest.mark.parametrize("last", [1, 3, 2_000])
def test_the_last_rows_are_those_of_the_whole_file(tmp_path, last):
    lines = [f"{number},{'x' * (number % 700)}" for number in range(1_500)]
    path = written(tmp_path / "m.csv", "\n".join(["a,b", *lines, "half"]).encode())
    assert csv_log.rows(path, last) == csv_log.rows(path)[-last:] != []


@pytest.mark.parametrize("content", [None, b"", b"a,b", b"a,b\n", b"\n\n"])
def test_without_rows_there_are_none_and_none_are_cut_off(tmp_path, content):
    path = tmp_path / "m.csv"
    if content is not None:
        written(path, content)
    assert csv_log.rows(path) == []
    assert csv_log.rewind(path, lambda row: False) == 0
    assert path.exists() == (content is not None)


@pytest.mark.parametrize(
    ("content", "left", "dropped"),
    [
        ("n\n1\n2\n3\n", "n\n1\n2\n3\n", 0),
        ("n\n1\n2\n3\n4\n", "n\n1\n2\n3\n", 1),
        ("n\n1\n4\n1,2\n2\n5\n", "n\n1\n2\n", 2),  # games of several workers come in any order
        ("n\n9\n", "n\n", 1),
        ("n\n1\n2", "n\n1\n", 0),  # half-written: it may have been 20
        ("n\n1\n9\n2", "n\n1\n", 1),
        ("n\n1\n\n1,2\n3\n", "n\n1\n\n1,2\n3\n", 0),  # what is no row is not judged
        ("n\n1\n1,2\n9\n1,2\n", "n\n1\n1,2\n", 1),
    ],
)
def test_rewind_takes_out_the_rows_that_are_not_kept(tmp_path, content, left, dropped):
    path = written(tmp_path / "m.csv", content.encode())
    assert csv_log.rewind(path, lambda row: int(row["n"]) <= 3) == dropped
    assert path.read_text() == left
    assert csv_log.rewind(path, lambda row: int(row["n"]) <= 3) == 0  # twice is once
    assert path.read_text() == left


@settings(deadline=None, max_examples=50, derandomize=True)
@given(content=st.binary(max_size=200) | st.text('0123456789,"\r\n\0n', max_size=60).map(str.encode))
def test_any_content_can_be_read_rewound_and_gone_on_with(content):
    with tempfile.TemporaryDirectory() as name:
        path = written(Path(name) / "m.csv", content)
        before = csv_log.rows(path)
        kept = len(before) // 2
        counted = iter(range(len(before)))
        assert csv_log.rewind(path, lambda row: next(counted) < kept) == len(before) - kept
        assert csv_log.rows(path) == before[:kept]
        assert content.startswith(path.read_bytes())
        assert write_rows(path, {"n": 1}, fields=["n"])[-1] == "1"
        assert csv_log.rows(path)[-1] == {"n": "1"}
