"""Tests of soaks: made-up samples, programs that leak on purpose, and a short one of a real cluster."""

import csv
import json
import sys
from collections.abc import Iterator

import psutil
import pytest
from cluster_helpers import processes_naming

from async_dqn.base.errors import RunError, UserError
from async_dqn.run.csv_log import METRIC_FIELDS
from async_dqn.settings.config import PRESETS
from async_dqn.tools.bench import soak
from async_dqn.tools.bench.soak import Sample, growth, judged_from, last_row, report
from async_dqn.tools.bench.work import Plan

# Learns nothing, but leaks what it is told to: megabytes and descriptors a second.
LEAKY = f"""
import os, pathlib, signal, sys, time
folder, megabytes, descriptors, seconds = sys.argv[1], *map(float, sys.argv[2:])
signal.signal(signal.SIGTERM, lambda *_: os._exit(130))
os.makedirs(folder)
begin, held, opened, steps = time.monotonic(), [], [], 0
with open(pathlib.Path(folder) / "metrics.csv", "w", buffering=1) as metrics:
    print({",".join(METRIC_FIELDS)!r}, file=metrics)
    while (now := time.monotonic() - begin) < seconds:
        steps += 10**6
        print(f"{{now}},{{steps}}," + ",".join("0" * {len(METRIC_FIELDS) - 2}), file=metrics)
        while len(held) < megabytes * now:
            held.append(bytearray(b"x" * 10**6))
        while len(opened) < descriptors * now:
            opened.append(os.open("/dev/null", os.O_RDONLY))
        time.sleep(0.05)
sys.exit(3)
"""


@pytest.fixture
def leaky(tmp_path):
    """Makes the command line of a program that leaks."""
    script = tmp_path / "leaky.py"
    script.write_text(LEAKY)

    def make(megabytes: float = 0, descriptors: float = 0, seconds: float = 600):
        return lambda settings, path: [sys.executable, script, path, str(megabytes), str(descriptors), str(seconds)]

    return make


def samples(minutes: float, full_at: float, leak: float = 0.0, slower: float = 0.0) -> Iterator[Sample]:
    """A run whose replay of 1,000 is full after so many minutes; it then leaks MB/hour and slows down by %/hour."""
    for tick in range(int(minutes * 60 / 5)):
        seconds = 5.0 * tick
        hours = max(0.0, seconds - 60 * full_at) / 3600
        filled = min(1.0, seconds / (60 * full_at))
        yield Sample(seconds, "worker 0", "resident MB", 600 + 800 * filled + leak * hours)
        yield Sample(seconds, "worker 0", "descriptors", 40 + (tick % 24 == 0))
        yield Sample(seconds, "worker 0", "threads", 30)
        yield Sample(seconds, "run", "env_steps", 1_100 * seconds / (60 * full_at))
        yield Sample(seconds, "run", "ms/agent step", 3.0 * (1 + slower / 100 * hours) + 0.1 * (tick % 3))


def verdicts(found: list[soak.Growth]) -> dict[str, str]:
    return {f"{one.process}, {one.quantity.what}": one.verdict for one in found}


def test_filling_replay_is_no_leak():
    found = report(list(samples(60, full_at=20)), 1_000)
    assert found["verdict"] == "steady" and found["judged from minute"] == pytest.approx(30, abs=0.1)
    assert found["worker 0: resident MB"] == "+0 MB/hour, steady"
    assert {one["verdict"] for one in found["growth"]} == {"steady"} and len(found["growth"]) == 4


def test_a_leak_behind_it_is_found():
    found = report(list(samples(60, full_at=20, leak=100)), 1_000)
    assert found["verdict"] == "grows"
    assert found["worker 0: resident MB"] == "+100 MB/hour, grows"
    assert found["worker 0: descriptors"].endswith("steady")


def test_an_allocator_that_settles_is_no_leak_in_a_few_minutes():
    memory = [Sample(seconds, "worker 0", "resident MB", 1_000 - 100 / (1 + seconds / 60)) for seconds in range(600)]
    (found,) = growth(memory, 200)
    assert found.slope.low > 20 and found.verdict == "unclear"


def test_a_run_that_slows_down_is_found_in_percent():
    found = growth(list(samples(120, full_at=20, slower=10)), 1_200)
    assert verdicts(found)["run, ms/agent step"] == "grows"
    assert next(one.slope.value for one in found if one.process == "run") == pytest.approx(9, abs=1.5)


def test_it_is_judged_from_when_replay_is_full_or_from_the_middle():
    assert judged_from(list(samples(60, full_at=40)), 1_000) == pytest.approx(2_400, abs=5)
    assert judged_from(list(samples(60, full_at=10)), 1_000) == pytest.approx(1_800, abs=5)


