"""Builds files of other profilers: XPlane of JAX, and rocprofv3's rocpd."""

from __future__ import annotations

import json
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from perfmodel.readers.trace import COPY_KINDS, KERNEL, MEMCPY, MEMORY_KINDS, NULL, Trace


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def plane(name: str, line: str, event: str, said: str = "") -> bytes:
    """A plane of one event of 2 µs, 1 µs after its line's 5000 ns."""
    stat = field(4, field(1, 1) + field(5, said)) if said else b""
    events = field(4, field(1, 1) + field(2, 1_000_000) + field(3, 2_000_000) + stat)
    body = field(2, name) + field(3, field(1, 7) + field(2, line) + field(3, 5000) + events)
    for number, text in ((4, event), (5, "memcpy_details")):
        body += field(number, field(1, 1) + field(2, field(1, 1) + field(2, text)))
    return field(1, body)


ROCPD: Final = """
CREATE TABLE rocpd_string_x (id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
INSERT INTO rocpd_string_x VALUES (1,'','HIP_RUNTIME_API_EXT'),(2,'','MARKER_CORE_RANGE_API'),
 (3,'','hipLaunchKernel'),(4,'','roctxRangePushA'),(5,'','MEMORY_COPY_HOST_TO_DEVICE'),
 (6,'','hipMemcpyAsync'),(7,'','HSA_CORE_API'),(8,'','hsa_signal_wait');
CREATE TABLE rocpd_info_process_x (id INTEGER PRIMARY KEY, guid TEXT, pid INTEGER);
INSERT INTO rocpd_info_process_x VALUES (1,'',4242);
CREATE TABLE rocpd_info_thread_x (id INTEGER PRIMARY KEY, guid TEXT, pid INTEGER, tid INTEGER);
INSERT INTO rocpd_info_thread_x VALUES (1,'',1,4243);
CREATE TABLE rocpd_info_agent_x (id INTEGER PRIMARY KEY, guid TEXT, type TEXT, type_index INTEGER,
 name TEXT, product_name TEXT);
INSERT INTO rocpd_info_agent_x VALUES (1,'','CPU',0,'cpu','EPYC'),
 (4,'','GPU',2,'gfx942','AMD Instinct MI300X');
CREATE TABLE rocpd_info_kernel_symbol_x (id INTEGER PRIMARY KEY, guid TEXT, kernel_name TEXT,
 display_name TEXT);
INSERT INTO rocpd_info_kernel_symbol_x VALUES (9,'','_Z4saxpyPf.kd','saxpy(float*)');
CREATE TABLE rocpd_event_x (id INTEGER PRIMARY KEY, guid TEXT, category_id INTEGER,
 stack_id INTEGER, extdata TEXT);
CREATE TABLE rocpd_region_x (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER,
 tid INTEGER, start BIGINT, end BIGINT, name_id INTEGER, event_id INTEGER);
CREATE TABLE rocpd_kernel_dispatch_x (id INTEGER PRIMARY KEY, guid TEXT, pid INTEGER, tid INTEGER,
 agent_id INTEGER, kernel_id INTEGER, queue_id INTEGER, stream_id INTEGER, start BIGINT,
 end BIGINT, workgroup_size_x INTEGER, workgroup_size_y INTEGER, workgroup_size_z INTEGER,
 grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER, event_id INTEGER);
CREATE TABLE rocpd_memory_copy_x (id INTEGER PRIMARY KEY, guid TEXT, pid INTEGER, tid INTEGER,
 start BIGINT, end BIGINT, name_id INTEGER, dst_agent_id INTEGER, src_agent_id INTEGER,
 size INTEGER, queue_id INTEGER, stream_id INTEGER, event_id INTEGER);
"""
"""Tables of rocprofv3's schema 3, those that are read, as rocprofiler-sdk 7 writes them."""


