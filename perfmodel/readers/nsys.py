"""Reads an Nsight Systems SQLite export, of any schema since 2022.4.

`read_sqlite` reads it whole, into a `Trace`; `EventStream` yields its large tables, API calls and
GPU operations, some rows at a time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Arena, Bool, Int32, Int64, keep_freed
from perfmodel.base.errors import SchemaError
from perfmodel.base.gpu import Gpu
from perfmodel.readers.checks import stamp, unchanged
from perfmodel.readers.chunks import LeftOut
from perfmodel.readers.codes import Codes, Ids, factorize, least
from perfmodel.readers.graph_nodes import Nodes
from perfmodel.readers.nvtx import MPI_DOMAIN, Nvtx, read_nvtx
from perfmodel.readers.operator_texts import OperatorTexts
from perfmodel.readers.order import in_order, numbered
from perfmodel.readers.packed import EventsByProcess, Split, ordered, rows_of_report
from perfmodel.readers.pages import Texts, Unsupported, as_text
from perfmodel.readers.sqlite import Database
from perfmodel.readers.stacks import PYTHON_DOMAIN, read_stacks
from perfmodel.readers.trace import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    MPI_COLLECTIVE,
    MPI_OTHER,
    MPI_P2P,
    MPI_WAIT,
    NULL,
    ONE_BLOCK,
    ONE_THREAD,
    OPERATORS,
    PROCESS_BITS,
    ApiCalls,
    Diagnostic,
    GpuOps,
    MpiCalls,
    Ranges,
    Spells,
    Trace,
    join,
    rows,
)
from perfmodel.readers.window import InWindow

ALL_PARTS: Final = frozenset({"nvtx", "ops", "op_details", "api", "api_names", "mpi", "stacks"})
"""Parts of a report. 'op_details' are sizes, kinds and places of GPU operations, 'api_names' the
names of API calls; these and stacks cost reading time that some questions can save."""

OP_TABLES = (
    (KERNEL, "CUPTI_ACTIVITY_KIND_KERNEL"),
    (MEMCPY, "CUPTI_ACTIVITY_KIND_MEMCPY"),
    (MEMSET, "CUPTI_ACTIVITY_KIND_MEMSET"),
    (GRAPH, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"),
)
API_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
MPI_TABLES: Final = (
    "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS", "MPI_COLLECTIVES_EVENTS",
)  # fmt: skip
"""In the order of `perfmodel.readers.trace.MPI_SOURCES`."""

EVENT_TABLES: Final = {
    "nvtx": ("NVTX_EVENTS",),
    "ops": tuple(table for _, table in OP_TABLES),
    "api": (API_TABLE,),
    "mpi": MPI_TABLES,
}
"""The tables of events by part of a report."""
CAPTURE: Final = "META_DATA_CAPTURE"
"""Facts of the recording, among them the environment in which the program was started."""
_SCHEDULED: Final = "SCHED_EVENTS"
"""When threads began and ceased to run on a processor (``--cpuctxsw``)."""
_SYSTEM_CALLS: Final = "OSRT_API"
"""Calls of the system's libraries (``--trace=osrt``)."""
_FACTS: Final = (
    "MPI_RANKS", "MPI_COMMUNICATORS", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV", "DIAGNOSTIC_EVENT", CAPTURE,
)  # fmt: skip
"""Tables of what does not happen at a time."""
META_TABLES: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""Versions and settings of the export; the second name is that of 2022."""
HOST_NAME: Final = "Hostname"
"""The name of the recorded machine in TARGET_INFO_SYSTEM_ENV."""
_ALL_TO_ALL: Final = ("nccl:all_to_all", "c10d::alltoall", "ncclAlltoAll", "ncclAllToAll")
"""Prefixes of ranges whose sends and receives of NCCL are an all-to-all, not a pipeline."""
_SHAPE: Final = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
"""Columns of a kernel's launch."""
_PATH: Final = re.compile(r"(?<![\w/.])(?:~|\.{1,2})?/(?:[^\s/'\"]+/)*(?=[^\s/'\"])")
"""The folders of a path, which may name a user."""
_RANK_SET: Final = re.compile(r'RANK="(\d{1,9})"')
"""The rank in the environment that torchrun gives to a process."""
_SEVERITY = {0: "unknown", 1: "info", 2: "warning", 3: "error", 4: "verbose"}


