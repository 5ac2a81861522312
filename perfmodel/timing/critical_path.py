"""The chain that decides a step's time, and what a step would take without some of its work.

A step is replayed as a graph: the calls of every rank's host in order and the time between them;
operations of the GPU, each after its launch, after the one before it on its stream, and after one
of another stream that it was seen to wait for; calls that wait for the GPU, after the operation
that they waited for; collectives, after the last rank. With the recorded lengths the replay gives
the recorded times; with some of them changed, those of another program.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np

from perfmodel.base.arrays import Bool, Floats, Int8, Int32, Int64
from perfmodel.timing.host_timeline import (
    CAUSE_NAMES,
    CAUSES,
    COMMUNICATION,
    DEPENDENCY,
    FULL,
    HOST,
    LAUNCH,
    PAGEABLE,
    SYNC,
)
from perfmodel.timing.replay_levels import Levels, Waits
from perfmodel.timing.step_graph import (
    COMMUNICATION_OP,
    COPY_OP,
    KERNEL_OP,
    MPI_OP,
    PAGEABLE_OP,
    PAGEABLE_READ_OP,
    READ_OP,
    STEP_OP,
    StepGraph,
)

EXPOSED: Final = "exposed_communication"
"""The kind of communication beside no computing."""
PATH_KINDS: Final = (*CAUSES, "kernel", "copy", EXPOSED)
"""Kinds of work on a critical path: the host's `CAUSES`, and operations of the GPU."""
PATH_NAMES: Final = {**CAUSE_NAMES, EXPOSED: "exposed communication"}
"""What people call those of another name."""

_KERNEL, _COPY, _COMMUNICATION = (PATH_KINDS.index(k) for k in PATH_KINDS[len(CAUSES) :])
_PATH_OF: Final = np.zeros(8, np.int8)
_PATH_OF[[KERNEL_OP, COPY_OP, COMMUNICATION_OP]] = _KERNEL, _COPY, _COMMUNICATION
_PATH_OF[[PAGEABLE_OP, READ_OP, STEP_OP, MPI_OP]] = PAGEABLE, SYNC, HOST, COMMUNICATION
_PATH_OF[PAGEABLE_READ_OP] = PAGEABLE
_NEAR: Final = 2
"""An operation that begins so many quick launches after another one's end waited for it."""
_LOOK_BACK: Final = 8
_LATENCY: Final = 1
"""From the start of a launch to that of its operation on an idle GPU, at least, in quick launches:
it begins when the call returns. A call that finds nothing to wait for takes as long."""
_OF_GAP: Final = 4
"""Between operations of one stream, where the second was queued, at least this part of a quick
launch: 1 µs on H200s, where quick launches take 4."""

_LONGEST_NS: Final = 2.0**62
_MANY: Final = 300_000
_MANY_LANES: Final = 16
"""Fewer lanes are replayed node by node, which takes them less time."""
Numbers: TypeAlias = "list[int] | array[int] | Int64"

