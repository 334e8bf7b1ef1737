"""Replay that changes only once a period, so that a learner can draw from it while the environments go on."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from async_dqn.data.experience import ReplayExperience, Step
from async_dqn.data.replay import Replay

_COLUMNS = ("observation", "action", "reward", "terminated", "truncated", "next_observation")
_SAVED = "buffered/"


class BufferedReplayExperience(ReplayExperience):
    """Keeps the steps of a period aside and adds them to replay when the period is over (Daley & Amato 2021).

    What is due in a period is drawn from the transitions of the periods before it. So the minibatches are the same
    whether they are computed between the steps or beside them.

    Args:
      period: agent steps in a period, a multiple of `train_period` and of the number of environments.
      replay, options: as for `ReplayExperience`; whether replay is warm is decided where a period begins.
    """

    def __init__(self, replay: Replay, *, period: int, **options: Any):
        super().__init__(replay, **options)
        self._period = period
        self._buffer: list[Step] = []
        self._spoilt: list[np.ndarray] = []  # for each of them [N] bool: nothing is learned from it
        self._num_steps = 0  # agent steps in the buffer
        self._is_warm = False

    @property
    def ends_period(self) -> bool:
        """Whether the next step begins a new period, before which all that is due must have been drawn."""
        return self._num_steps >= self._period

    def take_due(self) -> int:
        """The minibatches that are due, none of them afterwards: whoever calls draws them by `sample`."""
        due = self.due()
        self._owed_steps -= due * self._train_period
        return due

    def add(self, step: Step, num_steps: int) -> None:
        if self.ends_period:
            self._flush()
        self._buffer.append(step._replace(stacked=np.empty(0), outputs={}))  # which replay has no use for
        self._spoilt.append(np.zeros(len(step.action), bool))
        self._num_steps += num_steps
        if self._is_warm:
            self._owed_steps += num_steps

    def _flush(self) -> None:
        for step, spoilt in zip(self._buffer, self._spoilt, strict=True):
            self._replay.add(*(getattr(step, column) for column in _COLUMNS))
            if spoilt.any():
                self._replay.truncate(np.flatnonzero(spoilt))
        self._buffer, self._spoilt, self._num_steps = [], [], 0
        self._is_warm = self._has_warmed_up()

    def truncate(self, envs: np.ndarray | None = None) -> None:
        if envs is not None and self._buffer:
            self._spoilt[-1][envs] = True
            return
        num_steps, is_warm = self._num_steps, self._is_warm
        self._flush()  # it happened, and its last steps lead nowhere
        if num_steps:  # the period ends where the target network is refreshed
            self._num_steps, self._is_warm = num_steps, is_warm
        super().truncate(envs)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        arrays, values = super().state()
        for column in _COLUMNS:
            arrays[f"{_SAVED}{column}"] = np.array([getattr(step, column) for step in self._buffer])
        arrays[f"{_SAVED}spoilt"] = np.array(self._spoilt)
        return arrays, values | {"num_steps": self._num_steps, "is_warm": self._is_warm}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        super().restore(arrays, values)
        columns = [arrays[f"{_SAVED}{column}"] for column in _COLUMNS]
        self._buffer = [
            Step(stacked=np.empty(0), outputs={}, **dict(zip(_COLUMNS, row, strict=True)))
            for row in zip(*columns, strict=True)
        ]
        self._spoilt = list(arrays[f"{_SAVED}spoilt"])
        self._num_steps, self._is_warm = values["num_steps"], values["is_warm"]
