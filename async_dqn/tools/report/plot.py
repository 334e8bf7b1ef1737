"""`async-dqn plot`: the learning curves of any runs in one picture."""

from collections.abc import Sequence
from pathlib import Path

from async_dqn.base.errors import UserError
from async_dqn.tools.report.runs import read_runs

_SUFFIXES = (".png", ".svg", ".pdf")
_MAX_RUNS = 200


def run_plot(paths: Sequence[str], *, x: str, smooth: int, output: str) -> int:
    """Draws the runs in these folders. Gives the exit code.

    Args:
      paths: run directories.
      x: what to draw over: steps or time.
      smooth: games that a running mean is over.
      output: the file to write; its name says the format.

    Raises:
      UserError: naming what is wrong; nothing is written then.
    """
    if not paths:
        raise UserError("plot needs run directories: async-dqn plot RUN [RUN ...]")
    if len(paths) > _MAX_RUNS:
        raise UserError(f"{len(paths)} run directories: at most {_MAX_RUNS} fit into a picture")
    if not 1 <= smooth <= 1_000_000:
        raise UserError(f"--smooth={smooth}: must be 1 to 1000000 games")
    target = Path(output)
    if target.suffix not in _SUFFIXES:
        raise UserError(f"--output={output}: must end in {', '.join(_SUFFIXES)}")
    runs = read_runs(paths)
    from async_dqn.tools.report import figures  # what draws takes a second to import

    curves = figures.group(runs)
    figure = figures.learning_curves(curves, x, window=smooth)
    try:
        figures.save(figure, target)
    except OSError as error:
        raise UserError(f"--output={output}: {error.strerror}; give another file") from error
    for curve in curves:
        for run in curve.runs:
            print("; ".join([f"{run.path}: {curve.label}, {len(run.returns):,} games", *run.notes]))
    print(f"written to {target}")
    return 0
