"""Times of ranges per rank and batch, on three clocks, with the bytes that each moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Growing, Int32, Int64
from perfmodel.base.errors import SchemaError
from perfmodel.readers.codes import check_sum, sums
from perfmodel.readers.nvtx import MPI_DOMAIN
from perfmodel.readers.trace import MEMCPY, NULL, TO_GPU, TO_HOST, Trace, rows
from perfmodel.timing.intervals import extents, lengths
from perfmodel.timing.nesting import Nesting, enclosing, last_moment, nest
from perfmodel.timing.projection import Joined, Launches, all_pairs, attribute
from perfmodel.timing.unified import is_migration

Path = tuple[str, ...]
_PAIRS: Final = 1 << 20  # of ranges and operations that are sorted at once
_DEEPEST, _MOST_LABELS = 1000, 50_000_000  # of a path, of all paths together


@dataclass(frozen=True, slots=True)
class RangeTimes:
    """One row per range instance, in preorder of threads.

    Attributes
    ----------
    paths : tuple of tuple of str
        Labels from the outermost range inwards; `path` indexes it.
    path, rank, batch : int32, shape (n,)
        `batch` counts a rank's batches from 0; -1 outside batches.
    start_ns : int64, shape (n,)
        Host start.
    host_ns : int64, shape (n,)
        Host time; `NULL` where the range never ended.
    projection_ns : int64, shape (n,)
        First operation's start to last one's end on the GPU; `NULL` without operations.
    busy_ns : int64, shape (n,)
        Union of the operations' intervals; `NULL` without operations.
    ops : int64, shape (n,)
        GPU operations inside.
    copy_bytes : int64, shape (n,)
        Bytes of host-device copies inside (MEMCPY.bytes).
    mpi_bytes : int64, shape (n,)
        Bytes handed to MPI inside (MPI_*.size); `NULL` where the report records none.
    mpi_ns : int64, shape (n,)
        Host time inside MPI: a call that completes several requests counts once.
    """

    paths: tuple[Path, ...]
    path: Int32
    rank: Int32
    batch: Int32
    start_ns: Int64
    host_ns: Int64
    projection_ns: Int64
    busy_ns: Int64
    ops: Int64
    copy_bytes: Int64
    mpi_bytes: Int64
    mpi_ns: Int64

    def __len__(self) -> int:
        return len(self.path)

    def labelled(self, label: str) -> Bool:
        """Return whether each row is a range of a label."""
        return np.array([path[-1] == label for path in self.paths], np.bool_)[self.path]


@dataclass(frozen=True, slots=True)
class Attribution:
    """Which GPU operations the ranges account for.

    Attributes
    ----------
    total : int
        GPU operations in the report.
    unlaunched : int
        Operations without an API call in the report (trimmed, or launched by the device).
    outside : int
        Operations launched outside every range of their thread.
    strays : int
        Those of them that were launched between the first batch's start and the last one's end
        of their process, so that the batches lack them; the others are set-up and evaluation.
    crossing : bool
        Whether some ranges of a thread overlap without nesting.
    by_time : int
        Operations given to the range that was open in the batch's thread of their process.
    op : int64
        Rows of `GpuOps` inside batches.
    op_batch, op_rank : int32
        Their batch and rank.
    """

    total: int
    unlaunched: int
    outside: int
    strays: int
    crossing: bool
    by_time: int
    op: Int64
    op_batch: Int32
    op_rank: Int32

    def among(self, ops: Bool) -> Attribution:
        """Return the same of some operations, whose rows stay."""
        inside = ops[self.op]
        columns = {name: getattr(self, name)[inside] for name in ("op", "op_batch", "op_rank")}
        return replace(self, **columns)


def time_ranges(
    trace: Trace,
    batch_label: str,
    *,
    by_time: bool = False,
    rank_of: dict[int, int] | None = None,
    report: Trace | None = None,
    joined: Joined | None = None,
) -> tuple[RangeTimes, Attribution]:
    """Measure every range of a trace.

    Parameters
    ----------
    trace : Trace
    batch_label : str
        Label of the range that is one batch.
    by_time : bool
        Also attribute operations that the ranges of their own thread put into no batch, such as
        those of an autograd thread, to the ranges open at that time in the thread that runs the
        batches of the same process.
    rank_of : dict, optional
        Rank by process index; `ranks_of(trace)` by default.
    report : Trace, optional
        What the trace is a part of, if it is one.
    joined : tuple, optional
        What `join_launches` returns, where it is known.
    """
    report = report or trace
    last_ns = last_moment(report.ranges)
    nesting = nest(trace.ranges, len(trace.threads), own_rows(trace), last_ns)
    paths, path = _paths(trace, nesting)
    batch_of, batch, rank = _batches(trace, nesting, batch_label, rank_of or ranks_of(trace))
    launches = attribute(trace, nesting, trace.ops, joined)
    moved = 0
    if by_time:
        launches, moved = _attribute_by_time(trace, nesting, launches, batch_of)
    projection, busy, ops, copied = _gpu_times(trace, nesting, launches)
    sized = bool((report.mpi.size_bytes[report.mpi.end_ns != NULL] != NULL).any())
    mpi_bytes, mpi_ns = _mpi_inside(trace, nesting, sized=sized)
    open_end = trace.ranges.end_ns[nesting.row] == NULL
    times = RangeTimes(
        paths=paths,
        path=path,
        rank=rank,
        batch=batch,
        start_ns=nesting.start_ns,
        host_ns=np.where(open_end, NULL, nesting.end_ns - nesting.start_ns),
        projection_ns=projection,
        busy_ns=busy,
        ops=ops,
        copy_bytes=copied,
        mpi_bytes=mpi_bytes,
        mpi_ns=mpi_ns,
    )
    inside = launches.inner >= 0
    launched = np.zeros(len(trace.ops), np.bool_)
    launched[launches.op] = True
    own_batch = np.full(len(launches.op), -1, np.int64)
    own_batch[inside] = batch_of[launches.inner[inside]]
    np.maximum.at(own_batch, launches.crossing_pair, batch_of[launches.crossing_range])
    batched = own_batch >= 0
    unheld = launches.inner < 0
    unheld[launches.crossing_pair] = False
    outside = np.flatnonzero(unheld)  # launches that no range of their thread encloses
    return times, Attribution(
        total=len(trace.ops),
        unlaunched=int((~launched & ~is_migration(trace.ops)).sum()),
        outside=len(outside),
        crossing=bool(nesting.crossing.any()),
        strays=_strays(trace, nesting, launches.call[outside], batch_of),
        by_time=moved,
        op=launches.op[batched],
        op_batch=batch[own_batch[batched]],
        op_rank=rank[own_batch[batched]],
    )


class JoinedTimes:
    """Times of several reports of one run, or of parts of one report, put together; paths merge."""

    def __init__(self) -> None:
        self._paths: dict[Path, int] = {}
        self._rows = Growing()

    def append(self, part: RangeTimes) -> None:
        """Add a part."""
        codes = [self._paths.setdefault(p, len(self._paths)) for p in part.paths]
        columns = {name: getattr(part, name) for name in RangeTimes.__slots__[1:]}
        if len(part):
            columns["path"] = np.array(codes, np.int32)[part.path]
        self._rows.append(columns)

    def times(self) -> RangeTimes:
        """Return all of them."""
        return RangeTimes(paths=tuple(self._paths), **self._rows.columns)


def concatenate(parts: Sequence[RangeTimes]) -> RangeTimes:
    """Join the times of several reports of one run; paths are merged."""
    if len(parts) == 1:
        return parts[0]
    joined = JoinedTimes()
    for part in parts:
        joined.append(part)
    return joined.times()


def of_report(trace: Trace, rank_of: Mapping[int, int], times: RangeTimes) -> RangeTimes:
    """Order the paths of joined parts as those of the report; ranks are numbers of processes.

    Parameters
    ----------
    trace : Trace
        The report.
    rank_of : mapping of int to int
        Rank by process index.
    times : RangeTimes
    """
    code = {label: i for i, label in enumerate(dict.fromkeys(trace.range_labels))}
    at = {path: i for i, path in enumerate(times.paths)}
    label = np.array([code[path[-1]] for path in times.paths], np.int64)
    depth = np.array([len(path) for path in times.paths], np.int64)
    above = np.array([at.get(path[:-1], -1) for path in times.paths], np.int64)
    place, levels = np.zeros(len(times.paths), np.int32), []
    by_depth = np.argsort(depth, kind="stable")
    for level in np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1):
        levels.append(level[np.lexsort((label[level], place[above[level]]))])
        place[levels[-1]] = np.arange(len(level))  # in their level
    order = np.concatenate(levels)
    place[order] = np.arange(len(order))
    rank = _ranks(trace, rank_of)
    paths = tuple(times.paths[i] for i in order.tolist())
    return replace(times, paths=paths, path=place[times.path], rank=rank[times.rank])


def join_attributions(
    trace: Trace,
    rank_of: Mapping[int, int],
    parts: Sequence[Attribution],
    rows: Sequence[Int64],
) -> Attribution:
    """Put the attributions of parts of a report together, as `of_report` does times.

    Parameters
    ----------
    trace, rank_of
        As in `of_report`.
    parts : sequence of Attribution
    rows : sequence of int64 arrays
        Rows of the report's operations that those of each part are.
    """
    rank = _ranks(trace, rank_of)
    op = np.concatenate([at[found.op] for found, at in zip(parts, rows, strict=True)])
    order = np.argsort(op, kind="stable")
    return Attribution(
        total=sum(found.total for found in parts),
        unlaunched=sum(found.unlaunched for found in parts),
        outside=sum(found.outside for found in parts),
        strays=sum(found.strays for found in parts),
        crossing=any(found.crossing for found in parts),
        by_time=sum(found.by_time for found in parts),
        op=op[order],
        op_batch=np.concatenate([found.op_batch for found in parts])[order],
        op_rank=rank[np.concatenate([found.op_rank for found in parts])[order]],
    )


def _ranks(trace: Trace, rank_of: Mapping[int, int]) -> Int32:
    """Rank of every process, -1 for those without one."""
    return np.array([rank_of.get(p, -1) for p in range(len(trace.processes))] or [-1], np.int32)


def ranks_of(trace: Trace) -> dict[int, int]:
    """Rank by process index: as recorded, else processes with ranges counted in their order."""
    if trace.ranks:
        return dict(trace.ranks)
    used = np.unique(trace.thread_process[trace.ranges.thread])
    return {int(process): rank for rank, process in enumerate(used)}


def own_rows(trace: Trace) -> Int64:
    """Ranges of the program itself: on one thread, named, not the MPI ranges of 2022 exports."""
    keep = np.array([d != MPI_DOMAIN for d in trace.range_domains] + [False], np.bool_)
    return np.flatnonzero(~trace.ranges.other_thread & keep[trace.ranges.name])


def _paths(trace: Trace, nesting: Nesting) -> tuple[tuple[Path, ...], Int32]:
    """Path of every range, parents before children, one level at a time."""
    label_of = {label: i for i, label in enumerate(dict.fromkeys(trace.range_labels))}
    label_code = np.array([label_of[label] for label in trace.range_labels] + [0], np.int64)
    labels = list(label_of)
    mine = label_code[trace.ranges.name[nesting.row]]
    paths: list[Path] = []
    path, kept = np.zeros(len(nesting), np.int32), 0
    for level, at in enumerate(nesting.by_level()):
        above = path[nesting.parent[at]].astype(np.int64) if level else np.full(len(at), -1)
        distinct, code = np.unique((above + 1) * len(labels) + mine[at], return_inverse=True)
        path[at] = code + len(paths)
        kept += len(distinct) * (level + 1)
        if level >= _DEEPEST or kept > _MOST_LABELS:
            raise SchemaError(
                f"{trace.source}: expected ranges at most {_DEEPEST} deep; got too many of them, "
                f"{max(nesting.level) + 1} deep; pop every range that is pushed"
            )
        for key in distinct.tolist():
            parent, label = divmod(key, len(labels))
            paths.append((*(paths[parent - 1] if parent else ()), labels[label]))
    return tuple(paths), path


def _batches(
    trace: Trace, nesting: Nesting, label: str, rank_of: dict[int, int]
) -> tuple[Int64, Int32, Int32]:
    """Enclosing batch range (position, -1 for none), batch number and rank of every range."""
    is_batch = np.array([n == label for n in trace.range_labels] + [False], np.bool_)
    batch_of = np.where(is_batch[trace.ranges.name[nesting.row]], np.arange(len(nesting)), -1)
    for at in [*nesting.by_level()][1:]:
        above = batch_of[nesting.parent[at]]
        batch_of[at] = np.where(above >= 0, above, batch_of[at])
    rank = (
        _ranks(trace, rank_of)[trace.thread_process[nesting.thread]]
        if len(nesting)
        else nesting.thread
    )
    heads = np.flatnonzero(batch_of == np.arange(len(nesting)))
    number = np.full(len(nesting) + 1, -1, np.int32)
    for r in np.unique(rank[heads]):
        mine = heads[rank[heads] == r]
        number[mine[np.argsort(nesting.start_ns[mine], kind="stable")]] = np.arange(len(mine))
    return batch_of, number[batch_of], rank


def _attribute_by_time(
    trace: Trace, nesting: Nesting, launches: Launches, batch_of: Int64
) -> tuple[Launches, int]:
    """Give operations that their own thread's ranges put into no batch to the batches' thread."""
    heads = nesting.thread[batch_of == np.arange(len(nesting))]
    main = np.full(len(trace.processes), -1, np.int32)
    threads, counts = np.unique(heads, return_counts=True)
    for thread in threads[np.argsort(counts, kind="stable")]:
        main[trace.thread_process[thread]] = thread
    without = np.ones(len(launches.inner), np.bool_)  # launches whose ranges are in no batch
    inside = launches.inner >= 0
    without[inside] = batch_of[launches.inner[inside]] < 0
    without[launches.crossing_pair[batch_of[launches.crossing_range] >= 0]] = False
    lost = np.flatnonzero(without)
    thread = main[trace.thread_process[trace.api.thread[launches.call[lost]]]]
    lost, thread = lost[thread >= 0], thread[thread >= 0]
    call = launches.call[lost]
    found, holder, at = enclosing(nesting, thread, trace.api.start_ns[call], trace.api.end_ns[call])
    inner = launches.inner.copy()
    inner[lost] = found
    moved = replace(
        launches,
        inner=inner,
        crossing_range=np.append(launches.crossing_range, holder),
        crossing_pair=np.append(launches.crossing_pair, lost[at]),
    )
    return moved, int((found >= 0).sum()) + len(np.unique(at))


def _strays(trace: Trace, nesting: Nesting, call: Int64, batch_of: Int64) -> int:
    """Count the API calls made while the batches of their process ran."""
    heads = np.flatnonzero(batch_of == np.arange(len(nesting)))
    process = trace.thread_process[nesting.thread[heads]]
    starts, ends = nesting.start_ns[heads], nesting.end_ns[heads]
    first, last = extents(process, starts, ends, len(trace.processes))
    whose, start = trace.thread_process[trace.api.thread[call]], trace.api.start_ns[call]
    return int(((start >= first[whose]) & (start < last[whose])).sum())


def _gpu_times(
    trace: Trace, nesting: Nesting, launches: Launches
) -> tuple[Int64, Int64, Int64, Int64]:
    """GPU projection, GPU busy (NULL without any operation), operations and bytes copied."""
    projection, busy = (np.full(len(nesting), NULL) for _ in range(2))
    ops, copied = (np.zeros(len(nesting), np.int64) for _ in range(2))
    o = trace.ops
    pci = np.isin(o.copy_kind, TO_GPU + TO_HOST) & (o.kind == MEMCPY)
    sizes = np.where(pci, np.maximum(o.bytes, 0), 0)
    for holder, op in _held(trace, nesting, launches):
        heads = np.flatnonzero(np.concatenate([[True], holder[1:] != holder[:-1]]))
        which, size = holder[heads], sizes[op]
        check_sum(size)
        projection[which], busy[which] = _gpu_clocks(o.start_ns[op], o.end_ns[op], heads)
        ops[which] = np.diff(np.append(heads, len(op)))
        copied[which] = np.add.reduceat(size, heads)
    return projection, busy, ops, copied


def _held(trace: Trace, nesting: Nesting, launches: Launches) -> Iterator[tuple[Int64, Int64]]:
    """Yield ranges with their operations, by range and start; no range comes twice."""
    start = trace.ops.start_ns
    if launches.repeated_ids or len(launches.crossing_pair):
        holder, pair = launches.pairs(nesting)
        op = launches.op[pair]
        if launches.repeated_ids and len(op):  # counts once, however many calls share its id
            holder, op = np.unique(np.stack([holder, op]), axis=1)
        blocks = -(-len(holder) // _PAIRS)  # of ranges, so that what is sorted stays small
        edges = np.linspace(0, len(nesting), blocks + 1).astype(np.int64)
        for low, high in pairwise(edges.tolist()):
            mine = np.flatnonzero((holder >= low) & (holder < high))
            mine = mine[np.lexsort((start[op[mine]], holder[mine]))]
            if len(mine):
                yield holder[mine], op[mine]
        return
    inside = np.flatnonzero(launches.inner >= 0)
    inside = inside[np.argsort(start[launches.op[inside]], kind="stable")]
    holder, op = launches.inner[inside], launches.op[inside]
    for level in range(int(nesting.level.max(initial=-1)), -1, -1):
        at = np.flatnonzero(nesting.level[holder] == level)
        mine = holder[at]
        holder[at] = nesting.parent[mine]
        if (mine[1:] < mine[:-1]).any():
            order = np.argsort(mine, kind="stable")
            at, mine = at[order], mine[order]
        if len(at):
            yield mine, op[at]


def _gpu_clocks(start: Int64, end: Int64, heads: Int64) -> tuple[Int64, Int64]:
    """GPU projection and GPU busy time of ranges, whose operations begin at `heads`."""
    first = start[heads]
    extent = np.maximum.reduceat(end, heads) - first
    check_sum(extent)
    reached = np.maximum.accumulate(end)
    if (reached[heads] > end[heads]).any():
        # each range behind the one before it on one axis, so that one pass covers them all
        shift = np.concatenate([[0], np.cumsum(extent + 1)[:-1]]) - first
        shift = np.repeat(shift, np.diff(np.append(heads, len(end))))
        start, end = start + shift, end + shift
        reached = np.maximum.accumulate(end)
    before = np.concatenate([start[:1], reached[:-1]])
    before[heads] = start[heads]
    return extent, np.add.reduceat(np.maximum(end - np.maximum(start, before), 0), heads)


def _mpi_inside(trace: Trace, nesting: Nesting, *, sized: bool) -> tuple[Int64, Int64]:
    """Bytes handed to MPI, if any sizes are recorded, and host time of calls inside every range."""
    mpi = rows(trace.mpi, trace.mpi.end_ns != NULL)
    inside = enclosing(nesting, mpi.thread, mpi.start_ns, mpi.end_ns)
    holder, call = all_pairs(nesting, *inside)
    total = sums(holder, np.maximum(mpi.size_bytes, 0)[call], len(nesting))
    spent = lengths(holder, mpi.start_ns[call], mpi.end_ns[call], len(nesting))
    known = np.bincount(holder, (mpi.size_bytes != NULL)[call], len(nesting)) > 0
    called = np.bincount(holder, minlength=len(nesting)) > 0
    total[(called & ~known) if sized else slice(None)] = NULL
    return total, spent