def read_sqlite(
    path: Path, *, parts: Iterable[str] = ALL_PARTS, fast: bool = True, source: Path | None = None
) -> Trace:
    """Read one SQLite export as `perfmodel.readers.read` does.

    Parameters
    ----------
    path : Path
    parts : iterable of str
        Of `ALL_PARTS`; the others come back empty or missing.
    fast : bool
        Parse leaf pages directly where possible; both ways give the same trace.
    source : Path, optional
        What the trace and errors name as the report, where `path` is a temporary file.
    """
    expected = frozenset(parts)
    with Database(path, fast=fast, shown=source) as db:
        check_export(db)
        ids, strings = read_strings(db)
        nvtx = read_nvtx(db.only_if("nvtx" in expected), strings, ids)
        events = db.only_if("ops" in expected), db.only_if("api" in expected)
        processes, threads = Codes(), Codes()
        details = "op_details" in expected
        ops = [part for table in _read_ops(events[0], ids, processes, details=details)
               for part in table]  # fmt: skip
        api = join(_read_api(events[1], ids, threads, names="api_names" in expected))
        mpi = _read_mpi(db.only_if("mpi" in expected), ids, strings)
        by_process, by_thread = (join(ops), processes), (api, threads)
        stacks = "stacks" in expected
        return _assemble(db, ids, strings, nvtx, by_process, by_thread, mpi, with_stacks=stacks)


def read_by_process(
    path: Path, *, source: Path | None = None, texts: type[Texts] = OperatorTexts
) -> tuple[Trace, EventsByProcess]:
    """Read one SQLite export as `read_sqlite` does, its operations and API calls by process.

    Labels of PyTorch's operators are without their numbers, but where `texts` are read whole.
    """
    keep_freed()
    before = stamp(path)
    with Database(path, shown=source) as db:
        check_export(db)
        ids, strings = read_strings(db)
        nvtx = read_nvtx(db, strings, ids, texts)
        processes, threads = Codes(), Codes()
        arenas: dict[int, Arena] = {}
        ops = _read_ops(db, ids, processes, lambda _: Split("process", processes, arenas))
        api = _read_api(db, ids, threads, lambda: Split("thread", threads, arenas))
        mpi = _read_mpi(db, ids, strings)
        none = (ops[0].none, processes), (api.none, threads)
        trace = _assemble(db, ids, strings, nvtx, *none, mpi)
        left_out = LeftOut(path, before, tuple(split.chunks for split in ops), api.chunks)
        trace = replace(trace, left_out=left_out)
        return trace, EventsByProcess(ops, api, processes, threads, arenas)


def read_window(
    trace: Trace, left_out: LeftOut, window: tuple[int, int], named: Int64
) -> tuple[GpuOps, ApiCalls, Int64]:
    """Read the operations and API calls of a report that lie in a window of time.

    With them come the calls that launched the operations, and the rows whose ends are the last.

    Parameters
    ----------
    trace : Trace
        What `read_by_process` read; numbers its threads and processes.
    left_out : LeftOut
        Its own.
    window : (int, int)
        Its start and end in ns, on the report's clock.
    named : int64 array
        Rows of the report's operations that are read wherever they lie.

    Returns
    -------
    ops, api
    rows : int64 array
        Rows of the report's operations that the former are.

    Raises
    ------
    ReportError
        If the file is not the one that was read.
    """
    path, counts = left_out.file, left_out.op_counts
    first = np.cumsum([0, *counts])
    with (
        unchanged(path, trace.source, left_out.stamp),
        Database(path, shown=trace.source) as db,
    ):
        ids = _string_ids(db)
        processes, threads = Codes(), Codes()

        def of_kind(at: int) -> InWindow:
            mine = named[(named >= first[at]) & (named < first[at + 1])] - first[at]
            return InWindow(window, left_out.ops[at], mine)

        found = [table.take() for table in _read_ops(db, ids, processes, of_kind)]
        ops: GpuOps = join([table for table, _ in found])
        known = np.unique(ops.correlation[ops.correlation != NULL])
        calls = _read_api(db, ids, threads, lambda: InWindow(window, left_out.api, ids=known))
        row = rows_of_report([row for _, row in found], counts)
        return ordered(trace, ops, row, calls.take()[0], processes, threads)


