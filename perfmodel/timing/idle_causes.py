"""Why a GPU idles inside steps: every gap between its operations, by what the host did meanwhile.

A gap ends with an operation. If the host launched it before the gap began, it was queued and waited
for other operations. Otherwise the gap is given, piece by piece, to the CUDA and MPI calls that the
host was in until it launched the operation, and to the time between these calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from perfmodel.base.arrays import Bool, Int8, Int32, Int64, distinct_positions, distinct_rows
from perfmodel.readers.codes import sums
from perfmodel.readers.trace import GRAPH, NO_NAME, NULL, Trace, rows
from perfmodel.timing.host_timeline import (
    DEPENDENCY,
    HOST,
    LAUNCH,
    OTHER,
    HostTimeline,
    plain_call,
)
from perfmodel.timing.intervals import extents, union
from perfmodel.timing.launched import Launched
from perfmodel.timing.nesting import Nesting, innermost, start_keys
from perfmodel.timing.spans import Steps
from perfmodel.timing.stack_times import nodes_at
from perfmodel.timing.step_times import StepTimes

_SETUP: Final = 2
"""An operation can start on an idle GPU so many quick launches after its own has returned, at most:
of 60 recordings on idle H200s it begins 1 to 1.5 of them after its launch began."""
_BLOCK: Final = 1 << 13
"""Gaps that are split at a time: the host's timeline in them is in a CPU's cache."""
LONGEST: Final = 3
"""Parts of gaps of one cause and step that stay where the others are added up."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a GPU idled: when in its report, how long, and what the host did.

    `in_step_s` counts from the first operation of `step` on that GPU, where the step's time begins,
    and is less than the step's time. `call` is the CUDA or MPI call that the cause was seen in, or
    that ended the gap, and `range` the range that the host was in; '' where there is none. `line`
    is that of its code, None where that is not known. Where the host is outside CUDA, `asleep_s` is
    how long its thread ran on no processor, None where that was not recorded, and `wait` the
    system's call that the thread was in for at least half of the gap.
    """

    start_s: float
    seconds: float
    step: int
    in_step_s: float
    call: str
    range: str
    line: str | None = None
    asleep_s: float | None = None
    wait: str = ""


Columns = tuple[Int64 | Int32 | Int8, ...]


@dataclass(frozen=True, slots=True)
class IdleGaps:
    """Gaps between GPU operations inside steps, cut where the cause changes; one row per part.

    Attributes
    ----------
    names : tuple of str
        What `call`, `range`, `line` and `wait` index; -1 where there is none.
    lane : int32, shape (n,)
        Index into the lanes of `StepTimes`.
    step : int32, shape (n,)
        Number of the step.
    start_ns : int64, shape (n,)
        Start of the part; that of the first one is the end of all operations before the gap.
        `NULL` where several were added up.
    into_ns : int64, shape (n,)
        From the first operation of the step on this GPU to that start; `NULL` likewise.
    idle_ns : int64, shape (n,)
        Length of the part; the parts of a gap add up to its length.
    cause : int8, shape (n,)
        Index into `CAUSES`.
    call : int32, shape (n,)
        CUDA or MPI call of the longest piece; the launching call where the host only launched, or
        was outside CUDA.
    range : int32, shape (n,)
        Innermost range that the launching thread was in.
    op : int32, shape (n,)
        Row of `GpuOps` that ends the gap; -1 where they were added up.
    line : int32, shape (n,)
        Line of code that the launching thread was in.
    asleep_ns : int64, shape (n,)
        Of a part in which the host was outside CUDA: how long its thread ran on no processor;
        `NULL` where that was not recorded, and in other parts.
    wait : int32, shape (n,)
        Of such a part: the system's call that the thread was in for most of it.
    """

    names: tuple[str, ...]
    lane: Int32
    step: Int32
    start_ns: Int64
    into_ns: Int64
    idle_ns: Int64
    cause: Int8
    call: Int32
    range: Int32
    op: Int32
    line: Int32
    asleep_ns: Int64
    wait: Int32

    def __len__(self) -> int:
        return len(self.lane)

    def rows_of(self, lane: int, steps: slice) -> Int64:
        """Rows of a lane in some steps; lanes come one behind the other."""
        first, last = np.searchsorted(self.lane, [lane, lane + 1])
        step = self.step[first:last]
        inside: Int64 = np.flatnonzero((step >= steps.start) & (step < steps.stop))
        inside += first
        return inside

    @classmethod
    def of(cls, names: Iterable[str], lanes: Sequence[Columns]) -> IdleGaps:
        """Put what `idle_gaps` returns for each lane together."""
        columns: list[Any] = [np.concatenate(parts) for parts in zip(*lanes, strict=True)]
        return cls(tuple(names), *columns)

    def columns(self, first: int, ops: Int64) -> dict[str, Any]:
        """Return the columns of a part of a report, as they are in the report.

        Parameters
        ----------
        first : int
            Number of the part's first lane.
        ops : int64 array
            Rows of the report's operations that those of the part are.
        """
        found = {name: getattr(self, name) for name in self.__slots__[1:]}
        op = np.where(self.op < 0, self.op, ops[self.op]) if len(ops) else self.op
        return {**found, "lane": self.lane + np.int32(first), "op": op.astype(np.int32)}

    def longest(self) -> Bool:
        """Return which parts are among the `LONGEST` longest of their lane, step and cause.

        The first of equal ones; never those that are added up.
        """
        kept = np.zeros(len(self), np.bool_)
        if len(self) == 0:
            return kept
        _, cell = distinct_rows(self.lane, self.step, self.cause)
        idle = np.where(self.start_ns == NULL, -1, self.idle_ns)
        for _ in range(LONGEST):
            most = np.full(int(cell.max()) + 1, -1)
            np.maximum.at(most, cell, idle)
            row = np.flatnonzero((idle == most[cell]) & (idle >= 0))[::-1]
            longest = np.full(len(most), -1)
            longest[cell[row]] = row  # of equal ones the first, which is assigned last
            longest = longest[longest >= 0]
            kept[longest], idle[longest] = True, -1
        return kept

    def added_up(self) -> IdleGaps:
        """Add parts of one lane, step, range and cause up, but the `longest` ones."""
        if len(self) == 0:
            return self
        kept = self.longest()
        at = np.flatnonzero(kept)
        rest = np.flatnonzero(~kept)
        rows, group = distinct_rows(
            *(c[rest] for c in (self.lane, self.step, self.range, self.cause))
        )
        total = sums(group, self.idle_ns[rest], len(rows))
        none = np.full(len(rows), -1, np.int32)
        columns = {
            "lane": rows[:, 0], "step": rows[:, 1], "start_ns": np.full(len(rows), NULL),
            "into_ns": np.full(len(rows), NULL), "idle_ns": total, "cause": rows[:, 3],
            "call": none, "range": rows[:, 2], "op": none, "line": none,
            "asleep_ns": np.full(len(rows), NULL), "wait": none,
        }  # fmt: skip
        lane = np.concatenate([self.lane[at], columns["lane"]])
        order = np.argsort(lane, kind="stable")
        joined: Any = {
            name: np.concatenate([getattr(self, name)[at], values])[order].astype(
                getattr(self, name).dtype
            )
            for name, values in columns.items()
        }
        return IdleGaps(self.names, **joined)


def idle_gaps(
    trace: Trace,
    steps: Steps,
    found: Launched,
    times: StepTimes,
    lane: int,
    line: HostTimeline,
    nesting: Nesting,
    names: dict[str, int],
) -> Columns:
    """Split the idle time of one GPU inside steps by cause.

    Parameters
    ----------
    trace : Trace
        Whose ranges say where the host was.
    steps : Steps
    found : Launched
    times : StepTimes
    lane : int
    line : HostTimeline
        The lane's.
    nesting : Nesting
        Of the trace's ranges.
    names : dict of str to int
        Of calls and ranges so far; grows.

    Returns
    -------
    tuple of arrays
        Columns of `IdleGaps`; without a GPU, without rows.
    """
    mine = (times.ops.lane == lane) & (times.device[lane] >= 0)
    op, step = times.ops.op[mine], steps.number[times.ops.step[mine]].astype(np.int64)
    gaps = _gaps(trace, found, op, step)
    own = np.unique(steps.thread[(steps.process == times.process[lane]) & (steps.thread >= 0)])
    graphs = _graphs(trace)
    keys = start_keys(nesting) if len(nesting) else None
    parts = []
    for first in range(0, max(len(gaps.op), 1), _BLOCK):
        some = _Gaps(*(getattr(gaps, c)[first : first + _BLOCK] for c in _Gaps.__slots__))
        launch = _launch(trace, found, line, some, graphs)
        parts.append(_joined(trace, (nesting, keys), own, line, some, launch))
    number, start, into, total, cause, call, label, op, line_of, asleep, wait = (
        np.concatenate(c) for c in zip(*parts, strict=True)
    )
    return (
        np.full(len(op), lane, np.int32), number, start, into, total, cause,
        _named(names, trace.strings, call), _named(names, trace.range_labels, label), op,
        _named(names, trace.stacks.frames, line_of), asleep,
        _named(names, trace.system_calls.names if trace.system_calls else (), wait),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Gaps:
    start_ns: Int64
    end_ns: Int64
    into_ns: Int64
    step: Int64
    op: Int64
    launch: Int64


@dataclass(frozen=True, slots=True)
class _Launch:
    """What launched the operation that ends each gap, and which call drained the GPU before it.

    `piece` is that of the timeline in which the gap begins.
    """

    called_ns: Int64
    thread: Int32
    name: Int32
    tail: Int8
    piece: Int64
    drained: Int8
    waited_in: Int32


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Parts of gaps in order; `row` is that of the timeline, -1 outside it, -2 after the launch."""

    gap: Int64
    start_ns: Int64
    ns: Int64
    cause: Int8
    row: Int64


