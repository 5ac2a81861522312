"""The frozen, columnar tables that a report becomes: every reader makes one `Trace`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from perfmodel.base.arrays import Bool, Int8, Int32, Int64
from perfmodel.base.gpu import Gpu
from perfmodel.readers.chunks import LeftOut

T = TypeVar("T")

NULL: Final = int(np.iinfo(np.int64).min)
"""Stands for SQL NULL in an int64 column: an end never written, a size not recorded."""

PROCESS_BITS: Final = ~0xFFFFFF
"""Of a serialized thread id, those of its process."""

NO_NAME: Final = -1
"""Stands for a missing string in a column of string codes."""

PUSH_POP: Final = 0
STYLES: Final = ("PushPop", "StartEnd")

KERNEL: Final = 0
MEMCPY: Final = 1
MEMSET: Final = 2
GRAPH: Final = 3
OP_KINDS: Final = ("kernel", "memcpy", "memset", "graph")

MPI_SOURCES: Final = ("p2p", "start-wait", "other", "collectives")
MPI_P2P, MPI_WAIT, MPI_OTHER, MPI_COLLECTIVE = range(len(MPI_SOURCES))

NO_CALLS: Final = "every GPU operation counts as launched when it begins"
"""Is in `Trace.diagnostics` where no call of CUDA was recorded."""

OPERATORS: Final = "OPERATOR_NAMES"
"""Table of the names of operators, by recorders that tell these from annotations."""

TORCH_PROFILER: Final = "torch.profiler"
"""The `Trace.product_version` of traces that it recorded."""

COPY_KINDS: Final = {
    0: "Unknown",
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
"""CUPTI's `CUpti_ActivityMemcpyKind`, labelled as Nsight Systems labels it."""

TO_GPU: Final = (1, 3)
TO_HOST: Final = (2, 4)
"""Those between the host and the GPU, its arrays included, that a program asks for."""
BETWEEN_GPUS: Final = 10
UNIFIED_TO_GPU, UNIFIED_TO_HOST, UNIFIED_BETWEEN = 11, 12, 13
"""Those of unified memory's pages, that the driver makes of its own."""

MEMORY_KINDS: Final = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "array",
    4: "managed",
    5: "device static",
    6: "managed static",
    7: "unknown",
}
"""CUPTI's `CUpti_ActivityMemoryKind`, as Nsight Systems numbers it."""

PAGEABLE_MEMORY: Final = 0

ONE_BLOCK, ONE_THREAD = 1, 2
"""Kernels that are launched with a grid of one block, and of one thread in it."""


class Events:
    """Columns of one length; a row is what began at `start_ns`.

    Readers put the rows into the order of `perfmodel.readers.order`: by start, the longest first.
    """

    __slots__ = ()
    start_ns: Int64

    def __len__(self) -> int:
        return len(self.start_ns)


def columns_of(table: Any) -> tuple[str, ...]:
    """Return the names of the columns of events, or of a class of them."""
    return tuple(one.name for one in fields(table))


