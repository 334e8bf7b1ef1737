"""The replay against arithmetic by hand, and against a slow model that keeps every episode whole."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_log_helpers import everything

from async_dqn.data.replay import Replay, Slots, required_bytes

GAMMA = 0.9


def make(*, num_envs=1, slots=20, shape=(3,), dtype=np.int32, stack=1, n_step=1, discount=GAMMA):
    return Replay(
        num_envs=num_envs,
        capacity=num_envs * slots,
        observation_shape=shape,
        observation_dtype=dtype,
        stack=stack,
        n_step=n_step,
        discount=discount,
    )


class Feeder:
    """Plays environments whose observation is (environment, episode, step), each counted from 1."""

    def __init__(self, replay: Replay, num_envs: int = 1):
        self.replay = replay
        self.num_envs = num_envs
        self.episode, self.step = np.ones((2, num_envs), int)

    def observe(self, step: np.ndarray) -> np.ndarray:
        return np.stack([np.arange(1, self.num_envs + 1), self.episode, step], axis=1).astype(np.int32)

    def add(self, reward, terminated=False, truncated=False, action=0):
        ones = np.ones(self.num_envs, int)
        terminated, truncated = terminated & (ones == 1), truncated & (ones == 1)
        self.replay.add(
            self.observe(self.step),
            action * ones,
            reward * ones,
            terminated,
            truncated,
            self.observe(self.step + 1),
        )
        self.replay.check_valid()
        ended = terminated | truncated
        self.episode = self.episode + ended
        self.step = np.where(ended, 1, self.step + 1)

    def truncate(self) -> None:
        self.replay.truncate()
        self.replay.check_valid()
        self.episode, self.step = self.episode + 1, np.ones(self.num_envs, int)


def copied(replay: Replay, target: Replay, pieces: int = 1) -> Replay:
    """`target`, empty and of the same sizes, with all that `replay` holds, moved in so many pieces."""
    oldest = np.maximum(replay.added - replay.slots_per_env, 0)
    first = oldest
    for piece in range(1, pieces + 1):
        stop, slots = replay.read(first, np.maximum(first, oldest + piece * (replay.added - oldest) // pieces))
        ends = np.cumsum(stop - first)
        for env, (begin, end) in enumerate(zip(ends - stop + first, ends, strict=True)):
            if not target.added[env] and begin < end:
                target.begin_at(env, first[env], slots.age[begin])
            if begin < end:
                target.extend(env, Slots(*(array[begin:end] for array in slots)))
        first = stop
    np.testing.assert_array_equal(first, replay.added)
    return target


def check(replay: Replay, expected: list[tuple]) -> None:
    """Compare with (s_tm1, r_t, discount_t, s_t); a stack is written [(episode, step), ...]."""
    found = everything(replay)
    stacks = [([f[1:] for f in s_tm1], [f[1:] for f in s_t]) for s_tm1, _, _, _, s_t in found]
    assert stacks == [(s_tm1, s_t) for s_tm1, _, _, s_t in expected]
    np.testing.assert_allclose([f[2:4] for f in found], [e[1:3] for e in expected], rtol=1e-6)


# Each seam of an n-step window, by hand. An observation is (episode, step).


def test_a_full_window():
    feeder = Feeder(make(n_step=3))
    for reward in (1, 2, 3, 4):
        feeder.add(reward)
    check(feeder.replay, [([(1, 1)], 1 + 0.9 * 2 + 0.9**2 * 3, 0.9**3, [(1, 4)])])


def test_termination_inside_the_window():
    feeder = Feeder(make(n_step=3))
    feeder.add(1)
    feeder.add(2, terminated=True)
    feeder.add(100)
    check(feeder.replay, [([(1, 1)], 1 + 0.9 * 2, 0, [(1, 3)]), ([(1, 2)], 2, 0, [(1, 3)])])


def test_truncation_inside_the_window_bootstraps_from_the_final_observation():
    feeder = Feeder(make(n_step=3))
    feeder.add(1)
    feeder.add(2, truncated=True)
    feeder.add(100)
    check(feeder.replay, [([(1, 1)], 1 + 0.9 * 2, 0.9**2, [(1, 3)]), ([(1, 2)], 2, 0.9, [(1, 3)])])


def test_termination_wins_over_truncation():
    feeder = Feeder(make())
    feeder.add(1, terminated=True, truncated=True)
    check(feeder.replay, [([(1, 1)], 1, 0, [(1, 2)])])


@pytest.mark.parametrize(("terminated", "discounts"), [(True, (0, 0)), (False, (0.9**2, 0.9))])
def test_a_window_that_ends_exactly_at_the_end(terminated, discounts):
    feeder = Feeder(make(n_step=2))
    feeder.add(1)
    feeder.add(2, terminated=terminated, truncated=not terminated)
    check(
        feeder.replay,
        [([(1, 1)], 1 + 0.9 * 2, discounts[0], [(1, 3)]), ([(1, 2)], 2, discounts[1], [(1, 3)])],
    )


def test_a_window_that_wraps_around_the_ring():
    feeder = Feeder(make(slots=6, n_step=3))
    for reward in (1, 2, 3, 4, 5, 6, 7, 8):  # slots 6 and 7 overwrite 0 and 1
        feeder.add(reward)
    check(
        feeder.replay,
        [
            ([(1, 3)], 3 + 0.9 * 4 + 0.9**2 * 5, 0.9**3, [(1, 6)]),
            ([(1, 4)], 4 + 0.9 * 5 + 0.9**2 * 6, 0.9**3, [(1, 7)]),
            ([(1, 5)], 5 + 0.9 * 6 + 0.9**2 * 7, 0.9**3, [(1, 8)]),
        ],
    )


def test_a_stack_that_wraps_and_history_that_is_overwritten():
    feeder = Feeder(make(slots=6, stack=3))
    for reward in (1, 2, 3, 4, 5, 6, 7, 8):  # steps 3 ... 8 are left, and 3 and 4 lack frames
        feeder.add(reward)
    check(
        feeder.replay,
        [
            ([(1, 3), (1, 4), (1, 5)], 5, 0.9, [(1, 4), (1, 5), (1, 6)]),
            ([(1, 4), (1, 5), (1, 6)], 6, 0.9, [(1, 5), (1, 6), (1, 7)]),
            ([(1, 5), (1, 6), (1, 7)], 7, 0.9, [(1, 6), (1, 7), (1, 8)]),
        ],
    )


def test_the_start_of_an_episode_needs_no_history_even_as_the_oldest_slot():
    feeder = Feeder(make(slots=6, stack=3))
    feeder.add(1, terminated=True)  # two slots, both overwritten below
    for reward in (2, 3, 4, 5, 6, 7):
        feeder.add(reward)
    first, second = everything(feeder.replay)[:2]
    assert first[0] == ((0, 0, 0), (0, 0, 0), (1, 2, 1)) and first[4] == ((0, 0, 0), (1, 2, 1), (1, 2, 2))
    assert second[0] == ((0, 0, 0), (1, 2, 1), (1, 2, 2))


def test_an_episode_shorter_than_n():
    feeder = Feeder(make(n_step=4))
    feeder.add(1)
    feeder.add(2, truncated=True)
    feeder.add(3)
    feeder.add(4, terminated=True)
    check(
        feeder.replay,
        [
            ([(1, 1)], 1 + 0.9 * 2, 0.9**2, [(1, 3)]),
            ([(1, 2)], 2, 0.9, [(1, 3)]),
            ([(2, 1)], 3 + 0.9 * 4, 0, [(2, 3)]),
            ([(2, 2)], 4, 0, [(2, 3)]),
        ],
    )


def test_episodes_of_length_one():
    feeder = Feeder(make(stack=2, n_step=3))
    feeder.add(1, terminated=True)
    feeder.add(2, truncated=True)
    check(
        feeder.replay,
        [([(0, 0), (1, 1)], 1, 0, [(1, 1), (1, 2)]), ([(0, 0), (2, 1)], 2, 0.9, [(2, 1), (2, 2)])],
    )


def test_truncate_bootstraps_from_the_newest_observation():
    feeder = Feeder(make(n_step=3))
    feeder.add(1)
    feeder.add(2)
    feeder.add(100)  # where this action led is never seen
    feeder.truncate()
    feeder.add(3, terminated=True)
    feeder.truncate()  # nothing is unfinished
    check(
        feeder.replay,
        [
            ([(1, 1)], 1 + 0.9 * 2, 0.9**2, [(1, 3)]),
            ([(1, 2)], 2, 0.9, [(1, 3)]),
            ([(2, 1)], 3, 0, [(2, 2)]),
        ],
    )


# The model.


@dataclass
class Episode:
    first_slot: int
    observations: list[tuple]  # one more than the actions once it has ended
    actions: list[tuple] = field(default_factory=list)  # (action, reward)
    ended: bool = False
    terminated: bool = False


class Model:
    """One environment's replay in plain Python: keeps all episodes and asks what a ring would still hold."""

    def __init__(self, slots: int, stack: int, n_step: int, discount: float):
        self.slots, self.stack, self.n_step, self.discount = slots, stack, n_step, discount
        self.episodes: list[Episode] = []
        self.added = 0

    def add(self, observation, action, reward, terminated, truncated, next_observation):
        if not self.episodes or self.episodes[-1].ended:
            self.episodes.append(Episode(self.added, []))
        episode = self.episodes[-1]
        episode.observations.append(observation)
        episode.actions.append((action, reward))
        self.added += 1
        if terminated or truncated:
            episode.ended, episode.terminated = True, terminated
            episode.observations.append(next_observation)
            self.added += 1

    def truncate(self) -> None:
        if self.episodes and not self.episodes[-1].ended:
            self.episodes[-1].actions.pop()
            self.episodes[-1].ended = True

    def stacked(self, episode: Episode, step: int) -> tuple:
        zeros = tuple(0 for _ in episode.observations[0])
        steps = range(step - self.stack + 1, step + 1)
        return tuple(episode.observations[i] if i >= 0 else zeros for i in steps)

    def transitions(self) -> list[tuple]:
        found = []
        for episode in self.episodes:
            for step, (action, _) in enumerate(episode.actions):
                oldest_needed = episode.first_slot + max(0, step - self.stack + 1)
                if oldest_needed < self.added - self.slots:
                    continue
                if episode.ended:
                    arrival = min(step + self.n_step, len(episode.observations) - 1)
                elif step + self.n_step < len(episode.observations):
                    arrival = step + self.n_step
                else:
                    continue
                reward = sum(self.discount**k * r for k, (_, r) in enumerate(episode.actions[step:arrival]))
                terminated = episode.terminated and arrival == len(episode.observations) - 1
                discount = 0.0 if terminated else self.discount ** (arrival - step)
                found.append((self.stacked(episode, step), action, reward, discount, self.stacked(episode, arrival)))
        return found


