"""NCCL's collectives of every rank: matched by communicator, with their transfer and waiting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.readers.trace import KERNEL, NO_NAME, NULL, Trace
from perfmodel.timing.clock_sync import align, collective_limits
from perfmodel.timing.collectives import NCCL, CollectiveGroup
from perfmodel.timing.intervals import covered, union
from perfmodel.timing.kernels import exchange_named
from perfmodel.timing.launched import Launched
from perfmodel.timing.nesting import Nesting
from perfmodel.timing.small_kernels import launched_in
from perfmodel.timing.spans import Steps
from perfmodel.timing.step_times import StepTimes

_ALGORITHM: Final = re.compile(r"(RING|TREE|COLLNET\w{0,16}?|NVLS(?:_TREE)?|PAT)_(LL128|LL|SIMPLE)")
_MATCHED: Final = 0.95
"""Kernels are one collective if at least this share of the n-th ones overlap in time."""
_ROOTED: Final = (f"{NCCL}Broadcast", f"{NCCL}Reduce")
"""One rank may be done before the others arrive, so that their kernels need not overlap."""
ALL_TO_ALL: Final = f"{NCCL}AllToAll"
_SENDS: Final = "SendRecv"
_FOR_ALL: Final = (f"{NCCL}AllReduce", f"{NCCL}AllGather", f"{NCCL}ReduceScatter", ALL_TO_ALL)
"""No rank is done before all have come."""
PASSES: Final = ("", "forward", "backward", "after")
"""What launches a collective: '' where unknown; `after` a backward pass, before other products."""
_UNKNOWN, _FORWARD, _BACKWARD, _AFTER = range(len(PASSES))
_NEVER: Final = -(2**62)


@dataclass(frozen=True, slots=True)
class NcclKernels:
    """NCCL's kernels of some lanes, by lane and start.

    Attributes
    ----------
    names : tuple of str
        Distinct `NCCL AllReduce`, ...; `name` indexes it.
    algorithms : tuple of str
        Distinct algorithm and protocol, `RING_LL`; '' where the kernel's name does not say.
    ranges : tuple of str
        Distinct innermost ranges that launched them, '' outside any; `range` indexes it.
    lane : int64, shape (n,)
        Index into the lanes of `StepTimes`.
    step : int64, shape (n,)
        Number of the step that launched it, -1 outside steps.
    start_ns, end_ns : int64, shape (n,)
        On the GPU.
    communicator, bytes : int64, shape (n,)
        `NULL` where the report does not say.
    exposed_ns : int64, shape (n,)
        Part of the kernel that no computing kernel of its lane covers.
    during : int64, shape (n,)
        Index into `PASSES`.
    """

    names: tuple[str, ...]
    algorithms: tuple[str, ...]
    ranges: tuple[str, ...]
    name: Int64
    algorithm: Int64
    range: Int64
    lane: Int64
    step: Int64
    start_ns: Int64
    end_ns: Int64
    communicator: Int64
    bytes: Int64
    exposed_ns: Int64
    during: Int64

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True)
class MatchedKernels:
    """NCCL's kernels of all lanes of a run, on one clock, matched.

    Attributes
    ----------
    kernels : NcclKernels
        Lanes of all reports, one report after the other.
    waiting_ns : int64, shape (n,)
        Until the last rank arrived; `NULL` where the ranks' kernels cannot be matched.
    ranks : int64, shape (n,)
        Lanes that take part.
    start_ns : int64, shape (n,)
        On the clock of all reports.
    collective : int64, shape (n,)
        Number of the collective that the kernel is part of, -1 where it cannot be matched.
    """

    kernels: NcclKernels
    waiting_ns: Int64
    ranks: Int64
    start_ns: Int64
    collective: Int64

    def waiting_by_step(self, lanes: int, steps: int) -> Int64 | None:
        """Waiting of every lane and step, int64 ns, shape (lanes, steps); None if unknown."""
        if len(self.kernels) == 0 or (self.waiting_ns == NULL).any():
            return None
        total = np.zeros((lanes, steps), np.int64)
        inside = self.kernels.step >= 0
        cell = self.kernels.lane[inside], self.kernels.step[inside]
        np.add.at(total, cell, self.waiting_ns[inside])
        return total


def nccl_kernels(
    trace: Trace,
    steps: Steps,
    found: Launched,
    times: StepTimes,
    sends: Bool,
    nesting: Nesting,
    product: Bool,
) -> NcclKernels:
    """Collect NCCL's kernels of one report.

    Parameters
    ----------
    trace, steps, found, times, nesting
        Of the report; `nesting` of all ranges.
    sends : bool, shape (operations,)
        As `perfmodel.timing.kernels.communicating` says.
    product : bool, shape (operations,)
        Which are of a category in `perfmodel.base.kernels.PRODUCTS`.
    """
    ops = trace.ops
    mine = np.flatnonzero(sends[found.op])
    lane = times.lane_of(found.process[mine], ops.device[found.op[mine]])
    mine, lane = mine[lane >= 0], lane[lane >= 0]  # a process without steps has no lane
    op = found.op[mine]
    names, name, algorithms, algorithm = _operations_named(trace, op)
    names, name = _with_all_to_all(trace, names, name, found.thread[mine], found.at_ns[mine])
    at = steps.holding(found.process[mine], found.at_ns[mine])
    inside = times.ops
    computing = (ops.kind[inside.op] == KERNEL) & ~sends[inside.op] & (len(op) > 0)
    held = inside.op[computing]
    compute = union(inside.lane[computing], ops.start_ns[held], ops.end_ns[held])
    start, end = ops.start_ns[op], ops.end_ns[op]
    communicator, size = _messages(trace, found, mine)
    label = np.where(at >= 0, launched_in(trace, nesting, steps, found, mine, at), NO_NAME)
    labels, range_of = np.unique(label, return_inverse=True)
    ranges = tuple("" if i == NO_NAME else trace.range_labels[i] for i in labels.tolist())
    during = _passes(trace, steps, found, product[found.op], mine)
    named = np.array([_pass_named(text) for text in ranges], np.int64)[range_of]
    columns = (
        name,
        algorithm,
        range_of.astype(np.int64),
        lane,
        np.where(at >= 0, steps.number[at], -1).astype(np.int64),
        start,
        end,
        communicator,
        size,
        end - start - covered(lane, start, end, compute),
        np.where(named != _UNKNOWN, named, during),
    )
    order = np.lexsort((start, lane))
    return NcclKernels(names, algorithms, ranges, *(c[order] for c in columns))


def _operations_named(
    trace: Trace, op: Int64
) -> tuple[tuple[str, ...], Int64, tuple[str, ...], Int64]:
    """`NcclKernels.names`, `name`, `algorithms` and `algorithm` of some kernels, by their names."""
    names: dict[str, int] = {}
    algorithms: dict[str, int] = {}
    name, algorithm = np.empty(len(op), np.int64), np.empty(len(op), np.int64)
    for code in np.unique(trace.ops.name[op]).tolist():
        said = _ALGORITHM.search(trace.strings[code])
        here = trace.ops.name[op] == code
        name[here] = names.setdefault(exchange_named(trace.strings[code]), len(names))
        algorithm[here] = algorithms.setdefault(said[0] if said else "", len(algorithms))
    return tuple(names), name, tuple(algorithms), algorithm


def _with_all_to_all(
    trace: Trace, names: tuple[str, ...], name: Int64, thread: Int32, at_ns: Int64
) -> tuple[tuple[str, ...], Int64]:
    """Call sends and receives an all-to-all that are launched in a range that says so.

    Without such a range they are those of a pipeline: the kernels are the same.
    """
    ranges = trace.all_to_all
    sends = [i for i, text in enumerate(names) if text.endswith(_SENDS)]
    if ranges is None or not sends:
        return names, name
    order = np.lexsort((ranges.start_ns, ranges.thread))
    inside = np.zeros(len(at_ns), np.bool_)
    for number in np.unique(ranges.thread).tolist():
        mine = order[ranges.thread[order] == number]
        until = np.maximum.accumulate(ranges.end_ns[mine])
        asked = np.flatnonzero(thread == number)
        row = np.searchsorted(ranges.start_ns[mine], at_ns[asked], side="right") - 1
        inside[asked] = (row >= 0) & (until[np.maximum(row, 0)] >= at_ns[asked])
    found = name.copy()
    found[inside & np.isin(name, sends)] = len(names)
    return (*names, ALL_TO_ALL), found


def _pass_named(label: str) -> int:
    """The pass that a range's name says; unknown if it says none or both."""
    said = [code for code in (_FORWARD, _BACKWARD) if PASSES[code] in label.lower()]
    return said[0] if len(said) == 1 else _UNKNOWN


