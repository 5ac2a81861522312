"""Times of a step on every rank: busy, compute, communication and its exposed part, idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Floats, Int32, Int64, distinct_positions, distinct_rows
from perfmodel.readers.trace import MEMCPY, MEMSET, Trace
from perfmodel.timing.intervals import extents, lengths
from perfmodel.timing.launched import Launched
from perfmodel.timing.spans import Steps

FEW: Final = 3
"""Of so few steps all count: without the first and the last at most one would be left."""
_SLOW: Final = 1.25
"""A leading step is warm-up if it takes longer than this many times the median of later ones: first
steps that compile take five times as long and more (tests/timing/test_samples.py), usual ones on an
idle machine within a tenth."""


@dataclass(frozen=True, slots=True)
class StepOps:
    """GPU operations inside steps.

    Attributes
    ----------
    op : int64, shape (k,)
        Rows of `GpuOps`.
    step : int64, shape (k,)
        Index into `Steps`.
    lane : int64, shape (k,)
        Index into `StepTimes.process` and `StepTimes.device`.
    """

    op: Int64
    step: Int64
    lane: Int64


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of the steps of every lane, which is one GPU of one process.

    A rank that drives one GPU is one lane; a process that drives several has one for each.
    Arrays of times are int64 ns, shape (lanes, steps); steps that a lane lacks hold -1.

    Attributes
    ----------
    process, device : int32, shape (lanes,)
        `device` is -1 for a process without GPU operations.
    step_ns : int64
        From a step's first GPU operation to the first of the next, and at least `busy_ns`. The end
        of the last step no operation marks: of `FEW` steps or fewer it takes until host and GPU
        are done with it, of more it is -1. Without a GPU the step's host time.
    busy_ns : int64
        Union of the GPU operations, of all streams.
    compute_ns : int64
        Union of the kernels that do not communicate. Without a GPU: host time outside MPI calls.
    communication_ns : int64
        Union of the kernels that communicate and of the MPI calls of the process.
    copy_ns : int64
        The part of copies and memsets in which no computing kernel ran.
    exposed_ns : int64
        The part of `communication_ns` in which neither ran.
    idle_ns : int64
        What is left: `step_ns` is the sum of `compute_ns`, `copy_ns`, `exposed_ns` and this, at
        least 0; -1 where `step_ns` is.
    """

    process: Int32
    device: Int32
    step_ns: Int64
    busy_ns: Int64
    compute_ns: Int64
    communication_ns: Int64
    copy_ns: Int64
    exposed_ns: Int64
    idle_ns: Int64
    ops: StepOps

    @property
    def gpu_idle_ns(self) -> Int64:
        """Time in which the GPU does nothing, also while its process communicates; -1 as above."""
        return np.where(self.step_ns < 0, -1, np.maximum(self.step_ns - self.busy_ns, 0))

    def lane_of(self, process: Int32, device: Int32) -> Int64:
        """Return the lane of a GPU of a process, -1 where there is none."""
        lane = np.full(len(process), -1, np.int64)
        for i, (p, d) in enumerate(zip(self.process, self.device, strict=True)):
            lane[(process == p) & (device == d)] = i
        return lane


def step_times(
    trace: Trace, steps: Steps, found: Launched, step: Int64, communicates: Bool
) -> StepTimes:
    """Measure the steps of every GPU of every process.

    Each operation counts in the step in which its process launched it.

    Parameters
    ----------
    trace : Trace
    steps : Steps
    found : Launched
    step : int64, shape (launched,)
        Step that every operation was launched in, -1 for none.
    communicates : bool, shape (operations,)
        Which GPU operations are communication, such as NCCL's kernels.
    """
    inside = np.flatnonzero(step >= 0)
    op, step = found.op[inside], step[inside]
    process, device = steps.process[step], trace.ops.device[op]
    used = distinct_positions(process, len(trace.processes))
    hosts = np.setdiff1d(steps.process, used).astype(np.int32)
    lanes, lane = distinct_rows(
        np.concatenate([process, hosts]),
        np.concatenate([device, np.full(len(hosts), -1, np.int32)]),
    )
    ops = StepOps(op, step, lane[: len(op)])
    return _measure(trace, steps, lanes.astype(np.int32), ops, communicates)


