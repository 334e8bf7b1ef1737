from pathlib import Path

import pytest
from PIL import Image
from report_helpers import write_run

from async_dqn import __main__ as command_line

RESULTS = Path(__file__).parents[3] / "results" / "pong"


def plot(*arguments):
    return command_line.main(["plot", *map(str, arguments)])


@pytest.mark.parametrize("x", ["steps", "time"])
def test_the_runs_of_the_repository_are_drawn(capsys, tmp_path, x):
    output = tmp_path / "pictures" / "pong.png"
    assert plot(RESULTS / "baseline", RESULTS / "local", f"--x={x}", f"--output={output}") == 0
    out, err = capsys.readouterr()
    assert err == ""
    first, second, last = out.splitlines()
    assert first.startswith(f"{RESULTS / 'baseline'}: standard: one process, ")
    assert second.startswith(f"{RESULTS / 'local'}: asynchronous: 1 ps + 2 workers, ")
    assert last == f"written to {output}"
    with Image.open(output) as picture:
        assert picture.size == (1200, 720)
        assert len(picture.convert("RGB").getcolors(2**20)) > 50


def test_a_run_named_twice_is_drawn_once(capsys, tmp_path):
    path = write_run(tmp_path / "a", [1.0])
    (tmp_path / "link").symlink_to(path)
    again = [f"{path}/", path / ".." / "a", tmp_path / "link"]
    assert plot(path, *again, f"--output={tmp_path / 'a.svg'}") == 0
    assert capsys.readouterr().out.count(", 1 games") == 1


def test_a_run_without_times_is_named_and_leaves_the_others_their_axis(tmp_path):
    whole, bare = (write_run(tmp_path / name, [1.0] * 600, batch_size=size) for name, size in (("a", 32), ("b", 16)))
    (bare / "metrics.csv").unlink()
    drawn = tmp_path / "drawn.svg"
    assert plot(whole, bare, "--x=time", f"--output={drawn}") == 0
    text = drawn.read_text()
    assert "<!-- wall-clock time (minutes) -->" in text
    assert "(times are not known) -->" in text


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "plot needs run directories: async-dqn plot RUN [RUN ...]"),
        (["{run}", "{missing}"], "{missing} holds no run (no config.json); give run directories"),
        (["{run}", "--output=a.jpg"], "--output=a.jpg: must end in .png, .svg, .pdf"),
        (["{run}", "--smooth=0"], "--smooth=0: must be 1 to 1000000 games"),
        (["{run}", "--output={run}/config.json/a.png"], "--output={run}/config.json/a.png: "),
        (["{run}", "--logdir=x"], "'logdir'"),
        (["{run}", "--x=frames"], "--x=frames"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, tmp_path, arguments, line):
    names = {"run": write_run(tmp_path / "a", [1.0]), "missing": tmp_path / "missing"}
    before = sorted(tmp_path.rglob("*"))
    assert plot(*(argument.format(**names) for argument in arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("async-dqn: ") and err.count("\n") == 1
    assert line.format(**names) in err
    assert sorted(tmp_path.rglob("*")) == before