def check_export(db: Database) -> None:
    """Refuse an SQLite file that is no Nsight Systems export with a `SchemaError`."""
    known = {*META_TABLES, "ANALYSIS_DETAILS", "TARGET_INFO_SESSION_START_TIME", "NVTX_EVENTS"}
    known |= {API_TABLE, *(table for _, table in OP_TABLES)}  # old exports have these alone
    if "StringIds" not in db.tables or not known & db.tables:
        found = ", ".join(sorted(db.tables)[:5]) or "no table"
        kind = "a folder" if Path(db.path).is_dir() else "an SQLite file"
        if "StringIds" in db.views:
            found += " and the view StringIds, which perfmodel does not read"
        raise SchemaError(
            f"{db.path}: expected an Nsight Systems export (tables StringIds, META_DATA_EXPORT, "
            f"NVTX_EVENTS, ...); got {kind} with {found}; make one with: "
            f"nsys export -q true -t sqlite REPORT.nsys-rep"
        )


def read_strings(db: Database) -> tuple[Ids, tuple[str, ...]]:
    """Read all strings; their codes are positions in the tuple."""
    rows = db.rows("StringIds", ["id", "value"], where="value")
    known = {i: str(as_text(text)) for i, text in rows if isinstance(i, int)}
    return Ids(np.fromiter(known, np.int64, len(known))), tuple(known.values())


def _string_ids(db: Database) -> Ids:
    """Read where the strings are that `read_strings` reads."""
    rows = db.rows("StringIds", ["id"], where="value")
    known = dict.fromkeys(i for (i,) in rows if isinstance(i, int))
    return Ids(np.fromiter(known, np.int64, len(known)))


def _read_ops(
    db: Database,
    ids: Ids,
    processes: Codes,
    into: Callable[[int], Any] = lambda _: [],
    *,
    details: bool = True,
) -> list[Any]:
    """Read all GPU operations, kind by kind, processes as codes."""
    columns = ["correlationId", "globalPid", "demangledName"]
    if details:
        columns += ["deviceId", "streamId", "bytes", "copyKind", "srcKind", "dstKind"]
        columns += ["graphNodeId"]
    nodes = Nodes(db)
    tables = []
    for at, (kind, table) in enumerate(OP_TABLES):
        have = db.columns(table)
        alone = NULL if "globalPid" in have or not have else _only_process(db)

        def made(rows: dict[str, Int64], kind: int = kind, alone: int = alone) -> GpuOps:
            ops = _gpu_ops(kind, rows, ids, nodes)
            if alone != NULL:
                ops = replace(ops, process=np.full(len(ops), alone))
            return replace(ops, process=processes.of(np.asarray(ops.process), ops.device))

        found = [c for c in columns if c in have]
        tables.append(db.collect(table, found, made, partial(into, at)))
    return tables


def _only_process(db: Database) -> int:
    """Return the process whose calls are recorded, `NULL` if there are several.

    Exports before 2021 do not say which process an operation is of.
    """
    threads = db.read(API_TABLE, ["globalTid"])["globalTid"]
    found = np.unique(threads[threads != NULL] & PROCESS_BITS)
    return int(found[0]) if len(found) == 1 else NULL


def _gpu_ops(kind: int, rows: dict[str, Int64], ids: Ids, nodes: Nodes | None = None) -> GpuOps:
    """Return operations of one kind, processes still as serialized ids."""
    column: defaultdict[str, Any] = _columns(rows)
    return GpuOps(
        np.broadcast_to(np.int8(kind), rows["start"].shape), rows["start"], rows["end"],
        narrow(column["deviceId"], np.int32), narrow(column["streamId"], np.int32),
        column["globalPid"], column["correlationId"], ids.codes(column["demangledName"]),
        column["bytes"], narrow(column["copyKind"], np.int8), narrow(column["srcKind"], np.int8),
        narrow(column["dstKind"], np.int8), _replayed(column, nodes),
    )  # fmt: skip


def _replayed(column: Mapping[str, Int64], nodes: Nodes | None) -> Int32:
    if nodes is None:
        return np.broadcast_to(np.int32(-1), column["start"].shape)
    return nodes.of(column["globalPid"], column["graphNodeId"])