COLLECTIVES: Final = -2
"""Stands for the communicating operations in `Change.fused`."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a replay.

    Attributes
    ----------
    free : frozenset of str
        Of `PATH_KINDS`: they take no time, and calls of such a kind wait for nothing.
    scale : mapping of (int, str) to float
        By lane and kind: what the recorded lengths are multiplied by.
    fused : mapping of int to float
        By range, or `COLLECTIVES`: its small kernels (all collectives) are launched at once, and
        take this part of their time.
    shorter_ns : mapping of int to int64 array
        By lane: how much shorter each of the host's pieces is, in the order of
        `StepGraph.host_kind`. No piece gets shorter than nothing; the time that a call waits for
        the GPU is no part of it, and follows from the replay.
    pinned_bytes_per_s : float or None
        Copies from and to pageable memory use pinned memory, which is so fast: the host waits for
        none of those to the GPU, and for those that it reads until they have come.
    """

    free: frozenset[str] = frozenset()
    scale: Mapping[tuple[int, str], float] = field(default_factory=dict)
    fused: Mapping[int, float] = field(default_factory=dict)
    shorter_ns: Mapping[int, Int64] = field(default_factory=dict)
    pinned_bytes_per_s: float | None = None

    def __or__(self, other: Change) -> Change:
        """Both changes at once: factors are multiplied, and what is taken off is added."""
        scale = {key: self.scale.get(key, 1.0) * f for key, f in other.scale.items()}
        shorter = {
            lane: ns + self.shorter_ns.get(lane, np.int64(0))
            for lane, ns in other.shorter_ns.items()
        }
        return Change(
            self.free | other.free,
            {**self.scale, **scale},
            {**self.fused, **other.fused},
            {**self.shorter_ns, **shorter},
            other.pinned_bytes_per_s or self.pinned_bytes_per_s,
        )


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Pieces of the host, waits and operations, with what each waits for, as recorded.

    Of one lane, or of all: then a lane's numbers follow those of the lane before it.

    Attributes
    ----------
    begin_ns : int64, shape (lanes,)
        When the first piece of each lane begins.
    host_ns : int32 or int64, shape (h,)
        Lengths of the host's pieces, but for the time that they waited for operations.
    host_kind : int8, shape (h,)
    host_group : int32, shape (h,)
        What of `Change.fused` a piece launches, -1 for nothing.
    wait, wait_end_ns : int64, shape (w,)
        Pieces that wait for an operation, and their ends.
    wait_op, tail_ns : int64, shape (w,)
        The operation that each waited for, and when it returned after that.
    reads : bool, shape (w,)
        Whether each waited for what it copies to pageable memory itself.
    staged, staged_bytes : int64, shape (s,)
        Operations that copy from and to pageable memory, and what they move.
    start_ns, end_ns : int64, shape (k,)
    step, call : int32, shape (k,)
        As those of `StepGraph`.
    kind : int8, shape (k,)
        Index into `PATH_KINDS`.
    group : int32, shape (k,)
        What of `Change.fused` an operation is, -1 for nothing.
    latency_ns : int64, shape (k,)
        From the call's start to the operation's.
    before : int32, gap_ns : int64, shape (k,)
        Operation before it on its stream, -1 for none, and when it began after that one's end.
    overlaps : bool, shape (k,)
        By programmatic dependent launch: the gap is to the start of the operation before it.
    other : int32, lag_ns : int64, shape (k,)
        Operation of another stream that it waited for, -1 for none, and for how long after it.
    """

    begin_ns: Int64
    host_ns: Int32 | Int64
    host_kind: Int8
    host_group: Int32
    wait: Int64
    wait_end_ns: Int64
    wait_op: Int64
    tail_ns: Int64
    reads: Bool
    staged: Int64
    staged_bytes: Int64
    start_ns: Int64
    end_ns: Int64
    step: Int32
    call: Int32
    kind: Int8
    group: Int32
    latency_ns: Int64
    before: Int32
    gap_ns: Int64
    overlaps: Bool
    other: Int32
    lag_ns: Int64


@dataclass(frozen=True, slots=True)
class _Times:
    """When every node of a replay happens.

    Piece p of the host ends at `base[i]` + `Replay._passed(...)[p + 1]`, where i counts the waits
    until p and the lanes before its own: a wait moves all that follows it.
    """

    start: Numbers
    end: Numbers
    base: Numbers
    bound: Sequence[bool] | Bool  # whether a wait had to wait
    last: dict[int, int]  # the operation of a collective that this one waited for
    lengths: _Lengths


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Lengths of a replay's nodes, after its change."""

    base: Int64  # where no call waits
    launch: Int64  # from the base to the earliest start of an operation
    gap: Int64
    length: Int64
    waits: Bool
    wait_passed: Int64  # from the base to the end of each call that waits


