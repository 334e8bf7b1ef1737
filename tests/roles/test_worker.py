"""How a worker's run begins; the rest of its recovery is tested with real processes."""

import contextlib
import dataclasses
import io
import re
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import make_store

from async_dqn.agents.table import make_config
from async_dqn.base.errors import Outage, RunError, RunFailed, Silence, UserError
from async_dqn.cluster.remote_store import RemoteParameterStore
from async_dqn.run import build, checkpoints, recovery
from async_dqn.run.chief import Start
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.run.recovery import WorkerRun
from async_dqn.run.resume import STORE
from async_dqn.run.standby import Copy
from async_dqn.store.base import Counters, Stop
from async_dqn.store.round_trip import RoundTripClient

CONFIG = make_config("dqn", "cartpole", {"env": "CartPole-v1", "compute_dtype": "float32"})


class Store:
    """Parameter servers that are there, hold nothing yet and are cut off while they are filled, as often as asked.

    Args:
      live: the run whose network they hold; None: they hold none.
    """

    def __init__(self, num_outages=0, live=None):
        self.run_id = None
        self.modules = make_store().modules
        self.initialized = []  # the run of each network that was set up
        self._num_outages, self._live = num_outages, live

    def is_ready(self):
        return self._live is not None

    def read_ledger(self):
        return SimpleNamespace(run_id=self._live)

    def initialize(self, online):
        assert online.keys() == {"q"}
        self._fill()

    def restore(self, state):
        self._live = self.run_id
        self._fill()

    def _fill(self):
        self.initialized.append(self.run_id)
        if len(self.initialized) <= self._num_outages:
            raise Outage("ps 0 is out of reach")


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create()
    return run


def chief(run, store, config=CONFIG):
    """The chief's part, and what tells it to end."""
    should_stop = threading.Event()
    return WorkerRun(build.make_agent(config), run, store, Progress(), should_stop), should_stop


def test_an_outage_while_the_network_is_set_up_is_no_other_run_s(run):
    store = Store(num_outages=2)
    worker, _ = chief(run, store)
    for _ in range(2):
        with pytest.raises(Outage):
            worker._begin(resume=False)
    assert not worker._begin(resume=False).is_live
    assert store.initialized == [run.run_id()] * 3
    assert run.read_config() == CONFIG


@pytest.mark.parametrize("num_outages", [0, 1], ids=["just after", "while it answers"])
def test_a_checkpoint_that_the_chief_restored_before_an_outage_is_no_live_run(run, num_outages):
    run.write_config(CONFIG, 7)
    arrays = {f"{STORE}{name}": array for name, array in make_store([1, 2]).state().items()}
    checkpoints.save(run.checkpoints, 9, arrays, {"num_episodes": 3}, keep=1)
    store = Store(num_outages)
    worker, _ = chief(run, store, dataclasses.replace(CONFIG, total_steps=99))
    with pytest.raises(Outage) if num_outages else contextlib.nullcontext():
        worker._begin(resume=True)
    assert worker._begin(resume=True) == Start({"num_episodes": 3}, is_live=False)
    assert store.initialized == [7] and run.read_config().total_steps == 99


def test_a_run_that_lies_there_already_is_left_alone(run):
    run.write_config(CONFIG, 7)
    store = Store()
    with pytest.raises(UserError, match="--resume"):
        chief(run, store)[0]._begin(resume=False)
    assert store.initialized == [] and run.run_id() == 7


def test_the_network_of_another_run_is_left_alone(run):
    run.write_config(CONFIG, 8)
    store = Store(live=7)
    with pytest.raises(RunError, match="--logdir"):
        chief(run, store)[0]._begin(resume=False)
    assert store.initialized == [] and run.run_id() == 8


@pytest.mark.parametrize("live", [None, 7])
def test_a_chief_that_is_told_to_end_sets_up_no_network_but_ends_one_that_is_there_for_all(run, live):
    store = Store(live=live)
    if live:
        run.write_config(CONFIG, live)
    worker, should_stop = chief(run, store)
    should_stop.set()
    begun = worker._begin(resume=False)
    assert store.initialized == []
    if live:
        assert begun.is_live
    else:
        assert begun is None and not run.config.exists()


class Out(RemoteParameterStore):
    """Servers that listen, and fail at the first step after that; those that keep silent would take too long."""

    def __init__(self):
        self.tried = 0

    def reconnect(self, deadline, should_stop):
        return True

    def is_ready(self):
        self.tried += 1
        raise Outage("it was restarted again")