def _passes(trace: Trace, steps: Steps, found: Launched, product: Bool, mine: Int64) -> Int64:
    """In which pass each collective `mine` of `found` was launched, by what it is between.

    Frameworks that differentiate on a thread of their own launch products of the backward pass
    there, and all others on the steps' thread: what that one launches between two products of one
    step, none of the backward pass between them, is of a forward pass.

    Parameters
    ----------
    trace, steps, found
        As `nccl_kernels`.
    product : bool, shape (launched,)
        What layers are made of.
    mine : int64, shape (n,)
        Rows of `found`.

    Returns
    -------
    int64, shape (n,)
        Index into `PASSES`.
    """
    result = np.full(len(mine), _UNKNOWN)
    if len(mine) == 0:
        return result
    device = trace.ops.device[found.op]
    lanes = np.column_stack([found.process, device])
    for process, gpu in np.unique(lanes[mine], axis=0).tolist():
        layers = np.flatnonzero((found.process == process) & (device == gpu) & product)
        threads = np.unique(found.thread[layers])
        if len(threads) < 2:
            continue
        main = threads[0]  # started first
        if steps.declared:
            main = steps.thread[steps.process == process][0]
        on_main = found.thread[layers] == main
        forward, backward = (np.sort(found.at_ns[layers[w]]) for w in (on_main, ~on_main))
        asked = np.flatnonzero((found.process[mine] == process) & (device[mine] == gpu))
        at_ns, thread = found.at_ns[mine[asked]], found.thread[mine[asked]]
        last, following = _around(forward, at_ns)
        turned, turns = _around(backward, at_ns)
        step = [steps.holding(found.process[mine[asked]], t) for t in (last, at_ns, following)]
        between = (
            (last > turned) & (following < turns) & (step[0] == step[1]) & (step[1] == step[2])
        )
        after = (turned > _NEVER) & (turned > last)
        own = np.select([between, after], [_FORWARD, _AFTER], _UNKNOWN)
        others = np.where(np.isin(thread, threads), _BACKWARD, _UNKNOWN)
        result[asked] = np.where(thread == main, own, others)
    return result


