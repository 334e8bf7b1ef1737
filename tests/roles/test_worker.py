"""Tests of async_dqn.roles.worker that need no other process: how the chief begins."""

import threading
from types import SimpleNamespace

import pytest

from async_dqn.base.errors import Outage, UserError
from async_dqn.roles.worker import _Worker
from async_dqn.run import build
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.settings.config import make_config

CONFIG = make_config("cartpole", {"env": "CartPole-v1"})


class Store:
    """Parameter servers that are there, hold nothing yet and are cut off while they are filled, as often as asked."""

    def __init__(self, num_outages):
        self.run_ids = []
        self._num_outages = num_outages

    def is_ready(self):
        return False

    def initialize(self, parameters):
        self.run_ids.append(self.run_id)
        if len(self.run_ids) <= self._num_outages:
            raise Outage("ps 0 is out of reach")


def chief(run, num_outages):
    problem = build.make_problem(CONFIG)
    store = Store(num_outages)
    return _Worker(CONFIG, problem, run, 0, store, Progress(), threading.Event()), store


def test_an_outage_while_the_network_is_set_up_is_no_other_run_s(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create()
    worker, store = chief(run, num_outages=2)
    for _ in range(2):
        with pytest.raises(Outage):
            worker._begin(resume=False)
    assert not worker._begin(resume=False).is_live
    assert store.run_ids == [run.run_id()] * 3
    assert run.read_config() == CONFIG


def test_a_run_that_lies_there_already_is_left_alone(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create()
    run.write_config(CONFIG, 7)
    worker, store = chief(run, num_outages=0)
    with pytest.raises(UserError, match="already holds a run"):
        worker._begin(resume=False)
    assert store.run_ids == [] and run.run_id() == 7


def test_a_chief_that_is_told_to_end_before_it_has_a_network_sets_none_up(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create()
    worker, store = chief(run, num_outages=0)
    worker._should_stop.set()
    assert worker._begin(resume=False) is None
    assert store.run_ids == [] and not run.config.exists()


def test_a_chief_that_is_told_to_end_once_there_is_a_network_goes_on_to_end_it_for_all(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path / "run")
    run.create()
    worker, store = chief(run, num_outages=0)
    monkeypatch.setattr(store, "is_ready", lambda: True)
    store.read_ledger = lambda: SimpleNamespace(run_id=7)
    run.write_config(CONFIG, 7)
    worker._should_stop.set()
    assert worker._begin(resume=False).is_live