@st.composite
def histories(draw):
    """Sizes of a replay, and what happens to it: steps of all environments, truncations and restarts."""
    num_envs, stack, n_step = (draw(st.integers(1, high)) for high in (3, 4, 4))
    slots = stack + n_step + 2 + draw(st.integers(0, 6))
    outcome = st.sampled_from(["on"] * draw(st.sampled_from([1, 4, 20])) + ["terminated", "truncated", "both"])
    step = st.tuples(
        st.lists(outcome, min_size=num_envs, max_size=num_envs),
        st.lists(st.integers(-3, 3), min_size=num_envs, max_size=num_envs),
    )
    other = st.sampled_from(["truncate", "restart"])
    event = st.one_of(step, step, step, step, step, other)
    length = draw(st.sampled_from([3, slots, 3 * slots]))  # left to itself a list hardly ever fills the ring
    return num_envs, stack, n_step, slots, draw(st.lists(event, min_size=length, max_size=length))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(histories())
def test_holds_exactly_what_the_model_holds(history):
    num_envs, stack, n_step, slots, events = history
    sizes = dict(num_envs=num_envs, slots=slots, stack=stack, n_step=n_step, discount=0.5)  # exact in binary
    feeder = Feeder(make(**sizes), num_envs)
    models = [Model(slots, stack, n_step, 0.5) for _ in range(num_envs)]
    for number, event in enumerate(events):
        if event == "truncate":
            feeder.truncate()
            for model in models:
                model.truncate()
        elif event == "restart":
            feeder.replay = copied(feeder.replay, make(**sizes))
            feeder.replay.check_valid()
        else:
            outcomes, reward = event
            terminated = np.isin(outcomes, ["terminated", "both"])
            truncated = np.isin(outcomes, ["truncated", "both"])
            now, then = feeder.observe(feeder.step).tolist(), feeder.observe(feeder.step + 1).tolist()
            for i, model in enumerate(models):
                ends = bool(terminated[i]), bool(truncated[i])
                model.add(tuple(now[i]), number, reward[i], *ends, tuple(then[i]))
            feeder.add(np.array(reward), terminated, truncated, action=number)
        expected = [transition for model in models for transition in model.transitions()]
        assert everything(feeder.replay) == expected
        assert len(feeder.replay) == len(expected)


