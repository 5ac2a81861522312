"""Collectives of MPI and NCCL: every rank's calls, matched, with their transfer and waiting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Floats, Int32, Int64
from perfmodel.base.units import si
from perfmodel.readers.trace import KERNEL, MPI_SOURCES, NULL, Trace
from perfmodel.timing.clock_sync import align, collective_limits, utc_shifts
from perfmodel.timing.range_times import Attribution, Path, RangeTimes, ranks_of

NCCL: Final = "NCCL "
"""What the names of NCCL's collectives begin with here."""

COLLECTIVE: Final = MPI_SOURCES.index("collectives")
NCCL_KERNEL: Final = re.compile(r"nccl(?:Dev)?Kernel_?([A-Za-z]+)")
ALL_REDUCES: Final = ("MPI_Allreduce", f"{NCCL}AllReduce")
_NON_BLOCKING: Final = "MPI_I"
_FOR_ALL: Final = re.compile(
    r"MPI_(Allreduce|Barrier|Allgatherv?|Alltoall[vw]?|Reduce_scatter(_block)?)(_c)?"
)
"""Collectives that let nobody go before everybody has come."""


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """MPI's or NCCL's collectives of one name and size inside the batches.

    Medians over all instances and ranks: `seconds` is the whole call, or NCCL's kernel; `waiting_s`
    its part before the last rank arrived, `transfer_s` the part after: None for non-blocking
    calls, which return before either. `bus_bytes_per_s` applies the all-reduce factor 2 (p - 1) /
    p to bytes over transfer time (NCCL tests' bus bandwidth).

    What `perfmodel.timing.nccl` makes has means instead, so that transfer and waiting add up to the
    kernels' time, and says more: the communicator's id, its `ranks`, the `algorithm` with its
    protocol, the part of a kernel that no computing kernel covers (`exposed_s`), and `by_rank`:
    rank, mean kernel time and mean waiting.
    """

    name: str
    bytes: int | None
    count: float
    seconds: float
    transfer_s: float | None
    waiting_s: float | None
    bus_bytes_per_s: float | None
    library: str = "mpi"
    communicator: int | None = None
    ranks: int | None = None
    algorithm: str | None = None
    exposed_s: float | None = None
    by_rank: tuple[tuple[int, float, float | None], ...] = ()

    @property
    def own_s(self) -> float:
        """The transfer, or the whole call where waiting is not known apart."""
        return self.seconds if self.transfer_s is None else self.transfer_s


@dataclass(frozen=True, slots=True)
class Waiting:
    """Time in collectives per batch and rank: all of it, and the part spent waiting.

    Sequences have a median over batches for every rank.
    """

    seconds: Sequence[float]
    waiting_s: Sequence[float] | None


@dataclass(frozen=True, slots=True)
class Calls:
    """One rank's collectives in time order, on a clock all ranks share; `size` may be `NULL`."""

    name: tuple[str, ...]
    size: Int64
    start_ns: Int64
    end_ns: Int64
    batch: Int64


def blocking(calls: Calls) -> Bool:
    """Whether each collective returns when it is done."""
    waits = {name: not name.startswith(_NON_BLOCKING) for name in {*calls.name}}
    return np.array([waits[name] for name in calls.name], np.bool_)


def grouped(
    calls: Sequence[Calls], matched: bool, warmup: int, batches: int
) -> tuple[tuple[CollectiveGroup, ...], Waiting]:
    """Group every rank's calls by name and size; `matched` ones are split at the last arrival."""
    arrival = np.max([c.start_ns for c in calls], axis=0) if matched else np.empty(0, np.int64)
    spent, waited = (np.zeros((len(calls), batches)) for _ in range(2))
    codes: dict[tuple[str, int], int] = {}
    columns: list[tuple[Int64, Floats, Floats]] = []
    for rank, c in enumerate(calls):
        late = c.batch >= warmup
        keys = compress(zip(c.name, c.size.tolist(), strict=True), late.tolist())
        code = np.array([codes.setdefault(k, len(codes)) for k in keys], np.int64)
        seconds = (c.end_ns - c.start_ns)[late].astype(np.float64) * 1e-9
        waiting = np.full(len(code), np.nan)
        if matched:
            held = blocking(c)[late]
            ahead = ((arrival - c.start_ns)[late] * 1e-9)[held]
            waiting[held] = np.clip(ahead, 0.0, seconds[held])
        np.add.at(spent[rank], c.batch[late] - warmup, seconds)
        np.add.at(waited[rank], c.batch[late] - warmup, np.nan_to_num(waiting))
        columns.append((code, seconds, waiting))
    code, seconds, waiting = (np.concatenate(c) for c in zip(*columns, strict=True))
    cells = len(calls) * batches
    groups = [
        _collective(*key, seconds[code == i], waiting[code == i], cells, len(calls))
        for key, i in codes.items()
    ]
    groups.sort(key=lambda g: -g.count * g.seconds)
    waits = np.median(waited, axis=1).tolist() if not np.isnan(waiting).all() else None
    return tuple(groups), Waiting(np.median(spent, axis=1).tolist(), waits)