def _grids(
    db: Database, ids: Ids, strings: Sequence[str]
) -> tuple[dict[str, int], dict[str, float]]:
    """Find the kernels of one block or thread for most of their time, and all kernels' threads.

    The launches that are read at once stand for all: programs repeat them.
    """
    table = OP_TABLES[0][1]
    if not {"demangledName", *_SHAPE} <= {*db.columns(table)}:
        return {}, {}
    columns = ["demangledName", *_SHAPE]
    try:
        try:
            found = next(db.event_chunks(table, columns, open_ends=False), ({}, 0))[0]
        except Unsupported:
            found = db.read_events(table, columns, open_ends=False)
    except SchemaError:
        return {}, {}
    if not found:
        return {}, {}
    blocks, threads = (
        np.logical_and.reduce([found[name] == 1 for name in _SHAPE if name.startswith(of)])
        for of in ("grid", "block")
    )
    name = ids.codes(found["demangledName"]) + 1
    spent = found["end"] - found["start"]
    times = [np.bincount(name, spent * mask) for mask in (1, blocks, blocks & threads)]
    one = 2 * times[1] > times[0]
    kinds = np.where(2 * times[2] > times[0], ONE_THREAD, ONE_BLOCK)
    single = {strings[i - 1]: int(kinds[i]) for i in np.flatnonzero(one).tolist() if i}
    known = np.logical_and.reduce([found[of] > 0 for of in _SHAPE]) & (name > 0)
    each = np.prod([found[of][known].astype(float) for of in _SHAPE], axis=0)
    count = np.bincount(name[known])
    mean = np.bincount(name[known], each) / np.maximum(count, 1)
    return single, {strings[i - 1]: float(mean[i]) for i in np.flatnonzero(count).tolist()}


def _read_api(
    db: Database, ids: Ids, threads: Codes, into: Callable[[], Any] = list, *, names: bool = True
) -> Any:
    """Read all API calls, threads as codes."""
    needed = ["globalTid", "correlationId"]
    columns = [*needed, "nameId"] if names else needed

    def made(rows: dict[str, Int64]) -> ApiCalls:
        calls = _api_calls(rows, ids)
        return replace(calls, thread=threads.of(np.asarray(calls.thread), calls.start_ns))

    return db.collect(API_TABLE, columns, made, into, needed)


def _api_calls(rows: dict[str, Int64], ids: Ids) -> ApiCalls:
    column: defaultdict[str, Any] = _columns(rows)
    name = ids.codes(column["nameId"])
    return ApiCalls(rows["start"], rows["end"], column["globalTid"], column["correlationId"], name)


def _columns(rows: dict[str, Int64]) -> defaultdict[str, Int64]:
    """Return the columns; one that was not read is `NULL`, which takes no memory."""
    return defaultdict(lambda: np.broadcast_to(np.int64(NULL), rows["start"].shape), rows)


def narrow(values: Int64, kind: Any) -> Any:
    """Shrink a column of small numbers; what does not fit (or is NULL) becomes -1."""
    if values.strides == (0,):  # a column that was not read
        return np.broadcast_to(kind(-1), values.shape)
    return np.where((values >= 0) & (values <= np.iinfo(kind).max), values, -1).astype(kind)