@pytest.mark.parametrize(
    ("full_at", "when"), [(50, "full after 50.0 of 59.9 minutes"), (70, "not full in the end of 59.9 minutes")]
)
def test_a_run_too_short_to_be_judged_is_refused(full_at, when):
    with pytest.raises(RunError) as caught:
        report(list(samples(60, full_at=full_at)), 1_000)
    assert str(caught.value) == f"too short to be judged: replay was {when}"


def test_no_samples_are_refused():
    with pytest.raises(RunError, match="too short"):
        judged_from([], 1_000)
    with pytest.raises(RunError, match="^worker 0, resident MB: 3 points are too few"):
        growth(list(samples(0.25, full_at=0.1)), 0.0)


def test_the_last_whole_row_is_read(tmp_path):
    path = tmp_path / "metrics.csv"
    assert last_row(path) is None
    header, rest = ",".join(METRIC_FIELDS), ",".join([""] * (len(METRIC_FIELDS) - 2))
    path.write_text(f"{header}\n")
    assert last_row(path) is None
    path.write_text(f"{header}\n" + "".join(f"{row / 2},{row * 8},{rest}\n" for row in range(1_000)) + "500.0,81")
    assert last_row(path) == {"wall_seconds": 499.5, "env_steps": 7992}


@pytest.mark.cluster
def test_a_program_that_leaks_is_found_and_ended(leaky, tmp_path):
    said = []
    found = soak.run(Plan(say=said.append), 0.1, tmp_path / "soak", leaky(megabytes=50, descriptors=10))
    values = {one["what"]: one for one in found["growth"] if one["process"] == "leaky"}
    assert values["resident MB"]["value"] == pytest.approx(50 * 3600, rel=0.5)
    assert values["descriptors"]["value"] == pytest.approx(10 * 3600, rel=0.5)
    assert values["threads"]["value"] == 0
    assert [values[what]["verdict"] for what in ("resident MB", "descriptors", "threads")] == [
        "grows",
        "grows",
        "steady",
    ]
    assert found["verdict"] == "grows"
    with open(tmp_path / "soak" / "soak.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["what"] for row in rows} == {"resident MB", "descriptors", "threads", "env_steps", "ms/agent step"}
    assert not processes_naming(tmp_path)


@pytest.mark.cluster
def test_a_program_that_does_not_leak_is_not_found(leaky, tmp_path):
    found = soak.run(Plan(), 0.1, tmp_path / "soak", leaky())
    values = {one["what"]: one for one in found["growth"] if one["process"] == "leaky"}
    assert (values["resident MB"]["value"], values["descriptors"]["value"], values["threads"]["value"]) == (0, 0, 0)
    assert not processes_naming(tmp_path)


@pytest.mark.cluster
def test_a_program_that_ends_by_itself_is_a_failure(leaky, tmp_path):
    with pytest.raises(RunError, match="^after [0-9]+ s it ended with exit code 3: it said nothing$"):
        soak.run(Plan(), 1, tmp_path / "soak", leaky(seconds=0.5))


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "soak.csv").touch()
    with pytest.raises(UserError, match="holds a soak already; give another folder"):
        soak.run(Plan(), 1, tmp_path)


@pytest.mark.cluster
def test_a_short_soak_of_a_real_cluster(tmp_path):
    """A minute cannot tell 20 MB an hour from none; it tells that no update, minibatch or step is kept as a whole.

    The bound is for each update, so that it is the same on a fast machine: an update has 72 KB here. TensorFlow's
    distributed runtime itself keeps some 100 bytes of each of its steps, so about 1 KB of each update. A single thread
    that comes late is no leak, though it looks like fifty an hour here; one for each checkpoint would be 720.
    """
    small = {"env": "CartPole-v1", **PRESETS["cartpole"], "replay_capacity": 2_000, "checkpoint_period": 5.0}
    found = soak.run(Plan(overrides=small | {"total_steps": 10**9}), 1.25, tmp_path / "soak")
    summary = json.loads((tmp_path / "soak" / "run" / "summary.json").read_text())
    assert summary["exit_reason"] == "interrupted"
    updates_per_hour = 3600 * summary["updates"] / summary["wall_seconds"]
    assert {one["process"] for one in found["growth"]} == {"launcher", "worker 0", "worker 1", "ps 0", "run"}
    for one in found["growth"]:
        if one["what"] == "resident MB":
            assert 1e6 * one["low"] / updates_per_hour < 5_000, one
        elif one["what"] in ("descriptors", "threads"):
            assert one["verdict"] != "grows", one
    assert not processes_naming(tmp_path) and not psutil.Process().children()
