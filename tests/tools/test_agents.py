"""The listing of the algorithms: whole, true and narrow."""

import dataclasses

import pytest

from async_dqn.agents import table
from async_dqn.settings.config import Config
from async_dqn.tools import agents


def test_the_listing_fits_a_narrow_terminal_and_names_everything():
    text = agents.listing()
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    for name in table.TABLE:
        agent = table.find(name)
        assert f"{name} {agent.summary} presets: {', '.join(agent.presets)}" in words
        for field in dataclasses.fields(agent.Config):
            assert (f"--{field.name}" in words.replace("=", ",")) or hasattr(Config, field.name)


@pytest.mark.parametrize("name", table.TABLE)
def test_the_flags_of_an_agent_are_those_of_its_base_and_its_own(name):
    first, *rest = agents.flags(name).split(", ")
    base = first.removeprefix("those of ") if first.startswith("those of ") else ""
    inherited = set(agents._own_flags(base)) if base else {first.removeprefix("--")}
    found = inherited | {flag.removeprefix("--") for flag in rest}
    assert found == {f.name for f in dataclasses.fields(table.find(name).Config)} - {
        f.name for f in dataclasses.fields(Config)
    }


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("fast_dqn", ["one process"]),
        ("paac", ["one process", "parameter servers (sync)", "shared memory (sync)"]),
        (
            "nstep_q",
            ["one process", "parameter servers (async, sync, accumulate)", "shared memory (hogwild, locked, sync)"],
        ),
    ],
)
def test_the_ways_to_train_are_those_that_the_settings_take(name, ways):
    assert agents.ways(table.find(name)) == ways