def _collective(
    name: str, size: int, seconds: Floats, waiting: Floats, per_rank_batch: int, ranks: int
) -> CollectiveGroup:
    split = ~np.isnan(waiting)
    moved = float(np.median((seconds - waiting)[split])) if split.any() else None
    bus = None
    if moved and size > 0 and name in ALL_REDUCES:
        bus = size / moved * 2 * (ranks - 1) / ranks
    return CollectiveGroup(
        name=name,
        bytes=None if size == NULL else size,
        count=len(seconds) / per_rank_batch,
        seconds=float(np.median(seconds)),
        transfer_s=moved,
        waiting_s=float(np.median(waiting[split])) if split.any() else None,
        bus_bytes_per_s=bus,
        library="nccl" if name.startswith(NCCL) else "mpi",
    )


def on_one_clock(traces: Sequence[Trace]) -> bool:
    """Whether the times of several reports can be compared: all know their UTC start."""
    return len(traces) == 1 or all(t.utc_start_ns is not None for t in traces)


def calls_by_rank(
    traces: Sequence[Trace], times: RangeTimes, batch_label: str, ranks: Sequence[int]
) -> tuple[list[Calls], tuple[str, ...]]:
    """Return every rank's MPI collectives that returned, in time order, and warnings."""
    by_rank: dict[int, Calls] = {}
    warnings: list[str] = []
    batches = Batches.of(times, batch_label)
    for trace, shift in zip(traces, utc_shifts(traces), strict=True):
        process = trace.thread_process[trace.mpi.thread]
        texts = (*trace.strings, "")  # the last one is that of no name
        for index, rank in ranks_of(trace).items():
            if rank not in ranks:
                continue
            mine = (process == index) & (trace.mpi.source == COLLECTIVE)
            unfinished = mine & (trace.mpi.end_ns == NULL)
            if unfinished.any():
                warnings.append(
                    f"rank {rank}: {int(unfinished.sum())} collectives never returned and are "
                    f"left out: the run was cut short"
                )
            at = np.flatnonzero(mine & (trace.mpi.end_ns != NULL))
            at = at[np.argsort(trace.mpi.start_ns[at], kind="stable")]
            by_rank[rank] = Calls(
                tuple(texts[c] for c in trace.mpi.name[at].tolist()),
                trace.mpi.size_bytes[at],
                trace.mpi.start_ns[at] + shift,
                trace.mpi.end_ns[at] + shift,
                batches.holding(rank, trace.mpi.start_ns[at]),
            )
    empty = np.empty(0, np.int64)
    nothing = Calls((), empty, empty, empty, empty)
    return [by_rank.get(rank, nothing) for rank in ranks], tuple(warnings)


def nccl_collectives(
    parts: Sequence[tuple[Trace, Attribution]],
    ranks: Sequence[int],
    warmup: int,
    message_bytes: float,
) -> tuple[tuple[CollectiveGroup, ...], Waiting | None]:
    """Match NCCL's n-th kernel of every rank; its time is the GPU's, waiting and transfer.

    `message_bytes` per rank and batch is the size of a kernel that is alone in every batch; that
    of several is not recorded.
    """
    calls = nccl_calls(parts, ranks)
    if not any(len(c.name) for c in calls):
        return (), None
    batches = max(int(c.batch.max(initial=-1)) for c in calls) + 1
    alone = all(np.bincount(c.batch, minlength=1).max() == 1 for c in calls if len(c.name))
    if alone and message_bytes > 0:
        calls = [replace(c, size=np.full(len(c.name), round(message_bytes))) for c in calls]
    same = len({c.name for c in calls}) == 1 and len(ranks) > 1
    aligned = on_one_clock([trace for trace, _ in parts])
    return grouped(calls, same and aligned, warmup, max(batches - warmup, 1))


