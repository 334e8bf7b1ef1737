"""Rollouts: what is drawn of them, and what follows a step at the end of an episode or of the rollout."""

from typing import NamedTuple

import numpy as np
import pytest
from fakes import make_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.data.experience import Step
from async_dqn.data.rollout import RolloutExperience


class Batch(NamedTuple):
    step: np.ndarray  # [B] the number of the step, in [0, T * N)
    value: np.ndarray  # [B] what the network said
    next_value: np.ndarray  # [B] what it said of where the step led
    global_step: np.ndarray  # [B] when the rollout was first learned from


def prepare(rollout):
    """What the tests look at."""
    value, following = rollout.outputs["value"], rollout.next_outputs["value"]
    return Batch(
        np.arange(value.size), value.reshape(-1), following.reshape(-1), np.full(value.size, rollout.global_step)
    )


class Game:
    """Steps of N environments whose observation is (episode, step in it); the network adds both up, times `factor`."""

    def __init__(self, *, num_envs=2, length=4, stack=2, epochs=3, batch_size=4, seed=0, prepare=prepare, **options):
        self.factor = 1.0
        self.experience = RolloutExperience(
            make_spec((2,), stack=stack),
            num_envs=num_envs,
            length=length,
            epochs=epochs,
            batch_size=batch_size,
            prepare=prepare,
            evaluate=self.evaluate,
            **options,
        )
        self.rng = np.random.default_rng(seed)
        self._observation = np.tile(np.float32([100, 0]), (num_envs, 1))  # [N, 2]
        self._stacked = np.zeros((num_envs, stack, 2), np.float32)
        self._stacked[:, -1] = self._observation

    def evaluate(self, stacked):
        return {"value": self.factor * stacked.sum((1, 2))}

    def add(self, terminated=(), truncated=()):
        """One step that ends the episodes of these environments."""
        ended = [np.isin(np.arange(len(self._observation)), one) for one in (terminated, truncated)]
        following = self._observation + np.float32([0, 1])
        outputs = self.evaluate(self._stacked)
        zeros = np.zeros(len(following))
        step = Step(self._observation, self._stacked, zeros.astype(np.int32), outputs, zeros, *ended, following)
        self.experience.add(step, len(following))
        is_first = ended[0] | ended[1]
        begin = np.stack([self._observation[:, 0] + 100, zeros], 1).astype(np.float32)
        self._observation = np.where(is_first[:, None], begin, following)
        stacked = np.concatenate([self._stacked[:, 1:], self._observation[:, None]], 1)
        stacked[is_first, :-1] = 0
        self._stacked = stacked
        self.experience.check_valid()

    def draw(self):
        self.experience.draw(self.rng, int(100 * self.factor))  # which grows, as time does
        self.experience.check_valid()
        batch = self.experience.batch
        return type(batch)(*(column.copy() for column in batch))

    def draw_all(self):
        return [self.draw() for _ in range(self.experience.due())]


