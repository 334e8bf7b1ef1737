"""Draws what an agent thinks beside what it sees: a bar for each action, and the value of the states over time."""

import collections
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

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


class QOverlay:
    """Puts a panel with action values to the right of pictures that are shown one after another.

    A bar is how much better or worse an action is than the mean of all, which is what the agent decides by; the number
    beside it is the value itself. Bars are measured by the widest difference of the last 30 steps.

    Args:
      action_names: of all actions, in order.
    """

    def __init__(self, action_names: Sequence[str]):
        self._names = [name.lower()[:12] for name in action_names]
        self._values: collections.deque[float] = collections.deque(maxlen=_HISTORY)
        self._widest: collections.deque[float] = collections.deque(maxlen=_SCALE)  # difference of each step
        self._font = ImageFont.load_default(12)
        self._small = ImageFont.load_default(10)

    def draw(self, picture: np.ndarray, q_values: np.ndarray, action: int) -> np.ndarray:
        """The picture [H, W, 3] uint8 with its panel, some k H high and k W + 240 wide, both even.

        Args:
          q_values: [A], of the state that is shown.
          action: what the agent does there.
        """
        enlarged = _enlarge(picture)
        height, width = (side - side % 2 for side in enlarged.shape[:2])
        panel = Image.new("RGB", (_WIDTH, height), _BACKGROUND)
        draw = ImageDraw.Draw(panel)
        self._values.append(float(np.max(q_values)))
        row = min(_MAX_ROW, (height - _MIN_CURVE_HEIGHT - _TITLE_HEIGHT) / len(q_values))
        self._draw_bars(draw, row, q_values, action)
        self._draw_curve(draw, _TITLE_HEIGHT + row * len(q_values) + _MARGIN, height)
        return np.concatenate([enlarged[:height, :width], np.asarray(panel)], axis=1)

    def _draw_bars(self, draw: ImageDraw.ImageDraw, row: float, q_values: np.ndarray, action: int) -> None:
        draw.text((_MARGIN, 6), "action values, and better or worse", font=self._font, fill=_TEXT)
        differences = q_values - np.mean(q_values)
        self._widest.append(float(np.abs(differences).max()))
        scale = max(*self._widest, 1e-6)
        font = self._font if row >= 14 else self._small
        left, right = _MARGIN + _NAME_WIDTH, _WIDTH - _MARGIN - _NUMBER_WIDTH
        middle, half = (left + right) / 2, (right - left) / 2
        for index, (name, value, difference) in enumerate(zip(self._names, q_values, differences, strict=True)):
            top = _TITLE_HEIGHT + index * row
            colour = _CHOSEN if index == action else _OTHER
            end = middle + half * float(difference) / scale
            centre = top + row / 2
            draw.text((_MARGIN, centre), name, font=font, fill=_CHOSEN if index == action else _TEXT, anchor="lm")
            bottom = max(top + 2, top + row - 3)  # with very many actions a line
            draw.rectangle((min(middle, end), top + 2, max(middle, end), bottom), fill=colour)
            text = f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
            draw.text((_WIDTH - _MARGIN, centre), text, font=font, fill=_TEXT, anchor="rm")
        draw.line((middle, _TITLE_HEIGHT, middle, _TITLE_HEIGHT + len(q_values) * row), fill=_QUIET)

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


def _enlarge(picture: np.ndarray) -> np.ndarray:
    factor = max(1, -(-_MIN_HEIGHT // picture.shape[0]))
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)
