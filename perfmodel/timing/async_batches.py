"""Asynchronous batches: whether the host waits for them or only queues them; their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.base.units import si
from perfmodel.readers.trace import NULL
from perfmodel.timing.run import Run, batch_windows
from perfmodel.timing.samples import PathTable, PathTimes

_AHEAD: Final = 1.02
"""The host queues a batch that takes so many times its own time. On H200s batches whose host waits
take 1.000 to 1.001 times the host's time, others up to eight times (profiles/ladder;
tests/timing/test_async_batches.py)."""

_IDLE_HOST: Final = 2.0
"""From so many times the host's time on the GPU alone limits the batch. On H200s replays of a CUDA
graph take 4 to 8 times the host's time, batches of single launches at most 1.3 times (likewise)."""


@dataclass(frozen=True, slots=True)
class AsyncBatches:
    """The batches of a run on two clocks: until the host leaves them, until all work is done.

    Attributes
    ----------
    host_ns, done_ns : int64, shape (ranks, batches)
        Time of the host's range, and until host and GPU are done with the batch
        (`perfmodel.timing.run.batch_windows`); `NULL` where it is unknown.
    queued_s, taken_s : float
        Medians over the second half of the batches: of the two times.
    ratio : float
        `taken_s` over `queued_s` of the rank where it is largest.
    """

    host_ns: Int64
    done_ns: Int64
    queued_s: float
    taken_s: float
    ratio: float

    @property
    def queues(self) -> bool:
        """Whether the host leaves batches before they are done."""
        return self.ratio > _AHEAD

    @property
    def by_gpu(self) -> bool:
        """Whether the host is so far ahead that its own noise does not show."""
        return self.ratio > _IDLE_HOST

    def note(self) -> str:
        """Say how batches of a host that queues are timed."""
        return (
            f"the host queues a batch in {si(self.queued_s, 's')} and does not wait until it is "
            f"done, which takes {si(self.taken_s, 's')}: a batch is timed from the end of the one "
            f"before it to the end of its own GPU work; host times of other ranges are those of "
            f"queueing"
        )


def time_async(run: Run) -> AsyncBatches:
    """Time the batches of a run on both clocks."""
    host_ns, (since, done) = _host_ns(run), batch_windows(run)
    done_ns = np.where(since == NULL, NULL, np.maximum(done - since, 0))
    late = slice(host_ns.shape[1] // 2, None)
    host, done_s = (np.where(ns < 0, np.nan, ns * 1e-9) for ns in (host_ns, done_ns))
    both = [
        (h, d) for h, d in zip(host[:, late], done_s[:, late], strict=True) if np.isfinite(h).any()
    ]
    ratios = [float(np.nanmedian(d)) / max(float(np.nanmedian(h)), 1e-9) for h, d in both]
    queued, taken = (
        float(np.nanmedian(t)) if both else 0.0 for t in (host[:, late], done_s[:, late])
    )
    return AsyncBatches(host_ns, done_ns, queued, taken, max(ratios, default=1.0))


def _host_ns(run: Run) -> Int64:
    """The host's time of every batch, (ranks, batches); `NULL` where it never ended."""
    times, label = run.range_times, run.batch_label
    outermost = np.array([path.index(label) == len(path) - 1 if label in path else False
                          for path in times.paths], np.bool_)  # fmt: skip
    rows = np.flatnonzero(outermost[times.path] & (times.batch >= 0))
    shape = len(run.ranks), int(times.batch.max(initial=-1)) + 1
    cell = np.searchsorted(run.ranks, times.rank[rows]), times.batch[rows]
    host_ns, there = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    np.add.at(host_ns, cell, np.maximum(times.host_ns[rows], 0))
    there[cell] = True
    unended = np.flatnonzero(times.host_ns[rows] == NULL)
    there[tuple(axis[unended] for axis in cell)] = False
    return np.where(there, host_ns, NULL)


def head_of(run: Run, measured: PathTable) -> PathTimes:
    """Return the batch itself."""
    return next(m for m in measured if m.label == run.batch_label)
