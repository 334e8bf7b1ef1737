"""All pairs of options of every agent: each is taken, or refused at the start by one line that names both."""

import contextlib
import dataclasses
import io
import itertools
import os
import threading

import pytest

from async_dqn.agents import table
from async_dqn.cli import main
from async_dqn.run import build
from async_dqn.run.directory import RunDirectory
from async_dqn.store.local import LocalParameterStore
from async_dqn.system import signals

# Of each setting the values that are tried: all that change which parts there are, and how they come together.
OPTIONS = {
    "store": ["shared_memory"],
    "update_mode": ["async", "sync", "accumulate", "hogwild", "locked"],
    "backup_workers": [1],
    "accumulate": [2],
    "local_steps": [2],
    "averages": ["shared"],
    "wire_dtype": ["bfloat16"],
    "shared_memory": [False],
    "overlap": [True],
    "max_staleness": [3],
    "num_workers": [1, 3],
    "num_ps": [2],
    "replay": ["global"],
    "parallelism": ["data"],
    "planning": ["own", "separate"],
    "queue_size": [3],
    "send_period": [5],
    "rollouts_per_batch": [2],
    "vtrace": [False],
    "share_torso": [False],
    "lstm": [True],
    "sarsa": [True],
    "prioritized": [True],
    "priority_exponent": [0.3],
    "noisy": [True, False],
    "exploration": ["ape_x", "drawn"],
    "epsilon_final": [0.2],
    "overlap_steps": [True],
    "concurrent": [False],
    "synchronized": [False],
    "sweeping": ["prioritized"],
    "layer_norm": [True],
    "normalize_observations": [True],
    "dueling": [True],
    "compute_dtype": ["bfloat16"],
    "optimizer": ["rmsprop", "adam"],
    "rmsprop_decay": [0.9],
    "final_learning_rate": [-1.0],
    "learning_rate_steps": [50],
    "env_processes": [True],
    "env_timeout": [5.0],
}


class Other:
    """All values but these."""

    def __init__(self, *values):
        self._values = values

    def __contains__(self, value):
        return value not in self._values


# An option that is given with one of these values does not go with another that has one of those.
RULES = [
    ("update_mode", ["async", "accumulate"], "store", ["shared_memory"]),
    ("update_mode", ["hogwild", "locked"], "store", ["ps"]),
    ("local_steps", Other(0), "store", ["shared_memory"]),
    ("local_steps", Other(0), "update_mode", ["sync", "accumulate"]),
    ("averages", ["shared"], "local_steps", [0]),
    ("backup_workers", Other(0), "update_mode", Other("sync")),
    ("backup_workers", [1], "num_workers", [1]),
    ("accumulate", Other(0), "update_mode", Other("accumulate")),
    ("update_mode", ["accumulate"], "accumulate", [0]),
    ("overlap", [True], "update_mode", ["sync", "hogwild"]),
    ("max_staleness", Other(0), "update_mode", ["sync"]),
    ("wire_dtype", ["bfloat16"], "store", ["shared_memory"]),
    ("shared_memory", [False], "store", ["shared_memory"]),
    ("num_ps", Other(0), "store", ["shared_memory"]),
    ("queue_size", Other(2), "replay", ["local"]),
    ("queue_size", Other(2), "parallelism", ["gradient"]),
    ("send_period", Other(16), "replay", ["local"]),
    ("queue_size", Other(2), "planning", ["own"]),
    ("send_period", Other(16), "planning", ["own"]),
    ("rollouts_per_batch", Other(1), "parallelism", ["gradient"]),
    ("vtrace", [False], "parallelism", ["gradient"]),
    ("priority_exponent", [0.3], "prioritized", [False]),
    ("exploration", Other("shared"), "noisy", [True]),
    ("epsilon_final", [0.2], "noisy", [True]),
    ("epsilon_final", [0.2], "exploration", Other("shared")),
    ("noisy", [True], "synchronized", [False]),
    ("rmsprop_decay", [0.9], "optimizer", Other("rmsprop", "centered_rmsprop")),
    ("learning_rate_steps", Other(0), "final_learning_rate", [-1.0]),
    ("env_timeout", Other(60.0), "env_processes", [False]),
    ("overlap_steps", [True], "replay", ["global"]),
    ("overlap_steps", [True], "parallelism", ["data"]),
]
# With more than one worker, where all but the first only act, or all make each update together.
CLUSTER_RULES = [
    ("replay", ["global"], "update_mode", ["sync"]),
    ("parallelism", ["data"], "update_mode", ["sync"]),
    ("planning", ["separate"], "store", ["shared_memory"]),
    ("planning", ["separate"], "update_mode", Other("async")),
    ("planning", ["separate"], "averages", ["shared"]),
    ("planning", ["separate"], "max_staleness", Other(0)),
    ("planning", ["separate"], "replay", ["global"]),
    ("update_mode", Other("sync"), "agent", ["paac"]),
]
ALONE = {  # how a run in one process shares its work
    "store": "ps",
    "update_mode": "auto",
    "local_steps": 0,
    "averages": "own",
    "backup_workers": 0,
    "accumulate": 0,
    "wire_dtype": "float32",
    "shared_memory": True,
    "overlap": False,
    "max_staleness": 0,
    "num_workers": 1,
    "num_ps": 1,
    "replay": "local",
    "parallelism": "gradient",
    "planning": "auto",
}
LACKS = {  # some of what agents have no flags for
    "dqn": ["parallelism", "vtrace", "sarsa", "concurrent"],
    "fast_dqn": ["overlap_steps"],
    "dyna_q": ["noisy", "prioritized", "priority_exponent"],
    "nstep_q": ["replay", "queue_size", "prioritized"],
    "pqn": ["replay", "queue_size", "parallelism"],
    "paac": ["parallelism", "rollouts_per_batch", "queue_size", "vtrace"],
    "ppo": ["replay", "send_period", "noisy", "exploration", "epsilon_final", "lstm"],
}


