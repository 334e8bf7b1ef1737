"""Soaks: made-up samples, and programs that leak on purpose."""

import csv
import sys

import numpy as np
import pytest
from cluster_helpers import processes_naming

from async_dqn.base.errors import RunError
from async_dqn.tools.bench import soak
from async_dqn.tools.bench.soak import Sample, growth, judged_from, report, slope
from async_dqn.tools.bench.work import Plan

HOURS = np.arange(360) / 360  # an hour, a point every 10 s

# Learns nothing, but leaks what it is told to: megabytes and descriptors a second.
LEAKY = """
import os, pathlib, signal, sys, time
folder, megabytes, descriptors, seconds = sys.argv[1], *map(float, sys.argv[2:5])
signal.signal(signal.SIGTERM, lambda *_: os._exit(130))
os.makedirs(folder)
begin, held, opened, steps = time.monotonic(), [], [], 0
with open(pathlib.Path(folder) / "metrics.csv", "w", buffering=1) as metrics:
    print("wall_seconds,env_steps", file=metrics)
    while (now := time.monotonic() - begin) < seconds:
        steps += 10**6
        print(f"{now},{steps}", file=metrics)
        while len(held) < megabytes * now:
            held.append(bytearray(b"x" * 10**6))
        while len(opened) < descriptors * now:
            opened.append(os.open("/dev/null", os.O_RDONLY))
        time.sleep(0.05)
sys.exit(3)
"""


@pytest.fixture
def leaky(tmp_path):
    """Runs a soak of 0.3 minutes on a program that leaks."""
    script = tmp_path / "leaky.py"
    script.write_text(LEAKY)

    def run(megabytes=0, descriptors=0, seconds=600):
        arguments = [str(megabytes), str(descriptors), str(seconds)]
        command = lambda job, settings, path: [sys.executable, str(script), str(path), *arguments]  # noqa: E731
        (tmp_path / "soak").mkdir()
        return soak.run(Plan(), 0.3, tmp_path / "soak", lambda line: None, command)

    return run


def noise(seed, size):
    return size * np.random.default_rng(seed).standard_normal(len(HOURS))


def samples(minutes, full_at, leak=0.0, slower=0.0):
    """A run whose replay of 1,000 is full after so many minutes; it then leaks MB/hour and slows down by %/hour."""
    found = []
    for tick in range(int(minutes * 60 / 5)):
        seconds = 5.0 * tick
        hours, filled = max(0.0, seconds - 60 * full_at) / 3600, min(1.0, seconds / (60 * full_at))
        found.append(Sample(seconds, "worker 0", "resident MB", 600 + 800 * filled + leak * hours))
        found.append(Sample(seconds, "worker 0", "descriptors", 40 + (tick % 24 == 0)))
        found.append(Sample(seconds, "run", "env_steps", 1_100 * seconds / (60 * full_at)))
        found.append(Sample(seconds, "run", "ms/agent step", 3.0 * (1 + slower / 100 * hours) + 0.1 * (tick % 3)))
    return found


def verdicts(found):
    return {f"{one['process']}, {one['what']}": one["verdict"] for one in found["growth"]}


def test_filling_replay_is_no_leak():
    found = report(samples(60, full_at=20), 1_000)
    assert found["verdict"] == "steady" and found["judged from minute"] == pytest.approx(30, abs=0.1)
    assert found["worker 0: resident MB"] == "+0 MB/hour, steady"
    assert set(verdicts(found).values()) == {"steady"} and len(found["growth"]) == 3


def test_a_leak_behind_it_is_found():
    found = report(samples(60, full_at=20, leak=100), 1_000)
    assert found["verdict"] == "grows"
    assert found["worker 0: resident MB"] == "+100 MB/hour, grows"
    assert verdicts(found)["worker 0, descriptors"] == "steady"


def test_a_run_that_slows_down_is_found_in_percent():
    found = report(samples(120, full_at=20, slower=10), 1_000)
    (one,) = (one for one in found["growth"] if one["process"] == "run")
    assert one["verdict"] == "grows" and one["value"] == pytest.approx(9, abs=1.5)


def test_an_allocator_that_settles_is_no_leak_in_a_few_minutes():
    memory = [
        Sample(seconds, "worker 0", "resident MB", 1_000 - 100 / (1 + seconds / 60)) for seconds in range(200, 600)
    ]
    found = growth(memory)
    assert found["low"] > found["bound"] and found["verdict"] == "unclear"


@pytest.mark.parametrize(("full_at", "minute"), [(40, 40), (10, 30)])
def test_it_is_judged_from_when_replay_is_full_or_from_the_middle(full_at, minute):
    assert judged_from(samples(60, full_at), 1_000) == pytest.approx(60 * minute, abs=5)


@pytest.mark.parametrize("found", [samples(60, full_at=50), samples(60, full_at=70), []])
def test_a_run_too_short_to_be_judged_is_refused(found):
    with pytest.raises(RunError, match="too short"):
        report(found, 1_000)


def test_the_slope_of_a_line_is_known_exactly():
    assert slope(HOURS, 500 + 30 * HOURS) == pytest.approx((30, 30, 30))


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_is_found_under_noise_and_noise_is_no_leak(seed):
    value, low, _ = slope(HOURS, 500 + 60 * HOURS + noise(seed, 10))
    assert value == pytest.approx(60, abs=10) and low > 20
    assert slope(HOURS, 500 + noise(seed, 10))[2] < 20


def test_limits_hold_the_slope_about_as_often_as_they_say():
    found = [slope(HOURS, 40 * HOURS + noise(seed, 10)) for seed in range(300)]
    assert 0.90 < np.mean([low <= 40 <= high for _, low, high in found]) < 0.99


def test_peaks_and_late_steps_are_no_leak():
    peaks = np.where(np.arange(len(HOURS)) % 12 == 0, 900.0, 500.0)  # as while a checkpoint is written
    late = np.where(HOURS > 0.8, 530.0, 500.0)
    assert slope(HOURS, peaks)[2] <= 1 and slope(HOURS, late)[2] <= 1


def test_what_has_too_few_points_is_refused():
    with pytest.raises(ValueError, match="7 points"):
        slope(range(7), range(7))
    with pytest.raises(RunError, match="ps 0, threads: 3 points"):
        growth([Sample(float(second), "ps 0", "threads", 1.0) for second in range(3)])


@pytest.mark.cluster
def test_a_program_that_leaks_is_found_and_ended(leaky, tmp_path):
    found = leaky(megabytes=20, descriptors=10)
    values = {one["what"]: one for one in found["growth"] if one["process"] == "leaky"}
    assert values["resident MB"]["value"] == pytest.approx(20 * 3600, rel=0.5)
    assert values["descriptors"]["value"] == pytest.approx(10 * 3600, rel=0.5)
    assert [one["verdict"] for one in values.values()] == ["grows", "grows", "steady"]
    with open(tmp_path / "soak" / "soak.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["what"] for row in rows} == {"resident MB", "descriptors", "threads", "env_steps", "ms/agent step"}
    assert not processes_naming(tmp_path)


@pytest.mark.cluster
def test_a_program_that_ends_by_itself_is_a_failure(leaky):
    with pytest.raises(RunError, match="exit code 3"):
        leaky(seconds=2)
