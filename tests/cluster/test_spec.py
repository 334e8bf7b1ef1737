"""Tests of async_dqn.cluster.spec."""

import json
import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.base.errors import UserError
from async_dqn.cluster.spec import ClusterSpec, check_port, wait_until_reachable

SHIPPED = sorted((Path(__file__).parents[2] / "cluster_specs").glob("*.json"))

GOOD = {"ps": ["a:1"], "worker": ["b:1", "b:2"]}


def _write(folder: Path, content: object) -> Path:
    path = folder / "spec.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def _message(call, *args) -> str:
    with pytest.raises(UserError) as caught:
        call(*args)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.isprintable()
    return message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["not JSON", "line 1"]),
        ('{"ps":\n["a:1"],\n]', ["not JSON", "line 3"]),
        ("[" * 100_000, ["reasonable size"]),
        ("9" * 10_000, ["reasonable size"]),
        ('{"ps": ["a:1"], "ps": ["a:2"], "worker": ["a:3"]}', ["'ps' twice"]),
        ([], ["[]", "not an object"]),
        (3, ["3", "not an object"]),
        ({}, ["no ps", "host:port"]),
        ({"worker": ["a:1"]}, ["no ps"]),
        ({"ps": [], "worker": ["a:1"]}, ["no ps"]),
        ({"ps": ["a:1"]}, ["no worker"]),
        ({"ps": ["a:1"], "worker": []}, ["no worker"]),
        ({**GOOD, "workers": ["a:1"]}, ["unknown job 'workers'", '"ps" or "worker"']),
        ({**GOOD, "a\nb": []}, [r"'a\nb'"]),
        ({**GOOD, "chief": ["a:9", "a:8"]}, ["2 chiefs", "can be one"]),
        ({**GOOD, "chief": "a:9"}, ["\"chief\" is 'a:9'", "list"]),
        ({**GOOD, "chief": ["a:1"]}, ["worker 0 repeats the address of ps 0"]),
        ({**GOOD, "ps": "a:1"}, ["\"ps\" is 'a:1'", "list"]),
        ({**GOOD, "ps": {"0": "a:1"}}, ['"ps" is', "list"]),
        ({**GOOD, "ps": [2222]}, ["ps 0 is 2222", "string"]),
        ({**GOOD, "ps": [None]}, ["ps 0 is None", "string"]),
        ({**GOOD, "ps": ["a"]}, ["ps 0 is 'a'", '"host:port"']),
        ({**GOOD, "ps": [":1"]}, ["ps 0 is ':1'", '"host:port"']),
        ({**GOOD, "ps": ["a:"]}, ["ps 0 is 'a:'", '"host:port"']),
        ({**GOOD, "ps": ["a:b"]}, ["ps 0 is 'a:b'", '"host:port"']),
        ({**GOOD, "ps": ["a:1\n"]}, [r"'a:1\n'", '"host:port"']),
        ({**GOOD, "ps": ["a..b:1"]}, ["ps 0 is 'a..b:1'", "empty or too long"]),
        ({**GOOD, "ps": [f"{64 * 'a'}.b:1"]}, ["ps 0 is 'aaa", "empty or too long"]),
        ({**GOOD, "ps": ["a b:1"]}, ["'a b:1'", '"host:port"']),
        ({**GOOD, "ps": ["http://a:1"]}, ["'http://a:1'", '"host:port"']),
        ({**GOOD, "ps": ["::1:2222"]}, ["'::1:2222'", "[IPv6 address]:port"]),
        ({**GOOD, "ps": ["[a]:2222"]}, ["'[a]:2222'", "[IPv6 address]:port"]),
        ({**GOOD, "ps": ["a:0"]}, ["'a:0'", "1 to 65535"]),
        ({**GOOD, "ps": ["a:65536"]}, ["'a:65536'", "1 to 65535"]),
        ({**GOOD, "worker": ["b:1", "b:" + "9" * 9999]}, ["worker 1", "1 to 65535"]),
        ({**GOOD, "worker": ["b:1", "b:1"]}, ["worker 1", "worker 0", "b:1"]),
        ({**GOOD, "worker": ["A:01"]}, ["worker 0", "ps 0", "A:01"]),
        ({"cluster": []}, ['"cluster" is []']),
        ({"cluster": GOOD, "task": {"type": "ps", "index": 0}}, ['beside "cluster"', "--task_index"]),
    ],
)
def test_bad_spec(tmp_path, content, words):
    path = _write(tmp_path, content)
    message = _message(ClusterSpec.load, path)
    assert len(message) < 250 + len(str(path))
    for word in [str(path), *words]:
        assert word in message


