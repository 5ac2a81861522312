"""Memory over time as a report recorded it: live bytes by process and kind, peaks, blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.readers.memory import MemoryEvents
from perfmodel.readers.trace import MEMORY_KINDS, NULL, Trace
from perfmodel.timing.range_times import ranks_of


@dataclass(frozen=True, slots=True)
class Timeline:
    """Live bytes of one kind of memory in one process.

    Attributes
    ----------
    process : int
        Serialized global process id.
    rank : int or None
        None where the report names no rank for it.
    kind : str
        As in `perfmodel.readers.trace.MEMORY_KINDS`: 'device', 'pinned', 'managed', ...
    time_ns, live_bytes : int64, shape (n,)
        Live bytes from each event on.
    blocks : int64
        Sizes of the allocations that were live at the peak, descending.
    allocations, releases : int
    where : str
        The innermost NVTX range open at the peak, '' outside all ranges.
    """

    process: int
    rank: int | None
    kind: str
    time_ns: Int64
    live_bytes: Int64
    blocks: Int64
    allocations: int
    releases: int
    where: str

    @property
    def peak_bytes(self) -> int:
        """Most bytes that were live at once."""
        return int(self.live_bytes.max(initial=0))

    @property
    def peak_ns(self) -> int:
        """When the peak was reached first."""
        return int(self.time_ns[int(np.argmax(self.live_bytes))])

    @property
    def left_bytes(self) -> int:
        """What was never released."""
        return int(self.live_bytes[-1])


def timelines(events: MemoryEvents, trace: Trace) -> tuple[Timeline, ...]:
    """Follow the memory of every process, largest peak first.

    A release counts as many bytes as its address was allocated with; one of an address that was
    allocated before the recording began counts nothing.
    """
    index = {int(pid): i for i, pid in enumerate(trace.processes)}
    ranks = ranks_of(trace) if len(trace.ranges) else dict(trace.ranks)
    found = []
    for process in np.unique(events.process):
        for kind in np.unique(events.kind[events.process == process]):
            at = np.flatnonzero((events.process == process) & (events.kind == kind))
            live, blocks, peak = _follow(events, at)
            time = events.start_ns[at]
            found.append(
                Timeline(
                    process=int(process),
                    rank=ranks.get(index.get(int(process), -1)),
                    kind=MEMORY_KINDS[int(kind)],
                    time_ns=time,
                    live_bytes=live,
                    blocks=np.array(sorted(blocks, reverse=True), np.int64),
                    allocations=int((~events.frees[at]).sum()),
                    releases=int(events.frees[at].sum()),
                    where=_where(trace, index.get(int(process)), int(time[peak])),
                )
            )
    return tuple(sorted(found, key=lambda t: (-t.peak_bytes, t.process)))


def _follow(events: MemoryEvents, at: Int64) -> tuple[Int64, Sequence[int], int]:
    """Live bytes after each event, the sizes live at the peak, and the peak's place."""
    open_blocks: dict[tuple[int, int], int] = {}
    at_peak: list[int] = []
    live = np.empty(len(at), np.int64)
    total = most = place = 0
    rows = zip(
        events.device[at].tolist(), events.address[at].tolist(), events.bytes[at].tolist(),
        events.frees[at].tolist(), strict=True,
    )  # fmt: skip
    for i, (device, address, size, frees) in enumerate(rows):
        if frees:
            total -= open_blocks.pop((device, address), 0)
        else:
            total += size - open_blocks.get((device, address), 0)
            open_blocks[device, address] = size
        live[i] = total
        if total > most:
            most, place, at_peak = total, i, list(open_blocks.values())
    return live, at_peak, place


def _where(trace: Trace, process: int | None, time_ns: int) -> str:
    """Label of the range of this process that was opened last and is open at a time."""
    ranges = trace.ranges
    if process is None or len(ranges) == 0:
        return ""
    mine = trace.thread_process[ranges.thread] == process
    end = np.where(ranges.end_ns == NULL, np.iinfo(np.int64).max, ranges.end_ns)
    is_open = (ranges.start_ns <= time_ns) & (end > time_ns)
    inside = np.flatnonzero(mine & is_open & (ranges.name >= 0))
    if len(inside) == 0:
        return ""
    last = inside[np.argmax(ranges.start_ns[inside])]
    return trace.range_labels[int(ranges.name[last])]
