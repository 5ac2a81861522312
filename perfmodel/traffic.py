"""What moved in a batch: copies by direction and memory kind, collectives' transfer and waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.spans import Attribution, Spans, ranks_of
from perfmodel.trace import (
    COPY_KINDS,
    MEMCPY,
    MEMORY_KINDS,
    MPI_SOURCES,
    NULL,
    Int64,
    Trace,
)

_COLLECTIVE: Final = MPI_SOURCES.index("collectives")


@dataclass(frozen=True, slots=True)
class CopyGroup:
    """Copies of one direction and memory kind inside the batches, per rank and batch.

    `bytes_per_s` is all bytes over all time on the GPU's copy engine.
    """

    direction: str
    memory: str
    count: float
    bytes: float
    seconds: float
    bytes_per_s: float
    largest_bytes: int


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """MPI collectives of one name and size inside the batches.

    Medians over all instances and ranks: `seconds` is the whole call; `waiting_s` its part before
    the last rank arrived, `transfer_s` the part after. `bus_bytes_per_s` applies the all-reduce
    factor 2 (p - 1) / p to bytes over transfer time (NCCL tests' bus bandwidth).
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
    """Time in MPI collectives per batch and rank: all of it, and the part spent waiting.

    Sequences have a median over batches for every rank.
    """

    seconds: Sequence[float]
    waiting_s: Sequence[float] | None


def copies(
    parts: Sequence[tuple[Trace, Attribution]], warmup: int, rank_batches: int
) -> tuple[CopyGroup, ...]:
    """Group the copies inside batches after the warm-up.

    Parameters
    ----------
    parts : sequence of (Trace, Attribution)
        One per report of the run.
    warmup : int
        Leading batches to leave out.
    rank_batches : int
        Number of (rank, batch) pairs that are left, to divide by.
    """
    columns = []
    for trace, found in parts:
        op = np.unique(found.op[found.op_batch >= warmup])
        op = op[trace.ops.kind[op] == MEMCPY]
        o = trace.ops
        host = np.where(np.isin(o.copy_kind[op], [2, 4, 12]), o.dst_kind[op], o.src_kind[op])
        columns.append(
            np.column_stack(
                [o.copy_kind[op], host, np.maximum(o.bytes[op], 0), o.end_ns[op] - o.start_ns[op]]
            )
        )
    rows = np.concatenate(columns) if columns else np.empty((0, 4), np.int64)
    groups = []
    for kind, host in np.unique(rows[:, :2], axis=0):
        mine = rows[(rows[:, 0] == kind) & (rows[:, 1] == host)]
        total, seconds = int(mine[:, 2].sum()), float(mine[:, 3].sum()) * 1e-9
        groups.append(
            CopyGroup(
                direction=COPY_KINDS.get(int(kind), "Unknown"),
                memory=MEMORY_KINDS.get(int(host), "unknown"),
                count=len(mine) / max(rank_batches, 1),
                bytes=total / max(rank_batches, 1),
                seconds=seconds / max(rank_batches, 1),
                bytes_per_s=total / seconds if seconds > 0 else float("nan"),
                largest_bytes=int(mine[:, 2].max()),
            )
        )
    return tuple(sorted(groups, key=lambda g: -g.seconds))


@dataclass(frozen=True, slots=True)
class _Calls:
    """One rank's collectives in time order, on the common clock."""

    name: tuple[str, ...]
    size: Int64
    start_ns: Int64
    end_ns: Int64
    batch: Int64


def collectives(
    traces: Sequence[Trace], spans: Spans, batch_label: str, ranks: Sequence[int], warmup: int
) -> tuple[tuple[CollectiveGroup, ...], Waiting | None, tuple[str, ...]]:
    """Match the n-th collective of every rank and split its time into waiting and transfer.

    Reports of one host are aligned by their UTC start. Returns the groups by total time, the
    time per rank, and warnings.
    """
    calls, warnings = _calls_by_rank(traces, spans, batch_label, ranks)
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
    calls: Sequence[_Calls], matched: bool, warmup: int, batches: int
) -> tuple[tuple[CollectiveGroup, ...], Waiting]:
    length = min(len(c.name) for c in calls) if matched else 0
    arrival = np.max([c.start_ns for c in calls], axis=0) if matched else np.empty(0, np.int64)
    spent, waited = (np.zeros((len(calls), batches)) for _ in range(2))
    table: dict[tuple[str, int], list[list[float]]] = {}
    for rank, c in enumerate(calls):
        for i in np.flatnonzero(c.batch >= warmup):
            seconds = float(c.end_ns[i] - c.start_ns[i]) * 1e-9
            entry = table.setdefault((c.name[i], int(c.size[i])), [[], [], []])
            entry[0].append(seconds)
            spent[rank, c.batch[i] - warmup] += seconds
            if i < length:
                waiting = float(np.clip((arrival[i] - c.start_ns[i]) * 1e-9, 0.0, seconds))
                entry[1].append(seconds - waiting)
                entry[2].append(waiting)
                waited[rank, c.batch[i] - warmup] += waiting
    groups = [
        _collective(name, size, seconds, transfer, waiting, len(calls) * batches, len(calls))
        for (name, size), (seconds, transfer, waiting) in table.items()
    ]
    groups.sort(key=lambda g: -g.count * g.seconds)
    waits = np.median(waited, axis=1).tolist() if matched else None
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
    if moved and size > 0 and name == "MPI_Allreduce":
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


