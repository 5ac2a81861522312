"""What the host does inside steps: the CUDA and MPI calls of the threads that launch, by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int8, Int32, Int64, distinct_positions
from perfmodel.readers.codes import sums
from perfmodel.readers.trace import MEMCPY, NULL, Trace
from perfmodel.timing.intervals import running_maximum
from perfmodel.timing.step_times import StepTimes
from perfmodel.timing.steps import Launched, Steps

CAUSES: Final = (
    "launch_bound", "blocking_sync", "allocation", "host_compute", "pageable_copy", "dependency",
    "communication", "other",
)  # fmt: skip
"""Why a GPU idles; codes are positions in this tuple."""

LAUNCH, SYNC, ALLOCATION, HOST, PAGEABLE, DEPENDENCY, COMMUNICATION, OTHER = range(len(CAUSES))

_COPYING: Final = ("cudaMemcpy", "cuMemcpy")
_BLOCKING: Final = (
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize",
    "cudaThreadSynchronize", "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize",
)  # fmt: skip
_ALLOCATING: Final = (
    "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cudaHostUnregister",
    "cuMemAlloc", "cuMemFree", "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease",
    "cuMemSetAccess", "cuMemAddressReserve", "cuMemAddressFree", "cuMemHostAlloc",
)  # fmt: skip
_DRAINING: Final = ("cudaFree", "cuMemFree")
"""Calls that return only when the GPU has done what was launched, as the blocking ones."""
_TO_HOST: Final = 2
_FROM_HOST: Final = 1
_PAGEABLE: Final = 0
_QUEUE_NS: Final = 200_000
"""A launch that takes longer waits until the GPU's queue has room."""
_USUAL: Final = 10.0
"""The host does more than to launch if it is outside CUDA for so many times the median."""
_READ_OPS: Final = 4
_READ_NS: Final = 500_000
_READ_GPU_NS: Final = 100_000
"""Between two values that the host reads, at most: operations, host and GPU time of what is
computed only to be read."""
_SHORTEST_NS: Final = 100_000
_LONGEST_NS: Final = 500_000


@dataclass(frozen=True, slots=True)
class HostTimeline:
    """What the launching threads of one lane did, call after call, without overlaps.

    Attributes
    ----------
    start_ns, end_ns : int64, shape (n,)
        Calls and the times between them, in turn; the end of each is the start of the next.
    kind : int8, shape (n,)
        Index into `CAUSES`: `LAUNCH` for calls that launch and for the usual time between calls,
        `HOST` for longer times between them.
    call : int64, shape (n,)
        Code of the call's name; between calls that of the next call.
    thread : int32, shape (n,)
    drains : bool, shape (n,)
        Whether a call returns only when the GPU has nothing left to do.
    row : int64, shape (n,)
        Row of `ApiCalls`; -1 for MPI calls and between calls.
    """

    start_ns: Int64
    end_ns: Int64
    kind: Int8
    call: Int64
    thread: Int32
    drains: Bool
    row: Int64

    def __len__(self) -> int:
        return len(self.start_ns)


def host_timeline(
    trace: Trace,
    steps: Steps,
    found: Launched,
    times: StepTimes,
    lane: int,
    kinds: tuple[Int8, Bool],
) -> HostTimeline:
    """Put the calls of the threads that launch on a lane in a row.

    The threads are those that launch on the lane's GPU and those that the steps were found on.
    Other threads, such as those that look after NCCL's operations, hold nothing up. `kinds` are
    those of `call_kinds`.
    """
    on_lane = np.zeros(len(trace.ops), np.bool_)
    on_lane[times.ops.op[times.ops.lane == lane]] = True
    launching = found.thread[on_lane[found.op]]
    own = steps.thread[(steps.process == times.process[lane]) & (steps.thread >= 0)]
    threads = distinct_positions(launching[launching >= 0], len(trace.threads))
    return _timeline(trace, kinds, np.union1d(own, threads).astype(np.int32))


