"""The chain that decides a step's time, and what a step would take without some of its work.

A step is replayed as a graph: the calls of every rank's host in order and the time between them;
operations of the GPU, each after its launch, after the one before it on its stream, and after one
of another stream that it was seen to wait for; calls that wait for the GPU, after the operation
that they waited for; collectives, after the last rank. With the recorded lengths the replay gives
the recorded times; with some of them changed, those of another program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.timing.host_timeline import CAUSES, LAUNCH, PAGEABLE, SYNC
from perfmodel.timing.step_graph import (
    COMMUNICATION_OP,
    COPY_OP,
    KERNEL_OP,
    PAGEABLE_OP,
    READ_OP,
    StepGraph,
)

PATH_KINDS: Final = (*CAUSES, "kernel", "copy", "exposed_communication")
"""What a critical path consists of: the host's `CAUSES`, and operations of the GPU."""

_KERNEL, _COPY, _COMMUNICATION = (PATH_KINDS.index(k) for k in PATH_KINDS[len(CAUSES) :])
_PATH_OF: Final = {
    KERNEL_OP: _KERNEL,
    COPY_OP: _COPY,
    COMMUNICATION_OP: _COMMUNICATION,
    PAGEABLE_OP: PAGEABLE,
    READ_OP: SYNC,
}
_DEPENDENCY: Final = CAUSES.index("dependency")
_WAITS_NS: Final = 200_000
_BASE_NS: Final = 5_000
_NEAR_NS: Final = 10_000
_LATENCY_NS: Final = 5_000
"""From the start of a launch to that of its operation on an idle GPU, at least."""
_GAP_NS: Final = 1_000
"""Between operations of one stream, at least, where the second was queued."""


_OP_END, _OP_START, _HOST_END = range(3)
"""Types of nodes, in the order in which nodes of one moment are replayed."""
_Node = tuple[int, int, int]
"""Type, lane, and position in the lane's operations or calls."""