def _assemble(
    db: Database,
    ids: Ids,
    strings: tuple[str, ...],
    nvtx: Nvtx,
    by_process: tuple[GpuOps, Codes],
    by_thread: tuple[ApiCalls, Codes],
    mpi: Mpi,
    *,
    with_stacks: bool = True,
) -> Trace:
    """Number threads, processes and names of ranges, and put all events into order.

    Processes of operations and threads of calls come as codes of their ids.
    """
    devices = db.rows("TARGET_INFO_CUDA_DEVICE", ["pid", "cudaId", "gpuId"])  # since 2025
    gpus = {(p, c): g for p, c, g in devices if {type(p), type(c), type(g)} == {int}}
    ranks = {**nvtx.ranks, **mpi.ranks}
    (ops, on), (api, by) = by_process, by_thread
    tables: tuple[Any, ...] = (nvtx.ranges, mpi.calls, nvtx.payloads)
    coded = [factorize(np.asarray(table.thread)) for table in tables]
    nodes = Nodes(db)
    begun = [*by.least.items(), *nodes.begun, *((tid, at) for at, tid, _ in nvtx.marks)]
    for table, (codes, distinct) in zip(tables, coded, strict=True):
        begun += zip(distinct.tolist(), least(codes, table.start_ns, len(distinct)), strict=True)
    gpu = {p: gpus.get((p >> 24 & 0xFFFFFF, d), d) for p, d in on.least.items() if p != NULL}
    known = numbered(begun, gpu, ranks)
    ranges, calls, nccl = (
        replace(table, thread=known.thread(distinct)[codes])
        for table, (codes, distinct) in zip(tables, coded, strict=True)
    )
    nvtx, mpi = replace(nvtx, ranges=ranges).in_order(), replace(mpi, calls=calls)
    process_at, thread_at = (
        {id_: i for i, id_ in enumerate(ids.tolist())} for ids in (known.processes, known.threads)
    )
    marked = PYTHON_DOMAIN in nvtx.all_domains
    ranges_of = (nvtx.ranges, nvtx.labels) if with_stacks else (rows(nvtx.ranges, slice(0)), ())
    frames = db.only_if(with_stacks)
    stacks = read_stacks(frames, known.thread, *ranges_of, python_marks=marked)
    single, launch_threads = _grids(frames, ids, strings)
    if not any(t in db.tables for t in MPI_TABLES):
        mpi, strings = _mpi_from_nvtx(nvtx, mpi, strings)
    meta = {str(n): str(v) for t in META_TABLES for n, v in db.rows(t, ["name", "value"])}
    (utc,) = next(db.rows("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"]), (None,))
    return Trace(
        source=db.path,
        product_version=meta.get("EXPORT_PRODUCT_VERSION", "unknown"),
        schema_version=meta.get("EXPORT_SCHEMA_VERSION", "unknown"),
        tables=db.tables,
        strings=strings,
        range_names=nvtx.names,
        range_labels=nvtx.labels,
        range_domains=nvtx.domains,
        threads=known.threads,
        processes=known.processes,
        thread_process=known.thread_process,
        ranges=nvtx.ranges,
        ops=in_order(replace(ops, process=known.process(on.distinct)[ops.process]), strings),
        api=in_order(replace(api, thread=known.thread(by.distinct)[api.thread]), strings),
        mpi=in_order(mpi.calls, strings),
        nccl=in_order(nccl),
        nccl_ranks=nvtx.nccl_ranks,
        marks=tuple(sorted((t, thread_at[tid], text) for t, tid, text in nvtx.marks)),
        gpus=tuple(sorted(_gpus(db), key=lambda gpu: gpu.id)),
        cuda_devices=gpus,
        diagnostics=_diagnostics(db),
        ranks={process_at[pid]: rank for pid, rank in ranks.items()},
        world_size=mpi.world_size,
        nvtx_last_ns=nvtx.last_ns,
        utc_start_ns=utc if isinstance(utc, int) else None,
        mpi_from_nvtx=mpi.from_nvtx,
        host=host_name(db),
        launch_rank=launch_rank(db),
        numbers=nvtx.numbers,
        operators=frozenset(str(as_text(name)) for (name,) in db.rows(OPERATORS, ["name"])),
        stacks=stacks,
        asleep=_asleep(frames, known.thread),
        system_calls=_system_calls(frames, ids, strings, known.thread),
        all_to_all=_all_to_all(nvtx),
        single=single,
        launch_threads=launch_threads,
        views=db.views & frozenset(_FACTS).union(*EVENT_TABLES.values()),
        graph_nodes=nodes.numbered(known.thread),
    )


def _asleep(db: Database, threads: Callable[[Int64], Int32]) -> Spells | None:
    """Times in which the threads of other events ran on no processor; None if not recorded."""
    if not {"start", "isSchedIn", "globalTid"} <= {*db.columns(_SCHEDULED)}:
        return None
    found = db.read(_SCHEDULED, ["start", "isSchedIn", "globalTid"])
    thread = threads(found["globalTid"])
    order = np.lexsort((found["start"], thread))
    order = order[thread[order] >= 0]
    at, into, thread = found["start"][order], found["isSchedIn"][order] != 0, thread[order]
    sleeps = np.flatnonzero(~into[:-1] & into[1:] & (thread[1:] == thread[:-1]))
    return Spells.of(at[sleeps], at[sleeps + 1], thread[sleeps])


def _system_calls(
    db: Database, ids: Ids, strings: tuple[str, ...], threads: Callable[[Int64], Int32]
) -> Spells | None:
    """Calls of the system's libraries by the threads of other events; None if not recorded."""
    if not {"start", "end", "nameId", "globalTid"} <= {*db.columns(_SYSTEM_CALLS)}:
        return None
    found = db.read_events(_SYSTEM_CALLS, ["nameId", "globalTid"], open_ends=False)
    name, thread = ids.codes(found["nameId"]), threads(found["globalTid"])
    outer = found["start"] < found["end"]
    thread = np.where(outer & (name >= 0), thread, np.int32(-1))
    return Spells.of(found["start"], found["end"], thread, name, strings)


def _all_to_all(nvtx: Nvtx) -> Ranges | None:
    """Ranges that PyTorch or NCCL pushes around an all-to-all."""
    named = [i for i, label in enumerate(nvtx.labels) if label.startswith(_ALL_TO_ALL)]
    found = rows(nvtx.ranges, np.isin(nvtx.ranges.name, named)) if named else None
    return found if found is not None and len(found) else None


