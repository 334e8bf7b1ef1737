"""Draws what an agent thinks beside what it sees: a bar for each action, and the value of the states over time."""

import collections
from collections.abc import Callable, Sequence
from typing import NamedTuple

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


class Kind(NamedTuple):
    """What bars show.

    Attributes:
      head: the output of the networks that they are of, [A].
      what: it, in a word or two.
      axis: where they begin, from 0 at the left to 1 at the right.
      measure: from the output and the widest differences of the last steps, to which it adds one: how far the bars
        reach from the axis [A], and the numbers beside them [A].
    """

    head: str
    what: str
    title: str
    axis: float
    measure: Callable[[np.ndarray, collections.deque[float]], tuple[np.ndarray, np.ndarray]]


class Overlay:
    """Puts a panel with a bar for each action to the right of pictures that are shown one after another.

    An action that cannot be taken has neither a bar nor a number.

    Args:
      action_names: of all actions, in order.
    """

    def __init__(self, kind: Kind, action_names: Sequence[str]):
        self.kind = kind
        self._names = [name.lower()[:12] for name in action_names]
        self._values: collections.deque[float] = collections.deque(maxlen=_HISTORY)
        self._widest: collections.deque[float] = collections.deque(maxlen=_SCALE)
        self._font = ImageFont.load_default(12)
        self._small = ImageFont.load_default(10)

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
        self._draw_bars(draw, row, scores, action)
        self._draw_curve(draw, _TITLE_HEIGHT + row * len(scores) + _MARGIN, height)
        return np.concatenate([enlarged[:height, :width], np.asarray(panel)], axis=1)

    def _draw_bars(self, draw: ImageDraw.ImageDraw, row: float, scores: np.ndarray, action: int) -> None:
        draw.text((_MARGIN, 6), self.kind.title, font=self._font, fill=_TEXT)
        font = self._font if row >= 14 else self._small
        left, right = _MARGIN + _NAME_WIDTH, _WIDTH - _MARGIN - _NUMBER_WIDTH
        axis = left + (right - left) * self.kind.axis
        lengths, numbers = (found.tolist() for found in self.kind.measure(scores, self._widest))
        for index, (name, length, number) in enumerate(zip(self._names, lengths, numbers, strict=True)):
            top = _TITLE_HEIGHT + index * row
            centre, bottom = top + row / 2, max(top + 2, top + row - 3)  # with very many actions a line
            colours = (_CHOSEN, _CHOSEN) if index == action else (_TEXT, _OTHER)
            draw.text((_MARGIN, centre), name, font=font, fill=colours[0], anchor="lm")
            if scores[index] > NEVER:
                begin, end = sorted((axis, axis + (right - left) * length))
                draw.rectangle((begin, top + 2, end, bottom), fill=colours[1])
                text = f"{number:.2f}" if abs(number) < 100 else f"{number:.0f}"
                draw.text((_WIDTH - _MARGIN, centre), text, font=font, fill=_TEXT, anchor="rm")
        draw.line((axis, _TITLE_HEIGHT, axis, _TITLE_HEIGHT + len(scores) * row), fill=_QUIET)

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


def _differences(scores: np.ndarray, widest: collections.deque[float]) -> tuple[np.ndarray, np.ndarray]:
    """How much better or worse an action is than the mean of all, which the agent decides by; the values themselves."""
    allowed = scores > NEVER
    differences = np.where(allowed, scores - np.mean(scores[allowed]), 0) if allowed.any() else 0 * scores
    widest.append(float(np.abs(differences).max()))
    return differences / (2 * max(*widest, 1e-6)), scores


def _probabilities(scores: np.ndarray, widest: collections.deque[float]) -> tuple[np.ndarray, np.ndarray]:
    del widest  # they are always from 0 to 1
    probabilities = np.exp(log_softmax(scores[None]))[0]
    return probabilities, probabilities


OVERLAYS = {
    "q": Kind("q_values", "action values", "action values, against their mean", 0.5, _differences),
    "policy": Kind("logits", "probabilities of actions", "probability of each action", 0.0, _probabilities),
}


def _enlarge(picture: np.ndarray) -> np.ndarray:
    factor = max(1, -(-_MIN_HEIGHT // picture.shape[0]))
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)
