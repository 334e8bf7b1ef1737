"""Processes that this program starts, which find modules where it does."""

import subprocess
import sys

import pytest

from async_dqn.system import program

QUEUE = "import queue; print(hasattr(queue, 'SimpleQueue'))"


def said(command, folder):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 always looks into the current folder")
@pytest.mark.parametrize("looks_here", [False, True])
def test_a_file_in_the_current_folder_hides_no_module_unless_it_does_from_this_process(
    looks_here, tmp_path, monkeypatch
):
    (tmp_path / "queue.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*([str(tmp_path)] if looks_here else []), "/elsewhere"])
    assert said([*program.python(), "-c", QUEUE], tmp_path) == str(not looks_here)


def test_a_command_is_this_program_s():
    _, *command = program.own_command("ps", "--task_index=0")
    assert command[-4:] == ["-m", "async_dqn", "ps", "--task_index=0"]