def host_name(db: Database) -> str | None:
    """Name of the machine, as recorded."""
    facts = db.rows("TARGET_INFO_SYSTEM_ENV", ["name", "value"])
    return next((as_text(value) for name, value in facts if as_text(name) == HOST_NAME), None)


def says_rank(name: Any, value: Any) -> bool:
    """Whether a fact of the recording is the rank that torchrun gave to the program."""
    named = (as_text(name) or "").endswith(":ENVIRONMENT_VARIABLE")
    return named and _RANK_SET.fullmatch(as_text(value) or "") is not None


def launch_rank(db: Database) -> int | None:
    """Rank that torchrun gave to the profiled program; None without, or where several are said."""
    said = {
        int((as_text(value) or "")[len('RANK="') : -1])
        for name, value in db.rows(CAPTURE, ["name", "value"])
        if says_rank(name, value)
    }
    return said.pop() if len(said) == 1 else None


def without_places(text: str, host: str | None) -> str:
    """Return a text without the host's name, and of every path its last part only.

    Examples
    --------
    >>> without_places("On node7 events were lost, see /data/somebody/log.txt", "node7")
    'On HOST events were lost, see log.txt'
    """
    return _PATH.sub("", text.replace(host, "HOST") if host else text)


def _diagnostics(db: Database) -> tuple[Diagnostic, ...]:
    """Read what Nsight Systems says of the collection, by time."""
    host = host_name(db)
    found = [
        (
            at if isinstance(at, int) else 0,
            without_places((as_text(text) or "").strip(), host),
            severity,
        )
        for at, text, severity in db.rows("DIAGNOSTIC_EVENT", ["timestamp", "text", "severity"])
    ]
    found.sort(key=lambda row: row[:2])
    return tuple(Diagnostic(_SEVERITY.get(code, "unknown"), text) for _, text, code in found)


def _gpus(db: Database) -> Iterable[Gpu]:
    columns = [
        "id", "name", "smCount", "clockRate", "memoryBandwidth", "l2CacheSize", "totalMemory",
        "computeMajor", "computeMinor", "uuid",
    ]  # fmt: skip
    for identity, name, *numbers, major, minor, uuid in db.rows("TARGET_INFO_GPU", columns):
        known = [v if isinstance(v, int) and v > 0 else None for v in numbers]
        units, clock, bandwidth, cache, memory = known
        yield Gpu(
            identity if isinstance(identity, int) else -1,
            "unnamed GPU" if name is None else str(name),
            units, clock, bandwidth, cache, memory,
            (major, minor) if isinstance(major, int) and isinstance(minor, int) else None,
            None if uuid is None else str(uuid),
        )  # fmt: skip


_P2P = ("MPI_Send", "MPI_Recv", "MPI_Isend", "MPI_Irecv", "MPI_Sendrecv", "MPI_Ssend", "MPI_Bsend")
_START_WAIT = ("MPI_Start", "MPI_Wait", "MPI_Test")
_ALL_REDUCE: Final = frozenset({"MPI_Allreduce", "MPI_Iallreduce", "MPI_Allreduce_c"})
_BROADCAST: Final = frozenset({"MPI_Bcast", "MPI_Ibcast", "MPI_Bcast_c"})
_SCATTER: Final = frozenset({"MPI_Scatter", "MPI_Iscatter", "MPI_Scatter_c"})
_REDUCE: Final = frozenset({"MPI_Reduce", "MPI_Ireduce", "MPI_Reduce_c"})
_EXCLUSIVE: Final = frozenset({"MPI_Exscan", "MPI_Iexscan"})
_SCAN: Final = frozenset({"MPI_Scan", "MPI_Iscan"}) | _EXCLUSIVE
_OTHER = ("MPI_Init", "MPI_Finalize", "MPI_Comm", "MPI_Abort")


@dataclass(frozen=True, slots=True)
class Mpi:
    """MPI calls with serialized thread ids, and ranks by serialized process id."""

    calls: MpiCalls
    ranks: dict[int, int]
    world_size: int | None
    from_nvtx: bool = False