def _around(times: Int64, at_ns: Int64) -> tuple[Int64, Int64]:
    """The last of some ascending times before each moment, and the first one after it."""
    padded = np.concatenate([[_NEVER], times, [-_NEVER]])
    place = np.searchsorted(times, at_ns)
    return padded[place], padded[place + 1]


def _messages(trace: Trace, found: Launched, mine: Int64) -> tuple[Int64, Int64]:
    """Communicator and bytes of every kernel: the payloads pushed since the kernel before it.

    NCCL pushes a range for every call and launches one kernel for all calls of a group.
    """
    communicator, size = np.full(len(mine), NULL), np.full(len(mine), NULL)
    said = trace.nccl
    for thread in np.unique(said.thread):
        rows = np.flatnonzero((said.thread == thread) & (said.bytes != NULL))
        ours = np.flatnonzero(found.thread[mine] == thread)
        ours = ours[np.argsort(found.at_ns[mine[ours]], kind="stable")]
        if len(rows) == 0 or len(ours) == 0:
            continue
        stop = np.searchsorted(said.start_ns[rows], found.at_ns[mine[ours]], side="right")
        begin = np.concatenate([[0], stop[:-1]])
        total = np.concatenate([[0], np.cumsum(said.bytes[rows])])
        some = stop > begin
        size[ours[some]] = (total[stop] - total[begin])[some]
        communicator[ours[some]] = said.communicator[rows[stop[some] - 1]]
    return communicator, size


