"""Tests of async_dqn.tools.doctor.checks."""

import threading

import pytest

from async_dqn.tools.doctor import checks


def test_one_check_at_a_time_imports_what_may_fail_and_each_is_told_why(monkeypatch):
    inside, second = [], threading.Event()
    told = []

    def broken(name):
        inside.append(name)
        if len(inside) > 1:
            second.set()
        overlaps = second.wait(0.3)
        inside.remove(name)
        raise ImportError(f"no gymnasium today{', half imported' * overlaps}")

    def check():
        with pytest.raises(ImportError) as raised:
            checks.preflight()
        told.append(str(raised.value))

    monkeypatch.setattr(checks.importlib, "import_module", broken)
    threads = [threading.Thread(target=check) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert told == ["no gymnasium today"] * 2
