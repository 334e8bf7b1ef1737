"""PAAC: A3C's update over all environments, and only where none of them can be stale."""

from types import SimpleNamespace

import pytest

from async_dqn.agents import paac
from async_dqn.agents.table import config_from_dict, make_config
from async_dqn.base.errors import UserError
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.roles import worker
from async_dqn.run import build
from async_dqn.settings.config import ALONE
from async_dqn.store.synchronous import SynchronousStore


def test_it_is_a3c_but_for_its_settings():
    own = {name for name in vars(paac.PAAC) if not name.startswith("_")}
    assert own == {"Config", "preset", "presets", "resumed", "summary"}


def test_the_step_size_of_the_paper_grows_with_the_environments():
    config = make_config("paac", "paper", {"num_workers": 1})
    assert config.learning_rate == 0.0007 * config.envs_per_worker
    assert (config.envs_per_worker, config.t_max, config.max_gradient_norm) == (32, 5, 40)
    assert (config.optimizer, config.rmsprop_decay, config.optimizer_epsilon) == ("rmsprop", 0.99, 0.1)


@pytest.mark.parametrize(("num_workers", "envs"), [(1, 32), (2, 16), (5, 6), (32, 1), (100, 1)])
def test_the_environments_of_a_preset_are_shared_out_over_the_workers(num_workers, envs):
    assert make_config("paac", "paper", {"num_workers": num_workers}).envs_per_worker == envs
    assert make_config("paac", "paper", {"num_workers": num_workers, "envs_per_worker": 7}).envs_per_worker == 7


@pytest.mark.parametrize("preset", paac.PAAC.presets)
def test_its_workers_are_synchronous(preset):
    assert make_config("paac", preset, {"num_workers": 3}).mode == "sync"
    alone = make_config("paac", preset, ALONE)  # as of a baseline, which is gone on with as a cluster
    assert config_from_dict(alone.to_dict() | {"num_workers": 2}).mode == "sync"


@pytest.mark.parametrize("settings", [{"update_mode": "async"}, {"update_mode": "accumulate", "accumulate": 2}])
def test_workers_that_push_when_they_please_are_refused(settings):
    with pytest.raises(UserError, match=r"^--update_mode=\w+: .*2 workers of --agent=paac.* sync"):
        make_config("paac", "cartpole", settings)
    make_config("paac", "cartpole", settings | {"num_workers": 1})


@pytest.mark.parametrize(
    ("settings", "of_mean"),
    [
        ({"num_workers": 2}, 0.5),
        ({"num_workers": 2, "store": "shared_memory"}, 0.5),
        ({"num_workers": 1}, 0.0),  # its own gradient is the mean
        (ALONE, 0.0),
    ],
)
def test_with_several_workers_it_is_their_mean_that_is_clipped(settings, of_mean):
    config = make_config("paac", "cartpole", settings)
    assert (config.max_gradient_norm, config.max_mean_norm) == (0.5, of_mean)


def test_both_kinds_of_store_are_told_how_long_the_mean_may_be(monkeypatch):
    told = []

    def versioned_store(*, quorum, **options):
        told.append(quorum.max_norm)
        return SimpleNamespace()

    monkeypatch.setattr(worker, "VersionedStore", versioned_store)
    monkeypatch.setattr(worker.server, "parameter_server_strategy", lambda *arguments: None)
    make_shared = SynchronousStore.__init__

    def init(self, *arguments, max_norm, **options):
        told.append(max_norm)
        make_shared(self, *arguments, max_norm=max_norm, **options)

    monkeypatch.setattr(SynchronousStore, "__init__", init)
    served, shared = (
        build.make_agent(make_config("paac", "cartpole", {"num_workers": 2, "store": store}))
        for store in ("ps", "shared_memory")
    )
    spec = ClusterSpec(("127.0.0.1:1",), ("127.0.0.1:2", "127.0.0.1:3"))
    worker.make_remote_store(served, spec, token=1, target="", session_config=None, warn=print)
    build.make_shared_store(shared, build.create_shared_memory(shared))
    assert told == [0.5, 0.5]
