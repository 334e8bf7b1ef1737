"""The work that is measured, and plans that cannot be."""

import math

import pytest

from async_dqn.agents import table
from async_dqn.base.errors import UserError
from async_dqn.tools.bench.work import WORKS, Plan, config


def test_the_common_work_is_what_others_do_too():
    common = config(Plan(work="nature"))
    assert (common.env, common.protocol, common.network) == ("pong", "classic", "nature")
    assert (common.batch_size, common.train_period, common.envs_per_worker) == (32, 4, 8)
    assert not common.double and not common.dueling and common.n_step == 1
    assert (common.optimizer, common.replay_capacity, common.warmup_steps) == ("adam", 50_000, 2_000)
    assert common.epsilon_steps < common.warmup_steps  # over before learning begins


def test_a_preset_is_measured_as_it_is_but_for_its_end():
    size = {"num_ps": 2, "num_workers": 3}
    ends = {"total_steps": 10**9, "stop_at_return": math.inf}
    assert config(Plan(work="pong-fast", **size)) == table.make_config(
        "dqn", "pong-fast", {"env": "pong"} | size | ends
    )


@pytest.mark.parametrize("name", WORKS)
def test_no_work_ends_by_itself_while_it_is_measured(name):
    settings = config(Plan(work=name))
    assert settings.total_steps >= 10**9 and settings.stop_at_return == math.inf


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_ps": 0}, ["--num_ps=0", "at least 1"]),
        ({"num_workers": 1_000}, ["--num_workers=1000", "at most 512"]),
        ({"overrides": {"batch_size": 0}}, ["--batch_size=0"]),
    ],
)
def test_a_plan_that_cannot_be_is_refused(options, words):
    with pytest.raises(UserError) as raised:
        Plan(**options)
    assert all(word in str(raised.value) for word in words)
