"""The loop nest of every process of a report: the levels of what it launches, or calls.

All ranks of a program take the same steps, so that a level of one process is matched with those of
the others by the number of its repetitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Bool, Floats, Int32, Int64
from perfmodel.base.kernels import kernel
from perfmodel.readers.trace import KERNEL, TO_GPU, TO_HOST, Trace
from perfmodel.timing.evidence import Evidence, chain, evidence, kind_of, score
from perfmodel.timing.host_events import HostEvents, host_events
from perfmodel.timing.launched import BLOCKING, Launched, Parts, operation_codes
from perfmodel.timing.loops import Loop, Operations, find_loops
from perfmodel.timing.nesting import closed_ends

_UPDATE: Final = "Optimizer.step#"
"""PyTorch's name of the range of every optimizer's step (torch/optim/optimizer.py)."""
_LEAST: Final = 3
"""Least occurrences of a repetition: two may be chance."""
_DISAGREE: Final = 6.0
_DISAGREE_ON_HOST: Final = 30.0
"""What z loses if no other process has as many repetitions: the odds fall by a factor of 400, or
by 1,800 for each quarter of the processes where all exchange messages, so that all take steps."""
_APART: Final = 0.05
"""Two ranks' numbers of steps differ by at most this share (or by 2): set-up may look alike."""
_AS_LONG: Final = 0.1
"""Levels are one if their median repetitions differ by at most this share, too."""
_AS_GOOD: Final = 1.5
"""The evidence for two levels is equal if z differs by no more."""
_BESIDE: Final = 0.1
"""Steps follow each other: no more of one runs beside the next."""
_SET_UP: Final = 0.4
"""Share of the operations that a set-up has at most."""
_LATEST: Final = 2**62
_TIMES: Final = 4
"""A rank that does what is in a step up to so many times takes as many of its own."""
_WHOLE: Final = 0.8
"""A last step that takes less than this share of the usual time has not been recorded whole."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the loop nest of all processes.

    Attributes
    ----------
    name : str
        The operation that begins each repetition.
    count : int
        Repetitions of the process that has most operations.
    median_s : float
        Its median time from one beginning to the next.
    features : float64, shape (features,)
        See `perfmodel.timing.evidence`; means over the processes.
    whole : int
        See `perfmodel.timing.evidence.Evidence`; of that process.
    columns : int32, int32, int64, int64 arrays
        Process, thread, start and end of each repetition, in ns.
    agreed : float
        Share of the processes that have a level of as many repetitions; one that has n times as
        many counts as 1 / n.
    """

    name: str
    count: int
    median_s: float
    features: Floats
    whole: int
    columns: tuple[Int32, Int32, Int64, Int64]
    agreed: float = 1.0

    @property
    def z(self) -> float:
        """The evidence for it, less where processes repeat something else."""
        on_host = kind_of(self.features) == "host"
        loss = _DISAGREE_ON_HOST if on_host else _DISAGREE
        return score(self.features) - loss * (1.0 - self.agreed)


@dataclass(frozen=True, slots=True)
class _Cut:
    """One level of one process: the times of its repetitions, and the evidence for them."""

    name: str
    start_ns: Int64
    end_ns: Int64
    evidence: Evidence

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class _Nest:
    """The levels of one process, innermost first."""

    process: int
    thread: int
    cuts: tuple[_Cut, ...]

    def like(self, count: int) -> tuple[_Cut | None, float]:
        """Return the level of about as many repetitions, and how far it agrees.

        A level of n times as many, cut into as many, agrees by 1 / n; without one None does by 0.
        """
        best = min(
            self.cuts,
            key=lambda one: (abs(len(one) - count), -score(one.evidence.features)),
            default=None,
        )
        if best is not None and abs(len(best) - count) <= max(2, _APART * count):
            return best, 1.0
        for one in self.cuts:
            times = round(len(one) / count)
            if 1 < times <= _TIMES and abs(len(one) - times * count) <= max(2, _APART * count):
                start = one.start_ns[::times]
                end = np.append(start[1:] - 1, one.end_ns[-1])
                return replace(one, start_ns=start[:count], end_ns=end[:count]), 1 / times
        return None, 0.0


def alike(levels: Sequence[Level]) -> list[list[int]]:
    """Group levels that are one: about as many repetitions of about the same time.

    The first or last repetition may be cut for some anchors, and some may miss a few.
    """
    groups: list[list[int]] = []
    for i, level in enumerate(levels):
        for group in groups:
            other = levels[group[-1]]
            apart = abs(level.count - other.count) <= max(1, _APART * other.count)
            if apart and abs(level.median_s - other.median_s) <= _AS_LONG * other.median_s:
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def best_of(levels: Sequence[Level]) -> list[Level]:
    """Return of levels that are one that with the best evidence.

    If the evidence is about equal, the one of most whole repetitions.
    """
    z, whole = [one.z for one in levels], [one.whole for one in levels]
    return [levels[most_whole(group, z, whole)] for group in alike(levels)]


