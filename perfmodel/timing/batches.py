"""When the batches of every rank ran on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Int32, Int64
from perfmodel.timing.range_times import RangeTimes


@dataclass(frozen=True, slots=True)
class Batches:
    """When the batches of every rank ran on the host, by rank and start."""

    rank: Int32
    start_ns: Int64
    end_ns: Int64
    number: Int32

    @classmethod
    def of(cls, times: RangeTimes, label: str) -> Batches:
        """Find the ranges that are batches."""
        head = np.flatnonzero(times.labelled(label) & (times.batch >= 0))
        head = head[np.lexsort((times.start_ns[head], times.rank[head]))]
        start = times.start_ns[head]
        end = start + np.maximum(times.host_ns[head], 0)
        return cls(times.rank[head], start, end, times.batch[head])

    def count(self, rank: int) -> int:
        """Return the number of batches of a rank."""
        return int(self.number[self._of(rank)].max(initial=-1)) + 1

    def numbers(self, rank: int) -> Int64:
        """Return the numbers of a rank's batches, ascending."""
        return np.unique(self.number[self._of(rank)]).astype(np.int64)

    def holding(self, rank: int, start_ns: Int64, *, between: bool = False) -> Int64:
        """Return the number of the rank's batch in which each call starts, -1 outside.

        What starts `between` two batches is of the first of them, if asked.
        """
        mine = self._of(rank)
        start, end = self.start_ns[mine], self.end_ns[mine]
        if len(start) == 0:
            return np.full(len(start_ns), -1, np.int64)
        at = np.searchsorted(start, start_ns, side="right") - 1
        last = np.full(len(at), end.max() + 1) if between else end[at]
        inside = (at >= 0) & (start_ns < last)
        return np.where(inside, self.number[mine][at], -1).astype(np.int64)

    def _of(self, rank: int) -> slice:
        return slice(*np.searchsorted(self.rank, [rank, rank + 1]).tolist())
