"""Tests of what each part costs: on CartPole in this process, and against real parameter servers."""

import functools

import numpy as np
import psutil
import pytest
import tensorflow as tf

from async_dqn.base.errors import RunError
from async_dqn.data.replay import Replay, required_bytes
from async_dqn.run import build
from async_dqn.settings.config import PRESETS, Config
from async_dqn.store.local import LocalParameterStore
from async_dqn.tools.bench import costs, parts
from async_dqn.tools.bench.servers import parameter_servers
from async_dqn.tools.bench.work import Plan, config

CARTPOLE = {"env": "CartPole-v1", **PRESETS["cartpole"], "replay_capacity": 2_000}
SOON = 0.02  # seconds for each measurement


@pytest.fixture
def new_children():
    """What gives the processes that this test has started and that are still there."""
    me = psutil.Process()
    before = set(me.children(recursive=True))  # those of other tests, such as what multiprocessing leaves running
    return lambda: [child for child in me.children(recursive=True) if child not in before]


@pytest.fixture
def settings() -> Config:
    return config(Plan(overrides=CARTPOLE))


def test_every_part_is_there_once_and_gives_the_settings_of_the_plan():
    cases = parts.cases(Plan(is_quick=True))
    names = [case.name for case in cases]
    wanted = ["environment", "acting", "replay", "minibatch, float32", "trip to 1 ps, float32", "trip to 2 ps, float32"]
    assert set(wanted) | {"checkpoint"} <= set(names)
    assert len(set(names)) == len(names) and {case.section for case in cases} == {"parts"}
    for case in cases:
        (given,) = [argument for argument in case.measure.args if isinstance(argument, Config)]
        assert given.network == "nature" and given.envs_per_worker == 8


@pytest.mark.parametrize(
    ("measure", "what"),
    [
        (costs.environment_step, {"ms/agent step"}),
        (functools.partial(costs.acting, batch_sizes=[1, 8]), {"batch of 1, ms", "batch of 8, ms"}),
        (costs.minibatch, {"ms/minibatch"}),
    ],
)
def test_each_part_takes_some_time(settings, measure, what):
    costs_found = measure(settings, seconds=SOON)
    assert costs_found.keys() == what
    assert all(0 < cost < 10_000 for cost in costs_found.values())


def test_a_replay_is_measured_when_it_is_full(settings, monkeypatch):
    made = []
    make_replay = build.make_replay
    monkeypatch.setattr(build, "make_replay", lambda *given: made.append(make_replay(*given)) or made[-1])
    found = costs.replay(settings, seconds=SOON)
    (memory,) = made
    assert memory.num_slots == settings.replay_capacity // settings.num_workers
    memory.check_valid()
    assert memory.num_valid() < memory.num_slots, "games end in it"
    assert found["add, µs/agent step"] > 0 and found["sample, µs/minibatch"] > 0


def test_the_memory_of_a_full_replay_is_what_is_said_before(monkeypatch):
    settings = config(Plan(), replay_capacity=20_000, num_workers=1)
    problem = build.make_problem(settings)
    spec = problem.spec
    expected = required_bytes(settings.envs_per_worker, 20_000, spec.observation_shape, spec.observation_dtype)
    assert expected > 0.14e9
    assert costs.replay(settings, seconds=SOON)["memory, GB"] * 1e9 == pytest.approx(expected, rel=0.2)


def test_all_games_of_a_replay_do_not_end_at_once(settings):
    problem = build.make_problem(settings)
    memory = build.make_replay(settings, problem)
    ended = []
    monkey = Replay.add

    class Watching:
        num_envs, observation_shape, observation_dtype = (
            memory.num_envs,
            memory.observation_shape,
            memory.observation_dtype,
        )

        def add(self, *step):
            ended.append(step[3].sum())
            monkey(memory, *step)

    add = costs._make_add(Watching(), problem, np.random.default_rng(0))
    for _ in range(1_000):
        add()
    assert max(ended) == 1 and sum(ended) == 2 * memory.num_envs


def test_a_loss_that_is_not_finite_is_a_failure_in_one_line(settings, monkeypatch):
    monkeypatch.setattr(
        costs, "_random_batch", lambda *given: costs_batch(*given)._replace(r_t=np.full(64, np.nan, np.float32))
    )
    with pytest.raises(RunError, match="^the loss of a minibatch is nan, or its gradient is not finite$"):
        costs.minibatch(settings, seconds=SOON)


costs_batch = costs._random_batch


def test_a_checkpoint_that_is_restored_is_the_one_that_was_written(settings, tmp_path, monkeypatch):
    original, states = LocalParameterStore.restore, []

    def restore(store, state):
        states.append(state)
        original(store, state)

    monkeypatch.setattr(LocalParameterStore, "restore", restore)
    found = costs.checkpoint(settings, seconds=SOON, folder=str(tmp_path))
    assert found["write, ms"] > 0 and found["restore, ms"] > 0
    assert len(list(tmp_path.glob("*.npz"))) == settings.keep_checkpoints
    first, *others = states  # as it was initialised, and each time that it was restored
    assert others
    assert all(np.array_equal(state[name], first[name]) for state in others for name in first)


def test_the_minibatch_is_random_and_of_the_work(settings):
    problem = build.make_problem(config(Plan()))
    batch = costs._random_batch(config(Plan()), problem, np.random.default_rng(0))
    assert batch.s_tm1.shape == (32, 4, 84, 84) and batch.s_tm1.dtype == np.uint8
    assert 127 < batch.s_t.mean() < 128 and batch.s_t.max() == 255
    assert set(batch.a_tm1) == set(range(6)) and set(batch.r_t) == {-1, 0, 1}
    assert tf.constant(batch.discount_t).dtype == tf.float32


@pytest.mark.cluster
@pytest.mark.parametrize("num_ps", [1, 2])
def test_trips_are_made_to_real_parameter_servers_that_end_by_themselves(num_ps, new_children):
    plan = Plan(is_quick=True, overrides=CARTPOLE)
    case = next(case for case in parts.cases(plan) if case.name == f"trip to {num_ps} ps, float32")
    found = case.measure.func(*case.measure.args, seconds=SOON)
    assert found.keys() == {
        "pull, ms",
        "push of a gradient, ms",
        "push of a gradient, locked, ms",
        "push of a delta, ms",
        "a delta and back, ms",
        "a delta and back, shared memory, ms",
    }
    assert all(0 < cost < 10_000 for cost in found.values())
    assert new_children() == []


@pytest.mark.cluster
def test_parameter_servers_are_ended_when_the_measurement_fails(new_children):
    with pytest.raises(ZeroDivisionError), parameter_servers(2):
        assert len(new_children()) == 2
        1 / 0  # noqa: B018
    assert new_children() == []


@pytest.mark.cluster
def test_a_parameter_server_that_does_not_end_is_killed_and_told(monkeypatch, new_children):
    monkeypatch.setattr("async_dqn.tools.bench.servers._END_DEADLINE", 0.5)
    with pytest.raises(RunError, match="^ps 0 did not end within .* s of its worker, and was killed$"):  # noqa: SIM117
        with parameter_servers(1):
            pass
    assert new_children() == []