class Replay:
    """The steps of all lanes of a run, ready to be replayed.

    Parameters
    ----------
    graphs : sequence of StepGraph
    shift_ns : sequence of int
        What to add to each graph's times.
    collectives : sequence of int64 arrays
        Number of the collective of every operation of each graph, -1 for others.
    median_s : float, optional
        Time of a usual step: those that are replayed are few, and may be slower or faster. All
        times are scaled so that a step as recorded takes so long.
    """

    def __init__(
        self,
        graphs: Sequence[StepGraph],
        shift_ns: Sequence[int],
        collectives: Sequence[Int64],
        median_s: float = 0.0,
    ) -> None:
        self._first_piece = _offsets([len(graph.host_kind) for graph in graphs])
        self._first_op = _offsets([len(graph.op_start_ns) for graph in graphs])
        nodes, self._first_wait = _join(graphs, shift_ns, self._first_piece, self._first_op)
        self._nodes = nodes
        numbers = np.arange(len(graphs), dtype=np.int32)
        self._op_lane = np.repeat(numbers, np.diff(self._first_op))
        wait_lane = np.repeat(numbers, np.diff(self._first_wait))
        self._collective = np.concatenate([np.empty(0, np.int64), *collectives])
        start, end = nodes.start_ns, nodes.end_ns
        together = np.flatnonzero(self._collective >= 0)
        number = self._collective[together]
        arrived = np.full(number.max(initial=-1) + 1, np.iinfo(np.int64).min)
        np.maximum.at(arrived, number, start[together])
        waited = end[together] > arrived[number]  # the others had left before the last one came
        waiting = together[waited]
        self._length_ns = end - start
        self._length_ns[waiting] = end[waiting] - arrived[number[waited]]
        self._waits_for_all = np.zeros(len(start), np.bool_)
        self._waits_for_all[waiting] = True
        self._order = _recorded_order(nodes, waiting)
        # where in `_Times.base` a launch, and a wait, begins
        launch_base = np.searchsorted(nodes.wait, nodes.call) + self._op_lane
        self._launch_base = launch_base.astype(np.int32)
        self._wait_base = np.arange(len(nodes.wait)) + wait_lane
        self._heads = [
            first + _heads(nodes.step[first:end], nodes.start_ns[first:end])
            for first, end in pairwise(self._first_op.tolist())
        ]
        none = np.empty(0, np.int64)  # what is not asked again is large
        self._nodes = replace(nodes, start_ns=none, end_ns=none, wait_end_ns=none)
        del nodes, launch_base
        self._levels = self._by_level() if len(graphs) >= _MANY_LANES else None
        if self._levels is not None:
            self._order = none
        replayed_s = self._step_s(Change())
        self._scale = median_s / replayed_s if median_s and replayed_s else 1.0

    def step_s(self, change: Change) -> float:
        """Seconds of a step of the slowest lane, the median over steps but the first.

        Where no lane has two steps, from the start of its first operation to the end of its last.
        """
        return self._scale * self._step_s(change)

    def _step_s(self, change: Change) -> float:
        times = self._run(change)
        start = np.array(times.start, np.int64)
        if any(len(heads) > 1 for heads in self._heads):
            return max(_period(start[heads]) for heads in self._heads)
        end = np.array(times.end, np.int64)
        lanes = zip(self._heads, pairwise(self._first_op.tolist()), strict=True)
        passed = (end[first:last].max() - start[heads[0]] for heads, (first, last) in lanes
                  if len(heads))  # fmt: skip
        return max((float(ns) * 1e-9 for ns in passed), default=0.0)

    def critical_path(self, change: Change) -> dict[str, float]:
        """Seconds of the longest chain of a step by kind, the mean over steps but the first."""
        times, passed = self._run(change), self._passed(change, self._scales(change))
        start = np.array(times.start, np.int64)
        heads = max(self._heads, key=lambda heads: _period(start[heads])).tolist()
        if len(heads) < 2:
            return self._path_of_one(times, passed)
        first = min(1, len(heads) - 2)
        spent = self._spent_ns(times, passed, heads[-1], times.start[heads[first]])
        seconds = spent * 1e-9 * self._scale / (len(heads) - 1 - first)
        return {k: float(t) for k, t in zip(PATH_KINDS, seconds, strict=True) if t > 0}

    def _path_of_one(self, times: _Times, passed: Int64) -> dict[str, float]:
        """Seconds of the longest chain by kind where no lane has two steps."""
        if not any(len(heads) for heads in self._heads):
            return {}
        last = int(np.argmax(np.array(times.end, np.int64)))
        since = min(times.start[int(heads[0])] for heads in self._heads if len(heads))
        spent = self._spent_ns(times, passed, last, since)
        spent[self._nodes.kind[last]] += times.end[last] - times.start[last]
        seconds = spent * 1e-9 * self._scale
        return {k: float(t) for k, t in zip(PATH_KINDS, seconds, strict=True) if t > 0}

    def _by_level(self) -> Levels | None:
        """Nodes by level; None where clocks put some before those that they wait for."""
        nodes = self._nodes
        waits = Waits(
            self._launch_base, nodes.before, nodes.other, nodes.overlaps, nodes.lag_ns,
            self._collective, self._waits_for_all, self._wait_base, nodes.wait_op, nodes.tail_ns,
        )  # fmt: skip
        try:
            return Levels(waits, self._order, len(nodes.begin_ns) + len(nodes.wait))
        except ValueError:
            return None

    def _run(self, change: Change) -> _Times:
        """Replay with the lengths that a change leaves."""
        lengths = self._lengths(change)
        if self._levels is None:
            return self._one_by_one(lengths)
        times = self._levels.run(
            lengths.base, lengths.launch, lengths.gap, lengths.length, lengths.waits,
            lengths.wait_passed,
        )  # fmt: skip
        return _Times(*times, lengths)

    def _one_by_one(self, lengths: _Lengths) -> _Times:
        """Go through the nodes in recorded order: each waits only for earlier ones."""
        nodes = self._nodes
        count = len(nodes.call)
        launch, gap, length, wait_passed = (
            _numbers(column)
            for column in (lengths.launch, lengths.gap, lengths.length, lengths.wait_passed)
        )
        collective, before, overlaps, other, lag, wait_op, tail, launch_base, wait_base = (
            _numbers(column)
            for column in (
                self._collective, nodes.before, nodes.overlaps, nodes.other, nodes.lag_ns,
                nodes.wait_op, nodes.tail_ns, self._launch_base, self._wait_base,
            )
        )  # fmt: skip
        start, end = (_numbers(np.zeros(count, np.int64), grows=True) for _ in range(2))
        base, waits = _numbers(lengths.base, grows=True), lengths.waits.tolist()
        bound, last = [False] * len(waits), {}
        arrived: dict[int, tuple[int, int]] = {}
        for node in _numbers(self._order):
            if node < count:  # an operation begins
                now = base[launch_base[node]] + launch[node]
                op = before[node]
                if op >= 0:
                    now = max(now, (start[op] if overlaps[node] else end[op]) + gap[node])
                op = other[node]
                if op >= 0:
                    now = max(now, end[op] + lag[node])
                start[node], end[node] = now, now + length[node]
                number = collective[node]
                if number >= 0:
                    arrived[number] = max(arrived.get(number, (now, node)), (now, node))
            elif node < 2 * count:  # a collective ends, after its last rank has arrived
                op = node - count
                now, last[op] = max(arrived[collective[op]], (start[op], op))
                end[op] = now + length[op]
            else:  # a call returns
                i = node - 2 * count
                now, waited = base[wait_base[i]], end[wait_op[i]] + tail[i] - wait_passed[i]
                bound[i] = waits[i] and waited > now
                base[wait_base[i] + 1] = waited if bound[i] else now
        return _Times(start, end, base, bound, last, lengths)

    def _lengths(self, change: Change) -> _Lengths:
        """Apply a change to the lengths."""
        nodes, scale = self._nodes, self._scales(change)
        free = _free(change)
        passed = self._passed(change, scale)
        op_scale = scale[self._op_lane, nodes.kind]
        length, gap = self._length_ns * op_scale, np.where(op_scale == 0, 0, nodes.gap_ns)
        for group, part in change.fused.items():
            gap[nodes.group == group] = 0
            length[nodes.group == group] *= part
        waits = ~free[nodes.host_kind[nodes.wait]]
        if change.pinned_bytes_per_s and CAUSES[PAGEABLE] not in change.free:
            at = nodes.staged
            pinned_ns = nodes.staged_bytes / change.pinned_bytes_per_s * 1e9
            length[at] = np.minimum(self._length_ns[at], pinned_ns)
            gap[at] = nodes.gap_ns[at]
            waits |= nodes.reads
        base = nodes.begin_ns - passed[self._first_piece[:-1]]
        return _Lengths(
            base=np.repeat(base, np.diff(self._first_wait) + 1),
            launch=passed[nodes.call] + nodes.latency_ns,
            gap=gap,
            length=np.clip(length, 0, _LONGEST_NS).astype(np.int64),
            waits=waits,
            wait_passed=passed[nodes.wait + 1],
        )

    def _scales(self, change: Change) -> Floats:
        """Return the factors of a change for the lengths of each lane and kind."""
        lanes = range(len(self._nodes.begin_ns))
        free = _free(change)
        scale = np.array([[change.scale.get((i, k), 1.0) for k in PATH_KINDS] for i in lanes])
        scaled: Floats = scale.reshape(len(lanes), len(PATH_KINDS)) * ~free
        return scaled

    def _passed(self, change: Change, scale: Floats) -> Int64:
        """Time of all the host's pieces before each, and of all together."""
        nodes = self._nodes
        passed = np.zeros(len(nodes.host_ns) + 1, np.int64)
        host = passed[1:]
        host[:] = nodes.host_ns
        for lane, shorter in change.shorter_ns.items():
            mine = host[self._first_piece[lane] : self._first_piece[lane + 1]]
            np.maximum(mine - shorter, 0, out=mine)
        pieces = [*pairwise(self._first_piece.tolist())] if change.scale else [(0, len(host))]
        for factors, (first, end) in zip(scale, pieces, strict=False):  # or one for all lanes
            for kind in np.flatnonzero(factors != 1.0).tolist():
                mine = nodes.host_kind[first:end] == kind
                here = host[first:end]
                here[mine] = here[mine] * factors[kind] if factors[kind] else 0
        for group in change.fused:
            host[nodes.host_group == group] = 0
        np.cumsum(host, out=host)
        return passed

    def _spent_ns(self, times: _Times, passed: Int64, op: int, until: int) -> Floats:
        """Go back from an operation's start, always to what was waited for; time by kind."""
        spent = np.zeros(len(PATH_KINDS))

        def add(kind: int, now: int, since: int) -> None:
            spent[kind] += max(now - max(since, until), 0)

        seen: set[int] = set()  # damaged reports have collectives that wait for themselves
        while times.start[op] > until and op not in seen:
            seen.add(op)
            kind, since, source, overlaps = self._waited_for(times, passed, op)
            add(kind, times.start[op], since)
            if source < 0:
                source = self._along_host(times, passed, op, until, spent)
                if source < 0:
                    break
            if not overlaps:
                last = times.last.get(source, source)
                add(int(self._nodes.kind[source]), times.end[source], times.start[last])
                source = last
            op = source
        return spent

    def _waited_for(self, times: _Times, passed: Int64, op: int) -> tuple[int, int, int, bool]:
        """What held the start of an operation up: kind, since when, which one, -1 for the host.

        The last is true where it is the other one's start, not its end.
        """
        nodes = self._nodes
        base = times.base[self._launch_base[op]]
        now, found = (
            base + times.lengths.launch[op],
            (LAUNCH, base + int(passed[nodes.call[op]]), -1, False),
        )
        before, other = int(nodes.before[op]), int(nodes.other[op])
        if before >= 0:
            overlaps = bool(nodes.overlaps[op])
            since = times.start[before] if overlaps else times.end[before]
            if since + times.lengths.gap[op] > now:
                now, found = since + times.lengths.gap[op], (DEPENDENCY, since, before, overlaps)
        if other >= 0 and times.end[other] + int(nodes.lag_ns[op]) > now:
            found = DEPENDENCY, times.end[other], other, False
        return found

    def _along_host(self, times: _Times, passed: Int64, op: int, until: int, spent: Floats) -> int:
        """Add the host's pieces before a launch, back to the operation that one waited for.

        Returns
        -------
        int
            That operation, -1 where the host waited for none since its lane began.
        """
        nodes, lane = self._nodes, self._op_lane[op]
        call = int(nodes.call[op])
        wait = int(np.searchsorted(nodes.wait, call)) - 1
        while wait >= self._first_wait[lane] and not times.bound[wait]:
            wait -= 1
        waited = wait >= self._first_wait[lane]
        first = int(nodes.wait[wait]) + 1 if waited else int(self._first_piece[lane])
        ends = times.base[self._launch_base[op]] + passed[first : call + 1]
        if not waited:
            ends[0] = until
        np.add.at(spent, nodes.host_kind[first:call], np.diff(np.maximum(ends, until)))
        if not waited:
            return -1
        source = int(nodes.wait_op[wait])
        spent[nodes.host_kind[first - 1]] += max(int(ends[0]) - max(times.end[source], until), 0)
        return source