@dataclass(frozen=True, slots=True)
class HostEvents(Events):
    """Events of the host's threads.

    Attributes
    ----------
    start_ns, end_ns : int64, shape (n,)
        Host time.
    thread : int32, shape (n,)
        Index into `Trace.threads`.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int32


@dataclass(frozen=True, slots=True)
class Ranges(HostEvents):
    """NVTX push/pop and start/end ranges, one row per instance, of the threads that opened them.

    Attributes
    ----------
    end_ns : int64, shape (n,)
        `NULL` where the range never ended.
    name : int32, shape (n,)
        Index into `Trace.range_names` and `Trace.range_labels`, or `NO_NAME`.
    style : int8, shape (n,)
        Index into `STYLES`.
    other_thread : bool, shape (n,)
        The range names an ending thread of its own (`endGlobalTid` is set), so that it belongs
        to no thread's nesting.
    number : int64, shape (n,)
        Where in `Trace.numbers` those begin that were cut out of its label.
    """

    name: Int32
    style: Int8
    other_thread: Bool
    number: Int64


@dataclass(frozen=True, slots=True)
class GpuOps(Events):
    """GPU operations: kernels, copies, sets and whole graphs, in that order.

    Attributes
    ----------
    kind : int8, shape (n,)
        `KERNEL`, `MEMCPY`, `MEMSET` or `GRAPH`.
    start_ns, end_ns : int64, shape (n,)
        Time on the GPU.
    device, stream : int32, shape (n,)
    process : int32, shape (n,)
        Index into `Trace.processes`, -1 where the report does not say.
    correlation : int64, shape (n,)
        Joins to `ApiCalls.correlation` of the same process; `NULL` where there is none.
    name : int32, shape (n,)
        Index into `Trace.strings` of a kernel's demangled name, else `NO_NAME`.
    bytes : int64, shape (n,)
        Size of a copy or set, else `NULL`.
    copy_kind, src_kind, dst_kind : int8, shape (n,)
        Keys of `COPY_KINDS` and `MEMORY_KINDS`; -1 where they do not apply.
    node : int32, shape (n,)
        Row of `Trace.graph_nodes` of what a CUDA graph replays, else -1.
    """

    kind: Int8
    start_ns: Int64
    end_ns: Int64
    device: Int32
    stream: Int32
    process: Int32
    correlation: Int64
    name: Int32
    bytes: Int64
    copy_kind: Int8
    src_kind: Int8
    dst_kind: Int8
    node: Int32

    def host_memory(self, op: Int64) -> Int8:
        """Kinds of the host's memory that some copies read or write, keys of `MEMORY_KINDS`.

        Of a copy between GPUs it is that of its source.
        """
        to_host = np.isin(self.copy_kind[op], (*TO_HOST, UNIFIED_TO_HOST))
        return np.where(to_host, self.dst_kind[op], self.src_kind[op])


@dataclass(frozen=True, slots=True)
class ApiCalls(HostEvents):
    """CUDA runtime and driver API calls.

    Attributes
    ----------
    correlation : int64, shape (n,)
        Unique within a process.
    name : int32, shape (n,)
        Index into `Trace.strings`.
    """

    correlation: Int64
    name: Int32


@dataclass(frozen=True, slots=True)
class MpiCalls(HostEvents):
    """MPI calls: point-to-point, start/wait, other and collective, in that order.

    Attributes
    ----------
    end_ns : int64, shape (n,)
        `NULL` where the call never returned.
    name : int32, shape (n,)
        Index into `Trace.strings`.
    source : int8, shape (n,)
        Index into `MPI_SOURCES`.
    size_bytes : int64, shape (n,)
        Bytes handed to MPI; `NULL` where the report does not record them. Of an all-reduce as if
        it were in place (MPI_IN_PLACE), where the report leaves that open.
    least_bytes : int64, shape (n,)
        The same, as if it were not in place; less than `size_bytes` where that is open.
    communicator : int64, shape (n,)
        A number that all its ranks share, 0 for MPI_COMM_WORLD; `NULL` where there is none.
    own, peer : int64, shape (n,)
        The caller's rank and that at the other end of a message, or the root of a collective, in
        the communicator; -1 for a message of any source, `NULL` where there is none.
    tag, request : int64, shape (n,)
        A message's tag, and the handle that a call started or completed (one row a request); `NULL`
        where there is none.
    """

    name: Int32
    source: Int8
    size_bytes: Int64
    least_bytes: Int64
    communicator: Int64
    own: Int64
    peer: Int64
    tag: Int64
    request: Int64


@dataclass(frozen=True, slots=True)
class NcclRanges(Events):
    """Payloads of the NVTX ranges that NCCL pushes.

    Attributes
    ----------
    start_ns : int64, shape (n,)
        Start of the range, host time.
    thread : int32, shape (n,)
        Index into `Trace.threads`.
    communicator : int64, shape (n,)
        NCCL's id of the communicator, equal on all its ranks (a signed number); `NULL` if none.
    bytes : int64, shape (n,)
        Message size of this rank; `NULL` if none.
    """

    start_ns: Int64
    thread: Int32
    communicator: Int64
    bytes: Int64


@dataclass(frozen=True, slots=True)
class Stacks:
    """Frames that threads were in; a row is a change of a thread's innermost one.

    Stacks are nodes of a tree: a node is a frame, called from that of its parent. Frames of the
    framework are left out where there are others; those of `frames.MODULE` are PyTorch's modules.

    Attributes
    ----------
    start_ns : int64, shape (n,)
        Rows come by thread, then by time; a row holds until the thread's next one.
    thread : int32, shape (n,)
        Index into `Trace.threads`.
    node : int32, shape (n,)
        -1 where the thread was in no frame that is known.
    frame, parent : int32, shape (nodes,)
        Index into `frames`; the node of the caller, which comes before it, -1 of an outermost one.
    line : int32, shape (nodes,)
        Index into `frames` of the user's innermost frame, or else a library's; -1 if there is none.
    module : int32, shape (nodes,)
        Index into `modules`, -1 outside of all.
    frames, modules : tuple of str
        `file.py:LINE in function`, and paths of modules, the outermost first.
    """

    start_ns: Int64
    thread: Int32
    node: Int32
    frame: Int32
    parent: Int32
    line: Int32
    module: Int32
    frames: tuple[str, ...]
    modules: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)

    def at(self, thread: Int32, at_ns: Int64) -> Int32:
        """Return the node that each thread is in at a moment, -1 where that is not known."""
        found = np.full(len(at_ns), -1, np.int32)
        for number in np.unique(thread) if len(self) else ():
            low, high = np.searchsorted(self.thread, [number, number + 1])
            mine = np.flatnonzero(thread == number)
            row = np.searchsorted(self.start_ns[low:high], at_ns[mine], side="right") - 1
            known = row >= 0
            found[mine[known]] = self.node[low + row[known]]
        return found

    def path(self, node: int) -> tuple[str, ...]:
        """Return the frames of a stack, the outermost first."""
        found: list[str] = []
        while node >= 0:
            found.append(self.frames[self.frame[node]])
            node = int(self.parent[node])
        return tuple(reversed(found))


_NO_NODES: Final = np.empty(0, np.int32)
NO_STACKS: Final = Stacks(
    np.empty(0, np.int64), _NO_NODES, _NO_NODES, _NO_NODES, _NO_NODES, _NO_NODES, _NO_NODES, (), ()
)
"""Of reports without frames."""


@dataclass(frozen=True, slots=True)
class Spells(HostEvents):
    """Times that threads spent in one state, such as off the processor.

    Rows come by thread, then by start; those of one thread do not overlap.

    Attributes
    ----------
    name : int32, shape (n,)
        Index into `names`, -1 for none.
    names : tuple of str
    """

    name: Int32
    names: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        start_ns: Int64,
        end_ns: Int64,
        thread: Int32,
        name: Int32 | None = None,
        names: tuple[str, ...] = (),
    ) -> Spells:
        """Sort spells of known threads, and cut each where the next one of its thread begins."""
        name = np.full(len(start_ns), -1, np.int32) if name is None else name
        order = np.lexsort((start_ns, thread))
        order = order[(thread[order] >= 0) & (end_ns[order] > start_ns[order])]
        start, end, whose = start_ns[order], end_ns[order], thread[order]
        same = whose[1:] == whose[:-1]
        end[:-1] = np.where(same, np.minimum(end[:-1], start[1:]), end[:-1])
        return cls(start, end, whose, name[order], names)

    def inside(self, thread: Int32, start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int32]:
        """Time of some threads' spells in intervals, and the name that has most of it.

        Returns
        -------
        int64, shape (n,)
            In ns.
        int32, shape (n,)
            -1 where there is none.
        """
        seconds, most = np.zeros(len(thread), np.int64), np.full(len(thread), -1, np.int32)
        for number in np.unique(thread[thread >= 0]).tolist():
            low, high = np.searchsorted(self.thread, [number, number + 1]).tolist()
            mine = np.flatnonzero(thread == number)
            first = low + np.searchsorted(self.end_ns[low:high], start_ns[mine], side="right")
            last = low + np.searchsorted(self.start_ns[low:high], end_ns[mine], side="left")
            count = np.maximum(last - first, 0)
            which = np.repeat(np.arange(len(mine)), count)
            row = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            row += np.repeat(first, count)
            held = np.minimum(self.end_ns[row], end_ns[mine][which])
            held -= np.maximum(self.start_ns[row], start_ns[mine][which])
            seconds[mine] = np.bincount(which, held, len(mine)).astype(np.int64)
            names = max(len(self.names), 1)
            cell, at = np.unique(which * names + np.maximum(self.name[row], 0), return_inverse=True)
            total = np.bincount(at, held, len(cell))
            order = np.argsort(total, kind="stable")  # of one interval the longest is assigned last
            named = (cell % names).astype(np.int32)[order] if self.names else np.int32(-1)
            most[mine[cell[order] // names]] = named
        return seconds, most


@dataclass(frozen=True, slots=True)
class GraphNodes(Events):
    """Nodes of CUDA graphs, where they were captured.

    Attributes
    ----------
    start_ns : int64, shape (n,)
        Inside the call that was captured.
    thread : int32, shape (n,)
        Index into `Trace.threads` of the thread that made the node.
    """

    start_ns: Int64
    thread: Int32


NO_GRAPH_NODES: Final = GraphNodes(np.empty(0, np.int64), _NO_NODES)
"""Of reports that do not trace the nodes of graphs."""


class NcclRank(NamedTuple):
    """A rank of a communicator of NCCL that has so many ranks."""

    communicator: int
    ranks: int
    rank: int


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message Nsight Systems left in the report about its own collection."""

    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything perfmodel reads from one report.

    Attributes
    ----------
    source : Path
        The file the trace was read from.
    strings : tuple of str
        All strings, indexed by the codes of `GpuOps.name`, `ApiCalls.name` and `MpiCalls.name`.
    range_names : tuple of str
        Range names as Nsight Systems writes them, `domain:name` outside the default domain.
    range_labels : tuple of str
        The same names with the domain stripped: what workload models match.
    range_domains : tuple of str
        The same names' domains, '' for the default one.
    threads : int64, shape (t,)
        Serialized global thread ids, by process and first event.
    processes : int64, shape (q,)
        Serialized global process ids, by rank, GPU and first event.
    thread_process : int32, shape (t,)
        Index into `processes` for every thread.
    ranks : dict
        MPI rank by process index; empty where the report names none.
    nccl_ranks : tuple of NcclRank
        Whose communicators were made while the report was recorded.
    world_size : int or None
        Size of the largest communicator, as recorded.
    nvtx_last_ns : int or None
        Last timestamp of any NVTX event, the end that open push/pop ranges are given.
    nccl : NcclRanges
        Empty where the export has no payloads (``--include-json true`` keeps them).
    marks : tuple of (int, int, str)
        NVTX marks that hold JSON objects, in order: time in ns, thread index, text.
    utc_start_ns : int or None
        UTC time of the report's zero: add it to align reports of one host.
    mpi_from_nvtx : bool
        MPI calls were NVTX ranges in the domain 'MPI' (exports of 2022): they have no sizes.
    cuda_devices : dict
        GPU id by (process id, CUDA ordinal); empty where the report does not say.
    views : frozenset of str
        Tables of Nsight Systems that are views in this file, which are not read.
    host : str or None
        Name of the machine that the report was recorded on.
    launch_rank : int or None
        Rank in the environment in which torchrun started the profiled program.
    whole : bool
        Whether all rows are there, or all that overlap the window that is drawn;
        `perfmodel.timing.trim` keeps those that one analysis looks at.
    left_out : LeftOut or None
        Where the others are, of a large report whose window can still be read.
    numbers : int64 array or None
        What was cut out of the labels of PyTorch's operators, as in `readers.operator_texts`; None
        where these are whole.
    operators : frozenset of str
        Names of the ranges that the recorder knows to be a framework's operators or a program's
        autograd functions, without sizes; empty where it does not tell these from annotations.
    left_out_ns : mapping of int to (int, int)
        Without GPU operations, of ranges that `perfmodel.timing.spans.relabel` left out, such as
        operators: the first start and the last end, by process index.
    stacks : Stacks
        Frames of Python, or of recorded call chains; trimmed traces have none.
    all_to_all : Ranges or None
        Ranges that say that the kernels launched in them are an all-to-all; None without any.
    single : mapping of str to int
        `ONE_BLOCK` or `ONE_THREAD` by the names of kernels that are launched so.
    launch_threads : mapping of str to float
        Threads of a launch by the kernel's name, the mean over its launches.
    graph_nodes : GraphNodes
    asleep : Spells or None
        Times in which threads ran on no processor, by the system's scheduler; None where its
        decisions were not recorded.
    system_calls : Spells or None
        Calls of the system's libraries that take long, such as `read` and `poll`; None where they
        were not recorded.
    """

    source: Path
    product_version: str
    schema_version: str
    tables: frozenset[str]
    strings: tuple[str, ...]
    range_names: tuple[str, ...]
    range_labels: tuple[str, ...]
    range_domains: tuple[str, ...]
    threads: Int64
    processes: Int64
    thread_process: Int32
    ranges: Ranges
    ops: GpuOps
    api: ApiCalls
    mpi: MpiCalls
    nccl: NcclRanges
    marks: tuple[tuple[int, int, str], ...]
    gpus: tuple[Gpu, ...]
    cuda_devices: dict[tuple[int, int], int]
    diagnostics: tuple[Diagnostic, ...]
    ranks: dict[int, int]
    world_size: int | None
    nvtx_last_ns: int | None
    utc_start_ns: int | None
    mpi_from_nvtx: bool
    views: frozenset[str] = frozenset()
    nccl_ranks: tuple[NcclRank, ...] = ()
    host: str | None = None
    launch_rank: int | None = None
    whole: bool = True
    left_out: LeftOut | None = None
    numbers: Int64 | None = None
    operators: frozenset[str] = frozenset()
    left_out_ns: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    stacks: Stacks = NO_STACKS
    all_to_all: Ranges | None = None
    single: Mapping[str, int] = field(default_factory=dict)
    launch_threads: Mapping[str, float] = field(default_factory=dict)
    graph_nodes: GraphNodes = NO_GRAPH_NODES
    asleep: Spells | None = None
    system_calls: Spells | None = None

    def __repr__(self) -> str:  # texts of a report may be private
        return (
            f"<Trace {self.source.name}: {self.recorder}, {len(self.ranges)} ranges, "
            f"{self.op_count} GPU operations, {len(self.mpi)} MPI calls>"
        )

    @property
    def op_count(self) -> int:
        """Number of GPU operations, with those that are left out."""
        return sum(self.left_out.op_counts) if self.left_out else len(self.ops)

    @property
    def recorder(self) -> str:
        """Return the recorder: Nsight Systems with its version, or another profiler's name."""
        named = self.product_version[:1].isalpha() and self.product_version != "unknown"
        return self.product_version if named else f"Nsight Systems {self.product_version}"

    @property
    def how_to_record(self) -> str:
        """Return how to record GPU operations and host events with the same recorder."""
        if self.product_version == TORCH_PROFILER:
            return "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        return "profile with --trace=cuda,nvtx,mpi"


