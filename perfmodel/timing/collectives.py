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
from perfmodel.readers.trace import MPI_COLLECTIVE, NULL, Trace
from perfmodel.timing.clock_sync import align, collective_limits, utc_shifts
from perfmodel.timing.completions import Completions
from perfmodel.timing.kernels import communicating, exchange_named
from perfmodel.timing.range_times import Attribution, Path, RangeTimes, ranks_of

NCCL: Final = "NCCL "
"""What the names of NCCL's collectives begin with here."""

ALL_REDUCES: Final = ("MPI_Allreduce", f"{NCCL}AllReduce")
_NON_BLOCKING: Final = "MPI_I"
_FENCE: Final = "MPI_Win_fence"
_FOR_ALL: Final = re.compile(
    r"MPI_(Allreduce|Barrier|Allgatherv?|Alltoall[vw]?|Reduce_scatter(_block)?)(_c)?"
)
"""Collectives that let nobody go before everybody has come."""


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """MPI's or NCCL's collectives of one name and size inside the batches.

    Medians over all instances and ranks: `seconds` is the whole call, or NCCL's kernel; `waiting_s`
    its part before the last rank arrived, `transfer_s` the part after. Of non-blocking calls, which
    return before either, it is the time in them and in the call that waits for them; both are None
    where none does. `ranks` are those of the communicator, if not all. `bus_bytes_per_s` applies
    the all-reduce factor 2 (p - 1) / p to bytes over transfer time (NCCL tests' bus bandwidth).

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

    Sequences have a median over batches for every rank; `by_batch` is the waiting of every rank
    and batch, shape (ranks, batches).
    """

    seconds: Sequence[float]
    waiting_s: Sequence[float] | None
    by_batch: Floats | None = None


@dataclass(frozen=True, slots=True)
class Calls:
    """One rank's collectives in time order, on a clock all ranks share; `size` may be `NULL`.

    Attributes
    ----------
    name : tuple of str
    size, start_ns, end_ns, batch : int64, shape (n,)
    communicator : int64, shape (n,), optional
        As `MpiCalls.communicator`; None where all are of one.
    wait_ns : int64, shape (2, n), optional
        Start and end of the call that waits until a non-blocking one is done; `NULL` without one.
    stopped : bool
        Whether the rank's last calls may be lost: it began and never came to MPI_Finalize.
    """

    name: tuple[str, ...]
    size: Int64
    start_ns: Int64
    end_ns: Int64
    batch: Int64
    communicator: Int64 | None = None
    wait_ns: Int64 | None = None
    stopped: bool = False

    def moved(self, by_ns: int) -> Calls:
        """Return the same calls so much later."""
        if by_ns == 0:
            return self
        wait = self.wait_ns
        return replace(
            self,
            start_ns=self.start_ns + by_ns,
            end_ns=self.end_ns + by_ns,
            wait_ns=None if wait is None else np.where(wait == NULL, NULL, wait + by_ns),
        )

    def held_ns(self) -> tuple[Int64, Int64, Bool]:
        """When each call, or what waits for it, may hold the rank: from, to, and whether known."""
        held = blocking(self)
        if self.wait_ns is None or held.all():
            return self.start_ns, self.end_ns, held
        begin, end = self.wait_ns
        known = held | (begin != NULL)
        begin = np.where(held, self.start_ns, np.where(known, begin, self.end_ns))
        return begin, np.where(held, self.end_ns, np.where(known, end, self.end_ns)), known

    def spent_ns(self) -> Int64:
        """Time in each call, and in the one that waits for it."""
        begin, end, known = self.held_ns()
        again = known & ~blocking(self)
        return self.end_ns - self.start_ns + np.where(again, end - begin, 0)


def blocking(calls: Calls) -> Bool:
    """Whether each collective returns when it is done."""
    waits = {name: not name.startswith(_NON_BLOCKING) for name in {*calls.name}}
    return np.array([waits[name] for name in calls.name], np.bool_)


@dataclass(frozen=True, slots=True)
class Instances:
    """Collectives of one communicator: which call of which rank is one and the same.

    Attributes
    ----------
    members : int64, shape (m,)
        Indices of ranks.
    rows : int64, shape (m, n)
        Rows of these ranks' `Calls`, by instance.
    """

    members: Int64
    rows: Int64