def test_unreadable_file(tmp_path):
    assert "No such file" in _message(ClusterSpec.load, tmp_path / "absent.json")
    assert "Is a directory" in _message(ClusterSpec.load, tmp_path)
    assert "null" in _message(ClusterSpec.load, "a\0b")
    assert r"a\nb" in _message(ClusterSpec.load, "a\nb")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in _message(ClusterSpec.load, tmp_path / "binary")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_spec_round_trips(path, tmp_path):
    spec = ClusterSpec.load(path)
    assert spec.to_dict() == json.loads(path.read_text("utf-8"))
    assert ClusterSpec.load(_write(tmp_path, spec.to_dict())) == spec
    assert ClusterSpec.load(_write(tmp_path, {"cluster": spec.to_dict()})) == spec
    assert ClusterSpec.from_tf_config(json.dumps({"cluster": spec.to_dict()})) == (spec, None, None)


def test_the_blogs_cluster_is_shipped():
    spec = ClusterSpec.load(next(path for path in SHIPPED if path.name == "one_host_10_workers.json"))
    assert (spec.num_ps, spec.num_workers) == (1, 10)


def test_spec_answers():
    spec = ClusterSpec(ps=("[::1]:2222",), worker=("a_b.c-d:1", "127.0.0.1:65535"))
    assert (spec.num_ps, spec.num_workers) == (1, 2)
    assert spec.address("ps", 0) == "[::1]:2222"
    assert spec.address("worker", 1) == "127.0.0.1:65535"


@pytest.mark.parametrize(
    ("job", "index", "words"),
    [
        ("ps", 1, ["no ps 1", "1 ps", "must be 0"]),
        ("worker", 2, ["no worker 2", "2 worker", "0 to 1"]),
        ("worker", -1, ["no worker -1"]),
        ("worker", "0", ["no worker '0'"]),
        ("worker", True, ["no worker True"]),
        ("master", 0, ['no "master" in the cluster']),
        ("Worker", 0, ["unknown job 'Worker'"]),
    ],
)
def test_task_out_of_range(job, index, words):
    spec = ClusterSpec(ps=("a:1",), worker=("b:1", "b:2"))
    for call in (spec.check_task, spec.address):
        message = _message(call, job, index)
        assert all(word in message for word in words)


def test_tf_config_task():
    spec = ClusterSpec(ps=("a:1",), worker=("b:1", "b:2"))
    tasks = {"type": "worker", "index": 1}
    assert ClusterSpec.from_tf_config(json.dumps({"cluster": GOOD, "task": tasks})) == (spec, "worker", 1)
    # Other launchers put more into the variable than is used here.
    config = {"cluster": GOOD, "task": {"type": "ps"}, "environment": "cloud"}
    assert ClusterSpec.from_tf_config(json.dumps(config)) == (spec, "ps", None)


