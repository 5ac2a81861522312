"""Files of other profilers: XPlane of JAX, and rocprofv3's rocpd."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.base.errors import ReportError, SchemaError
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.trace import KERNEL, MEMCPY, MEMSET
from perfmodel.timing.launched import launched
from support.build_kineto import write
from support.build_others import FACTS, field, plane, rocpd, small_xplane, xplane_with_facts
from support.public_recordings import small


def test_xplane_of_jax() -> None:
    trace = read(small("jax_te_mi355x.xplane.pb.xz"))
    assert trace.recorder == "XPlane"
    assert len(trace.ops) == 150
    assert len(launched(trace).op) == 150  # each has the call that launched it
    assert "GpuExecutable::ExecuteThunks" in trace.range_labels
    assert {(gpu.sm_count, gpu.compute_capability) for gpu in trace.gpus} == {(256, (9, 5))}
    assert int(trace.api.start_ns.min()) >= 0


def test_xplane_of_an_amd_gpu(tmp_path: Path) -> None:
    path, zero = tmp_path / "t.xplane.pb", 1_790_857_026 * 10**9
    path.write_bytes(xplane_with_facts(zero))
    trace = read(path)
    (gpu,) = trace.gpus
    assert (gpu.id, gpu.name, gpu.compute_capability) == (2, "AMD Instinct MI300X", (9, 4))
    assert (gpu.sm_count, gpu.clock_hz) == (FACTS["core_count"], FACTS["clock_rate"])
    assert gpu.memory_bandwidth_bytes_per_s == FACTS["memory_bandwidth"]
    assert gpu.memory_bytes == FACTS["memory_size"]
    ops, order = trace.ops, trace.ops.start_ns.argsort()
    at_us = (ops.start_ns[order] // 1000).tolist()  # from the first event of any plane
    assert at_us == [100, 150, 200, 250]
    assert (ops.end_ns - ops.start_ns).tolist() == [20_000] * 4
    assert ops.kind[order].tolist() == [MEMSET, KERNEL, KERNEL, MEMCPY]
    set_, kernel, _, copy = order.tolist()
    assert trace.strings[ops.name[kernel]] == "gemm_fusion"  # without .kd, of its descriptor
    assert (ops.bytes[set_], ops.bytes[copy]) == (128, 512)
    assert (ops.copy_kind[copy], ops.src_kind[copy], ops.dst_kind[copy]) == (8, 2, 2)
    assert set(ops.device.tolist()) == {2}
    assert set(ops.stream.tolist()) == {3}
    assert trace.utc_start_ns == zero
    found = launched(trace)
    calls = zip(found.op.tolist(), found.call.tolist(), strict=True)
    called = {op: trace.strings[trace.api.name[call]] for op, call in calls}
    assert [called[op] for op in (set_, kernel, copy)] == [
        "hipMemsetAsync", "hipModuleLaunchKernel", "hipMemcpyAsync",
    ]  # fmt: skip
    assert trace.range_labels == ("train_step", "$train.py:7 load")  # of the host's plane alone
    assert len(set(trace.ranges.thread.tolist())) == len(trace.threads) == 2


def test_chrome_traces_of_jax_are_refused(tmp_path: Path) -> None:
    """What jax.profiler writes beside the .xplane.pb file, as tensorboard reads it."""
    events = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "X", "pid": 1, "tid": 14, "ts": 1.5, "dur": 2.0, "name": "fusion_1"},
    ]
    path = write(tmp_path / "t.trace.json.gz", {"displayTimeUnit": "ns", "traceEvents": events})
    with pytest.raises(SchemaError, match=r"JAX or TensorFlow.*give the \.xplane\.pb file"):
        read(path)


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
    assert run.run_steps.step_s == pytest.approx(1e-3)


def test_copies_to_the_host_are_of_the_gpu_that_they_come_from(tmp_path: Path) -> None:
    path = rocpd(tmp_path / "r.db")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE rocpd_string_x SET string = 'MEMORY_COPY_DEVICE_TO_HOST' WHERE id = 5")
        db.execute("UPDATE rocpd_memory_copy_x SET src_agent_id = 4, dst_agent_id = 1")
    ops = read(path).ops
    assert ops.device.tolist() == [2] * 8
    assert ops.copy_kind[4:].tolist() == [2] * 4


@pytest.mark.parametrize("shape", ["workgroup_size_x = 1000", "grid_size_x = 257"])
def test_the_last_block_of_a_launch_may_be_cut(shape: str, tmp_path: Path) -> None:
    """A grid of 1024 threads in blocks of 1000, or of 257 in blocks of 256, has two blocks."""
    path = rocpd(tmp_path / "r.db")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE rocpd_kernel_dispatch_x SET {shape}, grid_size_y = 1")
    assert not read(path).single
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE rocpd_kernel_dispatch_x SET grid_size_x = workgroup_size_x")
    assert read(path).single


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("kernel_dispatch", "workgroup_size_x"),
        ("kernel_dispatch", "grid_size_x"),
        ("region", "tid"),
    ],
)
@pytest.mark.parametrize("odd", ["'x'", "0.5", "-3", "1e300"])
def test_odd_shapes_and_threads_of_rocprof(
    table: str, column: str, odd: str, tmp_path: Path
) -> None:
    path = rocpd(tmp_path / "r.db")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"CREATE TABLE t AS SELECT * FROM rocpd_{table}_x")
        db.execute(f"UPDATE t SET {column} = {odd}")
        db.execute(f"DROP TABLE rocpd_{table}_x")
        db.execute(f"ALTER TABLE t RENAME TO rocpd_{table}_x")
    trace = read(path)
    assert not trace.single
    assert len(trace.threads) == 1


@pytest.mark.parametrize("damage", [
    field(1, field(2, 7)),  # a name that is a number
    field(1, field(2, "/device:GPU:0") + field(3, 5)),  # a line that is a number
    field(1, field(2, "/device:GPU:0") + field(3, field(2, "Stream #1") + field(4, 9))),
    field(1, field(2, "/device:GPU:0") + field(3, field(2, "Stream #1") + field(4, b"\x08\xff"))),
    field(1, field(2, "/device:GPU:0") + field(3, field(3, "x") + field(4, b"\x10\1"))),
    b"\x0a" + b"\xff" * 1_000_000,  # a length without an end
])  # fmt: skip
def test_damaged_planes_are_one_error(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.pb"
    path.write_bytes(small_xplane() + damage)
    with pytest.raises(ReportError, match="copy it again"):
        read(path)


def test_a_small_xplane_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.pb"
    path.write_bytes(small_xplane())
    trace = read(path)
    assert len(launched(trace).op) == 8
    assert trace.range_labels == ("train_step",)
    assert trace.ops.bytes.max() == 64
