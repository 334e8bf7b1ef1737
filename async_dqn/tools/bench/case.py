"""What the benchmark measures: cases, each of which can be measured again and again, in turn with the others."""

from collections.abc import Callable
from typing import NamedTuple


class Case(NamedTuple):
    """One thing to measure.

    Attributes:
      section: the table that it belongs to, as `programs` or `parts`.
      name: its row there.
      measure: measures it once; gives {what, with its unit: value}. It may take a while, and leaves nothing behind.
    """

    section: str
    name: str
    measure: Callable[[], dict[str, float]]
