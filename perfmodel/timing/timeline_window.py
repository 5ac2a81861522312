"""Which stretch of time a timeline shows: that of some batches, on one clock for all reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.errors import SchemaError
from perfmodel.readers.trace import NULL
from perfmodel.timing.range_times import ranks_of
from perfmodel.timing.run import Run, batch_seconds, batch_windows
from perfmodel.timing.samples import count_warmup


@dataclass(frozen=True, slots=True)
class Window:
    """Time in which the ranks were at some batches.

    Attributes
    ----------
    batches : range
        Batches from 0.
    start_ns, end_ns : int
        From the first rank's start until the last rank and its GPU are done, on the clock of the
        run's first report.
    host_ns : dict
        When the host of every rank was in the batches.
    """

    batches: range
    start_ns: int
    end_ns: int
    host_ns: dict[int, tuple[int, int]]


def clocks(run: Run) -> tuple[int, ...]:
    """What to add to the times of every report to have those of the first; 0 where unknown."""
    zero = run.parts[0][0].utc_start_ns
    return tuple(
        0 if zero is None or t.utc_start_ns is None else t.utc_start_ns - zero for t in run.traces
    )


def clocks_differ(run: Run) -> bool:
    """Whether times of several reports cannot be put on one clock."""
    return len(run.parts) > 1 and any(t.utc_start_ns is None for t in run.traces)


def median_batch(run: Run, warmup: int | None = None) -> int:
    """Return the batch behind the warm-up whose slowest rank took the median time.

    Of an even number of batches, the shorter of the two in the middle; of equal ones the first.
    """
    seconds = batch_seconds(run)
    slowest = np.max(np.where(np.isnan(seconds), -np.inf, seconds), axis=0)
    first = count_warmup(seconds) if warmup is None else warmup
    late = [b for b in range(first, len(slowest)) if np.isfinite(slowest[b])]
    if not late:
        raise SchemaError(
            f"{run.label}: expected a batch after the warm-up of {first}; got {len(slowest)} "
            f"batches in all; name one with --batch"
        )
    order = sorted(late, key=lambda b: (float(slowest[b]), b))
    return order[(len(order) - 1) // 2]


def window_of(run: Run, batches: range) -> Window:
    """Find when the ranks were at the batches.

    Raises
    ------
    SchemaError
        If the run has no such batch, or the batches never ended.
    """
    count = int(run.range_times.batch.max()) + 1
    if not batches or batches[0] < 0 or batches[-1] >= count:
        asked = f"{batches[0]} to {batches[-1]}" if len(batches) > 1 else str(batches.start)
        raise SchemaError(
            f"{run.label}: expected batch {asked}; got batches 0 to {count - 1}; name some of those"
        )
    offset = {
        rank: clock
        for trace, clock in zip(run.traces, clocks(run), strict=True)
        for rank in ranks_of(trace).values()
    }
    times = run.range_times
    head = np.array([path[-1] == run.batch_label for path in times.paths], np.bool_)
    asked_for = (times.batch >= batches.start) & (times.batch < batches.stop)
    at = np.flatnonzero(head[times.path] & asked_for & (times.host_ns != NULL))
    _, done = batch_windows(run)
    host: dict[int, tuple[int, int]] = {}
    ends = []
    for row, rank in enumerate(run.ranks):
        mine = at[times.rank[at] == rank]
        if len(mine) == 0:
            continue
        begin, end = (
            times.start_ns[mine],
            times.start_ns[mine] + times.host_ns[mine],
        )
        host[rank] = int(begin.min()) + offset[rank], int(end.max()) + offset[rank]
        ends.append(int(done[row, batches.start : batches.stop].max()) + offset[rank])
    if not host:
        raise SchemaError(
            f"{run.label}: expected the end of batch {batches.start}; it never ended on "
            f"the host; name another one with --batch"
        )
    return Window(batches, min(begin for begin, _ in host.values()), max(ends), host)
