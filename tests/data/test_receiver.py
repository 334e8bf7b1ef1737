"""Experience that came through a queue is what it would have been in one process."""

from typing import NamedTuple

import numpy as np
import pytest
from experience_queue_helpers import LocalQueue, random_steps
from fakes import make_spec

from async_dqn.data.block import BlockWriter, decode, encode, steps
from async_dqn.data.experience import ReplayExperience
from async_dqn.data.queue import CountedQueue
from async_dqn.data.receiver import ReplayReceiver, RolloutReceiver
from async_dqn.data.replay import Replay
from async_dqn.data.rollout import RolloutExperience
from async_dqn.envs.frame_stack import FrameStack

SHAPE, STACK, HEADS = (2, 2), 3, {"value": 1}


class Sender:
    """An actor that takes steps from a list."""

    def __init__(self, queue, worker, length, *, is_rollout, seed, num_envs=2, num_steps=200):
        self.end = queue.sender(worker)
        self.steps = list(random_steps(np.random.default_rng(seed), num_steps, num_envs, SHAPE, STACK, HEADS))
        self._writer = BlockWriter(length, is_rollout=is_rollout)
        self._position = self._number = 0
        self._length, self._num_envs = length, num_envs

    def send(self, version=0, steps=None, *, spoils_first=False):
        """Sends the next block, whose first step may be taken back; gives its steps."""
        sent = self.steps[self._position : self._position + (steps or self._length)]
        self._position += len(sent)
        for number, step in enumerate(sent):
            self._writer.add(step, self._num_envs)
            if spoils_first and number == 0:
                self._writer.truncate(np.arange(self._num_envs))
        assert self.end.put(self._number, encode(self._writer.block(version)))
        self._writer.next()
        self._number += 1
        return sent

    def begin_again(self):
        """Another process, with games of its own."""
        self.end.stream = (1, self.end.stream[1] + 1)
        self._number = 0
        self._writer.truncate()


def make_replay(num_envs, n_step=2):
    return Replay(
        num_envs=num_envs,
        capacity=100 * num_envs,
        observation_shape=SHAPE,
        observation_dtype=np.uint8,
        stack=STACK,
        n_step=n_step,
        discount=0.5,
    )


def replay_receiver(queue, *, train_period=4, warmup_steps=1, has_turn=lambda number: True):
    heard = []
    replay = make_replay(4)
    inner = ReplayExperience(replay, batch_size=8, train_period=train_period, warmup_steps=warmup_steps)
    options = {"num_envs": 2, "first_sender": 1, "has_turn": has_turn}
    options["on_block"] = lambda block: heard.append((block.num_steps, block.version))
    return ReplayReceiver(inner, queue, **options), replay, heard


def consume(receiver):
    """Learns all that is due, until the queue is empty. Gives the number of minibatches."""
    rng, drawn = np.random.default_rng(0), 0
    while (due := receiver.due()) or not receiver.is_idle:
        for _ in range(due):
            receiver.draw(rng, 0)
            drawn += 1
    return drawn


def ring(replay):
    """All slots, by environment."""
    replay.check_valid()
    start = np.maximum(0, replay.added - replay.slots_per_env)
    return replay.read(start, replay.added)[1]


