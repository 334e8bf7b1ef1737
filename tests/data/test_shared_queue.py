"""The queue in an anonymous file, with senders that are processes, one of which is killed in the middle of a put."""

import os
import signal
import time

import numpy as np
import pytest
from cluster_helpers import fork
from shared_store_helpers import wait

from async_dqn.data import shared_queue
from async_dqn.data.shared_queue import SharedQueue

SIZE = 3
WORKERS = 3


class Ends:
    """The ends of one queue; `joins` says which process is each worker."""

    def __init__(self, size=SIZE):
        self.descriptor = shared_queue.create(WORKERS)
        self.joins = [1] * WORKERS
        self.receiver, *self.senders = (self.end(worker, size) for worker in range(WORKERS))

    def end(self, worker, size=SIZE):
        return SharedQueue(
            self.descriptor,
            worker=worker,
            num_workers=WORKERS,
            size=size,
            membership=lambda: (0, self.joins[worker]),
        )

    def take(self):
        item = self.receiver.take()
        return item and (item.sender, item.stream[1], item.number, item.data.tolist())


@pytest.fixture
def ends():
    made = Ends()
    yield made
    os.close(made.descriptor)


def data(*values):
    return np.array(values, np.uint8)


def test_items_come_out_in_order_and_the_queue_is_bounded(ends):
    one, other = ends.senders
    assert ends.take() is None
    assert one.put(0, data(5, 6)) and other.put(0, data(7)) and one.put(1, data())
    assert not one.put(2, data(8)) and not other.put(1, data(9))
    assert ends.take() == (1, 1, 0, [5, 6])
    assert other.put(1, data(9)) and not one.put(2, data(8))
    assert [ends.take() for _ in range(4)] == [(2, 1, 0, [7]), (1, 1, 1, []), (2, 1, 1, [9]), None]


def test_an_item_that_is_put_in_again_is_there_once_and_a_new_process_begins_anew(ends):
    one = ends.senders[0]
    assert one.put(0, data(1)) and one.put(0, data(2))
    ends.joins[1] = 2
    assert one.put(0, data(3)) and one.put(0, data(4))
    ends.joins[1] = 1  # the process before it
    assert one.put(9, data(5))
    assert [ends.take() for _ in range(3)] == [(1, 1, 0, [1]), (1, 2, 0, [3]), None]


def test_a_receiver_that_was_replaced_gets_nothing(ends):
    ends.senders[0].put(0, data(1))
    ends.joins[0] = 2
    assert ends.take() == (1, 1, 0, [1])
    ends.senders[0].put(1, data(2))
    ends.joins[0] = 1
    assert ends.take() is None
    ends.joins[0] = 2
    assert ends.take() == (1, 1, 1, [2])


def test_what_was_taken_takes_no_memory(ends):
    block = np.ones(10**6, np.uint8)
    for number in range(20):
        assert ends.senders[0].put(number, block)
        assert ends.receiver.take().data.sum() == len(block)
    assert os.fstat(ends.descriptor).st_blocks * 512 < len(block)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_sender_that_is_killed_in_a_put_has_put_nothing_and_holds_up_nobody(ends, monkeypatch, is_written):
    write = shared_queue._write

    def write_and_die(*arguments):
        if is_written:
            write(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    ends.senders[0].put(0, data(1))
    with monkeypatch.context() as patch:
        patch.setattr(shared_queue, "_write", write_and_die)
        child = fork(lambda: ends.end(1).put(1, data(2, 3)))
        assert wait(child) == -signal.SIGKILL
    assert ends.senders[1].put(0, data(4))
    ends.joins[1] = 2
    assert ends.senders[0].put(0, data(5))
    assert [ends.take() for _ in range(4)] == [(1, 1, 0, [1]), (2, 1, 0, [4]), (1, 2, 0, [5]), None]


def test_nothing_is_lost_or_doubled_between_processes(ends):
    number_of_items = 200

    def send(worker):
        end, rng = ends.end(worker), np.random.default_rng(worker)
        for number in range(number_of_items):
            block = np.full(rng.integers(0, 5_000), number, np.uint8)
            while not end.put(number, block):
                pass

    children = [fork(lambda worker=worker: send(worker)) for worker in (1, 2)]
    sizes = {worker: np.random.default_rng(worker) for worker in (1, 2)}
    found = {1: [], 2: []}
    end = time.monotonic() + 60
    while any(len(numbers) < number_of_items for numbers in found.values()):
        assert time.monotonic() < end, "a sender has ended before"
        if (item := ends.receiver.take()) is not None:
            end = time.monotonic() + 60
            found[item.sender].append(item.number)
            assert item.data.tolist() == [item.number % 256] * sizes[item.sender].integers(0, 5_000)
    assert [wait(child) for child in children] == [0, 0]
    assert found == {1: [*range(number_of_items)], 2: [*range(number_of_items)]}
    assert ends.receiver.take() is None


@pytest.mark.parametrize("descriptor", [-1, 10_000])
def test_a_descriptor_of_something_else_is_refused(descriptor):
    with pytest.raises((OSError, ValueError)):
        SharedQueue(descriptor, worker=1, num_workers=3, size=1, membership=lambda: (0, 1))