def join_times(parts: Sequence[StepTimes], rows: Sequence[tuple[Int64, Int64]]) -> StepTimes:
    """Put the times of some processes each together to those of all.

    Parameters
    ----------
    parts : sequence of StepTimes
        In the order of their processes.
    rows : sequence of (int64 array, int64 array)
        Rows of the report's operations and steps that those of each part are.
    """
    count = max(part.busy_ns.shape[1] for part in parts)
    op, step = (
        np.concatenate(
            [at[i][getattr(part.ops, name)] for part, at in zip(parts, rows, strict=True)]
        )
        for i, name in enumerate(("op", "step"))
    )
    first = np.cumsum([0, *(len(part.process) for part in parts)])[:-1].tolist()
    lane = np.concatenate([part.ops.lane + n for part, n in zip(parts, first, strict=True)])
    order = np.argsort(op, kind="stable")
    return StepTimes(
        process=np.concatenate([part.process for part in parts]),
        device=np.concatenate([part.device for part in parts]),
        **{
            name: np.concatenate([widened(getattr(part, name), count, -1) for part in parts])
            for name in _BY_STEP
        },
        ops=StepOps(op[order], step[order], lane[order]),
    )


_BY_STEP: Final = (
    "step_ns", "busy_ns", "compute_ns", "communication_ns", "copy_ns", "exposed_ns", "idle_ns",
)  # fmt: skip


def widened(by_step: Int64, steps: int, lacking: int) -> Int64:
    """Return an array of shape (lanes, steps, ...) with more steps, which hold `lacking`."""
    wide = np.full((len(by_step), steps, *by_step.shape[2:]), lacking, by_step.dtype)
    wide[:, : by_step.shape[1]] = by_step
    return wide


def _measure(
    trace: Trace, steps: Steps, lanes: Int32, ops: StepOps, communicates: Bool
) -> StepTimes:
    count = int(steps.number.max(initial=-1)) + 1
    shape = (len(lanes), count)
    cells = len(lanes) * count
    cell = ops.lane * count + steps.number[ops.step]
    start = trace.ops.start_ns[ops.op]
    order = np.lexsort((start, cell))  # once for all the unions
    cell, start, op = cell[order], start[order], ops.op[order]
    end, kind, sends = trace.ops.end_ns[op], trace.ops.kind[op], communicates[op]
    computing = ~sends & (kind != MEMCPY) & (kind != MEMSET)
    copying = ~sends & ((kind == MEMCPY) | (kind == MEMSET))
    m_cell, m_start, m_end = _mpi(trace, steps, lanes, count)

    def total(chosen: Bool | None = None, *, mpi: bool = False) -> Int64:
        at = slice(None) if chosen is None else np.flatnonzero(chosen)
        g, s, e = cell[at], start[at], end[at]
        if mpi and len(m_cell):
            g, s, e = np.append(g, m_cell), np.append(s, m_start), np.append(e, m_end)
        return lengths(g, s, e, cells).reshape(shape)

    busy, compute, communication = total(), total(computing), total(sends, mpi=True)
    copied = total(computing | copying)  # each time counts for the first of what goes on
    present = np.zeros(cells, np.bool_)
    for i, (process, _) in enumerate(lanes):
        present[i * count + steps.number[steps.process == process]] = True
    present = present.reshape(shape)
    first, last = extents(cell, start, end, cells)
    step_ns = _extents(first.reshape(shape), last.reshape(shape), steps, lanes)
    host = lanes[:, 1] < 0
    ahead = (step_ns >= 0) & ~host[:, None]  # the next step's copies may run before this one's end
    step_ns = np.where(ahead, np.maximum(step_ns, busy), step_ns)
    active = np.minimum(total(mpi=True), np.where(step_ns < 0, busy, step_ns))
    compute[host] = copied[host] = np.maximum(step_ns[host] - communication[host], 0)
    active[host] = step_ns[host]

    def known(ns: Int64) -> Int64:
        return np.where(present, ns, -1)

    return StepTimes(
        process=lanes[:, 0],
        device=lanes[:, 1],
        step_ns=step_ns,
        busy_ns=known(busy),
        compute_ns=known(compute),
        communication_ns=known(communication),
        copy_ns=known(copied - compute),
        exposed_ns=known(active - copied),
        idle_ns=np.where(step_ns >= 0, step_ns - active, -1),
        ops=ops,
    )


