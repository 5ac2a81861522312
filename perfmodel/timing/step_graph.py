"""The steps of one lane: host calls in order, and the operations they launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int8, Int32, Int64
from perfmodel.readers.trace import MEMCPY, MEMSET, PAGEABLE_MEMORY, TO_GPU, TO_HOST, Trace
from perfmodel.timing.host_timeline import PAGEABLE, STEP, SYNC, HostTimeline, step_begins
from perfmodel.timing.launched import Launched
from perfmodel.timing.spans import Steps
from perfmodel.timing.step_times import StepTimes

KERNEL_OP: Final = 0
COPY_OP: Final = 1
COMMUNICATION_OP: Final = 2
PAGEABLE_OP: Final = 3
READ_OP: Final = 4
STEP_OP: Final = 5
MPI_OP: Final = 6
PAGEABLE_READ_OP: Final = 7
MOST_OPS: Final = 16_000
"""Operations of a lane that are kept: those of its last whole steps, or of a part of one step."""
_MOST_STEPS: Final = 10
_LEAST_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Host pieces and GPU operations of one lane, in steps that are kept.

    Attributes
    ----------
    host_edge_ns : int64, shape (h + 1,)
        Starts of the pieces, and the end of the last one: as `HostTimeline`, calls and the times
        between them in turn. Empty where there is none.
    host_kind : int8, shape (h,)
        Index into `CAUSES`.
    host_call : bool, shape (h,)
        Whether it is a call; else the time between two.
    host_drains : bool, shape (h,)
    op_start_ns, op_end_ns : int64, shape (k,)
        In the order in which they were launched.
    op_stream, op_step : int32, shape (k,)
    op_call : int32, shape (k,)
        Position of the launching call among the host's pieces.
    op_kind : int8, shape (k,)
        `KERNEL_OP`, `COPY_OP`, `COMMUNICATION_OP`, `PAGEABLE_OP` (a copy from pageable memory),
        `PAGEABLE_READ_OP` (one to pageable memory that takes most of its call), `READ_OP`
        (another copy to the host that waits for it, or a kernel whose result is only read),
        `STEP_OP` (the beginning of a step without a GPU) or `MPI_OP` (see `timing.run_graph`).
    op_small : int32, shape (k,)
        Number of the range whose small kernel it is, -1 if it is none.
    op_waiter : int32, shape (k,)
        Position of the call of MPI that waits for an `MPI_OP`, -1 for none and for others.
    launch_ns : int
        Duration of a quick launch, see `perfmodel.timing.host_timeline.quick_launches`.
    others : tuple of StepGraph
        Other threads of a process without a GPU that call MPI.
    host_sized, host_ranges : int32, shape (h,), or None
        Ranges that the host pushed during each piece: with sizes of an operator's arguments, and
        others; None where the recorder's cost is not asked.
    recorder : str
        As `Trace.recorder`.
    op_bytes : int64, shape (k,), or None
        What copies from and to pageable memory move; None without any such copy.
    slow : float or None
        By what factor recording was slower than usual, see `recorder`; None without CUDA calls.
    """

    host_edge_ns: Int64
    host_kind: Int8
    host_call: Bool
    host_drains: Bool
    op_start_ns: Int64
    op_end_ns: Int64
    op_stream: Int32
    op_step: Int32
    op_call: Int32
    op_kind: Int8
    op_small: Int32
    op_waiter: Int32
    launch_ns: int = 0
    others: tuple[StepGraph, ...] = ()
    host_sized: Int32 | None = None
    host_ranges: Int32 | None = None
    recorder: str = ""
    slow: float | None = None
    op_bytes: Int64 | None = None


def last_steps(graph: StepGraph, most: int) -> StepGraph:
    """Keep the last steps that hold at most so many operations, but at least three of them.

    Three, since the first one that is replayed is not counted.
    """
    numbers, count = np.unique(graph.op_step, return_counts=True)
    kept = max(int(np.count_nonzero(np.cumsum(count[::-1]) <= most)), _LEAST_STEPS)
    if kept >= len(numbers):
        return graph
    rows = np.flatnonzero(graph.op_step >= numbers[-kept])
    begin = int(graph.op_call[rows].min())
    columns = {name: getattr(graph, name) for name in StepGraph.__slots__}
    host = {name: columns[name][begin:].copy() for name in _HOST if columns[name] is not None}
    kept_ops = {k: v for k, v in columns.items() if k.startswith("op_") and v is not None}
    ops = {name: column[rows] for name, column in kept_ops.items()}
    return replace(graph, **host, **{**ops, "op_call": ops["op_call"] - begin})


_HOST: Final = (
    "host_edge_ns", "host_kind", "host_call", "host_drains", "host_sized", "host_ranges",
)  # fmt: skip