def _gaps(trace: Trace, found: Launched, op: Int64, step: Int64) -> _Gaps:
    """Times between the operations of one lane, from its first step's to its last step's first."""
    order = np.argsort(trace.ops.start_ns[op], kind="stable")
    op, step = op[order], step[order]
    start, end = trace.ops.start_ns[op], trace.ops.end_ns[op]
    _, first, last = union(np.zeros(len(op), np.int8), start, end)
    begin, stop = last[:-1], first[1:]
    ends_with = _starting(trace, found, op, start, stop)
    heads, _ = extents(step, start, end, int(step.max(initial=-1)) + 1)
    numbers = distinct_positions(step, len(heads))
    heads = np.maximum.accumulate(heads[numbers])
    edges = np.concatenate([[0], np.searchsorted(begin, heads), [len(begin)]])
    at = np.repeat(np.arange(-1, len(heads)), np.diff(edges))  # heads before each, which are sorted
    whose = numbers[np.maximum(at, 0)] if len(numbers) else at
    kept = np.flatnonzero((at >= 0) & ((at < len(numbers) - 1) | (len(numbers) == 1)))
    ends_with, begin = ends_with[kept], begin[kept]
    into = begin - heads[at[kept]]
    return _Gaps(begin, stop[kept], into, whose[kept], ends_with, found.row_of(ends_with))


