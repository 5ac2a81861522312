"""Launches: which call of which thread launched every GPU operation, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int32, Int64
from perfmodel.readers.trace import GpuOps, Trace
from perfmodel.timing.projection import Joined, join_launches

BLOCKING: Final = (
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize",
    "cudaThreadSynchronize", "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize",
    "hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize",
)  # fmt: skip
"""CUDA calls that wait until the GPU has done what was launched."""


@dataclass(frozen=True, slots=True)
class Launched:
    """GPU operations with the host time and thread of the API call that launched each.

    Attributes
    ----------
    op : int64, shape (k,)
        Rows of `GpuOps`, each once, ascending.
    process : int32, shape (k,)
        Index into `Trace.processes`.
    thread : int32, shape (k,)
        Index into `Trace.threads` of the launching thread.
    at_ns : int64, shape (k,)
        Start of the launching call.
    call : int64, shape (k,)
        Row of `ApiCalls` of the launching call.
    """

    op: Int64
    process: Int32
    thread: Int32
    at_ns: Int64
    call: Int64

    def row_of(self, op: Int64) -> Int64:
        """Return where each row of `GpuOps` is in `op`, -1 for those without a known launch."""
        place = np.full(max(self.op.max(initial=-1), op.max(initial=-1)) + 1, -1)
        place[self.op] = np.arange(len(self.op))
        return place[op]


Parts = Callable[[], Iterable[tuple[Trace, Launched]]]
"""Makes the parts of a report, in the order of their processes, each with what it launched."""


def launched(trace: Trace, joined: Joined | None = None) -> Launched:
    """Join every GPU operation to the call that launched it; those without one are left out.

    The nodes of a CUDA graph are launched by the call that launched the graph. `joined` is what
    `join_launches` returns, where it is known.
    """
    op, call, repeated = joined or join_launches(trace, trace.ops, trace.api)
    if repeated:
        op, first = np.unique(op, return_index=True)
        call = call[first]
    thread = trace.api.thread[call]
    return Launched(op, trace.thread_process[thread], thread, trace.api.start_ns[call], call)


def operation_codes(ops: GpuOps, rows: Int64) -> Int64:
    """Return a code for every operation that is equal for equal operations of different steps."""
    kind, name = ops.kind[rows].astype(np.int64), ops.name[rows].astype(np.int64)
    return (
        (kind * 16 + np.maximum(ops.copy_kind[rows], 0)) * (int(name.max(initial=0)) + 2) + name + 1
    )