COLLECTIVES: Final = -2
"""Stands for the communicating operations in `Change.fused`."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is different in a replay.

    Attributes
    ----------
    free : frozenset of str
        Of `PATH_KINDS`: they take no time, and calls of such a kind wait for nothing.
    scale : mapping of (int, str) to float
        By lane and kind: what the recorded lengths are multiplied by.
    fused : mapping of int to float
        By range, or `COLLECTIVES`: its small kernels (all collectives) are launched at once, and
        take this part of their time.
    """

    free: frozenset[str] = frozenset()
    scale: Mapping[tuple[int, str], float] = field(default_factory=dict)
    fused: Mapping[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Lane:
    """One lane's nodes as lists, with what each waits for, as recorded."""

    host_start: list[int]
    host_end: list[int]
    host_kind: list[int]
    host_call: list[bool]
    waits_for: list[int]  # op that a call waited for, -1 for none
    tail: list[int]
    op_start: list[int]
    op_end: list[int]
    op_kind: list[int]
    op_call: list[int]
    op_step: list[int]
    op_group: list[int]
    latency: list[int]  # from the call's start to the operation's
    before: list[int]  # op before it on its stream, -1
    overlaps: list[bool]  # with the op before it, by programmatic dependent launch
    gap: list[int]
    other: list[int]  # op of another stream, -1
    lag: list[int]
    collective: list[int]
    launches: dict[int, int]  # pieces that launch what `fused` names


class Replay:
    """The steps of all lanes of a run, ready to be replayed.

    Parameters
    ----------
    graphs : sequence of StepGraph
    shift_ns : sequence of int
        What to add to each graph's times.
    collectives : sequence of int64 arrays
        Number of the collective of every operation of each graph, -1 for others.
    """

    def __init__(
        self,
        graphs: Sequence[StepGraph],
        shift_ns: Sequence[int],
        collectives: Sequence[Int64],
    ) -> None:
        self._lanes = [
            _prepare(g, s, c) for g, s, c in zip(graphs, shift_ns, collectives, strict=True)
        ]
        events: list[tuple[int, int, int, int]] = []
        for i, lane in enumerate(self._lanes):
            events += [(t, _HOST_END, i, j) for j, t in enumerate(lane.host_end)]
            events += [(t, _OP_START, i, j) for j, t in enumerate(lane.op_start)]
            events += [(t, _OP_END, i, j) for j, t in enumerate(lane.op_end)]
        events.sort()
        self._events = events
        self._transfer: dict[tuple[int, int], int] = {}
        arrived: dict[int, int] = {}
        for lane in self._lanes:
            for start, number in zip(lane.op_start, lane.collective, strict=True):
                if number >= 0:
                    arrived[number] = max(arrived.get(number, start), start)
        for i, lane in enumerate(self._lanes):
            for j, number in enumerate(lane.collective):
                if number >= 0:
                    self._transfer[i, j] = max(lane.op_end[j] - arrived[number], 0)

    def step_s(self, change: Change) -> float:
        """Seconds of a step of the slowest lane, the median over steps but the first."""
        starts = self._run(change).op_start
        return max(map(_period, self._lanes, starts), default=0.0)

    def critical_path(self, change: Change) -> dict[str, float]:
        """Seconds of the longest chain of a step by kind, the mean over steps but the first."""
        times = self._run(change, traced=True)
        periods = [*map(_period, self._lanes, times.op_start)]
        lane = periods.index(max(periods))
        heads = _heads(self._lanes[lane])
        if len(heads) < 2:
            return {}
        first = min(1, len(heads) - 2)
        until = times.op_start[lane][heads[first]]
        spent = np.zeros(len(PATH_KINDS))
        node: _Node | None = (_OP_START, lane, heads[-1])
        while node is not None and times.of(node) > until:
            kind, before = times.why[node]
            then = until if before is None else max(times.of(before), until)
            spent[kind] += max(times.of(node) - then, 0)
            node = before
        seconds = spent * 1e-9 / (len(heads) - 1 - first)
        return {k: float(t) for k, t in zip(PATH_KINDS, seconds, strict=True) if t > 0}

    def _run(self, change: Change, *, traced: bool = False) -> _Times:
        """Sweep all events in recorded order: every node waits only for earlier ones."""
        times = _Times(self._lanes, change, traced=traced)
        for _, type_, i, j in self._events:
            if type_ == _HOST_END:
                times.end_host(i, j)
            elif type_ == _OP_START:
                times.start_operation(i, j)
            else:
                times.end_operation(i, j, self._transfer.get((i, j), 0))
        return times


class _Times:
    """When every node of a replay happens, and which node it waited for."""

    def __init__(self, lanes: Sequence[_Lane], change: Change, *, traced: bool) -> None:
        self._traced = traced
        self._lanes = lanes
        self._fused = change.fused
        self._free = {PATH_KINDS.index(k) for k in change.free}
        self._scale = [
            [change.scale.get((i, k), 1.0) * (k not in change.free) for k in PATH_KINDS]
            for i in range(len(lanes))
        ]
        self._arrived: dict[int, tuple[int, int, int]] = {}
        self.host_end = [[0] * len(lane.host_end) for lane in lanes]
        self.op_start = [[0] * len(lane.op_start) for lane in lanes]
        self.op_end = [[0] * len(lane.op_end) for lane in lanes]
        self.why: dict[_Node, tuple[int, _Node | None]] = {}

    def of(self, node: _Node) -> int:
        """Return when a node happens."""
        type_, i, j = node
        return (self.op_end, self.op_start, self.host_end)[type_][i][j]

    def _host_before(self, i: int, j: int) -> tuple[int, _Node | None]:
        if j == 0:
            return self._lanes[i].host_start[0], None
        return self.host_end[i][j - 1], (_HOST_END, i, j - 1)

    def end_host(self, i: int, j: int) -> None:
        """End a call, or the time between two."""
        lane = self._lanes[i]
        now, source = self._host_before(i, j)
        kind = lane.host_kind[j]
        wait = lane.waits_for[j]
        length = lane.host_end[j] - lane.host_start[j]
        if wait >= 0:
            length = min(length, _BASE_NS)
        if lane.launches.get(j, -1) in self._fused:
            length = 0
        now += int(length * self._scale[i][kind])
        if wait >= 0 and kind not in self._free:
            waited = self.op_end[i][wait] + lane.tail[j]
            if waited > now:
                now, source = waited, (_OP_END, i, wait)
        self.host_end[i][j] = now
        if self._traced:
            self.why[_HOST_END, i, j] = kind, source

    def start_operation(self, i: int, j: int) -> None:
        """Start an operation after its launch, its stream and what else it waits for."""
        lane = self._lanes[i]
        now, source = self._host_before(i, lane.op_call[j])
        now, cause = now + lane.latency[j], LAUNCH
        before = lane.before[j]
        if before >= 0:
            type_ = _OP_START if lane.overlaps[j] else _OP_END
            gone = self._scale[i][_PATH_OF[lane.op_kind[j]]] == 0
            gap = 0 if gone or lane.op_group[j] in self._fused else lane.gap[j]
            ready = self.of((type_, i, before)) + gap
            if ready > now:
                now, cause, source = ready, _DEPENDENCY, (type_, i, before)
        other = lane.other[j]
        if other >= 0 and self.op_end[i][other] + lane.lag[j] > now:
            now, cause = self.op_end[i][other] + lane.lag[j], _DEPENDENCY
            source = (_OP_END, i, other)
        self.op_start[i][j] = now
        number = lane.collective[j]
        if number >= 0:
            self._arrived[number] = max(self._arrived.get(number, (now, i, j)), (now, i, j))
        if self._traced:
            self.why[_OP_START, i, j] = cause, source

    def end_operation(self, i: int, j: int, transfer_ns: int) -> None:
        """End an operation; a collective, after the last rank has arrived."""
        lane = self._lanes[i]
        kind = _PATH_OF[lane.op_kind[j]]
        number = lane.collective[j]
        length, begin, source = lane.op_end[j] - lane.op_start[j], self.op_start[i][j], (i, j)
        if number >= 0:
            begin, *who = max(self._arrived[number], (begin, i, j))
            length, source = transfer_ns, (who[0], who[1])
        length = int(length * self._scale[i][kind] * self._fused.get(lane.op_group[j], 1.0))
        self.op_end[i][j] = begin + length
        if self._traced:
            self.why[_OP_END, i, j] = kind, (_OP_START, *source)


def _heads(lane: _Lane) -> list[int]:
    """First operation of every step, in order of the steps."""
    first: dict[int, int] = {}
    for j, step in enumerate(lane.op_step):
        if step not in first or lane.op_start[j] < lane.op_start[first[step]]:
            first[step] = j
    return [first[step] for step in sorted(first)]


def _period(lane: _Lane, op_start: list[int]) -> float:
    """Seconds between the first operations of steps, over the later half."""
    heads = _heads(lane)
    if len(heads) < 2:
        return 0.0
    passed = np.diff([op_start[j] for j in heads])
    return max(float(np.median(passed[1:] if len(passed) > 2 else passed)), 0.0) * 1e-9


def _prepare(graph: StepGraph, shift_ns: int, collective: Int64) -> _Lane:
    """Find what every node waits for, and by how much it begins later than that."""
    start, end = graph.op_start_ns + shift_ns, graph.op_end_ns + shift_ns
    host_start, host_end = graph.host_start_ns + shift_ns, graph.host_end_ns + shift_ns
    count = len(start)
    launched = host_start[graph.op_call]
    latency = np.clip(start - launched, 0, _LATENCY_NS)
    before = np.full(count, -1, np.int64)
    for stream in np.unique(graph.op_stream):
        mine = np.flatnonzero(graph.op_stream == stream)
        before[mine[1:]] = mine[:-1]
    overlaps = (before >= 0) & (end[before] > start)
    waited = np.where(overlaps, start[before], end[before])
    slack = start - np.where(before >= 0, waited, 0)
    gap = np.where(overlaps, slack, np.minimum(slack, _GAP_NS))
    queued = np.where(before >= 0, waited + gap, np.iinfo(np.int64).min)
    late = start - np.maximum(launched + latency, queued)
    other, lag = _others(start, end, graph.op_stream, late)
    late = np.where(other >= 0, 0, late)
    by_stream = queued > launched + latency  # what held the operation up keeps all of the time
    gap = gap + np.where(by_stream, late, 0)
    latency = latency + np.where(by_stream, 0, late)
    waits_for, tail = _waits(graph, host_start, host_end, end)
    group = np.where(graph.op_kind == COMMUNICATION_OP, COLLECTIVES, graph.op_small)
    return _Lane(
        host_start.tolist(), host_end.tolist(), graph.host_kind.tolist(),
        graph.host_call.tolist(), waits_for.tolist(), tail.tolist(), start.tolist(), end.tolist(),
        graph.op_kind.tolist(), graph.op_call.tolist(), graph.op_step.tolist(),
        group.tolist(), latency.tolist(), before.tolist(), overlaps.tolist(), gap.tolist(),
        other.tolist(), lag.tolist(), collective.tolist(), _launching(graph, group),
    )  # fmt: skip


def _launching(graph: StepGraph, group: Int64) -> dict[int, int]:
    """Host pieces that launch each group of operations.

    An operation is launched from the launch before it on. A collective's events are recorded after
    its launch, until the longest piece before the next one, in which that is prepared.
    """
    length = graph.host_end_ns - graph.host_start_ns
    calls = graph.op_call.tolist()
    found: dict[int, int] = {}
    for j in np.flatnonzero(group != -1).tolist():
        first, until = (calls[j - 1] + 1 if j else 0), calls[j] + 1
        if group[j] == COLLECTIVES and j + 1 < len(calls) and calls[j + 1] > until:
            until += int(np.argmax(length[until : calls[j + 1]]))
        for at in range(first, until):
            if graph.host_kind[at] == LAUNCH:
                found.setdefault(at, int(group[j]))
    return found


def _others(start: Int64, end: Int64, stream: Int64, late: Int64) -> tuple[Int64, Int64]:
    """Operation of another stream whose end let one begin that nothing else held up."""
    count = len(start)
    other, lag = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    order = np.argsort(end, kind="stable")
    at = np.searchsorted(end[order], start, side="right") - 1
    for j in np.flatnonzero(late > 0).tolist():
        for back in range(at[j], max(at[j] - 8, -1), -1):
            k = int(order[back])
            if start[j] - end[k] > _NEAR_NS:
                break
            if stream[k] != stream[j]:
                other[j], lag[j] = k, start[j] - end[k]
                break
    return other, lag


def _waits(graph: StepGraph, host_start: Int64, host_end: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Operation that each waiting call waited for, -1 for none, and when it returned after that.

    Blocking calls wait, and launches that take long: the queue has no room. A call waited for the
    last operation launched until then that ended before it returned, if it ended during the call.
    """
    length = host_end - host_start
    waiting = graph.host_call & graph.host_drains
    waiting |= graph.host_call & (graph.host_kind == LAUNCH) & (length > _WAITS_NS)
    waits_for = np.full(len(host_start), -1, np.int64)
    tail = np.zeros(len(host_start), np.int64)
    order = np.argsort(end, kind="stable")
    for i in np.flatnonzero(waiting).tolist():
        back = int(np.searchsorted(end[order], host_end[i], side="right")) - 1
        while back >= 0 and end[order[back]] >= host_start[i]:
            if graph.op_call[order[back]] <= i:
                waits_for[i] = order[back]
                tail[i] = host_end[i] - end[order[back]]
                break
            back -= 1
    return waits_for, tail
