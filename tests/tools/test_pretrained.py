"""Tests of async_dqn.tools.pretrained: what ships is whole, says where it comes from, and plays."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from async_dqn.base.errors import UserError
from async_dqn.run.build import make_agent
from async_dqn.run.trained import load_trained
from async_dqn.tools import pretrained
from async_dqn.tools.evaluate import Watch, run_evaluate

ROOT = Path(__file__).parents[2]


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="--pretrained=chess is unknown: use pong"):
        pretrained.find("chess")


@pytest.mark.parametrize("name", pretrained.names())
def test_each_is_whole_small_and_says_how_it_was_made(name):
    run = pretrained.find(name)
    described = json.loads(run.config.read_text())
    summary = json.loads(run.summary.read_text())
    evaluation = json.loads((run.path / "evaluation.json").read_text())
    trained = load_trained(run, make_agent(run.read_config()), pytest.fail)
    assert described["git_revision"]
    assert described["command"]
    assert summary["exit_reason"] == "solved"
    assert trained.env_steps == summary["env_steps"] == evaluation["checkpoint_env_steps"]
    assert evaluation["games"] == 30
    assert evaluation["seconds"] < 120
    assert sum(path.stat().st_size for path in run.path.rglob("*")) < 5e6


def test_pong_wins(capsys):
    run = pretrained.find("pong")
    known = (run.path / "evaluation.json").read_bytes()
    assert run_evaluate(run.read_config(), run, games=2, seed=7, watch=Watch(), keeps=False) == 0
    mean = float(capsys.readouterr().out.partition(": mean ")[2].partition(",")[0])
    assert mean >= 15  # of 21; the same agent's 30 games are in its evaluation.json
    assert (run.path / "evaluation.json").read_bytes() == known


def test_the_picture_in_the_readme_shows_this_agent(tmp_path):
    run = pretrained.find("pong")
    watch = Watch(str(tmp_path / "play.gif"), video_seconds=1, overlay="q")
    assert run_evaluate(run.read_config(), run, games=1, seed=12345, watch=watch, keeps=False) == 0
    with Image.open(tmp_path / "play.gif") as again, Image.open(ROOT / "docs" / "pong.gif") as ours:
        assert again.size == ours.size
        for number in range(10):
            again.seek(number)
            ours.seek(number)
            difference = np.asarray(again.convert("RGB"), np.float32) - np.asarray(ours.convert("RGB"), np.float32)
            assert np.abs(difference).mean() < 0.3  # parameters with 1 % of noise on them make it 0.75


def test_they_are_in_the_package(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "async_dqn", copy / "async_dqn", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", f"--dist-dir={tmp_path / 'dist'}"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    files = [path for path in (copy / "async_dqn" / "tools" / "pretrained").rglob("*") if path.is_file()]
    assert len(files) >= 5
    assert {str(path.relative_to(copy)) for path in files} <= inside