def nccl_calls(parts: Sequence[tuple[Trace, Attribution]], ranks: Sequence[int]) -> list[Calls]:
    """Return every rank's NCCL kernels inside batches, as collectives of the GPU.

    A kernel starts when its rank arrives, and all end together.
    """
    columns: dict[int, list[tuple[int, int, str, int]]] = {rank: [] for rank in ranks}
    shifts = utc_shifts([trace for trace, _ in parts])
    for (trace, found), shift in zip(parts, shifts, strict=True):
        op, at = np.unique(found.op, return_index=True)
        ours = {i: m[1] for i, s in enumerate(trace.strings) if (m := NCCL_KERNEL.match(s))}
        name = np.where(trace.ops.kind[op] == KERNEL, trace.ops.name[op], -1)
        for i in np.flatnonzero(np.isin(name, list(ours))).tolist():
            start, end = (int(t[op[i]]) + shift for t in (trace.ops.start_ns, trace.ops.end_ns))
            row = start, end, NCCL + ours[int(name[i])], int(found.op_batch[at[i]])
            columns[int(found.op_rank[at[i]])].append(row)
    calls = []
    for rows in columns.values():
        rows.sort()
        start_ns, end_ns, batch = (np.array([r[c] for r in rows], np.int64) for c in (0, 1, 3))
        size = np.full(len(rows), NULL)
        calls.append(Calls(tuple(r[2] for r in rows), size, start_ns, end_ns, batch))
    return calls


def is_nccl(kernel: str) -> bool:
    """Whether a kernel of this name is one of NCCL's collectives."""
    return NCCL_KERNEL.match(kernel) is not None


def marked_by_nccl(path: Path) -> bool:
    """Whether a range is the one that NCCL pushes itself inside the trainer's of the same name."""
    return path[-2:] == ("ncclAllReduce", "ncclAllReduce")


