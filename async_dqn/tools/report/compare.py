"""`async-dqn compare`: trains standard and asynchronous agents on the same work, in turn, and reports on them."""

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from async_dqn.base.errors import UserError, one_line
from async_dqn.base.files import write_atomically
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.settings.config import Config
from async_dqn.system.task import INTERRUPTED
from async_dqn.tools.bench import machine
from async_dqn.tools.report import experiment, findings, page
from async_dqn.tools.report.experiment import Trial
from async_dqn.tools.report.runs import read_run

_MAX_SEEDS = 100
_MAX_GAMES = 10_000


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One call of the command.

    Attributes:
      config: the settings that all runs share.
      folder: where runs, pictures and report lie; one that holds this comparison already is gone on with.
      worker_counts: of the clusters.
      num_seeds: runs of each kind.
      games: greedy games that every trained agent plays.

    Raises:
      UserError: at construction, naming the flag, the value and what is allowed.
    """

    config: Config
    folder: Path
    worker_counts: Sequence[int]
    num_seeds: int
    games: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_seeds <= _MAX_SEEDS:
            raise UserError(f"--seeds={self.num_seeds}: must be 1 to {_MAX_SEEDS}")
        if not 1 <= self.games <= _MAX_GAMES:
            raise UserError(f"--games={self.games}: must be 1 to {_MAX_GAMES}")

    def trials(self) -> list[Trial]:
        """The standard agent first, then each cluster; seed by seed."""
        counts = (0, *self.worker_counts)
        return experiment.trials(self.config, self.folder, worker_counts=counts, num_seeds=self.num_seeds)


def run_compare(comparison: Comparison, should_stop: threading.Event, progress: Progress) -> int:
    """Trains what is left, and writes the report after every run. Gives the exit code: 0, 1 if any failed, or 130.

    Raises UserError where the folder cannot be used, before anything starts.
    """
    plan = comparison.trials()
    trains = not all(trial.is_done(comparison.games) for trial in plan)
    calls = experiment.begin(comparison.folder, comparison.config, machine.describe(), trains=trains)
    with RunDirectory(comparison.folder).claimed(progress.say) as inherited:  # two runs at a time spoil both's figures
        if should_stop.is_set():  # while it waited for the folder
            return INTERRUPTED
        progress.say(f"{experiment.summary_line(plan)}; report in {comparison.folder / 'report.html'}")
        codes = []
        for trial, code in experiment.run_all(
            plan, progress, games=comparison.games, should_stop=should_stop, inherited=inherited
        ):
            codes.append(code)
            if code not in (0, INTERRUPTED):
                progress.say(f"{trial.title}: exit code {code}, see {trial.path}.log")
            _report(comparison, plan, calls, progress)
        if not codes:
            _report(comparison, plan, calls, progress)
    if INTERRUPTED in codes:
        progress.say(f"interrupted; the same command with --logdir={comparison.folder} goes on from here")
        return INTERRUPTED
    failed = [trial for trial in plan if trial.run.has_failed()]  # be it in an earlier call
    for trial in failed:
        progress.say(f"{trial.title} {trial.run.exit_reason()}; to train it anew, remove {trial.path}")
    return int(any(codes) or bool(failed))


def _report(
    comparison: Comparison, plan: Sequence[Trial], calls: Sequence[Mapping[str, Any]], progress: Progress
) -> None:
    """Writes report.md and report.html on what there is."""
    found = [findings.Found(trial, read_run(trial.path)) for trial in plan if trial.run.config.exists()]
    if not found:
        return
    title = f"Standard against asynchronous DQN on {comparison.config.env}"
    try:
        made = findings.sections(found, calls, comparison.folder, num_planned=len(plan))
        write_atomically(comparison.folder / "report.md", page.markdown(title, made).encode())
        write_atomically(comparison.folder / "report.html", page.page(title, made, comparison.folder).encode())
    except Exception as error:  # whatever it is, the training is worth more
        progress.say(f"could not write the report: {one_line(error)}")
