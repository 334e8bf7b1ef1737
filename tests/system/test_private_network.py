"""Tests of the private network: real namespaces, made with and without privileges."""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from cluster_helpers import wait_until

from async_dqn.system import private_network
from async_dqn.system.private_network import PrivateNetwork

DEADLINE = 60.0
pytestmark = pytest.mark.usefixtures("no_garbage")
_PR_CAPBSET_DROP, _CAP_SYS_ADMIN = 24, 21
_LIBC = ctypes.CDLL(None)

# Has a server and a client run inside, knocks from outside; prints what came of it. Needs the standard library only.
LAUNCHER = """
import importlib.util, json, os, socket, subprocess, sys
path, folder = sys.argv[1:]
spec = importlib.util.spec_from_file_location("private_network", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
network = module.PrivateNetwork.create(folder)
if isinstance(network, str):
    sys.exit(f"REASON: {network}")

SERVER = '''
import socket, sys
server = socket.create_server(("", 0))
print(server.getsockname()[1], flush=True)
open(sys.argv[1] + "/written-inside", "w").close()
while True:
    server.accept()[0].sendall(b"hello")
'''
CLIENT = 'import socket, sys; print(socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10).recv(5).decode())'
python = [sys.executable, "-I", "-S", "-c"]
server = subprocess.Popen([*python, SERVER, folder], stdout=subprocess.PIPE, text=True, preexec_fn=network.enter)
port = int(server.stdout.readline())
inside = subprocess.run([*python, CLIENT, str(port)], capture_output=True, text=True, preexec_fn=network.enter)
network.close()  # what runs in it runs on
try:
    outside = socket.create_connection(("127.0.0.1", port), 10).recv(5).decode()
except ConnectionRefusedError:
    outside = "refused"
server.kill()
server.wait()
written = os.stat(folder + "/written-inside")
print(json.dumps({
    "inside": inside.stdout.strip() or inside.stderr,
    "outside": outside,
    "owner": [written.st_uid, written.st_gid],
    "launcher": [os.geteuid(), os.getegid()],
}))
"""


def _drop_privileges() -> None:
    """The program that follows cannot make a network namespace alone, even as root."""
    _LIBC.prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, 0, 0, 0)


def _forbid_namespaces() -> None:
    """The program that follows runs on a system that allows none."""
    user = os.geteuid()
    private_network._unshare(private_network._NEWUSER)
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    for what in ("user", "net"):
        Path(f"/proc/sys/user/max_{what}_namespaces").write_text("0")


def _launch(
    folder: str | Path, *, python: str = sys.executable, module: str = private_network.__file__, **how
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [python, "-I", "-S", "-c", LAUNCHER, module, str(folder)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd="/",
        **how,
    )


def _give_up(reason: str) -> None:
    """Skips a test where the system allows no private network, and fails it where it does."""
    allowed = (
        shutil.which("unshare") and subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0
    )
    (pytest.fail if allowed else pytest.skip)(reason)


def _result(done: subprocess.CompletedProcess) -> dict:
    if "REASON: " in done.stderr:
        _give_up(done.stderr)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def network(tmp_path):
    network = PrivateNetwork.create(tmp_path)
    if isinstance(network, str):
        _give_up(network)
    yield network
    network.close()


@pytest.mark.parametrize("preexec_fn", [None, _drop_privileges], ids=["as is", "without privileges"])
def test_only_processes_inside_reach_a_port_and_files_keep_their_owner(tmp_path, preexec_fn):
    result = _result(_launch(tmp_path, preexec_fn=preexec_fn))
    assert (result["inside"], result["outside"]) == ("hello", "refused")
    assert result["owner"] == result["launcher"] == [os.geteuid(), os.getegid()]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_it_works_for_any_user():
    python, nobody = "/usr/bin/python3", 65534  # the Python of the tests may lie where others cannot read
    version = subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"], check=False)
    if version.returncode != 0:
        pytest.skip(f"{python} is too old")
    with tempfile.TemporaryDirectory() as folder:
        module = shutil.copy(private_network.__file__, folder)  # it, too, may lie where others cannot read
        for path in (folder, module):
            os.chown(path, nobody, nobody)
        how = {"user": nobody, "group": nobody, "extra_groups": [4]}
        result = _result(_launch(folder, python=python, module=module, **how))
    assert (result["inside"], result["outside"]) == ("hello", "refused")
    assert result["owner"] == result["launcher"] == [nobody, nobody]


def test_a_system_that_allows_none_is_told_with_the_remedy(tmp_path):
    try:
        done = _launch(tmp_path, preexec_fn=_forbid_namespaces)
    except subprocess.SubprocessError as error:
        pytest.skip(f"cannot be imitated here: {error}")
    assert done.returncode == 1
    assert "REASON: unshare: " in done.stderr
    assert "sysctl user.max_net_namespaces=1000 would allow it" in done.stderr
    assert "firewall" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("helper", "reason"),
    [
        ((sys.executable, "-c", "pass"), "the helper gave no answer"),
        (("/no/such/python",), "/no/such/python: No such file or directory"),
    ],
    ids=["silent", "missing"],
)
def test_a_helper_that_fails_is_a_reason_too(tmp_path, helper, reason):
    before = os.listdir("/proc/self/fd")
    text = PrivateNetwork.create(tmp_path, helper)
    assert isinstance(text, str) and text.startswith(reason) and "firewall" in text
    wait_until(lambda: os.listdir("/proc/self/fd") == before, 10, "all that was opened is closed")


def test_a_folder_that_cannot_be_written_to_from_inside_is_a_reason(network, tmp_path):
    text = PrivateNetwork.create(tmp_path / "missing")
    assert isinstance(text, str) and text.startswith(f"{tmp_path / 'missing'} could not be written to")


def test_an_unsupported_system_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(private_network.sys, "platform", "darwin")
    text = PrivateNetwork.create(tmp_path)
    assert isinstance(text, str) and "darwin" in text and "firewall" in text


def test_nothing_is_left_of_it(tmp_path):
    before = os.listdir("/proc/self/fd")
    children = psutil.Process().children()
    network = PrivateNetwork.create(tmp_path)
    if isinstance(network, str):
        _give_up(network)
    assert psutil.Process().children() == children
    opened = set(map(int, os.listdir("/proc/self/fd"))) - set(map(int, before))
    assert not any(os.get_inheritable(descriptor) for descriptor in opened if os.path.exists(f"/dev/fd/{descriptor}"))
    network.close()
    network.close()
    wait_until(lambda: os.listdir("/proc/self/fd") == before, 10, "all that was opened is closed")


def test_networks_are_apart_from_each_other_and_from_the_machines(network, tmp_path):
    other = PrivateNetwork.create(tmp_path)
    assert isinstance(other, PrivateNetwork)
    with socket.create_server(("", 0)) as taken:
        program = f"import os, socket; socket.create_server(('', {taken.getsockname()[1]})).close()\n"
        program += "print(os.readlink('/proc/self/ns/net'))"
        names = [
            subprocess.check_output([sys.executable, "-I", "-S", "-c", program], preexec_fn=one.enter, timeout=DEADLINE)
            for one in (network, network, other)
        ]
    other.close()
    assert names[0] == names[1] != names[2]
    assert os.readlink("/proc/self/ns/net").encode() not in names[0] + names[2]