@pytest.mark.parametrize("chief", ["chief", "master"])
def test_a_chief_of_tf_config_is_worker_0_and_the_others_move_up(chief):
    cluster = {**GOOD, chief: ["c:1"], "evaluator": ["e:1"]}
    spec = ClusterSpec(ps=("a:1",), worker=("c:1", "b:1", "b:2"))

    def task(job, index):
        return ClusterSpec.from_tf_config(json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}))

    assert task(chief, 0) == (spec, "worker", 0)
    assert task("worker", 0) == (spec, "worker", 1)
    assert task("worker", 1) == (spec, "worker", 2)
    assert task("ps", 0) == (spec, "ps", 0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", ["not JSON"]),
        ("{", ["not JSON", "line 1"]),
        ("[]", ['no "cluster"', "[]"]),
        ('{"task": {}}', ['no "cluster"']),
        (json.dumps({"cluster": GOOD, "task": 1}), ['"task" is 1']),
        (json.dumps({"cluster": GOOD, "task": {"index": 1}}), ['no "type"']),
        (json.dumps({"cluster": GOOD, "task": {"type": "chief", "index": 0}}), ['no "chief" in the cluster']),
        (json.dumps({"cluster": {**GOOD, "chief": ["c:1"]}, "task": {"type": "chief", "index": 1}}), ['no "chief"']),
        (json.dumps({"cluster": GOOD, "task": {"type": "evaluator"}}), ["evaluator", "async-dqn evaluate --logdir"]),
        (json.dumps({"cluster": GOOD, "task": {"type": "worker", "index": 2}}), ["no worker 2", "0 to 1"]),
        (json.dumps({"cluster": GOOD, "task": {"type": "worker", "index": "1"}}), ["no worker '1'"]),
        (json.dumps({"cluster": GOOD, "task": {"type": [], "index": 1}}), ["unknown job []"]),
    ],
)
def test_bad_tf_config(value, words):
    message = _message(ClusterSpec.from_tf_config, value)
    for word in ["TF_CONFIG", *words]:
        assert word in message


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
_addresses = st.lists(_json | st.sampled_from(["a:1", "a:2", "[::1]:3", "a:0", "a:99999"])) | _json
_cluster = st.dictionaries(st.sampled_from(["ps", "worker", "chief", "x"]), _addresses)
_config = st.fixed_dictionaries({"cluster": _cluster | _json}, optional={"task": _json})


@settings(deadline=None, max_examples=300)
@given(st.text() | (_json | _cluster | _config).map(json.dumps))
def test_any_text_is_a_spec_or_one_line(text):
    calls = [lambda: ClusterSpec.from_tf_config(text)]
    with tempfile.TemporaryDirectory() as folder:
        if text.isascii():
            path = _write(Path(folder), text)
            calls.append(lambda: ClusterSpec.load(path))
        for call in calls:
            try:
                call()
            except UserError as error:
                message = str(error)
                assert len(message.splitlines()) == 1
                assert message.isprintable()


@settings(deadline=None)
@given(st.binary())
def test_any_file_is_a_spec_or_one_line(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spec.json")
        path.write_bytes(content)
        _message(ClusterSpec.load, path)


@pytest.mark.parametrize("host", ["127.0.0.1", ""], ids=["loopback", "all interfaces"])
def test_taken_port(host):
    with socket.create_server((host, 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        message = _message(check_port, address)
        assert address in message
        assert "taken" in message
    check_port(address)


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 4), st.integers(1, 20))
def test_local_gives_distinct_free_ports(num_ps, num_workers):
    spec = ClusterSpec.local(num_ps, num_workers)
    assert (spec.num_ps, spec.num_workers) == (num_ps, num_workers)
    addresses = spec.ps + spec.worker
    assert len(set(addresses)) == num_ps + num_workers
    for address in addresses:
        check_port(address)


def test_workers_on_one_host_are_found_by_its_name():
    workers = ("alpha:1", "beta:1", "ALPHA:2", "[::1]:1", "[::1]:2", "beta:2", "alpha:3")
    spec = ClusterSpec(ps=("alpha:9",), worker=workers)
    assert [spec.workers_beside(worker) for worker in (0, 1, 3, 6)] == [[0, 2, 6], [1, 5], [3, 4], [0, 2, 6]]
    assert ClusterSpec.local(1, 3).workers_beside(1) == [0, 1, 2]


def test_who_is_to_stop_looks_once_all_the_same():
    with socket.create_server(("localhost", 0)) as listening:
        there = f"localhost:{listening.getsockname()[1]}"
        assert wait_until_reachable([there], 60.0, lambda: True) == []
    assert wait_until_reachable([there], 60.0, lambda: True) == [there]


def test_local_needs_a_ps_and_a_worker():
    assert "no ps" in _message(ClusterSpec.local, 0, 1)
    assert "no worker" in _message(ClusterSpec.local, 1, 0)
