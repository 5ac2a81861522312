"""Collectives of MPI and NCCL: every rank's calls, matched, with their transfer and waiting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Final

import numpy as np
import numpy.typing as npt

from perfmodel.programs.mlp.mlp_ranges import NCCL as NCCL_RANGE
from perfmodel.readers.trace import KERNEL, MPI_SOURCES, NULL, Bool, Int32, Int64, Trace
from perfmodel.timing.range_times import Attribution, Path, Spans, ranks_of

Floats = npt.NDArray[np.float64]

NCCL: Final = "NCCL "
"""What the names of NCCL's collectives begin with here."""

_COLLECTIVE: Final = MPI_SOURCES.index("collectives")
_NCCL_KERNEL: Final = re.compile(r"nccl(?:Dev)?Kernel_?([A-Za-z]+)")
_ALL_REDUCES: Final = ("MPI_Allreduce", f"{NCCL}AllReduce")
_NON_BLOCKING: Final = "MPI_I"


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """MPI's or NCCL's collectives of one name and size inside the batches.

    Medians over all instances and ranks: `seconds` is the whole call, or NCCL's kernel; `waiting_s`
    its part before the last rank arrived, `transfer_s` the part after: None for non-blocking
    calls, which return before either. `bus_bytes_per_s` applies the all-reduce factor 2 (p - 1) /
    p to bytes over transfer time (NCCL tests' bus bandwidth).
    """

    name: str
    bytes: int | None
    count: float
    seconds: float
    transfer_s: float | None
    waiting_s: float | None
    bus_bytes_per_s: float | None


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
    return np.array([not name.startswith(_NON_BLOCKING) for name in calls.name], np.bool_)


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
        keys = compress(zip(c.name, c.size.tolist(), strict=True), late)
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
    if moved and size > 0 and name in _ALL_REDUCES:
        bus = size / moved * 2 * (ranks - 1) / ranks
    return CollectiveGroup(
        name=name,
        bytes=None if size == NULL else size,
        count=len(seconds) / per_rank_batch,
        seconds=float(np.median(seconds)),
        transfer_s=moved,
        waiting_s=float(np.median(waiting[split])) if split.any() else None,
        bus_bytes_per_s=bus,
    )


def calls_by_rank(
    traces: Sequence[Trace], spans: Spans, batch_label: str, ranks: Sequence[int]
) -> tuple[list[Calls], tuple[str, ...]]:
    """Return every rank's MPI collectives that returned, in time order, and warnings."""
    by_rank: dict[int, Calls] = {}
    warnings: list[str] = []
    batches = Batches.of(spans, batch_label)
    base = min((t.utc_start_ns for t in traces if t.utc_start_ns is not None), default=0)
    for trace in traces:
        shift = (trace.utc_start_ns or base) - base if len(traces) > 1 else 0
        process = trace.thread_process[trace.mpi.thread]
        for index, rank in ranks_of(trace).items():
            if rank not in ranks:
                continue
            mine = (process == index) & (trace.mpi.source == _COLLECTIVE)
            unfinished = mine & (trace.mpi.end_ns == NULL)
            if unfinished.any():
                warnings.append(
                    f"rank {rank}: {int(unfinished.sum())} collectives never returned and are "
                    f"left out: the run was cut short"
                )
            at = np.flatnonzero(mine & (trace.mpi.end_ns != NULL))
            at = at[np.argsort(trace.mpi.start_ns[at], kind="stable")]
            by_rank[rank] = Calls(
                tuple(trace.strings[c] if c >= 0 else "" for c in trace.mpi.name[at]),
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
    aligned = len(parts) == 1 or all(t.utc_start_ns is not None for t, _ in parts)
    return grouped(calls, same and aligned, warmup, max(batches - warmup, 1))


def nccl_calls(parts: Sequence[tuple[Trace, Attribution]], ranks: Sequence[int]) -> list[Calls]:
    """Return every rank's NCCL kernels inside batches, as collectives of the GPU.

    A kernel starts when its rank arrives, and all end together.
    """
    base = min((t.utc_start_ns for t, _ in parts if t.utc_start_ns is not None), default=0)
    columns: dict[int, list[tuple[int, int, str, int]]] = {rank: [] for rank in ranks}
    for trace, found in parts:
        op, at = np.unique(found.op, return_index=True)
        shift = (trace.utc_start_ns or base) - base if len(parts) > 1 else 0
        ours = {i: m[1] for i, s in enumerate(trace.strings) if (m := _NCCL_KERNEL.match(s))}
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
    return _NCCL_KERNEL.match(kernel) is not None


def marked_by_nccl(path: Path) -> bool:
    """Whether a range is the one that NCCL pushes itself inside the trainer's of the same name."""
    return path[-2:] == (NCCL_RANGE, NCCL_RANGE)


@dataclass(frozen=True, slots=True)
class Batches:
    """When the batches of every rank ran on the host, by rank and start."""

    rank: Int32
    start_ns: Int64
    end_ns: Int64
    number: Int32

    @classmethod
    def of(cls, spans: Spans, label: str) -> Batches:
        """Find the ranges that are batches."""
        is_batch = np.array([p[-1] == label for p in spans.paths] + [False], np.bool_)
        head = np.flatnonzero(is_batch[spans.path] & (spans.batch >= 0))
        head = head[np.lexsort((spans.start_ns[head], spans.rank[head]))]
        start = spans.start_ns[head]
        end = start + np.maximum(spans.host_ns[head], 0)
        return cls(spans.rank[head], start, end, spans.batch[head])

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