def match_kernels(
    parts: Sequence[NcclKernels], lanes: Sequence[int], utc_start_ns: Sequence[int | None]
) -> MatchedKernels:
    """Match the kernels of one collective across the lanes of a run.

    With payloads, the n-th kernel of one operation on one communicator is one collective on all
    its ranks. Without them all lanes count as one communicator, and the match must be confirmed by
    the times: the kernels of one collective overlap. Reports are aligned by their UTC start, and
    where that contradicts the collectives by these.

    Parameters
    ----------
    parts : sequence of NcclKernels
        One per report.
    lanes : sequence of int
        Number of lanes of every report.
    utc_start_ns : sequence of int or None
        Of every report, in ns.
    """
    joined, report = _joined(parts, lanes, utc_start_ns)
    if len(joined) == 0:
        none = np.empty(0, np.int64)
        return MatchedKernels(joined, none, none, none, none)
    start, end = joined.start_ns, joined.end_ns
    if len(parts) > 1:
        shift = _clock_shift(joined, report)
        start, end = start + shift, end + shift
    waiting, ranks = np.full(len(joined), NULL), np.ones(len(joined), np.int64)
    collective, found = np.full(len(joined), -1), 0
    for rows in _groups(joined):
        width = len(np.unique(joined.lane[rows]))
        ranks[rows] = width
        grid = _grid(joined, rows)
        if grid is None:
            continue
        arrival, gone = start[grid].max(axis=0), end[grid].min(axis=0)
        rooted = joined.names[joined.name[rows[0]]] in _ROOTED
        sure = joined.communicator[rows[0]] != NULL or rooted
        if not sure and (arrival < gone).mean() < _MATCHED:
            continue
        waiting[grid] = np.clip(np.minimum(arrival, end[grid]) - start[grid], 0, None)
        collective[grid] = found + np.arange(grid.shape[1])
        found += grid.shape[1]
    return MatchedKernels(joined, waiting, ranks, start, collective)


def join_kernels(parts: Sequence[NcclKernels], first: Sequence[int]) -> NcclKernels:
    """Put kernels together; `first` is the number of the first lane of each part."""
    names: dict[str, int] = {}
    algorithms: dict[str, int] = {}
    ranges: dict[str, int] = {}
    columns: list[tuple[Int64, ...]] = []

    def numbered(known: dict[str, int], words: Sequence[str], at: Int64) -> Int64:
        return np.array([known.setdefault(w, len(known)) for w in words] or [0], np.int64)[at]

    for part, lane in zip(parts, first, strict=True):
        columns.append((
            numbered(names, part.names, part.name),
            numbered(algorithms, part.algorithms, part.algorithm),
            numbered(ranges, part.ranges, part.range), part.lane + lane, part.step,
            part.start_ns, part.end_ns, part.communicator, part.bytes,
            part.exposed_ns, part.during,
        ))  # fmt: skip
    table = [np.concatenate(c) for c in zip(*columns, strict=True)]
    return NcclKernels(tuple(names), tuple(algorithms), tuple(ranges), *table)


def _joined(
    parts: Sequence[NcclKernels], lanes: Sequence[int], utc_start_ns: Sequence[int | None]
) -> tuple[NcclKernels, Int64]:
    """All reports' kernels on one clock, and the report of every kernel."""
    base = min((t for t in utc_start_ns if t is not None), default=0)
    shifted = []
    for part, utc in zip(parts, utc_start_ns, strict=True):
        shift = (utc - base) if utc is not None and len(parts) > 1 else 0
        shifted.append(replace(part, start_ns=part.start_ns + shift, end_ns=part.end_ns + shift))
    first = np.cumsum([0, *lanes])[:-1].tolist()
    report = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return join_kernels(shifted, first), report


def _groups(kernels: NcclKernels) -> list[Int64]:
    """Rows of every operation on every communicator, by lane and start."""
    keys = np.column_stack([kernels.name, kernels.communicator])
    _, code = np.unique(keys, axis=0, return_inverse=True)
    code = code.ravel()
    order = np.lexsort((kernels.start_ns, kernels.lane, code))
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1)


def _grid(kernels: NcclKernels, rows: Int64) -> Int64 | None:
    """Rows as (lanes, n-th kernel); None where lanes lack some, or there is only one."""
    lanes, counts = np.unique(kernels.lane[rows], return_counts=True)
    if len(lanes) < 2 or (counts != counts[0]).any():
        return None
    return rows.reshape(len(lanes), -1)


