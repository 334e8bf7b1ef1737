"""Tests of async_dqn.tools.bench.work."""

import math

import pytest

from async_dqn.base.errors import UserError
from async_dqn.settings.config import PRESETS, make_config
from async_dqn.tools.bench.work import PEER_WORK, WORKS, Plan, config, settings


def test_the_common_work_is_what_others_do_too():
    common = config(Plan())
    assert (common.env, common.protocol, common.network) == ("pong", "classic", "nature")
    assert (common.batch_size, common.train_period, common.envs_per_worker) == (32, 4, 8)
    assert not common.double and not common.dueling and common.n_step == 1
    assert (common.optimizer, common.replay_capacity, common.warmup_steps) == ("adam", 50_000, 2_000)
    assert common.stop_at_return == math.inf and common.checkpoint_replay
    assert common.epsilon_steps < common.warmup_steps  # over before learning begins


@pytest.mark.parametrize("name", ["local_steps", "overlap", "push_period", "pull_period", "locked"])
def test_trips_are_those_that_users_get(name):
    assert getattr(config(Plan()), name) == getattr(make_config("atari-fast", {}), name)


def test_a_preset_is_measured_as_it_is_but_for_its_end():
    plan = Plan(work="pong-fast", num_ps=2, num_workers=3)
    ends = {"total_steps": 10**9, "stop_at_return": math.inf}
    assert config(plan) == make_config("pong-fast", {"env": "pong", "num_ps": 2, "num_workers": 3} | ends)


@pytest.mark.parametrize("name", WORKS)
def test_no_work_ends_by_itself_while_it_is_measured(name):
    settings = config(Plan(work=name))
    assert settings.total_steps >= 10**9 and settings.stop_at_return == float("inf")


def test_overrides_replace_the_work_and_are_replaced_by_the_caller():
    plan = Plan(overrides={"batch_size": 7, "seed": 1})
    assert settings(plan)["batch_size"] == 7
    assert (config(plan, seed=2).batch_size, config(plan, seed=2).seed) == (7, 2)
    assert WORKS["nature"]["batch_size"] == 32


def test_presets_are_not_changed_by_making_works():
    assert PRESETS["atari-fast"]["network"] == "nips"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"work": "chess"}, ["--work=chess", "nature, pong-fast, boxing"]),
        ({"seconds": 0.5}, ["--seconds=0.5", "at least 1"]),
        ({"seconds": math.nan}, ["--seconds=nan"]),
        ({"seconds": math.inf}, ["--seconds=inf"]),
        ({"num_ps": 0}, ["--num_ps=0", "at least 1"]),
        ({"num_workers": 1_000}, ["--num_workers=1000", "at most 512"]),
        ({"overrides": {"batch_size": 0}}, ["--batch_size=0"]),
    ],
)
def test_a_plan_that_cannot_be_is_refused(options, words):
    with pytest.raises(UserError) as raised:
        Plan(**options)
    assert all(word in str(raised.value) for word in words)


def test_peers_are_compared_on_a_work_that_there_is():
    assert PEER_WORK in WORKS