# Sampling.


def played(*, steps=200, seed=0, end=0.1, **sizes):
    """A replay after random episodes."""
    num_envs = sizes.get("num_envs", 1)
    rng = np.random.default_rng(seed)
    feeder = Feeder(make(**sizes), num_envs)
    for step in range(steps):
        terminated, truncated = rng.random((2, num_envs)) < end / 2
        feeder.add(rng.integers(-1, 2, num_envs), terminated, truncated, action=step)
    return feeder


@pytest.mark.parametrize("steps", [12, 200])  # rings of different lengths; full rings
def test_samples_all_valid_starts_equally_often(steps):
    replay = played(steps=steps, num_envs=3, slots=30, stack=3, n_step=2, end=0.4).replay
    valid = everything(replay)
    batch = replay.sample(400 * len(valid), np.random.default_rng(1))
    counts = Counter((tuple(s_tm1[-1].tolist()), int(a)) for s_tm1, a in zip(batch.s_tm1, batch.a_tm1, strict=True))
    assert counts.keys() == {(s_tm1[-1], a) for s_tm1, a, *_ in valid}
    chi_square = sum((count - 400) ** 2 / 400 for count in counts.values())
    freedom = len(valid) - 1
    assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5


def test_a_draw_is_independent_of_its_place_in_the_batch():
    replay = played(slots=12, stack=2, n_step=2, end=0.6).replay
    rng = np.random.default_rng(2)
    firsts, lasts = zip(*(replay.sample(8, rng).a_tm1[[0, -1]] for _ in range(4000)), strict=True)
    expected = 4000 / len(replay)
    for drawn in (firsts, lasts):
        chi_square = sum((count - expected) ** 2 / expected for count in Counter(drawn).values())
        assert chi_square < len(replay) - 1 + 4 * (2 * len(replay)) ** 0.5