def most_whole(group: Sequence[int], z: Sequence[float], whole: Sequence[int]) -> int:
    """Return which of the levels of a group is the best one, by their evidence."""
    least = max(z[i] for i in group) - _AS_GOOD
    return max((i for i in group if z[i] >= least), key=lambda i: whole[i])


def nest_on_gpu(trace: Trace, parts: Parts) -> list[Level]:
    """Find the levels of the operations that the processes launch, the innermost first.

    Calls that wait for the GPU are operations as well: parts of a step that run beside each other
    on several streams end with them.
    """
    nests: list[_Nest] = []
    for part, found in parts():
        for p in np.unique(found.process).tolist():
            nests.append(_on_gpu(part, found, p))
        del part, found  # before the next one is made
    return _matched(nests)


def nest_on_host(trace: Trace) -> list[Level]:
    """Find the levels of the MPI calls and ranges, described as tells the steps best."""
    events = tuple(host_events(trace))
    found = [_matched([_on_host(e, kind) for e in events]) for kind in range(3)]
    return max(found, key=lambda nest: -chain([one.z for one in best_of(nest)])[-1])


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of one process, in time order, and the calls that wait for it.

    Attributes
    ----------
    ops : Operations
    at_ns : int64, shape (operations + 1,)
        When each was launched; last the end of the process's last call.
    name : int32, shape (operations,)
        Index into `Trace.strings`.
    kernel_start_ns, kernel_end_ns : int64, shape (operations,)
        When each kernel ran on the GPU; the latest moment and the earliest one for others.
    """

    ops: Operations
    at_ns: Int64
    name: Int32
    kernel_start_ns: Int64
    kernel_end_ns: Int64


def operations_of(trace: Trace, found: Launched, process: int) -> Launches:
    """Put the operations of one process, and its calls that wait, in order.

    Updates are the operations that an optimizer's ranges launch; where there are no such ranges,
    kernels that are called like an optimizer's.
    """
    ops, api = trace.ops, trace.api
    mine = np.flatnonzero(found.process == process)
    mine = mine[np.lexsort((ops.start_ns[found.op[mine]], found.at_ns[mine]))]
    op, at_ns = found.op[mine], found.at_ns[mine]
    texts = (*trace.strings, "")
    called = trace.thread_process[api.thread] == process
    wait = np.flatnonzero(np.array([n.startswith(BLOCKING) for n in texts])[api.name] & called)
    codes = operation_codes(ops, op)
    order = np.argsort(np.concatenate([at_ns, api.start_ns[wait]]), kind="stable")

    def beside(of_ops: Any, of_waits: Any) -> Any:
        return np.concatenate([of_ops, np.broadcast_to(of_waits, len(wait))])[order]

    sequence = Operations(
        codes=_counted(beside(codes, -1 - api.name[wait].astype(np.int64))),
        spent_ns=beside(_usual(codes, ops.end_ns[op] - ops.start_ns[op]), 0),
        to_gpu=beside(np.isin(ops.copy_kind[op], TO_GPU), False),
        to_host=beside(np.isin(ops.copy_kind[op], TO_HOST), True),
        updates=beside(_lasting(_updates(trace, process, op, at_ns)), False),
    )
    name, at_ns = beside(ops.name[op], api.name[wait]), beside(at_ns, api.start_ns[wait])
    last = max(int(api.end_ns[called].max(initial=0)), int(at_ns.max(initial=0))) + 1
    kernel = ops.kind[op] == KERNEL
    return Launches(
        sequence,
        np.append(at_ns, last),
        name,
        beside(np.where(kernel, ops.start_ns[op], _LATEST), _LATEST),
        beside(np.where(kernel, ops.end_ns[op], -_LATEST), -_LATEST),
    )


def _updates(trace: Trace, process: int, op: Int64, at_ns: Int64) -> Bool:
    """Return whether operations, launched at these moments, update parameters."""
    updating = np.array([n.startswith(_UPDATE) for n in (*trace.range_labels, "")], np.bool_)
    rows = np.flatnonzero(updating[trace.ranges.name])
    rows = rows[trace.thread_process[trace.ranges.thread[rows]] == process]
    if len(rows) == 0:
        used, place = np.unique(trace.ops.name[op], return_inverse=True)
        named = [n >= 0 and kernel(trace.strings[n]).updates for n in used]
        return np.array(named, np.bool_)[place]
    begin, end = np.sort(trace.ranges.start_ns[rows]), np.sort(closed_ends(trace.ranges)[rows])
    last = np.searchsorted(begin, at_ns, side="right") - 1
    inside: Bool = (last >= 0) & (at_ns <= end[last])
    return inside


def _counted(codes: Int64) -> Int64:
    """Count codes from 0."""
    counted: Int64 = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return counted


def _lasting(updates: Bool) -> Bool:
    """The updates, if they are not a set-up's only.

    What a set-up captures as a CUDA graph has updates without names of their own later.
    """
    lasting = updates[int(_SET_UP * len(updates)) :].any()
    return updates if lasting else np.zeros(len(updates), np.bool_)


def _on_gpu(trace: Trace, found: Launched, process: int) -> _Nest:
    """The levels of one process."""
    sequence = operations_of(trace, found, process)
    ops, at_ns = sequence.ops, sequence.at_ns
    until = np.concatenate([[0], np.cumsum(ops.spent_ns)])
    behind = np.concatenate([[False], ~ops.updates[1:] & ops.updates[:-1]])
    threads, counts = np.unique(found.thread[found.process == process], return_counts=True)
    cuts = [
        _Cut(
            (*trace.strings, "")[sequence.name[loop.first[0]]],
            at_ns[loop.first],
            np.maximum(at_ns[loop.after] - 1, at_ns[loop.first]),
            evidence(ops, loop, until),
        )
        for loop in find_loops(ops.codes, behind)
        if len(loop) >= _LEAST and not _beside(sequence, loop)
    ]
    return _Nest(process, int(threads[np.argmax(counts)]), tuple(cuts))


def _beside(sequence: Launches, loop: Loop) -> bool:
    """Whether kernels of most repetitions run beside the next one's, as parts on streams do."""
    edges = np.column_stack([loop.first, loop.after]).ravel()
    start = np.minimum.reduceat(np.append(sequence.kernel_start_ns, _LATEST), edges)[::2]
    end = np.maximum.reduceat(np.append(sequence.kernel_end_ns, -_LATEST), edges)[::2]
    known = end > start
    if known.sum() < 2:
        return False
    start, end = start[known], end[known]
    return bool(np.median(end[:-1] - start[1:]) > _BESIDE * np.median(np.diff(start)))