def step_graph(
    trace: Trace,
    steps: Steps,
    found: Launched,
    times: StepTimes,
    line: HostTimeline,
    lane: int,
    communicates: Bool,
    small: Int64,
    others: Sequence[HostTimeline] = (),
) -> StepGraph:
    """Collect one lane's last steps, or the last part of one that holds more than `MOST_OPS`.

    Operations whose launch is not on the timeline are left out. `small` is the range's number of
    every small kernel by `GpuOps` row, -1 for other operations. `others` are the timelines of other
    threads, see `other_timelines`.
    """
    if times.device[lane] < 0:
        return _without_gpu(steps, times, line, lane, others)
    ops = trace.ops
    mine = np.flatnonzero(times.ops.lane == lane)
    op, number = times.ops.op[mine], steps.number[times.ops.step[mine]].astype(np.int64)
    first = number.max(initial=0) - _MOST_STEPS
    op, number = op[number > first], number[number > first]
    position = np.full(len(trace.api), -1, np.int32)
    known = np.flatnonzero(line.rows >= 0)
    position[line.rows[known]] = 2 * known
    launch = found.row_of(op)
    at = np.where(launch >= 0, position[found.call[launch]], -1).astype(np.int64)
    order = np.lexsort((ops.start_ns[op], at))
    order = order[at[order] >= 0]
    if len(order) > MOST_OPS:
        first = max(first, number[order[-MOST_OPS]])
    kept = order[number[order] > first]
    order = kept if len(kept) else order[-MOST_OPS:]  # one step may hold more
    op, number, at = op[order], number[order], at[order]
    begin, end = (int(at[0]), int(at[-1]) + 1) if len(at) else (0, 0)
    kind = np.full(len(op), KERNEL_OP, np.int8)
    copies = (ops.kind[op] == MEMCPY) | (ops.kind[op] == MEMSET)
    kind[copies] = COPY_OP
    into, out = (np.isin(ops.copy_kind[op], kinds) for kinds in (TO_GPU, TO_HOST))
    staged = into & (ops.src_kind[op] == PAGEABLE_MEMORY)
    kind[copies & staged] = PAGEABLE_OP
    kind[(~copies | out) & (line.kind[at] == SYNC)] = READ_OP
    kind[copies & out & (line.kind[at] == PAGEABLE)] = PAGEABLE_READ_OP
    kind[communicates[op]] = COMMUNICATION_OP
    pageable = np.isin(kind, (PAGEABLE_OP, PAGEABLE_READ_OP))
    host = np.arange(begin, end)  # copies: views would hold the whole timeline
    return StepGraph(
        np.append(line.start_ns[host], line.end_ns[host[-1:]]),
        line.kind[host], host % 2 == 0, line.drains(host), ops.start_ns[op], ops.end_ns[op],
        ops.stream[op], number.astype(np.int32), (at - begin).astype(np.int32), kind,
        small[op].astype(np.int32), np.full(len(op), -1, np.int32), line.launch_ns,
        op_bytes=np.where(pageable, np.maximum(ops.bytes[op], 0), 0) if pageable.any() else None,
    )  # fmt: skip


def _without_gpu(
    steps: Steps, times: StepTimes, line: HostTimeline, lane: int, others: Sequence[HostTimeline]
) -> StepGraph:
    """Return the last steps of a process without a GPU: calls of MPI, and the work between them."""
    _, number = step_begins(steps, int(times.process[lane]))
    begins = 2 * np.flatnonzero(line.rows == STEP)
    kept = (begins >= begins[-1] - MOST_OPS) & (np.arange(len(begins))[::-1] <= _MOST_STEPS)
    kept[-2:] = True
    begins = begins[kept]
    graph = _chain(line, int(begins[0]), begins, number[kept].astype(np.int32))
    since, none = graph.host_edge_ns[0], np.empty(0, np.int64)
    found = ((one, 2 * int(np.searchsorted(one.start_ns[::2], since))) for one in others)
    chains = (_chain(one, at, none, none.astype(np.int32)) for one, at in found if at < len(one))
    return replace(graph, others=tuple(chains))


def _chain(line: HostTimeline, first: int, begins: Int64, step: Int32) -> StepGraph:
    """Graph of one thread's calls, from a piece on, with the steps that begin at some pieces."""
    host, count = np.arange(first, len(line)), len(begins)
    none = np.full(count, -1, np.int32)
    return StepGraph(
        np.append(line.start_ns[host], line.end_ns[host[-1:]]), line.kind[host], host % 2 == 0,
        line.drains(host), line.start_ns[begins], line.start_ns[begins],
        np.zeros(count, np.int32), step, (begins - first).astype(np.int32),
        np.full(count, STEP_OP, np.int8), none, none,
    )  # fmt: skip
