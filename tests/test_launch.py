"""The launch scripts, with a stand-in Python that installs nothing."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "launch").glob("*.sh"))
COMMANDS = ["baseline", "bench", "compare", "doctor", "evaluate", "export", "local", "plot", "ps", "status", "worker"]

# Makes an "environment" whose python is this script again and whose async-dqn shows what it was given.
FAKE_PYTHON = """\
    #!/usr/bin/env bash
    case "$*" in
      *"-m venv "*) mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" ;;
      *"-m pip "*)
        echo "$*" >>"$FAKE_LOG"
        case "$FAKE_PIP" in
          fail) echo "no such package"; exit 1 ;;
          killed) kill -KILL 0 ;;
        esac
        bin=$(dirname "$0")
        printf '#!/usr/bin/env bash\\npwd -P; printf "<%%s>" "$@"; exit 7\\n' >"$bin/async-dqn"
        chmod +x "$bin/async-dqn" ;;
      *"find_spec"*) [[ -x $(dirname "$0")/async-dqn ]] ;;
      *) exec "$REAL_PYTHON" "$@" ;;
    esac
"""


class Checkout:
    """A copy of what set-up reads, in a folder whose name has a space."""

    def __init__(self, folder: Path):
        self.root = folder / "a checkout"
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()
        shutil.copytree(ROOT / "launch", self.root / "launch")
        for name in ("requirements.lock", "setup.py"):
            shutil.copy(ROOT / name, self.root)
        self.python = folder / "fake python"
        self.python.write_text(textwrap.dedent(FAKE_PYTHON), encoding="utf-8")
        self.python.chmod(0o755)
        self.log = folder / "pip.log"
        self.environment = {
            **os.environ,
            "ASYNC_DQN_PYTHON": str(self.python),
            "REAL_PYTHON": sys.executable,
            "FAKE_LOG": str(self.log),
            "FAKE_PIP": "",
        }

    def start(self, script="local.sh", *arguments, **environment):
        path = script if isinstance(script, Path) else self.root / "launch" / script
        return subprocess.Popen(
            [path, *arguments],
            cwd=self.elsewhere,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments, **environment):
        """Return exit code, output and errors."""
        process = self.start(*arguments, **environment)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def installs(self) -> int:
        """Return how many set-ups got as far as their last pip command."""
        lines = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        return sum(" -e " in line for line in lines)


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / ".ci/run"], ids=lambda path: path.name)
def test_script_is_sound(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK) == (script.name != "common.sh")


@pytest.mark.parametrize("command", COMMANDS)
def test_arguments_folder_and_exit_code_pass_through(checkout, command):
    code, output, errors = checkout.run(f"{command}.sh", "--a=1", "b c", "", "*")
    restarts = "<--max_restarts=3>" if command in ("ps", "worker") else ""  # which the user's own may override
    assert output == f"{checkout.elsewhere}\n<{command}>{restarts}<--a=1><b c><><*>"
    assert code == 7
    assert errors == "Setting up .venv (one time, about a minute) ...\n"


def test_symbolic_link_finds_the_checkout(checkout):
    link = checkout.elsewhere / "run"
    link.symlink_to(checkout.root / "launch/local.sh")
    assert checkout.run(link, "x")[1].endswith("<local><x>")
    assert (checkout.root / ".venv/setup.stamp").exists()


def test_set_up_runs_once_and_again_when_the_lock_changes(checkout):
    for _ in range(2):
        checkout.run()
        assert checkout.installs() == 1
    lock = checkout.root / "requirements.lock"
    lock.write_text(lock.read_text("utf-8") + "extra==1\n", encoding="utf-8")
    assert "Setting up" in checkout.run()[2]
    assert checkout.installs() == 2


def test_an_option_that_a_shell_exports_does_not_stop_the_set_up(checkout):
    for _ in range(2):
        assert checkout.run(SHELLOPTS="noclobber")[0] == 7
    assert checkout.installs() == 1


def test_set_up_mends_an_environment_made_by_hand(checkout):
    subprocess.run([checkout.python, "-m", "venv", checkout.root / ".venv"], check=True, env=checkout.environment)
    kept = checkout.root / ".venv/kept"
    kept.touch()
    assert checkout.run()[0] == 7
    assert kept.exists()


def test_failed_set_up_is_told_and_redone(checkout):
    code, output, errors = checkout.run(FAKE_PIP="fail")
    assert (code, output) == (1, "")
    assert "no such package" in errors
    assert errors.splitlines()[-1].startswith("async-dqn: set-up failed; the whole log is ")
    (checkout.root / ".venv/left-over").touch()
    assert checkout.run()[0] == 7
    assert not (checkout.root / ".venv/left-over").exists()


def test_killed_set_up_is_redone(checkout):
    assert checkout.run(FAKE_PIP="killed")[0] < 0
    assert checkout.installs() == 0
    assert checkout.run()[0] == 7
    assert checkout.installs() == 1


@pytest.mark.parametrize("lost", ["python", "async-dqn"])
def test_environment_that_lost_its_python_or_its_packages_is_set_up_anew(checkout, lost):
    checkout.run()
    (checkout.root / ".venv/bin" / lost).unlink()
    (checkout.root / ".venv/left-over").touch()
    assert checkout.run()[0] == 7
    assert checkout.installs() == 2
    assert not (checkout.root / ".venv/left-over").exists()


def test_environment_behind_a_link_is_emptied_too(checkout):
    store = checkout.elsewhere / "store"
    store.mkdir()
    (checkout.root / ".venv").symlink_to(store)
    checkout.run(FAKE_PIP="fail")
    (store / "left-over").touch()
    assert checkout.run()[0] == 7
    assert not (store / "left-over").exists()


def test_a_file_system_without_locks_does_without(checkout):
    fake = checkout.elsewhere / "fcntl.py"
    fake.write_text("LOCK_EX = LOCK_NB = 0\n\ndef flock(*_):\n    raise OSError(37, 'No locks available')\n", "utf-8")
    code, _, errors = checkout.run(PYTHONPATH=str(fake.parent))
    assert (code, errors) == (7, "Setting up .venv (one time, about a minute) ...\n")


def test_the_environments_own_python_is_not_what_makes_it(checkout):
    checkout.run()
    own = checkout.root / ".venv/bin"
    (own / "python3").symlink_to("python")
    tools = checkout.elsewhere / "tools"
    tools.mkdir()
    (tools / "python3").symlink_to(checkout.python)
    (own / "async-dqn").unlink()
    path = f"{own}:{tools}:{os.environ['PATH']}"
    assert checkout.run(ASYNC_DQN_PYTHON="", PATH=path)[0] == 7
    assert checkout.installs() == 2


def test_moved_checkout_is_set_up_anew(checkout):
    checkout.run()
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    (checkout.root / ".venv/left-over").touch()
    assert checkout.run()[0] == 7
    assert not (checkout.root / ".venv/left-over").exists()


def test_scripts_started_at_once_set_up_once(checkout):
    processes = [checkout.start("ps.sh"), *(checkout.start("worker.sh") for _ in range(3))]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 7
    assert checkout.installs() == 1


def test_unfit_python_is_told_in_one_line(checkout):
    code, output, errors = checkout.run(ASYNC_DQN_PYTHON="/no/such/python")
    assert (code, output) == (1, "")
    assert errors == "async-dqn: ASYNC_DQN_PYTHON=/no/such/python is not a Python 3.10 to 3.13 that runs\n"


def test_quick_leaves_out_what_starts_clusters_and_what_is_slow(checkout):
    checkout.run()
    for tool in ("ruff", "mypy", "python"):
        path = checkout.root / ".venv/bin" / tool
        path.write_text(f'#!/usr/bin/env bash\n[[ $* == *import* ]] || (printf "<%s>" {tool} "$@"; echo; exit 3)\n')
        path.chmod(0o755)
    checks = ["<ruff><check><.>", "<ruff><format><--check><.>", "<mypy><async_dqn>"]
    pytest = "<python><-m><pytest><-m>"
    on_all_cores = "<-n><logical><--dist=worksteal>"
    quick, together = (f"{pytest}<{which}>{on_all_cores}" for which in ("not cluster and not slow", "not cluster"))
    for given, started in [
        (["--quick", "-x"], [f"{quick}<-x>"]),
        (["tests/run"], [f"{together}<tests/run>", f"{pytest}<cluster><tests/run>"]),
        ([], [together, f"{pytest}<cluster>"]),
    ]:
        code, output, _ = checkout.run("test.sh", *given)
        assert (code, output.splitlines()) == (1, [*checks, *started])
    code, output, _ = checkout.run("test.sh", "--minutes=30", "--quick")
    limit = re.search("<--until><([0-9]+)><-rs>", output)
    assert code == 1 and output.splitlines()[3:] == [quick.replace("<-m><not", f"{limit[0]}<-m><not")]
    assert 28 * 60 < int(limit[1]) - time.time() <= 30 * 60
    refused = (1, "", "async-dqn: --minutes=soon: must be a whole number of minutes\n")
    assert checkout.run("test.sh", "--minutes=soon") == refused


@pytest.mark.parametrize(("until", "words"), [(0.5, "1 skipped"), (2**40, "1 passed")])
def test_no_test_begins_when_the_time_is_over_and_it_is_said(tmp_path, until, words):
    tests = Path(__file__).parent
    shutil.copy(tests / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text("def test_it(): assert True")
    command = [sys.executable, "-m", "pytest", "-rs", f"--until={until}", "-p", "no:cacheprovider", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and words in done.stdout
    assert ("left out: the --minutes are over" in done.stdout) == (words == "1 skipped")


@pytest.mark.parametrize(
    ("together", "alone", "expected"), [(0, 0, 0), (0, 5, 0), (5, 0, 0), (5, 5, 1), (1, 0, 1), (0, 1, 1), (5, 4, 1)]
)
def test_tests_fail_where_any_does_or_none_is_found(checkout, together, alone, expected):
    checkout.run()
    for tool in ("ruff", "mypy", "python"):
        path = checkout.root / ".venv/bin" / tool
        exits = f'case "$*" in *"not cluster"*) exit {together} ;; *"-m cluster"*) exit {alone} ;; esac'
        path.write_text(f"#!/usr/bin/env bash\n{exits}\n")
        path.chmod(0o755)
    assert checkout.run("test.sh", "tests/run")[0] == expected
