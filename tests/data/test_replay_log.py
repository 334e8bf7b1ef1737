"""The log of a replay: what is on disk after stops and kills, and writing beside training on a disk that may fail."""

import errno
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from cluster_helpers import wait_until
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

from async_dqn.data import replay_log, replay_segments


def wait_until_flushed(log):
    """An attempt that began before what was wrong was put right may still fail."""
    wait_until(lambda: log.flush(DEADLINE), DEADLINE, "all is saved")


@pytest.fixture(autouse=True, scope="module")
def _no_fsync():
    with no_fsync():
        yield


class Disk:
    """Stands before `write_atomically`: counts, fails on demand, and waits while it is blocked."""

    def __init__(self, monkeypatch):
        self.write = replay_log.write_atomically
        self.error: Exception | None = None
        self.is_free, self.is_reached = threading.Event(), threading.Event()
        self.is_free.set()
        self.attempts = 0
        monkeypatch.setattr(replay_log, "write_atomically", self)

    def __call__(self, path, content):
        self.attempts += 1
        self.is_reached.set()
        assert self.is_free.wait(DEADLINE)
        if self.error:
            raise self.error
        self.write(path, content)

    def wait_for_failure(self, log, count):
        with log._changed:
            assert log._changed.wait_for(lambda: log._failures >= count, DEADLINE)


class Clock:
    """Time that passes only in `sleep`."""

    def __init__(self):
        self.now, self.slept = 1000.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@st.composite
def lives(draw):
    """Sizes of a replay, and what happens to it and its process."""
    stack, n_step = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    slots = stack + n_step + 2 + draw(st.integers(0, 30))
    sizes = dict(num_envs=draw(st.integers(1, 3)), slots=slots, stack=stack, n_step=n_step)
    events = st.one_of(st.integers(1, 40), st.sampled_from(["kill", "stop", "flush", "go on"]))
    return sizes, draw(st.integers(1, 30)), draw(st.sampled_from([0.02, 0.2, 0.7])), draw(st.lists(events, max_size=10))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(lives())
def test_a_log_survives_any_life(life):
    sizes, segment, end, events = life
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "made" / "on demand"
        player = Player(make(**sizes), end=end)
        log = make_log(directory, player.replay, segment=segment)
        for event in [*events, "kill", 5, "stop"]:
            if isinstance(event, int):
                player.play(event, log, lambda: settle(log))  # noqa: B023
                continue
            if event != "kill":
                assert log.flush(DEADLINE)
            if event == "flush":
                continue
            log.close()
            replay, found = restored([directory], **sizes)
            assert found.faults == []
            if event == "kill":
                lost = player.replay.added - replay.added
                assert (lost >= 0).all() and lost.sum() <= segment + 3 * sizes["num_envs"]  # `truncate` may change two
            else:
                assert_same(replay, player.replay)
            player.replay = replay
            if event != "go on":
                replay.truncate()
                player.begin_anew(replay)
            log = make_log(directory, replay, segment=segment, after=found)
        log.close()


def test_the_folder_does_not_grow(tmp_path):
    player = Player(make())
    log = make_log(tmp_path, player.replay, segment=8)
    most = 0
    for _ in range(100):
        player.play(5, log, lambda: settle(log))
        most = max(most, len(names(tmp_path)))
        assert restored([tmp_path])[1].added is not None
    assert most <= 80 // 8 + 2


@pytest.mark.parametrize("last", [0, 30])
def test_the_folder_does_not_grow_where_an_environment_does_not_act(tmp_path, last):
    replay = make()
    log = make_log(tmp_path, replay, segment=8)
    most = 0
    for step in range(1, 401):
        envs = np.arange(2 if step <= last else 1)
        now, then = (np.array([[1, env + 1, 1, one] for env in envs], np.int32) for one in (step, step + 1))
        steps, goes_on = np.full(len(envs), step), np.zeros(len(envs), bool)
        replay.add(now, steps % 5, steps, goes_on, goes_on, then, envs)
        log.append()
        settle(log)
        most = max(most, len(names(tmp_path)))
    log.close()
    assert most <= 2 * 80 // 8 + 2
    found = restored([tmp_path])[0]
    assert found.num_slots >= 40 - 8 and found.added[0] > 0


