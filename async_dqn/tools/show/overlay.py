"""Draws what an agent thinks beside what it sees: a bar for each action, and the value of the states over time."""

import abc
import collections
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from async_dqn.nn.policies import NEVER, log_softmax

_MIN_HEIGHT = 400  # pixels; smaller pictures are enlarged
_WIDTH = 240  # of the panel
_MARGIN = 12
_HISTORY = 150  # steps of the curve
_SCALE = 30  # steps whose widest difference a bar is measured by
_MAX_ROW = 26  # pixels that a bar's row takes at most
_MIN_CURVE_HEIGHT = 120
_TITLE_HEIGHT = 28
_NAME_WIDTH, _NUMBER_WIDTH = 96, 44
_BACKGROUND, _TEXT, _QUIET = (22, 24, 29), (235, 235, 235), (120, 124, 132)
_CHOSEN, _OTHER = (230, 159, 0), (86, 180, 233)  # of Okabe and Ito, which the colour-blind can tell apart


class Bar(NamedTuple):
    """How an action is shown: without a text it has no bar."""

    begin: float  # from 0 at the left to 1 at the right
    end: float
    text: str


class Overlay(abc.ABC):
    """Puts a panel with a bar for each action to the right of pictures that are shown one after another.

    Attributes:
      head: the output of the networks that the bars are of, [A].
      what: what the bars show, in a word or two.
      axis: where they begin, from 0 at the left to 1 at the right.

    Args:
      action_names: of all actions, in order.
    """

    head: ClassVar[str]
    what: ClassVar[str]
    title: ClassVar[str]
    axis: ClassVar[float]

    def __init__(self, action_names: Sequence[str]):
        self._names = [name.lower()[:12] for name in action_names]
        self._values: collections.deque[float] = collections.deque(maxlen=_HISTORY)
        self._font = ImageFont.load_default(12)
        self._small = ImageFont.load_default(10)

    @abc.abstractmethod
    def _bars(self, scores: np.ndarray) -> list[Bar]:
        """The bars of all actions, by what the head says of them."""

    def draw(self, picture: np.ndarray, scores: np.ndarray, action: int, value: float) -> np.ndarray:
        """The picture [H, W, 3] uint8 with its panel, some k H high and k W + 240 wide, both even.

        Args:
          scores: [A], what the head says of the state that is shown.
          action: what the agent does there.
          value: of the state.
        """
        enlarged = _enlarge(picture)
        height, width = (side - side % 2 for side in enlarged.shape[:2])
        panel = Image.new("RGB", (_WIDTH, height), _BACKGROUND)
        draw = ImageDraw.Draw(panel)
        self._values.append(float(value))
        row = min(_MAX_ROW, (height - _MIN_CURVE_HEIGHT - _TITLE_HEIGHT) / len(scores))
        self._draw_bars(draw, row, self._bars(scores), action)
        self._draw_curve(draw, _TITLE_HEIGHT + row * len(scores) + _MARGIN, height)
        return np.concatenate([enlarged[:height, :width], np.asarray(panel)], axis=1)

    def _draw_bars(self, draw: ImageDraw.ImageDraw, row: float, bars: Sequence[Bar], action: int) -> None:
        draw.text((_MARGIN, 6), self.title, font=self._font, fill=_TEXT)
        font = self._font if row >= 14 else self._small
        left, right = _MARGIN + _NAME_WIDTH, _WIDTH - _MARGIN - _NUMBER_WIDTH
        for index, (name, bar) in enumerate(zip(self._names, bars, strict=True)):
            top = _TITLE_HEIGHT + index * row
            colour = _CHOSEN if index == action else _OTHER
            begin, end = (left + (right - left) * place for place in (bar.begin, bar.end))
            centre = top + row / 2
            draw.text((_MARGIN, centre), name, font=font, fill=_CHOSEN if index == action else _TEXT, anchor="lm")
            bottom = max(top + 2, top + row - 3)  # with very many actions a line
            if bar.text:
                draw.rectangle((begin, top + 2, end, bottom), fill=colour)
            draw.text((_WIDTH - _MARGIN, centre), bar.text, font=font, fill=_TEXT, anchor="rm")
        middle = left + (right - left) * self.axis
        draw.line((middle, _TITLE_HEIGHT, middle, _TITLE_HEIGHT + len(bars) * row), fill=_QUIET)

    def _draw_curve(self, draw: ImageDraw.ImageDraw, top: float, bottom: float) -> None:
        low, high = min(self._values), max(self._values)
        draw.text((_MARGIN, top + 2), "value of the state, over time", font=self._font, fill=_TEXT)
        top, bottom = top + _TITLE_HEIGHT, bottom - _MARGIN
        draw.rectangle((_MARGIN, top, _WIDTH - _MARGIN, bottom), outline=_QUIET)
        span = max(high - low, 1e-6)
        places = np.linspace(_MARGIN + 3, _WIDTH - _MARGIN - 3, _HISTORY)[-len(self._values) :]
        points = [
            (float(x), bottom - 5 - (bottom - top - 10) * (value - low) / span)
            for x, value in zip(places, self._values, strict=True)
        ]
        if len(points) > 1:
            draw.line(points, fill=_CHOSEN, width=2)
        draw.text((_MARGIN + 4, top + 2), f"{high:.2f}", font=self._small, fill=_QUIET)
        draw.text((_MARGIN + 4, bottom - 2), f"{low:.2f}", font=self._small, fill=_QUIET, anchor="ls")


class QOverlay(Overlay):
    """Action values: a bar is how much better or worse an action is than the mean of all, which the agent decides by.

    The number beside it is the value itself. Bars are measured by the widest difference of the last 30 steps. An action
    that cannot be taken has neither.
    """

    head, what, title, axis = "q_values", "action values", "action values, against their mean", 0.5

    def __init__(self, action_names: Sequence[str]):
        super().__init__(action_names)
        self._widest: collections.deque[float] = collections.deque(maxlen=_SCALE)  # difference of each step

    def _bars(self, scores: np.ndarray) -> list[Bar]:
        allowed = scores > NEVER
        differences = np.where(allowed, scores - np.mean(scores[allowed]), 0) if allowed.any() else 0 * scores
        self._widest.append(float(np.abs(differences).max()))
        ends = self.axis + differences / (2 * max(*self._widest, 1e-6))
        return [
            Bar(min(self.axis, end), max(self.axis, end), _number(score) if score > NEVER else "")
            for score, end in zip(scores.tolist(), ends.tolist(), strict=True)
        ]


class PolicyOverlay(Overlay):
    """A policy: the probability of each action, from 0 to 1."""

    head, what, title, axis = "logits", "probabilities of actions", "probability of each action", 0.0

    def _bars(self, scores: np.ndarray) -> list[Bar]:
        probabilities = np.exp(log_softmax(scores[None]))[0]
        return [Bar(0.0, probability, f"{probability:.2f}") for probability in probabilities.tolist()]


OVERLAYS: dict[str, type[Overlay]] = {"q": QOverlay, "policy": PolicyOverlay}


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def _enlarge(picture: np.ndarray) -> np.ndarray:
    factor = max(1, -(-_MIN_HEIGHT // picture.shape[0]))
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)