@pytest.mark.parametrize(("outage", "tried"), [(Outage("it was restarted"), 1), (Silence("no answer"), 0)])
def test_who_is_told_to_end_tries_once_to_do_so_in_order_unless_servers_keep_silent(run, outage, tried):
    worker, should_stop = chief(run, store := Out())
    should_stop.set()
    client = RoundTripClient.__new__(RoundTripClient)
    client.abandon_round_trip = lambda deadline: None
    assert not worker._recover(outage, client, None)
    assert store.tried == tried


@pytest.mark.parametrize(
    ("finish", "code", "line"),
    [
        (lambda reason: "", 130, ""),
        (lambda reason: f"{reason}: the disk is full", 1, "warning: interrupted: the disk is full\n"),
        (lambda reason: [][0], 1, "warning: list index out of range\n"),
    ],
    ids=["saved", "not saved", "a fault"],
)
def test_a_process_whose_environments_do_not_return_ends_whatever_happens_and_says_what_is_not_saved(
    run, finish, code, line
):
    said, codes = io.StringIO(), []
    store = make_store()
    store.leave = lambda: None
    worker = WorkerRun(build.make_agent(CONFIG), run, store, Progress(said), threading.Event(), leave=codes.append)
    worker._chief = SimpleNamespace(finish=finish)
    worker._rescue(SimpleNamespace(report=lambda: None))
    assert (codes, said.getvalue()) == ([code], line)


def test_what_could_not_be_saved_while_the_servers_are_away_is_told(run):
    worker, _ = chief(run, Store())
    assert worker._save_copy("interrupted") == ""  # it has not begun
    worker._chief = SimpleNamespace(save_copy=lambda state, values, reason: f"{reason}: the disk is full")
    assert "no copy" in worker._save_copy("interrupted")
    state = make_store([1.0]).state() | {"counter/env_steps": np.array(70)}
    worker._standby = SimpleNamespace(newest=lambda: Copy(state, {}, 0.0, 0.0))
    assert worker._save_copy("interrupted") == "interrupted: the disk is full"


@pytest.mark.parametrize(
    ("states", "options", "lost", "seconds"),
    [
        (["done", "lost"], {"is_urgent": False}, [2], 0),
        (["done", "expected"], {"is_urgent": False}, [2], 60),  # --ps_deadline
        (["active", "done"], {"is_urgent": True}, [1], 4),
        (["expected", "done"], {"is_urgent": True}, [], 0),
        (["active", "done"], {"is_urgent": False, "patience": 20.0}, [1], 20),
    ],
)
def test_who_is_waited_for_in_the_end_and_how_long(run, monkeypatch, states, options, lost, seconds):
    now = [0.0]

    def sleep(pause):
        now[0] += pause
        assert now[0] < 1_000, "it waits for ever"

    monkeypatch.setattr(recovery, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    worker, _ = chief(run, store := Store())
    store.check = lambda: SimpleNamespace(workers=[SimpleNamespace(state=state) for state in ("active", *states)])
    assert worker._wait_for_others(**options) == lost
    assert now[0] == pytest.approx(seconds, abs=0.11)


def test_a_run_that_another_worker_has_ended_has_failed_here_too(run):
    worker, _ = chief(run, store := Store())
    left = []
    store.leave = lambda: left.append(True)
    with pytest.raises(RunError, match="^worker 0: another worker has ended the run, see its log$"):
        worker._end(SimpleNamespace(counters=Counters(stopped=Stop.FAILED)))
    assert left == [True]


def test_servers_that_lost_all_are_not_filled_again_from_a_damaged_checkpoint(run):
    worker, _ = chief(run, store := Store())
    checkpoints.save(run.checkpoints, 9, make_store([1, 2]).state(), {}, keep=1).with_suffix(".npz").write_bytes(b"")
    with pytest.raises(RunError, match=f"^{re.escape(str(run.checkpoints))} holds no whole checkpoint"):
        worker._restore(0.0)
    assert store.initialized == []


def test_a_run_whose_environments_cannot_be_made_has_failed_for_all(run, monkeypatch):
    worker, _ = chief(run, store := Store())
    told = []
    client = SimpleNamespace(start=lambda: None, count=lambda **counts: told.append(counts), report=lambda: None)
    monkeypatch.setattr(build, "make_client", lambda *arguments: client)
    store.join = lambda: SimpleNamespace(run_id=7)
    store.leave = lambda: told.append("left")

    def fail(*arguments, **options):
        raise RunFailed("no such level")

    monkeypatch.setattr(recovery, "Training", fail)
    with pytest.raises(RunFailed, match="no such level"):
        worker.run(resume=False, num_threads=1)
    assert told == [{"stopped": Stop.FAILED}, "left"]
