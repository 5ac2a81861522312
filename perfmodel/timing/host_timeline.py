"""The host inside steps: CUDA and MPI calls of the threads that launch, by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int8, Int32, Int64, distinct_positions
from perfmodel.readers.trace import (
    KERNEL,
    MEMCPY,
    NO_NAME,
    NULL,
    PAGEABLE_MEMORY,
    TO_GPU,
    TO_HOST,
    Trace,
)
from perfmodel.timing.launched import BLOCKING, Launched
from perfmodel.timing.spans import Steps
from perfmodel.timing.step_times import StepTimes, widened

CAUSE_WORDS: Final = {
    "launch_bound": ("launch-bound", "while the CPU launches kernels"),
    "blocking_sync": ("synchronization", "after synchronization"),
    "allocation": ("allocation", "while memory is allocated"),
    "host_compute": ("CPU-bound", "while the CPU works between kernel launches"),
    "pageable_copy": ("pageable copy", "while pageable memory is copied"),
    "dependency": (
        "stream dependency", "while launched work waits for something that was not recorded"
    ),
    "communication": ("communication", "while ranks communicate"),
    "other": ("other", "for other reasons"),
}  # fmt: skip
"""Why a GPU idles: the short name of a cause, and a clause behind 'the GPU idles'."""
CAUSES: Final = tuple(CAUSE_WORDS)
"""The causes; their codes are positions in this tuple."""
CAUSE_NAMES: Final = {cause: name for cause, (name, _) in CAUSE_WORDS.items()}
CAUSE_CLAUSES: Final = {cause: clause for cause, (_, clause) in CAUSE_WORDS.items()}

LAUNCH, SYNC, ALLOCATION, HOST, PAGEABLE, DEPENDENCY, COMMUNICATION, OTHER = range(len(CAUSES))
"""Codes of the causes, in the order of `CAUSE_WORDS`."""

_COPYING: Final = ("cudaMemcpy", "cuMemcpy")
_ALLOCATING: Final = (
    "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cudaHostUnregister",
    "cuMemAlloc", "cuMemFree", "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease",
    "cuMemSetAccess", "cuMemAddressReserve", "cuMemAddressFree", "cuMemHostAlloc",
)  # fmt: skip
_DRAINING: Final = ("cudaFree", "cuMemFree")
"""Calls that return only when the GPU has done what was launched, as the blocking ones."""
_MOST_NS: Final = 1 << 55
"""A year, longer than any launch: multiples of it fit 64 bits, also in damaged reports."""
_QUICK: Final = 10
"""One in so many launches of kernels is quick: it waits for nothing, however full the queue is."""
_OF_OTHERS: Final = 5
"""A quick launch takes about so many times the median of all CUDA calls (1 to 15 in 50 recordings
of H200s): for recordings of few launches, such as those of whole graphs or of a first step."""
FULL: Final = 50
"""A launch that takes so many quick ones waits until the GPU's queue has room: of 50 recordings on
H200s nine in ten launches take less than 3, and those that wait 100 or more."""
_USUAL: Final = 10
_SHORTEST, _LONGEST = 25, 125
"""The host does more than to launch if it is outside CUDA for so many times the median, which is
taken to be between so many quick launches: Python between two operators takes 10 of them (95 %)."""
_READ_OPS: Final = 4
_READ, _READ_GPU = 100, 20
"""Between two values that the host reads, at most: operations, and host and GPU time in quick
launches, of what is computed only to be read."""
STEP: Final = -2
_BLOCK: Final = 1 << 14
"""Pieces that are summed up at a time: what is made of them is in a CPU's cache."""