def _free(change: Change) -> Bool:
    """Which of `PATH_KINDS` take the host no time after a change."""
    pinned = {CAUSES[PAGEABLE]} if change.pinned_bytes_per_s else set()
    return np.array([kind in change.free | pinned for kind in PATH_KINDS])


def _recorded_order(nodes: _Nodes, waiting: Int64) -> Int64:
    """Order the nodes in time: starts of operations, ends of those that wait for ranks, calls.

    They are numbered in this order; the ends of other operations follow from their starts, and
    the host's pieces from the waits. Of nodes of one moment collectives end first, then calls.
    """
    count = len(nodes.start_ns)
    waits = np.arange(len(nodes.wait))
    number = np.concatenate([np.arange(count), count + waiting, 2 * count + waits])
    first = np.repeat([2, 0, 1], [count, len(waiting), len(waits)])
    time = np.concatenate([nodes.start_ns, nodes.end_ns[waiting], nodes.wait_end_ns])
    order: Int64 = number[np.lexsort((number, first, time))]
    return order


def _numbers(values: Int64 | Int32 | Bool, *, grows: bool = False) -> Numbers:
    """Numbers to go through one by one: a list, or of many what takes a fifth of its memory.

    `grows` says that others will be put in their places.
    """
    if len(values) < _MANY:
        numbers: list[int] = values.tolist()
        return numbers
    small = np.iinfo(np.int32)
    fits = values.min() >= small.min and values.max() <= small.max
    found = array("i" if fits and not grows else "q")
    found.frombytes(values.astype(found.typecode).tobytes())
    return found


