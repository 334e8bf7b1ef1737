"""The client of a worker that only acts."""

from fakes import RecordingStore, global_online, online, push

from async_dqn.store.acting_client import ActingClient


def make(**options):
    store = RecordingStore([1, 2], **options)
    client = ActingClient(store, max_nonfinite=10)
    client.start()
    return store, client


def test_its_copy_stays_as_it_is_until_it_pulls():
    store, client = make()
    assert online(client) == [1, 2] and client.version == 0
    push(store, 5, 5)
    assert online(client) == [1, 2] and client.version == 0
    client.pull()
    assert online(client) == global_online(store) == [6, 7] and client.version == 1


def test_a_pull_reports_what_is_counted_and_pushes_nothing():
    store, client = make()
    client.count(env_steps=3)
    assert client.env_steps == 3
    client.pull()
    client.finish()
    assert client.counters.env_steps == client.env_steps == store.pull().counters.env_steps == 3
    assert (store.pull().counters.updates, store.pushes) == (0, [])
    assert client.stalenesses == [] and client.slots() == {}


def test_it_hears_of_a_new_target():
    store, client = make(target_period=2)
    push(store, 1, 1, minibatches=2)
    client.pull()
    assert client.target["q"].numpy().tolist() == [2, 3]
