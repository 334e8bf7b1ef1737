"""Numbers as text, and tables of them in markdown."""

import math
import statistics
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table, its first column to the left and all others to the right; "" without rows."""
    if not rows:
        return ""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(text.replace('|', '/') for text in line)} |" for line in lines)


def cell(values: Sequence[float]) -> str:
    """Median and, where it says more, range; "-" where one is missing, as a median over the others would flatter."""
    if not values or not all(map(math.isfinite, values)):
        return "-"
    middle, least, most = (number(of(values)) for of in (statistics.median, min, max))
    return middle if least == most else f"{middle} [{least} - {most}]"


def number(value: float) -> str:
    """Three digits, or all of a whole number: 1,234, 123, 12.3, 0.123; "-" for what is not finite."""
    return "-" if not math.isfinite(value) else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