def test_a_resumed_log_does_not_grow_either_where_an_environment_does_not_act(tmp_path):
    saved(tmp_path, segment=8)
    replay, found = restored([tmp_path])
    assert found.added is not None
    log = make_log(tmp_path, replay, segment=8, after=found)
    most = 0
    for step in range(400):
        now = np.full((1, 4), step, np.int32)
        replay.add(now, *np.zeros((2, 1)), *np.zeros((2, 1), bool), now, np.array([0]))
        log.append()
        settle(log)
        most = max(most, len(names(tmp_path)))
    log.close()
    assert most <= 2 * 80 // 8 + 2


def test_a_kill_between_any_two_changes_of_the_folder_costs_no_more_than_a_segment(tmp_path, monkeypatch):
    player = Player(make())
    log = make_log(tmp_path, player.replay)
    lost = []

    def then_killed(change):
        def changed(*arguments):
            result = change(*arguments)
            found = restored([tmp_path])[1]
            assert found.added is not None and found.faults == []
            lost.append((player.replay.added - found.added).sum())
            return result

        return changed

    monkeypatch.setattr(replay_log, "write_atomically", then_killed(replay_log.write_atomically))
    monkeypatch.setattr(replay_segments, "unlink", then_killed(replay_segments.unlink))
    player.play(120, log, lambda: settle(log))
    assert len(lost) > 50 and max(lost) <= 6
    log.close()


def test_nothing_is_written_of_an_empty_replay(tmp_path):
    log = make_log(tmp_path / "log", make())
    log.append()
    assert log.flush(DEADLINE)
    assert not (tmp_path / "log").exists()
    log.close()


def test_a_small_replay_is_saved_long_before_its_ring_is_full(tmp_path):
    player = Player(make())
    log = make_log(tmp_path, player.replay, segment_bytes=32e6)
    player.play(10, log, lambda: settle(log))
    assert restored([tmp_path])[0].num_slots >= 20 - 10
    log.close()


def test_what_is_replaced_stays_until_all_of_it_is_saved(tmp_path, monkeypatch):
    own, other = tmp_path / "own", tmp_path / "other"
    saved(own)
    saved(other, world=2)
    replay, found = restored([own, other], slots=150)
    everything_held = found.num_slots
    disk = Disk(monkeypatch)
    log = make_log(own, replay, after=found, replaces=[other], segment=20)
    seen = []
    write = disk.write

    def look(path, content):
        write(path, content)
        seen.append(restored([own, other], slots=150)[1].num_slots)

    disk.write = look
    Player(replay, world=3).play(30, log, lambda: settle(log))
    assert log.flush(DEADLINE)
    log.close()
    assert len(seen) > 5 and min(seen) >= everything_held
    assert not other.exists() and restored([own], slots=150)[1].added is not None


@pytest.mark.parametrize("run_id", [RUN, 5])
def test_a_new_run_removes_the_log_of_an_old_one(tmp_path, run_id):
    saved(tmp_path)
    player = Player(make())
    log = make_log(tmp_path, player.replay, run_id=run_id, segment=10)
    player.play(3)
    assert log.flush(DEADLINE)
    assert len(names(tmp_path)) == 1
    assert_same(restored([tmp_path], run_id=run_id)[0], player.replay)


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    player = saved(tmp_path)
    before = names(tmp_path)
    (tmp_path / ".000000000099.segment.999999999.tmp").write_bytes(b"half")
    (tmp_path / "notes").write_bytes(b"")
    _, found = restored([tmp_path])
    log = make_log(tmp_path, player.replay, after=found)
    assert names(tmp_path) == sorted([*before, "notes"])
    log.close()


