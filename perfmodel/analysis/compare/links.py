"""Links: seconds of copies, collectives and kernels per rank and batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.readers.trace import COPY_KINDS, GRAPH, KERNEL, MEMCPY, MEMORY_KINDS, Int64, Trace
from perfmodel.timing.collectives import Calls, calls_by_rank, is_nccl, nccl_calls
from perfmodel.timing.run import Run
from perfmodel.timing.samples import PathTimes

Group = Literal["range", "link", "kernel"]
GROUPS: Final[tuple[Group, ...]] = ("range", "link", "kernel")
Key = tuple[Group, tuple[str, ...]]
"""What is compared: a range by its labels from the batch inwards, a link or kernel by the kind it
adds to and its name."""

GPU_BUSY: Final = "GPU busy"
GPU_IDLE: Final = "GPU idle"
TRANSFER: Final = "collectives, transfer"
WAITING: Final = "collectives, waiting"
UNSPLIT: Final = "collectives, not split"
COLLECTIVES: Final = (TRANSFER, WAITING, UNSPLIT)
KERNELS: Final = "kernels"
GRAPHS: Final = "whole CUDA graphs"
_TO_HOST: Final = (2, 4, 12)  # copies whose host memory is the destination


@dataclass(frozen=True, slots=True)
class _Ops:
    """GPU operations of one report inside batches, each once; `code` indexes `keys`."""

    trace: Trace
    op: Int64
    rank: Int64
    batch: Int64
    code: Int64
    keys: tuple[Key | None, ...]


def links(run: Run, head: PathTimes) -> Iterator[tuple[Key, Floats]]:
    """Tabulate what was copied, reduced and computed inside the batches.

    Parameters
    ----------
    run : Run
    head : PathTimes
        The batch itself.

    Yields
    ------
    (Key, array of shape (ranks, batches))
        Seconds; NaN where a rank did none of it in a batch.
    """
    shape = head.instances.shape
    busy = head.seconds["gpu_busy"]
    if np.isfinite(busy).any():
        yield ("link", (GPU_BUSY,)), busy
        yield ("link", (GPU_IDLE,)), np.maximum(head.seconds["host"] - busy, 0.0)
    parts = [_operations(run, i) for i in range(len(run.parts))]
    tables: dict[Key, Floats] = {}
    for part in parts:
        seconds = (part.trace.ops.end_ns[part.op] - part.trace.ops.start_ns[part.op]) * 1e-9
        for code, key in enumerate(part.keys):
            if key is None:
                continue
            mine = part.code == code
            cell = part.rank[mine] * shape[1] + part.batch[mine]
            total = np.bincount(cell, seconds[mine], shape[0] * shape[1]).reshape(shape)
            tables[key] = np.add(tables.get(key, np.zeros(shape)), total)
    for key in sorted(tables, key=lambda k: (k[0], k[1][0], -tables[k].sum())):
        yield key, np.where(tables[key] > 0, tables[key], np.nan)
    calls, _ = calls_by_rank(run.traces, run.range_times, run.batch_label, run.ranks)
    aligned = len(run.traces) == 1 or all(t.utc_start_ns is not None for t in run.traces)
    yield from _collectives(calls, aligned, shape)
    yield from _collectives(nccl_calls(run.parts, run.ranks), aligned, shape)


def _operations(run: Run, index: int) -> _Ops:
    trace, found = run.parts[index]
    op, at = np.unique(found.op, return_index=True)
    rank = np.searchsorted(run.ranks, found.op_rank[at])
    o = trace.ops
    memory = np.where(np.isin(o.copy_kind[op], _TO_HOST), o.dst_kind[op], o.src_kind[op])
    kind, copied = o.kind[op], o.kind[op] == MEMCPY
    columns = np.stack(
        [kind, np.where(copied, o.copy_kind[op], -1), np.where(copied, memory, -1),
         np.where(kind == KERNEL, o.name[op], -1)], axis=1,
    )  # fmt: skip
    distinct, code = np.unique(columns, axis=0, return_inverse=True)
    keys = tuple(_key(trace, *row) for row in distinct.tolist())
    batch = found.op_batch[at].astype(np.int64)
    return _Ops(trace, op, rank, batch, code.reshape(-1), keys)


def _key(trace: Trace, kind: int, direction: int, memory: int, name: int) -> Key | None:
    """What an operation is compared as; None for sets of memory and for NCCL's kernels."""
    if kind == MEMCPY:
        copies = f"{COPY_KINDS.get(direction, 'Unknown')} copies"
        return "link", (copies, MEMORY_KINDS.get(memory, "unknown"))
    if kind == GRAPH:
        return "kernel", (GRAPHS,)
    if kind != KERNEL or (name >= 0 and is_nccl(trace.strings[name])):
        return None
    return "kernel", (KERNELS, trace.strings[name] if name >= 0 else "unnamed")


def _collectives(
    calls: Sequence[Calls], aligned: bool, shape: tuple[int, ...]
) -> Iterator[tuple[Key, Floats]]:
    """Seconds in collectives by name, split where the last rank arrives if the ranks match."""
    matched = len({c.name for c in calls}) == 1 and (aligned or len(calls) == 1)
    arrival = np.max([c.start_ns for c in calls], axis=0) if matched else None
    tables: dict[Key, Floats] = {}
    for rank, c in enumerate(calls):
        spent = c.end_ns - c.start_ns
        parts = {UNSPLIT: spent}
        if arrival is not None:
            waiting = np.clip(arrival - c.start_ns, 0, spent)
            parts = {TRANSFER: spent - waiting}
            parts |= {WAITING: waiting} if len(calls) > 1 else {}
        for name in dict.fromkeys(c.name):
            at = np.flatnonzero((c.batch >= 0) & (np.array(c.name) == name))
            present = np.bincount(c.batch[at], minlength=shape[1]) > 0
            for part, ns in parts.items():
                table = tables.setdefault(("link", (part, name)), np.full(shape, np.nan))
                total = np.bincount(c.batch[at], ns[at] * 1e-9, shape[1])
                table[rank, present] = total[present]
    yield from tables.items()