def by_step(batches):
    """{name: [T * N]} of the first epoch, in the order of the steps."""
    columns = Batch(*map(np.concatenate, zip(*batches, strict=True)))
    _, places = np.unique(columns.step, return_index=True)
    return columns.value[places], columns.next_value[places]


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 4),
    st.data(),
)
def test_every_step_is_drawn_as_often_as_there_are_epochs(num_envs, length, epochs, data):
    steps = num_envs * length
    batch_size = data.draw(st.integers(1, steps))
    game = Game(num_envs=num_envs, length=length, epochs=epochs, batch_size=batch_size)
    for _ in range(2):  # a second rollout as the first
        for number in range(length):
            assert game.experience.due() == 0
            game.add(truncated=[0] if number % 3 == 1 else [])
        per_epoch = -(-steps // batch_size)
        assert game.experience.due() == epochs * per_epoch
        drawn = np.array([game.draw().step for _ in range(epochs * per_epoch)])
        assert game.experience.due() == 0
        for epoch in drawn.reshape(epochs, -1):
            assert sorted(epoch[:steps]) == list(range(steps))
            np.testing.assert_array_equal(epoch[steps:], epoch[: len(epoch) - steps])  # filled up from its beginning
        if steps % batch_size == 0:
            np.testing.assert_array_equal(np.bincount(drawn.ravel()), np.full(steps, epochs))


def test_each_epoch_has_an_order_of_its_own():
    game = Game(length=32, batch_size=16)
    for _ in range(32):
        game.add()
    orders = np.array([batch.step for batch in game.draw_all()]).reshape(3, 64)
    assert len({tuple(order) for order in (*orders, np.arange(64))}) == 4


def test_a_minibatch_of_all_steps_has_them_in_order():
    game = Game(num_envs=2, length=4, epochs=2, batch_size=8)
    for _ in range(4):
        game.add()
    for batch in game.draw_all():
        np.testing.assert_array_equal(batch.step, np.arange(8))


def test_what_follows_a_step_is_in_its_own_episode():
    game = Game(num_envs=2, length=4, batch_size=8)
    game.add()
    game.add(truncated=[0])
    game.add(terminated=[1])
    game.add()
    value, following = (one.reshape(4, 2) for one in by_step(game.draw_all()))
    # Environment 0: (100, 0), (100, 1) and, truncated, (100, 2); then (200, 0), (200, 1), (200, 2).
    # The network sees two observations, of which the first is zeros where an episode begins.
    np.testing.assert_array_equal(value[:, 0], [100, 100 + 101, 200, 200 + 201])
    np.testing.assert_array_equal(following[:, 0], [100 + 101, 101 + 102, 200 + 201, 201 + 202])
    np.testing.assert_array_equal(value[:, 1], [100, 100 + 101, 101 + 102, 200])
    # What follows the third step, which terminated, has no meaning.
    np.testing.assert_array_equal(following[[0, 1, 3], 1], [100 + 101, 101 + 102, 200 + 201])


def test_a_truncation_in_the_last_step_of_a_rollout_is_its_end():
    game = Game(num_envs=1, length=2, batch_size=2)
    game.add()
    game.add(truncated=[0])
    np.testing.assert_array_equal(by_step(game.draw_all())[1], [100 + 101, 101 + 102])
    game.add()
    game.add()
    np.testing.assert_array_equal(by_step(game.draw_all())[1], [200 + 201, 201 + 202])


def test_what_is_fixed_for_a_rollout_is_computed_with_the_parameters_of_its_first_minibatch():
    game = Game(length=4, batch_size=8)
    for _ in range(4):
        game.add()
    first = game.draw()
    game.factor = 10.0
    np.testing.assert_array_equal(*(by_step([batch])[1] for batch in (first, game.draw())))


def test_a_new_beginning_drops_what_the_rollout_has():
    game = Game(num_envs=1, length=2, batch_size=2)
    game.add(truncated=[0])
    game.experience.truncate()
    game.experience.check_valid()
    game.add()
    assert game.experience.due() == 0
    game.add()
    np.testing.assert_array_equal(by_step(game.draw_all())[0], [200, 200 + 201])


@settings(deadline=None, max_examples=40)
@given(steps=st.integers(0, 9), drawn=st.integers(0, 6), seed=st.integers(0, 9))
def test_a_restored_rollout_gives_the_batches_that_the_saved_one_would_have(steps, drawn, seed):
    saved, restored = (Game(seed=seed) for _ in range(2))
    ends = np.random.default_rng(seed).random((20, 2, 2)) < 0.3

    def play(game, numbers):
        for number in numbers:
            game.factor *= 1.5  # the parameters change all the time
            if game.experience.due():
                game.draw_all()
            terminated, truncated = ends[number]
            game.add(np.flatnonzero(terminated), np.flatnonzero(truncated & ~terminated))

    play(saved, range(steps))
    for _ in range(min(drawn, saved.experience.due())):
        saved.draw()
        saved.factor *= 1.5
    arrays, values = saved.experience.state()
    arrays = {name: array.copy() for name, array in arrays.items()}
    restored.experience.restore(arrays, values)
    restored.experience.check_valid()
    restored.rng.bit_generator.state = saved.rng.bit_generator.state
    restored.factor, restored._observation, restored._stacked = saved.factor, saved._observation, saved._stacked
    for game in (saved, restored):
        game.batches = game.draw_all()
        play(game, range(steps, steps + 4))
        game.batches += game.draw_all()
    assert len(saved.batches) == len(restored.batches)
    for batch, expected in zip(restored.batches, saved.batches, strict=True):
        for column, values in zip(batch, expected, strict=True):
            np.testing.assert_array_equal(column, values)


def test_a_rollout_of_one_minibatch_is_gone_on_with_in_smaller_ones():
    whole, parts = (Game(num_envs=2, length=4, epochs=2, batch_size=size) for size in (8, 3))
    for _ in range(4):
        whole.add()
    whole.draw()
    parts.experience.restore(*whole.experience.state())
    assert [len({*batch.step}) for batch in parts.draw_all()] == [3] * 5


def test_a_saved_state_does_not_change_with_later_steps():
    game = Game()
    game.add(truncated=[0])
    arrays, _ = game.experience.state()
    before = {name: array.copy() for name, array in arrays.items()}
    game.add()
    game.add()
    np.testing.assert_equal(arrays, before)


def test_the_state_of_another_rollout_is_refused():
    other = Game(num_envs=3)
    other.add()
    with pytest.raises(ValueError, match="stacked"):
        Game().experience.restore(*other.experience.state())


@pytest.mark.parametrize("batch_size", [0, 9])
def test_a_batch_is_at_most_the_rollout(batch_size):
    with pytest.raises(ValueError, match=f"{batch_size}.* 4 x 2"):
        Game(num_envs=2, length=4, batch_size=batch_size)


@pytest.mark.parametrize("is_learned_from", [False, True])
def test_a_rollout_that_goes_on_longer_is_learned_from_whole_and_once(is_learned_from):
    shorter, longer = Game(length=2), Game(length=4)
    for _ in range(2):
        shorter.add()
    if is_learned_from:
        shorter.draw_all()
    longer.experience.restore(*shorter.experience.state())
    longer._observation, longer._stacked = shorter._observation, shorter._stacked
    for _ in range(4 if is_learned_from else 2):
        assert longer.experience.due() == 0
        longer.add()
    assert longer.experience.due() == 3 * 4 * 2 / 4  # epochs x steps / batch size
    batches = longer.draw_all()
    assert sorted(step for batch in batches for step in batch.step) == sorted([*range(8)] * 3)
    value, next_value = (column.reshape(4, 2) for column in by_step(batches))
    first = 2 if is_learned_from else 0  # step of the game
    stacked = 100 + np.arange(first, first + 5) + [100 * (t > 0) + max(t - 1, 0) for t in range(first, first + 5)]
    np.testing.assert_array_equal(value, np.tile(stacked[:4, None], 2))
    np.testing.assert_array_equal(next_value, np.tile(stacked[1:, None], 2))


@pytest.mark.parametrize(("held", "is_learned_from"), [(3, False), (4, False), (4, True)])
def test_a_rollout_that_is_longer_than_the_settings_of_a_resume_say_begins_anew(held, is_learned_from):
    longer, shorter = Game(length=4), Game(length=2)
    for _ in range(held):
        longer.add()
    if is_learned_from:
        longer.experience.draw(longer.rng, 0)
    shorter.experience.restore(*longer.experience.state())
    shorter._observation, shorter._stacked = longer._observation, longer._stacked
    for _ in range(2):
        assert shorter.experience.due() == 0
        shorter.add()
    assert shorter.experience.due() == 3 * 2 * 2 / 4


def spoil(game, envs):
    """The newest step of these environments is taken back, which begin another game."""
    game.experience.truncate(np.array(envs))
    game.experience.check_valid()


def test_a_step_that_is_taken_back_is_never_drawn_and_its_game_ends_where_it_was_taken():
    game = Game(num_envs=2, length=4, batch_size=4, epochs=2)
    game.add()
    game.add()
    game.add(truncated=[0])  # so that the game makes a new episode; the step itself is taken back
    spoil(game, [0])
    game.add()
    batches = game.draw_all()
    assert len(batches) == 2 * 8 / 4  # as many as ever
    drawn = np.concatenate([batch.step for batch in batches]).tolist()
    assert set(drawn) == {*range(8)} - {2 * 2}
    columns = Batch(*map(np.concatenate, zip(*batches, strict=True)))
    of_step = dict(zip(columns.step.tolist(), columns.next_value.tolist(), strict=True))
    assert of_step[2 * 1] == 101 + 102  # bootstrapped from what the bad step was taken at
    assert of_step[2 * 3] == 200 + 201
    assert [of_step[2 * t + 1] for t in range(4)] == [100 + 101, 101 + 102, 102 + 103, 103 + 104]


def test_of_a_rollout_whose_first_steps_were_taken_back_the_rest_is_learned_from():
    """It stays as long: where rollouts come through a queue, the next one begins with a step of its own."""
    game = Game(num_envs=1, length=3, batch_size=3)
    for _ in range(2):
        game.add(truncated=[0])
        spoil(game, [0])
    assert game.experience.due() == 0
    game.add()
    assert {step for batch in game.draw_all() for step in batch.step} == {2}


def test_a_rollout_of_which_nothing_is_left_is_not_learned_from():
    game = Game(num_envs=1, length=2, batch_size=2)
    for _ in range(2):
        game.add(truncated=[0])
        spoil(game, [0])
    assert game.experience.due() == 0
    game.add()
    game.add()
    assert {step for batch in game.draw_all() for step in batch.step} == {0, 1}


def test_the_first_step_of_a_rollout_is_taken_back_alone():
    game = Game(num_envs=2, length=2, batch_size=4)
    game.add()
    game.add()
    game.draw_all()
    game.add(truncated=[1])
    spoil(game, [1])
    game.add()
    assert {step for batch in game.draw_all() for step in batch.step} == {0, 2, 3}


class Steps(NamedTuple):
    stacked: np.ndarray  # [B, S, 2]
    following: np.ndarray  # [B, S, 2] where the step led


def prepare_but_the_last(rollout, overlap=1):
    """All steps but the last ones of a rollout."""
    length, num_envs = len(rollout.stacked) - overlap, rollout.stacked.shape[1]
    times, envs = np.repeat(np.arange(length), num_envs), np.tile(np.arange(num_envs), length)
    return Steps(rollout.stacked[:length].reshape(-1, 2, 2), rollout.following(times, envs))


def test_following_gives_the_stacks_that_steps_led_to():
    game = Game(num_envs=2, length=4, batch_size=8, epochs=1, prepare=lambda one: prepare_but_the_last(one, 0))
    game.add()
    game.add(truncated=[0])
    game.add()
    game.add()
    batch = game.draw()
    found = {seen: led.tolist() for seen, led in zip(batch.stacked[:, 1:].sum((1, 2)), batch.following, strict=True)}
    # Environment 0 in its second episode begins with (200, 0): before it (100, 1) led to (100, 2), which was cut off.
    assert found[200] == [[200, 0], [200, 1]]
    assert found[201] == [[200, 1], [200, 2]]  # the last step of the rollout
    assert found[103] == [[100, 3], [100, 4]]  # environment 1
    cut = [
        led.tolist() for seen, led in zip(batch.stacked, batch.following, strict=True) if seen[1].tolist() == [100, 1]
    ]
    assert cut == [[[100, 1], [100, 2]]] * 2


def test_with_an_overlap_every_step_is_learned_from_once_and_what_came_next_is_known():
    game = Game(num_envs=1, length=3, batch_size=2, epochs=1, prepare=prepare_but_the_last, overlap=1)
    seen = []
    for number in range(1, 12):
        game.add(truncated=[0] if number in (3, 7) else [])
        assert game.experience.due() == (number >= 3 and number % 2)  # after steps 3, 5, 7 ...
        if game.experience.due():
            batch = game.draw()
            order = np.argsort(batch.stacked[:, 1].sum(axis=1))
            seen += [
                (one[1].tolist(), led[1].tolist())
                for one, led in zip(batch.stacked[order], batch.following[order], strict=True)
            ]
    steps = [[100, 0], [100, 1], [100, 2], *([200, step] for step in range(4)), *([300, step] for step in range(3))]
    assert [one for one, _ in seen] == steps
    assert [led for _, led in seen] == [[episode, step + 1] for episode, step in steps]


def test_an_overlap_is_kept_over_a_restart_and_forgotten_where_environments_start_anew():
    saved, restored = (
        Game(num_envs=1, length=3, batch_size=2, epochs=1, overlap=1, prepare=prepare_but_the_last) for _ in range(2)
    )
    for _ in range(4):
        if saved.experience.due():
            saved.draw()
        saved.add()
    restored.experience.restore(*saved.experience.state())
    restored._observation, restored._stacked = saved._observation, saved._stacked
    for game in (saved, restored):
        game.add()
    for column, expected in zip(restored.draw(), saved.draw(), strict=True):
        np.testing.assert_array_equal(np.sort(column, axis=0), np.sort(expected, axis=0))
    saved.experience.truncate()
    for number in range(3):
        assert saved.experience.due() == 0, number
        saved.add()
    assert saved.experience.due() == 1


def test_steps_that_are_taken_back_are_not_drawn_with_an_overlap_either():
    game = Game(num_envs=1, length=3, batch_size=2, epochs=1, prepare=prepare_but_the_last, overlap=1)
    game.add()
    game.add(truncated=[0])
    spoil(game, [0])
    game.add(truncated=[0])
    spoil(game, [0])  # of this rollout one step is left, and of the next one none of the first two
    batch = game.draw()
    assert batch.stacked[:, 1].tolist() == [[100, 0]] * 2
    assert batch.following[:, 1].tolist() == [[100, 1]] * 2
    game.add(truncated=[0])
    spoil(game, [0])
    game.add()
    assert game.experience.due() == 0
    game.add()
    game.add()
    assert sorted(step[1].tolist() for step in game.draw().stacked) == [[400, 0], [400, 1]]


class Sequences(NamedTuple):
    value: np.ndarray  # [N, T]
    next_value: np.ndarray  # [N, T]
    void: np.ndarray  # [N, T]
    recurrent_state: np.ndarray  # [N, 1], before the first step


def sequences(rollout):
    value, following = rollout.outputs["value"], rollout.next_outputs["value"]
    return Sequences(*(one.swapaxes(0, 1) for one in (value, following, rollout.void)), rollout.recurrent_state)


class RememberingGame(Game):
    """The agent remembers how many steps of the episode it has seen; its value is a million times that, and the sum."""

    def __init__(self, **options):
        num_envs = options.get("num_envs", 2)
        self.recurrent_state = np.zeros((num_envs, 1), np.float32)
        options = {"epochs": 1, "batch_size": num_envs, "prepare": sequences, "recurrent_size": 1} | options
        super().__init__(**options)

    def evaluate(self, stacked, recurrent_state=None):
        recurrent_state = self.recurrent_state if recurrent_state is None else recurrent_state
        return {
            "value": np.float32(super().evaluate(stacked)["value"] + 1e6 * recurrent_state[:, 0]),
            "recurrent_state": recurrent_state + 1,
        }

    def add(self, terminated=(), truncated=()):
        before, add = self.recurrent_state, self.experience.add
        self.experience.add = lambda step, num_steps: add(step._replace(recurrent_state=before), num_steps)
        super().add(terminated, truncated)
        self.experience.add = add
        self.recurrent_state = before + 1
        self.recurrent_state[[*terminated, *truncated]] = 0


def test_rollouts_of_single_environments_begin_with_what_was_remembered():
    game = RememberingGame(length=3)
    for number in range(6):
        game.add(truncated=[0] if number == 1 else [])
        if number == 2:
            first = game.draw()
    second = game.draw()
    np.testing.assert_array_equal(first.recurrent_state, [[0], [0]])
    np.testing.assert_array_equal(second.recurrent_state, [[1], [3]])
    np.testing.assert_array_equal(first.value // 1e6, [[0, 1, 0], [0, 1, 2]])
    np.testing.assert_array_equal(second.value // 1e6, [[1, 2, 3], [3, 4, 5]])
    # After the truncated step and after the last one, the value is by what is remembered there.
    np.testing.assert_array_equal(first.next_value // 1e6, [[1, 2, 1], [1, 2, 3]])
    np.testing.assert_array_equal(first.next_value[0] % 1e6, [100 + 101, 101 + 102, 200 + 201])


def test_parts_of_a_rollout_are_environments():
    game = RememberingGame(num_envs=4, length=2, epochs=2, batch_size=2)
    game.recurrent_state = np.arange(4, dtype=np.float32)[:, None]
    game.add()
    game.add()
    batches = game.draw_all()
    assert len(batches) == 2 * 4 / 2
    assert sorted(np.concatenate([batch.recurrent_state[:, 0] for batch in batches])) == sorted([*range(4)] * 2)
    for batch in batches:
        np.testing.assert_array_equal(batch.value // 1e6, batch.recurrent_state + [0, 1])


def test_steps_that_are_taken_back_keep_their_place_in_a_rollout_of_an_environment():
    game = RememberingGame(length=3)
    game.add()
    game.add(truncated=[0])
    spoil(game, [0])
    game.add()
    batch = game.draw()
    np.testing.assert_array_equal(batch.void, [[False, True, False], [False] * 3])
    np.testing.assert_array_equal(batch.value // 1e6, [[0, 1, 0], [0, 1, 2]])
    assert batch.next_value[0, 0] == 1e6 + 100 + 101  # bootstrapped from what the bad step was taken at


def test_what_was_remembered_is_restored():
    saved, restored = RememberingGame(), RememberingGame()
    saved.recurrent_state += 5
    for _ in range(3):
        saved.add()
    restored.experience.restore(*saved.experience.state())
    restored._observation, restored._stacked, restored.recurrent_state = (
        saved._observation,
        saved._stacked,
        saved.recurrent_state,
    )
    for game in (saved, restored):
        game.add()
    for column, expected in zip(restored.draw(), saved.draw(), strict=True):
        np.testing.assert_array_equal(column, expected)
    np.testing.assert_array_equal(restored.experience.batch.recurrent_state, [[5], [5]])


def test_there_are_no_more_parts_than_environments_and_no_overlap():
    with pytest.raises(ValueError, match="3 must be 1 to the 2 environments"):
        RememberingGame(batch_size=3)
    with pytest.raises(ValueError, match="overlap must be 0, not 1"):
        RememberingGame(overlap=1)