def call_kinds(trace: Trace, found: Launched) -> tuple[Int8, Bool]:
    """What the host does in every CUDA call, as codes of `CAUSES`, and which calls drain the GPU.

    A copy between the GPU and pageable memory holds the host up until the data have moved; one to
    pinned memory does if a blocking call of the same thread comes next, as in `.item()`. What is
    launched between two such reads, if it is little, is computed to be read, and counts as reading.
    """
    names = trace.strings

    def starting(prefixes: tuple[str, ...]) -> Bool:
        hit = [n.startswith(prefixes) and "Async" not in n for n in names]
        return np.array([*hit, False], np.bool_)[trace.api.name]

    kind = np.full(len(trace.api), LAUNCH, np.int8)
    kind[starting(("cudaGraph", "cuGraph"))] = OTHER
    kind[starting(_ALLOCATING)] = ALLOCATION
    blocking = starting(_BLOCKING + _COPYING)
    kind[blocking] = SYNC
    drains = blocking | starting(_DRAINING)
    ops = trace.ops
    copies = ops.kind == MEMCPY
    pageable = copies & ((ops.src_kind == _PAGEABLE) | (ops.dst_kind == _PAGEABLE))
    into, out = ops.copy_kind == _FROM_HOST, ops.copy_kind == _TO_HOST
    for chosen, code in ((pageable & into, PAGEABLE), (pageable & out, SYNC)):
        calls = found.call[chosen[found.op]]
        kind[calls], drains[calls] = code, True
    read = found.call[(copies & out)[found.op]]
    order = np.lexsort((trace.api.start_ns, trace.api.thread))
    following = _next_call(trace, order)[read]
    kind[read[(following >= 0) & blocking[following]]] = SYNC
    kind[_for_reading(trace, found, read[kind[read] == SYNC], order) & (kind == LAUNCH)] = SYNC
    return kind, drains


def _for_reading(trace: Trace, found: Launched, read: Int64, order: Int64) -> Bool:
    """Calls between two reads of one thread that launch little, shape (calls,)."""
    api = trace.api
    if len(read) < 2:
        return np.zeros(len(api), np.bool_)
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    at = np.sort(place[read])
    first, last = order[at[:-1]], order[at[1:]]
    close = (api.thread[first] == api.thread[last]) & (
        api.start_ns[last] - api.start_ns[first] <= _READ_NS
    )
    if not close.any():
        return np.zeros(len(api), np.bool_)
    launched = np.argsort(place[found.call], kind="stable")
    until = np.searchsorted(place[found.call[launched]], at, side="right")
    ops = found.op[launched]
    gpu_ns = np.cumsum(np.append(0, trace.ops.end_ns[ops] - trace.ops.start_ns[ops]))[until]
    close &= (np.diff(until) <= _READ_OPS + 1) & (np.diff(gpu_ns) <= _READ_GPU_NS)
    inside = np.zeros(len(order) + 1, np.int32)
    np.add.at(inside, at[:-1][close], 1)
    np.add.at(inside, at[1:][close], -1)
    found_here: Bool = np.cumsum(inside[:-1])[place] > 0
    return found_here


def _next_call(trace: Trace, order: Int64) -> Int64:
    """Row of the next call of the same thread, -1 for the last one."""
    thread = trace.api.thread[order]
    following = np.full(len(order), -1, np.int64)
    same = thread[1:] == thread[:-1]
    following[order[:-1][same]] = order[1:][same]
    return following


def _timeline(trace: Trace, kinds: tuple[Int8, Bool], threads: Int32) -> HostTimeline:
    kind, drains = kinds
    rows = np.flatnonzero(np.isin(trace.api.thread, threads))
    rows = rows[trace.api.end_ns[rows] >= trace.api.start_ns[rows]]
    mpi = np.flatnonzero(np.isin(trace.mpi.thread, threads) & (trace.mpi.end_ns != NULL))
    start = np.concatenate([trace.api.start_ns[rows], trace.mpi.start_ns[mpi]])
    end = np.concatenate([trace.api.end_ns[rows], trace.mpi.end_ns[mpi]])
    codes = np.concatenate([trace.api.name[rows], trace.mpi.name[mpi]]).astype(np.int64)
    what = np.concatenate([kind[rows], np.full(len(mpi), COMMUNICATION, np.int8)])
    drain = np.concatenate([drains[rows], np.zeros(len(mpi), np.bool_)])
    thread = np.concatenate([trace.api.thread[rows], trace.mpi.thread[mpi]])
    source = np.concatenate([rows, np.full(len(mpi), -1)])
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = running_maximum(np.zeros(len(end), np.int64), end)
    start = np.maximum(start, np.concatenate([start[:1], reached[:-1]]))
    return _with_pauses(
        start, np.maximum(end, start), codes[order], what[order], drain[order], thread[order],
        source[order],
    )  # fmt: skip


