"""Tests of async_dqn.run.saver: what it says of what could not be written, and how long it waits."""

import shutil
import threading

import numpy as np
import pytest

from async_dqn.run import checkpoints, saver
from async_dqn.run.directory import RunDirectory
from async_dqn.settings.config import Config

ARRAYS = {"store/q/online": np.float32([1, 2])}


@pytest.fixture
def make(tmp_path):
    """A saver, and what it said."""
    run, said = RunDirectory(tmp_path / "run"), []
    run.path.mkdir()
    return run, saver.Saver(run, 2, said.append), said


def test_the_end_waits_for_the_last_checkpoint_and_no_longer_than_its_deadline(make, monkeypatch):
    run, saves, said = make
    writes, may_write = threading.Event(), threading.Event()

    def slow(*arguments, **options):
        writes.set()
        may_write.wait(60)

    monkeypatch.setattr(checkpoints, "save", slow)
    monkeypatch.setattr(saver, "_DEADLINE", 0.1)
    saves.save(5, ARRAYS, {}, {"exit_reason": "finished"})
    assert writes.wait(10) and saves.is_busy
    unsaved = saves.finish()
    assert "not on disk after" in unsaved and said == []  # whoever ends the run says it
    may_write.set()
    saves._writing.result(10)
    assert run.exit_reason() == "finished"


@pytest.mark.parametrize("reason", ["running", "finished"])
def test_a_summary_that_cannot_be_written_is_said_and_the_checkpoint_is_there(make, reason):
    run, saves, said = make
    run.summary.mkdir()  # nothing can take its place
    saves.save(5, ARRAYS, {}, {"exit_reason": reason})
    assert "the summary could not be written" in saves.finish()
    assert [line[:27] for line in said] == (["could not write the summary"] if reason == "running" else [])
    found, _ = checkpoints.load_newest(run.checkpoints)
    np.testing.assert_array_equal(found.arrays["store/q/online"], ARRAYS["store/q/online"])


@pytest.mark.parametrize("reason", ["interrupted", "failed: a reason"])
def test_the_summary_tells_how_a_run_ended_that_could_not_be_saved(make, monkeypatch, reason):
    run, saves, said = make

    def fail(*arguments, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoints, "save", fail)
    saves.save(5, ARRAYS, {}, {"exit_reason": reason})
    unsaved = saves.finish()
    assert unsaved == "the checkpoint could not be saved: No space left on device"
    assert run.exit_reason() == f"failed: {reason.removeprefix('failed: ')}, but {unsaved}" and said == []


def test_the_best_mean_is_that_of_the_networks_that_were_saved(make):
    _, saves, _ = make
    assert saves.best_mean() == -np.inf
    saves.save_best(7, ARRAYS, 12.5)
    saves._writing_best.result(10)
    assert saves.best_mean() == 12.5 and not saves.is_busy_with_best
    assert saves.finish() == ""


@pytest.mark.parametrize("is_followed", [False, True])
def test_nothing_is_written_where_the_folder_is_that_of_the_run_no_more(tmp_path, is_followed):
    run, said = RunDirectory(tmp_path / "run"), []
    run.path.mkdir()
    run.write_config(Config(), 5)
    saves = saver.Saver(run, 2, said.append)
    shutil.rmtree(run.path)
    if is_followed:  # by another run in a folder of this name
        run.path.mkdir()
        run.write_config(Config(), 6)
    left = sorted(tmp_path.rglob("*"))
    saves.save_best(7, ARRAYS, 12.5)
    for reason in ("running", "finished"):
        saves.save(5, ARRAYS, {}, {"exit_reason": reason})
    unsaved = saves.finish()
    assert unsaved == f"{run.path} is not the folder of this run any more, so nothing is saved there"
    assert said == [f"warning: {unsaved}"]
    assert sorted(tmp_path.rglob("*")) == left