def _heads(step: Int32, start: Int64) -> Int64:
    """First operation of every step, in order of the steps; -1 is none."""
    order = np.lexsort((start, step))
    heads: Int64 = order[np.diff(step[order], prepend=-1) != 0]
    return heads


def _period(starts: Int64) -> float:
    """Seconds between the first operations of steps, the median over steps but the first."""
    passed = np.diff(starts)
    if len(passed) == 0:
        return 0.0
    return max(float(np.median(passed[1:] if len(passed) > 1 else passed)), 0.0) * 1e-9


def _offsets(counts: Sequence[int]) -> Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))])


_BY_WAIT: Final = ("wait", "wait_end_ns", "wait_op", "tail_ns", "reads")
_STAGED: Final = ("staged", "staged_bytes")
_BY_PIECE: Final = ("host_ns", "host_kind", "host_group")


def _join(
    graphs: Sequence[StepGraph], shift_ns: Sequence[int], first_piece: Int64, first_op: Int64
) -> tuple[_Nodes, Int64]:
    """Put the lanes one after another, and where each one's waits begin; -1 stays -1.

    Each is copied to its place at once: thousands of lanes are large.
    """
    first_of = {"wait": first_piece, "call": first_piece, "wait_op": first_op, "before": first_op,
                "other": first_op, "staged": first_op}  # fmt: skip
    longest = max((int(np.diff(g.host_edge_ns).max(initial=0)) for g in graphs), default=0)
    columns: dict[str, Any] = {}
    if longest < 1 << 31:  # the host's pieces are the most: half the memory
        columns["host_ns"] = np.empty(int(first_piece[-1]), np.int32)
    parts: dict[str, list[Any]] = {name: [] for name in ("begin_ns", *_BY_WAIT, *_STAGED)}
    for i, (graph, shift) in enumerate(zip(graphs, shift_ns, strict=True)):
        lane = _prepare(graph, shift)
        for name in (f.name for f in fields(_Nodes)):
            values = getattr(lane, name)
            if name in first_of:
                values = np.where(values >= 0, values + first_of[name][i], -1)
            if name in parts:
                parts[name].append(values)
                continue
            first = first_piece if name in _BY_PIECE else first_op
            kind = getattr(lane, name).dtype
            column = columns.setdefault(name, np.empty(int(first[-1]), kind))
            column[first[i] : first[i + 1]] = values
    first_wait = _offsets([len(waits) for waits in parts["wait"]])
    columns |= {name: np.concatenate(some) for name, some in parts.items()}
    return _Nodes(**columns), first_wait