def _extents(first: Int64, last: Int64, steps: Steps, lanes: Int32) -> Int64:
    """From the first operation of a step to the first of the next one; host time without any.

    Of a few steps the last one counts as well: from its first operation to the end of its last; a
    declared one behind others from its beginning on the host, or from the end of what was launched
    before, until host and GPU are done with it.
    """
    extent = np.full(first.shape, -1, np.int64)
    for i, (process, device) in enumerate(lanes):
        mine = np.flatnonzero(steps.process == process)
        if device < 0:
            extent[i, steps.number[mine]] = steps.end_ns[mine] - steps.start_ns[mine]
            continue
        used = np.flatnonzero(last[i] > np.iinfo(np.int64).min)
        extent[i, used[:-1]] = np.diff(first[i, used])
        if steps.apart:
            extent[i, used] = last[i, used] - first[i, used]
        elif 0 < len(used) <= FEW:
            extent[i, used[-1]] = last[i, used[-1]] - first[i, used[-1]]
            if (
                len(used) > 1 and steps.declared
            ):  # what the host waits for first belongs to it, as to the others
                (at,) = mine[steps.number[mine] == used[-1]]
                begin = max(int(steps.start_ns[at]), int(last[i, used[-2]]))
                end = max(int(steps.end_ns[at]), int(last[i, used[-1]]))
                extent[i, used[-1]] = max(extent[i, used[-1]], end - begin)
    return extent


def _mpi(trace: Trace, steps: Steps, lanes: Int32, count: int) -> tuple[Int64, Int64, Int64]:
    """MPI calls inside steps: cell of the process's first lane, start and end."""
    process = trace.thread_process[trace.mpi.thread]
    done = trace.mpi.end_ns >= trace.mpi.start_ns
    step = np.where(done, steps.holding(process, trace.mpi.start_ns), -1)
    at = np.flatnonzero(step >= 0)
    lane_of = np.full(len(trace.processes) + 1, -1, np.int64)
    for i in range(len(lanes) - 1, -1, -1):
        lane_of[lanes[i, 0]] = i
    cell = lane_of[process[at]] * count + steps.number[step[at]]
    return cell, trace.mpi.start_ns[at], trace.mpi.end_ns[at]


def count_warmup(step_s: Floats) -> int:
    """Count the leading steps that hold what later ones do not: compiling, allocating, autotuning.

    A step warms up while its slowest rank takes more than `_SLOW` times the median of the second
    half of the steps, and more than their upper quartile: what a quarter of the later steps has,
    such as a checkpoint now and then, is no warm-up. At most half of the steps warm up, and none of
    two.

    Parameters
    ----------
    step_s : array, shape (ranks, steps)
        Time of every step, in any unit; NaN where a rank did not run it.
    """
    slowest = np.max(np.where(np.isnan(step_s), -np.inf, step_s), axis=0, initial=-np.inf)
    half = len(slowest) // 2
    later = slowest[half:][np.isfinite(slowest[half:])]
    if len(slowest) < 3 or len(later) == 0:
        return 0
    usual = slowest[:half] <= max(_SLOW * np.median(later), np.quantile(later, 0.75))
    return int(np.argmax(usual)) if usual.any() else half