def _read_mpi(db: Database, ids: Ids, strings: tuple[str, ...]) -> Mpi:
    """Read every MPI table there is."""
    columns = ["globalTid", "textId", "size", "recvSize", "commHandle", "remoteRank", "tag",
               "requestHandle", "rootRank"]  # fmt: skip
    tables = [db.read_events(t, columns, needed=["globalTid"], open_ends=True) for t in MPI_TABLES]
    start, end, tid, text, size, received, handle, peer, tag, request, root = (
        np.concatenate([t[c] for t in tables]) for c in ["start", "end", *columns]
    )
    named = [
        (rank, thread & PROCESS_BITS)
        for thread, rank in db.rows("MPI_RANKS", ["globalTid", "rank"])
        if isinstance(thread, int) and isinstance(rank, int) and 0 <= rank < 2**31
    ]
    ranks = {process: rank for rank, process in sorted(named)}
    columns = ["rank", "commHandle", "size", "localRank", "groupRoot", "groupRootUid", "timestamp"]
    described = db.rows("MPI_COMMUNICATORS", columns)  # the last one with a handle counts
    known = {
        (rank, at): (
            size,
            0 if root is None or uid is None else (root << 32) + uid + 1,
            rank if own is None else own,
        )
        for rank, at, size, own, root, uid, _ in sorted(described, key=_made_ns)
        if all(
            v is None or (isinstance(v, int) and -(1 << 31) <= v < 1 << 31)
            for v in (own, root, uid)
        )
        and all(isinstance(v, int) and v < 1 << 31 for v in (rank, size))
        and isinstance(at, int)
        and size > 0
    }
    world = max((size for size, _, _ in known.values()), default=0)
    name = ids.codes(text)
    members, group, own = _communicators(tid, handle, ranks, known, world)
    thread: Any = tid
    source = np.repeat(np.arange(len(MPI_TABLES), dtype=np.int8), [len(t["start"]) for t in tables])
    peer = np.where(peer == NULL, root, peer)
    sent, least = _message_bytes(name, strings, size, received, members, own)
    calls = MpiCalls(start, end, thread, name, source, sent, least, group, own, peer, tag, request)
    return Mpi(calls, ranks, world or None)


def _made_ns(communicator: Sequence[Any]) -> int:
    """When a communicator was made; the world, and what has no time, comes first."""
    at = communicator[-1]
    return at if isinstance(at, int) else 0