def distinct_calls(mpi: MpiCalls) -> Int64:
    """Return the first row of every MPI call: MPI_Waitall has one for every request."""
    if len(mpi) == 0:
        return np.empty(0, np.int64)
    order = np.lexsort((mpi.name, mpi.start_ns, mpi.thread))  # stable: the first row comes first
    same = np.ones(len(mpi) - 1, np.bool_)
    for column in (mpi.thread, mpi.start_ns, mpi.name):
        same &= column[order][1:] == column[order][:-1]
    return np.sort(order[np.concatenate([[True], ~same])]).astype(np.int64)


def without_doubtful_sizes(trace: Trace) -> Trace:
    """Return the trace without sizes of all-reduces that may be in place or not."""
    mpi = trace.mpi
    doubtful = mpi.least_bytes != mpi.size_bytes
    if not doubtful.any():
        return trace
    return replace(trace, mpi=replace(mpi, size_bytes=np.where(doubtful, NULL, mpi.size_bytes)))


def rows(table: Any, index: Any) -> Any:
    """Return `table` with every column indexed by `index` (a mask, slice or index array)."""
    return type(table)(*(getattr(table, name)[index] for name in columns_of(table)))


def concatenate(tables: Sequence[T]) -> T:
    """Return the rows of several tables of one type, one behind the other."""
    return join([*tables])


def join(tables: list[T]) -> T:
    """Return the rows of several tables as `concatenate` does; empties the list."""
    kind: Any = type(tables[0])
    joined: T = kind(**join_columns(tables, columns_of(kind)))
    return joined


def join_columns(tables: list[T], names: Sequence[str]) -> dict[str, Any]:
    """Return columns of several tables, one behind the other; empties the list.

    Columns are freed one after the other, so that no more than one of them is there twice.
    """
    columns = {name: [getattr(table, name) for table in tables] for name in names}
    tables.clear()
    return {name: np.concatenate(columns.pop(name)) for name in names}
