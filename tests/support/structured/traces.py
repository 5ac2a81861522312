"""Makes the trace of a generated program in memory, equal to what is read from its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.gpu import Gpu
from perfmodel.readers.order import Numbered, in_order, numbered
from perfmodel.readers.trace import (
    MPI_WAIT,
    NO_NAME,
    NULL,
    ONE_BLOCK,
    PUSH_POP,
    ApiCalls,
    GpuOps,
    MpiCalls,
    NcclRanges,
    Ranges,
    Trace,
)

from .program import Operations, Program, Range
from .tree import KERNEL, MAIN_STREAM, MEMCPY, MEMSET, MPI, TO_GPU, TO_HOST

BEGIN_NS: Final = 5_000_000
"""Nothing is recorded before."""
PAGEABLE, PINNED, DEVICE = 0, 1, 2
WAIT: Final = "cudaStreamSynchronize_v3020"
_LAUNCHES: Final = {
    KERNEL: "cudaLaunchKernel_v7000",
    MEMCPY: "cudaMemcpyAsync_v3020",
    MEMSET: "cudaMemsetAsync_v3020",
}
_LIBRARY_LAUNCH: Final = "cudaLaunchKernelExC_v11060"
ALL_REDUCE: Final = "MPI_Allreduce"
DRIVER_LAUNCH: Final = "cuLaunchKernel"
_VM: Final = 1 << 48


def _gpu(process: int) -> Gpu:
    return Gpu(
        process, "NVIDIA H200", 132, 1_980_000_000, 4_814_304_000_000, 62_914_560, 150_109_880_320,
        (9, 0), f"00000000-0000-0000-0000-{process:012}",
    )  # fmt: skip


def pid_of(process: int) -> int:
    """Return the number of a process in the operating system."""
    return 100 + 10 * process


def launch_calls(operations: Operations) -> list[str]:
    """Return the name of the call that launches each operation, by code and kind of operation."""
    kinds, codes = operations.kind.tolist(), operations.code.tolist()
    by_code = [
        DRIVER_LAUNCH
        if name.startswith("triton")
        else _LIBRARY_LAUNCH
        if name.startswith("nvjet")
        else _LAUNCHES[KERNEL]
        for name in operations.names
    ]
    return [
        by_code[code] if kind == KERNEL else _LAUNCHES.get(kind, "")
        for kind, code in zip(kinds, codes, strict=True)
    ]


def correlations(operations: Operations) -> Any:
    """Return the number of each launch: calls of a process are counted from 1."""
    waited = operations.wait_ns[:, 0] >= 0
    first = np.searchsorted(operations.process, np.arange(operations.processes))
    calls = np.cumsum(1 + waited) - waited  # a launch, then the call that waits for it
    return calls - (calls[first] - 1)[operations.process]


def memory(operations: Operations) -> tuple[Any, Any]:
    """Return kinds of the memory that copies read and write; prefetched data is pinned."""
    host = np.where(operations.stream == MAIN_STREAM, PAGEABLE, PINNED)
    source = np.where(operations.copy_kind == TO_GPU, host, DEVICE)
    return source, np.where(operations.copy_kind == TO_HOST, host, DEVICE)


def to_trace(program: Program) -> Trace:
    """Return the trace of a program."""
    operations = program.operations
    pid = np.array([_VM | pid_of(p) << 24 for p in range(operations.processes)])
    tid = (pid | [pid_of(p) for p in range(len(pid))])[operations.process] + operations.thread
    strings: dict[str, int] = {}
    codes = np.array([strings.setdefault(name, len(strings)) for name in operations.names])
    gpu = operations.uses_gpu
    devices = {p: i for i, p in enumerate(pid.tolist())}
    begun = zip(tid.tolist(), operations.launch_ns.tolist(), strict=True)
    opened = ((_thread_of(one), one.start_ns) for one in program.ranges)
    known = numbered([*begun, *opened], devices, {} if gpu else devices)
    range_ends = [one.end_ns + BEGIN_NS for one in program.ranges]
    no_rows = np.empty(0, np.int64)
    range_names = tuple(dict.fromkeys(one.name for one in program.ranges))
    ops, api = _gpu_tables(operations, codes, known.thread(tid), strings)
    return Trace(
        source=Path(f"{program.kind}_{program.seed}.sqlite"),
        product_version="2024.2.3.38",
        schema_version="3.11.1",
        tables=frozenset(
            {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"}
            if gpu
            else {"MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_RANKS", "NVTX_EVENTS"}
        ),
        strings=tuple(strings),
        range_names=range_names,
        range_labels=range_names,
        range_domains=("",) * len(range_names),
        threads=known.threads,
        processes=known.processes,
        thread_process=known.thread_process,
        ranges=in_order(_ranges(program, range_names, known), range_names),
        ops=in_order(ops, [*strings]),
        api=in_order(api, [*strings]),
        mpi=in_order(_mpi_table(operations, codes, known.thread(tid)), [*strings]),
        nccl=NcclRanges(no_rows, no_rows.astype(np.int32), no_rows, no_rows),
        marks=(),
        gpus=tuple(_gpu(p) for p in range(len(pid))) if gpu else (),
        cuda_devices={},
        diagnostics=(),
        ranks={} if gpu else {p: p for p in range(len(pid))},
        world_size=None if gpu else len(pid),
        nvtx_last_ns=max(range_ends, default=None if gpu else 0),
        utc_start_ns=1_700_000_000_000_000_000,
        mpi_from_nvtx=False,
        single=_single(operations),
        launch_threads=_launch_threads(operations),
    )


def _single(operations: Operations) -> dict[str, int]:
    """Kernels that are launched with one block, of 128 threads, for most of their time."""
    kernel = operations.kind == KERNEL
    code = operations.code[kernel]
    spent = (operations.end_ns - operations.start_ns)[kernel]
    whole = np.bincount(code, spent, len(operations.names))
    alone = np.bincount(code, spent * (operations.grid[kernel] == 1), len(operations.names))
    return {operations.names[i]: ONE_BLOCK for i in np.flatnonzero(2 * alone > whole).tolist()}


def _launch_threads(operations: Operations) -> dict[str, float]:
    """Threads of a launch by the kernel's name, the mean of blocks of 128 threads."""
    kernel = operations.kind == KERNEL
    code = operations.code[kernel]
    count = np.bincount(code, minlength=len(operations.names))
    threads = np.bincount(code, 128.0 * operations.grid[kernel], len(operations.names))
    return {
        operations.names[i]: float(threads[i] / count[i]) for i in np.flatnonzero(count).tolist()
    }


