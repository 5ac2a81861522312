"""Asynchronous batches: whether the host waits for them or only queues them; their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import si
from perfmodel.timing.run import Run, batch_seconds
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
    done : array, shape (ranks, batches)
        Seconds by `perfmodel.timing.run.batch_seconds`.
    queued_s, taken_s : float
        Medians over the second half of the batches: of the host's time, and of `done`.
    ratio : float
        `taken_s` over `queued_s` of the rank where it is largest.
    """

    done: Floats
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


def time_async(run: Run, measured: PathTable) -> AsyncBatches:
    """Time the batches of a run on both clocks; `measured` are its ranges of all batches."""
    host, done = head_of(run, measured).seconds["host"], batch_seconds(run)
    late = slice(host.shape[1] // 2, None)
    both = [
        (h, d) for h, d in zip(host[:, late], done[:, late], strict=True) if np.isfinite(h).any()
    ]
    ratios = [float(np.nanmedian(d)) / max(float(np.nanmedian(h)), 1e-9) for h, d in both]
    queued, taken = (
        float(np.nanmedian(t)) if both else 0.0 for t in (host[:, late], done[:, late])
    )
    return AsyncBatches(done, queued, taken, max(ratios, default=1.0))


def head_of(run: Run, measured: PathTable) -> PathTimes:
    """Return the batch itself."""
    return next(m for m in measured if m.label == run.batch_label)


def until_done(run: Run, measured: PathTable, timing: AsyncBatches) -> PathTable:
    """Replace the host's time of the batch by that until all of its work is done."""
    labels = (path[-1] for path in measured.paths)
    head = next(at for at, label in enumerate(labels) if label == run.batch_label)
    return measured.with_host({head: timing.done})
