"""Tests of async_dqn.tools.bench.window."""

import pytest

from async_dqn.tools.bench import window
from async_dqn.tools.bench.window import Sample, Window


def rows(*lines, **more):
    """Rows of (wall_seconds, minibatches)."""
    return [
        {"wall_seconds": float(wall), "env_steps": 4.0 * minibatches, "minibatches": float(minibatches)} | more
        for wall, minibatches in lines
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (rows(), Window(None, None)),
        (rows((1, 0), (9, 199)), Window(None, None)),
        (rows((1, 0), (2, 250)), Window(None, None)),
        (rows((1, 0), (2, 250), (4.9, 400), (5.1, 410)), Window(3, None)),
        (rows((1, 0), (2, 250), (6, 400), (15, 900), (16, 1_000), (17, 1_100)), Window(2, 4)),
        (rows((1, 0), (2, 250), (6, 400), (40, 900)), Window(2, 3)),  # it stood still
    ],
)
def test_the_window_opens_well_after_the_first_minibatches(given, expected):
    assert window.window(given, 10.0) == expected


def sample(time, cpu, resident=None, workers=None):
    return Sample(time, frozenset({1}), cpu, resident or dict.fromkeys(cpu, 100.0), workers or {})


def test_values_of_a_window():
    given = [
        {"wall_seconds": 10.0, "env_steps": 1_000.0, "minibatches": 250.0, "updates": 60.0, "staleness_mean": 9.0},
        {"wall_seconds": 20.0, "env_steps": 3_000.0, "minibatches": 750.0, "updates": 160.0, "staleness_mean": 2.0},
        {"wall_seconds": 30.0, "env_steps": 5_000.0, "minibatches": 1_250.0, "updates": 460.0, "staleness_mean": 4.0},
    ]
    before = sample(100.0, {"ps 0": 1.0, "worker 0": 10.0})
    after = sample(125.0, {"ps 0": 6.0, "worker 0": 30.0, "late": 1.0}, {"ps 0": 300.0, "worker 0": 700.0})
    found = window.values(given, before, after)
    assert found["agent steps/s"] == 4_000 / 20
    assert found["minibatches/s"] == 1_000 / 20
    assert found["updates/s"] == 400 / 20
    assert found["staleness"] == (100 * 2.0 + 300 * 4.0) / 400
    assert found["cores used"] == pytest.approx(5 / 25 + 20 / 25)
    assert found["CPU s/1000 steps"] == pytest.approx(1_000 * (25 / 25) / 200)
    assert found["CPU s/1000 steps: ps 0"] == pytest.approx(1_000 * (5 / 25) / 200)
    assert found["resident MB"] == 1_000
    assert found["resident MB: worker 0"] == 700
    assert not any(what.endswith("late") for what in found)


def test_values_of_workers():
    given = [{"wall_seconds": float(wall), "env_steps": 0.0, "minibatches": 0.0, "updates": 0.0} for wall in (0, 10)]
    begin = {"wall_seconds": 5.0, "env_steps": 10.0, "seconds_acting": 1.0, "seconds_other": 4.0}
    end = {"wall_seconds": 25.0, "env_steps": 40.0, "seconds_acting": 6.0, "seconds_other": 19.0}
    before = sample(0.0, {"worker 0": 0.0}, workers={"worker 0": begin})
    after = sample(1.0, {"worker 0": 1.0}, workers={"worker 0": end, "worker 1": end})
    found = window.values(given, before, after, lambda row: 2 * row["env_steps"])
    assert found["of it replay MB: worker 0"] == 2 * 40
    assert found["acting %: worker 0"] == 100 * 5 / 20
    assert found["other %: worker 0"] == 100 * 15 / 20
    assert "acting %: worker 1" not in found  # it had not begun
    assert "staleness" not in found


def test_what_a_cycle_does_not_tell_is_other():
    before = {"wall_seconds": 0.0, "seconds_acting": 0.0, "seconds_waiting": 1.0, "loss": 1.0}
    after = {"wall_seconds": 10.0, "seconds_acting": 2.0, "seconds_waiting": 4.0, "seconds_new": 1.0}
    assert window.cycle(before, after) == {"acting": 20.0, "waiting": 30.0, "other": 50.0}
    assert window.cycle(after, after) == {}
    assert window.cycle({"wall_seconds": 0.0}, {"wall_seconds": 1.0}) == {}


def test_staleness_is_unknown_without_updates():
    assert window.mean_staleness([]) is None
    assert window.mean_staleness(rows((0, 1), (1, 2), updates=5.0)) is None
    assert window.mean_staleness(rows((0, 1), (1, 2), updates=5.0, staleness_mean=3.0)) is None


def test_rows_of_a_file_that_is_being_written(tmp_path):
    path = tmp_path / "metrics.csv"
    assert window.read_rows(path) == []
    path.write_text("wall_seconds,loss,note\n0.5,,hello\n1.0,0.25,\n1.5,0.")
    assert window.read_rows(path) == [{"wall_seconds": 0.5}, {"wall_seconds": 1.0, "loss": 0.25}]


def test_rows_among_other_output(tmp_path):
    path = tmp_path / "log"
    assert window.read_json_rows(path) == []
    path.write_text('hello\n{"wall_seconds": 1.5}\n\n{"wall_seco')
    assert window.read_json_rows(path) == [{"wall_seconds": 1.5}]