def match_rows(calls: Sequence[Calls]) -> tuple[Instances, ...] | None:
    """Match the n-th collective of every rank of a communicator.

    None where ranks differ in number or order, but for the last calls of those that were stopped.
    Communicators with one of the ranks are left out.
    """
    codes: dict[str, int] = {}
    named = [np.array([codes.setdefault(n, len(codes)) for n in c.name], np.int64) for c in calls]
    groups = [
        np.zeros(len(c.name), np.int64) if c.communicator is None else c.communicator for c in calls
    ]
    if all((g == 0).all() for g in groups):
        shared = [0]
    else:
        shared = np.unique(np.concatenate(groups)).tolist()
    found = []
    for group in shared:
        rows = [np.flatnonzero(g == group) for g in groups]
        used = np.array([len(r) > 0 for r in rows], np.bool_)
        members = np.flatnonzero(used | (group == 0)).tolist()
        if len(members) < 2 or not used.any():
            continue
        count = min(len(rows[i]) for i in members)
        longer = max(len(rows[i]) for i in members)
        lost = all(calls[i].stopped for i in members if len(rows[i]) < longer)
        table = np.stack([rows[i][:count] for i in members])
        names = np.stack([named[i][r] for i, r in zip(members, table, strict=True)])
        if (longer > count and not (lost and count)) or (names != names[0]).any():
            return None
        found.append(Instances(np.array(members), table))
    return tuple(found)


def arrivals(calls: Sequence[Calls], instances: Sequence[Instances]) -> list[Int64]:
    """When the last rank came to every rank's collectives; `NULL` for those without a match."""
    found = [np.full(len(c.name), NULL) for c in calls]
    for one in instances:
        pairs = list(zip(one.members.tolist(), one.rows, strict=True))
        last = np.max([calls[i].start_ns[rows] for i, rows in pairs], axis=0)
        for i, rows in pairs:
            found[i][rows] = last
    return found


def waits(calls: Calls, arrival: Int64) -> Floats:
    """Seconds that each call, or what waits for it, lasted before the last rank came.

    NaN where that is not known.
    """
    begin, end, known = calls.held_ns()
    waiting = np.clip(arrival - begin, 0, end - begin) * 1e-9
    return np.where(known & (arrival != NULL), waiting, np.nan)


def grouped(
    calls: Sequence[Calls], instances: Sequence[Instances] | None, warmup: int, batches: int
) -> tuple[tuple[CollectiveGroup, ...], Waiting]:
    """Group every rank's calls by name, size and ranks; matched ones are split at the last arrival.

    `instances` are None where the calls cannot be matched, or their times not compared.
    """
    arrival = arrivals(calls, instances or ())
    members = [np.full(len(c.name), len(calls)) for c in calls]
    for one in instances or ():
        for i, rows in zip(one.members.tolist(), one.rows, strict=True):
            members[i][rows] = len(one.members)
    spent, waited = (np.zeros((len(calls), batches)) for _ in range(2))
    codes: dict[tuple[str, int, int], int] = {}
    columns: list[tuple[Int64, Floats, Floats]] = []
    for rank, c in enumerate(calls):
        late = c.batch >= warmup
        keys = zip(c.name, c.size.tolist(), members[rank].tolist(), strict=True)
        mine = compress(keys, late.tolist())
        code = np.array([codes.setdefault(k, len(codes)) for k in mine], np.int64)
        seconds = c.spent_ns()[late].astype(np.float64) * 1e-9
        waiting = waits(c, arrival[rank])[late]
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
    usual = np.median(waited, axis=1).tolist() if not np.isnan(waiting).all() else None
    return tuple(groups), Waiting(np.median(spent, axis=1).tolist(), usual, waited)


def _collective(
    name: str,
    size: int,
    members: int,
    seconds: Floats,
    waiting: Floats,
    per_rank_batch: int,
    ranks: int,
) -> CollectiveGroup:
    split = ~np.isnan(waiting)
    moved = float(np.median((seconds - waiting)[split])) if split.any() else None
    bus = None
    if moved and size > 0 and name in ALL_REDUCES:
        bus = size / moved * 2 * (members - 1) / members
    return CollectiveGroup(
        name=name,
        bytes=None if size == NULL else size,
        count=len(seconds) / per_rank_batch,
        seconds=float(np.median(seconds)),
        transfer_s=moved,
        waiting_s=float(np.median(waiting[split])) if split.any() else None,
        bus_bytes_per_s=bus,
        library="mpi" if name.startswith("MPI_") else name.partition(" ")[0].lower(),
        ranks=members if members < ranks else None,
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
        ours, done, stopped = collective_calls(trace), Completions(trace, process), lost(trace)
        for index, rank in ranks_of(trace).items():
            if rank not in ranks:
                continue
            mine = (process == index) & ours
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
                trace.mpi.communicator[at],
                _waited_ns(trace, at, texts, index, done, shift),
                index in stopped,
            )
    empty = np.empty(0, np.int64)
    nothing = Calls((), empty, empty, empty, empty)
    return [by_rank.get(rank, nothing) for rank in ranks], tuple(warnings)