def rocpd(path: Path) -> Path:
    """Four steps of a copy and a kernel, each launched by HIP inside a range of roctx."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(ROCPD)
        for step in range(4):
            t, e = 1_000_000 * step, 10 * step
            said = f'{{"message": "step {step}"}}'
            rows = [(e + 1, 2, e + 1, said), (e + 2, 1, e + 2, None), (e + 3, 1, e + 3, None)]
            rows += [(e + 4, None, e + 2, None), (e + 5, None, e + 3, None), (e + 6, 7, 0, None)]
            db.executemany("INSERT INTO rocpd_event_x VALUES (?, '', ?, ?, ?)", rows)
            regions = [(t, t + 900_000, 4, e + 1), (t + 1000, t + 3000, 6, e + 2),
                       (t + 5000, t + 7000, 3, e + 3), (t + 5500, t + 6000, 8, e + 6)]  # fmt: skip
            db.executemany(
                "INSERT INTO rocpd_region_x VALUES (NULL, '', 1, 1, 1, ?, ?, ?, ?)", regions
            )
            copy = (1, 1, t + 4000, t + 9000, 5, 4, 1, 4096, None, 3, e + 4)
            kernel = (1, 1, 4, 9, 1, 3, t + 10_000, t + 600_000, 256, 1, 1, 1024, 2, 1, e + 5)
            for table, row in (("memory_copy", copy), ("kernel_dispatch", kernel)):
                marks = ", ".join("?" * len(row))
                db.execute(f"INSERT INTO rocpd_{table}_x VALUES (NULL, '', {marks})", row)
        db.commit()
    return path


def event(name: int, offset_ps: int, duration_ps: int, *stats: bytes) -> bytes:
    """An event of a line of an XPlane."""
    said = b"".join(field(4, stat) for stat in stats)
    return field(4, field(1, name) + field(2, offset_ps) + field(3, duration_ps) + said)


def small_xplane() -> bytes:
    """Four steps of JAX: on a GPU a copy and a kernel each, and the calls that launched them."""
    names = {1: "train_step", 2: "cuLaunchKernel", 3: "MemcpyH2D", 4: "gemm_fusion"}
    table = b"".join(
        field(4, field(1, i) + field(2, field(1, i) + field(2, name))) for i, name in names.items()
    )
    kinds = {1: "correlation_id", 2: "memcpy_details"}
    table += b"".join(
        field(5, field(1, i) + field(2, field(1, i) + field(2, name))) for i, name in kinds.items()
    )
    work, host = field(1, 14) + field(2, "Stream #14") + field(3, 5000), field(1, 7) + field(3, 0)
    for step in range(4):
        at = step * 10**9
        tied = [field(1, 1) + field(4, 2 * step + i) for i in (1, 2)]
        sized = field(1, 2) + field(5, "kind_src:pageable kind_dst:device size:64 dest:0 async:1")
        work += event(3, at + 10**7, 10**7, tied[0], sized)
        work += event(4, at + 5 * 10**7, 10**8, tied[1])
        host += event(1, at, 9 * 10**8)
        host += event(2, at + 10**6, 10**6, tied[0]) + event(2, at + 3 * 10**6, 10**6, tied[1])
    planes = (("/device:GPU:0", work), ("/host:CPU", host))
    return b"".join(field(1, field(2, name) + field(3, line) + table) for name, line in planes)


FACTS: Final = {
    "core_count": 304, "clock_rate": 2_100_000_000, "memory_bandwidth": 5_300_000_000_000,
    "memory_size": 206_000_000_000, "compute_cap_major": 9, "compute_cap_minor": 4,
}  # fmt: skip
"""Of the GPU in `xplane_with_facts`."""


def xplane_with_facts(zero_ns: int) -> bytes:
    """A file as JAX writes it on AMD's GPUs: what the GPU is, and several kinds of its work.

    A thread launches a set, two kernels and a copy between GPUs; another one is in ranges alone.
    """
    names = ("Memset", "gemm_fusion.kd", "MemcpyD2D", "hipMemsetAsync", "hipModuleLaunchKernel",
             "hipMemcpyAsync", "train_step", "$train.py:7 load", "jit_step")  # fmt: skip
    stats = ("correlation_id", "memset_details", "memcpy_details", "device_name", "occupancy",
             "hlo_module", "jit(step)", *FACTS)  # fmt: skip
    table = b"".join(
        field(number, field(1, i) + field(2, field(1, i) + field(2, name)))
        for number, texts in ((4, names), (5, stats))
        for i, name in enumerate(texts, 1)
    )

    def said(name: str, number: int, value: int | str) -> bytes:
        return field(1, stats.index(name) + 1) + field(number, value)

    def made(name: str, start_us: int, spent_us: int, *more: bytes) -> bytes:
        return event(names.index(name) + 1, start_us * 10**6, spent_us * 10**6, *more)

    share = field(1, stats.index("occupancy") + 1) + varint(2 << 3 | 1) + struct.pack("<d", 0.5)
    module = said("hlo_module", 7, stats.index("jit(step)") + 1)  # the number of another text
    kernel = "gemm_fusion.kd", "hipModuleLaunchKernel"
    work = [
        ("Memset", "hipMemsetAsync", said("memset_details", 5, "kind:device size:128 async:1")),
        (*kernel, share),
        (*kernel, module),
        (
            "MemcpyD2D",
            "hipMemcpyAsync",
            said("memcpy_details", 5, "kind_src:device kind_dst:device size:512 dest:1 async:1"),
        ),
    ]
    on_gpu, calls = b"", b""
    for i, (name, call, more) in enumerate(work):
        tied = said("correlation_id", 4, i + 40)
        on_gpu += made(name, 100 + 50 * i, 20, tied, more)
        calls += made(call, 10 + 15 * i, 5, tied)

    def line(number: int, name: str, events: bytes) -> bytes:
        return field(3, field(1, number) + field(2, name) + field(3, zero_ns) + events)

    facts = b"".join(field(6, said(name, 3, value)) for name, value in FACTS.items())
    facts += field(6, said("device_name", 5, "AMD Instinct MI300X"))
    derived = line(9, "XLA Modules", made("jit_step", 100, 200))
    host = line(11, "python", made("train_step", 0, 400) + calls)
    host += line(12, "loader", made("$train.py:7 load", 20, 60))
    planes = (
        ("/device:GPU:2", facts + line(3, "Stream #3(Compute,Memset)", on_gpu) + derived),
        ("/host:CPU", host), ("Task Environment", line(1, "python", made("train_step", 5, 6))),
    )  # fmt: skip
    return b"".join(field(1, field(2, name) + lines + table) for name, lines in planes)


def rocpd_of(trace: Trace, path: Path) -> Path:
    """Write what rocprofv3 would have recorded: kernels, copies, calls and ranges of a trace."""
    texts: dict[str, int] = {}

    def text(said: str) -> int:
        return texts.setdefault(said, len(texts) + 1)

    events: list[tuple[object, ...]] = []

    def event_id(category: str | None, stack: int, extra: str | None = None) -> int:
        events.append((len(events) + 1, category and text(category), stack, extra))
        return len(events)

    pids = {i: int(p) >> 24 & 0xFFFFFF for i, p in enumerate(trace.processes)}
    ops, api, ranges = trace.ops, trace.api, trace.ranges
    kernels, copies, regions = [], [], []
    for i in range(len(ops)):
        pid, times = pids[int(ops.process[i])], (int(ops.start_ns[i]), int(ops.end_ns[i]))
        stack = event_id(None, int(ops.correlation[i]) + (pid << 32))
        agent, stream = int(ops.device[i]) + 1, int(ops.stream[i])
        if ops.kind[i] == KERNEL:
            name = text(trace.strings[ops.name[i]])
            kernels.append((pid, agent, name, stream, *times, stack))
        elif ops.kind[i] == MEMCPY:
            ends = COPY_KINDS[int(ops.copy_kind[i])].upper().replace("-", "_")
            copies.append(
                (pid, *times, text(f"MEMORY_COPY_{ends}"), agent, int(ops.bytes[i]), stream, stack)
            )
    for i in range(len(api)):
        thread = int(api.thread[i])
        pid = pids[int(trace.thread_process[thread])]
        stack = event_id("HIP_RUNTIME_API_EXT", int(api.correlation[i]) + (pid << 32))
        tid = int(trace.threads[thread]) & 0xFFFFFF
        times = int(api.start_ns[i]), int(api.end_ns[i])
        regions.append((pid, tid, *times, text(trace.strings[api.name[i]]), stack))
    for i in np.flatnonzero((ranges.end_ns != NULL) & (ranges.name >= 0)).tolist():
        thread = int(ranges.thread[i])
        pid = pids[int(trace.thread_process[thread])]
        said = json.dumps({"message": trace.range_labels[ranges.name[i]]})
        stack = event_id("MARKER_CORE_RANGE_API", 0, said)
        tid = int(trace.threads[thread]) & 0xFFFFFF
        times = int(ranges.start_ns[i]), int(ranges.end_ns[i])
        regions.append((pid, tid, *times, text("roctxRangePushA"), stack))
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(ROCPD)
        for table in ("string", "info_process", "info_thread", "info_agent", "info_kernel_symbol"):
            db.execute(f"DELETE FROM rocpd_{table}_x")
        db.executemany("INSERT INTO rocpd_event_x VALUES (?, '', ?, ?, ?)", events)
        for table, columns, rows in (
            ("string", "string, id", texts.items()),
            ("info_kernel_symbol", "display_name, id", texts.items()),
            ("info_agent", "id, type, type_index, product_name", [
                (g.id + 1, "GPU", g.id, g.name) for g in trace.gpus
            ]),
            ("kernel_dispatch", "pid, agent_id, kernel_id, stream_id, start, end, event_id",
             kernels),
            ("memory_copy", "pid, start, end, name_id, dst_agent_id, size, stream_id, event_id",
             copies),
            ("region", "pid, tid, start, end, name_id, event_id", regions),
        ):  # fmt: skip
            marks = ", ".join("?" * (columns.count(",") + 1))
            db.executemany(f"INSERT INTO rocpd_{table}_x ({columns}) VALUES ({marks})", rows)
    return path


def xplane_of(trace: Trace, path: Path) -> Path:
    """Write what JAX's profiler would have recorded of a trace of one process."""
    names: dict[str, int] = {}

    def number(said: str) -> int:
        return names.setdefault(said, len(names) + 1)

    ops, api, ranges = trace.ops, trace.api, trace.ranges
    lines: dict[tuple[str, str, int], list[bytes]] = {}

    def add(place: tuple[str, str, int], said: str, start: int, end: int, *stats: bytes) -> None:
        made = event(number(said), start * 1000, (end - start) * 1000, *stats)
        lines.setdefault(place, []).append(made)

    def tied(correlation: int) -> bytes:
        return field(1, 1) + field(4, correlation)

    for i in range(len(ops)):
        stream = int(ops.stream[i])
        line = f"/device:GPU:{int(ops.device[i])}", f"Stream #{stream}", stream
        stats, said = [tied(int(ops.correlation[i]))], "Memset"
        if ops.kind[i] == KERNEL:
            said = trace.strings[ops.name[i]]
        elif ops.kind[i] == MEMCPY:
            one, _, other = COPY_KINDS[int(ops.copy_kind[i])].partition("-to-")
            said = f"Memcpy{one[0]}2{other[0]}"
            ends = (MEMORY_KINDS[int(k[i])] for k in (ops.src_kind, ops.dst_kind))
            details = "kind_src:{} kind_dst:{} size:{} async:1"
            stats.append(field(1, 2) + field(5, details.format(*ends, int(ops.bytes[i]))))
        add(line, said, int(ops.start_ns[i]), int(ops.end_ns[i]), *stats)
    for i in range(len(api)):
        line = "/host:CPU", "", int(trace.threads[api.thread[i]]) & 0xFFFF
        times = int(api.start_ns[i]), int(api.end_ns[i])
        add(line, trace.strings[api.name[i]], *times, tied(int(api.correlation[i])))
    for i in np.flatnonzero((ranges.end_ns != NULL) & (ranges.name >= 0)).tolist():
        line = "/host:CPU", "", int(trace.threads[ranges.thread[i]]) & 0xFFFF
        times = int(ranges.start_ns[i]), int(ranges.end_ns[i])
        add(line, trace.range_labels[ranges.name[i]], *times)

    def entry(of: int, i: int, name: str) -> bytes:
        return field(of, field(1, i) + field(2, field(1, i) + field(2, name)))

    table = b"".join(entry(4, i, name) for name, i in names.items())
    table += entry(5, 1, "correlation_id") + entry(5, 2, "memcpy_details")
    planes: dict[str, bytes] = {}
    for (plane_name, name, i), made in lines.items():
        line_bytes = field(1, i) + field(2, name) + field(3, 0) + b"".join(made)
        planes[plane_name] = planes.get(plane_name, b"") + field(3, line_bytes)
    path.write_bytes(b"".join(field(1, field(2, n) + body + table) for n, body in planes.items()))
    return path
