"""Segments of a replay: what comes back of whole and of damaged files, into rings of the same and of other sizes."""

import errno
import hashlib
import io
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from file_helpers import names
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_log_helpers import (
    DEADLINE,
    RUN,
    Player,
    assert_same,
    everything,
    make,
    make_log,
    no_fsync,
    restored,
    saved,
    settle,
)

from async_dqn.data import replay_segments
from async_dqn.data.replay_segments import remove, restore


@pytest.fixture(autouse=True, scope="module")
def _no_fsync():
    with no_fsync():
        yield


def test_the_restored_replay_is_bit_identical_and_stays_so(tmp_path):
    player = saved(tmp_path)
    replay, found = restored([tmp_path])
    assert list(found.added) == list(player.replay.added)
    assert_same(replay, player.replay)
    other = Player(replay)
    other.episode, other.step = player.episode, player.step
    for each in (player, other):
        each.rng = np.random.default_rng(5)
        each.play(70)
    replay.check_valid()
    assert_same(replay, player.replay)


def test_a_missing_or_an_empty_folder_holds_nothing(tmp_path):
    replay, found = restored([tmp_path / "missing", tmp_path])
    assert (found.num_slots, found.faults, found.segments, len(replay)) == (0, [], (), 0)


def test_one_log_of_another_replaces_what_the_replay_held_and_is_written_anew(tmp_path):
    player = saved(tmp_path / "other")
    replay = make()
    Player(replay, world=9, seed=4).play(60)
    found = restore(replay, [tmp_path / "own", tmp_path / "other"], run_id=RUN)
    assert_same(replay, player.replay)
    log = make_log(tmp_path / "own", replay, after=found, replaces=[tmp_path / "other"])
    assert log.flush(DEADLINE)
    assert_same(restored([tmp_path / "own"])[0], player.replay)
    assert names(tmp_path) == ["own"]


def test_the_truncated_end_of_a_life_wins_over_what_was_saved_before(tmp_path):
    player = saved(tmp_path, steps=30)
    for _ in range(3):  # each life ends before anything is added
        replay, found = restored([tmp_path])
        assert found.added is not None
        replay.truncate()
        log = make_log(tmp_path, replay, after=found)
        assert log.flush(DEADLINE)
        log.close()
    player.replay.truncate()
    assert_same(restored([tmp_path])[0], player.replay)


def test_a_life_whose_first_segment_is_lost_does_not_join_the_one_before(tmp_path):
    player = saved(tmp_path, steps=30)
    replay, found = restored([tmp_path])
    replay.truncate()
    player.begin_anew(replay)
    log = make_log(tmp_path, replay, after=found)
    assert log.flush(DEADLINE)  # only the truncated slots again
    overriding = tmp_path / names(tmp_path)[-1]
    player.play(3, log, lambda: settle(log))
    assert log.flush(DEADLINE)
    overriding.unlink()
    merged, found = restored([tmp_path])
    assert found.added is None and merged.num_slots == replay.num_slots


def assert_can_go_on(directory, replay, found, **sizes):
    """What is played after a restore is saved, and all can be restored exactly."""
    replay.truncate()
    log = make_log(directory, replay, after=found)
    Player(replay, world=2).play(20, log, lambda: settle(log))
    assert log.flush(DEADLINE)
    log.close()
    again, found = restored([directory], **sizes)
    assert found.added is not None and all("cannot be used" in fault for fault in found.faults)
    assert_same(again, replay)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    old=st.fixed_dictionaries(dict(num_envs=st.integers(1, 4), slots=st.integers(12, 40), stack=st.integers(1, 4))),
    new=st.fixed_dictionaries(dict(num_envs=st.integers(1, 4), slots=st.integers(12, 60), stack=st.integers(1, 4))),
    steps=st.integers(1, 90),
    segment=st.integers(4, 30),
)
def test_a_replay_of_other_sizes_takes_what_it_has_room_for(old, new, steps, segment):
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        player = saved(directory, steps=steps, segment=segment, **old)
        replay, found = restored([directory], **new)
        assert found.faults == []
        assert (found.added is not None) == (old == new)
        held = np.zeros(new["num_envs"], int)
        np.add.at(held, np.arange(old["num_envs"]) % new["num_envs"], np.minimum(player.replay.added, old["slots"]))
        filled = np.minimum(replay.added, new["slots"])  # a log may go back a little further than the ring
        assert (filled >= np.minimum(held, new["slots"])).all()
        for env in range(old["num_envs"] if old["num_envs"] <= new["num_envs"] else 0):
            newest = [t for t in everything(player.replay) if t[0][-1][1] == env + 1]
            assert not newest or newest[-1][0][-1] in {t[0][-1] for t in everything(replay)}
        assert_can_go_on(directory, replay, found, **new)


