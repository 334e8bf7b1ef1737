"""Replays that are played, saved and restored, and the check that each transition was really played."""

import contextlib
import os

import numpy as np
import pytest

from async_dqn.data.replay import Replay
from async_dqn.data.replay_log import ReplayLog
from async_dqn.data.replay_segments import restore

RUN = 2**62 + 1
DEADLINE = 30.0


@contextlib.contextmanager
def no_fsync():
    """Thousands of small files: it is processes that die here, not machines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def make(*, num_envs=2, slots=40, stack=3, n_step=2, shape=(4,), dtype=np.int32):
    return Replay(
        num_envs=num_envs,
        capacity=num_envs * slots,
        observation_shape=shape,
        observation_dtype=dtype,
        stack=stack,
        n_step=n_step,
        discount=0.5,  # exact in binary
    )


class Player:
    """Plays environments whose observation is (world, environment, episode, step); even episodes terminate."""

    def __init__(self, replay, *, world=1, seed=0, end=0.15):
        self.replay, self.world, self.end = replay, world, end
        self.rng = np.random.default_rng(seed)
        self.episode, self.step = np.ones((2, replay.num_envs), int)

    def observe(self, step):
        envs = np.arange(1, self.replay.num_envs + 1)
        return np.stack([np.full(len(envs), self.world), envs, self.episode, step], axis=1).astype(np.int32)

    def play(self, steps, log=None, each=lambda: None):
        for _ in range(steps):
            ends, even = self.rng.random(self.replay.num_envs) < self.end, self.episode % 2 == 0
            now, then = self.observe(self.step), self.observe(self.step + 1)
            self.replay.add(now, self.step % 5, self.step, ends & even, ends & ~even, then)
            self.episode, self.step = self.episode + ends, np.where(ends, 1, self.step + 1)
            if log:
                log.append()
            each()

    def begin_anew(self, replay):
        """Goes on with a restored replay after its environments were reset."""
        self.replay = replay
        self.episode, self.step = self.episode + 1, np.ones_like(self.step)


def make_log(directory, replay, *, segment=6, warn=pytest.fail, **options):
    return ReplayLog(
        directory,
        replay,
        **dict(run_id=RUN, warn=warn, bytes_per_second=1e12, segment_bytes=segment * replay.slot_bytes) | options,
    )


def settle(log):
    """Waits until nothing is left to write of what was copied out."""
    with log._changed:
        assert log._changed.wait_for(lambda: not log._waiting, DEADLINE)


def saved(directory, *, steps=100, segment=6, world=1, seed=0, **sizes):
    """A player whose replay is all on disk."""
    player = Player(make(**sizes), world=world, seed=seed)
    log = make_log(directory, player.replay, segment=segment)
    player.play(steps, log, lambda: settle(log))
    assert log.flush(DEADLINE)
    log.close()
    return player


def restored(directories, run_id=RUN, **sizes):
    """A new replay filled from logs, and what `restore` said; checked as a whole."""
    replay = make(**sizes)
    found = restore(replay, directories, run_id=run_id)
    check(replay)
    assert found.num_slots == replay.num_slots
    assert found.added is None or (found.added == replay.added).all()
    for fault in found.faults:
        assert "\n" not in fault and "/" in fault
    return replay, found


def check(replay):
    """Every transition that can be sampled is one that was played."""
    replay.check_valid()
    for s_tm1, a_tm1, r_t, discount_t, s_t in everything(replay):
        first, length = s_tm1[-1], s_t[-1][3] - s_tm1[-1][3]
        assert length >= 1 and s_t[-1][:3] == first[:3]
        for stacked in (s_tm1, s_t):
            world, env, episode, step = stacked[-1]
            before = [(world, env, episode, step - back) for back in range(len(stacked) - 1, -1, -1)]
            frames = [frame for frame in stacked if any(frame)]
            assert frames == before[len(stacked) - len(frames) :]
            assert not any(any(frame) for frame in stacked[: len(stacked) - len(frames)])
        assert a_tm1 == first[3] % 5
        assert r_t == sum(0.5**k * (first[3] + k) for k in range(length))
        assert discount_t == 0.5**length or (discount_t == 0 and first[2] % 2 == 0)


def everything(replay):
    """All transitions, oldest first: (s_tm1, a_tm1, r_t, discount_t, s_t), stacks as tuples."""
    batch = replay.gather(*replay.valid_starts(), replay.make_batch(len(replay)))
    return [
        (tuple(map(tuple, s_tm1.tolist())), int(a), float(r), float(d), tuple(map(tuple, s_t.tolist())))
        for s_tm1, a, r, d, s_t in zip(*batch, strict=True)
    ]


def assert_same(replay, other):
    assert (replay.added == other.added).all()
    assert everything(replay) == everything(other)
    if len(replay):
        first, second = (each.sample(50, np.random.default_rng(7)) for each in (replay, other))
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a, b)