def test_a_blocked_disk_neither_blocks_training_nor_takes_memory(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    disk.is_free.clear()
    player = Player(make(slots=100))
    log = make_log(tmp_path, player.replay)
    player.play(90, log, lambda: 0)
    assert disk.is_reached.wait(DEADLINE)
    assert len(log._waiting) == 2 and disk.attempts == 1
    assert not log.flush(0.01)
    disk.is_free.set()
    player.play(1, log)
    assert log.flush(DEADLINE)
    assert_same(restored([tmp_path], slots=100)[0], player.replay)


def test_slots_that_were_overwritten_before_they_were_saved_leave_a_gap(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    player = Player(make())
    log = make_log(tmp_path, player.replay)
    player.play(20, log, lambda: settle(log))
    disk.is_free.clear()
    player.play(200, log)
    disk.is_free.set()
    player.play(3, log, lambda: settle(log))
    assert log.flush(DEADLINE)
    replay, found = restored([tmp_path])
    assert found.added is None and found.faults == []
    assert replay.num_slots == 80  # half from before the gap
    assert found.segments == () and len(names(tmp_path)) < 24
    newest = max(transition[0][-1] for transition in everything(player.replay))
    assert newest in {transition[0][-1] for transition in everything(replay)}
    player.play(40, log, lambda: settle(log))
    assert log.flush(DEADLINE)
    assert_same(restored([tmp_path])[0], player.replay)


def test_a_full_disk_is_told_once_a_minute_and_recovered_from(tmp_path, monkeypatch):
    disk, clock, tries = Disk(monkeypatch), Clock(), threading.Semaphore(0)
    lines: list[str] = []

    def pause(seconds):
        clock.now += seconds
        assert tries.acquire(timeout=DEADLINE)

    player = Player(make(slots=400))
    log = make_log(tmp_path, player.replay, warn=lines.append, clock=clock, sleep=pause)
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    player.play(20, log)
    for attempt in range(1, 14):  # at 0, 10, ... 120 seconds
        disk.wait_for_failure(log, attempt)
        player.play(3, log)
        assert disk.attempts == attempt  # not again at once
        tries.release()
    assert len(lines) == 3 and "\n" not in lines[0]
    assert str(tmp_path) in lines[0] and "No space left on device" in lines[0]
    disk.error = None
    tries.release(1_000)
    player.play(5, log, lambda: settle(log))
    assert log.flush(DEADLINE)
    assert_same(restored([tmp_path], slots=400)[0], player.replay)
    log.close()


def test_a_folder_that_cannot_be_made_is_told_and_made_later(tmp_path):
    (tmp_path / "run").write_bytes(b"in the way")
    lines: list[str] = []
    player = Player(make())
    log = make_log(tmp_path / "run" / "log", player.replay, warn=lines.append)
    player.play(10, log)
    assert not log.flush(DEADLINE)
    assert len(lines) == 1
    (tmp_path / "run").unlink()
    wait_until_flushed(log)
    assert_same(restored([tmp_path / "run" / "log"])[0], player.replay)


def test_whatever_goes_wrong_in_the_writing_thread_and_its_warning_training_goes_on(tmp_path, monkeypatch):
    lines: list[str] = []

    def warn(line):
        lines.append(line)
        raise ValueError("the terminal is gone")

    disk = Disk(monkeypatch)
    player = Player(make())
    log = make_log(tmp_path, player.replay, warn=warn)
    disk.error = MemoryError()
    player.play(10, log)
    disk.wait_for_failure(log, 1)
    disk.error = None
    wait_until_flushed(log)
    assert len(lines) == 1 and "MemoryError" in lines[0]
    log.close()


def test_writing_keeps_to_the_rate_and_does_not_make_up_for_time_without_writing(tmp_path):
    clock = Clock()
    player = Player(make(slots=400), end=0)
    rate = 10 * player.replay.slot_bytes  # ten slots a second
    log = make_log(tmp_path, player.replay, segment=20, clock=clock, sleep=clock.sleep, bytes_per_second=rate)
    player.play(12, log)  # the newest two slots of each environment may change yet
    settle(log)
    assert clock.slept == []  # the first segment is due at once
    player.play(10, log, lambda: settle(log))
    assert clock.slept == [2.0]
    clock.now += 1000
    player.play(30, log, lambda: settle(log))
    assert clock.slept == [2.0] * 3
    log.close()


def test_a_flush_wakes_a_writer_that_keeps_to_its_rate(tmp_path):
    player = Player(make())
    log = make_log(tmp_path, player.replay, bytes_per_second=1e-3)
    player.play(30, log)
    assert log.flush(DEADLINE)
    assert_same(restored([tmp_path])[0], player.replay)
    log.close()


def test_a_closed_log_writes_no_more(tmp_path):
    player = Player(make())
    log = make_log(tmp_path, player.replay)
    player.play(5, log, lambda: settle(log))
    before = names(tmp_path)
    log.close()
    player.play(50, log)
    assert not log.flush(0.01)
    assert names(tmp_path) == before


def test_a_step_that_is_taken_back_just_after_a_segment_was_written_is_taken_back_on_disk_too(tmp_path):
    for steps in range(8, 16):
        player = Player(make(num_envs=1), end=0, seed=steps)
        log = make_log(tmp_path / str(steps), player.replay, segment=5)
        player.play(steps, log, lambda: settle(log))  # noqa: B023
        player.replay.truncate(np.array([0]))
        player.begin_anew(player.replay)
        player.play(12, log, lambda: settle(log))  # noqa: B023
        log.close()
        replay, found = restored([tmp_path / str(steps)], num_envs=1)
        assert found.num_slots >= steps
        assert everything(replay) == everything(player.replay)[: len(replay)]