def _starting(trace: Trace, found: Launched, op: Int64, start: Int64, at: Int64) -> Int64:
    """Operation, of those by start, that starts at each moment.

    Of several it is the one launched first, then by stream.
    """
    first = np.searchsorted(start, at, side="left")
    chosen = op[first]
    for i in np.flatnonzero(start[np.minimum(first + 1, len(op) - 1)] == at).tolist():
        same = op[first[i] : np.searchsorted(start, at[i], side="right")]
        launch = found.row_of(same)
        at_ns = np.where(launch >= 0, found.at_ns[launch], trace.ops.start_ns[same])
        chosen[i] = same[np.lexsort((trace.ops.stream[same], at_ns))[0]]
    return chosen


def _launch(
    trace: Trace, found: Launched, line: HostTimeline, gaps: _Gaps, graphs: Bool
) -> _Launch:
    at = gaps.launch
    known = at >= 0
    call = found.call[at]
    called = np.where(known, found.at_ns[at], gaps.end_ns)
    returned = np.where(known, trace.api.end_ns[call], gaps.end_ns)
    name = np.where(known, trace.api.name[call], np.int32(NO_NAME))
    graph = known & graphs[name] | (trace.ops.kind[gaps.op] == GRAPH)
    queued = known & (returned + _SETUP * line.launch_ns < gaps.start_ns)
    tail = np.full(len(gaps.op), LAUNCH, np.int8)
    tail[graph & ~queued] = OTHER
    tail[queued] = DEPENDENCY
    tail[~known] = OTHER
    thread = np.where(known, found.thread[at], -1).astype(np.int32)
    piece = _search(line.end_ns, gaps.start_ns, "right", gaps)
    return _Launch(called, thread, name, tail, piece, *_drained(line, piece, gaps.start_ns))


def _search(moments: Int64, at: Int64, side: Literal["left", "right"], gaps: _Gaps) -> Int64:
    """As ``np.searchsorted``, of moments in some gaps: only where these are."""
    ends = np.append(gaps.start_ns[:1], gaps.end_ns[-1:])
    first, last = np.searchsorted(moments, ends, side=side).tolist() if len(ends) else (0, 0)
    found: Int64 = np.searchsorted(moments[first:last], at, side=side)
    return found + first