def _with_pauses(
    start: Int64, end: Int64, codes: Int64, what: Int8, drain: Bool, thread: Int32, row: Int64
) -> HostTimeline:
    """Insert the times between calls: the usual ones belong to launching, longer ones do not."""
    count = len(start)
    if count == 0:
        none = np.empty(0, np.int64)
        return HostTimeline(none, none, what, none, thread, drain, none)
    between = start[1:] - end[:-1]
    usual = float(np.median(between)) if len(between) else 0.0
    most = float(np.clip(_USUAL * usual, _SHORTEST_NS, _LONGEST_NS))
    width = 2 * count - 1
    s, e = np.empty(width, np.int64), np.empty(width, np.int64)
    s[::2], e[::2] = start, end
    s[1::2], e[1::2] = end[:-1], start[1:]
    kind = np.empty(width, np.int8)
    kind[::2] = what
    goes_on = (what[1:] == what[:-1]) & np.isin(what[1:], (SYNC, ALLOCATION))
    kind[1::2] = np.where(between > most, HOST, np.where(goes_on, what[1:], LAUNCH))
    call, who = np.empty(width, np.int64), np.empty(width, np.int32)
    call[::2], who[::2] = codes, thread
    call[1::2], who[1::2] = codes[1:], thread[1:]
    drains = np.zeros(width, np.bool_)
    drains[::2] = drain
    source = np.full(width, -1, np.int64)
    source[::2] = row
    return HostTimeline(s, e, kind, call, who, drains, source)


@dataclass(frozen=True, slots=True)
class HostTimes:
    """What the host spends in the steps of every lane.

    Attributes
    ----------
    ns : int64, shape (lanes, steps, causes)
        From a step's start to the next one's, by the kinds of `HostTimeline`.
    calls : int64, shape (lanes, steps, causes)
    queue_ns : int64, shape (lanes, steps)
        The part of `LAUNCH` in launches that waited, since the GPU's queue was full.
    """

    ns: Int64
    calls: Int64
    queue_ns: Int64

    @classmethod
    def of(cls, lanes: Sequence[tuple[Int64, Int64, Int64]]) -> HostTimes:
        """Put what `host_times` returns for each lane together."""
        ns, calls, queue = (np.stack(columns) for columns in zip(*lanes, strict=True))
        return cls(ns, calls, queue)


def host_times(
    line: HostTimeline, steps: Steps, times: StepTimes, lane: int
) -> tuple[Int64, Int64, Int64]:
    """Sum a lane's timeline up by step and kind; pieces belong to the step in which they begin.

    Returns
    -------
    ns, calls : int64, shape (steps, causes)
    queue_ns : int64, shape (steps,)
        As in `HostTimes`.
    """
    count = times.busy_ns.shape[1]
    mine = np.flatnonzero(steps.process == times.process[lane])
    mine = mine[np.argsort(steps.start_ns[mine], kind="stable")]
    at = np.searchsorted(steps.start_ns[mine], line.start_ns, side="right") - 1
    last = steps.end_ns[mine].max(initial=0)
    inside = np.flatnonzero((at >= 0) & (line.start_ns < last))
    step = steps.number[mine[at[inside]]]
    length = (line.end_ns - line.start_ns)[inside]
    is_call = inside % 2 == 0
    kind = line.kind[inside]
    cell = step.astype(np.int64) * len(CAUSES) + kind
    full = is_call & (kind == LAUNCH) & (length > _QUEUE_NS)
    size = count * len(CAUSES)
    return (
        sums(cell, length, size).reshape(count, len(CAUSES)),
        np.bincount(cell[is_call], minlength=size).reshape(count, len(CAUSES)),
        sums(step[full], length[full], count),
    )


def plain_call(name: str) -> str:
    """Name of a call without the version that CUPTI adds.

    >>> plain_call("cudaLaunchKernel_v7000")
    'cudaLaunchKernel'
    """
    head, _, version = name.rpartition("_v")
    return head if head and version.isdecimal() else name