def test_stacks_never_mix_episodes_or_environments():
    batch = played(num_envs=4, slots=40, stack=4, n_step=3, end=0.2).replay.sample(2000, np.random.default_rng(3))
    for stacks in (batch.s_tm1, batch.s_t):
        newest = stacks[:, -1]
        back = np.arange(4)[::-1]
        expected = np.repeat(newest[:, None], 4, axis=1)
        expected[..., 2] -= back
        expected[expected[..., 2] < 1] = 0  # steps count from 1
        np.testing.assert_array_equal(stacks, expected)
    np.testing.assert_array_equal(batch.s_tm1[:, -1, :2], batch.s_t[:, -1, :2])
    steps = batch.s_t[:, -1, 2] - batch.s_tm1[:, -1, 2]
    assert steps.min() == 1 and steps.max() == 3


def test_the_same_seed_draws_the_same_minibatch():
    replay = played().replay
    first, second = (replay.sample(32, np.random.default_rng(4)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_out_is_filled_and_returned():
    replay = played(stack=3, n_step=2).replay
    out = replay.make_batch(16)
    fresh = replay.sample(16, np.random.default_rng(5))
    assert replay.sample(16, np.random.default_rng(5), out=out) is out
    for a, b in zip(fresh, out, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("shape", "dtype"), [((84, 84), np.uint8), ((4,), np.float32), ((), np.float32)], ids=str)
def test_minibatches_have_the_stored_shape_and_type(shape, dtype):
    replay = make(num_envs=2, shape=shape, dtype=dtype, stack=4, n_step=2)
    rng = np.random.default_rng(6)
    observations = (255 * rng.random((11, 2, *shape))).astype(dtype)
    no, action, reward = np.zeros(2, bool), np.array([3, 4]), np.array([0.5, -0.5])
    for now, then in zip(observations[:-1], observations[1:], strict=True):
        replay.add(now, action, reward, no, no, then)
        replay.check_valid()
    batch = replay.sample(5, rng)
    assert [a.dtype for a in batch] == [dtype, np.int32, np.float32, np.float32, dtype]
    assert [a.shape for a in batch] == [(5, 4, *shape), (5,), (5,), (5,), (5, 4, *shape)]
    env, index = np.array([1]), np.array([6])
    batch = replay.gather(env, index, replay.make_batch(1))
    np.testing.assert_array_equal(batch.s_tm1[0], observations[3:7, 1])
    np.testing.assert_array_equal(batch.s_t[0], observations[5:9, 1])
    assert batch.a_tm1[0] == 4 and batch.r_t[0] == pytest.approx(-0.5 + 0.9 * -0.5)


def test_an_empty_replay_or_one_without_a_whole_window_refuses_to_sample():
    feeder = Feeder(make(stack=2, n_step=3))
    with pytest.raises(ValueError, match="none of 0 slots"):
        feeder.replay.sample(4, np.random.default_rng(0))
    for _ in range(3):
        feeder.add(1)
    assert len(feeder.replay) == 0
    with pytest.raises(ValueError, match="none of 3 slots is a valid start with stack 2 and n_step 3"):
        feeder.replay.sample(4, np.random.default_rng(0))
    feeder.add(1)
    assert len(feeder.replay) == 1
    assert feeder.replay.sample(4, np.random.default_rng(0)).s_tm1.shape == (4, 2, 3)


# Slots read and put back.


@pytest.mark.parametrize("pieces", [1, 2, 7])
@pytest.mark.parametrize("steps", [0, 1, 5, 200])
def test_a_copy_continues_identically(steps, pieces):
    sizes = dict(num_envs=2, slots=20, stack=3, n_step=2)
    feeder = played(steps=steps, **sizes)
    copy = played(steps=300, seed=9, **sizes)  # holds something else
    copy.replay.clear()
    copied(feeder.replay, copy.replay, pieces)
    copy.replay.check_valid()
    assert copy.replay.num_slots == feeder.replay.num_slots
    copy.episode, copy.step = feeder.episode, feeder.step
    for step in range(60):
        assert everything(copy.replay) == everything(feeder.replay)
        for each in (feeder, copy):
            each.add(1, terminated=np.array([step % 7 == 0, step % 4 == 0]))
    if len(copy.replay):
        batches = (each.replay.sample(64, np.random.default_rng(1)) for each in (feeder, copy))
        for a, b in zip(*batches, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_cleared_replay_is_like_a_new_one():
    replay = played(num_envs=2, steps=100, slots=12, stack=3).replay
    replay.clear()
    replay.check_valid()
    assert (len(replay), replay.num_slots, list(replay.added)) == (0, 0, [0, 0])
    feeder, fresh = Feeder(replay, 2), Feeder(make(num_envs=2, slots=12, stack=3), 2)
    for each in (feeder, fresh):
        for step in range(20):
            each.add(step, truncated=step % 6 == 4)
    assert everything(feeder.replay) == everything(fresh.replay)


def test_a_read_never_parts_the_end_of_an_episode_from_its_final_observation():
    feeder = Feeder(make(num_envs=2), 2)
    feeder.add(1)
    feeder.add(1, terminated=np.array([True, False]))  # slots 1 and 2 of environment 0
    feeder.add(1)
    stop, slots = feeder.replay.read(np.array([0, 0]), np.array([2, 2]))
    assert stop.tolist() == [3, 2]
    assert slots.last.tolist() == [False, False, True, False, False]
    assert slots.observation.tolist() == [[1, 1, 1], [1, 1, 2], [1, 1, 3], [2, 1, 1], [2, 1, 2]]
    stop, slots = feeder.replay.read(stop, stop)
    assert stop.tolist() == [3, 2] and [len(array) for array in slots] == [0] * len(slots)


def test_what_was_read_is_a_copy():
    feeder = played(steps=50, slots=10)
    first, stop = feeder.replay.added - 5, feeder.replay.added
    _, slots = feeder.replay.read(first, stop)
    before = slots.observation.copy()
    for _ in range(20):
        feeder.add(1)
    np.testing.assert_array_equal(slots.observation, before)


@pytest.mark.parametrize("slots", [8, 9, 15, 400])
def test_a_run_goes_to_a_ring_of_any_size(slots):
    source = played(steps=200, slots=300, stack=3, n_step=2).replay
    _, run = source.read(np.array([0]), source.added)
    feeder = Feeder(make(slots=slots, stack=3, n_step=2))
    feeder.replay.extend(0, run)
    feeder.replay.check_valid()
    assert feeder.replay.added == source.added
    expected, found = everything(source), everything(feeder.replay)
    assert found == expected[len(expected) - len(found) :]
    assert slots < 300 or found == expected


def test_a_run_after_a_truncation_begins_an_episode():
    source = played(steps=20, slots=30, stack=3, end=0).replay
    _, run = source.read(np.array([10]), source.added)
    replay = make(slots=30, stack=3)
    for _ in range(2):
        replay.extend(0, run)
        replay.truncate()
        replay.check_valid()
    zero, first = (0, 0, 0), (1, 1, 11)
    found = everything(replay)
    assert len(found) == 2 * (10 - 1)
    assert found[0][0] == found[9][0] == (zero, zero, first)


def test_truncate_ends_only_the_episodes_asked_for():
    feeder = Feeder(make(num_envs=3), 3)
    for _ in range(4):
        feeder.add(1)
    feeder.replay.truncate(np.array([1]))
    feeder.replay.check_valid()
    _, slots = feeder.replay.read(feeder.replay.added - 1, feeder.replay.added)
    assert slots.last.tolist() == [False, True, False]


# Limits.


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (dict(slots=6, stack=3, n_step=2), "capacity 6 gives 6 slots .* at least 7 each, so a capacity of 7"),
        (dict(num_envs=0), "num_envs 0"),
        (dict(n_step=0), "n_step 0"),
        (dict(stack=0), "stack 0"),
        (dict(stack=256, slots=1000), "stack 256"),
        (dict(discount=1.1), "discount 1.1"),
    ],
)
def test_refuses_impossible_sizes(sizes, message):
    with pytest.raises(ValueError, match=message):
        make(**sizes)


def test_the_least_capacity_works():
    feeder = played(slots=7, stack=3, n_step=2, end=0)
    assert len(feeder.replay) == 7 - (3 - 1) - 2


def test_the_largest_stack_does_not_overflow_its_age():
    feeder = Feeder(make(slots=300, stack=255))
    for _ in range(299):
        feeder.add(1)
    assert len(feeder.replay) == 298


def test_add_refuses_what_would_be_broadcast_or_rounded():
    replay = make(num_envs=2)
    observation, per_env = np.zeros((2, 3), np.int32), np.zeros(2, bool)
    with pytest.raises(ValueError, match=r"\(3,\) int32 must be \(2, 3\) int32"):
        replay.add(observation[0], per_env, per_env, per_env, per_env, observation)
    with pytest.raises(ValueError, match=r"float32 must be \(2, 3\) int32"):
        replay.add(observation, per_env, per_env, per_env, per_env, observation.astype(np.float32))
    with pytest.raises(ValueError, match=r"must all be \(2,\)"):
        replay.add(observation, per_env, per_env[:1], per_env, per_env, observation)
    assert len(replay) == 0
    replay.check_valid()


@pytest.mark.parametrize(
    ("num_envs", "capacity", "shape", "dtype"), [(8, 1003, (84, 84), np.uint8), (3, 100, (4,), np.float32)]
)
def test_required_bytes_is_what_the_arrays_take(num_envs, capacity, shape, dtype):
    replay = Replay(
        num_envs=num_envs,
        capacity=capacity,
        observation_shape=shape,
        observation_dtype=dtype,
        stack=4,
        n_step=3,
        discount=0.99,
    )
    arrays = (*replay._slots, *replay._cursors)
    assert required_bytes(num_envs, capacity, shape, dtype) == sum(array.nbytes for array in arrays)


def test_a_million_atari_transitions_fit_in_7_3_gb():
    frame, fields = 84 * 84, 4 + 4 + 1 + 1 + 1 + 1
    assert required_bytes(1, 1_000_000, (84, 84), np.uint8) == 1_000_000 * (frame + fields) + (8 + 1)
    assert required_bytes(8, 1_000_000, (84, 84), np.uint8) <= 7.3e9