@dataclass(frozen=True, slots=True)
class HostTimeline:
    """The launching threads of one lane, call after call, without overlaps.

    Attributes
    ----------
    start_ns, end_ns : int64, shape (n,)
        Calls and the times between them, in turn; the end of each is the start of the next. Pieces
        with even numbers are calls.
    kind : int8, shape (n,)
        Index into `CAUSES`: `LAUNCH` for calls that launch and for the usual time between calls,
        `HOST` for longer times between them.
    names : int32, shape (calls,)
        Code of the call's name.
    threads : int32, shape (calls,)
    draining : bool, shape (calls,)
        Whether a call returns only when the GPU has nothing left to do.
    launch_ns : int
        Duration of a quick launch, see `quick_launches`.
    rows : int32, shape (calls,)
        Row of `ApiCalls`; -1 for MPI calls, `STEP` for the beginning of a step, which takes no time
        and stands among the calls where there is no GPU.
    """

    start_ns: Int64
    end_ns: Int64
    kind: Int8
    names: Int32
    threads: Int32
    draining: Bool
    rows: Int32
    launch_ns: int

    def __len__(self) -> int:
        return len(self.start_ns)

    def call(self, piece: Int64) -> Int32:
        """Name of every piece's call; between calls that of the next call."""
        return self.names[(piece + 1) // 2]

    def thread(self, piece: Int64) -> Int32:
        """Thread of every piece's call; between calls that of the next call."""
        return self.threads[(piece + 1) // 2]

    def drains(self, piece: Int64) -> Bool:
        """Whether a piece is a call that returns only when the GPU has nothing left to do."""
        found: Bool = self.draining[piece // 2] & (piece % 2 == 0)
        return found


def quick_launches(trace: Trace, found: Launched) -> Int64:
    """Return how long a quick launch takes in every process, 0 where nothing is launched.

    What is short and what is long beside it depends on no clock's unit and no machine's speed.
    """
    length = trace.api.end_ns - trace.api.start_ns
    process, count = trace.thread_process[trace.api.thread], len(trace.processes)

    def one_in(share: int, calls: Int64) -> tuple[Int64, Int64]:
        """Length that one call in so many of a process is shorter than, and their number."""
        order = calls[np.lexsort((length[calls], process[calls]))]
        first = np.searchsorted(process[order], np.arange(count + 1))
        many = np.diff(first)
        at = np.minimum(first[:-1] + many // share, max(len(order) - 1, 0))
        return np.where(many > 0, length[order[at]] if len(order) else 0, 0), many

    kernels = found.call[trace.ops.kind[found.op] == KERNEL]
    quick, many = one_in(_QUICK, distinct_positions(kernels, len(length)))
    any_, _ = one_in(_QUICK, distinct_positions(found.call, len(length)))
    median, _ = one_in(2, np.arange(len(length)))
    found_ns = np.where(many >= _QUICK, quick, np.minimum(any_, _OF_OTHERS * median))
    return np.clip(found_ns, 0, _MOST_NS)


def host_timeline(
    trace: Trace,
    steps: Steps,
    found: Launched,
    times: StepTimes,
    lane: int,
    kinds: tuple[Int8, Bool],
    launch_ns: Int64,
) -> HostTimeline:
    """Put the calls of the threads that launch on a lane in a row.

    The threads are those that launch on the lane's GPU and those that the steps were found on.
    Other threads, such as those that look after NCCL's operations, hold nothing up. `kinds` are
    those of `call_kinds`, `launch_ns` those of `quick_launches`. Without a GPU the time between
    calls is the host's own work.
    """
    on_lane = np.zeros(len(trace.ops), np.bool_)
    on_lane[times.ops.op[times.ops.lane == lane]] = True
    launching = found.thread[on_lane[found.op]]
    own = steps.thread[(steps.process == times.process[lane]) & (steps.thread >= 0)]
    threads = distinct_positions(launching[launching >= 0], len(trace.threads))
    begins = None
    if times.device[lane] < 0:
        begins, _ = step_begins(steps, int(times.process[lane]))
    quick = int(launch_ns[times.process[lane]])
    return _timeline(trace, kinds, np.union1d(own, threads).astype(np.int32), begins, quick)


def step_begins(steps: Steps, process: int) -> tuple[Int64, Int64]:
    """Return when the steps of a process begin, and when the last one ends, with their numbers."""
    mine = steps.process == process
    start, end, number = steps.start_ns[mine], steps.end_ns[mine], steps.number[mine]
    times, first = np.unique(np.append(start, end.max(initial=0)), return_index=True)
    return times, np.append(number, number.max(initial=-1) + 1)[first].astype(np.int64)


def other_timelines(
    trace: Trace, steps: Steps, times: StepTimes, lane: int, kinds: tuple[Int8, Bool]
) -> list[HostTimeline]:
    """Timelines of the other threads of a process without a GPU that call MPI, thread by thread."""
    if times.device[lane] >= 0:
        return []
    process, thread = times.process[lane], distinct_positions(trace.mpi.thread, len(trace.threads))
    mine = thread[trace.thread_process[thread] == process]
    others = np.setdiff1d(mine, steps.thread[steps.process == process])
    none = np.empty(0, np.int64)
    return [_timeline(trace, kinds, others[i : i + 1], none) for i in range(len(others))]


def call_kinds(trace: Trace, found: Launched, launch_ns: Int64) -> tuple[Int8, Bool]:
    """What the host does in every CUDA call, as codes of `CAUSES`, and which calls drain the GPU.

    A copy between the GPU and pageable memory holds the host up until the data have moved; one to
    pinned memory does if a blocking call of the same thread comes next, as in `.item()`. A call
    that copies to pageable memory counts as that where its copies run for most of it; else it
    waits for what was launched before. What is
    launched between two such reads, if it is little, is computed to be read, and counts as reading.
    `launch_ns` are those of `quick_launches`.
    """

    def starting(prefixes: tuple[str, ...]) -> Bool:
        hit = [n.startswith(prefixes) and "Async" not in n for n in trace.strings]
        return np.array([*hit, False], np.bool_)  # the last one is that of no name

    waits = starting(BLOCKING + _COPYING)
    of_name = np.full(len(waits), LAUNCH, np.int8)
    of_name[starting(("cudaGraph", "cuGraph"))] = OTHER
    of_name[starting(_ALLOCATING)] = ALLOCATION
    of_name[waits] = SYNC
    kind = of_name.take(trace.api.name)
    drains = (waits | starting(_DRAINING)).take(trace.api.name)
    ops = trace.ops
    copies = ops.kind == MEMCPY
    pageable = copies & ((ops.src_kind == PAGEABLE_MEMORY) | (ops.dst_kind == PAGEABLE_MEMORY))
    into, out = (np.isin(ops.copy_kind, kinds) for kinds in (TO_GPU, TO_HOST))
    for chosen, code in ((pageable & into, PAGEABLE), (pageable & out, SYNC)):
        calls = found.call[chosen[found.op]]
        kind[calls], drains[calls] = code, True
    kind[_mostly_copying(trace, found, pageable & out)] = PAGEABLE
    read = found.call[(copies & out)[found.op]]
    read = read[kind[read] != PAGEABLE]
    order, place = _by_thread(trace)
    following = _next_call(trace, order, place, read)
    kind[read[(following >= 0) & waits[trace.api.name[following]]]] = SYNC
    inside = _for_reading(trace, found, launch_ns, read[kind[read] == SYNC], order, place)
    kind[inside[kind[inside] == LAUNCH]] = SYNC
    return kind, drains


def _mostly_copying(trace: Trace, found: Launched, chosen: Bool) -> Int64:
    """Calls that some copies, of those that they launch, run for at least half of."""
    rows = np.flatnonzero(chosen[found.op])
    calls, at = np.unique(found.call[rows], return_inverse=True)
    op = found.op[rows]
    copying = np.bincount(at, trace.ops.end_ns[op] - trace.ops.start_ns[op], len(calls))
    mostly: Int64 = calls[2 * copying >= trace.api.end_ns[calls] - trace.api.start_ns[calls]]
    return mostly


def _by_thread(trace: Trace) -> tuple[Int64, Int32]:
    """Order of the CUDA calls by thread and start, and the place of every call in it."""
    thread = trace.api.thread  # calls are by start
    small = thread.astype(np.uint16) if len(trace.threads) < 2**16 else thread
    order = np.argsort(small, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return order, place


def _for_reading(
    trace: Trace, found: Launched, launch_ns: Int64, read: Int64, order: Int64, place: Int32
) -> Int64:
    """Calls between two reads of one thread that launch little."""
    api = trace.api
    at = np.sort(place[read])
    first, last = order[at[:-1]], order[at[1:]]
    quick = launch_ns[trace.thread_process[api.thread[first]]]
    close = (api.thread[first] == api.thread[last]) & (
        api.start_ns[last] - api.start_ns[first] <= _READ * quick
    )
    if not close.any():
        return np.empty(0, np.int64)
    launched = np.argsort(place[found.call], kind="stable")
    until = np.searchsorted(place[found.call[launched]], at, side="right")
    ops = found.op[launched]
    gpu_ns = np.cumsum(np.append(0, trace.ops.end_ns[ops] - trace.ops.start_ns[ops]))[until]
    close &= (np.diff(until) <= _READ_OPS + 1) & (np.diff(gpu_ns) <= _READ_GPU * quick)
    inside = np.zeros(len(order) + 1, np.int8)  # reads follow each other: at most one is open
    np.add.at(inside, at[:-1][close], 1)
    np.add.at(inside, at[1:][close], -1)
    return order[np.flatnonzero(np.cumsum(inside[:-1], dtype=np.int8))]


def _next_call(trace: Trace, order: Int64, place: Int32, calls: Int64) -> Int64:
    """Row of the next call of the same thread after each of some calls, -1 after the last one."""
    after = order[np.minimum(place[calls] + 1, len(order) - 1)]
    thread = trace.api.thread
    goes_on = (place[calls] + 1 < len(order)) & (thread[after] == thread[calls])
    return np.where(goes_on, after, -1)


def _timeline(
    trace: Trace,
    kinds: tuple[Int8, Bool],
    threads: Int32,
    begins_ns: Int64 | None,
    launch_ns: int = 0,
) -> HostTimeline:
    """Put the calls of some threads in a row; `begins_ns` are those of steps without a GPU."""
    api, mpi, kind, drains = trace.api, trace.mpi, *kinds
    begins = np.empty(0, np.int64) if begins_ns is None else begins_ns
    used = np.zeros(len(trace.threads), np.bool_)
    used[threads] = True
    none = np.full(len(begins), -1, np.int32)
    start, end, thread = (
        np.concatenate([getattr(api, name), getattr(mpi, name), more])
        for name, more in (("start_ns", begins), ("end_ns", begins), ("thread", none))
    )
    done = np.concatenate([api.end_ns >= api.start_ns, mpi.end_ns != NULL, none < 0])
    order = np.flatnonzero((used.take(thread) | (thread < 0)) & done)
    counts = len(api), len(mpi), len(begins)
    order = order[np.lexsort((order < sum(counts[:2]), start[order]))]  # steps begin first
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    start[1:] = np.maximum(start[1:], reached[:-1])
    np.maximum(end, start, out=end)
    others = np.repeat(np.array([-1, STEP], np.int32), counts[1:])
    what = np.append(kind, np.where(others == STEP, HOST, COMMUNICATION).astype(np.int8))[order]
    parts = _with_pauses(start, end, what, launch_ns)
    if begins_ns is not None:
        parts[2][1::2] = HOST
    return HostTimeline(
        *parts,
        np.concatenate([api.name, mpi.name, np.full(counts[2], NO_NAME, np.int32)])[order],
        thread[order],
        np.append(drains, np.zeros(len(others), np.bool_))[order],
        np.append(np.arange(counts[0], dtype=np.int32), others)[order],
        launch_ns,
    )


def _with_pauses(start: Int64, end: Int64, what: Int8, launch_ns: int) -> tuple[Int64, Int64, Int8]:
    """Insert the times between calls: the usual ones belong to launching, longer ones do not."""
    between = start[1:] - end[:-1]
    usual = float(np.median(between)) if len(between) else 0.0
    most = float(np.clip(_USUAL * usual, _SHORTEST * launch_ns, _LONGEST * launch_ns))
    width = max(2 * len(start) - 1, 0)
    bounds = np.empty(2 * len(start), np.int64)
    bounds[::2], bounds[1::2] = start, end
    kind = np.empty(width, np.int8)
    kind[::2] = what
    goes_on = (what[1:] == what[:-1]) & ((what[1:] == SYNC) | (what[1:] == ALLOCATION))
    kind[1::2] = np.where(between > most, HOST, np.where(goes_on, what[1:], LAUNCH))
    return bounds[:-1], bounds[1:], kind


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Times of the host in the steps of every lane.

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

    @classmethod
    def join(cls, parts: Sequence[HostTimes], steps: int) -> HostTimes:
        """Put the lanes of several parts together, each with `steps` steps."""
        columns = ([getattr(part, name) for part in parts] for name in cls.__slots__)
        return cls(*(np.concatenate([widened(a, steps, 0) for a in some]) for some in columns))


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
    last = steps.end_ns[mine].max(initial=0)
    bounds = np.searchsorted(line.start_ns, np.append(steps.start_ns[mine], last), side="left")
    bounds = np.minimum(bounds, bounds[-1])
    inside = slice(int(bounds[0]), int(bounds[-1]))
    number = steps.number[mine].astype(np.int64)
    size = count * len(CAUSES)
    ns, calls, queue_ns = (np.zeros(n, np.int64) for n in (size, size, count))
    for begin in range(inside.start, inside.stop, _BLOCK):
        stop = min(begin + _BLOCK, inside.stop)
        step = np.repeat(number, np.diff(np.clip(bounds, begin, stop)))
        kind = line.kind[begin:stop]
        length = line.end_ns[begin:stop] - line.start_ns[begin:stop]
        cell = step * len(CAUSES) + kind
        np.add.at(ns, cell, length)
        even = slice(begin % 2, None, 2)  # calls are the pieces with even numbers
        np.add.at(calls, cell[even], 1)
        full = np.flatnonzero((kind[even] == LAUNCH) & (length[even] > FULL * line.launch_ns))
        np.add.at(queue_ns, step[even][full], length[even][full])
    shape = count, len(CAUSES)
    return ns.reshape(shape), calls.reshape(shape), queue_ns


def plain_call(name: str) -> str:
    """Name of a call without the version that CUPTI adds.

    >>> plain_call("cudaLaunchKernel_v7000")
    'cudaLaunchKernel'
    """
    head, _, version = name.rpartition("_v")
    return head if head and version.isdecimal() else name
