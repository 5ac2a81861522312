"""Files of other profilers: XPlane of JAX, and rocprofv3's rocpd."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.base.errors import ReportError, SchemaError
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.trace import KERNEL, MEMCPY
from perfmodel.timing.launched import launched
from support.build_kineto import write

PUBLIC: Final = Path(__file__).parents[1] / "reports" / "public"


def test_xplane_of_jax() -> None:
    trace = read(PUBLIC / "jax_te_mi355x.xplane.pb.xz")
    assert trace.recorder == "XPlane"
    assert len(trace.ops) == 150
    assert len(launched(trace).op) == 150  # each has the call that launched it
    assert "GpuExecutable::ExecuteThunks" in trace.range_labels
    assert {(gpu.sm_count, gpu.compute_capability) for gpu in trace.gpus} == {(256, (9, 5))}
    assert int(trace.api.start_ns.min()) >= 0


def test_chrome_traces_of_jax_are_refused(tmp_path: Path) -> None:
    """What jax.profiler writes beside the .xplane.pb file, as tensorboard reads it."""
    events = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "X", "pid": 1, "tid": 14, "ts": 1.5, "dur": 2.0, "name": "fusion_1"},
    ]
    path = write(tmp_path / "t.trace.json.gz", {"displayTimeUnit": "ns", "traceEvents": events})
    with pytest.raises(SchemaError, match=r"JAX or TensorFlow.*give the \.xplane\.pb file"):
        read(path)


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


def test_copies_of_xplane(tmp_path: Path) -> None:
    details = "kind_src:pageable kind_dst:device size:3136 dest:0 async:1"
    path = tmp_path / "t.xplane.pb"
    path.write_bytes(plane("/device:GPU:3", "Stream #14(MemcpyH2D)", "MemcpyH2D", details)
                     + plane("/device:GPU:3", "XLA Ops", "fusion.1")
                     + plane("/host:CPU", "python", "train_step"))  # fmt: skip
    trace = read(path)
    ops = trace.ops
    assert ops.kind.tolist() == [MEMCPY]
    assert (ops.device[0], ops.stream[0], ops.bytes[0]) == (3, 14, 3136)
    assert (ops.copy_kind[0], ops.src_kind[0], ops.dst_kind[0]) == (1, 0, 2)
    assert (ops.start_ns[0], ops.end_ns[0]) == (0, 2000)
    assert trace.range_labels == ("train_step",)


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (plane("/device:TPU:0", "XLA Ops", "fusion.1"), SchemaError, "got /device:TPU:0; record"),
        (b"\x0a\xff\xff", ReportError, "end too early"),
        (b"hello, world", ReportError, "copy it again"),
    ],
)
def test_planes_that_are_refused(
    tmp_path: Path, content: bytes, error: type[Exception], said: str
) -> None:
    path = tmp_path / "t.pb"
    path.write_bytes(content)
    with pytest.raises(error, match=said):
        read(path)


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


def test_rocpd(tmp_path: Path) -> None:
    trace = read(rocpd(tmp_path / "r.db"))
    assert trace.recorder == "rocprofv3"
    assert trace.range_labels == tuple(f"step {i}" for i in range(4))
    assert trace.ops.kind.tolist() == [KERNEL] * 4 + [MEMCPY] * 4
    assert {trace.strings[code] for code in trace.ops.name[:4]} == {"saxpy(float*)"}
    assert {trace.strings[code] for code in trace.api.name} == {"hipLaunchKernel", "hipMemcpyAsync"}
    assert len(launched(trace).op) == 8
    assert set(trace.ops.device.tolist()) == {2}
    assert trace.ops.bytes[4:].tolist() == [4096] * 4
    assert trace.ops.copy_kind[4:].tolist() == [1] * 4
    assert not trace.single
    assert [gpu.name for gpu in trace.gpus] == ["AMD Instinct MI300X"]
    run = analyze_reports([tmp_path / "r.db"], Options()).fitted
    assert run.batch.label == "step *"
    assert run.steps is not None
    assert run.steps.median_s == pytest.approx(1e-3)