@dataclass(frozen=True, slots=True)
class Batches:
    """When the batches of every rank ran on the host, by rank and start."""

    rank: Int32
    start_ns: Int64
    end_ns: Int64
    number: Int32

    @classmethod
    def of(cls, times: RangeTimes, label: str) -> Batches:
        """Find the ranges that are batches."""
        is_batch = np.array([p[-1] == label for p in times.paths] + [False], np.bool_)
        head = np.flatnonzero(is_batch[times.path] & (times.batch >= 0))
        head = head[np.lexsort((times.start_ns[head], times.rank[head]))]
        start = times.start_ns[head]
        end = start + np.maximum(times.host_ns[head], 0)
        return cls(times.rank[head], start, end, times.batch[head])

    def count(self, rank: int) -> int:
        """Return the number of batches of a rank."""
        lo, hi = np.searchsorted(self.rank, [rank, rank + 1])
        return int(self.number[lo:hi].max(initial=-1)) + 1

    def holding(self, rank: int, start_ns: Int64) -> Int64:
        """Return the number of the rank's batch in which each call starts, -1 between batches."""
        lo, hi = np.searchsorted(self.rank, [rank, rank + 1])
        if lo == hi:
            return np.full(len(start_ns), -1, np.int64)
        at = np.searchsorted(self.start_ns[lo:hi], start_ns, side="right") - 1
        inside = (at >= 0) & (start_ns < self.end_ns[lo:hi][at])
        return np.where(inside, self.number[lo:hi][at], -1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Matched:
    """Every rank's collectives, and whether the n-th of each are one and the same.

    Attributes
    ----------
    calls : tuple of Calls
        By rank.
    comparable : bool
        Whether they are matched, and on one clock.
    clock_bound_ns : int
        Clocks of different reports are known to so much, either way.
    warnings : tuple of str
    """

    calls: tuple[Calls, ...]
    comparable: bool
    clock_bound_ns: int
    warnings: tuple[str, ...]


def match_collectives(
    traces: Sequence[Trace], times: RangeTimes, batch_label: str, ranks: Sequence[int]
) -> Matched:
    """Match MPI's n-th collective of every rank, on one clock.

    Reports are aligned by their UTC start, and where that contradicts the collectives by these
    (`perfmodel.timing.collectives`).
    """
    calls, warnings = calls_by_rank(traces, times, batch_label, ranks)
    if not any(len(c.name) for c in calls):
        return Matched(tuple(calls), False, 0, warnings)
    same = len({c.name for c in calls}) == 1 and len(ranks) > 1
    utc = on_one_clock(traces)
    if len(ranks) > 1 and not same:
        warnings += (
            "the ranks' collectives differ in number or order: waiting and transfer "
            "cannot be separated; profile all ranks over the same interval",
        )
    if same and not utc:
        warnings += (
            "the reports have no UTC start time: ranks cannot be aligned, so waiting and "
            "transfer cannot be separated; profile the whole mpirun in one report",
        )
    if not (same and utc) or len(traces) == 1:
        return Matched(tuple(calls), same and utc, 0, warnings)
    aligned, bound, said = _aligned(calls, report_of(traces, ranks))
    return Matched(aligned, True, bound, (*warnings, *said))


def report_of(traces: Sequence[Trace], ranks: Sequence[int]) -> Int64:
    """Index of the report that holds each rank."""
    at = {rank: i for i, trace in enumerate(traces) for rank in ranks_of(trace).values()}
    return np.array([at.get(rank, 0) for rank in ranks], np.int64)


def times_for_all(calls: Sequence[Calls]) -> tuple[Int64, Int64] | None:
    """Starts and ends of the collectives that let nobody go before all have come, by rank.

    None where there are none, or the ranks' collectives differ.
    """
    if len({c.name for c in calls}) != 1:
        return None
    waits = np.array([bool(_FOR_ALL.fullmatch(name)) for name in calls[0].name], np.bool_)
    if not waits.any():
        return None
    start, end = np.stack([c.start_ns for c in calls]), np.stack([c.end_ns for c in calls])
    return start[:, waits], end[:, waits]


def _aligned(
    calls: Sequence[Calls], report: Int64
) -> tuple[tuple[Calls, ...], int, tuple[str, ...]]:
    """Shift the calls onto the first report's clock; return what is known of it, and warnings."""
    times = times_for_all(calls)
    if times is None:
        return tuple(calls), 0, ()
    found = align(collective_limits(*times, report))
    shifts = found.shift_ns[report].tolist()
    said = []
    if len(found.moved):
        most = float(np.abs(found.shift_ns).max()) * 1e-9
        said.append(
            f"the clocks of {len(found.moved)} of {len(found.shift_ns)} reports contradict the "
            f"order of the collectives by up to {si(most, 's')}: they are aligned by these, to "
            f"{si(float(found.bound_ns.max()) * 1e-9, 's')} either way"
        )
    if len(found.drifting):
        said.append(
            f"the clocks of {len(found.drifting)} of {len(found.shift_ns)} reports drift: no one "
            f"shift puts their collectives in order, so that waiting is wrong by up to "
            f"{si(float(found.bound_ns[found.drifting].max()) * 1e-9, 's')}; profile for a shorter "
            f"time"
        )
    moved = tuple(
        c if by == 0 else replace(c, start_ns=c.start_ns + by, end_ns=c.end_ns + by)
        for c, by in zip(calls, shifts, strict=True)
    )
    return moved, int(found.bound_ns.max()), tuple(said)


def mpi_collectives(
    matched: Matched, batches: int, warmup: int
) -> tuple[tuple[CollectiveGroup, ...], Waiting | None]:
    """Split the time in MPI's collectives into waiting and transfer.

    Returns the groups by total time, and the time per rank; `batches` counts the warm-up, too.
    """
    if not any(len(c.name) for c in matched.calls):
        return (), None
    return grouped(matched.calls, matched.comparable, warmup, max(batches - warmup, 1))