def _prepare(graph: StepGraph, shift_ns: int) -> _Nodes:
    """Find what every node waits for, and by how much it begins later than that."""
    edges = graph.host_edge_ns + shift_ns
    host_start, host_end = edges[:-1], edges[1:]
    launched = host_start[graph.op_call]
    # an operation does not begin before its call, whatever clocks say
    start = np.maximum(graph.op_start_ns + shift_ns, launched)
    end = np.maximum(graph.op_end_ns + shift_ns, start)
    latency = np.minimum(start - launched, _LATENCY * graph.launch_ns)
    order = np.lexsort((start, graph.op_stream))
    same = graph.op_stream[order[1:]] == graph.op_stream[order[:-1]]
    same &= graph.op_kind[order[1:]] != MPI_OP
    before = np.full(len(start), -1, np.int64)
    before[order[1:][same]] = order[:-1][same]
    overlaps = (before >= 0) & (end[before] > start)
    waited = np.where(overlaps, start[before], end[before])
    slack = start - np.where(before >= 0, waited, 0)
    gap = np.where(overlaps, slack, np.minimum(slack, graph.launch_ns // _OF_GAP))
    queued = np.where(before >= 0, waited + gap, np.iinfo(np.int64).min)
    late = start - np.maximum(launched + latency, queued)
    other, lag = _others(start, end, graph, late)
    late = np.where(other >= 0, 0, late)
    by_stream = queued > launched + latency  # what held the operation up keeps all of the time
    wait, wait_op = _waits(graph, host_start, host_end, end)
    host_ns = host_end - host_start
    host_ns[wait] = np.minimum(host_ns[wait], _LATENCY * graph.launch_ns)
    ops = np.flatnonzero(graph.op_waiter >= 0)
    held = end[ops] == host_end[graph.op_waiter[ops]]  # an exchange ended the call
    host_ns[graph.op_waiter[ops][held]] = 0
    wait, wait_op = np.append(wait, graph.op_waiter[ops]), np.append(wait_op, ops)
    order = np.argsort(wait, kind="stable")
    wait, wait_op = wait[order], wait_op[order]
    tail = np.where(graph.op_waiter[wait_op] < 0, host_end[wait] - end[wait_op], 0)
    none = np.empty(0, np.int64)
    staged = none if graph.op_bytes is None else np.flatnonzero(graph.op_bytes)
    group = np.where(graph.op_kind == COMMUNICATION_OP, COLLECTIVES, graph.op_small)
    return _Nodes(
        begin_ns=host_start[:1] if len(host_start) else np.zeros(1, np.int64),
        host_ns=host_ns,
        host_kind=graph.host_kind,
        host_group=_launching(graph, group).astype(np.int32),
        wait=wait,
        wait_end_ns=host_end[wait],
        wait_op=wait_op,
        tail_ns=tail,
        reads=(graph.op_kind[wait_op] == PAGEABLE_READ_OP) & (graph.op_call[wait_op] == wait),
        staged=staged,
        staged_bytes=none if graph.op_bytes is None else graph.op_bytes[staged],
        start_ns=start,
        end_ns=end,
        step=graph.op_step.astype(np.int32),
        call=graph.op_call.astype(np.int32),
        kind=_PATH_OF[graph.op_kind],
        group=group.astype(np.int32),
        latency_ns=latency + np.where(by_stream, 0, late),
        before=before.astype(np.int32),
        gap_ns=gap + np.where(by_stream, late, 0),
        overlaps=overlaps,
        other=other.astype(np.int32),
        lag_ns=lag,
    )


def _launching(graph: StepGraph, group: Int64) -> Int64:
    """Group of operations that each of the host's pieces launches, -1 for none.

    An operation is launched from the launch before it on. A collective's events are recorded after
    its launch, until the longest piece before the next one, in which that is prepared.
    """
    length, calls = np.diff(graph.host_edge_ns), graph.op_call
    launches: Int64 = np.append(group, -1)[np.searchsorted(calls, np.arange(len(length)))]
    for j in np.flatnonzero((group[:-1] == COLLECTIVES) & (np.diff(calls) > 1)).tolist():
        after = slice(int(calls[j]) + 1, int(calls[j + 1]))
        launches[after][: np.argmax(length[after])] = COLLECTIVES
    launches[graph.host_kind != LAUNCH] = -1
    return launches


def _others(start: Int64, end: Int64, graph: StepGraph, late: Int64) -> tuple[Int64, Int64]:
    """Operation of another stream whose end let one begin that nothing else held up.

    It ended just before; or, where an operation was much later than all else explains, it was
    launched before that one, and ended in the later half of that time.
    """
    other, lag = np.full(len(start), -1, np.int64), np.zeros(len(start), np.int64)
    stream, near_ns = graph.op_stream, _NEAR * graph.launch_ns
    order = np.argsort(end, kind="stable")
    order = order[graph.op_kind[order] != MPI_OP]
    ended, whose = end[order], stream[order]
    rest = np.flatnonzero(late > 0)
    back = np.searchsorted(ended, start[rest], side="right") - 1
    for _ in range(_LOOK_BACK):
        since = start[rest] - ended[back]
        near = (back >= 0) & (since <= np.maximum(late[rest] // 2, near_ns))
        rest, back, since = rest[near], back[near], since[near]
        found = (whose[back] != stream[rest]) & ((since <= near_ns) | (order[back] < rest))
        other[rest[found]] = order[back[found]]
        lag[rest[found]] = since[found]
        rest, back = rest[~found], back[~found] - 1
    return other, lag


def _waits(graph: StepGraph, host_start: Int64, host_end: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Calls that waited for an operation of the GPU, and which one.

    Blocking calls wait, and launches that take long: the queue has no room. A call waited for the
    last operation launched until then that ended before it returned, if it ended during the call.
    """
    waiting = graph.host_call & graph.host_drains
    full = (
        graph.host_call
        & (graph.host_kind == LAUNCH)
        & (host_end - host_start > FULL * graph.launch_ns)
    )
    rest = np.flatnonzero(waiting | full)
    order = np.argsort(end, kind="stable")
    order = order[graph.op_kind[order] != MPI_OP]
    ended, called = end[order], graph.op_call[order]
    back = np.searchsorted(ended, host_end[rest], side="right") - 1
    op = np.full(len(host_start), -1, np.int64)
    while len(rest):
        during = (back >= 0) & (ended[back] >= host_start[rest])
        rest, back = rest[during], back[during]
        launched = called[back] <= rest
        op[rest[launched]] = order[back[launched]]
        rest, back = rest[~launched], back[~launched] - 1
    wait = np.flatnonzero(op >= 0)
    return wait, op[wait]
