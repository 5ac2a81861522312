"""Collectives of MPI and NCCL: every rank's calls, matched, with their transfer and waiting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.spans import Attribution, Path, Spans, ranks_of
from perfmodel.trace import KERNEL, MPI_SOURCES, NULL, Int64, Trace
from perfmodel.workloads.mlp_ranges import NCCL as NCCL_RANGE

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


def collectives(
    traces: Sequence[Trace], spans: Spans, batch_label: str, ranks: Sequence[int], warmup: int
) -> tuple[tuple[CollectiveGroup, ...], Waiting | None, tuple[str, ...]]:
    """Match MPI's n-th collective of every rank and split its time into waiting and transfer.

    Reports of one host are aligned by their UTC start. Returns the groups by total time, the
    time per rank, and warnings.
    """
    calls, warnings = calls_by_rank(traces, spans, batch_label, ranks)
    if not any(len(c.name) for c in calls):
        return (), None, warnings
    matched = len({c.name for c in calls}) == 1 and len(ranks) > 1
    aligned = len(traces) == 1 or all(t.utc_start_ns is not None for t in traces)
    if len(ranks) > 1 and not matched:
        warnings = (
            *warnings,
            "the ranks' collectives differ in number or order: waiting cannot be told from "
            "transfer; profile all ranks over the same interval",
        )
    if matched and not aligned:
        warnings = (
            *warnings,
            "the reports have no UTC start time: ranks cannot be aligned, so waiting cannot be "
            "told from transfer; profile the whole mpirun in one report",
        )
    batches = max(int(spans.batch.max(initial=-1)) + 1 - warmup, 1)
    return *_group(calls, matched and aligned, warmup, batches), warnings


def _group(
    calls: Sequence[Calls], matched: bool, warmup: int, batches: int
) -> tuple[tuple[CollectiveGroup, ...], Waiting]:
    length = min(len(c.name) for c in calls) if matched else 0
    arrival = np.max([c.start_ns for c in calls], axis=0) if matched else np.empty(0, np.int64)
    spent, waited = (np.zeros((len(calls), batches)) for _ in range(2))
    table: dict[tuple[str, int], list[list[float]]] = {}
    split = False
    for rank, c in enumerate(calls):
        for i in np.flatnonzero(c.batch >= warmup):
            seconds = float(c.end_ns[i] - c.start_ns[i]) * 1e-9
            entry = table.setdefault((c.name[i], int(c.size[i])), [[], [], []])
            entry[0].append(seconds)
            spent[rank, c.batch[i] - warmup] += seconds
            if i < length and not c.name[i].startswith(_NON_BLOCKING):
                split = True
                waiting = float(np.clip((arrival[i] - c.start_ns[i]) * 1e-9, 0.0, seconds))
                entry[1].append(seconds - waiting)
                entry[2].append(waiting)
                waited[rank, c.batch[i] - warmup] += waiting
    groups = [
        _collective(name, size, seconds, transfer, waiting, len(calls) * batches, len(calls))
        for (name, size), (seconds, transfer, waiting) in table.items()
    ]
    groups.sort(key=lambda g: -g.count * g.seconds)
    waits = np.median(waited, axis=1).tolist() if split else None
    return tuple(groups), Waiting(np.median(spent, axis=1).tolist(), waits)


def _collective(
    name: str,
    size: int,
    seconds: list[float],
    transfer: list[float],
    waiting: list[float],
    per_rank_batch: int,
    ranks: int,
) -> CollectiveGroup:
    moved = float(np.median(transfer)) if transfer else None
    bus = None
    if moved and size > 0 and name in _ALL_REDUCES:
        bus = size / moved * 2 * (ranks - 1) / ranks
    return CollectiveGroup(
        name=name,
        bytes=None if size == NULL else size,
        count=len(seconds) / per_rank_batch,
        seconds=float(np.median(seconds)),
        transfer_s=moved,
        waiting_s=float(np.median(waiting)) if waiting else None,
        bus_bytes_per_s=bus,
    )


def calls_by_rank(
    traces: Sequence[Trace], spans: Spans, batch_label: str, ranks: Sequence[int]
) -> tuple[list[Calls], tuple[str, ...]]:
    """Return every rank's MPI collectives that returned, in time order, and warnings."""
    by_rank: dict[int, Calls] = {}
    warnings: list[str] = []
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
                batch_of(spans, batch_label, rank, trace.mpi.start_ns[at]),
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
    return _group(calls, same and aligned, warmup, max(batches - warmup, 1))


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


def batch_of(spans: Spans, label: str, rank: int, start_ns: Int64) -> Int64:
    """Return the number of the rank's batch in which each call starts, -1 between batches."""
    is_batch = np.array([p[-1] == label for p in spans.paths] + [False], np.bool_)
    mine = is_batch[spans.path] & (spans.rank == rank) & (spans.batch >= 0)
    head = np.flatnonzero(mine)
    head = head[np.argsort(spans.start_ns[head], kind="stable")]
    if len(head) == 0:
        return np.full(len(start_ns), -1, np.int64)
    at = np.searchsorted(spans.start_ns[head], start_ns, side="right") - 1
    end = spans.start_ns[head] + np.maximum(spans.host_ns[head], 0)
    inside = (at >= 0) & (start_ns < end[at])
    return np.where(inside, spans.batch[head][at], -1).astype(np.int64)