def collective_calls(trace: Trace) -> Bool:
    """Which MPI calls all ranks of a communicator make together: MPI_Win_fence, too."""
    fences = np.array([s == _FENCE for s in trace.strings] + [False], np.bool_)
    found: Bool = (trace.mpi.source == MPI_COLLECTIVE) | fences[trace.mpi.name]
    return found


def lost(trace: Trace) -> set[int]:
    """Processes whose last MPI calls may be lost: recorded from MPI_Init on, without its end."""
    begun, ended = (
        np.array([s.startswith(name) for s in trace.strings] + [False], np.bool_)[trace.mpi.name]
        for name in ("MPI_Init", "MPI_Finalize")
    )
    process = trace.thread_process[trace.mpi.thread]
    return set(process[begun].tolist()) - set(process[ended].tolist())


def _waited_ns(
    trace: Trace, at: Int64, texts: Sequence[str], process: int, done: Completions, shift: int
) -> Int64 | None:
    """Start and end of what waits for the non-blocking ones of some calls; None if there are none.

    A call of MPI_Test that finds one done does not wait, and how long it takes says nothing.
    """
    calls = trace.mpi
    begun = [texts[n].startswith(_NON_BLOCKING) for n in calls.name[at].tolist()]
    if not any(begun):
        return None
    found = np.full((2, len(at)), NULL)
    for i in np.flatnonzero(begun).tolist():
        row = int(at[i])
        if calls.request[row] != NULL:
            wait = done.waiting(process, int(calls.request[row]), int(calls.end_ns[row]))
            if wait is not None:
                found[:, i] = wait[0] + shift, wait[1] + shift
    return found


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
    aligned = len(ranks) > 1 and on_one_clock([trace for trace, _ in parts])
    same = match_rows(calls) if aligned else None
    return grouped(calls, same, warmup, max(batches - warmup, 1))


def nccl_calls(parts: Sequence[tuple[Trace, Attribution]], ranks: Sequence[int]) -> list[Calls]:
    """Return every rank's NCCL kernels inside batches, as collectives of the GPU.

    A kernel starts when its rank arrives, and all end together.
    """
    columns: dict[int, list[tuple[int, int, str, int]]] = {rank: [] for rank in ranks}
    shifts = utc_shifts([trace for trace, _ in parts])
    for (trace, found), shift in zip(parts, shifts, strict=True):
        op, at = np.unique(found.op, return_index=True)
        for i in np.flatnonzero(communicating(trace)[op]).tolist():
            start, end = (int(t[op[i]]) + shift for t in (trace.ops.start_ns, trace.ops.end_ns))
            name = exchange_named(trace, int(trace.ops.name[op[i]]))
            row = start, end, name, int(found.op_batch[at[i]])
            columns[int(found.op_rank[at[i]])].append(row)
    calls = []
    for rows in columns.values():
        rows.sort()
        start_ns, end_ns, batch = (np.array([r[c] for r in rows], np.int64) for c in (0, 1, 3))
        size = np.full(len(rows), NULL)
        calls.append(Calls(tuple(r[2] for r in rows), size, start_ns, end_ns, batch))
    return calls


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
        head = np.flatnonzero(times.labelled(label) & (times.batch >= 0))
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

    def instances(self) -> tuple[Instances, ...] | None:
        """Which calls are the same collectives; None where they cannot be compared."""
        return match_rows(self.calls) if self.comparable else None


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
    same = len(ranks) > 1 and match_rows(calls) is not None
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
    starts, ends = [], []
    for one in match_rows(calls) or ():
        if len(one.members) < len(calls):
            continue
        together = [bool(_FOR_ALL.fullmatch(calls[0].name[row])) for row in one.rows[0].tolist()]
        rows = one.rows[:, np.array(together, np.bool_)]
        starts.append(np.stack([c.start_ns[r] for c, r in zip(calls, rows, strict=True)]))
        ends.append(np.stack([c.end_ns[r] for c, r in zip(calls, rows, strict=True)]))
    if not sum(s.shape[1] for s in starts):
        return None
    return np.concatenate(starts, axis=1), np.concatenate(ends, axis=1)


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
    moved = tuple(c.moved(by) for c, by in zip(calls, shifts, strict=True))
    return moved, int(found.bound_ns.max()), tuple(said)


def mpi_collectives(
    matched: Matched, batches: int, warmup: int
) -> tuple[tuple[CollectiveGroup, ...], Waiting | None]:
    """Split the time in MPI's collectives into waiting and transfer.

    Returns the groups by total time, and the time per rank; `batches` counts the warm-up, too.
    """
    if not any(len(c.name) for c in matched.calls):
        return (), None
    return grouped(matched.calls, matched.instances(), warmup, max(batches - warmup, 1))