def _thread_of(one: Range) -> int:
    return _VM | pid_of(one.process) << 24 | pid_of(one.process)


def _ranges(program: Program, names: tuple[str, ...], known: Numbered) -> Ranges:
    n = len(program.ranges)
    mine = np.array([_thread_of(one) for one in program.ranges], np.int64)
    return Ranges(
        start_ns=np.array([one.start_ns + BEGIN_NS for one in program.ranges], np.int64),
        end_ns=np.array([one.end_ns + BEGIN_NS for one in program.ranges], np.int64),
        thread=known.thread(mine),
        name=np.array([names.index(one.name) for one in program.ranges], np.int32),
        style=np.full(n, PUSH_POP, np.int8),
        other_thread=np.zeros(n, np.bool_),
        number=np.zeros(n, np.int64),
    )


def _gpu_tables(
    operations: Operations, codes: Any, thread: Any, strings: dict[str, int]
) -> tuple[GpuOps, ApiCalls]:
    """Return GPU operations by kind and start, and the calls that launch and wait, by start."""
    rows = np.flatnonzero(operations.kind != MPI)
    order = rows[np.lexsort((operations.start_ns[rows], operations.kind[rows]))]
    kind = operations.kind[order]
    correlation = correlations(operations)
    source, target = memory(operations)
    is_copy = kind == MEMCPY
    sized = is_copy | (kind == MEMSET)

    def of_copy(column: Any) -> Any:
        return np.where(is_copy, column[order], -1).astype(np.int8)

    ops = GpuOps(
        kind=kind,
        start_ns=operations.start_ns[order] + BEGIN_NS,
        end_ns=operations.end_ns[order] + BEGIN_NS,
        device=operations.process[order],
        stream=operations.stream[order],
        process=operations.process[order],
        correlation=correlation[order],
        name=np.where(kind == KERNEL, codes[operations.code[order]], NO_NAME).astype(np.int32),
        bytes=np.where(sized, operations.bytes[order], NULL),
        copy_kind=of_copy(operations.copy_kind),
        src_kind=of_copy(source),
        dst_kind=of_copy(target),
        node=np.full(len(order), -1, np.int32),
    )
    names = launch_calls(operations)
    launch = np.array([strings.setdefault(names[i], len(strings)) for i in rows.tolist()], np.int32)
    waits = rows[operations.wait_ns[rows, 0] >= 0]
    wait = strings.setdefault(WAIT, len(strings)) if len(waits) else 0
    start = np.concatenate([operations.launch_ns[rows], operations.wait_ns[waits, 0]]) + BEGIN_NS
    by_start = np.argsort(start, kind="stable")
    end = np.concatenate([operations.launched_ns[rows], operations.wait_ns[waits, 1]]) + BEGIN_NS
    api = ApiCalls(
        start_ns=start[by_start],
        end_ns=end[by_start],
        thread=np.concatenate([thread[rows], thread[waits]])[by_start].astype(np.int32),
        correlation=np.concatenate([correlation[rows], correlation[waits] + 1])[by_start],
        name=np.concatenate([launch, np.full(len(waits), wait)])[by_start].astype(np.int32),
    )
    return ops, api


def _mpi_table(operations: Operations, codes: Any, thread: Any) -> MpiCalls:
    rows = np.flatnonzero(operations.kind == MPI)
    rows = rows[np.lexsort((operations.start_ns[rows], operations.copy_kind[rows]))]
    null = np.full(len(rows), NULL)
    peer = operations.stream[rows].astype(np.int64)
    waits = operations.copy_kind[rows] == MPI_WAIT
    size = np.where(waits, NULL, operations.bytes[rows])
    return MpiCalls(
        start_ns=operations.start_ns[rows] + BEGIN_NS,
        end_ns=operations.end_ns[rows] + BEGIN_NS,
        thread=thread[rows].astype(np.int32),
        name=codes[operations.code[rows]].astype(np.int32),
        source=operations.copy_kind[rows],
        size_bytes=size,
        least_bytes=size,
        communicator=np.zeros(len(rows), np.int64),
        own=operations.process[rows].astype(np.int64),
        peer=np.where(peer >= 0, peer, NULL),
        tag=null,
        request=null,
    )