def _pieces(line: HostTimeline, gaps: _Gaps, launch: _Launch) -> _Pieces:
    """Cut every gap by the host's timeline up to the launch of the operation that ends it."""
    until = np.clip(launch.called_ns, gaps.start_ns, gaps.end_ns)
    high = _search(line.start_ns, until, "left", gaps)
    count = np.where(until > gaps.start_ns, np.maximum(high - launch.piece, 0), 0)
    last = np.cumsum(count + 1) - 1
    first = last - count
    gap = np.repeat(np.arange(len(count)), count + 1)
    row = np.arange(len(gap)) + (launch.piece - first)[gap]
    row[last] = 0 if len(line) else -1
    begin = line.start_ns.take(row, mode="clip") if len(line) else until.copy()
    kind = line.kind.take(row, mode="clip") if len(line) else np.empty(len(gap), np.int8)
    begin[first] = np.maximum(begin[first], gaps.start_ns)
    begin[last], kind[last], row[last] = until, OTHER, -2
    length = np.diff(begin, append=0)
    length[last] = gaps.end_ns - until
    if len(line):  # else all is before the first recorded call
        before = np.clip(line.start_ns[0], gaps.start_ns, until) - gaps.start_ns
        behind = until - np.clip(line.end_ns[-1], gaps.start_ns, until)
        cut = np.flatnonzero((behind > 0) & (count > 0))
        length[last[cut] - 1] -= behind[cut]
        lacking = before + behind
    else:
        lacking = until - gaps.start_ns
    more = np.flatnonzero(lacking)
    if len(more):
        gap, begin = np.append(gap, more), np.append(begin, gaps.start_ns[more])
        length, row = np.append(length, lacking[more]), np.append(row, np.full(len(more), -1))
        kind = np.append(kind, np.full(len(more), HOST, np.int8))
    cause = np.where(_inherits(gap, kind, launch.drained), launch.drained[gap], kind)
    works = np.zeros(len(count), np.bool_)
    works[gap[cause == HOST]] = True
    after = (launch.drained >= 0) & (launch.tail == LAUNCH) & ~works
    cause[last] = np.where(after, launch.drained, launch.tail)
    found = _Pieces(gap, begin, length, cause, row)
    return rows(found, np.lexsort((begin, gap))) if len(more) else found


def _calls(line: HostTimeline, launch: _Launch, pieces: _Pieces, at: Int64) -> tuple[Int32, Int32]:
    """Name of the call, and thread, of some pieces; -1 where there is none."""
    gap, cause, row = pieces.gap[at], pieces.cause[at], pieces.row[at]
    launching = (row == -2) | (cause == LAUNCH) | (cause == HOST)
    call = np.where(launching, launch.name[gap], np.int32(-1))
    thread = np.where(row == -2, launch.thread[gap], np.int32(-1))
    on = np.flatnonzero(row >= 0)
    thread[on] = line.thread(row[on])
    on = np.flatnonzero((row >= 0) & ~launching)
    call[on] = line.call(row[on])
    waited = launch.drained[gap] == cause
    return np.where(waited, launch.waited_in[gap], call), thread


def _graphs(trace: Trace) -> Bool:
    """Whether each string names a call of CUDA graphs; the last one is that of no name."""
    hit = [name.startswith(("cudaGraph", "cuGraph")) for name in trace.strings]
    return np.array([*hit, False], np.bool_)


def _drained(line: HostTimeline, piece: Int64, at: Int64) -> tuple[Int8, Int32]:
    """Cause and name of the call that waits for the GPU at each moment, -1 for none."""
    if len(line) == 0:
        return np.full(len(at), -1, np.int8), np.full(len(at), -1, np.int32)
    row = np.minimum(piece, len(line) - 1)
    inside = (line.start_ns[row] <= at) & (at < line.end_ns[row]) & line.drains(row)
    cause = np.where(inside, line.kind[row], np.int8(-1))
    return cause, np.where(inside, line.call(row), np.int32(-1))


def _inherits(gap: Int64, cause: Int8, drained: Int8) -> Bool:
    """Pieces of launching after a call that drained the GPU, until the host does other work.

    The GPU would have had the next operations in its queue, had the host not waited.
    """
    work = np.flatnonzero(cause == HOST)
    first_work = np.full(int(gap.max(initial=-1)) + 1, len(gap))
    first_work[gap[work[::-1]]] = work[::-1]  # of equal gaps the last assignment stays
    asked = np.flatnonzero((cause == LAUNCH) & (drained[gap] >= 0))
    takes = np.zeros(len(gap), np.bool_)
    takes[asked[asked < first_work[gap[asked]]]] = True
    return takes


