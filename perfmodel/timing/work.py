"""Work by time: how much of what a program does lies in an interval of host time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Floats, Int32, Int64
from perfmodel.readers.trace import Trace
from perfmodel.timing.host_events import extents
from perfmodel.timing.launched import Parts


@dataclass(frozen=True, slots=True)
class WorkByTime:
    """The work of every process by launch time, summed up, so that intervals are differences.

    Attributes
    ----------
    parts : tuple of (int, int64 array, float64 array)
        A process, when it launches, ascending, and the work until then. Without a GPU, when the
        process begins and ends.
    on_gpu : bool
        Whether it is that of a GPU.
    """

    parts: tuple[tuple[int, Int64, Floats], ...]
    on_gpu: bool

    @classmethod
    def of(cls, trace: Trace, parts: Parts) -> WorkByTime:
        """GPU time by launch; without a GPU the host's time from the first event to the last."""
        summed: list[tuple[int, Int64, Floats]] = []
        for part, found in parts():
            weight = (part.ops.end_ns - part.ops.start_ns)[found.op].astype(np.float64)
            summed += _summed(found.process, found.at_ns, weight)
            del part, found, weight  # before the next one is made
        if summed:
            return cls(tuple(summed), on_gpu=True)
        times = extents(trace).items()
        host = [(p, np.array(ends, np.int64), np.zeros(2)) for p, ends in times]
        return cls(tuple(host), on_gpu=False)

    @property
    def processes(self) -> Int64:
        """Processes that have work, ascending."""
        return np.array(sorted(p for p, _, _ in self.parts), np.int64)

    def each(self, process: Int32 | Int64, start: Int64, end: Int64) -> Int64:
        """Work in ns that lies in each of some intervals, each of one process."""
        held = np.zeros(len(start), np.int64)
        for p, at, total in self.parts:
            mine = np.flatnonzero(process == p)
            if self.on_gpu:
                low = np.searchsorted(at, start[mine], side="left")
                high = np.searchsorted(at, end[mine], side="right")
                held[mine] = (total[high] - total[low]).astype(np.int64)
            else:
                inside = np.minimum(end[mine], at[1]) - np.maximum(start[mine], at[0])
                held[mine] = np.maximum(inside, 0)
        return held

    @property
    def total_ns(self) -> int:
        """Work of all processes."""
        return sum(
            int(total[-1]) if self.on_gpu else int(at[1] - at[0]) for _, at, total in self.parts
        )

    def inside(self, process: Int32 | Int64, start: Int64, end: Int64) -> float:
        """Share of all work that lies in intervals that do not overlap."""
        return float(self.each(process, start, end).sum()) / max(self.total_ns, 1)


def _summed(process: Int32, at: Int64, weight: Floats) -> Iterator[tuple[int, Int64, Floats]]:
    """Sum the work of every process up in time order."""
    for p in np.unique(process):
        mine = np.flatnonzero(process == p)
        mine = mine[np.argsort(at[mine], kind="stable")]
        yield int(p), at[mine], np.concatenate([[0.0], np.cumsum(weight[mine])])