def _usual(codes: Int64, spent_ns: Int64) -> Int64:
    """Return the usual time of each operation, the median of its kind: the first may wait long."""
    _, kind, counts = np.unique(codes, return_inverse=True, return_counts=True)
    order = np.lexsort((spent_ns, kind))
    middle = np.cumsum(counts) - counts + (counts - 1) // 2
    usual: Int64 = spent_ns[order][middle][kind]
    return usual


def _on_host(events: HostEvents, kind: int) -> _Nest:
    """The levels of one process without a GPU."""
    codes, count = events.codes[kind], len(events.start_ns)
    edges = np.append(events.start_ns, events.end_ns.max())
    sequence = replace(Operations.of(codes), to_host=events.together, on_host=True)
    cuts = []
    for loop in find_loops(codes):
        whole = _recorded_whole(events, edges, loop.first)
        first, after = loop.first[:whole], np.append(loop.first[1:], loop.after[-1])[:whole]
        several = events.calls > 0 or np.median(after - first) > 1  # else ranges of one name
        if whole >= _LEAST and several:
            said = evidence(sequence, Loop(first, after, loop.anchors), np.arange(count + 1))
            cuts.append(_Cut("", edges[first], edges[after] - 1, said))
    return _Nest(events.process, events.thread, tuple(cuts))


def _recorded_whole(events: HostEvents, edges: Int64, first: Int64) -> int:
    """How many of the repetitions were recorded whole.

    What is computed after the last event is not recorded: a last step that is shorter than usual
    does not count, nor that in which a process was stopped.
    """
    usual = float(np.median(np.diff(edges[first])))
    stuck = events.cut_short and events.end_ns[-1] - events.start_ns[-1] > usual
    return len(first) - int(stuck or edges[-1] - edges[first[-1]] < _WHOLE * usual)


def _matched(nests: Sequence[_Nest]) -> list[Level]:
    """Match the levels of all processes with those of the ones in which most and least repeats.

    A process in which nothing repeats as often is cut where the others are, if at least half of
    them agree.
    """
    found: list[Level] = []
    most = sorted(nests, key=lambda nest: -max(map(len, nest.cuts), default=0))
    references = most[:1] + most[-1:] if len(most) > 1 else most
    for of, cut in [(nest, cut) for nest in references for cut in nest.cuts]:
        matched = [(cut, 1.0) if nest is of else nest.like(len(cut)) for nest in nests]
        known = [one for one, _ in matched if one is not None]
        if 2 * len(known) < len(nests):
            continue
        cuts = [one or cut for one, _ in matched]
        counts = [len(one) for one in cuts]
        found.append(
            Level(
                name=cut.name,
                count=len(cut),
                median_s=float(np.median(np.diff(cut.start_ns))) * 1e-9,
                features=np.mean([one.evidence.features for one in known], axis=0),
                whole=cut.evidence.whole,
                columns=(
                    np.repeat([nest.process for nest in nests], counts).astype(np.int32),
                    np.repeat([nest.thread for nest in nests], counts).astype(np.int32),
                    np.concatenate([one.start_ns for one in cuts]),
                    np.concatenate([one.end_ns for one in cuts]),
                ),
                agreed=sum(share for _, share in matched) / len(nests),
            )
        )
    return sorted(found, key=lambda level: -level.count)