def _joined(
    trace: Trace,
    ranges: tuple[Nesting, Int64 | None],
    own: Int32,
    line: HostTimeline,
    gaps: _Gaps,
    launch: _Launch,
) -> Columns:
    """Cut gaps, and join successive pieces of one cause; call and range are the longest one's.

    `ranges` are nested, with their `start_keys`. Returns the columns of `IdleGaps` but the lane,
    with codes of the trace's strings and labels.
    """
    pieces = _pieces(line, gaps, launch)
    nesting, keys = ranges
    order = np.flatnonzero(pieces.ns > 0)
    gap, cause, ns = pieces.gap[order], pieces.cause[order], pieces.ns[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (gap[1:] != gap[:-1]) | (cause[1:] != cause[:-1])
    first = np.flatnonzero(new)
    total = np.add.reduceat(ns, first) if len(first) else ns
    most = np.maximum.reduceat(ns, first) if len(first) else ns
    part = np.cumsum(new) - 1
    longest = np.flatnonzero(ns == most[part])[::-1]
    head = np.empty(len(first), np.int64)
    head[part[longest]] = order[longest]  # of equal ones the first, which is assigned last
    gap = gap[first]
    when = pieces.start_ns[head] + pieces.ns[head] // 2
    call, thread = _calls(line, launch, pieces, head)
    where = np.full(len(head), -1, np.int64)
    for asked in (thread, *(np.full(len(head), t, np.int32) for t in own)):
        seen = np.flatnonzero((where < 0) & (asked >= 0))
        where[seen] = innermost(nesting, asked[seen], when[seen], when[seen], keys)
    label = np.where(where >= 0, trace.ranges.name[nesting.row[where]], np.int32(NO_NAME))
    start = pieces.start_ns[order[first]]
    return (
        gaps.step[gap].astype(np.int32), start, gaps.into_ns[gap] + start - gaps.start_ns[gap],
        total, cause[first], call, label, gaps.op[gap].astype(np.int32),
        _lines(trace, own, launch, gap, thread, when),
        *_waits(trace, own, thread, start, total, cause[first]),
    )  # fmt: skip


def _waits(
    trace: Trace, own: Int32, thread: Int32, start: Int64, total: Int64, cause: Int8
) -> tuple[Int64, Int32]:
    """How long threads slept in parts of gaps, and in which of the system's calls they were most.

    As `IdleGaps.asleep_ns` and `wait`. A part without a thread has that of the step.
    """
    asleep, wait = np.full(len(total), NULL), np.full(len(total), -1, np.int32)
    mine = np.flatnonzero(cause == HOST)
    whose = np.where(thread[mine] >= 0, thread[mine], own[0] if len(own) else -1).astype(np.int32)
    begin, end = start[mine], start[mine] + total[mine]
    if trace.asleep is not None:
        slept, _ = trace.asleep.inside(whose, begin, end)
        seen = np.isin(whose, trace.asleep.thread)  # of others nothing was recorded
        asleep[mine] = np.where(seen, slept, NULL)
    if trace.system_calls is not None:
        spent, name = trace.system_calls.inside(whose, begin, end)
        wait[mine] = np.where(2 * spent >= total[mine], name, np.int32(-1))
    return asleep, wait


def _lines(
    trace: Trace, own: Int32, launch: _Launch, gap: Int64, thread: Int32, when: Int64
) -> Int32:
    """Return the lines of code that threads were in, or else that which launched what ends a gap.

    Codes of `Stacks.frames`, -1 where none is known. A piece without a thread has that of the step.
    """
    if len(trace.stacks) == 0:
        return np.full(len(gap), -1, np.int32)
    asked = np.where(thread >= 0, thread, own[0] if len(own) else -1).astype(np.int32)
    node = nodes_at(trace, asked, when)
    left = np.flatnonzero((node < 0) & (launch.thread[gap] >= 0))
    node[left] = nodes_at(trace, launch.thread[gap][left], launch.called_ns[gap][left])
    return np.append(trace.stacks.line, np.int32(-1))[node]


def _named(names: dict[str, int], texts: tuple[str, ...], codes: Int32) -> Int32:
    """Codes of one table of strings as codes of `names`, which grows."""
    new = np.full(len(texts) + 1, -1, np.int32)  # the last one is that of -1
    for code in distinct_positions(codes[codes >= 0], len(texts)).tolist():
        new[code] = names.setdefault(plain_call(texts[code]), len(names))
    return new[codes]
