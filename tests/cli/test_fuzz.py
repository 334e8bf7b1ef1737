"""Whatever is given as flags, cluster spec, TF_CONFIG, config.json or checkpoint, bad input ends as one line."""

import contextlib
import dataclasses
import io
import json
import os
import tempfile
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from async_dqn.agents import table
from async_dqn.base.errors import UserError
from async_dqn.cli import main
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.run import checkpoints
from async_dqn.run.directory import RunDirectory
from async_dqn.system import signals

LONGEST = 600

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def fuzz(examples):
    """The same examples at every run, so that a failure is one of the change that is tested."""
    shared = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=shared, database=None)


# What has broken programs before. Surrogates are how Python shows arguments that are no UTF-8.
HARD_TEXT = [
    "",
    " ",
    "\0",
    "a\nb\r\nc",
    "\x1b[31mred\x07",
    "\u2028\u202e\ufeff",
    "\ud800",
    "\udcff",
    "\u0663",
    "\u00b2",
    "\U0001f4a5",
    "%s%n{0}",
    "../..",
    "a" * 300,
    "a" * 100_000,
    "--",
    "-1",
    "=",
    "None",
    "null",
    "[]",
    "{}",
    ":",
    ".:x",
    "a:b:c",
    "/",
    "/dev/null",
    "/dev/null/x",
    "/dev/zero",
    "/proc/self/mem",
    ".",
    "~",
]
HARD_NUMBERS = [
    "0",
    "-0",
    "-1",
    "1",
    "1e400",
    "-1e400",
    "1e308",
    "1e30",
    "1e-320",
    "nan",
    "-nan",
    "inf",
    "-inf",
    "Infinity",
    "0x10",
    "1_000",
    "1__0",
    "1.5",
    "1e6",
    "9" * 30,
    "9" * 5_000,
    "\u0661\u0662",
    "1,2",
    "9" * 30 + ",0",
    "9" * 5_000 + ",0",
]
TEXT = st.sampled_from(HARD_TEXT) | st.sampled_from(HARD_NUMBERS) | st.text(st.characters(codec=None), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
HARD_FILES = [
    b"",
    b"\xff\xfe\0",
    b"\xef\xbb\xbf{}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"9" * 10_000,
    b'"' + b"a" * 100_000 + b'"',
    b'{"ps": ["\\ud800:1"], "worker": ["\\u0000:2"]}',
    b"{%s}" % b",".join(b'"%d": 0' % index for index in range(100_000)),
]


def check_line(line):
    assert line.isprintable(), ascii(line)
    assert len(line) <= LONGEST, len(line)


def only_user_errors(function, *arguments):
    """The function's value, or None where it raised a UserError of one line."""
    try:
        return function(*arguments)
    except UserError as error:
        check_line(str(error))
        return None


@st.composite
def mutated(draw, good):
    """JSON like a good one, with one to three places changed."""
    value = json.loads(json.dumps(good))
    for _ in range(draw(st.integers(1, 3))):
        here = value
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(here[key], dict | list) and draw(st.booleans()):
                here = here[key]
                continue
            change = draw(st.sampled_from(["replace", "remove", "repeat", "rename"]))
            if change == "remove":
                del here[key]
            elif change == "repeat" and isinstance(here, list):
                here.append(here[key])
            elif change == "rename" and isinstance(here, dict):
                here[draw(TEXT)] = here.pop(key)
            else:
                here[key] = draw(JSON | TEXT)
            break
    return json.dumps(value).encode()


@st.composite
def spoiled(draw, good):
    """Bytes like good ones, cut short, or with some overwritten."""
    content = bytearray(good)
    for _ in range(draw(st.integers(0, 3))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content[: draw(st.integers(0, len(content)))])


def contents(good):
    """Contents of a JSON file, of all degrees of badness."""
    return (
        st.sampled_from(HARD_FILES)
        | st.binary(max_size=50)
        | JSON.map(lambda value: json.dumps(value).encode())
        | mutated(good)
        | spoiled(json.dumps(good).encode())
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


SPEC = {"ps": ["a:1", "[::1]:65535"], "worker": ["b.example:1", "127.0.0.1:80", "b:3"]}


@fuzz(200)
@given(content=contents(SPEC) | contents({"cluster": SPEC}))
def test_any_cluster_spec_is_read_or_refused_in_one_line(folder, content):
    Path("spec.json").write_bytes(content)
    spec = only_user_errors(ClusterSpec.load, "spec.json")
    assert spec is None or ClusterSpec(**{job: tuple(names) for job, names in spec.to_dict().items()}) == spec


@fuzz(200)
@given(content=contents({"cluster": SPEC, "task": {"type": "worker", "index": 1}}))
def test_any_tf_config_is_read_or_refused_in_one_line(content):
    read = only_user_errors(ClusterSpec.from_tf_config, content.decode(errors="surrogateescape"))
    if read is not None:
        spec, job, index = read
        assert job is None or spec.address(job, index or 0)


@fuzz(150)
@given(
    content=contents({"config": {"seed": 1}})
    | st.sampled_from([table.find(name).Config(agent=name).to_dict() for name in table.TABLE]).flatmap(
        lambda config: contents({"format": 2, "config": config, "versions": {}})
    )
)
def test_any_config_json_is_read_or_refused_in_one_line(folder, content):
    run = RunDirectory("run")
    run.create()
    run.config.write_bytes(content)
    config = only_user_errors(run.read_config)
    assert config is None or table.config_from_dict(config.to_dict()) == config
    only_user_errors(run.check_resumable)


def saved(directory, number):
    arrays = {"store/q/online": np.arange(3, dtype=np.float32), "slot/q/m": np.zeros((2, 0))}
    return checkpoints.save(directory, number, arrays, {"wall_seconds": 1.5, "agent": {"rng": [1, None]}}, keep=9)


with tempfile.TemporaryDirectory() as _name:
    _path = saved(Path(_name), 20)
    SAVED_JSON = json.loads(_path.read_text())
    SAVED_NPZ = _path.with_suffix(".npz").read_bytes()


@fuzz(150)
@given(text=contents(SAVED_JSON) | st.just(json.dumps(SAVED_JSON).encode()), packed=spoiled(SAVED_NPZ))
def test_any_checkpoint_is_read_or_passed_over_with_one_line(text, packed):
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        saved(directory, 10)
        (directory / "000000000020.json").write_bytes(text)
        (directory / "000000000020.npz").write_bytes(packed)
        newest, faults = checkpoints.load_newest(directory)
        assert newest is not None
        assert (newest.number, len(faults)) in [(10, 1), (20, 0)]
        for fault in faults:
            check_line(fault)


@fuzz(100)
@given(
    files=st.dictionaries(
        st.sampled_from(["000000000020", "000000000030", "\u00b2", ".000000000020.json.1.tmp", "0" * 200])
        .flatmap(lambda stem: st.sampled_from([f"{stem}.json", f"{stem}.npz", stem]))
        .filter(lambda name: len(name) < 250),
        st.sampled_from([None, b"", SAVED_NPZ, json.dumps(SAVED_JSON).encode()]),
    )
)
def test_any_folder_of_checkpoints_is_read_and_saved_to(files):
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file, content in files.items():
            (directory / file).mkdir() if content is None else (directory / file).write_bytes(content)
        newest, faults = checkpoints.load_newest(directory)
        text = json.dumps(SAVED_JSON).encode()
        texts = [files.get("000000000020.json"), files.get(".000000000020.json.1.tmp")]  # this: a save cut short
        assert (newest is not None) == (files.get("000000000020.npz") == SAVED_NPZ and text in texts)
        for fault in faults:
            check_line(fault)
        saved(directory, 40)
        again, faults = checkpoints.load_newest(directory)
        assert again is not None
        assert (again.number, faults) == (40, [])


@pytest.fixture
def calm(folder, monkeypatch):
    """Commands run up to where they would start something: stand-ins do nothing and give exit code 0."""
    monkeypatch.setattr(main, "quiet_stderr", contextlib.nullcontext)
    monkeypatch.setattr(RunDirectory, "create", lambda run: None)
    monkeypatch.setattr(RunDirectory, "claimed", lambda run, say, **how: contextlib.nullcontext([]))
    monkeypatch.setattr(signals, "install", threading.Event)
    monkeypatch.setattr("async_dqn.run.preflight.resolve", lambda config: None)
    monkeypatch.setattr("async_dqn.run.preflight.check_memory", lambda *arguments: "")
    monkeypatch.setattr("async_dqn.run.build.make_agent", mock.MagicMock())
    for start in (
        "roles.baseline.run_baseline",
        "roles.local.run_local",
        "roles.ps.run_ps",
        "roles.worker.run_worker",
        "tools.doctor.run.run_doctor",
        "tools.bench.command.run_bench",
        "tools.report.compare.run_compare",
        "tools.evaluate.run_evaluate",
        "tools.export.run_export",
    ):
        monkeypatch.setattr(f"async_dqn.{start}", lambda *arguments, **options: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    (folder / "spec.json").write_text(json.dumps({"ps": ["127.0.0.1:59998"], "worker": ["127.0.0.1:59999"]}))
    return folder


def call(arguments):
    """Runs a command; asserts that it ends well, or as bad input should."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)  # as Python makes them
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True, errors="backslashreplace")
    before = sorted(os.listdir())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main.main(arguments)
        except SystemExit as error:  # not an Exception, so not seen as a fault otherwise
            raise AssertionError(f"SystemExit: {error}") from error
    printed, told = (stream.buffer.getvalue().decode() for stream in (out, err))
    assert sorted(os.listdir()) == before
    assert code != 1, told
    if code == 2:
        (line,) = told.split("\n")[:-1]
        assert line.startswith("async-dqn: ")
        assert "Traceback" not in line
        check_line(line)
        assert printed == ""
    else:
        assert told == ""
    return code


SETTINGS = sorted({field.name for name in table.TABLE for field in dataclasses.fields(table.find(name).Config)})
OTHER_FLAGS = sorted(
    {"preset", "resume", "logdir", "verbose", "cluster_spec", "task_index"}
    | {name for command in main.COMMANDS.values() for name, *_ in command.options}
)
FOREIGN_FLAGS = ["flagfile", "undefok", "help", "helpfull", "helpxml", "no", "", "?", "h"]
ENVS = ["CartPole-v1", "pong", "ALE/Pong-v5", "Pendulum-v1", "CliffWalking-v1", "Blackjack-v1", "CartPole-v99"]


@st.composite
def flag(draw):
    name = draw(st.sampled_from(SETTINGS) | st.sampled_from([*OTHER_FLAGS, *FOREIGN_FLAGS, *ENVS[:1]]) | TEXT)
    value = draw(
        TEXT | st.sampled_from([*HARD_NUMBERS, *ENVS, "true", "auto", "nature", "ppo", "json:X", "spec.json", "run"])
    )
    form = draw(st.sampled_from(["--{}={}", "--{}={}", "--{}={}", "-{}={}", "--no{}", "--{}", "--no{}={}", "{}={}"]))
    return form.replace("{}", name, 1).replace("{}", value, 1)


@fuzz(500)
@given(
    command=st.sampled_from([*main.COMMANDS, *main.COMMANDS, "", "help", "\0"]),
    start=st.sampled_from([[], ["--env=CartPole-v1"], ["--cluster_spec=spec.json", "--task_index=0"]]),
    flags=st.lists(flag() | TEXT, max_size=4),
    tf_config=st.none()
    | st.sampled_from(["", "{}", "\udcff", '{"cluster":{"ps":["127.0.0.1:59998"],"worker":["127.0.0.1:59999"]}}']),
)
def test_any_arguments_are_taken_or_refused_in_one_line(calm, monkeypatch, command, start, flags, tf_config):
    with monkeypatch.context() as patch:
        if tf_config is not None:
            patch.setattr(os, "environ", os.environ | {"TF_CONFIG": tf_config})
        call([command, *start, *flags])


@pytest.mark.parametrize("name", sorted({*SETTINGS, *OTHER_FLAGS, "flagfile", "undefok"}))
def test_every_flag_bears_hard_values(calm, name):
    agents = [agent for agent in table.owners(name) or table.TABLE if name != "agent"] or ["dqn"]
    cartpole = [] if name == "preset" else ["--preset=cartpole"]
    starts = [["local", *cartpole, f"--agent={agents[0]}"]]
    starts += [
        [command]
        for command, described in main.COMMANDS.items()
        if not described.trains and name in {"logdir", "verbose", *(option for option, *_ in described.options)}
    ]
    for value in (*HARD_TEXT, *HARD_NUMBERS):
        for start in starts:
            call([*start, f"--{name}={value}"])


@pytest.mark.parametrize("text", HARD_TEXT)
def test_any_text_in_place_of_the_command_or_of_a_flag(calm, text):
    call([text])
    call(["local", text])
    call(["local", f"--{text}"])
    call(["local", f"--{text}={text}"])
    call(["plot", text, text])