@pytest.mark.parametrize("slots", [30, 200])
def test_the_logs_of_others_are_taken_over(tmp_path, slots):
    folders = [tmp_path / name for name in ("own", "other", "third")]
    for world, folder in enumerate(folders, start=1):
        saved(folder, world=world, seed=world, num_envs=world)
    replay, found = restored([*folders, tmp_path / "missing"], slots=slots)
    assert found.added is None and found.segments == () and found.faults == []
    worlds = {transition[0][-1][0] for transition in everything(replay)}
    assert worlds == {1, 2, 3}
    log = make_log(folders[0], replay, after=found, replaces=folders[1:])
    assert log.flush(DEADLINE)
    assert not folders[1].exists() and not folders[2].exists()
    again, found = restored([folders[0]], slots=slots)
    assert found.added is not None
    assert_same(again, replay)
    log.close()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (dict(run_id=5), "of another run"),
        (dict(shape=(5,)), "with observations (4,) int32, not (5,) int32"),
        (dict(dtype=np.int64), "with observations (4,) int32, not (4,) int64"),
    ],
    ids=str,
)
def test_another_run_and_other_observations_are_named_and_ignored(tmp_path, other, words):
    saved(tmp_path, steps=20)
    _, found = restored([tmp_path], **other)
    assert found.faults == [f"replay {tmp_path}: ignored {len(names(tmp_path))} segments {words}"]
    assert found.num_slots == 0 and found.added is None


def test_remove_takes_only_what_is_its_own(tmp_path):
    saved(tmp_path)
    (tmp_path / ".000000000001.segment.999999999.tmp").write_bytes(b"")
    (tmp_path / "kept").write_bytes(b"")
    remove(tmp_path)
    assert names(tmp_path) == ["kept"]
    (tmp_path / "kept").unlink()
    remove(tmp_path)
    assert not tmp_path.exists()
    remove(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A log of several segments, one of which overrides the end of the one before."""
    directory = tmp_path_factory.mktemp("whole")
    player = saved(directory, steps=40, segment=20)
    replay, found = restored([directory])
    replay.truncate()
    player.begin_anew(replay)
    log = make_log(directory, replay, segment=20, after=found)
    player.play(9, log, lambda: settle(log))
    assert log.flush(DEADLINE)
    log.close()
    return directory


_DAMAGE = st.one_of(
    st.none(),
    st.none(),
    st.tuples(st.sampled_from(["cut", "flip", "insert"]), st.floats(0, 1, exclude_max=True), st.integers(0, 7)),
    st.sampled_from(["gone", "garbage", "folder"]),
)


def spoil(path, damage):
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "garbage":
        path.write_bytes(b"PK\x03\x04 and more")
    elif damage != "gone":
        kind, where, bit = damage
        offset = int(where * len(content))
        if kind == "cut":
            del content[offset:]
        elif kind == "flip":
            content[offset] ^= 1 << bit
        else:
            content.insert(offset, bit)
        path.write_bytes(content)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(damages=st.lists(_DAMAGE, min_size=12, max_size=12), slots=st.sampled_from([40, 40, 25]))
def test_damaged_files_cost_only_what_they_held(whole, damages, slots):
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(shutil.copytree(whole, Path(folder) / "log"))
        expected_faults = 0
        files = sorted(directory.iterdir())
        assert len(files) <= len(damages)
        for path, damage in zip(files, damages, strict=False):
            if damage is not None:
                spoil(path, damage)
                expected_faults += damage != "gone"
        replay, found = restored([directory], slots=slots)
        assert len(found.faults) == expected_faults
        if all(damage is None for damage in damages[: len(files)]):
            assert (found.added is not None) == (slots == 40)
        assert_can_go_on(directory, replay, found, slots=slots)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (dict(shape=np.array([{}])), "allow_pickle"),
        (dict(), "not a file in the archive"),
        (dict(shape=np.array([4]), dtype=np.array("no type")), "no type"),
    ],
    ids=["pickle", "empty", "dtype"],
)
def test_a_foreign_file_under_a_right_checksum_is_named(tmp_path, arrays, words):
    content = io.BytesIO()
    np.savez(content, **arrays)
    digest = hashlib.sha256(content.getvalue()).digest()
    path = tmp_path / "000000000003.segment"
    path.write_bytes(replay_segments._MAGIC + digest + content.getvalue())
    (fault,) = restored([tmp_path])[1].faults
    assert str(path) in fault and words in fault


def test_a_file_that_goes_bad_while_it_is_restored_is_left_out(tmp_path, monkeypatch):
    saved(tmp_path, steps=15)
    bad = sorted(tmp_path.iterdir())[1]
    opened = []

    def open_once(path, really=replay_segments._open):
        opened.append(path)
        if path == bad and opened.count(bad) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return really(path)

    monkeypatch.setattr(replay_segments, "_open", open_once)
    _, found = restored([tmp_path])
    assert len(found.faults) == 1 and "Input/output error" in found.faults[0]
    assert found.added is None and found.num_slots > 10


def test_segments_may_be_missing(tmp_path):
    player = saved(tmp_path, steps=20)
    oldest, *_, second_newest, newest = sorted(tmp_path.iterdir())
    newest.unlink()
    second_newest.unlink()
    replay, found = restored([tmp_path])
    assert found.added is not None and found.faults == []
    assert set(everything(replay)) < set(everything(player.replay))
    oldest.unlink()  # the rest is numbered anew
    rest, found = restored([tmp_path])
    assert found.added is None and found.segments == ()
    assert 0 < rest.num_slots < replay.num_slots


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "log").write_bytes(b"")
    _, found = restored([tmp_path / "log"])
    assert found.faults == [f"replay {tmp_path / 'log'} cannot be listed: Not a directory"]
