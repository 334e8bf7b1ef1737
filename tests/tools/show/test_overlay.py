"""Tests of async_dqn.tools.show.overlay: bars tell the actions apart, and the picture stays as it is."""

import numpy as np
import pytest

from async_dqn.nn.policies import NEVER
from async_dqn.tools.show.overlay import OVERLAYS, Overlay

ORANGE, BLUE = (230, 159, 0), (86, 180, 233)
PANEL = 240


def pixels(picture, colour):
    """Where the panel has exactly this colour, left of the numbers: rows and columns."""
    return np.nonzero((picture[:, -PANEL + 108 : -55] == colour).all(axis=2))


def test_the_game_is_enlarged_and_left_alone():
    game = np.random.default_rng(0).integers(0, 256, (210, 160, 3), dtype=np.uint8)
    drawn = Overlay(OVERLAYS["q"], ["noop", "fire"]).draw(game, np.array([1.0, 2.0], np.float32), 1, 2.0)
    assert drawn.shape == (420, 320 + PANEL, 3)
    assert drawn.dtype == np.uint8
    np.testing.assert_array_equal(drawn[::2, :320:2], game)


@pytest.mark.parametrize("shape", [(401, 601, 3), (50, 33, 3)])
def test_sides_are_even_as_videos_need_them(shape):
    drawn = Overlay(OVERLAYS["q"], ["0", "1"]).draw(np.zeros(shape, np.uint8), np.array([1.0, 2.0], np.float32), 1, 2.0)
    assert drawn.shape[0] % 2 == drawn.shape[1] % 2 == 0
    assert drawn.shape[0] >= 400


def test_the_chosen_action_is_orange_and_better_ones_reach_to_the_right():
    game = np.zeros((400, 100, 3), np.uint8)
    drawn = Overlay(OVERLAYS["q"], ["left", "right"]).draw(game, np.array([-3.0, 1.0], np.float32), 1, 2.0)[:100]
    (rows_chosen, columns_chosen), (rows_other, columns_other) = pixels(drawn, ORANGE), pixels(drawn, BLUE)
    assert rows_other.max() < rows_chosen.min()  # in the order of the actions
    assert columns_other.max() <= columns_chosen.min() + 1  # the mean lies between them
    assert np.ptp(columns_chosen) == pytest.approx(np.ptp(columns_other), abs=2)  # it is as far from both


def test_bars_are_measured_by_the_widest_difference_of_late():
    overlay, game = Overlay(OVERLAYS["q"], ["left", "right"]), np.zeros((400, 100, 3), np.uint8)
    wide = np.ptp(pixels(overlay.draw(game, np.array([0.0, 4.0]), 1, 4.0)[:100], ORANGE)[1])
    narrow = np.ptp(pixels(overlay.draw(game, np.array([0.0, 1.0]), 1, 1.0)[:100], ORANGE)[1])
    assert narrow == pytest.approx(wide / 4, abs=2)
    for _ in range(29):
        last = overlay.draw(game, np.array([0.0, 1.0]), 1, 1.0)
    assert np.ptp(pixels(last[:100], ORANGE)[1]) == wide


def test_many_actions_fit():
    game = np.zeros((210, 160, 3), np.uint8)
    values = np.linspace(0, 1, 18)
    drawn = Overlay(OVERLAYS["q"], [f"action {index}" for index in range(18)]).draw(game, values, 17, 1.0)
    rows = pixels(drawn, BLUE)[0]
    assert len(set(rows // 15)) >= 16  # of the 17 that are not chosen, two lie close to the mean
    assert rows.max() < 300  # above the curve


def test_more_actions_than_there_is_room_for_are_thin_bars():
    drawn = Overlay(OVERLAYS["q"], list(map(str, range(150)))).draw(
        np.zeros((400, 100, 3), np.uint8), np.linspace(0, 1, 150), 149, 1.0
    )
    assert drawn.shape == (400, 340, 3)
    assert len(set(pixels(drawn, BLUE)[0])) > 100


def test_values_that_are_all_the_same_have_no_bars():
    drawn = Overlay(OVERLAYS["q"], ["0", "1"]).draw(np.zeros((400, 100, 3), np.uint8), np.array([2.0, 2.0]), 0, 2.0)
    assert drawn.shape == (400, 340, 3)
    for colour in (ORANGE, BLUE):
        assert _width(drawn[:80], colour) <= 1


def _width(picture, colour):
    columns = pixels(picture, colour)[1]
    return np.ptp(columns) + 1 if len(columns) else 0


def test_the_bars_of_a_policy_are_as_long_as_the_probabilities():
    overlay, game = Overlay(OVERLAYS["policy"], ["left", "right"]), np.zeros((400, 100, 3), np.uint8)
    logits = np.log(np.array([0.2, 0.8], np.float32)) + 7
    drawn = overlay.draw(game, logits, 1, 0.5)[:80]
    chosen, other = _width(drawn, ORANGE), _width(drawn, BLUE)
    whole = _width(overlay.draw(game, np.float32([-100, 100]), 1, 0.5)[:80], ORANGE)
    assert chosen == pytest.approx(0.8 * whole, abs=2)
    assert other == pytest.approx(0.2 * whole, abs=2)
    assert pixels(drawn, ORANGE)[1].min() <= pixels(drawn, BLUE)[1].min() <= 1  # both begin at the left


def test_the_curve_is_of_the_values_of_the_states():
    overlay, game = Overlay(OVERLAYS["policy"], ["0", "1"]), np.zeros((400, 100, 3), np.uint8)
    for value in np.linspace(-3, 5, 150).tolist():  # as many as it has room for
        drawn = overlay.draw(game, np.float32([1, 2]), 1, value)
    rows, columns = pixels(drawn[200:], ORANGE)
    first, last = rows[columns == columns.min()].min(), rows[columns == columns.max()].max()
    assert first - last > 30  # it rises


def test_an_action_that_cannot_be_taken_has_no_bar_and_no_number():
    game, background = np.zeros((400, 100, 3), np.uint8), (22, 24, 29)
    drawn = Overlay(OVERLAYS["q"], ["left", "right", "up"]).draw(game, np.float32([-3, 1, NEVER]), 1, 2.0)[:100]
    two = Overlay(OVERLAYS["q"], ["left", "right"]).draw(game, np.float32([-3, 1]), 1, 2.0)[:100]
    for colour in (ORANGE, BLUE):  # the others are as if it were not there
        assert _width(drawn, colour) == _width(two, colour) > 10
    row_of_up = drawn[28 + 2 * 26 : 28 + 3 * 26]
    assert not len(pixels(row_of_up, BLUE)[0])
    assert (row_of_up[:, -50:] == background).all()
