"""Kernels that are too small for what it takes to launch them, by the range that launched them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int8, Int64, distinct_rows
from perfmodel.readers.trace import KERNEL, NO_NAME, Trace, join_columns
from perfmodel.timing.launched import Launched
from perfmodel.timing.nesting import Nesting, innermost
from perfmodel.timing.spans import Steps
from perfmodel.timing.step_times import StepTimes

_SMALL: Final = 2
"""A kernel that takes less than so many quick launches is small: the host can hardly keep up."""
MANY: Final = 100
"""So many small kernels of one range in a step are many."""
_MOSTLY: Final = 0.7
_FUSIBLE: Final = ("element-wise", "copy", "reduction", "optimizer")
_MOST_HOST: Final = 20
"""A launch is charged the host's time of so many quick ones at most: beyond it the host does
something else, as in `host_timeline`."""


@dataclass(frozen=True, slots=True)
class SmallKernels:
    """Small kernels that could be fused, by lane, step and range; one row each.

    Attributes
    ----------
    ranges : tuple of str
        Labels that `range` indexes; the last one, '', where the host is in none.
    lane, step, range : int64, shape (n,)
    count : int64, shape (n,)
        Small kernels: those of which many follow each other; without, all of a range that launches
        mostly such.
    distinct : int64, shape (n,)
        Different kernels: so often the same data are read and written.
    host_ns, gpu_ns : int64, shape (n,)
        Time to launch them, and their own.
    under_ns : int64, shape (n,)
        Kernels that take less are small there.
    """

    ranges: tuple[str, ...]
    lane: Int64
    step: Int64
    range: Int64
    count: Int64
    distinct: Int64
    host_ns: Int64
    gpu_ns: Int64
    under_ns: Int64

    def chosen(self, rows: Bool) -> SmallKernels:
        """Return some of the rows."""
        return SmallKernels(self.ranges, *(getattr(self, n)[rows] for n in self.__slots__[1:]))

    @classmethod
    def join(cls, parts: list[SmallKernels], first: Sequence[int]) -> SmallKernels:
        """Put parts of one report together; `first` is the number of the first lane of each.

        Empties the list.
        """
        ranges = parts[0].ranges
        lane = np.concatenate([part.lane + n for part, n in zip(parts, first, strict=True)])
        return cls(ranges, lane, **join_columns(parts, cls.__slots__[2:]))


def small_kernels(
    trace: Trace,
    steps: Steps,
    found: Launched,
    times: StepTimes,
    nesting: Nesting,
    code: Int8,
    names: Sequence[str],
    launch_ns: Int64,
) -> tuple[SmallKernels, Int64]:
    """Collect the small kernels of the steps.

    Parameters
    ----------
    trace : Trace
    steps : Steps
    found : Launched
    times : StepTimes
    nesting : Nesting
        Of the trace's ranges.
    code, names
        Categories of all operations, as `perfmodel.timing.kernels.categorize` returns them.
    launch_ns : int64, shape (processes,)
        As `perfmodel.timing.host_timeline.quick_launches` returns them.

    Returns
    -------
    SmallKernels
    range : int64, shape (operations,)
        Index into its `ranges` of every small kernel; -1 for other operations.
    """
    op, lane = times.ops.op, times.ops.lane
    at = found.row_of(op)
    call = found.call[at]
    end = trace.api.end_ns[call]
    order = np.lexsort((end, lane))
    op, lane, end, step = op[order], lane[order], end[order], times.ops.step[order]
    cost = np.zeros(len(op), np.int64)
    cost[1:] = np.where(lane[1:] == lane[:-1], end[1:] - end[:-1], 0)
    quick = launch_ns[times.process[lane]]
    cost = np.clip(cost, 0, _MOST_HOST * quick)
    label = launched_in(trace, nesting, steps, found, at[order], step)
    duration = trace.ops.end_ns[op] - trace.ops.start_ns[op]
    fusible = np.array([name in _FUSIBLE for name in names], np.bool_)
    kernels = (trace.ops.kind[op] == KERNEL) & fusible[code[op]]
    cells, cell = distinct_rows(lane, steps.number[step], label)

    def total(values: Int64 | Bool) -> Int64:
        return np.bincount(cell, values, len(cells)).astype(np.int64)

    small = kernels & (duration < _SMALL * quick)
    mostly = total(small) >= _MOSTLY * total(np.ones(len(op), np.int64))
    runs = _in_long_runs(cell, kernels, small)
    small &= runs | (mostly & (total(runs) == 0))[cell]
    pairs, _ = distinct_rows(cell[small], trace.ops.name[op][small])
    where = np.where(label == NO_NAME, len(trace.range_labels), label)
    range_of = np.full(len(trace.ops), -1, np.int64)
    range_of[op[small]] = where[small]
    table = SmallKernels(
        ranges=(*trace.range_labels, ""),
        lane=cells[:, 0],
        step=cells[:, 1],
        range=np.where(cells[:, 2] == NO_NAME, len(trace.range_labels), cells[:, 2]),
        count=total(small),
        distinct=np.bincount(pairs[:, 0], minlength=len(cells)).astype(np.int64),
        host_ns=total(cost * small),
        gpu_ns=total(duration * small),
        under_ns=_SMALL * launch_ns[times.process[cells[:, 0]]],
    )
    return table, range_of


def _in_long_runs(cell: Int64, kernels: Bool, small: Bool) -> Bool:
    """Operations of one cell of which many small ones follow each other, with no other between."""
    same = (cell[1:] == cell[:-1]) & kernels[1:] & kernels[:-1]
    run = np.cumsum(np.concatenate([[True], ~same]))[: len(cell)]
    found: Bool = np.bincount(run, small)[run] >= MANY
    return found


def launched_in(
    trace: Trace, nesting: Nesting, steps: Steps, found: Launched, row: Int64, step: Int64
) -> Int64:
    """Name of the innermost range that each operation was launched in, on its thread or the step's.

    Parameters
    ----------
    row : int64, shape (n,)
        Of `found`.
    step : int64, shape (n,)
        Of `steps`.

    Returns
    -------
    int64, shape (n,)
        Index into the trace's `range_labels`, or `NO_NAME`.
    """
    where = np.full(len(row), -1, np.int64)
    when = found.at_ns[row]
    for thread in (found.thread[row], steps.thread[step]):
        open_ = (where < 0) & (thread >= 0)
        where[open_] = innermost(nesting, thread[open_], when[open_], when[open_])
    if len(nesting) == 0:
        return where
    return np.where(where >= 0, trace.ranges.name[nesting.row[where]], NO_NAME).astype(np.int64)