def assert_same_ring(found, expected):
    np.testing.assert_array_equal(found.added, expected.added)
    for one, other in zip(ring(found), ring(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def test_one_replay_of_two_actors_holds_what_each_of_them_saw():
    queue = LocalQueue(size=100)
    receiver, replay, heard = replay_receiver(queue)
    senders = [Sender(queue, worker, 6, is_rollout=False, seed=worker) for worker in (1, 2)]
    expected = make_replay(4)
    for turn in (0, 1, 1, 0, 1, 0, 0):
        for step in senders[turn].send(version=turn):
            envs = 2 * turn + np.arange(2)
            expected.add(
                step.observation, step.action, step.reward, step.terminated, step.truncated, step.next_observation, envs
            )
    consume(receiver)
    assert_same_ring(replay, expected)
    assert heard == [(12, turn) for turn in (0, 1, 1, 0, 1, 0, 0)]


@pytest.mark.parametrize("train_period", [1, 4, 5])
def test_the_learner_computes_what_the_steps_call_for_and_takes_no_block_before(train_period):
    queue = LocalQueue(size=100)
    receiver, _, heard = replay_receiver(queue, train_period=train_period)
    sender = Sender(queue, 1, 6, is_rollout=False, seed=0)
    for _ in range(5):
        sender.send()
    rng, drawn = np.random.default_rng(0), 0
    for number in range(1, 6):
        due = receiver.due()
        assert len(heard) == number and due == receiver.due()
        for _ in range(due):
            receiver.draw(rng, 0)
        drawn += due
        waits = 2 * 2  # the first transitions lack what follows
        assert 12 * number - waits < (drawn + 1) * train_period + waits
        assert drawn * train_period <= 12 * number
    assert receiver.due() == 0 and receiver.is_idle


def test_blocks_that_are_another_s_turn_are_kept_but_call_for_no_minibatches():
    queue = LocalQueue(size=100)
    receiver, replay, heard = replay_receiver(queue, has_turn=lambda number: number % 3 == 1)
    everything, expected, _ = replay_receiver(queue)
    sender = Sender(queue, 1, 6, is_rollout=False, seed=0)
    drawn = []
    for _ in range(6):
        sender.send()
        item = queue.items[-1]
        drawn.append(consume(receiver))
        queue.items.append(item)
        consume(everything)
    assert drawn == [0, 3, 0, 0, 3, 0]
    assert heard == [(12, 0)] * 6
    assert_same_ring(replay, expected)


def test_where_a_block_is_missing_or_another_process_begins_no_transition_spans_the_gap():
    queue = LocalQueue(size=100)
    receiver, replay, _ = replay_receiver(queue)
    sender = Sender(queue, 2, 6, is_rollout=False, seed=0)
    expected = make_replay(4)
    envs = np.array([2, 3])
    for what in ("", "lost", "", "", "again", ""):
        if what == "again":
            sender.begin_again()
        sent = sender.send()
        if what == "lost":
            queue.items.pop()
            expected.truncate(envs)
            continue
        if what == "again":
            expected.truncate(envs)
        for step in sent:
            expected.add(
                step.observation, step.action, step.reward, step.terminated, step.truncated, step.next_observation, envs
            )
    consume(receiver)
    assert_same_ring(replay, expected)


def evaluate(stacked):
    return {"value": stacked.reshape(len(stacked), -1).sum(axis=1, dtype=np.float32)[:, None]}


def prepare(rollout):
    """All that there is of a rollout, flat."""
    from typing import NamedTuple

    class Flat(NamedTuple):
        stacked: np.ndarray
        reward: np.ndarray
        action: np.ndarray
        value: np.ndarray
        next_value: np.ndarray

    value, after = rollout.outputs["value"], rollout.next_outputs["value"]
    after = np.where(rollout.terminated[..., None], 0, after)
    columns = (rollout.stacked, rollout.reward, rollout.action, value, after)
    return Flat(*(one.reshape(-1, *one.shape[2:]) for one in columns))


def make_rollout(num_envs, length=5, epochs=2):
    return RolloutExperience(
        make_spec(SHAPE, np.uint8, STACK),
        num_envs=num_envs,
        length=length,
        epochs=epochs,
        batch_size=4,
        prepare=prepare,
        evaluate=evaluate,
    )


def rollout_receiver(queue, num_rollouts, epochs=2):
    heard = []
    receiver = RolloutReceiver(
        make_rollout(2 * num_rollouts, epochs=epochs),
        queue,
        length=5,
        num_rollouts=num_rollouts,
        make_stack=lambda: FrameStack(2, STACK, SHAPE, np.uint8),
        on_block=lambda block: heard.append((block.num_steps, block.version)),
    )
    return receiver, heard


def minibatches(experience):
    """All that are due, drawn with the same random numbers."""
    rng, drawn = np.random.default_rng(5), []
    for _ in range(experience.due()):
        experience.draw(rng, 0)
        drawn.append([np.array(column) for column in experience.batch])
    return drawn


def assert_same_minibatches(found, expected):
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        for column, wanted in zip(one, other, strict=True):
            np.testing.assert_array_equal(column, wanted)


def test_a_rollout_gives_the_same_minibatches_as_in_one_process():
    queue = LocalQueue(size=100)
    receiver, heard = rollout_receiver(queue, 1)
    sender, expected = Sender(queue, 1, 5, is_rollout=True, seed=3), make_rollout(2)
    for version in range(6):
        for step in sender.send(version):
            expected.add(step, 2)
        assert_same_minibatches(minibatches(receiver), minibatches(expected))
    assert heard == [(10, version) for version in range(6)]
    assert receiver.due() == 0 and receiver.is_idle


def test_rollouts_of_two_actors_are_learned_from_side_by_side():
    queue = LocalQueue(size=100)
    receiver, heard = rollout_receiver(queue, 2)
    senders = [Sender(queue, worker, 5, is_rollout=True, seed=worker) for worker in (1, 2)]
    expected = make_rollout(4)
    for number in range(3):
        pairs = list(zip(*(sender.send() for sender in senders), strict=True))
        for one, other in pairs:
            joined = {
                name: np.concatenate([getattr(one, name), getattr(other, name)])
                for name in one._fields
                if name != "outputs"
            }
            outputs = {"value": np.concatenate([one.outputs["value"], other.outputs["value"]])}
            expected.add(one._replace(outputs=outputs, **joined), 4)
        assert receiver.due() == 0 and len(heard) == 2 * number  # one is not enough, and does not count yet
        assert_same_minibatches(minibatches(receiver), minibatches(expected))
        assert heard == [(10, 0)] * 2 * (number + 1)


def test_a_rollout_that_is_cut_short_is_counted_and_not_learned_from():
    queue = LocalQueue(size=100)
    receiver, heard = rollout_receiver(queue, 1)
    sender = Sender(queue, 1, 5, is_rollout=True, seed=3)
    sender.send(steps=3)
    assert receiver.due() == 0 and heard == [(6, 0)]


def test_after_a_rollout_whose_first_step_was_taken_back_the_next_ones_are_learned_from():
    """As where --env_processes starts the environments again."""
    queue = LocalQueue(size=100)
    receiver, _ = rollout_receiver(queue, 1)
    sender, expected = Sender(queue, 1, 5, is_rollout=True, seed=3), make_rollout(2)
    for number in range(4):
        for t, step in enumerate(sender.send(spoils_first=number == 1)):
            expected.add(step, 2)
            if number == 1 and t == 0:
                expected.truncate(np.arange(2))
        found, wanted = minibatches(receiver), minibatches(expected)
        if number == 1:  # here the frames of another game follow
            assert len(found) == len(wanted) > 0
        else:
            assert_same_minibatches(found, wanted)


@pytest.mark.parametrize("played", [0, 1, 4, 5])
def test_after_what_a_learner_had_played_itself_before_a_resume_whole_rollouts_follow(played):
    own = make_rollout(2)
    for step in Sender(LocalQueue(size=100), 1, 5, is_rollout=True, seed=4).send()[:played]:
        own.add(step, 2)
    queue = LocalQueue(size=100)
    receiver, _ = rollout_receiver(queue, 1)
    receiver.restore(*own.state())
    assert len(minibatches(receiver)) == own.due() == 6 * (played == 5)
    sender, expected = Sender(queue, 1, 5, is_rollout=True, seed=3), make_rollout(2)
    for _ in range(3):
        for step in sender.send():
            expected.add(step, 2)
        assert_same_minibatches(minibatches(receiver), minibatches(expected))


@pytest.mark.parametrize("drawn", [2, 3, 4, 6])
def test_a_learner_that_is_to_learn_less_of_a_rollout_than_it_has_goes_on_with_the_next_one(drawn):
    queue = LocalQueue(size=100)
    (before, _), (receiver, heard) = rollout_receiver(queue, 1, epochs=2), rollout_receiver(queue, 1, epochs=1)
    sender = Sender(queue, 1, 5, is_rollout=True, seed=3)
    sender.send()
    assert before.due() == 6
    for _ in range(drawn):
        before.draw(np.random.default_rng(5), 0)
    receiver.restore(*before.state())
    receiver.inner.check_valid()
    assert len(minibatches(receiver)) == max(0, 3 - drawn) and heard == []
    sender.send()
    assert len(minibatches(receiver)) == 3 and len(heard) == 1


def test_where_a_rollout_is_missing_the_frames_before_the_next_one_are_taken_for_zeros():
    queue = LocalQueue(size=100)
    receiver, _ = rollout_receiver(queue, 1)
    sender = Sender(queue, 1, 5, is_rollout=True, seed=3)
    sender.send()
    minibatches(receiver)
    sender.send()
    queue.items.pop()
    sent = sender.send()
    receiver.due()
    stack, expected = FrameStack(2, STACK, SHAPE, np.uint8), make_rollout(2)
    first = np.ones(2, bool)
    for step in sent:
        expected.add(step._replace(stacked=stack.push(step.observation, first)), 2)
        first = step.terminated | step.truncated
    assert_same_minibatches(minibatches(receiver), minibatches(expected))


def test_an_item_that_is_put_in_again_is_there_once():
    queue = LocalQueue()
    end = queue.sender(1)
    assert end.put(0, np.zeros(1, np.uint8)) and end.put(0, np.zeros(1, np.uint8))
    assert len(queue.items) == 1


def remembering(steps):
    """The same steps of an agent that remembers its outputs "recurrent_state" within an episode."""
    recurrent_state = np.full((2, 3), 7, np.float32)  # the first rollout is not the beginning of the games
    for number, step in enumerate(steps):
        after = number + np.arange(6, dtype=np.float32).reshape(2, 3)
        yield step._replace(outputs={**step.outputs, "recurrent_state": after}, recurrent_state=recurrent_state)
        recurrent_state = np.where((step.terminated | step.truncated)[:, None], np.float32(0), after)


def make_remembering(seen):
    def prepare(rollout):
        seen.append(
            [np.array(one) for one in (rollout.recurrent_state, rollout.stacked, rollout.outputs["recurrent_state"])]
        )
        return Sequences(rollout.stacked.swapaxes(0, 1), rollout.recurrent_state)

    def evaluate(stacked, recurrent_state):
        return {
            "value": stacked.sum(axis=(1, 2, 3))[:, None] + recurrent_state.sum(axis=1, keepdims=True),
            "recurrent_state": recurrent_state,
        }

    return RolloutExperience(
        make_spec(SHAPE, np.uint8, STACK),
        num_envs=2,
        length=5,
        prepare=prepare,
        evaluate=evaluate,
        recurrent_size=3,
    )


class Sequences(NamedTuple):
    stacked: np.ndarray
    recurrent_state: np.ndarray


def test_what_was_remembered_crosses_with_a_rollout():
    queue, seen, wanted = LocalQueue(size=100), [], []
    receiver = RolloutReceiver(
        make_remembering(seen),
        queue,
        length=5,
        num_rollouts=1,
        make_stack=lambda: FrameStack(2, STACK, SHAPE, np.uint8),
        on_block=lambda *counts: None,
    )
    sender, expected = Sender(queue, 1, 5, is_rollout=True, seed=3), make_remembering(wanted)
    sender.steps = list(remembering(sender.steps))
    for _ in range(6):
        for step in sender.send():
            expected.add(step, 2)
        assert_same_minibatches(minibatches(receiver), minibatches(expected))
    assert len(seen) == len(wanted) == 1 + 6  # and once to see what there is
    for found, others in zip(seen, wanted, strict=True):
        for one, other in zip(found, others, strict=True):
            np.testing.assert_array_equal(one, other)
    # Within a block, what was remembered before each step follows from the step before it.
    for number, step in enumerate(sender.steps[:10]):
        if number % 5 == 0:
            for one in sender.steps[number : number + 5]:
                sender._writer.add(one, 2)
            taken = list(steps(decode(encode(sender._writer.block(0)))))
            sender._writer.next()
        np.testing.assert_array_equal(taken[number % 5].recurrent_state, step.recurrent_state)


def test_the_bytes_that_pass_a_queue_are_counted_and_those_without_room_are_not():
    passed, queue = [], LocalQueue(size=1)
    end = CountedQueue(queue.sender(1), passed.append)
    assert end.take() is None
    assert end.put(0, np.zeros(5, np.uint8)) and not end.put(1, np.zeros(7, np.uint8))
    assert end.take().number == 0
    assert passed == [5, 5]