def _communicators(
    tid: Int64,
    handle: Int64,
    ranks: dict[int, int],
    known: dict[tuple[int, int], tuple[int, int, int]],
    world: int,
) -> tuple[Int64, Int64, Int64]:
    """Size and number of every call's communicator, and the caller's rank in it.

    Handles are those of the calling rank; a communicator that is not described is the world.
    """
    process, processes = factorize(tid & PROCESS_BITS)
    which, handles = factorize(handle)
    pair, pairs = factorize(process.astype(np.int64) * len(handles) + which)
    found = np.empty((len(pairs), 3), np.int64)
    for i, p in enumerate(pairs.tolist()):
        rank = ranks.get(int(processes[p // len(handles)]), NULL)
        found[i] = known.get((rank, int(handles[p % len(handles)])), (world, 0, rank))
    size, group, own = found[pair].T
    return size, group, own


def _message_bytes(
    name: Int32,
    strings: tuple[str, ...],
    size: Int64,
    received: Int64,
    members: Int64,
    own: Int64,
) -> tuple[Int64, Int64]:
    """Bytes of the buffer that every call handed to MPI, and the least that they may be.

    Nsight Systems records for an all-reduce among p ranks p times the buffer, but p - 1 times where
    it is reduced in place (none at p = 1); for a broadcast and a scatter p times the own part at
    the root, the own part as received size; for a scan what ranks behind and before get; the other
    calls' sizes are kept. Measured on reports of 1 to 4 ranks of known messages.
    """

    def called(names: frozenset[str]) -> Bool:
        found: Bool = np.array([s in names for s in strings] + [False], np.bool_)[name]
        return found

    many = members > 1
    others = np.maximum(members - 1, 1)
    found, least = _reduced_bytes(size, members, called(_ALL_REDUCE) & many & (size != NULL))
    found = np.where(called(_BROADCAST) & (received != NULL), received, found)
    scattered = called(_SCATTER) & many
    found = np.where(scattered, np.where(received == NULL, size // others, received), found)
    rooted = called(_REDUCE) & (size == NULL) & (received != NULL) & many
    found = np.where(rooted, received // others, found)
    scan = called(_SCAN) & many & (own >= 0) & (own < members)
    scanned = _scanned_bytes(size, received, members, own, called(_EXCLUSIVE))
    found = np.where(scan, scanned, found)
    return found, np.where(least == NULL, found, least)


def _reduced_bytes(size: Int64, members: Int64, used: Bool) -> tuple[Int64, Int64]:
    """Buffers of all-reduces, as if in place where that is open; and as if not, `NULL` elsewhere.

    It is open where the recorded size is a multiple of both p and p - 1.
    """
    ranks = np.where(used, members, 2)
    apart, in_place = (used & (size % p == 0) for p in (ranks, ranks - 1))
    found = np.where(in_place, size // (ranks - 1), np.where(apart, size // ranks, size))
    return found, np.where(apart & in_place, size // ranks, NULL)


def _scanned_bytes(
    size: Int64, received: Int64, members: Int64, own: Int64, exclusive: Bool
) -> Int64:
    """Buffers of scans: a rank sends to those behind it and receives from those before it.

    To and from itself, too, where the scan is not in place, nor exclusive; in the middle of the
    ranks that is open, and the size `NULL`.
    """
    sent, got = np.where(size == NULL, 0, size), np.where(received == NULL, 0, received)
    behind, before = np.maximum(members - own, 1), own + 1
    apart = ~exclusive & (sent // behind == got // before) & (sent > 0)
    found = np.where(apart, sent // behind, (sent + got) // np.maximum(members - 1, 1))
    return np.where((sent + got == 0) | (apart & (behind == before)), NULL, found)


def _mpi_from_nvtx(nvtx: Nvtx, mpi: Mpi, strings: tuple[str, ...]) -> tuple[Mpi, tuple[str, ...]]:
    """Make MPI calls of the NVTX ranges in domain 'MPI', as Nsight Systems 2022 records them.

    Sizes and communicators stay `NULL`: those exports do not have them. Returns the calls and
    the strings with the calls' names appended.
    """
    texts = zip(nvtx.domains, nvtx.labels, strict=True)
    is_mpi = [domain == MPI_DOMAIN and label.startswith("MPI_") for domain, label in texts]
    if not any(is_mpi):
        return mpi, strings
    found = nvtx.ranges
    found = rows(found, (found.name >= 0) & np.array([*is_mpi, False])[found.name])
    source = np.array([_source(label) for label in nvtx.labels], np.int8)[found.name]
    order = np.argsort(source, kind="stable")
    found, source = rows(found, order), source[order]
    name = found.name + np.int32(len(strings))
    missing = [np.full(len(found), NULL)] * 7
    calls = MpiCalls(found.start_ns, found.end_ns, found.thread, name, source, *missing)
    return replace(mpi, calls=calls, from_nvtx=True), (*strings, *nvtx.labels)


def _source(name: str) -> int:
    for prefixes, source in ((_P2P, MPI_P2P), (_START_WAIT, MPI_WAIT), (_OTHER, MPI_OTHER)):
        if name.startswith(prefixes):
            return source
    return MPI_COLLECTIVE


Progress = Callable[[int], object]
"""Called with the bytes of the file that were read since the call before."""


class EventStream:
    """The large tables of an export, some rows at a time; processes and threads as serialized ids.

    Parameters
    ----------
    db : Database
        If it is fast: what the page reader cannot read, it may find out late. It then raises
        `perfmodel.readers.pages.Unsupported`.
    progress : callable
    strings : sequence of str
        What `read_sqlite` read of the same file, which is not kept twice.

    Raises
    ------
    SchemaError
        If it is no Nsight Systems export.
    """

    def __init__(self, db: Database, progress: Progress, strings: Sequence[str]) -> None:
        check_export(db)
        self._db, self._progress = db, progress
        self._ids, self.strings = _string_ids(db), strings

    def calls(self, *, names: bool, joins: bool) -> Iterator[ApiCalls]:
        """Yield all API calls in row order, with their names or with what joins them to GPU work.

        What is not asked for is missing (`NO_NAME`, `NULL`), which costs no memory.
        """
        needed = ["globalTid", "correlationId"]
        columns = [*(needed if joins else ()), *(["nameId"] if names else ())]
        read = self._db.event_chunks(API_TABLE, columns, needed=needed, open_ends=False)
        for found, size in read:
            yield _api_calls(found, self._ids)
            self._progress(size)

    def ops(self, *, details: bool, joins: bool) -> Iterator[tuple[int, GpuOps]]:
        """Yield all GPU operations kind by kind, with sizes and directions if `details`."""
        columns = ["demangledName", *(["correlationId", "globalPid"] if joins else [])]
        columns += ["bytes", "copyKind"] if details else []
        for kind, table in OP_TABLES:
            have = self._db.columns(table)
            expected = [c for c in columns if c in have]
            for found, size in self._db.event_chunks(table, expected, open_ends=False):
                yield kind, _gpu_ops(kind, found, self._ids)
                self._progress(size)
