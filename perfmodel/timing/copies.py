"""Data moved in a batch: copies by direction and memory kind, synchronizations, devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import distinct_positions, distinct_rows
from perfmodel.readers.trace import COPY_KINDS, MEMCPY, MEMORY_KINDS, Trace
from perfmodel.timing.batches import Batches
from perfmodel.timing.host_timeline import plain_call
from perfmodel.timing.range_times import Attribution, RangeTimes, ranks_of

OF_PCIE: Final = 0.8
"""Share of PCIe's datasheet rate that large pinned copies reach (52.7 of 64 GB/s on an H200)."""
LARGE: Final = 1e5
"""Copies of fewer bytes say nothing of a link's rate: starting them takes most of their time."""


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


def group_copies(
    parts: Sequence[tuple[Trace, Attribution]], window: slice, rank_batches: int
) -> tuple[CopyGroup, ...]:
    """Group the copies inside the batches that count.

    Parameters
    ----------
    parts : sequence of (Trace, Attribution)
        One per report of the run.
    window : slice
        Numbers of these batches.
    rank_batches : int
        Number of (rank, batch) pairs among them, to divide by.
    """
    columns = []
    for trace, found in parts:
        counted = (found.op_batch >= window.start) & (found.op_batch < window.stop)
        op = distinct_positions(found.op[counted], len(trace.ops))
        op = op[trace.ops.kind[op] == MEMCPY]
        o = trace.ops
        size, ns = np.maximum(o.bytes[op], 0), o.end_ns[op] - o.start_ns[op]
        columns.append(np.column_stack([o.copy_kind[op], o.host_memory(op), size, ns]))
    rows = np.concatenate(columns) if columns else np.empty((0, 4), np.int64)
    groups = []
    kinds, number = distinct_rows(rows[:, 0], rows[:, 1])
    for i, (kind, host) in enumerate(kinds):
        mine = rows[number == i]
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


def pinned_rate(
    groups: Sequence[CopyGroup], link_bytes_per_s: float | None
) -> tuple[float, bool] | None:
    """Rate of pinned copies: the fastest recorded one, else what large ones reach of the link.

    Returns
    -------
    (float, bool) or None
        Bytes per second, and whether it was recorded; None where neither is known.
    """
    recorded = [
        group.bytes_per_s
        for group in groups
        if group.memory == "pinned" and group.largest_bytes > LARGE and group.bytes_per_s > 0
    ]
    if recorded:
        return max(recorded), True
    return (OF_PCIE * link_bytes_per_s, False) if link_bytes_per_s else None


def unsized_copies(trace: Trace, found: Attribution) -> int:
    """Count the copies inside ranges whose bytes the report does not tell, or tells below 0."""
    op = distinct_positions(found.op, len(trace.ops))
    return int(((trace.ops.kind[op] == MEMCPY) & (trace.ops.bytes[op] < 0)).sum())


def synchronizations(
    traces: Sequence[Trace], times: RangeTimes, batch_label: str, warmup: int
) -> tuple[float, float, str]:
    """Count the synchronizing CUDA calls per rank and batch.

    Returns
    -------
    float, float
        Calls, and the seconds inside them.
    str
        Name of those with most of this time; '' without any.
    """
    count, batches = 0, 0
    spent: dict[str, float] = {}
    ran = Batches.of(times, batch_label)
    for trace in traces:
        waits = np.array(["Synchronize" in n for n in trace.strings] + [False], np.bool_)
        at = np.flatnonzero(waits[trace.api.name])
        process = trace.thread_process[trace.api.thread[at]]
        for index, rank in ranks_of(trace).items():
            mine = at[process == index]
            batch = ran.holding(rank, trace.api.start_ns[mine])
            mine = mine[batch >= warmup]
            count += len(mine)
            length = trace.api.end_ns[mine] - trace.api.start_ns[mine]
            for code in np.unique(trace.api.name[mine]).tolist():
                name = plain_call(trace.strings[code])
                seconds = float(length[trace.api.name[mine] == code].sum()) * 1e-9
                spent[name] = spent.get(name, 0.0) + seconds
            batches += max(ran.count(rank) - warmup, 0)
    if not batches:
        return 0.0, 0.0, ""
    most = max(spent, key=lambda name: spent[name], default="")
    return count / batches, sum(spent.values()) / batches, most


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
            found[rank] = gpu_id(trace, process, int(ordinals[operations.argmax()]))
    return found


def gpu_id(trace: Trace, process: int, ordinal: int) -> int:
    """GPU that a process calls by this number; the number itself where nothing maps it."""
    pid = (int(trace.processes[process]) >> 24) & 0xFFFFFF
    return trace.cuda_devices.get((pid, ordinal), ordinal)