def _clock_shift(kernels: NcclKernels, report: Int64) -> Int64:
    """What to add to the times of every kernel, so that no rank leaves before all have come."""
    shifts = np.zeros(int(report.max()) + 1, np.int64)
    for rows in _groups(kernels):
        grid = _grid(kernels, rows)
        if grid is None or kernels.names[kernels.name[rows[0]]] not in _FOR_ALL:
            continue
        where = report[grid[:, 0]]
        if len(np.unique(where)) == len(shifts):
            limits = collective_limits(kernels.start_ns[grid], kernels.end_ns[grid], where)
            shifts = align(limits).shift_ns
            break
    return shifts[report]


def nccl_groups(
    matched: MatchedKernels, window: slice, rank_of_lane: Sequence[int]
) -> tuple[CollectiveGroup, ...]:
    """Group the kernels of the steps in `window` by name, communicator and size.

    Means over all kernels, so that `transfer_s` + `waiting_s` = `seconds`: a median would hide
    the rank that others wait for. The bus bandwidth is that of the median transfer; its factors
    are those of NCCL tests (doc/PERFORMANCE.md): 2 (p - 1) / p for all-reduce; p - 1 for
    all-gather and reduce-scatter, whose payload is one rank's share; 1 otherwise.
    """
    kernels = matched.kernels
    rows = np.flatnonzero((kernels.step >= window.start) & (kernels.step < window.stop))
    if len(rows) == 0:
        return ()
    keys = np.column_stack([kernels.name, kernels.communicator, kernels.bytes])[rows]
    distinct, code = np.unique(keys, axis=0, return_inverse=True)
    steps = window.stop - window.start
    found = [
        _group(matched, rows[code.ravel() == i], steps, rank_of_lane) for i in range(len(distinct))
    ]
    return tuple(sorted(found, key=lambda g: -g.count * g.seconds))


def _group(
    matched: MatchedKernels, rows: Int64, steps: int, rank_of_lane: Sequence[int]
) -> CollectiveGroup:
    kernels = matched.kernels
    seconds = (kernels.end_ns - kernels.start_ns)[rows] * 1e-9
    waited = matched.waiting_ns[rows]
    known = bool((waited != NULL).all())
    waiting = np.where(waited == NULL, 0, waited) * 1e-9
    lanes = np.unique(kernels.lane[rows])
    size, comm = int(kernels.bytes[rows[0]]), int(kernels.communicator[rows[0]])
    ranks = int(matched.ranks[rows[0]])
    name = kernels.names[kernels.name[rows[0]]]
    transfer = float(np.median(seconds - waiting)) if known else None
    bus = None
    if transfer and size not in (NULL, 0) and ranks > 1:
        bus = size / transfer * _bus_factor(name, ranks)
    algorithms, uses = np.unique(kernels.algorithm[rows], return_counts=True)
    by_rank = []
    for lane in lanes.tolist():
        mine = kernels.lane[rows] == lane
        waits = float(waiting[mine].mean()) if known else None
        by_rank.append((rank_of_lane[lane], float(seconds[mine].mean()), waits))
    return CollectiveGroup(
        name=name,
        algorithm=kernels.algorithms[algorithms[np.argmax(uses)]] or None,
        communicator=None if comm == NULL else comm % 2**64,
        ranks=ranks,
        bytes=None if size == NULL else size,
        count=len(rows) / (steps * len(lanes)),
        seconds=float(seconds.mean()),
        transfer_s=float((seconds - waiting).mean()) if known else None,
        waiting_s=float(waiting.mean()) if known else None,
        exposed_s=float(kernels.exposed_ns[rows].mean() * 1e-9),
        bus_bytes_per_s=bus,
        by_rank=tuple(sorted(by_rank)),
        library=name.partition(" ")[0].lower(),
    )


def _bus_factor(name: str, ranks: int) -> float:
    if name.endswith("AllReduce"):
        return 2 * (ranks - 1) / ranks
    if name.endswith(("AllGather", "ReduceScatter")):
        return float(ranks - 1)
    return 1.0