def settings_of(agent, given):
    """The defaults, the preset, what is given, and what that decides of the rest."""
    cls = table.find(agent)
    settings = {field.name: field.default for field in dataclasses.fields(cls.Config)}
    settings |= {**cls.presets["cartpole"], **given, "agent": agent}
    is_shared = settings["store"] == "shared_memory"
    if is_shared:
        settings["num_ps"] = given.get("num_ps", 0)
    if settings["update_mode"] == "auto":
        in_memory = {"a3c": "locked", "paac": "sync"}.get(agent, "hogwild")
        settings["update_mode"] = in_memory if is_shared or agent == "paac" else "async"
    if settings["update_mode"] != "async":
        settings["local_steps"] = given.get("local_steps", 0)
    return settings


def violated(agent, command, given):
    """Pairs of words: what of the given does not go with what."""
    settings = settings_of(agent, given)
    found = []
    if command == "baseline":
        settings |= {"update_mode": "async", "num_workers": 1}
        found = [(f"--{name}=", "baseline") for name, value in given.items() if ALONE.get(name, value) != value]
    for name, values, other, unwanted in RULES + CLUSTER_RULES * (settings["num_workers"] > 1):
        if other == "replay" and "planning" in settings and name in ("queue_size", "send_period"):
            continue  # planners have queues too
        if name in given and given[name] in values and other in settings and settings[other] in unwanted:
            found.append((f"--{name}=", f"--{other}"))
    return found


def own_options(agent):
    """The options of an agent, each (name, value)."""
    names = {field.name for field in dataclasses.fields(table.find(agent).Config)}
    return [(name, value) for name, values in OPTIONS.items() if name in names for value in values]


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """The settings of the runs that were begun; in place of them, what each worker is made of is built."""
    configs, built = [], set()

    def run_local(config, run, flags, *, memory, inherited, **options):
        del run, flags, options
        configs.append(config)
        for worker in {0, config.num_workers - 1}:
            agent = build.make_agent(config, worker)
            way = (config.mode, config.overlap, config.max_staleness, build.part_of(config, worker))
            if way not in built and not config.local_steps:  # deltas take a hundred times as long to be built
                built.add(way)
                modules = build.store_modules(agent)
                build.make_client(agent, memory or LocalParameterStore(modules, 100, agent.target_period))
        for descriptor in [*inherited, *([memory.descriptor] if memory else [])]:
            os.close(descriptor)
        return 0

    def run_baseline(agent, run, **options):
        del run, options
        configs.append(agent.config)
        return 0

    monkeypatch.setattr("async_dqn.roles.local.run_local", run_local)
    monkeypatch.setattr("async_dqn.roles.baseline.run_baseline", run_baseline)
    monkeypatch.setattr(main, "quiet_stderr", contextlib.nullcontext)
    monkeypatch.setattr(RunDirectory, "create", lambda run: None)
    monkeypatch.setattr(RunDirectory, "claimed", lambda run, say, **how: contextlib.nullcontext([]))
    monkeypatch.setattr(signals, "install", threading.Event)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return configs


def call(*arguments):
    """The exit code of a command, and what it says on standard error."""
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        return main.main(arguments), told.getvalue()


def fault(begun, agent, command, options):
    """What is wrong with how a command takes these options; empty: nothing."""
    given = dict(options)
    begun.clear()
    flags = [f"--{name}={value}" for name, value in options]
    code, told = call(command, "--env=CartPole-v1", f"--agent={agent}", *flags)
    reasons = violated(agent, command, given)
    if not reasons:
        taken = code == 0 and [{name: getattr(config, name) for name in given} for config in begun] == [given]
        return "" if taken else f"{agent} {flags}: {code} {told}"
    named = any(all(word in told for word in reason) for reason in reasons)
    is_refused = code == 2 and not begun and told.startswith("async-dqn: ") and told.count("\n") == 1
    return "" if is_refused and named else f"{agent} {flags}: {code} {told or 'taken'}; expected {reasons}"


@pytest.mark.parametrize("agent", table.TABLE)
def test_every_pair_of_options_is_taken_or_refused_with_one_line(begun, agent):
    command = "local" if table.find(agent).distributed else "baseline"
    options = own_options(agent)
    pairs = [pair for pair in itertools.combinations(options, 2) if pair[0][0] != pair[1][0]]
    faults = [fault(begun, agent, command, given) for given in [*([one] for one in options), *pairs]]
    assert not [one for one in faults if one]


@pytest.mark.parametrize("agent", table.TABLE)
def test_every_option_is_taken_by_the_baseline_or_refused_with_one_line(begun, agent):
    faults = [fault(begun, agent, "baseline", [option]) for option in own_options(agent)]
    assert not [one for one in faults if one]


@pytest.mark.parametrize("agent", table.TABLE)
def test_an_option_that_an_agent_has_not_is_refused_with_one_line_that_names_both(begun, agent):
    lacking = OPTIONS.keys() - {name for name, _ in own_options(agent)}
    assert lacking >= {*LACKS.get(agent, [])}
    for name in lacking:
        code, told = call("baseline", "--env=CartPole-v1", f"--agent={agent}", f"--{name}={OPTIONS[name][0]}")
        assert (code, told.count("\n"), begun) == (2, 1, [])
        assert f"--{name}:" in told and f"--agent={agent}" in told, told


def test_an_agent_that_trains_in_one_process_is_refused_elsewhere(begun):
    code, told = call("local", "--env=CartPole-v1", "--agent=fast_dqn")
    assert (code, told.count("\n"), begun) == (2, 1, []) and "baseline" in told
