"""Which memory a worker shares with which parameter server: asked once, and again after a step was lost."""

import contextlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from async_dqn.base.errors import Outage
from async_dqn.cluster import shared_memory

Segments = dict[str, list[shared_memory.Segment | None]]  # {module: [one for each ps]}; None: it shares none


class SharedSegments:
    """The segments of all modules and parameter servers.

    Args:
      sizes: {module: sizes of its shards}.
      is_allowed: whether any memory may be shared.
      reach: {module: [addresses]} -> {module: [whether the ps finds it]}. May raise Outage.
      warn: takes a line that says with which ps no memory is shared.
    """

    def __init__(
        self,
        sizes: Mapping[str, Sequence[int]],
        reach: Callable[[dict[str, list[str]]], Mapping[str, Sequence[np.bool_]]],
        warn: Callable[[str], None],
        *,
        is_allowed: bool,
    ):
        self._sizes, self._reach, self._warn, self._is_allowed = sizes, reach, warn, is_allowed
        self._segments: Segments | None = None  # None: not asked for since they were dropped

    def get(self) -> Segments:
        """A ps shares memory for all modules or for none."""
        if self._segments is None and self._is_allowed:
            # The caller meets the outage too, after what it sends has a number.
            with contextlib.suppress(Outage):
                self._segments = self._share()
        return self._segments or self._none()

    def drop(self) -> None:
        """Nobody finds the segments any more; the next that are shared are new ones."""
        for segments in (self._segments or {}).values():
            for segment in segments:
                if segment:
                    segment.close()
        self._segments = None

    def _none(self) -> Segments:
        return {name: [None] * len(sizes) for name, sizes in self._sizes.items()}

    def _share(self) -> Segments:
        try:
            made = {name: [shared_memory.Segment(size) for size in sizes] for name, sizes in self._sizes.items()}
        except OSError as error:
            self._warn(f"no memory is shared ({error.strerror}): parameters go over the network")
            return self._none()
        found = self._reach({name: [segment.address for segment in segments] for name, segments in made.items()})
        is_near = np.all([found[name] for name in made], axis=0)  # [K]
        far = np.flatnonzero(~is_near)
        if len(far):
            self._warn(f"no memory is shared with ps {', '.join(map(str, far))}: parameters go there over the network")
        return {
            name: [segment if near else None for segment, near in zip(segments, is_near, strict=True)]
            for name, segments in made.items()
        }