def _calls_by_rank(
    traces: Sequence[Trace], spans: Spans, batch_label: str, ranks: Sequence[int]
) -> tuple[list[_Calls], tuple[str, ...]]:
    by_rank: dict[int, _Calls] = {}
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
            by_rank[rank] = _Calls(
                tuple(trace.strings[c] if c >= 0 else "" for c in trace.mpi.name[at]),
                trace.mpi.size_bytes[at],
                trace.mpi.start_ns[at] + shift,
                trace.mpi.end_ns[at] + shift,
                _batch_of(spans, batch_label, rank, trace.mpi.start_ns[at]),
            )
    empty = np.empty(0, np.int64)
    nothing = _Calls((), empty, empty, empty, empty)
    return [by_rank.get(rank, nothing) for rank in ranks], tuple(warnings)


def _batch_of(spans: Spans, label: str, rank: int, start_ns: Int64) -> Int64:
    """Number of the rank's batch in which each call starts, -1 between batches."""
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


def synchronizations(
    traces: Sequence[Trace], spans: Spans, batch_label: str, warmup: int
) -> tuple[float, float]:
    """Count the synchronizing CUDA calls per rank and batch, and the seconds inside them."""
    count, spent, batches = 0, 0.0, 0
    for trace in traces:
        waits = np.array(["Synchronize" in n for n in trace.strings] + [False], np.bool_)
        at = np.flatnonzero(waits[trace.api.name])
        process = trace.thread_process[trace.api.thread[at]]
        for index, rank in ranks_of(trace).items():
            mine = at[process == index]
            batch = _batch_of(spans, batch_label, rank, trace.api.start_ns[mine])
            mine = mine[batch >= warmup]
            count += len(mine)
            spent += float((trace.api.end_ns[mine] - trace.api.start_ns[mine]).sum()) * 1e-9
            own = spans.batch[spans.rank == rank]
            batches += max(int(own.max(initial=-1)) + 1 - warmup, 0)
    return (count / batches, spent / batches) if batches else (0.0, 0.0)


def tells_devices(traces: Sequence[Trace]) -> bool:
    """Whether equal device numbers mean one GPU: in one report that maps them, or has one GPU.

    Exports before 2025 number a process's devices as the process sees them, so that two ranks
    with a GPU each (CUDA_VISIBLE_DEVICES) both run on device 0.
    """
    return len(traces) == 1 and (bool(traces[0].cuda_devices) or len(traces[0].gpus) < 2)


def devices(trace: Trace) -> Mapping[int, int]:
    """GPU id by rank: the device most of the rank's operations ran on."""
    found: dict[int, int] = {}
    for process, rank in ranks_of(trace).items():
        used = trace.ops.device[trace.ops.process == process]
        used = used[used >= 0]
        if len(used):
            ordinals, operations = np.unique(used, return_counts=True)
            ordinal = int(ordinals[operations.argmax()])
            pid = (int(trace.processes[process]) >> 24) & 0xFFFFFF
            found[rank] = trace.cuda_devices.get((pid, ordinal), ordinal)
    return found
