import pytest

from async_dqn.tools import tables


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1_234_567, "1,234,567"),
        (123.4, "123"),
        (12.34, "12.3"),
        (12, "12"),
        (1.234, "1.23"),
        (0.0012345, "0.00123"),
        (-12.34, "-12.3"),
        (float("nan"), "-"),
        (float("inf"), "-"),
    ],
)
def test_numbers_have_three_digits_that_count(value, text):
    assert tables.number(value) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "-"),
        ([1.0, float("nan")], "-"),
        ([5.0, 5.001], "5"),
        ([30.0, 10.0, 20.0], "20 [10 - 30]"),
        ([10.0, 20.0], "15 [10 - 20]"),
    ],
)
def test_a_cell_is_the_median_and_the_range(values, text):
    assert tables.cell(values) == text
